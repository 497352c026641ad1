"""Exact search for the best kernel config of a GEMM on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval._words import shown
from gemm_eval.arch import GpuSpec
from gemm_eval.errors import InfeasibleError, InvalidMappingError, UnsupportedError
from gemm_eval.mapping import Decomposition, KernelConfig
from gemm_eval.models.gpu.cost_kernels import BEST_RASTER, GPU_COST_DTYPE, RASTER_CODE
from gemm_eval.models.gpu.libraries import HYPOTHETICAL
from gemm_eval.models.gpu.menu import MENU_DTYPE, check_config, menu_row
from gemm_eval.models.gpu.model import gpu_params
from gemm_eval.models.gpu.params import menu_of, unaligned_params, w4a16_coefficients
from gemm_eval.models.gpu.w4a16.coefficients import W4A16_FAMILIES
from gemm_eval.models.gpu.w4a16.cost_kernels import MAX_CUTS, list_cuts
from gemm_eval.models.gpu.w4a16.menu import (
    W4A16_MENU_DTYPE,
    check_w4a16_sizes,
    config_of_row,
    find_row,
    takes_sizes,
)
from gemm_eval.search._threads import run_in_chunks
from gemm_eval.search.gpu_kernels import evaluate_one_config, find_best_of_range, find_top_of_problem, is_aligned
from gemm_eval.search.w4a16_kernels import evaluate_w4a16, find_best_w4a16, find_top_w4a16
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
        UnsupportedError: the library that was asked for has no kernels for these sizes.
    """
    out = np.zeros(1, GPU_COST_DTYPE)
    sizes = np.array([problem.sizes], np.int64)
    if runs_w4a16(params, problem):
        find_best_w4a16(*join_w4a16_menus(params), _FIRST, sizes, 0, 1, out)
        _repeat(out, sizes[:, 0])
    else:
        find_best_of_range(*join_menus(params), _FIRST, sizes, 0, 1, out)
    if out["active_sms"][0] == 0:
        raise _infeasible(arch, problem, params)
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
    out = np.zeros(len(sizes), GPU_COST_DTYPE)
    is_ours = params["w4a16"][type_of] >= 0
    if is_ours.any():
        is_ours &= takes_sizes(sizes[:, 2], sizes[:, 3])
    searches: tuple[tuple[npt.NDArray[np.bool_], Callable[..., None], Callable[..., tuple[Any, ...]]], ...] = (
        (~is_ours, find_best_of_range, join_menus),
        (is_ours, find_best_w4a16, join_w4a16_menus),
    )
    for rows, find, join in searches:
        if not rows.any():
            continue
        is_all = bool(rows.all())
        packed = join(params)
        types_of_rows, sizes_of_rows = (type_of, sizes) if is_all else (type_of[rows], sizes[rows])
        found = out if is_all else np.zeros(len(types_of_rows), GPU_COST_DTYPE)

        def work(start: int, stop: int) -> None:
            find(*packed, types_of_rows, sizes_of_rows, start, stop, found)  # noqa: B023  done before the next round

        run_in_chunks(work, len(types_of_rows), on_progress)
        if find is find_best_w4a16:
            _repeat(found, sizes_of_rows[:, 0])
        if not is_all:
            out[rows] = found
    return out


def find_top_configs(arch: GpuSpec, problem: GemmProblem, params: npt.NDArray[np.void], k: int) -> npt.NDArray[np.void]:
    """Find the `k` best configs, best first; fewer when there are not so many. Returns an array of GPU_COST_DTYPE.

    Configs that another one stands for are not listed: fewer stages at the same occupancy, another raster, more parts
    of K that are no shorter.

    Raises:
        InfeasibleError: the library has no kernel that this GPU can run on these types.
    """
    if runs_w4a16(params, problem):
        return _find_top_w4a16(arch, problem, params, k)
    asked, params = params, _record_for(params, problem)
    menu = menu_of(int(params["menu"][0]))
    num = find_top_of_problem(params, menu, *problem.sizes, np.empty(0), np.empty((0, 3), np.int64))
    if num == 0:
        raise _infeasible(arch, problem, asked)
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
        UnsupportedError: the library that was asked for has no kernels for these sizes.
    """
    if runs_w4a16(params, problem):
        return _evaluate_w4a16(params, problem, config)
    _check_sizes(problem, params)
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
        unaligned = unaligned_params(params)
        aligned = np.where(params["w4a16"] >= 0, unaligned, params)  # our W4A16 kernels are searched apart
        both = np.stack([aligned, unaligned], axis=1).reshape(-1)
        parts = [menu_of(number) for number in both["menu"].tolist()]
        ends = np.cumsum([len(part) for part in parts])
        ranges = np.stack([ends - [len(part) for part in parts], ends], axis=1).astype(np.int64)
        found = _joined[key] = both, np.concatenate(parts), ranges
        if len(_joined) > _MAX_JOINED:
            _joined.pop(next(iter(_joined)))
    return found


_joined: dict[bytes, tuple[npt.NDArray[np.void], npt.NDArray[np.void], npt.NDArray[np.int64]]] = {}
_MAX_JOINED = 256


def runs_w4a16(params: npt.NDArray[np.void], problem: GemmProblem) -> bool:
    """Whether our W4A16 kernels run a problem of these types."""
    return bool(params["w4a16"][0] >= 0) and bool(takes_sizes(problem.K, problem.N))


def join_w4a16_menus(
    params: npt.NDArray[np.void],
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void], npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return what `w4a16_kernels` wants: records, menus, where each lies, and coefficients; empty for other types."""
    key = b"w4a16" + params.tobytes()
    found = _joined_w4a16.get(key)
    if found is None:
        is_ours = params["w4a16"] >= 0
        parts = [
            menu_of(number) if ours else np.empty(0, W4A16_MENU_DTYPE)
            for number, ours in zip(params["menu"].tolist(), is_ours.tolist(), strict=True)
        ]
        ends = np.cumsum([len(part) for part in parts])
        ranges = np.stack([ends - [len(part) for part in parts], ends], axis=1).astype(np.int64)
        some = w4a16_coefficients(params[is_ours])
        coefficients = np.zeros((len(params), *some.shape[1:]))
        coefficients[is_ours] = some
        found = _joined_w4a16[key] = params, np.concatenate(parts), ranges, coefficients
        if len(_joined_w4a16) > _MAX_JOINED:
            _joined_w4a16.pop(next(iter(_joined_w4a16)))
    return found


