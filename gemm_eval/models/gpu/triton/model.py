"""Times of Triton GEMM kernels: coefficients, their calibration, the cost of configs, and learned corrections."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gemm_eval.arch import THREADS_PER_WARP, GpuSpec, check_nvidia, ctas_per_sm, data_root
from gemm_eval.dtypes import DType
from gemm_eval.errors import UnsupportedError
from gemm_eval.models.gpu.calibration import Origin, SingleCalibration, transferred
from gemm_eval.models.gpu.coefficients import FREE, NO_LIMIT, SPEC, Coefficient
from gemm_eval.models.gpu.families import FAMILIES
from gemm_eval.models.gpu.learned import Features, answers_for
from gemm_eval.models.gpu.triton.code import KernelCode, MmaCount, TritonConfig, check_types
from gemm_eval.units import bytes_per_us, cycles_per_us
from gemm_eval.workload import GemmProblem, GemmTypes

TRITON_COEFFICIENTS: tuple[Coefficient, ...] = (
    Coefficient("kernel_us", "us", 1.0, 8.0, 4.1, FREE, "start and end of a kernel, between events"),
    Coefficient(
        "tile_cycles", "cycles", 0.0, 6000.0, 2500.0, FREE, "a CTA besides its main loop: addresses, first loads",
    ),
    Coefficient("wgmma_frac", "1", 0.5, 1.0, 0.76, SPEC, "share of the rate that wgmma of a loop reaches"),
    Coefficient(
        "issue_frac", "1", 0.3, 1.0, 0.7, SPEC, "share of the issue slots that a loop uses when it issues all it can",
    ),
    Coefficient("step_cycles", "cycles", 0.0, 800.0, 65.0, FREE, "barriers and waits of a k-step, of a lone CTA"),
    Coefficient(
        "instruction_cycles", "cycles", 0.0, 6.0, 2.7, FREE, "what an instruction takes of a lone warp's time",
    ),
    Coefficient("shared_cycles", "cycles", 0.0, 8.0, 1.2, FREE, "of the SM, for a warp's access to shared memory"),
    Coefficient("spill_cycles", "cycles", 0.0, 20.0, 4.7, FREE, "of the SM, for a warp's access to local memory"),
    Coefficient("barrier_cycles", "cycles", 0.0, 200.0, 41.0, FREE, "a barrier beyond the two of a pipelined loop"),
    Coefficient("mma_wait_cycles", "cycles", 0.0, 600.0, 136.0, FREE, "a wait until all wgmma before are done"),
    Coefficient(
        "latency_frac", "1", 0.5, 4.0, 1.76, SPEC, "latency of a load under traffic over that of an idle DRAM",
    ),
    Coefficient(
        "evict_frac", "1", 0.0, 2.0, 0.92, FREE, "dirty bytes that a read line drives out of L2, of what was written",
    ),
    Coefficient(
        "part_bytes_per_cycle", "B/cycle", 2.0, 256.0, 7.2, NO_LIMIT, "fp32 partial sums of an SM on their way to L2",
    ),
    Coefficient(
        "add_bytes_per_cycle", "B/cycle", 4.0, 256.0, 47.0, NO_LIMIT, "fp32 partial sums that an SM reads back",
    ),
    Coefficient("add_cycles", "cycles", 0.0, 3000.0, 320.0, FREE, "a part that is added, besides its bytes"),
)  # fmt: skip
"""All coefficients, in the order in which they are fitted and written."""


Array = npt.NDArray[np.float64]

_L2_FRAC = 1.4  # of the L2 bandwidth, as wgmma kernels of cuBLAS reach it (families/wgmma.py: l2_frac)
_THROUGHPUT_NORM = 3.0  # units of an SM overlap, but not perfectly
_LATENCY_NORM = 2.0  # the same for what a CTA waits for: other CTAs fill some of it
_CHIP_NORM = 3.0
_LOOP_BARRIERS = 2.0
_STAGES_NOT_IN_FLIGHT = 1.3  # one is computed on; the next one's loads start only within a step
_LEAST_IN_FLIGHT = 0.7
_DIRTY_L2_FRAC = 0.8  # of L2, that the lines of a flush are dirty in
_WGMMA_M = 64
_WARPS_PER_WGMMA = 4
_ACCUMULATOR_BYTES = 4.0
_RATES = {4: (DType.INT4,), 8: (DType.FP8, DType.INT8), 16: (DType.FP16,), 32: (DType.TF32,)}


class Launches(NamedTuple):
    """Launches of kernels, one array for each attribute."""

    G: Array
    M: Array
    K: Array
    N: Array
    a_elem_bytes: Array  # of an element in memory, scales and zeros included
    b_elem_bytes: Array
    c_elem_bytes: Array
    block_m: Array
    block_n: Array
    block_k: Array
    group_m: Array
    split_k: Array
    num_warps: Array
    num_stages: Array
    ctas_per_sm: Array  # that registers, shared memory and warps leave room for; 0: none can be launched
    wgmma_cycles: Array  # of an SM's tensor cores for one k-step of a CTA
    mma_sync_cycles: Array
    issue: Array  # from here on of the main loop of a warp, as in `MainLoop`
    shared_wavefronts: Array
    spill: Array
    barrier: Array
    mma_wait: Array


class LaunchTimes(NamedTuple):
    """The time of launches, in us, by what takes it."""

    latency_us: Array  # from the start of a kernel to its end; infinite where it cannot be launched
    kernel_us: Array  # start and end of the kernel
    sm_us: Array  # the SMs' own time: all waves, as if memory were as fast as they ask
    l2_us: Array  # at their bandwidths
    dram_us: Array
    reduction_us: Array  # adding the parts of a split K
    step_cycles: Array  # a k-step of a full SM, and what it would be if only one thing limited it:
    tensor_cycles: Array
    issue_cycles: Array
    shared_cycles: Array
    chain_cycles: Array  # instructions that wait for each other
    round_trip_cycles: Array  # loads under way


def tensor_cycles(arch: GpuSpec, mma: Sequence[MmaCount], num_warps: int) -> tuple[float, float]:
    """Return the cycles of an SM's tensor cores for the instructions of a CTA: (of wgmma, of mma.sync).

    wgmma takes the longest of its FLOP at the peak, of the least time of an instruction, and of reading its operands
    from shared memory.
    """
    wgmma = mma_sync = 0.0
    sync_frac = FAMILIES["sm80_mma"].rate_on(arch.sm_arch)
    for one in mma:
        rates = [arch.tensor_flop_per_cycle.get(dtype) for dtype in _RATES[one.input_bits]]
        rate = next((rate for rate in rates if rate), None)
        if rate is None:
            return float("inf"), float("inf")
        cycles = 2.0 * one.m * one.n * one.k / rate
        if one.m == _WGMMA_M:
            rows = one.n if one.has_a_in_registers else one.n + one.m
            read = rows * one.k * one.input_bits / 8 / arch.smem_bytes_per_cycle
            wgmma += max(cycles, arch.mma_floor_cycles, read) * one.num * num_warps / _WARPS_PER_WGMMA
        else:
            mma_sync += cycles / sync_frac * one.num * num_warps
    return wgmma, mma_sync


def pack_launches(
    arch: GpuSpec, problem: GemmProblem, configs: Sequence[TritonConfig], codes: Sequence[KernelCode]
) -> Launches:
    """Return the launches of one GEMM, [len(configs)].

    Raises:
        UnsupportedError: as `check_types`.
    """
    check_types(problem.types)
    assert problem.weight_dtype is not None
    assert problem.output_dtype is not None
    b_bits = float(problem.weight_dtype.bits)
    if problem.scale_dtype is not None:
        bits = problem.scale_dtype.bits + (problem.zero_dtype.bits if problem.zero_dtype else 0)
        b_bits += bits / (problem.group_size or problem.K)
    sizes = [*problem.sizes, problem.input_dtype.bits / 8, b_bits / 8, problem.output_dtype.bits / 8]
    rows = []
    for config, code in zip(configs, codes, strict=True):
        loop = code.loop
        steps = loop.k / config.block_k  # of an iteration: more than one if the compiler unrolled the loop
        wgmma, mma_sync = tensor_cycles(arch, loop.mma, code.num_warps)
        resident = ctas_per_sm(arch, THREADS_PER_WARP * code.num_warps, code.registers, code.smem_bytes)
        if math.isinf(wgmma):  # the GPU has no such instruction
            wgmma = mma_sync = 0.0
        if math.isinf(wgmma) or code.registers > arch.max_registers_per_thread:
            resident = 0
        per_step = [wgmma, mma_sync, loop.issue, loop.shared_wavefronts, loop.spill, loop.barrier, loop.mma_wait]
        rows.append(
            [
                *sizes, config.block_m, config.block_n, config.block_k, config.group_m, config.split_k, code.num_warps,
                config.num_stages, resident, *(count / steps for count in per_step),
            ]
        )  # fmt: skip
    table = np.array(rows, np.float64).reshape(len(rows), len(Launches._fields))
    return Launches(*table.T)


def stack_launches(parts: Sequence[Launches]) -> Launches:
    """Return all launches of several as one."""
    return Launches(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def launch_times(arch: GpuSpec, launches: Launches, coefficients: Mapping[str, float]) -> LaunchTimes:
    """Return the time of each launch, with operands that are not in L2: MODEL.md, "Time"."""
    c, x = coefficients, launches
    cycles_us = cycles_per_us(arch.max_clock_ghz)
    can_launch = x.ctas_per_sm > 0
    resident = np.maximum(x.ctas_per_sm, 1.0)
    tiles_m, tiles_n = np.ceil(x.M / x.block_m), np.ceil(x.N / x.block_n)
    tiles = x.G * tiles_m * tiles_n
    all_steps = np.ceil(x.K / x.block_k)
    steps = np.ceil(all_steps / x.split_k)
    used_parts = np.ceil(all_steps / steps) / x.split_k  # the others have no step
    is_split = x.split_k > 1
    units = tiles * x.split_k
    capacity = arch.num_sms * resident
    rounds = np.floor(units / capacity)
    rest = units - rounds * capacity

    # one k-step of one CTA, in cycles of its SM
    rows_m, rows_n = x.M / tiles_m, x.N / tiles_n  # rows outside the matrix are not read
    step_bytes = x.block_k * (rows_m * x.a_elem_bytes + rows_n * x.b_elem_bytes)
    tensor = x.wgmma_cycles / c["wgmma_frac"] + x.mma_sync_cycles
    issue = x.issue * x.num_warps / arch.issue_slots_per_cycle / c["issue_frac"]
    spill = x.spill * x.num_warps * c["spill_cycles"]
    shared = x.shared_wavefronts * x.num_warps * c["shared_cycles"] + spill
    is_waited_for = (x.mma_wait > 0) | (x.mma_sync_cycles > 0)
    chain = (
        c["step_cycles"] + c["instruction_cycles"] * x.issue + spill + np.where(is_waited_for, tensor, 0.0)
        + x.mma_wait * c["mma_wait_cycles"] + np.maximum(0.0, x.barrier - _LOOP_BARRIERS) * c["barrier_cycles"]
    )  # fmt: skip
    latency = arch.dram_latency_ns * cycles_us / 1e3 * c["latency_frac"]
    round_trip = latency / np.maximum(x.num_stages - _STAGES_NOT_IN_FLIGHT, _LEAST_IN_FLIGHT)

    def step_of(ctas: Array) -> Array:  # a k-step of an SM with so many CTAs
        busy = _norm(_THROUGHPUT_NORM, ctas * tensor, ctas * issue, ctas * shared)
        return _norm(_LATENCY_NORM, busy, chain, round_trip)

    def tile_of(ctas: Array) -> Array:  # what a CTA does besides its main loop
        elems = np.minimum(x.block_m, x.M) * np.minimum(x.block_n, x.N)
        part = elems * _ACCUMULATOR_BYTES / c["part_bytes_per_cycle"] * ctas
        return c["tile_cycles"] + np.where(is_split, part, 0.0)

    last = np.ceil(rest / arch.num_sms)
    full_us = rounds * (steps * step_of(resident) + tile_of(resident)) / cycles_us
    last_us = np.where(rest > 0, steps * step_of(last) + tile_of(last), 0.0) / cycles_us

    # the chip
    l2_bytes = units * used_parts * steps * step_bytes
    written = x.G * x.M * x.N * np.where(is_split, _ACCUMULATOR_BYTES * x.split_k, x.c_elem_bytes)
    l2_us = (l2_bytes + written) / (bytes_per_us(arch.l2_gb_per_s) * _L2_FRAC)
    read = _dram_read_bytes(arch, x, tiles_m, tiles_n, np.minimum(units, capacity) / x.split_k)
    evicted = c["evict_frac"] * np.minimum(read, _DIRTY_L2_FRAC * arch.l2_bytes)
    dram_us = (read + evicted) / bytes_per_us(arch.dram_achievable_gb_per_s)
    share = rounds * capacity / units
    main_us = _norm(_CHIP_NORM, full_us, dram_us * share, l2_us * share)
    main_us += np.where(rest > 0, _norm(_CHIP_NORM, last_us, dram_us * (1.0 - share), l2_us * (1.0 - share)), 0.0)

    elems = x.block_m * x.block_n * _ACCUMULATOR_BYTES
    adding = x.split_k * (elems / c["add_bytes_per_cycle"] + c["add_cycles"])
    reduction_us = np.where(is_split, adding, 0.0) / cycles_us
    kernel_us = np.full_like(main_us, c["kernel_us"])
    return LaunchTimes(
        np.where(can_launch, kernel_us + main_us + reduction_us, np.inf), kernel_us, full_us + last_us, l2_us, dram_us,
        reduction_us, step_of(resident), resident * tensor, resident * issue, resident * shared, chain, round_trip,
    )  # fmt: skip


def _norm(power: float, *times: Array) -> Array:
    """Return a little more than the longest: the more, the more are alike."""
    return np.sum([time**power for time in times], axis=0) ** (1.0 / power)


def _dram_read_bytes(arch: GpuSpec, x: Launches, tiles_m: Array, tiles_n: Array, in_flight: Array) -> Array:
    """Bytes of A and B that come from DRAM: once each, and again what waves need after L2 has dropped it.

    A wave of tiles is a block of bands of `group_m` rows; each row panel of A and column panel of B of it is read once.
    """
    a_bytes, b_bytes = x.M * x.K * x.a_elem_bytes, x.N * x.K * x.b_elem_bytes
    once = a_bytes + b_bytes
    tiles = tiles_m * tiles_n
    wave = np.minimum(in_flight, tiles)
    band = np.minimum(x.group_m, tiles_m)
    run = wave / band
    rows = np.where(run > tiles_n, np.minimum(tiles_m, band * np.ceil(run / tiles_n)), band)
    columns = np.minimum(run, tiles_n)
    again = np.maximum(1.0, tiles / wave) * (rows * a_bytes / tiles_m + columns * b_bytes / tiles_n)
    held = np.minimum(1.0, arch.l2_bytes / once)
    return x.G * (once + (1.0 - held) * np.maximum(0.0, again - once))


class TritonCalibration(SingleCalibration):
    """Coefficients of Triton kernels, as `gemm-eval calibrate triton` writes them."""

    command: ClassVar[str] = "gemm-eval calibrate triton"
    known: ClassVar[Sequence[Coefficient]] = TRITON_COEFFICIENTS
    triton_version: str = Field(description="of the compiler whose kernels were timed")

    @property
    def stem(self) -> str:
        """Name of the file, without its suffix."""
        return "triton"


def triton_calibration_path(gpu: str) -> Path:
    """Return where the calibration of Triton kernels on a GPU lies, if there is one."""
    return data_root() / "calibration" / gpu / "triton.yaml"


def triton_coefficients(arch: GpuSpec) -> tuple[dict[str, float], Origin]:
    """Return the coefficients of Triton kernels on a GPU, and where they come from; see `transferred`."""
    return transferred(TritonCalibration, arch, "triton.yaml")


def triton_costs(
    arch: GpuSpec, problem: GemmProblem, configs: Sequence[TritonConfig], codes: Sequence[KernelCode],
    coefficients: Mapping[str, float] | None = None,
) -> LaunchTimes:  # fmt: skip
    """Return where the time of each config goes, all arrays [len(configs)]; operands are not in L2.

    Args:
        codes: of each config: compiled (`gemm_eval.autotune.asm`), or `estimate_code`.
        coefficients: None: those of `triton_coefficients`.

    Raises:
        UnsupportedError: Triton's tensor-core instructions of this GPU, or kernels of these types, are not in the
            model.
    """
    if coefficients is None:
        coefficients = triton_coefficients(arch)[0]
    return launch_times(arch, checked_launches(arch, problem, configs, codes), coefficients)


def checked_launches(
    arch: GpuSpec, problem: GemmProblem, configs: Sequence[TritonConfig], codes: Sequence[KernelCode]
) -> Launches:
    """Return the launches of one GEMM on a GPU that is in the model; raises as `triton_costs`."""
    check_nvidia(arch, "Triton's kernels")
    if arch.mma_accumulators_in != "registers":
        raise UnsupportedError(f"{arch.name}: kernels that accumulate in tensor memory are not in the Triton model")
    if not arch.has_cp_async:
        raise UnsupportedError(f"{arch.name}: Triton does not compile for GPUs before sm_80, which have no cp.async")
    return pack_launches(arch, problem, configs, codes)


TRITON, TRITON_VERSION = "triton", "triton-1"
"""Name of the subject in files, and version of its terms."""

_SIZES = ("G", "M", "N", "K")
_OF_CONFIG = ("block_m", "block_n", "block_k", "group_m", "split_k", "num_warps", "b_elem_bytes")
_SHARES = ("sm_us", "l2_us", "dram_us", "reduction_us")
_STEP_SHARES = ("tensor_cycles", "issue_cycles", "shared_cycles", "chain_cycles", "round_trip_cycles")


class TritonTimes(NamedTuple):
    """Predicted times of configs, [num_configs] each, in us; infinite where a config cannot be launched.

    80% of measured times are expected within `low_us` to `high_us`; `physics_us` is by the terms of the model alone.
    """

    latency_us: Array
    low_us: Array
    high_us: Array
    physics_us: Array
    origin: Origin


def triton_group(types: GemmTypes, *, is_compiled: bool) -> str:
    """Return the name of the kernels that a correction is learned of."""
    inputs = "f16" if types.a.dtype in (DType.FP16, DType.BF16) else str(types.a.dtype)
    weights = "" if types.a.dtype == types.b.dtype else f"-{types.b.dtype}"
    return f"{inputs}{weights}" if is_compiled else f"{inputs}{weights}-estimated"


def triton_features(arch: GpuSpec, launches: Launches, times: LaunchTimes, latency_us: Array) -> Features:
    """Return what a correction knows of launches: sizes, configs, and shares of the terms."""
    x, log2 = launches, np.log2
    us = np.where(np.isfinite(latency_us), latency_us, 1.0)
    tiles = x.G * np.ceil(x.M / x.block_m) * np.ceil(x.N / x.block_n)
    term_us = np.where(np.isfinite(times.latency_us), times.latency_us, 1.0)
    others = {
        "latency": log2(us), "MN": log2(x.M * x.N), "NK": log2(x.N * x.K), "tiles": log2(tiles),
        "waves": tiles * x.split_k / (arch.num_sms * np.maximum(x.ctas_per_sm, 1.0)),
        "steps": log2(np.ceil(x.K / x.block_k / x.split_k)), "num_stages": x.num_stages, "ctas_per_sm": x.ctas_per_sm,
        **{name: log2(getattr(x, name)) for name in _OF_CONFIG},
        **{f"{name}_share": getattr(times, name) / term_us for name in _SHARES},
        **{f"{name}_share": getattr(times, name) / times.step_cycles for name in _STEP_SHARES},
    }  # fmt: skip
    return Features({name: log2(getattr(x, name)) for name in _SIZES}, others)


def triton_times(
    arch: GpuSpec, problem: GemmProblem, configs: Sequence[TritonConfig], codes: Sequence[KernelCode]
) -> TritonTimes:
    """Return the predicted times of configs, as corrected by what timings showed; see `triton_costs`."""
    coefficients, origin = triton_coefficients(arch)
    launches = checked_launches(arch, problem, configs, codes)
    times = launch_times(arch, launches, coefficients)
    features = triton_features(arch, launches, times, times.latency_us)
    compiled = np.array([code.is_compiled for code in codes], bool)
    latency_us, low_us, high_us = (times.latency_us.copy() for _ in range(3))
    for is_compiled in (False, True):
        rows = compiled == is_compiled
        if rows.any():
            some = Features(*({name: column[rows] for name, column in part.items()} for part in features))
            group, us = triton_group(problem.types, is_compiled=is_compiled), times.latency_us[rows]
            answers = answers_for(arch, TRITON, group, origin, coefficients, TRITON_VERSION, some, us)
            latency_us[rows] = us * answers.factor
            low_us[rows], high_us[rows] = answers.ends_us(latency_us[rows])
    return TritonTimes(latency_us, low_us, high_us, times.latency_us, origin)
