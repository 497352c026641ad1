"""Slow truth of cost model 1, one core: which tiles are legal, what a core moves, the terms of its time.

As `naive`, which costs whole mappings by it: from MODEL.md alone, float operations in its order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from gemm_eval.arch import MulticoreSpec
from gemm_eval.mapping import LoopOrder, MulticoreMapping, Partition, Tile
from gemm_eval.workload import GemmProblem
from tests.oracle import packing
from tests.oracle.simulators import ActiveGrid, Bits, Block, Visit, bits_of, partial_bits, walk_visits


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
    fills: int
    """Loads of a block of B into the matrix unit."""


# --- what is legal ---------------------------------------------------------------------------------------------------


def can_run(arch: MulticoreSpec, problem: GemmProblem) -> bool:
    """Whether the arch takes the data types at all."""
    has_type = problem.input_dtype in arch.cube_steps_per_cycle
    return has_type and not (problem.is_weight_quantized and arch.dequant == "none")


def full_block(problem: GemmProblem, partition: Partition) -> Block:
    """Sizes of a full block of the partition."""
    q = 1 if problem.group_size is None else problem.group_size
    return Block(
        g=ceil_div(problem.G, partition.P_G),
        m=ceil_div(problem.M, partition.P_M),
        n=ceil_div(problem.N, partition.P_N),
        k=min(problem.K, ceil_div(ceil_div(problem.K, q), partition.P_K) * q),
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
    return sram_used(Setting(arch, problem, Partition(1, 1, 1, 1)), tile)


def sram_used(setting: Setting, tile: Tile) -> int:
    arch, bits = setting.arch, setting.bits
    tile_m, tile_n, tile_k = tile
    a = _padded_bytes(arch, tile_m, tile_k * bits.a)
    b = _padded_bytes(arch, tile_k, tile_n * bits.b)
    c = _padded_bytes(arch, tile_m, tile_n * bits.accumulator)
    s = d = 0
    if setting.is_quantized:
        s = _padded_bytes(arch, ceil_div(tile_k, setting.group), tile_n * bits.group)
        if setting.is_dequantized:
            d = _padded_bytes(arch, tile_k, tile_n * bits.a)
    copies_a, copies_b = (arch.tile_buffers.get(name, arch.input_buffers) for name in ("A", "B"))
    return copies_a * a + copies_b * (b + s) + d + arch.tile_buffers.get("C", arch.output_buffers) * c


def is_legal(
    arch: MulticoreSpec, problem: GemmProblem, mapping: MulticoreMapping, *, must_fit_sram: bool = True
) -> bool:
    """Whether `mapping` keeps every rule (without `must_fit_sram`: every rule but that of SRAM)."""
    partition, tile, _ = mapping
    if not can_run(arch, problem) or min(partition) < 1 or math.prod(partition) > arch.num_cores:
        return False
    block, units = full_block(problem, partition), units_of(arch, problem)
    if arch.reduction == "none" and grid_of(problem, block).E_K > 1:
        return False
    for tile_size, block_size, unit in zip(tile, (block.m, block.n, block.k), units, strict=True):
        if tile_size not in legal_tile_sizes(block_size, unit):
            return False
    return not must_fit_sram or sram_used_bytes(arch, problem, tile) <= sram_limit_bytes(arch, problem)


def sram_limit_bytes(arch: MulticoreSpec, problem: GemmProblem) -> int:
    """SRAM that is left for the tiles of a core."""
    usable = math.floor(arch.sram_bytes * arch.sram_usable_frac)
    return usable - _resident_bytes(arch, problem) if residents(arch, problem) else usable


def residents(arch: MulticoreSpec, problem: GemmProblem) -> set[str]:
    """The operands that lie in the SRAM of all cores."""
    usable = math.floor(arch.sram_bytes * arch.sram_usable_frac)
    fits = _resident_bytes(arch, problem) <= math.floor(usable * arch.resident_max_frac)
    return set(arch.resident) if fits else set()


def _resident_bytes(arch: MulticoreSpec, problem: GemmProblem) -> int:
    """A core's part of them."""
    bits = bits_of(problem)
    groups = [problem.M] * problem.G if problem.row_groups is None else [rows for rows in problem.row_groups if rows]
    rows = sum(groups)
    sizes = {"A": rows * problem.K * bits.a, "B": len(groups) * problem.K * problem.N * bits.b}
    sizes["C"] = rows * problem.N * bits.output
    return ceil_div(sum(sizes[name] for name in arch.resident), 16 * arch.num_cores)


