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
from html import escape
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from xml.etree import ElementTree

from gemm_eval.errors import GemmEvalError, InvalidOptionError

if TYPE_CHECKING:
    import matplotlib.figure

__all__ = ["Cell", "Chart", "Column", "Facts", "Figure", "Page", "Part", "Section", "Table", "Text"]

Cell: TypeAlias = str | float | None
"""What a table holds; numpy's numbers too. None and nan are missing values."""

_MISSING = "\N{EN DASH}"
_FILTER_FROM_ROWS = 20  # shorter tables are read at a glance
_LONG_TEXT_CHARS = 160  # longer text wraps; shorter stays on its line, so that rows are low
_SORT_DIGITS = 9
_MIN_FIXED, _MAX_FIXED = 1e-4, 1e15  # outside, numbers are written with an exponent
_PX_PER_UNIT = {"": 1.0, "px": 1.0, "pt": 4 / 3, "in": 96.0}  # CSS defines them so


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, or what the tooltip of a chart says about a point.

    Attributes:
        name: header.
        unit: shown beside the name; empty for none.
        kind: numbers are aligned to the right and sorted by value.
        digits: significant digits of numbers that are not whole; digits before the point are never rounded away.
    """

    name: str
    unit: str = ""
    kind: Literal["number", "text"] = "number"
    digits: int = 4

    def __post_init__(self) -> None:
        if self.kind not in ("number", "text"):
            raise InvalidOptionError(f'kind must be "number" or "text", got {self.kind!r} (column {self.name!r})')
        if not 1 <= self.digits <= 17:
            raise InvalidOptionError(f"digits must be in 1..17, got {self.digits} (column {self.name!r})")

    def format(self, value: Cell) -> str:
        """Return the text of a cell, empty for a missing value.

        Raises:
            InvalidOptionError: words in a column of numbers.
        """
        if value is None or value != value:  # noqa: PLR0124  nan is the one value that differs from itself
            return ""
        if self.kind == "text":
            return str(value)
        if not isinstance(value, Real):
            raise InvalidOptionError(f"column {self.name!r} holds numbers, got {value!r}")
        if isinstance(value, Integral):
            return f"{int(value):,}"
        number = float(value)
        if math.isinf(number):
            return "∞" if number > 0 else "-∞"
        exponent = int(f"{number:.{self.digits - 1}e}".partition("e")[2])  # after rounding: 9.9996 counts as 10
        if number and not _MIN_FIXED <= abs(number) < _MAX_FIXED:
            return f"{number:.{self.digits - 1}e}"
        return f"{number:,.{max(0, self.digits - 1 - exponent)}f}"


@dataclass(frozen=True, slots=True)
class Text:
    """Paragraphs, an empty line between them; lines stay lines. `title` is a heading below the section's."""

    text: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """A list of names and values."""

    items: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Table:
    """A table that sorts by the click of a header; the first column names the row.

    Attributes:
        columns: what the rows hold.
        rows: one cell for each column.
        caption: says what the table shows.
        note: small print below.
        max_rows: more are left out, and the page says so.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    note: str = ""
    max_rows: int = 2000

    def __post_init__(self) -> None:
        _check_rows(self.columns, self.rows)


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing: a matplotlib Figure, or SVG text whose styles are attributes (matplotlib's are)."""

    figure: str | matplotlib.figure.Figure
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """Points that say all their columns when pointed at, tapped, or reached by arrow keys.

    Attributes:
        columns: what is known of a point; names are unique.
        rows: the points. Those without `x` or `y`, or not above 0 on a log axis, are left out, and the page says so.
        x, y: names of the columns that place a point.
        log_x, log_y: logarithmic axes.
        highlight: [num_rows], which points stand out and are joined in the order of x.
        highlight_label, label: what the points that stand out, and the others, are.
        caption: says what the chart shows.
        max_points: more are thinned out evenly, but for those that stand out, and the page says so.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    x: str
    y: str
    log_x: bool = False
    log_y: bool = False
    highlight: Sequence[bool] | None = None
    highlight_label: str = "Pareto front"
    label: str = "others"
    caption: str = ""
    max_points: int = 20_000

    def __post_init__(self) -> None:
        _check_rows(self.columns, self.rows)
        names = [column.name for column in self.columns]
        if len(set(names)) < len(names):
            raise InvalidOptionError(f"names of columns must differ, got {', '.join(names)}")
        for axis, name in (("x", self.x), ("y", self.y)):
            if name not in names or self.columns[names.index(name)].kind != "number":
                numbers = ", ".join(column.name for column in self.columns if column.kind == "number")
                raise InvalidOptionError(f"{axis} must name a column of numbers ({numbers}), got {name!r}")
        if self.highlight is not None and len(self.highlight) != len(self.rows):
            raise InvalidOptionError(
                f"highlight must have one entry for each of {len(self.rows)} points, got {len(self.highlight)}"
            )


Part: TypeAlias = Text | Facts | Table | Figure | Chart


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands below it."""

    heading: str
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class Page:
    """A report: `to_html` gives it as text, `write` as a file."""

    title: str
    subtitle: str = ""
    sections: Sequence[Section] = ()

    def to_html(self) -> str:
        """Return the whole document. The same page gives the same text.

        Raises:
            InvalidOptionError: a figure cannot be embedded, or a cell is not what its column says.
        """
        numbers = itertools.count(1)
        style, script = _asset("page.css"), _asset("page.js")
        anchored = [(f"section-{next(numbers)}", section) for section in self.sections]
        links = "".join(f'<li><a href="#{anchor}">{escape(s.heading)}</a></li>' for anchor, s in anchored)
        return string.Template(_asset("page.html")).substitute(
            policy=f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)}; img-src data:; "
            "base-uri 'none'; form-action 'none'",
            title=escape(self.title),
            subtitle=f'<p class="subtitle">{escape(self.subtitle)}</p>' if self.subtitle else "",
            contents=f'<nav aria-label="Contents"><ul>{links}</ul></nav>' if len(anchored) > 1 else "",
            style=style,
            script=script,
            sections="\n".join(
                f'<section aria-labelledby="{anchor}">\n<h2 id="{anchor}">{escape(section.heading)}</h2>\n'
                + "\n".join(_part_html(part, f"part-{next(numbers)}") for part in section.parts)
                + "\n</section>"
                for anchor, section in anchored
            ),
        )

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the page, whole or not at all, over the file at `path` if there is one; return its path.

        Raises:
            GemmEvalError: something that is no file is at `path`, or it cannot be written.
        """
        from gemm_eval.kernels._config_file import write_text

        target = Path(path)
        if target.exists() and not target.is_file():
            raise GemmEvalError(f"cannot write {target}: it is there and is not a file")
        write_text(target, self.to_html())
        return target


def _check_rows(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    if not columns:
        raise InvalidOptionError("columns must not be empty")
    for number, row in enumerate(rows):
        if len(row) != len(columns):
            raise InvalidOptionError(f"rows must have {len(columns)} cells each, got {len(row)} in row {number}")


@functools.cache
def _asset(name: str) -> str:
    return (importlib.resources.files("gemm_eval.report") / "assets" / name).read_text(encoding="utf-8").strip()


def _source(code: str) -> str:
    """A source expression of a content security policy that allows exactly this code."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"


