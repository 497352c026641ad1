"""Studies of single configs as tables for a terminal and as plots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

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
from gemm_eval.validation.choice import Loss, first_rows
from gemm_eval.validation.metrics import ALL, Errors
from gemm_eval.validation.plots import draw_predicted, save_figure
from gemm_eval.validation.report import FIGURES, error_cells, outlier_records, report_table, with_caption, worst_choices
from gemm_eval.validation.studies import FIRST, Study

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure


_CHOICE_HEADERS = ("method", "mean", "p95", "worst", "speed", "top 1", "top 3", "top 10", "time")
_SPEED_HEADERS = ("group", "method", "GEMMs", *FIRST, "p5", "worst")
_US_PER_S = 1e6
_IN_SECONDS_US = 0.01 * _US_PER_S  # a choice that takes longer
_LEAST_TERM_US = 0.05


def study_report(study: Study, num_worst: int) -> Iterator[RenderableType]:
    """Yield all that is said of a study, in order; `num_worst`: of the largest errors or slowest choices."""
    by_family = study.timings.form.group == "family"
    for table in (study_errors_table(study), *(choice_tables(study) if by_family else [speed_table(study)])):
        yield from (table, "")
    if by_family:
        yield from (cost_line(study), "")
    if num_worst:
        words = "largest errors of the model near the best of a GEMM, with its terms in us"
        yield Text(words if by_family else "slowest first choices of the model", style="bold")
        yield from map(Text, (outlier_lines if by_family else worst_choice_lines)(study, num_worst))
        if by_family:
            yield ""


def study_errors_table(study: Study) -> Table:
    """Return the errors of all predictors: by family and regime, those of held-back tables in brief; or by data set."""
    by_family = study.timings.form.group == "family"
    is_brief = study.is_held_back or not by_family
    by_group: dict[tuple[str, str], list[Errors]] = {}
    for item in study.errors:
        if not is_brief or ALL in (item.group, item.regime):
            by_group.setdefault((item.group, item.regime), []).append(item)
    table = report_table((*(("family", "regime") if by_family else ("group",)), "predictor", *FIGURES), study.title)
    last = ""
    for (group, regime), items in by_group.items():
        if last and (group != last or not by_family):
            table.add_section()
        label = group if regime == ALL else regime
        # within a family the roofline of the data sheet is far off in each regime, and says nothing new
        shown = items if is_brief or ALL in (group, regime) else items[: len(study.scores) - 1]
        for place, item in enumerate(shown):
            name = group.removeprefix("w4a16_") if group != last else ""
            head = (name, "" if place else regime) if by_family else ("" if place else label,)
            table.add_row(*head, item.predictor, *error_cells(item.errors, item.tau_within_gemms))
            last = group
    tau = "tau: Kendall's tau-b within a GEMM, mean over GEMMs"
    near_best = study.timings.form.near_best
    if near_best is not None:
        caption = f"near best: measured up to {near_best:g} x the best of the GEMM. {tau} of more than 5 configs"
    else:
        caption = "; ".join(f"{scored.predictor}: {scored.how}" for scored in study.scores) + f". {tau}"
    return with_caption(table, caption)


def choice_tables(study: Study) -> list[Table]:
    """Return the regret of each method: GEMMs whose configs were all timed, then all GEMMs, then some by regime."""
    groups: dict[tuple[str, str], list[Loss]] = {}
    for item in study.losses:
        groups.setdefault((item.group, item.regime), []).append(item)
    first = next(iter(groups))[0]
    tables = []
    for (gemms, regime), regrets in groups.items():
        if regime != ALL and (gemms != first or study.is_held_back):
            continue
        if gemms != first and study.is_full.all():
            continue
        words = gemms if regime == ALL else f"{gemms}, {regime}"
        table = report_table(_CHOICE_HEADERS, f"choice of a kernel, regret: {words} ({regrets[0].num_gemms:,} GEMMs)")
        for regret in regrets:
            table.add_row(*_regret_cells(regret, study.overhead_us.get(regret.method)))
        if regime == ALL:
            for missing in study.missing:
                table.add_row(missing)
        tables.append(table)
    caption = (
        "regret: measured time of the choice / best measured - 1. speed: geometric mean of best / choice. top k: the "
        "best config is among the first k. all GEMMs: where some configs were not timed, the choice is among the timed "
        "ones. time of a choice: on this machine, and the median device time of what is profiled, without builds and "
        "pauses"
    )
    with_caption(tables[-1], caption)
    return tables


def _regret_cells(regret: Loss, overhead_us: float | None) -> tuple[str, ...]:
    tops = (regret.top1_frac, regret.top3_frac, regret.top10_frac)
    time_us = (overhead_us or 0.0) + _US_PER_S * regret.profiled_s
    time = f"{time_us / _US_PER_S:.2g} s" if time_us > _IN_SECONDS_US else f"{time_us:,.0f} us" if time_us else "-"
    return (
        regret.method, *(f"{size:.1%}" for size in (regret.mean_frac, regret.p95_frac, regret.worst_frac)),
        f"{regret.speed_frac:.1%}", *("-" if top is None else f"{top:.1%}" for top in tops), time,
    )  # fmt: skip


def cost_line(study: Study) -> str:
    """Return what choosing costs, in a sentence."""
    cost = study.cost
    assert cost is not None
    if not cost.num_gemms:
        return f"time of a choice: model {cost.model_us:,.0f} us, median; no GEMM has all its configs timed"
    return (
        f"time of a choice, median of {cost.num_gemms} GEMMs of {cost.num_configs} configs: model "
        f"{cost.model_us:,.0f} us (p90 {cost.model_p90_us:,.0f} us, one thread of this machine); profiling all "
        f"{cost.profile_s:.2f} s, of which {cost.profile_device_s:.2f} s are timed replays and the rest pauses and L2 "
        f"flushes between them, without builds: {cost.ratio:,.0f} times the model"
    )


def outlier_lines(study: Study, num: int) -> list[str]:
    """Return the rows of `outlier_records` in words, the largest terms first."""
    lines = []
    for item in outlier_records(study, num):
        terms = sorted(item["terms_us"].items(), key=lambda term: -abs(term[1]))
        shown = ", ".join(f"{name} {value:.1f}" for name, value in terms if abs(value) >= _LEAST_TERM_US)
        lines.append(
            f"M {item['M']}, N {item['N']}, K {item['K']}: {item['family']} {item['config']}, measured "
            f"{item['measured_us']:.1f} us, predicted {item['predicted_us']:.1f} us, {item['error_frac']:+.1%}; {shown}"
        )
    return lines


def speed_table(study: Study) -> Table:
    """Return the speed of what each method chooses, over all data sets by regime, then over each data set."""
    table = report_table(_SPEED_HEADERS, "speed of the choice among a GEMM's timed configs; 100%: the best of them")
    kept = [item for item in study.losses if ALL in (item.group, item.regime)]
    groups = dict.fromkeys((item.group, item.regime) for item in kept)
    for place, key in enumerate(groups):
        if place:
            table.add_section()
        of_group = [item for item in kept if (item.group, item.regime) == key]
        for number, method in enumerate(dict.fromkeys(item.method for item in of_group)):
            found = {item.how: item for item in of_group if item.method == method}
            first = found[FIRST[0]]
            speeds = (f"{found[top].speed_frac:.1%}" if top in found else "-" for top in FIRST)
            head = ("" if number else key[0] if key[1] == ALL else key[1], method, f"{first.num_gemms:,}")
            table.add_row(*head, *speeds, f"{first.p5_speed_frac:.1%}", f"{first.least_speed_frac:.1%}")
    caption = (
        "geometric means over GEMMs of best time / time of the choice: the method's first, the best of its first 3, "
        "the best of its first 20%. p5, worst: 5th percentile and least of its first"
    )
    return with_caption(table, caption)


def worst_choice_lines(study: Study, num: int) -> list[str]:
    """Return the GEMMs of `worst_choices` in words, two lines each."""
    lines = []
    for item in worst_choices(study, num):
        lines.append(f"{item['data_set']}, M {item['M']}, N {item['N']}, K {item['K']}: {item['speed_frac']:.1%}")
        for name in ("chosen", "best"):
            part = item[name]
            lines.append(
                f"  {name}: {part['config']}: measured {part['measured_us']:.1f} us, predicted "
                f"{part['predicted_us']:.1f} us"
            )
    return lines


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
