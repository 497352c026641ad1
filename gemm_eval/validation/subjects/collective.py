"""The exam of collectives between the GPUs of a node: blocks of sizes and ranks held out; and their calibration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np

from gemm_eval.arch import TWO_SOCKETS, GpuSpec, Interconnect
from gemm_eval.dtypes import parse_dtype
from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.models.gpu import Coefficient
from gemm_eval.models.gpu.collective import (
    COLLECTIVE_COEFFICIENTS,
    COLLECTIVE_MODEL_VERSION,
    DIRECT,
    EXCHANGE,
    MULTICAST,
    RING,
    SOCKETS,
    CollectiveCalibration,
    CollectiveRows,
    collective_rows,
    collectives_us,
)
from gemm_eval.units import bytes_per_us
from gemm_eval.validation.exam import MODEL, TABLE, Exam, MeasuredTable, errors_of, held_out, parts_of
from gemm_eval.validation.fit import Ranges, Search, fit_logs, provenance, robust_fit, rounded, soft_l1
from gemm_eval.validation.metrics import ALL
from gemm_eval.validation.tables import measured_root
from gemm_eval.validation.timings import Floats, Ints, Mask
from gemm_eval.words import refusal
from gemm_eval.workload import CollectiveProblem

FITTED, NAIVE = "alpha-beta", "link rate"
"""Who else predicts: latency and rate fitted, the rate of the link alone."""

BLOCKS, RANKS = "blocks", "ranks"
HOLD_OUTS = {
    BLOCKS: "held out: each block of as many ranks and a decade of bytes, all operations together",
    RANKS: "held out: all rows of as many ranks",
}
"""What is held out together."""

_REGIMES = (("up to 64 KiB", 0, 1 << 16), ("up to 8 MiB", 1 << 16, 1 << 23), ("more", 1 << 23, 1 << 62))


@dataclass(frozen=True, eq=False)
class CollectiveTable(MeasuredTable):
    """Measured collectives in one node, one a row.

    Attributes:
        framework: name and release of the library.
    """

    COLUMNS: ClassVar[tuple[str, ...]] = ("what", "dtype", "num_ranks", "message_bytes", "latency_us")
    KEYS: ClassVar[tuple[str, ...]] = ("gpu", "library", "framework")

    framework: str

    @cached_property
    def problems(self) -> list[CollectiveProblem]:
        """The collective of each row."""
        columns = self.frame[["what", "message_bytes", "num_ranks", "dtype"]].itertuples(index=False, name=None)
        return [CollectiveProblem(what, size, ranks, parse_dtype(dtype)) for what, size, ranks, dtype in columns]

    @cached_property
    def size_bytes(self) -> Ints:
        """`CollectiveProblem.buffer_bytes` of each row."""
        return np.array([item.buffer_bytes for item in self.problems], np.int64)


def tables(gpu: str) -> list[CollectiveTable]:
    """Read all measured collectives of a GPU, by name: NCCL's first."""
    return [CollectiveTable.read(path) for path in sorted(measured_root(gpu).glob("collective-*/*.parquet"))]


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


def measured_rows(link: Interconnect, sets: Sequence[CollectiveTable]) -> MeasuredRows:
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


_BASELINE_LOSS_SCALE = 0.1
_START, _LOW, _HIGH = (5.0, 1.0, 0.6), (0.1, 0.001, 0.001), (200.0, 100.0, 2.0)
_BASELINE_ROWS = 6


class Kinds(NamedTuple):
    """Columns of rows of several tables, for baselines: library and operation, type, bytes sent, hops, size, ranks."""

    names: list[tuple[str, str]]
    dtypes: list[str]
    wire_bytes: Floats
    hops: Floats
    size: Floats
    ranks: Floats


def kinds_of(sets: Sequence[CollectiveTable]) -> Kinds:
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
        if rows.sum() < _BASELINE_ROWS:
            rows = train

        def times(x: Floats, mask: Mask) -> Floats:
            first_us, hop_us, frac = np.exp(x)
            found: Floats = first_us + hop_us * kinds.hops[mask] + least[mask] / frac
            return found

        def errors(x: Floats, mask: Mask = rows) -> Floats:
            found: Floats = np.log(times(x, mask) / measured_us[mask])
            return found

        found = robust_fit(errors, np.log(_START), np.log(_LOW), np.log(_HIGH), _BASELINE_LOSS_SCALE)
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


