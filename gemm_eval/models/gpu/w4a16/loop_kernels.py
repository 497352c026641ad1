"""Main loops of our W4A16 kernels on mma.sync and wgmma. See MODEL.md."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemm_eval.jit import kernel
from gemm_eval.models.gpu.cost_kernels import (
    COOPERATIVE,
    SM_L2_BYTES_PER_CYCLE,
    STREAM_K,
    ConfigCost,
    ceil_div,
)
from gemm_eval.models.gpu.w4a16.shared_kernels import (
    BLOCK,
    GROUP_TILE_CYCLES,
    GROUPS_US,
    HOLD_FRAC,
    MOST_PARTS,
    SCHEDULERS,
    SUM_BYTES,
    TOKEN_ROW_BYTES,
    UNIT_K,
    Launch,
    Loop,
    are_alike,
    finish,
    l2_share,
    norm3,
    norm4,
    panel_rereads,
    shared_step,
)


@kernel
def sm80_loop(p: Any, row: Any, c: Any, t: Launch, split: int) -> Loop:
    """The main loop of a config."""
    is_stream = split == STREAM_K
    split = max(1, split)
    cta_m, cta_n = row["cta_m"], row["cta_n"]
    tiles_m, tiles_n = t.tiles_m, ceil_div(t.N, cta_n)
    tiles = tiles_m * tiles_n
    units = ceil_div(t.K, UNIT_K)
    slots = row["grid_cap"]
    if is_stream:
        ctas = min(slots, tiles * (units if t.G == 1 else min(units, MOST_PARTS)))
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
    is_offset = is_stream and t.G == 1 and not are_alike(tiles, ctas)
    ingest = 0.0
    if is_offset:
        ingest = (min(cta_m, t.M) * TOKEN_ROW_BYTES + row["weight_bytes"]) / l2_share(p, c, min(ctas, num_sms))
    epilogue = cta_m * (cta_n * p["c_elem_bytes"]) / c["epilogue_bytes_per_cycle"]
    first = last = 0.0
    resident = float(row["ctas_per_sm"])
    if rounds > 0:
        first = blocks * shared_step(resident, work, serial, ingest) + c["cta_cycles"] + resident * epilogue
        first *= rounds
    if rest > 0:
        left = max(1.0, np.ceil(rest / num_sms))
        last = blocks * shared_step(left, work, serial, ingest) + c["cta_cycles"] + left * epilogue

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
        extra = panel_rereads(row, t, p["l2_bytes"] * HOLD_FRAC, tiles_m, tiles_n, in_flight)
    read_bytes = t.a_read_bytes + t.b_read_bytes + extra
    dram_us = (read_bytes + t.c_bytes * (1.0 - t.stay_frac)) / p["dram_peak_bytes_per_us"]
    busy_us = tiles * units * 2.0 * row["matrix_cycles"] / (num_sms * cycles_per_us)
    waves, done = rounds + (1 if rest > 0 else 0), overlap * blocks
    return Loop(
        first=first, last=last, share=rounds * slots / ctas, rounds=rounds, rest=rest, copied_rows=0, num_blocks=0.0,
        prologue_us=0.0, chip_us=(first + last) / cycles_per_us, over_us=0.0, matrix_us=done * matrix / cycles_per_us,
        dequant_us=done * issue / cycles_per_us, overhead_us=waves * c["cta_cycles"] / cycles_per_us, l2_us=0.0,
        dram_us=dram_us, outside_us=0.0, store_us=0.0, reduction_us=reduction_us, busy_us=busy_us, power=0.0,
        read_bytes=read_bytes, ctas=ctas, tiles=tiles, waves=waves, last_ctas=rest if rest > 0 else ctas,
        active_sms=min(ctas, num_sms),
    )  # fmt: skip


@kernel
def sm80_cost(p: Any, row: Any, c: Any, t: Launch, split: int) -> ConfigCost:
    """Multistage kernels: all warps copy, dequantize and multiply; the CTAs of an SM fill each other's gaps."""
    s = sm80_loop(p, row, c, t, split)
    cycles_per_us = p["cycles_per_us"]
    main_us = norm3(s.first / cycles_per_us, s.dram_us * s.share, 0.0, 0.0) if s.rounds > 0 else 0.0
    if s.rest > 0:
        main_us += norm3(s.last / cycles_per_us, s.dram_us * (1.0 - s.share), 0.0, 0.0)
    return finish(p, row, s, main_us + s.reduction_us)


