"""The slow truth about one kernel config of the generic GPU kernels: models/gpu/MODEL.md, section by section.

It takes what a spec, a problem, a config and coefficients say, and nothing from the code that it is compared with: no
kernel, no table of kernels, no packed parameters. Our own W4A16 kernels have another model and are not here.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import NamedTuple

from gemm_eval.arch import GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder, Schedule
from gemm_eval.models.gpu.calibration import coefficients_for
from gemm_eval.workload import GemmProblem

STEP_BYTES = {
    "sm120_block_fp4": 64, "sm80_int8": 64, "weight_only_gemv": 2048, "int8_gemv": 2048, "fp8_gemv": 2048, "simt": 32,
}  # fmt: skip
"""Of a k-step, where it is not a line."""
SIMT_LOAD, SIMT_STEP, SIMT_READ = 6, 20, 4
LINE_BYTES = 128
PARTIAL_SUM_BYTES = 4
BARRIER_BYTES = 2048
OTHER_REGISTERS = 56
LOADING_THREADS, LOADING_REGISTERS = 4 * 32, 40
SM_L2_BYTES_PER_CYCLE = 64
MIN_STREAM_STEPS = 8
BURST_US, CLOCK_FALL_US = 1e3, 5e3
MMA_SYNC_FRAC = {"sm_90": 0.62, "sm_100": 0.31, "sm_103": 0.31}
WITHOUT_CP_ASYNC = ("sm_70", "sm_75")
CHOSEN_BY_THIS_MODEL = ("hypothetical",)
INSTRUCTION_ROWS = {
    "sm90_wgmma": 64, "sm90_wgmma_full": 64, "sm90_tf32_wgmma": 64, "sm90_block_fp8": 64, "sm100_tcgen05": 128,
    "sm100_block_fp8": 128, "sm100_block_fp4": 128,
}  # fmt: skip
"""Of the families whose tensor cores read shared memory."""
WARP_SPECIALIZED = {*INSTRUCTION_ROWS, "sm120_block_fp4"}
OF_BLOCK_SCALED = {
    (DType.FP8, "sm_89"): "sm89_block_fp8", (DType.FP8, "sm_90"): "sm90_block_fp8",
    (DType.FP8, "sm_100"): "sm100_block_fp8", (DType.FP8, "sm_103"): "sm100_block_fp8",
    (DType.FP8, "sm_120"): "sm120_block_fp8", (DType.FP4, "sm_100"): "sm100_block_fp4",
    (DType.FP4, "sm_103"): "sm100_block_fp4", (DType.FP4, "sm_120"): "sm120_block_fp4",
}  # fmt: skip
"""TensorRT-LLM's families by input type and generation of SMs."""
MOST_ROWS = {"sm90_block_fp8": {16: 16, 32: 32, 48: 48, 64: 64}, "sm120_block_fp8": {32: 64}}
"""Rows of C up to which a library uses tiles of so many rows; others it uses for any."""
BITS_BEFORE = {"bf16": 16, "fp16": 16, "fp32": 32}
HALVINGS = 100  # of 0..1: more than a float can tell apart


class Traffic(NamedTuple):
    """Bytes of a problem: of each operand, and what of it DRAM and L2 see, whatever the config."""

    a_bytes: float
    b_bytes: float  # with scales
    scale_bytes: float
    c_bytes: float
    stay: float
    a_read_bytes: float
    b_read_bytes: float
    held: float
    waste: float


class Cost(NamedTuple):
    """What a config takes; the terms of `breakdown` add up to `latency_us`."""

    latency_us: float
    breakdown: dict[str, float]
    bound: str
    dram_bytes: dict[str, float]
    ctas_per_sm: int
    num_ctas: int
    num_waves: int
    active_sms: int


# Bytes


def operand_bits(problem: GemmProblem) -> tuple[int, int, int, int]:
    """Bits of an element of A, B and C, and of a scale with its zero point."""
    assert problem.weight_dtype is not None
    assert problem.output_dtype is not None
    scale = problem.scale_dtype.bits if problem.scale_dtype else 0
    zero = problem.zero_dtype.bits if problem.zero_dtype else 0
    return problem.input_dtype.bits, problem.weight_dtype.bits, problem.output_dtype.bits, scale + zero


