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
import html
import importlib.resources
import io
import itertools
import json
import math
import os
import re
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.extras import needs_extra
from gemm_eval.report.parts import Bars, Cell, Chart, Column, Facts, Figure, Part, Table, Text, Verdict
from gemm_eval.words import shown, visible

if TYPE_CHECKING:
    import matplotlib.figure


@functools.cache
def asset(name: str) -> str:
    """Return the text of a file of `assets`."""
    return (importlib.resources.files("gemm_eval.report") / "assets" / name).read_text(encoding="utf-8").strip()


_PX_PER_UNIT = {"": 1.0, "px": 1.0, "pt": 4 / 3, "in": 96.0}  # CSS defines them so
_DROPPED_ELEMENTS = ("style", "script", "metadata", "foreignObject")
_LINK = re.compile(r"""url\(["']?#""")
_OUTSIDE_LINK = re.compile(r"""url\((?!["']?#)""")
_STYLE_OF_ALL = re.compile(r"\s*\*\s*\{([^{}]*)\}\s*")  # the only rule that matplotlib writes
_PAINTS = ("fill", "stroke", "color", "stop-color", "flood-color")
_NEUTRALS = re.compile(r"--(text|muted|line|raised|back): (#[0-9a-f]{6})")
# what stands for them in figures that are not ours; the last two are matplotlib's grid and the frame of its legends
_ALSO = {
    "#000000": "text", "#000": "text", "black": "text", "#fff": "back", "white": "back", "#b0b0b0": "line",
    "#cccccc": "line",
}  # fmt: skip


def matplotlib_svg(figure: matplotlib.figure.Figure) -> str:
    """Return a matplotlib figure as SVG text, the same in every run."""
    with needs_extra("plotting", "plot"):
        import matplotlib as mpl

    text = io.StringIO()
    # letters as outlines: the reader may not have the font; the salt makes ids the same in every run
    with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": "gemm_eval"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def inline_svg(svg: str, prefix: str, label: str) -> str:
    """Return SVG that can stand in a page: ids that no other part has, nothing that the page's policy would block.

    Black, white and the neutral colours of plots become the page's own, which are others when it is dark.

    Args:
        svg: the drawing; styles are attributes.
        prefix: stands before all of its ids.
        label: what the drawing shows, for those who cannot see it.
    """
    try:
        root = ElementTree.fromstring(svg)
    except ElementTree.ParseError as error:
        raise InvalidOptionError(f"a figure must be well-formed SVG: {error}") from None
    if _local(root.tag) != "svg":
        raise InvalidOptionError(f"a figure must be SVG, got <{_local(root.tag)}>")
    inherited: dict[str, str] = {}
    for element in root.iter():
        if _local(element.tag) == "style":
            inherited |= _style_of_all(element.text or "")
    root.attrib = inherited | root.attrib
    _clean(root, prefix)
    width, height = (_pixels(root.get(key, "")) for key in ("width", "height"))
    if not (width and height):
        raise InvalidOptionError(
            f"width and height of a figure must be lengths in px, pt or in, got {shown(root.get('width'))}, "
            f"{root.get('height')!r}"
        )
    root.attrib.setdefault("fill", "var(--text)")  # what has no colour is black
    root.attrib.setdefault("viewBox", f"0 0 {width:g} {height:g}")
    root.attrib |= {"width": f"{width:g}", "height": f"{height:g}", "role": "img", "aria-label": label or "Figure"}
    return ElementTree.tostring(root, encoding="unicode").strip()


def _clean(element: ElementTree.Element, prefix: str) -> None:
    """Take names out of their namespaces, styles into attributes, ids and links behind `prefix`; drop what acts."""
    element.tag = _local(element.tag)
    attributes = {_local(key): value for key, value in element.attrib.items()}
    attributes |= _declarations(attributes.pop("style", ""))
    if not attributes.get("href", "#").startswith(("#", "data:image/")):
        del attributes["href"]
    element.attrib = {
        key: _renamed(key, value, prefix)
        for key, value in attributes.items()
        if not key.startswith("on") and not _OUTSIDE_LINK.search(value)
    }
    for child in list(element):
        if _local(child.tag) in _DROPPED_ELEMENTS:
            element.remove(child)
        else:
            _clean(child, prefix)