TWO_WARPGROUPS = 8  # warps
BATCH_BYTES = 32 * 32 * SUM_BYTES  # sums of a part that a warp has on their way at once: 32 registers of a thread


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
    result: float = np.sqrt(np.sqrt(np.sqrt(a * a + b * b)))
    return result


@kernel
def overlapped(issue: float, matrix: float, wgmma_frac: float) -> float:
    """Dequantization under wgmma, which takes `matrix` at the tensor rate and does not quite reach it."""
    result: float = norm3(issue, matrix / wgmma_frac, 0.0, 0.0)
    return result


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
    p: Any, row: Any, first: float, last: float, dram_us: float, blocks: float, copied_rows: int,
) -> float:  # fmt: skip
    """Main loops of tiles of several groups, `first` and `last` cycles of whole waves and the rest of a CTA.

    CTAs are not at one place of K, as those of one GEMM are, so waves run into each other and hide more of DRAM. Each
    of `blocks` of 64 k takes in tokens and weights, and beside DRAM L2 gives no more than its peak.
    """
    l2_us = blocks * (copied_rows * TOKEN_ROW_BYTES + row["weight_bytes"]) / p["l2_peak_bytes_per_us"]
    result: float = norm4((first + last) / p["cycles_per_us"], norm3(dram_us, l2_us, 0.0, 0.0), 0.0) + GROUPS_US
    return result


@kernel
def _sm90_work(row: Any, c: Any) -> float:
    """Cycles of 64 k of the warps that compute, alone on their SM; whatever the GEMM."""
    slots_each = c["issue"] if row["num_warps"] <= TWO_WARPGROUPS else c["three_issue"]
    issue = row["instructions"] / SCHEDULERS * (slots_each if row["schedule"] == COOPERATIVE else c["pingpong_issue"])
    work = overlapped(issue, row["matrix_cycles"], c["wgmma_frac"]) + c["stage_cycles"] * BLOCK / row["cta_k"]
    return float(work)


