"""Numba kernels of `w4a16_gemv` and `w4a16_gemv_mma`: weights stream through teams of warps, for few tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gemm_eval.jit import kernel
from gemm_eval.models.gpu.cost_kernels import SM_L2_BYTES_PER_CYCLE, STREAM_K, ConfigCost, ceil_div
from gemm_eval.models.gpu.w4a16.family_kernels import GEMV_MMA_FAMILIES
from gemm_eval.models.gpu.w4a16.shared_kernels import (
    BLOCK,
    GROUP_TILE_CYCLES,
    GROUPS_US,
    MAX_CUT_WAVES,
    MOST_PARTS,
    PAIRS_OF_WARP,
    SCHEDULERS,
    SUM_BYTES,
    Launch,
    finish,
    norm3,
    norm4,
    shared_step,
)

__all__ = ["StreamingLoop", "parts_of_groups", "streaming_cost", "streaming_loop"]

_PARTS_AT_ONCE = 4  # sums that `w4a16_gemv*` load together
_GROUP_LOAD_CYCLES = 400.0  # of grouped kernels, shared by the blocks that are on their way to a team
_UNIT_STEPS, _PART_STEPS = 4, 2  # by which grouped kernels cut K themselves (streaming.cuh)
_RAMP_BYTES = 4e6  # of weights, that fill the queues half


@kernel
def _sums_cycles(row: Any, c: Any, t: Launch) -> float:
    """Cycles at the end of a streaming CTA: sums of all warps to shared memory, and from there one sum of them."""
    teams = row["cta_k"] // BLOCK
    stored = teams * (row["cta_m"] * (row["cta_n"] * SUM_BYTES)) / c["sums_bytes_per_cycle"]
    return float(stored + teams * _passes(row, t) * c["team_sum_cycles"])


@kernel
def _passes(row: Any, t: Launch) -> int:
    """Rounds of all threads of a streaming CTA over the pairs of columns of all tokens."""
    return ceil_div(min(row["cta_m"], t.M) * row["cta_n"], PAIRS_OF_WARP * row["num_warps"])


@kernel
def _dram_bytes_per_us(p: Any, dram_frac: float) -> float:
    """DRAM rate at a share of what a large read reaches; never more than the data sheet says."""
    return float(min(p["dram_peak_bytes_per_us"] * dram_frac, p["dram_spec_bytes_per_us"]))


class StreamingLoop(NamedTuple):
    """The main loop of a config before its times are combined: times of the chip, and counts."""

    prologue_us: float
    chip_us: float
    over_us: float  # between rounds
    reduction_us: float
    dram_us: float
    l2_us: float
    blocks: float  # of 64 k, of a CTA
    issue: float  # cycles of one
    matrix: float
    done: float  # CTAs that an SM works through
    read_bytes: float
    tiles: int
    ctas: int
    waves: int
    rest: int  # CTAs after the last whole round


@kernel
def parts_of_groups(row: Any, tiles_m: int, K: int, N: int) -> int:
    """Parts of K of all tiles, as a grouped kernel finds them on the GPU."""
    tiles_n = ceil_div(N, row["cta_n"])
    tiles, slots = tiles_m * tiles_n, row["grid_cap"]
    teams, blocks = row["cta_k"] // BLOCK, ceil_div(K, BLOCK)
    best, least = 1, ceil_div(tiles, slots) * (ceil_div(blocks, teams) + _UNIT_STEPS)
    if tiles_m > max(1, MAX_CUT_WAVES * slots // tiles_n):
        return best
    for parts in range(2, MOST_PARTS + 1):
        units = tiles * parts
        if parts * teams > blocks or units > MAX_CUT_WAVES * slots:
            break
        steps = ceil_div(ceil_div(blocks, parts), teams)
        cost = ceil_div(units, slots) * (steps + _UNIT_STEPS) + (parts - 1) * _PART_STEPS
        if cost < least:
            best, least = parts, cost
    return best


@kernel
def streaming_loop(p: Any, row: Any, c: Any, t: Launch, split: int) -> StreamingLoop:
    """The main loop of a config."""
    cta_m, cta_n = row["cta_m"], row["cta_n"]
    tiles_m, tiles_n = t.tiles_m, ceil_div(t.N, cta_n)
    tiles = tiles_m * tiles_n
    if split == STREAM_K:
        split = parts_of_groups(row, tiles_m, t.K, t.N)
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
    is_mma = row["family"] in GEMV_MMA_FAMILIES

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
    if t.G > 1:
        serial += _GROUP_LOAD_CYCLES / max(1, row["num_stages"] - 1)
        first_start += GROUPS_US * cycles_per_us
        start += GROUP_TILE_CYCLES
    rows = min(cta_m, t.M)
    sums = _sums_cycles(row, c, t)
    first = rounds * steps * shared_step(resident, work, serial, ingest) if rounds > 0 else 0.0
    last = 0.0
    left = np.ceil(rest / num_sms)
    if rest > 0:
        last = steps * shared_step(left, work, serial, ingest)
    chip_us = (first + last) / cycles_per_us
    over_us = (waves - 1) * (start + sums) / cycles_per_us  # no loads are under way, so DRAM does not hide it

    reduction_us = 0.0
    if split > 1:
        trips = _passes(row, t) * (split // _PARTS_AT_ONCE + split % _PARTS_AT_ONCE)
        cycles = trips * part_cycles + split * rows * (cta_n * SUM_BYTES) / c["part_read_bytes_per_cycle"]
        reduction_us = c["cut_us"] * waves + cycles / cycles_per_us

    w_bytes = t.b_bytes + t.scale_bytes
    read_bytes = t.a_read_bytes + t.b_read_bytes
    readers = float(tiles_m)  # tiles that read weights
    if t.G > 1:
        readers /= t.G
    elif ctas > slots:  # not all tiles of tokens run at once: later ones read the weights again
        read_bytes += max(0.0, 1.0 - p["l2_bytes"] * c["l2_hold_frac"] / w_bytes) * w_bytes * (tiles_m - 1)
    dram_us = (read_bytes + t.c_bytes * (1.0 - t.stay_frac)) / _dram_bytes_per_us(p, dram_frac)
    l2_us = 0.0
    if is_mma:
        waste = 1.0 + c["line_waste"] * t.line_waste
        tokens = tiles_n * (t.rows if t.G > 1 else tiles_m * rows) * (t.K * p["a_elem_bytes"]) * waste
        l2_us = (tokens + w_bytes * readers) / (p["l2_peak_bytes_per_us"] * c["l2_frac"])
    prologue_us = (first_start + sums) / cycles_per_us
    if not is_mma:
        prologue_us += c["ramp_us"] * w_bytes / (w_bytes + _RAMP_BYTES)
    return StreamingLoop(
        prologue_us, chip_us, over_us, reduction_us, dram_us, l2_us, blocks, issue, matrix, rounds * resident + left,
        read_bytes, tiles, ctas, waves, rest,
    )  # fmt: skip


@kernel
def streaming_cost(p: Any, row: Any, c: Any, t: Launch, split: int) -> ConfigCost:
    """Kernels for few tokens: every team of warps streams its own blocks of k, and sums are added at the end."""
    s = streaming_loop(p, row, c, t, split)
    cycles_per_us = p["cycles_per_us"]
    main_us = norm3(s.chip_us, s.dram_us, s.l2_us, 0.0) + s.over_us
    if t.G > 1:  # CTAs that go on are at different places: loads of others hide what one does between two tiles
        main_us = norm4(s.chip_us + s.over_us, s.dram_us, s.l2_us)
    return finish(
        p, row, s.prologue_us, s.chip_us + s.over_us, s.done * s.blocks * s.matrix / cycles_per_us,
        s.done * s.blocks * s.issue / cycles_per_us, s.over_us, s.l2_us, s.dram_us, 0.0, 0.0, s.reduction_us,
        main_us + s.reduction_us, 0.0, s.read_bytes, s.ctas, s.tiles, s.waves, s.rest if s.rest > 0 else s.ctas,
        min(s.ctas, p["num_sms"]), 0.0,
    )  # fmt: skip
