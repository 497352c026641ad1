"""What the page on a model says first: how long each phase takes, what it waits for, and what would help."""

from __future__ import annotations

from collections.abc import Sequence

from gemm_eval.estimate import ModelEstimate
from gemm_eval.figures import bound_color
from gemm_eval.report.levers import ChangeGain, say_bounds, say_gain
from gemm_eval.report.parts import Bar, Bars, Panel, Verdict
from gemm_eval.report.phase import PhaseResult
from gemm_eval.units import time_text

__all__ = ["model_picture", "model_verdict"]

_MOST_BARS = 6
_MOST_GAINS = 2
_MOST_HEAVY = 3
_OTHERS = "#6b7683"


def model_verdict(
    phases: Sequence[PhaseResult], gains: Sequence[Sequence[ChangeGain]], estimate: ModelEstimate | None = None
) -> Verdict:
    """Return the verdict on whole steps, or on GEMMs alone where there is no estimate.

    Args:
        phases: the forward passes.
        gains: for each what changes of the arch bring to its GEMMs, the most helpful one first.
        estimate: of the model, whose steps the phases are.
    """
    points = []
    for phase, of_phase in zip(phases, gains, strict=True):
        name = phase.name.capitalize()
        gemms = f"GEMMs of {phase.name}" if estimate else name
        are = "are" if estimate else "is"
        heavy = ", ".join(f"{part} {us / phase.latency_us:.0%}" for part, _, us, *_ in phase.parts[:_MOST_HEAVY])
        points.append((f"{gemms} {are} bound by", say_bounds(phase.runs)))
        points.append((f"{name} is mostly", heavy))
        helps = "; ".join(map(say_gain, of_phase[:_MOST_GAINS])) or "No single doubling of the spec saves 0.5%."
        points.append((f"{gemms} would gain from", helps))
    if estimate is not None:
        rate = f"{_rounded(estimate.decode_tokens_per_s_per_device):,.0f} tokens/s a device in decode"
        first, each = time_text(estimate.ttft_us), time_text(estimate.tpot_us)
        return Verdict(f"The first token takes {first}, each after it {each} ({rate}).", points)
    return Verdict(f"GEMMs take {' and '.join(map(_headline, phases))}.", points)


def _headline(phase: PhaseResult) -> str:
    took, rate = time_text(phase.latency_us), f"{_rounded(phase.tokens_per_s):,.0f} tokens/s"
    return f"{took} a step of decode ({rate})" if phase.name == "decode" else f"{took} for prefill ({rate})"


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def model_picture(phases: Sequence[PhaseResult]) -> Bars:
    """Return the time of each operation, an axis for each phase, in the colour of what limits it."""
    colors: dict[str, str] = {}
    panels = []
    for phase in phases:
        shown = phase.parts
        kept = shown if len(shown) <= _MOST_BARS else shown[: _MOST_BARS - 1]
        bars = []
        for name, count, total_us, bound, said in kept:
            colors[said] = bound_color(bound)
            note = f"{name}: {count} of {time_text(total_us / count)}, bound by {said}"
            label = f"{time_text(total_us)}, {total_us / phase.latency_us:.0%}"
            bars.append(Bar(name, [(said, total_us)], label, note=note))
        rest_us = phase.latency_us - sum(length for bar in bars for _, length in bar.segments)
        if len(kept) < len(shown):
            colors["several"] = _OTHERS
            label = f"{time_text(rest_us)}, {rest_us / phase.latency_us:.0%}"
            bars.append(Bar(f"{len(shown) - len(kept)} others", [("several", rest_us)], label))
        panels.append(Panel(f"{phase.name.capitalize()}, {time_text(phase.latency_us)}", bars))
    what = "operations" if any(phase.step for phase in phases) else "GEMMs"
    return Bars(panels, colors, caption=f"Time of all {what} of a kind, by what limits them")