def groups_of(sets: Sequence[CollectiveTable], hold_out: str = BLOCKS) -> list[str]:
    """Return the group of each row of all tables: all of a group is held out together, of all operations and types.

    Raises:
        InvalidOptionError: no such way of holding out.
    """
    if hold_out not in HOLD_OUTS:
        raise InvalidOptionError(refusal("hold-out", hold_out, tuple(HOLD_OUTS)))
    kinds = kinds_of(sets)
    decades = np.floor(np.log10(kinds.size)).astype(int).tolist()
    return [
        f"{ranks:.0f} ranks" + (f", 1e{decade} bytes" if hold_out == BLOCKS else "")
        for ranks, decade in zip(kinds.ranks.tolist(), decades, strict=True)
    ]


def predict_held_out(arch: GpuSpec, sets: Sequence[CollectiveTable], groups: Sequence[str]) -> dict[str, Floats]:
    """Return predictions by who makes them, [rows] of all tables: each row by fits on all groups but its own."""
    link = interconnect_of(arch)
    rows, kinds = measured_rows(link, sets), kinds_of(sets)

    def predict(held: Mask) -> dict[str, Floats]:
        coefficients = fit_collectives(link, rows.take(~held))
        return {
            NAIVE: link_us(link, kinds)[held],
            FITTED: alpha_beta(link, kinds, rows.measured_us, ~held)[held],
            TABLE: interpolated_table(kinds, rows.measured_us, ~held)[held],
            MODEL: collectives_us(link, coefficients, rows.rows.take(held)),
        }

    return held_out(groups, predict)


def calibrate_collectives(arch: GpuSpec) -> CollectiveCalibration:
    """Fit all coefficients on the committed tables of a GPU; errors are of blocks that are held out.

    Raises:
        InvalidInputError: there are none.
    """
    sets = tables(arch.name)
    if not sets:
        raise InvalidInputError(f"no timings of collectives on {arch.name} are committed")
    link = interconnect_of(arch)
    predicted = predict_held_out(arch, sets, groups_of(sets))[MODEL]
    fitted = [*RING, *EXCHANGE]
    fitted += MULTICAST if link.has_multicast else ()
    fitted += DIRECT if link.is_nvlink else ()
    fitted += SOCKETS if link.topology == TWO_SOCKETS else ()
    names = {item.name for item in fitted}
    how = "each block of as many ranks and a decade of bytes by a fit on the others, all operations together"
    return CollectiveCalibration(
        gpu=arch.name,
        libraries=tuple(table.framework for table in sets),
        model_version=COLLECTIVE_MODEL_VERSION,
        errors=tuple(errors_of(table, predicted[rows]) for table, rows in zip(sets, parts_of(sets), strict=True)),
        fitted=tuple(item.name for item in COLLECTIVE_COEFFICIENTS if item.name in names),
        coefficients=rounded(fit_collectives(link, measured_rows(link, sets))),
        **(provenance(1, "rows", 0) | {"folds": how}),
    )


def _groups(table: CollectiveTable) -> Iterator[tuple[dict[str, str], Mask]]:
    ranks, size, what = table.column("num_ranks"), table.size_bytes, np.array(table.words("what"))
    groups: dict[str, Mask] = {name: (size > low) & (size <= high) for name, low, high in _REGIMES}
    groups |= {f"{num} ranks": ranks == num for num in sorted(set(ranks.tolist()))}
    groups |= {ALL: np.ones(len(table), np.bool_)}
    operations = list(dict.fromkeys(what.tolist()))
    for operation in (*operations, *((ALL,) if len(operations) > 1 else ())):
        for group, mask in groups.items():
            labels = {"library": table.library, "what": operation, "group": group}
            yield labels, mask & ((what == operation) | (operation == ALL))


def exam(hold_out: str = BLOCKS) -> Exam[CollectiveTable]:
    """Return the exam; `hold_out` of `HOLD_OUTS`."""
    return Exam(
        read=tables,
        predict=lambda arch, sets: predict_held_out(arch, sets, groups_of(sets, hold_out)),
        groups=_groups,
        headline=f"{HOLD_OUTS.get(hold_out, hold_out)}; MAPE of the link's rate, of alpha-beta, of a table, then "
        "errors of gemm_eval",
        title="{gpu}, {data}",
        columns={"what": "operation", "group": "rows of"},
        baselines={NAIVE: "link rate", FITTED: "alpha-beta", TABLE: "table"},
        is_main=lambda labels: labels["group"] == ALL,
        is_joint=True,
    )
