"""Numba kernels of the exact search for a mapping of fused attention on a multi-core chip.

The cost of a mapping is that of its slowest core, so the cost of any one core is a bound on it. Of each candidate the
core with the most pairs is costed first, and the others only where that one does not rule it out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gemm_eval.jit import entry_point, kernel
from gemm_eval.models.multicore import (
    KQ,
    AttentionBlock,
    AttentionSizes,
    attention_block_of,
    attention_core_cost,
    attention_sram_bytes,
    count_core,
    count_kept_rows,
    keys_stay,
    span_of,
    stream_keys_of,
)
from gemm_eval.models.multicore.count_kernels import ceil_div

__all__ = ["ATTENTION_KEY_INTS", "find_best_attention"]

ATTENTION_KEY_INTS = 10  # active_cores, visits, sram_used_bytes, P_KV, P_U, P_Q, is_folded, loop order, tile_q, tile_kv


class _Best(NamedTuple):
    """The best candidate so far."""

    floats: Any  # float64 [2]: latency_us, busiest_core_bytes
    ints: Any  # int64 [ATTENTION_KEY_INTS]
    key: Any  # int64 [ATTENTION_KEY_INTS]: the candidate at hand
    counters: Any  # int64 [3]: candidates costed, partitions, least SRAM of any tiles


@kernel
def _offer(best: _Best, latency_us: float, busiest_bytes: float) -> None:
    """Keep the candidate whose integers are in `best.key` if its key is smaller: MODEL.md, "Choice"."""
    if latency_us > best.floats[0]:
        return
    if latency_us == best.floats[0]:
        if busiest_bytes > best.floats[1]:
            return
        if busiest_bytes == best.floats[1]:
            place = 0
            while place < ATTENTION_KEY_INTS - 1 and best.key[place] == best.ints[place]:
                place += 1
            if best.key[place] >= best.ints[place]:
                return
    best.floats[0] = latency_us
    best.floats[1] = busiest_bytes
    best.ints[:] = best.key


@kernel
def _cost_all(
    p: Any, s: AttentionSizes, blk: AttentionBlock, tile_q: int, tile_kv: int, order: int, worst_us: float
) -> tuple[float, float, int]:
    """Latency, busiest core's bytes and visits of a candidate; inf as soon as a core takes longer than `worst_us`."""
    latency_us = busiest_bytes = 0.0
    visits = 0
    spans = blk.E_K if s.is_masked else 1  # without a mask the first core has the most of everything
    cores = blk.E_Q if s.is_masked else 1
    for place in range(spans - 1, -1, -1):
        key_0, key_1 = span_of(s, blk, place)
        stream_keys = stream_keys_of(p, s, blk, key_0, key_1, tile_q, tile_kv, order)
        for core in range(cores - 1, -1, -1):
            counts = count_core(p, s, blk, core, key_0, key_1, tile_q, tile_kv)
            if order == KQ:
                counts = keys_stay(counts, count_kept_rows(s, blk, core, key_0, key_1, tile_q, tile_kv))
            cost = attention_core_cost(
                p, s, blk, counts, blk.units, core, key_1 - key_0, stream_keys, tile_q, tile_kv, order
            )  # fmt: skip
            latency_us = max(latency_us, cost.latency_us)
            busiest_bytes = max(busiest_bytes, cost.busiest_bytes)
            visits = max(visits, cost.visits)
            if latency_us > worst_us:
                return np.inf, busiest_bytes, visits
    return latency_us, busiest_bytes, visits


@kernel
def _search_tiles(p: Any, s: AttentionSizes, blk: AttentionBlock, best: _Best) -> None:
    """All tiles and loop orders of one partition, whose integers are in `best.key`."""
    unit_kv = _unit_kv(p)
    units_q = ceil_div(blk.strip, p["cube_m"])
    units_kv = ceil_div(blk.span, unit_kv)
    top_q = units_q
    while top_q > 0:  # one step per distinct trip count
        low_q = ceil_div(units_q, ceil_div(units_q, top_q))
        top_q = low_q - 1
        tile_q = min(low_q * p["cube_m"], blk.strip)
        top_kv = units_kv
        while top_kv > 0:
            low_kv = ceil_div(units_kv, ceil_div(units_kv, top_kv))
            top_kv = low_kv - 1
            tile_kv = min(low_kv * unit_kv, blk.span)
            sram = attention_sram_bytes(p, s, tile_q, tile_kv)
            best.counters[2] = min(best.counters[2], sram)
            if sram > p["sram_usable_bytes"]:
                continue
            # with one row tile or one key tile both orders move the same, or KQ more
            num_orders = 1 if (tile_q == blk.strip and not blk.is_folded) or tile_kv == blk.span else 2
            for order in range(num_orders):
                best.counters[0] += 1
                latency_us, busiest_bytes, visits = _cost_all(p, s, blk, tile_q, tile_kv, order, best.floats[0])
                best.key[1] = visits
                best.key[2] = sram
                best.key[7] = order
                best.key[8] = tile_q
                best.key[9] = tile_kv
                _offer(best, latency_us, busiest_bytes)


@kernel
def _unit_kv(p: Any) -> int:
    """Keys that a tile is a multiple of: the least that both products take in whole steps."""
    a, b = p["cube_n"], p["cube_k"]
    while b:
        a, b = b, a % b
    unit: int = p["cube_n"] // a * p["cube_k"]
    return unit


@entry_point
def find_best_attention(params: Any, s: AttentionSizes, floats: Any, ints: Any, counters: Any) -> None:
    """Find the best mapping; `ints` [10] and `floats` [2] get its key, with latency inf where nothing fits.

    Args:
        params: [1] of PARAMS_DTYPE.
        s: the problem.
        floats, ints, counters: see `_Best`.
    """
    p = params[0]
    best = _Best(floats, ints, np.zeros(ATTENTION_KEY_INTS, np.int64), counters)
    floats[:] = np.inf
    num_cores = p["num_cores"]
    for P_U in range(1, min(num_cores, s.units) + 1):
        if ceil_div(s.units, ceil_div(s.units, P_U)) < P_U:  # as a smaller one
            continue
        for P_Q in range(1, num_cores // P_U + 1):
            for is_folded in range(2 if s.is_masked and P_Q > 1 else 1):
                for P_KV in range(1, num_cores // (P_U * P_Q) + 1 if p["reduction"] else 2):
                    blk = attention_block_of(p, s, P_U, P_Q, P_KV, is_folded)
                    if blk.E_Q < P_Q:
                        break
                    if blk.E_K < P_KV:
                        continue
                    best.counters[1] += 1
                    best.key[0] = blk.active_cores
                    best.key[3] = P_KV
                    best.key[4] = P_U
                    best.key[5] = P_Q
                    best.key[6] = is_folded
                    _search_tiles(p, s, blk, best)
