"""Numba kernels of generic kernel families: the time of one kernel config, and how K may be split.

The terms are defined in MODEL.md. A kernel sees scalars, one record `p` of `GPU_PARAMS_DTYPE`, one record `row` of
`CANDIDATE_DTYPE`, one record `c` of `COEFFICIENTS_DTYPE`, and NamedTuples of scalars. Times are in microseconds, sizes
in bytes, `_cycles` at the highest SM clock.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from gemm_eval.jit import entry_point, inlined_kernel, kernel
from gemm_eval.models.gpu import cost_kernels as kernels
from gemm_eval.models.gpu.terms import Times

_MOST_CTA_ROWS = 512  # as `check_config` allows
_CLUSTER_SIZES = 5  # 1 to 16 CTAs


@kernel
def round_up(a: int, power_of_two: int) -> int:
    """Return the next multiple of a power of two."""
    return (a + power_of_two - 1) & -power_of_two


class RowTiles(NamedTuple):
    """Tiles along M of all groups."""

    tiles: int
    padded: int  # to whole clusters
    empty_rows: int  # of the last tile of each group


@inlined_kernel
def row_tiles_of(t: kernels.ProblemTerms, cta_m: int, cluster_m: int) -> RowTiles:
    """Return the tiles of rows: each has rows of one group only, so that each group's last one is ragged."""
    total = padded = empty = 0
    for place in range(len(t.group_rows)):
        rows, count = t.group_rows[place], t.group_counts[place]
        tiles = kernels.ceil_div(rows, cta_m)
        total += count * tiles
        padded += count * round_up(tiles, cluster_m)
        empty += count * (tiles * cta_m - rows)
    return RowTiles(total, padded, empty)


@kernel
def fill_row_tiles(
    t: kernels.ProblemTerms, cta_m: Any, cluster_m: Any, tiles: Any, clusters: Any, empty_rows: Any
) -> None:
    """Write what `row_tiles_of` says of each kernel [num], with whole clusters instead of their tiles."""
    if len(t.group_rows) == 1:
        G, M = float(t.G), float(t.M)
        for i in range(len(tiles)):
            of_one = np.ceil(M / cta_m[i])
            tiles[i] = G * of_one
            clusters[i] = G * np.ceil(of_one / cluster_m[i])
            empty_rows[i] = G * (of_one * cta_m[i] - M)
        return
    known = np.full((_MOST_CTA_ROWS + 1, _CLUSTER_SIZES), -1)  # where the same tile stood before
    for i in range(len(tiles)):
        rows, size = int(cta_m[i]), int(np.log2(cluster_m[i]))
        place = known[rows, size]
        if place >= 0:
            tiles[i], clusters[i], empty_rows[i] = tiles[place], clusters[place], empty_rows[place]
            continue
        known[rows, size] = i
        found = row_tiles_of(t, rows, 1 << size)
        tiles[i], clusters[i], empty_rows[i] = found.tiles, found.padded >> size, found.empty_rows


_NEWTON_STEPS = 5  # from above, where a concave function leads straight to its root: rounding is left
_NS_PER_US = 1e3


@kernel
def miss_frac(footprint: float) -> float:
    """Share of bytes that a cache misses if `footprint` times its size is read in turn, again and again.

    A miss takes the place of a random line. Of footprint * cache lines that are read in a turn a share m misses, so a
    line is there still with probability exp(-m * footprint), which is 1 - m.
    """
    if footprint <= 1.0:
        return 0.0
    m = min(1.0, 2.0 * (footprint - 1.0))  # footprint = -log(1 - m) / m = 1 + m/2 + m**2/3 + ...
    for _ in range(_NEWTON_STEPS):
        lost = math.expm1(-m * footprint)
        m += (m + lost) / ((1.0 + lost) * footprint - 1.0)
    return min(1.0, max(0.0, m))


@kernel
def quantize_us(p: Any, c: Any, rows: float, K: float, to_bytes: float) -> float:
    """Time of the kernels that make A [rows, K] of `to_bytes`, with scales; 0 where it is there already."""
    passes = p["quantize_passes"]
    if passes == 0:
        return 0.0
    from_bytes = rows * K * p["quantize_elem_bytes"]
    moved = passes * from_bytes + to_bytes
    missed = miss_frac((from_bytes + to_bytes) / p["l2_bytes"])
    dram_bytes = missed * moved
    if p["l2_state"] == kernels.ALL_COLD:
        dram_bytes += (1.0 - missed) * from_bytes
    l2 = moved / (p["l2_peak_bytes_per_us"] * c["quantize_l2_frac"])
    dram = dram_bytes / (p["dram_spec_bytes_per_us"] * c["quantize_dram_frac"])
    fixed = passes * c["quantize_us"] + rows * c["quantize_row_ns"] / _NS_PER_US
    return float(fixed + math.sqrt(l2 * l2 + dram * dram))


@kernel
def cast_us(p: Any, c: Any) -> float:
    """Time of the kernel that casts the one scale of A."""
    return float(c["scale_cast_us"]) if p["has_cast"] != 0 else 0.0


