"""Numba kernels of our W4A16 kernels: main loops on mma.sync and wgmma, the time of a config, and its lower bound.

MODEL.md beside this file defines the terms.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gemm_eval.jit import inlined_kernel, kernel
from gemm_eval.models.gpu import cost_kernels as kernels
from gemm_eval.models.gpu.cost_kernels import ConfigCost, CostRules, ProblemTerms, ceil_div
from gemm_eval.models.gpu.terms import Times
from gemm_eval.models.gpu.w4a16 import shared_kernels as common
from gemm_eval.models.gpu.w4a16.family_kernels import MULTISTAGE_FAMILIES, WGMMA_FAMILIES
from gemm_eval.models.gpu.w4a16.shared_kernels import Launch, Loop


@kernel
def sm80_loop(p: Any, row: Any, c: Any, t: Launch, split: int) -> Loop:
    """Return the main loop of a config."""
    is_stream = split == kernels.STREAM_K
    split = max(1, split)
    cta_m, cta_n = row["cta_m"], row["cta_n"]
    tiles_m, tiles_n = t.tiles_m, ceil_div(t.N, cta_n)
    tiles = tiles_m * tiles_n
    units = ceil_div(t.K, common.UNIT_K)
    slots = row["grid_cap"]
    if is_stream:
        ctas = min(slots, tiles * (units if t.G == 1 else min(units, common.MOST_PARTS)))
        blocks = 2.0 * units * tiles / ctas
    else:
        ctas = tiles * split
        blocks = 2.0 * ceil_div(units, split)
    num_sms = p["num_sms"]
    cycles_per_us = p["cycles_per_us"]
    rounds = ctas // slots
    rest = ctas - rounds * slots

    # 64 k of a CTA
    issue = (row["instructions"] - row["mma"]) / common.SCHEDULERS * c["issue"]
    matrix = row["matrix_cycles"]
    work = issue + matrix
    serial = row["instructions"] / row["num_warps"] * c["serial_cycles"]
    is_offset = is_stream and t.G == 1 and not common.are_alike(tiles, ctas)
    ingest = 0.0
    if is_offset:
        ingest = (min(cta_m, t.M) * common.TOKEN_ROW_BYTES + row["weight_bytes"]) / common.l2_share(
            p, c, min(ctas, num_sms)
        )
    epilogue = cta_m * (cta_n * p["c_elem_bytes"]) / c["epilogue_bytes_per_cycle"]
    first = last = 0.0
    resident = float(row["ctas_per_sm"])
    if rounds > 0:
        first = blocks * common.shared_step(resident, work, serial, ingest) + c["cta_cycles"] + resident * epilogue
        first *= rounds
    if rest > 0:
        left = max(1.0, np.ceil(rest / num_sms))
        last = blocks * common.shared_step(left, work, serial, ingest) + c["cta_cycles"] + left * epilogue

    overlap = rounds * resident + max(0.0, np.ceil(rest / num_sms))  # CTAs that an SM works through
    parts, num_cuts = float(split), 1.0
    if is_stream:
        parts = 1.0 if tiles % ctas == 0 else max(1.0, ctas / tiles) + 1.0
        if ctas % tiles != 0:
            num_cuts = 2.0
    reduction_us = 0.0
    if parts > 1.0:
        tile_bytes = min(cta_m, t.M) * (cta_n * common.SUM_BYTES)
        cycles = num_cuts * overlap * tile_bytes / c["part_write_bytes_per_cycle"]
        cycles += parts * tile_bytes / c["part_read_bytes_per_cycle"]
        reduction_us = num_cuts * c["cut_us"] + cycles / cycles_per_us

    in_flight = min(min(ctas, slots) / (1 if is_stream else split), float(tiles))
    extra = 0.0
    if not is_offset:
        extra = common.panel_rereads(row, t, p["l2_bytes"] * common.HOLD_FRAC, tiles_m, tiles_n, in_flight)
    read_bytes = t.a_read_bytes + t.b_read_bytes + extra
    dram_us = (read_bytes + t.c_bytes * (1.0 - t.stay_frac)) / p["dram_peak_bytes_per_us"]
    busy_us = tiles * units * 2.0 * row["matrix_cycles"] / (num_sms * cycles_per_us)
    waves, done = rounds + (1 if rest > 0 else 0), overlap * blocks
    last_ctas = rest if rest > 0 else ctas
    return Loop(
        first=first, last=last, share=rounds * slots / ctas, rounds=rounds, rest=rest, copied_rows=0.0, num_blocks=0.0,
        prologue_us=0.0, chip_us=(first + last) / cycles_per_us, over_us=0.0, matrix_us=done * matrix / cycles_per_us,
        dequant_us=done * issue / cycles_per_us, overhead_us=waves * c["cta_cycles"] / cycles_per_us, l2_us=0.0,
        dram_us=dram_us, outside_us=0.0, store_us=0.0, reduction_us=reduction_us, busy_us=busy_us, power=0.0,
        read_bytes=read_bytes, ctas=ctas, tiles=tiles, waves=waves, last_ctas=last_ctas,
        active_sms=min(ctas, num_sms),
    )  # fmt: skip


@kernel
def sm80_cost(p: Any, row: Any, c: Any, t: Launch, split: int) -> ConfigCost:
    """Multistage kernels: all warps copy, dequantize and multiply; the CTAs of an SM fill each other's gaps."""
    s = sm80_loop(p, row, c, t, split)
    cycles_per_us = p["cycles_per_us"]
    main_us = common.norm3(s.first / cycles_per_us, s.dram_us * s.share, 0.0, 0.0) if s.rounds > 0 else 0.0
    if s.rest > 0:
        main_us += common.norm3(s.last / cycles_per_us, s.dram_us * (1.0 - s.share), 0.0, 0.0)
    return common.finish(p, row, s, main_us + s.reduction_us)


