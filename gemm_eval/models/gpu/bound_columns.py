"""What the bound of each kernel reads, of libraries' and of our own, packed so that a CPU does several at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gemm_eval.jit import read_only
from gemm_eval.models.gpu.cost_kernels import COOPERATIVE, PINGPONG, SM_L2_BYTES_PER_CYCLE, VECTOR
from gemm_eval.models.gpu.generic_kernels import BoundColumns, split_cap
from gemm_eval.models.gpu.w4a16.cost_kernels import W4A16BoundColumns
from gemm_eval.models.gpu.w4a16.family_kernels import (
    GEMV_MMA_FAMILIES,
    GROUPED_FAMILIES,
    MULTISTAGE_FAMILIES,
    SM90_CLUSTER,
    STREAMING_FAMILIES,
    WGMMA_FAMILIES,
)
from gemm_eval.models.gpu.w4a16.loop_kernels import BATCH_BYTES, TWO_WARPGROUPS, norm8, overlapped
from gemm_eval.models.gpu.w4a16.shared_kernels import (
    BLOCK,
    MAX_STREAMING_TOKENS,
    PAIRS_OF_WARP,
    SCHEDULERS,
    SUM_BYTES,
    TOKEN_ROW_BYTES,
)


def pack_bound_columns(
    params: npt.NDArray[np.void], coefficients: npt.NDArray[np.void], candidates: npt.NDArray[np.void]
) -> npt.NDArray[np.float64]:
    """Return `BoundColumns` of kernels, [columns, rows].

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
    smem = (candidates["stage_bytes"] + candidates["operand_bytes"]) / p["smem_bytes_per_cycle"]
    values = BoundColumns(
        cta_m=candidates["cta_m"],
        cta_n=candidates["cta_n"],
        cta_k=candidates["cta_k"],
        cluster_m=candidates["cluster_m"],
        cluster_n=candidates["cluster_n"],
        grid_cap=candidates["grid_cap"],
        split_cap=split_cap(candidates["grid_cap"], clusters),
        min_rows=candidates["min_rows"],
        max_rows=candidates["max_rows"],
        is_vector=is_vector,
        is_pingpong=is_pingpong,
        busy_cycles=np.where(candidates["operand_bytes"] > 0.0, np.hypot(matrix, smem), np.maximum(matrix, smem)),
        work_cycles=matrix + loss,
        tile_cycles=np.where(is_coop, c["coop_tile_cycles"], c["tile_cycles"] + is_vector * c["vector_tile_cycles"]),
        fixed_us=p["launch_us"] + kernel_us + p["load_latency_cycles"] / p["cycles_per_us"],
        dram_bytes_per_us=c["dram_bytes_per_us"] * (1.0 - c["cluster_loss"] * clusters),
        outside_us_per_row_step=(schedule <= COOPERATIVE) / (c["outside_rows_per_cycle"] * p["cycles_per_us"]),
    )
    return read_only(np.array(values, np.float64))


