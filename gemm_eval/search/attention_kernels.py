"""Numba kernels of the exact search for a mapping of fused attention on a multi-core chip, and of its bounds.

The cost of any one core is a bound on a mapping, and what a core does at least, whatever its tile, on a partition.
Costs grow with all that they are made of, in floating point as well, so that no bound needs slack.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gemm_eval.jit import entry_point, kernel
from gemm_eval.models.multicore import attention_kernels as model
from gemm_eval.models.multicore.attention_kernels import KQ, AttentionBlock, AttentionCounts, AttentionSizes
from gemm_eval.models.multicore.pipeline_kernels import ceil_div
from gemm_eval.search.multicore_bound_kernels import Best, argsort, may_enter, new_best, offer, worst_us_of

ATTENTION_KEY_INTS = 10  # active_cores, visits, sram_used_bytes, P_KV, P_U, P_Q, is_folded, loop order, tile_q, tile_kv


@kernel
def unit_kv_of(p: Any) -> int:
    """Keys that a tile is a multiple of: the least that both products take in whole steps."""
    a, b = p["cube_n"], p["cube_k"]
    while b:
        a, b = b, a % b
    return p["cube_n"] // a * p["cube_k"]


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
    low, high = model.span_of(s, blk, 0)
    counts = model.count_core(p, s, blk, core, low, high, tile_q, tile_kv, 1)
    if s.is_masked:
        for i in range(min(blk.E_K, 4)):
            other_place = _sample(i, blk.E_K)
            low, high = model.span_of(s, blk, other_place)
            for j in range(min(blk.E_Q, 4)):
                other = _sample(j, blk.E_Q)
                found = model.count_core(p, s, blk, other, low, high, tile_q, tile_kv, 1)
                if found.scores > counts.scores:
                    core, place, counts = other, other_place, found
    least = AttentionCounts(
        counts.q_rows, counts.once_keys, 0, counts.once_keys, counts.scores, counts.steps,
        model.key_steps_of(p, s, counts.once_keys), min(counts.visits, 1), counts.q_rows,
    )  # fmt: skip
    return Heavy(core, place, least)


@kernel
def least_us(
    p: Any, s: AttentionSizes, blk: AttentionBlock, core: int, span: int, counts: AttentionCounts, row_tiles: int,
    tile_q: int, tile_kv: int,
) -> float:  # fmt: skip
    """Time that a core is not below which does at least this, in either order, with tiles of this size or larger."""
    us = model.attention_core_cost(
        p, s, blk, counts, blk.units, core, span, span, row_tiles, tile_q, tile_kv, 0
    ).latency_us
    if p["is_multicast"] and blk.E_K > 1:  # where keys stay, a core loads its own rows, which may be fewer
        of_kq = model.attention_core_cost(
            p, s, blk, counts, blk.units, core, span, span, row_tiles, tile_q, tile_kv, KQ
        )
        us = min(us, of_kq.latency_us)
    return us


@kernel
def least_of_heavy_us(p: Any, s: AttentionSizes, blk: AttentionBlock, heavy: Heavy) -> float:
    """Time that no tile is below."""
    key_0, key_1 = model.span_of(s, blk, heavy.place)
    tile_q, tile_kv = min(p["cube_m"], blk.strip), min(unit_kv_of(p), key_1 - key_0)
    return least_us(p, s, blk, heavy.core, key_1 - key_0, heavy.counts, 1, tile_q, tile_kv)


@kernel
def least_of_rows_us(p: Any, s: AttentionSizes, blk: AttentionBlock, heavy: Heavy, tile_q: int) -> float:
    """Time that no tile_kv is below beside a tile_q: any is made of the smallest, and visits all that this does."""
    key_0, key_1 = model.span_of(s, blk, heavy.place)
    span = key_1 - key_0
    counts = model.count_core(p, s, blk, heavy.core, key_0, key_1, tile_q, min(unit_kv_of(p), blk.span), 1)
    least = AttentionCounts(
        counts.q_rows, counts.once_keys, 0, counts.once_keys, counts.scores, counts.steps, counts.fills,
        ceil_div(counts.q_rows, tile_q), counts.q_rows,
    )  # fmt: skip
    row_tiles = model.row_tiles_of(s, blk, heavy.core, tile_q)
    return least_us(p, s, blk, heavy.core, span, least, row_tiles, tile_q, min(unit_kv_of(p), span))


@kernel
def least_of_keys_us(p: Any, s: AttentionSizes, blk: AttentionBlock, heavy: Heavy, tile_kv: int) -> float:
    """Time that no tile_q is below beside a tile_kv, likewise."""
    key_0, key_1 = model.span_of(s, blk, heavy.place)
    span = key_1 - key_0
    tile_q = min(p["cube_m"], blk.strip)
    counts = model.count_core(p, s, blk, heavy.core, key_0, key_1, tile_q, tile_kv, 1)
    least = AttentionCounts(
        counts.q_rows, counts.once_keys, 0, counts.once_keys, counts.scores, counts.steps,
        model.key_steps_of(p, s, counts.once_keys), ceil_div(counts.once_keys, tile_kv), counts.visit_rows,
    )  # fmt: skip
    return least_us(p, s, blk, heavy.core, span, least, 1, tile_q, min(tile_kv, span))


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
    if model.rows_of_core(s, blk, 0) < model.rows_of_core(s, blk, core):
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


@kernel
def _cost_all(
    p: Any, s: AttentionSizes, blk: AttentionBlock, tile_q: int, tile_kv: int, order: int, best: Best, probe: Any
) -> tuple[float, float, int]:
    """Latency, busiest core's bytes and visits of a candidate; inf as soon as a core takes longer than the best.

    That core is the next `probe`, int64 [2]: a core, and its span.
    """
    latency_us = busiest_bytes = 0.0
    visits = 0
    spans = blk.E_K if s.is_masked else 1  # without a mask the first core has the most of everything
    cores = blk.E_Q if s.is_masked else 1
    for place in range(spans - 1, -1, -1):
        key_0, key_1 = model.span_of(s, blk, place)
        stream_keys = model.stream_keys_of(p, s, blk, key_0, key_1, tile_q, tile_kv, order)
        for core in range(cores - 1, -1, -1):
            counts = model.count_core(p, s, blk, core, key_0, key_1, tile_q, tile_kv, 0)
            if order == KQ:
                counts = model.keys_stay(counts, model.count_kept_rows(s, blk, core, key_0, key_1, tile_q, tile_kv))
            cost = model.attention_core_cost(
                p, s, blk, counts, blk.units, core, key_1 - key_0, stream_keys,
                model.row_tiles_of(s, blk, core, tile_q), tile_q, tile_kv, order,
            )  # fmt: skip
            latency_us = max(latency_us, cost.latency_us)
            busiest_bytes = max(busiest_bytes, cost.busiest_bytes)
            visits = max(visits, cost.visits)
            if latency_us > worst_us_of(best):
                probe[0] = core
                probe[1] = place
                return np.inf, busiest_bytes, visits
    return latency_us, busiest_bytes, visits


@kernel
def _counts_of(
    p: Any, s: AttentionSizes, blk: AttentionBlock, core: int, place: int, tile_q: int, tile_kv: int
) -> AttentionCounts:
    """Return counts of a core of a span, where rows stay."""
    key_0, key_1 = model.span_of(s, blk, place)
    return model.count_core(p, s, blk, core, key_0, key_1, tile_q, tile_kv, 0)


@kernel
def _may_win_by(
    p: Any, s: AttentionSizes, blk: AttentionBlock, core: int, place: int, counts: AttentionCounts,
    tile_q: int, tile_kv: int, order: int, best: Best,
) -> bool:  # fmt: skip
    """Say whether a candidate could be the best, by what one of its cores with these counts takes at least."""
    key_0, key_1 = model.span_of(s, blk, place)
    if order == KQ:  # at most the last row tile of each key tile stays for the next
        counts = model.keys_stay(counts, (ceil_div(key_1 - key_0, tile_kv) - 1) * tile_q)
    stream_keys = max(counts.kv_keys, key_1 - key_0)
    cost = model.attention_core_cost(
        p, s, blk, counts, blk.units, core, key_1 - key_0, stream_keys, model.row_tiles_of(s, blk, core, tile_q),
        tile_q, tile_kv, order,
    )  # fmt: skip
    return may_enter(best, cost.latency_us, cost.busiest_bytes)


@kernel
def _list_sizes(unit: int, block: int, is_each: int) -> Any:
    """Tile sizes of a dimension: each multiple of the unit, or the smallest for each trip count, which stands for all.

    Without a mask tiles count through their trips only, and what cannot overlap grows with them.
    """
    units = ceil_div(block, unit)
    sizes = np.empty(units, np.int64)
    num = 0
    top = units
    while top > 0:
        low = top if is_each else ceil_div(units, ceil_div(units, top))
        top = low - 1
        sizes[num] = min(low * unit, block)
        num += 1
    return sizes[:num]


@kernel
def _search_tiles(p: Any, s: AttentionSizes, blk: AttentionBlock, heavy: Heavy, best: Best) -> None:
    """All tiles and loop orders of one partition, whose integers are in `best.key`; sizes by ascending bounds."""
    probe = np.array((heavy.core, heavy.place))  # what took longer than the best in another candidate
    sizes_q = _list_sizes(p["cube_m"], blk.strip, s.is_masked)
    sizes_kv = _list_sizes(unit_kv_of(p), blk.span, s.is_masked)
    best.counters[2] = min(best.counters[2], model.attention_sram_bytes(p, s, sizes_q[-1], sizes_kv[-1]))
    bounds_q = np.empty(len(sizes_q))
    for i in range(len(sizes_q)):
        bounds_q[i] = least_of_rows_us(p, s, blk, heavy, sizes_q[i])
    bounds_kv = np.empty(len(sizes_kv))
    for i in range(len(sizes_kv)):
        bounds_kv[i] = least_of_keys_us(p, s, blk, heavy, sizes_kv[i])
    by_bound = argsort(bounds_kv)
    for i in argsort(bounds_q):
        if bounds_q[i] > worst_us_of(best):
            break
        tile_q = sizes_q[i]
        for j in by_bound:
            if bounds_kv[j] > worst_us_of(best):
                break
            tile_kv = sizes_kv[j]
            sram = model.attention_sram_bytes(p, s, tile_q, tile_kv)
            if sram > p["sram_usable_bytes"]:
                continue
            of_heavy = _counts_of(p, s, blk, heavy.core, heavy.place, tile_q, tile_kv)
            # with one row tile or one key tile both orders move the same, or KQ more
            num_orders = 1 if (tile_q == blk.strip and not blk.is_folded) or tile_kv == blk.span else 2
            for order in range(num_orders):
                best.counters[0] += 1
                if not _may_win_by(p, s, blk, heavy.core, heavy.place, of_heavy, tile_q, tile_kv, order, best):
                    continue
                if probe[0] != heavy.core or probe[1] != heavy.place:
                    counts = _counts_of(p, s, blk, probe[0], probe[1], tile_q, tile_kv)
                    if not _may_win_by(p, s, blk, probe[0], probe[1], counts, tile_q, tile_kv, order, best):
                        continue
                latency_us, busiest_bytes, visits = _cost_all(p, s, blk, tile_q, tile_kv, order, best, probe)
                best.key[1] = visits
                best.key[2] = sram
                best.key[7] = order
                best.key[8] = tile_q
                best.key[9] = tile_kv
                offer(best, latency_us, busiest_bytes)


@kernel
def _list_partitions(p: Any, s: AttentionSizes, out: Any) -> int:
    """Fill rows of `out` with P_U, P_Q, P_KV, is_folded of each partition but those with the blocks of a smaller one.

    Return how many there are, also where `out` has no rows.
    """
    num = 0
    num_cores = p["num_cores"]
    for P_U in range(1, min(num_cores, s.units) + 1):
        if ceil_div(s.units, ceil_div(s.units, P_U)) < P_U:
            continue
        for P_Q in range(1, min(num_cores // P_U, s.rows) + 1):
            most_kv = min(num_cores // (P_U * P_Q), s.keys) if p["reduction"] else 1
            for is_folded in range(2 if s.is_masked and P_Q > 1 else 1):
                if model.attention_block_of(p, s, P_U, P_Q, 1, is_folded).E_Q < P_Q:
                    continue
                for P_KV in range(1, most_kv + 1):
                    if ceil_div(s.keys, ceil_div(s.keys, P_KV)) < P_KV:
                        continue
                    if num < out.shape[0]:
                        out[num, 0] = P_U
                        out[num, 1] = P_Q
                        out[num, 2] = P_KV
                        out[num, 3] = is_folded
                    num += 1
    return num


@entry_point
def find_best_attention(params: Any, s: AttentionSizes, pairs: int, ints: Any, counters: Any) -> bool:
    """Find the best mapping, write the integers of its key to `ints`, and say whether there is one.

    Partitions are searched by their bounds, ascending, until one is above the best. `pairs` are those of a row and a
    key that it attends to, of one unit; `counters` candidates costed, partitions, and the least SRAM of any tiles.
    """
    p = params[0]
    best = new_best(1, ATTENTION_KEY_INTS, counters)
    partitions = np.empty((_list_partitions(p, s, np.empty((0, 4), np.int64)), 4), np.int64)
    _list_partitions(p, s, partitions)
    bounds_us = np.empty(len(partitions))
    for i in range(len(partitions)):
        P_U, P_Q, P_KV, is_folded = partitions[i]
        bounds_us[i] = partition_bound_us(p, s, model.attention_block_of(p, s, P_U, P_Q, P_KV, is_folded), pairs)
    for i in argsort(bounds_us):
        if bounds_us[i] > worst_us_of(best):
            break
        P_U, P_Q, P_KV, is_folded = partitions[i]
        blk = model.attention_block_of(p, s, P_U, P_Q, P_KV, is_folded)
        heavy = heavy_of(p, s, blk)
        if least_of_heavy_us(p, s, blk, heavy) > worst_us_of(best):
            continue
        best.counters[1] += 1
        best.key[0] = blk.active_cores
        best.key[3] = P_KV
        best.key[4] = P_U
        best.key[5] = P_Q
        best.key[6] = is_folded
        _search_tiles(p, s, blk, heavy, best)
    if best.num[0]:
        for column in range(len(ints)):
            ints[column] = best.keys_i[0, column]
    return bool(best.num[0])
