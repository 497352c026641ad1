"""Plots of predictions against timings. Each returns a matplotlib Figure of its own; no global state is touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from gemm_eval.validation.extras import check_extra
from gemm_eval.validation.metrics import REGIMES
from gemm_eval.validation.predictors import Predictor
from gemm_eval.validation.report import title_of
from gemm_eval.validation.scoring import Score
from gemm_eval.validation.timings import Mask, TimingSet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_error_by_rows", "plot_latency_curves", "plot_predicted", "problems_over_rows", "save_figure"]

_DPI = 150
_GUIDE_FRAC = 0.1
_MAX_PAIRS = 6
_DENSE_STEP = 8


def plot_predicted(scored: Score) -> Figure:
    """Plot predicted against measured latency, log-log, in microseconds, with lines at -10%, 0 and +10%."""
    figure = _figure(6.0, 5.6)
    axes = figure.add_subplot()
    measured_us = scored.timings.latency_us
    for regime in REGIMES[:-1]:
        rows = regime.mask(scored.timings)
        axes.scatter(measured_us[rows], scored.predicted_us[rows], s=6, alpha=0.5, label=regime.name)
    ends = np.array(
        [min(measured_us.min(), scored.predicted_us.min()), max(measured_us.max(), scored.predicted_us.max())]
    )
    axes.plot(ends, ends, color="black", linewidth=0.8)
    for factor in (1.0 - _GUIDE_FRAC, 1.0 + _GUIDE_FRAC):
        axes.plot(ends, factor * ends, color="black", linewidth=0.5, linestyle=":")
    axes.set(xscale="log", yscale="log", xlabel="measured latency (us)", ylabel="predicted latency (us)")
    axes.set_title(f"{scored.predictor}: {title_of(scored.timings)}", fontsize=8, wrap=True)
    axes.legend(title="regime of M")
    return figure


def plot_error_by_rows(scored: Score) -> Figure:
    """Plot the relative error, in percent, over M: the median, and the bands of 25..75% and 10..90% of the rows."""
    figure = _figure(7.0, 4.2)
    axes = figure.add_subplot()
    percent = 100.0 * (scored.predicted_us / scored.timings.latency_us - 1.0)
    by_rows = pd.Series(percent).groupby(scored.timings.column("M"))
    quantiles = {q: by_rows.quantile(q) for q in (0.1, 0.25, 0.5, 0.75, 0.9)}
    M = quantiles[0.5].index.to_numpy()
    for low, high, alpha in ((0.1, 0.9, 0.2), (0.25, 0.75, 0.35)):
        label = f"{low:.0%} to {high:.0%} of rows"
        axes.fill_between(M, quantiles[low], quantiles[high], color="tab:blue", alpha=alpha, linewidth=0, label=label)
    axes.plot(M, quantiles[0.5], color="tab:blue", marker="o", markersize=3, label="median")
    axes.axhline(0.0, color="black", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="M (rows of A and C)", ylabel="predicted / measured - 1 (%)")
    axes.set_title(f"{scored.predictor}: {title_of(scored.timings)}", fontsize=8, wrap=True)
    axes.legend()
    return figure


def plot_latency_curves(predictor: Predictor, timings: TimingSet, pairs: Sequence[tuple[int, int]] = ()) -> Figure:
    """Plot measured latencies over M, and the predicted curve between them, which shows the steps of the waves.

    Args:
        predictor: with its constants; it is not fitted here.
        timings: the measured rows.
        pairs: (N, K) of the curves; empty: up to six pairs of `timings`, spread over the sizes of their weights.
    """
    figure = _figure(7.5, 5.0)
    axes = figure.add_subplot()
    for place, pair in enumerate(pairs or _spread_pairs(timings)):
        of_pair = timings.select(_is_pair(timings, pair))
        if not len(of_pair):
            continue
        color = f"C{place}"
        N, K = pair
        axes.scatter(of_pair.column("M"), of_pair.latency_us, s=14, color=color, label=f"N={N} K={K}")
        dense = problems_over_rows(of_pair)
        axes.plot(dense.column("M"), predictor.predict(dense), color=color, linewidth=1.0)
    axes.set_xscale("log", base=2)
    axes.set(yscale="log", xlabel="M (rows of A and C)", ylabel="latency (us)")
    axes.set_title(f"measured (dots) and {predictor.name} (lines): {timings.name}", fontsize=8, wrap=True)
    axes.legend()
    return figure


def problems_over_rows(timings: TimingSet, step: int = _DENSE_STEP) -> TimingSet:
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


def _figure(width: float, height: float) -> Figure:
    check_extra("plotting", "plot", "matplotlib")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")  # inches


def _spread_pairs(timings: TimingSet) -> list[tuple[int, int]]:
    pairs = timings.frame[["N", "K"]].drop_duplicates()
    ordered = pairs.assign(size=pairs["N"] * pairs["K"]).sort_values(["size", "N", "K"])
    places = np.unique(np.linspace(0, len(ordered) - 1, _MAX_PAIRS).round().astype(int))
    chosen = ordered.iloc[places]
    return list(zip(chosen["N"].tolist(), chosen["K"].tolist(), strict=True))


def _is_pair(timings: TimingSet, pair: tuple[int, int]) -> Mask:
    frame = timings.frame
    return ((frame["N"] == pair[0]) & (frame["K"] == pair[1])).to_numpy(dtype=bool)
