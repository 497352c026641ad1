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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from gemm_eval.arch import data_root, read_yaml
from gemm_eval.dtypes import parse_scheme
from gemm_eval.errors import InvalidInputError
from gemm_eval.validation.timings import PER_COLUMN, SIZES, Band, Timings
from gemm_eval.words import shown

TABLE_SUFFIXES = (".csv", ".parquet")
"""Of the files that hold timings."""
_META_SUFFIX = ".meta.yaml"
_NOT_READ = {"has_no_timings", "has_row_groups"}
_HELD_BACK = "held_back"
_IN_NO_DEFAULT = {"has_all_candidates", _HELD_BACK}
_CORRECTED = "is_corrected"
_CONDITIONS = ("library", "l2", "clock")
_TYPES = ("input_dtype", "weight_dtype", "output_dtype", "group_size")
_DTYPES: dict[str, Any] = {**dict.fromkeys((*SIZES, "group_size"), "int64"), "latency_us": "float64"}
_LIBRARY_OF_KERNEL = {"cublas": "cublas", "cublaslt": "cublas"}  # what `gemm-eval measure` calls them
_DEFAULTS = {"l2": "cold", "clock": "burst"}


def measured_root(gpu: str) -> Path:
    """Return the folder of the timings that come with the library for `gpu` (an arch name); it may not exist."""
    return data_root() / "measured" / gpu


def list_timings(gpu: str, *, has_candidates: bool = False, has_held_back: bool = False) -> list[Timings]:
    """Read all timings that come with the library for `gpu`, by name; those in no default only if asked for.

    `has_candidates` asks for all of these, `has_held_back` for those on which no coefficient is fitted.
    """
    left_out = set(_NOT_READ)
    if not has_candidates:
        left_out |= _IN_NO_DEFAULT - ({_HELD_BACK} if has_held_back else set())
    kept = [path for path in _committed(gpu) if not left_out & meta_of(path).keys()]
    return [timings for path in kept for timings in read_timings(path)]


def list_correction_timings(gpu: str) -> list[Timings]:
    """Read all timings that come with the library for `gpu` and that corrections are fitted on by default, by name."""
    kept = []
    for path in _committed(gpu):
        meta = meta_of(path)
        if not _NOT_READ & meta.keys() and (meta.get(_CORRECTED) or not _IN_NO_DEFAULT & meta.keys()):
            kept.append(path)
    return [timings for path in kept for timings in read_timings(path)]


def _committed(gpu: str) -> list[Path]:
    root = measured_root(gpu)
    return sorted(path for path in root.rglob("*") if path.suffix in TABLE_SUFFIXES) if root.is_dir() else []


def find_timings(gpu: str, names: Sequence[str], *, has_held_back: bool = False, **given: Any) -> list[Timings]:
    """Return the sets that `names` name: a file's path, or a committed set or folder such as ``aiconfigurator``.

    Args:
        gpu: arch name.
        names: what to read; empty: all that is committed for `gpu`.
        has_held_back: also, if no names are given, those on which no coefficient is fitted.
        given: for files, as in `read_timings`.

    Raises:
        InvalidInputError: nothing of that name, or a table that cannot be read.
    """
    if not names:
        return list_timings(gpu, has_held_back=has_held_back)
    found: list[Timings] = []
    has_committed = not all(name.endswith(TABLE_SUFFIXES) for name in names)
    committed = list_timings(gpu, has_candidates=True) if has_committed else []  # once, whatever is asked of them
    for name in names:
        if name.endswith(TABLE_SUFFIXES):
            found += read_timings(Path(name), gpu=gpu, **given)
            continue
        matching = [timings for timings in committed if f"{timings.name}/".startswith(f"{name.rstrip('/')}/")]
        if not matching:
            known = ", ".join(timings.name for timings in committed) or "none"
            raise InvalidInputError(f"no timings named {name!r} for {gpu}; there are: {known} (or a .csv or .parquet)")
        found += matching
    return list({timings.name: timings for timings in found}.values())


def read_timings(path: Path, **given: Any) -> list[Timings]:
    """Read the sets of a table.

    Args:
        path: a .csv or .parquet file; its meta file lies beside it, if there is one.
        given: gpu, library, dtype (fp16, w4a16, ...), l2, clock, source: for what neither table nor meta file says.

    Raises:
        InvalidInputError: the file cannot be read, or something is missing or impossible in it.
        ArchValidationError: the meta file is no readable YAML.
    """
    meta = {key: value for key, value in given.items() if value is not None}
    meta |= meta_of(path)
    if not isinstance(meta.get("gpu"), str):  # `gemm-eval measure` describes the device at length there
        meta["gpu"] = _gpu_of_folder(path) or given.get("gpu") or "unknown"
    meta.setdefault("library", _LIBRARY_OF_KERNEL.get(str(meta.get("kernel"))))
    table = read_table(path)
    if meta.get("has_all_candidates"):
        table = _where(table, {"rank": 0}, path)
    name = _name_of(path)
    bands = {key: Band(**band) for key, band in _mapping(meta.get("bands", {}), path, "bands").items()}
    sets = _mapping(meta.get("sets", {}), path, "sets")
    if not sets:
        return list(_split(table, meta, name, bands, path))
    read: list[Timings] = []
    for key, own in sets.items():
        rows = _where(table, _mapping(own.get("where", {}), path, f"sets.{key}.where"), path)
        read += _split(rows, meta | own, f"{name}/{key}", bands, path)
    return read


