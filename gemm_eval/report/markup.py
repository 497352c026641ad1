"""Parts of a report page as HTML: every name and number escaped, charts as data for the page's script."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterator, Sequence
from numbers import Integral, Real
from typing import Any

from gemm_eval.report.parts import Bars, Cell, Chart, Column, Facts, Figure, Part, Table, Text, Verdict
from gemm_eval.report.svg import inline_svg, matplotlib_svg
from gemm_eval.words import visible

__all__ = ["escape", "part_html"]

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

    Raises:
        InvalidOptionError: a figure cannot be embedded, or a cell is not what its column says.
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
    """What expressions need to know of a column."""
    found = f' data-kind="{"text" if column.kind == "text" else "number"}" data-heading="{escape(column.heading)}"'
    if column.name != column.heading:
        found += f' data-name="{escape(column.name)}" title="{escape(column.name)}"'
    if column.base_unit:
        found += f' data-unit="{escape(column.base_unit)}"'
    return found + (" data-scaled" if column.is_scaled else "")


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
