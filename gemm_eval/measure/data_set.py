"""Measured timings as files: parquet (or CSV) with a meta file beside it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemm_eval.errors import InvalidInputError
from gemm_eval.extras import needs_extra
from gemm_eval.storage import write_whole

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "CANDIDATE_COLUMNS",
    "COLUMNS",
    "GROUPED_COLUMNS",
    "KERNEL_COLUMNS",
    "check_can_write",
    "dataset_hash",
    "meta_path",
    "read_timings",
    "write_timings",
]

_INTEGER, _FLOAT, _TEXT = "Int64", "float64", "string"
COLUMNS: dict[str, str] = {
    "G": _INTEGER, "M": _INTEGER, "K": _INTEGER, "N": _INTEGER,
    "input_dtype": _TEXT, "weight_dtype": _TEXT, "output_dtype": _TEXT, "l2": _TEXT, "clock": _TEXT,
    "latency_us": _FLOAT, "min_us": _FLOAT, "spread_frac": _FLOAT,
    "num_replays": _INTEGER, "calls_per_replay": _INTEGER, "num_weight_copies": _INTEGER,
    "kernel": _TEXT, "num_kernels": _INTEGER, "grid_x": _INTEGER, "grid_y": _INTEGER, "grid_z": _INTEGER,
    "block_x": _INTEGER, "registers": _INTEGER, "smem_bytes": _INTEGER,
}  # fmt: skip
"""Columns of a measured data set, with their pandas types. Missing kernel columns: the trace did not see the call."""
CANDIDATE_COLUMNS: dict[str, str] = {"rank": _INTEGER, "split_k": _INTEGER}
"""Further columns where several algorithms of each GEMM are timed: place among the proposals, and parts of K."""
KERNEL_COLUMNS: dict[str, str] = {
    "rank": _INTEGER, "mode": _TEXT, "group_size": _INTEGER,
    "family": _TEXT, "cta_m": _INTEGER, "cta_n": _INTEGER, "cta_k": _INTEGER,
    "cluster_m": _INTEGER, "cluster_n": _INTEGER, "num_warps": _INTEGER, "num_stages": _INTEGER, "schedule": _TEXT,
    "decomposition": _TEXT, "split_k": _INTEGER, "raster_order": _TEXT, "raster_swizzle": _INTEGER,
    "spill_bytes": _INTEGER, "ctas_per_sm": _INTEGER, "kernel_hash": _TEXT,
}  # fmt: skip
"""Further columns where our kernels for 4-bit weights are timed: place by time, weights, config, and the build."""
GROUPED_COLUMNS: dict[str, str] = {
    "row_groups": _TEXT, "rows": _INTEGER, "model": _TEXT, "gemm": _INTEGER, "num_tokens": _INTEGER,
    "num_experts": _INTEGER, "topk": _INTEGER, "tp": _INTEGER, "ep": _INTEGER, "distribution": _TEXT,
    "seed": _INTEGER, "take": _INTEGER,
    "cta_m": _INTEGER, "cta_n": _INTEGER, "cta_k": _INTEGER, "cluster_m": _INTEGER, "cluster_n": _INTEGER,
    "num_stages": _INTEGER, "schedule": _TEXT,
}  # fmt: skip
"""Further columns of grouped GEMMs: rows of each group with a space between, what it is in a model, and the tile that
the name of the kernel tells."""
_TYPES = COLUMNS | CANDIDATE_COLUMNS | KERNEL_COLUMNS | GROUPED_COLUMNS

_SIZES = ("G", "M", "K", "N")
_POSITIVE = ("latency_us", "min_us")


def _import_pandas() -> Any:
    with needs_extra("a table of timings", "calibrate"):
        import pandas as pd
        import pyarrow  # noqa: F401  pandas loads it later, without saying what to install
    return pd


def check_can_write() -> None:
    """Raise a GemmEvalError if what `write_timings` needs is missing: better before a measurement than after."""
    _import_pandas()


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
    pd = _import_pandas()
    path = Path(path)
    if path.suffix not in (".parquet", ".csv"):
        raise InvalidInputError(f"measured timings are .parquet or .csv, got {path}")
    try:
        frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path, comment="#")
    except FileNotFoundError:
        raise InvalidInputError(f"no such file: {path}") from None
    except Exception as error:  # a damaged file: pandas, pyarrow and codecs raise errors of many kinds
        raise InvalidInputError(f"{path} cannot be read as {path.suffix[1:]}: {error}") from None
    if missing := [name for name in ("M", "K", "N", "latency_us") if name not in frame.columns]:
        raise InvalidInputError(f"{path} lacks {', '.join(missing)}; it has {', '.join(map(str, frame.columns))}")
    if "G" not in frame.columns:
        frame.insert(0, "G", 1)
    for name in [name for name in _TYPES if name in frame.columns]:
        frame[name] = _checked(frame[name], name, path)
    return frame  # type: ignore[no-any-return]


def _checked(column: Any, name: str, path: Path) -> Any:
    kind = _TYPES[name]
    try:
        converted = column.astype("int64" if name in _SIZES else kind)
        if name in _SIZES and not (converted == column).all():
            raise ValueError("not integers")
    except (TypeError, ValueError) as error:
        what = "text" if kind == _TEXT else "integers" if kind == _INTEGER else "numbers"
        raise InvalidInputError(f"{path}: {name} must be {what}: {error}") from None
    if name in _SIZES:
        _refuse(column, converted < 1, f"{path}: {name} must be >= 1")
    elif name in _POSITIVE:
        _refuse(column, ~((converted > 0) & (converted < float("inf"))), f"{path}: {name} must be positive and finite")
    return converted


def _refuse(column: Any, is_bad: Any, message: str) -> None:
    if is_bad.any():
        row = int(is_bad.to_numpy().argmax())
        raise InvalidInputError(f"{message}, got {column.iloc[row]} in row {row}")


def dataset_hash(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of what a data set says: the same for parquet and CSV, whatever the order of rows and columns.

    Raises:
        GemmEvalError: as `read_timings`.
    """
    frame = read_timings(path)
    names = sorted(frame.columns)
    rows = sorted(
        "\t".join(_canonical(value) for value in row) for row in frame[names].itertuples(index=False, name=None)
    )
    return hashlib.sha256("\n".join(["\t".join(names), *rows]).encode()).hexdigest()


