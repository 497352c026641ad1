"""Exact search for the best mapping of fused attention on a multi-core chip."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import MulticoreSpec
from gemm_eval.errors import InfeasibleError
from gemm_eval.models.multicore import (
    ATTENTION_COST_DTYPE,
    attention_params,
    attention_sizes,
    evaluate_attention_mapping,
)
from gemm_eval.search.attention_kernels import ATTENTION_KEY_INTS, find_best_attention
from gemm_eval.workload import AttentionProblem

__all__ = ["find_best_fused_attention"]


def find_best_fused_attention(arch: MulticoreSpec, problem: AttentionProblem) -> npt.NDArray[np.void]:
    """Find the best mapping over every partition, tile and loop order; exhaustive: MODEL.md, "Fused attention".

    Returns an array [1] of ATTENTION_COST_DTYPE.

    Raises:
        UnsupportedError: the chip cannot compute it; see `attention_params`.
        InfeasibleError: not even the smallest tiles fit in SRAM.
    """
    params, sizes = attention_params(arch, problem), attention_sizes(problem)
    floats, ints = np.empty(2), np.empty(ATTENTION_KEY_INTS, np.int64)
    counters = np.array([0, 0, np.iinfo(np.int64).max])
    find_best_attention(params, sizes, problem.num_pairs * problem.group, floats, ints, counters)
    if np.isinf(floats[0]):
        raise _infeasible_error(arch, problem, demand=int(counters[2]), limit=int(params["sram_usable_bytes"][0]))
    _, _, _, P_KV, P_U, P_Q, is_folded, order, tile_q, tile_kv = ints.tolist()
    out = np.zeros(1, ATTENTION_COST_DTYPE)
    evaluate_attention_mapping(params, sizes, P_U, P_Q, P_KV, is_folded, tile_q, tile_kv, order, out)
    out["num_candidates"], out["num_partitions"] = counters[:2].tolist()
    return out


def _infeasible_error(arch: MulticoreSpec, problem: AttentionProblem, *, demand: int, limit: int) -> InfeasibleError:
    levers = [f"sram_bytes >= {-(-(demand + arch.sram_usable_bytes - limit) // arch.sram_usable_frac):,.0f}"]
    if arch.resident:
        levers.append("fewer resident operands")
    if arch.input_buffers == 2 and arch.timing == "overlap":
        levers.append("input_buffers: 1")
    if arch.output_buffers == 2:
        levers.append("output_buffers: 1")
    return InfeasibleError(
        f"no tiles of fused attention, {problem}, fit in the SRAM of a core of {arch.name}",
        resource="sram", demand=demand, limit=limit, unit="bytes", levers=(*levers, "fused=False"),
    )  # fmt: skip
