"""Slow truth of cost model 1: its formulas as MODEL.md writes them, and a search that tries everything.

Standard library only, and nothing of gemm_eval/models or gemm_eval/search. Float operations are done in the order of
gemm_eval/models/multicore/MODEL.md, so that a fast kernel may be compared exactly. Where a sum over cores is needed,
cores are walked one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gemm_eval.arch import MulticoreSpec
from gemm_eval.mapping import LoopOrder, MulticoreMapping, Partition, Tile, enumerate_partitions
from gemm_eval.workload import GemmProblem
from tests.oracle import packing
from tests.oracle.naive_core import (
    CoreCounts,
    Setting,
    Work,
    bytes_of,
    c_of,
    can_run,
    ceil_div,
    count_core,
    full_block,
    grid_of,
    is_legal,
    legal_tile_sizes,
    packed_by,
    sram_limit_bytes,
    sram_used,
    sram_used_bytes,
    tasks_us,
    time_core,
    units_of,
)
from tests.oracle.simulators import Block

__all__ = [
    "CoreCounts", "Key", "NaiveCost", "breakdown_of", "can_run", "core_latencies", "count_core", "energy_pj",
    "find_best", "full_block", "is_legal", "legal_tile_sizes", "sram_used_bytes", "units_of",
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


# --- one mapping -----------------------------------------------------------------------------------------------------


def core_latencies(arch: MulticoreSpec, problem: GemmProblem, mapping: MulticoreMapping) -> dict[Block, float]:
    """Latency of a core by the shape of its block, in us; the full block comes first."""
    setting = Setting(arch, problem, mapping.partition)
    blocks = dict.fromkeys(block for _, block in setting.cores())
    return {
        block: time_core(setting, Work(setting, block), mapping.tile, mapping.loop_order).latency_us for block in blocks
    }


def breakdown_of(arch: MulticoreSpec, problem: GemmProblem, mapping: MulticoreMapping) -> tuple[dict[str, float], str]:
    """Where the time of a full block goes, term by term in us, and what bounds it: MODEL.md, "Terms and bound"."""
    setting = Setting(arch, problem, mapping.partition)
    work, E_K = Work(setting, setting.block), setting.grid.E_K
    counts = count_core(setting, work, mapping.tile, mapping.loop_order)
    time = time_core(setting, work, mapping.tile, mapping.loop_order)
    stored = bytes_of(counts.c_store, setting.store_bits)
    spilled: float = bytes_of(counts.c_spill, setting.partial)
    if arch.shared_bytes is not None:
        spilled = time.dram[2]
    c_bytes = c_of(setting, stored, spilled).dram
    sync_us = packing.sync_us(arch, setting.active_cores)
    pack_us = packing.pack_us(arch, problem, [packed_by(setting, setting.block)])
    starting_us = tasks_us(arch, [setting.block], mapping.tile)
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


def _key_of(
    latency_us: float, busiest_bytes: float, active_cores: int, visits: int, sram_bytes: int, mapping: MulticoreMapping
) -> Key:
    (P_G, P_M, P_N, P_K), tile, order = mapping
    return latency_us, busiest_bytes, active_cores, visits, sram_bytes, (P_K, P_G, P_M, P_N), int(order), *tile


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


# --- every mapping ---------------------------------------------------------------------------------------------------

Best = tuple[MulticoreMapping, NaiveCost]
_Best = tuple[Key, MulticoreMapping]


class _Space:
    """The mappings of one partition, and the comparison of one of them with the best so far."""

    def __init__(self, arch: MulticoreSpec, problem: GemmProblem, partition: Partition) -> None:
        self.partition = partition
        self.setting = setting = Setting(arch, problem, partition)
        # The full block is the first one.
        self.works = [Work(setting, block) for block in dict.fromkeys(block for _, block in setting.cores())]
        _, m, n, k = setting.block
        units = units_of(arch, problem)
        self.sizes_m, self.sizes_n = legal_tile_sizes(m, units.tile_m), legal_tile_sizes(n, units.tile_n)
        self.sizes_k = legal_tile_sizes(k, units.tile_k)

    def better(self, best: _Best | None, tile: Tile, sram: int) -> _Best | None:
        """The better one of `best` and of `tile` in each of the six loop orders."""
        setting = self.setting
        for order in range(6):
            full = time_core(setting, self.works[0], tile, order)
            if best is not None and full.latency_us > best[0][0]:
                continue  # the slowest core can only be slower still
            latency_us = full.latency_us
            for work in self.works[1:]:
                latency_us = max(latency_us, time_core(setting, work, tile, order).latency_us)
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
    from tests.oracle.naive_grouped import evaluate_mapping  # which takes the rest from here

    limit = sram_limit_bytes(arch, problem)
    best: _Best | None = None
    for space in _spaces(arch, problem, allow_idle_cores):
        for tile_m in space.sizes_m:
            for tile_n in space.sizes_n:
                for tile_k in space.sizes_k:
                    tile = Tile(tile_m, tile_n, tile_k)
                    sram = sram_used(space.setting, tile)
                    if sram > limit:
                        break  # a longer tile does not fit either
                    best = space.better(best, tile, sram)
    return None if best is None else (best[1], evaluate_mapping(arch, problem, best[1]))


def _spaces(arch: MulticoreSpec, problem: GemmProblem, allow_idle_cores: bool) -> Iterator[_Space]:
    for row in enumerate_partitions(arch.num_cores, allow_idle_cores=allow_idle_cores).tolist():
        partition = Partition(*row)
        if arch.reduction != "none" or grid_of(problem, full_block(problem, partition)).E_K == 1:
            yield _Space(arch, problem, partition)
