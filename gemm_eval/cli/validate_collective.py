"""`gemm-eval validate collective`: messages between the GPUs of a node, blocks of sizes and ranks held out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING

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
        plain = [
            line._asdict() | {"errors": {name: asdict(found) for name, found in line.errors.items()}} for line in lines
        ]
        print_json({"hold_out": hold_out, "lines": plain})
        return
    console = make_console()
    console.print(f"{_WHY[hold_out]}; MAPE of the link's rate, of alpha-beta, of a table, then errors of gemm_eval")
    for (gpu, data), of_set in groupby(lines, lambda line: (line.gpu, line.data)):
        console.print(_table(list(of_set), f"{gpu}, {data}"))


def _table(lines: Sequence[CollectiveLine], title: str) -> Table:
    from gemm_eval.validation import report_table

    table = report_table(_HEADERS, title)
    for line in lines:
        table.add_row(line.what, line.group, *_cells(line))
    return table


def _cells(line: CollectiveLine) -> Iterator[str]:
    from gemm_eval.validation.collective import FITTED, MODEL, NAIVE, TABLE

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
