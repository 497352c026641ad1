"""One of several archs that are compared: what it takes for each phase, and the words that say so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gemm_eval.arch import GpuSpec
from gemm_eval.evaluate import GEMMEvaluator, GEMMResult
from gemm_eval.report.levers import Runs, time_by_bound

__all__ = ["Contender", "Contest", "share_by_term", "why"]

_WORDS = {"dram": "DRAM", "noc": "NoC", "l2": "L2", "a": "A", "b": "B", "c": "C"}
_MIN_RATIO = 1.02  # of a resource, to be named as the reason


@dataclass(frozen=True, slots=True)
class Contender:
    """An arch, and the GEMMs of one phase on it."""

    evaluator: GEMMEvaluator
    runs: Runs

    @property
    def name(self) -> str:
        """That of the arch."""
        return self.evaluator.arch.name

    @property
    def total_us(self) -> float:
        """Time of all runs, one after the other."""
        return sum(count * result.latency_us for _, result, count in self.runs)

    @property
    def interval_us(self) -> tuple[float, float] | None:
        """What holds the measured time if all GEMMs err the same way; None where nobody knows of errors."""
        low_us = high_us = 0.0
        for _, result, count in self.runs:
            if result.low_us is None or result.high_us is None:
                return None
            low_us += count * result.low_us
            high_us += count * result.high_us
        return low_us, high_us

    @property
    def utilization_frac(self) -> float:
        """Share of the highest rate of the chip, over all runs."""
        busy_us = sum(count * result.latency_us * result.utilization_frac for _, result, count in self.runs)
        return busy_us / self.total_us

    @property
    def dram_gb_per_s(self) -> float:
        """Achieved DRAM bandwidth, over all runs."""
        return sum(count * result.dram_bytes for _, result, count in self.runs) / self.total_us / 1e3

    @property
    def sources(self) -> str:
        """What its numbers rest on."""
        return ", ".join(sorted({result.source for _, result, _ in self.runs}))


@dataclass(frozen=True, slots=True)
class Contest:
    """A phase on several archs.

    Attributes:
        name: ``"prefill"``, ``"decode"``, or the sizes of a GEMM.
        num_tokens: new tokens, None where nothing counts them.
        contenders: the archs, each with the same GEMMs in the same order.
    """

    name: str
    num_tokens: int | None
    contenders: Sequence[Contender]

    @property
    def ranked(self) -> list[Contender]:
        """The archs, the fastest first."""
        return sorted(self.contenders, key=lambda one: one.total_us)

    @property
    def is_clear(self) -> bool | None:
        """Whether the two fastest are further apart than their errors; None where nobody knows of errors."""
        first, second = (one.interval_us for one in self.ranked[:2])
        return None if first is None or second is None else first[1] < second[0]


def why(winner: Contender, loser: Contender) -> str:
    """Say what bounds the slower arch, and how much more of it the faster one has."""
    bound = next(iter(time_by_bound(loser.runs)))
    result = next(result for _, result, _ in loser.runs if result.bound == bound)
    said = f"{loser.name} is bound by {result.backend.say_bound(bound)}"
    more = _resource(winner, loser, bound, result)
    return f"{said}; {more}" if more else said


def _resource(winner: Contender, loser: Contender, bound: str, result: GEMMResult) -> str:
    fast, slow = winner.evaluator.arch, loser.evaluator.arch
    if bound == "dram":
        return _more(winner.name, fast.dram_gb_per_s, slow.dram_gb_per_s, "the bandwidth", "GB/s")
    if bound == "compute":
        dtypes = (next(iter(winner.runs))[1].problem.input_dtype, result.problem.input_dtype)
        peaks = (fast.peak_tflop_per_s(dtypes[0]), slow.peak_tflop_per_s(dtypes[1]))
        return _more(winner.name, *peaks, "the peak", f"TFLOP/s of {' and '.join(dict.fromkeys(dtypes))}")
    if bound == "launch":
        return f"a launch takes {slow.launch_us:.3g} us there, {fast.launch_us:.3g} us on {winner.name}"
    if bound == "l2" and isinstance(fast, GpuSpec) and isinstance(slow, GpuSpec):
        return _more(winner.name, fast.l2_bytes_per_cycle, slow.l2_bytes_per_cycle, "the L2 bandwidth", "bytes a cycle")
    return ""


def _more(name: str, fast: float, slow: float, what: str, unit: str) -> str:
    if fast / slow < _MIN_RATIO:
        return ""
    return f"{name} has {fast / slow:.2f}x {what} ({fast:,.4g} against {slow:,.4g} {unit})"


def share_by_term(contender: Contender) -> dict[str, float]:
    """Return the percent of the time that each term takes; what overlaps is negative, and all are 100."""
    found: dict[str, float] = {}
    for _, result, count in contender.runs:
        for term, us in result.breakdown.items():
            name = " ".join(_WORDS.get(word, word) for word in term.removesuffix("_us").split("_"))
            found[name] = found.get(name, 0.0) + 100.0 * count * us / contender.total_us
    return found
