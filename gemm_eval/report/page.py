"""A report as one HTML file that loads nothing: text, facts, sortable tables, figures and interactive charts.

A `Page` has sections, a `Section` parts; every part is plain data, and the template escapes all of it. The file carries
its style and script, and a content security policy under which nothing else runs or loads.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import importlib.resources
import io
import itertools
import math
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from gemm_eval.errors import GemmEvalError
from gemm_eval.report.parts import Bars, Cell, Chart, Column, Figure, Part, Table
from gemm_eval.words import needs_extra, visible

if TYPE_CHECKING:
    import jinja2
    import matplotlib.figure


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands below it."""

    heading: str
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class Page:
    """A report: `to_html` gives it as text, `write` as a file.

    >>> points = Chart(columns, rows, x="area", y="latency", highlight=is_on_front)      # doctest: +SKIP
    >>> Page("Sweep", sections=[Section("Designs", [points, Table(columns, rows)])]).write("sweep.html")

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
        """Return the document, the same text for the same page; InvalidOptionError: a cell does not fit its column."""
        numbers = itertools.count(1)
        anchors = [f"section-{next(numbers)}" for _ in self.sections]

        def prepared(parts: Sequence[Part]) -> list[dict[str, Any]]:
            return [_prepared(part, f"part-{next(numbers)}") for part in parts]

        lead = prepared(self.lead)
        parts = [prepared(section.parts) for section in self.sections]
        sections = list(zip(anchors, [section.heading for section in self.sections], parts, strict=True))
        style, script = asset("page.css"), "\n\n".join(asset(f"{name}.js") for name in _SCRIPTS)
        script = f'"use strict";\n(() => {{\n{script}\n}})();'
        policy = f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)}; img-src data:; "
        policy += "base-uri 'none'; form-action 'none'"
        words = {"lead": lead, "sections": sections, "style": style, "script": script, "policy": policy}
        return _template().render(page=self, **words).strip()

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the page atomically to `path`, and return its path; GemmEvalError: `path` is not writable."""
        from gemm_eval.storage import write_text

        target = Path(path)
        if target.exists() and not target.is_file():
            raise GemmEvalError(f"cannot write {target}: it is there and is not a file")
        write_text(target, self.to_html())
        return target


@functools.cache
def asset(name: str) -> str:
    """Return the text of a file of `assets`."""
    return (importlib.resources.files("gemm_eval.report") / "assets" / name).read_text(encoding="utf-8").strip()


_SCRIPTS = ("units", "axes", "filter", "tables", "charts", "bars", "page")


