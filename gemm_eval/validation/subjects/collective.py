"""The exam of collectives between the GPUs of a node: blocks of sizes and ranks held out; and their calibration."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from gemm_eval.arch import TWO_SOCKETS, GpuSpec, Interconnect, load_arch
from gemm_eval.dtypes import parse_dtype
from gemm_eval.errors import InvalidInputError
from gemm_eval.models.gpu import Coefficient, Features, physics_digest
from gemm_eval.models.gpu import collective as model
from gemm_eval.units import bytes_per_us
from gemm_eval.validation.baselines import fit_positive
from gemm_eval.validation.exam import MODEL, TABLE, Exam, Groups, MeasuredTable, Predict
from gemm_eval.validation.fit import Ranges, Search, provenance, rounded, soft_l1
from gemm_eval.validation.learned import PHYSICS, Subject
from gemm_eval.validation.metrics import ALL
from gemm_eval.validation.subjects import Fitted, fitted, rows_between
from gemm_eval.validation.tables import Floats, Ints, Mask, measured_root
from gemm_eval.words import check_word
from gemm_eval.workload import CollectiveProblem

FITTED, NAIVE = "alpha-beta", "link rate"
"""Baselines: latency and rate fitted, the rate of the link alone."""

BLOCKS, RANKS = "blocks", "ranks"
HOLD_OUTS = {
    BLOCKS: "held out: each block of as many ranks and a decade of bytes, all operations together",
    RANKS: "held out: all rows of as many ranks",
}
"""Ways of holding out."""

_REGIMES = (("up to 64 KiB", 0, 1 << 16), ("up to 8 MiB", 1 << 16, 1 << 23), ("more", 1 << 23, 1 << 62))
_SEARCH = Search(loss_scale=0.1, difference=0.001, off_bounds=0.001, evaluations=60)
_LIMITS = ("direct_bytes",)  # where a library turns to something else: tried one by one, by doublings
_LEAST_ROWS = 12  # of an algorithm, for a fit of its coefficients
_LEAST_BASELINE_ROWS = 6
_LEAST_US = 1e-3  # of what a logarithm is taken of
_START, _LOW, _HIGH = (5.0, 1.0, 0.6), (0.1, 0.001, 0.001), (200.0, 100.0, 2.0)  # of alpha-beta


@dataclass(frozen=True, eq=False)
class CollectiveTable(MeasuredTable):
    """Measured collectives in one node, one a row; `framework` is name and release of the library."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("what", "dtype", "num_ranks", "message_bytes", "latency_us")
    KEYS: ClassVar[tuple[str, ...]] = ("gpu", "library", "framework")

    framework: str

    @cached_property
    def problems(self) -> list[CollectiveProblem]:
        columns = self.frame[["what", "message_bytes", "num_ranks", "dtype"]].itertuples(index=False, name=None)
        return [CollectiveProblem(kind, size, ranks, parse_dtype(dtype)) for kind, size, ranks, dtype in columns]

    @cached_property
    def size_bytes(self) -> Ints:
        return np.array([item.buffer_bytes for item in self.problems], np.int64)


def tables(gpu: str) -> list[CollectiveTable]:
    """Read all measured collectives of a GPU, by name: NCCL's first."""
    return [CollectiveTable.read(path) for path in sorted(measured_root(gpu).glob("collective-*/*.parquet"))]


def interconnect_of(arch: GpuSpec) -> Interconnect:
    """Return the link of a GPU that has timings of messages over it."""
    assert arch.interconnect is not None, f"{arch.name} has timings of collectives, and no interconnect"
    return arch.interconnect


def measured_rows(link: Interconnect, sets: Sequence[CollectiveTable]) -> tuple[model.CollectiveRows, Floats]:
    """Return the problems as columns, and the latencies, of several tables of a GPU, one after the other."""
    parts = [model.collective_rows(link, table.library, table.problems) for table in sets]
    columns = (np.concatenate([getattr(part, name) for part in parts]) for name in vars(parts[0]))
    return model.CollectiveRows(*columns), np.concatenate([table.measured_us for table in sets])


def fit_collectives(link: Interconnect, rows: model.CollectiveRows, measured_us: Floats) -> dict[str, float]:
    """Return all coefficients, fitted on some rows; one that no row depends on keeps its default."""
    across = model.SOCKETS if link.topology == TWO_SOCKETS else ()
    values = {item.name: item.default for item in model.COLLECTIVE_COEFFICIENTS}
    in_rings = (*model.RING, *(model.MULTICAST if link.has_multicast else ()), *across[:-1])
    for items, mask in (
        (in_rings, ~rows.is_direct & ~rows.is_exchange), ((*model.EXCHANGE, *across[-1:]), rows.is_exchange),
        (model.DIRECT, rows.is_direct),
    ):  # fmt: skip
        if mask.sum() >= _LEAST_ROWS:
            values = _fit(link, items, values, rows.take(mask), measured_us[mask])
    return values