def is_block_scaled(problem: GemmProblem) -> bool:
    """Whether A has scales as B does."""
    return problem.scale_dtype is not None and not problem.is_weight_quantized


def padded(problem: GemmProblem) -> GemmProblem:
    """The problem that kernels run instead: rows fill whole 16 bytes, those of int8 whole 4; not of 16 bits alone."""
    num_bytes = 16 if problem.is_weight_quantized else {DType.FP8: 16, DType.INT8: 4}.get(problem.input_dtype, 0)
    if not num_bytes or is_block_scaled(problem):
        return problem
    a, b, c, _ = operand_bits(problem)
    k, n = problem.K, problem.N
    while k * a % (8 * num_bytes) or k * b % (8 * num_bytes):
        k += 1
    while (n > 1 or problem.is_weight_quantized) and n * c % (8 * num_bytes):
        n += 1
    return dataclasses.replace(problem, K=k, N=n)


def row_alignment(problem: GemmProblem) -> int:
    """Bytes on which the rows of A, B and C all start, at most 16."""
    problem = padded(problem)
    a, b, c, _ = operand_bits(problem)
    a_row = problem.M if problem.types.layout[1] == "t" and problem.M > 1 else problem.K
    b_row = problem.N if problem.types.layout[0] == "n" and problem.N > 1 else problem.K
    rows_bits = [a_row * a, b_row * b]
    if problem.N > 1 or problem.is_weight_quantized:
        rows_bits.append(problem.N * c)
    return next((n for n in (16, 8, 4, 2) if all(bits % (8 * n) == 0 for bits in rows_bits)), 1)


def step_bytes(family: str) -> int:
    """Of a row of A in one k-step."""
    return STEP_BYTES.get(family, LINE_BYTES)


def most_rows(config: KernelConfig) -> float:
    """Rows of C for which libraries use a tile, at most."""
    if config.schedule == Schedule.VECTOR:
        return config.cta_m
    return MOST_ROWS.get(config.family, {}).get(config.cta_m, math.inf)


def traffic_of(arch: GpuSpec, problem: GemmProblem, l2: str, c: Mapping[str, float]) -> Traffic:
    G, M, K, N = problem.sizes
    a_bits, b_bits, c_bits, scale_bits = operand_bits(problem)
    num_groups = math.ceil(K / problem.group_size) if problem.group_size else 1
    a_bytes, c_bytes = G * M * K * a_bits / 8, G * M * N * c_bits / 8
    if is_block_scaled(problem):
        a_bytes += G * M * num_groups * scale_bits / 8
    scale_bytes = G * math.ceil(N / (problem.group_n or 1)) * num_groups * scale_bits / 8
    b_bytes = G * N * K * b_bits / 8 + scale_bytes
    hold = arch.l2_bytes * c["l2_hold_frac"]
    used = a_bytes + b_bytes + c_bytes
    excess = (used / hold) ** 4 if arch.num_l2_partitions > 1 else min(2.0, used / (1.04 * arch.l2_bytes)) ** 64
    stay = 0.0 if l2 == "cold-all" else 1 / (1 + excess)
    b_stay = stay if l2 == "warm" else 0.0
    column_bytes = (N if problem.types.layout[0] == "n" else K) * b_bits / 8
    touches_more = column_bytes > LINE_BYTES and column_bytes % LINE_BYTES != 0
    return Traffic(
        a_bytes, b_bytes, scale_bytes, c_bytes, stay, (1 - stay) * a_bytes, (1 - b_stay) * b_bytes,
        held=min(1.0, hold / ((a_bytes + b_bytes) / G)), waste=1 + c["line_waste"] if touches_more else 1.0,
    )  # fmt: skip