def meta_of(path: Path) -> Mapping[str, Any]:
    """Return what the meta file beside a table says; nothing where there is none."""
    meta_path = path.with_name(path.stem + _META_SUFFIX)
    return read_yaml(meta_path) if meta_path.is_file() else {}


def read_columns(path: Path, needed: Iterable[str], complaint: str) -> pd.DataFrame:
    """Read a parquet table of single configs that has at least the columns `needed`.

    Raises:
        InvalidInputError: it cannot be read, or lacks columns: `complaint`, where {} stands for their names.
    """
    frame = read_table(path)
    if missing := [name for name in needed if name not in frame]:
        raise InvalidInputError(f"{path}{complaint.format(', '.join(missing))}")
    return frame


def read_table(path: Path) -> pd.DataFrame:
    """Read a CSV or parquet file.

    Raises:
        InvalidInputError: it is neither, or cannot be read.
    """
    if path.suffix not in TABLE_SUFFIXES:
        raise InvalidInputError(f"timings must be a {' or '.join(TABLE_SUFFIXES)} file, got {path}")
    try:
        return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"cannot read timings from {path}: {error}") from error


def _split(
    table: pd.DataFrame, meta: Mapping[str, Any], name: str, bands: Mapping[str, Band], path: Path
) -> Iterator[Timings]:
    """Complete the columns from `meta` and yield one set for each condition in the table."""
    for column in ("M", "K", "N", "latency_us"):
        if column not in table.columns:
            raise InvalidInputError(f"{path}: a table of timings needs the column {column}")
    frame = table.assign(**{key: value for key, value in _types(meta).items() if key not in table.columns})
    for column in _CONDITIONS:
        if column not in frame.columns:
            if meta.get(column) is None and column not in _DEFAULTS:
                raise InvalidInputError(
                    f"{path}: {column} must be given: a column, a key of the meta file, or --{column}"
                )
            frame[column] = meta.get(column, _DEFAULTS.get(column))
    if "G" not in frame.columns:
        frame["G"] = 1
    missing = [column for column in _TYPES if column not in frame.columns]
    if missing:
        raise InvalidInputError(f"{path}: {missing[0]} must be given: a column, a key of the meta file, or --dtype")
    frame["group_size"] = frame["group_size"].fillna(PER_COLUMN)
    frame = _with_numbers(frame, path)
    first = [*SIZES, *_TYPES, "latency_us"]
    rest = [column for column in frame.columns if column not in (*first, *_CONDITIONS)]
    groups = list(frame.groupby(list(_CONDITIONS), sort=True))
    for key, rows in groups:
        conditions = dict(zip(_CONDITIONS, map(str, key), strict=True))
        yield Timings(
            rows[[*first, *rest]].reset_index(drop=True),
            name if len(groups) == 1 else f"{name}/{'-'.join(conditions.values())}",
            gpu=str(meta["gpu"]),
            source=str(meta.get("source", "")),
            bands=bands,
            library=conditions["library"],
            l2=conditions["l2"],
            clock=conditions["clock"],
            quantize_from=str(meta.get("quantize_from", "")),
            is_net=bool(meta.get("is_net", False)),
            group_n=_group_n(meta),
            timer_us=float(meta.get("timer_us", 0.0)),
        )


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


def _types(meta: Mapping[str, Any]) -> dict[str, Any]:
    types: dict[str, Any] = {"group_size": PER_COLUMN}
    if "dtype" in meta:
        scheme = parse_scheme(meta["dtype"])
        types |= {key: str(value) for key, value in zip(_TYPES, scheme[:3], strict=False)}
        types["group_size"] = PER_COLUMN if scheme.group_size is None else scheme.group_size
    return types | {key: meta[key] for key in _TYPES if key in meta}


def _group_n(meta: Mapping[str, Any]) -> int:
    """Return how many columns of B share a scale."""
    scheme = parse_scheme(meta["dtype"]) if "dtype" in meta else None
    return 1 if scheme is None or scheme.group_n is None else scheme.group_n


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
        raise InvalidInputError(
            f"{path.with_name(path.stem + _META_SUFFIX)}: {key} must be a mapping, got {shown(value)}"
        )
    return value


def _name_of(path: Path) -> str:
    measured = data_root() / "measured"
    if path.is_relative_to(measured):  # measured/<gpu>/<folder>/<table>
        return "/".join(path.relative_to(measured).with_suffix("").parts[1:])
    return path.stem


def _gpu_of_folder(path: Path) -> str:
    """Return the arch name in ``.../measured/<gpu>/...``, or nothing."""
    parts = path.resolve().parts
    place = len(parts) - 1 - parts[::-1].index("measured") if "measured" in parts else len(parts)
    return parts[place + 1] if place + 2 < len(parts) else ""