def _fit(
    link: Interconnect, items: Sequence[Coefficient], start: Mapping[str, float], rows: model.CollectiveRows,
    measured_us: Floats,
) -> dict[str, float]:  # fmt: skip
    """Fit some coefficients for each value of a limit among them: errors have a step there, and no derivative."""

    def predict(values: dict[str, float]) -> Floats:
        return model.collectives_us(link, values, rows)

    fits: list[tuple[float, dict[str, float]]] = []
    free, tried = [item for item in items if item.name not in _LIMITS], [dict(start)]
    for limit in (item for item in items if item.name in _LIMITS):  # between powers of two, at which sizes lie
        exponents = range(int(np.ceil(np.log2(limit.low) - 0.5)), int(np.floor(np.log2(limit.high) - 0.5)) + 1)
        tried = [{**start, limit.name: float(round(2.0 ** (exponent + 0.5)))} for exponent in exponents]
    for begin in tried:
        values = Ranges(free, begin, is_log=True).fit(predict, measured_us, _SEARCH, begin)
        fits.append((soft_l1(np.log(predict(values)) - np.log(measured_us), _SEARCH.loss_scale), values))
    return min(fits, key=lambda item: item[0])[1]


def _columns(sets: Sequence[CollectiveTable]) -> pd.DataFrame:
    """Return what baselines see of all rows, one table after the other."""
    rows = [
        (f"{table.library} {of.what}", str(of.dtype), of.wire_bytes, of.buffer_bytes, of.num_ranks,
         (of.num_ranks - 1) * (2 if of.what == "all_reduce" else 1))
        for table in sets for of in table.problems
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["operation", "dtype", "wire_bytes", "size", "ranks", "hops"])
    return frame.astype(dict.fromkeys(("wire_bytes", "size", "ranks", "hops"), np.float64))


def _groups_by(frame: pd.DataFrame, *names: str) -> list[Ints]:
    """Return the rows of each combination of values of some columns."""
    return [np.asarray(rows, np.int64) for rows in frame.groupby(list(names)).indices.values()]


def _alpha_beta(frame: pd.DataFrame, least_us: Floats, measured_us: Floats, train: Mask) -> Floats:
    """Predict all rows by alpha + hops * alpha' + bytes / (share of the link), fitted for each operation."""
    predicted, hops = np.empty(len(frame)), frame["hops"].to_numpy()

    def times(constants: Floats, rows: Ints) -> Floats:
        first_us, hop_us, frac = constants
        return first_us + hop_us * hops[rows] + least_us[rows] / frac

    for of_operation in _groups_by(frame, "operation"):
        rows = of_operation[train[of_operation]]
        rows = rows if len(rows) >= _LEAST_BASELINE_ROWS else np.flatnonzero(train)
        fitted = fit_positive(times, rows, measured_us, _START, _LOW, _HIGH)
        predicted[of_operation] = times(fitted, of_operation)
    return predicted


def _interpolated(frame: pd.DataFrame, measured_us: Floats, train: Mask) -> Floats:
    """Predict all rows by a table on log axes for each operation and type, extended beyond its ends."""
    predicted = np.empty(len(frame))
    logs, sizes, ranks = np.log(measured_us), np.log(frame["size"].to_numpy()), frame["ranks"].to_numpy()
    for of_key in _groups_by(frame, "operation", "dtype"):
        trained = of_key[train[of_key]]
        measured_ranks = np.unique(ranks[trained])
        for num in np.unique(ranks[of_key]).tolist():
            rows = of_key[ranks[of_key] == num]
            near = [num]
            if num not in measured_ranks:
                near = sorted(measured_ranks[index] for index in np.argsort(abs(np.log(measured_ranks / num)))[:2])
            points = [trained[ranks[trained] == other] for other in near]
            at_near = [_line(sizes[some], logs[some], sizes[rows]) for some in points]
            latency = at_near[0]
            if len(near) == 2:
                share = np.log(num / near[0]) / np.log(near[1] / near[0])
                latency = at_near[0] + share * (at_near[1] - at_near[0])
            predicted[rows] = np.exp(latency)
    return predicted


def _line(x: Floats, y: Floats, at: Floats) -> Floats:
    """Interpolate linearly, and go on beyond the ends in the direction of the last two points."""
    order = np.argsort(x)
    x, y = x[order], y[order]
    values: Floats = np.interp(at, x, y)
    if len(x) > 1:
        for end, next_to, beyond in ((0, 1, at < x[0]), (-1, -2, at > x[-1])):
            slope = (y[end] - y[next_to]) / (x[end] - x[next_to])
            values[beyond] = y[end] + slope * (at[beyond] - x[end])
    return values


def folds_of(sets: Sequence[CollectiveTable], hold_out: str = BLOCKS) -> list[str]:
    """Return the group of each row of all tables: all of a group is held out together, of all operations and types."""
    check_word("hold-out", hold_out, HOLD_OUTS)
    return [
        f"{of.num_ranks} ranks" + (f", 1e{int(np.floor(np.log10(of.buffer_bytes)))} bytes" * (hold_out == BLOCKS))
        for table in sets
        for of in table.problems
    ]


