"""Slow truth of cost model 1: a walk over every core of a chip, each over all its loops; see `simulators`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from gemm_eval.arch import MulticoreSpec
from gemm_eval.mapping import MulticoreMapping
from gemm_eval.workload import GemmProblem
from tests.oracle.memories import CoreMemory, Run, resident_operands
from tests.oracle.packing import Packed, before_us
from tests.oracle.simulators import ActiveGrid, Block, Core, Traffic, Visit, simulate_pipeline, walk_visits


class ChipWalk(NamedTuple):
    """What a walk over every core finds: DRAM bytes by term, DMA bytes of all cores, and times by core index."""

    a_bytes: int
    b_bytes: int
    scales_bytes: int
    c_store_bytes: int
    c_spill_bytes: int
    c_refill_bytes: int
    reduction_dram_bytes: int
    reduction_noc_bytes: int
    moved_bytes: int
    cube_steps: int
    macs: int
    latency_us: dict[tuple[int, ...], float]
    traffic: dict[tuple[int, ...], Traffic]


def simulate_chip(arch: MulticoreSpec, problem: GemmProblem, mapping: MulticoreMapping) -> ChipWalk:
    """Walk every core (p_g, p_m, p_n, p_k) of the partition over the true ranges of its block.

    Under multicast, cores that share a slice of A (or B) run in step, so it is read as often as the core that needs it
    most often reads it.
    """
    p = mapping.partition
    group = problem.group_size or 1
    k_step = min(problem.K, _ceil_div(_ceil_div(problem.K, group), p.P_K) * group)
    cuts_g = _cut(problem.G, _ceil_div(problem.G, p.P_G))
    cuts_m = _cut(problem.M, _ceil_div(problem.M, p.P_M))
    cuts_n = _cut(problem.N, _ceil_div(problem.N, p.P_N))
    cuts_k = _cut(problem.K, k_step)
    grid = ActiveGrid(len(cuts_g), len(cuts_m), len(cuts_n), len(cuts_k))
    core = Core(arch, problem, grid)
    bits = core.bits
    resident = resident_operands(arch, problem)
    is_multicast = arch.load_sharing == "multicast"
    a_slices: dict[tuple[int, ...], int] = {}  # the cores that share a slice -> bytes of A read for it
    b_slices: dict[tuple[int, ...], int] = {}
    s_slices: dict[tuple[int, ...], int] = {}
    store = spill = refill = reduced_dram = reduced_noc = moved = steps = macs = 0
    latency_us = {}
    traffic = {}

    def memory_of(block: Block, k_start: int) -> tuple[CoreMemory, Sequence[Visit]]:
        visits = list(walk_visits(arch, problem, block, mapping.tile, mapping.loop_order, k_start=k_start))
        return CoreMemory(core, grid.E_N, resident, [Run(block, grid.E_M, visits, k_start)]), visits

    @cache
    def kept_part(g: int) -> float:
        """Of the core with as many batch elements, and with the full block else: it comes first."""
        m, n, k = (cuts[0][1] for cuts in (cuts_m, cuts_n, cuts_k))
        return memory_of(Block(g, m, n, k), 0)[0].kept_part()

    for index in itertools.product(*(range(count) for count in grid)):
        p_g, p_m, p_n, p_k = index
        block = Block(*(cut[i][1] - cut[i][0] for cut, i in zip((cuts_g, cuts_m, cuts_n, cuts_k), index, strict=True)))
        k_start = cuts_k[p_k][0]
        memory, visits = memory_of(block, k_start)
        walk = Visit(*(sum(column) for column in zip(*visits, strict=True)))
        a_bytes = _ceil_div(walk.a_load * bits.a, 16)
        b_bytes = _ceil_div(walk.b_load * bits.b, 16)
        s_bytes = _ceil_div(walk.s_load * bits.group, 16)
        spill_bytes = _ceil_div(walk.c_spill * core.partial, 16)
        refill_bytes = _ceil_div(walk.c_refill * core.partial, 16)
        store_bytes = _ceil_div(walk.c_store * core.store_bits, 16)
        if "C" in resident:  # it stays, but for partial results that DRAM brings together
            spill_bytes = refill_bytes = 0
            store_bytes = 0 if grid.E_K == 1 else store_bytes
        moved += a_bytes + b_bytes + s_bytes + spill_bytes + refill_bytes + store_bytes

        a_key = (p_g, p_m, p_k) if is_multicast else index
        b_key = (p_g, p_n, p_k) if is_multicast else index
        if arch.shared_bytes is not None:  # each core's part of what all get
            dram = memory.from_dram(kept_part(block.g))
            a_key = b_key = index
            a_bytes, b_bytes, s_bytes = math.ceil(dram.a), math.ceil(dram.b), 0
            spill_bytes = refill_bytes = math.ceil(dram.spill)
        a_bytes = 0 if "A" in resident else a_bytes
        b_bytes, s_bytes = (0, 0) if "B" in resident else (b_bytes, s_bytes)
        a_slices[a_key] = max(a_slices.get(a_key, 0), a_bytes)
        b_slices[b_key] = max(b_slices.get(b_key, 0), b_bytes)
        s_slices[b_key] = max(s_slices.get(b_key, 0), s_bytes)
        store, spill, refill = store + store_bytes, spill + spill_bytes, refill + refill_bytes
        steps += walk.cube_steps
        macs += block.g * block.m * block.n * block.k
        if p_k == 0 and grid.E_K > 1:
            part = block.g * block.m * block.n
            reduced_dram += 0 if "C" in resident else _ceil_div(part * bits.output, 16)
            if arch.reduction == "dram":
                reduced_dram += _ceil_div(grid.E_K * part * core.partial, 16)
            else:
                reduced_noc += _ceil_div((grid.E_K - 1) * part * core.partial, 16)

        if arch.timing == "pipeline":
            main_us = simulate_pipeline(arch, problem, block, mapping.tile, mapping.loop_order, grid, k_start=k_start)
        else:
            main_us = memory.main_us()
        busy_us = arch.launch_us + main_us + core.reduction_us(block.g, block.m, block.n, writes_c="C" not in resident)
        busy_us += before_us(arch, problem, grid.active_cores, [Packed(block, grid.E_N, grid.E_M)])
        busy_us += (block.g * len(_cut(block.m, mapping.tile.tile_m)) - 1) * arch.task_us
        latency_us[index] = max(busy_us, arch.launch_floor_us)
        traffic[index] = Traffic(walk, len(visits))

    loads = (sum(a_slices.values()), sum(b_slices.values()), sum(s_slices.values()))
    return ChipWalk(
        *loads, store, spill, refill, reduced_dram, reduced_noc, moved, steps, macs, latency_us, traffic
    )  # fmt: skip


def _cut(size: int, step: int) -> list[tuple[int, int]]:
    return [(start, min(start + step, size)) for start in range(0, size, step)]


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
