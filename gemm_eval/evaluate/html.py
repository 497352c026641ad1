"""Results as notebooks show them: small tables of plain HTML, in the colours of the page."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gemm_eval.units import time_text
from gemm_eval.words import visible

if TYPE_CHECKING:
    from gemm_eval.evaluate.result import GEMMResult
    from gemm_eval.evaluate.table import GEMMTable


_MAX_ROWS = 20
_HEADERS = ("GEMM", "latency", "80% interval", "of peak", "bound", "mapping", "source")
_KERNEL_HEADERS = tuple("kernel" if name == "mapping" else name for name in _HEADERS)
_LEFT = 'style="text-align:left"'
_NOT_KNOWN = "-"
_DOES_NOT_FIT = "does not fit"


def result_html(result: GEMMResult) -> str:
    """Return a result as a table, a line for each figure."""
    problem, *cells = _cells(result)
    options = ", ".join(
        option if isinstance(option, str) else f"{name} {option}" for name, option in result.options.items()
    )
    figures = zip(_headers(result.arch.type)[1:], cells, strict=True)
    lines = [_row([name, cell], head=1) for name, cell in figures]
    return _table(f"{problem} on {result.arch_name}{f', {options}' if options else ''}", lines)


def table_html(table: GEMMTable) -> str:
    """Return the first rows of a table of results, and how many more there are."""
    arch = table.evaluator.arch
    num_shown = min(len(table), _MAX_ROWS)
    lines = [_row(_headers(arch.type), head=len(_HEADERS))]
    for row in range(num_shown):
        if table.is_feasible[row]:
            cells = _cells(table[row])
        else:
            cells = [str(table.problem(row)), _DOES_NOT_FIT, *[_NOT_KNOWN] * (len(_HEADERS) - 2)]
        lines.append(_row(cells))
    more = f", the first {num_shown:,} of them" if num_shown < len(table) else ""
    return _table(f"{len(table):,} GEMM{'' if len(table) == 1 else 's'} on {arch.name}{more}", lines)


def _headers(arch_type: str) -> Sequence[str]:
    return _KERNEL_HEADERS if arch_type == "gpu" else _HEADERS


def _cells(result: GEMMResult) -> list[str]:
    """Return what stands under `_HEADERS`."""
    interval = _NOT_KNOWN
    if result.low_us is not None and result.high_us is not None:
        interval = f"{time_text(result.low_us)} to {time_text(result.high_us)}"
    return [
        str(result.problem), time_text(result.latency_us), interval, f"{result.utilization_frac:.1%}", result.bound,
        str(result.mapping), result.source,
    ]  # fmt: skip


def _row(cells: Iterable[str], head: int = 0) -> str:
    """Return a row whose first `head` cells are headers."""
    said = ((_escaped(cell), "th" if place < head else "td") for place, cell in enumerate(cells))
    return f"<tr>{''.join(f'<{tag} {_LEFT}>{text}</{tag}>' for text, tag in said)}</tr>"


def _table(caption: str, lines: Iterable[str]) -> str:
    # no colours: a notebook is light or dark, and a table is as its text
    style = "text-align:left;caption-side:top;color:inherit"
    return f'<table><caption style="{style}">{_escaped(caption)}</caption>{"".join(lines)}</table>'


def _escaped(text: str) -> str:
    return html.escape(visible(text))
