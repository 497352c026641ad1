"""Timings of single kernels of ours: tables of them, and which config each row ran, packed for the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from gemm_eval.arch import GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidInputError
from gemm_eval.mapping import Decomposition, RasterOrder, Schedule
from gemm_eval.models.gpu import Joined, join_packed, pack_gpu
from gemm_eval.models.gpu.families import FAMILIES
from gemm_eval.models.gpu.w4a16 import W4A16_FAMILIES, w4a16_types
from gemm_eval.search import OF_OURS
from gemm_eval.validation.tables import measured_root, meta_of, read_columns
from gemm_eval.validation.timings import Form, Ints, Mask, Timings
from gemm_eval.workload import NO_LAYOUTS, GemmProblem, RunOptions, problem_of

__all__ = [
    "NEAR_BEST",
    "W4A16_FORM",
    "W4A16Rows",
    "has_all_configs",
    "list_w4a16_tables",
    "read_w4a16_timings",
    "rows_of",
    "types_of",
]

_GEMM = ["input_dtype", "M", "K", "N", "mode", "group_size"]
_NEEDED = (
    *_GEMM, "latency_us", "input_dtype", "family", "cta_m", "cta_n", "cta_k", "cluster_m", "cluster_n", "num_warps",
    "num_stages", "schedule", "decomposition", "split_k", "raster_order", "raster_swizzle",
)  # fmt: skip
_CONFIG = (
    "family", "cta_m", "cta_n", "cta_k", "cluster_m", "cluster_n", "num_warps", "num_stages", "schedule",
    "raster_order", "raster_swizzle", "cluster_k",
)  # fmt: skip
_SPLIT_BY_CLUSTERS = "w4a16_sm90_cluster"


_COMPLAINT = ": a table of kernels of ours needs the columns {}; gemm-eval measure --kernel w4a16 writes them"

NEAR_BEST = 1.5
"""Rows are near the best of their GEMM up to this many times its least measured latency."""

_INTERRUPTED = 100.0
"""Times the best of its GEMM beyond which a single replay tells of no kernel: of 38,000 others none takes 54 times."""

W4A16_FORM = Form(tuple(_GEMM), "family", W4A16_FAMILIES, NEAR_BEST)
"""A row is a config of a kernel of ours; errors are told apart by family."""

_STREAM_K_PLACE = (1 << 16) - 1  # after all numbers of parts


@dataclass(frozen=True, eq=False)
class W4A16Rows:
    """The configs of rows; see `Packing`.

    Attributes:
        packed: our kernels for all types, as the numba searches take them.
        type_of: [rows], place in `packed`.
        which: [rows, 2] of place in `packed.candidates` and parts of K, 0 for stream-K.
    """

    packed: Joined
    type_of: Ints
    which: Ints

    @property
    def place(self) -> Ints:
        """The registry's order: its list of kernels, of each the whole K first, then fewer parts, then stream-K."""
        parts = np.where(self.which[:, 1] == 0, _STREAM_K_PLACE, self.which[:, 1])
        place: Ints = (self.which[:, 0] << 16) | parts
        return place

    def select(self, mask: Mask) -> W4A16Rows:
        """Return the rows where `mask` is true."""
        return replace(self, type_of=self.type_of[mask], which=self.which[mask])


def rows_of(timings: Timings) -> W4A16Rows:
    """Return the configs of timings that `read_w4a16_timings` read."""
    assert isinstance(timings.packed, W4A16Rows), f"{timings.name} does not tell the configs of our kernels"
    return timings.packed


def list_w4a16_tables(gpu: str, *, is_held_back: bool = False) -> list[Path]:
    """Return the tables of our kernels that come with the library for `gpu`, an arch name.

    Args:
        gpu: arch name.
        is_held_back: those that no coefficient may be fitted on, instead of all others.
    """
    folder = measured_root(gpu) / "w4a16"
    found = sorted(folder.glob("*.parquet")) if folder.is_dir() else []
    ours = [path for path in found if not path.stem.endswith("-cublas")]
    return [path for path in ours if ("held_back" in meta_of(path)) is is_held_back]


