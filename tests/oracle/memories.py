"""Slow truth of what lies between SRAM and DRAM, of one core: MODEL.md, "DRAM, network and their times".

As `simulators`: bytes come from walks over loops; that an operand is loaded once is what a walk with the whole block as
one tile does.
"""

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import NamedTuple

from gemm_eval.arch import MulticoreSpec
from gemm_eval.mapping import LoopOrder, Tile
from gemm_eval.workload import GemmProblem
from tests.oracle.simulators import Block, Core, Visit, bits_of, bytes_of, walk_visits


class Run(NamedTuple):
    """Tile visits of equal batch elements or groups."""

    block: Block  # what the core computes of them
    sharers: int  # cores that need the same of B
    visits: list[Visit]  # in their order
    k_start: int  # where the block begins along K


class FromDram(NamedTuple):
    """Bytes that DRAM gives a core of A, of B with its scales, and of spills, each by the cores that share them."""

    a: float
    b: float
    spill: float


class _Bytes(NamedTuple):
    a: int
    b: int  # with its scales
    store: int
    spill: int


class _Pass(NamedTuple):
    """Bytes past DRAM, past the memory that cores share, and past the core's port."""

    dram: float
    shared: float
    port: float


def resident_bytes(arch: MulticoreSpec, problem: GemmProblem) -> int:
    """A core's part of the operands that the chip names as resident."""
    bits = bits_of(problem)
    groups = [rows for rows in problem.row_groups or (problem.M,) * problem.G if rows > 0]
    half_bits = {
        "A": sum(groups) * problem.K * bits.a,
        "B": len(groups) * problem.K * problem.N * bits.b,
        "C": sum(groups) * problem.N * bits.output,
    }
    return math.ceil(Fraction(sum(half_bits[name] for name in arch.resident), 16 * arch.num_cores))


def resident_operands(arch: MulticoreSpec, problem: GemmProblem) -> frozenset[str]:
    """The operands that lie in the SRAM of all cores, if all that the chip names have room there."""
    most = math.floor(math.floor(arch.sram_bytes * arch.sram_usable_frac) * arch.resident_max_frac)
    return frozenset(arch.resident) if resident_bytes(arch, problem) <= most else frozenset()


class Main(NamedTuple):
    """The main loop of a core: its time with overlap, and what it takes by itself."""

    main_us: float
    compute_us: float
    dram_us: float
    shared_us: float
    noc_us: float
    feed_us: float
    dma_us: float
    dram: FromDram
    c_dram: float
    """bytes of C that pass DRAM"""
    total: Visit
    visits: int

    @property
    def dram_bytes(self) -> float:
        """Bytes past DRAM."""
        return (self.dram.a + self.dram.b) + self.c_dram


