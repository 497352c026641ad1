"""Numba kernels of fused attention on multi-core chips: SRAM, times and the cost of one mapping.

The terms are defined in MODEL.md, "Fused attention". Q stands where A does in the model of GEMMs, K and V where B does,
the output O where C does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gemm_eval.jit import entry_point, inlined_kernel, kernel
from gemm_eval.models.multicore.attention_count_kernels import (
    KQ,
    AttentionBlock,
    AttentionCounts,
    AttentionSizes,
    attention_block_of,
    count_core,
    count_kept_rows,
    key_steps_of,
    keys_stay,
    row_tiles_of,
    rows_of_core,
    span_of,
    strip_of,
    union_keys,
)
from gemm_eval.models.multicore.cost_kernels import (
    COST_DTYPE,
    CoreCost,
    dram_total,
    fill_times,
    padded_tile_bytes,
    whole_cost,
)
from gemm_eval.models.multicore.count_kernels import bytes_of, ceil_div, store_half_bits
from gemm_eval.models.multicore.pipeline_kernels import Traffic, add_traffic, c_traffic, traffic_us

RESCALE_OPS_PER_ELEM = 1
"""Of an element of O at each visit: times how much the maximum of its row changed."""

DIVIDE_OPS_PER_ELEM = 1
"""Of an element of O at the end: times the inverse of the sum of its row."""

MERGE_OPS_PER_ELEM = 2
"""Of an element of a partial O that another core made: rescale and add."""

STATS_PER_ROW = 2
"""Numbers that go with a row of partial O: the maximum and the sum."""

_INTS = (
    "P_U", "P_Q", "P_KV", "is_folded", "tile_q", "tile_kv", "loop_order",
    "active_cores", "visits", "sram_used_bytes",
    "dram_bytes", "q_bytes", "kv_bytes", "o_store_bytes", "o_spill_bytes", "o_refill_bytes", "reduction_bytes",
    "scores", "bound", "num_candidates", "num_partitions",
)  # fmt: skip

_TIMES = tuple(name for name in COST_DTYPE.names or () if name.endswith("_us"))

ATTENTION_COST_DTYPE = np.dtype(
    [(name, np.int64) for name in _INTS] + [(name, np.float64) for name in (*_TIMES, "busiest_core_bytes")]
)
"""The cost of one mapping. Bytes and scores are totals of the chip, times those of the slowest core."""


@kernel
def attention_sram_bytes(p: Any, s: AttentionSizes, tile_q: int, tile_kv: int) -> int:
    """SRAM bytes that the tiles of one core occupy, buffers included."""
    is_latent = s.kv_width == s.head_dim
    inputs = padded_tile_bytes(p, tile_q, s.head_dim * p["a_half_bits"])
    inputs += padded_tile_bytes(p, tile_kv, s.head_dim * p["b_half_bits"])
    copies = 0
    if p["has_dequant_copy"]:
        copies += padded_tile_bytes(p, tile_kv, s.head_dim * p["a_half_bits"])
    if not is_latent:
        inputs += padded_tile_bytes(p, tile_kv, s.value_dim * p["b_half_bits"])
        if p["has_dequant_copy"]:
            copies += padded_tile_bytes(p, tile_kv, s.value_dim * p["a_half_bits"])
    scores = padded_tile_bytes(p, tile_q, tile_kv * p["acc_half_bits"])
    scores += padded_tile_bytes(p, tile_q, tile_kv * p["a_half_bits"])
    output = padded_tile_bytes(p, tile_q, s.value_dim * p["acc_half_bits"])
    stats = padded_tile_bytes(p, tile_q, STATS_PER_ROW * p["acc_half_bits"])
    total: int = p["input_buffers"] * inputs + copies + scores + p["output_buffers"] * output + stats
    return total


@inlined_kernel
def _kept_frac(
    p: Any, blk: AttentionBlock, q: float, q_once: float, kv: float, kv_once: float, partial: float
) -> float:
    """What part of all that DRAM would give again the memory between DRAM and SRAM keeps."""
    kept_bytes = 0.0
    if q > q_once:
        kept_bytes += q_once
    if kv > kv_once:
        kept_bytes += kv_once
    kept_bytes += partial
    room = p["shared_bytes"] / blk.active_cores
    return 1.0 if kept_bytes <= room else room / kept_bytes


@inlined_kernel
def _from_dram(moved: float, once: float, kept_frac: float) -> float:
    """Bytes that DRAM gives where this part of what exceeds once is kept; once it gives to all cores in equal parts."""
    return once + (1.0 - kept_frac) * max(0.0, moved - once)


@inlined_kernel
def _main_us(
    p: Any, s: AttentionSizes, blk: AttentionBlock, loads: Traffic, o: Traffic, compute_us: float, all_dma_us: float,
    tile_q: int, tile_kv: int, order: int,
) -> float:  # fmt: skip
    """Time of all visits of a core that moves these bytes in `all_dma_us`, with tiles cut to its rows and keys."""
    tail = o
    if p["output_buffers"] == 2:
        width = s.value_dim if blk.E_K == 1 else s.value_dim + STATS_PER_ROW
        stored = c_traffic(p, blk, float(bytes_of(tile_q * width, store_half_bits(p, blk.E_K))), 0.0)
        tail = Traffic(min(stored.dram, o.dram), min(stored.shared, o.shared), min(stored.port, o.port))
    loads_us = traffic_us(p, blk, add_traffic(loads, tail))
    lead_us = loads_us
    if p["input_buffers"] == 2:
        q_bytes = float(bytes_of(tile_q * s.head_dim, p["a_half_bits"]))
        kv_bytes = float(bytes_of(tile_kv * s.kv_width, p["b_half_bits"]))
        moved = q_bytes * p["a_dram"] + kv_bytes * p["b_dram"]
        if p["is_multicast"]:
            moved = (q_bytes if order == KQ else q_bytes / blk.E_K) * p["a_dram"] + kv_bytes / blk.E_Q * p["b_dram"]
        lead = Traffic(min(moved, loads.dram), min(moved, loads.shared), min(q_bytes + kv_bytes, loads.port))
        lead_us = traffic_us(p, blk, add_traffic(lead, tail))
    blocks = key_steps_of(p, s, tile_kv)
    tile_cycles = ceil_div(tile_q, p["cube_m"]) * blocks / p["steps_per_cycle"]
    tile_cycles += 2 * p["fill_drain_cycles"] + blocks * p["weight_load_cycles"]
    tile_us = min(tile_cycles / p["cycles_per_us"], compute_us)
    best_us = max(all_dma_us, compute_us + lead_us, tile_us + loads_us)
    main_us: float = (1.0 - p["overlap_frac"]) * (compute_us + all_dma_us) + p["overlap_frac"] * best_us
    return main_us


@kernel
def attention_core_cost(
    p: Any, s: AttentionSizes, blk: AttentionBlock, counts: AttentionCounts, units: int, core: int, span: int,
    stream_keys: int, row_tiles: int, tile_q: int, tile_kv: int, order: int,
) -> CoreCost:  # fmt: skip
    """Cost of a core with so many units, all of which are like `counts`.

    It grows with every argument but the core and the order, so that a search gets a bound from some that are too small.

    Args:
        span: its keys.
        stream_keys: with multicast, the keys that the cores of its unit and span load together.
        row_tiles: of the core, visited or not.
    """
    rows = rows_of_core(s, blk, core)
    is_shared = p["is_multicast"]
    q_bytes = bytes_of(units * counts.q_rows * s.head_dim, p["a_half_bits"])
    kv_elems = units * counts.kv_keys * s.kv_width
    kv_bytes = bytes_of(kv_elems, p["b_half_bits"])
    o_width = s.value_dim if blk.E_K == 1 else s.value_dim + STATS_PER_ROW
    store_bytes = bytes_of(units * rows * o_width, store_half_bits(p, blk.E_K))
    spill_bytes = bytes_of(units * counts.spill_rows * (s.value_dim + STATS_PER_ROW), p["spill_half_bits"])

    q_once = bytes_of(units * rows * s.head_dim, p["a_half_bits"]) / blk.E_K
    q_moved = (q_once if is_shared and order != KQ else float(q_bytes)) * p["a_dram"]
    kv_moved = float(kv_bytes)
    if is_shared:
        kv_moved = bytes_of(units * stream_keys * s.kv_width, p["b_half_bits"]) / blk.E_Q
    kv_moved *= p["b_dram"]
    q_dram, kv_dram, spill_dram = q_moved, kv_moved, float(spill_bytes)
    kept_frac = 0.0
    if p["has_shared"]:
        kv_once = bytes_of(units * span * s.kv_width, p["b_half_bits"]) / blk.E_Q * p["b_dram"]
        partial = 0.0
        if spill_bytes > 0:
            partial = bytes_of(units * rows * (s.value_dim + STATS_PER_ROW), p["spill_half_bits"]) * p["c_dram"]
        kept_frac = _kept_frac(p, blk, q_moved, q_once * p["a_dram"], kv_moved, kv_once, partial)
        q_dram = _from_dram(q_moved, q_once * p["a_dram"], kept_frac)
        kv_dram = _from_dram(kv_moved, kv_once, kept_frac)
        spill_dram *= 1.0 - kept_frac
    loads = Traffic(q_dram + kv_dram, q_moved + kv_moved, float(q_bytes + kv_bytes))
    o = c_traffic(p, blk, float(store_bytes), float(spill_bytes))
    if kept_frac > 0.0:
        o = Traffic(c_traffic(p, blk, float(store_bytes), spill_dram).dram, o.shared, o.port)
    moved = add_traffic(loads, o)
    feed_us = units * counts.steps * p["feed_us_per_step"]
    all_dma_us = max(traffic_us(p, blk, moved), feed_us)

    step_cycles = units * counts.steps / p["steps_per_cycle"]
    fill_drain = 2 * units * counts.visits * p["fill_drain_cycles"] + units * counts.fills * p["weight_load_cycles"]
    vector_ops = units * (
        p["softmax_ops_per_score"] * counts.scores
        + s.value_dim * (RESCALE_OPS_PER_ELEM * counts.visit_rows + DIVIDE_OPS_PER_ELEM * rows)
    )
    vector_cycles = vector_ops / p["vector_ops_per_cycle"]
    if p["has_dequant_copy"]:
        vector_cycles += kv_elems * p["dequant_ops_per_elem"] / p["vector_ops_per_cycle"]
    cube_cycles = step_cycles + fill_drain
    cycles = max(cube_cycles, vector_cycles) if p["vector_is_concurrent"] else cube_cycles + vector_cycles
    compute_us = cycles / p["cycles_per_us"]

    red_dram_bytes = red_dram_us = red_noc_us = red_add_us = 0.0
    if blk.E_K > 1:
        share = ceil_div(units * rows * o_width, blk.E_K)
        written = bytes_of(ceil_div(units * rows * s.value_dim, blk.E_K), p["c_half_bits"])
        red_dram_bytes = written * blk.write_cost * p["c_dram"]
        if p["reduction"] == 1:
            red_dram_bytes += bytes_of(blk.E_K * share, p["spill_half_bits"])
        else:
            red_noc_us = bytes_of((blk.E_K - 1) * share, p["spill_half_bits"]) / p["noc_bytes_per_us"]
        red_dram_us = red_dram_bytes / blk.dram_share
        ops = MERGE_OPS_PER_ELEM * (blk.E_K - 1) * share
        red_add_us = ops / p["vector_ops_per_cycle"] / p["cycles_per_us"]

    strip = strip_of(s, blk, core, 0)[1]
    main_us = _main_us(
        p, s, blk, loads, o, compute_us, all_dma_us, min(tile_q, strip), min(tile_kv, span), order
    )  # fmt: skip
    dram_us = moved.dram / blk.dram_share
    shared_us = moved.shared / blk.shared_share if p["has_shared"] else 0.0
    noc_us = moved.port / p["noc_bytes_per_us"] if p["has_noc"] else 0.0
    return whole_cost(
        p, blk, units * counts.visits, units * row_tiles, q_bytes, kv_bytes, 0, loads, o, q_dram, kv_dram, kept_frac,
        store_bytes, spill_bytes,
        main_us, compute_us, step_cycles / p["cycles_per_us"], fill_drain / p["cycles_per_us"],
        vector_cycles / p["cycles_per_us"], dram_us, shared_us, noc_us, feed_us, 0.0,
        red_dram_bytes, red_dram_us, red_noc_us, red_add_us,
    )  # fmt: skip


@inlined_kernel
def stream_keys_of(
    p: Any, s: AttentionSizes, blk: AttentionBlock, key_0: int, key_1: int, tile_q: int, tile_kv: int, order: int
) -> int:
    """Keys that the cores of a unit and span load together; 0 where each loads its own."""
    return union_keys(s, blk, key_0, key_1, tile_q, tile_kv, order) if p["is_multicast"] else 0


@entry_point
def evaluate_attention_mapping(
    params: Any, s: AttentionSizes, P_U: int, P_Q: int, P_KV: int, is_folded: int, tile_q: int, tile_kv: int,
    order: int, out_rows: Any,
) -> None:  # fmt: skip
    """Fill `out_rows`, an array [1] of `ATTENTION_COST_DTYPE`, with the cost of one legal mapping."""
    p = params[0]
    out = out_rows[0]
    blk = attention_block_of(p, s, P_U, P_Q, P_KV, is_folded)
    q_bytes = kv_bytes = store_bytes = spill_bytes = red_bytes = scores = visits = 0
    slowest_us = busiest_bytes = -1.0
    for place in range(blk.E_K):
        key_0, key_1 = span_of(s, blk, place)
        stream_keys = stream_keys_of(p, s, blk, key_0, key_1, tile_q, tile_kv, order)
        for core in range(blk.E_Q):
            counts = count_core(p, s, blk, core, key_0, key_1, tile_q, tile_kv, 0)
            if order == KQ:
                counts = keys_stay(counts, count_kept_rows(s, blk, core, key_0, key_1, tile_q, tile_kv))
            rows = rows_of_core(s, blk, core)
            for edge in range(2):  # the cores with the last units have what remains
                units = s.units - (blk.E_U - 1) * blk.units if edge else blk.units
                num = 1 if edge else blk.E_U - 1
                if num == 0:
                    continue
                cost = attention_core_cost(
                    p, s, blk, counts, units, core, key_1 - key_0, stream_keys,
                    row_tiles_of(s, blk, core, tile_q), tile_q, tile_kv, order,
                )  # fmt: skip
                if cost.latency_us > slowest_us:
                    slowest_us = cost.latency_us
                    fill_times(p, blk, cost, out)
                busiest_bytes = max(busiest_bytes, cost.busiest_bytes)
                visits = max(visits, cost.visits)
                q_bytes += dram_total(num, cost.a_dram)
                kv_bytes += dram_total(num, cost.b_dram)
                scores += num * units * counts.scores
                if not p["c_is_resident"]:
                    store_bytes += num * cost.store_bytes
                    spill_bytes += dram_total(num, cost.spill_bytes * (1.0 - cost.kept_frac))
                elif blk.E_K > 1:
                    store_bytes += num * cost.store_bytes
                if blk.E_K > 1 and place == 0:
                    written = 0 if p["c_is_resident"] else bytes_of(units * rows * s.value_dim, p["c_half_bits"])
                    red_bytes += num * written
                    if p["reduction"] == 1:
                        elems = blk.E_K * units * rows * (s.value_dim + STATS_PER_ROW)
                        red_bytes += num * bytes_of(elems, p["spill_half_bits"])
    out["P_U"] = P_U
    out["P_Q"] = P_Q
    out["P_KV"] = P_KV
    out["is_folded"] = is_folded
    out["tile_q"] = tile_q
    out["tile_kv"] = tile_kv
    out["loop_order"] = order
    out["active_cores"] = blk.active_cores
    out["visits"] = visits
    out["sram_used_bytes"] = attention_sram_bytes(p, s, tile_q, tile_kv)
    out["q_bytes"] = q_bytes
    out["kv_bytes"] = kv_bytes
    out["o_store_bytes"] = store_bytes
    out["o_spill_bytes"] = spill_bytes
    out["o_refill_bytes"] = spill_bytes
    out["reduction_bytes"] = red_bytes
    out["dram_bytes"] = q_bytes + kv_bytes + store_bytes + 2 * spill_bytes + red_bytes
    out["scores"] = scores
    out["busiest_core_bytes"] = busiest_bytes
