"""Plots of predictions against timings. Each returns a matplotlib Figure of its own; no global state is touched.

A series has one colour and one marker or dash: predictions are lines, measurements points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gemm_eval.errors import InvalidInputError
from gemm_eval.extras import needs_extra
from gemm_eval.figures import (
    DASHES,
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
from gemm_eval.validation.ablation import Ablated, Ablation
from gemm_eval.validation.choice import first_rows
from gemm_eval.validation.metrics import REGIMES, Score
from gemm_eval.validation.predictors import Predictor
from gemm_eval.validation.report import title_of
from gemm_eval.validation.studies import Study
from gemm_eval.validation.timings import PROBLEM_COLUMNS, Floats, Mask, Timings

if TYPE_CHECKING:
    from matplotlib.artist import Artist
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
_LEAST_PERCENT = 0.1  # regrets below are drawn here, since the axis is logarithmic
_LINEAR_POINTS = 0.01  # the axis of ablations is linear up to here
_BAR = 0.4


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG on white; the folder is made if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI, facecolor=SURFACE)


@styled
def plot_predicted(scored: Score) -> Figure:
    """Plot predicted against measured latency, log-log, with lines at -10%, 0 and +10%."""
    return _predicted(scored.timings, scored.predicted_us, _title_of(scored))


@styled
def plot_family(study: Study, family: str) -> Figure:
    """Plot predicted against measured latency of one family's configs, as `plot_predicted`."""
    rows = study.timings.of_group(family)
    title = f"{family}: {rows.sum():,} timings\n{_short(study.title)}"
    return _predicted(study.timings.select(rows), study.scores[0].predicted_us[rows], title)


def _predicted(timings: Timings, predicted_us: Floats, title: str) -> Figure:
    """Plot latencies by regime of M: log-log, with the same limits.

    The more points, the smaller; very many are pixels in a vector format too.
    """
    with needs_extra("plotting", "plot"):
        from matplotlib.lines import Line2D

    figure = new_figure(6.4, 6.4)
    axes = figure.add_subplot()
    is_dense = len(timings) > _MANY_POINTS
    area = 5 if is_dense else 10 if len(timings) > _FEW_POINTS else 20  # square points
    handles: list[Artist] = []
    for regime, color, marker in zip(REGIMES[:-1], SERIES, MARKERS, strict=False):
        rows = regime.mask(timings.sizes[:, 1])
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
    add_title(figure, title)
    add_legend(figure, [*handles, *guide])
    return figure


@styled
def plot_error_by_rows(scored: Score) -> Figure:
    """Plot the relative error, in percent, over M: the median, and the bands of 25..75% and 10..90% of the rows.

    Rows are taken together in half octaves of M, since M = 127, 128 and 129 are of few rows each.
    """
    figure = new_figure(7.4, 4.4)
    axes = figure.add_subplot()
    percent = 100.0 * scored.error_frac
    octaves = np.log2(scored.timings.sizes[:, 1].astype(np.float64))
    frame = pd.DataFrame({"percent": percent, "octave": octaves}).groupby(np.round(_BINS_PER_OCTAVE * octaves))
    M, errors = np.exp2(frame["octave"].mean().to_numpy()), frame["percent"]
    handles: list[Artist] = [
        axes.fill_between(
            M, errors.quantile(low), errors.quantile(high), color=SERIES[0], alpha=alpha, linewidth=0,
            label=f"{low:.0%} to {high:.0%} of rows",
        )
        for low, high, alpha in _BANDS
    ]  # fmt: skip
    handles += axes.plot(M, errors.quantile(0.5), color=SERIES[0], marker=MARKERS[0], label="median")
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

    The predictor is not fitted here. Curves are of up to eight `pairs` (N, K); none given: of up to six with many M,
    spread over the sizes of their weights. Of a pair with several G or types the combination with most rows is drawn.

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
    for (N, K), color, marker in zip(pairs or _spread_pairs(timings), SERIES, MARKERS, strict=False):
        of_pair = _most_alike(timings.select(_is_pair(timings, N, K)))
        if not len(of_pair):
            continue
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
    chosen = ordered.iloc[np.unique(np.linspace(0, len(ordered) - 1, _MAX_PAIRS).round().astype(int))]
    return list(zip(chosen["N"].tolist(), chosen["K"].tolist(), strict=True))


def _is_pair(timings: Timings, N: int, K: int) -> Mask:
    return ((timings.frame["N"] == N) & (timings.frame["K"] == K)).to_numpy(dtype=bool)


