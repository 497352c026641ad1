"""Slow truth of cost model 1: simulators that walk every loop, remember what lies in SRAM, and count.

Nothing here is a closed form of reuse. What an operand costs follows from which tile is resident when the next one is
needed; what a pipeline costs follows from two engines and a clock. Sizes are in elements, always g, m, n, k for
blocks and M, N, K for the tile loops.
"""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gemm_eval.arch import MulticoreSpec
from gemm_eval.dtypes import DType
from gemm_eval.mapping import LoopOrder, Tile
from gemm_eval.workload import GemmProblem

__all__ = ["ActiveGrid", "Bits", "Block", "Visit"]
__all__ += ["Core", "Transfer"]
__all__ += ["bits_of", "bytes_of", "ceil_div", "cut", "partial_bits", "run_pipeline", "walk_visits"]


class Block(NamedTuple):
    """What one core computes: g batch elements of an m x n part of C, over k of the reduction."""

    g: int
    m: int
    n: int
    k: int


class ActiveGrid(NamedTuple):
    """Blocks that hold work, along each dimension."""

    E_G: int
    E_M: int
    E_N: int
    E_K: int

    @property
    def active_cores(self) -> int:
        """Cores with a block of their own."""
        return self.E_G * self.E_M * self.E_N * self.E_K


class Bits(NamedTuple):
    """Storage of one element of each kind, in half bits; `group` is a scale and its zero point, 0 for dense weights."""

    a: int
    b: int
    group: int
    accumulator: int
    output: int


class Visit(NamedTuple):
    """One visit to a tile. Loads and the refill come before it, spill and store leave after it. Counts of elements."""

    a_load: int
    b_load: int
    s_load: int  # group elements: one scale (and zero point) each
    c_refill: int
    c_spill: int
    c_store: int
    cube_steps: int
    dequant: int  # weights that the vector unit converts
    fills: int  # blocks of B that the matrix unit loads


def bits_of(problem: GemmProblem) -> Bits:
    """Half bits of one element of A, B, a quantization group, the accumulator and C of `problem`."""
    assert problem.weight_dtype is not None
    assert problem.accumulator_dtype is not None
    assert problem.output_dtype is not None
    group = 0
    if problem.is_weight_quantized:
        assert problem.scale_dtype is not None
        group = 2 * problem.scale_dtype.bits
        if problem.zero_dtype is not None:
            group += 2 * problem.zero_dtype.bits
    a, b, c = (_half_bits(dtype) for dtype in (problem.input_dtype, problem.weight_dtype, problem.output_dtype))
    return Bits(a, b, group, 2 * problem.accumulator_dtype.bits, c)


def _half_bits(dtype: DType) -> int:
    """Of an element; of block floats 16 share an exponent of 8 bits."""
    return 2 * dtype.bits + (dtype in (DType.BFP8, DType.BFP4))


def partial_bits(arch: MulticoreSpec, problem: GemmProblem) -> int:
    """Half bits of a sum that is not complete, where it leaves a core."""
    assert problem.accumulator_dtype is not None
    return _half_bits(arch.partial_dtype.get(problem.input_dtype, problem.accumulator_dtype))


# --- (a) one core's loops --------------------------------------------------------------------------------------------


