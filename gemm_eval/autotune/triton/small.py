"""GEMMs so small that a config is dispatched at once: nothing is compiled to choose, nothing benchmarked."""

from __future__ import annotations

from gemm_eval.arch import GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.units import bytes_per_us
from gemm_eval.workload import GemmProblem

__all__ = ["SMALL_SHARE", "SMALL_TILE", "is_small", "work_us"]

SMALL_SHARE = 0.3
"""A GEMM is small if its work takes at most this share of the fixed cost of a launch (`GpuSpec.graph_node_us`).

Among the examples' configs that arch/measured/h200-sxm/triton has timings of, the dispatched one is at most 5% slower
than the best below this share (three GEMMs), and at most 7% up to a share of 1 (36 GEMMs):
tests/autotune/test_asm_aware_benchmark.py holds both.
"""

SMALL_TILE = 32
"""Rows and columns of the tile whose way along K counts as work: a small one, of which a small GEMM has many."""

_FLOP_PER_US_PER_TFLOP_PER_S = 1e6
_BITS_PER_BYTE = 8


def is_small(problem: GemmProblem, arch: GpuSpec) -> bool:
    """Say whether a launch costs more than all that a config can change about a GEMM.

    What is then at stake between sane configs is less than a launch, while a benchmark of two takes as long as
    thousands of calls: the model's choice stands.
    """
    return work_us(problem, arch) <= SMALL_SHARE * arch.graph_node_us


def work_us(problem: GemmProblem, arch: GpuSpec) -> float:
    """Return the least time of a GEMM beyond its launch: its roofline, plus the way of one CTA along K.

    The roofline is the longer of all FLOP at the peak and of every operand once from or to DRAM. The second term is
    what no number of SMs shortens unless K is split: one SM takes the operands of a tile of 32 x 32 over all of K, as
    wide as they are multiplied, at its share of the L2 bandwidth. Infinite for types that the tensor cores do not take.
    """
    try:
        peak = arch.peak_tflop_per_s(problem.input_dtype)
    except KeyError:
        return float("inf")
    G, M, K, N = problem.sizes
    a = _elem_bytes(problem.input_dtype)
    b = _elem_bytes(problem.weight_dtype)
    c = _elem_bytes(problem.output_dtype)
    compute_us = problem.flop / (peak * _FLOP_PER_US_PER_TFLOP_PER_S)
    dram_us = G * (M * K * a + K * N * b + M * N * c) / bytes_per_us(arch.dram_achievable_gb_per_s)
    row_bytes = (min(M, SMALL_TILE) + min(N, SMALL_TILE)) * a
    chain_us = K * row_bytes / bytes_per_us(arch.l2_gb_per_s / arch.num_sms)
    return max(compute_us, dram_us) + chain_us


def _elem_bytes(dtype: DType | None) -> float:
    assert dtype is not None  # a GemmProblem has filled it in
    return dtype.bits / _BITS_PER_BYTE