def _padded_bytes(arch: MulticoreSpec, rows: int, row_bits: int) -> int:
    padded_rows = ceil_div(rows, arch.lane_num) * arch.lane_num
    row_bytes = ceil_div(ceil_div(row_bits, 16), arch.align_bytes) * arch.align_bytes
    return padded_rows * row_bytes


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def bytes_of(elements: int, bits: int) -> int:
    return (elements * bits + 15) // 16


# --- what one core moves ---------------------------------------------------------------------------------------------


def passes(order: LoopOrder, trips: dict[str, int], indexed_by: str) -> int:
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
    return (passes(order, trips, "MK") > 1, passes(order, trips, "NK") > 1, passes(order, trips, "MN") > 1)


_FLAGS = (False, True)
# [order][T_m > 1][T_n > 1][T_k > 1]: whether A is loaded T_n times, B is loaded T_m times, C leaves T_k times. Only the
# pattern of loops with more than one trip decides that, so a search need not derive it for each of its candidates.
_REPEATED = [[[[_is_repeated(order, m, n, k) for k in _FLAGS] for n in _FLAGS] for m in _FLAGS] for order in LoopOrder]


class Setting:
    """What does not change within one partition: blocks, sharing and speeds."""

    def __init__(self, arch: MulticoreSpec, problem: GemmProblem, partition: Partition) -> None:
        if not can_run(arch, problem):
            raise ValueError(f"{arch.name} cannot run {problem}")
        self.arch = arch
        self.problem = problem
        self.block = full_block(problem, partition)
        self.grid = grid_of(problem, self.block)
        self.active_cores = self.grid.active_cores
        self.bits: Bits = bits_of(problem)
        self.partial = partial_bits(arch, problem)
        self.residents = residents(arch, problem)
        self.store_bits = self.bits.output
        if self.grid.E_K > 1:  # partial sums: stored for the exchange through DRAM, kept for the one over the network
            self.store_bits = self.partial if arch.reduction == "dram" else 0
        self.is_multicast = arch.load_sharing == "multicast"
        self.is_quantized = problem.is_weight_quantized
        self.is_dequantized = self.is_quantized and arch.dequant == "vector"
        self.group = problem.K if problem.group_size is None else problem.group_size
        self.cube_k = arch.cube_k_of(problem.input_dtype)
        self.steps_per_cycle = arch.cube_steps_per_cycle[problem.input_dtype]
        self.cycles_per_us = arch.frequency_ghz * arch.load_clock_frac.get(problem.input_dtype, 1.0) * 1e3
        divisor = arch.num_cores if arch.dram_sharing == "static" else self.active_cores
        self.share = arch.dram_gb_per_s * 1e3 * arch.dram_efficiency_frac / divisor
        if arch.dram_core_limit_gb_per_s is not None:
            self.share = min(self.share, arch.dram_core_limit_gb_per_s * 1e3)
        self.write_cost = self.share / write_share(arch, divisor)
        self.shared_share = math.inf if arch.shared_gb_per_s is None else arch.shared_gb_per_s * 1e3 / divisor
        self.feed_us_per_step = 0.0
        if arch.feed_bytes_per_cycle is not None:
            b_bits = self.bits.b if arch.dequant == "inline" else self.bits.a
            step_bytes = (arch.cube_m * self.cube_k * self.bits.a + self.cube_k * arch.cube_n * b_bits) / 16
            self.feed_us_per_step = step_bytes / arch.feed_bytes_per_cycle / self.cycles_per_us
        # Bytes over an infinitely fast port take no time, as without a network.
        self.port = math.inf if arch.noc_gb_per_s is None else arch.noc_gb_per_s * 1e3

    def cores(self) -> Iterator[tuple[tuple[int, ...], Block]]:
        """Every core that has work: its place (p_g, p_m, p_n, p_k) and its block, cut at the edge of the matrix."""
        full, sizes = self.block, _sizes_of(self.problem)
        for place in itertools.product(*(range(count) for count in self.grid)):
            yield place, Block(*(min(f, size - p * f) for f, size, p in zip(full, sizes, place, strict=True)))


