"""Plots of time: of GEMMs by term, of steps of a model by operation, of training steps by pipeline stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemm_eval import figures
from gemm_eval.errors import InvalidInputError
from gemm_eval.estimate import KINDS, ModelEstimate, StepEstimate
from gemm_eval.evaluate import GEMMResult
from gemm_eval.training import TrainingEstimate, timeline
from gemm_eval.units import time_text

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gemm_eval.workload import GemmProblem

_LEAST_FRAC = 0.01  # terms below this part of every bar are drawn as one
_OTHER = "other_us"
_FADED = 0.62  # how much of the page's colour lies over hidden time
_BAR = 0.68
_HIDDEN = "hidden (faded): overlaps other terms, not in the latency"


@figures.styled
def plot_breakdown(
    results: Iterable[GEMMResult], *, names: Sequence[str] | None = None, counts: Sequence[int] | None = None
) -> Figure:
    """Plot the terms of each GEMM's time as a stacked bar.

    The terms of `GEMMResult.breakdown` are the times that each resource needs by itself. Compute and transfers overlap,
    so they add up to more than the latency: a bar is as long as their sum, the line across it is the latency, and
    what lies beyond that line, faded, is `hidden_us`: time during which something else was working too.
    Terms minus hidden time are the latency, exactly; what a learned
    correction takes off counts as hidden. The colours beyond the line are in the order of the terms; they do
    not say which of the terms was hidden. Terms of less than 1% of every bar are drawn as one. The number at a bar is
    its latency.

    Args:
        results: of any archs; a `GEMMTable` is taken too. Drawn from top to bottom.
        names: of the results (default: their sizes).
        counts: how often each runs: bars are then the time of all its runs.
    Raises InvalidInputError (no results, not as many names or counts, or counts below 1).
    """
    from matplotlib.colors import to_rgba
    from matplotlib.patches import Patch

    gemms = list(results)
    if not gemms:
        raise InvalidInputError("results must hold at least one GEMMResult, got none")
    for what, given in (("names", names), ("counts", counts)):
        if given is not None and len(given) != len(gemms):
            raise InvalidInputError(f"{what} must be as many as results ({len(gemms)}), got {len(given)}")
    if counts is not None and min(counts) < 1:
        raise InvalidInputError(f"counts must be >= 1, got {min(counts)}")
    labels = [_name(result.problem) for result in gemms] if names is None else list(names)
    if counts is not None:
        labels = [f"{name}  x{int(count)}" for name, count in zip(labels, counts, strict=True)]
    times = np.ones(len(gemms)) if counts is None else np.asarray(counts, float)
    latency_us = np.array([result.latency_us for result in gemms]) * times

    figure = figures.new_figure(8.4, 1.9 + 0.36 * len(gemms))
    axes = figure.add_subplot()
    places = np.arange(len(gemms))
    ends = np.zeros(len(gemms))
    handles: list[Artist] = []
    for term, values_us in _terms(gemms).items():
        look = figures.term_look(term)
        handles += axes.barh(
            places, values_us * times, _BAR, left=ends, color=look.color, hatch=look.hatch, edgecolor=figures.SURFACE,
            linewidth=0.5, label=_term_name(term),
        )[:1]  # fmt: skip
        handles[-1].set_label(_term_name(term))
        ends += values_us * times
    hidden: dict[str, Any] = {
        "edgecolor": figures.MUTED, "linewidth": 0.7, "linestyle": (0, (2, 1.5)), "label": _HIDDEN,
    }  # fmt: skip
    fade = to_rgba(figures.SURFACE, _FADED)
    axes.barh(places, np.maximum(ends - latency_us, 0.0), _BAR, left=latency_us, facecolor=fade, **hidden)
    line = axes.vlines(
        latency_us, places - 0.44, places + 0.44, color=figures.TEXT, linewidth=2.2, label="latency", zorder=4
    )
    for place, (end, value) in enumerate(zip(ends.tolist(), latency_us.tolist(), strict=True)):
        _write_time(axes, value, max(end, value), place)
    what = "time, terms stacked_us" if counts is None else "time of all runs, terms stacked_us"
    finish_bars(axes, labels, what, ends, 1.12 * ends.max())
    figure.suptitle(f"Where the time goes: {', '.join(dict.fromkeys(result.arch_name for result in gemms))}")
    figures.add_legend(figure, [line, *handles, Patch(facecolor="none", **hidden)])
    return figure


def _name(problem: GemmProblem) -> str:
    rows = f"G{problem.G} M{problem.M}" if problem.row_groups is None else f"{problem.rows} rows in G{problem.G}"
    return f"{rows} K{problem.K} N{problem.N}"


def _term_name(term: str) -> str:
    if term == _OTHER:
        return f"other (each < {_LEAST_FRAC:.0%})"
    name = figures.axis_label(term).partition(" (")[0]
    return f"{name[:-1]}{name[-1].upper()}" if name[-2:-1] == " " else name  # of an operand


def _write_time(axes: Axes, us: float, x: float, y: float) -> None:
    axes.annotate(time_text(us), (x, y), (5, 0), textcoords="offset points", va="center", fontsize=figures.SMALL)


def finish_bars(axes: Axes, labels: list[str], name: str, values: npt.NDArray[np.float64], right: float) -> None:
    """Name the bars, the first on top, and scale the axis below, whose end leaves room for the numbers."""
    axes.set_yticks(range(len(labels)), labels=labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlim(0, right)
    figures.add_grid(axes, axis="x")
    axes.tick_params(axis="y", length=0)
    figures.scale_axis(axes.xaxis, name, values, is_log=False)


def _terms(gemms: list[GEMMResult]) -> dict[str, npt.NDArray[np.float64]]:
    """Return the positive terms of all results [num_results], in us, in the order of breakdowns; small ones as one."""
    names = dict.fromkeys(name for result in gemms for name in result.breakdown if name != "hidden_us")
    terms = {name: np.array([max(0.0, result.breakdown.get(name, 0.0)) for result in gemms]) for name in names}
    least_us = _LEAST_FRAC * sum(terms.values(), np.zeros(len(gemms)))
    small = [name for name, values_us in terms.items() if (values_us < least_us).all()]
    other = sum((terms.pop(name) for name in small), np.zeros(len(gemms)))
    return terms | {_OTHER: other} if other.any() else terms


_LETTER_SHARE = 0.0125  # of the width of the axes


@figures.styled
def plot_steps(estimates: ModelEstimate | Iterable[ModelEstimate]) -> Figure:
    """Plot the last step of prefill and a step of decode of each estimate as stacked bars.

    A bar has the operations in the order in which they run, each of all its layers together, coloured by kind, and
    named where there is room; the number at a bar is the time of the step. Prefill and decode have axes of their own;
    a prefill that several estimates share is drawn once.

    Args:
        estimates: one, or several, drawn from top to bottom.
    Raises InvalidInputError (no estimates).
    """
    from matplotlib.patches import Patch

    given = [estimates] if isinstance(estimates, ModelEstimate) else list(estimates)
    if not given:
        raise InvalidInputError("estimates must hold at least one ModelEstimate, got none")
    phases = {
        "prefill": _distinct([(item.arch_name, item.prefill) for item in given]),
        "decode": _distinct([(f"{item.arch_name}, batch {item.batch:,}", item.decode) for item in given]),
    }
    sizes = [len(steps) for steps in phases.values()]
    figure = figures.new_figure(8.4, 2.0 + 0.37 * sum(sizes))
    panels = figure.subplots(2, 1, height_ratios=[1.5 + size for size in sizes])
    for axes, (phase, steps) in zip(panels, phases.items(), strict=True):
        times_us = np.array([step.latency_us for _, step in steps])
        for row, (_, step) in enumerate(steps):
            _draw_step(axes, row, step, times_us.max() * _LETTER_SHARE)
        finish_bars(axes, [label for label, _ in steps], f"{phase}: time of a step_us", times_us, 1.1 * times_us.max())
    names = ", ".join(dict.fromkeys(item.model_name for item in given))
    figure.suptitle(f"Where the time of a step goes: {names}")
    by_kind = [step.us_by_kind for item in given for step in (item.prefill, item.decode)]
    kinds = [kind for kind in KINDS if any(us[kind] > 0 for us in by_kind)]
    figures.add_legend(figure, [Patch(color=figures.KIND_COLORS[kind], label=kind) for kind in kinds])
    return figure


def _distinct(steps: list[tuple[str, StepEstimate]]) -> list[tuple[str, StepEstimate]]:
    """Drop steps that have the label and the times of another: batches of decode share their prefill."""
    return list({(label, step.latency_us, *step.us_by_kind.values()): (label, step) for label, step in steps}.values())


def _draw_step(axes: Axes, row: int, step: StepEstimate, letter_us: float) -> None:
    times: dict[tuple[str, str], float] = {}
    for cost in step.costs:
        key = cost.operation.name, cost.operation.kind
        times[key] = times.get(key, 0.0) + cost.total_us
    end = 0.0
    look: dict[str, Any] = {"ha": "center", "va": "center_baseline", "fontsize": figures.SMALL - 0.75}
    for (name, kind), us in times.items():
        if us <= 0:
            continue
        color = figures.KIND_COLORS[kind]
        axes.barh(row, us, _BAR, left=end, color=color, edgecolor=figures.SURFACE, linewidth=0.6)
        word = name.removesuffix("_proj").replace("_", " ")
        if us >= letter_us * (len(word) + 0.5):
            axes.text(end + us / 2, row, word, color=figures.ink_on(color), **look)
        end += us
    _write_time(axes, end, end, row)


_STAGE, _EDGE = 0.78, 0.3
_MOST_PASSES, _MANY_PASSES = 20_000, 80  # of all stages, and of one, beyond which no line is between them
_COLORS = {
    "forward": figures.SERIES[0], "backward": figures.SERIES[1], "exposed collectives of a pass": figures.SERIES[5],
    "exposed gradients and weights between replicas": figures.SERIES[4], "optimizer": figures.SERIES[3],
}  # fmt: skip


@figures.styled
def plot_training_step(estimate: TrainingEstimate) -> Figure:
    """Plot the work of each pipeline stage over a step: passes of microbatches, collectives, and the optimizer.

    Blank time is the bubble. Passes are played one by one, `estimate.latency_us` is a closed form: they differ a
    little where stages do. Collectives that computation does not hide are at the end of their pass. The number at a
    stage is its share of time at work.
    Raises InvalidInputError (there are more than 20,000 passes); UnsupportedError (the schedule is not 1F1B or
    interleaved).
    """
    from matplotlib.patches import Patch

    stages, num, chunks = estimate.stages, estimate.num_microbatches, int(estimate.options["num_chunks"])
    if 2 * len(stages) * num * chunks > _MOST_PASSES:
        raise InvalidInputError(
            f"a plot has at most {_MOST_PASSES:,} passes, got {len(stages)} stages, {num:,} microbatches, {chunks} runs"
        )
    tasks = timeline([stage.times for stage in stages], num, str(estimate.options["schedule"]), chunks)
    passes_us = max(task.end_us for task in tasks)
    start_us = passes_us + max(stage.data_us for stage in stages)  # of the optimizer
    end_us = start_us + max(stage.optimizer_us for stage in stages)
    spans: dict[str, list[tuple[int, float, float]]] = {name: [] for name in _COLORS}  # stage, start, length
    forward, backward, messages, data, optimizer = spans.values()
    for task in tasks:
        us = (task.end_us - task.start_us) * stages[task.stage].messages_frac
        whole = forward if task.is_forward else backward
        whole.append((task.stage, task.start_us, task.end_us - task.start_us - us))
        messages.append((task.stage, task.end_us - us, us))
    for row, stage in enumerate(stages):
        data.append((row, passes_us, stage.data_us))
        optimizer.append((row, start_us, stage.optimizer_us))
    figure = figures.new_figure(9.0, 1.9 + 0.3 * len(stages))
    axes = figure.add_subplot()
    handles, edge = [], _EDGE if len(tasks) < _MANY_PASSES * len(stages) else 0.0
    for name, color in _COLORS.items():
        if shown := [span for span in spans[name] if span[2] > 0.0]:
            rows, starts_us, lengths_us = zip(*shown, strict=True)
            axes.barh(rows, lengths_us, _STAGE, left=starts_us, color=color, edgecolor=figures.SURFACE, linewidth=edge)
            handles.append(Patch(color=color, label=name))
    for row in range(len(stages)):
        busy_us = sum(us for each in spans.values() for at, _, us in each if at == row)
        axes.annotate(
            f"{busy_us / end_us:.0%}", (end_us, row), (5, 0), textcoords="offset points", va="center",
            fontsize=figures.SMALL,
        )  # fmt: skip
    labels = [f"stage {row}" for row in range(len(stages))]
    finish_bars(axes, labels, "time of a step_us", np.array([end_us]), 1.06 * end_us)
    figures.add_title(
        figure, f"{estimate.model_name} on {estimate.num_devices:,} x {estimate.arch_name} ({estimate.layout}), "
        f"{estimate.options['schedule']}: {time_text(end_us)}, shares of time at work",
    )  # fmt: skip
    figures.add_legend(figure, handles)
    return figure
