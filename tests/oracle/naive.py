"""Slow truth of cost model 1: its formulas as MODEL.md writes them, core by core and group by group, and a search.

Standard library only, and nothing of gemm_eval/models or gemm_eval/search. Float operations are done in the order of
gemm_eval/models/multicore/MODEL.md, so that a fast kernel may be compared exactly. A batch is G groups of M rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from gemm_eval.arch import MulticoreSpec
from gemm_eval.mapping import LoopOrder, MulticoreMapping, Partition, Tile, enumerate_partitions
from gemm_eval.workload import GemmProblem
from tests.oracle import naive_core, packing
from tests.oracle.naive_core import (
    CoreCounts,
    Setting,
    Work,
    bytes_of,
    can_run,
    ceil_div,
    count_core,
    full_block,
    is_legal,
    legal_tile_sizes,
    sram_limit_bytes,
    sram_used_bytes,
    units_of,
)
from tests.oracle.simulators import Block

__all__ = [
    "CoreCounts", "Key", "NaiveCost", "breakdown_of", "can_run", "count_core", "energy_pj", "evaluate_mapping",
    "find_best", "full_block", "is_legal", "legal_tile_sizes", "spread_groups", "sram_used_bytes", "units_of",
]  # fmt: skip

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


# --- one core --------------------------------------------------------------------------------------------------------


def spread_groups(problem: GemmProblem, cube_m: int, P_G: int, P_M: int) -> list[list[int]]:
    """Row counts of the groups of each set of cores that has one, most rows first."""
    groups = [rows for rows in problem.row_groups or (problem.M,) * problem.G if rows > 0]
    sets: list[list[int]] = [[] for _ in range(P_G)]

    def weight(rows: int) -> int:
        return ceil_div(ceil_div(rows, P_M), cube_m)

    def load(members: list[int]) -> int:
        return sum(map(weight, members))

    if len(set(groups)) == 1:  # a batch
        full = ceil_div(len(groups), P_G)
        return [groups[start : start + full] for start in range(0, len(groups), full)]
    for rows in sorted(groups, reverse=True):
        number = min(range(P_G), key=lambda number: (load(sets[number]), len(sets[number]), number))
        sets[number].append(rows)
    return [members for members in sets if members]


class Run(NamedTuple):
    """The groups of equal rows that a core has."""

    block: Block  # what it computes of them, as a batch
    setting: Setting  # speeds, and the E_M of these groups
    full_m: int  # rows of their full block


class GroupedCore(NamedTuple):
    """Where a core stands, and what it computes, one after another."""

    place: tuple[int, int, int, int]
    runs: list[Run]


class GroupedSetting:
    """What does not change within one partition."""

    def __init__(self, arch: MulticoreSpec, problem: GemmProblem, partition: Partition) -> None:
        self.arch, self.problem, self.partition = arch, problem, partition
        self.sets = spread_groups(problem, arch.cube_m, partition.P_G, partition.P_M)
        self.of_rows = {rows: self._setting(rows) for members in self.sets for rows in members}
        self.largest = self.of_rows[max(self.of_rows)]
        grid = self.largest.grid
        parts = [max(self.of_rows[rows].grid.E_M for rows in members) for members in self.sets]
        self.parts = parts
        self.active_cores = sum(parts) * grid.E_N * grid.E_K
        for setting in self.of_rows.values():
            setting.active_cores = self.active_cores
            divisor = arch.num_cores if arch.dram_sharing == "static" else self.active_cores
            setting.share = arch.dram_gb_per_s * 1e3 * arch.dram_efficiency_frac / divisor
            setting.shared_share = math.inf if arch.shared_gb_per_s is None else arch.shared_gb_per_s * 1e3 / divisor
            setting.residents = naive_core.residents(arch, self.problem)
            if arch.dram_core_limit_gb_per_s is not None:
                setting.share = min(setting.share, arch.dram_core_limit_gb_per_s * 1e3)
            setting.write_cost = setting.share / naive_core.write_share(arch, divisor)

    def _setting(self, rows: int) -> Setting:
        _, P_M, P_N, P_K = self.partition
        types = {name: getattr(self.problem, name) for name in _TYPES}
        one = GemmProblem(1, rows, self.problem.K, self.problem.N, **types)
        return Setting(self.arch, one, Partition(1, P_M, P_N, P_K))

    def cores(self) -> Iterator[GroupedCore]:
        """Every core that has work, that with the full blocks of a set before the others of the set."""
        grid, sizes = self.largest.grid, self.problem
        full = self.largest.block
        for p_g, members in enumerate(self.sets):
            for p_m, p_n, p_k in itertools.product(range(self.parts[p_g]), range(grid.E_N), range(grid.E_K)):
                n = min(full.n, sizes.N - p_n * full.n)
                k = min(full.k, sizes.K - p_k * full.k)
                runs = []
                for rows in sorted(set(members), reverse=True):
                    setting = self.of_rows[rows]
                    m = min(setting.block.m, rows - p_m * setting.block.m)
                    if m > 0:
                        runs.append(Run(Block(members.count(rows), m, n, k), setting, setting.block.m))
                yield GroupedCore((p_g, p_m, p_n, p_k), runs)

    @cached_property
    def firsts(self) -> list[GroupedCore]:
        """The core with the full blocks of each set."""
        return [core for core in self.cores() if core.place[1:] == (0, 0, 0)]


_TYPES = (
    *("input_dtype", "weight_dtype", "output_dtype", "accumulator_dtype", "group_size", "scale_dtype", "zero_dtype"),
    "group_n",
)


class _Time(NamedTuple):
    latency_us: float
    main_us: float
    compute_us: float
    dram_us: float
    noc_us: float
    dma_us: float
    reduction_us: float
    busiest_bytes: float
    visits: int
    kept_part: float
    """what a shared memory keeps of what DRAM would give again"""
    shared_us: float
    feed_us: float
    dram: tuple[float, float, float]
    """DRAM bytes of A, of B and its scales, and of spills (as many come back), each by the cores that share them"""


def time_core(whole: GroupedSetting, core: GroupedCore, tile: Tile, order: LoopOrder) -> _Time:
    """How long a core takes: sums over its runs, then the times of a core."""
    arch, setting = whole.arch, core.runs[0].setting
    bits, E_K = setting.bits, setting.grid.E_K
    a_bytes = b_bytes = store = spill = red_noc_bytes = adds = steps = visits = dequant = fills = 0
    b_charged = red_dram_bytes = 0.0
    once_a = once_b = partial = 0.0
    for run in core.runs:
        work = Work(run.setting, run.block)
        counts = count_core(run.setting, work, tile, order)
        of_b = bytes_of(counts.b, bits.b) + bytes_of(counts.scales, bits.group)
        a_bytes += bytes_of(counts.a, bits.a)
        b_bytes += of_b
        b_charged += of_b / run.setting.grid.E_M if setting.is_multicast else of_b
        store += bytes_of(counts.c_store, setting.store_bits)
        spill += bytes_of(counts.c_spill, setting.partial)
        steps, visits, dequant = steps + counts.cube_steps, visits + counts.visits, dequant + counts.dequant
        fills += counts.fills
        run_once = naive_core.once_of(work, run.setting)
        once_a, once_b = once_a + run_once[0], once_b + run_once[1]
        partial += bytes_of(work.c, setting.partial)
        if E_K > 1:
            share = ceil_div(work.c, E_K)
            red_dram_bytes += work.reduction_dram_bytes
            if arch.reduction == "noc":
                red_noc_bytes += bytes_of((E_K - 1) * share, setting.partial)
            adds += (E_K - 1) * share
    away = setting.residents
    a_charged = 0.0 if "A" in away else (a_bytes / setting.grid.E_N if setting.is_multicast else float(a_bytes))
    b_charged = 0.0 if "B" in away else b_charged
    part = 0.0
    full = dram = a_charged, b_charged, 0.0 if "C" in away else float(spill)
    if arch.shared_bytes is not None:
        once = 0.0 if "A" in away else once_a / setting.grid.E_N, 0.0 if "B" in away else once_b
        part = naive_core.kept_part(setting, full, once, 0.0 if "C" in away else partial)
        dram = naive_core.without(full, once, part)
    loads = naive_core.Moved(dram[0] + dram[1], a_charged + b_charged, a_bytes + b_bytes)
    c = naive_core.c_of(setting, store, spill)
    if arch.shared_bytes is not None:
        c = c._replace(dram=naive_core.c_of(setting, store, dram[2]).dram)
    dram_us = (loads.dram + c.dram) / setting.share
    noc_us = (loads.port + c.port) / setting.port
    shared_us, feed_us = (loads.shared + c.shared) / setting.shared_share, steps * setting.feed_us_per_step
    all_dma_us = max(dram_us, shared_us, noc_us, feed_us)
    compute_us = naive_core.compute_us(setting, steps, visits, dequant, fills)
    if arch.timing == "pipeline":
        main_us = naive_core.pipeline_us([(run.setting, run.block) for run in core.runs], tile, order)
    else:
        largest = max(core.runs, key=lambda run: run.block.m)
        main_us = naive_core.overlap_us(largest.setting, largest.block, tile, loads, c, compute_us, all_dma_us)
    reduction_us = 0.0
    if E_K > 1:
        assert arch.vector_ops_per_cycle is not None
        reduction_us = red_dram_bytes / setting.share + red_noc_bytes / setting.port
        reduction_us += adds / arch.vector_ops_per_cycle / setting.cycles_per_us
    busiest = whole.active_cores * ((loads.dram + c.dram) + red_dram_bytes)
    packed = [naive_core.packed_by(run.setting, run.block) for run in core.runs]
    before_us = packing.before_us(arch, setting.problem, whole.active_cores, packed)
    busy_us = arch.launch_us + main_us + reduction_us + before_us
    busy_us += naive_core.tasks_us(arch, [run.block for run in core.runs], tile)
    latency_us = max(busy_us, arch.launch_floor_us)
    return _Time(
        latency_us, main_us, compute_us, dram_us, noc_us, all_dma_us, reduction_us, busiest, visits, part, shared_us,
        feed_us, dram,
    )  # fmt: skip


# --- one mapping -----------------------------------------------------------------------------------------------------


def breakdown_of(arch: MulticoreSpec, problem: GemmProblem, mapping: MulticoreMapping) -> tuple[dict[str, float], str]:
    """Where the time of a full block of a batch goes, in us, and what bounds it: MODEL.md, "Terms and bound"."""
    whole = GroupedSetting(arch, problem, mapping.partition)
    core = whole.firsts[0]
    (block, setting, _) = core.runs[0]
    work, E_K = Work(setting, block), setting.grid.E_K
    counts = count_core(setting, work, mapping.tile, mapping.loop_order)
    time = time_core(whole, core, mapping.tile, mapping.loop_order)
    stored = bytes_of(counts.c_store, setting.store_bits)
    spilled: float = bytes_of(counts.c_spill, setting.partial)
    if arch.shared_bytes is not None:
        spilled = time.dram[2]
    c_bytes = naive_core.c_of(setting, stored, spilled).dram
    sync_us = packing.sync_us(arch, setting.active_cores)
    pack_us = packing.pack_us(arch, problem, [naive_core.packed_by(setting, block)])
    starting_us = naive_core.tasks_us(arch, [block], mapping.tile)
    busy_us = arch.launch_us + time.main_us + time.reduction_us + (sync_us + pack_us) + starting_us
    floor_wait_us = time.latency_us - busy_us
    vector_ops_per_us = (arch.vector_ops_per_cycle or 1.0) * setting.cycles_per_us
    share = ceil_div(work.c, E_K)
    terms = {
        "launch_us": arch.launch_us + starting_us + floor_wait_us,
        "matrix_us": counts.cube_steps / setting.steps_per_cycle / setting.cycles_per_us,
        "fill_drain_us": (counts.visits * arch.fill_drain_cycles + counts.fills * arch.weight_load_cycles)
        / setting.cycles_per_us,
        "vector_us": counts.dequant * (arch.dequant_ops_per_elem or 0.0) / vector_ops_per_us,
        "dram_a_us": time.dram[0] / setting.share,
        "dram_b_us": time.dram[1] / setting.share,
        "dram_c_us": c_bytes / setting.share,
        "noc_wait_us": time.dma_us - time.dram_us,
    }
    overlapping_us = sum(us for name, us in terms.items() if name != "launch_us")
    is_noc = E_K > 1 and arch.reduction == "noc"
    reduction = {
        "reduction_dram_us": work.reduction_dram_bytes / setting.share,
        "reduction_noc_us": bytes_of((E_K - 1) * share, setting.partial) / setting.port if is_noc else 0.0,
        "reduction_add_us": (E_K - 1) * share / vector_ops_per_us,
    }
    if max(sync_us, pack_us) > max(time.main_us, terms["launch_us"], time.reduction_us):
        bound = "pack" if pack_us > sync_us else "sync"
    elif time.reduction_us > max(time.main_us, terms["launch_us"]):
        bound = "reduction"
    elif terms["launch_us"] > time.main_us:
        bound = "launch"
    elif time.compute_us >= time.dma_us:
        bound = "vector" if terms["vector_us"] > terms["matrix_us"] + terms["fill_drain_us"] else "compute"
    elif time.feed_us > max(time.dram_us, time.shared_us, time.noc_us):
        bound = "feed"
    elif time.shared_us > max(time.dram_us, time.noc_us):
        bound = "shared"
    else:
        bound = "noc" if time.noc_us > time.dram_us else "dram"
    before = {"launch_us": terms.pop("launch_us"), "sync_us": sync_us, "pack_us": pack_us}
    return {**before, **terms, "hidden_us": time.main_us - overlapping_us, **reduction}, bound


def energy_pj(
    setting: Setting,
    macs: int,
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
    operand_bytes = cube_steps * step_elems * bits.a / 16
    noc_pj = 0.0
    if arch.noc_gb_per_s is not None:
        assert arch.noc_pj_per_byte is not None
        noc_pj = core_bytes * arch.noc_pj_per_byte
    pj_per_us = arch.static_w * 1e6  # 1 W = 1e12 pJ/s
    return (
        macs * mac_pj
        + dram_bytes * arch.dram_pj_per_byte
        + (core_bytes + operand_bytes) * arch.sram_pj_per_byte
        + noc_pj
        + pj_per_us * latency_us
    )


def cost_key(whole: GroupedSetting, mapping: MulticoreMapping) -> Key:
    """What a search compares: of the cores with the full blocks of each set, which are the slowest."""
    partition, tile, order = mapping
    times = [time_core(whole, core, tile, order) for core in whole.firsts]
    sram = sram_used_bytes(whole.arch, whole.problem, tile)
    P_G, P_M, P_N, P_K = partition
    return (
        max(time.latency_us for time in times), max(time.busiest_bytes for time in times), whole.active_cores,
        max(time.visits for time in times), sram, (P_K, P_G, P_M, P_N), int(order), *tile,
    )  # fmt: skip


def evaluate_mapping(arch: MulticoreSpec, problem: GemmProblem, mapping: MulticoreMapping) -> NaiveCost:
    """Cost of one mapping, by walking over all cores.

    Raises:
        ValueError: the arch cannot run the problem, or the mapping breaks a rule other than that of SRAM.
    """
    if not is_legal(arch, problem, mapping, must_fit_sram=False):
        raise ValueError(f"illegal on {arch.name} for {problem}: {mapping}")
    partition, tile, order = mapping
    whole = GroupedSetting(arch, problem, partition)
    bits, E_K = whole.largest.bits, whole.largest.grid.E_K
    a = b = scales = store = spill = reduction = reduction_noc = moved = steps = macs = num_cores = 0
    times = []
    parts: dict[int, float] = {}  # what a shared memory keeps of a set, by its core with the full blocks
    for (p_g, p_m, p_n, p_k), runs in whole.cores():
        num_cores += 1
        times.append(time_core(whole, GroupedCore((0, p_m, p_n, p_k), runs), tile, order))
        parts.setdefault(p_g, times[-1].kept_part)
        for run in runs:
            work = Work(run.setting, run.block)
            counts = count_core(run.setting, work, tile, order)
            a_bytes, b_bytes = bytes_of(counts.a, bits.a), bytes_of(counts.b, bits.b)
            s_bytes = bytes_of(counts.scales, bits.group)
            store_bytes = bytes_of(counts.c_store, run.setting.store_bits)
            spill_bytes = bytes_of(counts.c_spill, run.setting.partial)
            if "C" in run.setting.residents:
                store_bytes, spill_bytes = store_bytes if E_K > 1 else 0, 0
            moved += a_bytes + b_bytes + s_bytes + store_bytes + 2 * spill_bytes
            steps += counts.cube_steps
            macs += math.prod(run.block)
            if "A" in run.setting.residents:
                a_bytes = 0
            if "B" in run.setting.residents:
                b_bytes = s_bytes = 0
            if arch.shared_bytes is not None:
                a_bytes = b_bytes = s_bytes = spill_bytes = 0
                dram = naive_core.core_dram(run.setting, work, tile, order, parts[p_g])
                a, b, spill = (x + math.ceil(y) for x, y in zip((a, b, spill), dram, strict=True))
            # of the cores that share a slice the first one has the full block along the shared dimension
            if not run.setting.is_multicast or p_n == 0:
                a += a_bytes
            if not run.setting.is_multicast or p_m == 0:
                b, scales = b + b_bytes, scales + s_bytes
            store, spill = store + store_bytes, spill + spill_bytes
            if E_K > 1 and p_k == 0:
                reduction += 0 if "C" in run.setting.residents else bytes_of(work.c, bits.output)
                if arch.reduction == "dram":
                    reduction += bytes_of(E_K * work.c, run.setting.partial)
                else:
                    reduction_noc += bytes_of((E_K - 1) * work.c, run.setting.partial)
    assert num_cores == whole.active_cores
    assert macs == problem.macs
    slowest = max(times, key=lambda time: time.latency_us)
    key = cost_key(whole, mapping)
    dram_bytes = a + b + scales + store + 2 * spill + reduction
    latency_us = slowest.latency_us
    energy = energy_pj(whole.largest, problem.macs, dram_bytes, moved, reduction, reduction_noc, steps, latency_us)
    return NaiveCost(
        latency_us, slowest.main_us, slowest.compute_us, slowest.dram_us, slowest.noc_us, slowest.dma_us,
        slowest.reduction_us, max(time.busiest_bytes for time in times), whole.active_cores,
        max(time.visits for time in times), sram_used_bytes(arch, problem, tile),
        a, b, scales, store, spill, spill, reduction, reduction_noc, dram_bytes, energy, key,
    )  # fmt: skip


# --- every mapping ---------------------------------------------------------------------------------------------------


def find_best(
    arch: MulticoreSpec, problem: GemmProblem, *, allow_idle_cores: bool = False
) -> tuple[MulticoreMapping, NaiveCost] | None:
    """Try every partition, legal tile and loop order; return the best mapping and its cost, None when nothing fits.

    Raises:
        ValueError: the arch cannot run the problem.
    """
    limit, units = sram_limit_bytes(arch, problem), units_of(arch, problem)
    best: tuple[Key, MulticoreMapping] | None = None
    for row in enumerate_partitions(arch.num_cores, allow_idle_cores=allow_idle_cores).tolist():
        whole = GroupedSetting(arch, problem, Partition(*row))
        if arch.reduction == "none" and whole.largest.grid.E_K > 1:
            continue
        sizes = itertools.starmap(legal_tile_sizes, zip(whole.largest.block[1:], units, strict=True))
        for tile in itertools.starmap(Tile, itertools.product(*sizes)):
            if sram_used_bytes(arch, problem, tile) <= limit:
                for order in LoopOrder:
                    mapping = MulticoreMapping(whole.partition, tile, order)
                    key = cost_key(whole, mapping)
                    best = (key, mapping) if best is None else min(best, (key, mapping))
    return None if best is None else (best[1], evaluate_mapping(arch, problem, best[1]))