def _renamed(key: str, value: str, prefix: str) -> str:
    if key == "id":
        return f"{prefix}-{value}"
    if key == "href" and value.startswith("#"):
        return f"#{prefix}-{value[1:]}"
    if key in _PAINTS and value.lower() in _of_page():
        return f"var(--{_of_page()[value.lower()]})"
    return _LINK.sub(rf"\g<0>{prefix}-", value)


@functools.cache
def _of_page() -> dict[str, str]:
    """Colours without a meaning of their own: which of the page's they become, those of its light look first of all."""
    light = asset("page.css").partition("}")[0]
    return _ALSO | {color: name for name, color in _NEUTRALS.findall(light)}


def _style_of_all(sheet: str) -> dict[str, str]:
    match = _STYLE_OF_ALL.fullmatch(sheet)
    if match is None:
        raise InvalidOptionError(f"styles of a figure must be attributes, not a style sheet: {sheet.strip()[:60]!r}")
    return _declarations(match[1])


def _declarations(style: str) -> dict[str, str]:
    pairs = (declaration.partition(":") for declaration in style.split(";"))
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def _local(name: object) -> str:
    return str(name).rpartition("}")[2]


def _pixels(length: str) -> float:
    match = re.fullmatch(r"([0-9.]+)([a-z]*)", length)
    return float(match[1]) * _PX_PER_UNIT.get(match[2], 0.0) if match else 0.0


_MISSING = "\N{EN DASH}"
_FILTER_FROM_ROWS = 20  # shorter tables are read at a glance
_WRAPPED_CHARS, _LONG_TEXT_CHARS = (
    32,
    160,
)  # longer text may wrap, in a column of its own width; much longer, a wide one
_CODE, _CODE_HTML = re.compile(r"`([^`\n]+)`"), r"<code>\1</code>"
_UNIT = re.compile(r"(?<=\d) (?=(?:[num]?s|[KMGT]?i?B|[num]?J|W|GB/s|TFLOP/s|tokens/s)(?![\w/]))")
_SORT_DIGITS = 9


def escape(text: str) -> str:
    """Return text as it stands in HTML, what is not seen written out."""
    return html.escape(visible(text))


def part_html(part: Part, name: str) -> str:
    """Return a part as HTML.

    Args:
        part: any of them.
        name: an id that no other part of the page has.
    """
    if isinstance(part, Text):
        title = f"<h3>{escape(part.title)}</h3>" if part.title else ""
        paragraphs = re.split(r"\n\s*\n", part.text.strip())
        return title + "".join(f"<p>{_CODE.sub(_CODE_HTML, _lines_html(paragraph))}</p>" for paragraph in paragraphs)
    if isinstance(part, Facts):
        items = "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>" for key, value in part.items)
        return f'<dl class="facts">{items}</dl>'
    if isinstance(part, Table):
        return _table_html(part, name)
    if isinstance(part, Verdict):
        points = "".join(f"<div><dt>{escape(word)}</dt><dd>{_kept(text)}</dd></div>" for word, text in part.points)
        return f'<div class="verdict"><p>{_kept(part.headline)}</p>{f"<dl>{points}</dl>" if points else ""}</div>'
    if isinstance(part, Bars):
        return _bars_html(part, name)
    return _figure_html(part, name) if isinstance(part, Figure) else _chart_html(part, name)


def _kept(text: str) -> str:
    """Text as HTML, numbers on one line with their units."""
    return _UNIT.sub("&nbsp;", escape(text))


def _lines_html(paragraph: str) -> str:
    lines = paragraph.split("\n")
    if len(lines) == 1:
        return escape(lines[0])
    return "".join(f'<span class="line">{escape(line)}</span>' for line in lines)


