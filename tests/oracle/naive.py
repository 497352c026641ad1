"""Slow truth of cost model 1: its formulas as MODEL.md writes them, and a search that tries everything.

Standard library only, and nothing of gemm_eval/models or gemm_eval/search. Float operations are done in the order of
gemm_eval/models/multicore/MODEL.md, so that a fast kernel may be compared exactly. Where a sum over cores is needed,
cores are walked one by one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from gemm_eval.arch import MulticoreSpec
from gemm_eval.mapping import LoopOrder, MulticoreMapping, Partition, Tile, enumerate_partitions
from gemm_eval.workload import GemmProblem
from tests.oracle.simulators import ActiveGrid, Bits, Block, Visit, bits_of, walk_visits

__all__ = ["CoreCounts", "Key", "NaiveCost", "can_run", "core_latencies", "count_core", "evaluate_mapping", "find_best"]
__all__ += [
    "breakdown_of",
    "full_block",
    "is_legal",
    "legal_tile_sizes",
    "sram_used_bytes",
    "units_of",
]

Key = tuple[float, float, int, int, int, tuple[int, int, int, int], int, int, int, int]
"""What a search minimizes; (P_K, P_G, P_M, P_N) itself stands for its rank in the sorted list."""


class NaiveCost(NamedTuple):
    """Cost of one mapping: times of the slowest core, and (from `a_bytes` on) DRAM bytes of the chip by term."""

    latency_us: float
    main_us: float
    compute_us: float
    dram_us: float
    noc_us: float
    dma_us: float
    reduction_us: float
    busiest_core_bytes: float
    active_cores: int
    visits: int
    sram_used_bytes: int
    a_bytes: int
    b_bytes: int
    scales_bytes: int
    c_store_bytes: int
    c_spill_bytes: int
    c_refill_bytes: int
    reduction_bytes: int
    """partial sums read and C written by the reduction, over DRAM"""
    reduction_noc_bytes: int
    """partial sums sent from core to core"""
    dram_bytes: int
    """the sum of the seven DRAM terms"""
    energy_pj: float | None
    key: Key


class CoreCounts(NamedTuple):
    """What one core moves and computes in its main loop, in elements (`scales`: group elements)."""

    a: int
    b: int
    scales: int
    c_store: int
    c_spill: int
    c_refill: int
    cube_steps: int
    dequant: int
    visits: int


# --- what is legal ---------------------------------------------------------------------------------------------------


def can_run(arch: MulticoreSpec, problem: GemmProblem) -> bool:
    """Whether the arch takes the data types at all."""
    has_type = problem.input_dtype in arch.cube_steps_per_cycle
    return has_type and not (problem.is_weight_quantized and arch.dequant == "none")


def full_block(problem: GemmProblem, partition: Partition) -> Block:
    """Sizes of a full block of the partition."""
    q = 1 if problem.group_size is None else problem.group_size
    return Block(
        g=_ceil_div(problem.G, partition.P_G),
        m=_ceil_div(problem.M, partition.P_M),
        n=_ceil_div(problem.N, partition.P_N),
        k=min(problem.K, _ceil_div(_ceil_div(problem.K, q), partition.P_K) * q),
    )


def units_of(arch: MulticoreSpec, problem: GemmProblem) -> Tile:
    """The unit that tile sizes are multiples of, in each dimension."""
    unit_k = arch.cube_k_of(problem.input_dtype)
    if problem.group_size is not None:
        unit_k = math.lcm(unit_k, problem.group_size)
    return Tile(arch.cube_m, arch.cube_n, unit_k)


def legal_tile_sizes(block: int, unit: int) -> list[int]:
    """Multiples of `unit` below `block`, then `block` itself: ascending."""
    return [*range(unit, block, unit), block]


def sram_used_bytes(arch: MulticoreSpec, problem: GemmProblem, tile: Tile) -> int:
    """SRAM that a core needs for the buffers of all its tiles."""
    return _sram_used(_Setting(arch, problem, Partition(1, 1, 1, 1)), tile)


def _sram_used(setting: _Setting, tile: Tile) -> int:
    arch, bits = setting.arch, setting.bits
    tile_m, tile_n, tile_k = tile
    a = _padded_bytes(arch, tile_m, tile_k * bits.a)
    b = _padded_bytes(arch, tile_k, tile_n * bits.b)
    c = _padded_bytes(arch, tile_m, tile_n * bits.accumulator)
    s = d = 0
    if setting.is_quantized:
        s = _padded_bytes(arch, _ceil_div(tile_k, setting.group), tile_n * bits.group)
        if setting.is_dequantized:
            d = _padded_bytes(arch, tile_k, tile_n * bits.a)
    return arch.input_buffers * (a + b + s) + d + arch.output_buffers * c


def is_legal(
    arch: MulticoreSpec, problem: GemmProblem, mapping: MulticoreMapping, *, must_fit_sram: bool = True
) -> bool:
    """Whether `mapping` keeps every rule (without `must_fit_sram`: every rule but that of SRAM)."""
    partition, tile, _ = mapping
    if not can_run(arch, problem) or min(partition) < 1 or math.prod(partition) > arch.num_cores:
        return False
    block, units = full_block(problem, partition), units_of(arch, problem)
    if arch.reduction == "none" and _grid_of(problem, block).E_K > 1:
        return False
    for tile_size, block_size, unit in zip(tile, (block.m, block.n, block.k), units, strict=True):
        if tile_size not in legal_tile_sizes(block_size, unit):
            return False
    return not must_fit_sram or sram_used_bytes(arch, problem, tile) <= _sram_limit(arch)


def _sram_limit(arch: MulticoreSpec) -> int:
    return math.floor(arch.sram_bytes * arch.sram_usable_frac)


def _padded_bytes(arch: MulticoreSpec, rows: int, row_bits: int) -> int:
    padded_rows = _ceil_div(rows, arch.lane_num) * arch.lane_num
    row_bytes = _ceil_div(_ceil_div(row_bits, 8), arch.align_bytes) * arch.align_bytes
    return padded_rows * row_bytes


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _bytes(elements: int, bits: int) -> int:
    return (elements * bits + 7) // 8


# --- what one core moves ---------------------------------------------------------------------------------------------


def _passes(order: LoopOrder, trips: dict[str, int], indexed_by: str) -> int:
    """How often each element of an operand with these index loops enters SRAM (for C: leaves it).

    The product of the trips of every loop that does not index the operand, and lies outside the innermost one that
    does and has more than one trip.
    """
    nest = order.name
    multi = [depth for depth, loop in enumerate(nest) if loop in indexed_by and trips[loop] > 1]
    if not multi:
        return 1
    return math.prod(trips[loop] for loop in nest[: multi[-1]] if loop not in indexed_by)


def _is_repeated(order: LoopOrder, m_loops: bool, n_loops: bool, k_loops: bool) -> tuple[bool, bool, bool]:
    trips = {"M": 1 + m_loops, "N": 1 + n_loops, "K": 1 + k_loops}
    return (
        _passes(order, trips, "MK") > 1,
        _passes(order, trips, "NK") > 1,
        _passes(order, trips, "MN") > 1,
    )


_FLAGS = (False, True)
# [order][T_m > 1][T_n > 1][T_k > 1]: whether A is loaded T_n times, B is loaded T_m times, C leaves T_k times. Only the
# pattern of loops with more than one trip decides that, so a search need not derive it for each of its candidates.
_REPEATED = [[[[_is_repeated(order, m, n, k) for k in _FLAGS] for n in _FLAGS] for m in _FLAGS] for order in LoopOrder]


class _Setting:
    """What does not change within one partition: blocks, sharing and speeds."""

    def __init__(self, arch: MulticoreSpec, problem: GemmProblem, partition: Partition) -> None:
        if not can_run(arch, problem):
            raise ValueError(f"{arch.name} cannot run {problem}")
        self.arch = arch
        self.problem = problem
        self.block = full_block(problem, partition)
        self.grid = _grid_of(problem, self.block)
        self.active_cores = self.grid.active_cores
        self.bits: Bits = bits_of(problem)
        self.store_bits = self.bits.output
        if self.grid.E_K > 1:  # partial sums: stored for the exchange through DRAM, kept for the one over the network
            self.store_bits = self.bits.accumulator if arch.reduction == "dram" else 0
        self.is_multicast = arch.load_sharing == "multicast"
        self.is_quantized = problem.is_weight_quantized
        self.is_dequantized = self.is_quantized and arch.dequant == "vector"
        self.group = problem.K if problem.group_size is None else problem.group_size
        self.cube_k = arch.cube_k_of(problem.input_dtype)
        self.steps_per_cycle = arch.cube_steps_per_cycle[problem.input_dtype]
        self.cycles_per_us = arch.frequency_ghz * 1e3
        divisor = arch.num_cores if arch.dram_sharing == "static" else self.active_cores
        self.share = arch.dram_gb_per_s * 1e3 * arch.dram_efficiency_frac / divisor
        if arch.dram_core_limit_gb_per_s is not None:
            self.share = min(self.share, arch.dram_core_limit_gb_per_s * 1e3)
        # Bytes over an infinitely fast port take no time, as without a network.
        self.port = math.inf if arch.noc_gb_per_s is None else arch.noc_gb_per_s * 1e3

    def cores(self) -> Iterator[tuple[tuple[int, ...], Block]]:
        """Every core that has work: its place (p_g, p_m, p_n, p_k) and its block, cut at the edge of the matrix."""
        full, sizes = self.block, _sizes_of(self.problem)
        for place in itertools.product(*(range(count) for count in self.grid)):
            yield place, Block(*(min(f, size - p * f) for f, size, p in zip(full, sizes, place, strict=True)))


def _sizes_of(problem: GemmProblem) -> Block:
    return Block(problem.G, problem.M, problem.N, problem.K)


def _grid_of(problem: GemmProblem, full: Block) -> ActiveGrid:
    sizes = _sizes_of(problem)
    return ActiveGrid(*(_ceil_div(size, step) for size, step in zip(sizes, full, strict=True)))


class _Work:
    """What does not change for one core, whatever its tile and loop order."""

    def __init__(self, setting: _Setting, block: Block) -> None:
        arch, bits = setting.arch, setting.bits
        g, m, n, k = block
        self.block = block
        self.cube_steps = g * _ceil_div(m, arch.cube_m) * _ceil_div(n, arch.cube_n) * _ceil_div(k, setting.cube_k)
        self.a, self.b, self.c = g * m * k, g * k * n, g * m * n
        group_size = setting.problem.group_size
        # Rows of scales that a pass over B loads; None: one per tile along K.
        self.scale_rows = None if group_size is None else _ceil_div(k, group_size)
        self.reduction_us = 0.0
        self.reduction_dram_bytes = 0
        E_K = setting.grid.E_K
        if E_K > 1:
            assert arch.vector_ops_per_cycle is not None
            share = _ceil_div(self.c, E_K)
            if arch.reduction == "dram":
                self.reduction_dram_bytes = _bytes(E_K * share, bits.accumulator) + _bytes(share, bits.output)
                self.reduction_us = self.reduction_dram_bytes / setting.share
            else:
                self.reduction_dram_bytes = _bytes(share, bits.output)
                sent_us = _bytes((E_K - 1) * share, bits.accumulator) / setting.port
                self.reduction_us = sent_us + self.reduction_dram_bytes / setting.share
            self.reduction_us += (E_K - 1) * share / arch.vector_ops_per_cycle / setting.cycles_per_us


def count_core(setting: _Setting, work: _Work, tile: Tile, order: int) -> CoreCounts:
    """Count what one core moves and computes in its main loop."""
    g, m, n, k = work.block
    T_m, T_n, T_k = -(-m // tile[0]), -(-n // tile[1]), -(-k // tile[2])
    repeats_a, repeats_b, repeats_c = _REPEATED[order][T_m > 1][T_n > 1][T_k > 1]
    b_passes = T_m if repeats_b else 1
    b = work.b * b_passes
    scales = 0
    if setting.is_quantized:
        scales = g * (T_k if work.scale_rows is None else work.scale_rows) * n * b_passes
    spills = work.c * (T_k - 1) if repeats_c else 0
    return CoreCounts(
        work.a * T_n if repeats_a else work.a,
        b,
        scales,
        work.c,
        spills,
        spills,
        work.cube_steps,
        b if setting.is_dequantized else 0,
        g * T_m * T_n * T_k,
    )


# --- how long it takes -----------------------------------------------------------------------------------------------


class _CoreTime(NamedTuple):
    latency_us: float
    main_us: float
    compute_us: float
    dram_us: float
    noc_us: float
    dma_us: float
    reduction_us: float
    charged_bytes: float
    visits: int


def _time_core(setting: _Setting, work: _Work, tile: Tile, order: int) -> _CoreTime:
    arch, bits = setting.arch, setting.bits
    counts = count_core(setting, work, tile, order)
    a_bytes = (counts.a * bits.a + 7) // 8
    b_bytes = (counts.b * bits.b + 7) // 8
    s_bytes = (counts.scales * bits.group + 7) // 8
    # Accumulators are whole bytes, so that stores alone need rounding.
    c_bytes = (counts.c_store * setting.store_bits + 7) // 8
    c_bytes += (counts.c_spill * bits.accumulator + 7) // 8 + (counts.c_refill * bits.accumulator + 7) // 8
    charged_bytes = _charged(setting, a_bytes, b_bytes, s_bytes, c_bytes)
    dram_us = charged_bytes / setting.share
    noc_us = (a_bytes + b_bytes + s_bytes + c_bytes) / setting.port
    dma_us = max(dram_us, noc_us)
    compute_us = _compute_us(setting, counts.cube_steps, counts.visits, counts.dequant)
    if arch.timing == "overlap":
        main_us = _overlap_us(setting, work.block, tile, (a_bytes, b_bytes + s_bytes, c_bytes), compute_us, dma_us)
    else:
        main_us = _pipeline_us(setting, work.block, tile, LoopOrder(order))
    latency_us = arch.launch_us + main_us + work.reduction_us
    times = (latency_us, main_us, compute_us, dram_us, noc_us, dma_us, work.reduction_us)
    return _CoreTime(*times, charged_bytes, counts.visits)


def _charged(setting: _Setting, a_bytes: float, b_bytes: float, s_bytes: float, c_bytes: float) -> float:
    if setting.is_multicast:
        return a_bytes / setting.grid.E_N + (b_bytes + s_bytes) / setting.grid.E_M + c_bytes
    return a_bytes + b_bytes + s_bytes + c_bytes


def _compute_us(setting: _Setting, cube_steps: int, visits: int, dequant: int) -> float:
    arch = setting.arch
    cycles = cube_steps / setting.steps_per_cycle + visits * arch.fill_drain_cycles
    if setting.is_dequantized:
        assert arch.dequant_ops_per_elem is not None
        assert arch.vector_ops_per_cycle is not None
        vector_cycles = dequant * arch.dequant_ops_per_elem / arch.vector_ops_per_cycle
        cycles = max(cycles, vector_cycles) if arch.vector_is_concurrent else cycles + vector_cycles
    return cycles / setting.cycles_per_us


def _dma_us(setting: _Setting, a_bytes: float, b_bytes: float, c_bytes: float) -> float:
    """Time of moving bytes of A, of B with its scales, and of C."""
    charged_bytes = _charged(setting, a_bytes, b_bytes, 0, c_bytes)
    return max(charged_bytes / setting.share, (a_bytes + b_bytes + c_bytes) / setting.port)


def _overlap_us(
    setting: _Setting, block: Block, tile: Tile, moved: tuple[int, int, int], compute_us: float, all_dma_us: float
) -> float:
    """Compute and DMA side by side, but for the first loads, the last store, and what has only one buffer."""
    arch, bits = setting.arch, setting.bits
    a_bytes, b_bytes, c_bytes = moved
    tile_m, tile_n, tile_k = min(tile.tile_m, block.m), min(tile.tile_n, block.n), min(tile.tile_k, block.k)
    lead_a, lead_b = a_bytes, b_bytes
    if arch.input_buffers == 2:
        lead_a, lead_b = _bytes(tile_m * tile_k, bits.a), _bytes(tile_k * tile_n, bits.b)
        if setting.is_quantized:
            lead_b += _bytes(_ceil_div(tile_k, setting.group) * tile_n, bits.group)
    tail_c = _bytes(tile_m * tile_n, setting.store_bits) if arch.output_buffers == 2 else c_bytes
    steps = _ceil_div(tile_m, arch.cube_m) * _ceil_div(tile_n, arch.cube_n) * _ceil_div(tile_k, setting.cube_k)
    tile_us = (steps / setting.steps_per_cycle + arch.fill_drain_cycles) / setting.cycles_per_us
    best_us = max(
        all_dma_us,
        compute_us + _dma_us(setting, lead_a, lead_b, tail_c),
        tile_us + _dma_us(setting, a_bytes, b_bytes, tail_c),
    )
    return (1 - arch.overlap_frac) * (compute_us + all_dma_us) + arch.overlap_frac * best_us


def _pipeline_us(setting: _Setting, block: Block, tile: Tile, order: LoopOrder) -> float:
    """The two sums of MODEL.md, added up from left to right. `*_bytes` of one visit may be fractions of a byte."""
    bits = setting.bits
    # All blocks begin on a group boundary, so that the start of the block does not matter for the scales.
    visits = list(walk_visits(setting.arch, setting.problem, block, tile, order))

    def dma(load: Visit | None, refill: Visit | None, store: Visit | None) -> float:
        a_bytes = load.a_load * bits.a / 8 if load else 0.0
        b_bytes = load.b_load * bits.b / 8 if load else 0.0
        s_bytes = load.s_load * bits.group / 8 if load else 0.0
        c_bytes = refill.c_refill * bits.accumulator / 8 if refill else 0.0
        if store:
            c_bytes += (store.c_spill * bits.accumulator + store.c_store * setting.store_bits) / 8
        charged_bytes = _charged(setting, a_bytes, b_bytes, s_bytes, c_bytes)
        return max(charged_bytes / setting.share, (a_bytes + b_bytes + s_bytes + c_bytes) / setting.port)

    total_us = dma(visits[0], None, None)
    for s, visit in enumerate(visits):
        previous = visits[s - 1] if s > 0 else None
        following = visits[s + 1] if s + 1 < len(visits) else None
        comp_us = _compute_us(setting, visit.cube_steps, 1, visit.dequant)
        if setting.arch.output_buffers == 2:
            total_us += max(comp_us, dma(following, following, previous))
        else:
            total_us += max(comp_us, dma(following, None, None)) + dma(None, following, visit)
    if setting.arch.output_buffers == 2:
        total_us += dma(None, None, visits[-1])
    return total_us


# --- one mapping -----------------------------------------------------------------------------------------------------


def core_latencies(arch: MulticoreSpec, problem: GemmProblem, mapping: MulticoreMapping) -> dict[Block, float]:
    """Latency of a core by the shape of its block, in us; the full block comes first."""
    setting = _Setting(arch, problem, mapping.partition)
    blocks = dict.fromkeys(block for _, block in setting.cores())
    return {
        block: _time_core(setting, _Work(setting, block), mapping.tile, mapping.loop_order).latency_us
        for block in blocks
    }


def breakdown_of(arch: MulticoreSpec, problem: GemmProblem, mapping: MulticoreMapping) -> tuple[dict[str, float], str]:
    """Where the time of a full block goes, term by term in us, and what bounds it: MODEL.md, "Terms and bound"."""
    setting = _Setting(arch, problem, mapping.partition)
    work, bits, E_K = _Work(setting, setting.block), setting.bits, setting.grid.E_K
    counts = count_core(setting, work, mapping.tile, mapping.loop_order)
    time = _time_core(setting, work, mapping.tile, mapping.loop_order)
    c_bytes = _bytes(counts.c_store, setting.store_bits) + 2 * _bytes(counts.c_spill, bits.accumulator)
    b_bytes = _bytes(counts.b, bits.b) + _bytes(counts.scales, bits.group)
    vector_ops_per_us = (arch.vector_ops_per_cycle or 1.0) * setting.cycles_per_us
    share = _ceil_div(work.c, E_K)
    terms = {
        "launch_us": arch.launch_us,
        "matrix_us": counts.cube_steps / setting.steps_per_cycle / setting.cycles_per_us,
        "fill_drain_us": counts.visits * arch.fill_drain_cycles / setting.cycles_per_us,
        "vector_us": counts.dequant * (arch.dequant_ops_per_elem or 0.0) / vector_ops_per_us,
        "dram_a_us": _charged(setting, _bytes(counts.a, bits.a), 0, 0, 0) / setting.share,
        "dram_b_us": _charged(setting, 0, b_bytes, 0, 0) / setting.share,
        "dram_c_us": _charged(setting, 0, 0, 0, c_bytes) / setting.share,
        "noc_wait_us": max(0.0, time.noc_us - time.dram_us),
    }
    busy_us = sum(us for name, us in terms.items() if name != "launch_us")
    is_noc = E_K > 1 and arch.reduction == "noc"
    reduction = {
        "reduction_dram_us": work.reduction_dram_bytes / setting.share,
        "reduction_noc_us": _bytes((E_K - 1) * share, bits.accumulator) / setting.port if is_noc else 0.0,
        "reduction_add_us": (E_K - 1) * share / vector_ops_per_us,
    }
    if time.reduction_us > max(time.main_us, arch.launch_us):
        bound = "reduction"
    elif arch.launch_us > time.main_us:
        bound = "launch"
    elif time.compute_us >= time.dma_us:
        bound = "vector" if terms["vector_us"] > terms["matrix_us"] + terms["fill_drain_us"] else "compute"
    else:
        bound = "noc" if time.noc_us > time.dram_us else "dram"
    return {**terms, "hidden_us": time.main_us - busy_us, **reduction}, bound


def evaluate_mapping(arch: MulticoreSpec, problem: GemmProblem, mapping: MulticoreMapping) -> NaiveCost:
    """Cost of one mapping, which may need more SRAM than there is.

    Raises:
        ValueError: the arch cannot run the problem, or the mapping breaks a rule other than that of SRAM.
    """
    if not is_legal(arch, problem, mapping, must_fit_sram=False):
        raise ValueError(f"illegal on {arch.name} for {problem}: {mapping}")
    partition, tile, order = mapping
    setting = _Setting(arch, problem, partition)
    bits, grid = setting.bits, setting.grid
    a = b = scales = store = spill = refill = reduction = reduction_noc = moved = cube_steps = 0
    times: dict[Block, _CoreTime] = {}
    for (_, p_m, p_n, p_k), block in setting.cores():
        work = _Work(setting, block)
        counts = count_core(setting, work, tile, order)
        if block not in times:
            times[block] = _time_core(setting, work, tile, order)
        a_bytes, b_bytes = _bytes(counts.a, bits.a), _bytes(counts.b, bits.b)
        s_bytes = _bytes(counts.scales, bits.group)
        store_bytes = _bytes(counts.c_store, setting.store_bits)
        spill_bytes, refill_bytes = _bytes(counts.c_spill, bits.accumulator), _bytes(counts.c_refill, bits.accumulator)
        moved += a_bytes + b_bytes + s_bytes + store_bytes + spill_bytes + refill_bytes
        cube_steps += counts.cube_steps
        # Of the cores that share a slice under multicast, the first one has the full block along the shared dimension.
        if not setting.is_multicast or p_n == 0:
            a += a_bytes
        if not setting.is_multicast or p_m == 0:
            b += b_bytes
            scales += s_bytes
        store, spill, refill = store + store_bytes, spill + spill_bytes, refill + refill_bytes
        if grid.E_K > 1 and p_k == 0:
            reduction += _bytes(work.c, bits.output)
            if arch.reduction == "dram":
                reduction += _bytes(grid.E_K * work.c, bits.accumulator)
            else:
                reduction_noc += _bytes((grid.E_K - 1) * work.c, bits.accumulator)

    full, full_work = times[setting.block], _Work(setting, setting.block)
    slowest = max(times.values(), key=lambda time: time.latency_us)
    busiest = setting.active_cores * (full.charged_bytes + full_work.reduction_dram_bytes)
    sram = sram_used_bytes(arch, problem, tile)
    key = _key_of(slowest.latency_us, busiest, setting.active_cores, full.visits, sram, mapping)
    dram = a + b + scales + store + spill + refill + reduction
    energy = _energy_pj(setting, dram, moved, reduction, reduction_noc, cube_steps, slowest.latency_us)
    times_us = (slowest.compute_us, slowest.dram_us, slowest.noc_us, slowest.dma_us, slowest.reduction_us)
    return NaiveCost(
        slowest.latency_us, slowest.main_us, *times_us, busiest, setting.active_cores, full.visits, sram,
        a, b, scales, store, spill, refill, reduction, reduction_noc, dram, energy, key,
    )  # fmt: skip


def _key_of(
    latency_us: float, busiest_bytes: float, active_cores: int, visits: int, sram_bytes: int, mapping: MulticoreMapping
) -> Key:
    (P_G, P_M, P_N, P_K), tile, order = mapping
    return latency_us, busiest_bytes, active_cores, visits, sram_bytes, (P_K, P_G, P_M, P_N), int(order), *tile


def _energy_pj(
    setting: _Setting,
    dram_bytes: int,
    moved_bytes: int,
    reduction_bytes: int,
    reduction_noc_bytes: int,
    cube_steps: int,
    latency_us: float,
) -> float | None:
    """Energy of the chip, None when the spec lacks a term.

    The DRAM bytes of the reduction go through a core's port and SRAM like those of the main loop; a partial sum sent
    from core to core leaves one and enters another.
    """
    arch, problem, bits = setting.arch, setting.problem, setting.bits
    mac_pj = arch.mac_pj.get(problem.input_dtype)
    if mac_pj is None or arch.sram_pj_per_byte is None or arch.dram_pj_per_byte is None:
        return None
    if arch.noc_gb_per_s is not None and arch.noc_pj_per_byte is None:
        return None
    core_bytes = moved_bytes + reduction_bytes + 2 * reduction_noc_bytes
    step_elems = arch.cube_m * setting.cube_k + setting.cube_k * arch.cube_n
    operand_bytes = cube_steps * step_elems * bits.a / 8
    noc_pj = 0.0
    if arch.noc_gb_per_s is not None:
        assert arch.noc_pj_per_byte is not None
        noc_pj = core_bytes * arch.noc_pj_per_byte
    pj_per_us = arch.static_w * 1e6  # 1 W = 1e12 pJ/s
    return (
        problem.G * problem.M * problem.N * problem.K * mac_pj
        + dram_bytes * arch.dram_pj_per_byte
        + (core_bytes + operand_bytes) * arch.sram_pj_per_byte
        + noc_pj
        + pj_per_us * latency_us
    )


# --- every mapping ---------------------------------------------------------------------------------------------------

Best = tuple[MulticoreMapping, NaiveCost]
_Best = tuple[Key, MulticoreMapping]


class _Space:
    """The mappings of one partition, and the comparison of one of them with the best so far."""

    def __init__(self, arch: MulticoreSpec, problem: GemmProblem, partition: Partition) -> None:
        self.partition = partition
        self.setting = setting = _Setting(arch, problem, partition)
        # The full block is the first one.
        self.works = [_Work(setting, block) for block in dict.fromkeys(block for _, block in setting.cores())]
        _, m, n, k = setting.block
        units = units_of(arch, problem)
        self.sizes_m, self.sizes_n = legal_tile_sizes(m, units.tile_m), legal_tile_sizes(n, units.tile_n)
        self.sizes_k = legal_tile_sizes(k, units.tile_k)

    def better(self, best: _Best | None, tile: Tile, sram: int) -> _Best | None:
        """The better one of `best` and of `tile` in each of the six loop orders."""
        setting = self.setting
        for order in range(6):
            full = _time_core(setting, self.works[0], tile, order)
            if best is not None and full.latency_us > best[0][0]:
                continue  # the slowest core can only be slower still
            latency_us = full.latency_us
            for work in self.works[1:]:
                latency_us = max(latency_us, _time_core(setting, work, tile, order).latency_us)
            busiest = setting.active_cores * (full.charged_bytes + self.works[0].reduction_dram_bytes)
            mapping = MulticoreMapping(self.partition, tile, LoopOrder(order))
            key = _key_of(latency_us, busiest, setting.active_cores, full.visits, sram, mapping)
            if best is None or key < best[0]:
                best = key, mapping
        return best


def find_best(arch: MulticoreSpec, problem: GemmProblem, *, allow_idle_cores: bool = False) -> Best | None:
    """Try every partition, legal tile and loop order; return the best mapping and its cost, None when nothing fits.

    Raises:
        ValueError: the arch cannot run the problem.
    """
    limit = _sram_limit(arch)
    best: _Best | None = None
    for space in _spaces(arch, problem, allow_idle_cores):
        for tile_m in space.sizes_m:
            for tile_n in space.sizes_n:
                for tile_k in space.sizes_k:
                    tile = Tile(tile_m, tile_n, tile_k)
                    sram = _sram_used(space.setting, tile)
                    if sram > limit:
                        break  # a longer tile does not fit either
                    best = space.better(best, tile, sram)
    return None if best is None else (best[1], evaluate_mapping(arch, problem, best[1]))


def _spaces(arch: MulticoreSpec, problem: GemmProblem, allow_idle_cores: bool) -> Iterator[_Space]:
    for row in enumerate_partitions(arch.num_cores, allow_idle_cores=allow_idle_cores).tolist():
        partition = Partition(*row)
        if arch.reduction != "none" or _grid_of(problem, full_block(problem, partition)).E_K == 1:
            yield _Space(arch, problem, partition)
