"""Numba kernels of bounds on fused attention on multi-core chips: what a partition, or a tile size, takes at least.

Each is the cost of one core that does no more than any mapping has it do. Costs grow with all that they are made of, in
floating point as well, so that no bound needs slack.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gemm_eval.jit import kernel
from gemm_eval.models.multicore.attention_block_kernels import (
    AttentionBlock,
    AttentionSizes,
    row_tiles_of,
    rows_of_core,
    span_of,
)
from gemm_eval.models.multicore.attention_cost_kernels import attention_core_cost
from gemm_eval.models.multicore.attention_count_kernels import KQ, AttentionCounts, count_core, key_steps_of
from gemm_eval.models.multicore.count_kernels import ceil_div

__all__ = [
    "Heavy",
    "heavy_of",
    "least_of_heavy_us",
    "least_of_keys_us",
    "least_of_rows_us",
    "partition_bound_us",
    "unit_kv_of",
]


@kernel
def unit_kv_of(p: Any) -> int:
    """Keys that a tile is a multiple of: the least that both products take in whole steps."""
    a, b = p["cube_n"], p["cube_k"]
    while b:
        a, b = b, a % b
    unit: int = p["cube_n"] // a * p["cube_k"]
    return unit


class Heavy(NamedTuple):
    """A core of a partition that has many scores, and what it does at least, whatever its tile."""

    core: int
    place: int  # of its span
    counts: AttentionCounts


@kernel
def _sample(i: int, num: int) -> int:
    """Place i of up to four among so many: the first, one in the middle, and the last two."""
    if i == 0:
        return 0
    return num // 2 if i == 3 else num - i


@kernel
def heavy_of(p: Any, s: AttentionSizes, blk: AttentionBlock) -> Heavy:
    """Find it with the smallest tiles there are: larger ones are made of these, and visit all that they do.

    With a mask that of the most scores among a few cores and spans; of all it would take long.
    """
    tile_q, tile_kv = min(p["cube_m"], blk.strip), min(unit_kv_of(p), blk.span)
    core = place = 0
    low, high = span_of(s, blk, 0)
    counts = count_core(p, s, blk, core, low, high, tile_q, tile_kv, 1)
    if s.is_masked:
        for i in range(min(blk.E_K, 4)):
            other_place = _sample(i, blk.E_K)
            low, high = span_of(s, blk, other_place)
            for j in range(min(blk.E_Q, 4)):
                other = _sample(j, blk.E_Q)
                found = count_core(p, s, blk, other, low, high, tile_q, tile_kv, 1)
                if found.scores > counts.scores:
                    core, place, counts = other, other_place, found
    least = AttentionCounts(
        counts.q_rows, counts.once_keys, 0, counts.once_keys, counts.scores, counts.steps,
        key_steps_of(p, s, counts.once_keys), min(counts.visits, 1), counts.q_rows,
    )  # fmt: skip
    return Heavy(core, place, least)


@kernel
def least_us(
    p: Any, s: AttentionSizes, blk: AttentionBlock, core: int, span: int, counts: AttentionCounts, row_tiles: int,
    tile_q: int, tile_kv: int,
) -> float:  # fmt: skip
    """Time that a core is not below which does at least this, in either order, with tiles of this size or larger."""
    us = attention_core_cost(p, s, blk, counts, blk.units, core, span, span, row_tiles, tile_q, tile_kv, 0).latency_us
    if p["is_multicast"] and blk.E_K > 1:  # where keys stay, a core loads its own rows, which may be fewer
        of_kq = attention_core_cost(p, s, blk, counts, blk.units, core, span, span, row_tiles, tile_q, tile_kv, KQ)
        us = min(us, of_kq.latency_us)
    return us


@kernel
def least_of_heavy_us(p: Any, s: AttentionSizes, blk: AttentionBlock, heavy: Heavy) -> float:
    """Time that no tile is below."""
    key_0, key_1 = span_of(s, blk, heavy.place)
    tile_q, tile_kv = min(p["cube_m"], blk.strip), min(unit_kv_of(p), key_1 - key_0)
    us: float = least_us(p, s, blk, heavy.core, key_1 - key_0, heavy.counts, 1, tile_q, tile_kv)
    return us


@kernel
def least_of_rows_us(p: Any, s: AttentionSizes, blk: AttentionBlock, heavy: Heavy, tile_q: int) -> float:
    """Time that no tile_kv is below beside a tile_q: any is made of the smallest, and visits all that this does."""
    key_0, key_1 = span_of(s, blk, heavy.place)
    span = key_1 - key_0
    counts = count_core(p, s, blk, heavy.core, key_0, key_1, tile_q, min(unit_kv_of(p), blk.span), 1)
    least = AttentionCounts(
        counts.q_rows, counts.once_keys, 0, counts.once_keys, counts.scores, counts.steps, counts.fills,
        ceil_div(counts.q_rows, tile_q), counts.q_rows,
    )  # fmt: skip
    row_tiles = row_tiles_of(s, blk, heavy.core, tile_q)
    us: float = least_us(p, s, blk, heavy.core, span, least, row_tiles, tile_q, min(unit_kv_of(p), span))
    return us


@kernel
def least_of_keys_us(p: Any, s: AttentionSizes, blk: AttentionBlock, heavy: Heavy, tile_kv: int) -> float:
    """Time that no tile_q is below beside a tile_kv, likewise."""
    key_0, key_1 = span_of(s, blk, heavy.place)
    span = key_1 - key_0
    tile_q = min(p["cube_m"], blk.strip)
    counts = count_core(p, s, blk, heavy.core, key_0, key_1, tile_q, tile_kv, 1)
    least = AttentionCounts(
        counts.q_rows, counts.once_keys, 0, counts.once_keys, counts.scores, counts.steps,
        key_steps_of(p, s, counts.once_keys), ceil_div(counts.once_keys, tile_kv), counts.visit_rows,
    )  # fmt: skip
    us: float = least_us(p, s, blk, heavy.core, span, least, 1, tile_q, min(tile_kv, span))
    return us


@kernel
def partition_bound_us(p: Any, s: AttentionSizes, blk: AttentionBlock, pairs: int) -> float:
    """Time that no mapping of a partition is below.

    Without a mask that of the first core. With one, some core has at least the mean of the pairs, and some core loads
    what the last row attends to, or its part of the keys.
    """
    least_q, least_kv = min(p["cube_m"], blk.strip), min(unit_kv_of(p), blk.span)
    if not s.is_masked:
        heavy = heavy_of(p, s, blk)
        return least_us(p, s, blk, 0, blk.span, heavy.counts, 1, least_q, least_kv)
    core = blk.E_Q - 1  # the one of the fewest rows
    if rows_of_core(s, blk, 0) < rows_of_core(s, blk, core):
        core = 0
    span = s.keys - (blk.E_K - 1) * blk.span
    least_kv = min(least_kv, span)
    scores = ceil_div(pairs, blk.E_Q * blk.E_K)
    steps = scores * ceil_div(s.head_dim, p["cube_k"]) // (p["cube_m"] * p["cube_n"])
    steps += scores * ceil_div(s.value_dim, p["cube_n"]) // (p["cube_m"] * p["cube_k"])
    computed = AttentionCounts(0, 0, 0, 0, scores, steps, 0, 0, 0)
    keys = blk.span if s.window == s.keys else ceil_div(blk.span, blk.E_Q)
    loaded = AttentionCounts(0, keys, 0, keys, 0, 0, 0, 0, 0)
    return max(
        least_us(p, s, blk, core, span, computed, 1, least_q, least_kv),
        least_us(p, s, blk, core, span, loaded, 1, least_q, least_kv),
    )