@entry_point
def quantize_rows(params: Any, coefficients: Any, sizes: Any, out_us: Any) -> None:
    """Time [num] us of the quantization of A alone; params and coefficients [1], sizes [num, 2] of M and K."""
    p, c = params[0], coefficients[0]
    for i in range(len(sizes)):
        rows, K = float(sizes[i, 0]), float(sizes[i, 1])
        out_us[i] = quantize_us(p, c, rows, K, rows * K * p["a_elem_bytes"])


_RASTER_CODE_DEFAULT = 1  # along M, no swizzle
_MAX_SWIZZLE = 16
_LINE_BYTES = 128.0
_COMPILED_ALIGNMENT = 16  # elements: what Triton specializes a stride on
_WARP_LANES = 32.0
_LRU_HOLD = 1.04  # of L2: where what is read in turn stops to stay (weights of few rows on an L40S), see MODEL.md


@kernel
def _norm4(a: float, b: float, c: float, d: float) -> float:
    """Return the 4-norm: the largest of four times, and a little more where two are alike: overlap is not perfect."""
    a2, b2, c2, d2 = a * a, b * b, c * c, d * d
    result: float = np.sqrt(np.sqrt(a2 * a2 + b2 * b2 + c2 * c2 + d2 * d2))
    return result


@kernel
def _alignment(row_bytes: float) -> float:
    """Return the largest power of two up to 16 that divides the bytes of a row; rows of half bytes count as 1."""
    for aligned in (16.0, 8.0, 4.0, 2.0):
        if row_bytes % aligned == 0.0:
            return aligned
    return 1.0


@kernel
def row_alignment(p: Any, M: int, K: int, N: int) -> float:
    """Bytes, at most 16, on which all rows of A, B and C start, as the layout has them; those of C are N long.

    Of a single column, C is one row; not so in weight-only kernels, which have columns on the instruction's rows.
    """
    a_row = M if p["is_a_along_m"] != 0 and M > 1 else K
    b_row = N if p["is_b_along_n"] != 0 and N > 1 else K
    result: float = min(_alignment(a_row * p["a_elem_bytes"]), _alignment(b_row * p["b_elem_bytes"]))
    if N > 1 or p["b_elem_bytes"] < p["a_elem_bytes"]:
        result = min(result, _alignment(N * p["c_elem_bytes"]))
    return result


@kernel
def _stay_frac(p: Any, c: Any, footprint_bytes: float) -> float:
    """Share of what one call used that L2 still holds in the next, if a call uses `footprint_bytes` in all.

    An L2 of one partition drops what was used longest ago: of a footprint a little above its size nothing is left. In
    one of two partitions, which hold copies of lines of each other, it goes little by little.
    """
    if p["num_l2_partitions"] > 1:
        f2 = (footprint_bytes / c["l2_hold_bytes"]) ** 2
        excess: float = f2 * f2
    else:
        excess = min(footprint_bytes / (_LRU_HOLD * p["l2_bytes"]), 2.0) ** 64
    return 1.0 / (1.0 + excess)


@kernel
def problem_terms(
    p: Any, c: Any, K: int, N: int, group_rows: Any, group_counts: Any, is_grouped: bool
) -> kernels.ProblemTerms:
    """Bytes of a problem, its rows padded as its types need it, and what of them L2 keeps.

    A group without a row is no part of it: its weights are not read.
    """
    G, M, rows = 0, group_rows[0], 0
    for place in range(len(group_rows)):
        G += group_counts[place]
        rows += group_counts[place] * group_rows[place]
    K = kernels.ceil_div(K, p["k_pad"]) * p["k_pad"]
    if N > 1 or p["b_elem_bytes"] < p["a_elem_bytes"]:
        N = kernels.ceil_div(N, p["n_pad"]) * p["n_pad"]
    a_bytes = rows * (K * p["a_elem_bytes"])
    b_bytes = G * N * (K * p["b_elem_bytes"])
    scale_bytes = 0.0
    if p["scale_bytes_per_group"] > 0.0:
        groups = kernels.ceil_div(K, p["group_size"]) if p["group_size"] > 0 else 1
        a_bytes += rows * (groups * p["a_scale_bytes_per_group"])  # they come with A, and are read again with it
        scale_bytes = G * kernels.ceil_div(N, p["group_n"]) * (groups * p["scale_bytes_per_group"])
    c_bytes = rows * (N * p["c_elem_bytes"])
    footprint_bytes = a_bytes + b_bytes + scale_bytes + c_bytes
    stay_frac = 0.0 if p["l2_state"] == kernels.ALL_COLD else _stay_frac(p, c, footprint_bytes)
    b_stay = stay_frac if p["l2_state"] == kernels.WARM else 0.0
    if b_stay > 0.0 and p["call_weights"] > 1.0:
        b_stay = _stay_frac(p, c, footprint_bytes + (p["call_weights"] - 1.0) * (b_bytes + scale_bytes))
    # the GEMMs of a batch follow each other: what is read again is of one of them
    l2_hold_frac = min(1.0, c["l2_hold_bytes"] * G / (p["num_l2_caches"] * (a_bytes + b_bytes + scale_bytes)))
    line_waste = 1.0
    row_bytes = (N if p["is_b_along_n"] != 0 else K) * p["b_elem_bytes"]
    if row_bytes % _LINE_BYTES != 0.0 and row_bytes > _LINE_BYTES:
        line_waste = 1.0 + c["line_waste"]
    aligned = row_alignment(p, M, K, N)
    load_frac = 1.0
    if aligned < kernels.ROW_BYTES:
        load_frac = c["unaligned_frac"] * (min(aligned, kernels.NARROW_BYTES) / kernels.NARROW_BYTES)
        if row_bytes % _LINE_BYTES == 0.0:
            load_frac /= 1.0 + c["line_conflict"]
    before_us = quantize_us(p, c, float(rows), float(K), a_bytes)
    return kernels.ProblemTerms(
        G, M, K, N, a_bytes, b_bytes, scale_bytes, c_bytes, stay_frac, a_bytes * (1.0 - stay_frac),
        (b_bytes + scale_bytes) * (1.0 - b_stay), l2_hold_frac, line_waste, load_frac,
        before_us, cast_us(p, c), rows, group_rows, group_counts, is_grouped,
    )  # fmt: skip