def write_share(arch: MulticoreSpec, divisor: int) -> float:
    """Bandwidth of a core that writes, in bytes per us."""
    gb_per_s = arch.dram_gb_per_s if arch.dram_write_gb_per_s is None else arch.dram_write_gb_per_s
    share = gb_per_s * 1e3 * arch.dram_efficiency_frac / divisor
    return share if arch.dram_core_limit_gb_per_s is None else min(share, arch.dram_core_limit_gb_per_s * 1e3)


def _sizes_of(problem: GemmProblem) -> Block:
    return Block(problem.G, problem.M, problem.N, problem.K)


def grid_of(problem: GemmProblem, full: Block) -> ActiveGrid:
    sizes = _sizes_of(problem)
    return ActiveGrid(*(ceil_div(size, step) for size, step in zip(sizes, full, strict=True)))


class Work:
    """What does not change for one core, whatever its tile and loop order."""

    def __init__(self, setting: Setting, block: Block) -> None:
        arch, bits = setting.arch, setting.bits
        g, m, n, k = block
        self.block = block
        self.cube_steps = g * ceil_div(m, arch.cube_m) * ceil_div(n, arch.cube_n) * ceil_div(k, setting.cube_k)
        self.a, self.b, self.c = g * m * k, g * k * n, g * m * n
        group_size = setting.problem.group_size
        # Rows of scales that a pass over B loads; None: one per tile along K.
        self.scale_rows = None if group_size is None else ceil_div(k, group_size)
        self.fills = g * ceil_div(n, arch.cube_n) * ceil_div(k, setting.cube_k)  # for each trip of m
        self.reduction_us = 0.0
        self.reduction_dram_bytes = 0.0
        E_K = setting.grid.E_K
        if E_K > 1:
            assert arch.vector_ops_per_cycle is not None
            share = ceil_div(self.c, E_K)
            written = 0.0 if "C" in setting.residents else bytes_of(share, bits.output) * setting.write_cost
            if arch.reduction == "dram":
                self.reduction_dram_bytes = written + bytes_of(E_K * share, setting.partial)
                self.reduction_us = self.reduction_dram_bytes / setting.share
            else:
                self.reduction_dram_bytes = written
                sent_us = bytes_of((E_K - 1) * share, setting.partial) / setting.port
                self.reduction_us = sent_us + self.reduction_dram_bytes / setting.share
            self.reduction_us += (E_K - 1) * share / arch.vector_ops_per_cycle / setting.cycles_per_us


def count_core(setting: Setting, work: Work, tile: Tile, order: int) -> CoreCounts:
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
        T_m * work.fills,
    )


# --- how long it takes -----------------------------------------------------------------------------------------------


def tasks_us(arch: MulticoreSpec, blocks: Iterable[Block], tile: Tile) -> float:
    """Time to start the tasks of a core after its first: MODEL.md, "Latency of a core"."""
    return (sum(block.g * ceil_div(block.m, tile.tile_m) for block in blocks) - 1) * arch.task_us


def packed_by(setting: Setting, block: Block) -> packing.Packed:
    """What a core packs."""
    return packing.Packed(block, setting.grid.E_N, setting.grid.E_M)


class Moved(NamedTuple):
    """Bytes of a core as DRAM, the memory between DRAM and SRAM, and the core's port count them."""

    dram: float
    shared: float
    port: float