def _source(code: str) -> str:
    """Return a source expression of a content security policy that allows exactly this code."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"


_CODE = re.compile(r"`([^`\n]+)`")
_UNIT = re.compile(r"(?<=\d) (?=(?:[num]?s|[KMGT]?i?B|[num]?J|W|GB/s|TFLOP/s|tokens/s)(?![\w/]))")


@functools.cache
def _template() -> jinja2.Template:
    """Return the template of pages: whatever text it writes is escaped, and what is not seen in it written out."""
    with needs_extra("a page", "plot"):
        import jinja2

    def written(value: Any) -> Any:
        return visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value

    env = jinja2.Environment(autoescape=True, finalize=written, trim_blocks=True, lstrip_blocks=True)
    env.undefined = jinja2.StrictUndefined
    env.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
    env.filters |= {
        "code": lambda text: _CODE.sub(r"<code>\1</code>", html.escape(visible(text))),
        "paragraphs": lambda text: [paragraph.split("\n") for paragraph in re.split(r"\n\s*\n", text.strip())],
        "beside_units": lambda text: _UNIT.sub("\N{NO-BREAK SPACE}", text),  # numbers stay on a line with their units
    }
    return env.from_string(asset("page.html"))


def _prepared(part: Part, name: str) -> dict[str, Any]:
    """Return a part as the template takes it: its kind, an id that no other part has, and what has to be computed."""
    more: dict[str, Any] = {}
    if isinstance(part, Table):
        more = _table(part)
    elif isinstance(part, Figure):
        more = {"svg": _inline_svg(part.figure, name, visible(part.caption))}
    elif isinstance(part, Chart):
        more = _chart(part)
    elif isinstance(part, Bars):
        used = {what for panel in part.panels for bar in panel.bars for what, _ in bar.segments}
        legend = [{"name": what, "color": color} for what, color in part.colors.items() if what in used]
        panels = [asdict(panel) for panel in part.panels]
        more = {"data": _plain({"panels": panels, "legend": legend, "kind": part.kind, "caption": part.caption})}
    return {"kind": type(part).__name__.lower(), "part": part, "id": name, **more}


_DATA_DIGITS = 9


def _plain(data: Any) -> Any:
    """Return data for a script: texts that are seen as they are, numbers of nine digits."""
    if isinstance(data, dict):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    if isinstance(data, float):
        return float(f"{data:.{_DATA_DIGITS}g}")
    return visible(data) if isinstance(data, str) else data


_FILTER_FROM_ROWS = 20  # shorter tables are read at a glance
_WRAPPED_CHARS, _LONG_TEXT_CHARS = 32, 160  # longer text wraps in a column of its own width; much longer, of a wide one


def _table(table: Table) -> dict[str, Any]:
    def cell(column: Column, value: Cell) -> tuple[str, str, str | None]:
        """Return the text of a cell, its classes, and what it is sorted by where that is not the text."""
        text = column.format(value)
        if not text:
            return "\N{EN DASH}", "missing" if column.kind == "text" else "n missing", ""
        if column.kind == "text":
            return text, "long" if len(text) > _LONG_TEXT_CHARS else "wrap" if len(text) > _WRAPPED_CHARS else "", None
        is_whole = isinstance(value, Integral)
        number = f"{value:d}" if is_whole else f"{float(value or 0.0):.{_DATA_DIGITS}g}"
        return text, "n", None if is_whole and not column.is_scaled else number

    rows = table.rows[: table.max_rows]
    notes = [f"The first {len(rows):,} of {len(table.rows):,} rows."] if len(rows) < len(table.rows) else []
    example = ""
    if len(rows) >= _FILTER_FROM_ROWS:  # a filter that holds for some of the rows
        varied = [
            f"{column.heading} <= {column.format(value)}"
            for at, (column, value) in enumerate(zip(table.columns, rows[len(rows) // 2], strict=True))
            if at and column.kind != "text" and column.format(value) and len({row[at] for row in rows}) > 1
        ]
        example = " and ".join(varied[:1] + varied[-1:])
    return {
        "rows": [[cell(*item) for item in zip(table.columns, row, strict=True)] for row in rows],
        "has_filter": len(rows) >= _FILTER_FROM_ROWS,
        "example": example,
        "note": " ".join([*notes, *([table.note] if table.note else [])]),
    }


def _chart(chart: Chart) -> dict[str, Any]:
    names = [column.name for column in chart.columns]
    axes = [(names.index(chart.x), chart.log_x), (names.index(chart.y), chart.log_y)]
    marks = chart.highlight if chart.highlight is not None else [False] * len(chart.rows)

    def can_place(value: Cell, is_log: bool) -> bool:
        return isinstance(value, Real) and math.isfinite(value) and (value > 0 or not is_log)

    placed = [at for at, row in enumerate(chart.rows) if all(can_place(row[place], is_log) for place, is_log in axes)]
    plain = [at for at in placed if not marks[at]]
    stride = math.ceil(len(plain) / max(1, chart.max_points))
    left_out = set(plain).difference(plain[:: max(1, stride)])
    drawn = [at for at in placed if at not in left_out]
    place_of = {at: place for place, at in enumerate(drawn)}
    rows = [chart.rows[at] for at in drawn]
    notes = []
    if left_out:
        notes.append(f"{len(drawn):,} of {len(placed):,} points are drawn; none that stands out is left out.")
    if len(placed) < len(chart.rows):
        notes.append(f"{len(chart.rows) - len(placed):,} of {len(chart.rows):,} points have no place on these axes.")
    data = {
        "axes": [
            {
                "name": chart.columns[place].heading, "unit": chart.columns[place].unit,
                "kind": chart.columns[place].kind, "log": is_log, "values": [float(row[place] or 0.0) for row in rows],
            }
            for place, is_log in axes
        ],
        "columns": [
            {"name": column.heading, "unit": column.unit, "texts": [column.format(row[place]) for row in rows]}
            for place, column in enumerate(chart.columns)
        ],
        "highlight": [place for place, at in enumerate(drawn) if marks[at]],
        "joined": chart.joined,
        "names": [[place_of[at], name] for at, name in chart.names.items() if at in place_of],
        "labels": [chart.highlight_label, chart.label],
        "caption": chart.caption or f"{chart.y} over {chart.x}",
    }  # fmt: skip
    caption = f"{chart.caption}." if notes and chart.caption and not chart.caption.endswith(".") else chart.caption
    return {"data": _plain(data), "caption": " ".join(filter(None, [caption, *notes]))}


_PX_PER_PT = 4 / 3  # as CSS defines them
_DROPPED_ELEMENTS = ("style", "metadata")
_LINK = re.compile(r"url\(#")
_PAINTS = ("fill", "stroke", "color", "stop-color", "flood-color")
_NEUTRALS = re.compile(r"--(text|muted|line|raised|back): (#[0-9a-f]{6})")
# what matplotlib paints its texts, grid and the frame of its legends with
_ALSO = {"#000000": "text", "black": "text", "white": "back", "#b0b0b0": "line", "#cccccc": "line"}


def matplotlib_svg(figure: matplotlib.figure.Figure) -> str:
    """Return a matplotlib figure as SVG text, the same in every run."""
    with needs_extra("plotting", "plot"):
        import matplotlib as mpl

    text = io.StringIO()
    # letters as outlines: the reader may not have the font; the salt makes ids the same in every run
    with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": "gemm_eval"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _inline_svg(figure: matplotlib.figure.Figure, prefix: str, label: str) -> str:
    """Return a figure as SVG that can stand in a page: ids that no other part has, and no style, which is not allowed.

    Black, white and the neutral colours of plots become the page's own, which are others when it is dark. `label` says
    what the drawing shows, for those who cannot see it.
    """
    root = ElementTree.fromstring(matplotlib_svg(figure))
    sheet = next(element.text or "" for element in root.iter() if _local(element.tag) == "style")
    root.attrib = _declarations(sheet.strip().removeprefix("*{").removesuffix("}")) | root.attrib  # it is of all
    _clean(root, prefix)
    sizes = {key: f"{float(root.attrib[key].removesuffix('pt')) * _PX_PER_PT:g}" for key in ("width", "height")}
    root.attrib.setdefault("fill", "var(--text)")  # what has no colour is black
    root.attrib |= sizes | {"role": "img", "aria-label": label or "Figure"}
    return ElementTree.tostring(root, encoding="unicode").strip()


def _clean(element: ElementTree.Element, prefix: str) -> None:
    """Take names out of their namespaces, styles into attributes, and ids and links behind `prefix`."""
    element.tag = _local(element.tag)
    attributes = {_local(key): value for key, value in element.attrib.items()}
    attributes |= _declarations(attributes.pop("style", ""))
    for key, value in attributes.items():
        if key == "id":
            attributes[key] = f"{prefix}-{value}"
        elif key == "href" and value.startswith("#"):
            attributes[key] = f"#{prefix}-{value[1:]}"
        elif key in _PAINTS and value.lower() in _neutrals():
            attributes[key] = f"var(--{_neutrals()[value.lower()]})"
        else:
            attributes[key] = _LINK.sub(rf"\g<0>{prefix}-", value)
    element.attrib = attributes
    for child in list(element):
        if _local(child.tag) in _DROPPED_ELEMENTS:
            element.remove(child)
        else:
            _clean(child, prefix)


@functools.cache
def _neutrals() -> dict[str, str]:
    """Colours without a meaning of their own: which of the page's they become, those of its light look first of all."""
    light = asset("page.css").partition("}")[0]
    return _ALSO | {color: name for name, color in _NEUTRALS.findall(light)}


def _declarations(style: str) -> dict[str, str]:
    pairs = (declaration.partition(":") for declaration in style.split(";"))
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def _local(name: object) -> str:
    return str(name).rpartition("}")[2]
