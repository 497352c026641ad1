"""`Timings`: measured GEMMs of one GPU, whichever kernels ran."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Self, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from gemm_eval.arch import ClockState, L2State
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidInputError
from gemm_eval.models.gpu import regime_places
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
_HOW = ("layout", "accumulate")  # columns that sets of drawn GEMMs have besides

PER_COLUMN = -1
"""`group_size` of weights with one scale a column of B, and of dense weights, which have none."""

QUANT_COLUMN = "quant_us"
"""Column of the time of the quantization of A alone, in tables that have it."""

_BITS_PER_BYTE = 8
_SCALE_BYTES = 2  # scales are 16-bit floats
LEAST_KERNEL_US = 0.1  # where nearly all that was measured is the measurement or another kernel


class Band(NamedTuple):
    """Rows that are reported apart: those with `min_rows` <= M <= `max_rows`."""

    min_rows: int
    max_rows: int
    why: str


class Form(NamedTuple):
    """Meaning of the rows of a table.

    Attributes:
        gemm: columns that tell GEMMs apart. Of a library's own choices each row is a GEMM, else one of its configs.
        group: column whose values are reported apart; empty: there is none.
        groups: its values in the order of reports; empty: those of most rows first.
        near_best: times the best of a GEMM up to which rows are reported apart as near it.
    """

    gemm: tuple[str, ...] = PROBLEM_COLUMNS
    group: str = ""
    groups: tuple[str, ...] = ()
    near_best: float = np.inf


GEMMS = Form()
"""A row is a GEMM, timed with the kernel that its library chose."""


@dataclass(frozen=True, eq=False)
class Table:
    """Measured rows. The frame, with index 0, 1, ..., is shared and not to be changed."""

    frame: pd.DataFrame

    def __len__(self) -> int:
        return len(self.frame)

    @cached_property
    def measured_us(self) -> Floats:
        """Measured latency of each row, in microseconds."""
        return self.frame["latency_us"].to_numpy(np.float64)

    @property
    def features(self) -> pd.DataFrame:
        """Numbers that tell what each row is, [rows, columns]: those of the frame that are no times."""
        numbers = self.frame.select_dtypes("number")
        return numbers[[name for name in numbers if not str(name).endswith("_us")]]

    def select(self, mask: Mask) -> Self:
        """Return the rows where `mask` is true, in their order."""
        return replace(self, frame=self.frame.loc[mask].reset_index(drop=True))


@dataclass(frozen=True, eq=False)
class Timings(Table):
    """Measured GEMMs, one a row.

    Attributes:
        frame: columns `PROBLEM_COLUMNS`, ``latency_us`` (device time of one GEMM; NaN where nothing was measured), and
            whatever else the file has.
        name: such as ``aiconfigurator/float16``.
        library: whose kernels ran: ``cublas``, ``trtllm``, ``gemm-eval``.
        library_version: the library's version, of `Library.versions`; empty: it is not known, or not told apart.
        l2, clock: rows of single configs say theirs in columns, if they differ.
        quantize_from: type that A had before; kernels that quantize it are part of each time, if that is not empty.
        is_net: their own time, of the column `QUANT_COLUMN`, was taken off.
        group_n: columns of B that share a scale.
        timer_us: what the measurement added to each time, in microseconds; predictions of latencies contain it.
        source: who measured, and how to cite it.
        packed: what the reader of single configs packed for its model, of all rows that it read. The column
            ``packed_row`` says which of them a row is, and ``registry_place`` decides between equal predictions.

    Raises:
        InvalidInputError: a column is missing or a value impossible; the message names row and column.
    """

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
    library_version: str = ""
    bands: Mapping[str, Band] = field(default_factory=dict)
    form: Form = GEMMS
    packed: Any = None

    def __post_init__(self) -> None:
        for name, value, allowed in (("l2", self.l2, tuple(L2State)), ("clock", self.clock, tuple(ClockState))):
            if value not in allowed:
                raise InvalidInputError(f"{self.name}: {name} must be one of {', '.join(allowed)}, got {shown(value)}")
        needed = (*PROBLEM_COLUMNS, "latency_us", *((QUANT_COLUMN,) if self.is_net else ()))
        if missing := [column for column in needed if column not in self.frame.columns]:
            raise InvalidInputError(f"{self.name}: columns are missing: {', '.join(missing)}")
        _check_values(self.frame, self.name)

    @property
    def library_word(self) -> str:
        """The library as a user names it who has its version."""
        return f"{self.library}/{self.library_version}" if self.library_version else self.library

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a column as an array."""
        return cast("npt.NDArray[Any]", self.frame[name].to_numpy())

    @property
    def kernel_us(self) -> Floats:
        """Measured time of each row without what the measurement added, in microseconds."""
        return np.maximum(self.measured_us - self.timer_us, LEAST_KERNEL_US)

    @cached_property
    def regime_places(self) -> npt.NDArray[np.intp]:
        """Place of each row's regime in intervals, [rows]."""
        G, M, K, N = self.sizes.T
        return regime_places(M, G, K, N)

    def log_errors(self, predicted_us: Floats) -> Floats:
        """Return log(measured / predicted) of each row's kernels alone, [rows]; predictions contain `timer_us`."""
        return np.log(self.kernel_us / np.maximum(predicted_us - self.timer_us, LEAST_KERNEL_US))

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
    def is_near_best(self) -> Mask:
        """Rows near the best of their GEMM: all, where the form does not tell them apart."""
        return self.measured_us <= self.form.near_best * self.best_us

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
        return cast("Floats", FLOP_PER_MAC * self.sizes.astype(np.float64).prod(axis=1))

    @property
    def compulsory_bytes(self) -> Floats:
        """Bytes that each row has to move at least: A, packed B with its 16-bit scales, and C, once each."""
        G, M, K, N = self.sizes.T.astype(np.float64)
        a, b, c = (self.frame[name].map(lambda dtype: DType(dtype).bits).to_numpy(np.float64) for name in _TYPES)
        group = self.column("group_size").astype(np.float64)
        num_scales = N * np.where(group > 0, np.ceil(K / np.where(group > 0, group, 1.0)), 1.0)
        scale_bytes = np.where(b < a, num_scales * _SCALE_BYTES, 0.0)
        return cast("Floats", G * ((M * K * a + K * N * b + M * N * c) / _BITS_PER_BYTE + scale_bytes))

    @property
    def in_band(self) -> Mask:
        """Rows of one of the bands that are reported apart."""
        return np.any([np.zeros(len(self), bool), *map(self.band_mask, self.bands)], axis=0)

    def band_mask(self, name: str) -> Mask:
        """Return which rows lie in the band `name`."""
        band = self.bands[name]
        return self.frame["M"].between(band.min_rows, band.max_rows).to_numpy(dtype=bool)

    def whole(self) -> Timings:
        """Return the rows as users ask for them, with the time of quantization that was taken off."""
        if not self.is_net:
            return self
        whole_us = self.frame["latency_us"] + self.frame[QUANT_COLUMN]
        return replace(self, frame=self.frame.assign(latency_us=whole_us), is_net=False)

    def problems(self) -> list[GemmProblem]:
        """Return each row as a problem."""
        rows = self.frame[list(PROBLEM_COLUMNS)].itertuples(index=False, name=None)
        how = self.frame.reindex(columns=_HOW)
        words = how.astype(object).where(how.notna(), None).itertuples(index=False, name=None)
        return [_problem(row, self.group_n, *of_row) for row, of_row in zip(rows, words, strict=True)]

    @property
    def sha256(self) -> str:
        """`content_hash` as files of calibrations have it."""
        return self.content_hash.removeprefix("sha256:")

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of problems, latencies and conditions; the order of rows does not matter."""
        columns = [*PROBLEM_COLUMNS, *(name for name in _HOW if name in self.frame.columns), "latency_us"]
        rows = self.frame[columns].sort_values(columns).to_csv(index=False, lineterminator="\n")
        head = [self.gpu, self.library, self.l2, self.clock]
        if self.quantize_from:
            head += [self.quantize_from, "net" if self.is_net else "whole"]
        if self.timer_us:
            head.append(f"timer {self.timer_us} us")
        return "sha256:" + hashlib.sha256("\n".join((*head, rows)).encode()).hexdigest()


def _problem(row: tuple[Any, ...], group_n: int, layout: str | None, accumulate: str | None) -> GemmProblem:
    a, b, c = map(DType, row[4:7])
    group_size = int(row[7]) if row[7] != PER_COLUMN and (a is not b or a.is_block_scaled) else None
    G, M, K, N = map(int, row[:4])
    return GemmProblem(
        G, M, K, N, a, b, c, group_size=group_size, group_n=group_n if group_n > 1 else None, layout=layout,
        accumulate=accumulate,
    )  # fmt: skip


def _check_values(frame: pd.DataFrame, name: str) -> None:
    latency_us = frame["latency_us"]
    for column in SIZES:
        if not pd.api.types.is_integer_dtype(frame[column]):
            raise InvalidInputError(f"{name}: {column} must hold integers, got {frame[column].dtype}")
    if not pd.api.types.is_numeric_dtype(latency_us):
        raise InvalidInputError(f"{name}: latency_us must hold numbers, got {latency_us.dtype}")
    rules = {column: (frame[column] < 1, "must be >= 1") for column in SIZES}
    rules |= {column: (~frame[column].isin(list(DType)), f"must be one of {', '.join(DType)}") for column in _TYPES}
    rules["latency_us"] = (latency_us <= 0) | np.isinf(latency_us), "must be positive and finite"
    for column, (bad, rule) in rules.items():
        if bad.any():
            row = int(np.flatnonzero(bad.to_numpy())[0])
            raise InvalidInputError(f"{name}: {column} {rule}, got {shown(frame[column].iloc[row])} (row {row + 1})")