@inlined_kernel
def _outside_us(
    p: Any,
    row: Any,
    c: Any,
    t: kernels.ProblemTerms,
    row_tiles: RowTiles,
    tiles_n: int,
    padded_n: int,
    all_steps: int,
) -> float:
    """TMA fills rows of tiles that lie beyond the matrix slowly, whichever SM asks."""
    if row["schedule"] > kernels.COOPERATIVE:
        return 0.0
    rows = row_tiles.empty_rows * (padded_n / row["cluster_n"])
    rows += (tiles_n * row["cta_n"] - t.N) * (row_tiles.padded / row["cluster_m"])
    result: float = rows * all_steps / (c["outside_rows_per_cycle"] * p["cycles_per_us"])
    return result


@kernel
def split_cap(p: Any, schedule: int, grid_cap: int, cluster_log2: float) -> int:
    """CTAs among which a library splits K: those that fit the GPU, one less in clusters of four and more.

    cuBLAS's proposals in such clusters stay below. 0: it leaves K whole in kernels that are persistent.
    """
    is_split = (p["is_split_short"] == 0) | (schedule == kernels.MULTISTAGE)
    result: int = (grid_cap - (cluster_log2 > 1.0)) * is_split
    return result


@kernel
def _most_parts(
    num_sms: float, min_steps: float, max_parts: float, is_full: bool,
    tiles: float, steps: float, cap: float, is_vector: bool, has_other_rows: bool,
) -> tuple[float, bool]:  # fmt: skip
    """Most parts of K that the library makes of a tile, and whether it does not use the tile for this problem.

    A search decides it for all rows at once, so nothing here branches, and all numbers are floats.
    """
    long_enough = np.floor(steps / min_steps)
    long_enough = max_parts if long_enough > max_parts else long_enough
    at_once = np.floor(cap / tiles)
    most = long_enough if long_enough < at_once else at_once
    most = 1.0 if most < 1.0 else most
    # with another cluster K can be split, so it is
    is_refused = is_full and most == 1.0 and long_enough > 1.0 and np.floor(num_sms / tiles) > 1.0
    is_refused = has_other_rows or (is_refused and not is_vector)
    most = 1.0 if is_vector else most
    return most, is_refused


@kernel
def _max_parts(p: Any, t: kernels.ProblemTerms) -> float:
    """Most parts of K by the library's rule, which may leave batches whole."""
    return 1.0 if p["is_split_lone"] != 0 and t.G > 1 else float(p["max_split_parts"])


class BoundColumns(NamedTuple):
    """Columns of kernels that `row_bounds_us` reads, families' coefficients among them; see `pack_bound_columns`."""

    cta_m: Any
    cta_n: Any
    cta_k: Any
    cluster_m: Any
    cluster_n: Any
    grid_cap: Any
    split_cap: Any
    min_rows: Any
    max_rows: Any
    is_vector: Any
    is_pingpong: Any
    busy_cycles: Any
    work_cycles: Any
    tile_cycles: Any
    store_cycles: Any  # of a column of a tile of C
    fixed_us: Any
    dram_bytes_per_us: Any
    outside_us_per_row_step: Any


_AT = BoundColumns(*range(len(BoundColumns._fields)))  # the place of each


