"""Timings of single kernels of ours: which config each row ran, packed for the model, and fits at these configs.

Unlike timings of a library's own choice, a row tells the config exactly. So nothing is searched in a fit: the model is
evaluated at the configs that ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from gemm_eval._jit import read_only
from gemm_eval.arch import GpuSpec, read_yaml
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidInputError
from gemm_eval.mapping import Decomposition, RasterOrder, Schedule
from gemm_eval.models.gpu import GpuOptions, pack_gpu
from gemm_eval.models.gpu.packed import Joined, join_packed
from gemm_eval.models.gpu.w4a16.coefficients import W4A16_FAMILIES
from gemm_eval.search._threads import run_in_chunks
from gemm_eval.search.gpu_kernels import OF_OURS
from gemm_eval.validation.datasets import measured_root
from gemm_eval.validation.folds import fold_of_pairs
from gemm_eval.validation.timings import Floats, Mask
from gemm_eval.workload import GemmProblem

__all__ = ["KernelTimings", "list_kernel_tables", "read_kernel_timings", "types_of"]

_GEMM = ["input_dtype", "M", "K", "N", "mode", "group_size"]
_NEEDED = (
    *_GEMM, "latency_us", "input_dtype", "family", "cta_m", "cta_n", "cta_k", "cluster_m", "cluster_n", "num_warps",
    "num_stages", "schedule", "decomposition", "split_k", "raster_order", "raster_swizzle",
)  # fmt: skip
_CONFIG = (
    "coefficient_set", "cta_m", "cta_n", "cta_k", "cluster_m", "cluster_n", "num_warps", "num_stages", "schedule",
    "raster_order", "raster_swizzle",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class KernelTimings:
    """Rows of tables of our kernels, each one config on one GEMM.

    Attributes:
        arch: the GPU.
        frame: the rows, index 0, 1, ...; columns as `gemm-eval measure --kernel w4a16` writes them, and `table`.
        packed: our kernels for all types, as the numba searches take them.
        type_of: [rows], place in `packed`.
        which: [rows, 2] of place in `packed.candidates` and parts of K, 0 for stream-K.
    """

    arch: GpuSpec
    frame: pd.DataFrame
    packed: Joined
    type_of: npt.NDArray[np.int64]
    which: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.frame)

    @cached_property
    def measured_us(self) -> Floats:
        """Measured latency of each row, in microseconds."""
        return self.frame["latency_us"].to_numpy(np.float64)

    @cached_property
    def sizes(self) -> npt.NDArray[np.int64]:
        """G, M, K, N of each row, [rows, 4]."""
        ones = np.ones((len(self.frame), 1), np.int64)
        return np.concatenate([ones, self.frame[["M", "K", "N"]].to_numpy(np.int64)], axis=1)

    @cached_property
    def kind(self) -> npt.NDArray[np.int64]:
        """Place in `W4A16_FAMILIES` of each row."""
        kinds: npt.NDArray[np.int64] = self.packed.candidates["coefficient_set"][self.which[:, 0]]
        return kinds

    @cached_property
    def gemm(self) -> npt.NDArray[np.int64]:
        """Number of each row's GEMM, 0, 1, ..."""
        return np.asarray(self.frame.groupby(_GEMM, sort=True).ngroup(), np.int64)

    @cached_property
    def best_us(self) -> Floats:
        """Least measured latency of each row's GEMM, in microseconds."""
        return self.frame["latency_us"].groupby(self.gemm).transform("min").to_numpy(np.float64)

    @cached_property
    def num_configs(self) -> npt.NDArray[np.int64]:
        """Number of rows of each row's GEMM."""
        return self.frame["latency_us"].groupby(self.gemm).transform("size").to_numpy(np.int64)

    def folds(self, num_folds: int, seed: int) -> npt.NDArray[np.int64]:
        """Fold of each row; the rows of a pair (N, K) stay together."""
        pairs = list(zip(self.frame["N"].tolist(), self.frame["K"].tolist(), strict=True))
        fold_of = fold_of_pairs(set(pairs), num_folds, seed)
        return np.array([fold_of[pair] for pair in pairs], np.int64)

    def select(self, mask: Mask) -> KernelTimings:
        """Return the rows where `mask` is true."""
        return replace(
            self, frame=self.frame[mask].reset_index(drop=True), type_of=self.type_of[mask], which=self.which[mask]
        )

    def predict(self, coefficients: npt.NDArray[np.void]) -> Floats:
        """Predicted latency of each row in microseconds; coefficients [families] of COEFFICIENTS_DTYPE."""
        latency_us, packed = np.empty(len(self)), self.packed
        of_types = read_only(np.repeat(coefficients[None], len(packed.params), axis=0))

        def work(start: int, stop: int) -> None:
            part = slice(start, stop)
            OF_OURS.evaluate_rows(
                packed.params, packed.candidates, of_types, self.type_of[part], self.sizes[part],
                self.which[part], latency_us[part],
            )  # fmt: skip

        run_in_chunks(work, len(self))
        return latency_us


