"""nvMatmulHeuristics as a chooser among our W4A16 kernels: what it proposes for the dense GEMM of the same sizes.

It knows nothing of 4-bit weights, so its proposals are tiles for 16-bit ones. Each is taken to the most similar config
of ours that was timed: a factor of two in a size counts 1, another decomposition 2.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval.dtypes import DType
from gemm_eval.mapping import Decomposition
from gemm_eval.validation.kernel_choice import TOP, Choices, order_by, profile_us
from gemm_eval.validation.kernel_timings import KernelTimings
from gemm_eval.validation.nvidia_heuristics import _PRECISIONS, _library_of, is_available
from gemm_eval.validation.timings import Floats

__all__ = ["NUM_PROPOSALS", "nvidia_choices"]

NUM_PROPOSALS = 8
"""Kernels that it is asked for."""

_KIND_DISTANCE = 2.0
# Names of sizes in a proposal, and in our tables. What it calls a warp's tile is no number of warps, so that is left.
_SIZES = {
    "cta_tile_m": "cta_m", "cta_tile_n": "cta_n", "cta_tile_k": "cta_k", "cluster_m": "cluster_m",
    "cluster_n": "cluster_n", "stages": "num_stages", "split_k": "split_k",
}  # fmt: skip
_FIRST, _TOP = "nvMatmulHeuristics", f"nvMMH + profile {NUM_PROPOSALS}"


def nvidia_choices(timings: KernelTimings) -> tuple[list[Choices], float] | None:
    """Choose by the first proposal, and by timing all of them; also the median time of asking, in us.

    Returns:
        None where the package is not installed or does not know the GPU.
    """
    if not is_available(timings.arch.name):
        return None
    order = order_by(timings, np.zeros(len(timings)))  # the registry's
    starts = np.flatnonzero(np.diff(timings.gemm[order], prepend=-1))
    logs = np.log2(timings.frame[list(_SIZES.values())].to_numpy(np.float64))[order]
    is_cut = timings.frame["decomposition"].str.upper().to_numpy(str)[order]
    costs_us = profile_us(timings)[order]
    num = len(starts)
    chosen_us, place, profiled_us = np.empty((2, num)), np.full((2, num), np.nan), np.zeros((2, num))
    in_top = np.zeros((num, len(TOP)))
    asked_us = np.empty(num)
    for at, rows in enumerate(np.split(np.arange(len(order)), starts[1:])):
        row = int(order[rows[0]])
        begin = time.perf_counter()
        proposals = _propose(timings, row)
        asked_us[at] = 1e6 * (time.perf_counter() - begin)
        near = [_nearest(proposal, logs[rows], is_cut[rows]) for proposal in proposals]
        kept = rows[list(dict.fromkeys(near))]
        measured_us = timings.measured_us[order[kept]]
        best = np.flatnonzero(measured_us == timings.best_us[row])
        chosen_us[:, at] = measured_us[0], measured_us.min()
        profiled_us[1, at] = costs_us[kept].sum()
        if best.size:
            place[:, at] = best[0] + 1.0
            in_top[at] = best[0] < np.array(TOP)
    in_top[:, np.array(TOP) > NUM_PROPOSALS] = np.nan
    how = "nearest of ours to its tiles for 16-bit weights"
    found = [
        Choices(name, chosen_us[i], place[i], in_top, profiled_us[i], how) for i, name in enumerate((_FIRST, _TOP))
    ]
    return found, float(np.median(asked_us))


def _propose(timings: KernelTimings, row: int) -> list[Any]:
    library = _library_of(timings.arch.name)
    _, M, K, N = (int(size) for size in timings.sizes[row])
    dtype = DType(timings.frame["input_dtype"].iloc[row])
    problem = library._interface.makeNvMatmulHeuristicsProblem(M, N, K, library._layout, 1)
    found = library._interface.get(problem, NUM_PROPOSALS, _PRECISIONS[dtype, dtype])
    return [kernel["kernel"] for kernel in sorted(found, key=lambda kernel: float(kernel["runtime"]))]


def _nearest(proposal: Any, logs: Floats, decompositions: npt.NDArray[np.str_]) -> int:
    """Place of the config most like a proposal; logs [configs, sizes] to base 2; the first of equal ones."""
    wanted = np.log2([float(getattr(proposal, name)) for name in _SIZES])
    way = Decomposition.SPLIT_K if proposal.split_k > 1 else Decomposition.DATA_PARALLEL
    distance = np.abs(logs - wanted).sum(axis=1) + _KIND_DISTANCE * (decompositions != way.name)
    return int(distance.argmin())
