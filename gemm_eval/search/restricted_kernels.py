"""Numba kernels of the search of the mappings that a library has.

MODEL.md, "Rules of a library". A search under rules tries what they leave, with those bounds of the whole search that
hold for any part of it: few tiles are left.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gemm_eval.jit import entry_point, kernel
from gemm_eval.models.multicore.cost_kernels import Block, block_of, evaluate_into, sram_used_bytes
from gemm_eval.models.multicore.pipeline_kernels import bytes_of, ceil_div, pipeline_us_if_any, reload_factors
from gemm_eval.search import multicore_bound_kernels as bounds
from gemm_eval.search import multicore_kernels as searches
from gemm_eval.search.multicore_bound_kernels import BOUND_SLACK, Best, Bound

NO_LIMIT = 1 << 62


class Rules(NamedTuple):
    """Tiles and loop orders that a library has."""

    sizes_m: Any  # int64 [num], ascending; empty: any
    sizes_n: Any
    sizes_k: Any
    whole: Any  # bool [3]: m, n are not cut, k no more than SRAM and the buffers of A and B ask for
    once: Any  # bool [3]: A, B are not loaded again, C is not spilled
    max_bytes: Any  # int64 [2], of a tile of A and of B
    orders: Any  # bool [6]


@kernel
def _sizes_of(sizes: Any, is_whole: bool, block: int, unit: int, is_full: bool) -> Any:
    """Tile sizes to try in a dimension, ascending: as given, else the smallest of each trip count, or all."""
    if is_whole:
        return np.full(1, block, np.int64)
    num = 0
    if sizes.shape[0] > 0:
        found = np.empty(sizes.shape[0], np.int64)
        for size in sizes:
            cut = min(size, block)
            if (cut % unit == 0 or cut == block) and (num == 0 or cut > found[num - 1]):
                found[num] = cut
                num += 1
        return found[:num]
    units = ceil_div(block, unit)
    found = np.empty(units if is_full else 2 * int(np.sqrt(float(units))) + 2, np.int64)
    top = units
    while top > 0:  # descending
        low = top if is_full else ceil_div(units, ceil_div(units, top))
        found[num] = min(low * unit, block)
        num += 1
        top = low - 1
    return found[:num][::-1].copy()


@kernel
def _fits(p: Any, rules: Rules, tile_m: int, tile_n: int, tile_k: int) -> bool:
    """Say whether a tile fits in SRAM, and in the buffers that A and B have."""
    return bool(
        sram_used_bytes(p, tile_m, tile_n, tile_k) <= p["sram_usable_bytes"]
        and bytes_of(tile_m * tile_k, p["a_half_bits"]) <= rules.max_bytes[0]
        and bytes_of(tile_k * tile_n, p["b_half_bits"]) <= rules.max_bytes[1]
    )


@kernel
def _least_cut_k(p: Any, rules: Rules, tile_m: int, tile_n: int, k: int) -> int:
    """Return the tile_k of the fewest parts of k that fit beside these tiles; where none does, that of one step."""
    units = ceil_div(k, p["unit_k"])
    low, high = 1, units
    while low < high:  # the most units that fit; the whole k may be less than so many units
        middle = (low + high + 1) // 2
        if _fits(p, rules, tile_m, tile_n, min(middle * p["unit_k"], k)):
            low = middle
        else:
            high = middle - 1
    return min(ceil_div(units, ceil_div(units, low)) * p["unit_k"], k)


@kernel
def _search(p: Any, rules: Rules, blk: Block, q: Bound, rank: int, best: Best) -> None:
    """All candidates of one partition that can win."""
    is_pipeline = p["is_pipeline"] == 1
    tiles_m = _sizes_of(rules.sizes_m, rules.whole[0], blk.m, p["cube_m"], is_pipeline)
    tiles_n = _sizes_of(rules.sizes_n, rules.whole[1], blk.n, p["cube_n"], is_pipeline)
    tiles_k = _sizes_of(rules.sizes_k, rules.whole[2], blk.k, p["unit_k"], is_pipeline)
    if rules.whole[2] and tiles_m.shape[0] > 0 and tiles_n.shape[0] > 0:
        tiles_k[0] = _least_cut_k(p, rules, tiles_m[0], tiles_n[0], blk.k)
    for tile_m in tiles_m:
        T_m = ceil_div(blk.m, tile_m)
        for tile_n in tiles_n:
            T_n = ceil_div(blk.n, tile_n)
            least_T_k = bounds.least_trips_k(p, blk, tile_m, tile_n)
            edges = bounds.edges_of(p, blk, tile_m, tile_n, T_m, T_n)
            if least_T_k == np.inf:
                best.counters[searches.REFUSED_SRAM] += 1
                continue
            if not is_pipeline and bounds.pair_bound_us(
                p, q, T_m, T_n, least_T_k, float(blk.g * T_m * T_n), edges
            ) > bounds.worst_us_of(best):  # fmt: skip
                continue
            for tile_k in tiles_k:
                if not _fits(p, rules, tile_m, tile_n, tile_k):
                    best.counters[searches.REFUSED_SRAM] += 1
                    break  # neither does a longer one fit
                T_k = ceil_div(blk.k, tile_k)
                for order in range(6):
                    f_a, f_b, f_c = reload_factors(order, T_m, T_n, T_k)
                    if (
                        not rules.orders[order]
                        or (rules.once[0] and f_a > 1)
                        or (rules.once[1] and f_b > 1)
                        or (rules.once[2] and f_c > 1)
                        or (not is_pipeline and _is_named_before(rules, order, T_m, T_n, T_k))
                    ):
                        continue
                    best.counters[searches.CANDIDATES] += 1
                    us = pipeline_us_if_any(p, blk, blk.g, blk.m, blk.n, blk.k, tile_m, tile_n, tile_k, order)
                    searches.offer_mapping(p, blk, best, rank, order, tile_m, tile_n, tile_k, T_m, T_n, T_k, us)


@kernel
def _is_named_before(rules: Rules, order: int, T_m: int, T_n: int, T_k: int) -> bool:
    """Say whether an order of a smaller number that the rules have moves the same, so that this one is only a name."""
    factors = reload_factors(order, T_m, T_n, T_k)
    is_named = False
    for other in range(order):
        is_named |= rules.orders[other] and reload_factors(other, T_m, T_n, T_k) == factors
    return is_named


@kernel
def _is_block_before(blocks: Any, rank: int, blk: Block) -> bool:
    """Say whether a partition of a smaller rank has the same blocks; otherwise they are noted in `blocks`."""
    for other in range(rank):
        row = blocks[other]
        if row[0] == blk.g and row[1] == blk.m and row[2] == blk.n and row[3] == blk.k:
            return True
    # number by number: a row takes a second to compile
    blocks[rank, 0], blocks[rank, 1], blocks[rank, 2], blocks[rank, 3] = blk.g, blk.m, blk.n, blk.k
    return False


@kernel
def _find_top(p: Any, G: int, M: int, K: int, N: int, partitions: Any, rules: Rules, out: Any) -> int:
    counters = np.zeros(searches.NUM_COUNTERS, np.int64)
    counters[searches.PARTITIONS] = partitions.shape[0]
    best = bounds.new_best(out.shape[0], bounds.KEY_INTS, counters)
    blocks = np.zeros((partitions.shape[0] if out.shape[0] > 1 else 0, 4), np.int64)
    for rank in range(partitions.shape[0]):
        P_G, P_M, P_N, P_K = partitions[rank]
        blk = block_of(p, G, M, K, N, P_G, P_M, P_N, P_K)
        if blk.E_K > 1 and p["reduction"] == 0:
            continue
        if out.shape[0] > 1 and _is_block_before(blocks, rank, blk):
            continue
        bound_us, bound_bytes = searches.partition_bound(p, blk)
        if bound_us * (1.0 - BOUND_SLACK) <= bounds.worst_us_of(best) and bounds.may_enter(best, bound_us, bound_bytes):
            _search(p, rules, blk, bounds.bound_of(p, blk), rank, best)
        else:
            counters[searches.BOUNDED] += 1
    for row in range(best.num[0]):
        key = best.keys_i[row]
        P_G, P_M, P_N, P_K = partitions[key[3]]
        evaluate_into(p, G, M, K, N, P_G, P_M, P_N, P_K, key[5], key[6], key[7], key[4], out[row])
        searches.write_counts(counters, out[row])
    return best.num[0]


@entry_point
def find_top_ruled(
    params: Any, type_of: Any, sizes: Any, start: int, stop: int, partitions: Any, rules: Rules, out: Any
) -> int:
    """Find the best candidates of problems that the rules leave; else as `multicore_kernels.find_top_overlap`."""
    num = 0
    for i in range(start, stop):
        G, M, K, N = sizes[i]
        num = _find_top(params[type_of[i]], G, M, K, N, partitions, rules, out[i])
    return num
