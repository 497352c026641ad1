"""Slow truth of cost model 1 for a mapping: MODEL.md, "Grouped GEMMs", core by core and group by group.

A batch is G groups of M rows. As `naive`: standard library only, nothing of the kernels, float operations in the order
of MODEL.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from gemm_eval.arch import MulticoreSpec
from gemm_eval.mapping import LoopOrder, MulticoreMapping, Partition, Tile
from gemm_eval.workload import GemmProblem
from tests.oracle import naive, naive_core, packing
from tests.oracle.naive_core import Setting, Work, bytes_of, ceil_div
from tests.oracle.simulators import Block


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


def time_core(whole: GroupedSetting, core: GroupedCore, tile: Tile, order: LoopOrder) -> _Time:
    """How long a core takes: sums over its runs, then the times of a core."""
    arch, setting = whole.arch, core.runs[0].setting
    bits, E_K = setting.bits, setting.grid.E_K
    a_bytes = b_bytes = store = spill = red_noc_bytes = adds = steps = visits = dequant = fills = 0
    b_charged = red_dram_bytes = 0.0
    once_a = once_b = partial = 0.0
    for run in core.runs:
        work = Work(run.setting, run.block)
        counts = naive_core.count_core(run.setting, work, tile, order)
        of_b = bytes_of(counts.b, bits.b) + bytes_of(counts.scales, bits.group)
        a_bytes += bytes_of(counts.a, bits.a)
        b_bytes += of_b
        b_charged += of_b / run.setting.grid.E_M if setting.is_multicast else of_b
        store += bytes_of(counts.c_store, setting.store_bits)
        spill += bytes_of(counts.c_spill, setting.partial)
        steps, visits, dequant = steps + counts.cube_steps, visits + counts.visits, dequant + counts.dequant
        fills += counts.fills
        rows = work.scale_rows if work.scale_rows is not None else 1
        scales = run.block.g * rows * run.block.n if setting.is_quantized else 0
        once_a += bytes_of(work.a, bits.a)
        once_b += (bytes_of(work.b, bits.b) + bytes_of(scales, bits.group)) / run.setting.grid.E_M
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
    all_dma_us = max(naive_core.moved_us(setting, loads, c), steps * setting.feed_us_per_step)
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
        latency_us, main_us, compute_us, dram_us, noc_us, all_dma_us, reduction_us, busiest, visits, part
    )  # fmt: skip


# --- one mapping -----------------------------------------------------------------------------------------------------


def cost_key(whole: GroupedSetting, mapping: MulticoreMapping) -> naive.Key:
    """What a search compares: of the cores with the full blocks of each set, which are the slowest."""
    partition, tile, order = mapping
    firsts = [core for core in whole.cores() if core.place[1:] == (0, 0, 0)]
    times = [time_core(whole, core, tile, order) for core in firsts]
    sram = naive.sram_used_bytes(whole.arch, whole.problem, tile)
    P_G, P_M, P_N, P_K = partition
    return (
        max(time.latency_us for time in times), max(time.busiest_bytes for time in times), whole.active_cores,
        max(time.visits for time in times), sram, (P_K, P_G, P_M, P_N), int(order), *tile,
    )  # fmt: skip


def evaluate_mapping(arch: MulticoreSpec, problem: GemmProblem, mapping: MulticoreMapping) -> naive.NaiveCost:
    """Cost of one mapping, by walking over all cores.

    Raises:
        ValueError: the arch cannot run the problem, or the mapping breaks a rule other than that of SRAM.
    """
    if not naive.is_legal(arch, problem, mapping, must_fit_sram=False):
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
            counts = naive_core.count_core(run.setting, work, tile, order)
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
                dram, _ = naive_core.core_dram(run.setting, work, tile, order, parts[p_g])
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
    energy = naive.energy_pj(
        whole.largest, problem.macs, dram_bytes, moved, reduction, reduction_noc, steps, latency_us
    )
    return naive.NaiveCost(
        latency_us, slowest.main_us, slowest.compute_us, slowest.dram_us, slowest.noc_us, slowest.dma_us,
        slowest.reduction_us, max(time.busiest_bytes for time in times), whole.active_cores,
        max(time.visits for time in times), naive.sram_used_bytes(arch, problem, tile),
        a, b, scales, store, spill, spill, reduction, reduction_noc, dram_bytes, energy, key,
    )  # fmt: skip