def panels_of_waves(problem: GemmProblem, config: KernelConfig, t: Traffic, wave_ctas: int) -> float:
    """Bytes of all waves if each reads every panel that its block of tiles touches."""
    tiles_m, tiles_n = math.ceil(problem.M / config.cta_m), math.ceil(problem.N / config.cta_n)
    num = min(wave_ctas, tiles_m * tiles_n)
    is_along_m = config.raster_order == RasterOrder.ALONG_M
    all_along, all_across = (tiles_m, tiles_n) if is_along_m else (tiles_n, tiles_m)
    across: float = min(config.raster_swizzle, all_across)
    along = num / across
    if along > all_along:
        bands = math.ceil(math.floor(along) / all_along)
        across, along = min(all_across, across * bands), all_along
    rows, columns = (along, across) if is_along_m else (across, along)
    row_panel = t.a_bytes / problem.G / tiles_m
    column_panel = (t.b_bytes - t.scale_bytes) / problem.G / tiles_n
    return problem.G * (tiles_m * tiles_n / num) * (rows * row_panel + columns * column_panel)


# What a CTA takes of its SM


def stage_bytes(problem: GemmProblem, config: KernelConfig) -> int:
    _, b_bits, _, scale_bits = operand_bits(problem)
    elements = config.cta_m * step_bytes(config.family) + config.cta_n * config.cta_k * b_bits // 8
    if problem.weight_dtype is not DType.FP4 and not is_block_scaled(problem):
        return elements + config.cta_n * scale_bits // 8
    num_groups = math.ceil(config.cta_k / problem.group_size) if problem.group_size else 1
    num_scales = math.ceil(config.cta_n / (problem.group_n or 1)) * num_groups
    if is_block_scaled(problem):
        num_scales += config.cta_m * num_groups
    return elements + math.ceil(num_scales * scale_bits / 8)


