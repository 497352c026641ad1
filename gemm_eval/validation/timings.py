"""`Timings`: measured GEMMs of one GPU, whichever kernels ran: the one type that all of validation passes on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol, Self, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from gemm_eval.arch import MEASURED_L2_STATES, ClockState
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidInputError
from gemm_eval.units import FLOP_PER_MAC
from gemm_eval.words import shown
from gemm_eval.workload import GemmProblem

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

SIZES = ("G", "M", "K", "N")
_TYPES = ("input_dtype", "weight_dtype", "output_dtype")
PROBLEM_COLUMNS = (*SIZES, *_TYPES, "group_size")
"""Columns that every set has, besides ``latency_us``."""

PER_COLUMN = -1
"""`group_size` of weights with one scale a column of B, and of dense weights, which have none."""

QUANT_COLUMN = "quant_us"
"""Tables that have the time of the quantization of A apart."""

_BITS_PER_BYTE = 8
_SCALE_BYTES = 2  # scales are 16-bit floats
LEAST_KERNEL_US = 0.1  # where nearly all that was measured is the measurement or another kernel


@dataclass(frozen=True)
class Band:
    """Rows that are reported apart: those with `min_rows` <= M <= `max_rows`."""

    min_rows: int
    max_rows: int
    why: str


class Form(NamedTuple):
    """What the rows of a table are.

    Attributes:
        gemm: columns that tell GEMMs apart; of a library's own choices each row is a GEMM, else one of its configs.
        group: column whose values are reported apart; empty: there is none.
        groups: its values in the order of reports; empty: those of most rows first.
        near_best: times the best of a GEMM up to which rows are reported apart as near it; None: they are not.
    """

    gemm: tuple[str, ...] = PROBLEM_COLUMNS
    group: str = ""
    groups: tuple[str, ...] = ()
    near_best: float | None = None


GEMMS = Form()
"""A row is a GEMM, timed with the kernel that its library chose."""


class Packing(Protocol):
    """What a predictor made of rows for its model: packed once, and taken along when rows are selected."""

    @property
    def place(self) -> Ints:
        """[rows], where a row's config stands among all of the GPU: it decides between equal predictions."""

    def select(self, mask: Mask) -> Self:
        """Return the rows where `mask` is true."""


