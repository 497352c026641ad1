"""Numba kernels of times that our W4A16 kernels cannot beat."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gemm_eval.jit import kernel
from gemm_eval.models.gpu.cost_kernels import BOUND_SLACK, ProblemTerms
from gemm_eval.models.gpu.w4a16.shared_kernels import BLOCK

__all__ = ["W4A16BoundColumns", "row_bounds_us", "split_bound_us"]

_LEAST_OF_GROUPS = 0.5 ** (1.0 / 3.0)  # the longer of two over their 3-norm: main loops of groups overlap more
_CBRT_1, _CBRT_2, _CBRT_3 = 1.0 / 3.0, -1.0 / 9.0, 0.0377  # of cbrt(1 + x), 0 <= x <= 1, right at both ends


class W4A16BoundColumns(NamedTuple):
    """What bounds read of each kernel, its family's coefficients in it; see `pack_w4a16_bound_columns`."""

    cta_m: Any
    cta_n: Any
    block_cycles: Any
    cut_cycles: Any
    fixed_us: Any
    cut_us: Any
    fixed_cycles: Any
    row_cycles: Any
    pass_us: Any
    pass_elems: Any
    dram_bytes_per_us: Any


_AT = W4A16BoundColumns(*range(len(W4A16BoundColumns._fields)))  # the place of each


@kernel
def row_bounds_us(p: Any, t: ProblemTerms, columns: Any, first: int, bounds: Any) -> None:
    """Write to `bounds` [num] times that kernels from `first` on cannot beat however K is cut.

    Work is spread over all SMs, nothing is read twice, and adding parts costs nothing. All waves are taken as one: the
    3-norm of sums is at most the sum of 3-norms. No branch is taken on a row, so that a CPU does several at a time.
    """
    stop = first + len(bounds)
    cta_m, cta_n, block_cycles = (
        columns[_AT.cta_m, first:stop], columns[_AT.cta_n, first:stop], columns[_AT.block_cycles, first:stop]
    )  # fmt: skip
    fixed_us, fixed_cycles = columns[_AT.fixed_us, first:stop], columns[_AT.fixed_cycles, first:stop]
    row_cycles, pass_us = columns[_AT.row_cycles, first:stop], columns[_AT.pass_us, first:stop]
    pass_elems, dram_rate = columns[_AT.pass_elems, first:stop], columns[_AT.dram_bytes_per_us, first:stop]
    M, N, blocks, num_sms, cycles_per_us = float(t.M), float(t.N), t.K / BLOCK, float(p["num_sms"]), p["cycles_per_us"]
    dram_bytes = t.a_read_bytes + t.b_read_bytes
    of_norm = 1.0 if t.G == 1 else _LEAST_OF_GROUPS
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
        bounds[i] = (before_us + of_norm * longer * root) * BOUND_SLACK


@kernel
def split_bound_us(p: Any, columns: Any, row: int, t: ProblemTerms, split: int) -> float:
    """As `row_bounds_us` of one kernel, with K cut into `split` parts, or `STREAM_K`: that adds what is fixed."""
    cta_m, cta_n = columns[_AT.cta_m, row], columns[_AT.cta_n, row]
    tiles = np.ceil(t.M / cta_m) * np.ceil(t.N / cta_n)
    rows = min(cta_m, float(t.M))
    passes = np.ceil(rows * cta_n / columns[_AT.pass_elems, row])
    before_us = columns[_AT.fixed_us, row] + columns[_AT.pass_us, row] * passes
    cycles = columns[_AT.fixed_cycles, row] + rows * columns[_AT.row_cycles, row]
    if split > 1:
        before_us += columns[_AT.cut_us, row]
        cycles += columns[_AT.cut_cycles, row]
    ctas = tiles * split if split > 0 else np.inf
    cycles += tiles * (t.K / BLOCK) * columns[_AT.block_cycles, row] / min(float(p["num_sms"]), ctas)
    chip_us, dram_us = (
        cycles / p["cycles_per_us"],
        (t.a_read_bytes + t.b_read_bytes) / columns[_AT.dram_bytes_per_us, row],
    )
    norm_us = np.cbrt(chip_us * chip_us * chip_us + dram_us * dram_us * dram_us)
    if t.G > 1:
        norm_us *= _LEAST_OF_GROUPS
    return float((before_us + norm_us) * BOUND_SLACK)
