"""What timings side by side come to: how many times as fast as other engines we are, in the mean and at worst."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import geometric_mean
from typing import Any, NamedTuple

from gemm_eval.measure.engines.side_by_side import EngineTiming

__all__ = ["REGIMES", "Case", "Standing", "by_regime", "by_rows", "list_cases", "losses", "stand", "standing_document"]

REGIMES: Mapping[str, tuple[int, int]] = {
    "M <= 16": (1, 16),
    "M 17-64": (17, 64),
    "M 65-512": (65, 512),
    "M > 512": (513, 1 << 40),
}
"""Least and largest M by name."""

_OURS = "ours"
_PUBLISHED = ("humming", "cublas")  # what "the better of the others" is of: engines for any number of rows


class Case(NamedTuple):
    """One GEMM on our engine and others.

    Attributes:
        N, K, M: sizes.
        ours: our timing.
        others: those of other engines by name.
    """

    N: int
    K: int
    M: int
    ours: EngineTiming
    others: Mapping[str, EngineTiming]

    def ratio(self, engine: str) -> float | None:
        """Return the other's time over ours; "better": of the faster one; None: not timed."""
        if engine == "better":
            known = [self.others[name].latency_us for name in _PUBLISHED if name in self.others]
            return min(known) / self.ours.latency_us if known else None
        return self.others[engine].latency_us / self.ours.latency_us if engine in self.others else None


class Standing(NamedTuple):
    """Ratios to one engine over some cases: their geometric mean, the least one, and whose that is."""

    mean: float
    worst: float
    worst_case: Case
    num_cases: int


def list_cases(timings: Iterable[EngineTiming]) -> list[Case]:
    """Return the GEMMs that ours was timed on, as they were timed."""
    gemms: dict[tuple[int, int, int], dict[str, EngineTiming]] = {}
    for timing in timings:
        gemms.setdefault((timing.N, timing.K, timing.M), {})[timing.engine] = timing
    return [
        Case(*sizes, of_gemm[_OURS], {name: timing for name, timing in of_gemm.items() if name != _OURS})
        for sizes, of_gemm in gemms.items()
        if _OURS in of_gemm
    ]


def stand(cases: Iterable[Case], engine: str) -> Standing | None:
    """Return where we stand against an engine; None: it was timed on none of the cases."""
    ratios = [(ratio, case) for case in cases if (ratio := case.ratio(engine)) is not None]
    if not ratios:
        return None
    worst, worst_case = min(ratios, key=lambda pair: pair[0])
    return Standing(geometric_mean([ratio for ratio, _ in ratios]), worst, worst_case, len(ratios))


def by_rows(cases: Sequence[Case]) -> dict[int, list[Case]]:
    """Return cases by M."""
    rows = sorted({case.M for case in cases})
    return {m: [case for case in cases if m == case.M] for m in rows}


def by_regime(cases: Sequence[Case]) -> dict[str, list[Case]]:
    """Return cases by the name of their regime, and all of them; empty regimes are left out."""
    found = {name: [case for case in cases if low <= case.M <= high] for name, (low, high) in REGIMES.items()}
    return {name: of_one for name, of_one in (found | {"all": list(cases)}).items() if of_one}


def losses(cases: Iterable[Case], engines: Sequence[str], limit: float) -> list[tuple[float, str, Case]]:
    """Return cases where an engine takes less than `limit` times our time, the worst first."""
    found = [
        (ratio, engine, case)
        for case in cases
        for engine in engines
        if (ratio := case.ratio(engine)) is not None and ratio < limit
    ]
    return sorted(found, key=lambda loss: loss[0])


def standing_document(standing: Standing | None) -> dict[str, Any] | None:
    """Return a standing as plain values."""
    if standing is None:
        return None
    case = standing.worst_case
    return {
        "geometric_mean": standing.mean,
        "worst": standing.worst,
        "worst_N": case.N,
        "worst_K": case.K,
        "worst_M": case.M,
        "num_cases": standing.num_cases,
    }