def _canonical(value: Any) -> str:
    pd = _import_pandas()
    if pd.isna(value):
        return ""
    return repr(float(value)) if isinstance(value, float) else str(value)


def write_timings(
    path: Path, rows: Sequence[Mapping[str, Any]], meta: Mapping[str, Any], columns: Mapping[str, str] = COLUMNS
) -> None:
    """Write rows (sorted by size) and their meta file; neither is ever half-written.

    Args:
        path: of the data set.
        rows: values by column.
        meta: what the meta file says, besides number of rows and hash.
        columns: pandas type by column, of `COLUMNS`, `CANDIDATE_COLUMNS`, `KERNEL_COLUMNS` and `GROUPED_COLUMNS`.

    Raises:
        GemmEvalError: pandas or pyarrow is not installed.
    """
    import yaml

    pd = _import_pandas()
    frame = pd.DataFrame([{name: row.get(name) for name in columns} for row in rows], columns=list(columns))
    order = [
        name for name in ("N", "K", "G", "M", "row_groups", "take", "mode", "group_size", "rank") if name in columns
    ]
    frame = frame.astype(dict(columns)).sort_values(order, kind="stable").reset_index(drop=True)
    write_whole(path, frame.to_parquet(None, engine="pyarrow", index=False, compression="zstd"))
    text = yaml.safe_dump({**meta, "num_rows": len(frame), "sha256": dataset_hash(path)}, sort_keys=False, width=120)
    write_whole(meta_path(path), text.encode())
