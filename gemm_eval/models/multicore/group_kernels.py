"""Numba kernels of grouped GEMMs on multi-core chips: their groups on sets of cores, and what a mapping costs.

MODEL.md, "Grouped GEMMs". A *run* is the groups of equal rows that a set of cores has: it computes them one after
another, as a batch. `rows` and `counts`, int64 [num_sizes], are the row counts of groups, descending, and how many
have each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gemm_eval.jit import entry_point, kernel
from gemm_eval.models.multicore import cost_kernels as cores
from gemm_eval.models.multicore.cost_kernels import Block, CoreCost, CoreSums
from gemm_eval.models.multicore.pipeline_kernels import ceil_div, pipeline_first_us, pipeline_part_us, reload_factors


class Spread(NamedTuple):
    """Groups of each set of cores; the runs of a set stand together, most rows first."""

    starts: Any  # int64 [num_sets + 1], where the runs of each set start in the next two; entries behind are unused
    sizes: Any  # int64 [num_runs], which row count: a place among those of the problem
    counts: Any  # int64 [num_runs], groups of a run, at least 1
    loads: Any  # int64 [num_sets], steps of the matrix unit along m of a set
    members: Any  # int64 [num_sets], its groups
    scratch: Any  # int64 [3, num_groups], runs in the order in which they were made: set, size, count


@kernel
def new_spread(counts: Any, num_cores: int) -> Spread:
    """Room for any spread of these groups over at most so many sets of cores."""
    num_groups = 0
    for count in counts:
        num_groups += count
    most_sets = min(num_cores, num_groups)
    return Spread(
        np.empty(most_sets + 1, np.int64), np.empty(num_groups, np.int64), np.empty(num_groups, np.int64),
        np.empty(most_sets, np.int64), np.empty(most_sets, np.int64), np.empty((3, num_groups), np.int64),
    )  # fmt: skip


@kernel
def _least_loaded(loads: Any, members: Any, num_sets: int) -> int:
    """Return the set of the least load, of equal ones the one of the fewest groups, of those the first."""
    chosen = 0
    for s in range(1, num_sets):
        if loads[s] < loads[chosen] or (loads[s] == loads[chosen] and members[s] < members[chosen]):
            chosen = s
    return chosen


@kernel
def fill_spread(p: Any, rows: Any, counts: Any, P_G: int, P_M: int, spread: Spread) -> int:
    """Spread groups over at most P_G sets of cores; return how many sets have one."""
    starts, loads, members, scratch = spread.starts, spread.loads, spread.members, spread.scratch
    num_sets = min(P_G, loads.shape[0])
    loads[:num_sets] = 0
    members[:num_sets] = 0
    num_runs = 0
    num_used = 0
    for size in range(rows.shape[0]):
        weight = ceil_div(ceil_div(rows[size], P_M), p["cube_m"])
        first_run = num_runs
        most = 1
        if num_sets == 1 or rows.shape[0] == 1:  # equal groups lie as those of a batch
            most = ceil_div(counts[size], num_sets)
        left = counts[size]
        while left > 0:
            chosen = _least_loaded(loads, members, num_sets)
            taken = min(left, most)
            loads[chosen] += taken * weight
            members[chosen] += taken
            left -= taken
            num_used = max(num_used, chosen + 1)
            run = first_run
            while run < num_runs and scratch[0, run] != chosen:
                run += 1
            if run == num_runs:
                scratch[0, run] = chosen
                scratch[1, run] = size
                scratch[2, run] = 0
                num_runs += 1
            scratch[2, run] += taken
    # by set, in the order in which they were made
    starts[: num_used + 1] = 0
    for run in range(num_runs):
        starts[scratch[0, run] + 1] += 1
    for s in range(num_used):
        starts[s + 1] += starts[s]
    for run in range(num_runs):
        place = starts[scratch[0, run]]
        spread.sizes[place] = scratch[1, run]
        spread.counts[place] = scratch[2, run]
        starts[scratch[0, run]] += 1
    for s in range(num_used, 0, -1):
        starts[s] = starts[s - 1]
    starts[0] = 0
    return num_used


@kernel
def parts_of(num_rows: int, P_M: int) -> int:
    """E_M of a group: cores along M that have some of its rows."""
    return ceil_div(num_rows, ceil_div(num_rows, P_M))


@kernel
def active_cores_of(rows: Any, P_M: int, E_N: int, E_K: int, spread: Spread, num_sets: int) -> int:
    """Cores that have some rows of some group."""
    num = 0
    for s in range(num_sets):
        most = 0
        for run in range(spread.starts[s], spread.starts[s + 1]):
            most = max(most, parts_of(rows[spread.sizes[run]], P_M))
        num += most
    return num * E_N * E_K


@entry_point
def spread_of(params: Any, rows: Any, counts: Any, P_G: int, P_M: int) -> Any:
    """Return the runs of each set of cores, int64 [num_runs, 3]: set, rows of a group, groups; `params` is [1]."""
    spread = new_spread(counts, P_G)
    num_sets = fill_spread(params[0], rows, counts, P_G, P_M, spread)
    out = np.empty((spread.starts[num_sets], 3), np.int64)
    for s in range(num_sets):
        for run in range(spread.starts[s], spread.starts[s + 1]):
            out[run, 0] = s
            out[run, 1] = rows[spread.sizes[run]]
            out[run, 2] = spread.counts[run]
    return out


@kernel
def chip_of(p: Any, rows: Any, K: int, N: int, P_M: int, P_N: int, P_K: int, spread: Spread, num_sets: int) -> Block:
    """Return the block of the largest group, with sets of cores as E_G, and the active cores and shares of the chip."""
    blk = cores.block_of(p, 1, rows[0], K, N, 1, P_M, P_N, P_K)
    active = active_cores_of(rows, P_M, blk.E_N, blk.E_K, spread, num_sets)
    share, write_cost, shared_share = cores.shares_of(p, active)
    return Block(
        1, blk.m, blk.n, blk.k, num_sets, blk.E_M, blk.E_N, blk.E_K, active, share, write_cost, shared_share
    )  # fmt: skip


@kernel
def run_block(chip: Block, num_rows: int, count: int, P_M: int) -> Block:
    """Return the full block of a run of `count` groups of so many rows."""
    m = ceil_div(num_rows, P_M)
    return Block(
        count, m, chip.n, chip.k, chip.E_G, ceil_div(num_rows, m), chip.E_N, chip.E_K, chip.active_cores,
        chip.dram_share, chip.write_cost, chip.shared_share,
    )  # fmt: skip


@kernel
def _run_sums(
    p: Any, blk: Block, m: int, n: int, k: int, tile_m: int, tile_n: int, tile_k: int, order: int
) -> CoreSums:
    T_m = ceil_div(m, tile_m)
    T_n = ceil_div(n, tile_n)
    T_k = ceil_div(k, tile_k)
    f_a, f_b, f_c = reload_factors(order, T_m, T_n, T_k)
    return cores.core_sums(p, blk, blk.g, m, n, k, T_m, T_n, T_k, f_a, f_b, f_c)


@kernel
def add_sums(x: CoreSums, y: CoreSums) -> CoreSums:
    """Add up the bytes and steps of a core for two runs."""
    return CoreSums(
        x.a_bytes + y.a_bytes, x.b_elems + y.b_elems, x.b_bytes + y.b_bytes, x.s_bytes + y.s_bytes,
        x.b_charged + y.b_charged, x.store_bytes + y.store_bytes, x.spill_bytes + y.spill_bytes,
        x.steps + y.steps, x.fills + y.fills, x.visits + y.visits,
        x.red_dram_bytes + y.red_dram_bytes, x.red_noc_bytes + y.red_noc_bytes, x.red_adds + y.red_adds,
        x.a_once + y.a_once, x.b_once + y.b_once, x.b_unique + y.b_unique, x.partial_bytes + y.partial_bytes,
        x.pack_bytes + y.pack_bytes, x.tasks + y.tasks,
    )  # fmt: skip


@kernel
def set_cost(
    p: Any, chip: Block, rows: Any, P_M: int, spread: Spread, which: int, tile_m: int, tile_n: int, tile_k: int,
    order: int, pipeline_us: float,
) -> CoreCost:  # fmt: skip
    """Cost of the core with the full blocks of a set; `pipeline_us` as for `core_cost`."""
    first = spread.starts[which]
    largest = run_block(chip, rows[spread.sizes[first]], spread.counts[first], P_M)
    sums = _run_sums(p, largest, largest.m, chip.n, chip.k, tile_m, tile_n, tile_k, order)
    for run in range(first + 1, spread.starts[which + 1]):
        blk = run_block(chip, rows[spread.sizes[run]], spread.counts[run], P_M)
        sums = add_sums(sums, _run_sums(p, blk, blk.m, chip.n, chip.k, tile_m, tile_n, tile_k, order))
    tile_m, tile_n, tile_k = min(tile_m, largest.m), min(tile_n, chip.n), min(tile_k, chip.k)
    return cores.cost_of_sums(p, largest, sums, tile_m, tile_n, tile_k, pipeline_us)


@kernel
def set_pipeline_us(
    p: Any, chip: Block, rows: Any, P_M: int, spread: Spread, which: int, tile_m: int, tile_n: int, tile_k: int,
    order: int,
) -> float:  # fmt: skip
    """Time in us of all tile visits of the core with the full blocks of a set, under pipeline timing."""
    first = spread.starts[which]
    stop = spread.starts[which + 1]
    blk = run_block(chip, rows[spread.sizes[first]], spread.counts[first], P_M)
    largest = blk
    before_m = 0
    total = 0.0
    for run in range(first, stop):
        after_m = 0
        after = blk
        if run + 1 < stop:
            after = run_block(chip, rows[spread.sizes[run + 1]], spread.counts[run + 1], P_M)
            after_m = after.m
        total += pipeline_part_us(
            p, blk, blk.g, blk.m, chip.n, chip.k, tile_m, tile_n, tile_k, order, before_m, after_m, after
        )
        before_m = blk.m
        blk = after
    return total + pipeline_first_us(p, largest, largest.m, chip.n, chip.k, tile_m, tile_n, tile_k)


def _make_evaluate(*, has_pipeline: bool) -> Callable[..., None]:
    """Return the kernel that fills a record with the cost of a mapping, for every timing or for overlap alone."""

    @kernel
    def evaluate_into(
        p: Any, rows: Any, counts: Any, K: int, N: int, P_G: int, P_M: int, P_N: int, P_K: int,
        tile_m: int, tile_n: int, tile_k: int, order: int, spread: Spread, out: Any,
    ) -> None:  # fmt: skip
        """Fill the record `out` of `COST_DTYPE` with the cost of one legal mapping; `spread` is filled too."""
        num_sets = fill_spread(p, rows, counts, P_G, P_M, spread)
        chip = chip_of(p, rows, K, N, P_M, P_N, P_K, spread, num_sets)
        cores.clear_totals(out)
        steps = 0
        num_rows = 0
        slowest_us = -1.0
        busiest_bytes = 0.0
        visits = 0
        for which in range(num_sets):
            # no core of a set has more of anything than the one with the full blocks
            pipeline_us = 0.0
            if has_pipeline and p["is_pipeline"]:
                pipeline_us = set_pipeline_us(p, chip, rows, P_M, spread, which, tile_m, tile_n, tile_k, order)
            cost = set_cost(p, chip, rows, P_M, spread, which, tile_m, tile_n, tile_k, order, pipeline_us)
            if cost.latency_us > slowest_us:
                slowest_us = cost.latency_us
                cores.fill_times(p, chip, cost, out)
            busiest_bytes = max(busiest_bytes, cost.busiest_bytes)
            visits = max(visits, cost.visits)
            for run in range(spread.starts[which], spread.starts[which + 1]):
                size = rows[spread.sizes[run]]
                blk = run_block(chip, size, spread.counts[run], P_M)
                steps += cores.add_totals(
                    p, blk, blk.g, 1, size, K, N, tile_m, tile_n, tile_k, order, cost.kept_frac, out
                )  # fmt: skip
                num_rows += size * spread.counts[run]

        cores.fill_mapping(
            p, P_G, P_M, P_N, P_K, tile_m, tile_n, tile_k, order, chip.active_cores, visits, steps,
            float(num_rows * K * N), out,
        )  # fmt: skip
        out["busiest_core_bytes"] = busiest_bytes

    return evaluate_into


evaluate_grouped_into = _make_evaluate(has_pipeline=True)
evaluate_grouped_overlap_into = _make_evaluate(has_pipeline=False)


@entry_point
def evaluate_grouped(
    params: Any, type_of: Any, sizes: Any, of: Any, starts: Any, rows: Any, counts: Any, start: int, stop: int,
    checks: bool, stored: Any, out: Any,
) -> None:  # fmt: skip
    """Evaluate grouped GEMMs as `evaluate_range` does; starts, rows and counts are those of `workload.Layouts`."""
    for i in range(start, stop):
        p, row = params[type_of[i]], stored[i]
        K, N = sizes[i, 2], sizes[i, 3]
        first, last = starts[of[i]], starts[of[i] + 1]
        if not checks or cores.is_legal(p, 1, rows[first], K, N, row):
            evaluate_grouped_into(
                p, rows[first:last], counts[first:last], K, N, row["P_G"], row["P_M"], row["P_N"], row["P_K"],
                row["tile_m"], row["tile_n"], row["tile_k"], row["loop_order"],
                new_spread(counts[first:last], row["P_G"]), out[i, 0],
            )  # fmt: skip
