"""Slow truth of cost model 1 for grouped GEMMs: every core walks the loops of every group that it has.

As `simulators`: nothing is a closed form of reuse. Which set of cores has which groups is given.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from gemm_eval.arch import MulticoreSpec
from gemm_eval.mapping import MulticoreMapping
from gemm_eval.workload import GemmProblem
from tests.oracle.packing import Packed, before_us
from tests.oracle.simulators import ActiveGrid, Block, Core, Transfer, Visit, run_pipeline, walk_visits

__all__ = ["GroupedWalk", "simulate_grouped_chip"]


class GroupedWalk(NamedTuple):
    """DRAM bytes by term, DMA bytes of all cores, what they compute, and times by core (p_g, p_m, p_n, p_k)."""

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
    latency_us: dict[tuple[int, ...], float]


def simulate_grouped_chip(
    arch: MulticoreSpec, problem: GemmProblem, mapping: MulticoreMapping, sets: Sequence[Sequence[int]]
) -> GroupedWalk:
    """Walk every core of the partition over the true ranges of its groups; `sets` has the rows of each set's groups."""
    walk = _Walk(arch, problem, mapping, sets)
    for p_g, members in enumerate(sets):
        most_parts = max(len(_cut(rows, -(-rows // mapping.partition.P_M))) for rows in members)
        for p_m, p_n, p_k in itertools.product(range(most_parts), range(len(walk.cuts_n)), range(len(walk.cuts_k))):
            walk.enter((p_g, p_m, p_n, p_k))
    slices = (sum(of_core.values()) for of_core in walk.slices)
    return GroupedWalk(*slices, *walk.totals, walk.latency_us)


class _Walk:
    def __init__(
        self, arch: MulticoreSpec, problem: GemmProblem, mapping: MulticoreMapping, sets: Sequence[Sequence[int]]
    ) -> None:
        self.arch, self.problem, self.mapping, self.sets = arch, problem, mapping, sets
        _, P_M, P_N, P_K = mapping.partition
        group = problem.group_size or 1
        self.cuts_n = _cut(problem.N, -(-problem.N // P_N))
        groups_k = -(-problem.K // group)
        self.cuts_k = _cut(problem.K, min(problem.K, -(-groups_k // P_K) * group))
        working = {
            (p_g, p_m)
            for p_g, members in enumerate(sets)
            for rows in members
            for p_m in range(len(_cut(rows, -(-rows // P_M))))
        }
        # one dimension of all cores that work: the bandwidth of a core depends on their number alone
        self.core = Core(arch, problem, ActiveGrid(len(working), 1, len(self.cuts_n), len(self.cuts_k)))
        self.slices: tuple[dict[tuple[int, ...], int], ...] = ({}, {}, {})
        self.totals = [0] * 7
        self.latency_us: dict[tuple[int, ...], float] = {}

    def enter(self, place: tuple[int, int, int, int]) -> None:
        """Walk one core, if any group has rows for it."""
        p_g, p_m, p_n, p_k = place
        (n0, n1), (k0, k1) = self.cuts_n[p_n], self.cuts_k[p_k]
        bits, arch = self.core.bits, self.arch
        visits: list[Visit] = []
        packed: list[Packed] = []
        sharers: list[int | None] = []
        moved = Transfer()
        charged_b = 0.0
        reduction_us = 0.0
        parts = [0, 0, 0]  # of the reduction: DRAM bytes, network bytes, adds
        for rows in sorted(set(self.sets[p_g]), reverse=True):
            cuts_m = _cut(rows, -(-rows // self.mapping.partition.P_M))
            if p_m >= len(cuts_m):
                continue
            m = cuts_m[p_m][1] - cuts_m[p_m][0]
            count = list(self.sets[p_g]).count(rows)
            packed.append(Packed(Block(count, m, n1 - n0, k1 - k0), len(self.cuts_n), len(cuts_m)))
            of_run: list[Visit] = []
            for _ in range(count):  # each group by itself: nothing stays from one to the next
                block = Block(1, m, n1 - n0, k1 - k0)
                of_run += walk_visits(
                    arch, self.problem, block, self.mapping.tile, self.mapping.loop_order, k_start=k0
                )  # fmt: skip
            visits += of_run
            sharers += [len(cuts_m)] * len(of_run)
            total = Visit(*(sum(column) for column in zip(*of_run, strict=True)))
            a, b, s = _bytes(total.a_load, bits.a), _bytes(total.b_load, bits.b), _bytes(total.s_load, bits.group)
            spill, refill = _bytes(total.c_spill, self.core.partial), _bytes(total.c_refill, self.core.partial)
            assert spill == refill
            store = _bytes(total.c_store, self.core.store_bits)
            moved = Transfer(moved.a + a, moved.b + b, moved.s + s, moved.c + store + spill + refill)
            charged_b += (b + s) / len(cuts_m) if arch.load_sharing == "multicast" else b + s
            self._share((a, b, s), (p_g, rows, p_m, p_n, p_k))
            elements = count * m * (n1 - n0)
            self._add(store, spill, 0, 0, a + b + s + store + spill + refill, total.cube_steps, elements * (k1 - k0))
            if len(self.cuts_k) > 1:
                parts = [x + y for x, y in zip(parts, self._reduce(elements, p_k), strict=True)]
        if not visits:
            return
        if len(self.cuts_k) > 1:
            assert arch.vector_ops_per_cycle is not None
            noc_us = parts[1] / (arch.noc_gb_per_s * 1e3) if arch.noc_gb_per_s is not None else 0.0
            reduction_us = parts[0] / self.core.dram_bytes_per_us + noc_us
            reduction_us += parts[2] / arch.vector_ops_per_cycle / self.core.cycles_per_us
        main_us = self._main_us(visits, sharers, moved, charged_b)
        packing_us = before_us(arch, self.problem, self.core.grid.active_cores, packed)
        self.latency_us[place] = max(arch.launch_us + main_us + reduction_us + packing_us, arch.launch_floor_us)

    def _main_us(
        self, visits: list[Visit], sharers: list[int | None], moved: Transfer, charged_b: float
    ) -> float:  # fmt: skip
        arch, core, bits = self.arch, self.core, self.core.bits
        if arch.timing == "pipeline":
            return run_pipeline(core, visits, sharers)
        total = Visit(*(sum(column) for column in zip(*visits, strict=True)))
        compute_us = core.compute_us(total.cube_steps, len(visits), total.dequant, total.fills)

        def dma_us(charged_loads: float, loads: float, c: float) -> float:
            us = (charged_loads + c) / core.dram_bytes_per_us
            return us if arch.noc_gb_per_s is None else max(us, (loads + c) / (arch.noc_gb_per_s * 1e3))

        charged = (moved.a / core.grid.E_N if arch.load_sharing == "multicast" else moved.a) + charged_b
        loads = moved.a + moved.b + moved.s
        # the first tile is a full one of the largest group
        first = visits[0]
        stored = moved.c if arch.output_buffers == 1 else _bytes(max(v.c_store for v in visits), core.store_bits)
        lead_us = dma_us(charged, loads, stored)
        if arch.input_buffers == 2:
            a, b, s = _bytes(first.a_load, bits.a), _bytes(first.b_load, bits.b), _bytes(first.s_load, bits.group)
            lead_us = core.dma_us(Transfer(a, b, s, stored, sharers[0]))
        all_dma_us = dma_us(charged, loads, moved.c)
        best_us = max(
            all_dma_us,
            compute_us + lead_us,
            core.compute_us(first.cube_steps, 1, 0, first.fills) + dma_us(charged, loads, stored),
        )
        return (1 - arch.overlap_frac) * (compute_us + all_dma_us) + arch.overlap_frac * best_us

    def _share(self, loaded: tuple[int, int, int], at: tuple[int, int, int, int, int]) -> None:
        """Note what a core loads for a run: cores that share a slice read it as often as the one that reads most."""
        p_g, rows, p_m, p_n, p_k = at
        keys: tuple[tuple[int, ...], ...] = (at, at, at)
        if self.arch.load_sharing == "multicast":
            keys = ((p_g, rows, p_m, p_k), (p_g, rows, p_n, p_k), (p_g, rows, p_n, p_k))
        for slices, key, num in zip(self.slices, keys, loaded, strict=True):
            slices[key] = max(slices.get(key, 0), num)

    def _reduce(self, elements: int, p_k: int) -> tuple[int, int, int]:
        """Bytes over DRAM and network and adds of one core for a run; the chip's, once for each block of C."""
        bits, E_K = self.core.bits, len(self.cuts_k)
        share = -(-elements // E_K)
        is_dram = self.arch.reduction == "dram"
        if p_k == 0:
            dram = _bytes(elements, bits.output)
            if is_dram:
                self._add(0, 0, dram + _bytes(E_K * elements, self.core.partial), 0, 0, 0, 0)
            else:
                self._add(0, 0, dram, _bytes((E_K - 1) * elements, self.core.partial), 0, 0, 0)
        exchanged = _bytes(E_K * share, self.core.partial) if is_dram else 0
        sent = 0 if is_dram else _bytes((E_K - 1) * share, self.core.partial)
        return exchanged + _bytes(share, bits.output), sent, (E_K - 1) * share

    def _add(self, *numbers: int) -> None:
        self.totals = [total + number for total, number in zip(self.totals, numbers, strict=True)]


def _cut(size: int, step: int) -> list[tuple[int, int]]:
    return [(start, min(start + step, size)) for start in range(0, size, step)]


def _bytes(elements: int, bits: int) -> int:
    return -(-elements * bits // 16)
