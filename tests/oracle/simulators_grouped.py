"""Slow truth of cost model 1: every core of a chip walks the loops of every group, or batch element, that it has.

As `simulators`: nothing is a closed form of reuse. Which set of cores has which groups is given.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from gemm_eval.arch import MulticoreSpec
from gemm_eval.mapping import MulticoreMapping
from gemm_eval.workload import GemmProblem
from tests.oracle.memories import CoreMemory, FromDram, Main, Packed, Run, pack_us, resident_operands, sync_us
from tests.oracle.simulators import ActiveGrid, Block, Core, Visit, bytes_of, cut, run_pipeline, walk_visits


class CoreWalk(NamedTuple):
    """What one core takes."""

    latency_us: float
    main: Main  # its time with the timing of the chip
    reduction: tuple[float, int, int]
    """DRAM bytes, network bytes and adds"""
    reduction_us: float
    sync_us: float
    pack_us: float
    starting_us: float
    """of its tasks after the first"""


class GroupedWalk(NamedTuple):
    """DRAM bytes by term, DMA bytes of all cores, what they compute, and cores by place (p_g, p_m, p_n, p_k)."""

    a_bytes: int
    b_bytes: int
    scales_bytes: int
    c_store_bytes: int
    c_spill_bytes: int
    reduction_dram_bytes: int
    reduction_noc_bytes: int
    moved_bytes: int
    cube_steps: int
    macs: int
    cores: dict[tuple[int, ...], CoreWalk]
    core: Core
    """speeds of each"""


def simulate_chip(
    arch: MulticoreSpec, problem: GemmProblem, mapping: MulticoreMapping, sets: Sequence[Sequence[int]]
) -> GroupedWalk:
    """Walk every core of the partition over the true ranges of its groups; `sets` has the rows of each set's groups."""
    walk = _Walk(arch, problem, mapping, sets)
    for p_g, members in enumerate(sets):
        most_parts = max(len(cut(rows, -(-rows // mapping.partition.P_M))) for rows in members)
        for p_m, p_n, p_k in itertools.product(range(most_parts), range(len(walk.cuts_n)), range(len(walk.cuts_k))):
            walk.enter((p_g, p_m, p_n, p_k))
    slices = (sum(of_core.values()) for of_core in walk.slices)
    return GroupedWalk(*slices, *walk.totals, walk.cores, walk.core)


class _Walk:
    def __init__(
        self, arch: MulticoreSpec, problem: GemmProblem, mapping: MulticoreMapping, sets: Sequence[Sequence[int]]
    ) -> None:
        self.arch, self.problem, self.mapping, self.sets = arch, problem, mapping, sets
        _, P_M, P_N, P_K = mapping.partition
        group = problem.group_size or 1
        self.cuts_n = cut(problem.N, -(-problem.N // P_N))
        groups_k = -(-problem.K // group)
        self.cuts_k = cut(problem.K, min(problem.K, -(-groups_k // P_K) * group))
        working = {
            (p_g, p_m)
            for p_g, members in enumerate(sets)
            for rows in members
            for p_m in range(len(cut(rows, -(-rows // P_M))))
        }
        # one dimension of all cores that work: the bandwidth of a core depends on their number alone
        self.core = Core(arch, problem, ActiveGrid(len(working), 1, len(self.cuts_n), len(self.cuts_k)))
        self.resident = resident_operands(arch, problem)
        self.kept_part = 0.0
        self.slices: tuple[dict[tuple[int, ...], int], ...] = ({}, {}, {})
        self.totals = [0] * 7
        self.cores: dict[tuple[int, ...], CoreWalk] = {}

    def enter(self, place: tuple[int, int, int, int]) -> None:
        """Walk one core, if any group has rows for it."""
        p_g, p_m, p_n, p_k = place
        (n0, n1), (k0, k1) = self.cuts_n[p_n], self.cuts_k[p_k]
        arch = self.arch
        runs: list[Run] = []
        groups: list[int] = []
        for rows in sorted(set(self.sets[p_g]), reverse=True):
            cuts_m = cut(rows, -(-rows // self.mapping.partition.P_M))
            if p_m >= len(cuts_m):
                continue
            m = cuts_m[p_m][1] - cuts_m[p_m][0]
            count = list(self.sets[p_g]).count(rows)
            visits: list[Visit] = []
            for _ in range(count):  # each group by itself: nothing stays from one to the next
                block = Block(1, m, n1 - n0, k1 - k0)
                visits += walk_visits(
                    arch, self.problem, block, self.mapping.tile, self.mapping.loop_order, k_start=k0
                )  # fmt: skip
            runs.append(Run(Block(count, m, n1 - n0, k1 - k0), len(cuts_m), visits, k0))
            groups.append(rows)
        if not runs:
            return
        memory = CoreMemory(self.core, len(self.cuts_n), self.resident, runs)
        if p_m == p_n == p_k == 0:  # the core with the full blocks of the set comes first
            self.kept_part = memory.kept_part()
        parts = [0.0, 0.0, 0.0]  # of the reduction: DRAM bytes, network bytes, adds
        for number, (run, rows) in enumerate(zip(runs, groups, strict=True)):
            self._count(run, (p_g, rows, p_m, p_n, p_k), memory.from_dram(self.kept_part, number))
            if len(self.cuts_k) > 1:
                of_run = self._reduce(run.block.g * run.block.m * run.block.n, p_k)
                parts = [x + y for x, y in zip(parts, of_run, strict=True)]
        reduction_us = 0.0
        if len(self.cuts_k) > 1:
            assert arch.vector_ops_per_cycle is not None
            reduction_us = parts[0] / self.core.dram_bytes_per_us + parts[1] / self.core.port_bytes_per_us
            reduction_us += parts[2] / arch.vector_ops_per_cycle / self.core.cycles_per_us
        main = memory.main()
        if arch.timing == "pipeline":
            sharers = [run.sharers for run in runs for _ in run.visits]
            main = main._replace(
                main_us=run_pipeline(self.core, [visit for run in runs for visit in run.visits], sharers)
            )
        packed = [Packed(run.block, len(self.cuts_n), run.sharers) for run in runs]
        sync_of, pack_of = sync_us(arch, self.core.grid.active_cores), pack_us(arch, self.problem, packed)
        tasks = sum(run.block.g * len(cut(run.block.m, self.mapping.tile.tile_m)) for run in runs)
        starting_us = (tasks - 1) * arch.task_us
        busy_us = arch.launch_us + main.main_us + reduction_us + (sync_of + pack_of) + starting_us
        self.cores[place] = CoreWalk(
            max(busy_us, arch.launch_floor_us), main, (parts[0], int(parts[1]), int(parts[2])), reduction_us, sync_of,
            pack_of, starting_us,
        )  # fmt: skip

    def _count(self, run: Run, at: tuple[int, int, int, int, int], dram: FromDram) -> None:
        """Add what a core moves and computes for a run."""
        bits, arch = self.core.bits, self.arch
        total = Visit(*(sum(column) for column in zip(*run.visits, strict=True)))
        a, b, s = bytes_of(total.a_load, bits.a), bytes_of(total.b_load, bits.b), bytes_of(total.s_load, bits.group)
        spill, store = bytes_of(total.c_spill, self.core.partial), bytes_of(total.c_store, self.core.store_bits)
        if "C" in self.resident:  # it stays, but for partial results that DRAM brings together
            spill, store = 0, 0 if len(self.cuts_k) == 1 else store
        moved = a + b + s + store + 2 * spill
        if arch.shared_bytes is not None:  # each core's part of what all get
            a, b, s, spill = math.ceil(dram.a), math.ceil(dram.b), 0, math.ceil(dram.spill)
        a = 0 if "A" in self.resident else a
        b, s = (0, 0) if "B" in self.resident else (b, s)
        self._share((a, b, s), at)
        self._add(store, spill, 0, 0, moved, total.cube_steps, math.prod(run.block))

    def _share(self, loaded: tuple[int, int, int], at: tuple[int, int, int, int, int]) -> None:
        """Note what a core loads for a run: cores that share a slice read it as often as the one that reads most."""
        p_g, rows, p_m, p_n, p_k = at
        keys: tuple[tuple[int, ...], ...] = (at, at, at)
        if self.arch.load_sharing == "multicast" and self.arch.shared_bytes is None:
            keys = ((p_g, rows, p_m, p_k), (p_g, rows, p_n, p_k), (p_g, rows, p_n, p_k))
        for slices, key, num in zip(self.slices, keys, loaded, strict=True):
            slices[key] = max(slices.get(key, 0), num)

    def _reduce(self, elements: int, p_k: int) -> tuple[float, int, int]:
        """Bytes over DRAM and network and adds of one core for a run; the chip's, once for each block of C."""
        core, E_K, partial = self.core, len(self.cuts_k), self.core.partial
        share = -(-elements // E_K)
        is_dram, writes_c = self.arch.reduction == "dram", "C" not in self.resident
        if p_k == 0:
            dram = bytes_of(elements, core.bits.output) if writes_c else 0
            if is_dram:
                self._add(0, 0, dram + bytes_of(E_K * elements, partial), 0, 0, 0, 0)
            else:
                self._add(0, 0, dram, bytes_of((E_K - 1) * elements, partial), 0, 0, 0)
        written = 0.0
        if writes_c:
            written = bytes_of(share, core.bits.output) * (core.dram_bytes_per_us / core.write_bytes_per_us)
        exchanged = bytes_of(E_K * share, partial) if is_dram else 0
        sent = 0 if is_dram else bytes_of((E_K - 1) * share, partial)
        return written + exchanged, sent, (E_K - 1) * share

    def _add(self, *numbers: int) -> None:
        self.totals = [total + number for total, number in zip(self.totals, numbers, strict=True)]