def loads_of(setting: Setting, a_bytes: float, b_bytes: float) -> tuple[float, float]:
    """Bytes of A, and of B with its scales, as memories below the core count them."""
    if setting.is_multicast:
        a_bytes, b_bytes = a_bytes / setting.grid.E_N, b_bytes / setting.grid.E_M
    return 0.0 if "A" in setting.residents else float(a_bytes), 0.0 if "B" in setting.residents else float(b_bytes)


def c_of(setting: Setting, stored: float, spilled: float) -> Moved:
    """What bytes of C pass that are stored, and others that are spilled and refilled."""
    if "C" in setting.residents:
        spilled = 0.0
        if setting.grid.E_K == 1:  # else they are partial results, which DRAM brings together
            stored = 0.0
    written = spilled + stored
    return Moved(written * setting.write_cost + spilled, written + spilled, written + spilled)


def core_dram(setting: Setting, work: Work, tile: Tile, order: int, part: float) -> tuple[float, float, float]:
    """DRAM bytes of A, of B and of spills of a core whose shared memory keeps `part` of what DRAM would give again."""
    counts, bits = count_core(setting, work, tile, order), setting.bits
    loads = loads_of(
        setting, bytes_of(counts.a, bits.a), bytes_of(counts.b, bits.b) + bytes_of(counts.scales, bits.group)
    )
    once_a, once_b = once_of(work, setting)
    once = 0.0 if "A" in setting.residents else once_a / setting.grid.E_N, 0.0 if "B" in setting.residents else once_b
    spill = 0.0 if "C" in setting.residents else float(bytes_of(counts.c_spill, setting.partial))
    return without((*loads, spill), once, part)


def once_of(work: Work, setting: Setting) -> tuple[int, float]:
    """Bytes of A, and of B with its scales by the cores that share them, each loaded once."""
    rows = work.scale_rows if work.scale_rows is not None else 1
    scales = work.block.g * rows * work.block.n if setting.is_quantized else 0
    b_bytes = bytes_of(work.b, setting.bits.b) + bytes_of(scales, setting.bits.group)
    return bytes_of(work.a, setting.bits.a), b_bytes / setting.grid.E_M


def kept_part(setting: Setting, full: tuple[float, float, float], once: tuple[float, float], partial: float) -> float:
    """What part of all that DRAM would give again a shared memory keeps."""
    assert setting.arch.shared_bytes is not None
    wanted = 0.0
    if full[0] > once[0]:
        wanted += once[0]
    if full[1] > once[1]:
        wanted += once[1]
    if full[2] > 0:
        wanted += partial
    room = setting.arch.shared_bytes / setting.active_cores
    return 1.0 if wanted <= room else room / wanted


def without(full: tuple[float, float, float], once: tuple[float, float], part: float) -> tuple[float, float, float]:
    """What comes from DRAM where this part of the rest is kept."""
    rest = 1.0 - part
    return once[0] + rest * (full[0] - once[0]), once[1] + rest * (full[1] - once[1]), full[2] * rest


def charge_of(setting: Setting, a_bytes: float, b_bytes: float, c_bytes: float) -> float:
    if setting.is_multicast:
        return a_bytes / setting.grid.E_N + b_bytes / setting.grid.E_M + c_bytes
    return a_bytes + b_bytes + c_bytes


def compute_us(setting: Setting, cube_steps: int, visits: int, dequant: int, fills: int) -> float:
    arch = setting.arch
    cycles = cube_steps / setting.steps_per_cycle + (visits * arch.fill_drain_cycles + fills * arch.weight_load_cycles)
    if setting.is_dequantized:
        assert arch.dequant_ops_per_elem is not None
        assert arch.vector_ops_per_cycle is not None
        vector_cycles = dequant * arch.dequant_ops_per_elem / arch.vector_ops_per_cycle
        cycles = max(cycles, vector_cycles) if arch.vector_is_concurrent else cycles + vector_cycles
    return cycles / setting.cycles_per_us


def moved_us(setting: Setting, loads: Moved, c: Moved) -> float:
    """Time of moving these bytes."""
    return max(
        (loads.dram + c.dram) / setting.share,
        (loads.shared + c.shared) / setting.shared_share,
        (loads.port + c.port) / setting.port,
    )