def _table_html(table: Table, name: str) -> str:
    shown = table.rows[: table.max_rows]
    notes = [f"The first {len(shown):,} of {len(table.rows):,} rows."] if len(shown) < len(table.rows) else []
    notes += [table.note] if table.note else []
    heads = "".join(
        f'<th scope="col" aria-sort="none"{_about(column)}><button type="button">'
        f"<span>{escape(column.heading)}{_unit(column)}</span></button></th>"
        for column in table.columns
    )
    body = "\n".join(f"<tr>{''.join(_cells(table.columns, row))}</tr>" for row in shown)
    label = f'aria-labelledby="{name}"' if table.caption else 'aria-label="Table"'
    return (
        '<figure class="table">'
        + (f'<figcaption id="{name}">{escape(table.caption)}</figcaption>' if table.caption else "")
        + (_filter(table.columns, shown) if len(shown) >= _FILTER_FROM_ROWS else "")
        + f'<div class="scroll" tabindex="0" role="region" {label}><table {label}>\n'
        + f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
        + (f'<p class="note">{escape(" ".join(notes))}</p>' if notes else "")
        + "</figure>"
    )


_FILTER_HELP = (
    "Compare columns: num_cores = 64, latency < 5 ms, area <= 200 and sram >= 2 MiB, 16 <= num_cores <= 64. "
    "Signs: = != < <= > >=. Link conditions by and, or, not and parentheses. Any other word must be in the row."
)


