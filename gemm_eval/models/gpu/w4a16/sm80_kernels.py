"""Numba kernels of `w4a16_sm80`: mma.sync, all warps load and compute."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gemm_eval.jit import kernel
from gemm_eval.models.gpu.cost_kernels import STREAM_K, ConfigCost, ceil_div
from gemm_eval.models.gpu.w4a16.shared_kernels import (
    HOLD_FRAC,
    MOST_PARTS,
    SCHEDULERS,
    SUM_BYTES,
    TOKEN_ROW_BYTES,
    UNIT_K,
    Launch,
    are_alike,
    finish,
    l2_share,
    norm3,
    panel_rereads,
    shared_step,
)

__all__ = ["Sm80Loop", "sm80_cost", "sm80_loop"]


class Sm80Loop(NamedTuple):
    """The main loop of a config before its times are combined: cycles of a CTA, times of the chip, and counts."""

    first: float  # cycles of all whole rounds
    last: float  # and of the rest
    share: float  # of CTAs, that whole rounds have
    blocks: float  # of 64 k, of a CTA
    issue: float  # cycles of one
    matrix: float
    overlap: float  # CTAs that an SM works through
    reduction_us: float
    dram_us: float
    busy_us: float  # tensor cores, at the highest clock
    read_bytes: float
    tiles: int
    ctas: int
    rounds: int
    rest: int  # CTAs after the last whole round


@kernel
def sm80_loop(p: Any, row: Any, c: Any, t: Launch, split: int) -> Sm80Loop:
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
    return Sm80Loop(
        first, last, rounds * slots / ctas, blocks, issue, matrix, overlap, reduction_us, dram_us, busy_us, read_bytes,
        tiles, ctas, rounds, rest,
    )  # fmt: skip


@kernel
def sm80_cost(p: Any, row: Any, c: Any, t: Launch, split: int) -> ConfigCost:
    """Multistage kernels: all warps copy, dequantize and multiply; the CTAs of an SM fill each other's gaps."""
    s = sm80_loop(p, row, c, t, split)
    cycles_per_us = p["cycles_per_us"]
    main_us = norm3(s.first / cycles_per_us, s.dram_us * s.share, 0.0, 0.0) if s.rounds > 0 else 0.0
    if s.rest > 0:
        main_us += norm3(s.last / cycles_per_us, s.dram_us * (1.0 - s.share), 0.0, 0.0)
    waves = s.rounds + (1 if s.rest > 0 else 0)
    return finish(
        p, row, 0.0, (s.first + s.last) / cycles_per_us, s.overlap * s.blocks * s.matrix / cycles_per_us,
        s.overlap * s.blocks * s.issue / cycles_per_us, waves * c["cta_cycles"] / cycles_per_us, 0.0, s.dram_us, 0.0,
        0.0, s.reduction_us, main_us + s.reduction_us, s.busy_us, s.read_bytes, s.ctas, s.tiles, waves,
        s.rest if s.rest > 0 else s.ctas, min(s.ctas, p["num_sms"]), 0.0,
    )  # fmt: skip
