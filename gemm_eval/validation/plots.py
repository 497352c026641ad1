"""Plots of predictions against timings. Each returns a matplotlib Figure of its own; no global state is touched.

A series has one colour and one marker or dash: predictions are lines, measurements points.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from gemm_eval import figures
from gemm_eval.extras import needs_extra
from gemm_eval.figures import save_figure
from gemm_eval.validation.metrics import REGIMES, Score
from gemm_eval.validation.report import title_of
from gemm_eval.validation.studies import Study, first_rows
from gemm_eval.validation.timings import Floats, Timings

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure


_FEW_POINTS, _MANY_POINTS = 200, 5_000
_GUIDE_FRAC = 0.1
_MARGIN = 1.12  # around the latencies, at least, so that the guides are inside
_MARGIN_FRAC = 0.04  # of the decades
_BINS_PER_OCTAVE = 2
_BANDS = ((0.1, 0.9, 0.2), (0.25, 0.75, 0.35))  # from, to, alpha
_LEAST_PERCENT = 0.1  # regrets below are drawn here, since the axis is logarithmic


@figures.styled
def plot_predicted(scored: Score) -> Figure:
    """Plot predicted against measured latency, log-log, with lines at -10%, 0 and +10%."""
    return _predicted(scored.timings, scored.predicted_us, _title_of(scored))


@figures.styled
def plot_family(study: Study, family: str) -> Figure:
    """Plot predicted against measured latency of one family's configs, as `plot_predicted`."""
    rows = study.timings.of_group(family)
    title = f"{family}: {rows.sum():,} timings\n{_short(study.title)}"
    return _predicted(study.timings.select(rows), study.scores[0].predicted_us[rows], title)


def _predicted(timings: Timings, predicted_us: Floats, title: str) -> Figure:
    """Plot latencies by regime of M, log-log with the same limits; very many points are pixels."""
    with needs_extra("plotting", "plot"):
        from matplotlib.lines import Line2D

    figure = figures.new_figure(6.4, 6.4)
    axes = figure.add_subplot()
    is_dense = len(timings) > _MANY_POINTS
    area = 5 if is_dense else 10 if len(timings) > _FEW_POINTS else 20  # square points
    handles: list[Artist] = []
    for regime, color, marker in zip(REGIMES[:-1], figures.SERIES, figures.MARKERS, strict=False):
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
    handles += axes.plot(ends, ends, color=figures.TEXT, linewidth=0.8, label="equal")
    for factor in (1.0 - _GUIDE_FRAC, 1.0 + _GUIDE_FRAC):
        guide = axes.plot(ends, factor * ends, color=figures.MUTED, linewidth=0.8, linestyle=":")
    guide[0].set_label(f"{_GUIDE_FRAC:.0%} off")
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axes.set_box_aspect(1.0)
    figures.add_grid(axes)
    for axis, name in ((axes.xaxis, "measured_latency_us"), (axes.yaxis, "predicted_latency_us")):
        figures.scale_axis(axis, name, both_us, is_log=True)
    figures.add_title(figure, title)
    figures.add_legend(figure, [*handles, *guide])
    return figure


@figures.styled
def plot_error_by_rows(scored: Score) -> Figure:
    """Plot the relative error in percent over half octaves of M: the median, 25..75% and 10..90% of the rows."""
    figure = figures.new_figure(7.4, 4.4)
    axes = figure.add_subplot()
    percent = 100.0 * scored.error_frac
    octaves = np.log2(scored.timings.sizes[:, 1].astype(np.float64))
    frame = pd.DataFrame({"percent": percent, "octave": octaves}).groupby(np.round(_BINS_PER_OCTAVE * octaves))
    M, errors = np.exp2(frame["octave"].mean().to_numpy()), frame["percent"]
    handles: list[Artist] = [
        axes.fill_between(
            M, errors.quantile(low), errors.quantile(high), color=figures.SERIES[0], alpha=alpha, linewidth=0,
            label=f"{low:.0%} to {high:.0%} of rows",
        )
        for low, high, alpha in _BANDS
    ]  # fmt: skip
    handles += axes.plot(M, errors.quantile(0.5), color=figures.SERIES[0], marker=figures.MARKERS[0], label="median")
    axes.axhline(0.0, color=figures.TEXT, linewidth=0.8)
    figures.add_grid(axes)
    figures.set_rows_axis(axes, M.min(), M.max())
    figures.scale_axis(axes.yaxis, "predicted / measured - 1_percent", percent, is_log=False)
    figures.add_title(figure, _title_of(scored))
    figures.add_legend(figure, handles[::-1])
    return figure


