"""Numba kernels that count what fused attention moves and computes, by blocks of queries and keys. See MODEL.md."""

from __future__ import annotations

from typing import Any, NamedTuple

from gemm_eval.jit import entry_point, inlined_kernel, kernel
from gemm_eval.models.multicore.cost_kernels import shared_share_of, write_cost_of
from gemm_eval.models.multicore.count_kernels import ceil_div


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
    share = p["dram_bytes_per_us"] / (active if p["is_fair"] else p["num_cores"])
    share = min(share, p["dram_core_limit_bytes_per_us"])
    return AttentionBlock(
        units, strip, span, E_U, E_Q, E_K, num_strips, is_folded, active,
        share, write_cost_of(p, active, share), shared_share_of(p, active),
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
    """What a core does for one of its units."""

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
    """Keys of the tiles `low` to `high` of a span."""
    return min((high + 1) * tile_kv, span) - low * tile_kv


@inlined_kernel
def key_steps_of(p: Any, s: AttentionSizes, keys: int) -> int:
    """Blocks of K and of V that the matrix unit takes of whole tiles of so many keys, and steps of cube_m rows."""
    of_scores = ceil_div(keys, p["cube_n"]) * ceil_div(s.head_dim, p["cube_k"])
    return of_scores + ceil_div(s.value_dim, p["cube_n"]) * ceil_div(keys, p["cube_k"])


class _StripCounts(NamedTuple):
    """What the row tiles of a strip do."""

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
    """Return counts where keys stay and rows stream, from those where rows stay.

    Args:
        counts: from `count_core`.
        kept_rows: rows that need not be loaded: from `count_kept_rows`; any larger number gives a bound.
    """
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
