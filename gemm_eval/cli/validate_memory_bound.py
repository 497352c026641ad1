"""`gemm-eval validate memory-bound`: kernels whose time is that of their bytes, widths of rows held out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from gemm_eval.validation.memory_bound import MemoryBoundLine

__all__ = ["validate_memory_bound"]

_HEADERS = ("kernel", "rows of", "n", "naive", "roofline", "table", "MAPE", "median", "p90", "bias", "tau")
_ALL = "all"


def validate_memory_bound(names: Sequence[str], *, groups: bool, as_json: bool) -> None:
    """Score and print; arguments as the options of the command."""
    from gemm_eval.cli.output import make_console, print_json
    from gemm_eval.validation.memory_bound import score_memory_bound

    lines = [line for line in score_memory_bound(names) if groups or _ALL in (line.group, line.what)]
    if as_json:
        plain = [
            line._asdict() | {"errors": {name: asdict(found) for name, found in line.errors.items()}} for line in lines
        ]
        print_json({"lines": plain})
        return
    console = make_console()
    console.print(
        "held out: all rows of a width; MAPE of the data sheet's rate, of overhead and rate fitted for each kernel, of "
        "a table, then errors of gemm_eval"
    )
    for (gpu, data), of_set in groupby(lines, lambda line: (line.gpu, line.data)):
        console.print(_table(list(of_set), f"{gpu}, {data}"))


def _table(lines: Sequence[MemoryBoundLine], title: str) -> Table:
    from gemm_eval.validation import report_table

    table = report_table(_HEADERS, title)
    for line in lines:
        table.add_row(line.what, line.group, *_cells(line))
    return table


def _cells(line: MemoryBoundLine) -> Iterator[str]:
    from gemm_eval.validation.memory_bound import FITTED, MODEL, NAIVE, TABLE

    found = line.errors[MODEL]
    yield f"{found.num:,}"
    yield from (f"{line.errors[name].mape_frac:.1%}" for name in (NAIVE, FITTED, TABLE))
    yield from (
        f"{found.mape_frac:.1%}",
        f"{found.median_frac:.1%}",
        f"{found.p90_frac:.1%}",
        f"{found.bias_frac:+.1%}",
    )
    yield "-" if found.kendall_tau is None else f"{found.kendall_tau:.3f}"
