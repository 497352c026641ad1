"""Exact search for the best kernel config of a GEMM on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec
from gemm_eval.errors import InfeasibleError
from gemm_eval.mapping import Decomposition, KernelConfig
from gemm_eval.models.gpu.cost_kernels import BEST_RASTER, GPU_COST_DTYPE, RASTER_CODE
from gemm_eval.models.gpu.menu import MENU_DTYPE, check_config, menu_row
from gemm_eval.models.gpu.model import gpu_params
from gemm_eval.models.gpu.params import menu_of, unaligned_params
from gemm_eval.search._threads import run_in_chunks
from gemm_eval.search.gpu_kernels import evaluate_one_config, find_best_of_range, find_top_of_problem, is_aligned
from gemm_eval.workload import GemmProblem

__all__ = [
    "evaluate_config",
    "find_best_config",
    "find_best_config_many",
    "find_top_configs",
    "gpu_params",
    "join_menus",
]


def find_best_config(arch: GpuSpec, problem: GemmProblem, params: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """Find the best config of all that the library has; exhaustive, see MODEL.md, "Choice".

    Returns an array [1] of GPU_COST_DTYPE.

    Raises:
        InfeasibleError: the library has no kernel that this GPU can run on these types.
    """
    both, menus, ranges = join_menus(params)
    out = np.zeros(1, GPU_COST_DTYPE)
    sizes = np.array([problem.sizes], np.int64)
    find_best_of_range(both, menus, ranges, _FIRST, sizes, 0, 1, out)
    if out["active_sms"][0] == 0:
        raise _infeasible(arch, problem)
    return out


_FIRST = np.zeros(1, np.int64)


def find_best_config_many(
    arch: GpuSpec,  # noqa: ARG001  the same arguments as for a multi-core chip
    params: npt.NDArray[np.void],
    type_of: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    *,
    on_progress: Callable[[int], None] | None = None,
) -> npt.NDArray[np.void]:
    """Find the best config of many problems, on all cores of this machine; the result does not depend on how many.

    Args:
        arch: the GPU.
        params: [num_types] of GPU_PARAMS_DTYPE.
        type_of: [num_problems], index into `params`.
        sizes: [num_problems, 4] of G, M, K, N.
        on_progress: called now and then with the number of problems that are newly done.

    Returns:
        [num_problems] of GPU_COST_DTYPE, with active_sms 0 where no kernel exists.
    """
    both, menus, ranges = join_menus(params)
    out = np.zeros(len(sizes), GPU_COST_DTYPE)

    def work(start: int, stop: int) -> None:
        find_best_of_range(both, menus, ranges, type_of, sizes, start, stop, out)

    run_in_chunks(work, len(sizes), on_progress)
    return out


def find_top_configs(arch: GpuSpec, problem: GemmProblem, params: npt.NDArray[np.void], k: int) -> npt.NDArray[np.void]:
    """Find the `k` best configs, best first; fewer when there are not so many. Returns an array of GPU_COST_DTYPE.

    Configs that another one stands for are not listed: fewer stages at the same occupancy, another raster, more parts
    of K that are no shorter.

    Raises:
        InfeasibleError: the library has no kernel that this GPU can run on these types.
    """
    params = _record_for(params, problem)
    menu = menu_of(int(params["menu"][0]))
    num = find_top_of_problem(params, menu, *problem.sizes, np.empty(0), np.empty((0, 3), np.int64))
    if num == 0:
        raise _infeasible(arch, problem)
    latency_us, which = np.empty(num), np.empty((num, 3), np.int64)
    find_top_of_problem(params, menu, *problem.sizes, latency_us, which)
    best = np.argsort(latency_us, kind="stable")[:k]
    out = np.zeros(len(best), GPU_COST_DTYPE)
    for place, index in enumerate(best):
        row, split, is_stream = which[index].tolist()
        evaluate_one_config(
            params, menu, row, split, bool(is_stream), BEST_RASTER, *problem.sizes, out[place : place + 1]
        )
    out["num_candidates"] = num
    return out


def evaluate_config(
    arch: GpuSpec, problem: GemmProblem, params: npt.NDArray[np.void], config: KernelConfig
) -> npt.NDArray[np.void]:
    """Cost of a config that the user gives, array [1] of GPU_COST_DTYPE.

    Raises:
        InvalidMappingError: the GPU cannot run it; the message gives the hardware reason, `.rule` its name.
    """
    params = _record_for(params, problem)
    resources = check_config(arch, problem, config)
    menu = np.array([menu_row(arch, problem, config, resources)], MENU_DTYPE)
    out = np.zeros(1, GPU_COST_DTYPE)
    is_stream = config.decomposition == Decomposition.STREAM_K
    raster = int(config.raster_order) * RASTER_CODE + config.raster_swizzle
    evaluate_one_config(params, menu, 0, config.split_k, is_stream, raster, *problem.sizes, out)
    return out


def join_menus(
    params: npt.NDArray[np.void],
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void], npt.NDArray[np.int64]]:
    """Return what `gpu_kernels` wants: records for aligned and other rows in turn, their menus, and where each lies."""
    key = params.tobytes()
    found = _joined.get(key)
    if found is None:
        both = np.stack([params, unaligned_params(params)], axis=1).reshape(-1)
        parts = [menu_of(number) for number in both["menu"].tolist()]
        ends = np.cumsum([len(part) for part in parts])
        ranges = np.stack([ends - [len(part) for part in parts], ends], axis=1).astype(np.int64)
        found = _joined[key] = both, np.concatenate(parts), ranges
        if len(_joined) > _MAX_JOINED:
            _joined.pop(next(iter(_joined)))
    return found


_joined: dict[bytes, tuple[npt.NDArray[np.void], npt.NDArray[np.void], npt.NDArray[np.int64]]] = {}
_MAX_JOINED = 256


def _record_for(params: npt.NDArray[np.void], problem: GemmProblem) -> npt.NDArray[np.void]:
    return params if is_aligned(params, problem.K, problem.N) else unaligned_params(params)


def _infeasible(arch: GpuSpec, problem: GemmProblem) -> InfeasibleError:
    return InfeasibleError(
        f"no kernel for {problem} runs on {arch.name}", resource="smem", demand=1, limit=0, unit="kernels",
        levers=("smem_per_cta_bytes", "registers_per_sm"),
    )  # fmt: skip