def pack_w4a16_bound_columns(
    params: npt.NDArray[np.void], coefficients: npt.NDArray[np.void], candidates: npt.NDArray[np.void]
) -> npt.NDArray[np.float64]:
    """Return `W4A16BoundColumns` of our kernels, [columns, rows]; arguments as for `pack_bound_columns`."""
    p, family, c = params[0], candidates["family"], coefficients[candidates["coefficient_set"]]
    is_sm90, is_sm80 = np.isin(family, WGMMA_FAMILIES), np.isin(family, MULTISTAGE_FAMILIES)
    is_gemv_mma = np.isin(family, GEMV_MMA_FAMILIES)
    is_streaming = np.isin(family, STREAMING_FAMILIES)
    matrix = candidates["matrix_cycles"]
    slots = candidates["instructions"] / SCHEDULERS
    together = np.where(candidates["num_warps"] > TWO_WARPGROUPS, c["three_issue"], c["issue"])
    alone = slots * np.where(candidates["schedule"] == COOPERATIVE, together, c["pingpong_issue"])
    with np.errstate(divide="ignore", invalid="ignore"):  # families have coefficients of others as 0
        work = overlapped(alone, matrix, c["wgmma_frac"]) + c["stage_cycles"] * BLOCK / candidates["cta_k"]
    lone = norm8(work, candidates["producer"] * c["producer_cycles"])
    sharing = np.minimum(np.maximum(slots * c["shared_issue"], matrix), lone)
    issue = np.where(is_sm80, (candidates["instructions"] - candidates["mma"]) / SCHEDULERS, slots) * c["issue"]
    teams = np.where(is_streaming, candidates["cta_k"] // BLOCK, 1)
    serial = c["step_cycles"] + candidates["instructions"] * teams / candidates["num_warps"] * c["serial_cycles"]
    alone_of_step = serial / (teams * candidates["ctas_per_sm"])
    with np.errstate(divide="ignore", invalid="ignore"):  # families have coefficients of others as 0
        taken = candidates["weight_bytes"] / (SM_L2_BYTES_PER_CYCLE * c["sm_l2_frac"])
    others = np.hypot(np.hypot(issue + matrix, alone_of_step), np.where(is_gemv_mma, taken, 0.0))
    sums = teams * (candidates["cta_m"] * (candidates["cta_n"] * SUM_BYTES))
    start_cycles = np.where(is_gemv_mma, c["cta_cycles"], 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):  # families have coefficients of others as 0
        start_cycles += np.where(is_streaming, sums / c["sums_bytes_per_cycle"], 0.0)
        epilogue = np.where(is_sm90, candidates["cta_n"] * p["c_elem_bytes"] / c["epilogue_bytes_per_cycle"], 0.0)
        box_row = np.where(is_sm90, TOKEN_ROW_BYTES / (SM_L2_BYTES_PER_CYCLE * c["sm_l2_frac"]), 0.0)
    dram_frac = np.where(is_gemv_mma, c["dram_frac"], 1.0)
    cut = np.maximum(candidates["cluster_k"], 1)
    values = W4A16BoundColumns(
        cta_m=candidates["cta_m"],
        cta_n=candidates["cta_n"],
        block_cycles=np.where(is_sm90, np.where(candidates["ctas_per_sm"] > 1, sharing, lone), others),
        lone_cycles=np.where(is_sm90, lone, 0.0),
        fixed_us=p["launch_us"] + np.where(is_sm90, c["kernel_us"], 0.0) + start_cycles / p["cycles_per_us"],
        fixed_cycles=np.where(is_sm80, c["cta_cycles"], 0.0),
        row_cycles=epilogue / cut,  # a share of the tile each
        pass_us=np.where(is_streaming, teams * c["team_sum_cycles"] / p["cycles_per_us"], 0.0),
        pass_elems=PAIRS_OF_WARP * candidates["num_warps"],
        dram_bytes_per_us=np.minimum(p["dram_peak_bytes_per_us"] * dram_frac, p["dram_spec_bytes_per_us"]),
        store_us_per_byte=np.where(is_sm90, c["store_exposed_frac"], 0.0) / p["dram_peak_bytes_per_us"],
        box_rows=candidates["cta_m"] // candidates["cluster_n"],
        box_row_cycles=box_row,
        weight_cycles=np.where(is_sm90, taken / candidates["cluster_m"], 0.0),
        whole_cycles=np.where(candidates["cluster_k"] > 0, np.inf, 0.0),
        cut_cycles=_cut_cycles(p, c, candidates),
        most_parts=np.where(candidates["cluster_k"] > 0, cut, np.inf),
        max_rows=np.where(is_streaming, MAX_STREAMING_TOKENS, np.inf),
        max_tiles=np.where(family == SM90_CLUSTER, candidates["expected_cap"] // cut, np.inf),
        is_grouped=np.isin(family, GROUPED_FAMILIES),
    )
    return read_only(np.array(values, np.float64))


def _cut_cycles(p: np.void, c: npt.NDArray[np.void], candidates: npt.NDArray[np.void]) -> npt.NDArray[np.float64]:
    """Cycles that any cut of K adds to a kernel of ours; `c` [rows] are the coefficients of each.

    Stream-K of multistage kernels may give each CTA whole tiles, which adds nothing.
    """
    family = candidates["family"]
    is_sm90, is_streaming = np.isin(family, WGMMA_FAMILIES), np.isin(family, STREAMING_FAMILIES)
    tile_bytes = candidates["cta_m"] * (candidates["cta_n"] * SUM_BYTES)
    batches = np.maximum(1.0, tile_bytes / (candidates["num_warps"] * BATCH_BYTES))
    with np.errstate(divide="ignore", invalid="ignore"):  # families have coefficients of others as 0
        stored = np.where(is_sm90, tile_bytes / c["part_write_bytes_per_cycle"], 0.0)
        read = np.where(
            is_sm90 & (candidates["cluster_k"] == 0),
            tile_bytes / c["part_read_bytes_per_cycle"] + batches * c["part_cycles"], 0.0,
        )  # fmt: skip
    return np.where(is_sm90 | is_streaming, c["cut_us"] * p["cycles_per_us"] + stored + read, 0.0)


def no_bound_columns(num_rows: int) -> npt.NDArray[np.float64]:
    """Return the columns of kernels that are evaluated but never searched, so that nothing bounds them: [0, rows]."""
    return read_only(np.empty((0, num_rows)))
