"""Numba kernels of the cost of our W4A16 kernels: the time of one config, and why.

The terms are defined in MODEL.md beside this. A kernel sees scalars, one record `p` of `GPU_PARAMS_DTYPE`, one record
`row` of `CANDIDATE_DTYPE`, and `c`, of `COEFFICIENTS_DTYPE`, that of the row's family. Times are in microseconds, sizes
in bytes, `_cycles` at the highest SM clock.
"""

from __future__ import annotations

from typing import Any

from gemm_eval.jit import kernel
from gemm_eval.models.gpu.cost_kernels import BEST_RASTER, WARM, ConfigCost, CostRules, ProblemTerms, ceil_div
from gemm_eval.models.gpu.terms import Times
from gemm_eval.models.gpu.w4a16.bound_kernels import is_beaten, row_bounds_us
from gemm_eval.models.gpu.w4a16.family_kernels import MULTISTAGE_FAMILIES, WGMMA_FAMILIES
from gemm_eval.models.gpu.w4a16.shared_kernels import BLOCK, HOLD_FRAC, Launch, launch_of
from gemm_eval.models.gpu.w4a16.sm80_kernels import sm80_cost
from gemm_eval.models.gpu.w4a16.sm90_kernels import sm90_cost
from gemm_eval.models.gpu.w4a16.split_kernels import list_splits
from gemm_eval.models.gpu.w4a16.streaming_kernels import streaming_cost

__all__ = ["W4A16", "w4a16_cost", "w4a16_terms"]

_LINE_ELEMS = 64  # fp16 or bf16, of a line of 128 bytes


@kernel
def w4a16_terms(
    p: Any, c: Any, K: int, N: int, group_rows: Any, group_counts: Any, is_grouped: bool  # noqa: ARG001
) -> ProblemTerms:  # fmt: skip
    """Bytes of all groups as packed, weights of those that have rows; and what of it L2 keeps.

    `line_waste` is 1 where rows of A do not start on lines of 128 bytes. Cold, A and C come from DRAM with the weights.
    """
    num_groups = rows = num_active = 0
    for i in range(len(group_rows)):
        num_groups += group_counts[i]
        rows += group_counts[i] * group_rows[i]
        if group_rows[i] > 0:
            num_active += group_counts[i]
    padded_k, padded_n = ceil_div(K, 128) * 128, ceil_div(N, BLOCK) * BLOCK
    a_bytes = rows * (K * p["a_elem_bytes"])
    b_bytes = num_active * padded_n * (padded_k * p["b_elem_bytes"])
    groups = padded_k / p["group_size"] if p["group_size"] > 0 else 1.0
    scale_bytes = num_active * padded_n * (groups * p["scale_bytes_per_group"])
    c_bytes = rows * (N * p["c_elem_bytes"])
    stay_frac = 0.0
    if p["l2_state"] == WARM:
        footprint = (a_bytes + b_bytes + scale_bytes + c_bytes) / (p["l2_bytes"] * HOLD_FRAC)
        f2 = footprint * footprint
        stay_frac = 1.0 / (1.0 + f2 * f2)
    is_off_lines = 1.0 if K % _LINE_ELEMS != 0 else 0.0
    return ProblemTerms(
        num_groups, group_rows[0], K, N, a_bytes, b_bytes, scale_bytes, c_bytes, stay_frac, a_bytes * (1.0 - stay_frac),
        (b_bytes + scale_bytes) * (1.0 - stay_frac), 1.0, is_off_lines, 1.0, 0.0, 0.0,
        rows, group_rows, group_counts, is_grouped,
    )  # fmt: skip


@kernel
def _launched(cost: ConfigCost, num: int) -> ConfigCost:
    """A kernel that is launched so many times."""
    us = cost.times
    times = Times(
        us[0] * num, us[1] * num, us[2] * num, us[3] * num, us[4] * num, us[5] * num, us[6] * num, us[7] * num,
        us[8] * num, us[9] * num, us[10] * num, us[11] * num, us[12] * num,
    )  # fmt: skip
    return ConfigCost(
        cost.latency_us * num, times, cost.main_us * num, cost.tensor_busy_frac, cost.dram_read_bytes * num,
        cost.num_ctas * num, cost.num_tiles * num, cost.num_waves * num, cost.last_wave_ctas, cost.active_sms,
        cost.raster,
    )  # fmt: skip


@kernel
def w4a16_cost(p: Any, row: Any, c: Any, t: ProblemTerms, split: int, raster: int) -> ConfigCost:  # noqa: ARG001
    """The time of one kernel of ours, which has its raster, with K cut into `split` parts: see MODEL.md.

    A batch by a kernel of one GEMM is as many launches.
    """
    launch = launch_of(row, t)
    cost = _cost_of_launch(p, row, c, launch, split)
    return _launched(cost, launch.num) if launch.num > 1 else cost


@kernel
def _cost_of_launch(p: Any, row: Any, c: Any, t: Launch, split: int) -> ConfigCost:
    if row["family"] in WGMMA_FAMILIES:
        return sm90_cost(p, row, c, t, split)
    if row["family"] in MULTISTAGE_FAMILIES:
        return sm80_cost(p, row, c, t, split)
    return streaming_cost(p, row, c, t, split)


@kernel
def _latency_below_us(p: Any, row: Any, c: Any, t: ProblemTerms, split: int, best_us: float) -> float:  # noqa: ARG001
    return w4a16_cost(p, row, c, t, split, BEST_RASTER).latency_us


@kernel
def _bounds_of(p: Any, c: Any, t: ProblemTerms, columns: Any, first: int, bounds: Any) -> None:  # noqa: ARG001
    row_bounds_us(p, t, columns, first, bounds)


W4A16 = CostRules(w4a16_terms, list_splits, _bounds_of, is_beaten, _latency_below_us, w4a16_cost)
"""What a search needs of our kernels."""