def _part_html(part: Part, name: str) -> str:
    if isinstance(part, Text):
        title = f"<h3>{escape(part.title)}</h3>" if part.title else ""
        paragraphs = re.split(r"\n\s*\n", part.text.strip())
        return title + "".join(f"<p>{_lines_html(paragraph.splitlines())}</p>" for paragraph in paragraphs)
    if isinstance(part, Facts):
        items = "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>" for key, value in part.items)
        return f'<dl class="facts">{items}</dl>'
    if isinstance(part, Table):
        return _table_html(part, name)
    return _figure_html(part, name) if isinstance(part, Figure) else _chart_html(part, name)


def _lines_html(lines: Sequence[str]) -> str:
    if len(lines) == 1:
        return escape(lines[0])
    return "".join(f'<span class="line">{escape(line)}</span>' for line in lines)


def _table_html(table: Table, name: str) -> str:
    shown = table.rows[: table.max_rows]
    notes = [f"The first {len(shown):,} of {len(table.rows):,} rows."] if len(shown) < len(table.rows) else []
    notes += [table.note] if table.note else []
    heads = "".join(
        f'<th scope="col" aria-sort="none" data-kind="{column.kind}"><button type="button">'
        f"<span>{escape(column.name)}{_unit(column)}</span></button></th>"
        for column in table.columns
    )
    body = "\n".join(f"<tr>{''.join(_cells(table.columns, row))}</tr>" for row in shown)
    label = f'aria-labelledby="{name}"' if table.caption else 'aria-label="Table"'
    return (
        '<figure class="table">'
        + (f'<figcaption id="{name}">{escape(table.caption)}</figcaption>' if table.caption else "")
        + (_FILTER if len(shown) >= _FILTER_FROM_ROWS else "")
        + f'<div class="scroll" tabindex="0" role="region" {label}><table {label}>\n'
        + f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
        + (f'<p class="note">{escape(" ".join(notes))}</p>' if notes else "")
        + "</figure>"
    )


_FILTER = (
    '<div class="filter" hidden><label>Filter <input type="search" autocomplete="off" spellcheck="false"></label>'
    '<output aria-live="polite"></output></div>'
)


def _unit(column: Column) -> str:
    return f' <span class="unit">{escape(column.unit)}</span>' if column.unit else ""