def walk_visits(
    arch: MulticoreSpec, problem: GemmProblem, block: Block, tile: Tile, order: LoopOrder, *, k_start: int = 0
) -> Iterator[Visit]:
    """Walk the batch loop and the three tile loops of one core, visit by visit.

    Args:
        block: sizes of the core's block; a block smaller than the tile is one tile.
        k_start: where the block begins along K, which decides the quantization groups that its tiles touch.
    """
    cuts = {"M": cut(block.m, tile.tile_m), "N": cut(block.n, tile.tile_n), "K": cut(block.k, tile.tile_k)}
    nest = LoopOrder(order).name
    depth = {loop: 1 + nest.index(loop) for loop in "MNK"}
    path = itertools.product(range(block.g), *(range(len(cuts[loop])) for loop in nest))

    group = problem.group_size if problem.group_size is not None else problem.K
    converts = problem.is_weight_quantized and arch.dequant == "vector"
    cube_k = arch.cube_k_of(problem.input_dtype)
    resident_a: tuple[int, ...] | None = None
    resident_b: tuple[int, ...] | None = None
    resident_c: tuple[int, ...] | None = None
    done_k: dict[tuple[int, ...], int] = {}  # C tile -> elements of k that it has summed so far

    # None follows the last visit, so that the last C tile is seen to leave.
    for here, after in itertools.pairwise(itertools.chain(path, [None])):
        assert here is not None
        batch, i_m, i_n, i_k = here[0], here[depth["M"]], here[depth["N"]], here[depth["K"]]
        (m0, m1), (n0, n1), (k0, k1) = cuts["M"][i_m], cuts["N"][i_n], cuts["K"][i_k]
        rows, columns, length = m1 - m0, n1 - n0, k1 - k0

        a_load = b_load = s_load = c_refill = c_spill = c_store = 0
        if resident_a != (batch, i_m, i_k):
            resident_a = (batch, i_m, i_k)
            a_load = rows * length
        if resident_b != (batch, i_k, i_n):
            resident_b = (batch, i_k, i_n)
            b_load = length * columns
            if problem.is_weight_quantized:
                first_group, last_group = (k_start + k0) // group, (k_start + k1 - 1) // group
                s_load = (last_group - first_group + 1) * columns
        tile_c = (batch, i_m, i_n)
        if resident_c != tile_c:
            resident_c = tile_c
            if tile_c in done_k:  # it was here before and left unfinished
                c_refill = rows * columns
        done_k[tile_c] = done_k.get(tile_c, 0) + length
        if after is None or tile_c != (after[0], after[depth["M"]], after[depth["N"]]):
            if done_k[tile_c] == block.k:
                c_store = rows * columns
            else:
                c_spill = rows * columns

        cube_steps = ceil_div(rows, arch.cube_m) * ceil_div(columns, arch.cube_n) * ceil_div(length, cube_k)
        fills = ceil_div(columns, arch.cube_n) * ceil_div(length, cube_k)
        yield Visit(a_load, b_load, s_load, c_refill, c_spill, c_store, cube_steps, b_load if converts else 0, fills)


def cut(size: int, step: int) -> list[tuple[int, int]]:
    """Ranges [start, stop) of `step` elements that cover `size`; the last one is what remains."""
    return [(start, min(start + step, size)) for start in range(0, size, step)]


def bytes_of(elements: int, half_bits: int) -> int:
    """Return whole bytes of elements of so many half bits."""
    return ceil_div(elements * half_bits, 16)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


# --- (b) one core's pipeline -----------------------------------------------------------------------------------------


class Transfer(NamedTuple):
    """Bytes of one DMA job. Fractions of a byte are kept: a visit to a 4-bit tile may move half a byte."""

    a: float = 0.0
    b: float = 0.0
    s: float = 0.0
    c: float = 0.0
    sharers: int | None = None  # cores that share B, where it is not all along M


class _Phase(NamedTuple):
    """Jobs that start together; the next phase starts when all have ended (the barrier)."""

    dma: Transfer
    lands: int | None = None  # visit whose tiles are in SRAM when the DMA job has ended
    computes: int | None = None  # visit that the compute engine works on


