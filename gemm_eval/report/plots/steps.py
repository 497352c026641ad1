"""Where the time of a model's steps goes, operation by operation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gemm_eval.errors import InvalidInputError
from gemm_eval.estimate import KINDS, ModelEstimate, StepEstimate
from gemm_eval.report.plots.style import SMALL, TITLE, add_grid, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_steps"]

_COLORS = {"gemm": "#0072B2", "attention": "#E69F00", "moe": "#009E73", "memory": "#999999", "collective": "#CC79A7"}
_LETTER_SHARE = 0.0125  # of the width of the axes
_US_PER_MS = 1e3


def plot_steps(estimates: ModelEstimate | Iterable[ModelEstimate]) -> Figure:
    """Plot the last step of prefill and a step of decode of each estimate as stacked bars, in milliseconds.

    A bar has the operations in the order in which they run, each of all its layers together, coloured by kind, and
    named where there is room. Prefill and decode have axes of their own.

    Args:
        estimates: one, or several, drawn from top to bottom.

    Raises:
        GemmEvalError: matplotlib is not installed.
        InvalidInputError: no estimates.
    """
    found = [estimates] if isinstance(estimates, ModelEstimate) else list(estimates)
    if not found:
        raise InvalidInputError("estimates must hold at least one ModelEstimate, got none")
    figure = new_figure(8.4, 1.8 + 0.75 * len(found))
    for place, phase in enumerate(("prefill", "decode")):
        axes = figure.add_subplot(2, 1, place + 1)
        steps = [estimate.prefill if phase == "prefill" else estimate.decode for estimate in found]
        longest = max(step.latency_us for step in steps)
        for row, step in enumerate(steps):
            _draw(axes, row, step, longest * _LETTER_SHARE)
        labels = [f"{item.arch_name}, batch {item.batch:,}" if phase == "decode" else item.arch_name for item in found]
        axes.set_yticks(range(len(found)), labels, fontsize=SMALL)
        axes.invert_yaxis()
        axes.set_xlabel(f"{phase}: ms of a step", fontsize=SMALL)
        axes.tick_params(axis="x", labelsize=SMALL)
        add_grid(axes)
    names = ", ".join(dict.fromkeys(item.model_name for item in found))
    figure.suptitle(f"Where the time of a step goes: {names}", fontsize=TITLE)
    shown = [kind for kind in KINDS if any(_has(item, kind) for item in found)]
    for kind in shown:
        axes.barh(0, 0, color=_COLORS[kind], label=kind)
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(shown), fontsize=SMALL, frameon=False
    )
    return figure


def _has(estimate: ModelEstimate, kind: str) -> bool:
    return any(step.us_by_kind[kind] > 0 for step in (estimate.prefill, estimate.decode))


def _draw(axes: Axes, row: int, step: StepEstimate, letter_us: float) -> None:
    times: dict[tuple[str, str], float] = {}
    for cost in step.costs:
        key = cost.operation.name, cost.operation.kind
        times[key] = times.get(key, 0.0) + cost.total_us
    end = 0.0
    for (name, kind), us in times.items():
        if us <= 0:
            continue
        axes.barh(row, us / _US_PER_MS, 0.68, left=end, color=_COLORS[kind], edgecolor="white", linewidth=0.6)
        word = name.removesuffix("_proj").replace("_", " ")
        if us >= letter_us * len(word):
            color = "white" if kind in ("gemm", "moe") else "black"
            axes.text(end + us / _US_PER_MS / 2, row, word, ha="center", va="center", fontsize=SMALL - 1, color=color)
        end += us / _US_PER_MS