def _cells(columns: Sequence[Column], row: Sequence[Cell]) -> Iterator[str]:
    for index, (column, value) in enumerate(zip(columns, row, strict=True)):
        text = column.format(value)
        words = ["n"] if column.kind == "number" else ["long"] if len(text) > _LONG_TEXT_CHARS else []
        words += [] if text else ["missing"]
        attributes = f' class="{" ".join(words)}"' if words else ""
        if not text:
            attributes += ' data-v=""'
        elif column.kind == "number" and isinstance(value, Real) and not isinstance(value, Integral):
            attributes += f' data-v="{float(value):.{_SORT_DIGITS}g}"'  # what it is sorted by; the text is rounded
        tag, scope = ("td", "") if index else ("th", ' scope="row"')
        yield f"<{tag}{scope}{attributes}>{escape(text) or _MISSING}</{tag}>"


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
    notes = []
    if left_out:
        notes.append(f"{len(shown):,} of {len(points):,} points are drawn; none that stands out is left out.")
    if len(points) < len(chart.rows):
        notes.append(f"{len(chart.rows) - len(points):,} of {len(chart.rows):,} points have no place on these axes.")
    data = {
        "axes": [_axis(chart, index, [row for row, _ in shown]) for index in (x, y)],
        "columns": [
            {"name": column.name, "unit": column.unit, "texts": [column.format(row[index]) for row, _ in shown]}
            for index, column in enumerate(chart.columns)
        ],
        "highlight": [index for index, (_, mark) in enumerate(shown) if mark],
        "labels": [chart.highlight_label, chart.label],
        "caption": chart.caption or f"{chart.y} over {chart.x}",
    }
    return (
        f'<figure class="chart" data-points="{name}"><noscript><p>This chart needs a script.</p></noscript>'
        f"<figcaption>{escape(' '.join([chart.caption, *notes]).strip())}</figcaption>"
        f'<script type="application/json" id="{name}">{_json(data)}</script></figure>'
    )


def _can_place(value: Cell, is_log: bool) -> bool:
    return isinstance(value, Real) and math.isfinite(value) and (value > 0 or not is_log)


def _axis(chart: Chart, index: int, rows: Sequence[Sequence[Cell]]) -> dict[str, Any]:
    column = chart.columns[index]
    values = [float(f"{float(row[index]):.{_SORT_DIGITS}g}") for row in rows]  # type: ignore[arg-type]  # checked
    is_log = chart.log_x if column.name == chart.x else chart.log_y
    return {"name": column.name, "unit": column.unit, "log": is_log, "values": values}


def _json(data: Any) -> str:
    """JSON that cannot end the script element that it stands in."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _figure_html(part: Figure, name: str) -> str:
    svg = part.figure if isinstance(part.figure, str) else _matplotlib_svg(part.figure)
    caption = f"<figcaption>{escape(part.caption)}</figcaption>" if part.caption else ""
    box = f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(part.caption or "Figure")}">'
    return f'<figure class="drawing">{box}{_inline_svg(svg, name, part.caption)}</div>{caption}</figure>'


def _matplotlib_svg(figure: matplotlib.figure.Figure) -> str:
    import matplotlib as mpl

    text = io.StringIO()
    # letters as outlines: the reader may not have the font; the salt makes ids the same in every run
    with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": "gemm_eval"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _inline_svg(svg: str, prefix: str, label: str) -> str:
    """Return SVG that can stand in a page: ids that no other part has, nothing that the page's policy would block."""
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
            f"width and height of a figure must be lengths in px, pt or in, got {root.get('width')!r}, "
            f"{root.get('height')!r}"
        )
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
    return _LINK.sub(rf"\g<0>{prefix}-", value)


_DROPPED_ELEMENTS = ("style", "script", "metadata", "foreignObject")
_LINK = re.compile(r"""url\(["']?#""")
_OUTSIDE_LINK = re.compile(r"""url\((?!["']?#)""")
_STYLE_OF_ALL = re.compile(r"\s*\*\s*\{([^{}]*)\}\s*")  # the only rule that matplotlib writes


def _style_of_all(sheet: str) -> dict[str, str]:
    found = _STYLE_OF_ALL.fullmatch(sheet)
    if found is None:
        raise InvalidOptionError(f"styles of a figure must be attributes, not a style sheet: {sheet.strip()[:60]!r}")
    return _declarations(found[1])


def _declarations(style: str) -> dict[str, str]:
    pairs = (declaration.partition(":") for declaration in style.split(";"))
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def _local(name: object) -> str:
    return str(name).rpartition("}")[2]


def _pixels(length: str) -> float:
    found = re.fullmatch(r"([0-9.]+)([a-z]*)", length)
    return float(found[1]) * _PX_PER_UNIT.get(found[2], 0.0) if found else 0.0
