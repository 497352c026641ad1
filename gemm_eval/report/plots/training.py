"""Plot of a training step: what each pipeline stage does over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gemm_eval import figures
from gemm_eval.errors import InvalidInputError
from gemm_eval.training import TrainingEstimate, timeline
from gemm_eval.units import time_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BAR = 0.78
_MOST_TASKS = 20_000
_EDGE, _MANY_TASKS = 0.3, 80  # line between passes, where a stage has fewer
_LOOKS = {
    "forward": (figures.SERIES[0], "forward"), "backward": (figures.SERIES[1], "backward"),
    "weights": (figures.SERIES[2], "weight gradients"), "messages": (figures.SERIES[5], "exposed messages of a pass"),
    "data": (figures.SERIES[4], "exposed gradients and weights between replicas"),
    "optimizer": (figures.SERIES[3], "optimizer"),
}  # fmt: skip
"""Colour and name of each kind of work; what is left blank is the bubble."""


@figures.styled
def plot_training_step(estimate: TrainingEstimate) -> Figure:
    """Plot what each pipeline stage does over a step: passes of microbatches, messages, bubbles, the optimizer.

    The schedule is played event by event, while `estimate.latency_us` is a closed form, which unequal stages may stay
    below. Messages that computation does not hide are drawn at the end of their pass. The number at a stage is the
    share of the step in which it works.

    Raises:
        InvalidInputError: there are more than 20,000 passes.
        UnsupportedError: the order of tasks of its schedule is not known (DualPipe).
    """
    from matplotlib.patches import Patch

    stages, num = estimate.stages, estimate.num_microbatches
    chunks = int(estimate.options["num_chunks"])
    if 3 * len(stages) * num * chunks > _MOST_TASKS:
        raise InvalidInputError(
            f"a plot has at most {_MOST_TASKS:,} passes, got {len(stages)} stages, {num:,} microbatches, {chunks} runs"
        )
    tasks = timeline([stage.times for stage in stages], num, str(estimate.options["schedule"]), chunks)
    passes_us = max(task.end_us for task in tasks)
    data_us, optimizer_us = (max(stage[index] for stage in stages) for index in (4, 5))
    end_us = passes_us + data_us + optimizer_us
    figure = figures.new_figure(9.0, 1.9 + 0.3 * len(stages))
    axes = figure.add_subplot()
    spans: dict[str, list[tuple[int, float, float]]] = {name: [] for name in _LOOKS}
    for task in tasks:
        us = (task.end_us - task.start_us) * stages[task.stage].messages_frac
        spans[task.name].append((task.stage, task.start_us, task.end_us - us))
        spans["messages"].append((task.stage, task.end_us - us, task.end_us))
    for row, stage in enumerate(stages):
        spans["data"].append((row, passes_us, passes_us + stage.data_us))
        spans["optimizer"].append((row, end_us - optimizer_us, end_us - optimizer_us + stage.optimizer_us))
    handles, edge = [], _EDGE if len(tasks) < _MANY_TASKS * len(stages) else 0.0
    for name, (color, label) in _LOOKS.items():
        shown = [(row, start_us, to_us - start_us) for row, start_us, to_us in spans[name] if to_us > start_us]
        if shown:
            rows, starts_us, lengths_us = zip(*shown, strict=True)
            axes.barh(rows, lengths_us, _BAR, left=starts_us, color=color, edgecolor=figures.SURFACE, linewidth=edge)
            handles.append(Patch(color=color, label=label))
    look: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": figures.SMALL}
    for row in range(len(stages)):
        busy_us = sum(to_us - start_us for each in spans.values() for at, start_us, to_us in each if at == row)
        axes.annotate(f"{busy_us / end_us:.0%}", (end_us, row), (5, 0), **look)
    axes.set_yticks(range(len(stages)), labels=[f"stage {row}" for row in range(len(stages))])
    axes.set_ylim(len(stages) - 0.4, -0.6)
    axes.set_xlim(0, 1.06 * end_us)
    figures.add_grid(axes, axis="x")
    axes.tick_params(axis="y", length=0)
    figures.scale_axis(axes.xaxis, "time of a step_us", np.array([end_us]), is_log=False)
    figures.add_title(
        figure,
        f"{estimate.model_name} on {estimate.num_devices:,} x {estimate.arch_name} ({estimate.layout}), "
        f"{estimate.options['schedule']}: {time_text(end_us)}, bubbles blank, shares of time at work",
    )
    figures.add_legend(figure, handles)
    return figure
