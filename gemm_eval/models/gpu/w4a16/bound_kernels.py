"""Numba kernels of times that our W4A16 kernels cannot beat."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemm_eval.jit import kernel
from gemm_eval.models.gpu.cost_kernels import BOUND_SLACK, ProblemTerms
from gemm_eval.models.gpu.w4a16.shared_kernels import BLOCK

__all__ = ["W4A16_BOUND_COLUMNS", "row_bounds_us", "split_bound_us"]

_CBRT_1, _CBRT_2, _CBRT_3 = 1.0 / 3.0, -1.0 / 9.0, 0.0377  # of cbrt(1 + x), 0 <= x <= 1, right at both ends
W4A16_BOUND_COLUMNS = (
    "cta_m", "cta_n", "block_cycles", "cut_cycles", "fixed_us", "cut_us", "fixed_cycles", "row_cycles", "pass_us",
    "pass_elems", "dram_bytes_per_us",
)  # fmt: skip
"""What bounds read of each kernel, its family's coefficients in it: `bound_columns.pack_w4a16_bound_columns`."""


@kernel
def row_bounds_us(p: Any, t: ProblemTerms, columns: Any, first: int, bounds: Any) -> None:
    """Write to `bounds` [num] times that kernels from `first` on cannot beat however K is cut.

    Work is spread over all SMs, nothing is read twice, and adding parts costs nothing. All waves are taken as one: the
    3-norm of sums is at most the sum of 3-norms. No branch is taken on a row, so that a CPU does several at a time.
    """
    stop = first + len(bounds)
    cta_m, cta_n, block_cycles = columns[0, first:stop], columns[1, first:stop], columns[2, first:stop]
    fixed_us, fixed_cycles, row_cycles = columns[4, first:stop], columns[6, first:stop], columns[7, first:stop]
    pass_us, pass_elems, dram_rate = columns[8, first:stop], columns[9, first:stop], columns[10, first:stop]
    M, N, blocks, num_sms, cycles_per_us = float(t.M), float(t.N), t.K / BLOCK, float(p["num_sms"]), p["cycles_per_us"]
    dram_bytes = t.a_read_bytes + t.b_read_bytes
    for i in range(len(bounds)):
        tiles = np.ceil(M / cta_m[i]) * np.ceil(N / cta_n[i])
        rows = cta_m[i] if cta_m[i] < M else M
        cycles = tiles * blocks * block_cycles[i] / num_sms + (fixed_cycles[i] + rows * row_cycles[i])
        before_us = fixed_us[i] + pass_us[i] * np.ceil(rows * cta_n[i] / pass_elems[i])
        chip_us, dram_us = cycles / cycles_per_us, dram_bytes / dram_rate[i]
        longer = chip_us if chip_us > dram_us else dram_us
        shorter = dram_us if chip_us > dram_us else chip_us
        ratio = shorter / longer
        # the 3-norm is longer * cbrt(1 + ratio^3): a polynomial within 0.2%, then Newton's method twice, from above
        cube = ratio * ratio * ratio
        root = 1.0 + cube * (_CBRT_1 + cube * (_CBRT_2 + cube * _CBRT_3))
        root -= (root * root * root - (1.0 + cube)) / (3.0 * root * root)
        root -= (root * root * root - (1.0 + cube)) / (3.0 * root * root)
        bounds[i] = (before_us + longer * root) * BOUND_SLACK


@kernel
def split_bound_us(p: Any, columns: Any, row: int, t: ProblemTerms, split: int) -> float:
    """As `row_bounds_us` of one kernel, with K cut into `split` parts, or `STREAM_K`: that adds what is fixed."""
    cta_m, cta_n = columns[0, row], columns[1, row]
    tiles = np.ceil(t.M / cta_m) * np.ceil(t.N / cta_n)
    rows = min(cta_m, float(t.M))
    before_us = columns[4, row] + columns[8, row] * np.ceil(rows * cta_n / columns[9, row])
    cycles = columns[6, row] + rows * columns[7, row]
    if split > 1:
        before_us += columns[5, row]
        cycles += columns[3, row]
    ctas = tiles * split if split > 0 else np.inf
    cycles += tiles * (t.K / BLOCK) * columns[2, row] / min(float(p["num_sms"]), ctas)
    chip_us, dram_us = cycles / p["cycles_per_us"], (t.a_read_bytes + t.b_read_bytes) / columns[10, row]
    norm_us = np.cbrt(chip_us * chip_us * chip_us + dram_us * dram_us * dram_us)
    return float((before_us + norm_us) * BOUND_SLACK)
