"""The table of `gemm-eval collective`: one row for each size and number of ranks."""

from __future__ import annotations

from collections.abc import Sequence

from gemm_eval.cli.output import format_number, make_console, make_table
from gemm_eval.evaluate import CollectiveResult
from gemm_eval.units import time_text

__all__ = ["print_collectives"]

_NUMBERS = ("ranks", "bytes", "time", "bus GB/s")


def print_collectives(results: Sequence[CollectiveResult]) -> None:
    """Print results that differ in size and ranks alone; one result with the words of its terms."""
    console = make_console()
    first = results[0]
    if len(results) == 1:
        console.print(first.explain(), highlight=False)
        return
    title = f"{first.problem.what} on {first.arch_name}, {first.link_gb_per_s:,.0f} GB/s a direction; {first.library}"
    table = make_table((*_NUMBERS, "bound", "algorithm"), title=title, right=_NUMBERS)
    for result in results:
        problem = result.problem
        table.add_row(
            f"{problem.num_ranks}", f"{problem.message_bytes:,}", time_text(result.latency_us),
            format_number(result.bus_gb_per_s), result.bound, result.algorithm,
        )  # fmt: skip
    console.print(table)
    console.print(f"Coefficients {first.origin}.", highlight=False)
