"""Where the time of GEMMs goes, term by term."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gemm_eval.errors import InvalidInputError
from gemm_eval.evaluate import GEMMResult
from gemm_eval.report.plots.style import SMALL, TITLE, add_grid, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gemm_eval.workload import GemmProblem

__all__ = ["plot_breakdown"]

_LEAST_FRAC = 0.01  # terms below this part of every bar are drawn as one
_OTHER = "other_us"
# one hue for one resource, told apart inside it by lightness and hatching
_LOOKS = {
    "launch_us": ("#4D4D4D", ""), "sync_us": ("#4D4D4D", "..."), "pack_us": ("#F5CF86", "xxx"),
    "prologue_us": ("#999999", ""),
    "matrix_us": ("#0072B2", ""), "fill_drain_us": ("#56B4E9", ""), "step_wait_us": ("#56B4E9", ""),
    "tile_overhead_us": ("#BFE3F8", "///"), "vector_us": ("#CC79A7", ""), "dequant_us": ("#CC79A7", ""),
    "dram_us": ("#D55E00", ""), "dram_a_us": ("#D55E00", ""), "dram_b_us": ("#E69F00", ""),
    "dram_c_us": ("#F5CF86", "///"), "outside_us": ("#F5CF86", "..."), "store_us": ("#E69F00", "///"),
    "l2_us": ("#009E73", ""), "noc_wait_us": ("#009E73", ""), "power_us": ("#F0E442", ""),
    "reduction_us": ("#1B1B1B", "///"), "reduction_dram_us": ("#1B1B1B", "///"),
    "reduction_noc_us": ("#1B1B1B", "..."), "reduction_add_us": ("#1B1B1B", "xxx"),
    "choice_us": ("#FFFFFF", "xxx"), _OTHER: ("#FFFFFF", ""),
}  # fmt: skip
_UNKNOWN_LOOK = ("#B0A8D8", "")


def plot_breakdown(
    results: Iterable[GEMMResult], *, names: Sequence[str] | None = None, counts: Sequence[int] | None = None
) -> Figure:
    """Plot the terms of each GEMM's time as a stacked bar, in microseconds.

    The terms of `GEMMResult.breakdown` are the times that each resource needs by itself. Compute and transfers overlap,
    so they add up to more than the latency: a bar is as long as their sum, the black line across it is the latency, and
    what lies beyond that line, under the hatching, is `hidden_us`: time during which something else was working too.
    Terms minus hidden time are the latency, exactly; what a learned
    correction takes off counts as hidden. The colours beyond the line are in the order of the terms; they do
    not say which of the terms was hidden. Terms of less than 1% of every bar are drawn as one.

    Args:
        results: of any archs; a `GEMMTable` is taken too. Drawn from top to bottom.
        names: of the results (default: their sizes).
        counts: how often each runs: bars are then the time of all its runs.

    Raises:
        GemmEvalError: matplotlib is not installed.
        InvalidInputError: no results, not as many names or counts, or counts below 1.
    """
    found = list(results)
    if not found:
        raise InvalidInputError("results must hold at least one GEMMResult, got none")
    for what, given in (("names", names), ("counts", counts)):
        if given is not None and len(given) != len(found):
            raise InvalidInputError(f"{what} must be as many as results ({len(found)}), got {len(given)}")
    if counts is not None and min(counts) < 1:
        raise InvalidInputError(f"counts must be >= 1, got {min(counts)}")
    if names is None:
        names = [_name(result.problem) for result in found]
    times = np.ones(len(found)) if counts is None else np.asarray(counts, float)
    labels = [
        name if counts is None else f"{name}  x{count}"
        for name, count in zip(names, times.astype(int).tolist(), strict=True)
    ]
    return _draw(found, times, labels, is_counted=counts is not None)


def _name(problem: GemmProblem) -> str:
    rows = f"G{problem.G} M{problem.M}" if problem.row_groups is None else f"{problem.rows} rows in G{problem.G}"
    return f"{rows} K{problem.K} N{problem.N}"


def _draw(found: list[GEMMResult], times: npt.NDArray[np.float64], labels: list[str], *, is_counted: bool) -> Figure:
    figure = new_figure(8.4, 1.9 + 0.36 * len(found))
    axes = figure.add_subplot()
    places = np.arange(len(found))
    ends = np.zeros(len(found))
    for term, values_us in _terms(found).items():
        color, hatch = _LOOKS.get(term, _UNKNOWN_LOOK)
        name = f"other (each < {_LEAST_FRAC:.0%})" if term == _OTHER else term.removesuffix("_us").replace("_", " ")
        edge = "white" if color == "#1B1B1B" else "black"
        axes.barh(
            places, values_us * times, 0.68, left=ends, color=color, hatch=hatch, edgecolor=edge, linewidth=0.3,
            label=name,
        )  # fmt: skip
        ends += values_us * times
    latency_us = np.array([result.latency_us for result in found]) * times
    axes.barh(
        places, np.maximum(ends - latency_us, 0.0), 0.68, left=latency_us, facecolor=(1, 1, 1, 0.62), hatch="\\\\\\\\",
        edgecolor="#555555", linewidth=0.0, label="hidden: overlaps other terms, not in the latency",
    )  # fmt: skip
    axes.vlines(latency_us, places - 0.44, places + 0.44, color="black", linewidth=2.2, label="latency", zorder=4)
    _finish(axes, labels, latency_us, ends, is_counted=is_counted)
    archs = ", ".join(dict.fromkeys(result.arch_name for result in found))
    axes.set_title(f"Where the time goes: {archs}", fontsize=TITLE)
    figure.legend(loc="outside lower center", ncols=5, fontsize=SMALL, frameon=False)
    return figure


def _finish(
    axes: Axes,
    labels: list[str],
    latency_us: npt.NDArray[np.float64],
    ends: npt.NDArray[np.float64],
    *,
    is_counted: bool,
) -> None:
    for place, (end, value) in enumerate(zip(ends.tolist(), latency_us.tolist(), strict=True)):
        axes.annotate(
            f"latency {value:,.4g} us" if value < 1e4 else f"latency {value:,.0f} us",
            (max(end, value), place),
            (5, 0),
            textcoords="offset points",
            va="center",
            fontsize=SMALL,
        )
    axes.set_yticks(range(len(labels)), labels=labels, fontsize=SMALL + 1)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlim(0, 1.2 * ends.max())  # room for the numbers
    add_grid(axes)
    axes.yaxis.grid(visible=False)
    axes.set_xlabel("time of all runs, terms stacked (us)" if is_counted else "time, terms stacked (us)")


def _terms(found: list[GEMMResult]) -> dict[str, npt.NDArray[np.float64]]:
    """The positive terms of all results [num_results], in us, in the order of the breakdowns; small ones as one."""
    names = dict.fromkeys(name for result in found for name in result.breakdown if name != "hidden_us")
    terms = {name: np.array([max(0.0, result.breakdown.get(name, 0.0)) for result in found]) for name in names}
    least_us = _LEAST_FRAC * sum(terms.values(), np.zeros(len(found)))
    small = [name for name, values_us in terms.items() if (values_us < least_us).all()]
    other = sum((terms.pop(name) for name in small), np.zeros(len(found)))
    return terms | {_OTHER: other} if other.any() else terms