@kernel
def row_bounds_us(p: Any, c: Any, t: kernels.ProblemTerms, columns: Any, first: int, bounds: Any) -> None:
    """Write to `bounds` [num] that no raster and no way to split K beats, inf for none: of kernels from `first` on.

    It is the cost without waiting for loads, power and panels that are read again, and below 1e-9 of it no rounding.
    All waves are taken as one: the 4-norm of sums is at most the sum of 4-norms. Where the library weighs splits or has
    stream-K, work is at best spread evenly. `columns` [BoundColumns, rows] holds floats alone and no branch is taken
    on them, so that a CPU does several rows at a time: nearly all that a search does is to find these.
    """
    stop = first + len(bounds)
    cta_m, cta_n, cta_k = columns[_AT.cta_m, first:stop], columns[_AT.cta_n, first:stop], columns[_AT.cta_k, first:stop]
    cluster_m, cluster_n = columns[_AT.cluster_m, first:stop], columns[_AT.cluster_n, first:stop]
    grid_cap, split_caps = columns[_AT.grid_cap, first:stop], columns[_AT.split_cap, first:stop]
    is_vector, is_pingpong = columns[_AT.is_vector, first:stop], columns[_AT.is_pingpong, first:stop]
    min_rows, max_rows = columns[_AT.min_rows, first:stop], columns[_AT.max_rows, first:stop]
    busy_cycles, work_cycles = columns[_AT.busy_cycles, first:stop], columns[_AT.work_cycles, first:stop]
    tile_cycles, fixed_us = columns[_AT.tile_cycles, first:stop], columns[_AT.fixed_us, first:stop]
    store_cycles = columns[_AT.store_cycles, first:stop]
    dram_bytes_per_us = columns[_AT.dram_bytes_per_us, first:stop]
    outside_us_per_row_step = columns[_AT.outside_us_per_row_step, first:stop]
    tiles_along_m, clusters_along_m, empty_rows = np.empty((3, len(bounds)))
    fill_row_tiles(t, cta_m, cluster_m, tiles_along_m, clusters_along_m, empty_rows)
    G, M, K, N = float(t.G), float(t.M), float(t.K), float(t.N)
    num_sms, min_steps, max_parts = float(p["num_sms"]), float(p["min_split_steps"]), _max_parts(p, t)
    is_full, has_stream_k = p["is_split_full"] != 0, p["has_stream_k"] != 0
    w_bytes = t.b_bytes + t.scale_bytes
    dram_bytes = (t.a_read_bytes + t.b_read_bytes + t.c_bytes * (1.0 - t.stay_frac)) * t.line_waste
    vector_rate = c["sm_l2_bytes_per_cycle"]
    tile_rate = vector_rate * t.load_frac
    cycles_per_us, l2_rate = p["cycles_per_us"], c["l2_bytes_per_us"]
    exposed = c["store_exposed_frac"] * ((1.0 - t.stay_frac) / p["dram_peak_bytes_per_us"] + t.stay_frac / l2_rate)
    first_bytes = c["l2_first"] * (t.a_bytes + w_bytes) * t.line_waste
    partial_bytes = t.rows * (N * 4.0)
    reduce_us, reduce_part_us, reduce_rate = c["reduce_us"], c["reduce_part_us"], l2_rate * c["reduce_frac"]
    factor = (1.0 + c["choice_loss"]) * kernels.BOUND_SLACK
    before_us = (t.quantize_us + t.cast_us) * kernels.BOUND_SLACK
    for i in range(len(bounds)):
        tiles_n = np.ceil(N / cta_n[i])
        clusters_m, clusters_n = clusters_along_m[i], np.ceil(tiles_n / cluster_n[i])
        all_steps = np.ceil(K / cta_k[i])
        most, is_refused = _most_parts(
            num_sms, min_steps, max_parts, is_full, tiles_along_m[i] * tiles_n, all_steps, split_caps[i],
            is_vector[i] != 0.0, max_rows[i] < M or min_rows[i] > M,
        )  # fmt: skip
        is_even = not is_full and (has_stream_k or most > 1.0)
        split = most if is_full else 1.0

        steps = np.ceil(all_steps / split)
        units = (clusters_m * cluster_m[i]) * (clusters_n * cluster_n[i]) * np.ceil(all_steps / steps)
        rounds = units / grid_cap[i]
        l2_bytes = (t.a_bytes * clusters_n + w_bytes * (clusters_m / G)) * t.line_waste
        ingest = l2_bytes / (units * steps) / (vector_rate if is_vector[i] != 0.0 else tile_rate)
        busy = np.sqrt(busy_cycles[i] * busy_cycles[i] + ingest * ingest)
        waves = np.ceil(rounds)
        is_hidden = is_pingpong[i] != 0.0 and waves > 1.0
        work = 0.5 * work_cycles[i] if is_hidden else work_cycles[i]
        step = busy if busy > work else work
        # CTAs of an SM load and store one after the other
        turns = units / num_sms
        turns = turns if turns > waves else waves
        stores = store_cycles[i] * (cta_n[i] if cta_n[i] < N else N)
        shared = turns * steps * busy
        cycles = waves * steps * step
        cycles = cycles if is_hidden or cycles > shared else shared
        cycles += 0.0 if is_hidden else waves * tile_cycles[i] + turns * stores
        # parts of a split have the steps and tiles of the whole K at least; those of stream-K are spread evenly
        even_work = work_cycles[i] * (0.0 if has_stream_k else 0.5 if is_pingpong[i] != 0.0 else 1.0)
        even_step = even_work if even_work > busy_cycles[i] else busy_cycles[i]
        even_tiles = 0.0 if has_stream_k or is_pingpong[i] != 0.0 else 1.0
        even_waves = rounds if rounds > 1.0 else 1.0
        even = rounds * all_steps * even_step + even_tiles * even_waves * (tile_cycles[i] + stores)
        cycles = even if is_even else cycles
        is_split = split > 1.0 and not is_even
        written = partial_bytes * split if is_split else t.c_bytes
        waits_us = reduce_us + reduce_part_us * (split - 1.0)
        reduction_us = waits_us + (written + t.c_bytes) / reduce_rate if is_split else 0.0
        rows = empty_rows[i] * clusters_n + (tiles_n * cta_n[i] - N) * clusters_m
        outside_us = rows * all_steps * outside_us_per_row_step[i]
        chip, dram = cycles / cycles_per_us, dram_bytes / dram_bytes_per_us[i]
        l2 = (l2_bytes + first_bytes) / l2_rate
        chip, dram, l2, outside = chip * chip, dram * dram, l2 * l2, outside_us * outside_us
        main_us = np.sqrt(np.sqrt(chip * chip + dram * dram + l2 * l2 + outside * outside))
        bound_us = (fixed_us[i] + reduction_us + main_us + exposed * written) * factor + before_us
        bounds[i] = np.inf if is_refused else bound_us
    if p["least_step"] > 0:
        for i in range(len(bounds)):
            if _has_ragged_step(p, t.K, int(cta_k[i])):
                bounds[i] = np.inf


