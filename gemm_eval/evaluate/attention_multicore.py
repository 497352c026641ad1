"""Fused attention on a multi-core chip, with the best mapping; scores stay in SRAM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gemm_eval.arch import MulticoreSpec
from gemm_eval.errors import InfeasibleError, UnsupportedError
from gemm_eval.evaluate.attention import CORES, unfused_attention
from gemm_eval.evaluate.attention_result import AttentionResult
from gemm_eval.evaluate.result import GEMMResult
from gemm_eval.frozen import FrozenDict
from gemm_eval.models.multicore import BOUNDS, OTHER_SOFTMAX_OPS_PER_SCORE, TERMS, unpack_attention_cost
from gemm_eval.search import find_best_fused_attention
from gemm_eval.units import bytes_per_us, cycles_per_us, us_at_peak
from gemm_eval.workload import AttentionProblem, GemmProblem

_BOUNDS = tuple("matrix" if name == "compute" else name for name in BOUNDS)
_TERM_NAMES = {"dram_a_us": "dram_q_us", "dram_b_us": "dram_kv_us", "dram_c_us": "dram_o_us"}
_MEANINGS = {_TERM_NAMES.get(name, name): term.meaning for name, term in TERMS.items() if name != "pack_us"} | {
    "launch_us": "the fixed cost of a kernel and of its tasks, and what a queue makes it wait",
    "fill_drain_us": "the matrix unit's pipeline, filled and drained twice at every visit, and its keys and values",
    "vector_us": "the vector unit: softmax, rescaling of outputs, narrow keys and values",
    "dram_q_us": "queries from DRAM, at a core's share of the bandwidth",
    "dram_kv_us": "keys and values from DRAM",
    "dram_o_us": "outputs to DRAM, spills and refills of partial ones with them",
    "hidden_us": "what of these runs side by side",
    "reduction_dram_us": "partial outputs through DRAM",
    "reduction_noc_us": "partial outputs over the network",
    "reduction_add_us": "merging partial outputs",
}


def multicore_attention(
    arch: MulticoreSpec, problem: AttentionProblem, library: str, evaluate: Callable[[GemmProblem], GEMMResult]
) -> AttentionResult:
    """Return what attention takes fused; unfused where that cannot be, if `library` is not `CORES`.

    Args:
        arch: the chip.
        problem: sizes and types.
        library: from `attention_library`.
        evaluate: of a GEMM.

    Raises:
        UnsupportedError: the chip cannot compute it, as one without a vector unit.
        InfeasibleError: no tile fits in SRAM.
    """
    try:
        return _fused(arch, problem)
    except (UnsupportedError, InfeasibleError):
        if library == CORES:
            raise
        return unfused_attention(arch, problem, evaluate)


def _fused(arch: MulticoreSpec, problem: AttentionProblem) -> AttentionResult:
    """Return what fused attention takes with its best mapping; `packs` and `rules` of the spec are of GEMMs alone.

    Keys and values of a whole prompt are read as the projection leaves them: only the cache, which nothing reads yet,
    is narrow.
    """
    is_fresh = problem.q_len == problem.kv_len and not problem.is_latent
    as_read = replace(problem, kv_dtype=problem.dtype) if is_fresh else problem
    cost = unpack_attention_cost(find_best_fused_attention(arch, as_read)[0])
    terms = {_TERM_NAMES.get(name, name): us for name, us in cost.breakdown.items() if name != "pack_us"}
    return AttentionResult(
        problem, arch.name, cost.latency_us, FrozenDict(terms), FrozenDict(_MEANINGS), _BOUNDS[cost.bound],
        f"fused {cost.mapping}", is_fused=True, has_positions=False, roofs=FrozenDict(_roofs(arch, as_read)),
        source="analytic", origin="of the chip, fitted on its GEMMs" if arch.calibration else "none",
        mapping=cost.mapping, dram_bytes=cost.dram_bytes,
    )  # fmt: skip


def _roofs(arch: MulticoreSpec, problem: AttentionProblem) -> dict[str, float]:
    arch = arch.for_dtype(problem.dtype)
    scores = problem.batch * problem.num_heads * problem.num_pairs
    assert arch.vector_ops_per_cycle is not None
    per_us = arch.vector_ops_per_cycle * arch.num_cores * cycles_per_us(arch.frequency_ghz)
    of = {"A": problem.q_bytes, "B": problem.kv_bytes}
    read = sum(num_bytes for name, num_bytes in of.items() if name not in arch.resident)
    written = 0 if "C" in arch.resident else problem.output_bytes
    write_gb_per_s = arch.dram_write_gb_per_s or arch.dram_gb_per_s
    return {
        "matrix": us_at_peak(problem.flop, arch.peak_tflop_per_s(problem.dtype)),
        "vector": (arch.exp_ops_per_elem + OTHER_SOFTMAX_OPS_PER_SCORE) * scores / per_us,
        "dram": read / bytes_per_us(arch.dram_gb_per_s) + written / bytes_per_us(write_gb_per_s),
    }
