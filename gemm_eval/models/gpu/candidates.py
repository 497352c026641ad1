"""Kernel configs that exist: the families' rules of legality, the table that a search runs over, and what is short."""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec, cluster_sms, ctas_per_sm, least_registers_per_sm, smem_taken_bytes
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidMappingError
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder, Schedule
from gemm_eval.models.gpu.cost_kernels import ROW_BYTES
from gemm_eval.models.gpu.families import FAMILIES, GENERIC, SIMT, Family, TileChoice
from gemm_eval.models.gpu.libraries import cluster_grid_sms, library_of
from gemm_eval.words import shown
from gemm_eval.workload import GemmProblem, GemmTypes


class KernelNeeds(NamedTuple):
    """Resources that a kernel takes of a GPU, with as few stages as it can have."""

    smem_bytes: int  # of a CTA
    registers: int  # of a thread that computes
    launch_registers: int  # of every thread when the CTA starts
    num_threads: int  # of a CTA
    cluster_ctas: int  # of a cluster


class Shortage(NamedTuple):
    """A resource that is short, in words of `InfeasibleError`; `levers`: the spec's field and a value that will do."""

    resource: str
    demand: int
    limit: int
    unit: str
    levers: tuple[str, ...]


def least_shortage(arch: GpuSpec, kernels: Iterable[KernelNeeds]) -> Shortage | None:
    """Return what the kernel lacks most that lacks least; None: one of them runs, or there is none."""
    worst = [max(_demands(arch, needs), key=_excess) for needs in kernels]
    found = min(worst, key=_excess, default=None)
    return None if found is None or _excess(found) <= 1.0 else found


def _excess(shortage: Shortage) -> float:
    return shortage.demand / max(shortage.limit, 0.5)


def _demands(arch: GpuSpec, needs: KernelNeeds) -> Iterator[Shortage]:
    def of(resource: str, field: str, demand: int, unit: str, limit: int | None = None) -> Shortage:
        limit = int(getattr(arch, field)) if limit is None else limit
        return Shortage(resource, demand, limit, unit, (f"{field} >= {demand:,}",))

    yield of("smem", "smem_per_cta_bytes", needs.smem_bytes, "bytes")
    yield of("smem", "smem_per_sm_bytes", smem_taken_bytes(arch, needs.smem_bytes), "bytes")
    yield of("registers", "max_registers_per_thread", needs.registers, "registers a thread")
    of_cta = least_registers_per_sm(arch, needs.num_threads, needs.launch_registers)
    yield of("registers", "registers_per_sm", of_cta, "registers")
    yield of("threads", "max_threads_per_sm", needs.num_threads, "threads")
    yield of("cluster", "max_cluster_ctas", needs.cluster_ctas, "CTAs")
    room = cluster_sms(arch.num_sms, needs.cluster_ctas)
    yield of("sms", "num_sms", needs.cluster_ctas, "SMs that lie together", room)


_INTS = (
    "family", "coefficient_set", "cta_m", "cta_n", "cta_k", "cluster_m", "cluster_n", "num_warps", "num_stages",
    "schedule", "raster_order", "raster_swizzle", "ctas_per_sm", "expected_ctas", "grid_cap", "sm_cap", "expected_cap",
    "smem_bytes", "registers", "min_rows", "max_rows", "stream_cap", "min_stream_steps", "cluster_k",
    "ring_steps",
)  # fmt: skip
_FLOATS = (
    "cluster_log2", "matrix_cycles", "dequant_cycles", "stage_bytes", "operand_bytes", "store_elem_bytes",
    "instructions", "mma", "producer", "weight_bytes",
)  # fmt: skip
CANDIDATE_DTYPE = np.dtype([(name, np.int64) for name in _INTS] + [(name, np.float64) for name in _FLOATS])
"""One kernel of a library on a GPU: tile, cluster, stages, schedule, what it needs of an SM, and its cycles.

All: `family`: its number; `coefficient_set`: which of the packed coefficients are its family's; `ctas_per_sm`: what an
SM holds; `grid_cap`: CTAs that the GPU holds at once; `registers`: of one thread; `smem_bytes`, `store_elem_bytes`.
Generic kernels: `sm_cap`: SMs that they can lie on; `stream_cap`, `min_stream_steps`: most CTAs of stream-K, and fewest
k-steps of each; `min_rows`, `max_rows`: of C, for which their library uses them;
`matrix_cycles`, `dequant_cycles`, `stage_bytes`: of one k-step; `operand_bytes`: what the instructions of a compiler's
kernels read of shared memory in it, in turn with multiplying; such kernels mask rows beyond a group, and load none;
`ring_steps`: first k-steps, on CUDA cores, whose loads start together, so that none of them waits again.
Our W4A16 kernels: `raster_order`, `raster_swizzle`; `expected_ctas`: what the registry counts on when it cuts K, and
`expected_cap`: CTAs that the GPU then holds at once; `instructions`, `mma`: of all warps of a CTA for 64 k (of a team's
warps in the streaming families); `matrix_cycles`: tensor-core time of that on an SM; `producer`: of the copying thread;
`weight_bytes`: packed weights and scales of 64 k of the CTA's columns; `cluster_k`: CTAs of a cluster that have a part
of K each, where that is how a kernel cuts it. What a kernel has no use for is 0.
"""

