"""`gemm-eval validate collective`: messages between the GPUs of a node, blocks of sizes and ranks held out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from gemm_eval.cli.held_out import error_cells, plain_lines

if TYPE_CHECKING:
    from rich.table import Table

    from gemm_eval.validation.collective import CollectiveLine

__all__ = ["validate_collective"]

_HEADERS = ("operation", "rows of", "n", "link rate", "alpha-beta", "table", "MAPE", "median", "p90", "bias", "tau")
_ALL = "all"
_WHY = {
    "blocks": "held out: each block of as many ranks and a decade of bytes, all operations together",
    "ranks": "held out: all rows of as many ranks",
}


def validate_collective(names: Sequence[str], hold_out: str, *, groups: bool, as_json: bool) -> None:
    """Score and print; arguments as the options of the command."""
    from gemm_eval.cli.output import make_console, print_json
    from gemm_eval.validation.collective import score_collectives

    lines = [line for line in score_collectives(names, hold_out) if groups or line.group == _ALL]
    if as_json:
        print_json({"hold_out": hold_out, "lines": plain_lines(lines)})
        return
    console = make_console()
    console.print(f"{_WHY[hold_out]}; MAPE of the link's rate, of alpha-beta, of a table, then errors of gemm_eval")
    for (gpu, data), of_set in groupby(lines, lambda line: (line.gpu, line.data)):
        console.print(_table(list(of_set), f"{gpu}, {data}"))


def _table(lines: Sequence[CollectiveLine], title: str) -> Table:
    from gemm_eval.validation import report_table
    from gemm_eval.validation.collective import FITTED, MODEL, NAIVE, TABLE

    table = report_table(_HEADERS, title)
    for line in lines:
        table.add_row(line.what, line.group, *error_cells(line.errors, MODEL, (NAIVE, FITTED, TABLE)))
    return table
