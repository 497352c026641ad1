"""Tables in notebooks: a caption, and rows of cells without colours, since a notebook is light or dark."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gemm_eval.units import scaled_text, time_text
from gemm_eval.words import one_line, visible

MAX_ROWS = 20
"""Rows of a table that a notebook shows."""

_LEFT = 'style="text-align:left"'
_CAPTION = "text-align:left;caption-side:top;color:inherit"


def html_table(caption: str, rows: Iterable[Sequence[str]], headers: Sequence[str] = ()) -> str:
    """Return a table; without headers of columns, the first cell of each row is a header."""
    lines = [_row(headers, num_heads=len(headers))] if headers else []
    lines += [_row(row, num_heads=0 if headers else 1) for row in rows]
    return f'<table><caption style="{_CAPTION}">{_escaped(caption)}</caption>{"".join(lines)}</table>'


def value_rows(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield a row for each single value: its name in words, and its text with a unit."""
    for name, value in values.items():
        if isinstance(value, str | bool | int | float):
            yield name.removesuffix("_us").removesuffix("_bytes").replace("_", " "), value_text(name, value)
        elif isinstance(value, tuple | list) and len(value) == 2 and name.endswith("interval_us"):
            yield name.removesuffix("_us").replace("_", " "), " to ".join(map(time_text, value))


def value_text(name: str, value: Any) -> str:
    """Return a value with the unit that its name ends with: ``12.3 ms``, ``16.40 GB``, ``85.0%``."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return one_line(str(value), 200)
    if name.endswith("_us"):
        return time_text(value)
    if name.endswith("_bytes"):
        return scaled_text("bytes", value)
    if name.endswith("_frac"):
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _row(cells: Iterable[str], num_heads: int) -> str:
    tags = ((_escaped(cell), "th" if index < num_heads else "td") for index, cell in enumerate(cells))
    return f"<tr>{''.join(f'<{tag} {_LEFT}>{text}</{tag}>' for text, tag in tags)}</tr>"


def _escaped(text: str) -> str:
    return html.escape(visible(text))
