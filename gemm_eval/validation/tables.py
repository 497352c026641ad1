"""`Timings`: measured GEMMs of one GPU, whichever kernels ran, and reading tables of them.

Committed tables lie in ``arch/measured/<gpu>/<folder>/<table>``; a set of such a table is named ``<folder>/<table>``.

A table has the columns M, K, N and latency_us, and may have G (default 1), input_dtype, weight_dtype, output_dtype,
group_size (-1: one scale a column, or dense), l2, clock, and any others. What is no column stands in the meta file:
gpu, library, dtype (fp16, w4a16, ...) or the single types, l2, clock; and, for the reader, source, license and
protocol. Of a table with several conditions each one is a set of its own. More keys of a meta file:

- ``sets``: name -> {where: {column: value}, library, dtype, ...}. Each is the rows where the columns have these values;
  rows that no set names are not read.
- ``quantize_from``: the type that A had before it was quantized; ``is_net: true`` where the time of the kernels that do
  it, measured on their own, was taken off each latency.
- ``library_version``: of the versions that the library has here (`models.gpu.LIBRARIES`), the one that ran.
- ``timer_us``: what the way of timing adds to each latency, in microseconds; ``timer_why`` says how that is known. No
  coefficient learns it: what is predicted for a row is the kernel's time and this.
- ``bands``: name -> {min_rows, max_rows, why}. Rows that are reported apart.

A table with ``held_back`` says why no coefficient is fitted on it, and is in no default; with ``is_corrected: true``
learned corrections are fitted on it all the same. One with ``has_all_candidates: true`` has several kernels for a GEMM.
Only the library's own choice, the rows of rank 0, is read, and only where the table is named: it is in no default. One
with ``has_no_timings`` says something else of kernels and is not read here, nor is one with ``has_row_groups``, whose
rows are grouped GEMMs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from gemm_eval.arch import ClockState, L2State, data_root, read_yaml
from gemm_eval.dtypes import DType, parse_scheme
from gemm_eval.errors import InvalidInputError
from gemm_eval.measure import TABLE_SUFFIXES, read_frame
from gemm_eval.models.gpu import regime_places
from gemm_eval.units import FLOP_PER_MAC
from gemm_eval.words import shown
from gemm_eval.workload import GemmProblem

SIZES = ("G", "M", "K", "N")
_OPERANDS = ("input_dtype", "weight_dtype", "output_dtype")
PROBLEM_COLUMNS = (*SIZES, *_OPERANDS, "group_size")
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
        return (self.frame[self.form.group] == name).to_numpy(dtype=bool)

    @property
    def flop(self) -> Floats:
        """Operations of each row, a multiply-accumulate being two."""
        return cast("Floats", FLOP_PER_MAC * self.sizes.astype(np.float64).prod(axis=1))

    @property
    def compulsory_bytes(self) -> Floats:
        """Bytes that each row has to move at least: A, packed B with its 16-bit scales, and C, once each."""
        G, M, K, N = self.sizes.T.astype(np.float64)
        a, b, c = (self.frame[name].map(lambda dtype: DType(dtype).bits).to_numpy(np.float64) for name in _OPERANDS)
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
        rows = self.frame[list(PROBLEM_COLUMNS)].itertuples(index=False, name=None)
        how = self.frame.reindex(columns=_HOW)
        words = how.astype(object).where(how.notna(), None).itertuples(index=False, name=None)
        return [_problem(row, self.group_n, *of_row) for row, of_row in zip(rows, words, strict=True)]

    @property
    def sha256(self) -> str:
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
    rules |= {column: (~frame[column].isin(list(DType)), f"must be one of {', '.join(DType)}") for column in _OPERANDS}
    rules["latency_us"] = (latency_us <= 0) | np.isinf(latency_us), "must be positive and finite"
    for column, (bad, rule) in rules.items():
        if bad.any():
            row = int(np.flatnonzero(bad.to_numpy())[0])
            raise InvalidInputError(f"{name}: {column} {rule}, got {shown(frame[column].iloc[row])} (row {row + 1})")


_META_SUFFIX = ".meta.yaml"
_NOT_READ = {"has_no_timings", "has_row_groups"}
_CANDIDATES, _HELD_BACK, _CORRECTED = "has_all_candidates", "held_back", "is_corrected"
_CONDITIONS = ("library", "l2", "clock")
_TYPES = ("input_dtype", "weight_dtype", "output_dtype", "group_size")
_DTYPES: dict[str, Any] = {**dict.fromkeys((*SIZES, "group_size"), "int64"), "latency_us": "float64"}
_LIBRARY_OF_KERNEL = dict.fromkeys(("cublas", "cublaslt", "torch"), "cublas")  # what `gemm-eval measure` calls them
_DEFAULTS = {"l2": "cold", "clock": "burst"}


def measured_root(gpu: str) -> Path:
    """Return the folder of the timings that come with the library for `gpu` (an arch name); it may not exist."""
    return data_root() / "measured" / gpu


def list_timings(gpu: str, *, has_candidates: bool = False, has_held_back: bool = False) -> list[Timings]:
    """Read all timings that come with the library for `gpu`, by name.

    Tables in no default are read only if asked for: `has_candidates` asks for all of them, `has_held_back` for those on
    which no coefficient is fitted.
    """
    left_out = set() if has_candidates else {_CANDIDATES} if has_held_back else {_CANDIDATES, _HELD_BACK}
    return _read_committed(gpu, lambda meta: not left_out & meta)


def list_correction_timings(gpu: str) -> list[Timings]:
    """Read all timings that come with the library for `gpu` and that corrections are fitted on by default, by name."""
    return _read_committed(gpu, lambda meta: _CORRECTED in meta or not {_CANDIDATES, _HELD_BACK} & meta)


def _read_committed(gpu: str, is_wanted: Callable[[set[str]], bool]) -> list[Timings]:
    paths = sorted(path for path in measured_root(gpu).rglob("*") if path.suffix in TABLE_SUFFIXES)
    keys_of = {path: {key for key, value in meta_of(path).items() if value} for path in paths}
    kept = [path for path, keys in keys_of.items() if not _NOT_READ & keys and is_wanted(keys)]
    return [timings for path in kept for timings in read_timings(path)]


def find_timings(gpu: str, names: Sequence[str], *, has_held_back: bool = False, **given: Any) -> list[Timings]:
    """Return the sets that `names` name: a file's path, or a committed set or folder such as ``aiconfigurator``.

    No names: all that is committed, with `has_held_back` as in `list_timings`. `given` is for files, as in
    `read_timings`. InvalidInputError: nothing of that name, or a table that cannot be read.
    """
    if not names:
        return list_timings(gpu, has_held_back=has_held_back)
    chosen: list[Timings] = []
    has_committed = not all(name.endswith(TABLE_SUFFIXES) for name in names)
    committed = list_timings(gpu, has_candidates=True) if has_committed else []  # once, whatever is asked of them
    for name in names:
        if name.endswith(TABLE_SUFFIXES):
            chosen += read_timings(Path(name), gpu=gpu, **given)
            continue
        matching = [timings for timings in committed if f"{timings.name}/".startswith(f"{name.rstrip('/')}/")]
        if not matching:
            known = ", ".join(timings.name for timings in committed) or "none"
            raise InvalidInputError(f"no timings named {name!r} for {gpu}; there are: {known} (or a .csv or .parquet)")
        chosen += matching
    return list({timings.name: timings for timings in chosen}.values())


def read_timings(path: Path, **given: Any) -> list[Timings]:
    """Read the sets of a .csv or .parquet table and of the meta file beside it, if there is one.

    `given` are gpu, library, dtype (fp16, w4a16, ...), l2, clock, source: for what neither table nor meta file says.
    InvalidInputError: the file cannot be read, or something is missing or impossible in it.
    """
    meta = {key: value for key, value in given.items() if value is not None} | dict(meta_of(path))
    if not isinstance(meta.get("gpu"), str):  # `gemm-eval measure` describes the device at length there
        meta["gpu"] = _gpu_of_folder(path) or given.get("gpu") or "unknown"
    meta.setdefault("library", _LIBRARY_OF_KERNEL.get(str(meta.get("kernel"))))
    table = read_frame(path, ("M", "K", "N", "latency_us"))
    if meta.get(_CANDIDATES):
        table = _where(table, {"rank": 0}, path)
    name = _name_of(path)
    meta["bands"] = {key: Band(**band) for key, band in _mapping(meta.get("bands", {}), path, "bands").items()}
    sets = _mapping(meta.get("sets", {}), path, "sets")
    if not sets:
        return list(_split(table, meta, name, path))
    read: list[Timings] = []
    for key, own in sets.items():
        rows = _where(table, _mapping(own.get("where", {}), path, f"sets.{key}.where"), path)
        read += _split(rows, meta | own, f"{name}/{key}", path)
    return read


def meta_of(path: Path) -> Mapping[str, Any]:
    """Return what the meta file beside a table says; nothing where there is none."""
    meta_path = path.with_name(path.stem + _META_SUFFIX)
    return read_yaml(meta_path) if meta_path.is_file() else {}


def _split(table: pd.DataFrame, meta: Mapping[str, Any], name: str, path: Path) -> Iterator[Timings]:
    """Complete the columns from `meta` and yield one set for each condition in the table."""
    scheme = parse_scheme(meta["dtype"]) if "dtype" in meta else None
    defaults: dict[str, Any] = {"G": 1, "group_size": PER_COLUMN, **_DEFAULTS}
    if scheme is not None:
        group_size = PER_COLUMN if scheme.group_size is None else scheme.group_size
        defaults |= dict(zip(_TYPES, (*map(str, scheme[:3]), group_size), strict=True))
    defaults |= {key: meta[key] for key in (*_CONDITIONS, *_TYPES) if meta.get(key) is not None}
    frame = table.assign(**{key: value for key, value in defaults.items() if key not in table.columns})
    for column in (*_CONDITIONS, *_TYPES):
        if column not in frame.columns:
            option = "dtype" if column in _TYPES else column
            raise InvalidInputError(f"{path}: {column} must be given: a column, a key of the meta file, or --{option}")
    frame["group_size"] = frame["group_size"].fillna(PER_COLUMN)
    frame = _with_numbers(frame, path)
    first = [*SIZES, *_TYPES, "latency_us"]
    rest = [column for column in frame.columns if column not in (*first, *_CONDITIONS)]
    groups = list(frame.groupby(list(_CONDITIONS), sort=True))
    for key, rows in groups:
        yield Timings(
            rows[[*first, *rest]].reset_index(drop=True),
            name if len(groups) == 1 else f"{name}/{'-'.join(map(str, key))}",
            gpu=str(meta["gpu"]), source=str(meta.get("source", "")), bands=meta["bands"],
            library=str(key[0]), l2=str(key[1]), clock=str(key[2]),
            quantize_from=str(meta.get("quantize_from", "")), is_net=bool(meta.get("is_net", False)),
            group_n=1 if scheme is None or scheme.group_n is None else scheme.group_n,
            timer_us=float(meta.get("timer_us", 0.0)), library_version=str(meta.get("library_version", "")),
        )  # fmt: skip


def _with_numbers(frame: pd.DataFrame, path: Path) -> pd.DataFrame:
    if frame["latency_us"].isna().any():
        raise InvalidInputError(f"{path}: latency_us is missing in row {int(frame['latency_us'].isna().argmax()) + 1}")
    try:
        converted = frame.astype(_DTYPES)
        if any((converted[column] != frame[column]).any() for column in (*SIZES, "group_size")):
            raise ValueError("a fraction")
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"{path}: sizes must be integers, latency_us numbers: {error}") from None
    return converted


def _where(table: pd.DataFrame, wanted: Mapping[str, Any], path: Path) -> pd.DataFrame:
    for column, value in wanted.items():
        if column not in table.columns:
            raise InvalidInputError(f"{path}: no column {column!r} to choose rows by; there are {list(table.columns)}")
        table = table[table[column] == value]
    if table.empty:
        raise InvalidInputError(f"{path}: no row has {dict(wanted)}")
    return table


def _mapping(value: Any, path: Path, key: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInputError(f"{path.with_suffix(_META_SUFFIX)}: {key} must be a mapping, got {shown(value)}")
    return value


def _name_of(path: Path) -> str:
    measured = data_root() / "measured"
    if path.is_relative_to(measured):  # measured/<gpu>/<folder>/<table>
        return "/".join(path.relative_to(measured).with_suffix("").parts[1:])
    return path.stem


def _gpu_of_folder(path: Path) -> str:
    """Return the arch name in ``.../measured/<gpu>/...``, or nothing."""
    _, measured, rest = path.resolve().as_posix().rpartition("/measured/")
    return rest.partition("/")[0] if measured and "/" in rest else ""


Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