TWO_WARPGROUPS = 8  # warps
BATCH_BYTES = (
    32 * 32 * common.SUM_BYTES
)  # sums of a part that a warp has on their way at once: 32 registers of a thread


@kernel
def _offset_rereads(t: Launch, hold_bytes: float, tiles_m: int, tiles_n: int, ctas: int) -> float:
    """Bytes that DRAM gives again to CTAs at different places of K: all of A and a panel of weights each are in use."""
    w_bytes = t.b_bytes + t.scale_bytes
    a_lost = 1.0 / (1.0 + hold_bytes / t.a_bytes)
    w_lost = 1.0 / (1.0 + hold_bytes / (ctas * w_bytes / tiles_n))
    return float(a_lost * t.a_bytes * (tiles_n - 1) + w_lost * w_bytes * (tiles_m - 1))


@kernel
def norm8(x: float, y: float) -> float:
    """Nearly the longer of two that wait for each other: they are rarely late at the same time."""
    a, b = x * x, y * y
    a, b = a * a, b * b
    return np.sqrt(np.sqrt(np.sqrt(a * a + b * b)))


@kernel
def overlapped(issue: float, matrix: float, wgmma_frac: float) -> float:
    """Dequantization under wgmma, which takes `matrix` at the tensor rate and does not quite reach it."""
    return common.norm3(issue, matrix / wgmma_frac, 0.0, 0.0)


@kernel
def _sm90_step(
    resident: float, lone: float, shared: float, matrix: float, ingest: float,
) -> float:  # fmt: skip
    """Cycles of 64 k of a CTA that shares its SM with `resident` - 1 others."""
    step = norm8(lone, ingest * resident)
    if resident > 1.0:
        step = max(step, resident * max(shared, matrix))
    return float(step)


