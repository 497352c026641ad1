"""Plots of predictions against timings. Each returns a matplotlib Figure of its own; no global state is touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gemm_eval.figures import new_figure
from gemm_eval.validation.metrics import REGIMES
from gemm_eval.validation.predictors import Predictor
from gemm_eval.validation.report import title_of
from gemm_eval.validation.scores import Score
from gemm_eval.validation.timings import PROBLEM_COLUMNS, Floats, Mask, Timings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "draw_equal",
    "plot_error_by_rows",
    "plot_latency_curves",
    "plot_predicted",
    "problems_over_rows",
    "save_figure",
]

_DPI = 150
_GUIDE_FRAC = 0.1
_MAX_PAIRS = 6
_DENSE_STEP = 8
_MIN_CURVE_ROWS = 8  # different M of a pair, for a curve
_BINS_PER_OCTAVE = 2
_TICK_STEP = 4  # ticks at every other power of two
_TITLE = 9  # points


def plot_predicted(scored: Score) -> Figure:
    """Plot predicted against measured latency, log-log, in microseconds, with lines at -10%, 0 and +10%."""
    figure = new_figure(6.4, 5.8)
    axes = figure.add_subplot()
    measured_us = scored.timings.measured_us
    for regime in REGIMES[:-1]:
        rows = regime.mask(scored.timings)
        words = (
            f"{regime.name}: M <= {regime.max_rows}" if regime.max_rows else f"{regime.name}: M >= {regime.min_rows}"
        )
        axes.scatter(measured_us[rows], scored.predicted_us[rows], s=7, alpha=0.5, linewidths=0, label=words)
    draw_equal(axes, measured_us, scored.predicted_us)
    axes.set_title(_title_of(scored), fontsize=_TITLE)
    axes.legend()
    return figure


def draw_equal(axes: Axes, measured_us: Floats, predicted_us: Floats) -> None:
    """Draw the lines where predictions are equal to measurements and 10% off them; both axes in us, logarithmic."""
    ends = np.array([min(measured_us.min(), predicted_us.min()), max(measured_us.max(), predicted_us.max())])
    axes.plot(ends, ends, color="black", linewidth=0.8, label="equal")
    for sign, words in ((-1.0, f"{_GUIDE_FRAC:.0%} off"), (1.0, "")):
        axes.plot(ends, (1.0 + sign * _GUIDE_FRAC) * ends, color="black", linewidth=0.8, linestyle=":", label=words)
    axes.set(xscale="log", yscale="log", xlabel="measured latency (us)", ylabel="predicted latency (us)")
    axes.set_aspect("equal")
    axes.grid(alpha=0.25, linewidth=0.5)


def plot_error_by_rows(scored: Score) -> Figure:
    """Plot the relative error, in percent, over M: the median, and the bands of 25..75% and 10..90% of the rows.

    Rows are taken together in half octaves of M, since M = 127, 128 and 129 are of few rows each.
    """
    figure = new_figure(7.0, 4.2)
    axes = figure.add_subplot()
    percent = 100.0 * (scored.predicted_us / scored.timings.measured_us - 1.0)
    M = scored.timings.column("M").astype(np.float64)
    bins = np.round(_BINS_PER_OCTAVE * np.log2(M))
    by_rows = pd.Series(percent).groupby(bins)
    quantiles = {q: by_rows.quantile(q) for q in (0.1, 0.25, 0.5, 0.75, 0.9)}
    M = np.exp2(pd.Series(np.log2(M)).groupby(bins).mean().to_numpy())
    for low, high, alpha in ((0.1, 0.9, 0.2), (0.25, 0.75, 0.35)):
        label = f"{low:.0%} to {high:.0%} of rows"
        axes.fill_between(M, quantiles[low], quantiles[high], color="tab:blue", alpha=alpha, linewidth=0, label=label)
    axes.plot(M, quantiles[0.5], color="tab:blue", marker="o", markersize=3, label="median")
    axes.axhline(0.0, color="black", linewidth=0.8)
    _set_rows_axis(axes, M)
    axes.set(ylabel="predicted / measured - 1 (%)")
    axes.set_title(_title_of(scored), fontsize=_TITLE)
    axes.legend()
    return figure


def plot_latency_curves(predictor: Predictor, timings: Timings, pairs: Sequence[tuple[int, int]] = ()) -> Figure:
    """Plot measured latencies over M, and the predicted curve between them, which shows the steps of the waves.

    Args:
        predictor: with its constants; it is not fitted here.
        timings: the measured rows.
        pairs: (N, K) of the curves; empty: up to six pairs of `timings` with many M, spread over the sizes of their
            weights. Of a pair with several G or types, the combination with most rows is drawn.
    """
    figure = new_figure(7.5, 5.2)
    axes = figure.add_subplot()
    for place, pair in enumerate(pairs or _spread_pairs(timings)):
        of_pair = _most_alike(timings.select(_is_pair(timings, pair)))
        if not len(of_pair):
            continue
        color = f"C{place}"
        N, K = pair
        G = int(of_pair.column("G")[0])
        label = f"N={N} K={K}" if G == 1 else f"G={G} N={N} K={K}"
        axes.scatter(of_pair.column("M"), of_pair.measured_us, s=14, color=color, label=label)
        dense = problems_over_rows(of_pair)
        axes.plot(dense.column("M"), predictor.predict(dense), color=color, linewidth=1.0)
    _set_rows_axis(axes, timings.column("M"))
    axes.set(yscale="log", ylabel="latency (us)")
    title = f"measured (dots) and {predictor.name} (lines)\n{timings.name}: {timings.library} on {timings.gpu}"
    axes.set_title(title, fontsize=_TITLE)
    axes.legend()
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
    """Write a figure as PNG; the folder is made if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI)


def _set_rows_axis(axes: Axes, M: npt.NDArray[Any]) -> None:
    """M on a logarithmic axis, with powers of two written out."""
    last = int(np.ceil(np.log2(M.max())))
    ticks = [1 << power for power in range(0, last + 1, 1 if last <= _TICK_STEP else 2)]
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, labels=[str(tick) for tick in ticks])
    axes.set_xticks([1 << power for power in range(last + 1)], minor=True, labels=[])
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.set_xlabel("M (rows of A and C)")


def _title_of(scored: Score) -> str:
    name, _, rest = title_of(scored.timings).partition(": ")
    return f"{scored.predictor} ({scored.how}), {name}\n{rest}"


def _most_alike(timings: Timings) -> Timings:
    """The rows whose G and types are those of most rows: only M differs among them."""
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
