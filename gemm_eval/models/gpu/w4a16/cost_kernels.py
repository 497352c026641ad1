"""Time of a config of our W4A16 kernels, and its lower bound. See MODEL.md."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gemm_eval.jit import inlined_kernel, kernel, vector_kernel
from gemm_eval.models.gpu.cost_kernels import (
    BEST_RASTER,
    BOUND_SLACK,
    WARM,
    ConfigCost,
    CostRules,
    ProblemTerms,
    ceil_div,
)
from gemm_eval.models.gpu.terms import Times
from gemm_eval.models.gpu.w4a16.family_kernels import MULTISTAGE_FAMILIES, WGMMA_FAMILIES
from gemm_eval.models.gpu.w4a16.loop_kernels import sm80_cost, sm80_loop, sm90_cost, sm90_loop
from gemm_eval.models.gpu.w4a16.shared_kernels import (
    BLOCK,
    GROUPS_US,
    HOLD_FRAC,
    Launch,
    launch_of,
    list_splits,
    streaming_cost,
    streaming_loop,
)

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


@vector_kernel
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
    padded_k, padded_n = ceil_div(K, 128) * 128, ceil_div(N, BLOCK) * BLOCK
    a_bytes = rows * (K * p["a_elem_bytes"])
    b_bytes = num_active * padded_n * (padded_k * p["b_elem_bytes"])
    groups = padded_k / p["group_size"] if p["group_size"] > 0 else 1.0
    scale_bytes = num_active * padded_n * (groups * p["scale_bytes_per_group"])
    c_bytes = rows * (N * p["c_elem_bytes"])
    stay_frac = 0.0
    if p["l2_state"] == WARM:
        footprint = (a_bytes + b_bytes + scale_bytes + c_bytes) / (p["l2_bytes"] * HOLD_FRAC)
        f2 = footprint * footprint
        stay_frac = 1.0 / (1.0 + f2 * f2)
    is_off_lines = 1.0 if K % _LINE_ELEMS != 0 else 0.0
    return ProblemTerms(
        num_groups, group_rows[0], K, N, a_bytes, b_bytes, scale_bytes, c_bytes, stay_frac, a_bytes * (1.0 - stay_frac),
        (b_bytes + scale_bytes) * (1.0 - stay_frac), 1.0, is_off_lines, 1.0, 0.0, 0.0,
        rows, group_rows, group_counts, is_grouped,
    )  # fmt: skip


@kernel
def _launched(cost: ConfigCost, num: int) -> ConfigCost:
    """A kernel that is launched so many times."""
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
    """The time of one kernel of ours, which has its raster, with K cut into `split` parts: see MODEL.md.

    A batch by a kernel of one GEMM is as many launches.
    """
    launch = launch_of(row, t)
    cost = _cost_of_launch(p, row, c, launch, split)
    return _launched(cost, launch.num) if launch.num > 1 else cost


@kernel
def _cost_of_launch(p: Any, row: Any, c: Any, t: Launch, split: int) -> ConfigCost:
    if row["family"] in WGMMA_FAMILIES:
        return sm90_cost(p, row, c, t, split)
    if row["family"] in MULTISTAGE_FAMILIES:
        return sm80_cost(p, row, c, t, split)
    return streaming_cost(p, row, c, t, split)


@kernel
def _latency_below_us(p: Any, row: Any, c: Any, t: ProblemTerms, split: int, best_us: float) -> float:  # noqa: ARG001
    return w4a16_cost(p, row, c, t, split, BEST_RASTER).latency_us


@kernel
def _bounds_of(p: Any, c: Any, t: ProblemTerms, columns: Any, first: int, bounds: Any) -> None:  # noqa: ARG001
    row_bounds_us(p, t, columns, first, bounds)


W4A16 = CostRules(w4a16_terms, list_splits, _bounds_of, is_beaten, _latency_below_us, w4a16_cost)
"""What a search needs of our kernels."""