@kernel
def _of_groups_us(
    p: Any, row: Any, c: Any, first: float, last: float, dram_us: float, blocks: float, copied_rows: float,
) -> float:  # fmt: skip
    """Return main loops of tiles of several groups, `first` and `last` cycles of whole waves and the rest of a CTA.

    CTAs are not at one place of K, as those of one GEMM are, so waves run into each other and hide more of DRAM. Each
    of `blocks` of 64 k takes in tokens and weights, and beside DRAM L2 gives no more than its peak.
    """
    taken = blocks * (copied_rows * common.TOKEN_ROW_BYTES + row["weight_bytes"])
    l2_us = taken / (p["l2_peak_bytes_per_us"] * c["l2_frac"])
    result: float = (
        common.norm4((first + last) / p["cycles_per_us"], common.norm3(dram_us, l2_us, 0.0, 0.0), 0.0) + c["groups_us"]
    )
    return result


@kernel
def _sm90_work(row: Any, c: Any, matrix: float) -> float:
    """Cycles of 64 k of the warps that compute, alone on their SM; `matrix` of them are the tensor core's."""
    slots_each = c["issue"] if row["num_warps"] <= TWO_WARPGROUPS else c["three_issue"]
    issue = (
        row["instructions"]
        / common.SCHEDULERS
        * (slots_each if row["schedule"] == kernels.COOPERATIVE else c["pingpong_issue"])
    )
    work = overlapped(issue, matrix, c["wgmma_frac"]) + c["stage_cycles"] * common.BLOCK / row["cta_k"]
    return float(work)


