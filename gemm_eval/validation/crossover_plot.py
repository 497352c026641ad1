"""The plot of where W4A16 pays: its speedup and both latencies over M, predicted and measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from gemm_eval.errors import UnsupportedError
from gemm_eval.evaluate import Crossover
from gemm_eval.extras import needs_extra
from gemm_eval.figures import (
    DASHES,
    MARKERS,
    SERIES,
    TEXT,
    add_grid,
    add_legend,
    add_title,
    new_figure,
    scale_axis,
    set_rows_axis,
    styled,
)
from gemm_eval.validation.plots import MEASURED

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_crossover"]

_SPEEDUP_TICKS = (0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
_FASTER_ALPHA = 0.15


@styled
def plot_crossover(crossover: Crossover, measured: pd.DataFrame | None = None) -> Figure:
    """Plot the speedup of W4A16 over M, and below it both latencies, whose steps are tiles and waves.

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
        if not len(points):
            points = None
        elif (crossover.l2, crossover.clock) != ("cold", "burst"):
            raise UnsupportedError(
                f"timings are of cold L2 and burst clock, the crossover is of {crossover.l2} and {crossover.clock}"
            )
    figure = new_figure(7.6, 6.4)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    area = _draw_speedup(upper, crossover, points)
    handles = _draw_latencies(lower, crossover, points)
    M = crossover.M if points is None else np.concatenate([crossover.M, points["M"]])
    set_rows_axis(lower, M.min(), M.max())
    group = "one scale a column" if crossover.group_size < 0 else f"groups of {crossover.group_size}"
    add_title(
        figure,
        f"W4A16 ({group}) against {crossover.dense_dtype}: K={crossover.K} N={crossover.N} on {crossover.arch_name}\n"
        f"{crossover.l2} L2, {crossover.clock} clock",
    )
    add_legend(figure, handles + area)
    figure.align_ylabels()
    return figure


def _draw_speedup(axes: Axes, crossover: Crossover, points: pd.DataFrame | None) -> list[Artist]:
    """Draw speedups in the colour of W4A16; returns the area where it is faster, if there is one, for the legend."""
    is_faster = crossover.speedup >= 1.0
    area = axes.fill_between(
        crossover.M, crossover.speedup, 1.0, where=is_faster, color=SERIES[0], alpha=_FASTER_ALPHA, linewidth=0,
        label="W4A16 is faster",
    )  # fmt: skip
    axes.axhline(1.0, color=TEXT, linewidth=0.8)
    axes.plot(crossover.M, crossover.speedup, color=SERIES[0], linewidth=1.0)
    values: npt.NDArray[np.float64] = crossover.speedup
    if points is not None:
        axes.scatter(points["M"], points["speedup"], color=SERIES[0], marker=MARKERS[0], **MEASURED)
        values = np.concatenate([values, points["speedup"]])
    axes.set(yscale="log", ylabel=f"speedup of W4A16: {crossover.dense_dtype} time / W4A16 time")
    add_grid(axes)
    _set_speedup_ticks(axes, float(values.min()), float(values.max()))
    return [area] if is_faster.any() else []


def _draw_latencies(axes: Axes, crossover: Crossover, points: pd.DataFrame | None) -> list[Artist]:
    with needs_extra("plotting", "plot"):
        from matplotlib.lines import Line2D

    handles: list[Artist] = []
    drawn_us = []
    sides = ((crossover.w4a16_us, "w4a16_us", "W4A16"), (crossover.dense_us, "dense_us", crossover.dense_dtype))
    for place, (latency_us, column, words) in enumerate(sides):
        color, marker = SERIES[place], MARKERS[place]
        handles += axes.plot(
            crossover.M, latency_us, color=color, linestyle=DASHES[place], linewidth=1.0, label=f"{words}, predicted"
        )
        drawn_us.append(latency_us)
        if points is not None:
            axes.scatter(points["M"], points[column], color=color, marker=marker, **MEASURED)
            handles.append(Line2D([], [], linestyle="", color=color, marker=marker, label=f"{words}, measured"))
            drawn_us.append(points[column].to_numpy(np.float64))
    axes.set_yscale("log")
    add_grid(axes)
    scale_axis(axes.yaxis, "latency_us", np.concatenate(drawn_us), is_log=True)
    return handles


def _set_speedup_ticks(axes: Axes, low: float, high: float) -> None:
    """Few ticks, as plain numbers: on a log axis of less than a decade matplotlib would print powers of ten."""
    kept = [tick for tick in _SPEEDUP_TICKS if 0.9 * low <= tick <= 1.1 * high]
    axes.set_yticks(kept, labels=[f"{tick:g}" for tick in kept])
    axes.set_yticks([], minor=True)
