"""Fused attention on multi-core chips from Python's side: packs a problem, unpacks a cost."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import MulticoreSpec
from gemm_eval.errors import UnsupportedError
from gemm_eval.mapping import AttentionMapping, AttentionOrder, AttentionPartition, AttentionTile
from gemm_eval.models.multicore.attention_cost_kernels import ATTENTION_COST_DTYPE
from gemm_eval.models.multicore.attention_count_kernels import AttentionSizes
from gemm_eval.models.multicore.params import in_room, pack_params
from gemm_eval.models.multicore.terms import BREAKDOWN
from gemm_eval.workload import AttentionProblem, GemmProblem


class AttentionCost(NamedTuple):
    """Cost of one mapping. Bytes are totals of the chip, times those of the slowest core; MODEL.md defines each.

    `bound` is an index into `BOUNDS`; `num_candidates` and `num_partitions` say what the search has costed.
    """

    mapping: AttentionMapping
    active_cores: int
    visits: int
    sram_used_bytes: int
    dram_bytes: int
    q_bytes: int
    kv_bytes: int
    o_store_bytes: int
    o_spill_bytes: int
    o_refill_bytes: int
    reduction_bytes: int
    scores: int
    bound: int
    num_candidates: int
    num_partitions: int
    latency_us: float
    busiest_core_bytes: float
    breakdown: dict[str, float]


def attention_sizes(problem: AttentionProblem) -> AttentionSizes:
    """Return a problem as kernels see it: without keys that no query attends to."""
    keys = problem.num_keys
    return AttentionSizes(
        units=problem.batch * problem.num_kv_heads,
        rows=problem.q_len * problem.group,
        keys=keys,
        group=problem.group,
        ahead=keys - problem.q_len,
        window=keys if problem.window is None else problem.window,
        is_masked=int(problem.causal and problem.q_len > 1),
        head_dim=problem.head_dim,
        value_dim=problem.value_dim,
        kv_width=problem.head_dim + (0 if problem.is_latent else problem.value_dim),
    )


def attention_params(arch: MulticoreSpec, problem: AttentionProblem) -> npt.NDArray[np.void]:
    """Return parameters [1] of PARAMS_DTYPE: K and V are what weights are to a GEMM, and what is resident has its room.

    Raises:
        UnsupportedError: the chip cannot multiply the type of queries, has no vector unit for the softmax, or nothing
            that widens narrow keys and values.
    """
    of_type = arch.for_dtype(problem.dtype)
    if of_type.vector_ops_per_cycle is None:
        raise UnsupportedError(
            f"{arch.name} has no vector unit for the softmax of fused attention: set vector_ops_per_cycle, or take "
            "fused=False"
        )
    gemm = GemmProblem(
        1, 1, problem.head_dim, problem.num_keys, problem.dtype, problem.kv_type, problem.output_dtype
    )  # fmt: skip
    params = pack_params(arch, gemm.types)
    units, width = problem.batch * problem.num_kv_heads, problem.head_dim
    rows = units * problem.q_len * problem.group
    kv_width = width + (0 if problem.is_latent else problem.value_dim)
    elems = {"a": rows * width, "b": units * problem.kv_len * kv_width, "c": rows * problem.value_dim}
    return in_room(params, elems)


def unpack_attention_cost(record: np.void) -> AttentionCost:
    """Turn one record of `ATTENTION_COST_DTYPE` into Python values."""
    names = ATTENTION_COST_DTYPE.names or ()
    row = dict(zip(names, record.item(), strict=True))
    mapping = AttentionMapping(
        AttentionPartition(row["P_U"], row["P_Q"], row["P_KV"]),
        AttentionTile(row["tile_q"], row["tile_kv"]),
        AttentionOrder(row["loop_order"]),
        bool(row["is_folded"]),
    )
    plain = {name: row[name] for name in AttentionCost._fields if name in row}
    return AttentionCost(mapping=mapping, breakdown={name: row[name] for name in BREAKDOWN}, **plain)