@styled
def plot_regret(study: Study) -> Figure:
    """Plot, for each method, the share of GEMMs whose choice has at most that regret, in percent.

    GEMMs whose configs were all timed, or all where there is none; regrets under 0.1% are drawn at 0.1%. Methods that
    start with the same word have one colour: the same order, of which more or fewer are timed.
    """
    figure = new_figure(7.6, 5.4)
    axes = figure.add_subplot()
    gemms = study.is_full if study.is_full.any() else np.ones(len(study.is_full), bool)
    best_us = study.timings.best_us[first_rows(study.timings)][gemms]
    share = 100.0 * np.arange(len(best_us) + 1) / len(best_us)
    choices = [choice for choice in study.choices if choice.method != "profile all"]
    colors = dict(zip(dict.fromkeys(choice.method.split()[0] for choice in choices), cycle(SERIES), strict=False))
    handles: list[Artist] = []
    drawn = []
    for choice, dash in zip(choices, cycle(DASHES), strict=False):
        percent = np.maximum(100.0 * np.sort(choice.chosen_us[gemms] / best_us - 1.0), _LEAST_PERCENT)
        handles += axes.step(
            np.concatenate([percent[:1], percent]), share, where="post", linestyle=dash, label=choice.method,
            color=colors[choice.method.split()[0]],
        )  # fmt: skip
        drawn.append(percent)
    axes.set(xscale="log", ylabel="GEMMs (%)", ylim=(0, 101))
    add_grid(axes)
    scale_axis(axes.xaxis, "regret", np.concatenate(drawn), is_log=True)
    least = f"less than {_LEAST_PERCENT:g} at {_LEAST_PERCENT:g}"
    axes.set_xlabel(f"regret: time of the choice / best measured - 1 (%; {least})")
    add_title(figure, f"{len(best_us)} GEMMs\n{_short(study.title)}")
    add_legend(figure, handles)
    return figure


@styled
def plot_ablation(terms: Sequence[Ablated], family: str) -> Figure:
    """Plot what the removal of each term of a family does to its MAPE, in percentage points: in sample and held out."""
    with needs_extra("plotting", "plot"):
        from matplotlib.ticker import FuncFormatter

    items = sorted((item for item in terms if item.part == family), key=lambda item: item.in_sample_points or 0.0)
    figure = new_figure(7.6, 1.6 + 0.26 * len(items))
    axes = figure.add_subplot()
    place = np.arange(len(items))
    sides = (
        ("in sample, weighted", 0.5, [item.in_sample_points or 0.0 for item in items], ""),
        ("held out by (N, K)", -0.5, [item.held_out_points for item in items], "///"),
    )
    handles: list[Any] = []
    for (label, side, points, hatch), color in zip(sides, SERIES, strict=False):
        values = np.array(points, np.float64)
        kept = ~np.isnan(values)
        if kept.any():
            look: dict[str, Any] = {"facecolor": color, "hatch": hatch, "edgecolor": SURFACE, "linewidth": 0.5}
            handles.append(axes.barh((place + side * _BAR)[kept], values[kept], _BAR, label=label, **look))
    axes.axvline(0.0, color=TEXT, linewidth=0.8)
    add_grid(axes, axis="x")
    axes.set_yticks(place, labels=[item.coefficient for item in items])
    axes.set_ylim(-0.6, len(items) - 0.4)
    axes.tick_params(axis="y", length=0)
    axes.set_xscale("symlog", linthresh=_LINEAR_POINTS)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set(xlabel="change of the MAPE without the term (percentage points)", ylabel="coefficient")
    add_title(figure, f"{family}: a term removed, the others fitted again")
    add_legend(figure, handles)
    return figure


def save_study_plots(studies: Sequence[Study], ablation: Ablation | None, folder: Path) -> None:
    """Write all plots as PNG files to a folder, which is made if it is missing."""
    for study in studies:
        stem = "w4a16-" + "-".join(dict.fromkeys(study.timings.frame["table"]))
        present = set(study.timings.frame["family"])
        for family in (name for name in study.timings.groups if name in present):
            save_figure(plot_family(study, family), folder / f"{stem}-{family}-predicted.png")
        save_figure(plot_regret(study), folder / f"{stem}-regret.png")
    terms = () if ablation is None else ablation.terms
    for family in dict.fromkeys(item.part for item in terms):
        save_figure(plot_ablation(terms, family), folder / f"w4a16-ablation-{family}.png")


def _short(title: str) -> str:
    return title.replace("; ", ";\n", 1)
