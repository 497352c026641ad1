"""`gemm-eval validate attention`: attention of GPUs, heads held out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from gemm_eval.cli.held_out import error_cells, plain_lines

if TYPE_CHECKING:
    from rich.table import Table

    from gemm_eval.validation.attention import AttentionLine

__all__ = ["validate_attention"]

_HEADERS = ("rows of", "n", "naive", "roofline", "MAPE", "median", "p90", "bias", "tau")


def validate_attention(names: Sequence[str], phases: Sequence[str], seed: int, *, groups: bool, as_json: bool) -> None:
    """Score and print; arguments as the options of the command."""
    from gemm_eval.cli.output import make_console, print_json
    from gemm_eval.validation.attention import score_attention

    gpus = [] if list(names) == ["all"] else names
    lines = [line for line in score_attention(gpus, phases, seed) if groups or line.group == "all"]
    if as_json:
        print_json({"seed": seed, "lines": plain_lines(lines)})
        return
    console = make_console()
    console.print("heads held out: MAPE of a naive and of a fitted roofline, then the errors of gemm_eval")
    if not groups:
        console.print(_table(lines, "all rows", has_sets=True))
        return
    for name, of_set in groupby(lines, _name):
        console.print(_table(list(of_set), name, has_sets=False))


def _name(line: AttentionLine) -> str:
    return f"{line.gpu}, {line.library}, {line.phase}"


def _table(lines: Sequence[AttentionLine], title: str, *, has_sets: bool) -> Table:
    from gemm_eval.validation import report_table
    from gemm_eval.validation.attention import FITTED, MODEL, NAIVE

    table = report_table(_HEADERS, title)
    for line in lines:
        table.add_row(_name(line) if has_sets else line.group, *error_cells(line.errors, MODEL, (NAIVE, FITTED)))
    return table
