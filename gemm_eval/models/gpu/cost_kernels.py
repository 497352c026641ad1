"""Numba kernels of the GPU cost model: the time of one kernel config, and why.

The terms are defined in MODEL.md. A kernel sees scalars, one record `p` of `params.GPU_PARAMS_DTYPE`, one record `row`
of `menu.MENU_DTYPE`, and NamedTuples of scalars. Times are in microseconds, sizes in bytes, `_cycles` at the highest SM
clock.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from gemm_eval._jit import kernel

__all__ = [
    "ALL_COLD",
    "BEST_RASTER",
    "BOUNDS",
    "COLD",
    "GPU_COST_DTYPE",
    "NO_RASTER",
    "RASTER_CODE",
    "ROW_BYTES",
    "SM_L2_BYTES_PER_CYCLE",
    "WARM",
    "ConfigCost",
    "ProblemTerms",
    "ceil_div",
    "config_cost",
    "fill_record",
    "loaded_time_us",
    "lower_bound_us",
    "problem_terms",
    "row_alignment",
    "write_record",
]

_INTS = (
    "family", "cta_m", "cta_n", "cta_k", "cluster_m", "cluster_n", "num_warps", "num_stages", "schedule",
    "decomposition", "split_k", "raster_order", "raster_swizzle",
    "ctas_per_sm", "active_sms", "num_ctas", "num_tiles", "num_waves", "smem_bytes", "registers",
    "dram_bytes", "dram_a_bytes", "dram_b_bytes", "dram_scale_bytes", "dram_c_bytes", "bound",
    "num_candidates", "num_bounded", "is_calibrated",
)  # fmt: skip
_FLOATS = (
    "latency_us", "compute_us", "launch_us", "prologue_us", "matrix_us", "dequant_us", "step_wait_us",
    "tile_overhead_us", "l2_us", "dram_us", "outside_us", "store_us", "reduction_us",
    "power_us", "choice_us", "hidden_us", "last_wave_frac",
    "tensor_busy_frac",
)  # fmt: skip

GPU_COST_DTYPE = np.dtype([(name, np.int64) for name in _INTS] + [(name, np.float64) for name in _FLOATS])
"""The cost of one kernel config. Bytes are chip totals, `smem_bytes` those of one SM; `bound` indexes `BOUNDS`."""

BOUNDS = ("compute", "dequant", "latency", "l2", "dram", "reduction", "launch", "store", "prologue", "fill")
"""What can limit a GEMM on a GPU; see `_bound_of`."""
_COMPUTE, _DEQUANT, _LATENCY, _L2, _DRAM, _REDUCTION, _LAUNCH, _STORE, _PROLOGUE, _FILL = range(len(BOUNDS))

COLD, WARM, ALL_COLD = range(3)
"""What L2 holds at the start, `l2_state` of a record: all but the weights, everything, nothing; as far as it can."""

_DATA_PARALLEL, _SPLIT_K, _STREAM_K = 0, 1, 2
_PINGPONG, _COOPERATIVE, _MULTISTAGE, _VECTOR = 0, 1, 2, 3
_BOUND_SLACK = 1.0 - 1e-9  # rounding may differ between the bound and the cost
BEST_RASTER = -1
NO_RASTER = -2  # as if L2 held all of A and B: no raster is better
RASTER_CODE = 100
RASTER_CODE_DEFAULT = 1  # along M, no swizzle
_MAX_SWIZZLE = 16
_MIN_STREAM_STEPS = 8  # of a CTA of stream-K: as of a part of a split K, where a library weighs it (`_FREE_SPLIT`)
_LINE_BYTES = 128.0
_BURST_US = 1e3  # of load that the burst clock is that of; timings replay short kernels for about as long
_CLOCK_FALL_US = 5e3  # time constant from there to the sustained clock: cuBLAS and our kernels on an H200, see MODEL.md
ROW_BYTES = 16
"""What rows have to start on for TMA, and for the widest loads of a thread (CUDA C++ Programming Guide, 16 bytes)."""
SM_L2_BYTES_PER_CYCLE = 64.0
"""What an SM can take in from L2 (NVIDIA, "Dissecting the Ampere GPU architecture", GTC 2021: 64 B/clk/SM)."""


class ProblemTerms(NamedTuple):
    """What a problem asks of the chip, whatever the config."""

    G: int
    M: int
    K: int
    N: int
    a_bytes: float
    b_bytes: float  # packed weights without scales
    scale_bytes: float
    c_bytes: float
    stay_frac: float  # share of a buffer, used by the call before, that L2 still holds
    a_read_bytes: float  # compulsory DRAM reads of A, B (with scales)
    b_read_bytes: float
    l2_hold_frac: float  # share of A and B of one GEMM of a batch that L2 can hold
    line_waste: float  # L2 requests per line that is needed
    load_frac: float  # rate of loads over that of 16-byte ones; below 1 rows do not start on 16 bytes


class ConfigCost(NamedTuple):
    """Times in us and counts of one config; see MODEL.md."""

    latency_us: float
    prologue_us: float
    matrix_us: float
    dequant_us: float
    step_wait_us: float
    tile_overhead_us: float
    l2_us: float
    dram_us: float
    outside_us: float
    store_us: float
    reduction_us: float
    power_us: float
    choice_us: float
    main_us: float
    tensor_busy_frac: float
    dram_read_bytes: float
    num_ctas: int
    num_tiles: int
    num_waves: int
    last_wave_ctas: int
    active_sms: int
    raster: int


@kernel
def ceil_div(a: int, b: int) -> int:
    """ceil(a / b), faster than by integers, and exact: a <= 2**40 and b < 2**12 leave room for rounding."""
    return int(np.ceil(a / b))


@kernel
def loaded_time_us(p: Any, main_us: float, matrix_us: float) -> float:
    """Time of a main loop of `main_us` at the highest clock, `matrix_us` of it on tensor cores, which pull it down.

    A kernel longer than the bursts that the burst clock was measured in has a power controller against it: the clock
    under load falls to the sustained one, exponentially. No kernel is faster than its tensor work alone at the clock
    under full load: else one that waits for memory, so that the clock yields less, could be done sooner.
    """
    clock = p["tensor_cycles_per_us"]
    if main_us > _BURST_US:
        floor = min(clock, p["sustained_cycles_per_us"])
        clock = floor + (clock - floor) * math.exp((_BURST_US - main_us) / _CLOCK_FALL_US)
    tensor_busy = min(1.0, matrix_us / main_us)
    slow = (p["cycles_per_us"] - clock) * tensor_busy * tensor_busy
    yielding_us = matrix_us * (slow / (p["cycles_per_us"] - slow))
    return float(max(main_us + yielding_us, matrix_us * (p["cycles_per_us"] / clock)))


@kernel
def _round_up(a: int, power_of_two: int) -> int:
    return (a + power_of_two - 1) & -power_of_two


@kernel
def _norm4(a: float, b: float, c: float, d: float) -> float:
    """The 4-norm: the largest of four times, and a little more where two are alike, because overlap is not perfect."""
    a2, b2, c2, d2 = a * a, b * b, c * c, d * d
    result: float = np.sqrt(np.sqrt(a2 * a2 + b2 * b2 + c2 * c2 + d2 * d2))
    return result


@kernel
def _alignment(row_bytes: float) -> float:
    """The largest power of two up to 16 that divides the bytes of a row; rows of half bytes count as 1."""
    for aligned in (16.0, 8.0, 4.0, 2.0):
        if row_bytes % aligned == 0.0:
            return aligned
    return 1.0


@kernel
def row_alignment(p: Any, K: int, N: int) -> float:
    """Bytes, at most 16, on which the rows of A, B (K long) and C (N long) all start.

    Of a single column, C is one row; not so in weight-only kernels, which have columns on the instruction's rows.
    """
    result: float = min(_alignment(K * p["a_elem_bytes"]), _alignment(K * p["b_elem_bytes"]))
    if N > 1 or p["b_elem_bytes"] < p["a_elem_bytes"]:
        result = min(result, _alignment(N * p["c_elem_bytes"]))
    return result


@kernel
def problem_terms(p: Any, G: int, M: int, K: int, N: int) -> ProblemTerms:
    """Bytes of a problem, and what of them L2 keeps."""
    a_bytes = G * M * (K * p["a_elem_bytes"])
    b_bytes = G * N * (K * p["b_elem_bytes"])
    scale_bytes = 0.0
    if p["scale_bytes_per_group"] > 0.0:
        groups = ceil_div(K, p["group_size"]) if p["group_size"] > 0 else 1
        scale_bytes = G * N * (groups * p["scale_bytes_per_group"])
    c_bytes = G * M * (N * p["c_elem_bytes"])
    footprint = (a_bytes + b_bytes + scale_bytes + c_bytes) / p["l2_hold_bytes"]
    f2 = footprint * footprint
    stay_frac = 0.0 if p["l2_state"] == ALL_COLD else 1.0 / (1.0 + f2 * f2)
    b_stay = stay_frac if p["l2_state"] == WARM else 0.0
    # the GEMMs of a batch follow each other: what is read again is of one of them
    l2_hold_frac = min(1.0, p["l2_hold_bytes"] * G / (a_bytes + b_bytes + scale_bytes))
    line_waste = 1.0
    row_bytes = K * p["b_elem_bytes"]
    if row_bytes % _LINE_BYTES != 0.0 and row_bytes > _LINE_BYTES:
        line_waste = 1.0 + p["c_line_waste"]
    aligned = row_alignment(p, K, N)
    load_frac = 1.0 if aligned >= ROW_BYTES else p["c_unaligned_frac"] * np.sqrt(aligned / ROW_BYTES)
    return ProblemTerms(
        G, M, K, N, a_bytes, b_bytes, scale_bytes, c_bytes, stay_frac, a_bytes * (1.0 - stay_frac),
        (b_bytes + scale_bytes) * (1.0 - b_stay), l2_hold_frac, line_waste, load_frac,
    )  # fmt: skip


@kernel
def _outside_us(
    p: Any, row: Any, t: ProblemTerms, tiles_m: int, tiles_n: int, padded_m: int, padded_n: int, all_steps: int
) -> float:
    """TMA fills rows of tiles that lie beyond the matrix slowly, whichever SM asks."""
    if row["schedule"] > _COOPERATIVE:
        return 0.0
    rows = (tiles_m * row["cta_m"] - t.M) * (padded_n / row["cluster_n"])
    rows += (tiles_n * row["cta_n"] - t.N) * (padded_m / row["cluster_m"])
    result: float = t.G * rows * all_steps / (p["c_outside_rows_per_cycle"] * p["cycles_per_us"])
    return result


@kernel
def lower_bound_us(p: Any, row: Any, t: ProblemTerms, split: int, is_even: bool) -> float:
    """A time that no raster of this row can beat, and below 1e-9 of it no rounding.

    It is the cost without waiting for loads, power and panels that are read again. All waves are
    taken as one: the 4-norm of sums is at most the sum of 4-norms. `is_even`: any split and stream-K are to be bounded,
    whose work is at best spread evenly.
    """
    cta_m, cta_n = row["cta_m"], row["cta_n"]
    padded_m = _round_up(ceil_div(t.M, cta_m), row["cluster_m"])
    padded_n = _round_up(ceil_div(t.N, cta_n), row["cluster_n"])
    all_steps = ceil_div(t.K, row["cta_k"])
    units = t.G * padded_m * padded_n
    if split > 1:
        units *= ceil_div(all_steps, ceil_div(all_steps, split))
    rounds = units / row["grid_cap"]
    schedule = row["schedule"]
    is_vector = schedule == _VECTOR
    l2_bytes = t.a_bytes * (padded_n / row["cluster_n"]) + (t.b_bytes + t.scale_bytes) * (padded_m / row["cluster_m"])
    l2_bytes *= t.line_waste
    matrix = row["matrix_cycles"] / (p["c_vector_frac"] if is_vector else p["c_matrix_frac"])
    busy = max(matrix, row["stage_bytes"] / p["smem_bytes_per_cycle"])
    written = t.c_bytes
    fixed_us = p["launch_us"] + (p["c_vector_kernel_us"] if is_vector else p["c_kernel_us"])
    fixed_us += p["load_latency_cycles"] / p["cycles_per_us"]
    if is_even:
        cycles = rounds * all_steps * busy
    else:
        steps = ceil_div(all_steps, split)
        ingest = l2_bytes / (units * steps) / (p["sm_l2_bytes_per_cycle"] * t.load_frac)
        busy = np.sqrt(busy * busy + ingest * ingest)
        if schedule == _PINGPONG:
            loss, tile_cycles = p["c_step_cycles"], p["c_tile_cycles"]
        elif schedule == _COOPERATIVE:
            loss, tile_cycles = p["c_coop_step_cycles"], p["c_coop_tile_cycles"]
        else:
            loss, tile_cycles = p["c_vector_step_cycles"] if is_vector else p["c_step_cycles"], p["c_tile_cycles"]
        rounds = np.ceil(rounds)
        if schedule == _PINGPONG and rounds > 1.0:
            cycles = rounds * steps * max(busy, 0.5 * (matrix + loss))
        else:
            cycles = rounds * (steps * max(busy, matrix + loss) + tile_cycles)
        if split > 1:
            partial = t.G * t.M * (t.N * 4.0) * split
            written = partial
            fixed_us += p["c_reduce_us"] + (partial + t.c_bytes) / (p["l2_bytes_per_us"] * p["c_reduce_frac"])
    dram_us = (
        (t.a_read_bytes + t.b_read_bytes + t.c_bytes * (1.0 - t.stay_frac))
        * t.line_waste
        / (p["dram_bytes_per_us"] * (1.0 - p["c_cluster_loss"] * row["cluster_log2"]))
    )
    outside_us = _outside_us(p, row, t, ceil_div(t.M, cta_m), ceil_div(t.N, cta_n), padded_m, padded_n, all_steps)
    main_us = _norm4(cycles / p["cycles_per_us"], dram_us, l2_bytes / p["l2_bytes_per_us"], outside_us)
    main_us += (
        p["c_store_exposed_frac"]
        * written
        * ((1.0 - t.stay_frac) / p["dram_write_bytes_per_us"] + t.stay_frac / p["l2_bytes_per_us"])
    )
    return (fixed_us + main_us) * (1.0 + p["c_choice_loss"]) * _BOUND_SLACK


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
    best, best_raster = np.inf, RASTER_CODE_DEFAULT
    for order in range(2):
        across, along = (tiles_n, tiles_m) if order == 0 else (tiles_m, tiles_n)
        swizzle = 1
        while swizzle <= _MAX_SWIZZLE and (swizzle == 1 or swizzle < 2 * across or raster >= 0):
            code = order * RASTER_CODE + swizzle
            if raster < 0 or raster == code:
                width = min(swizzle, across)
                run = in_flight / width
                if run > along:  # the wave goes on in the next band
                    width = min(across, width * ceil_div(int(run), along))
                    run = float(along)
                m_tiles, n_tiles = (run, float(width)) if order == 0 else (float(width), run)
                total = waves * (m_tiles * a_panel + n_tiles * b_panel)
                if total < best:
                    best, best_raster = total, code
            swizzle *= 2
    return best * G, best_raster


@kernel
def config_cost(p: Any, row: Any, t: ProblemTerms, split: int, is_stream: bool, raster: int) -> ConfigCost:
    """The time of one config: MODEL.md, "Time".

    `split` CTAs share a tile of C; `is_stream` spreads k-steps evenly; `raster` as in `_wave_panels`.
    """
    cta_m, cta_n = row["cta_m"], row["cta_n"]
    tiles_m, tiles_n = ceil_div(t.M, cta_m), ceil_div(t.N, cta_n)
    padded_m = _round_up(tiles_m, row["cluster_m"])
    padded_n = _round_up(tiles_n, row["cluster_n"])
    tiles = t.G * padded_m * padded_n
    all_steps = ceil_div(t.K, row["cta_k"])
    cap = row["grid_cap"]
    if is_stream:
        # one CTA an SM, more only cut more tiles; as long as each has some steps to do
        units = min(row["sm_cap"], max(1, tiles * all_steps // _MIN_STREAM_STEPS))
        step_count = tiles * all_steps / units
    else:
        part_steps = ceil_div(all_steps, split)
        units = tiles * ceil_div(all_steps, part_steps)  # parts without a step do nothing
        step_count = float(part_steps)
    ctas = min(units, cap)
    rounds = units // ctas
    rest = units - rounds * ctas
    num_sms = p["num_sms"]
    schedule = row["schedule"]
    sms = min(ctas, row["sm_cap"])
    resident = ceil_div(ctas, sms)  # CTAs of one SM at a time
    cycles_per_us = p["cycles_per_us"]

    # traffic; a panel that a cluster shares is read from L2 once
    a_l2 = t.a_bytes * (padded_n / row["cluster_n"])
    b_l2 = (t.b_bytes + t.scale_bytes) * (padded_m / row["cluster_m"])
    l2_bytes = (a_l2 + b_l2) * t.line_waste
    compulsory = t.a_read_bytes + t.b_read_bytes
    read_bytes = compulsory
    if raster != NO_RASTER and t.l2_hold_frac < 1.0 and tiles_m > 1 and tiles_n > 1:
        a_panel, b_panel = t.a_bytes / (t.G * tiles_m), t.b_bytes / (t.G * tiles_n)
        waves_bytes, raster = _wave_panels(t.G, tiles_m, tiles_n, ctas, a_panel, b_panel, raster)
        if waves_bytes > compulsory:
            read_bytes += (1.0 - t.l2_hold_frac) * (waves_bytes - compulsory)

    outside_us = _outside_us(p, row, t, tiles_m, tiles_n, padded_m, padded_n, all_steps)

    # one k-step of one CTA, in cycles of its SM
    is_vector = schedule == _VECTOR
    matrix = row["matrix_cycles"] / (p["c_vector_frac"] if is_vector else p["c_matrix_frac"])
    dequant = row["dequant_cycles"] * (p["c_vector_dequant"] if is_vector else p["c_dequant"])
    step_loss = p["c_vector_step_cycles"] if is_vector else p["c_step_cycles"]
    work = max(matrix, dequant) + p["c_dequant_exposed"] * min(matrix, dequant)
    fill = max(work, row["stage_bytes"] / p["smem_bytes_per_cycle"])
    # of a full tile, as the slowest CTA decides
    a_row, b_row = t.a_bytes / (t.G * t.M), (t.b_bytes + t.scale_bytes) / (t.G * t.N)
    tile_bytes = min(cta_m, t.M) * a_row / row["cluster_n"] + min(cta_n, t.N) * b_row / row["cluster_m"]
    ingest = tile_bytes * t.line_waste / all_steps / (p["sm_l2_bytes_per_cycle"] * t.load_frac)
    busy = np.sqrt(fill * fill + ingest * ingest)
    round_trip = (fill + ingest + p["load_latency_cycles"]) / (row["num_stages"] - 1.0)
    epilogue = cta_m * min(cta_n, t.N) * row["store_elem_bytes"] / p["c_epilogue_bytes_per_cycle"]
    if schedule == _PINGPONG:
        lone = step_count * max(busy, round_trip, work + step_loss) + p["c_tile_cycles"] + epilogue
        shared = max(step_count * max(busy, round_trip, 0.5 * (work + step_loss)) + p["c_pingpong_cycles"], 0.5 * lone)
        first = rounds * shared if rest > 0 else (rounds - 1) * shared + lone
        last = lone
    elif schedule == _COOPERATIVE:
        step = max(busy, round_trip, work + p["c_coop_step_cycles"])
        lone = step_count * step + p["c_coop_tile_cycles"] + epilogue
        first = rounds * lone
        last = lone
    else:
        step = max(resident * busy, round_trip, work + step_loss)
        lone = step_count * step + (p["c_tile_cycles"] + epilogue * resident)
        first = rounds * lone
        last_resident = ceil_div(rest, num_sms)
        step = max(last_resident * busy, round_trip, work + step_loss)
        last = step_count * step + p["c_tile_cycles"] + epilogue * last_resident

    # the waves: full ones, then what is left, each as long as its slowest resource
    unit_dram = (read_bytes + t.c_bytes * (1.0 - t.stay_frac)) / units
    unit_l2 = l2_bytes / units
    dram_rate = p["dram_bytes_per_us"] * (1.0 - p["c_cluster_loss"] * row["cluster_log2"]) / t.line_waste
    first_us = first / cycles_per_us
    first_dram = rounds * ctas * unit_dram / dram_rate
    first_l2 = rounds * ctas * unit_l2 / p["l2_bytes_per_us"]
    first_outside = outside_us * (rounds * ctas / units)
    main = _norm4(first_us, first_dram, first_l2, first_outside)
    dram_us, l2_us, chip_us = first_dram, first_l2, first_us
    if rest > 0:
        last_us = last / cycles_per_us
        last_dram = rest * unit_dram / dram_rate
        last_l2 = rest * unit_l2 / p["l2_bytes_per_us"]
        main += _norm4(last_us, last_dram, last_l2, outside_us * (rest / units))
        dram_us += last_dram
        l2_us += last_l2
        chip_us += last_us

    # storing C, the part that nothing hides
    written = t.c_bytes
    reduction_us = 0.0
    if split > 1 and not is_stream:
        partial = t.G * t.M * (t.N * 4.0) * split
        written = partial
        reduction_us = p["c_reduce_us"] + (partial + t.c_bytes) / (p["l2_bytes_per_us"] * p["c_reduce_frac"])
    elif is_stream:
        cut = ctas * (cta_m * cta_n * 4.0)
        reduction_us = p["c_fixup_us"] + 2.0 * cut / (p["l2_bytes_per_us"] * p["c_reduce_frac"])
    store_us = (
        p["c_store_exposed_frac"]
        * written
        * ((1.0 - t.stay_frac) / p["dram_write_bytes_per_us"] + t.stay_frac / p["l2_bytes_per_us"])
    )
    main += store_us

    # the tensor cores' load pulls the clock down
    total_matrix = 0.0 if is_vector else units * step_count * row["matrix_cycles"] / num_sms / cycles_per_us
    tensor_busy = min(1.0, total_matrix / main)
    loaded = loaded_time_us(p, main, total_matrix)
    prologue_us = (p["c_vector_kernel_us"] if is_vector else p["c_kernel_us"]) + p[
        "load_latency_cycles"
    ] / cycles_per_us
    prologue_us += p["c_ramp_us"] * (sms / num_sms)
    latency = p["launch_us"] + prologue_us + loaded + reduction_us
    choice_us = latency * p["c_choice_loss"]
    latency += choice_us
    matrix_us = (
        (rounds * (1 if rounds > 1 or schedule != _MULTISTAGE else resident) + (1 if rest > 0 else 0))
        * (step_count * row["matrix_cycles"])
        / cycles_per_us
    )
    matrix_us = min(matrix_us, chip_us)
    dequant_us = min(chip_us - matrix_us, max(0.0, (work - matrix) / max(work, 1e-9)) * chip_us)
    overhead_us = (rounds + (1 if rest > 0 else 0)) * epilogue / cycles_per_us
    overhead_us = min(chip_us - matrix_us - dequant_us, overhead_us)
    return ConfigCost(
        latency, prologue_us, matrix_us, dequant_us, chip_us - matrix_us - dequant_us - overhead_us, overhead_us,
        l2_us, dram_us, outside_us, store_us, reduction_us, loaded - main, choice_us, main, tensor_busy, read_bytes,
        ctas, tiles, rounds + (1 if rest > 0 else 0), rest if rest > 0 else ctas, sms,
        raster if raster >= 0 else RASTER_CODE_DEFAULT,
    )  # fmt: skip


@kernel
def _bound_of(p: Any, c: ConfigCost) -> int:
    """The longest of launch, prologue, reduction, stores and the resources of the main loop.

    The time of the SMs counts as one; where it is the longest, its largest part gives the name.
    """
    chip = c.matrix_us + c.dequant_us + c.step_wait_us + c.tile_overhead_us
    bound, longest = _DRAM, c.dram_us
    if c.l2_us > longest:
        bound, longest = _L2, c.l2_us
    if chip > longest:
        bound, longest = _LATENCY, chip
        if c.dequant_us > max(c.matrix_us, c.step_wait_us):
            bound = _DEQUANT
        elif c.matrix_us >= 0.5 * chip:
            bound = _COMPUTE
    if c.outside_us > longest:
        bound, longest = _FILL, c.outside_us
    if c.store_us > longest:
        bound, longest = _STORE, c.store_us
    if c.reduction_us > longest:
        bound, longest = _REDUCTION, c.reduction_us
    if c.prologue_us > longest:
        bound, longest = _PROLOGUE, c.prologue_us
    return _LAUNCH if p["launch_us"] > longest else bound


@kernel
def fill_record(p: Any, row: Any, t: ProblemTerms, split: int, is_stream: bool, raster: int, out: Any) -> None:
    """Write the cost of one config to a record of `GPU_COST_DTYPE`; the counts of a search stay as they are."""
    write_record(p, row, t, split, is_stream, config_cost(p, row, t, split, is_stream, raster), out)


@kernel
def write_record(p: Any, row: Any, t: ProblemTerms, split: int, is_stream: bool, c: ConfigCost, out: Any) -> None:
    """As `fill_record`, of a cost that is known."""
    out["family"] = row["family"]
    out["cta_m"] = row["cta_m"]
    out["cta_n"] = row["cta_n"]
    out["cta_k"] = row["cta_k"]
    out["cluster_m"] = row["cluster_m"]
    out["cluster_n"] = row["cluster_n"]
    out["num_warps"] = row["num_warps"]
    out["num_stages"] = row["num_stages"]
    out["schedule"] = row["schedule"]
    out["decomposition"] = _STREAM_K if is_stream else (_SPLIT_K if split > 1 else _DATA_PARALLEL)
    out["split_k"] = split
    out["raster_order"] = c.raster // RASTER_CODE
    out["raster_swizzle"] = c.raster % RASTER_CODE
    out["ctas_per_sm"] = row["ctas_per_sm"]
    out["active_sms"] = c.active_sms
    out["num_ctas"] = c.num_ctas
    out["num_tiles"] = c.num_tiles
    out["num_waves"] = c.num_waves
    out["smem_bytes"] = row["smem_bytes"] * min(row["ctas_per_sm"], ceil_div(c.num_ctas, c.active_sms))
    out["registers"] = row["registers"]
    extra = c.dram_read_bytes - t.a_read_bytes - t.b_read_bytes
    both = max(1.0, t.a_bytes + t.b_bytes + t.scale_bytes)
    scale_share = t.scale_bytes / max(1.0, t.b_bytes + t.scale_bytes)
    b_read = t.b_read_bytes + extra * (t.b_bytes + t.scale_bytes) / both
    a = int(t.a_read_bytes + extra * t.a_bytes / both + 0.5)
    scale = int(b_read * scale_share + 0.5)
    b = int(b_read + 0.5) - scale
    stored = int(t.c_bytes * (1.0 - t.stay_frac) + 0.5)
    out["dram_a_bytes"] = a
    out["dram_b_bytes"] = b
    out["dram_scale_bytes"] = scale
    out["dram_c_bytes"] = stored
    out["dram_bytes"] = a + b + scale + stored
    out["bound"] = _bound_of(p, c)
    out["is_calibrated"] = p["is_calibrated"]
    out["latency_us"] = c.latency_us
    out["compute_us"] = c.matrix_us + c.dequant_us
    out["launch_us"] = p["launch_us"]
    out["prologue_us"] = c.prologue_us
    out["matrix_us"] = c.matrix_us
    out["dequant_us"] = c.dequant_us
    out["step_wait_us"] = c.step_wait_us
    out["tile_overhead_us"] = c.tile_overhead_us
    out["l2_us"] = c.l2_us
    out["dram_us"] = c.dram_us
    out["outside_us"] = c.outside_us
    out["store_us"] = c.store_us
    out["reduction_us"] = c.reduction_us
    out["power_us"] = c.power_us
    out["choice_us"] = c.choice_us
    shown = (
        p["launch_us"] + c.prologue_us + c.matrix_us + c.dequant_us + c.step_wait_us + c.tile_overhead_us
        + c.l2_us + c.dram_us + c.outside_us + c.store_us + c.reduction_us + c.power_us + c.choice_us
    )  # fmt: skip
    out["hidden_us"] = min(0.0, c.latency_us - shown)
    out["last_wave_frac"] = c.last_wave_ctas / row["grid_cap"]
    out["tensor_busy_frac"] = c.tensor_busy_frac
