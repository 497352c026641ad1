"""Numba kernels of fused attention on multi-core chips: counts by blocks of queries and keys, SRAM, times, costs.

The terms are defined in MODEL.md, "Fused attention". Q stands where A does in the model of GEMMs, K and V where B does,
the output O where C does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gemm_eval.jit import entry_point, inlined_kernel, kernel
from gemm_eval.models.multicore import cost_kernels as costs
from gemm_eval.models.multicore.cost_kernels import COST_DTYPE, CoreCost
from gemm_eval.models.multicore.pipeline_kernels import (
    Traffic,
    add_traffic,
    bytes_of,
    c_traffic,
    ceil_div,
    store_half_bits,
    traffic_us,
)


class AttentionSizes(NamedTuple):
    """A problem as kernels see it, of which keys that no query attends to are gone."""

    units: int  # KV heads of all sequences
    rows: int  # queries of a unit: those of the heads that share its keys, by position
    keys: int
    group: int  # rows of a position
    ahead: int  # position of the first query among the keys
    window: int  # positions that a query attends to at most, `keys` where there is no window
    is_masked: int  # not every row attends to every key
    head_dim: int
    value_dim: int
    kv_width: int  # elements of a key and its value as stored


class AttentionBlock(NamedTuple):
    """The full block of a core, the effective counts of cores, and its bandwidths."""

    units: int
    strip: int  # rows of a full strip
    span: int  # keys of a full span
    E_U: int
    E_Q: int
    E_K: int
    num_strips: int  # of a unit
    is_folded: int
    active_cores: int
    dram_share: float  # bytes per us of one core
    write_cost: float  # time of a written byte in DRAM by that of a read one
    shared_share: float  # the same as `dram_share` of the memory between DRAM and SRAM


@entry_point
def attention_block_of(p: Any, s: AttentionSizes, P_U: int, P_Q: int, P_KV: int, is_folded: int) -> AttentionBlock:
    """Full block and effective counts of a partition."""
    units = ceil_div(s.units, P_U)
    strip = ceil_div(s.rows, 2 * P_Q if is_folded else P_Q)
    span = ceil_div(s.keys, P_KV)
    num_strips = ceil_div(s.rows, strip)
    E_U = ceil_div(s.units, units)
    E_Q = ceil_div(num_strips, 2) if is_folded else num_strips
    E_K = ceil_div(s.keys, span)
    active = E_U * E_Q * E_K
    share, write_cost, shared_share = costs.shares_of(p, active)
    return AttentionBlock(
        units, strip, span, E_U, E_Q, E_K, num_strips, is_folded, active, share, write_cost, shared_share
    )  # fmt: skip


@inlined_kernel
def strip_of(s: AttentionSizes, blk: AttentionBlock, core: int, half: int) -> tuple[int, int]:
    """First row and number of rows of the first or second strip of a core; a second one only where rows are folded."""
    place = core
    if half == 1:
        place = blk.num_strips - 1 - core
        if not blk.is_folded or place <= core:
            return 0, 0
    first = place * blk.strip
    return first, min(blk.strip, s.rows - first)


@inlined_kernel
def rows_of_core(s: AttentionSizes, blk: AttentionBlock, core: int) -> int:
    """Rows of a core, of one unit."""
    return strip_of(s, blk, core, 0)[1] + strip_of(s, blk, core, 1)[1]


@inlined_kernel
def row_tiles_of(s: AttentionSizes, blk: AttentionBlock, core: int, tile_q: int) -> int:
    """Row tiles of a core, of one unit."""
    return ceil_div(strip_of(s, blk, core, 0)[1], tile_q) + ceil_div(strip_of(s, blk, core, 1)[1], tile_q)


@inlined_kernel
def span_of(s: AttentionSizes, blk: AttentionBlock, place: int) -> tuple[int, int]:
    """First key of a span, and the first behind it."""
    first = place * blk.span
    return first, min(first + blk.span, s.keys)


KQ = 1  # `AttentionOrder`: keys and values stay, queries stream


class AttentionCounts(NamedTuple):
    """Work of a core for one of its units."""

    q_rows: int  # rows of Q loaded
    kv_keys: int  # keys loaded
    spill_rows: int  # rows of partial O that leave and come back
    once_keys: int  # keys that are loaded at all
    scores: int
    steps: int
    fills: int  # loads of a block of K or V into the matrix unit
    visits: int
    visit_rows: int  # rows of all visits


@inlined_kernel
def _visited(s: AttentionSizes, first_row: int, num_rows: int, key_0: int, key_1: int, tile_kv: int) -> tuple[int, int]:
    """First and last key tile of a span that any of these rows attends to; the last is below the first: none."""
    low = 0
    high = s.keys - 1
    if s.is_masked:
        low = max(0, first_row // s.group + s.ahead - s.window + 1)
        high = (first_row + num_rows - 1) // s.group + s.ahead
    low = max(low, key_0)
    high = min(high, key_1 - 1)
    if high < low:
        return 0, -1
    return (low - key_0) // tile_kv, (high - key_0) // tile_kv


@inlined_kernel
def _keys_between(low: int, high: int, tile_kv: int, span: int) -> int:
    return min((high + 1) * tile_kv, span) - low * tile_kv


@inlined_kernel
def key_steps_of(p: Any, s: AttentionSizes, keys: int) -> int:
    """Blocks of K and of V that the matrix unit takes of whole tiles of so many keys, and steps of cube_m rows."""
    of_scores = ceil_div(keys, p["cube_n"]) * ceil_div(s.head_dim, p["cube_k"])
    return of_scores + ceil_div(s.value_dim, p["cube_n"]) * ceil_div(keys, p["cube_k"])


class _StripCounts(NamedTuple):
    """Work of the row tiles of a strip."""

    tiles: int  # that visit any key
    rows: int
    visits: int
    keys: int  # of all visits of all row tiles, and of them what need not be loaded again
    kept_keys: int
    scores: int
    steps: int
    fills: int
    visit_rows: int
    low: int  # key tile of the first visit, and of the last
    high: int


@kernel
def _floor_sum(num: int, divisor: int, step: int, offset: int) -> int:
    """Sum of (offset + i*step) // divisor over i = 0..num-1, none of which is negative, by Euclid's algorithm."""
    total = 0
    while num > 0:
        if step >= divisor:
            total += num * (num - 1) // 2 * (step // divisor)
            step %= divisor
        if offset >= divisor:
            total += num * (offset // divisor)
            offset %= divisor
        last = step * num + offset
        if last < divisor:
            break
        num = last // divisor
        offset = last % divisor
        divisor, step = step, divisor
    return total


@inlined_kernel
def _first_from(offset: int, step: int, low: int, high: int) -> int:
    """Smallest i of low..high with offset + i*step >= 0; high if there is none."""
    i = 0 if offset >= 0 else ceil_div(-offset, step)
    return min(max(i, low), high)


@kernel
def _count_tiles(
    p: Any, s: AttentionSizes, first: int, num: int, key_0: int, span: int, tile_q: int, tile_kv: int
) -> _StripCounts:
    """Count a strip row tile by row tile."""
    tiles = rows = visits = all_keys = kept_keys = scores = steps = fills = visit_rows = 0
    strip_low = 0
    strip_high = -1
    for start in range(0, num, tile_q):
        m = min(tile_q, num - start)
        low, high = _visited(s, first + start, m, key_0, key_0 + span, tile_kv)
        if high < low:
            continue
        keys = _keys_between(low, high, tile_kv, span)
        blocks = key_steps_of(p, s, keys)
        if tiles == 0:
            strip_low = low
        elif low == strip_high:
            kept_keys += _keys_between(low, low, tile_kv, span)
        strip_high = high
        tiles += 1
        rows += m
        visits += high - low + 1
        all_keys += keys
        scores += m * keys
        steps += ceil_div(m, p["cube_m"]) * blocks
        fills += blocks
        visit_rows += m * (high - low + 1)
    return _StripCounts(
        tiles, rows, visits, all_keys, kept_keys, scores, steps, fills, visit_rows, strip_low, strip_high
    )  # fmt: skip


@kernel
def _count_full_tiles(
    p: Any, s: AttentionSizes, first: int, num: int, key_0: int, span: int, tile_q: int, tile_kv: int
) -> _StripCounts:
    """Count `num` full row tiles from row `first` on, by sums of floors.

    Row tile i ends its visits with key tile (end + i*tile_q) // unit, and begins them with (start + i*tile_q) // unit,
    each as far as that is one of the span.
    """
    unit = s.group * tile_kv
    T_kv = ceil_div(span, tile_kv)
    end = first + tile_q - 1 + (s.ahead - key_0) * s.group
    start = first + (s.ahead - s.window + 1 - key_0) * s.group
    i_0 = _first_from(end, tile_q, 0, num)  # those before end ahead of the span
    i_1 = _first_from(start - span * s.group, tile_q, i_0, num)  # from here on they begin behind it
    if i_1 == i_0:
        return _StripCounts(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -1)
    i_full = _first_from(end - (T_kv - 1) * unit, tile_q, i_0, i_1)  # from here on to the end of the span
    i_late = _first_from(start, tile_q, i_0, i_1)  # from here on not from its beginning
    ends = i_full - i_0 + _floor_sum(i_full - i_0, unit, tile_q, end + i_0 * tile_q)
    lows = _floor_sum(i_1 - i_late, unit, tile_q, start + i_late * tile_q)
    full = i_1 - i_full
    kept_keys = 0
    if T_kv == 1:
        kept_keys = (i_1 - i_0 - 1) * span
    else:
        in_first = _first_from(end - unit, tile_q, i_0, i_1)  # before it they visit the first key tile only
        in_last = _first_from(start - (T_kv - 1) * unit, tile_q, i_0 + 1, i_1)  # from here on the last only
        kept_keys = (min(in_first, i_1 - 1) - i_0) * tile_kv + (i_1 - in_last) * (span - (T_kv - 1) * tile_kv)
    visits = ends + T_kv * full - lows
    keys = tile_kv * (ends - lows) + span * full
    blocks = key_steps_of(p, s, span) * full
    if ends > lows or lows > 0:
        blocks += key_steps_of(p, s, tile_kv) * (ends - lows)
    low = max(0, start + i_0 * tile_q) // unit
    high = min((end + (i_1 - 1) * tile_q) // unit, T_kv - 1)
    return _StripCounts(
        i_1 - i_0, (i_1 - i_0) * tile_q, visits, keys, kept_keys, tile_q * keys,
        ceil_div(tile_q, p["cube_m"]) * blocks, blocks, tile_q * visits, low, high,
    )  # fmt: skip


@inlined_kernel
def _append(x: _StripCounts, y: _StripCounts, tile_kv: int, span: int) -> _StripCounts:
    """Return counts of row tiles, and of others that follow them."""
    if y.tiles == 0:
        return x
    if x.tiles == 0:
        return y
    kept_keys = x.kept_keys + y.kept_keys
    if y.low == x.high:
        kept_keys += _keys_between(y.low, y.low, tile_kv, span)
    return _StripCounts(
        x.tiles + y.tiles, x.rows + y.rows, x.visits + y.visits, x.keys + y.keys, kept_keys, x.scores + y.scores,
        x.steps + y.steps, x.fills + y.fills, x.visit_rows + y.visit_rows, x.low, y.high,
    )  # fmt: skip


@kernel
def _count_strip(
    p: Any, s: AttentionSizes, first: int, num: int, key_0: int, span: int, tile_q: int, tile_kv: int, is_bound: int
) -> _StripCounts:
    """Count a strip, by formulas where they know which key tiles stay, or where that does not matter."""
    if not is_bound and s.window != s.keys and s.window < tile_kv + 2 and span > tile_kv:
        return _count_tiles(p, s, first, num, key_0, span, tile_q, tile_kv)
    full = num // tile_q
    rest = full * tile_q
    counts = _count_full_tiles(p, s, first, full, key_0, span, tile_q, tile_kv)
    if rest < num:
        last = _count_tiles(p, s, first + rest, num - rest, key_0, span, tile_q, tile_kv)
        counts = _append(counts, last, tile_kv, span)
    return counts


@kernel
def count_core(
    p: Any, s: AttentionSizes, blk: AttentionBlock, core: int, key_0: int, key_1: int, tile_q: int, tile_kv: int,
    is_bound: int,
) -> AttentionCounts:  # fmt: skip
    """Count what a core with keys `key_0` to `key_1` does for one unit where rows stay; see `keys_stay`.

    With `is_bound` all but `kv_keys`, which takes longer where a window is smaller than a tile.
    """
    span = key_1 - key_0
    if not s.is_masked:
        return _count_all(p, s, strip_of(s, blk, core, 0)[1], span, tile_q, tile_kv)
    first, num = strip_of(s, blk, core, 0)
    x = _count_strip(p, s, first, num, key_0, span, tile_q, tile_kv, is_bound)
    once_keys = _keys_between(x.low, x.high, tile_kv, span) if x.tiles else 0
    first, num = strip_of(s, blk, core, 1)
    if num:
        y = _count_strip(p, s, first, num, key_0, span, tile_q, tile_kv, is_bound)
        if y.tiles:  # tiles of a strip have no gap, and later rows see later keys
            low = max(y.low, x.high + 1) if x.tiles else y.low
            once_keys += _keys_between(low, y.high, tile_kv, span) if y.high >= low else 0
        x = _append(x, y, tile_kv, span)
    return AttentionCounts(
        x.rows, x.keys - x.kept_keys, 0, once_keys, x.scores, x.steps, x.fills, x.visits, x.visit_rows
    )  # fmt: skip


@inlined_kernel
def _count_all(p: Any, s: AttentionSizes, rows: int, span: int, tile_q: int, tile_kv: int) -> AttentionCounts:
    """Return counts of a core of one strip, each row of which attends to each key."""
    T_q = ceil_div(rows, tile_q)
    T_kv = ceil_div(span, tile_kv)
    blocks = key_steps_of(p, s, span)
    return AttentionCounts(
        rows, span if T_kv == 1 else span * T_q, 0, span, rows * span, ceil_div(rows, p["cube_m"]) * blocks,
        T_q * blocks, T_q * T_kv, rows * T_kv,
    )  # fmt: skip


@inlined_kernel
def keys_stay(counts: AttentionCounts, kept_rows: int) -> AttentionCounts:
    """Return counts where keys stay and rows stream; `kept_rows` is of `count_kept_rows`, or larger for a bound."""
    loaded = max(counts.visit_rows - kept_rows, counts.q_rows)
    return AttentionCounts(
        loaded, counts.once_keys, loaded - counts.q_rows, counts.once_keys, counts.scores, counts.steps, counts.fills,
        counts.visits, counts.visit_rows,
    )  # fmt: skip


@kernel
def count_kept_rows(
    s: AttentionSizes, blk: AttentionBlock, core: int, key_0: int, key_1: int, tile_q: int, tile_kv: int
) -> int:
    """Rows that need not be loaded where keys stay: the last row tile of one key tile is the first of the next."""
    kept = 0
    if not s.is_masked:
        rows = strip_of(s, blk, core, 0)[1]
        return rows * (ceil_div(key_1 - key_0, tile_kv) - 1) if tile_q >= rows else 0
    last_half = -1
    last_tile = -1
    for start in range(key_0, key_1, tile_kv):
        end = min(start + tile_kv, key_1)
        low_row = max(0, start - s.ahead) * s.group
        high_row = (min(s.keys - s.ahead - 1, end - 1 - s.ahead + s.window - 1) + 1) * s.group - 1
        is_first = True
        for half in range(2):
            first, num = strip_of(s, blk, core, half)
            low = max(low_row - first, 0)
            high = min(high_row - first, num - 1)
            if high < low:
                continue
            tile = low // tile_q
            if is_first and half == last_half and tile == last_tile:
                kept += min(tile_q, num - tile * tile_q)
            is_first = False
            last_half = half
            last_tile = high // tile_q
    return kept


@kernel
def union_keys(
    s: AttentionSizes, blk: AttentionBlock, key_0: int, key_1: int, tile_q: int, tile_kv: int, order: int
) -> int:
    """Keys that the cores of a unit and span load together: each tile once for all that visit it in the same pass."""
    span = key_1 - key_0
    if order == KQ:
        return span
    if not s.is_masked:
        T_q = ceil_div(blk.strip, tile_q)
        return span * T_q if tile_kv < span else span
    total = 0
    kept_tile = -1
    for half in range(1 + blk.is_folded):
        for start in range(0, blk.strip, tile_q):
            top = -1  # the last tile that is among those of the pass so far
            bottom = -1
            for place in range(blk.E_Q):
                core = place if half == 0 else blk.E_Q - 1 - place  # by rows, ascending
                first, num = strip_of(s, blk, core, half)
                if start >= num:
                    continue
                low, high = _visited(s, first + start, min(tile_q, num - start), key_0, key_1, tile_kv)
                if high < low or high <= top:
                    continue
                if bottom < 0:
                    bottom = low
                total += _keys_between(max(low, top + 1), high, tile_kv, span)
                top = high
            if top >= 0:
                if bottom == kept_tile:
                    total -= _keys_between(bottom, bottom, tile_kv, span)
                kept_tile = top
    return total


RESCALE_OPS_PER_ELEM = 1
"""Of an element of O at each visit: times how much the maximum of its row changed."""

DIVIDE_OPS_PER_ELEM = 1
"""Of an element of O at the end: times the inverse of the sum of its row."""

MERGE_OPS_PER_ELEM = 2
"""Of an element of a partial O that another core made: rescale and add."""

STATS_PER_ROW = 2
"""Numbers that go with a row of partial O: the maximum and the sum."""

_INTS = (
    "P_U", "P_Q", "P_KV", "is_folded", "tile_q", "tile_kv", "loop_order", "active_cores", "visits", "sram_used_bytes",
    "dram_bytes", "q_bytes", "kv_bytes", "o_store_bytes", "o_spill_bytes", "o_refill_bytes", "reduction_bytes",
    "scores", "bound", "num_candidates", "num_partitions",
)  # fmt: skip

_TIMES = tuple(name for name in COST_DTYPE.names or () if name.endswith("_us") and name != "correction_us")

ATTENTION_COST_DTYPE = np.dtype(
    [(name, np.int64) for name in _INTS] + [(name, np.float64) for name in (*_TIMES, "busiest_core_bytes")]
)
"""The cost of one mapping. Bytes and scores are totals of the chip, times those of the slowest core."""


@kernel
def attention_sram_bytes(p: Any, s: AttentionSizes, tile_q: int, tile_kv: int) -> int:
    """SRAM bytes that the tiles of one core occupy, buffers included."""
    is_latent = s.kv_width == s.head_dim
    inputs = costs.padded_tile_bytes(p, tile_q, s.head_dim * p["a_half_bits"])
    inputs += costs.padded_tile_bytes(p, tile_kv, s.head_dim * p["b_half_bits"])
    copies = 0
    if p["has_dequant_copy"]:
        copies += costs.padded_tile_bytes(p, tile_kv, s.head_dim * p["a_half_bits"])
    if not is_latent:
        inputs += costs.padded_tile_bytes(p, tile_kv, s.value_dim * p["b_half_bits"])
        if p["has_dequant_copy"]:
            copies += costs.padded_tile_bytes(p, tile_kv, s.value_dim * p["a_half_bits"])
    scores = costs.padded_tile_bytes(p, tile_q, tile_kv * p["acc_half_bits"])
    scores += costs.padded_tile_bytes(p, tile_q, tile_kv * p["a_half_bits"])
    output = costs.padded_tile_bytes(p, tile_q, s.value_dim * p["acc_half_bits"])
    stats = costs.padded_tile_bytes(p, tile_q, STATS_PER_ROW * p["acc_half_bits"])
    return p["input_buffers"] * inputs + copies + scores + p["output_buffers"] * output + stats


@inlined_kernel
def _kept_frac(
    p: Any, blk: AttentionBlock, q: float, q_once: float, kv: float, kv_once: float, partial: float
) -> float:
    """Return what part of all that DRAM would give again the memory between DRAM and SRAM keeps."""
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
    return (1.0 - p["overlap_frac"]) * (compute_us + all_dma_us) + p["overlap_frac"] * best_us


@kernel
def attention_core_cost(
    p: Any, s: AttentionSizes, blk: AttentionBlock, counts: AttentionCounts, units: int, core: int, span: int,
    stream_keys: int, row_tiles: int, tile_q: int, tile_kv: int, order: int,
) -> CoreCost:  # fmt: skip
    """Cost of a core with so many units, all of which are like `counts`.

    It grows with every argument but the core and the order, so that a search gets a bound from some that are too small.

    Args:
        stream_keys: with multicast, the keys that the cores of its unit and span load together.
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
    return costs.whole_cost(
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
                    costs.fill_times(p, blk, cost, out)
                busiest_bytes = max(busiest_bytes, cost.busiest_bytes)
                visits = max(visits, cost.visits)
                q_bytes += costs.dram_total(num, cost.a_dram)
                kv_bytes += costs.dram_total(num, cost.b_dram)
                scores += num * units * counts.scores
                if not p["c_is_resident"]:
                    store_bytes += num * cost.store_bytes
                    spill_bytes += costs.dram_total(num, cost.spill_bytes * (1.0 - cost.kept_frac))
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
