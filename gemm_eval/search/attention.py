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
from gemm_eval.search.attention_kernels import ATTENTION_KEY_INTS, NUM_ATTENTION_COUNTERS, find_best_attention
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
    counters = np.zeros(NUM_ATTENTION_COUNTERS, np.int64)
    find_best_attention(params, sizes, floats, ints, counters)
    if np.isinf(floats[0]):
        raise InfeasibleError(
            f"{problem}: no tile of fused attention fits in the {int(params['sram_usable_bytes'][0]):,} usable bytes of "
            f"SRAM of a core of {arch.name}: sram_bytes, or fused=False"
        )
    _, _, _, P_KV, P_U, P_Q, is_folded, order, tile_q, tile_kv = ints.tolist()
    out = np.zeros(1, ATTENTION_COST_DTYPE)
    evaluate_attention_mapping(params, sizes, P_U, P_Q, P_KV, is_folded, tile_q, tile_kv, order, out)
    out["num_candidates"], out["num_partitions"] = counters.tolist()
    return out
