"""What changes of an arch would bring to GEMMs that run one after the other, and what these wait for."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from gemm_eval.errors import GemmEvalError
from gemm_eval.evaluate import GEMMEvaluator, GEMMResult
from gemm_eval.units import time_text

__all__ = [
    "MIN_GAIN_FRAC",
    "ChangeGain",
    "Runs",
    "change_gains",
    "changed_evaluators",
    "say_bounds",
    "say_gain",
    "time_by_bound",
]

MIN_GAIN_FRAC = 0.005
"""Below, a change is not worth a word."""

_MIN_SAID_FRAC, _MOST_SAID = 0.05, 2  # of what GEMMs wait for

Runs: TypeAlias = Sequence[tuple[str, GEMMResult, int]]
"""GEMMs: a name, what one run costs, and how often it runs."""


class ChangeGain(NamedTuple):
    """One change of the spec, and the time of all runs with it."""

    change: str
    total_us: float
    saved_frac: float
    helps_most: str  # the GEMM that it saves most


def changed_evaluators(runs: Runs, evaluator: GEMMEvaluator) -> dict[str, GEMMEvaluator]:
    """Return an evaluator for each change that could help any of the GEMMs; one serves all, for setting up costs."""
    found: dict[str, GEMMEvaluator] = {}
    for _, result, _ in runs:
        for change, fields in evaluator.backend.changes(result.problem):
            if change not in found:
                with contextlib.suppress(GemmEvalError):  # a change that takes the spec out of its range
                    found[change] = evaluator.on(evaluator.arch.with_(**fields))
    return found


def change_gains(runs: Runs, changed: Mapping[str, GEMMEvaluator]) -> list[ChangeGain]:
    """Return the changes that save at least `MIN_GAIN_FRAC` of the time, the most helpful one first.

    Nothing is learned of changed archs: what the model alone says of both is compared, and the time saves as much.
    """
    total_us = sum(count * result.latency_us for _, result, count in runs)
    physics_us = sum(count * result.physics_us for _, result, count in runs)
    found = []
    for change, evaluator in changed.items():
        savings = [(count * _saving_us(result, evaluator), name) for name, result, count in runs]
        saved_frac = sum(us for us, _ in savings) / physics_us
        if saved_frac >= MIN_GAIN_FRAC:
            found.append(ChangeGain(change, total_us * (1.0 - saved_frac), saved_frac, max(savings)[1]))
    return sorted(found, key=lambda gain: gain.total_us)


def _saving_us(result: GEMMResult, evaluator: GEMMEvaluator) -> float:
    try:
        return result.physics_us - evaluator.evaluate_problem(result.problem, **result.options).latency_us
    except GemmEvalError:  # the GEMM does not fit the changed arch: no help, and no reason to give no report
        return 0.0


def time_by_bound(runs: Runs) -> dict[str, float]:
    """Return the microseconds of the GEMMs that each bound limits, the longest time first."""
    found: dict[str, float] = {}
    for _, result, count in runs:
        found[result.bound] = found.get(result.bound, 0.0) + count * result.latency_us
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def say_gain(gain: ChangeGain) -> str:
    """Return a change and what it saves: ``dram_gb_per_s x2: 11.3 ms (-45%)``."""
    return f"{gain.change}: {time_text(gain.total_us)} (-{gain.saved_frac:.0%})"


def say_bounds(runs: Runs) -> str:
    """Return what the GEMMs wait for: ``DRAM bandwidth, 76% of the time, then the tensor cores, 24%``."""
    times, results = time_by_bound(runs), {result.bound: result for _, result, _ in runs}
    total_us = sum(times.values())
    said = [
        f"{results[bound].backend.say_bound(bound)}, {us / total_us:.0%}{'' if at else ' of the time'}"
        for at, (bound, us) in enumerate(times.items())
        if not at or us / total_us >= _MIN_SAID_FRAC
    ]
    return ", then ".join(said[:_MOST_SAID])