def _title_of(scored: Score) -> str:
    name, _, rest = title_of(scored.timings).partition(": ")
    return f"{scored.predictor} ({scored.how}), {name}\n{rest}"


@figures.styled
def plot_regret(study: Study) -> Figure:
    """Plot, for each method, the share of GEMMs whose choice has at most that regret, in percent.

    GEMMs whose configs were all timed, or all where there is none; regrets under 0.1% are drawn at 0.1%. Methods that
    start with the same word have one colour: the same order, of which more or fewer are timed.
    """
    figure = figures.new_figure(7.6, 5.4)
    axes = figure.add_subplot()
    gemms = study.is_full if study.is_full.any() else np.ones(len(study.is_full), bool)
    best_us = study.timings.best_us[first_rows(study.timings)][gemms]
    share = 100.0 * np.arange(len(best_us) + 1) / len(best_us)
    choices = [choice for choice in study.choices if choice.method != "profile all"]
    colors = dict(
        zip(dict.fromkeys(choice.method.split()[0] for choice in choices), cycle(figures.SERIES), strict=False)
    )
    handles: list[Artist] = []
    drawn = []
    for choice, dash in zip(choices, cycle(figures.DASHES), strict=False):
        percent = np.maximum(100.0 * np.sort(choice.chosen_us[gemms] / best_us - 1.0), _LEAST_PERCENT)
        handles += axes.step(
            np.concatenate([percent[:1], percent]), share, where="post", linestyle=dash, label=choice.method,
            color=colors[choice.method.split()[0]],
        )  # fmt: skip
        drawn.append(percent)
    axes.set(xscale="log", ylabel="GEMMs (%)", ylim=(0, 101))
    figures.add_grid(axes)
    figures.scale_axis(axes.xaxis, "regret", np.concatenate(drawn), is_log=True)
    least = f"less than {_LEAST_PERCENT:g} at {_LEAST_PERCENT:g}"
    axes.set_xlabel(f"regret: time of the choice / best measured - 1 (%; {least})")
    figures.add_title(figure, f"{len(best_us)} GEMMs\n{_short(study.title)}")
    figures.add_legend(figure, handles)
    return figure


def save_score_plots(scores: Sequence[Score], folder: Path) -> None:
    """Write predictions and errors over M of each score as PNG files to a folder, which is made if it is missing."""
    for scored in scores:
        stem = f"{scored.timings.name}-{scored.predictor}".replace("/", "-").replace(" ", "-")
        save_figure(plot_predicted(scored), folder / f"{stem}-predicted.png")
        save_figure(plot_error_by_rows(scored), folder / f"{stem}-error.png")


def save_study_plots(studies: Sequence[Study], folder: Path) -> None:
    """Write all plots as PNG files to a folder, which is made if it is missing."""
    for study in studies:
        stem = "w4a16-" + "-".join(dict.fromkeys(study.timings.frame["table"]))
        present = set(study.timings.frame["family"])
        for family in (name for name in study.timings.groups if name in present):
            save_figure(plot_family(study, family), folder / f"{stem}-{family}-predicted.png")
        save_figure(plot_regret(study), folder / f"{stem}-regret.png")


def _short(title: str) -> str:
    return title.replace("; ", ";\n", 1)
