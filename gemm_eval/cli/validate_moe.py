"""`gemm-eval validate moe`: layers of experts and their grouped GEMMs, whole models held out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING

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
        plain = [
            line._asdict() | {"errors": {name: asdict(found) for name, found in line.errors.items()}} for line in lines
        ]
        print_json({"seed": seed, "lines": plain})
        return
    console = make_console()
    console.print(
        "whole models held out: MAPE of a fitted roofline and of gemm_eval, then more of the last one's errors"
    )
    for _, of_set in groupby(lines, lambda line: (line.gpu, line.data)):
        console.print(_table(list(of_set)))


def _table(lines: Sequence[LayerLine]) -> Table:
    from gemm_eval.validation import report_table

    first = lines[0]
    table = report_table(_HEADERS, f"{first.gpu}, {first.data}: {first.dtype} by {first.library}")
    for line in lines:
        table.add_row(*_cells(line))
    return table


def _cells(line: LayerLine) -> Iterator[str]:
    from gemm_eval.validation.moe import MODEL, ROOFLINE

    found = line.errors[MODEL]
    yield line.group
    yield f"{found.num:,}"
    yield f"{line.errors[ROOFLINE].mape_frac:.1%}"
    yield from (
        f"{found.mape_frac:.1%}",
        f"{found.median_frac:.1%}",
        f"{found.p90_frac:.1%}",
        f"{found.bias_frac:+.1%}",
    )
    yield "-" if found.kendall_tau is None else f"{found.kendall_tau:.3f}"
