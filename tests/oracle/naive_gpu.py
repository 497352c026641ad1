"""The slow truth about the best kernel config: every legal one is evaluated.

Nothing of the search's own pruning is used: neither its bound nor its choice of stages, splits and rasters. The space
comes from `enumerate_kernels`, which checks one config at a time; which splits of K a library takes is worked out there
in Python. Spaces have 100,000 configs and more, so the compiled cost walks over them, which `property/test_gpu_cost.py`
compares with `naive_dense` for any config.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec
from gemm_eval.mapping import RasterOrder, Schedule
from gemm_eval.models.gpu import pack_gpu
from gemm_eval.models.gpu.candidates import CANDIDATE_DTYPE, RASTER_SWIZZLES, candidate_row
from gemm_eval.models.gpu.cost_kernels import RASTER_CODE, STREAM_K
from gemm_eval.models.gpu.families import FAMILIES
from gemm_eval.models.gpu.generic_kernels import config_cost, problem_terms
from gemm_eval.models.gpu.libraries import LIBRARIES, SplitRule
from gemm_eval.models.gpu.sizes import load_bytes_of
from gemm_eval.workload import GemmProblem, RunOptions
from tests.oracle import naive_dense
from tools.laws.kernel_space import KernelChoice, enumerate_kernels, library_for

EXACT = 1.0 - 1e-12
"""Two rasters of nearly the same traffic differ by less than rounding, so the best of them is one of two."""

RASTERS = np.array([order * RASTER_CODE + swizzle for order in RasterOrder for swizzle in RASTER_SWIZZLES], np.int64)


class Kernels(NamedTuple):
    """Every kernel of a library that a GPU can run on some types, for rows that start on 16 bytes or for others."""

    choices: list[KernelChoice]  # their splits are of the problem that the kernels were listed for
    menu: npt.NDArray[np.void]  # [choices] of CANDIDATE_DTYPE
    most_rows: npt.NDArray[np.float64]  # [choices], of C, for which the library uses the kernel
    rule: SplitRule


class Space(NamedTuple):
    """All that a brute-force search walks over."""

    params: npt.NDArray[np.void]  # [1]
    coefficients: npt.NDArray[np.void]  # [1, 1]
    choices: list[KernelChoice]
    menu: npt.NDArray[np.void]  # [choices] of CANDIDATE_DTYPE


def with_sizes(types: GemmProblem, sizes: Sequence[int]) -> GemmProblem:
    """Return a problem of these types."""
    return dataclasses.replace(types, **dict(zip("GMKN", sizes, strict=True)))


def kernels_of(arch: GpuSpec, problem: GemmProblem, library: str) -> Kernels:
    """Check and pack every kernel of the library."""
    choices = list(enumerate_kernels(arch, problem, library))
    rows = [candidate_row(arch, problem.types, choice.config, choice.resources) for choice in choices]
    rules = LIBRARIES[library]
    loads = load_bytes_of(problem, rules.padding(arch.sm_arch, problem.types))
    rule = rules.split_rule(arch, problem.types, load_bytes=loads)
    most_rows = [naive_dense.most_rows(choice.config) for choice in choices]
    return Kernels(choices, np.array(rows, CANDIDATE_DTYPE), np.array(most_rows, np.float64), rule)


def splits_of(kernels: Kernels, arch: GpuSpec, problem: GemmProblem) -> npt.NDArray[np.int64]:
    """First, stop and stream-K of each kernel, [choices, 3]: what `enumerate_kernels` works out one by one."""
    menu, rule, problem = kernels.menu, kernels.rule, naive_dense.padded(problem)
    tiles = problem.G * -(-problem.M // menu["cta_m"]) * -(-problem.N // menu["cta_n"])
    max_parts = 1 if rule.is_lone and problem.G > 1 else rule.max_parts
    by_length = np.minimum(-(-problem.K // menu["cta_k"]) // rule.min_steps, max_parts)
    room = menu["grid_cap"] - (menu["cluster_m"] * menu["cluster_n"] > 2)
    room = np.where(rule.is_short & (menu["schedule"] != Schedule.MULTISTAGE), 0, room)
    most = np.maximum(1, np.minimum(by_length, room // tiles))
    first, stop = np.ones_like(most), most + 1
    if rule.is_full:
        is_refused = (most == 1) & (np.minimum(by_length, arch.num_sms // tiles) > 1)
        first, stop = most, np.where(is_refused, most, most + 1)
    is_vector = menu["schedule"] == Schedule.VECTOR
    first[is_vector], stop[is_vector] = 1, 2
    stop = np.where((menu["min_rows"] > problem.M) | (kernels.most_rows < problem.M), first, stop)
    least = np.array([FAMILIES[choice.config.family].least_step_bytes for choice in kernels.choices], np.int64)
    is_ragged = (
        (least > 0) & (menu["cta_k"] * problem.types.a.dtype.bits // 8 > least) & (problem.K % menu["cta_k"] > 0)
    )
    stop = np.where(is_ragged, first, stop)
    is_stream = [choice.has_stream_k for choice in kernels.choices]
    return np.stack([first, stop, np.array(is_stream, np.int64).reshape(-1)], axis=1)


def ways_of(kernels: Kernels, arch: GpuSpec, problem: GemmProblem) -> list[tuple[list[int], bool]]:
    """Numbers of parts of K that each kernel takes, and whether it has stream-K."""
    steps = -(-problem.K // kernels.menu["cta_k"])
    ends = splits_of(kernels, arch, problem).tolist()
    return [
        ([split for split in range(first, stop) if not kernels.rule.is_even or num % split == 0], bool(is_stream))
        for num, (first, stop, is_stream) in zip(steps.tolist(), ends, strict=True)
    ]


def space_of(arch: GpuSpec, problem: GemmProblem, options: RunOptions) -> Space:
    """Check and pack every kernel of the library."""
    packed = pack_gpu(arch, problem.types, options)
    packed = (packed.fallback if packed.is_ours else packed).for_sizes(*problem.sizes)
    choices, menu, *_ = kernels_of(arch, problem, library_for(arch, problem, options.library))
    return Space(packed.params, packed.coefficients, choices, menu)


@numba.njit(nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def walk(
    params: Any, coefficients: Any, menu: Any, splits: Any, rasters: Any, G: int, M: int, K: int, N: int
) -> tuple[float, int]:
    """The least latency of all configs, and pairs of rasters of which the one with more traffic is faster."""
    p, c = params[0], coefficients[0, 0]
    t = problem_terms(p, c, K, N, np.array([M]), np.array([G]), False)
    best, num_odd = np.inf, 0
    bytes_of, us_of = np.empty(len(rasters)), np.empty(len(rasters))
    for index in range(len(menu)):
        for way in range(splits[index, 0], splits[index, 1] + splits[index, 2]):
            is_stream = way == splits[index, 1]
            split = 1 if is_stream else way
            if p["is_split_even"] and -(-K // menu[index]["cta_k"]) % split > 0:
                continue
            for place, raster in enumerate(rasters):
                cost = config_cost(p, menu[index], c, t, STREAM_K if is_stream else split, raster)
                bytes_of[place], us_of[place] = cost.dram_read_bytes, cost.latency_us
                best = min(best, cost.latency_us)
            if t.l2_hold_frac < 1.0:
                for a in range(len(rasters)):
                    for b in range(len(rasters)):
                        num_odd += bytes_of[a] > bytes_of[b] and us_of[a] < us_of[b] * EXACT
    return best, num_odd