@dataclass(frozen=True, eq=False)
class Timings:
    """Measured GEMMs, one a row. The frame is shared and not to be changed; `select` gives some rows.

    Attributes:
        frame: columns `PROBLEM_COLUMNS`, ``latency_us`` (device time of one GEMM; NaN where nothing was measured), and
            whatever else the file has, such as the kernel that ran. Index 0, 1, ...
        name: for tables and messages, such as ``aiconfigurator/float16``.
        gpu: arch name, such as ``h200-sxm``.
        library: whose kernels ran: ``cublas``, ``trtllm``, ``gemm-eval``.
        l2: ``cold`` or ``warm`` weights; rows of single configs say theirs in columns, if they differ.
        clock: ``burst`` or ``sustained``, likewise.
        quantize_from: type that A had before; kernels that quantize it are part of each time, if that is not empty.
        is_net: their own time, of the column `QUANT_COLUMN`, was taken off, as far as it is `quantize_us` of the model.
        group_n: columns of B that share a scale.
        timer_us: what the measurement added to each time, in microseconds; predictions of latencies contain it.
        source: who measured, and how to cite it.
        bands: named rows that are reported apart.
        form: what a row is.
        packed: what the predictor of single configs needs of the rows; None: nothing that the frame does not say.

    Raises:
        InvalidInputError: a column is missing or a value impossible; the message names row and column.
    """

    frame: pd.DataFrame
    name: str
    gpu: str
    library: str
    l2: str = "cold"
    clock: str = "burst"
    quantize_from: str = ""
    is_net: bool = False
    group_n: int = 1
    timer_us: float = 0.0
    source: str = ""
    bands: Mapping[str, Band] = field(default_factory=dict)
    form: Form = GEMMS
    packed: Packing | None = None

    def __post_init__(self) -> None:
        _check_choice(self.name, "l2", self.l2, MEASURED_L2_STATES)
        _check_choice(self.name, "clock", self.clock, tuple(ClockState))
        missing = [column for column in (*PROBLEM_COLUMNS, "latency_us") if column not in self.frame.columns]
        if self.is_net and QUANT_COLUMN not in self.frame.columns:
            missing.append(QUANT_COLUMN)
        if missing:
            raise InvalidInputError(f"{self.name}: columns are missing: {', '.join(missing)}")
        _check_values(self.frame, self.name)

    def __len__(self) -> int:
        return len(self.frame)

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a column as an array."""
        return cast("npt.NDArray[Any]", self.frame[name].to_numpy())

    @cached_property
    def measured_us(self) -> Floats:
        """Measured device time of each row, in microseconds."""
        return self.column("latency_us").astype(np.float64)

    @property
    def kernel_us(self) -> Floats:
        """Measured time of each row without what the measurement added, in microseconds."""
        return np.maximum(self.measured_us - self.timer_us, LEAST_KERNEL_US)

    def log_errors(self, predicted_us: Floats) -> Floats:
        """Return log(measured / predicted) of each row's kernels alone, [rows]; predictions contain `timer_us`."""
        errors: Floats = np.log(self.kernel_us / np.maximum(predicted_us - self.timer_us, LEAST_KERNEL_US))
        return errors

    @cached_property
    def sizes(self) -> Ints:
        """G, M, K, N of each row, [rows, 4]."""
        return self.frame[list(SIZES)].to_numpy(np.int64)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """(N, K) of each row."""
        return list(zip(self.frame["N"].tolist(), self.frame["K"].tolist(), strict=True))

    @cached_property
    def gemm(self) -> Ints:
        """Number of each row's GEMM, 0, 1, ..."""
        return np.asarray(self.frame.groupby(list(self.form.gemm), sort=True).ngroup(), np.int64)

    @cached_property
    def best_us(self) -> Floats:
        """Least measured latency of each row's GEMM, in microseconds."""
        return self.frame["latency_us"].groupby(self.gemm).transform("min").to_numpy(np.float64)

    @cached_property
    def num_configs(self) -> Ints:
        """Number of rows of each row's GEMM."""
        return self.frame["latency_us"].groupby(self.gemm).transform("size").to_numpy(np.int64)

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups of rows that are reported apart; not each need have rows."""
        if self.form.groups or not self.form.group:
            return self.form.groups
        return tuple(self.frame[self.form.group].value_counts().index)

    def of_group(self, name: str) -> Mask:
        """Return which rows belong to a group."""
        return (self.frame[self.form.group] == name).to_numpy(dtype=bool)

    @property
    def flop(self) -> Floats:
        """Operations of each row, a multiply-accumulate being two."""
        sizes = self.frame[list(SIZES)].to_numpy(dtype=np.float64)
        return cast("Floats", FLOP_PER_MAC * sizes.prod(axis=1))

    @property
    def compulsory_bytes(self) -> Floats:
        """Bytes that each row has to move at least: A, packed B with its 16-bit scales, and C, once each."""
        G, M, K, N = (self.column(name).astype(np.float64) for name in SIZES)
        bits = {name: self.frame[name].map(lambda dtype: DType(dtype).bits).to_numpy(np.float64) for name in _TYPES}
        group = self.column("group_size").astype(np.float64)
        groups_per_column = np.where(group > 0, np.ceil(K / np.where(group > 0, group, 1.0)), 1.0)
        scale_bytes = np.where(bits["weight_dtype"] < bits["input_dtype"], groups_per_column * N * _SCALE_BYTES, 0.0)
        a = M * K * bits["input_dtype"] / _BITS_PER_BYTE
        b = K * N * bits["weight_dtype"] / _BITS_PER_BYTE + scale_bytes
        c = M * N * bits["output_dtype"] / _BITS_PER_BYTE
        return cast("Floats", G * (a + b + c))

    @property
    def in_band(self) -> Mask:
        """Whether a row belongs to one of the bands that are reported apart."""
        inside = np.zeros(len(self), dtype=bool)
        for name in self.bands:
            inside |= self.band_mask(name)
        return inside

    def band_mask(self, name: str) -> Mask:
        """Return which rows lie in the band `name`."""
        band = self.bands[name]
        return self.frame["M"].between(band.min_rows, band.max_rows).to_numpy(dtype=bool)

    def select(self, mask: Mask) -> Timings:
        """Return the rows where `mask` is true, in their order."""
        packed = None if self.packed is None else self.packed.select(mask)
        return replace(self, frame=self.frame.loc[mask].reset_index(drop=True), packed=packed)

    def whole(self) -> Timings:
        """Return the rows as users ask for them, with the time of quantization that was taken off."""
        if not self.is_net:
            return self
        whole_us = self.frame["latency_us"] + self.frame[QUANT_COLUMN]
        return replace(self, frame=self.frame.assign(latency_us=whole_us), is_net=False)

    def problems(self) -> list[GemmProblem]:
        """Return each row as a problem."""
        records = self.frame[list(PROBLEM_COLUMNS)].to_dict("records")
        return [_problem(record, self.group_n) for record in records]

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of problems, latencies and conditions; the order of rows does not matter."""
        columns = [*PROBLEM_COLUMNS, "latency_us"]
        rows = self.frame[columns].sort_values(columns).to_csv(index=False, lineterminator="\n")
        said = [self.gpu, self.library, self.l2, self.clock]
        if self.quantize_from:
            said += [self.quantize_from, "net" if self.is_net else "whole"]
        if self.timer_us:
            said.append(f"timer {self.timer_us} us")
        head = "\n".join((*said, ""))
        return "sha256:" + hashlib.sha256((head + rows).encode()).hexdigest()


