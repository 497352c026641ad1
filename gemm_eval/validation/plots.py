"""Plots of predictions against timings. Each returns a matplotlib Figure of its own; no global state is touched.

A series has one colour and one marker or dash: predictions are lines, measurements points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gemm_eval.errors import InvalidInputError
from gemm_eval.extras import needs_extra
from gemm_eval.figures import (
    MARKERS,
    MUTED,
    SERIES,
    SURFACE,
    TEXT,
    add_grid,
    add_legend,
    add_title,
    new_figure,
    scale_axis,
    set_rows_axis,
    styled,
)
from gemm_eval.validation.metrics import REGIMES, Score
from gemm_eval.validation.predictors import Predictor
from gemm_eval.validation.report import title_of
from gemm_eval.validation.timings import PROBLEM_COLUMNS, Floats, Mask, Timings

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MEASURED: dict[str, Any] = {"s": 24, "edgecolors": SURFACE, "linewidths": 0.4, "zorder": 3}
"""The look of measured points, beside the colour and the marker of their series."""

_DPI = 150
_FEW_POINTS, _MANY_POINTS = 200, 5_000
_GUIDE_FRAC = 0.1
_MARGIN = 1.12  # around the latencies, at least, so that the guides are inside
_MARGIN_FRAC = 0.04  # of the decades
_MAX_PAIRS = 6
_DENSE_STEP = 8
_MIN_CURVE_ROWS = 8  # different M of a pair, for a curve
_BINS_PER_OCTAVE = 2
_BANDS = ((0.1, 0.9, 0.2), (0.25, 0.75, 0.35))  # from, to, alpha


@styled
def plot_predicted(scored: Score) -> Figure:
    """Plot predicted against measured latency, log-log, with lines at -10%, 0 and +10%."""
    figure = new_figure(6.4, 6.4)
    handles = draw_predicted(figure.add_subplot(), scored.timings, scored.predicted_us)
    add_title(figure, _title_of(scored))
    add_legend(figure, handles)
    return figure


def draw_predicted(axes: Axes, timings: Timings, predicted_us: Floats) -> list[Artist]:
    """Draw predicted latency [rows], in us, against the measured one by regime of M: log-log, with the same limits.

    The more points, the smaller; very many are pixels in a vector format too. Returns what the legend shows: regimes
    that have rows, and the lines where predictions are equal or 10% off.
    """
    with needs_extra("plotting", "plot"):
        from matplotlib.lines import Line2D

    is_dense = len(timings) > _MANY_POINTS
    area = 5 if is_dense else 10 if len(timings) > _FEW_POINTS else 20  # square points
    handles: list[Artist] = []
    for regime, color, marker in zip(REGIMES[:-1], SERIES, MARKERS, strict=False):
        rows = regime.mask(timings)
        if rows.any():
            axes.scatter(
                timings.measured_us[rows], predicted_us[rows], s=area, color=color, marker=marker, linewidths=0,
                alpha=0.35 if is_dense else 0.5, rasterized=is_dense,
            )  # fmt: skip
            limit = f"M <= {regime.max_rows}" if regime.max_rows else f"M >= {regime.min_rows}"
            handles.append(Line2D([], [], linestyle="", color=color, marker=marker, label=f"{regime.name}: {limit}"))
    both_us = np.concatenate([timings.measured_us, predicted_us])
    margin = max(_MARGIN, (both_us.max() / both_us.min()) ** _MARGIN_FRAC)
    ends = np.array([both_us.min() / margin, both_us.max() * margin])
    handles += axes.plot(ends, ends, color=TEXT, linewidth=0.8, label="equal")
    for factor in (1.0 - _GUIDE_FRAC, 1.0 + _GUIDE_FRAC):
        guide = axes.plot(ends, factor * ends, color=MUTED, linewidth=0.8, linestyle=":")
    guide[0].set_label(f"{_GUIDE_FRAC:.0%} off")
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axes.set_box_aspect(1.0)
    add_grid(axes)
    for axis, name in ((axes.xaxis, "measured_latency_us"), (axes.yaxis, "predicted_latency_us")):
        scale_axis(axis, name, both_us, is_log=True)
    return handles + guide


@styled
def plot_error_by_rows(scored: Score) -> Figure:
    """Plot the relative error, in percent, over M: the median, and the bands of 25..75% and 10..90% of the rows.

    Rows are taken together in half octaves of M, since M = 127, 128 and 129 are of few rows each.
    """
    figure = new_figure(7.4, 4.4)
    axes = figure.add_subplot()
    percent = 100.0 * (scored.predicted_us / scored.timings.measured_us - 1.0)
    M = scored.timings.column("M").astype(np.float64)
    bins = np.round(_BINS_PER_OCTAVE * np.log2(M))
    by_rows = pd.Series(percent).groupby(bins)
    M = np.exp2(pd.Series(np.log2(M)).groupby(bins).mean().to_numpy())
    handles: list[Artist] = [
        axes.fill_between(
            M, by_rows.quantile(low), by_rows.quantile(high), color=SERIES[0], alpha=alpha, linewidth=0,
            label=f"{low:.0%} to {high:.0%} of rows",
        )
        for low, high, alpha in _BANDS
    ]  # fmt: skip
    handles += axes.plot(M, by_rows.quantile(0.5), color=SERIES[0], marker=MARKERS[0], label="median")
    axes.axhline(0.0, color=TEXT, linewidth=0.8)
    add_grid(axes)
    set_rows_axis(axes, M.min(), M.max())
    scale_axis(axes.yaxis, "predicted / measured - 1_percent", percent, is_log=False)
    add_title(figure, _title_of(scored))
    add_legend(figure, handles[::-1])
    return figure


@styled
def plot_latency_curves(predictor: Predictor, timings: Timings, pairs: Sequence[tuple[int, int]] = ()) -> Figure:
    """Plot measured latencies over M, and the predicted curve between them, which shows the steps of the waves.

    Args:
        predictor: with its constants; it is not fitted here.
        timings: the measured rows.
        pairs: (N, K) of the curves, up to eight; empty: up to six pairs of `timings` with many M, spread over the sizes
            of their weights. Of a pair with several G or types, the combination with most rows is drawn.

    Raises:
        InvalidInputError: more than eight pairs, or no row of any.
    """
    with needs_extra("plotting", "plot"):
        from matplotlib.lines import Line2D

    if len(pairs) > len(SERIES):
        raise InvalidInputError(f"pairs must be up to {len(SERIES)}, got {len(pairs)}")
    figure = new_figure(7.6, 5.4)
    axes = figure.add_subplot()
    handles: list[Artist] = []
    drawn_us, drawn_M = [], []
    for place, pair in enumerate(pairs or _spread_pairs(timings)):
        of_pair = _most_alike(timings.select(_is_pair(timings, pair)))
        if not len(of_pair):
            continue
        color, marker = SERIES[place], MARKERS[place]
        N, K = pair
        G = int(of_pair.column("G")[0])
        label = f"N={N} K={K}" if G == 1 else f"G={G} N={N} K={K}"
        dense = problems_over_rows(of_pair)
        predicted_us = predictor.predict(dense)
        axes.plot(dense.column("M"), predicted_us, color=color, linewidth=1.0)
        axes.scatter(of_pair.column("M"), of_pair.measured_us, color=color, marker=marker, **MEASURED)
        handles.append(Line2D([], [], color=color, linewidth=1.0, marker=marker, label=label))
        drawn_us += [of_pair.measured_us, predicted_us]
        drawn_M.append(of_pair.column("M"))
    if not handles:
        raise InvalidInputError(f"{timings.name}: there is no row of any of the pairs (N, K)")
    M = np.concatenate(drawn_M)
    axes.set_yscale("log")
    add_grid(axes)
    set_rows_axis(axes, M.min(), M.max())
    scale_axis(axes.yaxis, "latency_us", np.concatenate(drawn_us), is_log=True)
    on = f"{timings.name}: {timings.library} on {timings.gpu}"
    add_title(figure, f"measured (points) and predicted by {predictor.name} (lines)\n{on}")
    add_legend(figure, handles)
    return figure


def problems_over_rows(timings: Timings, step: int = _DENSE_STEP) -> Timings:
    """Return the first problem of `timings` at many M, from its least to its largest; latency_us is NaN.

    M takes every value up to 16 x `step`, and then 1/16 of a power of two apart, and one beyond each multiple.
    """
    low, high = int(timings.column("M").min()), int(timings.column("M").max())
    rows = {low, high} | set(range(low, min(high, 16 * step) + 1))
    for power in range(1, high.bit_length() + 1):
        for multiple in range(1 << power, 2 << power, max(step, (1 << power) // 16)):
            rows |= {multiple, multiple + 1}
    kept = sorted(M for M in rows if low <= M <= high)
    frame = timings.frame.iloc[[0] * len(kept)].reset_index(drop=True).assign(M=kept, latency_us=np.nan)
    return replace(timings, frame=frame)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG on white; the folder is made if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI, facecolor=SURFACE)


def _title_of(scored: Score) -> str:
    name, _, rest = title_of(scored.timings).partition(": ")
    return f"{scored.predictor} ({scored.how}), {name}\n{rest}"


def _most_alike(timings: Timings) -> Timings:
    """Return the rows whose G and types are those of most rows: only M differs among them."""
    groups = timings.frame.groupby([column for column in PROBLEM_COLUMNS if column != "M"]).ngroup()
    return timings.select((groups == groups.mode()[0]).to_numpy(dtype=bool)) if len(groups) else timings


def _spread_pairs(timings: Timings) -> list[tuple[int, int]]:
    pairs = timings.frame.groupby(["N", "K"])["M"].nunique().rename("rows").reset_index()
    pairs = pairs[pairs["rows"] >= min(_MIN_CURVE_ROWS, pairs["rows"].max())]
    ordered = pairs.assign(size=pairs["N"] * pairs["K"]).sort_values(["size", "N", "K"])
    places = np.unique(np.linspace(0, len(ordered) - 1, _MAX_PAIRS).round().astype(int))
    chosen = ordered.iloc[places]
    return list(zip(chosen["N"].tolist(), chosen["K"].tolist(), strict=True))


def _is_pair(timings: Timings, pair: tuple[int, int]) -> Mask:
    frame = timings.frame
    return ((frame["N"] == pair[0]) & (frame["K"] == pair[1])).to_numpy(dtype=bool)
