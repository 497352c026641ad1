"""`gemm-eval validate gpu`: every GPU with timings in one table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from gemm_eval.cli.exam import plain_lines

if TYPE_CHECKING:
    from rich.table import Table

    from gemm_eval.validation import GpuLine

__all__ = ["validate_gpus"]

_HEADERS = ("regime", "n", "roofline", "table", "physics", "corrected", "median", "p90", "bias", "tau", "in 80%")


def validate_gpus(names: Sequence[str], folds: int, seed: int, *, groups: Sequence[str], as_json: bool) -> None:
    """Score and print; arguments as the options of the command."""
    from gemm_eval import validation
    from gemm_eval.cli.output import make_console, print_json

    lines = [line for line in validation.compare_gpus(names, folds, seed) if not groups or line.regime in groups]
    if as_json:
        print_json({"folds": folds, "seed": seed, "lines": plain_lines(lines)})
        return
    console = make_console()
    for is_fitted, title in (
        (True, f"held out by (N, K), {folds}-fold: MAPE of each, then more of the last one's errors"),
        (False, "carried over from another GPU, nothing fitted on this one"),
    ):
        chosen = [line for line in lines if line.is_fitted == is_fitted]
        if chosen:
            console.print(f"\n{title}")
        for _, of_set in groupby(chosen, lambda line: (line.gpu, line.data)):
            console.print(_table(list(of_set)))


def _table(lines: Sequence[GpuLine]) -> Table:
    from gemm_eval.validation import report_table

    first = lines[0]
    table = report_table(_HEADERS, f"{first.gpu}, {first.data}: {first.types}")
    for line in lines:
        table.add_row(*_cells(line))
    return table


def _cells(line: GpuLine) -> Iterator[str]:
    from gemm_eval import validation

    last = list(line.errors.values())[-1]
    yield line.regime
    yield f"{last.num:,}"
    for name in (validation.ROOFLINE, validation.INTERPOLATION, validation.PHYSICS, validation.CORRECTED):
        errors = line.errors.get(name)
        yield "-" if errors is None else f"{errors.mape_frac:.1%}"
    yield from (f"{last.median_frac:.1%}", f"{last.p90_frac:.1%}", f"{last.bias_frac:+.1%}")
    yield "-" if last.kendall_tau is None else f"{last.kendall_tau:.3f}"
    yield f"{line.coverage_frac:.0%}"
