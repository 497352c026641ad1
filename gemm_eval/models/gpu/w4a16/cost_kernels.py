"""Numba kernels of the cost of our W4A16 kernels: the time of one config, and why.

The terms are defined in MODEL.md beside this. A kernel sees scalars, one record `p` of `GPU_PARAMS_DTYPE`, one record
`row` of `CANDIDATE_DTYPE`, and `c`, of `COEFFICIENTS_DTYPE`, that of the row's family. Times are in microseconds, sizes
in bytes, `_cycles` at the highest SM clock.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gemm_eval.jit import entry_point, kernel
from gemm_eval.models.gpu.cost_kernels import (
    BEST_RASTER,
    BOUND_SLACK,
    COOPERATIVE,
    RASTER_CODE,
    SM_L2_BYTES_PER_CYCLE,
    STREAM_K,
    WARM,
    ConfigCost,
    CostRules,
    ProblemTerms,
    ceil_div,
    loaded_time_us,
)
from gemm_eval.models.gpu.terms import Times

__all__ = [
    "BLOCK",
    "GEMV_MMA",
    "MAX_SPLITS",
    "MULTISTAGE_FAMILIES",
    "PAIRS_OF_WARP",
    "SCHEDULERS",
    "SM90",
    "SUM_BYTES",
    "W4A16",
    "W4A16_BOUND_COLUMNS",
    "list_splits",
    "row_bounds_us",
    "split_bound_us",
    "splits_of_row",
    "w4a16_cost",
    "w4a16_terms",
]

GEMV_MMA, SM80, SM90 = 6, 7, 8  # numbers of families
MULTISTAGE_FAMILIES = (SM80,)  # those whose cost has the form of `_sm80_cost`
SCHEDULERS = 4.0  # of an SM: instruction counts are sums over the warps of a CTA
BLOCK = 64  # columns and k of a packed block
_UNIT_K = 128  # `w4a16_sm80` and `w4a16_sm90` cut K in multiples of it
_TOKEN_ROW_BYTES = 128.0  # 64 k
SUM_BYTES = 4.0
_ALIKE_PHASES = 2  # with no more places of K at once, stream-K reads as data-parallel kernels do
_HALF_HIDDEN = 1.5  # of two cut tiles, ping-pong hides half of one behind the other warpgroup's work
PAIRS_OF_WARP = 64  # columns that the threads of a warp have, two each
_PARTS_AT_ONCE = 4  # sums that `w4a16_gemv*` load together
_LINE_ELEMS = 64  # fp16 or bf16, of a line of 128 bytes
_HOLD_FRAC = 0.5  # share of L2 that keeps what will be read again, where no coefficient says
_RAMP_BYTES = 4e6  # of weights, that fill the queues half
_CBRT_1, _CBRT_2, _CBRT_3 = 1.0 / 3.0, -1.0 / 9.0, 0.0377  # of cbrt(1 + x), 0 <= x <= 1, right at both ends
_MAX_STREAMING_TOKENS, _MAX_STREAMING_CUTS = 64, 5
_MAX_WAVES_OF_SPLIT, _MAX_SPLIT = 4, 32  # of `w4a16_sm80`

MAX_SPLITS = 9
"""Most ways to cut K that a kernel has for one GEMM, the whole K among them."""


@kernel
def w4a16_terms(p: Any, c: Any, G: int, M: int, K: int, N: int) -> ProblemTerms:  # noqa: ARG001
    """Bytes of one GEMM as packed, whatever G: kernels have no batch; and what of it L2 keeps.

    `line_waste` is 1 where rows of A do not start on lines of 128 bytes. Cold, A and C come from DRAM with the weights.
    """
    padded_k, padded_n = ceil_div(K, 128) * 128, ceil_div(N, BLOCK) * BLOCK
    a_bytes = M * (K * p["a_elem_bytes"])
    b_bytes = padded_n * (padded_k * p["b_elem_bytes"])
    groups = padded_k / p["group_size"] if p["group_size"] > 0 else 1.0
    scale_bytes = padded_n * (groups * p["scale_bytes_per_group"])
    c_bytes = M * (N * p["c_elem_bytes"])
    stay_frac = 0.0
    if p["l2_state"] == WARM:
        footprint = (a_bytes + b_bytes + scale_bytes + c_bytes) / (p["l2_bytes"] * _HOLD_FRAC)
        f2 = footprint * footprint
        stay_frac = 1.0 / (1.0 + f2 * f2)
    is_off_lines = 1.0 if K % _LINE_ELEMS != 0 else 0.0
    return ProblemTerms(
        1, M, K, N, a_bytes, b_bytes, scale_bytes, c_bytes, stay_frac, a_bytes * (1.0 - stay_frac),
        (b_bytes + scale_bytes) * (1.0 - stay_frac), 1.0, is_off_lines, 1.0,
    )  # fmt: skip


@kernel
def _norm3(a: float, b: float, c: float, d: float) -> float:
    """The 3-norm: the largest of four times, and a little more where two are alike, because overlap is not perfect."""
    total = a * a * a + b * b * b + c * c * c + d * d * d
    result: float = total ** (1.0 / 3.0)
    return result


@kernel
def _panel_bytes(tiles_m: int, tiles_n: int, in_flight: float, row: Any, a_bytes: float, w_bytes: float) -> float:
    """DRAM bytes of all waves when nothing stays in L2 between waves, under the raster of the kernel."""
    is_along_n = row["raster_order"] == 1
    across, along = (tiles_m, tiles_n) if is_along_n else (tiles_n, tiles_m)
    if row["family"] == SM90:  # its raster goes `raster_swizzle` tiles along M before it steps along N
        across, along = tiles_m, tiles_n
    width = float(min(row["raster_swizzle"], across))
    run = in_flight / width
    if run > along:  # the wave goes on in the next band
        width = min(float(across), width * np.ceil(run / along))
        run = float(along)
    m_tiles, n_tiles = (width, run) if is_along_n or row["family"] == SM90 else (run, width)
    waves = max(1.0, tiles_m * tiles_n / in_flight)
    return float(waves * (m_tiles * a_bytes / tiles_m + n_tiles * w_bytes / tiles_n))


@kernel
def _num_phases(tiles: int, ctas: int) -> int:
    """Different places of K at which the CTAs of a stream-K kernel are at any time."""
    return ctas // math.gcd(tiles, ctas)


@kernel
def _l2_share(p: Any, c: Any, active_sms: int) -> float:
    """Bytes a cycle for each SM where hardly two CTAs are at the same place of K, so that L2 answers each by itself."""
    result: float = p["l2_peak_bytes_per_us"] / p["cycles_per_us"] * c["l2_frac"] / active_sms
    return result


@kernel
def _offset_rereads(t: ProblemTerms, hold_bytes: float, tiles_m: int, tiles_n: int, ctas: int) -> float:
    """Bytes that DRAM gives again to CTAs at different places of K: all of A and a panel of weights each are in use."""
    w_bytes = t.b_bytes + t.scale_bytes
    a_lost = 1.0 / (1.0 + hold_bytes / t.a_bytes)
    w_lost = 1.0 / (1.0 + hold_bytes / (ctas * w_bytes / tiles_n))
    return float(a_lost * t.a_bytes * (tiles_n - 1) + w_lost * w_bytes * (tiles_m - 1))


@kernel
def _panel_rereads(row: Any, t: ProblemTerms, hold_bytes: float, tiles_m: int, tiles_n: int, in_flight: float) -> float:
    """Bytes that DRAM gives again to CTAs at the same place of K, which share panels wave by wave."""
    both = t.a_bytes + t.b_bytes + t.scale_bytes
    if hold_bytes >= both or tiles_m == 1 or tiles_n == 1:
        return 0.0
    panels = _panel_bytes(tiles_m, tiles_n, in_flight, row, t.a_bytes, t.b_bytes + t.scale_bytes)
    return max(0.0, (1.0 - hold_bytes / both) * (panels - both))


@kernel
def _finish(
    p: Any, row: Any, prologue_us: float, chip_us: float, matrix_us: float, dequant_us: float,
    overhead_us: float, l2_us: float, dram_us: float, outside_us: float, store_us: float, reduction_us: float,
    main_us: float, busy_us: float, read_bytes: float, num_ctas: int, num_tiles: int, num_waves: int,
    last_wave_ctas: int, active_sms: int,
) -> ConfigCost:  # fmt: skip
    """Add the clock under tensor load (`busy_us` at the highest clock) and what is in front of the main loop."""
    loaded_us = loaded_time_us(p, main_us, busy_us)
    latency_us = p["launch_us"] + prologue_us + loaded_us + store_us
    matrix_us = min(matrix_us, chip_us)
    dequant_us = min(dequant_us, chip_us - matrix_us)
    overhead_us = min(overhead_us, chip_us - matrix_us - dequant_us)
    times = Times(
        p["launch_us"], prologue_us, matrix_us, dequant_us, chip_us - matrix_us - dequant_us - overhead_us, overhead_us,
        l2_us, dram_us, outside_us, store_us, reduction_us, loaded_us - main_us, 0.0,
    )  # fmt: skip
    return ConfigCost(
        latency_us, times, main_us, min(1.0, busy_us / main_us), read_bytes, num_ctas, num_tiles, num_waves,
        last_wave_ctas, active_sms, row["raster_order"] * RASTER_CODE + row["raster_swizzle"],
    )  # fmt: skip


@kernel
def _norm8(x: float, y: float) -> float:
    """Nearly the longer of two that wait for each other: they are rarely late at the same time."""
    a, b = x * x, y * y
    a, b = a * a, b * b
    result: float = np.sqrt(np.sqrt(np.sqrt(a * a + b * b)))
    return result


@kernel
def _overlapped(c: Any, issue: float, matrix: float) -> float:
    """Dequantization under wgmma: the 2-norm, and what shows beyond it (1: they follow each other)."""
    result: float = np.sqrt(issue * issue + matrix * matrix + 2.0 * c["exposed_frac"] * issue * matrix)
    return result


@kernel
def _sm90_step(
    resident: float, work: float, copies: float, shared: float, matrix: float, ingest: float,
) -> float:  # fmt: skip
    """Cycles of 64 k of a CTA that shares its SM with `resident` - 1 others."""
    step = max(_norm8(work, copies), ingest * resident)
    if resident > 1.0:
        step = max(step, resident * max(shared, matrix))
    return float(step)


@kernel
def _sm90_cost(p: Any, row: Any, c: Any, t: ProblemTerms, split: int) -> ConfigCost:
    """Warp-specialized kernels: a thread copies, two warpgroups dequantize and multiply, tiles follow each other."""
    is_stream = split == STREAM_K
    split = max(1, split)
    cta_m, cta_n = row["cta_m"], row["cta_n"]
    cluster_m, cluster_n = row["cluster_m"], row["cluster_n"]
    cluster = cluster_m * cluster_n
    tiles_m, tiles_n = ceil_div(t.M, cta_m * cluster_m), ceil_div(t.N, cta_n * cluster_n)  # of clusters
    tiles = tiles_m * tiles_n
    units = ceil_div(t.K, _UNIT_K)
    slots = row["grid_cap"] // cluster
    if is_stream:
        clusters = min(slots, tiles * units)
        blocks = 2.0 * units * tiles / clusters  # of 64 k, of a work item
        items, rounds, rest = clusters, 1, 0
    else:
        items = tiles * split
        clusters = min(slots, items)
        blocks = 2.0 * ceil_div(units, split)
        rounds = items // clusters
        rest = items - rounds * clusters
    ctas = clusters * cluster
    num_sms = p["num_sms"]
    cycles_per_us = p["cycles_per_us"]
    is_coop = row["schedule"] == COOPERATIVE

    # 64 k of a CTA
    instructions = row["instructions"]
    issue = instructions / SCHEDULERS * (c["issue"] if is_coop else c["pingpong_issue"])
    shared = instructions / SCHEDULERS * c["shared_issue"]
    matrix = row["matrix_cycles"]
    work = _overlapped(c, issue, matrix)
    copies = row["producer"] * c["producer_cycles"]
    box = min(cta_m // cluster_n, t.M)  # rows of A that a CTA copies
    copied_rows = cluster_n * box
    waste = 1.0 + c["line_waste"] * t.line_waste
    ingest = copied_rows * _TOKEN_ROW_BYTES * waste / cluster_n + row["weight_bytes"] / cluster_m
    is_offset = is_stream and _num_phases(tiles, clusters) > _ALIKE_PHASES
    rate = SM_L2_BYTES_PER_CYCLE * c["sm_l2_frac"]  # CTAs that ask for the same lines are answered together
    if is_offset:
        rate = min(rate, _l2_share(p, c, min(ctas, num_sms)))
    ingest /= rate
    resident = max(1.0, np.ceil(ctas / num_sms))
    step = _sm90_step(resident, work, copies, shared, matrix, ingest)

    # a work item: a tile, or a part of it
    tile_bytes = cta_m * (cta_n * SUM_BYTES)
    reduction = 0.0
    parts, num_cuts = float(split), 1.0
    if is_stream:
        parts = 1.0 if tiles % clusters == 0 else max(1.0, clusters / tiles) + 1.0
        if clusters % tiles != 0:  # a CTA may have a part of two tiles
            num_cuts = 2.0 if is_coop else _HALF_HIDDEN
    if parts > 1.0:
        reduction = num_cuts * (c["cut_us"] * cycles_per_us + resident * tile_bytes / c["part_write_bytes_per_cycle"])
        reduction += parts * (tile_bytes / c["part_read_bytes_per_cycle"] + c["part_cycles"])
    epilogue = min(cta_m, t.M) * (cta_n * p["c_elem_bytes"]) / c["epilogue_bytes_per_cycle"]
    over = epilogue + reduction
    item = blocks * step
    last = 0.0
    if rest > 0:
        resident = max(1.0, np.ceil(rest * cluster / num_sms))
        last = blocks * _sm90_step(resident, work, copies, shared, matrix, ingest) + over
    if is_coop:
        first = rounds * (item + over)
    else:  # the end of a tile hides behind the other warpgroup's
        hidden = max(item, 0.5 * (item + over))
        first = rounds * hidden if rest > 0 else (rounds - 1) * hidden + item + over

    # the chip
    hold_bytes = p["l2_bytes"] * c["l2_hold_frac"]
    if is_offset:
        extra = _offset_rereads(t, hold_bytes, tiles_m, tiles_n, clusters)
    else:
        extra = _panel_rereads(row, t, hold_bytes, tiles_m, tiles_n, min(clusters / split, float(tiles)))
    read_bytes = t.a_read_bytes + t.b_read_bytes + extra
    dram_bytes = read_bytes + t.c_bytes * (1.0 - t.stay_frac)
    dram_us = dram_bytes / p["dram_peak_bytes_per_us"]
    outside_rows = (tiles_m * cluster_m * copied_rows - t.M) * cluster_n  # TMA fills them in each CTA of a multicast
    outside_us = outside_rows * tiles_n * (2.0 * units) / (c["outside_rows_per_cycle"] * cycles_per_us)
    share = rounds * clusters / items
    main_us = _norm3(first / cycles_per_us, dram_us * share, outside_us * share, 0.0)
    if rest > 0:
        main_us += _norm3(last / cycles_per_us, dram_us * (1.0 - share), outside_us * (1.0 - share), 0.0)
    busy_us = items * cluster * blocks * matrix / (num_sms * cycles_per_us)
    store_us = c["store_exposed_frac"] * t.c_bytes * (1.0 - t.stay_frac) / p["dram_peak_bytes_per_us"]
    sms = min(ctas, num_sms)
    waves = rounds + (1 if rest > 0 else 0)
    chip_us = (first + last) / cycles_per_us
    reduction_us = waves * reduction / cycles_per_us
    reduction_us = min(chip_us, reduction_us)
    return _finish(
        p, row, c["kernel_us"], chip_us - reduction_us, waves * blocks * matrix / cycles_per_us,
        waves * blocks * max(0.0, work - matrix) / cycles_per_us, waves * epilogue / cycles_per_us, 0.0, dram_us,
        outside_us, store_us, reduction_us, main_us, busy_us, read_bytes, ctas, tiles * cluster, waves,
        rest * cluster if rest > 0 else ctas, sms,
    )  # fmt: skip


@kernel
def _shared_step(resident: float, work: float, serial: float, ingest: float) -> float:
    """Cycles of a step of a CTA that shares its SM with `resident` - 1 others: they fill each other's gaps."""
    busy, loads = resident * work, resident * ingest
    result: float = np.sqrt(busy * busy + serial * serial + loads * loads)
    return result