def list_kernel_tables(gpu: str, *, is_held_back: bool = False) -> list[Path]:
    """Return the tables of our kernels that come with the library for `gpu`, an arch name.

    Args:
        gpu: arch name.
        is_held_back: those that no coefficient may be fitted on, instead of all others.
    """
    folder = measured_root(gpu) / "w4a16"
    found = sorted(folder.glob("*.parquet")) if folder.is_dir() else []
    ours = [path for path in found if not path.stem.endswith("-cublas")]
    return [path for path in ours if ("held_back" in read_yaml(path.with_suffix(".meta.yaml"))) is is_held_back]


def read_kernel_timings(arch: GpuSpec, paths: Sequence[Path]) -> KernelTimings:
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
    packed = join_packed([pack_gpu(arch, types_of(*key[:3]), GpuOptions("gemm-eval", *key[3:])) for key in kinds])
    type_of = np.array([kinds.index(key) for key in keys], np.int64)
    return KernelTimings(arch, frame, packed, type_of, _which(frame, packed, type_of))


def _read(path: Path) -> pd.DataFrame:
    try:
        frame = pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"cannot read timings from {path}: {error}") from error
    missing = [name for name in _NEEDED if name not in frame]
    if missing:
        raise InvalidInputError(
            f"{path}: a table of kernels of ours needs the columns {', '.join(missing)}; "
            "gemm-eval measure --kernel w4a16 writes them"
        )
    integers = [name for name in frame.columns if str(frame[name].dtype) == "Int64" and frame[name].notna().all()]
    return frame.astype(dict.fromkeys(integers, "int64")).assign(table=path.stem)


def types_of(input_dtype: str, mode: str, group_size: int) -> GemmProblem:
    """Return the types of a row as a problem, of sizes that do not matter."""
    return GemmProblem(
        1, 64, 64, 64, input_dtype=DType(input_dtype), weight_dtype=DType.INT4, output_dtype=DType(input_dtype),
        group_size=group_size if group_size > 0 else None, scale_dtype=DType(input_dtype),
        zero_dtype=DType.INT4 if mode == "group_zero" else None,
    )  # fmt: skip


def _which(frame: pd.DataFrame, packed: Joined, type_of: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    places: dict[tuple[int, ...], int] = {}
    for kind, (first, stop) in enumerate(packed.ranges.tolist()):
        for place in range(first, stop):
            places[(kind, *(int(packed.candidates[place][name]) for name in _CONFIG))] = place
    codes = frame.assign(
        coefficient_set=frame["family"].map({name: place for place, name in enumerate(W4A16_FAMILIES)}),
        schedule=frame["schedule"].str.upper().map({item.name: int(item) for item in Schedule}),
        raster_order=frame["raster_order"].str.upper().map({item.name: int(item) for item in RasterOrder}),
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
