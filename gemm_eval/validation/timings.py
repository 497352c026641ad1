"""`TimingSet`: a table of GEMMs with their measured latencies, all of one GPU, kernel library, L2 and clock state."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from gemm_eval._words import shown
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidInputError
from gemm_eval.units import FLOP_PER_MAC
from gemm_eval.workload import GemmProblem

__all__ = ["PER_COLUMN", "PROBLEM_COLUMNS", "SIZES", "Band", "Floats", "Mask", "TimingSet"]

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

SIZES = ("G", "M", "K", "N")
_TYPES = ("input_dtype", "weight_dtype", "output_dtype")
PROBLEM_COLUMNS = (*SIZES, *_TYPES, "group_size")
"""Columns that every set has, besides ``latency_us``."""

PER_COLUMN = -1
"""`group_size` of weights with one scale a column of B, and of dense weights, which have none."""

_BITS_PER_BYTE = 8
_SCALE_BYTES = 2  # scales are 16-bit floats


@dataclass(frozen=True)
class Band:
    """Rows that are reported apart: those with `min_rows` <= M <= `max_rows`."""

    min_rows: int
    max_rows: int
    why: str


@dataclass(frozen=True, eq=False)
class TimingSet:
    """Measured GEMMs, one a row. The frame is shared and not to be changed; `select` gives a set of some rows.

    Attributes:
        frame: columns `PROBLEM_COLUMNS`, ``latency_us`` (device time of one GEMM; NaN where nothing was measured), and
            whatever else the file has, such as the kernel that ran. Index 0, 1, ...
        name: for tables and messages, such as ``aiconfigurator/float16``.
        gpu: arch name, such as ``h200-sxm``.
        library: whose kernels ran: ``cublas``, ``trtllm``, ``gemm-eval``.
        l2: ``cold`` or ``warm`` weights.
        clock: ``burst`` or ``sustained``.
        source: who measured, and how to cite it.
        bands: named rows that are reported apart.

    Raises:
        InvalidInputError: a column is missing or a value impossible; the message names row and column.
    """

    frame: pd.DataFrame
    name: str
    gpu: str
    library: str
    l2: str = "cold"
    clock: str = "burst"
    source: str = ""
    bands: Mapping[str, Band] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_choice(self.name, "l2", self.l2, ("cold", "warm"))
        _check_choice(self.name, "clock", self.clock, ("burst", "sustained"))
        missing = [column for column in (*PROBLEM_COLUMNS, "latency_us") if column not in self.frame.columns]
        if missing:
            raise InvalidInputError(f"{self.name}: columns are missing: {', '.join(missing)}")
        _check_values(self.frame, self.name)

    def __len__(self) -> int:
        return len(self.frame)

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a column as an array."""
        return cast("npt.NDArray[Any]", self.frame[name].to_numpy())

    @property
    def latency_us(self) -> Floats:
        """Measured device time of each row, in microseconds."""
        return self.column("latency_us").astype(np.float64)

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

    def select(self, mask: Mask, name: str | None = None) -> TimingSet:
        """Return the rows where `mask` is true, in their order, as a set named `name` (default: as this one)."""
        frame = self.frame.loc[mask].reset_index(drop=True)
        return replace(self, frame=frame, name=self.name if name is None else name)

    def problems(self) -> list[GemmProblem]:
        """Return each row as a problem."""
        records = self.frame[list(PROBLEM_COLUMNS)].to_dict("records")
        return [_problem(record) for record in records]

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of problems, latencies and conditions; the order of rows does not matter."""
        columns = [*PROBLEM_COLUMNS, "latency_us"]
        rows = self.frame[columns].sort_values(columns).to_csv(index=False, lineterminator="\n")
        head = "\n".join((self.gpu, self.library, self.l2, self.clock, ""))
        return "sha256:" + hashlib.sha256((head + rows).encode()).hexdigest()


def _problem(record: Mapping[Any, Any]) -> GemmProblem:
    a, b, c = (DType(record[name]) for name in _TYPES)
    group = int(record["group_size"])
    has_groups = a is not b and group != PER_COLUMN
    G, M, K, N = (int(record[size]) for size in SIZES)
    return GemmProblem(G, M, K, N, a, b, c, group_size=group if has_groups else None)


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