@kernel
def _sm80_cost(p: Any, row: Any, c: Any, t: ProblemTerms, split: int) -> ConfigCost:
    """Multistage kernels: all warps copy, dequantize and multiply; the CTAs of an SM fill each other's gaps."""
    is_stream = split == STREAM_K
    split = max(1, split)
    cta_m, cta_n = row["cta_m"], row["cta_n"]
    tiles_m, tiles_n = ceil_div(t.M, cta_m), ceil_div(t.N, cta_n)
    tiles = tiles_m * tiles_n
    units = ceil_div(t.K, _UNIT_K)
    slots = row["grid_cap"]
    if is_stream:
        ctas = min(slots, tiles * units)
        blocks = 2.0 * units * tiles / ctas
    else:
        ctas = tiles * split
        blocks = 2.0 * ceil_div(units, split)
    num_sms = p["num_sms"]
    cycles_per_us = p["cycles_per_us"]
    rounds = ctas // slots
    rest = ctas - rounds * slots

    # 64 k of a CTA
    issue = (row["instructions"] - row["mma"]) / SCHEDULERS * c["issue"]
    matrix = row["matrix_cycles"]
    work = issue + matrix
    serial = row["instructions"] / row["num_warps"] * c["serial_cycles"]
    is_offset = is_stream and _num_phases(tiles, ctas) > _ALIKE_PHASES
    ingest = 0.0
    if is_offset:
        ingest = (min(cta_m, t.M) * _TOKEN_ROW_BYTES + row["weight_bytes"]) / _l2_share(p, c, min(ctas, num_sms))
    epilogue = cta_m * (cta_n * p["c_elem_bytes"]) / c["epilogue_bytes_per_cycle"]
    first = last = 0.0
    resident = float(row["ctas_per_sm"])
    if rounds > 0:
        first = blocks * _shared_step(resident, work, serial, ingest) + c["cta_cycles"] + resident * epilogue
        first *= rounds
    if rest > 0:
        left = max(1.0, np.ceil(rest / num_sms))
        last = blocks * _shared_step(left, work, serial, ingest) + c["cta_cycles"] + left * epilogue

    overlap = rounds * resident + max(0.0, np.ceil(rest / num_sms))  # CTAs that an SM works through
    parts, num_cuts = float(split), 1.0
    if is_stream:
        parts = 1.0 if tiles % ctas == 0 else max(1.0, ctas / tiles) + 1.0
        if ctas % tiles != 0:
            num_cuts = 2.0
    reduction_us = 0.0
    if parts > 1.0:
        tile_bytes = min(cta_m, t.M) * (cta_n * SUM_BYTES)
        cycles = num_cuts * overlap * tile_bytes / c["part_write_bytes_per_cycle"]
        cycles += parts * tile_bytes / c["part_read_bytes_per_cycle"]
        reduction_us = num_cuts * c["cut_us"] + cycles / cycles_per_us

    in_flight = min(min(ctas, slots) / (1 if is_stream else split), float(tiles))
    extra = 0.0
    if not is_offset:
        extra = _panel_rereads(row, t, p["l2_bytes"] * _HOLD_FRAC, tiles_m, tiles_n, in_flight)
    read_bytes = t.a_read_bytes + t.b_read_bytes + extra
    dram_us = (read_bytes + t.c_bytes * (1.0 - t.stay_frac)) / p["dram_peak_bytes_per_us"]
    share = rounds * slots / ctas
    main_us = _norm3(first / cycles_per_us, dram_us * share, 0.0, 0.0) if rounds > 0 else 0.0
    if rest > 0:
        main_us += _norm3(last / cycles_per_us, dram_us * (1.0 - share), 0.0, 0.0)
    busy_us = tiles * units * 2.0 * row["matrix_cycles"] / (num_sms * cycles_per_us)
    waves = rounds + (1 if rest > 0 else 0)
    return _finish(
        p, row, 0.0, (first + last) / cycles_per_us, overlap * blocks * matrix / cycles_per_us,
        overlap * blocks * issue / cycles_per_us, waves * c["cta_cycles"] / cycles_per_us, 0.0, dram_us, 0.0, 0.0,
        reduction_us, main_us + reduction_us, busy_us, read_bytes, ctas, tiles, waves, rest if rest > 0 else ctas,
        min(ctas, num_sms),
    )  # fmt: skip