class Core:
    """Speeds of one core of an arch, for one problem and grid of active cores."""

    def __init__(self, arch: MulticoreSpec, problem: GemmProblem, grid: ActiveGrid) -> None:
        self.arch = arch
        self.problem = problem
        self.grid = grid
        self.bits = bits_of(problem)
        divisor = arch.num_cores if arch.dram_sharing == "static" else grid.active_cores
        limit = math.inf if arch.dram_core_limit_gb_per_s is None else arch.dram_core_limit_gb_per_s * 1e3
        write = arch.dram_gb_per_s if arch.dram_write_gb_per_s is None else arch.dram_write_gb_per_s
        self.dram_bytes_per_us = min(arch.dram_gb_per_s * 1e3 * arch.dram_efficiency_frac / divisor, limit)
        self.write_bytes_per_us = min(write * 1e3 * arch.dram_efficiency_frac / divisor, limit)
        self.shared_bytes_per_us = math.inf if arch.shared_gb_per_s is None else arch.shared_gb_per_s * 1e3 / divisor
        self.port_bytes_per_us = math.inf if arch.noc_gb_per_s is None else arch.noc_gb_per_s * 1e3
        self.cycles_per_us = arch.frequency_ghz * arch.load_clock_frac.get(problem.input_dtype, 1.0) * 1e3
        self.partial = partial_bits(arch, problem)
        self.feed_us_per_step = 0.0
        if arch.feed_bytes_per_cycle is not None:
            cube_k, b_bits = arch.cube_k_of(problem.input_dtype), self.bits.a
            if arch.dequant == "inline":
                b_bits = self.bits.b
            half_bits = arch.cube_m * cube_k * self.bits.a + cube_k * arch.cube_n * b_bits
            self.feed_us_per_step = half_bits / 16 / arch.feed_bytes_per_cycle / self.cycles_per_us
        if grid.E_K == 1:
            self.store_bits = self.bits.output
        elif arch.reduction == "dram":
            self.store_bits = self.partial
        else:
            self.store_bits = 0  # partial sums stay in SRAM until the reduction sends them

    def dma_us(self, x: Transfer) -> float:
        """Time of a DMA job: DRAM and the port work at the same time, and the slower one decides."""
        everything = x.a + x.b + x.s + x.c
        charged = everything
        if self.arch.load_sharing == "multicast":
            charged = x.a / self.grid.E_N + (x.b + x.s) / (x.sharers or self.grid.E_M) + x.c
        if self.arch.noc_gb_per_s is None:
            return charged / self.dram_bytes_per_us
        return max(charged / self.dram_bytes_per_us, everything / (self.arch.noc_gb_per_s * 1e3))

    def compute_us(self, cube_steps: int, visits: int, dequant: int, fills: int) -> float:
        """Time of the compute engine: the matrix unit, and the vector unit beside it or after it."""
        steps_per_cycle = self.arch.cube_steps_per_cycle[self.problem.input_dtype]
        cube_cycles = cube_steps / steps_per_cycle + (
            visits * self.arch.fill_drain_cycles + fills * self.arch.weight_load_cycles
        )
        vector_cycles = 0.0
        if dequant > 0:
            assert self.arch.dequant_ops_per_elem is not None
            assert self.arch.vector_ops_per_cycle is not None
            vector_cycles = dequant * self.arch.dequant_ops_per_elem / self.arch.vector_ops_per_cycle
        cycles = max(cube_cycles, vector_cycles) if self.arch.vector_is_concurrent else cube_cycles + vector_cycles
        return cycles / self.cycles_per_us

    def load_of(self, visit: Visit, sharers: int | None) -> Transfer:
        """Tiles of A, B and S that change at a visit."""
        bits = self.bits
        loads = visit.a_load * bits.a / 16, visit.b_load * bits.b / 16, visit.s_load * bits.group / 16
        return Transfer(*loads, sharers=sharers)

    def c_bytes_of(self, refilled: Visit | None, leaving: Visit | None) -> float:
        """Bytes of the C tile fetched for one visit and of the C tile that leaves after another."""
        refill = 0.0 if refilled is None else refilled.c_refill * self.partial / 16
        spill = 0.0 if leaving is None else leaving.c_spill * self.partial / 16
        store = 0.0 if leaving is None else leaving.c_store * self.store_bits / 16
        return refill + (spill + store)


def run_pipeline(core: Core, visits: Sequence[Visit], sharers: Sequence[int | None]) -> float:
    """Run visits through the engines, `sharers` cores sharing the tile of B of each; return the end in us."""
    phases = deque(_schedule(core, visits, sharers))
    landed: set[int] = set()
    working: dict[str, _Phase] = {}  # engine -> the phase that keeps it busy
    events: list[tuple[float, str]] = []  # (end of a job, engine)
    clock = 0.0
    while phases or working:
        if not working:  # the barrier is open
            phase = phases.popleft()
            working["dma"] = phase
            heapq.heappush(events, (clock + core.dma_us(phase.dma), "dma"))
            if phase.computes is not None:
                assert phase.computes in landed, f"visit {phase.computes} computes before its tiles have landed"
                visit = visits[phase.computes]
                working["compute"] = phase
                heapq.heappush(
                    events, (clock + core.compute_us(visit.cube_steps, 1, visit.dequant, visit.fills), "compute")
                )
        clock, engine = heapq.heappop(events)
        ended = working.pop(engine)
        if engine == "dma" and ended.lands is not None:
            landed.add(ended.lands)
    return clock


def _schedule(core: Core, visits: Sequence[Visit], sharers: Sequence[int | None]) -> Iterator[_Phase]:
    """The order in which a double-buffered loop hands its jobs to the engines."""
    last = len(visits) - 1
    yield _Phase(core.load_of(visits[0], sharers[0]), lands=0)
    for s in range(last + 1):
        before = visits[s - 1] if s > 0 else None
        after = visits[s + 1] if s < last else None
        load = Transfer() if after is None else core.load_of(after, sharers[s + 1])
        lands = None if after is None else s + 1
        if core.arch.output_buffers == 2:
            yield _Phase(load._replace(c=core.c_bytes_of(after, before)), lands, computes=s)
        else:
            # The only C buffer is busy while visit s computes, so C tiles change in a phase of their own.
            yield _Phase(load, computes=s)
            yield _Phase(Transfer(c=core.c_bytes_of(after, visits[s])), lands)
    if core.arch.output_buffers == 2:
        yield _Phase(Transfer(c=core.c_bytes_of(None, visits[last])))