def predictions(arch: GpuSpec, sets: Sequence[CollectiveTable]) -> Predict:
    """Return the predictions of tables, ready to be fitted on all of them together."""
    link, frame = interconnect_of(arch), _columns(sets)
    problems, measured_us = measured_rows(link, sets)
    least_us = frame["wire_bytes"].to_numpy() / bytes_per_us(link.gb_per_s)

    def predict(train: Mask, rows: Mask) -> dict[str, Floats]:
        coefficients = fit_collectives(link, problems.take(train), measured_us[train])
        return {
            NAIVE: least_us[rows],
            FITTED: _alpha_beta(frame, least_us, measured_us, train)[rows],
            TABLE: _interpolated(frame, measured_us, train)[rows],
            MODEL: model.collectives_us(link, coefficients, problems.take(rows)),
        }

    return predict


def committed_us(arch: GpuSpec, sets: Sequence[CollectiveTable]) -> tuple[Floats, dict[str, str]]:
    """Return the latencies of rows by committed coefficients, and the digest of these by group."""
    link = interconnect_of(arch)
    coefficients, _ = model.collective_coefficients(arch, link)
    digest = physics_digest(coefficients, model.COLLECTIVE_MODEL_VERSION)
    latency_us = model.collectives_us(link, coefficients, measured_rows(link, sets)[0])
    return latency_us, dict.fromkeys(model.COLLECTIVE_GROUPS, digest)


def describe(
    arch: GpuSpec, sets: Sequence[CollectiveTable], latency_us: Floats
) -> tuple[npt.NDArray[np.str_], Features]:
    """Return the group of each row, and its features; shares of terms are by committed coefficients."""
    link = interconnect_of(arch)
    rows, _ = measured_rows(link, sets)
    terms = model.collective_terms(link, model.collective_coefficients(arch, link)[0], rows)
    return model.collective_group(rows), model.collective_features(rows, terms, np.maximum(latency_us, _LEAST_US))


LEARNS = Subject(
    model.COLLECTIVE, model.COLLECTIVE_MODEL_VERSION, (), committed_us, describe,
    MappingProxyType({"min_samples_leaf": 10}),
)  # fmt: skip


def calibrate_collectives(arch: GpuSpec) -> model.CollectiveCalibration:
    """Fit all coefficients on the committed tables of a GPU; errors are of blocks that are held out."""
    sets = tables(arch.name)
    if not sets:
        raise InvalidInputError(f"no timings of collectives on {arch.name} are committed")
    link = interconnect_of(arch)
    parts = {model.RING: True, model.EXCHANGE: True, model.MULTICAST: link.has_multicast,
             model.DIRECT: link.has_peer_memory, model.SOCKETS: link.topology == TWO_SOCKETS}  # fmt: skip
    names = {item.name for items, has_part in parts.items() if has_part for item in items}
    how = "each block of as many ranks and a decade of bytes by a fit on the others, all operations together"
    return model.CollectiveCalibration(
        gpu=arch.name, libraries=tuple(table.framework for table in sets), model_version=model.COLLECTIVE_MODEL_VERSION,
        errors=exam().errors(arch, sets),
        fitted=tuple(item.name for item in model.COLLECTIVE_COEFFICIENTS if item.name in names),
        coefficients=rounded(fit_collectives(link, *measured_rows(link, sets))),
        **(provenance(1, "rows", 0) | {"folds": how}),
    )  # fmt: skip


def calibrate(arch: str) -> Iterator[Fitted]:
    """Fit collectives on a GPU; parameters are the options of the command."""
    calibration = calibrate_collectives(load_arch(arch, GpuSpec))
    path = model.collective_calibration_path(calibration.gpu)
    yield fitted(calibration, path, f"Collectives of {calibration.gpu}: errors of blocks held out")


def _groups(table: CollectiveTable) -> Groups:
    ranks, what_of = table.column("num_ranks"), np.array(table.words("what"))
    groups = rows_between(table.size_bytes, _REGIMES)
    groups |= {f"{num} ranks": ranks == num for num in np.unique(ranks).tolist()}
    groups |= {ALL: np.ones(len(table), np.bool_)}
    operations = list(dict.fromkeys(what_of.tolist()))
    for operation in (*operations, *((ALL,) if len(operations) > 1 else ())):
        for group, mask in groups.items():
            labels = {"library": table.library, "what": operation, "group": group}
            yield labels, mask & ((what_of == operation) | (operation == ALL))


def exam(hold_out: str = BLOCKS) -> Exam[CollectiveTable]:
    """Return the exam; `hold_out` of `HOLD_OUTS`."""
    return Exam(
        read=tables,
        predict=predictions,
        folds=lambda sets: folds_of(sets, hold_out),
        groups=_groups,
        headline=f"{HOLD_OUTS.get(hold_out, hold_out)}; MAPE of the link's rate, of alpha-beta, of a table, of "
        "the model's terms alone, then errors of gemm_eval",
        title="{gpu}, {data}",
        columns={"what": "operation", "group": "rows of"},
        baselines={NAIVE: "link rate", FITTED: "alpha-beta", TABLE: "table", PHYSICS: "physics"},
        is_main=lambda labels: labels["group"] == ALL,
        is_joint=True,
        learns=LEARNS,
    )