@kernel
def _sums_cycles(row: Any, c: Any, t: ProblemTerms) -> float:
    """Cycles at the end of a streaming CTA: sums of all warps to shared memory, and from there one sum of them."""
    teams = row["cta_k"] // BLOCK
    stored = teams * (row["cta_m"] * (row["cta_n"] * SUM_BYTES)) / c["sums_bytes_per_cycle"]
    return float(stored + teams * _passes(row, t) * c["team_sum_cycles"])


@kernel
def _passes(row: Any, t: ProblemTerms) -> int:
    """Rounds of all threads of a streaming CTA over the pairs of columns of all tokens."""
    return ceil_div(min(row["cta_m"], t.M) * row["cta_n"], PAIRS_OF_WARP * row["num_warps"])


@kernel
def _dram_bytes_per_us(p: Any, dram_frac: float) -> float:
    """DRAM rate at a share of what a large read reaches; never more than the data sheet says."""
    return float(min(p["dram_peak_bytes_per_us"] * dram_frac, p["dram_spec_bytes_per_us"]))


@kernel
def _streaming_cost(p: Any, row: Any, c: Any, t: ProblemTerms, split: int) -> ConfigCost:
    """Kernels for few tokens: every team of warps streams its own blocks of k, and sums are added at the end."""
    cta_m, cta_n = row["cta_m"], row["cta_n"]
    tiles_m, tiles_n = ceil_div(t.M, cta_m), ceil_div(t.N, cta_n)
    tiles = tiles_m * tiles_n
    ctas = tiles * split
    teams = row["cta_k"] // BLOCK
    team_warps = row["num_warps"] // teams
    blocks = ceil_div(ceil_div(t.K, BLOCK), split)
    steps = ceil_div(blocks, teams)
    slots = row["grid_cap"]
    num_sms = p["num_sms"]
    cycles_per_us = p["cycles_per_us"]
    rounds = ctas // slots
    rest = ctas - rounds * slots
    waves = rounds + (1 if rest > 0 else 0)
    is_mma = row["family"] == GEMV_MMA

    # a step, in which all teams but those of the last blocks work
    issue = row["instructions"] / SCHEDULERS * c["issue"]
    serial = c["step_cycles"] + row["instructions"] / team_warps * c["serial_cycles"]
    matrix = row["matrix_cycles"]
    work = blocks / steps * (issue + matrix)
    ingest = first_start = start = part_cycles = 0.0
    dram_frac = 1.0
    resident = float(row["ctas_per_sm"])
    if is_mma:
        ingest = blocks / steps * row["weight_bytes"] / (SM_L2_BYTES_PER_CYCLE * c["sm_l2_frac"])
        dram_frac = c["dram_frac"]
        part_cycles = c["part_cycles"]
        # at first all CTAs of an SM start at once, later each when another ends
        first_start = c["cta_cycles"] + c["cta_launch_cycles"] * min(resident, ctas / num_sms)
        start = c["cta_cycles"] + c["cta_launch_cycles"]
    rows = min(cta_m, t.M)
    sums = _sums_cycles(row, c, t)
    first = rounds * steps * _shared_step(resident, work, serial, ingest) if rounds > 0 else 0.0
    last = 0.0
    left = np.ceil(rest / num_sms)
    if rest > 0:
        last = steps * _shared_step(left, work, serial, ingest)
    chip_us = (first + last) / cycles_per_us
    over_us = (waves - 1) * (start + sums) / cycles_per_us  # no loads are under way, so DRAM does not hide it

    reduction_us = 0.0
    if split > 1:
        trips = _passes(row, t) * (split // _PARTS_AT_ONCE + split % _PARTS_AT_ONCE)
        cycles = trips * part_cycles + split * rows * (cta_n * SUM_BYTES) / c["part_read_bytes_per_cycle"]
        reduction_us = c["cut_us"] * waves + cycles / cycles_per_us

    w_bytes = t.b_bytes + t.scale_bytes
    read_bytes = t.a_read_bytes + t.b_read_bytes
    if ctas > slots:  # not all tiles of tokens run at once: later ones read the weights again
        read_bytes += max(0.0, 1.0 - p["l2_bytes"] * c["l2_hold_frac"] / w_bytes) * w_bytes * (tiles_m - 1)
    dram_us = (read_bytes + t.c_bytes * (1.0 - t.stay_frac)) / _dram_bytes_per_us(p, dram_frac)
    l2_us = 0.0
    if is_mma:
        waste = 1.0 + c["line_waste"] * t.line_waste
        tokens = tiles_n * tiles_m * rows * (t.K * p["a_elem_bytes"]) * waste
        l2_us = (tokens + w_bytes * tiles_m) / (p["l2_peak_bytes_per_us"] * c["l2_frac"])
    main_us = _norm3(chip_us, dram_us, l2_us, 0.0) + over_us
    prologue_us = (first_start + sums) / cycles_per_us
    if not is_mma:
        prologue_us += c["ramp_us"] * w_bytes / (w_bytes + _RAMP_BYTES)
    done = rounds * resident + left  # CTAs that an SM works through
    return _finish(
        p, row, prologue_us, chip_us + over_us, done * blocks * matrix / cycles_per_us,
        done * blocks * issue / cycles_per_us, over_us, l2_us, dram_us, 0.0, 0.0, reduction_us, main_us + reduction_us,
        0.0, read_bytes, ctas, tiles, waves, rest if rest > 0 else ctas, min(ctas, num_sms),
    )  # fmt: skip


W4A16_BOUND_COLUMNS = (
    "cta_m", "cta_n", "block_cycles", "cut_cycles", "fixed_us", "cut_us", "fixed_cycles", "row_cycles", "pass_us",
    "pass_elems", "dram_bytes_per_us",
)  # fmt: skip
"""What bounds read of each kernel, its family's coefficients in it: `bound_columns.pack_w4a16_bound_columns`."""


@kernel
def row_bounds_us(p: Any, t: ProblemTerms, columns: Any, first: int, bounds: Any) -> None:
    """Write to `bounds` [num] times that kernels from `first` on cannot beat however K is cut.

    Work is spread over all SMs, nothing is read twice, and adding parts costs nothing. All waves are taken as one: the
    3-norm of sums is at most the sum of 3-norms. No branch is taken on a row, so that a CPU does several at a time.
    """
    stop = first + len(bounds)
    cta_m, cta_n, block_cycles = columns[0, first:stop], columns[1, first:stop], columns[2, first:stop]
    fixed_us, fixed_cycles, row_cycles = columns[4, first:stop], columns[6, first:stop], columns[7, first:stop]
    pass_us, pass_elems, dram_rate = columns[8, first:stop], columns[9, first:stop], columns[10, first:stop]
    M, N, blocks, num_sms, cycles_per_us = float(t.M), float(t.N), t.K / BLOCK, float(p["num_sms"]), p["cycles_per_us"]
    dram_bytes = t.a_read_bytes + t.b_read_bytes
    for i in range(len(bounds)):
        tiles = np.ceil(M / cta_m[i]) * np.ceil(N / cta_n[i])
        rows = cta_m[i] if cta_m[i] < M else M
        cycles = tiles * blocks * block_cycles[i] / num_sms + (fixed_cycles[i] + rows * row_cycles[i])
        before_us = fixed_us[i] + pass_us[i] * np.ceil(rows * cta_n[i] / pass_elems[i])
        chip_us, dram_us = cycles / cycles_per_us, dram_bytes / dram_rate[i]
        longer = chip_us if chip_us > dram_us else dram_us
        shorter = dram_us if chip_us > dram_us else chip_us
        ratio = shorter / longer
        # the 3-norm is longer * cbrt(1 + ratio^3): a polynomial within 0.2%, then Newton's method twice, from above
        cube = ratio * ratio * ratio
        root = 1.0 + cube * (_CBRT_1 + cube * (_CBRT_2 + cube * _CBRT_3))
        root -= (root * root * root - (1.0 + cube)) / (3.0 * root * root)
        root -= (root * root * root - (1.0 + cube)) / (3.0 * root * root)
        bounds[i] = (before_us + longer * root) * BOUND_SLACK


@kernel
def split_bound_us(p: Any, columns: Any, row: int, t: ProblemTerms, split: int) -> float:
    """As `row_bounds_us` of one kernel, with K cut into `split` parts, or `STREAM_K`: that adds what is fixed."""
    cta_m, cta_n = columns[0, row], columns[1, row]
    tiles = np.ceil(t.M / cta_m) * np.ceil(t.N / cta_n)
    rows = min(cta_m, float(t.M))
    before_us = columns[4, row] + columns[8, row] * np.ceil(rows * cta_n / columns[9, row])
    cycles = columns[6, row] + rows * columns[7, row]
    if split > 1:
        before_us += columns[5, row]
        cycles += columns[3, row]
    ctas = tiles * split if split > 0 else np.inf
    cycles += tiles * (t.K / BLOCK) * columns[2, row] / min(float(p["num_sms"]), ctas)
    chip_us, dram_us = cycles / p["cycles_per_us"], (t.a_read_bytes + t.b_read_bytes) / columns[10, row]
    norm_us = np.cbrt(chip_us * chip_us * chip_us + dram_us * dram_us * dram_us)
    return float((before_us + norm_us) * BOUND_SLACK)


@kernel
def w4a16_cost(p: Any, row: Any, c: Any, t: ProblemTerms, split: int, raster: int) -> ConfigCost:  # noqa: ARG001
    """The time of one kernel of ours, which has its raster, with K cut into `split` parts: see MODEL.md."""
    if row["family"] == SM90:
        return _sm90_cost(p, row, c, t, split)
    if row["family"] in MULTISTAGE_FAMILIES:
        return _sm80_cost(p, row, c, t, split)
    return _streaming_cost(p, row, c, t, split)


@kernel
def _latency_below_us(p: Any, row: Any, c: Any, t: ProblemTerms, split: int, best_us: float) -> float:  # noqa: ARG001
    return w4a16_cost(p, row, c, t, split, BEST_RASTER).latency_us


@kernel
def _add_cut(cuts: Any, num: int, parts: int) -> int:
    """Insert `parts` into the sorted cuts[1:num], once; cuts[0] is the whole K."""
    place = num
    while place > 1 and cuts[place - 1] >= parts:
        place -= 1
    if place < num and cuts[place] == parts:
        return num
    for at in range(num, place, -1):
        cuts[at] = cuts[at - 1]
    cuts[place] = parts
    return num + 1


@kernel
def list_splits(p: Any, row: Any, t: ProblemTerms, splits: Any) -> int:
    """Write the ways to cut K that a kernel has for these sizes, at most `MAX_SPLITS`, to `splits`; returns how many.

    0: the kernel cannot run the GEMM. These are the rules of `gemm_eval.kernels`; tests compare the two.
    """
    M, K, N = t.M, t.K, t.N
    cta_m, cta_n = row["cta_m"], row["cta_n"]
    tiles = ceil_div(M, cta_m) * ceil_div(N, cta_n)
    num_sms = p["num_sms"]
    expected = row["expected_ctas"]
    splits[0] = 1
    num = 1
    if row["family"] <= GEMV_MMA:
        if M > _MAX_STREAMING_TOKENS:
            return 0
        teams, blocks = row["cta_k"] // BLOCK, ceil_div(K, BLOCK)
        for at_once in range(2):
            for waves in range(1, 5):
                ctas = num_sms * waves * (expected if at_once else 1)
                parts = min(ctas // tiles, blocks // teams)
                if parts > 1:
                    steps = ceil_div(ceil_div(blocks, parts), teams)
                    parts = ceil_div(blocks, steps * teams)
                    if parts > 1:
                        num = _add_cut(splits, num, parts)
        several = num - 1
        if several > _MAX_STREAMING_CUTS:  # first, last and evenly between
            for at in range(_MAX_STREAMING_CUTS):
                splits[1 + at] = splits[1 + at * (several - 1) // (_MAX_STREAMING_CUTS - 1)]
            num = 1 + _MAX_STREAMING_CUTS
        return num
    units = ceil_div(K, _UNIT_K)
    if row["family"] in MULTISTAGE_FAMILIES:
        if units == 1 or tiles > _MAX_WAVES_OF_SPLIT * expected * num_sms:
            return num
        for ctas in (1, max(1, expected // 2), expected, 2 * expected):
            parts = min(ctas * num_sms // tiles, units, _MAX_SPLIT)
            if parts > 1:
                num = _add_cut(splits, num, parts)
        splits[num] = 0
        return num + 1
    if ceil_div(M, cta_m) < row["cluster_m"] or ceil_div(N, cta_n) < row["cluster_n"]:
        return 0
    tiles = ceil_div(M, cta_m * row["cluster_m"]) * ceil_div(N, cta_n * row["cluster_n"])
    slots = row["expected_cap"] // (row["cluster_m"] * row["cluster_n"])
    for parts in (2, 3, 4, 6, 8, 12, 16):
        if parts <= units and tiles * parts <= 2 * slots:
            splits[num] = parts
            num += 1
    if tiles % slots != 0 and units > 1:
        splits[num] = 0
        num += 1
    return num


@kernel
def _bounds_of(p: Any, c: Any, t: ProblemTerms, columns: Any, first: int, bounds: Any) -> None:  # noqa: ARG001
    row_bounds_us(p, t, columns, first, bounds)


W4A16 = CostRules(w4a16_terms, list_splits, _bounds_of, split_bound_us, _latency_below_us, w4a16_cost)
"""What a search needs of our kernels."""


@entry_point
def splits_of_row(params: Any, candidates: Any, index: int, M: int, K: int, N: int, splits: Any) -> int:
    """`list_splits` of one of the candidates."""
    t = ProblemTerms(1, M, K, N, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0)
    return int(list_splits(params[0], candidates[index], t, splits))
