"""What the page on a model says first: how long each phase takes, what it waits for, and what would help."""

from __future__ import annotations

from collections.abc import Sequence

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


def model_verdict(phases: Sequence[PhaseResult], gains: Sequence[Sequence[ChangeGain]]) -> Verdict:
    """Return it.

    Args:
        phases: the forward passes.
        gains: for each what changes of the arch bring, the most helpful one first.
    """
    points = []
    for phase, of_phase in zip(phases, gains, strict=True):
        name = phase.name.capitalize()
        points.append((f"{name} is bound by", say_bounds(phase.runs)))
        heavy = ", ".join(
            f"{gemm.name} {phase.share_frac(gemm, result):.0%}" for gemm, result in phase.heaviest(_MOST_HEAVY)
        )
        points.append((f"{name} is mostly", heavy))
        helps = "; ".join(map(say_gain, of_phase[:_MOST_GAINS])) or "No single doubling of the spec saves 0.5%."
        points.append((f"{name} would gain from", helps))
    return Verdict(f"GEMMs take {' and '.join(map(_headline, phases))}.", points)


def _headline(phase: PhaseResult) -> str:
    took, rate = time_text(phase.latency_us), f"{_rounded(phase.tokens_per_s):,.0f} tokens/s"
    return f"{took} a step of decode ({rate})" if phase.name == "decode" else f"{took} for prefill ({rate})"


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def model_picture(phases: Sequence[PhaseResult]) -> Bars:
    """Return the time of each kind of GEMM, an axis for each phase, in the colour of what limits it."""
    colors: dict[str, str] = {}
    panels = []
    for phase in phases:
        shown = phase.heaviest(len(phase.gemms))
        kept = shown if len(shown) <= _MOST_BARS else shown[: _MOST_BARS - 1]
        bars = []
        for gemm, result in kept:
            bound = result.backend.say_bound(result.bound)
            colors[bound] = bound_color(result.bound)
            total_us = gemm.total_count * result.latency_us
            note = f"{gemm.name}: {gemm.total_count} of {time_text(result.latency_us)}, bound by {bound}"
            label = f"{time_text(total_us)}, {phase.share_frac(gemm, result):.0%}"
            bars.append(Bar(gemm.name, [(bound, total_us)], label, note=note))
        rest_us = phase.latency_us - sum(length for bar in bars for _, length in bar.segments)
        if len(kept) < len(shown):
            colors["several"] = _OTHERS
            label = f"{time_text(rest_us)}, {rest_us / phase.latency_us:.0%}"
            bars.append(Bar(f"{len(shown) - len(kept)} others", [("several", rest_us)], label))
        panels.append(Panel(f"{phase.name.capitalize()}, {time_text(phase.latency_us)}", bars))
    return Bars(panels, colors, caption="Time of all GEMMs of a kind, by what limits them")
