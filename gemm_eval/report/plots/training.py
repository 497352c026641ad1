"""Plot of a training step: what each pipeline stage does over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gemm_eval import figures
from gemm_eval.errors import InvalidInputError
from gemm_eval.report.plots.breakdown import finish_bars
from gemm_eval.training import TrainingEstimate, timeline
from gemm_eval.units import time_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BAR, _EDGE = 0.78, 0.3
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
            axes.barh(rows, lengths_us, _BAR, left=starts_us, color=color, edgecolor=figures.SURFACE, linewidth=edge)
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
