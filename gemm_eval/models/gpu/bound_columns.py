"""What of each generic kernel its bound reads, packed so that a CPU does several at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gemm_eval._jit import read_only
from gemm_eval.models.gpu.cost_kernels import COOPERATIVE, PINGPONG, VECTOR
from gemm_eval.models.gpu.generic_kernels import BOUND_COLUMNS

__all__ = ["no_bound_columns", "pack_bound_columns"]


def pack_bound_columns(
    params: npt.NDArray[np.void], coefficients: npt.NDArray[np.void], candidates: npt.NDArray[np.void]
) -> npt.NDArray[np.float64]:
    """Return `BOUND_COLUMNS` of kernels, [columns, rows].

    Args:
        params: array [1] of `GPU_PARAMS_DTYPE`.
        coefficients: of their family, [1] of `COEFFICIENTS_DTYPE`.
        candidates: [rows] of `CANDIDATE_DTYPE`.
    """
    p, c, schedule = params[0], coefficients[0], candidates["schedule"]
    is_vector, is_pingpong, is_coop = schedule == VECTOR, schedule == PINGPONG, schedule == COOPERATIVE
    matrix = candidates["matrix_cycles"] / np.where(is_vector, c["vector_frac"], c["matrix_frac"])
    loss = np.where(is_vector, c["vector_step_cycles"], np.where(is_coop, c["coop_step_cycles"], c["step_cycles"]))
    kernel_us = np.where(is_vector, c["vector_kernel_us"], c["kernel_us"])
    clusters = candidates["cluster_log2"]
    values = {
        "cta_m": candidates["cta_m"],
        "cta_n": candidates["cta_n"],
        "cta_k": candidates["cta_k"],
        "cluster_m": candidates["cluster_m"],
        "cluster_n": candidates["cluster_n"],
        "grid_cap": candidates["grid_cap"],
        "split_cap": candidates["grid_cap"] - (clusters > 1.0),
        "is_vector": is_vector,
        "is_pingpong": is_pingpong,
        "busy_cycles": np.maximum(matrix, candidates["stage_bytes"] / p["smem_bytes_per_cycle"]),
        "work_cycles": matrix + loss,
        "tile_cycles": np.where(is_coop, c["coop_tile_cycles"], c["tile_cycles"]),
        "fixed_us": p["launch_us"] + kernel_us + p["load_latency_cycles"] / p["cycles_per_us"],
        "dram_bytes_per_us": c["dram_bytes_per_us"] * (1.0 - c["cluster_loss"] * clusters),
        "outside_us_per_row_step": (schedule <= COOPERATIVE) / (c["outside_rows_per_cycle"] * p["cycles_per_us"]),
    }
    return read_only(np.array([values[name] for name in BOUND_COLUMNS], np.float64))


def no_bound_columns(num_rows: int) -> npt.NDArray[np.float64]:
    """Return what kernels have that bound themselves otherwise, [0, rows]."""
    return read_only(np.empty((0, num_rows)))