@kernel
def sm90_loop(p: Any, row: Any, c: Any, t: Launch, split: int, lone: float, work: float) -> Loop:
    """The main loop of a config.

    `lone` and `work` are cycles of 64 k of a CTA alone on its SM that waits for no data, and of its warps that compute.
    """
    is_stream = split == STREAM_K
    split = max(1, split)
    cta_m, cta_n = row["cta_m"], row["cta_n"]
    cluster_m, cluster_n = row["cluster_m"], row["cluster_n"]
    cluster = cluster_m * cluster_n
    tiles_m, tiles_n = t.tiles_m, ceil_div(t.N, cta_n * cluster_n)  # of clusters
    tiles = tiles_m * tiles_n
    units = ceil_div(t.K, UNIT_K)
    slots = row["grid_cap"] // cluster
    if is_stream:
        clusters = min(slots, tiles * (units if t.G == 1 else min(units, MOST_PARTS)))
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
    shared = row["instructions"] / SCHEDULERS * c["shared_issue"]
    matrix = row["matrix_cycles"]
    box = min(cta_m // cluster_n, t.rows)  # rows of A that a CTA copies
    copied_rows = cluster_n * box
    waste = 1.0 + c["line_waste"] * t.line_waste
    ingest = copied_rows * TOKEN_ROW_BYTES * waste / cluster_n + row["weight_bytes"] / cluster_m
    is_offset = is_stream and t.G == 1 and not are_alike(tiles, clusters)
    rate = SM_L2_BYTES_PER_CYCLE * c["sm_l2_frac"]  # CTAs that ask for the same lines are answered together
    if is_offset:
        rate = min(rate, l2_share(p, c, min(ctas, num_sms)))
    ingest /= rate
    resident = max(1.0, np.ceil(ctas / row["sm_cap"]))
    step = _sm90_step(resident, lone, shared, matrix, ingest)
    if is_offset:
        step *= 1.0 + c["offset_frac"]

    taken = (copied_rows * TOKEN_ROW_BYTES + row["weight_bytes"]) * resident  # a multicast writes to each SM
    power = c["moving_power"] * taken / (step * SM_L2_BYTES_PER_CYCLE)

    # a work item: a tile, or a part of it
    tile_bytes = cta_m * (cta_n * SUM_BYTES)
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
    over = epilogue + reduction + (GROUP_TILE_CYCLES if t.G > 1 else 0.0)
    item = blocks * step
    last = 0.0
    if rest > 0:
        resident = max(1.0, np.ceil(rest * cluster / row["sm_cap"]))
        last = blocks * _sm90_step(resident, lone, shared, matrix, ingest) + over
    if is_coop:
        first = rounds * (item + over)
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
        extra = panel_rereads(row, t, hold_bytes, tiles_m, tiles_n, min(clusters / split, float(tiles)))
    read_bytes = t.a_read_bytes + t.b_read_bytes + extra
    dram_bytes = read_bytes + t.c_bytes * (1.0 - t.stay_frac)
    dram_us = dram_bytes / p["dram_peak_bytes_per_us"]
    outside_rows = 0  # TMA fills them in each CTA of a multicast; between groups lie rows of the next
    if t.G == 1:
        outside_rows = (tiles_m * cluster_m * copied_rows - t.M) * cluster_n
    outside_us = outside_rows * tiles_n * (2.0 * units) / (c["outside_rows_per_cycle"] * cycles_per_us)
    share = rounds * clusters / items
    busy_us = items * cluster * blocks * matrix / (num_sms * cycles_per_us)
    store_us = c["store_exposed_frac"] * t.c_bytes * (1.0 - t.stay_frac) / p["dram_peak_bytes_per_us"]
    waves = rounds + (1 if rest > 0 else 0)
    chip_us, done = (first + last) / cycles_per_us, waves * blocks
    reduction_us = min(chip_us, waves * reduction / cycles_per_us)
    return Loop(
        first=first, last=last, share=share, rounds=rounds, rest=rest, copied_rows=copied_rows,
        num_blocks=tiles * units * 2.0, prologue_us=c["kernel_us"], chip_us=chip_us - reduction_us, over_us=0.0,
        matrix_us=done * matrix / cycles_per_us, dequant_us=done * max(0.0, work - matrix) / cycles_per_us,
        overhead_us=waves * epilogue / cycles_per_us, l2_us=0.0, dram_us=dram_us, outside_us=outside_us,
        store_us=store_us, reduction_us=reduction_us, busy_us=busy_us, power=power, read_bytes=read_bytes, ctas=ctas,
        tiles=tiles * cluster, waves=waves, last_ctas=rest * cluster if rest > 0 else ctas,
        active_sms=min(ctas, num_sms),
    )  # fmt: skip


@kernel
def sm90_cost(p: Any, row: Any, c: Any, t: Launch, split: int) -> ConfigCost:
    """Warp-specialized kernels: a thread copies, warpgroups dequantize and multiply, tiles follow each other."""
    work = _sm90_work(row, c)
    s = sm90_loop(p, row, c, t, split, norm8(work, row["producer"] * c["producer_cycles"]), work)
    if t.G > 1:
        return finish(p, row, s, _of_groups_us(p, row, s.first, s.last, s.dram_us, s.num_blocks, s.copied_rows))
    cycles_per_us = p["cycles_per_us"]
    main_us = norm3(s.first / cycles_per_us, s.dram_us * s.share, s.outside_us * s.share, 0.0)
    if s.rest > 0:
        rest = 1.0 - s.share
        main_us += norm3(s.last / cycles_per_us, s.dram_us * rest, s.outside_us * rest, 0.0)
    return finish(p, row, s, main_us)
