"""Fits of the coefficients of collectives: first those of NCCL's rings, then of its exchanges, then direct kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gemm_eval.arch import TWO_SOCKETS, GpuSpec, Interconnect
from gemm_eval.models.gpu import Coefficient
from gemm_eval.models.gpu.collective import (
    COLLECTIVE_COEFFICIENTS,
    DIRECT,
    EXCHANGE,
    MULTICAST,
    RING,
    SOCKETS,
    CollectiveRows,
    collective_rows,
    collectives_us,
)
from gemm_eval.validation.collective.tables import CollectiveTimings
from gemm_eval.validation.fit import Ranges, Search, fit_logs, soft_l1
from gemm_eval.validation.timings import Floats, Mask

__all__ = ["MeasuredRows", "fit_collectives", "interconnect_of", "measured_rows"]

_SEARCH = Search(loss_scale=0.1, difference=0.001, off_bounds=0.001, evaluations=60)
_LIMITS = ("switch_bytes", "direct_bytes")  # where a library turns to something else: tried one by one, by doublings
_LEAST_ROWS = 12  # of an algorithm, for a fit of its coefficients


@dataclass(frozen=True)
class LogRanges(Ranges):
    """Coefficients as shares 0..1 of their ranges, in the logarithm: they span orders of magnitude."""

    def shares(self, values: Mapping[str, float], off_bounds: float) -> Floats:
        """Return where values lie in the ranges, inside the bounds."""
        low, high = self._logs
        found: Floats = (np.log([values[item.name] for item in self.items]) - low) / (high - low)
        return np.clip(found, off_bounds, 1.0 - off_bounds)

    def values(self, shares: Floats) -> dict[str, float]:
        """Return all coefficients, each in its unit."""
        low, high = self._logs
        found = np.exp(np.clip(low + shares * (high - low), low, high)).tolist()
        return {**self.others, **{item.name: value for item, value in zip(self.items, found, strict=True)}}

    @cached_property
    def _logs(self) -> tuple[Floats, Floats]:
        return np.log([item.low for item in self.items]), np.log([item.high for item in self.items])


@dataclass(frozen=True)
class MeasuredRows:
    """All timings of a GPU: columns of problems, and latencies. Where no direct kernel runs, all are NCCL's."""

    rows: CollectiveRows
    measured_us: Floats

    def take(self, mask: Mask) -> MeasuredRows:
        """Return some of the rows."""
        return MeasuredRows(self.rows.take(mask), self.measured_us[mask])


def interconnect_of(arch: GpuSpec) -> Interconnect:
    """Return the link of a GPU that has timings of messages over it."""
    assert arch.interconnect is not None, f"{arch.name} has timings of collectives, and no interconnect"
    return arch.interconnect


def measured_rows(link: Interconnect, sets: Sequence[CollectiveTimings]) -> MeasuredRows:
    """Return the rows of several tables of a GPU, one after the other."""
    parts = [collective_rows(link, timings.library, timings.problems) for timings in sets]
    names = list(vars(parts[0]))
    columns = (np.concatenate([getattr(part, name) for part in parts]) for name in names)
    return MeasuredRows(CollectiveRows(*columns), np.concatenate([item.measured_us for item in sets]))


def fit_collectives(link: Interconnect, of: MeasuredRows) -> dict[str, float]:
    """Return all coefficients, fitted on some rows; what no row tells keeps its default."""
    found = {item.name: item.default for item in COLLECTIVE_COEFFICIENTS}
    is_across = link.topology == TWO_SOCKETS
    rings = [*RING, *(MULTICAST if link.has_multicast else ()), *(SOCKETS[:3] if is_across else ())]
    steps: list[tuple[list[Coefficient], Mask]] = [
        (rings, ~of.rows.is_direct & ~of.rows.is_exchange),
        ([*EXCHANGE, *(SOCKETS[3:] if is_across else ())], of.rows.is_exchange),
        (list(DIRECT), of.rows.is_direct),
    ]
    for items, mask in steps:
        if mask.sum() >= _LEAST_ROWS:
            found = _fit(link, items, found, of.take(mask))
    return found


def _fit(
    link: Interconnect, items: Sequence[Coefficient], start: Mapping[str, float], of: MeasuredRows
) -> dict[str, float]:
    """Fit some coefficients, for each value of a limit among them: errors have a step there, and no derivative."""
    limit = next((item for item in items if item.name in _LIMITS), None)
    free = [item for item in items if item is not limit]
    if limit is None:
        return _fit_free(link, free, start, of)[1]
    found = [_fit_free(link, free, {**start, limit.name: value}, of) for value in _doublings(limit)]
    return min(found, key=lambda item: item[0])[1]


def _doublings(limit: Coefficient) -> list[float]:
    """Values between powers of two, at which sizes lie, within the range."""
    exponents = range(int(np.ceil(np.log2(limit.low) - 0.5)), int(np.floor(np.log2(limit.high) - 0.5)) + 1)
    return [float(round(2.0 ** (exponent + 0.5))) for exponent in exponents]


def _fit_free(
    link: Interconnect, free: Sequence[Coefficient], start: Mapping[str, float], of: MeasuredRows
) -> tuple[float, dict[str, float]]:
    names = {item.name for item in free}
    ranges = LogRanges(free, {name: value for name, value in start.items() if name not in names})

    def predict(values: dict[str, float]) -> Floats:
        return collectives_us(link, values, of.rows)

    shares = fit_logs(ranges, predict, of.measured_us, ranges.shares(start, _SEARCH.off_bounds), _SEARCH)
    values = ranges.values(shares)
    errors = np.log(predict(values)) - np.log(of.measured_us)
    return soft_l1(errors, _SEARCH.loss_scale), values
