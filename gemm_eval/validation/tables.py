"""Reading measured timings: a table (CSV or parquet) with a ``.meta.yaml`` beside it.

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

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from gemm_eval.arch import data_root, read_yaml
from gemm_eval.dtypes import parse_scheme
from gemm_eval.errors import InvalidInputError
from gemm_eval.measure import TABLE_SUFFIXES, read_frame
from gemm_eval.validation.timings import PER_COLUMN, SIZES, Band, Timings
from gemm_eval.words import shown

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
