"""Measured timings as files: parquet (or CSV) with a meta file beside it; the columns of each kind of data set."""

from __future__ import annotations

import enum
import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemm_eval.arch import data_root, read_yaml
from gemm_eval.errors import InvalidInputError
from gemm_eval.kernels import WeightMode
from gemm_eval.measure.shapes import DrawnShape, GemmItem, GemmShape, GroupedShape, KernelItem
from gemm_eval.storage import write_whole
from gemm_eval.words import needs_extra

if TYPE_CHECKING:
    import pandas as pd


TABLE_SUFFIXES = (".csv", ".parquet")
"""Of the files that hold timings."""

_INTEGER, _TEXT = "Int64", "string"


@cache
def _forms() -> Mapping[str, Any]:
    return read_yaml(data_root() / "data_sets.yaml")


def columns_for(*kinds: type) -> dict[str, str]:
    """Return the columns of a data set of some kinds of items, with their pandas types (arch/data_sets.yaml)."""
    columns = dict(_forms()["columns"])
    for kind in kinds:
        columns |= _forms()["kinds"].get(kind.__name__, {}).get("columns", {})
    return columns


def meta_for(kind: type) -> Mapping[str, Any]:
    """Return the entries of the meta file that data sets of a kind of item have beside the usual ones."""
    return _forms()["kinds"].get(kind.__name__, {}).get("meta", {})


_SIZES = ("G", "M", "K", "N")
_POSITIVE = ("latency_us", "min_us")
_ORDER = ("N", "K", "G", "M", "layout", "row_groups", "take", "mode", "group_size", "rank")  # of rows in a file


def import_pandas() -> Any:
    """Return pandas; GemmEvalError: it, or pyarrow, is missing."""
    with needs_extra("a table of timings", "calibrate"):
        import pandas as pd
        import pyarrow  # noqa: F401  pandas loads it later, without saying what to install
    return pd


def meta_path(path: Path) -> Path:
    """Return where the meta file of a data set lies."""
    return path.with_suffix(".meta.yaml")


def read_timings(path: str | os.PathLike[str]) -> pd.DataFrame:
    """Read measured timings.

    Args:
        path: ``.parquet`` or ``.csv`` with at least the columns M, K, N (elements) and latency_us (us of one GEMM,
            C[M,N] = A[M,K] x B[K,N]); without G it is 1. Other columns are passed through.

    Raises:
        InvalidInputError: the file is missing or no such file, a column is missing, or a value cannot be.
        GemmEvalError: pandas or pyarrow is not installed.
    """
    path = Path(path)
    frame = read_frame(path, ("M", "K", "N", "latency_us"), comment="#")
    if "G" not in frame.columns:
        frame.insert(0, "G", 1)
    for name, kind in columns_for(DrawnShape, KernelItem, GroupedShape).items():
        if name in frame.columns:
            frame[name] = _checked(frame[name], name, kind, path)
    return frame


def read_frame(path: Path, needed: Iterable[str] = (), hint: str = "", **csv: Any) -> pd.DataFrame:
    """Read a CSV or parquet table that has the columns `needed`; `csv` says how pandas reads a CSV.

    InvalidInputError: it is neither, cannot be read, or lacks a column; then `hint` says what writes such tables.
    """
    reader = import_pandas()
    if path.suffix not in TABLE_SUFFIXES:
        raise InvalidInputError(f"timings must be a {' or '.join(TABLE_SUFFIXES)} file, got {path}")
    try:
        frame: pd.DataFrame = reader.read_parquet(path) if path.suffix == ".parquet" else reader.read_csv(path, **csv)
    except Exception as error:  # a damaged file: pandas, pyarrow and codecs raise errors of many kinds
        raise InvalidInputError(f"cannot read timings from {path}: {error}") from None
    if missing := [name for name in needed if name not in frame.columns]:
        has = hint or f"it has {', '.join(map(str, frame.columns))}"
        raise InvalidInputError(f"{path} lacks {', '.join(missing)}; {has}")
    return frame


def _checked(column: Any, name: str, kind: str, path: Path) -> Any:
    try:
        converted = column.astype("int64" if name in _SIZES else kind)
        if name in _SIZES and not (converted == column).all():
            raise ValueError("not integers")
    except (TypeError, ValueError) as error:
        what = "text" if kind == _TEXT else "integers" if kind == _INTEGER else "numbers"
        raise InvalidInputError(f"{path}: {name} must be {what}: {error}") from None
    if name in (*_SIZES, *_POSITIVE):
        rule, is_good = "positive and finite", (converted > 0) & (converted < float("inf"))
        if not is_good.all():
            row = int(is_good.to_numpy().argmin())
            rule = ">= 1" if name in _SIZES else rule
            raise InvalidInputError(f"{path}: {name} must be {rule}, got {column.iloc[row]} in row {row}")
    return converted


