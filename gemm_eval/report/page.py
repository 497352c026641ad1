"""A report as one HTML file that loads nothing: text, facts, sortable tables, figures and interactive charts.

A `Page` has sections, a `Section` parts; every part is plain data, and all of it is escaped. The file carries its style
and script, and a content security policy under which nothing else runs or loads::

    points = Chart(columns, rows, x="area", y="latency", highlight=is_on_front, caption="8,400 designs")
    Page("Sweep of demo-8core", sections=[Section("Designs", [points, Table(columns, rows)])]).write("sweep.html")
"""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
import os
import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gemm_eval.errors import GemmEvalError
from gemm_eval.report.asset import asset
from gemm_eval.report.markup import escape, part_html
from gemm_eval.report.parts import Part

__all__ = ["Page", "Section"]

_SCRIPTS = ("units", "axes", "filter", "tables", "charts", "bars", "page")


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands below it."""

    heading: str
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class Page:
    """A report: `to_html` gives it as text, `write` as a file.

    Attributes:
        title: what it is about.
        subtitle: a line below.
        sections: what can be scrolled to.
        lead: what is seen first, above the sections: a `Verdict`, and the picture that shows it.
    """

    title: str
    subtitle: str = ""
    sections: Sequence[Section] = ()
    lead: Sequence[Part] = ()

    def to_html(self) -> str:
        """Return the whole document. The same page gives the same text.

        Raises:
            InvalidOptionError: a figure cannot be embedded, or a cell is not what its column says.
        """
        numbers = itertools.count(1)
        style, script = asset("page.css"), _script()
        anchored = [(f"section-{next(numbers)}", section) for section in self.sections]
        links = "".join(f'<li><a href="#{anchor}">{escape(s.heading)}</a></li>' for anchor, s in anchored)
        return string.Template(asset("page.html")).substitute(
            policy=f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)}; img-src data:; "
            "base-uri 'none'; form-action 'none'",
            title=escape(self.title),
            subtitle=f'<p class="subtitle">{escape(self.subtitle)}</p>' if self.subtitle else "",
            contents=f'<nav aria-label="Contents"><ul>{links}</ul></nav>' if len(anchored) > 1 else "",
            lead=f'<div class="lead">{"".join(part_html(part, f"part-{next(numbers)}") for part in self.lead)}</div>'
            if self.lead
            else "",
            style=style,
            script=script,
            sections="\n".join(
                f'<section aria-labelledby="{anchor}">\n<h2 id="{anchor}">{escape(section.heading)}</h2>\n'
                + "\n".join(part_html(part, f"part-{next(numbers)}") for part in section.parts)
                + "\n</section>"
                for anchor, section in anchored
            ),
        )

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the page, whole or not at all, over the file at `path` if there is one; return its path.

        Raises:
            GemmEvalError: something that is no file is at `path`, or it cannot be written.
        """
        from gemm_eval.storage import write_text

        target = Path(path)
        if target.exists() and not target.is_file():
            raise GemmEvalError(f"cannot write {target}: it is there and is not a file")
        write_text(target, self.to_html())
        return target


@functools.cache
def _script() -> str:
    return '"use strict";\n(() => {\n' + "\n\n".join(asset(f"{name}.js") for name in _SCRIPTS) + "\n})();"


def _source(code: str) -> str:
    """A source expression of a content security policy that allows exactly this code."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"