@kernel
def sm90_loop(p: Any, row: Any, c: Any, t: Launch, split: int, lone: float, work: float) -> Loop:
    """Return the main loop of a config.

    `lone` and `work` are cycles of 64 k of a CTA alone on its SM that waits for no data, and of its warps that compute.
    """
    is_stream = split == kernels.STREAM_K
    split = max(1, split)
    cta_m, cta_n = row["cta_m"], row["cta_n"]
    cluster_m, cluster_n = row["cluster_m"], row["cluster_n"]
    cluster = cluster_m * cluster_n
    tiles_m, tiles_n = t.tiles_m, ceil_div(t.N, cta_n * cluster_n)  # of clusters
    tiles = tiles_m * tiles_n
    units = ceil_div(t.K, common.UNIT_K)
    slots = row["grid_cap"] // cluster
    if is_stream:
        clusters = min(slots, tiles * (units if t.G == 1 else min(units, common.MOST_PARTS)))
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
    is_coop = row["schedule"] == kernels.COOPERATIVE

    # 64 k of a CTA
    shared = row["instructions"] / common.SCHEDULERS * c["shared_issue"]
    matrix = row["matrix_cycles"] * t.shares.matrix_frac
    box = min(cta_m // cluster_n * t.shares.box_frac, t.rows)  # rows of A that a CTA copies
    copied_rows = cluster_n * box
    waste = 1.0 + c["line_waste"] * t.line_waste
    row_bytes = common.BLOCK * p["a_elem_bytes"]  # of 64 k
    ingest = copied_rows * row_bytes * waste / cluster_n + row["weight_bytes"] / cluster_m
    is_offset = is_stream and t.G == 1 and not common.are_alike(tiles, clusters)
    rate = kernels.SM_L2_BYTES_PER_CYCLE * c["sm_l2_frac"]  # CTAs that ask for the same lines are answered together
    if is_offset:
        rate = min(rate, common.l2_share(p, c, min(ctas, num_sms)))
    ingest /= rate
    resident = max(1.0, np.ceil(ctas / row["sm_cap"]))
    step = _sm90_step(resident, lone, shared, matrix, ingest)
    if is_offset:
        step *= 1.0 + c["offset_frac"]

    taken = (copied_rows * row_bytes + row["weight_bytes"]) * resident  # a multicast writes to each SM
    power = c["moving_power"] * taken / (step * kernels.SM_L2_BYTES_PER_CYCLE)

    # a work item: a tile, or a part of it
    tile_bytes = cta_m * (cta_n * common.SUM_BYTES)
    reduction, stored_rows = 0.0, cta_m
    parts, num_cuts = float(split), 1.0
    if is_stream:
        parts = 1.0 if tiles % clusters == 0 else max(1.0, clusters / tiles) + 1.0
        if clusters % tiles != 0:  # a CTA has parts of two tiles
            num_cuts = 2.0
    if parts > 1.0:
        reduction = num_cuts * c["cut_us"] * cycles_per_us + resident * tile_bytes / c["part_write_bytes_per_cycle"]
        if row["cluster_k"] > 0:
            stored_rows = ceil_div(cta_m, split)  # each CTA adds up its share
        else:
            batches = max(1.0, tile_bytes / (row["num_warps"] * BATCH_BYTES))  # of loads, a round trip each
            reduction += (parts - 1.0) * (tile_bytes / c["part_read_bytes_per_cycle"] + batches * c["part_cycles"])
    epilogue = min(stored_rows, t.M) * (cta_n * p["c_elem_bytes"]) / c["epilogue_bytes_per_cycle"]
    over = epilogue + reduction + (c["group_tile_cycles"] if t.G > 1 else 0.0)
    item = blocks * step
    last = 0.0
    if rest > 0:
        resident = max(1.0, np.ceil(rest * cluster / row["sm_cap"]))
        last = blocks * _sm90_step(resident, lone, shared, matrix, ingest) + over
    if is_coop:
        first = rounds * (item + over)
        if t.G > 1 and not is_stream:  # the longest tile of a group takes more than the mean
            first = max(first + last, item * (t.shares.most_cost * tiles_m / t.shares.cost) + over) - last
    else:  # the end of a tile hides behind the other warpgroup's
        hidden = max(item, 0.5 * (item + over))
        first = rounds * hidden if rest > 0 else (rounds - 1) * hidden + item + over

    # the chip
    hold_bytes = p["l2_bytes"] * c["l2_hold_frac"]
    if row["cluster_k"] > 0:  # all CTAs at once
        extra = 0.0
    elif is_offset:
        extra = _offset_rereads(t, hold_bytes, tiles_m, tiles_n, clusters)
    else:
        extra = common.panel_rereads(row, t, hold_bytes, tiles_m, tiles_n, min(clusters / split, float(tiles)))
    read_bytes = t.a_read_bytes + t.b_read_bytes + extra
    dram_bytes = read_bytes + t.c_bytes * (1.0 - t.stay_frac)
    dram_us = dram_bytes / p["dram_peak_bytes_per_us"]
    outside_us = 0.0  # TMA fills rows in each CTA of a multicast; between groups lie rows of the next
    if t.G == 1:
        outside_rows = (tiles_m * cluster_m * copied_rows - t.M) * cluster_n
        outside_us = outside_rows * tiles_n * (2.0 * units) / (c["outside_rows_per_cycle"] * cycles_per_us)
    share = rounds * clusters / items
    busy_us = items * cluster * blocks * matrix / (num_sms * cycles_per_us)
    store_us = c["store_exposed_frac"] * t.c_bytes * (1.0 - t.stay_frac) / p["dram_peak_bytes_per_us"]
    waves = rounds + (1 if rest > 0 else 0)
    chip_us, done = (first + last) / cycles_per_us, waves * blocks
    reduction_us = min(chip_us, waves * reduction / cycles_per_us)
    last_ctas = rest * cluster if rest > 0 else ctas
    return Loop(
        first=first, last=last, share=share, rounds=rounds, rest=rest, copied_rows=copied_rows,
        num_blocks=tiles * units * 2.0, prologue_us=c["kernel_us"], chip_us=chip_us - reduction_us, over_us=0.0,
        matrix_us=done * matrix / cycles_per_us, dequant_us=done * max(0.0, work - matrix) / cycles_per_us,
        overhead_us=waves * epilogue / cycles_per_us, l2_us=0.0, dram_us=dram_us, outside_us=outside_us,
        store_us=store_us, reduction_us=reduction_us, busy_us=busy_us, power=power, read_bytes=read_bytes, ctas=ctas,
        tiles=tiles * cluster, waves=waves, last_ctas=last_ctas,
        active_sms=min(ctas, num_sms),
    )  # fmt: skip


@kernel
def _lone_cycles(row: Any, c: Any, work: float) -> float:
    """Cycles of 64 k of a CTA alone on its SM that waits for no data."""
    return norm8(work, row["producer"] * c["producer_cycles"])


@kernel
def sm90_cost(p: Any, row: Any, c: Any, t: Launch, split: int) -> ConfigCost:
    """Warp-specialized kernels: a thread copies, warpgroups dequantize and multiply, tiles follow each other."""
    work = _sm90_work(row, c, row["matrix_cycles"] * t.shares.matrix_frac)
    s = sm90_loop(p, row, c, t, split, _lone_cycles(row, c, work), work)
    if t.G > 1:
        return common.finish(
            p, row, s, _of_groups_us(p, row, c, s.first, s.last, s.dram_us, s.num_blocks, s.copied_rows)
        )
    cycles_per_us = p["cycles_per_us"]
    main_us = common.norm3(s.first / cycles_per_us, s.dram_us * s.share, s.outside_us * s.share, 0.0)
    if s.rest > 0:
        rest = 1.0 - s.share
        main_us += common.norm3(s.last / cycles_per_us, s.dram_us * rest, s.outside_us * rest, 0.0)
    return common.finish(p, row, s, main_us)


_LEAST_OF_GROUPS = 0.5 ** (1.0 / 3.0)  # the longer of two over their 3-norm: main loops of groups overlap more
_LEAST_OF_STREAMS = 3.0 ** (1.0 / 4.0 - 1.0 / 3.0)  # the 4-norm of three over their 3-norm
_CBRT_1, _CBRT_2, _CBRT_3 = 1.0 / 3.0, -1.0 / 9.0, 0.0377  # of cbrt(1 + x), 0 <= x <= 1, right at both ends


class W4A16BoundColumns(NamedTuple):
    """Columns of kernels that bounds read, families' coefficients among them; see `pack_w4a16_bound_columns`."""

    cta_m: Any
    cta_n: Any
    block_cycles: Any
    lone_cycles: Any
    fixed_us: Any
    fixed_cycles: Any
    row_cycles: Any
    pass_us: Any
    pass_elems: Any
    dram_bytes_per_us: Any
    store_us_per_byte: Any  # of C, after all else
    box_rows: Any  # rows of A that a CTA of a cluster copies
    box_row_cycles: Any
    weight_cycles: Any  # to take in the weights of 64 k
    whole_cycles: Any  # 0, or inf where K is always cut
    cut_cycles: Any  # of any cut
    most_parts: Any
    max_rows: Any
    max_tiles: Any
    is_grouped: Any


_AT = W4A16BoundColumns(*range(len(W4A16BoundColumns._fields)))  # the place of each


@kernel
def row_bounds_us(p: Any, c: Any, t: ProblemTerms, columns: Any, first: int, bounds: Any) -> None:  # noqa: ARG001
    """Write to `bounds` [num] times that kernels from `first` on cannot beat however K is cut; inf: they run it not.

    K is whole, so that an SM has a number of tiles, or work is spread over all SMs and parts are added up. Nothing is
    read twice. All waves are taken as one: the 3-norm of sums is at most the sum of 3-norms, and what comes after the
    main loop is at most longer as a part of it. No branch is taken on a row, so that a CPU does several at a time.
    """
    stop = first + len(bounds)
    cta_m, cta_n, block_cycles = (
        columns[_AT.cta_m, first:stop], columns[_AT.cta_n, first:stop], columns[_AT.block_cycles, first:stop]
    )  # fmt: skip
    fixed_us, fixed_cycles = columns[_AT.fixed_us, first:stop], columns[_AT.fixed_cycles, first:stop]
    row_cycles, pass_us = columns[_AT.row_cycles, first:stop], columns[_AT.pass_us, first:stop]
    pass_elems, dram_rate = columns[_AT.pass_elems, first:stop], columns[_AT.dram_bytes_per_us, first:stop]
    store_us, is_grouped = columns[_AT.store_us_per_byte, first:stop], columns[_AT.is_grouped, first:stop]
    box_rows, box_row_cycles = columns[_AT.box_rows, first:stop], columns[_AT.box_row_cycles, first:stop]
    weight_cycles = columns[_AT.weight_cycles, first:stop]
    whole_cycles, cut_cycles = columns[_AT.whole_cycles, first:stop], columns[_AT.cut_cycles, first:stop]
    most_parts = columns[_AT.most_parts, first:stop]
    max_rows, max_tiles = columns[_AT.max_rows, first:stop], columns[_AT.max_tiles, first:stop]
    M, N, blocks, num_sms, cycles_per_us = (
        float(t.M),
        float(t.N),
        t.K / common.BLOCK,
        float(p["num_sms"]),
        p["cycles_per_us"],
    )
    all_rows, c_bytes = float(t.rows), t.c_bytes * (1.0 - t.stay_frac)
    dram_bytes = t.a_read_bytes + t.b_read_bytes + c_bytes
    of_norm = 1.0 if t.G == 1 else _LEAST_OF_GROUPS
    grouped_us = 0.0 if t.G > 1 else np.inf
    plain_us = np.inf if t.is_grouped else 0.0
    for i in range(len(bounds)):
        tiles = np.ceil(M / cta_m[i]) * np.ceil(N / cta_n[i])
        rows = cta_m[i] if cta_m[i] < M else M
        box = box_rows[i] if box_rows[i] < all_rows else all_rows
        ingest = box * box_row_cycles[i] + weight_cycles[i]
        longest = block_cycles[i] if block_cycles[i] > ingest else ingest
        tile_cycles, most_ctas = blocks * longest, tiles * most_parts[i]
        whole = np.ceil(tiles / num_sms) * tile_cycles + whole_cycles[i]
        cut = tiles * tile_cycles / (most_ctas if most_ctas < num_sms else num_sms) + cut_cycles[i]
        cycles = (whole if whole < cut else cut) + (fixed_cycles[i] + rows * row_cycles[i])
        before_us = fixed_us[i] + pass_us[i] * np.ceil(rows * cta_n[i] / pass_elems[i]) + c_bytes * store_us[i]
        chip_us, dram_us = cycles / cycles_per_us, dram_bytes / dram_rate[i]
        longer = chip_us if chip_us > dram_us else dram_us
        shorter = dram_us if chip_us > dram_us else chip_us
        ratio = shorter / longer
        # the 3-norm is longer * cbrt(1 + ratio^3): a polynomial within 0.2%, then Newton's method twice, from above
        cube = ratio * ratio * ratio
        root = 1.0 + cube * (_CBRT_1 + cube * (_CBRT_2 + cube * _CBRT_3))
        root -= (root * root * root - (1.0 + cube)) / (3.0 * root * root)
        root -= (root * root * root - (1.0 + cube)) / (3.0 * root * root)
        least_us = (before_us + of_norm * longer * root) * kernels.BOUND_SLACK
        no_us = grouped_us if is_grouped[i] > 0.0 else plain_us
        bounds[i] = least_us + no_us if max_rows[i] >= M and tiles <= max_tiles[i] else np.inf


class _Least(NamedTuple):
    """The least that a config takes: what is before, and under load `added_us` and the 3-norm of the next three."""

    before_us: float
    added_us: float
    chip_us: float
    dram_us: float
    other_us: float
    busy_us: float  # tensor cores, at the highest clock
    power: float  # of data on their way, as a share of theirs


@inlined_kernel
def _least_of(p: Any, row: Any, c: Any, t: Launch, split: int, lone: float) -> _Least:
    """Waves are taken as one: the 3-norm of sums is at most the sum of 3-norms."""
    launch_us, cycles_per_us = p["launch_us"], p["cycles_per_us"]
    if row["family"] in WGMMA_FAMILIES:
        of_90 = sm90_loop(p, row, c, t, split, lone, 0.0)
        before_us, chip_us = launch_us + of_90.prologue_us + of_90.store_us, (of_90.first + of_90.last) / cycles_per_us
        if t.G > 1:  # the longer of the two: above a share of their 3-norm
            return _Least(
                before_us, c["groups_us"], _LEAST_OF_GROUPS * chip_us, _LEAST_OF_GROUPS * of_90.dram_us, 0.0,
                of_90.busy_us, of_90.power,
            )  # fmt: skip
        return _Least(before_us, 0.0, chip_us, of_90.dram_us, of_90.outside_us, of_90.busy_us, of_90.power)
    if row["family"] in MULTISTAGE_FAMILIES:
        of_80 = sm80_loop(p, row, c, t, split)
        return _Least(launch_us, of_80.reduction_us, of_80.chip_us, of_80.dram_us, 0.0, of_80.busy_us, 0.0)
    few = common.streaming_loop(p, row, c, t, split)
    before_us = launch_us + few.prologue_us + few.reduction_us
    if t.G > 1:
        least = _LEAST_OF_STREAMS
        return _Least(
            before_us, 0.0, least * (few.chip_us + few.over_us), least * few.dram_us, least * few.l2_us, 0.0, 0.0
        )
    return _Least(before_us + few.over_us, 0.0, few.chip_us, few.dram_us, few.l2_us, 0.0, 0.0)


@kernel
def is_beaten(
    p: Any, row: Any, columns: Any, index: int, c: Any, t: ProblemTerms, split: int, best_us: float
) -> bool:  # fmt: skip
    """Return True if a kernel, with K cut into `split` parts or by `STREAM_K`, takes longer than `best_us` for sure.

    The main loop is that of the cost, and what a root would be taken of is compared with the cube of the time that is
    left. So nearly all that are slower are known in a third of the time of a cost.
    """
    launch = common.launch_of(row, t)
    lone = columns[_AT.lone_cycles, index]
    if launch.shares.matrix_frac < 1.0:
        lone = _lone_cycles(row, c, _sm90_work(row, c, row["matrix_cycles"] * launch.shares.matrix_frac))
    loop = _least_of(p, row, c, launch, split, lone)
    left_us = best_us / (launch.num * kernels.BOUND_SLACK) - loop.before_us
    room_us = left_us - loop.added_us
    cubes = loop.chip_us * loop.chip_us * loop.chip_us + loop.dram_us * loop.dram_us * loop.dram_us
    cubes += loop.other_us * loop.other_us * loop.other_us
    if room_us <= 0.0 or cubes > room_us * room_us * room_us:
        return True
    return loop.busy_us > 0.0 and _is_too_hot(p, loop.added_us + np.cbrt(cubes), loop.busy_us, loop.power, left_us)


@kernel
def _is_too_hot(p: Any, main_us: float, busy_us: float, power: float, left_us: float) -> bool:
    """Return True if a main loop of `main_us` or more at the highest clock takes longer than `left_us` under load.

    By `loaded_time_us` at the clock of a short kernel, the highest that there is. The more there is to wait for, the
    less the clock yields; only where it yields less than the wait takes is a longer main loop no faster.
    """
    cycles_per_us, clock = p["cycles_per_us"], p["tensor_cycles_per_us"]
    if busy_us * cycles_per_us > left_us * clock:
        return True
    busy = min(1.0, busy_us / main_us)
    fall = (cycles_per_us - clock) * busy * busy
    clock_left = cycles_per_us - fall
    if (1.0 + power) * 2.0 * cycles_per_us * fall * busy > clock_left * clock_left:
        return False
    return bool(main_us + (1.0 + power) * (busy_us * fall / clock_left) > left_us)


_LINE_ELEMS = 64  # fp16 or bf16, of a line of 128 bytes


@kernel
def w4a16_terms(
    p: Any, c: Any, K: int, N: int, group_rows: Any, group_counts: Any, is_grouped: bool  # noqa: ARG001
) -> ProblemTerms:  # fmt: skip
    """Bytes of all groups as packed, weights of those that have rows; and what of it L2 keeps.

    `line_waste` is 1 where rows of A do not start on lines of 128 bytes. Cold, A and C come from DRAM with the weights.
    """
    num_groups = rows = num_active = 0
    for i in range(len(group_rows)):
        num_groups += group_counts[i]
        rows += group_counts[i] * group_rows[i]
        if group_rows[i] > 0:
            num_active += group_counts[i]
    padded_k, padded_n = ceil_div(K, 128) * 128, ceil_div(N, common.BLOCK) * common.BLOCK
    a_bytes = rows * (K * p["a_elem_bytes"])
    b_bytes = num_active * padded_n * (padded_k * p["b_elem_bytes"])
    groups = padded_k / p["group_size"] if p["group_size"] > 0 else 1.0
    scale_bytes = num_active * padded_n * (groups * p["scale_bytes_per_group"])
    c_bytes = rows * (N * p["c_elem_bytes"])
    stay_frac = 0.0
    if p["l2_state"] == kernels.WARM:
        footprint = (a_bytes + b_bytes + scale_bytes + c_bytes) / (p["l2_bytes"] * common.HOLD_FRAC)
        f2 = footprint * footprint
        stay_frac = 1.0 / (1.0 + f2 * f2)
    is_off_lines = 1.0 if K % _LINE_ELEMS != 0 and p["a_elem_bytes"] > 1.0 else 0.0  # those of e4m3 are padded
    return ProblemTerms(
        num_groups, group_rows[0], K, N, a_bytes, b_bytes, scale_bytes, c_bytes, stay_frac, a_bytes * (1.0 - stay_frac),
        (b_bytes + scale_bytes) * (1.0 - stay_frac), 1.0, is_off_lines, 1.0, 0.0, 0.0,
        rows, group_rows, group_counts, is_grouped,
    )  # fmt: skip


@kernel
def _launched(cost: ConfigCost, num: int) -> ConfigCost:
    """Return a kernel that is launched so many times."""
    us = cost.times
    times = Times(
        us[0] * num, us[1] * num, us[2] * num, us[3] * num, us[4] * num, us[5] * num, us[6] * num, us[7] * num,
        us[8] * num, us[9] * num, us[10] * num, us[11] * num, us[12] * num,
    )  # fmt: skip
    return ConfigCost(
        cost.latency_us * num, times, cost.main_us * num, cost.tensor_busy_frac, cost.dram_read_bytes * num,
        cost.num_ctas * num, cost.num_tiles * num, cost.num_waves * num, cost.last_wave_ctas, cost.active_sms,
        cost.raster,
    )  # fmt: skip


@kernel
def w4a16_cost(p: Any, row: Any, c: Any, t: ProblemTerms, split: int, raster: int) -> ConfigCost:  # noqa: ARG001
    """Return the time of one kernel of ours, which has its raster, with K cut into `split` parts: see MODEL.md.

    A batch by a kernel of one GEMM is as many launches.
    """
    launch = common.launch_of(row, t)
    cost = _cost_of_launch(p, row, c, launch, split)
    return _launched(cost, launch.num) if launch.num > 1 else cost


@kernel
def _cost_of_launch(p: Any, row: Any, c: Any, t: Launch, split: int) -> ConfigCost:
    if row["family"] in WGMMA_FAMILIES:
        return sm90_cost(p, row, c, t, split)
    if row["family"] in MULTISTAGE_FAMILIES:
        return sm80_cost(p, row, c, t, split)
    return common.streaming_cost(p, row, c, t, split)


@kernel
def _latency_below_us(p: Any, row: Any, c: Any, t: ProblemTerms, split: int, best_us: float) -> float:  # noqa: ARG001
    return w4a16_cost(p, row, c, t, split, kernels.BEST_RASTER).latency_us


W4A16 = CostRules(w4a16_terms, common.list_splits, row_bounds_us, is_beaten, _latency_below_us, w4a16_cost)
"""What a search needs of our kernels."""
