"""Measured timings as files: parquet (or CSV) with a meta file beside it; the columns of each kind of data set."""

from __future__ import annotations

import enum
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gemm_eval.errors import InvalidInputError
from gemm_eval.extras import needs_extra
from gemm_eval.kernels import WeightMode
from gemm_eval.measure.shapes import Candidate, DrawnShape, GemmItem, GemmShape, GroupedShape, KernelItem
from gemm_eval.storage import write_whole

if TYPE_CHECKING:
    import pandas as pd


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
DRAWN_COLUMNS: dict[str, str] = {"layout": _TEXT, "accumulate": _TEXT, "seed": _INTEGER}
"""Further columns of GEMMs drawn at random: how operands lie in memory, how fp8 is added, whose random numbers."""
GROUPED_COLUMNS: dict[str, str] = {
    "row_groups": _TEXT, "rows": _INTEGER, "model": _TEXT, "gemm": _INTEGER, "num_tokens": _INTEGER,
    "num_experts": _INTEGER, "topk": _INTEGER, "tp": _INTEGER, "ep": _INTEGER, "distribution": _TEXT,
    "seed": _INTEGER, "take": _INTEGER,
    "cta_m": _INTEGER, "cta_n": _INTEGER, "cta_k": _INTEGER, "cluster_m": _INTEGER, "cluster_n": _INTEGER,
    "num_stages": _INTEGER, "schedule": _TEXT,
}  # fmt: skip
"""Further columns of grouped GEMMs: rows of each group with a space between, what it is in a model, and the tile that
the name of the kernel tells."""


class Extra(NamedTuple):
    """Columns and entries of the meta file that data sets of a kind of item have beside the usual ones."""

    columns: dict[str, str]
    meta: dict[str, Any]


EXTRAS: dict[type, Extra] = {
    GemmShape: Extra({}, {}),
    DrawnShape: Extra(DRAWN_COLUMNS, {
        "columns": "layout: first letter of B, second of A, as cuBLAS has it: K runs along memory in t of B and n of "
        "A, N in n of B, M in t of A. seed: of the random numbers that drew the row",
    }),
    Candidate: Extra(CANDIDATE_COLUMNS, {
        "library": "cublas",
        "has_all_candidates": True,
        "rank": "place of the row's algorithm among the proposals of cublasLtMatmulAlgoGetHeuristic for its GEMM; 0: "
        "the library's own choice. Several rows have the same G, M, K, N: only that of rank 0 is the library's time.",
        "split_k": "parts of K of the row's algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM; 1: K is not split",
    }),
    KernelItem: Extra(KERNEL_COLUMNS, {
        "library": "gemm-eval",
        "has_all_candidates": True,
        "rank": "place of the row's kernel by its time among those measured for its GEMM; 0: the fastest. Several rows "
        "have the same G, M, K, N, mode and group_size: only that of rank 0 is the library's time.",
        "give_up": "num_replays 1: a first short replay took over give_up_ratio times the best time until then; it is "
        "all there is, and its spread_frac of 0 says nothing",
        "build": "registers of a thread, spill_bytes: its local memory, smem_bytes: static and dynamic of a CTA, "
        "ctas_per_sm: CTAs that an SM holds at once, kernel_hash: of the machine code",
    }),
    GroupedShape: Extra(GROUPED_COLUMNS, {
        "what": "device time of one grouped GEMM, C_i[m_i,N] = A_i[m_i,K] x B_i[K,N] for G groups, with all kernels of "
        "the call; latency_us is the median over replays",
        "has_row_groups": True,
        "columns": "row_groups: m_i of each group; M: the largest; rows: all of them together. model .. seed: what it "
        "is in a model, and how rows were drawn. take: counts up where the same layout was timed again. kernel, grid "
        "and so on: of the longest kernel of the call; cta_m .. schedule: what its name tells. num_kernels: of the "
        "call",
    }),
}  # fmt: skip
"""By the kind of the items that were timed."""
_TYPES = COLUMNS | DRAWN_COLUMNS | CANDIDATE_COLUMNS | KERNEL_COLUMNS | GROUPED_COLUMNS

_SIZES = ("G", "M", "K", "N")
_POSITIVE = ("latency_us", "min_us")
_ORDER = ("N", "K", "G", "M", "layout", "row_groups", "take", "mode", "group_size", "rank")  # of rows in a file


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
    """Return the SHA-256 of a data set, the same for parquet, CSV and any order; GemmEvalError: as `read_timings`."""
    pd, frame = _import_pandas(), read_timings(path)

    def canonical(value: Any) -> str:
        return "" if pd.isna(value) else repr(float(value)) if isinstance(value, float) else str(value)

    names = sorted(frame.columns)
    rows = sorted("\t".join(map(canonical, row)) for row in frame[names].itertuples(index=False, name=None))
    return hashlib.sha256("\n".join(["\t".join(names), *rows]).encode()).hexdigest()


def write_timings(
    path: Path, rows: Sequence[Mapping[str, Any]], meta: Mapping[str, Any], columns: Mapping[str, str] = COLUMNS
) -> None:
    """Write rows (sorted by size; `columns`: their pandas types) and the meta file; neither is ever half-written."""
    import yaml

    pd = _import_pandas()
    frame = pd.DataFrame([{name: row.get(name) for name in columns} for row in rows], columns=list(columns))
    order = [name for name in _ORDER if name in columns]
    frame = frame.astype(dict(columns)).sort_values(order, kind="stable").reset_index(drop=True)
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