@inlined_kernel
def _has_ragged_step(p: Any, K: int, cta_k: int) -> bool:
    """Return whether a library has no such kernel for a K, of which the last k-step would not be full."""
    return p["least_step"] > 0 and cta_k > p["least_step"] and K % cta_k != 0


@kernel
def _wave_panels(
    G: int, tiles_m: int, tiles_n: int, ctas: int, a_panel: float, b_panel: float, raster: int
) -> tuple[float, int]:
    """DRAM bytes of all waves when nothing stays in L2 between waves; under the raster that needs least if it is -1.

    A raster goes along one dimension, `swizzle` tiles across. A wave of `ctas` tiles is a block of swizzle x run tiles
    of which every row panel of A (`a_panel` bytes) and every column panel of B is read once. A raster is coded as
    order * RASTER_CODE + swizzle. Returns (bytes, raster).
    """
    tiles = tiles_m * tiles_n
    in_flight = min(ctas, tiles)
    waves = max(1.0, tiles / in_flight)
    best, best_raster = np.inf, _RASTER_CODE_DEFAULT
    for order in range(2):
        across, along = (tiles_n, tiles_m) if order == 0 else (tiles_m, tiles_n)
        swizzle = 1
        while swizzle <= _MAX_SWIZZLE and (swizzle == 1 or swizzle < 2 * across or raster >= 0):
            code = order * kernels.RASTER_CODE + swizzle
            if raster < 0 or raster == code:
                width = min(swizzle, across)
                run = in_flight / width
                if run > along:  # the wave goes on in the next band
                    width = min(across, width * kernels.ceil_div(int(run), along))
                    run = float(along)
                m_tiles, n_tiles = (run, float(width)) if order == 0 else (float(width), run)
                total = waves * (m_tiles * a_panel + n_tiles * b_panel)
                if total < best:
                    best, best_raster = total, code
            swizzle *= 2
    return best * G, best_raster


@inlined_kernel
def _waves_bytes(t: kernels.ProblemTerms, cta_m: int, tiles_n: int, ctas: int, raster: int) -> tuple[float, int]:
    """DRAM bytes as in `_wave_panels`, of groups one after another, under the raster that suits the largest."""
    b_panel = t.b_bytes / (t.G * tiles_n)
    if len(t.group_rows) == 1:
        tiles_m = kernels.ceil_div(t.M, cta_m)
        return _wave_panels(t.G, tiles_m, tiles_n, ctas, t.a_bytes / (t.G * tiles_m), b_panel, raster)
    total = 0.0
    for place in range(len(t.group_rows)):
        rows = t.group_rows[place]
        tiles_m = kernels.ceil_div(rows, cta_m)
        a_panel = t.a_bytes * (rows / t.rows) / tiles_m
        some, raster = _wave_panels(t.group_counts[place], tiles_m, tiles_n, ctas, a_panel, b_panel, raster)
        total += some
    return total, raster