class CoreMemory:
    """What one core asks of DRAM, of the memory that cores share and of its port, for one run after another."""

    def __init__(self, core: Core, E_N: int, resident: frozenset[str], runs: list[Run]) -> None:
        arch = core.arch
        self.core, self.E_N, self.resident, self.runs = core, E_N, resident, runs
        self.is_multicast = arch.load_sharing == "multicast"
        self.moved = [self._count(run.visits) for run in runs]
        self.once = []
        for run in runs:
            tile = Tile(run.block.m, run.block.n, run.block.k)
            whole = walk_visits(arch, core.problem, run.block, tile, LoopOrder.MNK, k_start=run.k_start)
            self.once.append(self._count(list(whole)))
        self.write_cost = core.dram_bytes_per_us / core.write_bytes_per_us
        self.is_stored = core.grid.E_K > 1 or "C" not in resident  # past the core, at the end

    def _count(self, visits: list[Visit]) -> _Bytes:
        core, bits = self.core, self.core.bits
        total = Visit(*(sum(column) for column in zip(*visits, strict=True)))
        assert total.c_spill == total.c_refill
        return _Bytes(
            bytes_of(total.a_load, bits.a),
            bytes_of(total.b_load, bits.b) + bytes_of(total.s_load, bits.group),
            bytes_of(total.c_store, core.store_bits),
            bytes_of(total.c_spill, core.partial),
        )

    def _loads(self, a: float, b: float, b_sharers: int) -> tuple[float, float]:
        """Bytes of loads as memories below the core count them."""
        if self.is_multicast:
            a, b = a / self.E_N, b / b_sharers
        return (0.0 if "A" in self.resident else a), (0.0 if "B" in self.resident else b)

    def _of_runs(self, numbers: list[int]) -> tuple[FromDram, FromDram]:
        """Of these runs: without a memory in between; and everything once (of C: all partial sums)."""
        a = sum(self.moved[i].a for i in numbers)
        b = sum(self._loads(0, self.moved[i].b, self.runs[i].sharers)[1] for i in numbers)
        spill = sum(self.moved[i].spill for i in numbers)
        a_once = sum(self.once[i].a for i in numbers) / self.E_N
        b_once = sum(self.once[i].b / self.runs[i].sharers for i in numbers)
        blocks = (self.runs[i].block for i in numbers)
        partial = sum(bytes_of(block.g * block.m * block.n, self.core.partial) for block in blocks)
        once = [0.0 if name in self.resident else x for name, x in zip("ABC", (a_once, b_once, partial), strict=True)]
        return FromDram(self._loads(a, 0, 1)[0], b, 0.0 if "C" in self.resident else spill), FromDram(*once)

    def kept_part(self) -> float:
        """What part of all that DRAM would give again the memory in between keeps."""
        arch = self.core.arch
        if arch.shared_bytes is None:
            return 0.0
        all_of, once = self._of_runs(list(range(len(self.runs))))
        again = (all_of.a > once.a, all_of.b > once.b, all_of.spill > 0)
        wanted = sum(size for size, is_again in zip(once, again, strict=True) if is_again)
        room = arch.shared_bytes / self.core.grid.active_cores
        return 1.0 if wanted <= room else room / wanted

    def from_dram(self, kept_part: float, run: int | None = None) -> FromDram:
        """Bytes of all runs, or of one of them, where this part of what is not needed for the first time is kept."""
        all_of, once = self._of_runs(list(range(len(self.runs))) if run is None else [run])
        if kept_part == 0.0:
            return all_of
        rest = 1.0 - kept_part
        return FromDram(
            once.a + rest * (all_of.a - once.a), once.b + rest * (all_of.b - once.b), rest * all_of.spill
        )  # fmt: skip

    def _each_us(self, *parts: _Pass) -> tuple[float, ...]:
        speeds = self.core.dram_bytes_per_us, self.core.shared_bytes_per_us, self.core.port_bytes_per_us
        return tuple(sum(column) / speed for column, speed in zip(zip(*parts, strict=True), speeds, strict=True))

    def _us(self, *parts: _Pass) -> float:
        return max(self._each_us(*parts))

    def _c(self, store: int, spill: float, spill_dram: float) -> _Pass:
        store = store if self.is_stored else 0
        spill, spill_dram = (0.0, 0.0) if "C" in self.resident else (spill, spill_dram)
        return _Pass(
            (spill_dram + store) * self.write_cost + spill_dram, (spill + store) + spill, (spill + store) + spill
        )  # fmt: skip

    def main(self) -> Main:
        """Return the main loop, of which no chain of work that nothing shortens takes longer."""
        core, arch, bits = self.core, self.core.arch, self.core.bits
        visits = [visit for run in self.runs for visit in run.visits]
        dram, (full, _) = self.from_dram(self.kept_part()), self._of_runs(list(range(len(self.runs))))
        loads = _Pass(dram.a + dram.b, full.a + full.b, sum(moved.a + moved.b for moved in self.moved))
        spill = sum(moved.spill for moved in self.moved)
        c = self._c(sum(moved.store for moved in self.moved), spill, dram.spill)
        total = Visit(*(sum(column) for column in zip(*visits, strict=True)))
        compute_us = core.compute_us(total.cube_steps, len(visits), total.dequant, total.fills)
        each_us, feed_us = self._each_us(loads, c), total.cube_steps * core.feed_us_per_step
        dma_us = max(*each_us, feed_us)
        first, tail, lead = visits[0], c, loads  # the first tile is a full one
        if arch.output_buffers == 2:
            tail = self._c(bytes_of(max(visit.c_store for visit in visits), core.store_bits), 0.0, 0.0)
        if arch.input_buffers == 2:
            a, b = bytes_of(first.a_load, bits.a), bytes_of(first.b_load, bits.b) + bytes_of(first.s_load, bits.group)
            charged = sum(self._loads(a, b, self.runs[0].sharers))
            lead = _Pass(min(charged, loads.dram), charged, a + b)
        best_us = max(
            dma_us,
            compute_us + self._us(lead, tail),
            core.compute_us(first.cube_steps, 1, 0, first.fills) + self._us(loads, tail),
        )
        main_us = (1 - arch.overlap_frac) * (compute_us + dma_us) + arch.overlap_frac * best_us
        return Main(main_us, compute_us, *each_us, feed_us, dma_us, dram, c.dram, total, len(visits))


# --- before the main loop: MODEL.md, "Packing and waking" ----------------------------------------------------------


class Packed(NamedTuple):
    """A block that a core packs, and how many cores need its A and its B."""

    block: Block
    E_N: int
    E_M: int


def sync_us(arch: MulticoreSpec, active_cores: int) -> float:
    """Time to wake cores and to wait for them."""
    return arch.sync_us if active_cores > 1 else 0.0


def pack_us(arch: MulticoreSpec, problem: GemmProblem, runs: Iterable[Packed]) -> float:
    """Time in which a core packs the operands of its runs, each of equal groups."""
    if not arch.packs:
        return 0.0
    assert arch.pack_gb_per_s is not None
    how: dict[str, str] = {str(name): of for name, of in arch.packs.items()}
    total = 0.0
    for (g, m, n, k), E_N, E_M in runs:
        of_b = bytes_of(g * k * n, bits_of(problem).b)
        if problem.is_weight_quantized:
            groups = 1 if problem.group_size is None else -(-k // problem.group_size)
            of_b += bytes_of(g * groups * n, bits_of(problem).group)
        near = math.inf if arch.pack_near_bytes is None else g * arch.pack_near_bytes
        of_run = 0.0
        for name, size, cores in (("A", bytes_of(g * m * k, bits_of(problem).a), E_N), ("B", of_b, E_M)):
            own = size / cores if how.get(name) == "shared" else size
            if name in how:
                of_run += own + max(0.0, own - near)
        total += of_run
    return total / (arch.pack_gb_per_s * 1e3)
