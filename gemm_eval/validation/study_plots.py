"""Plots of studies of single configs. Each returns a matplotlib Figure of its own; no global state is touched."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gemm_eval.extras import needs_extra
from gemm_eval.figures import (
    DASHES,
    SERIES,
    SURFACE,
    TEXT,
    add_grid,
    add_legend,
    add_title,
    new_figure,
    scale_axis,
    styled,
)
from gemm_eval.validation.ablation import Ablated, Ablation
from gemm_eval.validation.choice import first_rows
from gemm_eval.validation.plots import draw_predicted, save_figure
from gemm_eval.validation.studies import Study

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

__all__ = ["plot_ablation", "plot_family", "plot_regret", "save_study_plots"]

_LEAST_PERCENT = 0.1  # regrets below are drawn here, since the axis is logarithmic
_LINEAR_POINTS = 0.01  # the axis of ablations is linear up to here
_BAR = 0.4


@styled
def plot_family(study: Study, family: str) -> Figure:
    """Plot predicted against measured latency of one family's configs, log-log, with lines at -10%, 0 and +10%."""
    figure = new_figure(6.4, 6.6)
    of_family = study.timings.of_group(family)
    predicted_us = study.scores[0].predicted_us[of_family]
    handles = draw_predicted(figure.add_subplot(), study.timings.select(of_family), predicted_us)
    add_title(figure, f"{family}: {of_family.sum():,} timings\n{_short(study.title)}")
    add_legend(figure, handles)
    return figure


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
def plot_ablation(found: Sequence[Ablated], family: str) -> Figure:
    """Plot what the removal of each term of a family does to its MAPE, in percentage points: in sample and held out."""
    with needs_extra("plotting", "plot"):
        from matplotlib.patches import Patch
        from matplotlib.ticker import FuncFormatter

    items = sorted((item for item in found if item.part == family), key=lambda item: item.in_sample_points or 0.0)
    figure = new_figure(7.6, 1.6 + 0.26 * len(items))
    axes = figure.add_subplot()
    sides: list[tuple[str, float, list[float | None]]] = [
        ("in sample, weighted", 0.5, [item.in_sample_points or 0.0 for item in items]),
        ("held out by (N, K)", -0.5, [item.held_out_points for item in items]),
    ]
    handles: list[Artist] = []
    for (label, side, points), color, hatch in zip(sides, SERIES, ("", "///"), strict=False):
        known = {place + side * _BAR: value for place, value in enumerate(points) if value is not None}
        look: dict[str, Any] = {"facecolor": color, "hatch": hatch, "edgecolor": SURFACE, "linewidth": 0.5}
        if known:
            axes.barh(list(known), list(known.values()), _BAR, **look)
            handles.append(Patch(label=label, **look))
    axes.axvline(0.0, color=TEXT, linewidth=0.8)
    add_grid(axes, axis="x")
    axes.set_yticks(range(len(items)), labels=[item.coefficient for item in items])
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
    found = () if ablation is None else ablation.found
    for family in dict.fromkeys(item.part for item in found):
        save_figure(plot_ablation(found, family), folder / f"w4a16-ablation-{family}.png")


def _short(title: str) -> str:
    return title.replace("; ", ";\n", 1)
