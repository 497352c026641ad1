"""The table of `gemm-eval collective`: one row for each size and number of ranks."""

from __future__ import annotations

from collections.abc import Sequence

from gemm_eval.cli.output import format_number, make_console, print_rows
from gemm_eval.evaluate import CollectiveResult
from gemm_eval.units import time_text

__all__ = ["print_collectives"]

_KEYS = ("ranks", "bytes")
_LEFT = ("bound", "algorithm")


def print_collectives(results: Sequence[CollectiveResult]) -> None:
    """Print results that differ in size and ranks alone; one result with the words of its terms."""
    console = make_console()
    first = results[0]
    if len(results) == 1:
        console.print(first.explain(), highlight=False)
        return
    title = f"{first.problem.what} on {first.arch_name}, {first.link_gb_per_s:,.0f} GB/s a direction; {first.library}"
    rows = [
        {
            "ranks": f"{result.problem.num_ranks}",
            "bytes": f"{result.problem.message_bytes:,}",
            "time": time_text(result.latency_us),
            "bus GB/s": format_number(result.bus_gb_per_s),
            "bound": result.bound,
            "algorithm": result.algorithm,
        }
        for result in results
    ]
    print_rows(rows, _KEYS, [name for name in rows[0] if name not in _KEYS], title=title, left=_LEFT)
    console.print(f"Joined by {first.interconnect}. Coefficients {first.origin}.", highlight=False)
