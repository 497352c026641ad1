"""The plot of where W4A16 pays: its speedup and both latencies over M, predicted and measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from gemm_eval.errors import UnsupportedError
from gemm_eval.evaluate import Crossover
from gemm_eval.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_crossover"]

_TITLE = 9  # points
_SPEEDUP_TICKS = (0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)


def plot_crossover(crossover: Crossover, measured: pd.DataFrame | None = None) -> Figure:
    """Plot the speedup of W4A16 over M, and below it both latencies in microseconds, whose steps are tiles and waves.

    Args:
        crossover: the predicted lines.
        measured: rows of `measured_speedups`, of which those of this N and K are drawn as points.

    Raises:
        GemmEvalError: matplotlib is not installed.
        UnsupportedError: `measured` has the pair, but the crossover is not of cold weights in bursts.
    """
    points = None
    if measured is not None:
        points = measured[(measured["N"] == crossover.N) & (measured["K"] == crossover.K)]
        if len(points) and (crossover.l2, crossover.clock) != ("cold", "burst"):
            raise UnsupportedError(
                f"timings are of cold L2 and burst clock, the crossover is of {crossover.l2} and {crossover.clock}"
            )
    figure = new_figure(7.5, 6.0)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    M = crossover.M
    upper.axhline(1.0, color="black", linewidth=0.8)
    upper.plot(M, crossover.speedup, color="C0", linewidth=1.0, label="predicted")
    upper.fill_between(
        M, crossover.speedup, 1.0, where=crossover.speedup >= 1.0, color="C0", alpha=0.12, linewidth=0,
        label="W4A16 is faster",
    )  # fmt: skip
    sides = ((crossover.w4a16_us, "w4a16_us", "W4A16"), (crossover.dense_us, "dense_us", crossover.dense_dtype))
    for place, (latency_us, column, words) in enumerate(sides):
        lower.plot(M, latency_us, color=f"C{2 * place}", linewidth=1.0, label=f"{words}, predicted")
        if points is not None and len(points):
            lower.scatter(points["M"], points[column], s=12, color=f"C{2 * place}", label=f"{words}, measured")
    if points is not None and len(points):
        upper.scatter(points["M"], points["speedup"], s=16, color="C3", zorder=3, label="measured")
    upper.set(yscale="log", ylabel=f"speedup of W4A16: {crossover.dense_dtype} time / W4A16 time")
    _set_speedup_ticks(upper, crossover, points)
    lower.set(yscale="log", ylabel="latency (us)", xlabel="M (rows of A and C)")
    _set_rows_axis(lower, crossover.max_M)
    for axes in (upper, lower):
        axes.grid(alpha=0.25, linewidth=0.5)
        axes.legend(fontsize=_TITLE)
    group = "one scale a column" if crossover.group_size < 0 else f"groups of {crossover.group_size}"
    upper.set_title(
        f"W4A16 ({group}) against {crossover.dense_dtype}: K={crossover.K} N={crossover.N} on {crossover.arch_name}\n"
        f"{crossover.l2} L2, {crossover.clock} clock",
        fontsize=_TITLE,
    )
    return figure


def _set_speedup_ticks(axes: Axes, crossover: Crossover, points: pd.DataFrame | None) -> None:
    """Few ticks, as plain numbers: on a log axis of less than a decade matplotlib would print powers of ten."""
    values: npt.NDArray[np.float64] = crossover.speedup
    if points is not None and len(points):
        values = np.concatenate([values, points["speedup"].to_numpy(np.float64)])
    low, high = float(values.min()), float(values.max())
    kept = [tick for tick in _SPEEDUP_TICKS if 0.9 * low <= tick <= 1.1 * high]
    axes.set_yticks(kept, labels=[f"{tick:g}" for tick in kept])
    axes.set_yticks([], minor=True)


def _set_rows_axis(axes: Axes, max_M: int) -> None:
    powers = range(max_M.bit_length())
    axes.set_xscale("log", base=2)
    axes.set_xticks([1 << power for power in powers[::2]], labels=[f"{1 << power:,}" for power in powers[::2]])
    axes.set_xticks([1 << power for power in powers], minor=True, labels=[])