_PRODUCER_WARPS = 4  # the loading warpgroup of a warp-specialized kernel
_PRODUCER_REGISTERS = 40
_REGISTER_BYTES = 4
_FIXED_REGISTERS = 56  # addresses, barriers, loop counters and fragments beside the accumulators
_BARRIER_BYTES = 2048  # mbarriers, tile scheduler, alignment of the ring to 1 KiB
MIN_STAGES = 2
_MAX_TILE = 512
RASTER_SWIZZLES = (1, 2, 4, 8, 16)


class Resources(NamedTuple):
    """Resources that a CTA of a config takes of an SM."""

    smem_bytes: int
    registers: int  # of a computing thread
    threads: int
    ctas_per_sm: int


def step_elems(types: GemmTypes, family: str, step_bytes: int = 0) -> int:
    """K elements of one k-step: the family's own, or one of `step_bytes`."""
    return (step_bytes or FAMILIES[family].step_bytes) * 8 // types.a.dtype.bits


def stage_bytes(types: GemmTypes, config: KernelConfig) -> int:
    """Shared memory of one buffer of the ring: A and B as they are stored, with their scales."""
    cta_m, cta_n, k = config.cta_m, config.cta_n, config.cta_k
    if types.is_block_scaled or types.b.dtype is DType.FP4:
        return -(-(types.a.total_bits(cta_m, k) + types.b.total_bits(cta_n, k)) // 8)
    total = cta_m * k * types.a.dtype.bits // 8 + cta_n * k * types.b.dtype.bits // 8
    return total + cta_n * types.group_bits // 8  # one for each column, though a group may be shorter than a step


def _has_cp_async(arch: GpuSpec, config: KernelConfig) -> bool:
    return arch.has_cp_async and FAMILIES[config.family].has_cp_async


def _most_stages(arch: GpuSpec, config: KernelConfig) -> int:
    """Most buffers of a ring; without cp.async one lies in shared memory, and the next comes through registers."""
    return FAMILIES[config.family].max_stages if _has_cp_async(arch, config) else MIN_STAGES


class _Needs(NamedTuple):
    """Needs of a CTA of a tile, whatever its stages and its cluster."""

    stage_bytes: int
    register_stages: int  # stages of the ring that lie in registers, not in shared memory
    accumulators: int  # of a computing thread
    staged: int  # registers of a computing thread that hold what comes next
    registers: int  # of a computing thread
    launch_registers: int  # of every thread when the CTA starts, before the computing ones take from the others
    threads: int


def _needs(arch: GpuSpec, types: GemmTypes, config: KernelConfig) -> _Needs:
    family = FAMILIES[config.family]
    threads = config.num_warps * arch.threads_per_warp
    groups = 2 if config.schedule == Schedule.PINGPONG else 1
    accumulators = 0
    if arch.mma_accumulators_in == "registers" or not family.has_tensor_memory:
        accumulators = config.cta_m * config.cta_n * groups // threads
    step_bytes = stage_bytes(types, config)
    register_stages = 0 if _has_cp_async(arch, config) else 1
    staged = -(-register_stages * step_bytes // (threads * _REGISTER_BYTES))
    if family.is_compiled and family.operands == "registers":
        register_stages = 1  # Triton's pipeliner gives mma.sync a buffer less: what is multiplied has left its own
    step = arch.register_alloc_per_warp // arch.threads_per_warp
    registers = -(-(accumulators + staged + _FIXED_REGISTERS) // step) * step
    extra_threads = _PRODUCER_WARPS * arch.threads_per_warp if family.is_warp_specialized else 0
    return _Needs(
        step_bytes, register_stages, accumulators, staged, registers,
        (registers * threads + _PRODUCER_REGISTERS * extra_threads) // (threads + extra_threads),
        threads + extra_threads,
    )  # fmt: skip


def _smem_bytes(needs: _Needs, num_stages: int) -> int:
    return needs.stage_bytes * (num_stages - needs.register_stages) + _BARRIER_BYTES


def _resources(arch: GpuSpec, config: KernelConfig, needs: _Needs) -> Resources:
    """Return shared memory, registers and occupancy of a config.

    Raises:
        InvalidMappingError: the GPU cannot hold one CTA; the message names the resource, what is needed and the limit.
    """
    family = FAMILIES[config.family]
    smem = _smem_bytes(needs, config.num_stages)
    if smem > arch.smem_per_cta_bytes:
        raise InvalidMappingError(
            f"{config.num_stages} stages of {needs.stage_bytes:,} bytes need "
            f"{smem:,} bytes of shared memory, {arch.name} has {arch.smem_per_cta_bytes:,} a CTA", rule="smem",
        )  # fmt: skip
    limit = min(family.max_registers, arch.max_registers_per_thread)
    if needs.registers > limit:
        raise InvalidMappingError(
            f"{needs.accumulators} accumulators a thread and {needs.staged + _FIXED_REGISTERS} other registers need "
            f"{needs.registers}, {limit} can be had", rule="registers",
        )  # fmt: skip
    per_sm = ctas_per_sm(arch, needs.threads, needs.launch_registers, smem)
    if per_sm < 1:
        registers = needs.launch_registers * needs.threads
        raise InvalidMappingError(
            f"a CTA of {needs.threads} threads needs {registers:,} registers, {arch.name} has "
            f"{arch.registers_per_sm:,} an SM", rule="registers",
        )  # fmt: skip
    if family.is_warp_specialized:
        per_sm = 1  # a persistent kernel fills its SM with stages
    return Resources(smem, needs.registers, needs.threads, per_sm)


def _stages_by_occupancy(arch: GpuSpec, config: KernelConfig, needs: _Needs) -> Iterator[int]:
    """Yield the largest number of stages for each number of CTAs that an SM can hold, the most stages first."""
    if not _has_cp_async(arch, config):
        yield MIN_STAGES
        return
    room = (arch.smem_per_cta_bytes - _BARRIER_BYTES) // needs.stage_bytes
    num_stages, most = min(_most_stages(arch, config), room), 0
    while num_stages >= MIN_STAGES:
        held = ctas_per_sm(arch, needs.threads, needs.launch_registers, _smem_bytes(needs, num_stages))
        if held > most:
            yield num_stages
            most = held
            if FAMILIES[config.family].is_warp_specialized:
                return  # one CTA an SM, whatever the stages
        room = arch.smem_per_sm_bytes // (held + 1) - arch.smem_reserved_bytes - _BARRIER_BYTES
        num_stages = min(num_stages - 1, room // needs.stage_bytes)


def _stages_of(arch: GpuSpec, choice: TileChoice, config: KernelConfig, needs: _Needs) -> Iterator[int]:
    """Yield the numbers of stages of a tile that may be best; fewer than its own only where those do not fit."""
    if not choice.num_stages:
        yield from _stages_by_occupancy(arch, config, needs)
        return
    room = (arch.smem_per_cta_bytes - _BARRIER_BYTES) // needs.stage_bytes + needs.register_stages
    yield max(MIN_STAGES, min(choice.num_stages, room, _most_stages(arch, config)))


def launched_resources(arch: GpuSpec, smem_bytes: int, registers: int, threads: int) -> Resources:
    """Occupancy of a kernel that was seen running, from its launch."""
    per_sm = ctas_per_sm(arch, threads, registers, smem_bytes)
    return Resources(smem_bytes, registers, threads, max(1, per_sm))


def check_config(arch: GpuSpec, problem: GemmProblem, config: KernelConfig) -> Resources:
    """Return what a CTA needs, if the GPU can run the config on this problem.

    Raises:
        InvalidMappingError: it cannot; the message gives the hardware reason, `.rule` its name.
    """
    _check_shape(arch, problem.types, config)
    _check_work(problem, config)
    return _resources(arch, config, _needs(arch, problem.types, config))


def _check_shape(arch: GpuSpec, types: GemmTypes, config: KernelConfig) -> None:
    if config.family not in GENERIC:
        raise InvalidMappingError(
            f"family must be one of {', '.join(GENERIC)}, got {shown(config.family)}", rule="family"
        )
    family = FAMILIES[config.family]
    if arch.sm_arch not in family.sm_archs:
        raise InvalidMappingError(
            f"{config.family} needs {' or '.join(family.sm_archs)}, {arch.name} is {arch.sm_arch}", rule="family"
        )
    on_tensor_cores = family.name != SIMT.name and Schedule.VECTOR not in family.schedules
    if on_tensor_cores and types.a.dtype not in arch.tensor_flop_per_cycle:
        raise InvalidMappingError(
            f"{config.family} runs on tensor cores, which do not take {types.a.dtype} on {arch.name}", rule="family"
        )
    if family.block_scaled is not None and (not types.is_block_scaled or types.a.dtype is not family.block_scaled):
        raise InvalidMappingError(
            f"{config.family} multiplies block-scaled {family.block_scaled}, got {types.inputs}", rule="family"
        )
    steps = (family.step_bytes, *family.more_step_bytes)
    known = [step_elems(types, config.family, num) for num in steps]
    if config.cta_k not in known:
        raise InvalidMappingError(
            f"cta_k must be {' or '.join(map(str, known))}, {' or '.join(map(str, steps))} bytes of {types.a.dtype}, "
            f"got {config.cta_k}", rule="cta_k",
        )  # fmt: skip
    if config.schedule not in family.schedules:
        raise InvalidMappingError(
            f"{config.family} kernels are {' or '.join(s.name.lower() for s in family.schedules)}, "
            f"got {config.schedule.name.lower()}", rule="schedule",
        )  # fmt: skip
    _check_tile(family.mma_m, family.mma_n_step, config)
    _check_cluster(arch, family, config.cluster_m, config.cluster_n)
    if config.num_warps not in family.num_warps:
        raise InvalidMappingError(
            f"{config.family} kernels compute with {' or '.join(map(str, family.num_warps))} warps, "
            f"got {config.num_warps}", rule="num_warps",
        )  # fmt: skip
    most = _most_stages(arch, config)
    if not MIN_STAGES <= config.num_stages <= most:
        which = f"in {MIN_STAGES}..{most}"
        if most == MIN_STAGES:
            which = f"{most} on {arch.name}, which has no cp.async" if not arch.has_cp_async else f"{most}"
        raise InvalidMappingError(f"num_stages must be {which}, got {config.num_stages}", rule="num_stages")


def _check_cluster(arch: GpuSpec, family: Family, cluster_m: int, cluster_n: int) -> None:
    cluster = cluster_m * cluster_n
    if cluster > arch.max_cluster_ctas or (cluster > 1 and not family.has_clusters):
        limit = arch.max_cluster_ctas if family.has_clusters else 1
        raise InvalidMappingError(
            f"a cluster of {cluster_m}x{cluster_n} has {cluster} CTAs, {arch.name} runs at most {limit} "
            f"with {family.name}", rule="cluster",
        )  # fmt: skip
    if cluster & (cluster - 1):
        raise InvalidMappingError(f"a cluster has 1, 2, 4 or 8 CTAs, got {cluster}", rule="cluster")
    if cluster_grid_sms(arch, cluster) < cluster:
        raise InvalidMappingError(
            f"a cluster of {cluster} CTAs needs {cluster} SMs that lie together, {arch.name} has "
            f"{cluster_grid_sms(arch, cluster)} of {arch.num_sms} in such groups", rule="cluster",
        )  # fmt: skip


def _check_tile(mma_m: int, mma_n: int, config: KernelConfig) -> None:
    m, n = config.cta_m, config.cta_n
    fits = (m % mma_m == 0 and n % mma_n == 0) or (n % mma_m == 0 and m % mma_n == 0)
    if not fits or min(m, n) < mma_n or max(m, n) > _MAX_TILE:
        raise InvalidMappingError(
            f"a tile of {m}x{n} cannot be cut into instructions of {mma_m} x a multiple of {mma_n} (either way round, "
            f"at most {_MAX_TILE})", rule="tile",
        )  # fmt: skip


def _check_work(problem: GemmProblem, config: KernelConfig) -> None:
    steps = -(-problem.K // config.cta_k)
    if config.decomposition == Decomposition.SPLIT_K:
        if not 2 <= config.split_k <= steps:
            raise InvalidMappingError(
                f"split_k must be in 2..{steps}, the k-steps of K = {problem.K}, got {config.split_k}", rule="split_k"
            )
    elif config.split_k != 1:
        raise InvalidMappingError(f"split_k must be 1 without split-K, got {config.split_k}", rule="split_k")
    if config.raster_swizzle not in RASTER_SWIZZLES:
        raise InvalidMappingError(
            f"raster_swizzle must be 1, 2, 4, 8 or 16, got {config.raster_swizzle}", rule="raster_swizzle"
        )


def matrix_cycles(arch: GpuSpec, types: GemmTypes, config: KernelConfig) -> float:
    """Cycles of an SM's tensor cores for one k-step of one CTA, operand reads from shared memory included."""
    family = FAMILIES[config.family]
    m, n = config.cta_m, config.cta_n
    rate = arch.flop_per_cycle(types.a.dtype) * family.rate_on(arch.sm_arch)
    k, step_bytes = config.cta_k, config.cta_k * types.a.dtype.bits // 8
    flop_cycles = 2.0 * m * n * k / rate
    if family.is_compiled:
        return flop_cycles
    if family.operands == "vector":
        ops = arch.fp32_ops_per_cycle if types.a.dtype.bits > 16 else 2.0 * arch.half2_ops_per_cycle  # half2: two
        return m * n * k / ops
    if family.operands == "lanes":
        return flop_cycles + _slots_beside_fma(config, arch.threads_per_warp) / arch.issue_slots_per_cycle
    if family.operands == "registers":
        warps_m, warps_n = _warp_grid(config)
        reads = (m * warps_n + n * warps_m) * step_bytes
        return max(flop_cycles, reads / arch.smem_bytes_per_cycle)
    instructions = step_bytes // arch.mma_k_bytes
    best = np.inf
    for long, short in ((m, n), (n, m)):  # instruction rows along M or along N
        if long % family.mma_m or short % family.mma_n_step:
            continue
        pieces = -(-short // arch.mma_n_max)
        count = instructions * (long // family.mma_m) * pieces
        width = short / pieces
        a_bytes = 0 if types.is_weight_quantized and long == n else family.mma_m * arch.mma_k_bytes
        operands = (a_bytes + width * arch.mma_k_bytes) / arch.smem_bytes_per_cycle
        flop = 2.0 * family.mma_m * width * (arch.mma_k_bytes * 8 // types.a.dtype.bits) / rate
        best = min(best, count * max(flop, operands, arch.mma_floor_cycles))
    return float(best) * (family.along_m_cost if types.is_a_along_m else 1.0)


_LOAD_SLOTS = 6.0  # address, predicate, copy: of an element that cp.async brings, as cuBLAS's times over tiles have it
_STEP_SLOTS = 20.0  # of a warp: barrier, counters, branch
_LANE_LOAD = 4  # elements of a lane's read of shared memory


def _slots_beside_fma(config: KernelConfig, lanes: int) -> float:
    """Warp instructions of a k-step of a CTA that multiplies on CUDA cores: reads, copies, and the loop."""
    m, n, k, warps = config.cta_m, config.cta_n, config.cta_k, config.num_warps
    reads = warps * k * 2.0 * math.sqrt(m * n / (warps * lanes)) / _LANE_LOAD
    return reads + _LOAD_SLOTS * (m + n) * k / lanes + _STEP_SLOTS * warps


def _warp_grid(config: KernelConfig) -> tuple[int, int]:
    """Warps along M and N, as square as the tile allows."""
    warps_m, warps_n = 1, config.num_warps
    while warps_n > 1 and config.cta_m / (warps_m * 2) >= config.cta_n / warps_n and config.cta_m >= 32 * warps_m:
        warps_m, warps_n = warps_m * 2, warps_n // 2
    return warps_m, warps_n


def operand_bytes(types: GemmTypes, config: KernelConfig) -> float:
    """Bytes that the instructions of a compiler's kernel read of shared memory in one k-step of one CTA; 0 of others.

    Warps of mma.sync lie over the tile as Triton lays them (`warpsPerTile`, lib/Dialect/TritonGPU/Transforms); an
    instruction of 64 rows reads both operands once.
    """
    family = FAMILIES[config.family]
    if not family.is_compiled:
        return 0.0
    m, n, step_bytes = config.cta_m, config.cta_n, config.cta_k * types.a.dtype.bits // 8
    if family.operands == "smem":
        long, short = (m, n) if m >= family.mma_m else (n, m)
        return max(1, long // family.mma_m) * (min(long, family.mma_m) + short) * step_bytes
    warps_m, warps_n = 1, 1
    while warps_m * warps_n < config.num_warps:
        if m / warps_m >= n / warps_n and warps_m < m // family.mma_m:
            warps_m *= 2
        else:
            warps_n *= 2
    return (m * min(warps_n, max(1, n // family.mma_n_step)) + n * warps_m) * step_bytes


_OPS_PER_WEIGHT = {4: 1.0, 8: 0.75}  # lop3, fma and prmt on pairs of weights; a scale on each pair
_ZERO_OPS = 0.25


def dequant_cycles(arch: GpuSpec, types: GemmTypes, config: KernelConfig) -> float:
    """Cycles of an SM's ALUs to turn the weights of one k-step of one CTA into the input type; 0 for dense."""
    if not types.is_weight_quantized:
        return 0.0
    ops = _OPS_PER_WEIGHT.get(types.b.dtype.bits, 1.0)
    if types.b.scale is not None and types.b.scale.zero_dtype is not None:
        ops += _ZERO_OPS
    lanes = arch.threads_per_warp * arch.issue_slots_per_cycle
    return config.cta_n * config.cta_k * ops / lanes


def candidate_row(arch: GpuSpec, types: GemmTypes, config: KernelConfig, resources: Resources) -> tuple[float, ...]:
    """Return the fields of a `CANDIDATE_DTYPE` record for a legal config; split and raster are not part of it."""
    family = FAMILIES[config.family]
    sms = cluster_grid_sms(arch, config.cluster_m * config.cluster_n)
    return (
        family.number, 0, config.cta_m, config.cta_n, config.cta_k, config.cluster_m, config.cluster_n,
        config.num_warps, config.num_stages, int(config.schedule), 0, 0, resources.ctas_per_sm, 0,
        sms * resources.ctas_per_sm, sms, 0, resources.smem_bytes, resources.registers,
        family.min_rows, family.max_rows(config.cta_m),
        sms * min(family.stream_ctas(config.cta_m), resources.ctas_per_sm), family.min_stream_steps, 0,
        config.num_stages - 1 if family.operands == "lanes" else 0,
        math.log2(config.cluster_m * config.cluster_n), matrix_cycles(arch, types, config),
        dequant_cycles(arch, types, config),
        float(stage_bytes(types, config)), operand_bytes(types, config), types.c.bits / 8, 0.0, 0.0, 0.0, 0.0,
    )  # fmt: skip


def build_candidates(
    arch: GpuSpec, types: GemmTypes, library: str, *, load_bytes: int = ROW_BYTES
) -> npt.NDArray[np.void]:
    """Return the kernels of a library that this GPU can run on these types, [rows] of `CANDIDATE_DTYPE`.

    They are those for rows that start on `load_bytes`, one of `LOAD_BYTES`.

    Of the numbers of stages only those stand here that may be best: the largest for each number of CTAs that an SM
    holds, because more stages with the same occupancy never cost time.
    """
    tiles: list[tuple[float, ...]] = []  # of one CTA a cluster
    rows: list[tuple[int, int, int]] = []  # place in `tiles`, cluster
    clusters: dict[tuple[str, int, int], bool] = {}  # whether the GPU runs it
    seen: set[tuple[KernelConfig, tuple[tuple[int, int], ...]]] = set()
    for choice in dict.fromkeys(library_of(library).tiles(arch, types, load_bytes=load_bytes)):
        family = FAMILIES[choice.family]
        first = len(tiles)
        config = as_config(types, choice, 1, 1, MIN_STAGES)
        needs = _needs(arch, types, config)
        for num_stages in _stages_of(arch, choice, config, needs):
            config = config._replace(num_stages=num_stages)
            if (config, choice.clusters) in seen:  # fewer stages than its own, as another tile of its size has
                continue
            seen.add((config, choice.clusters))
            try:
                _check_shape(arch, types, config)
                resources = _resources(arch, config, needs)
            except InvalidMappingError:  # of the tile: no number of stages will do
                break
            tiles.append(candidate_row(arch, types, config, resources))
        for cluster_m, cluster_n in choice.clusters if family.has_clusters else ((1, 1),):
            cluster = choice.family, cluster_m, cluster_n
            if cluster not in clusters:
                clusters[cluster] = _runs_cluster(arch, family, cluster_m, cluster_n)
            if clusters[cluster]:
                rows += [(place, cluster_m, cluster_n) for place in range(first, len(tiles))]
    if not rows:
        return np.empty(0, CANDIDATE_DTYPE)
    places, cluster_ms, cluster_ns = np.array(rows).T
    candidates: npt.NDArray[np.void] = np.array(tiles, CANDIDATE_DTYPE)[places]
    ctas, stream_ctas = cluster_ms * cluster_ns, candidates["stream_cap"] // candidates["sm_cap"]
    sms_of = {num: cluster_grid_sms(arch, num) for num in set(ctas.tolist())}
    candidates["cluster_m"], candidates["cluster_n"], candidates["cluster_log2"] = cluster_ms, cluster_ns, np.log2(ctas)
    candidates["sm_cap"] = [sms_of[num] for num in ctas.tolist()]
    candidates["grid_cap"] = candidates["sm_cap"] * candidates["ctas_per_sm"]
    candidates["stream_cap"] = candidates["sm_cap"] * stream_ctas
    return candidates


def list_needs(arch: GpuSpec, problem: GemmProblem, library: str, *, load_bytes: int) -> Iterator[KernelNeeds]:
    """Yield what each kernel of a library that could run a problem needs, whether or not the GPU has it."""
    types = problem.types
    for choice in library_of(library).tiles(arch, types, load_bytes=load_bytes):
        family = FAMILIES[choice.family]
        if not family.min_rows <= problem.M <= family.max_rows(choice.cta_m):
            continue
        needs = _needs(arch, types, as_config(types, choice, 1, 1, MIN_STAGES))
        ctas = min(m * n for m, n in choice.clusters) if family.has_clusters else 1
        smem = _smem_bytes(needs, MIN_STAGES)
        yield KernelNeeds(smem, needs.registers, needs.launch_registers, needs.threads, ctas)


def _runs_cluster(arch: GpuSpec, family: Family, cluster_m: int, cluster_n: int) -> bool:
    try:
        _check_cluster(arch, family, cluster_m, cluster_n)
    except InvalidMappingError:
        return False
    return True


def as_config(types: GemmTypes, choice: TileChoice, cluster_m: int, cluster_n: int, num_stages: int) -> KernelConfig:
    """Return the data-parallel config of a library's tile."""
    k = step_elems(types, choice.family, choice.step_bytes)
    return KernelConfig(
        choice.family, choice.cta_m, choice.cta_n, k, cluster_m, cluster_n, choice.num_warps, num_stages,
        choice.schedule, Decomposition.DATA_PARALLEL, 1, RasterOrder.ALONG_M, 1,
    )  # fmt: skip