def read_w4a16_timings(arch: GpuSpec, paths: Sequence[Path]) -> Timings:
    """Read tables of `gemm-eval measure --kernel w4a16` for a GPU.

    Raises:
        InvalidInputError: no table, one that cannot be read, or a config that is no kernel of ours on this GPU.
        UnsupportedError: no kernels of ours run some of the types on this GPU.
    """
    if not paths:
        raise InvalidInputError(f"no timings of our W4A16 kernels on {arch.name}: give tables of gemm-eval measure")
    frame = pd.concat([_read(path) for path in paths], ignore_index=True)
    l2 = frame["l2"] if "l2" in frame else pd.Series("cold", index=frame.index)
    clock = frame["clock"] if "clock" in frame else pd.Series("burst", index=frame.index)
    keys = list(zip(frame["input_dtype"], frame["mode"], frame["group_size"], l2, clock, strict=True))
    kinds = list(dict.fromkeys(keys))
    packed = join_packed([pack_gpu(arch, types_of(*key[:3]).types, RunOptions("gemm-eval", *key[3:])) for key in kinds])
    type_of = np.array([kinds.index(key) for key in keys], np.int64)
    rows = W4A16Rows(packed, type_of, _which(frame, packed, type_of))
    name = ", ".join(path.stem for path in paths)
    return Timings(frame, name, arch.name, "gemm-eval", form=W4A16_FORM, packed=rows)


def _read(path: Path) -> pd.DataFrame:
    frame = read_columns(path, _NEEDED, _COMPLAINT)
    integers = [name for name in frame.columns if str(frame[name].dtype) == "Int64" and frame[name].notna().all()]
    frame = frame.astype(dict.fromkeys(integers, "int64")).assign(G=1, table=path.stem)
    return frame[~_was_interrupted(frame)]


def _was_interrupted(frame: pd.DataFrame) -> pd.Series[bool]:
    """Return which rows are of one replay that something else held up: none says how long the kernel takes."""
    if "num_replays" not in frame:
        return pd.Series(False, index=frame.index)
    best_us = frame.groupby(_GEMM)["latency_us"].transform("min")
    return (frame["num_replays"] == 1) & (frame["latency_us"] > _INTERRUPTED * best_us)


def types_of(input_dtype: str, mode: str, group_size: int) -> GemmProblem:
    """Return the types of a row as a problem, of sizes that do not matter."""
    return problem_of(w4a16_types(DType(input_dtype), mode, max(0, group_size)), 1, 64, 64, 64)


def _which(frame: pd.DataFrame, packed: Joined, type_of: Ints) -> Ints:
    places: dict[tuple[int, ...], int] = {}
    for kind, (first, stop) in enumerate(packed.ranges.tolist()):
        for place in range(first, stop):
            places[(kind, *(int(packed.candidates[place][name]) for name in _CONFIG))] = place
    codes = frame.assign(
        family=frame["family"].map({name: FAMILIES[name].number for name in W4A16_FAMILIES}),
        schedule=frame["schedule"].str.upper().map({item.name: int(item) for item in Schedule}),
        raster_order=frame["raster_order"].str.upper().map({item.name: int(item) for item in RasterOrder}),
        cluster_k=frame["split_k"].where(frame["family"] == _SPLIT_BY_CLUSTERS, 0),
    )
    parts = frame["split_k"].where(frame["decomposition"].str.upper() != Decomposition.STREAM_K.name, 0)
    which = np.empty((len(frame), 2), np.int64)
    configs = zip(type_of.tolist(), *(codes[name].tolist() for name in _CONFIG), strict=True)
    for row, config in enumerate(configs):
        if config not in places:
            raise InvalidInputError(
                f"row {row + 1}: no kernel of ours on this GPU is {dict(zip(_CONFIG, config[1:], strict=True))}"
            )
        which[row, 0] = places[config]
    which[:, 1] = parts.to_numpy(np.int64)
    return which


def has_all_configs(timings: Timings) -> Mask:
    """Whether every config that the GPU has for a GEMM was timed, [gemms]."""
    rows = rows_of(timings)
    packed = rows.packed
    first = np.unique(timings.gemm, return_index=True)[1]
    num_legal = np.empty(len(first), np.int64)
    none_us, none = np.empty(0), np.empty((0, 2), np.int64)
    for place, row in enumerate(first.tolist()):
        kind = int(rows.type_of[row])
        of_type = slice(kind, kind + 1)
        candidates = packed.candidates[slice(*packed.ranges[kind].tolist())]
        _, M, K, N = timings.sizes[row].tolist()
        num_legal[place] = OF_OURS.find_top(
            packed.params[of_type], candidates, packed.coefficients[of_type], 1, M, K, N, NO_LAYOUTS, none_us,
            none,
        )  # fmt: skip
    is_all: Mask = np.bincount(timings.gemm) == num_legal
    return is_all
