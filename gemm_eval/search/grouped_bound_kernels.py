"""Numba kernels of the bounds that let the exact search of grouped GEMMs pass over mappings.

As `multicore_bound_kernels`, over sets of cores: a chip is as slow as its slowest set, so a bound of any set is one of
the chip. What a set moves and computes under a mapping follows from a few sums over its groups, so a bound that differs
from the cost by the rounding of bytes alone takes no longer for many groups than for one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gemm_eval.jit import kernel
from gemm_eval.models.multicore.cost_kernels import Block, CoreCost, CoreSums, core_sums, cost_of_sums
from gemm_eval.models.multicore.group_kernels import Spread, add_sums, parts_of, run_block
from gemm_eval.models.multicore.pipeline_kernels import ceil_div, reload_factors, scale_rows, store_half_bits
from gemm_eval.search import multicore_bound_kernels as plain


class SetSums(NamedTuple):
    """Sums over the groups of each set, of the core with the full blocks; [num_sets] each."""

    groups: Any  # int64, how many
    rows: Any  # int64, rows of their blocks
    largest: Any  # int64, rows of the largest block
    steps: Any  # int64, steps of the matrix unit along m
    shared: Any  # float64, groups, each by the cores that share its B: 1 / E_M under multicast, else 1
    largest_shared: Any  # float64, the same of the largest group
    red_us: Any  # float64, time of the reduction, of packing and of waking cores
    red_bytes: Any  # float64, its DRAM bytes
    # of one tile_m
    trips: Any  # int64, trips along m
    one_trip_rows: Any  # int64, rows of the blocks that one trip covers
    shared_trips: Any  # float64, trips, each by the cores that share B


@kernel
def new_set_sums(num_sets: int) -> SetSums:
    """Room for so many sets."""
    return SetSums(
        np.empty(num_sets, np.int64), np.empty(num_sets, np.int64), np.empty(num_sets, np.int64),
        np.empty(num_sets, np.int64), np.empty(num_sets, np.float64), np.empty(num_sets, np.float64),
        np.empty(num_sets, np.float64), np.empty(num_sets, np.float64),
        np.empty(num_sets, np.int64), np.empty(num_sets, np.int64), np.empty(num_sets, np.float64),
    )  # fmt: skip


class Rates(NamedTuple):
    """Constants of a partition: bytes of an element, times of a byte, a step and a visit in us."""

    a_size: float
    b_size: float
    s_size: float
    store_size: float  # bytes of C as DRAM counts them: a written one as many read ones as take as long
    partial_size: float  # one spill and one refill
    a_per_share: float
    b_per_share: float
    c_per_share: float
    per_port: float
    c_per_port: float
    step_us: float  # one step along m: all steps along n and k
    cube_us: float  # one step of the matrix unit
    visit_us: float
    vector_us: float  # of an element of B


@kernel
def rates_of(p: Any, chip: Block) -> Rates:
    """Work out the constants of a partition."""
    cube_us = 1.0 / p["steps_per_cycle"] / p["cycles_per_us"]
    vector_us = 0.0
    if p["has_dequant_copy"]:
        vector_us = p["dequant_ops_per_elem"] / p["vector_ops_per_cycle"] / p["cycles_per_us"]
    # what a memory between DRAM and SRAM keeps is not bounded here: no more than all of it
    passes = 0.0 if p["has_shared"] else 1.0
    a_dram, b_dram, c_dram = passes * p["a_dram"], passes * p["b_dram"], passes * p["c_dram"]
    return Rates(
        p["a_half_bits"] / 16.0, p["b_half_bits"] / 16.0, p["group_half_bits"] / 16.0,
        store_half_bits(p, chip.E_K) / 16.0 * chip.write_cost, p["spill_half_bits"] / 16.0 * (1.0 + chip.write_cost),
        a_dram / ((chip.E_N if p["is_multicast"] else 1) * chip.dram_share), b_dram / chip.dram_share,
        c_dram / chip.dram_share, 1.0 / p["noc_bytes_per_us"],
        p["c_dram"] / max(1.0, chip.write_cost) / p["noc_bytes_per_us"],
        cube_us * ceil_div(chip.n, p["cube_n"]) * ceil_div(chip.k, p["cube_k"]), cube_us,
        p["fill_drain_cycles"] / p["cycles_per_us"], vector_us,
    )  # fmt: skip


@kernel
def set_floor(p: Any, chip: Block, rows: Any, P_M: int, spread: Spread, which: int) -> CoreCost:
    """Return the least cost of the slowest core of a set for any tile and order: all moves once, the tile is smallest.

    Rounded as costs are, so that a mapping which attains it costs the same to the bit.
    """
    first = spread.starts[which]
    largest = run_block(chip, rows[spread.sizes[first]], spread.counts[first], P_M)
    sums = _sums_once(p, largest)
    for run in range(first + 1, spread.starts[which + 1]):
        sums = add_sums(sums, _sums_once(p, run_block(chip, rows[spread.sizes[run]], spread.counts[run], P_M)))
    tile_m = min(p["cube_m"], largest.m)
    return cost_of_sums(p, largest, sums, tile_m, min(p["cube_n"], chip.n), min(p["unit_k"], chip.k), -1.0)


@kernel
def _sums_once(p: Any, blk: Block) -> CoreSums:
    return core_sums(p, blk, blk.g, blk.m, blk.n, blk.k, 1, 1, 1, 1, 1, 1)


@kernel
def fill_set_sums(
    p: Any, chip: Block, rows: Any, P_M: int, spread: Spread, which: int, floor: CoreCost, sums: SetSums
) -> None:
    """Fill the sums of one set that do not depend on the tile; `floor` is its `set_floor`."""
    groups = num_rows = steps = 0
    shared = 0.0
    for run in range(spread.starts[which], spread.starts[which + 1]):
        size = rows[spread.sizes[run]]
        count = spread.counts[run]
        m = ceil_div(size, P_M)
        groups += count
        num_rows += count * m
        steps += count * ceil_div(m, p["cube_m"])
        shared += count / parts_of(size, P_M) if p["is_multicast"] else float(count)
    size = rows[spread.sizes[spread.starts[which]]]
    sums.groups[which] = groups
    sums.rows[which] = num_rows
    sums.largest[which] = ceil_div(size, P_M)
    sums.steps[which] = steps
    sums.shared[which] = shared
    sums.largest_shared[which] = 1.0 / parts_of(size, P_M) if p["is_multicast"] else 1.0
    sums.red_us[which] = floor.red_dram_us + floor.red_noc_us + floor.red_add_us + floor.sync_us + floor.pack_us
    sums.red_bytes[which] = floor.red_dram_us * chip.dram_share


@kernel
def fill_tile_sums(p: Any, rows: Any, P_M: int, spread: Spread, num_sets: int, tile_m: int, sums: SetSums) -> None:
    """Fill the sums of all sets that depend on tile_m."""
    for which in range(num_sets):
        trips = one_trip_rows = 0
        shared_trips = 0.0
        for run in range(spread.starts[which], spread.starts[which + 1]):
            size = rows[spread.sizes[run]]
            count = spread.counts[run]
            m = ceil_div(size, P_M)
            T_m = ceil_div(m, tile_m)
            trips += count * T_m
            if T_m == 1:
                one_trip_rows += count * m
            shared_trips += float(count * T_m) / (parts_of(size, P_M) if p["is_multicast"] else 1)
        sums.trips[which] = trips
        sums.one_trip_rows[which] = one_trip_rows
        sums.shared_trips[which] = shared_trips


@kernel
def _moved_us(r: Rates, a: float, shared_b: float, b: float, c: float) -> float:
    """Time to move these bytes; `shared_b` those of B, each by the cores that share it."""
    charged_us = a * r.a_per_share + shared_b * r.b_per_share + c * r.c_per_share
    return max(charged_us, (a + b) * r.per_port + c * r.c_per_port)


@kernel
def set_bound(
    p: Any, chip: Block, r: Rates, sums: SetSums, which: int, order: int, T_n: int, T_k: int,
    tile_m: int, tile_n: int, tile_k: int,
) -> tuple[float, float]:  # fmt: skip
    """Latency and bytes that the slowest core of a set is not below: its cost, but for the rounding of bytes.

    More trips of k take no less, and neither does a larger tile_k of as many trips, so with too few trips and too small
    a tile it bounds them all.
    """
    n = chip.n
    k = chip.k
    one_a, _, one_c = reload_factors(order, 1, T_n, T_k)
    more_a, more_b, more_c = reload_factors(order, 2, T_n, T_k)
    one_rows = float(sums.one_trip_rows[which])
    more_rows = sums.rows[which] - one_rows
    a = k * r.a_size * (one_rows * one_a + more_rows * more_a)
    loads_b = sums.groups[which]
    shared_b = sums.shared[which]
    if more_b > 1:
        loads_b = sums.trips[which]
        shared_b = sums.shared_trips[which]
    b_size = k * n * r.b_size
    if p["is_quantized"]:
        b_size += scale_rows(p, k, T_k) * n * r.s_size
    b = loads_b * b_size
    spilled = one_rows * (one_c - 1) + more_rows * (more_c - 1)
    c = n * (sums.rows[which] * r.store_size + r.partial_size * spilled)
    charged_us = a * r.a_per_share + shared_b * b_size * r.b_per_share + c * r.c_per_share
    dma_us = _moved_us(r, a, shared_b * b_size, b, c)

    visits = float(sums.trips[which]) * T_n * T_k
    compute_us = sums.steps[which] * r.step_us + visits * r.visit_us
    vector_us = loads_b * float(k * n) * r.vector_us
    compute_us = max(compute_us, vector_us) if p["vector_is_concurrent"] else compute_us + vector_us

    tile_m = min(tile_m, sums.largest[which])
    lead_a = tile_m * tile_k * r.a_size
    lead_b = tile_k * tile_n * r.b_size
    if p["is_quantized"]:
        lead_b += scale_rows(p, tile_k, 1) * tile_n * r.s_size
    shared_lead = sums.largest_shared[which] * lead_b
    if p["is_pipeline"]:  # the first loads come before all computation, bytes are not rounded
        first_us = _moved_us(r, lead_a, shared_lead, lead_b, 0.0)
        main_us = max(compute_us + first_us, dma_us)
        if p["output_buffers"] == 1:  # nothing hides behind an exchange of C tiles
            loads_us = _moved_us(r, a, shared_b * b_size, b, 0.0)
            main_us = max(compute_us + first_us, loads_us) + max(c * r.c_per_share, c * r.c_per_port)
    else:
        tail = tile_m * tile_n * r.store_size if p["output_buffers"] == 2 else c
        loads_us = _moved_us(r, a, shared_b * b_size, b, tail)
        lead_us = loads_us
        if p["input_buffers"] == 2:
            lead_us = _moved_us(r, lead_a, shared_lead, lead_b, tail)
        steps = ceil_div(tile_m, p["cube_m"]) * ceil_div(tile_n, p["cube_n"]) * ceil_div(tile_k, p["cube_k"])
        best_us = max(dma_us, compute_us + lead_us, steps * r.cube_us + r.visit_us + loads_us)
        main_us = (1.0 - p["overlap_frac"]) * (compute_us + dma_us) + p["overlap_frac"] * best_us
    latency_us = (p["launch_us"] + main_us + sums.red_us[which]) * (1.0 - plain.BOUND_SLACK)
    moved_bytes = chip.active_cores * (charged_us * chip.dram_share + sums.red_bytes[which]) * (1.0 - plain.BOUND_SLACK)
    return latency_us, moved_bytes


@kernel
def chip_bound(
    p: Any, chip: Block, r: Rates, sums: SetSums, num_sets: int, slowest: int, order: int, T_n: int, T_k: int,
    tile_m: int, tile_n: int, tile_k: int, worst_us: float, worst_bytes: float,
) -> float:  # fmt: skip
    """Latency that no such candidate is below; inf where a set is above the worst. `slowest` is asked first."""
    bound_us, bound_bytes = set_bound(p, chip, r, sums, slowest, order, T_n, T_k, tile_m, tile_n, tile_k)
    if bound_us > worst_us or bound_bytes > worst_bytes:
        return np.inf
    for which in range(num_sets):
        if which != slowest:
            us, moved = set_bound(p, chip, r, sums, which, order, T_n, T_k, tile_m, tile_n, tile_k)
            if us > worst_us or moved > worst_bytes:
                return np.inf
            bound_us = max(bound_us, us)
    return bound_us


@kernel
def _least_loads(
    m: int, T_m: int, a: float, b: float, spill: float, floor_T_k: float, trips_mn: float, trips_mk: float,
    trips_nk: float,
) -> float:  # fmt: skip
    """Least time to load A and B of one group and to spill its C; T_m 0: of any tile; the first two trips a row."""
    if T_m == 0:
        return plain.least_loads(a, b, spill, trips_mn * m, trips_mk * m, trips_nk)
    return plain.least_loads_beside(a, b, spill, T_m, 1, floor_T_k, trips_mk * m, trips_nk)


@kernel
def sram_bound_us(
    p: Any, chip: Block, r: Rates, sums: SetSums, rows: Any, P_M: int, spread: Spread, which: int, tile_m: int
) -> float:
    """Return a latency of a set that no tiles of n and k and no order beat, as operands share SRAM; tile_m 0: any."""
    trips_mn, trips_mk, trips_nk = plain.least_trips(p, chip)
    trips_mn /= chip.m
    trips_mk /= chip.m
    floor_T_k = 1.0
    if tile_m > 0:
        floor_T_k = plain.least_trips_k(p, chip, tile_m, min(p["cube_n"], chip.n))
        if floor_T_k == np.inf:
            return np.inf
    a_size = chip.k * r.a_size
    b_size = chip.k * chip.n * r.b_size
    if p["is_quantized"]:
        b_size += scale_rows(p, chip.k, 1) * chip.n * r.s_size
    spill_size = r.partial_size * chip.n
    dma_us = sums.rows[which] * chip.n * r.store_size * r.c_per_share
    port_us = sums.rows[which] * chip.n * r.store_size * r.c_per_port
    for run in range(spread.starts[which], spread.starts[which + 1]):
        size = rows[spread.sizes[run]]
        count = spread.counts[run]
        m = ceil_div(size, P_M)
        T_m = ceil_div(m, tile_m) if tile_m > 0 else 0
        shared = 1.0 / parts_of(size, P_M) if p["is_multicast"] else 1.0
        dma_us += count * _least_loads(
            m, T_m, m * a_size * r.a_per_share, shared * b_size * r.b_per_share, m * spill_size * r.c_per_share,
            floor_T_k, trips_mn, trips_mk, trips_nk,
        )  # fmt: skip
        if r.per_port > 0.0:
            port_us += count * _least_loads(
                m, T_m, m * a_size * r.per_port, b_size * r.per_port, m * spill_size * r.c_per_port,
                floor_T_k, trips_mn, trips_mk, trips_nk,
            )  # fmt: skip
    dma_us = max(dma_us, port_us)
    visits = sums.trips[which] * floor_T_k if tile_m > 0 else float(sums.groups[which])
    compute_us = sums.steps[which] * r.step_us + visits * r.visit_us
    overlap = 1.0 if p["is_pipeline"] else p["overlap_frac"]
    main_us = (1.0 - overlap) * (compute_us + dma_us) + overlap * max(compute_us, dma_us)
    return (p["launch_us"] + main_us + sums.red_us[which]) * (1.0 - plain.BOUND_SLACK)


class CutRows(NamedTuple):
    """Numbers by how many cores along M share the rows of each group; float64 or int64 [num_cores + 1]."""

    is_known: Any  # bool
    is_tight: Any  # bool, one core less along M would cut other blocks
    rows: Any  # int64, rows of the full blocks of all groups
    steps: Any  # int64, their steps of the matrix unit along m
    parts: Any  # int64, E_M of all groups, added up


@kernel
def new_cut_rows(num_cores: int) -> CutRows:
    """Nothing known yet."""
    size = num_cores + 1
    return CutRows(
        np.zeros(size, np.bool_), np.empty(size, np.bool_),
        np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64),
    )  # fmt: skip


@kernel
def cut_rows(p: Any, rows: Any, counts: Any, P_M: int, cut: CutRows) -> None:
    """Fill in what follows from P_M."""
    if cut.is_known[P_M]:
        return
    num_rows = steps = parts = 0
    is_tight = P_M == 1
    for size in range(rows.shape[0]):
        m = ceil_div(rows[size], P_M)
        num_rows += counts[size] * m
        steps += counts[size] * ceil_div(m, p["cube_m"])
        parts += counts[size] * ceil_div(rows[size], m)
        is_tight = is_tight or ceil_div(rows[size], P_M - 1) != m
    cut.is_known[P_M] = True
    cut.is_tight[P_M] = is_tight
    cut.rows[P_M] = num_rows
    cut.steps[P_M] = steps
    cut.parts[P_M] = parts


@kernel
def floor_us_of_cut(
    p: Any, blk: Block, K: int, N: int, P_M: int, num_sets: int, num_groups: int, all_rows: int,
    of_cut: tuple[int, int, int],
) -> float:  # fmt: skip
    """Return a latency that no spread of the groups over `num_sets` sets of cores beats; the reduction does not count.

    The slowest set has at least the mean of all work, and of all traffic of a core where each has a fixed bandwidth.
    Where active cores share it, all that the chip moves passes through all of it. `blk` is `block_of` the largest group
    alone, `of_cut` rows, steps and parts of `CutRows`.
    """
    rows, steps, parts = of_cut
    a_size = p["a_half_bits"] / 16.0
    b_size = p["b_half_bits"] / 16.0
    store_size = store_half_bits(p, blk.E_K) / 16.0 * p["c_dram"]
    store_size *= min(1.0, p["dram_bytes_per_us"] / p["write_bytes_per_us"])  # as cheap as writes can be
    if p["has_shared"]:
        a_size = b_size = store_size = 0.0  # not bounded here
    a_size *= p["a_dram"]
    b_size *= p["b_dram"]
    if p["is_fair"]:
        is_shared = p["is_multicast"]
        a = float(all_rows) * K * a_size * (1 if is_shared else blk.E_N)
        b = float(K) * N * b_size * (num_groups if is_shared else parts)
        c = float(all_rows) * N * store_size * blk.E_K
        dma_us = (a + b + c) / p["dram_bytes_per_us"]
    else:
        share = min(p["dram_bytes_per_us"] / p["num_cores"], p["dram_core_limit_bytes_per_us"])
        a = float(rows) * blk.k * a_size / (blk.E_N if p["is_multicast"] else 1)
        b = float(num_groups) * blk.k * blk.n * b_size / (P_M if p["is_multicast"] else 1)
        c = float(rows) * blk.n * store_size
        dma_us = (a + b + c) / num_sets / share
    step_cycles = float(ceil_div(blk.n, p["cube_n"])) * ceil_div(blk.k, p["cube_k"]) / p["steps_per_cycle"]
    of_largest = ceil_div(blk.m, p["cube_m"]) * step_cycles + p["fill_drain_cycles"]
    of_mean = (steps * step_cycles + num_groups * p["fill_drain_cycles"]) / num_sets
    compute_us = max(of_largest, of_mean) / p["cycles_per_us"]
    # one set may compute the most and another one move the most, so the two do not add up
    return (p["launch_us"] + max(compute_us, dma_us)) * (1.0 - 1e-9)
