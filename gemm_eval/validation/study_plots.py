"""Plots of studies of single configs. Each returns a matplotlib Figure of its own; no global state is touched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gemm_eval.figures import new_figure
from gemm_eval.validation.ablation import Ablated, Ablation
from gemm_eval.validation.choice import first_rows
from gemm_eval.validation.metrics import REGIMES, regime_of
from gemm_eval.validation.plots import draw_equal, save_figure
from gemm_eval.validation.studies import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_ablation", "plot_family", "plot_regret", "save_study_plots"]

_TITLE = 9  # points
_LEAST_PERCENT = 0.1  # regrets below are drawn here, since the axis is logarithmic
_LINEAR_POINTS = 0.01  # the axis of ablations is linear up to here


def plot_family(study: Study, family: str) -> Figure:
    """Plot predicted against measured latency of one family's configs, log-log, in microseconds."""
    figure = new_figure(6.4, 5.8)
    axes = figure.add_subplot()
    of_family = study.timings.of_group(family)
    measured_us, predicted_us = study.timings.measured_us, study.scores[0].predicted_us
    regimes = regime_of(study.timings)
    for regime in REGIMES[:-1]:
        rows = of_family & (regimes == regime.name)
        if rows.any():
            axes.scatter(
                measured_us[rows], predicted_us[rows], s=4, alpha=0.35, linewidths=0, label=regime.name, rasterized=True
            )
    draw_equal(axes, measured_us[of_family], predicted_us[of_family])
    axes.set_title(f"{family}: {of_family.sum():,} timings\n{_short(study.title)}", fontsize=_TITLE)
    axes.legend()
    return figure


def plot_regret(study: Study) -> Figure:
    """Plot, for each method, the share of GEMMs whose choice has at most that regret, in percent.

    GEMMs whose configs were all timed, or all where there is none; regrets under 0.1% are drawn at 0.1%.
    """
    figure = new_figure(9.5, 5.0)
    axes = figure.add_subplot()
    gemms = study.is_full if study.is_full.any() else np.ones(len(study.is_full), bool)
    best_us = study.timings.best_us[first_rows(study.timings)][gemms]
    share = 100.0 * np.arange(1, len(best_us) + 1) / len(best_us)
    for choice in study.choices:
        if choice.method != "profile all":
            percent = 100.0 * np.sort(choice.chosen_us[gemms] / best_us - 1.0)
            axes.step(np.maximum(percent, _LEAST_PERCENT), share, where="post", label=choice.method, linewidth=1.2)
    axes.set(
        xscale="log", xlabel="regret: time of the choice / best measured - 1 (%)", ylabel="GEMMs (%)", ylim=(0, 101)
    )
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.set_title(f"{len(best_us)} GEMMs\n{_short(study.title)}", fontsize=_TITLE)
    figure.legend(fontsize="small", loc="outside right upper")
    return figure


def plot_ablation(found: Sequence[Ablated], family: str) -> Figure:
    """Plot what the removal of each term of a family does to its MAPE, in percentage points: in sample and held out."""
    items = sorted((item for item in found if item.part == family), key=lambda item: item.in_sample_points or 0.0)
    figure = new_figure(7.0, 1.2 + 0.24 * len(items))
    axes = figure.add_subplot()
    places = np.arange(len(items))
    axes.barh(places + 0.2, [item.in_sample_points or 0.0 for item in items], 0.4, label="in sample, weighted")
    known = [place for place, item in enumerate(items) if item.held_out_points is not None]
    held_out = [item.held_out_points or 0.0 for item in items if item.held_out_points is not None]
    axes.barh(np.array(known) - 0.2, held_out, 0.4, label="held out by (N, K)")
    axes.set_yticks(places, labels=[item.coefficient for item in items])
    axes.set_xscale("symlog", linthresh=_LINEAR_POINTS)
    axes.axvline(0.0, color="black", linewidth=0.8)
    axes.set(xlabel="change of the MAPE without the term (percentage points)", ylabel="coefficient")
    axes.grid(alpha=0.25, linewidth=0.5, axis="x")
    axes.set_title(f"{family}: a term removed, the others fitted again", fontsize=_TITLE)
    axes.legend()
    return figure


def save_study_plots(studies: Sequence[Study], ablation: Ablation | None, folder: Path) -> None:
    """Write all plots as PNG files to a folder, which is made if it is missing."""
    for study in studies:
        stem = "w4a16-" + "-".join(dict.fromkeys(study.timings.frame["table"]))
        present = set(study.timings.frame["family"])
        for family in (name for name in study.timings.groups if name in present):
            save_figure(plot_family(study, family), folder / f"{stem}-{family}-predicted.png")
        save_figure(plot_regret(study), folder / f"{stem}-regret.png")
    found = () if ablation is None else ablation.found
    for family in dict.fromkeys(item.part for item in found):
        save_figure(plot_ablation(found, family), folder / f"w4a16-ablation-{family}.png")


def _short(title: str) -> str:
    return title.replace("; ", ";\n", 1)
