"""Numba kernels of the exact search on multi-core chips.

Exactness rests on three facts, each held by a test against brute force:

1. With overlap timing what a mapping moves and computes depends on its tile through the trip counts only, and what of
   that cannot overlap grows with the tile. So of all tile sizes with the same trip count the smallest stands for all:
   it needs the least SRAM too. Fewer trips of k move less, more of them overlap more: the trips of k that fit beside a
   (tile_m, tile_n) are tried upwards, until what they move and compute takes too long even if all of it overlaps.
2. A cost in which every operand moves once and nothing waits is below every cost of its partition, and so is the least
   traffic that its operands can have in the SRAM there is. A partition whose bound is above the best so far cannot win.
3. With pipeline timing sizes matter, not only trip counts. There a bound per class of trip counts decides whether
   the tiles of the class are tried one by one.

Candidates are compared by the whole key of MODEL.md, "Choice", so ties fall the same way everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gemm_eval.jit import inlined_kernel, kernel, named_entry_point
from gemm_eval.models.multicore import cost_kernels as costs
from gemm_eval.models.multicore.cost_kernels import Block, CoreCost
from gemm_eval.models.multicore.pipeline_kernels import ceil_div, overlap_main_us, pipeline_main_us, reload_factors
from gemm_eval.search import multicore_bound_kernels as bounds
from gemm_eval.search.multicore_bound_kernels import BOUND_SLACK, Best, Bound

# What a search counts, as places in an array.
NUM_COUNTERS = 5
CANDIDATES, REFUSED_SRAM, PARTITIONS, BOUNDED, DROPPED = range(NUM_COUNTERS)


@kernel
def most_units_k(p: Any, k: int, tile_m: int, tile_n: int, units_k: int) -> int:
    """Largest tile_k, in units, that fits in SRAM beside tile_m and tile_n; 0 if none does."""
    unit = p["unit_k"]
    limit = p["sram_usable_bytes"]
    if costs.sram_used_bytes(p, tile_m, tile_n, k) <= limit:
        return units_k
    if units_k == 1:
        return 0
    # SRAM bytes per unit of k without padding of A's rows and B's number of rows: an upper bound to start from
    row_b = costs.padded_tile_bytes(p, 1, tile_n * p["b_half_bits"]) // p["lane_num"]
    half_bits = p["a_buffers"] * ceil_div(tile_m, p["lane_num"]) * p["lane_num"] * p["a_half_bits"]
    half_bits += p["b_buffers"] * 16 * row_b
    if p["has_dequant_copy"]:
        half_bits += 16 * (costs.padded_tile_bytes(p, 1, tile_n * p["a_half_bits"]) // p["lane_num"])
    output = p["c_buffers"] * costs.padded_tile_bytes(p, tile_m, tile_n * p["acc_half_bits"])
    if output >= limit:
        return 0
    units = min(16 * (limit - output) // (half_bits * unit) + 1, units_k - 1)
    while units > 0 and costs.sram_used_bytes(p, tile_m, tile_n, units * unit) > limit:
        units -= 1
    return units


@inlined_kernel
def _cost_of(
    p: Any, blk: Block, order: int, tile_m: int, tile_n: int, tile_k: int, T_m: int, T_n: int, T_k: int,
    pipeline_us: float,
) -> CoreCost:  # fmt: skip
    f_a, f_b, f_c = reload_factors(order, T_m, T_n, T_k)
    return costs.core_cost(
        p, blk, blk.g, blk.m, blk.n, blk.k, tile_m, tile_n, tile_k, T_m, T_n, T_k, f_a, f_b, f_c, pipeline_us
    )  # fmt: skip


@kernel
def offer_mapping(
    p: Any, blk: Block, best: Best, rank: int, order: int, tile_m: int, tile_n: int, tile_k: int,
    T_m: int, T_n: int, T_k: int, pipeline_us: float,
) -> None:  # fmt: skip
    """Cost one candidate that fits in SRAM, and offer it."""
    cost = _cost_of(p, blk, order, tile_m, tile_n, tile_k, T_m, T_n, T_k, pipeline_us)
    offer_cost(
        p, best, cost.latency_us, cost.busiest_bytes, blk.active_cores, cost.visits, rank, order, tile_m, tile_n, tile_k
    )  # fmt: skip


@kernel
def offer_cost(
    p: Any, best: Best, latency_us: float, busiest_bytes: float, active_cores: int, visits: int, rank: int, order: int,
    tile_m: int, tile_n: int, tile_k: int,
) -> None:  # fmt: skip
    """Offer a candidate that fits in SRAM."""
    if bounds.may_enter(best, latency_us, busiest_bytes):
        key = best.key
        key[0] = active_cores
        key[1] = visits
        key[2] = costs.sram_used_bytes(p, tile_m, tile_n, tile_k)
        key[3] = rank
        key[4] = order
        key[5] = tile_m
        key[6] = tile_n
        key[7] = tile_k
        bounds.offer(best, latency_us, busiest_bytes)


@kernel
def write_counts(counters: Any, out: Any) -> None:
    """Write the counts of a search to a record that it found."""
    out["num_candidates"] = counters[CANDIDATES]
    out["num_refused_sram"] = counters[REFUSED_SRAM]
    out["num_partitions"] = counters[PARTITIONS]
    out["num_partitions_bounded"] = counters[BOUNDED]
    out["num_partitions_dropped"] = counters[DROPPED]


@kernel
def most_units(p: Any, other: int, unit: int, units: int, block: int) -> int:
    """Largest tile along m or n, in units, whose C tile may fit in SRAM beside `other` elements along the other one."""
    if p["c_buffers"] == 0:
        return units
    elems = 16 * p["sram_usable_bytes"] // (p["c_buffers"] * p["acc_half_bits"] * other)
    return units if elems >= block else elems // unit


@kernel
def _search_overlap(p: Any, blk: Block, q: Bound, floor_us: float, rank: int, best: Best, is_full: bool) -> None:  # noqa: ARG001
    """All candidates of one partition that can win under overlap timing; none of them is below `floor_us`."""
    sizes = bounds.bytes_bound_of(blk, q)
    _, trips_mk, trips_nk = bounds.least_trips(p, blk)
    cube_m = p["cube_m"]
    cube_n = p["cube_n"]
    units_m = ceil_div(blk.m, cube_m)
    units_n = ceil_div(blk.n, cube_n)
    units_k = ceil_div(blk.k, p["unit_k"])
    top_m = most_units(p, min(cube_n, blk.n), cube_m, units_m, blk.m)
    best.counters[REFUSED_SRAM] += top_m < units_m
    while top_m > 0:  # one step per distinct trip count T_m, ascending
        T_m = ceil_div(units_m, top_m)
        low_m = ceil_div(units_m, T_m)
        top_m = low_m - 1
        tile_m = min(low_m * cube_m, blk.m)
        top_n = most_units(p, tile_m, cube_n, units_n, blk.n)
        best.counters[REFUSED_SRAM] += top_n < units_n
        floor_T_k = bounds.least_trips_k(p, blk, tile_m, min(cube_n, blk.n))  # beside the narrowest tile
        while top_n > 0:
            T_n = ceil_div(units_n, top_n)
            low_n = ceil_div(units_n, T_n)
            top_n = low_n - 1
            tile_n = min(low_n * cube_n, blk.n)
            least_T_k = bounds.least_trips_k(p, blk, tile_m, tile_n)
            if least_T_k == np.inf:
                best.counters[REFUSED_SRAM] += 1
                continue
            visits = float(blk.g * T_m * T_n)
            edges = bounds.edges_of(p, blk, tile_m, tile_n, T_m, T_n)
            worst = bounds.worst_us_of(best)
            # two branches, since one `Bound` that is either would be copied each time
            if worst <= floor_us:  # then fewer bytes are all that can win
                worst = bounds.worst_bytes_of(best)
                if bounds.pair_bound_us(p, sizes, T_m, T_n, least_T_k, visits, edges) > worst:
                    if (
                        T_n > 1
                        and bounds.wider_bound_us(p, blk, sizes, T_m, T_n, tile_m, floor_T_k, trips_mk, trips_nk)
                        > worst
                    ):
                        break
                    continue
            elif bounds.pair_bound_us(p, q, T_m, T_n, least_T_k, visits, edges) > worst:
                if (
                    T_n > 1
                    and bounds.wider_bound_us(p, blk, q, T_m, T_n, tile_m, floor_T_k, trips_mk, trips_nk) > worst
                ):
                    break
                continue
            fit_k = most_units_k(p, blk.k, tile_m, tile_n, units_k)
            if fit_k == 0:
                best.counters[REFUSED_SRAM] += 1
                continue
            # KMN and KNM move exactly what one of the first four orders moves, and come later in ties.
            for order in range(4):
                if order == 0 or (T_n > 1 if order == 1 else T_m > 1 and (order == 3 or T_n > 1)):
                    _search_trips_k(p, blk, q, edges, rank, best, order, tile_m, tile_n, T_m, T_n, fit_k, units_k)


@kernel
def _search_trips_k(
    p: Any, blk: Block, q: Bound, edges: bounds.Edges, rank: int, best: Best, order: int, tile_m: int, tile_n: int,
    T_m: int, T_n: int, fit_k: int, units_k: int,
) -> None:  # fmt: skip
    """Offer the best tile_k, of at most `fit_k` units, for one order and trips of m and n under overlap timing."""
    unit_k = p["unit_k"]
    smallest_k = min(unit_k, blk.k)
    best_us = bounds.worst_us_of(best)
    best_T_k = 0
    top_k = fit_k
    while top_k > 0:
        T_k = ceil_div(units_k, top_k)
        low_k = ceil_div(units_k, T_k)
        top_k = low_k - 1
        if order == 2 and T_k > 1:
            break  # then it is MNK
        if T_k == 1 and order % 2 == 1:
            continue  # then it is MNK or NMK
        tile_k = min(low_k * unit_k, blk.k)
        f_a, f_b, f_c = reload_factors(order, T_m, T_n, T_k)
        visits = blk.g * T_m * T_n * T_k
        if bounds.quick_bound_us(p, q, f_a, f_b, f_c, T_k, visits, edges) > best_us:
            break
        best.counters[CANDIDATES] += 1
        cost = _cost_of(p, blk, order, tile_m, tile_n, tile_k, T_m, T_n, T_k, 0.0)
        if cost.latency_us < best_us or (cost.latency_us == best_us and best_T_k == 0):
            best_us = cost.latency_us
            best_T_k = T_k
        # what these trips and more of them take at least: the same with the smallest tile to load first
        dma_us = max(cost.dram_us, cost.shared_us, cost.noc_us, cost.feed_us)
        main_us = overlap_main_us(p, blk, cost.loads, cost.c, cost.compute_us, dma_us, tile_m, tile_n, smallest_k)
        floor_us = p["launch_us"] + main_us + (cost.red_dram_us + cost.red_noc_us + cost.red_add_us)
        floor_us += cost.sync_us + cost.pack_us
        if floor_us > best_us or (floor_us == best_us and best_T_k > 0):
            break
    if best_T_k > 0:
        tile_k = min(ceil_div(units_k, best_T_k) * unit_k, blk.k)
        offer_mapping(p, blk, best, rank, order, tile_m, tile_n, tile_k, T_m, T_n, best_T_k, 0.0)


@kernel
def _try_pipeline(
    p: Any, blk: Block, best: Best, rank: int, order: int, tile_m: int, tile_n: int, tile_k: int,
    T_m: int, T_n: int, T_k: int,
) -> None:  # fmt: skip
    best.counters[CANDIDATES] += 1
    main_us = pipeline_main_us(p, blk, blk.g, blk.m, blk.n, blk.k, tile_m, tile_n, tile_k, order)
    offer_mapping(p, blk, best, rank, order, tile_m, tile_n, tile_k, T_m, T_n, T_k, main_us)


@kernel
def _search_pipeline(p: Any, blk: Block, q: Bound, floor_us: float, rank: int, best: Best, is_full: bool) -> None:  # noqa: ARG001
    """All candidates of one partition under pipeline timing; unless `is_full`, only the smallest tile of each class."""
    unit_m = p["cube_m"]
    unit_n = p["cube_n"]
    unit_k = p["unit_k"]
    limit = p["sram_usable_bytes"]
    _, trips_mk, trips_nk = bounds.least_trips(p, blk)
    a_size = p["a_half_bits"] / 16.0
    b_size = p["b_half_bits"] / 16.0
    units_m = ceil_div(blk.m, unit_m)
    units_n = ceil_div(blk.n, unit_n)
    units_k = ceil_div(blk.k, unit_k)
    top_m = most_units(p, min(unit_n, blk.n), unit_m, units_m, blk.m)
    best.counters[REFUSED_SRAM] += top_m < units_m
    while top_m > 0:
        T_m = ceil_div(units_m, top_m)
        low_m = ceil_div(units_m, T_m)
        top_n = most_units(p, min(low_m * unit_m, blk.m), unit_n, units_n, blk.n)
        best.counters[REFUSED_SRAM] += top_n < units_n
        while top_n > 0:
            T_n = ceil_div(units_n, top_n)
            low_n = ceil_div(units_n, T_n)
            tile_m = min(low_m * unit_m, blk.m)
            tile_n = min(low_n * unit_n, blk.n)
            least_T_k = bounds.least_trips_k(p, blk, tile_m, tile_n)
            top_k = units_k
            visits = float(blk.g * T_m * T_n)
            edges = bounds.edges_of(p, blk, tile_m, tile_n, T_m, T_n)
            # its last tile may be what remains of one
            edges = bounds.Edges(edges.lead_a, edges.lead_b, 0.0, edges.most_visits, edges.refills)
            worst_us = bounds.worst_us_of(best)
            if least_T_k == np.inf:
                best.counters[REFUSED_SRAM] += 1
                top_k = 0
            elif bounds.pair_bound_us(p, q, T_m, T_n, least_T_k, visits, edges) > worst_us:
                if T_n > 1 and bounds.wider_bound_us(p, blk, q, T_m, T_n, tile_m, 1.0, trips_mk, trips_nk) > worst_us:
                    break
                top_k = 0
            while top_k > 0:
                T_k = ceil_div(units_k, top_k)
                low_k = ceil_div(units_k, T_k)
                if T_k < least_T_k * (1.0 - BOUND_SLACK):
                    best.counters[REFUSED_SRAM] += 1
                    top_k = low_k - 1
                    continue
                tile_k = min(low_k * unit_k, blk.k)
                first_a = tile_m * tile_k * a_size
                first_b = tile_k * tile_n * b_size
                for order in range(6):
                    f_a, f_b, f_c = reload_factors(order, T_m, T_n, T_k)
                    bound_us = bounds.pipeline_bound_us(p, q, f_a, f_b, f_c, T_m, T_n, T_k, blk.g, first_a, first_b)
                    if bound_us > bounds.worst_us_of(best):
                        continue
                    if is_full:
                        _search_class(
                            p, blk, q, rank, best, order, T_m, T_n, T_k, low_m, top_m, low_n, top_n, low_k, top_k
                        )
                    elif costs.sram_used_bytes(p, tile_m, tile_n, tile_k) <= limit:
                        _try_pipeline(p, blk, best, rank, order, tile_m, tile_n, tile_k, T_m, T_n, T_k)
                    else:
                        best.counters[REFUSED_SRAM] += 1
                top_k = low_k - 1
            top_n = low_n - 1
        top_m = low_m - 1


@kernel
def _search_class(
    p: Any, blk: Block, q: Bound, rank: int, best: Best, order: int, T_m: int, T_n: int, T_k: int,
    low_m: int, top_m: int, low_n: int, top_n: int, low_k: int, top_k: int,
) -> None:  # fmt: skip
    """All tiles, given as ranges of units, that share trip counts, except the smallest of each dimension together."""
    limit = p["sram_usable_bytes"]
    a_size = p["a_half_bits"] / 16.0
    b_size = p["b_half_bits"] / 16.0
    f_a, f_b, f_c = reload_factors(order, T_m, T_n, T_k)
    for units_m in range(low_m, top_m + 1):
        tile_m = min(units_m * p["cube_m"], blk.m)
        for units_n in range(low_n, top_n + 1):
            tile_n = min(units_n * p["cube_n"], blk.n)
            last_k = low_k - 1
            for units_k in range(low_k, top_k + 1):
                tile_k = min(units_k * p["unit_k"], blk.k)
                first_a = tile_m * tile_k * a_size
                first_b = tile_k * tile_n * b_size
                bound_us = bounds.pipeline_bound_us(p, q, f_a, f_b, f_c, T_m, T_n, T_k, blk.g, first_a, first_b)
                if bound_us > bounds.worst_us_of(best):
                    break  # a larger tile only has more to load first
                if costs.sram_used_bytes(p, tile_m, tile_n, tile_k) > limit:
                    best.counters[REFUSED_SRAM] += 1
                    break
                last_k = units_k
                if units_m > low_m or units_n > low_n or units_k > low_k:
                    _try_pipeline(p, blk, best, rank, order, tile_m, tile_n, tile_k, T_m, T_n, T_k)
            if last_k < low_k:  # not even the smallest tile_k: no larger tile_n either
                if units_n == low_n:
                    return
                break


@kernel
def _mark_tight(marks: Any, dimension: int, size: int, q: int) -> None:
    """Mark, in a row of `marks`, each P that gives every one of its P parts some of `size`, cut in multiples of `q`.

    Another P cuts the same parts as the number of its parts that get something, which comes earlier in rank.
    """
    units = ceil_div(size, q)
    for parts in range(1, marks.shape[1]):
        marks[dimension, parts] = ceil_div(units, ceil_div(units, parts)) == parts


@kernel
def _fill_floors(p: Any, floors: Any, G: int, M: int, K: int, N: int) -> None:
    """Latency that no partition into that many parts beats: all work and all compulsory traffic, evenly spread."""
    whole = costs.block_of(p, G, M, K, N, 1, 1, 1, 1)
    q = bounds.bound_of(p, whole)
    edges = bounds.edges_of_any(p, whole, q)
    for parts in range(1, floors.shape[0]):
        share = p["dram_bytes_per_us"] / (parts if p["is_fair"] else p["num_cores"])
        us_per_byte = 1.0 / (parts * min(share, p["dram_core_limit_bytes_per_us"]))
        floors[parts] = bounds.floor_us_of(p, q, edges, parts, us_per_byte)


@kernel
def partition_bound(p: Any, blk: Block) -> tuple[float, float]:
    """Latency and bytes that no tile and loop order of a partition beats: of the smallest tile, all moving once."""
    tile_m = min(p["cube_m"], blk.m)
    tile_n = min(p["cube_n"], blk.n)
    tile_k = min(p["unit_k"], blk.k)
    cost = costs.core_cost(p, blk, blk.g, blk.m, blk.n, blk.k, tile_m, tile_n, tile_k, 1, 1, 1, 1, 1, 1, -1.0)
    return cost.latency_us, cost.busiest_bytes


@kernel
def _plan_partitions(
    p: Any, G: int, M: int, K: int, N: int, partitions: Any, has_all_products: bool, ranks: Any, floors: Any,
    counters: Any,
) -> int:  # fmt: skip
    """Choose which partitions deserve a look, and return how many: their ranks in `ranks`, latency floors in `floors`.

    First comes the one with the lowest bound, since most of the others then fall to a bound at once; the rest as they
    come. Both arrays [num_partitions].
    """
    num_cores = p["num_cores"]
    tight = np.empty((4, num_cores + 1), np.bool_)
    if has_all_products:
        _mark_tight(tight, 0, G, 1)
        _mark_tight(tight, 1, M, 1)
        _mark_tight(tight, 2, N, 1)
        _mark_tight(tight, 3, K, max(p["group_size"], 1))
    floor_of_product = np.empty(num_cores + 1, np.float64)
    _fill_floors(p, floor_of_product, G, M, K, N)
    counters[PARTITIONS] = partitions.shape[0]
    num = 0
    least_us = np.inf
    for rank in range(partitions.shape[0]):
        P_G, P_M, P_N, P_K = partitions[rank]
        if has_all_products and not (tight[0, P_G] and tight[1, P_M] and tight[2, P_N] and tight[3, P_K]):
            continue
        if P_K > 1 and p["reduction"] == 0 and _block_of_rank(p, G, M, K, N, partitions, rank).E_K > 1:
            continue
        ranks[num] = rank
        floors[num] = floor_of_product[P_G * P_M * P_N * P_K]
        least_us = min(least_us, floors[num])
        num += 1
    first = 0
    first_us = np.inf
    for pass_ in range(2):  # those of the lowest floor first: fewer of the others are worth a closer look
        for turn in range(num):
            if floors[turn] == least_us if pass_ == 0 else least_us < floors[turn] < first_us:
                blk = _block_of_rank(p, G, M, K, N, partitions, ranks[turn])
                floors[turn], _ = partition_bound(p, blk)
                if floors[turn] < first_us:
                    first_us = floors[turn]
                    first = turn
    counters[DROPPED] = partitions.shape[0] - num
    if num > 0:
        ranks[0], ranks[first] = ranks[first], ranks[0]
        floors[0], floors[first] = floors[first], floors[0]
    return num


@kernel
def _block_of_rank(p: Any, G: int, M: int, K: int, N: int, partitions: Any, rank: int) -> Block:
    P_G, P_M, P_N, P_K = partitions[rank]
    return costs.block_of(p, G, M, K, N, P_G, P_M, P_N, P_K)


def _make_find_top(
    timing: str, search: Callable[..., None], evaluate: Callable[..., None], num_passes: int
) -> Callable[..., int]:
    """Return the search under one timing; all passes but the last one only make the bounds of the last bite."""

    @kernel
    def find(p: Any, G: int, M: int, K: int, N: int, partitions: Any, has_all_products: bool, out: Any) -> int:
        counters = np.zeros(NUM_COUNTERS, np.int64)
        ranks = np.empty(partitions.shape[0], np.int64)
        floors = np.empty(partitions.shape[0], np.float64)
        num = _plan_partitions(p, G, M, K, N, partitions, has_all_products, ranks, floors, counters)
        best = bounds.new_best(out.shape[0], bounds.KEY_INTS, counters)
        worst_us = np.inf
        for pass_ in range(num_passes):
            for turn in range(num):
                if floors[turn] <= worst_us:
                    blk = _block_of_rank(p, G, M, K, N, partitions, ranks[turn])
                    bound_us, bound_bytes = partition_bound(p, blk)
                    if bound_us <= worst_us and bounds.may_enter(best, bound_us, bound_bytes):
                        q = bounds.bound_of(p, blk)
                        bound_us = max(bound_us, bounds.sram_bound_us(p, blk, q))
                        bound_bytes = max(bound_bytes, bounds.sram_bound_us(p, blk, bounds.bytes_bound_of(blk, q)))
                        if bounds.may_enter(best, bound_us, bound_bytes):
                            search(p, blk, q, bound_us, ranks[turn], best, pass_ > 0)
                            worst_us = bounds.worst_us_of(best)
                            continue
                if pass_ == num_passes - 1:
                    counters[BOUNDED] += 1
        for row in range(best.num[0]):
            key = best.keys_i[row]
            P_G, P_M, P_N, P_K = partitions[key[3]]
            evaluate(p, G, M, K, N, P_G, P_M, P_N, P_K, key[5], key[6], key[7], key[4], out[row])
            write_counts(counters, out[row])
        return best.num[0]

    @named_entry_point(timing)
    def find_top(
        params: Any, type_of: Any, sizes: Any, start: int, stop: int, partitions: Any, has_all_products: bool, out: Any
    ) -> int:
        """Find the best candidates over all partitions, tiles and loop orders of problems.

        Args:
            params: array [num_types] of PARAMS_DTYPE.
            type_of: int64 [num_problems], index into `params`.
            sizes: int64 [num_problems, 4] of G, M, K, N.
            start, stop: which problems; several threads share the arrays.
            partitions: int64 [num_partitions, 4] of (P_G, P_M, P_N, P_K) by rank.
            has_all_products: the list holds every product up to num_cores, so that duplicates can be dropped.
            out: array [num_problems, limit] of COST_DTYPE, zeros; filled with the best of each, best first.

        Returns:
            Number of records filled of the last problem: 0 if nothing fits, fewer than `limit` if there are fewer.
        """
        num = 0
        for i in range(start, stop):
            G, M, K, N = sizes[i]
            num = find(params[type_of[i]], G, M, K, N, partitions, has_all_products, out[i])
        return num

    return find_top


find_top_overlap = _make_find_top("overlap", _search_overlap, costs.evaluate_overlap_into, 1)
find_top_pipeline = _make_find_top("pipeline", _search_pipeline, costs.evaluate_into, 2)
