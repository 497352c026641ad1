"""`gemm-eval validate memory-bound`: kernels whose time is that of their bytes, widths of rows held out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from gemm_eval.cli.held_out import error_cells, plain_lines

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
        print_json({"lines": plain_lines(lines)})
        return
    console = make_console()
    console.print(
        "held out: all rows of a width, or of an octave of elements of PyTorch's kernels; MAPE of the data sheet's "
        "rate, of overhead and rate fitted for each kernel, of a table, then errors of gemm_eval"
    )
    for (gpu, data), of_set in groupby(lines, lambda line: (line.gpu, line.data)):
        console.print(_table(list(of_set), f"{gpu}, {data}"))


def _table(lines: Sequence[MemoryBoundLine], title: str) -> Table:
    from gemm_eval.validation import report_table
    from gemm_eval.validation.memory_bound import FITTED, MODEL, NAIVE, TABLE

    table = report_table(_HEADERS, title)
    for line in lines:
        table.add_row(line.what, line.group, *error_cells(line.errors, MODEL, (NAIVE, FITTED, TABLE)))
    return table
