"""Where the time of a model's steps goes, operation by operation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from gemm_eval.errors import InvalidInputError
from gemm_eval.estimate import KINDS, ModelEstimate, StepEstimate
from gemm_eval.extras import needs_extra
from gemm_eval.figures import KIND_COLORS, SMALL, SURFACE, add_grid, add_legend, ink_on, new_figure, scale_axis, styled
from gemm_eval.units import time_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_steps"]

_LETTER_SHARE = 0.0125  # of the width of the axes


def plot_steps(estimates: ModelEstimate | Iterable[ModelEstimate]) -> Figure:
    """Plot the last step of prefill and a step of decode of each estimate as stacked bars.

    A bar has the operations in the order in which they run, each of all its layers together, coloured by kind, and
    named where there is room; the number at a bar is the time of the step. Prefill and decode have axes of their own;
    a prefill that several estimates share is drawn once.

    Args:
        estimates: one, or several, drawn from top to bottom.

    Raises:
        GemmEvalError: matplotlib is not installed.
        InvalidInputError: no estimates.
    """
    found = [estimates] if isinstance(estimates, ModelEstimate) else list(estimates)
    if not found:
        raise InvalidInputError("estimates must hold at least one ModelEstimate, got none")
    return _draw(found)


@styled
def _draw(found: list[ModelEstimate]) -> Figure:
    with needs_extra("plotting", "plot"):
        from matplotlib.patches import Patch

    phases = {
        "prefill": _distinct([(item.arch_name, item.prefill) for item in found]),
        "decode": _distinct([(f"{item.arch_name}, batch {item.batch:,}", item.decode) for item in found]),
    }
    sizes = [len(steps) for steps in phases.values()]
    figure = new_figure(8.4, 2.0 + 0.37 * sum(sizes))
    panels = figure.subplots(2, 1, height_ratios=[1.5 + size for size in sizes])
    for axes, (phase, steps) in zip(panels, phases.items(), strict=True):
        times_us = np.array([step.latency_us for _, step in steps])
        for row, (_, step) in enumerate(steps):
            _draw_step(axes, row, step, times_us.max() * _LETTER_SHARE)
        axes.set_yticks(range(len(steps)), [label for label, _ in steps])
        axes.set_ylim(len(steps) - 0.4, -0.6)
        axes.set_xlim(0, 1.1 * times_us.max())  # room for the numbers
        add_grid(axes, axis="x")
        axes.tick_params(axis="y", length=0)
        scale_axis(axes.xaxis, f"{phase}: time of a step_us", times_us, is_log=False)
    names = ", ".join(dict.fromkeys(item.model_name for item in found))
    figure.suptitle(f"Where the time of a step goes: {names}")
    shown = [kind for kind in KINDS if any(_has(item, kind) for item in found)]
    add_legend(figure, [Patch(color=KIND_COLORS[kind], label=kind) for kind in shown])
    return figure


def _distinct(steps: list[tuple[str, StepEstimate]]) -> list[tuple[str, StepEstimate]]:
    """Steps without those that have the label and the times of another: batches of decode share their prefill."""
    return list({(label, step.latency_us, *step.us_by_kind.values()): (label, step) for label, step in steps}.values())


def _has(estimate: ModelEstimate, kind: str) -> bool:
    return any(step.us_by_kind[kind] > 0 for step in (estimate.prefill, estimate.decode))


def _draw_step(axes: Axes, row: int, step: StepEstimate, letter_us: float) -> None:
    times: dict[tuple[str, str], float] = {}
    for cost in step.costs:
        key = cost.operation.name, cost.operation.kind
        times[key] = times.get(key, 0.0) + cost.total_us
    end = 0.0
    for (name, kind), us in times.items():
        if us <= 0:
            continue
        color = KIND_COLORS[kind]
        axes.barh(row, us, 0.68, left=end, color=color, edgecolor=SURFACE, linewidth=0.6)
        word = name.removesuffix("_proj").replace("_", " ")
        if us >= letter_us * (len(word) + 0.5):
            axes.text(
                end + us / 2, row, word, ha="center", va="center_baseline", fontsize=SMALL - 1, color=ink_on(color)
            )
        end += us
    axes.annotate(time_text(end), (end, row), (5, 0), textcoords="offset points", va="center", fontsize=SMALL)