def _filter(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> str:
    """The field for expressions, with one that holds for some of the rows as an example."""
    middle = rows[len(rows) // 2]
    examples = [
        f"{column.heading} <= {column.format(value)}"
        for column, value in zip(columns[1:], middle[1:], strict=True)
        if column.kind != "text" and column.format(value) and len({row[columns.index(column)] for row in rows}) > 1
    ]
    return (
        f'<div class="filter" hidden title="{escape(_FILTER_HELP)}"><label>Filter <input type="search" '
        f'autocomplete="off" autocapitalize="off" spellcheck="false" '
        f'placeholder="{escape(" and ".join(examples[:1] + examples[-1:]))}"></label>'
        '<output aria-live="polite"></output></div>'
    )


def _about(column: Column) -> str:
    """Return the attributes of a column that filter expressions read."""
    attributes = f' data-kind="{"text" if column.kind == "text" else "number"}" data-heading="{escape(column.heading)}"'
    if column.name != column.heading:
        attributes += f' data-name="{escape(column.name)}" title="{escape(column.name)}"'
    if column.base_unit:
        attributes += f' data-unit="{escape(column.base_unit)}"'
    return attributes + (" data-scaled" if column.is_scaled else "")


def _unit(column: Column) -> str:
    return f' <span class="unit">{escape(column.unit)}</span>' if column.unit else ""


def _cells(columns: Sequence[Column], row: Sequence[Cell]) -> Iterator[str]:
    for index, (column, value) in enumerate(zip(columns, row, strict=True)):
        text = column.format(value)
        words = ["n"] if column.kind != "text" else _widths(text)
        words += [] if text else ["missing"]
        attributes = f' class="{" ".join(words)}"' if words else ""
        if not text:
            attributes += ' data-v=""'
        elif isinstance(value, Real) and (
            column.is_scaled or (column.kind == "number" and not isinstance(value, Integral))
        ):
            number = f"{int(value)}" if isinstance(value, Integral) else f"{float(value):.{_SORT_DIGITS}g}"
            attributes += f' data-v="{number}"'  # what it is sorted by; the text is rounded
        tag, scope = ("td", "") if index else ("th", ' scope="row"')
        yield f"<{tag}{scope}{attributes}>{escape(text) or _MISSING}</{tag}>"


def _widths(text: str) -> list[str]:
    return ["long"] if len(text) > _LONG_TEXT_CHARS else ["wrap"] if len(text) > _WRAPPED_CHARS else []


def _chart_html(chart: Chart, name: str) -> str:
    names = [column.name for column in chart.columns]
    x, y = names.index(chart.x), names.index(chart.y)
    marks = chart.highlight if chart.highlight is not None else [False] * len(chart.rows)
    points = [
        (row, bool(mark))
        for row, mark in zip(chart.rows, marks, strict=True)
        if _can_place(row[x], chart.log_x) and _can_place(row[y], chart.log_y)
    ]
    plain = [index for index, (_, mark) in enumerate(points) if not mark]
    stride = math.ceil(len(plain) / max(1, chart.max_points))
    left_out = set(plain).difference(plain[:: max(1, stride)])
    shown = [point for index, point in enumerate(points) if index not in left_out]
    place_of = {id(row): index for index, (row, _) in enumerate(shown)}
    notes: list[str] = []
    if left_out:
        notes.append(f"{len(shown):,} of {len(points):,} points are drawn; none that stands out is left out.")
    if len(points) < len(chart.rows):
        notes.append(f"{len(chart.rows) - len(points):,} of {len(chart.rows):,} points have no place on these axes.")
    data = {
        "axes": [_axis(chart, index, [row for row, _ in shown]) for index in (x, y)],
        "columns": [
            {
                "name": visible(column.heading),
                "unit": visible(column.unit),
                "texts": [visible(column.format(row[index])) for row, _ in shown],
            }
            for index, column in enumerate(chart.columns)
        ],
        "highlight": [index for index, (_, mark) in enumerate(shown) if mark],
        "joined": chart.joined,
        "names": [
            [place_of[id(chart.rows[row])], visible(said)]
            for row, said in chart.names.items()
            if id(chart.rows[row]) in place_of
        ],
        "labels": [visible(chart.highlight_label), visible(chart.label)],
        "caption": visible(chart.caption or f"{chart.y} over {chart.x}"),
    }
    caption = " ".join(filter(None, [_sentence(chart.caption), *notes])) if notes else chart.caption
    return (
        f'<figure class="chart" data-points="{name}"><noscript><p>This chart needs a script.</p></noscript>'
        f"<figcaption>{escape(caption)}</figcaption>"
        f'<script type="application/json" id="{name}">{_json(data)}</script></figure>'
    )


def _bars_html(bars: Bars, name: str) -> str:
    panels = [
        {
            "title": visible(panel.title),
            "bars": [
                {
                    "name": visible(bar.name),
                    "segments": [[visible(what), _short(length)] for what, length in bar.segments],
                    "label": visible(bar.label),
                    "low": None if bar.low is None else _short(bar.low),
                    "high": None if bar.high is None else _short(bar.high),
                    "note": visible(bar.note),
                }
                for bar in panel.bars
            ],
        }
        for panel in bars.panels
    ]
    used = {what for panel in bars.panels for bar in panel.bars for what, _ in bar.segments}
    legend = [{"name": visible(what), "color": color} for what, color in bars.colors.items() if what in used]
    data = {"panels": panels, "legend": legend, "kind": bars.kind, "caption": visible(bars.caption)}
    caption = f"<figcaption>{escape(bars.caption)}</figcaption>" if bars.caption else ""
    return (
        f'<figure class="bars" data-bars="{name}"><noscript><p>These bars need a script.</p></noscript>{caption}'
        f'<script type="application/json" id="{name}">{_json(data)}</script></figure>'
    )


def _short(value: float) -> float:
    return float(f"{value:.{_SORT_DIGITS}g}")


def _sentence(text: str) -> str:
    return text if not text or text.endswith(".") else f"{text}."


def _can_place(value: Cell, is_log: bool) -> bool:
    return isinstance(value, Real) and math.isfinite(value) and (value > 0 or not is_log)


def _axis(chart: Chart, index: int, rows: Sequence[Sequence[Cell]]) -> dict[str, Any]:
    column = chart.columns[index]
    values = [_short(float(row[index])) for row in rows]  # type: ignore[arg-type]  # checked
    is_log = chart.log_x if column.name == chart.x else chart.log_y
    return {
        "name": visible(column.heading),
        "unit": visible(column.unit),
        "kind": column.kind,
        "log": is_log,
        "values": values,
    }


def _json(data: Any) -> str:
    """JSON that cannot end the script element that it stands in."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _figure_html(part: Figure, name: str) -> str:
    svg = part.figure if isinstance(part.figure, str) else matplotlib_svg(part.figure)
    caption = f"<figcaption>{escape(part.caption)}</figcaption>" if part.caption else ""
    box = f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(part.caption or "Figure")}">'
    return f'<figure class="drawing">{box}{inline_svg(svg, name, visible(part.caption))}</div>{caption}</figure>'


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
