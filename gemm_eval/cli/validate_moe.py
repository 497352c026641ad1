"""`gemm-eval validate moe`: layers of experts and their grouped GEMMs, whole models held out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from gemm_eval.cli.held_out import error_cells, plain_lines

if TYPE_CHECKING:
    from rich.table import Table

    from gemm_eval.validation.moe import LayerLine

__all__ = ["validate_moe"]

_HEADERS = ("tokens, or model", "n", "roofline", "MAPE", "median", "p90", "bias", "tau")


def validate_moe(names: Sequence[str], data: Sequence[str], seed: int, *, models: bool, as_json: bool) -> None:
    """Score and print; arguments as the options of the command."""
    from gemm_eval.cli.output import make_console, print_json
    from gemm_eval.validation.moe import score_layers

    lines = [line for line in score_layers(names, data, seed) if models or line.is_regime]
    if as_json:
        print_json({"seed": seed, "lines": plain_lines(lines)})
        return
    console = make_console()
    console.print(
        "whole models held out: MAPE of a fitted roofline and of gemm_eval, then more of the last one's errors"
    )
    for _, of_set in groupby(lines, lambda line: (line.gpu, line.data)):
        console.print(_table(list(of_set)))


def _table(lines: Sequence[LayerLine]) -> Table:
    from gemm_eval.validation import report_table
    from gemm_eval.validation.moe import MODEL, ROOFLINE

    first = lines[0]
    table = report_table(_HEADERS, f"{first.gpu}, {first.data}: {first.dtype} by {first.library}")
    for line in lines:
        table.add_row(line.group, *error_cells(line.errors, MODEL, (ROOFLINE,)))
    return table