def _problem(record: Mapping[Any, Any], group_n: int) -> GemmProblem:
    a, b, c = (DType(record[name]) for name in _TYPES)
    group = int(record["group_size"])
    has_groups = group != PER_COLUMN and (a is not b or a.is_block_scaled)
    G, M, K, N = (int(record[size]) for size in SIZES)
    across = group_n if group_n > 1 else None
    return GemmProblem(G, M, K, N, a, b, c, group_size=group if has_groups else None, group_n=across)


def _check_choice(name: str, what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidInputError(f"{name}: {what} must be one of {', '.join(allowed)}, got {shown(value)}")


def _check_values(frame: pd.DataFrame, name: str) -> None:
    for column in SIZES:
        if not pd.api.types.is_integer_dtype(frame[column]):
            raise InvalidInputError(f"{name}: {column} must hold integers, got {frame[column].dtype}")
        _refuse(frame, frame[column] < 1, name, f"{column} must be >= 1", column)
    for column in _TYPES:
        _refuse(frame, ~frame[column].isin(list(DType)), name, f"{column} must be one of {', '.join(DType)}", column)
    if not pd.api.types.is_numeric_dtype(frame["latency_us"]):
        raise InvalidInputError(f"{name}: latency_us must hold numbers, got {frame['latency_us'].dtype}")
    latency_us = frame["latency_us"]
    bad = (latency_us <= 0) | np.isinf(latency_us)
    _refuse(frame, bad, name, "latency_us must be positive and finite", "latency_us")


def _refuse(frame: pd.DataFrame, bad: pd.Series[bool], name: str, rule: str, column: str) -> None:
    if bad.any():
        row = int(np.flatnonzero(bad.to_numpy())[0])
        raise InvalidInputError(f"{name}: {rule}, got {shown(frame[column].iloc[row])} (row {row + 1})")
