"""Numba kernels of the multi-core cost model: closed-form counts, SRAM, times and the cost of one mapping.

The terms are defined in MODEL.md. A kernel sees scalars, one record `p` of `params.PARAMS_DTYPE`, and NamedTuples of
scalars. Sizes g, m, n, k are those of one core's block; T_m, T_n, T_k are trip counts of the tile loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gemm_eval.jit import entry_point, inlined_kernel, kernel
from gemm_eval.models.multicore import pipeline_kernels as pipelines
from gemm_eval.models.multicore.pipeline_kernels import (
    Traffic,
    bytes_of,
    ceil_div,
    reload_factors,
    scale_rows,
    store_half_bits,
)
from gemm_eval.models.multicore.terms import BOUNDS, MAIN, PHASES, TERMS, Times

_INTS = (
    "P_G", "P_M", "P_N", "P_K", "tile_m", "tile_n", "tile_k", "loop_order", "active_cores", "visits", "sram_used_bytes",
    "dram_bytes", "a_bytes", "b_bytes", "scale_bytes", "c_store_bytes", "c_spill_bytes", "c_refill_bytes",
    "reduction_bytes", "core_bytes", "bound",
    "num_candidates", "num_refused_sram", "num_partitions", "num_partitions_bounded", "num_partitions_dropped",
)  # fmt: skip
_FLOATS = (
    "latency_us", "main_us", "compute_us", "dma_us", "dram_us", "shared_us", "noc_us", "feed_us", "reduction_us",
    "hidden_us", "busiest_core_bytes", "correction_us", "low_frac", "high_frac", "energy_pj",
)  # fmt: skip

COST_DTYPE = np.dtype(
    [(name, np.int64) for name in _INTS] + [(name, np.float64) for name in (*_FLOATS, *Times._fields)]
)
"""The cost of one mapping. Bytes are chip totals; times are those of the slowest core; energy_pj is nan if unknown;
`bound` is an index into `BOUNDS`; the counts at the end are those of the search that found the mapping. Kernels
leave `correction_us` 0, and the factors to the ends of the interval: a correction is part of an answer, and no part of
the search."""

_BOUND_CODE = {name: code for code, name in enumerate(BOUNDS)}
_COMPUTE, _VECTOR, _DRAM, _SHARED, _NOC, _FEED = (
    _BOUND_CODE[name] for name in ("compute", "vector", "dram", "shared", "noc", "feed")
)  # fmt: skip
_MAIN = PHASES.index(MAIN)
_PHASE_OF = tuple(PHASES.index(TERMS[name].phase) for name in Times._fields)
_BOUND_OF_PHASE = tuple(_COMPUTE if name == MAIN else _BOUND_CODE[name] for name in PHASES)


class Block(NamedTuple):
    """The full block of a core, the effective counts of cores along each dimension, and its bandwidths."""

    g: int
    m: int
    n: int
    k: int
    E_G: int
    E_M: int
    E_N: int
    E_K: int
    active_cores: int
    dram_share: float  # bytes per us of one core
    write_cost: float  # time of a written byte in DRAM by that of a read one
    shared_share: float  # the same of the memory between DRAM and SRAM; inf without one


class CoreSums(NamedTuple):
    """Bytes and steps of one core for equal batch elements, or added up over groups of different rows."""

    a_bytes: int
    b_elems: int
    b_bytes: int
    s_bytes: int
    b_charged: float  # bytes of B and S by the number of cores that share them
    store_bytes: int
    spill_bytes: int
    steps: int
    fills: int  # loads of a block of B into the matrix unit
    visits: int
    red_dram_bytes: float  # a written byte counts as many read ones as take as long
    red_noc_bytes: int
    red_adds: int
    a_once: int  # bytes of A, and of B and S, if each were loaded once
    b_once: int
    b_unique: float  # `b_once` by the number of cores that need the same
    partial_bytes: int  # of all partial sums at once
    pack_bytes: float  # copied before the main loop; those that count twice twice
    tasks: int


class CoreCost(NamedTuple):
    """Times of one core in us, bytes charged to it, and what leads to them."""

    latency_us: float
    busiest_bytes: float  # chip-wide upper bound: active cores times the DRAM bytes of this one
    visits: int
    a_bytes: int
    b_bytes: int
    s_bytes: int
    loads: Traffic
    c: Traffic
    a_dram: float  # DRAM bytes of A, of B with S, and of C, each by the number of cores that share them
    b_dram: float
    c_dram: float
    kept_frac: float  # see `kept_frac_of`
    store_bytes: int
    spill_bytes: int
    main_us: float
    compute_us: float
    cube_us: float
    fill_drain_us: float
    vector_us: float
    dram_us: float
    shared_us: float
    noc_us: float
    feed_us: float
    sync_us: float
    pack_us: float
    tasks_us: float  # to start tasks after the first
    red_dram_us: float
    red_noc_us: float
    red_add_us: float
    busy_us: float  # the latency, but for what a queue makes it wait


@entry_point
def block_of(p: Any, G: int, M: int, K: int, N: int, P_G: int, P_M: int, P_N: int, P_K: int) -> Block:
    """Full block and effective core counts of a partition."""
    g = ceil_div(G, P_G)
    m = ceil_div(M, P_M)
    n = ceil_div(N, P_N)
    q = max(p["group_size"], 1)  # a quantization group is never split over cores
    k = min(K, ceil_div(ceil_div(K, q), P_K) * q)
    E_G = ceil_div(G, g)
    E_M = ceil_div(M, m)
    E_N = ceil_div(N, n)
    E_K = ceil_div(K, k)
    active = E_G * E_M * E_N * E_K
    share, write_cost, shared_share = shares_of(p, active)
    return Block(g, m, n, k, E_G, E_M, E_N, E_K, active, share, write_cost, shared_share)


@inlined_kernel
def shares_of(p: Any, active_cores: int) -> tuple[float, float, float]:
    """Return what of a `Block` follows from its active cores: its share of DRAM, and the last two."""
    share = min(
        p["dram_bytes_per_us"] / (active_cores if p["is_fair"] else p["num_cores"]), p["dram_core_limit_bytes_per_us"]
    )
    shared_share = math.inf
    if p["has_shared"]:
        shared_share = p["shared_bytes_per_us"] / (active_cores if p["is_fair"] else p["num_cores"])
    return share, write_cost_of(p, active_cores, share), shared_share


@inlined_kernel
def write_cost_of(p: Any, active_cores: int, dram_share: float) -> float:
    """Time of a written byte in DRAM by that of a read one, where a core reads at `dram_share`."""
    if p["write_bytes_per_us"] == p["dram_bytes_per_us"]:
        return 1.0
    share = p["write_bytes_per_us"] / (active_cores if p["is_fair"] else p["num_cores"])
    return dram_share / min(share, p["dram_core_limit_bytes_per_us"])


@kernel
def padded_tile_bytes(p: Any, rows: int, row_half_bits: int) -> int:
    """SRAM bytes of a tile: rows padded to the lanes, row bytes to the alignment."""
    lanes = p["lane_num"]
    align = p["align_bytes"]
    row_bytes = (row_half_bits + 15) >> 4
    return ceil_div(rows, lanes) * lanes * (ceil_div(row_bytes, align) * align)


@entry_point
def sram_used_bytes(p: Any, tile_m: int, tile_n: int, tile_k: int) -> int:
    """SRAM bytes that the tiles of one core occupy, buffers included."""
    a = padded_tile_bytes(p, tile_m, tile_k * p["a_half_bits"])
    b = padded_tile_bytes(p, tile_k, tile_n * p["b_half_bits"])
    c = padded_tile_bytes(p, tile_m, tile_n * p["acc_half_bits"])
    copy = 0
    if p["is_quantized"]:
        groups = ceil_div(tile_k, p["group_size"]) if p["group_size"] > 0 else 1
        b += padded_tile_bytes(p, groups, tile_n * p["group_half_bits"])
        if p["has_dequant_copy"]:
            copy = padded_tile_bytes(p, tile_k, tile_n * p["a_half_bits"])
    return p["a_buffers"] * a + p["b_buffers"] * b + copy + p["c_buffers"] * c


@inlined_kernel
def core_cost(
    p: Any, blk: Block, g: int, m: int, n: int, k: int, tile_m: int, tile_n: int, tile_k: int,
    T_m: int, T_n: int, T_k: int, f_a: int, f_b: int, f_c: int, pipeline_us: float,
) -> CoreCost:  # fmt: skip
    """Cost of one core with block (g, m, n, k), which is that of `blk` or, at the edge, smaller.

    Trip counts and reload factors are given, so that a search can ask for the bound in which every operand moves once
    and the first and last tiles are small. The tile sizes do not exceed the block.
    `pipeline_us` is the main loop's time under pipeline timing; negative asks for a bound on it, perfect overlap.
    """
    sums = core_sums(p, blk, g, m, n, k, T_m, T_n, T_k, f_a, f_b, f_c)
    return cost_of_sums(p, blk, sums, tile_m, tile_n, tile_k, pipeline_us)


@inlined_kernel
def core_sums(
    p: Any, blk: Block, g: int, m: int, n: int, k: int, T_m: int, T_n: int, T_k: int, f_a: int, f_b: int, f_c: int
) -> CoreSums:
    """Bytes and steps of a core for g batch elements; of `blk` only E_M and E_K count. See `core_cost`."""
    a_bytes = bytes_of(g * m * k * f_a, p["a_half_bits"])
    b_elems = g * k * n * f_b
    b_bytes = bytes_of(b_elems, p["b_half_bits"])
    s_bytes = 0
    if p["is_quantized"]:
        s_bytes = bytes_of(g * scale_rows(p, k, T_k) * n * f_b, p["group_half_bits"])
    c_elems = g * m * n
    store_bytes = bytes_of(c_elems, store_half_bits(p, blk.E_K))
    spill_bytes = bytes_of(c_elems * (f_c - 1), p["spill_half_bits"])
    b_charged = (b_bytes + s_bytes) / blk.E_M if p["is_multicast"] else float(b_bytes + s_bytes)

    # what is exchanged between the cores that split K
    red_dram_bytes = 0.0
    red_noc_bytes = 0
    red_adds = 0
    if blk.E_K > 1:
        part = ceil_div(c_elems, blk.E_K)
        red_dram_bytes = bytes_of(part, p["c_half_bits"]) * blk.write_cost * p["c_dram"]
        if p["reduction"] == 1:
            red_dram_bytes += bytes_of(blk.E_K * part, p["spill_half_bits"])
        else:
            red_noc_bytes = bytes_of((blk.E_K - 1) * part, p["spill_half_bits"])
        red_adds = (blk.E_K - 1) * part
    blocks_b = ceil_div(n, p["cube_n"]) * ceil_div(k, p["cube_k"])
    steps = g * ceil_div(m, p["cube_m"]) * blocks_b
    a_once = b_once = partial_bytes = 0
    b_unique = pack_bytes = 0.0
    if p["has_shared"] or p["a_packing"] or p["b_packing"]:
        a_once = bytes_of(g * m * k, p["a_half_bits"])
        b_once = bytes_of(g * k * n, p["b_half_bits"])
        if p["is_quantized"]:
            b_once += bytes_of(g * scale_rows(p, k, 1) * n, p["group_half_bits"])
        partial_bytes = bytes_of(c_elems, p["spill_half_bits"])
        b_unique = b_once / blk.E_M
        near_bytes = g * p["pack_near_bytes"]
        pack_bytes = _packed_bytes(p["a_packing"], a_once, blk.E_N, near_bytes)
        pack_bytes += _packed_bytes(p["b_packing"], b_once, blk.E_M, near_bytes)
    return CoreSums(
        a_bytes, b_elems, b_bytes, s_bytes, b_charged, store_bytes, spill_bytes,
        steps, g * T_m * blocks_b, g * T_m * T_n * T_k, red_dram_bytes, red_noc_bytes, red_adds,
        a_once, b_once, b_unique, partial_bytes, pack_bytes, g * T_m,
    )  # fmt: skip


@inlined_kernel
def _packed_bytes(packing: int, block_bytes: int, num_cores: int, near_bytes: float) -> float:
    """Bytes that a core packs of its block of an operand, which so many need; what lies beyond near ones twice."""
    if packing == 0:
        return 0.0
    own = block_bytes / num_cores if packing == 2 else float(block_bytes)
    return own + max(0.0, own - near_bytes)


@inlined_kernel
def a_charged_of(p: Any, blk: Block, sums: CoreSums) -> float:
    """Bytes of all loads of A, by the number of cores that share them, as the memory below a core counts them."""
    return (sums.a_bytes / blk.E_N if p["is_multicast"] else float(sums.a_bytes)) * p["a_dram"]


@inlined_kernel
def kept_frac_of(p: Any, blk: Block, sums: CoreSums, a_charged: float) -> float:
    """Part of all reloads from DRAM that the memory between DRAM and SRAM keeps: MODEL.md, "Shared memory"."""
    if not p["has_shared"]:
        return 0.0
    kept_bytes = 0.0
    if a_charged > sums.a_once / blk.E_N:
        kept_bytes += sums.a_once / blk.E_N * p["a_dram"]
    if sums.b_charged > sums.b_unique:
        kept_bytes += sums.b_unique * p["b_dram"]
    if sums.spill_bytes > 0:
        kept_bytes += sums.partial_bytes * p["c_dram"]
    room = p["shared_bytes"] / blk.active_cores
    return 1.0 if kept_bytes <= room else room / kept_bytes


@inlined_kernel
def dram_bytes_of(p: Any, blk: Block, sums: CoreSums, kept_frac: float) -> tuple[float, float, float]:
    """Bytes that DRAM gives a core of A, and of B and S, and takes of spills, where this part of reloads is kept."""
    a = a_charged_of(p, blk, sums)
    b = sums.b_charged * p["b_dram"]
    spill = sums.spill_bytes * p["c_dram"]
    if kept_frac > 0.0:
        # in this order it never rounds to less than all of it once, which bounds count on
        a_once = sums.a_once / blk.E_N * p["a_dram"]
        b_once = sums.b_unique * p["b_dram"]
        a = a_once + (1.0 - kept_frac) * (a - a_once)
        b = b_once + (1.0 - kept_frac) * (b - b_once)
        spill *= 1.0 - kept_frac
    return a, b, spill


@inlined_kernel
def cost_of_sums(
    p: Any, blk: Block, sums: CoreSums, tile_m: int, tile_n: int, tile_k: int, pipeline_us: float
) -> CoreCost:
    """Cost of one core that moves and computes this; tiles are cut to its largest block, shares are those of `blk`."""
    a_charged = a_charged_of(p, blk, sums)
    kept_frac = kept_frac_of(p, blk, sums, a_charged)
    a_dram, b_dram, spill_dram = dram_bytes_of(p, blk, sums, kept_frac)
    shared_bytes = a_charged + sums.b_charged * p["b_dram"]
    loads = Traffic(a_dram + b_dram, shared_bytes, float(sums.a_bytes + sums.b_bytes + sums.s_bytes))
    c = pipelines.c_traffic(p, blk, float(sums.store_bytes), float(sums.spill_bytes))
    if kept_frac > 0.0:
        c = Traffic(pipelines.c_traffic(p, blk, float(sums.store_bytes), spill_dram).dram, c.shared, c.port)
    moved = pipelines.add_traffic(loads, c)
    dram_us = moved.dram / blk.dram_share
    shared_us = moved.shared / blk.shared_share if p["has_shared"] else 0.0
    noc_us = 0.0
    if p["has_noc"]:
        noc_us = moved.port / p["noc_bytes_per_us"]
    feed_us = sums.steps * p["feed_us_per_step"]
    all_dma_us = max(pipelines.traffic_us(p, blk, moved), feed_us)

    step_cycles = sums.steps / p["steps_per_cycle"]
    fill_drain = sums.visits * p["fill_drain_cycles"] + sums.fills * p["weight_load_cycles"]
    cube_cycles = step_cycles + fill_drain
    vector_cycles = 0.0
    if p["has_dequant_copy"]:
        vector_cycles = sums.b_elems * p["dequant_ops_per_elem"] / p["vector_ops_per_cycle"]
    cycles = max(cube_cycles, vector_cycles) if p["vector_is_concurrent"] else cube_cycles + vector_cycles
    compute_us = cycles / p["cycles_per_us"]

    red_dram_us = 0.0
    red_noc_us = 0.0
    red_add_us = 0.0
    if blk.E_K > 1:
        red_dram_us = sums.red_dram_bytes / blk.dram_share
        if p["reduction"] != 1:
            red_noc_us = sums.red_noc_bytes / p["noc_bytes_per_us"]
        red_add_us = sums.red_adds / p["vector_ops_per_cycle"] / p["cycles_per_us"]

    if not p["is_pipeline"]:
        main_us = pipelines.overlap_main_us(p, blk, loads, c, compute_us, all_dma_us, tile_m, tile_n, tile_k)
    elif pipeline_us < 0.0:
        # the pipeline counts unrounded bytes and adds up step by step: stay below both roundings
        rounding_us = 8.0 / blk.dram_share + 8.0 / p["noc_bytes_per_us"]
        main_us = max(compute_us, all_dma_us - rounding_us) * (1.0 - 1e-9)
    else:
        main_us = pipeline_us
    pack_us = sums.pack_bytes / p["pack_bytes_per_us"] if sums.pack_bytes > 0.0 else 0.0
    return whole_cost(
        p, blk, sums.visits, sums.tasks, sums.a_bytes, sums.b_bytes, sums.s_bytes, loads, c, a_dram, b_dram, kept_frac,
        sums.store_bytes, sums.spill_bytes,
        main_us, compute_us, step_cycles / p["cycles_per_us"], fill_drain / p["cycles_per_us"],
        vector_cycles / p["cycles_per_us"], dram_us, shared_us, noc_us, feed_us, pack_us,
        sums.red_dram_bytes, red_dram_us, red_noc_us, red_add_us,
    )  # fmt: skip


@inlined_kernel
def whole_cost(
    p: Any, blk: Any, visits: int, tasks: int, a_bytes: int, b_bytes: int, s_bytes: int, loads: Traffic, c: Traffic,
    a_dram: float, b_dram: float, kept_frac: float, store_bytes: int, spill_bytes: int, main_us: float,
    compute_us: float, cube_us: float, fill_drain_us: float, vector_us: float, dram_us: float, shared_us: float,
    noc_us: float, feed_us: float, pack_us: float, red_dram_bytes: float, red_dram_us: float, red_noc_us: float,
    red_add_us: float,
) -> CoreCost:  # fmt: skip
    """Cost of one core whose main loop and reduction take this, with what is around them: MODEL.md, "Latency"."""
    sync_us = p["sync_us"] if blk.active_cores > 1 else 0.0
    latency_us = p["launch_us"] + main_us + (red_dram_us + red_noc_us + red_add_us)
    latency_us += sync_us + pack_us
    tasks_us = (tasks - 1) * p["task_us"]
    latency_us += tasks_us
    moved_dram = loads.dram + c.dram
    return CoreCost(
        max(latency_us, p["launch_floor_us"]), blk.active_cores * (moved_dram + red_dram_bytes), visits,
        a_bytes, b_bytes, s_bytes, loads, c, a_dram, b_dram, c.dram, kept_frac, store_bytes, spill_bytes,
        main_us, compute_us, cube_us, fill_drain_us, vector_us, dram_us, shared_us, noc_us, feed_us,
        sync_us, pack_us, tasks_us,
        red_dram_us, red_noc_us, red_add_us,
        latency_us,
    )  # fmt: skip


@kernel
def clear_totals(out: Any) -> None:
    """Set the bytes of the record `out` to 0, whatever it held: `add_totals` adds to them."""
    out["a_bytes"] = 0
    out["b_bytes"] = 0
    out["scale_bytes"] = 0
    out["reduction_bytes"] = 0
    out["c_store_bytes"] = 0
    out["c_spill_bytes"] = 0
    out["core_bytes"] = 0


@kernel
def add_totals(
    p: Any, blk: Block, g: int, num_sets: int, num_rows: int, K: int, N: int, tile_m: int, tile_n: int, tile_k: int,
    order: int, kept_frac: float, out: Any,
) -> int:  # fmt: skip
    """Add to the bytes of `out` what sets of cores move for g groups of so many rows each; return their cube steps.

    The cores of a set, E_M*E_N*E_K of `blk`, share the rows of its groups; `kept_frac` is that of its full block.
    """
    edge_m = num_rows - (blk.E_M - 1) * blk.m
    edge_n = N - (blk.E_N - 1) * blk.n
    edge_k = K - (blk.E_K - 1) * blk.k
    full_T_m = ceil_div(blk.m, tile_m)
    full_T_n = ceil_div(blk.n, tile_n)
    steps = 0
    # Along each dimension E-1 blocks are full (index 0) and the last (index 1) is what remains.
    for im in range(2):
        num_m = num_sets * (blk.E_M - 1 if im == 0 else 1)
        m = blk.m if im == 0 else edge_m
        T_m = ceil_div(m, tile_m)
        for in_ in range(2):
            num_n = blk.E_N - 1 if in_ == 0 else 1
            n = blk.n if in_ == 0 else edge_n
            T_n = ceil_div(n, tile_n)
            for ik in range(2):
                num_k = blk.E_K - 1 if ik == 0 else 1
                k = blk.k if ik == 0 else edge_k
                num = num_m * num_n * num_k
                if num == 0:
                    continue
                T_k = ceil_div(k, tile_k)
                f_a, f_b, f_c = reload_factors(order, T_m, T_n, T_k)
                sums = core_sums(p, blk, g, m, n, k, T_m, T_n, T_k, f_a, f_b, f_c)
                steps += num * sums.steps
                out["core_bytes"] += num * (sums.a_bytes + sums.b_bytes + sums.s_bytes)
                if blk.E_K > 1 or not p["c_is_resident"]:
                    out["core_bytes"] += num * sums.store_bytes
                    out["c_store_bytes"] += num * sums.store_bytes
                if not p["c_is_resident"]:
                    out["core_bytes"] += num * 2 * sums.spill_bytes
                    out["c_spill_bytes"] += spilled_total(num, sums.spill_bytes, kept_frac)
                if p["has_shared"]:
                    a_dram, b_dram, _ = dram_bytes_of(p, blk, sums, kept_frac)
                    out["a_bytes"] += dram_total(num, a_dram)
                    out["b_bytes"] += dram_total(num, b_dram)
                elif p["is_multicast"]:
                    # a shared slice is read once; the cores that share it run in step with a full block
                    if in_ == 1 and not p["a_is_resident"]:
                        f_a, _, _ = reload_factors(order, T_m, full_T_n, T_k)
                        out["a_bytes"] += num_m * num_k * bytes_of(g * m * k * f_a, p["a_half_bits"])
                    if im == 1 and not p["b_is_resident"]:
                        _, f_b, _ = reload_factors(order, full_T_m, T_n, T_k)
                        shared = num_sets * num_n * num_k
                        out["b_bytes"] += shared * bytes_of(g * k * n * f_b, p["b_half_bits"])
                        if p["is_quantized"]:
                            scales = g * scale_rows(p, k, T_k) * n * f_b
                            out["scale_bytes"] += shared * bytes_of(scales, p["group_half_bits"])
                else:
                    if not p["a_is_resident"]:
                        out["a_bytes"] += num * sums.a_bytes
                    if not p["b_is_resident"]:
                        out["b_bytes"] += num * sums.b_bytes
                        out["scale_bytes"] += num * sums.s_bytes
                if blk.E_K > 1 and ik == 1:  # one reduction for each C block
                    part = g * m * n
                    dram_bytes = 0 if p["c_is_resident"] else bytes_of(part, p["c_half_bits"])
                    sent = 0
                    if p["reduction"] == 1:
                        dram_bytes += bytes_of(blk.E_K * part, p["spill_half_bits"])
                    else:
                        sent = bytes_of((blk.E_K - 1) * part, p["spill_half_bits"])
                    out["reduction_bytes"] += num_m * num_n * dram_bytes
                    out["core_bytes"] += num_m * num_n * (2 * sent + dram_bytes)  # out of one core and into another
    return steps


@kernel
def fill_mapping(
    p: Any, P_G: int, P_M: int, P_N: int, P_K: int, tile_m: int, tile_n: int, tile_k: int, order: int,
    active_cores: int, visits: int, steps: int, macs: float, out: Any,
) -> None:  # fmt: skip
    """Fill the mapping, the sums of bytes and the energy of the record `out`, which has its bytes and times."""
    out["P_G"] = P_G
    out["P_M"] = P_M
    out["P_N"] = P_N
    out["P_K"] = P_K
    out["tile_m"] = tile_m
    out["tile_n"] = tile_n
    out["tile_k"] = tile_k
    out["loop_order"] = order
    out["active_cores"] = active_cores
    out["visits"] = visits
    out["sram_used_bytes"] = sram_used_bytes(p, tile_m, tile_n, tile_k)
    dram_bytes = out["a_bytes"] + out["b_bytes"] + out["scale_bytes"] + out["c_store_bytes"]
    dram_bytes += 2 * out["c_spill_bytes"] + out["reduction_bytes"]
    out["dram_bytes"] = dram_bytes
    out["c_refill_bytes"] = out["c_spill_bytes"]
    out["energy_pj"] = energy_pj_of(p, float(steps), macs, dram_bytes, out["core_bytes"], out["latency_us"])


def _make_evaluate(*, has_pipeline: bool) -> Callable[..., None]:
    """Return the kernel that fills a record with the cost of a mapping, for every timing or for overlap alone."""

    @kernel
    def evaluate_into(
        p: Any, G: int, M: int, K: int, N: int, P_G: int, P_M: int, P_N: int, P_K: int,
        tile_m: int, tile_n: int, tile_k: int, order: int, out: Any,
    ) -> None:  # fmt: skip
        """Fill the record `out` of `COST_DTYPE` with the cost of one legal mapping."""
        blk = block_of(p, G, M, K, N, P_G, P_M, P_N, P_K)
        T_m = ceil_div(blk.m, tile_m)
        T_n = ceil_div(blk.n, tile_n)
        T_k = ceil_div(blk.k, tile_k)
        f_a, f_b, f_c = reload_factors(order, T_m, T_n, T_k)
        clear_totals(out)
        steps = 0
        slowest_us = -1.0
        # E_G-1 sets of cores have full blocks of g batch elements, the last has what remains
        for ig in range(2):
            num_sets = blk.E_G - 1 if ig == 0 else 1
            g = blk.g if ig == 0 else G - (blk.E_G - 1) * blk.g
            if num_sets == 0:
                continue
            # no core of a set has more of anything than the one with the full block
            pipeline_us = 0.0
            if has_pipeline:
                pipeline_us = pipelines.pipeline_us_if_any(
                    p, blk, g, blk.m, blk.n, blk.k, tile_m, tile_n, tile_k, order
                )
            cost = core_cost(
                p, blk, g, blk.m, blk.n, blk.k, min(tile_m, blk.m), min(tile_n, blk.n), min(tile_k, blk.k),
                T_m, T_n, T_k, f_a, f_b, f_c, pipeline_us,
            )  # fmt: skip
            if cost.latency_us > slowest_us:
                slowest_us = cost.latency_us
                fill_times(p, blk, cost, out)
            steps += add_totals(p, blk, g, num_sets, M, K, N, tile_m, tile_n, tile_k, order, cost.kept_frac, out)
        fill_mapping(
            p, P_G, P_M, P_N, P_K, tile_m, tile_n, tile_k, order, blk.active_cores, blk.g * T_m * T_n * T_k, steps,
            float(G * M * K * N), out,
        )  # fmt: skip

    return evaluate_into


evaluate_into = _make_evaluate(has_pipeline=True)
evaluate_overlap_into = _make_evaluate(has_pipeline=False)
"""It compiles a second faster."""


@inlined_kernel
def dram_total(num_cores: int, dram_bytes: float) -> int:
    """DRAM bytes of cores that move so many each, which need not be whole."""
    return num_cores * int(math.ceil(dram_bytes))  # noqa: RUF046  a float in numba


@inlined_kernel
def spilled_total(num_cores: int, spill_bytes: int, kept_frac: float) -> int:
    """Bytes that cores spill to DRAM, of so many each, where a part is kept on the way."""
    if kept_frac == 0.0:
        return num_cores * spill_bytes
    return dram_total(num_cores, spill_bytes * (1.0 - kept_frac))


@kernel
def energy_pj_of(p: Any, steps: float, macs: float, dram_bytes: float, core_bytes: float, latency_us: float) -> float:
    """Energy of a mapping, nan where the chip does not say: MODEL.md, "Energy"."""
    if not p["has_energy"]:
        return np.nan
    operand_elems = steps * (p["cube_m"] * p["cube_k"] + p["cube_k"] * p["cube_n"])
    energy_pj = macs * p["mac_pj"]
    energy_pj += dram_bytes * p["dram_pj_per_byte"]
    energy_pj += (core_bytes + operand_elems * p["a_half_bits"] / 16.0) * p["sram_pj_per_byte"]
    if p["has_noc"]:
        energy_pj += core_bytes * p["noc_pj_per_byte"]
    energy_pj += p["static_pj_per_us"] * latency_us
    return energy_pj


@kernel
def fill_times(p: Any, blk: Any, cost: CoreCost, out: Any) -> None:
    """Fill the times of the record `out`, which are those of the slowest core; of `blk` it takes the share of DRAM."""
    floor_wait_us = cost.latency_us - cost.busy_us
    out["latency_us"] = cost.latency_us
    out["main_us"] = cost.main_us
    out["compute_us"] = cost.compute_us
    dma_us = max(cost.dram_us, cost.shared_us, cost.noc_us, cost.feed_us)
    out["dma_us"] = dma_us
    out["dram_us"] = cost.dram_us
    out["shared_us"] = cost.shared_us
    out["noc_us"] = cost.noc_us
    out["feed_us"] = cost.feed_us
    out["reduction_us"] = cost.red_dram_us + cost.red_noc_us + cost.red_add_us
    out["busiest_core_bytes"] = cost.busiest_bytes
    times = Times(
        launch_us=p["launch_us"] + cost.tasks_us + floor_wait_us, sync_us=cost.sync_us, pack_us=cost.pack_us,
        matrix_us=cost.cube_us, fill_drain_us=cost.fill_drain_us, vector_us=cost.vector_us,
        dram_a_us=cost.a_dram / blk.dram_share, dram_b_us=cost.b_dram / blk.dram_share,
        dram_c_us=cost.c_dram / blk.dram_share, noc_wait_us=dma_us - cost.dram_us, reduction_dram_us=cost.red_dram_us,
        reduction_noc_us=cost.red_noc_us, reduction_add_us=cost.red_add_us,
    )  # fmt: skip
    out["hidden_us"] = cost.main_us - _phase_us(times, _MAIN)
    out["bound"] = _bound_of(cost, times)
    out["launch_us"] = times.launch_us
    out["sync_us"] = times.sync_us
    out["pack_us"] = times.pack_us
    out["matrix_us"] = times.matrix_us
    out["fill_drain_us"] = times.fill_drain_us
    out["vector_us"] = times.vector_us
    out["dram_a_us"] = times.dram_a_us
    out["dram_b_us"] = times.dram_b_us
    out["dram_c_us"] = times.dram_c_us
    out["noc_wait_us"] = times.noc_wait_us
    out["reduction_dram_us"] = times.reduction_dram_us
    out["reduction_noc_us"] = times.reduction_noc_us
    out["reduction_add_us"] = times.reduction_add_us


@kernel
def _phase_us(times: Times, phase: int) -> float:
    total = 0.0
    for place in range(len(times)):
        if _PHASE_OF[place] == phase:
            total += times[place]
    return total


@kernel
def _bound_of(cost: CoreCost, times: Times) -> int:
    """Name the largest of the phases, and inside the main loop the longer of its two sides."""
    bound, longest_us = _MAIN, cost.main_us
    for phase in range(len(_BOUND_OF_PHASE)):
        if phase != _MAIN and _phase_us(times, phase) > longest_us:
            bound, longest_us = phase, _phase_us(times, phase)
    if bound != _MAIN:
        return _BOUND_OF_PHASE[bound]
    if cost.compute_us >= max(cost.dram_us, cost.shared_us, cost.noc_us, cost.feed_us):
        return _VECTOR if cost.vector_us > cost.cube_us + cost.fill_drain_us else _COMPUTE
    if cost.feed_us > max(cost.dram_us, cost.shared_us, cost.noc_us):
        return _FEED
    if cost.shared_us > max(cost.dram_us, cost.noc_us):
        return _SHARED
    return _NOC if cost.noc_us > cost.dram_us else _DRAM


RULES = (
    "num_cores", "reduction",
    "tile_m_block", "tile_m_multiple", "tile_n_block", "tile_n_multiple", "tile_k_block", "tile_k_multiple", "sram",
)  # fmt: skip
"""Rules of a legal mapping, in the order in which they are checked."""
_NUM_CORES, _REDUCTION, _TILE_M, _TILE_N, _TILE_K, _SRAM = 0, 1, 2, 4, 6, 8
_KEEPS_ALL = -1
_NUM_ORDERS = 6


@kernel
def _broken_tile_rule(size: int, unit: int, block: int, first: int) -> int:
    if size > block:
        return first
    return first + 1 if size % unit != 0 and size != block else _KEEPS_ALL


@kernel
def _broken_rule(
    p: Any, G: int, M: int, K: int, N: int, P_G: int, P_M: int, P_N: int, P_K: int,
    tile_m: int, tile_n: int, tile_k: int,
) -> int:  # fmt: skip
    used = P_G
    for count in (P_M, P_N, P_K):  # one after another: the product of all may not fit into 63 bits
        if max(used, count) > p["num_cores"]:
            return _NUM_CORES
        used *= count
    if used > p["num_cores"]:
        return _NUM_CORES
    blk = block_of(p, G, M, K, N, P_G, P_M, P_N, P_K)
    if blk.E_K > 1 and p["reduction"] == 0:
        return _REDUCTION
    broken = _broken_tile_rule(tile_m, p["cube_m"], blk.m, _TILE_M)
    if broken == _KEEPS_ALL:
        broken = _broken_tile_rule(tile_n, p["cube_n"], blk.n, _TILE_N)
    if broken == _KEEPS_ALL:
        broken = _broken_tile_rule(tile_k, p["unit_k"], blk.k, _TILE_K)
    if broken == _KEEPS_ALL and sram_used_bytes(p, tile_m, tile_n, tile_k) > p["sram_usable_bytes"]:
        broken = _SRAM
    return broken


@entry_point
def find_broken_rule(
    params: Any, G: int, M: int, K: int, N: int, P_G: int, P_M: int, P_N: int, P_K: int,
    tile_m: int, tile_n: int, tile_k: int,
) -> int:  # fmt: skip
    """Return which of `RULES` a mapping of numbers >= 1 breaks first, or -1; `params` is [1] of PARAMS_DTYPE."""
    return _broken_rule(params[0], G, M, K, N, P_G, P_M, P_N, P_K, tile_m, tile_n, tile_k)


@kernel
def is_legal(p: Any, G: int, M: int, K: int, N: int, row: Any) -> bool:
    """Return True if a record of COST_DTYPE, whatever numbers it holds, has a legal mapping."""
    P_G, P_M, P_N, P_K = row["P_G"], row["P_M"], row["P_N"], row["P_K"]
    tile_m, tile_n, tile_k, order = row["tile_m"], row["tile_n"], row["tile_k"], row["loop_order"]
    if min(P_G, P_M, P_N, P_K, tile_m, tile_n, tile_k) < 1 or order < 0 or order >= _NUM_ORDERS:
        return False
    broken: int = _broken_rule(p, G, M, K, N, P_G, P_M, P_N, P_K, tile_m, tile_n, tile_k)
    return broken == _KEEPS_ALL


@entry_point
def evaluate_range(
    params: Any, type_of: Any, sizes: Any, start: int, stop: int, checks: bool, stored: Any, out: Any
) -> None:
    """Evaluate the mappings of the records start..stop-1 of `stored`; with `checks` whatever numbers they hold.

    Shapes: params [num_types] of PARAMS_DTYPE; type_of [num]; sizes [num, 4] of G, M, K, N; stored [num] of COST_DTYPE;
    out [num, 1] of COST_DTYPE, zeros: they stay where a mapping was found illegal.
    """
    for i in range(start, stop):
        p, row = params[type_of[i]], stored[i]
        G, M, K, N = sizes[i]
        if not checks or is_legal(p, G, M, K, N, row):
            evaluate_into(
                p, G, M, K, N, row["P_G"], row["P_M"], row["P_N"], row["P_K"],
                row["tile_m"], row["tile_n"], row["tile_k"], row["loop_order"], out[i, 0],
            )  # fmt: skip
