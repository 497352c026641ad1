"""Numba kernels of times that our W4A16 kernels cannot beat."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gemm_eval.jit import inlined_kernel, kernel
from gemm_eval.models.gpu.cost_kernels import BOUND_SLACK, ProblemTerms
from gemm_eval.models.gpu.w4a16.family_kernels import MULTISTAGE_FAMILIES, WGMMA_FAMILIES
from gemm_eval.models.gpu.w4a16.shared_kernels import BLOCK, GROUPS_US, Launch, launch_of
from gemm_eval.models.gpu.w4a16.sm80_kernels import sm80_loop
from gemm_eval.models.gpu.w4a16.sm90_kernels import sm90_loop
from gemm_eval.models.gpu.w4a16.streaming_kernels import streaming_loop

__all__ = ["W4A16BoundColumns", "is_beaten", "row_bounds_us"]

_LEAST_OF_GROUPS = 0.5 ** (1.0 / 3.0)  # the longer of two over their 3-norm: main loops of groups overlap more
_LEAST_OF_STREAMS = 3.0 ** (1.0 / 4.0 - 1.0 / 3.0)  # the 4-norm of three over their 3-norm
_CBRT_1, _CBRT_2, _CBRT_3 = 1.0 / 3.0, -1.0 / 9.0, 0.0377  # of cbrt(1 + x), 0 <= x <= 1, right at both ends


class W4A16BoundColumns(NamedTuple):
    """What bounds read of each kernel, its family's coefficients in it; see `pack_w4a16_bound_columns`."""

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
def row_bounds_us(p: Any, t: ProblemTerms, columns: Any, first: int, bounds: Any) -> None:
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
    M, N, blocks, num_sms, cycles_per_us = float(t.M), float(t.N), t.K / BLOCK, float(p["num_sms"]), p["cycles_per_us"]
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
        least_us = (before_us + of_norm * longer * root) * BOUND_SLACK
        no_us = grouped_us if is_grouped[i] > 0.0 else plain_us
        bounds[i] = least_us + no_us if max_rows[i] >= M and tiles <= max_tiles[i] else np.inf


class _Loop(NamedTuple):
    """The least that a config takes: what is before, and under load `added_us` and the 3-norm of the next three."""

    before_us: float
    added_us: float
    chip_us: float
    dram_us: float
    other_us: float
    busy_us: float  # tensor cores, at the highest clock
    power: float  # of data on their way, as a share of theirs


@inlined_kernel
def _loop_of(p: Any, row: Any, c: Any, t: Launch, split: int, lone: float) -> _Loop:
    """Waves are taken as one: the 3-norm of sums is at most the sum of 3-norms."""
    launch_us, cycles_per_us = p["launch_us"], p["cycles_per_us"]
    if row["family"] in WGMMA_FAMILIES:
        of_90 = sm90_loop(p, row, c, t, split, lone)
        before_us, chip_us = launch_us + c["kernel_us"] + of_90.store_us, (of_90.first + of_90.last) / cycles_per_us
        if t.G > 1:  # the longer of the two: above a share of their 3-norm
            return _Loop(
                before_us, GROUPS_US, _LEAST_OF_GROUPS * chip_us, _LEAST_OF_GROUPS * of_90.dram_us, 0.0, of_90.busy_us,
                of_90.power,
            )  # fmt: skip
        return _Loop(before_us, 0.0, chip_us, of_90.dram_us, of_90.outside_us, of_90.busy_us, of_90.power)
    if row["family"] in MULTISTAGE_FAMILIES:
        of_80 = sm80_loop(p, row, c, t, split)
        chip_us = (of_80.first + of_80.last) / cycles_per_us
        return _Loop(launch_us, of_80.reduction_us, chip_us, of_80.dram_us, 0.0, of_80.busy_us, 0.0)
    few = streaming_loop(p, row, c, t, split)
    before_us = launch_us + few.prologue_us + few.reduction_us
    if t.G > 1:
        least = _LEAST_OF_STREAMS
        return _Loop(
            before_us, 0.0, least * (few.chip_us + few.over_us), least * few.dram_us, least * few.l2_us, 0.0, 0.0
        )
    return _Loop(before_us + few.over_us, 0.0, few.chip_us, few.dram_us, few.l2_us, 0.0, 0.0)


@kernel
def is_beaten(
    p: Any, row: Any, columns: Any, index: int, c: Any, t: ProblemTerms, split: int, best_us: float
) -> bool:  # fmt: skip
    """Whether a kernel, with K cut into `split` parts or by `STREAM_K`, takes longer than `best_us` for sure.

    The main loop is that of the cost, and what a root would be taken of is compared with the cube of the time that is
    left. So nearly all that are slower are known in a third of the time of a cost.
    """
    launch = launch_of(row, t)
    loop = _loop_of(p, row, c, launch, split, columns[_AT.lone_cycles, index])
    left_us = best_us / (launch.num * BOUND_SLACK) - loop.before_us
    room_us = left_us - loop.added_us
    cubes = loop.chip_us * loop.chip_us * loop.chip_us + loop.dram_us * loop.dram_us * loop.dram_us
    cubes += loop.other_us * loop.other_us * loop.other_us
    if room_us <= 0.0 or cubes > room_us * room_us * room_us:
        return True
    return loop.busy_us > 0.0 and _is_too_hot(p, loop.added_us + np.cbrt(cubes), loop.busy_us, loop.power, left_us)


@kernel
def _is_too_hot(p: Any, main_us: float, busy_us: float, power: float, left_us: float) -> bool:
    """Whether a main loop of `main_us` or more at the highest clock takes longer than `left_us` under load.

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
