"""The slow truth about a launch of a Triton kernel: models/gpu/triton/MODEL.md, one launch at a time."""

import math
from collections.abc import Mapping

from gemm_eval.arch import GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.models.gpu.triton.code import KernelCode, MmaCount, TritonConfig
from gemm_eval.workload import GemmProblem

L2_FRAC = 1.4
HOPPER_MMA_SYNC_FRAC = 0.62
DIRTY_L2_FRAC = 0.8
FP32_BYTES = 4


def norm(power: float, *times: float) -> float:
    """A little more than the longest."""
    total = 0.0
    for time in times:
        total += time**power
    return float(total ** (1 / power))


def ctas_per_sm(arch: GpuSpec, code: KernelCode) -> int:
    """CTAs that an SM holds; 0: the kernel cannot be launched."""
    if code.smem_bytes > arch.smem_per_cta_bytes:
        return 0
    if code.registers > arch.max_registers_per_thread:
        return 0
    registers_of_warp = math.ceil(code.registers * 32 / 256) * 256
    warps = 4 * (arch.registers_per_sm // 4 // registers_of_warp)  # a warp lives in one quarter of the SM
    smem_bytes = math.ceil((code.smem_bytes + arch.smem_reserved_bytes) / 128) * 128
    ctas = 0
    while True:
        more = ctas + 1
        if more * code.num_warps > warps:
            return ctas
        if more * smem_bytes > arch.smem_per_sm_bytes:
            return ctas
        if more * code.num_warps * 32 > arch.max_threads_per_sm or more > arch.max_ctas_per_sm:
            return ctas
        ctas = more


def mma_cycles(arch: GpuSpec, mma: MmaCount, num_warps: int) -> float:
    """Cycles of an SM's tensor cores for one shape of instruction, of all warps of a CTA."""
    dtypes = {4: [DType.INT4], 8: [DType.FP8, DType.INT8], 16: [DType.FP16], 32: [DType.TF32]}[mma.input_bits]
    rate = 0.0
    for dtype in reversed(dtypes):
        rate = arch.tensor_flop_per_cycle.get(dtype, rate)
    if rate == 0:
        return math.inf
    cycles = 2 * mma.m * mma.n * mma.k / rate
    if mma.m != 64:
        if arch.sm_arch == "sm_90":
            cycles /= HOPPER_MMA_SYNC_FRAC
        return cycles * mma.num * num_warps
    read = mma.n * mma.k * mma.input_bits / 8
    if not mma.has_a_in_registers:
        read += 64 * mma.k * mma.input_bits / 8
    cycles = max(cycles, arch.mma_floor_cycles, read / arch.smem_bytes_per_cycle)
    return cycles * mma.num * (num_warps / 4)


def weight_bytes(problem: GemmProblem) -> float:
    """Of an element of B, with its share of a scale and a zero point."""
    assert problem.weight_dtype is not None
    bits = float(problem.weight_dtype.bits)
    group = problem.group_size or problem.K
    if problem.scale_dtype is not None:
        bits += problem.scale_dtype.bits / group
    if problem.scale_dtype is not None and problem.zero_dtype is not None:
        bits += problem.zero_dtype.bits / group
    return bits / 8


def dram_read_bytes(
    arch: GpuSpec, problem: GemmProblem, config: TritonConfig, resident: int, c: Mapping[str, float]
) -> float:
    """A and B once, and what L2 has dropped again."""
    a = problem.M * problem.K * problem.input_dtype.bits / 8
    b = problem.N * problem.K * weight_bytes(problem)
    tiles_m, tiles_n = math.ceil(problem.M / config.block_m), math.ceil(problem.N / config.block_n)
    tiles = tiles_m * tiles_n
    units = problem.G * tiles * config.split_k
    wave = min(min(units, arch.num_sms * resident) / config.split_k, tiles)
    band = min(config.group_m, tiles_m)
    run = wave / band
    rows, columns = float(band), min(run, tiles_n)
    if run > tiles_n:
        rows = min(tiles_m, band * math.ceil(run / tiles_n))
    waves = max(1.0, tiles / wave)
    panels = waves * (rows * a / tiles_m + columns * b / tiles_n)
    held = min(1.0, arch.l2_bytes / (a + b))
    return problem.G * (a + b + (1 - held) * max(0.0, panels - (a + b)))


def launch_us(
    arch: GpuSpec, problem: GemmProblem, config: TritonConfig, code: KernelCode, c: Mapping[str, float]
) -> float:
    """The time of one launch, in us; infinite if it cannot be launched."""
    assert problem.output_dtype is not None
    resident = ctas_per_sm(arch, code)
    if resident == 0:
        return math.inf
    cycles_per_us = arch.max_clock_ghz * 1000

    # the main loop, for one step of block_k
    loop = code.loop
    source_steps = loop.k / config.block_k
    wgmma = sum(mma_cycles(arch, one, code.num_warps) for one in loop.mma if one.m == 64) / source_steps
    mma_sync = sum(mma_cycles(arch, one, code.num_warps) for one in loop.mma if one.m != 64) / source_steps
    warp_issue, mma_wait = loop.issue / source_steps, loop.mma_wait / source_steps
    extra_barriers = max(0.0, loop.barrier / source_steps - 2)

    # tiles, steps
    tiles_m, tiles_n = math.ceil(problem.M / config.block_m), math.ceil(problem.N / config.block_n)
    all_steps = math.ceil(problem.K / config.block_k)
    steps = math.ceil(all_steps / config.split_k)
    parts_with_steps = math.ceil(all_steps / steps)
    units = problem.G * tiles_m * tiles_n * config.split_k

    # a step of a CTA
    a_bytes = problem.M / tiles_m * config.block_k * problem.input_dtype.bits / 8
    b_bytes = problem.N / tiles_n * config.block_k * weight_bytes(problem)
    tensor = wgmma / c["wgmma_frac"] + mma_sync
    issue = warp_issue * code.num_warps / arch.issue_slots_per_cycle / c["issue_frac"]
    spill = loop.spill / source_steps * code.num_warps * c["spill_cycles"]
    shared = loop.shared_wavefronts / source_steps * code.num_warps * c["shared_cycles"] + spill
    chain = c["step_cycles"] + c["instruction_cycles"] * warp_issue + spill
    chain += mma_wait * c["mma_wait_cycles"] + extra_barriers * c["barrier_cycles"]
    if mma_wait > 0 or mma_sync > 0:
        chain += tensor
    latency = arch.dram_latency_ns / 1000 * cycles_per_us * c["latency_frac"]
    in_flight = max(0.7, config.num_stages - 1.3)

    def wave_us(ctas: int) -> float:
        """A wave with so many CTAs on the fullest SM."""
        busy = norm(3, ctas * tensor, ctas * issue, ctas * shared)
        step = norm(2, busy, chain, latency / in_flight)
        tile = c["tile_cycles"]
        if config.split_k > 1:
            part_bytes = min(config.block_m, problem.M) * min(config.block_n, problem.N) * FP32_BYTES
            tile += ctas * part_bytes / c["part_bytes_per_cycle"]
        return (steps * step + tile) / cycles_per_us

    # the chip
    c_bytes = problem.output_dtype.bits / 8 if config.split_k == 1 else FP32_BYTES * config.split_k
    cta_reads = units / config.split_k * parts_with_steps
    l2_bytes = cta_reads * steps * (a_bytes + b_bytes) + problem.G * problem.M * problem.N * c_bytes
    l2_us = l2_bytes / (arch.l2_bytes_per_cycle * cycles_per_us * L2_FRAC)
    read = dram_read_bytes(arch, problem, config, resident, c)
    evicted = c["evict_frac"] * min(read, DIRTY_L2_FRAC * arch.l2_bytes)
    dram_us = (read + evicted) / (arch.dram_gb_per_s * arch.dram_efficiency_frac * 1000)

    # waves
    capacity = arch.num_sms * resident
    full_waves, rest = divmod(units, capacity)
    total = c["kernel_us"]
    if full_waves:
        share = full_waves * capacity / units
        total += norm(3, full_waves * wave_us(resident), dram_us * share, l2_us * share)
    if rest:
        share = rest / units
        total += norm(3, wave_us(math.ceil(rest / arch.num_sms)), dram_us * share, l2_us * share)
    if config.split_k > 1:
        adding = config.block_m * config.block_n * FP32_BYTES / c["add_bytes_per_cycle"] + c["add_cycles"]
        total += config.split_k * adding / cycles_per_us
    return total