_joined_w4a16: dict[
    bytes, tuple[npt.NDArray[np.void], npt.NDArray[np.void], npt.NDArray[np.int64], npt.NDArray[np.float64]]
] = {}


def _find_top_w4a16(arch: GpuSpec, problem: GemmProblem, params: npt.NDArray[np.void], k: int) -> npt.NDArray[np.void]:
    menu, coefficients = menu_of(int(params["menu"][0])), w4a16_coefficients(params)
    room = len(menu) * MAX_CUTS
    latency_us, which = np.empty(room), np.empty((room, 2), np.int64)
    num = find_top_w4a16(params, menu, coefficients, *problem.sizes[1:], latency_us, which)
    if num == 0:
        raise _infeasible(arch, problem, params)
    best = np.argsort(latency_us[:num], kind="stable")[:k]
    out = np.zeros(len(best), GPU_COST_DTYPE)
    for place, (row, parts) in enumerate(which[best].tolist()):
        evaluate_w4a16(params, menu, coefficients, row, parts, *problem.sizes[1:], out[place : place + 1])
    _repeat(out, problem.G)
    out["num_candidates"] = num
    return out


def _evaluate_w4a16(params: npt.NDArray[np.void], problem: GemmProblem, config: KernelConfig) -> npt.NDArray[np.void]:
    menu = menu_of(int(params["menu"][0]))
    if not config.family.startswith("w4a16_"):
        raise InvalidMappingError(
            f"library gemm-eval runs these types with {', '.join(W4A16_FAMILIES)}, got {shown(config.family)}",
            rule="family",
        )
    row = find_row(menu, config)
    parts = 0 if config.decomposition == Decomposition.STREAM_K else config.split_k
    cuts = np.empty(MAX_CUTS, np.int64)
    num = list_cuts(params, menu, row, problem.M, problem.K, problem.N, cuts)
    if parts not in cuts[:num] or config_of_row(menu[row], parts) != config:
        known = ", ".join("stream-K" if cut == 0 else str(cut) for cut in cuts[:num].tolist()) or "none"
        raise InvalidMappingError(
            f"K must be cut into one of these numbers of parts for M={problem.M}, K={problem.K}, N={problem.N} by "
            f"{config}: {known}", rule="split",
        )  # fmt: skip
    out = np.zeros(1, GPU_COST_DTYPE)
    evaluate_w4a16(params, menu, w4a16_coefficients(params), row, parts, *problem.sizes[1:], out)
    _repeat(out, problem.G)
    return out


_OF_ONE_LAUNCH = (
    "family", "cta_m", "cta_n", "cta_k", "cluster_m", "cluster_n", "num_warps", "num_stages", "schedule",
    "decomposition", "split_k", "raster_order", "raster_swizzle", "ctas_per_sm", "active_sms", "smem_bytes",
    "registers", "bound", "num_candidates", "num_bounded", "is_calibrated", "last_wave_frac", "tensor_busy_frac",
)  # fmt: skip


def _repeat(records: npt.NDArray[np.void], times: npt.NDArray[np.int64] | int) -> None:
    """Multiply what grows with the number of launches: W4A16 kernels have no batch, so G GEMMs are G launches."""
    if np.max(times, initial=1) == 1:
        return
    for name in GPU_COST_DTYPE.names or ():
        if name not in _OF_ONE_LAUNCH:
            records[name] *= times


def _record_for(params: npt.NDArray[np.void], problem: GemmProblem) -> npt.NDArray[np.void]:
    """The record of the generic kernels that run a problem."""
    is_first = params["w4a16"][0] < 0 and is_aligned(params, problem.K, problem.N)
    return params if is_first else unaligned_params(params)


def _check_sizes(problem: GemmProblem, params: npt.NDArray[np.void]) -> None:
    """Raise `UnsupportedError` for sizes of which the library that `params` are of has no kernels."""
    if _record_for(params, problem)["has_kernels"][0]:
        return
    if params["w4a16"][0] >= 0:
        check_w4a16_sizes(problem)
    else:
        raise UnsupportedError(
            f"the library has kernels for rows of A and B (K long) and C (N long) that start on 16 bytes, not for "
            f"{problem}: pad K or N; library {HYPOTHETICAL} says what a kernel that nobody has written would do"
        )


def _infeasible(arch: GpuSpec, problem: GemmProblem, params: npt.NDArray[np.void]) -> InfeasibleError:
    _check_sizes(problem, params)
    return InfeasibleError(
        f"no kernel for {problem} runs on {arch.name}", resource="smem", demand=1, limit=0, unit="kernels",
        levers=("smem_per_cta_bytes", "registers_per_sm"),
    )  # fmt: skip
