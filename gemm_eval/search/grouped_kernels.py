"""Numba kernels of the exact search for grouped GEMMs on multi-core chips.

It looks at the same candidates as `multicore_kernels`, for the same reasons, over sets of cores:

1. What a core moves and computes depends on its tile through the trip counts of all its groups only, and what cannot
   overlap grows with the tile. So of all tile_m with the same trips of every row count the smallest stands for all.
2. The bound of a candidate is its cost but for the rounding of bytes, from a few sums over the groups of a set
   (`grouped_bound_kernels`), and most candidates fall to the set that is slowest anyway.
3. With pipeline timing sizes matter: every tile of a class is tried that its bound does not exclude.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gemm_eval.jit import kernel, named_entry_point
from gemm_eval.models.multicore import group_kernels as groups
from gemm_eval.models.multicore.cost_kernels import Block, block_of, sram_used_bytes
from gemm_eval.models.multicore.group_kernels import Spread
from gemm_eval.models.multicore.pipeline_kernels import ceil_div
from gemm_eval.search import grouped_bound_kernels as bounds
from gemm_eval.search import multicore_kernels as searches
from gemm_eval.search.multicore_bound_kernels import (
    BOUND_SLACK,
    KEY_INTS,
    Best,
    argsort,
    least_trips_k,
    may_enter,
    new_best,
    worst_bytes_of,
    worst_us_of,
)

_MNK, _MKN, _NMK, _NKM, _, _KNM = range(6)


class _Part(NamedTuple):
    """A partition with its groups spread over sets of cores, and the constants of its bounds."""

    rows: Any  # int64 [num_sizes]
    P_M: int
    rank: int
    chip: Block
    spread: Spread
    num_sets: int
    slowest: int  # the set with the highest floor
    floor_us: float
    rates: bounds.Rates
    sums: bounds.SetSums


class _Cost(NamedTuple):
    latency_us: float
    moved_bytes: float
    visits: int


def _make_cost_of(*, is_pipeline: bool) -> Callable[..., _Cost]:
    @kernel
    def cost_of(p: Any, part: _Part, best: Best, order: int, tile_m: int, tile_n: int, tile_k: int) -> _Cost:
        """Cost one candidate: of each set the core with the full blocks."""
        best.counters[searches.CANDIDATES] += 1
        latency_us = 0.0
        moved_bytes = 0.0
        visits = 0
        for which in range(part.num_sets):
            pipeline_us = 0.0
            if is_pipeline:
                pipeline_us = groups.set_pipeline_us(
                    p, part.chip, part.rows, part.P_M, part.spread, which, tile_m, tile_n, tile_k, order
                )
            cost = groups.set_cost(
                p, part.chip, part.rows, part.P_M, part.spread, which, tile_m, tile_n, tile_k, order, pipeline_us
            )  # fmt: skip
            latency_us = max(latency_us, cost.latency_us)
            moved_bytes = max(moved_bytes, cost.busiest_bytes)
            visits = max(visits, cost.visits)
        return _Cost(latency_us, moved_bytes, visits)

    return cost_of


_cost_overlap = _make_cost_of(is_pipeline=False)
_cost_pipeline = _make_cost_of(is_pipeline=True)


@kernel
def _offer(
    p: Any, part: _Part, best: Best, cost: _Cost, order: int, tile_m: int, tile_n: int, tile_k: int
) -> None:  # fmt: skip
    searches.offer_cost(
        p, best, cost.latency_us, cost.moved_bytes, part.chip.active_cores, cost.visits, part.rank, order,
        tile_m, tile_n, tile_k,
    )  # fmt: skip


@kernel
def _bound_us(
    p: Any, part: _Part, best: Best, order: int, T_n: int, T_k: int, tile_m: int, tile_n: int, tile_k: int
) -> float:
    """Latency that no such candidate is below; inf: it cannot be among the best."""
    worst_us = worst_us_of(best)
    worst_bytes = np.inf
    if worst_us <= part.floor_us:  # then fewer bytes are all that can win
        worst_bytes = worst_bytes_of(best)
    return bounds.chip_bound(
        p, part.chip, part.rates, part.sums, part.num_sets, part.slowest, order, T_n, T_k, tile_m, tile_n, tile_k,
        worst_us, worst_bytes,
    )  # fmt: skip


@kernel
def _is_too_slow(p: Any, part: _Part, best: Best, tile_m: int) -> bool:
    """Say whether no tile of so many rows (0: of any) can be among the best, because operands share SRAM."""
    worst_us = worst_us_of(best)
    for turn in range(part.num_sets + 1):  # the slowest set first
        which = turn - 1 if turn > 0 else part.slowest
        if (
            bounds.sram_bound_us(p, part.chip, part.rates, part.sums, part.rows, part.P_M, part.spread, which, tile_m)
            > worst_us
        ):
            return True
    return False


@kernel
def _low_units(p: Any, part: _Part, top: int) -> int:
    """Return the smallest tile_m, in units, with the trips of `top` units for every row count."""
    low = 1
    for num_rows in part.rows:
        units = ceil_div(ceil_div(num_rows, part.P_M), p["cube_m"])
        low = max(low, ceil_div(units, ceil_div(units, top)))
    return low


@kernel
def _differs(order: int, T_n: int, is_longer: bool, is_mixed: bool) -> bool:
    """Say whether an order may move something else than the orders before it, for some trips of k.

    Of KMN none does. KNM is NKM for the groups of several trips along m and MKN for those of one.
    """
    if order == _MNK:
        return True
    if order == _MKN:
        return T_n > 1
    if order == _NMK:
        return is_longer and T_n > 1
    if order == _NKM:
        return is_longer
    return order == _KNM and is_mixed and T_n > 1


@kernel
def _fewest_trips_k(p: Any, chip: Block, tile_m: int, tile_n: int) -> int:
    """At most the fewest k trips that SRAM allows beside tile_m and tile_n; 0 if none does."""
    least = least_trips_k(p, chip, tile_m, tile_n)
    return 0 if least == np.inf else max(1, int(np.ceil(least * (1.0 - BOUND_SLACK))))


@kernel
def _search_overlap(p: Any, part: _Part, best: Best, is_full: bool) -> None:  # noqa: ARG001  the other one's
    """All candidates of one partition that can win under overlap timing."""
    chip = part.chip
    cube_m = p["cube_m"]
    cube_n = p["cube_n"]
    units_m = ceil_div(chip.m, cube_m)
    units_n = ceil_div(chip.n, cube_n)
    units_k = ceil_div(chip.k, p["unit_k"])
    smallest_k = min(p["unit_k"], chip.k)
    top_m = searches.most_units(p, min(cube_n, chip.n), cube_m, units_m, chip.m)
    best.counters[searches.REFUSED_SRAM] += top_m < units_m
    while top_m > 0:  # one step per distinct trips of all row counts, ascending
        low_m = _low_units(p, part, top_m)
        top_m = low_m - 1
        tile_m = min(low_m * cube_m, chip.m)
        is_longer = tile_m < chip.m
        is_mixed = is_longer and ceil_div(part.rows[part.rows.shape[0] - 1], part.P_M) <= tile_m
        bounds.fill_tile_sums(p, part.rows, part.P_M, part.spread, part.num_sets, tile_m, part.sums)
        if _is_too_slow(p, part, best, tile_m):
            continue
        top_n = searches.most_units(p, tile_m, cube_n, units_n, chip.n)
        best.counters[searches.REFUSED_SRAM] += top_n < units_n
        floor_T_k = _fewest_trips_k(p, chip, tile_m, min(cube_n, chip.n))  # beside the narrowest tile
        while top_n > 0:
            T_n = ceil_div(units_n, top_n)
            low_n = ceil_div(units_n, T_n)
            top_n = low_n - 1
            tile_n = min(low_n * cube_n, chip.n)
            first_T_k = _fewest_trips_k(p, chip, tile_m, tile_n)
            if first_T_k == 0:
                best.counters[searches.REFUSED_SRAM] += 1
                continue
            fit_k = -1
            is_hopeless = True
            for order in range(6):
                if not _differs(order, T_n, is_longer, is_mixed):
                    continue
                if _bound_us(p, part, best, order, T_n, first_T_k, tile_m, tile_n, smallest_k) == np.inf:
                    continue
                is_hopeless = False
                if fit_k < 0:
                    fit_k = searches.most_units_k(p, chip.k, tile_m, tile_n, units_k)
                    best.counters[searches.REFUSED_SRAM] += fit_k == 0
                if fit_k > 0:
                    _search_trips_k(p, part, best, order, tile_m, tile_n, T_n, fit_k, units_k)
            if is_hopeless and _are_narrower_hopeless(p, part, best, tile_m, T_n, floor_T_k, is_longer, is_mixed):
                break


@kernel
def _are_narrower_hopeless(
    p: Any, part: _Part, best: Best, tile_m: int, T_n: int, floor_T_k: int, is_longer: bool, is_mixed: bool
) -> bool:
    """Say whether no number of n trips from `T_n` up, and of k trips from `floor_T_k` up, can be among the best."""
    chip = part.chip
    tile_n = min(p["cube_n"], chip.n)
    tile_k = min(p["unit_k"], chip.k)
    for order in range(6):
        if _differs(order, max(T_n, 2), is_longer, is_mixed) and (
            _bound_us(p, part, best, order, T_n, floor_T_k, tile_m, tile_n, tile_k) < np.inf
        ):
            return False
    return True


@kernel
def _search_trips_k(
    p: Any, part: _Part, best: Best, order: int, tile_m: int, tile_n: int, T_n: int, fit_k: int, units_k: int
) -> None:
    """Offer the best tile_k, of at most `fit_k` units, for an order and tile under overlap timing; fewer trips win."""
    unit_k = p["unit_k"]
    smallest_k = min(unit_k, part.chip.k)
    best_cost = _Cost(np.inf, np.inf, 0)
    best_k = 0
    top_k = fit_k
    while top_k > 0:
        T_k = ceil_div(units_k, top_k)
        low_k = ceil_div(units_k, T_k)
        top_k = low_k - 1
        if order == _NMK and T_k > 1:
            break  # then it is MNK
        if T_k == 1 and order % 2 == 1:
            continue  # then it is MNK or NMK
        tile_k = min(low_k * unit_k, part.chip.k)
        if _bound_us(p, part, best, order, T_n, T_k, tile_m, tile_n, smallest_k) >= best_cost.latency_us:
            break  # nor can more trips win: they only take longer
        if _bound_us(p, part, best, order, T_n, T_k, tile_m, tile_n, tile_k) >= best_cost.latency_us:
            continue
        cost = _cost_overlap(p, part, best, order, tile_m, tile_n, tile_k)
        if cost.latency_us < best_cost.latency_us:
            best_cost = cost
            best_k = tile_k
    if best_k > 0:
        _offer(p, part, best, best_cost, order, tile_m, tile_n, best_k)


@kernel
def _search_pipeline(p: Any, part: _Part, best: Best, is_full: bool) -> None:
    """All candidates of one partition under pipeline timing; unless `is_full`, only the smallest tile of each class."""
    chip = part.chip
    units_m = ceil_div(chip.m, p["cube_m"])
    units_n = ceil_div(chip.n, p["cube_n"])
    units_k = ceil_div(chip.k, p["unit_k"])
    top_m = searches.most_units(p, min(p["cube_n"], chip.n), p["cube_m"], units_m, chip.m)
    best.counters[searches.REFUSED_SRAM] += top_m < units_m
    while top_m > 0:
        low_m = _low_units(p, part, top_m)
        tile_m = min(low_m * p["cube_m"], chip.m)
        bounds.fill_tile_sums(p, part.rows, part.P_M, part.spread, part.num_sets, tile_m, part.sums)
        top_n = searches.most_units(p, tile_m, p["cube_n"], units_n, chip.n)
        best.counters[searches.REFUSED_SRAM] += top_n < units_n
        while top_n > 0:
            T_n = ceil_div(units_n, top_n)
            low_n = ceil_div(units_n, T_n)
            tile_n = min(low_n * p["cube_n"], chip.n)
            top_k = searches.most_units_k(p, chip.k, tile_m, tile_n, units_k)
            best.counters[searches.REFUSED_SRAM] += top_k < units_k
            while top_k > 0:
                T_k = ceil_div(units_k, top_k)
                low_k = ceil_div(units_k, T_k)
                tile_k = min(low_k * p["unit_k"], chip.k)
                for order in range(6):
                    if _bound_us(p, part, best, order, T_n, T_k, tile_m, tile_n, tile_k) == np.inf:
                        continue
                    if is_full:
                        _search_class(p, part, best, order, T_n, T_k, low_m, top_m, low_n, top_n, low_k, top_k)
                    else:
                        cost = _cost_pipeline(p, part, best, order, tile_m, tile_n, tile_k)
                        _offer(p, part, best, cost, order, tile_m, tile_n, tile_k)
                top_k = low_k - 1
            top_n = low_n - 1
        top_m = low_m - 1


@kernel
def _search_class(
    p: Any, part: _Part, best: Best, order: int, T_n: int, T_k: int,
    low_m: int, top_m: int, low_n: int, top_n: int, low_k: int, top_k: int,
) -> None:  # fmt: skip
    """All tiles, given as ranges of units, that share trip counts, except the smallest of each dimension together."""
    chip = part.chip
    for units_m in range(low_m, top_m + 1):
        tile_m = min(units_m * p["cube_m"], chip.m)
        for units_n in range(low_n, top_n + 1):
            tile_n = min(units_n * p["cube_n"], chip.n)
            for units_k in range(low_k, top_k + 1):
                tile_k = min(units_k * p["unit_k"], chip.k)
                if _bound_us(p, part, best, order, T_n, T_k, tile_m, tile_n, tile_k) == np.inf:
                    break  # a larger tile only has more to load first
                if sram_used_bytes(p, tile_m, tile_n, tile_k) > p["sram_usable_bytes"]:
                    best.counters[searches.REFUSED_SRAM] += 1
                    break
                if units_m > low_m or units_n > low_n or units_k > low_k:
                    cost = _cost_pipeline(p, part, best, order, tile_m, tile_n, tile_k)
                    _offer(p, part, best, cost, order, tile_m, tile_n, tile_k)


@kernel
def _is_whole(size: int, parts: int) -> bool:
    """Say whether each of so many parts of `size` units gets some; else fewer parts cut the same."""
    return ceil_div(size, ceil_div(size, parts)) == parts


@kernel
def _plan_partitions(
    p: Any, rows: Any, counts: Any, K: int, N: int, partitions: Any, has_all_products: bool, floors: Any, counters: Any
) -> int:
    """Fill `floors` with latencies that no mapping of each partition beats (inf: skip); return how many to try."""
    num_groups = 0
    all_rows = 0
    for size in range(rows.shape[0]):
        num_groups += counts[size]
        all_rows += counts[size] * rows[size]
    q = max(p["group_size"], 1)
    cut = bounds.new_cut_rows(p["num_cores"])
    num = 0
    for rank in range(partitions.shape[0]):
        P_G, P_M, P_N, P_K = partitions[rank]
        floors[rank] = np.inf
        if has_all_products and (num_groups < P_G or not _is_whole(N, P_N) or not _is_whole(ceil_div(K, q), P_K)):
            continue
        if has_all_products and rows.shape[0] == 1 and not _is_whole(num_groups, P_G):
            continue  # equal groups lie as those of a batch
        bounds.cut_rows(p, rows, counts, P_M, cut)
        if has_all_products and not cut.is_tight[P_M]:
            continue
        blk = block_of(p, 1, rows[0], K, N, 1, P_M, P_N, P_K)
        if blk.E_K > 1 and p["reduction"] == 0:
            continue
        of_cut = (cut.rows[P_M], cut.steps[P_M], cut.parts[P_M])
        floors[rank] = bounds.floor_us_of_cut(p, blk, K, N, P_M, min(P_G, num_groups), num_groups, all_rows, of_cut)
        num += 1
    counters[searches.PARTITIONS] = partitions.shape[0]
    counters[searches.DROPPED] = partitions.shape[0] - num
    return num


def _make_find_top(
    timing: str, search: Callable[..., None], evaluate: Callable[..., None], num_passes: int
) -> Callable[..., int]:
    """Return the search under one timing; all passes but the last one only make the bounds of the last bite."""

    @kernel
    def search_partition(
        p: Any, rows: Any, counts: Any, K: int, N: int, partitions: Any, rank: int, spread: Spread,
        sums: bounds.SetSums, best: Best, is_full: bool,
    ) -> bool:  # fmt: skip
        """Search one partition, unless a bound shows that none of its mappings is among the best: whether it did."""
        P_G, P_M, P_N, P_K = partitions[rank]
        num_sets = groups.fill_spread(p, rows, counts, P_G, P_M, spread)
        chip = groups.chip_of(p, rows, K, N, P_M, P_N, P_K, spread, num_sets)
        slowest = 0
        floor_us = -1.0
        floor_bytes = 0.0
        for which in range(num_sets):
            floor = bounds.set_floor(p, chip, rows, P_M, spread, which)
            if floor.latency_us > floor_us:
                floor_us = floor.latency_us
                slowest = which
            floor_bytes = max(floor_bytes, floor.busiest_bytes)
            if not may_enter(best, floor_us, floor_bytes):
                return False
            bounds.fill_set_sums(p, chip, rows, P_M, spread, which, floor, sums)
        part = _Part(rows, P_M, rank, chip, spread, num_sets, slowest, floor_us, bounds.rates_of(p, chip), sums)
        if _is_too_slow(p, part, best, 0):
            return False
        search(p, part, best, is_full)
        return True

    @kernel
    def find_top(
        p: Any, rows: Any, counts: Any, K: int, N: int, partitions: Any, has_all_products: bool, out: Any
    ) -> int:
        counters = np.zeros(searches.NUM_COUNTERS, np.int64)
        floors = np.empty(partitions.shape[0], np.float64)
        num = _plan_partitions(p, rows, counts, K, N, partitions, has_all_products, floors, counters)
        ranks = argsort(floors)  # the lowest first, so that most of the others fall to a bound at once
        spread = groups.new_spread(counts, p["num_cores"])
        sums = bounds.new_set_sums(spread.loads.shape[0])
        best = new_best(out.shape[0], KEY_INTS, counters)
        for pass_ in range(num_passes):
            counters[searches.BOUNDED] = 0
            for turn in range(num):
                rank = ranks[turn]
                if floors[rank] > worst_us_of(best) or not search_partition(
                    p, rows, counts, K, N, partitions, rank, spread, sums, best, pass_ > 0
                ):
                    counters[searches.BOUNDED] += 1
        for row in range(best.num[0]):
            key = best.keys_i[row]
            P_G, P_M, P_N, P_K = partitions[key[3]]
            evaluate(
                p, rows, counts, K, N, P_G, P_M, P_N, P_K, key[5], key[6], key[7], key[4], spread, out[row]
            )  # fmt: skip
            searches.write_counts(counters, out[row])
        return best.num[0]

    @named_entry_point(timing)
    def find_top_grouped(
        params: Any, type_of: Any, sizes: Any, of: Any, starts: Any, rows: Any, counts: Any, start: int, stop: int,
        partitions: Any, has_all_products: bool, out: Any,
    ) -> int:  # fmt: skip
        """Search grouped GEMMs as `multicore_kernels.find_top_overlap` does; [num_problems] and after: `Layouts`."""
        num = 0
        for i in range(start, stop):
            first, last = starts[of[i]], starts[of[i] + 1]
            num = find_top(
                params[type_of[i]], rows[first:last], counts[first:last], sizes[i, 2], sizes[i, 3], partitions,
                has_all_products, out[i],
            )  # fmt: skip
        return num

    return find_top_grouped


find_top_grouped_overlap = _make_find_top("overlap", _search_overlap, groups.evaluate_grouped_overlap_into, 1)
find_top_grouped_pipeline = _make_find_top("pipeline", _search_pipeline, groups.evaluate_grouped_into, 2)