def ctas_per_sm(arch: GpuSpec, problem: GemmProblem, config: KernelConfig) -> int:
    """CTAs that an SM holds; 0: it cannot hold one."""
    is_async = arch.sm_arch not in WITHOUT_CP_ASYNC and config.family != "mma_elementwise"
    in_registers = 0 if is_async else stage_bytes(problem, config)
    smem = config.num_stages * stage_bytes(problem, config) - in_registers + BARRIER_BYTES
    threads = 32 * config.num_warps
    tiles = 2 if config.schedule == Schedule.PINGPONG else 1
    accumulators = tiles * config.cta_m * config.cta_n // threads
    if config.family.startswith("sm100_") and arch.mma_accumulators_in == "tensor_memory":
        accumulators = 0
    granule = arch.register_alloc_per_warp // 32
    thread_registers = accumulators + math.ceil(in_registers / threads / 4) + OTHER_REGISTERS
    cta_registers = math.ceil(thread_registers / granule) * granule * threads
    if config.family in WARP_SPECIALIZED:
        cta_registers, threads = cta_registers + LOADING_THREADS * LOADING_REGISTERS, threads + LOADING_THREADS
    warp_registers = math.ceil(cta_registers // threads * 32 / 256) * 256
    warps = 4 * (arch.registers_per_sm // 4 // warp_registers)
    taken = math.ceil((smem + arch.smem_reserved_bytes) / 128) * 128
    fitting = min(
        arch.smem_per_sm_bytes // taken, warps // (threads // 32), arch.max_threads_per_sm // threads,
        arch.max_ctas_per_sm,
    )  # fmt: skip
    return min(1, fitting) if config.family in WARP_SPECIALIZED else fitting


def sms_in_clusters(arch: GpuSpec, cluster: int) -> int:
    sms = arch.num_sms if cluster <= 2 else arch.num_sms * 10 // 11
    return sms - sms % cluster


# One k-step of one CTA, in cycles


def matrix_cycles(arch: GpuSpec, problem: GemmProblem, config: KernelConfig) -> float:
    """Of the tensor cores, or of the CUDA cores, at their full rate."""
    m, n, k = config.cta_m, config.cta_n, config.cta_k
    if config.schedule == Schedule.VECTOR:
        is_wide = problem.input_dtype in ("fp32", "tf32")
        return m * n * k / (arch.fp32_ops_per_cycle if is_wide else 2 * arch.half2_ops_per_cycle)
    if config.family == "simt":
        threads = config.num_warps * arch.threads_per_warp
        reads = config.num_warps * k * 2 * math.sqrt(m * n / threads) / SIMT_READ
        beside = reads + SIMT_LOAD * k * (m + n) / arch.threads_per_warp + SIMT_STEP * config.num_warps
        return m * n * k / arch.fp32_ops_per_cycle + beside / arch.issue_slots_per_cycle
    rate = arch.tensor_flop_per_cycle[problem.input_dtype]
    if config.family in INSTRUCTION_ROWS:
        is_turned = config.family == "sm90_tf32_wgmma" and problem.types.layout[1] == "t"
        ways = (instruction_cycles(arch, problem, config, rate, weights_on_rows=w) for w in (False, True))
        return min(ways) * (2 if is_turned else 1)
    rate *= MMA_SYNC_FRAC.get(arch.sm_arch, 1.0)
    warps_m, warps_n = 1, config.num_warps
    while warps_n > 1 and m / (2 * warps_m) >= max(n / warps_n, 16):
        warps_m, warps_n = 2 * warps_m, warps_n // 2
    loaded = (m * warps_n + n * warps_m) * step_bytes(config.family)
    return max(2 * m * n * k / rate, loaded / arch.smem_bytes_per_cycle)


def instruction_cycles(
    arch: GpuSpec, problem: GemmProblem, config: KernelConfig, rate: float, *, weights_on_rows: bool
) -> float:
    """Of a k-step in instructions that read shared memory; inf if the tile cannot lie this way round."""
    rows = INSTRUCTION_ROWS[config.family]
    long, short = (config.cta_n, config.cta_m) if weights_on_rows else (config.cta_m, config.cta_n)
    if long % rows or short % 8:
        return math.inf
    pieces = math.ceil(short / arch.mma_n_max)
    width = short / pieces
    k = arch.mma_k_bytes * 8 // problem.input_dtype.bits
    read_rows = width if weights_on_rows and problem.is_weight_quantized else width + rows
    cycles = max(
        2 * rows * width * k / rate, read_rows * arch.mma_k_bytes / arch.smem_bytes_per_cycle, arch.mma_floor_cycles
    )
    return (step_bytes(config.family) // arch.mma_k_bytes) * (long // rows) * pieces * cycles


def dequant_cycles(arch: GpuSpec, problem: GemmProblem, config: KernelConfig) -> float:
    """Of the plain sequence of instructions."""
    if not problem.is_weight_quantized:
        return 0.0
    instructions = 0.75 if operand_bits(problem)[1] == 8 else 1.0
    if problem.zero_dtype is not None:
        instructions += 0.25
    return config.cta_n * config.cta_k * instructions / (32 * arch.issue_slots_per_cycle)


class Step(NamedTuple):
    """Cycles of one k-step that all CTAs of a config have in common."""

    matrix: float  # at the full rate
    matrix_reached: float
    work: float
    busy: float
    round_trip: float
    lost: float  # between two steps


def step_of(arch: GpuSpec, problem: GemmProblem, config: KernelConfig, t: Traffic, c: Mapping[str, float]) -> Step:
    is_vector = config.schedule == Schedule.VECTOR
    matrix = matrix_cycles(arch, problem, config)
    reached = matrix / c["vector_frac" if is_vector else "matrix_frac"]
    dequant = dequant_cycles(arch, problem, config) * c["vector_dequant" if is_vector else "dequant"]
    work = max(reached, dequant) + c["dequant_exposed"] * min(reached, dequant)
    fill = max(work, stage_bytes(problem, config) / arch.smem_bytes_per_cycle)
    a_row, b_column = t.a_bytes / problem.G / problem.M, t.b_bytes / problem.G / problem.N
    tile_bytes = min(config.cta_m, problem.M) * a_row / config.cluster_n
    tile_bytes += min(config.cta_n, problem.N) * b_column / config.cluster_m
    aligned = row_alignment(problem)
    load = 1.0
    if aligned < 16 and not is_vector:
        load = c["unaligned_frac"] * min(aligned, 4) / 4
        along = problem.N if problem.types.layout[0] == "n" else problem.K
        if along * operand_bits(problem)[1] % (8 * LINE_BYTES) == 0:
            load /= 1 + c["line_conflict"]
    step_bytes = t.waste * tile_bytes / math.ceil(problem.K / config.cta_k)
    ingest = step_bytes / (SM_L2_BYTES_PER_CYCLE * c["sm_l2_frac"] * load)
    dram_cycles = arch.dram_latency_ns * arch.max_clock_ghz
    lost = {Schedule.VECTOR: "vector_step_cycles", Schedule.COOPERATIVE: "coop_step_cycles"}
    loss = c[lost.get(config.schedule, "step_cycles")]
    if config.schedule == Schedule.MULTISTAGE:
        loss += c.get("lone_frac", 0.0) * work
    return Step(
        matrix, reached, work, math.hypot(fill, ingest), (fill + ingest + dram_cycles) / (config.num_stages - 1), loss
    )


# Tiles and waves


class Waves(NamedTuple):
    """How the work is handed out: `rounds` full waves of `ctas` CTAs, then `rest` CTAs."""

    tiles_m: int  # padded to whole clusters
    tiles_n: int
    units: int
    steps: float  # of a CTA
    ctas: int
    rounds: int
    rest: int
    sms: int  # that have work


def waves_of(arch: GpuSpec, problem: GemmProblem, config: KernelConfig) -> Waves:
    tiles_m = math.ceil(math.ceil(problem.M / config.cta_m) / config.cluster_m) * config.cluster_m
    tiles_n = math.ceil(math.ceil(problem.N / config.cta_n) / config.cluster_n) * config.cluster_n
    tiles, all_steps = problem.G * tiles_m * tiles_n, math.ceil(problem.K / config.cta_k)
    all_sms = sms_in_clusters(arch, config.cluster_m * config.cluster_n)
    steps: float = math.ceil(all_steps / config.split_k)
    units = tiles * math.ceil(all_steps / steps)
    if config.decomposition == Decomposition.STREAM_K:
        units = min(all_sms, max(1, tiles * all_steps // MIN_STREAM_STEPS))
        steps = tiles * all_steps / units
    ctas = min(units, all_sms * ctas_per_sm(arch, problem, config))
    return Waves(tiles_m, tiles_n, units, steps, ctas, units // ctas, units % ctas, min(ctas, all_sms))


def chip_cycles(
    arch: GpuSpec, config: KernelConfig, w: Waves, step: Step, epilogue: float, c: Mapping[str, float]
) -> tuple[float, float]:
    """Cycles of the SMs: of all full waves, and of the rest."""
    if config.schedule == Schedule.PINGPONG:
        lone = w.steps * max(step.busy, step.round_trip, step.work + step.lost) + c["tile_cycles"] + epilogue
        half = w.steps * max(step.busy, step.round_trip, (step.work + step.lost) / 2) + c["pingpong_cycles"]
        shared = min(max(half, lone / 2), lone) if w.steps == 1 else max(half, lone / 2)
        return (w.rounds * shared, lone) if w.rest else ((w.rounds - 1) * shared + lone, 0.0)
    if config.schedule == Schedule.COOPERATIVE:
        tile = w.steps * max(step.busy, step.round_trip, step.work + step.lost) + c["coop_tile_cycles"] + epilogue
        return w.rounds * tile, tile if w.rest else 0.0

    def wave(resident: int) -> float:
        slowest = max(resident * step.busy, step.round_trip, step.work + step.lost)
        steps = w.steps * slowest
        if config.family == "simt" and config.schedule != Schedule.VECTOR:
            shared = step.lost * min(1, 2 / (config.num_stages - 1))
            slowest = max(resident * step.busy, step.round_trip, step.work + shared)
            num_first = min(config.num_stages - 1, w.steps)
            steps = num_first * max(resident * step.busy, step.work) + (w.steps - num_first) * slowest
        tile = c["tile_cycles"]
        if config.schedule == Schedule.VECTOR:
            tile += c.get("vector_tile_cycles", 0.0)
        return steps + tile + resident * epilogue

    full = w.rounds * wave(math.ceil(w.ctas / w.sms))
    return full, wave(math.ceil(w.rest / arch.num_sms)) if w.rest else 0.0


# Quantization of A


def missed_share(size: float) -> float:
    """What a cache misses that is read again and again: the largest m with 1 - m = exp(-m * size), by halves."""
    if size <= 1:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if -middle > math.expm1(-middle * size):
            low = middle
        else:
            high = middle
    return high


def quantization_us(
    arch: GpuSpec, problem: GemmProblem, t: Traffic, l2: str, quantize_from: str | None, c: Mapping[str, float]
) -> tuple[float, float]:
    """The kernels that quantize A, and the one that casts its scale."""
    if quantize_from is None:
        return 0.0, 0.0
    has_one_scale = not is_block_scaled(problem) and problem.input_dtype not in (DType.INT8, DType.INT4)
    passes = 2 if has_one_scale else 1
    rows = problem.G * problem.M
    source_bytes = rows * problem.K * BITS_BEFORE[quantize_from] / 8
    moved_bytes = passes * source_bytes + t.a_bytes
    missed = missed_share((source_bytes + t.a_bytes) / arch.l2_bytes)
    dram_bytes = missed * moved_bytes + ((1 - missed) * source_bytes if l2 == "cold-all" else 0.0)
    l2_us = moved_bytes / (arch.l2_bytes_per_cycle * arch.max_clock_ghz * 1e3 * c["quantize_l2_frac"])
    dram_us = dram_bytes / (arch.dram_gb_per_s * 1e3 * c["quantize_dram_frac"])
    fixed_us = passes * c["quantize_us"] + rows * c["quantize_row_ns"] / 1e3
    return fixed_us + math.hypot(l2_us, dram_us), c["scale_cast_us"] if has_one_scale else 0.0


# Time


def norm4(*times: float) -> float:
    return float(sum(time**4 for time in times) ** 0.25)


def family_of(arch: GpuSpec, problem: GemmProblem, library: str) -> str:
    """The family whose coefficients hold for these types and sizes on this GPU."""
    if problem.input_dtype is DType.FP32:
        return "simt"
    if problem.accumulate == "full" and arch.sm_arch == "sm_90":
        return "sm90_wgmma_full"
    if arch.sm_arch == "sm_90" and problem.input_dtype is DType.TF32 and row_alignment(problem) < 16:
        return "sm90_tf32_unaligned"
    if row_alignment(problem) < 16:
        return "mma_unaligned" if row_alignment(problem) >= 4 else "mma_elementwise"
    of_blocks = OF_BLOCK_SCALED.get((problem.input_dtype, arch.sm_arch))
    if library == "trtllm" and is_block_scaled(problem) and of_blocks:
        return of_blocks
    is_fp8 = problem.input_dtype is DType.FP8 and not (is_block_scaled(problem) or problem.is_weight_quantized)
    if library == "trtllm" and is_fp8 and arch.sm_arch in ("sm_89", "sm_120"):
        return "fp8_gemv"  # more than 8 rows are cuBLAS's: see `library_for`
    if library == "trtllm" and arch.sm_arch in ("sm_80", "sm_89"):
        return "sm80_weight_only" if problem.is_weight_quantized else "sm80_int8"
    if arch.sm_arch == "sm_90" and problem.input_dtype is DType.TF32:
        return "sm90_tf32"
    if arch.sm_arch == "sm_90" and problem.input_dtype is not DType.INT8:
        return "sm90_wgmma"
    if arch.sm_arch in WITHOUT_CP_ASYNC:
        return "sm70_mma"
    if arch.sm_arch in ("sm_89", "sm_120") and problem.input_dtype is DType.FP8:
        return "sm89_mma_fp8"
    return "sm100_tcgen05" if arch.sm_arch in ("sm_100", "sm_103") else "sm80_mma"


def coefficients_of_library(arch: GpuSpec, problem: GemmProblem, library: str) -> dict[str, float]:
    """What a library's kernels for these types and sizes lose on this GPU, as its calibrations say."""
    of_one_scale, _ = coefficients_for(arch, "trtllm", "quantize")
    coefficients, _ = coefficients_for(arch, library, family_of(arch, problem, library))
    return as_chosen({**of_one_scale, **coefficients}, library)


def as_chosen(coefficients: Mapping[str, float], library: str) -> dict[str, float]:
    """No choice loses time where this model chooses."""
    return {**coefficients, **({"choice_loss": 0.0} if library in CHOSEN_BY_THIS_MODEL else {})}


def loaded_us(arch: GpuSpec, dtype: DType, main_us: float, matrix_us: float, clock: str) -> float:
    """Time of the main loop with the clock that the tensor cores leave."""
    sustained = arch.tensor_clock_ghz(dtype, "sustained")
    load = arch.tensor_clock_ghz(dtype, "burst") if clock == "burst" else sustained
    if main_us > BURST_US and sustained < load:
        load = sustained + (load - sustained) * math.exp(-(main_us - BURST_US) / CLOCK_FALL_US)
    highest = arch.max_clock_ghz
    share = min(1.0, matrix_us / main_us)
    clock_ghz = highest - (highest - load) * share**2
    return max(main_us - matrix_us + matrix_us * highest / clock_ghz, matrix_us * highest / load)


def cost_of(
    arch: GpuSpec,
    problem: GemmProblem,
    config: KernelConfig,
    *,
    l2: str,
    clock: str,
    quantize_from: str | None,
    coefficients: Mapping[str, float],
) -> Cost:
    """The cost of a config that the GPU can run."""
    c = coefficients
    problem = padded(problem)
    cycles_per_us = arch.max_clock_ghz * 1e3
    is_vector = config.schedule == Schedule.VECTOR
    is_stream = config.decomposition == Decomposition.STREAM_K
    t = traffic_of(arch, problem, l2, c)
    w = waves_of(arch, problem, config)
    step = step_of(arch, problem, config, t, c)
    output_bytes = operand_bits(problem)[2] / 8
    epilogue = config.cta_m * min(config.cta_n, problem.N) * output_bytes / c["epilogue_bytes_per_cycle"]
    tiles_m, tiles_n = math.ceil(problem.M / config.cta_m), math.ceil(problem.N / config.cta_n)
    all_steps = math.ceil(problem.K / config.cta_k)

    # rates of the chip, in bytes per us
    achievable = arch.dram_gb_per_s * arch.dram_efficiency_frac * 1e3
    doublings = math.log2(config.cluster_m * config.cluster_n)
    dram_rate = min(achievable * c["dram_frac"], arch.dram_gb_per_s * 1e3) * (1 - c["cluster_loss"] * doublings)
    l2_peak = arch.l2_bytes_per_cycle * cycles_per_us
    l2_rate, reduce_rate = l2_peak * c["l2_frac"], l2_peak * c["l2_frac"] * c["reduce_frac"]

    # what all units together take of the chip
    again = 0.0
    if t.held < 1 and tiles_m > 1 and tiles_n > 1:
        excess = panels_of_waves(problem, config, t, w.ctas) - t.a_read_bytes - t.b_read_bytes
        again = (1 - t.held) * max(0.0, excess)
    stored_bytes = (1 - t.stay) * t.c_bytes
    dram_us = (t.a_read_bytes + t.b_read_bytes + again + stored_bytes) * t.waste / dram_rate
    a_l2 = t.a_bytes * w.tiles_n / config.cluster_n
    b_l2 = t.b_bytes * w.tiles_m / config.cluster_m
    l2_us = (a_l2 + b_l2 + c["l2_first"] * (t.a_bytes + t.b_bytes)) * t.waste / l2_rate
    outside_us = 0.0
    if config.schedule in (Schedule.PINGPONG, Schedule.COOPERATIVE):
        rows = (tiles_m * config.cta_m - problem.M) * w.tiles_n / config.cluster_n
        columns = (tiles_n * config.cta_n - problem.N) * w.tiles_m / config.cluster_m
        outside_us = problem.G * all_steps * (rows + columns) / c["outside_rows_per_cycle"] / cycles_per_us

    # waves
    full_us, rest_us = (cycles / cycles_per_us for cycles in chip_cycles(arch, config, w, step, epilogue, c))
    rest_share = w.rest / w.units
    waves_us = 0.0
    for chip_us, share in ((full_us, 1 - rest_share), (rest_us, rest_share)):
        waves_us += norm4(chip_us, share * dram_us, share * l2_us, share * outside_us)

    # stores and reduction
    written, reduction_us = t.c_bytes, 0.0
    if is_stream:
        cut_bytes = w.ctas * config.cta_m * config.cta_n * PARTIAL_SUM_BYTES
        reduction_us = c["fixup_us"] + 2 * cut_bytes / reduce_rate
    elif config.split_k > 1:
        written = float(problem.G * problem.M * problem.N * PARTIAL_SUM_BYTES * config.split_k)
        reduction_us = c["reduce_us"] + (config.split_k - 1) * c.get("reduce_part_us", 0.0)
        reduction_us += (written + t.c_bytes) / reduce_rate
    store_us = c["store_exposed_frac"] * written * ((1 - t.stay) / achievable + t.stay / l2_rate)

    # clock, and what stands before and after
    main_us = waves_us + store_us
    tensor_us = 0.0 if is_vector else w.units * w.steps * step.matrix / arch.num_sms / cycles_per_us
    power_us = loaded_us(arch, problem.input_dtype, main_us, tensor_us, clock) - main_us
    prologue_us = c["vector_kernel_us" if is_vector else "kernel_us"]
    prologue_us += arch.dram_latency_ns / 1e3 + c["ramp_us"] * w.sms / arch.num_sms
    unchosen_us = arch.graph_node_us + prologue_us + main_us + power_us + reduction_us
    choice_us = unchosen_us * c["choice_loss"]
    quantize_us, cast_us = quantization_us(arch, problem, t, l2, quantize_from, c)
    latency_us = unchosen_us + choice_us + quantize_us + cast_us

    # Breakdown
    chip_us = full_us + rest_us
    num_waves = w.rounds + (w.rest > 0)
    is_lone_wave = config.schedule == Schedule.MULTISTAGE and w.rounds == 1
    matrix_waves = (math.ceil(w.ctas / w.sms) if is_lone_wave else w.rounds) + (w.rest > 0)
    matrix_us = min(chip_us, matrix_waves * w.steps * step.matrix / cycles_per_us)
    dequant_share = max(0.0, 1 - step.matrix_reached / step.work)
    dequant_us = min(chip_us - matrix_us, dequant_share * chip_us)
    tile_overhead_us = min(chip_us - matrix_us - dequant_us, num_waves * epilogue / cycles_per_us)
    step_wait_us = chip_us - matrix_us - dequant_us - tile_overhead_us
    breakdown = {
        "launch_us": arch.graph_node_us, "prologue_us": prologue_us, "matrix_us": matrix_us, "dequant_us": dequant_us,
        "step_wait_us": step_wait_us, "tile_overhead_us": tile_overhead_us, "l2_us": l2_us, "dram_us": dram_us,
        "outside_us": outside_us, "store_us": store_us, "reduction_us": reduction_us, "power_us": power_us,
        "choice_us": choice_us, "quantize_us": quantize_us, "cast_us": cast_us,
    }  # fmt: skip
    breakdown["hidden_us"] = latency_us - sum(breakdown.values())

    # the bound
    chip_bound = "compute" if matrix_us >= chip_us / 2 else "latency"
    if dequant_us > max(matrix_us, step_wait_us):
        chip_bound = "dequant"
    candidates = {
        "dram": dram_us, "l2": l2_us, chip_bound: chip_us, "fill": outside_us, "store": store_us,
        "reduction": reduction_us, "prologue": prologue_us, "launch": arch.graph_node_us,
        "quantize": quantize_us + cast_us,
    }  # fmt: skip
    bound = max(candidates, key=candidates.__getitem__)

    a_share = t.a_bytes / (t.a_bytes + t.b_bytes)
    b_read = t.b_read_bytes + again * (1 - a_share)
    scales = b_read * t.scale_bytes / t.b_bytes
    dram_bytes = {
        "a_bytes": t.a_read_bytes + again * a_share, "b_bytes": b_read - scales, "scale_bytes": scales,
        "c_bytes": stored_bytes,
    }  # fmt: skip
    return Cost(latency_us, breakdown, bound, dram_bytes, ctas_per_sm(arch, problem, config), w.ctas, num_waves, w.sms)
