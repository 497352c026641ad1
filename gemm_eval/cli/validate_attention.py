"""`gemm-eval validate attention`: attention of GPUs, heads held out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING

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
        plain = [
            line._asdict() | {"errors": {name: asdict(found) for name, found in line.errors.items()}} for line in lines
        ]
        print_json({"seed": seed, "lines": plain})
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

    table = report_table(_HEADERS, title)
    for line in lines:
        table.add_row(_name(line) if has_sets else line.group, *_cells(line))
    return table


def _cells(line: AttentionLine) -> Iterator[str]:
    from gemm_eval.validation.attention import FITTED, MODEL, NAIVE

    found = line.errors[MODEL]
    yield f"{found.num:,}"
    yield from (f"{line.errors[name].mape_frac:.1%}" for name in (NAIVE, FITTED))
    yield from (
        f"{found.mape_frac:.1%}",
        f"{found.median_frac:.1%}",
        f"{found.p90_frac:.1%}",
        f"{found.bias_frac:+.1%}",
    )
    yield "-" if found.kendall_tau is None else f"{found.kendall_tau:.3f}"
