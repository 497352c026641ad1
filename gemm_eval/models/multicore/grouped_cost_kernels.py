"""Numba kernels of what a mapping of a grouped GEMM costs: MODEL.md, "Grouped GEMMs".

A core's work is its runs, one after another, and each run is a batch as `cost_kernels` counts one. Where a kernel takes
`rows` and `counts`, they are int64 [num_sizes]: the row counts of the groups, descending, and how many have each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gemm_eval.jit import entry_point, kernel
from gemm_eval.models.multicore.cost_kernels import (
    Block,
    CoreCost,
    CoreSums,
    add_totals,
    block_of,
    clear_totals,
    core_sums,
    cost_of_sums,
    fill_mapping,
    fill_times,
    shared_share_of,
    write_cost_of,
)
from gemm_eval.models.multicore.count_kernels import ceil_div, reload_factors
from gemm_eval.models.multicore.group_kernels import Spread, active_cores_of, fill_spread, new_spread
from gemm_eval.models.multicore.pipeline_kernels import pipeline_first_us, pipeline_part_us
from gemm_eval.models.multicore.replay_kernels import is_replayable


@kernel
def chip_of(p: Any, rows: Any, K: int, N: int, P_M: int, P_N: int, P_K: int, spread: Spread, num_sets: int) -> Block:
    """Return the block of the largest group, with sets of cores as E_G, and the active cores and shares of the chip."""
    blk = block_of(p, 1, rows[0], K, N, 1, P_M, P_N, P_K)
    active = active_cores_of(rows, P_M, blk.E_N, blk.E_K, spread, num_sets)
    share = p["dram_bytes_per_us"] / (active if p["is_fair"] else p["num_cores"])
    share = min(share, p["dram_core_limit_bytes_per_us"])
    return Block(
        1, blk.m, blk.n, blk.k, num_sets, blk.E_M, blk.E_N, blk.E_K, active, share, write_cost_of(p, active, share),
        shared_share_of(p, active),
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
    return core_sums(p, blk, blk.g, m, n, k, T_m, T_n, T_k, f_a, f_b, f_c)


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
    return cost_of_sums(p, largest, sums, tile_m, tile_n, tile_k, pipeline_us)


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


@kernel
def no_set_pipeline_us(
    p: Any, chip: Block, rows: Any, P_M: int, spread: Spread, which: int, tile_m: int, tile_n: int, tile_k: int,  # noqa: ARG001
    order: int,  # noqa: ARG001
) -> float:  # fmt: skip
    """Return 0."""
    return 0.0


@kernel
def _set_pipeline_us_if_any(
    p: Any, chip: Block, rows: Any, P_M: int, spread: Spread, which: int, tile_m: int, tile_n: int, tile_k: int,
    order: int,
) -> float:  # fmt: skip
    us = 0.0
    if p["is_pipeline"]:
        us = set_pipeline_us(p, chip, rows, P_M, spread, which, tile_m, tile_n, tile_k, order)
    return us


def _make_evaluate(pipeline_us_of: Callable[..., float]) -> Callable[..., None]:
    """Return the kernel that fills a record with the cost of a mapping, for one way to time its main loops."""

    @kernel
    def evaluate_into(
        p: Any, rows: Any, counts: Any, K: int, N: int, P_G: int, P_M: int, P_N: int, P_K: int,
        tile_m: int, tile_n: int, tile_k: int, order: int, spread: Spread, out: Any,
    ) -> None:  # fmt: skip
        """Fill the record `out` of `COST_DTYPE` with the cost of one legal mapping; `spread` is filled too."""
        num_sets = fill_spread(p, rows, counts, P_G, P_M, spread)
        chip = chip_of(p, rows, K, N, P_M, P_N, P_K, spread, num_sets)
        clear_totals(out)
        steps = 0
        num_rows = 0
        slowest_us = -1.0
        busiest_bytes = 0.0
        visits = 0
        for which in range(num_sets):
            # no core of a set has more of anything than the one with the full blocks
            pipeline_us = pipeline_us_of(p, chip, rows, P_M, spread, which, tile_m, tile_n, tile_k, order)
            cost = set_cost(p, chip, rows, P_M, spread, which, tile_m, tile_n, tile_k, order, pipeline_us)
            if cost.latency_us > slowest_us:
                slowest_us = cost.latency_us
                fill_times(p, chip, cost, out)
            busiest_bytes = max(busiest_bytes, cost.busiest_bytes)
            visits = max(visits, cost.visits)
            for run in range(spread.starts[which], spread.starts[which + 1]):
                size = rows[spread.sizes[run]]
                blk = run_block(chip, size, spread.counts[run], P_M)
                steps += add_totals(
                    p, blk, blk.g, 1, size, K, N, tile_m, tile_n, tile_k, order, cost.kept_frac, out
                )  # fmt: skip
                num_rows += size * spread.counts[run]

        fill_mapping(
            p, P_G, P_M, P_N, P_K, tile_m, tile_n, tile_k, order, chip.active_cores, visits, steps,
            float(num_rows * K * N), out,
        )  # fmt: skip
        out["busiest_core_bytes"] = busiest_bytes

    return evaluate_into


evaluate_grouped_into = _make_evaluate(_set_pipeline_us_if_any)
"""For every timing."""

evaluate_grouped_overlap_into = _make_evaluate(no_set_pipeline_us)
"""For overlap timing: it compiles faster."""


@entry_point
def evaluate_grouped(
    params: Any, rows: Any, counts: Any, K: int, N: int, P_G: int, P_M: int, P_N: int, P_K: int,
    tile_m: int, tile_n: int, tile_k: int, order: int, out: Any,
) -> None:  # fmt: skip
    """Fill `out`, an array [1] of COST_DTYPE, with the cost of one legal mapping; `params` is [1] of PARAMS_DTYPE."""
    spread = new_spread(counts, P_G)
    evaluate_grouped_into(
        params[0], rows, counts, K, N, P_G, P_M, P_N, P_K, tile_m, tile_n, tile_k, order, spread, out[0]
    )  # fmt: skip


@entry_point
def replay_grouped(
    params: Any, type_of: Any, sizes: Any, of: Any, starts: Any, rows: Any, counts: Any, start: int, stop: int,
    stored: Any, out: Any,
) -> None:  # fmt: skip
    """As `replay_range`, for grouped GEMMs: of [num], starts, rows, counts are those of `workload.Layouts`."""
    for i in range(start, stop):
        t = type_of[i]
        K, N = sizes[i, 2], sizes[i, 3]
        first, last = starts[of[i]], starts[of[i] + 1]
        row = stored[i]
        if is_replayable(params[t : t + 1], 1, rows[first], K, N, row):
            evaluate_grouped(
                params[t : t + 1], rows[first:last], counts[first:last], K, N,
                row["P_G"], row["P_M"], row["P_N"], row["P_K"],
                row["tile_m"], row["tile_n"], row["tile_k"], row["loop_order"], out[i : i + 1],
            )  # fmt: skip