@kernel
def config_cost(p: Any, row: Any, c: Any, t: kernels.ProblemTerms, split: int, raster: int) -> kernels.ConfigCost:
    """Return the time of one config: MODEL.md, "Time".

    `split` CTAs share a tile of C; `STREAM_K` spreads k-steps evenly; `raster` as in `_wave_panels`.
    """
    is_stream = split == kernels.STREAM_K
    cta_m, cta_n = row["cta_m"], row["cta_n"]
    row_tiles, tiles_n = row_tiles_of(t, cta_m, row["cluster_m"]), kernels.ceil_div(t.N, cta_n)
    padded_n = round_up(tiles_n, row["cluster_n"])
    tiles = row_tiles.padded * padded_n
    all_steps = kernels.ceil_div(t.K, row["cta_k"])
    cap = row["grid_cap"]
    if is_stream:
        # mostly one an SM: more only cut more tiles; as long as each has some steps to do
        units = min(row["stream_cap"], max(1, tiles * all_steps // row["min_stream_steps"]))
        step_count = tiles * all_steps / units
    else:
        part_steps = kernels.ceil_div(all_steps, split)
        units = tiles * kernels.ceil_div(all_steps, part_steps)  # parts without a step do nothing
        step_count = float(part_steps)
    ctas = min(units, cap)
    rounds = units // ctas
    rest = units - rounds * ctas
    num_sms = p["num_sms"]
    schedule = row["schedule"]
    sms = min(ctas, row["sm_cap"])
    resident = kernels.ceil_div(ctas, sms)  # CTAs of one SM at a time
    cycles_per_us = p["cycles_per_us"]

    # traffic; a panel that a cluster shares is read from L2 once
    a_l2 = t.a_bytes * (padded_n / row["cluster_n"])
    b_l2 = (t.b_bytes + t.scale_bytes) * (row_tiles.padded / (t.G * row["cluster_m"]))
    first_bytes = c["l2_first"] * (t.a_bytes + t.b_bytes + t.scale_bytes)
    is_compiled = row["operand_bytes"] > 0.0
    waste = t.line_waste
    if is_compiled and row["cta_k"] * p["b_elem_bytes"] < _LINE_BYTES:
        waste *= 1.0 + c["half_line_waste"]
    l2_bytes = (a_l2 + b_l2 + first_bytes) * waste
    compulsory = t.a_read_bytes + t.b_read_bytes
    read_bytes, l3_us = compulsory, 0.0
    if raster != kernels.NO_RASTER and t.l2_hold_frac < 1.0 and cta_m < t.M and tiles_n > 1:
        # a die with an L2 of its own reads the panels of its own share of a wave
        waves_bytes, raster = _waves_bytes(t, cta_m, tiles_n, max(1, ctas // int(p["num_l2_caches"])), raster)
        if waves_bytes > compulsory:
            again_bytes = (1.0 - t.l2_hold_frac) * (waves_bytes - compulsory)
            l3_bytes = again_bytes * min(1.0, p["l3_bytes"] * t.G / (t.a_bytes + t.b_bytes + t.scale_bytes))
            read_bytes += again_bytes - l3_bytes
            l3_us = l3_bytes / p["l3_bytes_per_us"]

    outside_us = _outside_us(p, row, c, t, row_tiles, tiles_n, padded_n, all_steps)

    # one k-step of one CTA, in cycles of its SM
    is_vector = schedule == kernels.VECTOR
    matrix = row["matrix_cycles"] / (c["vector_frac"] if is_vector else c["matrix_frac"])
    dequant = row["dequant_cycles"] * (c["vector_dequant"] if is_vector else c["dequant"])
    tile_loss = c["tile_cycles"] + (c["vector_tile_cycles"] if is_vector else 0.0)
    work = max(matrix, dequant) + c["dequant_exposed"] * min(matrix, dequant)
    step_loss = c["vector_step_cycles"] if is_vector else c["step_cycles"] + c["lone_frac"] * work
    if row["ring_steps"] > 2:  # a wait for loads, which more steps in flight share
        step_loss *= 2.0 / row["ring_steps"]
    smem = (row["stage_bytes"] + row["operand_bytes"]) / p["smem_bytes_per_cycle"]
    fill = np.sqrt(work * work + smem * smem) if is_compiled else max(work, smem)
    # of a full tile, as the slowest CTA decides; where rows beyond groups are masked, of a tile in the mean
    tile_rows = min(float(cta_m), t.rows / row_tiles.tiles) if is_compiled else float(min(cta_m, t.M))
    a_row, b_row = t.a_bytes / t.rows, (t.b_bytes + t.scale_bytes) / (t.G * t.N)
    tile_bytes = tile_rows * a_row / row["cluster_n"] + min(cta_n, t.N) * b_row / row["cluster_m"]
    load_frac = 1.0 if is_vector else t.load_frac  # the lanes of a warp read one row
    ingest = tile_bytes * waste / all_steps / (c["sm_l2_bytes_per_cycle"] * load_frac)
    ahead = row["num_stages"] - 1.0
    if is_compiled and t.K % _COMPILED_ALIGNMENT != 0:  # no cp.async, and so no ring
        ingest += c["element_load_cycles"] * ((cta_m + cta_n) * row["cta_k"] / _WARP_LANES)
        ahead = 1.0
    busy = np.sqrt(fill * fill + ingest * ingest)
    latency = p["load_latency_cycles"]
    if is_compiled:
        missed = t.b_read_bytes / (t.b_bytes + t.scale_bytes)
        latency = p["l2_latency_cycles"] + missed * (latency - p["l2_latency_cycles"] + c["load_wait_cycles"])
    round_trip = (fill + ingest + latency) / ahead
    epilogue = cta_m * min(cta_n, t.N) * row["store_elem_bytes"] / c["epilogue_bytes_per_cycle"]
    if schedule == kernels.PINGPONG:
        lone = step_count * max(busy, round_trip, work + step_loss) + c["tile_cycles"] + epilogue
        shared = max(step_count * max(busy, round_trip, 0.5 * (work + step_loss)) + c["pingpong_cycles"], 0.5 * lone)
        # the ring holds tiles ahead, but seldom across the tensors of groups, as timings on a B200 show
        if step_count <= 1.0 and (p["fills_across_groups"] != 0 or not t.is_grouped):
            shared = min(shared, lone)
        first = rounds * shared if rest > 0 else (rounds - 1) * shared + lone
        last = lone
    elif schedule == kernels.COOPERATIVE:
        step = max(busy, round_trip, work + c["coop_step_cycles"])
        lone = step_count * step + c["coop_tile_cycles"] + epilogue
        first = rounds * lone
        last = lone
    else:
        ring_steps = min(float(row["ring_steps"]), step_count)
        rest_steps = step_count - ring_steps
        wait = max(round_trip, work + step_loss)
        lone = ring_steps * max(resident * busy, work) + rest_steps * max(resident * busy, wait)
        lone += tile_loss + epilogue * resident
        first = rounds * lone
        last_resident = kernels.ceil_div(rest, num_sms)
        last = ring_steps * max(last_resident * busy, work) + rest_steps * max(last_resident * busy, wait)
        last += tile_loss + epilogue * last_resident

    # the waves: full ones, then what is left, each as long as its slowest resource
    unit_dram = (read_bytes * (waste / t.line_waste) + t.c_bytes * (1.0 - t.stay_frac)) / units
    unit_l2 = l2_bytes / units
    dram_rate = c["dram_bytes_per_us"] * (1.0 - c["cluster_loss"] * row["cluster_log2"]) / t.line_waste
    first_us = first / cycles_per_us
    first_dram = rounds * ctas * unit_dram / dram_rate + l3_us * (rounds * ctas / units)
    first_l2 = rounds * ctas * unit_l2 / c["l2_bytes_per_us"]
    first_outside = outside_us * (rounds * ctas / units)
    main = _norm4(first_us, first_dram, first_l2, first_outside)
    dram_us, l2_us, chip_us = first_dram, first_l2, first_us
    if rest > 0:
        last_us = last / cycles_per_us
        last_dram = rest * unit_dram / dram_rate + l3_us * (rest / units)
        last_l2 = rest * unit_l2 / c["l2_bytes_per_us"]
        main += _norm4(last_us, last_dram, last_l2, outside_us * (rest / units))
        dram_us += last_dram
        l2_us += last_l2
        chip_us += last_us

    # storing C, the part that nothing hides
    written = t.c_bytes
    reduction_us = 0.0
    if split > 1:
        partial = t.rows * (t.N * 4.0) * split
        written = partial
        reduction_us = c["reduce_us"] + c["reduce_part_us"] * (split - 1)
        reduction_us += (partial + t.c_bytes) / (c["l2_bytes_per_us"] * c["reduce_frac"])
    elif is_stream:
        cut = ctas * (cta_m * cta_n * 4.0)
        reduction_us = c["fixup_us"] + 2.0 * cut / (c["l2_bytes_per_us"] * c["reduce_frac"])
    store_us = (
        c["store_exposed_frac"]
        * written
        * ((1.0 - t.stay_frac) / p["dram_peak_bytes_per_us"] + t.stay_frac / c["l2_bytes_per_us"])
    )
    main += store_us

    # the tensor cores' load pulls the clock down
    total_matrix = 0.0 if is_vector else units * step_count * row["matrix_cycles"] / num_sms / cycles_per_us
    tensor_busy = min(1.0, total_matrix / main)
    loaded = kernels.loaded_time_us(p, main, total_matrix, 1.0)
    prologue_us = (c["vector_kernel_us"] if is_vector else c["kernel_us"]) + p["load_latency_cycles"] / cycles_per_us
    prologue_us += c["ramp_us"] * (sms / num_sms)
    latency = p["launch_us"] + prologue_us + loaded + reduction_us
    choice_us = latency * c["choice_loss"]
    latency += choice_us + t.quantize_us + t.cast_us
    matrix_us = (
        (rounds * (1 if rounds > 1 or schedule != kernels.MULTISTAGE else resident) + (1 if rest > 0 else 0))
        * (step_count * row["matrix_cycles"])
        / cycles_per_us
    )
    matrix_us = min(matrix_us, chip_us)
    dequant_us = min(chip_us - matrix_us, max(0.0, (work - matrix) / max(work, 1e-9)) * chip_us)
    overhead_us = (rounds + (1 if rest > 0 else 0)) * epilogue / cycles_per_us
    overhead_us = min(chip_us - matrix_us - dequant_us, overhead_us)
    times = Times(
        p["launch_us"], prologue_us, matrix_us, dequant_us, chip_us - matrix_us - dequant_us - overhead_us, overhead_us,
        l2_us, dram_us, outside_us, store_us, reduction_us, loaded - main, choice_us,
        t.quantize_us, t.cast_us,
    )  # fmt: skip
    return kernels.ConfigCost(
        latency, times, main, tensor_busy, read_bytes, ctas, tiles, rounds + (1 if rest > 0 else 0),
        rest if rest > 0 else ctas, sms, raster if raster >= 0 else _RASTER_CODE_DEFAULT,
    )  # fmt: skip


@kernel
def list_splits(p: Any, row: Any, t: kernels.ProblemTerms, splits: Any) -> int:
    """Write the numbers of parts of K that a search looks at, and `STREAM_K`, to `splits`; returns how many.

    A number of parts that is no shorter than another's is left out: it only adds partial sums.
    """
    if _has_ragged_step(p, t.K, row["cta_k"]):
        return 0
    steps = kernels.ceil_div(t.K, row["cta_k"])
    tiles = float(row_tiles_of(t, row["cta_m"], 1).tiles * kernels.ceil_div(t.N, row["cta_n"]))
    most, is_refused = _most_parts(
        float(p["num_sms"]), float(p["min_split_steps"]), _max_parts(p, t), p["is_split_full"] != 0,
        tiles, float(steps), float(split_cap(p, row["schedule"], row["grid_cap"], row["cluster_log2"])),
        row["schedule"] == kernels.VECTOR,
        row["max_rows"] < t.M or row["min_rows"] > t.M,
    )  # fmt: skip
    limit = 0 if is_refused else int(most)
    split = limit if p["is_split_full"] and limit > 0 else 1
    num = 0
    while split <= limit:
        if steps % split == 0 or not p["is_split_even"]:
            splits[num] = split
            num += 1
        part = -(-steps // split)
        split = split + 1 if part <= 1 else -(-steps // (part - 1))
    if p["has_stream_k"] != 0 and row["schedule"] != kernels.VECTOR:
        splits[num] = kernels.STREAM_K
        num += 1
    return num


@inlined_kernel
def _bounds_of(p: Any, c: Any, t: kernels.ProblemTerms, columns: Any, first: int, bounds: Any) -> None:
    row_bounds_us(p, c[0], t, columns, first, bounds)


@inlined_kernel
def _is_beaten(
    p: Any, row: Any, columns: Any, index: int, c: Any, t: kernels.ProblemTerms, split: int, best_us: float
) -> bool:  # fmt: skip
    """Return True where so many parts of K cannot take less than `best_us`: their sums, a part, and DRAM."""
    if split <= 1 or row["schedule"] == kernels.PINGPONG:
        return False
    steps = kernels.ceil_div(kernels.ceil_div(t.K, row["cta_k"]), split)
    step_cycles = max(columns[_AT.work_cycles, index], columns[_AT.busy_cycles, index])
    chip_us = (steps * step_cycles + columns[_AT.tile_cycles, index]) / p["cycles_per_us"]
    dram_bytes = (t.a_read_bytes + t.b_read_bytes + t.c_bytes * (1.0 - t.stay_frac)) * t.line_waste
    dram_us = dram_bytes / columns[_AT.dram_bytes_per_us, index]
    partial = t.rows * (t.N * 4.0) * split
    sums_us = c["reduce_us"] + c["reduce_part_us"] * (split - 1)
    sums_us += (partial + t.c_bytes) / (c["l2_bytes_per_us"] * c["reduce_frac"])
    sums_us += (
        c["store_exposed_frac"]
        * partial
        * ((1.0 - t.stay_frac) / p["dram_peak_bytes_per_us"] + t.stay_frac / c["l2_bytes_per_us"])
    )
    least_us = (columns[_AT.fixed_us, index] + sums_us + max(chip_us, dram_us)) * (1.0 + c["choice_loss"])
    return bool((least_us + t.quantize_us + t.cast_us) * kernels.BOUND_SLACK > best_us)


@inlined_kernel
def _latency_below_us(p: Any, row: Any, c: Any, t: kernels.ProblemTerms, split: int, best_us: float) -> float:
    """Return the time of a config under its best raster; inf if it cannot be below `best_us`, found out sooner."""
    latency_us = config_cost(p, row, c, t, split, kernels.NO_RASTER).latency_us
    if latency_us > best_us:
        return np.inf
    if t.l2_hold_frac < 1.0:
        latency_us = config_cost(p, row, c, t, split, kernels.BEST_RASTER).latency_us
    return float(latency_us)


GENERIC = kernels.CostRules(problem_terms, list_splits, _bounds_of, _is_beaten, _latency_below_us, config_cost)
"""What a search needs of generic families."""
