"""What the model of collectives is compared with: the link's rate, latency and rate fitted, and a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gemm_eval.arch import Interconnect
from gemm_eval.units import bytes_per_us
from gemm_eval.validation.collective.tables import CollectiveTimings
from gemm_eval.validation.fit import robust_fit
from gemm_eval.validation.timings import Floats, Mask

__all__ = ["Kinds", "alpha_beta", "interpolated_table", "kinds_of", "link_us"]

_LOSS_SCALE = 0.1
_START, _LOW, _HIGH = (5.0, 1.0, 0.6), (0.1, 0.001, 0.001), (200.0, 100.0, 2.0)
_LEAST_ROWS = 6


class Kinds(NamedTuple):
    """Columns of rows of several tables, for baselines: library and operation, type, bytes sent, hops, size, ranks."""

    names: list[tuple[str, str]]
    dtypes: list[str]
    wire_bytes: Floats
    hops: Floats
    size: Floats
    ranks: Floats


def kinds_of(sets: Sequence[CollectiveTimings]) -> Kinds:
    """Return the columns of all rows, one table after the other."""
    problems = [problem for timings in sets for problem in timings.problems]
    return Kinds(
        [(timings.library, problem.what) for timings in sets for problem in timings.problems],
        [str(problem.dtype) for problem in problems],
        np.array([problem.wire_bytes for problem in problems]),
        np.array([(problem.num_ranks - 1) * (2 if problem.what == "all_reduce" else 1) for problem in problems], float),
        np.array([problem.buffer_bytes for problem in problems], float),
        np.array([problem.num_ranks for problem in problems], float),
    )


def link_us(link: Interconnect, kinds: Kinds) -> Floats:
    """Return the bytes that a rank sends over the rate of the link, [rows], in microseconds."""
    return kinds.wire_bytes / bytes_per_us(link.gb_per_s)


def alpha_beta(link: Interconnect, kinds: Kinds, measured_us: Floats, train: Mask) -> Floats:
    """Return alpha + hops * alpha' + bytes / (share of the link), three constants for each library and operation.

    They are fitted on the logarithms of the rows of `train`, and predict all, [rows].
    """
    predicted = np.full(len(measured_us), np.nan)
    least = link_us(link, kinds)
    for name in dict.fromkeys(kinds.names):
        of = np.array([item == name for item in kinds.names])
        rows = of & train
        if rows.sum() < _LEAST_ROWS:
            rows = train

        def times(x: Floats, mask: Mask) -> Floats:
            first_us, hop_us, frac = np.exp(x)
            found: Floats = first_us + hop_us * kinds.hops[mask] + least[mask] / frac
            return found

        def errors(x: Floats, mask: Mask = rows) -> Floats:
            found: Floats = np.log(times(x, mask) / measured_us[mask])
            return found

        found = robust_fit(errors, np.log(_START), np.log(_LOW), np.log(_HIGH), _LOSS_SCALE)
        predicted[of] = times(found, of)
    return predicted


def interpolated_table(kinds: Kinds, measured_us: Floats, train: Mask) -> Floats:
    """Return what a table of the rows of `train` says, [rows]: on log axes, for each library, operation, type.

    Beyond its ends, and where no row has as many ranks, the nearest two points or numbers of ranks are drawn on.
    """
    predicted = np.full(len(measured_us), np.nan)
    keys = list(zip(kinds.names, kinds.dtypes, strict=True))
    logs, sizes = np.log(measured_us), np.log(kinds.size)
    for key in dict.fromkeys(keys):
        of = np.array([item == key for item in keys])
        known = sorted(set(kinds.ranks[of & train].tolist()))
        for ranks in sorted(set(kinds.ranks[of].tolist())):
            rows = of & (kinds.ranks == ranks)
            near = [ranks] if ranks in known else sorted(sorted(known, key=lambda n: abs(np.log(n / ranks)))[:2])
            tables = []
            for num in near:
                points = of & train & (kinds.ranks == num)
                tables.append(_line(sizes[points], logs[points], sizes[rows]))
            if len(near) == 1:
                predicted[rows] = np.exp(tables[0])
            else:
                share = np.log(ranks / near[0]) / np.log(near[1] / near[0])
                predicted[rows] = np.exp(tables[0] + share * (tables[1] - tables[0]))
    return predicted


def _line(x: Floats, y: Floats, at: Floats) -> Floats:
    """Interpolate linearly, and go on beyond the ends in the direction of the last two points."""
    order = np.argsort(x)
    x, y = x[order], y[order]
    found: Floats = np.interp(at, x, y)
    if len(x) > 1:
        for end, next_to, beyond in ((0, 1, at < x[0]), (-1, -2, at > x[-1])):
            slope = (y[end] - y[next_to]) / (x[end] - x[next_to])
            found[beyond] = y[end] + slope * (at[beyond] - x[end])
    return found