def dataset_hash(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a data set, the same for parquet, CSV and any order; GemmEvalError: as `read_timings`."""
    pd, frame = import_pandas(), read_timings(path)

    def canonical(value: Any) -> str:
        return "" if pd.isna(value) else repr(float(value)) if isinstance(value, float) else str(value)

    names = sorted(frame.columns)
    rows = sorted("\t".join(map(canonical, row)) for row in frame[names].itertuples(index=False, name=None))
    return hashlib.sha256("\n".join(["\t".join(names), *rows]).encode()).hexdigest()


def write_timings(
    path: Path, rows: Sequence[Mapping[str, Any]], meta: Mapping[str, Any], kind: type = GemmShape
) -> None:
    """Write rows of a kind of item, sorted by size, and the meta file; neither is ever half-written."""
    import yaml

    pd, columns = import_pandas(), columns_for(kind)
    frame = pd.DataFrame([{name: row.get(name) for name in columns} for row in rows], columns=list(columns))
    order = [name for name in _ORDER if name in columns]
    frame = frame.astype(columns).sort_values(order, kind="stable").reset_index(drop=True)
    write_whole(path, frame.to_parquet(None, engine="pyarrow", index=False, compression="zstd"))
    text = yaml.safe_dump({**meta, "num_rows": len(frame), "sha256": dataset_hash(path)}, sort_keys=False, width=120)
    write_whole(meta_path(path), text.encode())


_GEMM_COLUMNS = ("G", "M", "K", "N", "mode", "group_size")
_PER_COLUMN = -1  # what data sets call one scale a column


def columns_of(item: GemmItem) -> dict[str, Any]:
    """Return what `item` is, by column of a data set."""
    if isinstance(item, GroupedShape):
        return item._asdict() | {"row_groups": " ".join(map(str, item.row_groups)), "rows": item.rows}
    if not isinstance(item, KernelItem):
        return item._asdict()
    columns = item._asdict() | item.config._asdict()
    del columns["config"]
    columns["group_size"] = _PER_COLUMN if item.mode is WeightMode.COLUMN else item.group_size
    return {name: value.name.lower() if isinstance(value, enum.IntEnum) else value for name, value in columns.items()}


def add_ranks(rows: Sequence[dict[str, Any]]) -> None:
    """Rank the rows of each GEMM by their time, from 0."""
    counts: dict[tuple[Any, ...], int] = {}
    for row in sorted(rows, key=lambda row: float(row["latency_us"])):
        gemm = tuple(row[name] for name in _GEMM_COLUMNS)
        row["rank"] = counts.get(gemm, 0)
        counts[gemm] = row["rank"] + 1


_INT = r"\s*cute::C<\s*(?:\(int\))?\s*(\d+)\s*>\s*"
_TUPLE = rf"cute::tuple<{_INT},{_INT},{_INT}>"
_PLAIN = re.compile(
    rf"WarpSpecialized\w*<\s*(?:\(int\))?\s*(\d+)\s*,\s*{_TUPLE}\s*,\s*[\w:]*?(Pingpong|Cooperative)\w*\s*>\s*,\s*{_TUPLE}"
)
_MANGLED = re.compile(
    r"WarpSpecializedILi(\d+)ENS\w?_IJ(\w+?)EEENS\w?_\d+Kernel\w*?(Pingpong|Cooperative)EEENS\w?_IJ(\w+?)EEE"
    r"NS_10bfloat16_tEPNS\w?_IJl\w*?E+S(\w*?)_S"
)
_ENTRY = re.compile(r"NS\w*?_(?:1C)?ILi(\d+)EEE|S([0-9A-Z]*)_")


def cutlass_tile(name: str) -> dict[str, Any]:
    """Return tile, cluster, stages and schedule of a Hopper kernel by column; empty if its name does not tell."""
    if match := _PLAIN.search(name):
        stages, cluster_m, cluster_n, _, schedule, m, n, k = match.groups()
    elif match := _MANGLED.search(name):
        stages, cluster, schedule, tile, a_type = match.groups()
        cluster_m, cluster_n = (size for size, _ in _ENTRY.findall(cluster)[:2])
        m, n, k = _sizes(tile, a_type)
    else:
        return {}
    names = ("cta_m", "cta_n", "cta_k", "cluster_m", "cluster_n", "num_stages")
    numbers = map(int, (m, n, k, cluster_m, cluster_n, stages))
    return dict(zip(names, numbers, strict=True)) | {"schedule": schedule.lower()}


def _sizes(tile: str, a_type: str) -> list[str]:
    """Return the three sizes of a mangled tuple, whose later entries may refer to an earlier one.

    Each new size is numbered as it comes, then the tuple, then the type of A, whose number is known from its next use
    (Itanium C++ ABI, 5.1.8: S_ is 0, S0_ is 1, in base 36).
    """
    entries = _ENTRY.findall(tile)
    new = [size for size, _ in entries if size]
    first = _number(a_type) - len(new) - 1
    return [size or new[_number(earlier) - first] for size, earlier in entries]


def _number(substitution: str) -> int:
    return int(substitution, 36) + 1 if substitution else 0
