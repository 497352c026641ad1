"""Numba kernels of `w4a16_sm80`: mma.sync, all warps load and compute."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemm_eval.jit import kernel
from gemm_eval.models.gpu.cost_kernels import STREAM_K, ConfigCost, ProblemTerms, ceil_div
from gemm_eval.models.gpu.w4a16.shared_kernels import (
    ALIKE_PHASES,
    HOLD_FRAC,
    MOST_PARTS,
    SCHEDULERS,
    SUM_BYTES,
    TOKEN_ROW_BYTES,
    UNIT_K,
    finish,
    l2_share,
    norm3,
    num_phases,
    panel_rereads,
    shared_step,
    tiles_of_rows,
)

__all__ = ["sm80_cost"]


@kernel
def sm80_cost(p: Any, row: Any, c: Any, t: ProblemTerms, split: int) -> ConfigCost:
    """Multistage kernels: all warps copy, dequantize and multiply; the CTAs of an SM fill each other's gaps."""
    is_stream = split == STREAM_K
    split = max(1, split)
    cta_m, cta_n = row["cta_m"], row["cta_n"]
    tiles_m, tiles_n = tiles_of_rows(t, cta_m), ceil_div(t.N, cta_n)
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
    is_offset = is_stream and t.G == 1 and num_phases(tiles, ctas) > ALIKE_PHASES
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
    share = rounds * slots / ctas
    main_us = norm3(first / cycles_per_us, dram_us * share, 0.0, 0.0) if rounds > 0 else 0.0
    if rest > 0:
        main_us += norm3(last / cycles_per_us, dram_us * (1.0 - share), 0.0, 0.0)
    busy_us = tiles * units * 2.0 * row["matrix_cycles"] / (num_sms * cycles_per_us)
    waves = rounds + (1 if rest > 0 else 0)
    return finish(
        p, row, 0.0, (first + last) / cycles_per_us, overlap * blocks * matrix / cycles_per_us,
        overlap * blocks * issue / cycles_per_us, waves * c["cta_cycles"] / cycles_per_us, 0.0, dram_us, 0.0, 0.0,
        reduction_us, main_us + reduction_us, busy_us, read_bytes, ctas, tiles, waves, rest if rest > 0 else ctas,
        min(ctas, num_sms), 0.0,
    )  # fmt: skip