def overlap_lead(setting: Setting, tile: Tile) -> tuple[int, int]:
    """Bytes of A, and of B with its scales, of one tile."""
    bits = setting.bits
    lead_b = bytes_of(tile.tile_k * tile.tile_n, bits.b)
    if setting.is_quantized:
        lead_b += bytes_of(ceil_div(tile.tile_k, setting.group) * tile.tile_n, bits.group)
    return bytes_of(tile.tile_m * tile.tile_k, bits.a), lead_b


def overlap_us(
    setting: Setting, block: Block, tile: Tile, loads: Moved, c: Moved, compute_us: float, all_dma_us: float
) -> float:
    """Compute and DMA side by side, but for the first loads, the last store, and what has only one buffer."""
    arch = setting.arch
    tile_m, tile_n, tile_k = min(tile.tile_m, block.m), min(tile.tile_n, block.n), min(tile.tile_k, block.k)
    lead = loads
    if arch.input_buffers == 2:
        lead_a, lead_b = overlap_lead(setting, Tile(tile_m, tile_n, tile_k))
        first = sum(loads_of(setting, lead_a, lead_b))
        lead = Moved(min(first, loads.dram), first, lead_a + lead_b)
    tail = c_of(setting, bytes_of(tile_m * tile_n, setting.store_bits), 0) if arch.output_buffers == 2 else c
    steps = ceil_div(tile_m, arch.cube_m) * ceil_div(tile_n, arch.cube_n) * ceil_div(tile_k, setting.cube_k)
    fills = ceil_div(tile_n, arch.cube_n) * ceil_div(tile_k, setting.cube_k)
    tile_cycles = steps / setting.steps_per_cycle + arch.fill_drain_cycles + fills * arch.weight_load_cycles
    tile_us = tile_cycles / setting.cycles_per_us
    best_us = max(all_dma_us, compute_us + moved_us(setting, lead, tail), tile_us + moved_us(setting, loads, tail))
    return (1 - arch.overlap_frac) * (compute_us + all_dma_us) + arch.overlap_frac * best_us


def pipeline_us(runs: Sequence[tuple[Setting, Block]], tile: Tile, order: LoopOrder) -> float:
    """The two sums of MODEL.md over the visits of all runs of a core, one after another, from left to right.

    A run is a batch, or groups of equal rows with what they share. Bytes of one visit may be fractions of a byte.
    """
    # All blocks begin on a group boundary, so that the start of the block does not matter for the scales.
    visits = [
        (visit, setting)
        for setting, block in runs
        for visit in walk_visits(setting.arch, setting.problem, block, tile, order)
    ]
    first = runs[0][0]
    bits = first.bits

    def dma(load: tuple[Visit, Setting] | None, refill: Visit | None, store: Visit | None) -> float:
        setting = first
        a_bytes = b_bytes = c_bytes = 0.0
        if load:
            visit, setting = load
            a_bytes, b_bytes = visit.a_load * bits.a / 16, (visit.b_load * bits.b + visit.s_load * bits.group) / 16
        if refill:
            c_bytes += refill.c_refill * setting.partial / 16
        if store:
            c_bytes += (store.c_spill * setting.partial + store.c_store * first.store_bits) / 16
        charged = charge_of(setting, a_bytes, b_bytes, c_bytes)
        return max(charged / setting.share, (a_bytes + b_bytes + c_bytes) / setting.port)

    total_us = dma(visits[0], None, None)
    for s, (visit, setting) in enumerate(visits):
        before = visits[s - 1][0] if s > 0 else None
        after = visits[s + 1] if s + 1 < len(visits) else None
        refill = after[0] if after else None
        comp_us = compute_us(setting, visit.cube_steps, 1, visit.dequant, visit.fills)
        if first.arch.output_buffers == 2:
            total_us += max(comp_us, dma(after, refill, before))
        else:
            total_us += max(comp_us, dma(after, None, None)) + dma(None, refill, visit)
    if first.arch.output_buffers == 2:
        total_us += dma(None, None, visits[-1][0])
    return total_us
