"""The slow truth about the best kernel config: every legal one is evaluated.

Nothing of the search's own pruning is used: neither its bound nor its choice of stages, splits and rasters. The space
comes from `enumerate_kernels`, which checks one config at a time; which splits of K a library takes is worked out there
in Python.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval._jit import kernel
from gemm_eval.arch import GpuSpec
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder
from gemm_eval.models.gpu.cost_kernels import RASTER_CODE, config_cost, problem_terms
from gemm_eval.models.gpu.libraries import default_library
from gemm_eval.models.gpu.menu import MENU_DTYPE, RASTER_SWIZZLES, menu_row
from gemm_eval.models.gpu.model import GpuOptions, gpu_params
from gemm_eval.models.gpu.params import unaligned_params
from gemm_eval.models.gpu.space import KernelChoice, enumerate_kernels, is_row_aligned
from gemm_eval.workload import GemmProblem

__all__ = ["Best", "Space", "find_best", "space_of"]

RASTERS = np.array([order * RASTER_CODE + swizzle for order in RasterOrder for swizzle in RASTER_SWIZZLES], np.int64)


class Space(NamedTuple):
    """All that a brute-force search walks over."""

    params: npt.NDArray[np.void]  # [1]
    choices: list[KernelChoice]
    menu: npt.NDArray[np.void]  # [choices] of MENU_DTYPE
    splits: npt.NDArray[np.int64]  # [choices, 3]: first, stop, whether there is stream-K
    num_configs: int


class Best(NamedTuple):
    """The best config, and its latency."""

    config: KernelConfig
    latency_us: float


def space_of(arch: GpuSpec, problem: GemmProblem, options: GpuOptions) -> Space:
    """Check and pack every kernel of the library."""
    library = options.library or default_library(problem)
    params = gpu_params(arch, problem, options)
    if not is_row_aligned(problem):
        params = unaligned_params(params)
    choices = list(enumerate_kernels(arch, problem, library))
    menu = np.array([menu_row(arch, problem, choice.config, choice.resources) for choice in choices], MENU_DTYPE)
    splits = [(choice.splits.start, choice.splits.stop, int(choice.has_stream_k)) for choice in choices]
    ways = sum(len(choice.splits) + choice.has_stream_k for choice in choices)
    return Space(params, choices, menu, np.array(splits, np.int64).reshape(-1, 3), ways * len(RASTERS))


def find_best(problem: GemmProblem, space: Space) -> Best:
    """Evaluate every config of a space."""
    found = np.zeros(4, np.int64)
    latency_us = _walk(space.params, space.menu, space.splits, RASTERS, *problem.sizes, found)
    row, split_k, is_stream, raster = found.tolist()
    decomposition = Decomposition.SPLIT_K if split_k > 1 else Decomposition.DATA_PARALLEL
    config = space.choices[row].config._replace(
        decomposition=Decomposition.STREAM_K if is_stream else decomposition,
        split_k=split_k,
        raster_order=RasterOrder(raster // RASTER_CODE),
        raster_swizzle=raster % RASTER_CODE,
    )
    return Best(config, latency_us)


@kernel
def _walk(params: Any, menu: Any, splits: Any, rasters: Any, G: int, M: int, K: int, N: int, found: Any) -> float:
    p = params[0]
    t = problem_terms(p, G, M, K, N)
    best = np.inf
    for index in range(len(menu)):
        for way in range(splits[index, 0], splits[index, 1] + splits[index, 2]):
            is_stream = way == splits[index, 1]
            split = 1 if is_stream else way
            for raster in rasters:
                latency_us = config_cost(p, menu[index], t, split, is_stream, raster).latency_us
                if latency_us < best:
                    best = latency_us
                    found[0], found[1], found[2], found[3] = index, split, is_stream, raster
    return best
