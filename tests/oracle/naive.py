"""Slow truth of cost model 1: which mappings are legal, where groups lie, and what a mapping costs.

Standard library only, and nothing of gemm_eval/models or gemm_eval/search. What cores move and how long they take comes
of `simulators_grouped`, which walks their loops: nothing is a closed form of reuse. A batch is G groups of M rows.
"""

import math
from typing import NamedTuple

from gemm_eval.arch import MulticoreSpec
from gemm_eval.mapping import MulticoreMapping, Partition, Tile
from gemm_eval.workload import GemmProblem
from tests.oracle.memories import resident_bytes, resident_operands
from tests.oracle.simulators import Block, bits_of, ceil_div
from tests.oracle.simulators_grouped import CoreWalk, GroupedWalk, simulate_chip


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
    bits = bits_of(problem)
    tile_m, tile_n, tile_k = tile
    a = _padded_bytes(arch, tile_m, tile_k * bits.a)
    b = _padded_bytes(arch, tile_k, tile_n * bits.b)
    c = _padded_bytes(arch, tile_m, tile_n * bits.accumulator)
    s = d = 0
    if problem.is_weight_quantized:
        s = _padded_bytes(arch, ceil_div(tile_k, problem.group_size or problem.K), tile_n * bits.group)
        if arch.dequant == "vector":
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
    if arch.reduction == "none" and block.k < problem.K:
        return False
    for tile_size, block_size, unit in zip(tile, (block.m, block.n, block.k), units, strict=True):
        if tile_size not in legal_tile_sizes(block_size, unit):
            return False
    return not must_fit_sram or sram_used_bytes(arch, problem, tile) <= sram_limit_bytes(arch, problem)


def sram_limit_bytes(arch: MulticoreSpec, problem: GemmProblem) -> int:
    """SRAM that is left for the tiles of a core."""
    usable = math.floor(arch.sram_bytes * arch.sram_usable_frac)
    return usable - resident_bytes(arch, problem) if resident_operands(arch, problem) else usable


def _padded_bytes(arch: MulticoreSpec, rows: int, row_bits: int) -> int:
    padded_rows = ceil_div(rows, arch.lane_num) * arch.lane_num
    row_bytes = ceil_div(ceil_div(row_bits, 16), arch.align_bytes) * arch.align_bytes
    return padded_rows * row_bytes


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


# --- one mapping -----------------------------------------------------------------------------------------------------


def walk_of(arch: MulticoreSpec, problem: GemmProblem, mapping: MulticoreMapping) -> GroupedWalk:
    """Walk all cores of a mapping, the groups spread over sets of cores."""
    sets = spread_groups(problem, arch.cube_m, *mapping.partition[:2])
    return simulate_chip(arch, problem, mapping, sets)


def evaluate_mapping(arch: MulticoreSpec, problem: GemmProblem, mapping: MulticoreMapping) -> NaiveCost:
    """Cost of one mapping, by walking over all cores.

    Raises:
        ValueError: the arch cannot run the problem, or the mapping breaks a rule other than that of SRAM.
    """
    if not is_legal(arch, problem, mapping, must_fit_sram=False):
        raise ValueError(f"illegal on {arch.name} for {problem}: {mapping}")
    walk = walk_of(arch, problem, mapping)
    assert walk.macs == problem.macs  # the blocks cover the problem once
    cores = list(walk.cores.values())
    slowest = max(cores, key=lambda core: core.latency_us)
    main = slowest.main
    sram = sram_used_bytes(arch, problem, mapping.tile)
    terms = walk[:5]
    spilled, reduction = walk.c_spill_bytes, walk.reduction_dram_bytes
    dram_bytes = sum(terms) + spilled + reduction
    return NaiveCost(
        slowest.latency_us, main.main_us, main.compute_us, main.dram_us, main.noc_us, main.dma_us, slowest.reduction_us,
        max(_charged_bytes(core) for core in cores) * len(cores), len(cores), max(core.main.visits for core in cores),
        sram, *terms, spilled, reduction, walk.reduction_noc_bytes, dram_bytes,
        energy_pj(arch, problem, walk, dram_bytes, slowest.latency_us),
    )  # fmt: skip


def _charged_bytes(core: CoreWalk) -> float:
    """Bytes of a core past DRAM."""
    return core.main.dram_bytes + core.reduction[0]


def energy_pj(
    arch: MulticoreSpec, problem: GemmProblem, walk: GroupedWalk, dram_bytes: int, latency_us: float
) -> float | None:
    """Energy of the chip, None when the spec lacks a term.

    The DRAM bytes of the reduction go through a core's port and SRAM like those of the main loop; a partial sum sent
    from core to core leaves one and enters another.
    """
    mac_pj, noc_pj = arch.mac_pj.get(problem.input_dtype), arch.noc_pj_per_byte
    if mac_pj is None or arch.sram_pj_per_byte is None or arch.dram_pj_per_byte is None:
        return None
    if arch.noc_gb_per_s is None:
        noc_pj = 0.0
    if noc_pj is None:
        return None
    core_bytes = walk.moved_bytes + walk.reduction_dram_bytes + 2 * walk.reduction_noc_bytes
    step_elems = arch.cube_k_of(problem.input_dtype) * (arch.cube_m + arch.cube_n)
    operand_bytes = walk.cube_steps * step_elems * bits_of(problem).a / 16
    return (
        problem.macs * mac_pj
        + dram_bytes * arch.dram_pj_per_byte
        + (core_bytes + operand_bytes) * arch.sram_pj_per_byte
        + core_bytes * noc_pj
        + arch.static_w * 1e6 * latency_us  # 1 W = 1e12 pJ/s
    )


def breakdown_of(arch: MulticoreSpec, problem: GemmProblem, mapping: MulticoreMapping) -> tuple[dict[str, float], str]:
    """Where the time of a full block of a batch goes, in us, and what bounds it: MODEL.md, "Terms and bound"."""
    walk = walk_of(arch, problem, mapping)
    speeds, found = walk.core, walk.cores[0, 0, 0, 0]
    main, total = found.main, found.main.total
    busy_us = arch.launch_us + main.main_us + found.reduction_us + (found.sync_us + found.pack_us) + found.starting_us
    vector_ops_per_us = (arch.vector_ops_per_cycle or 1.0) * speeds.cycles_per_us
    terms = {
        "launch_us": arch.launch_us + found.starting_us + (found.latency_us - busy_us),
        "matrix_us": total.cube_steps / arch.cube_steps_per_cycle[problem.input_dtype] / speeds.cycles_per_us,
        "fill_drain_us": (main.visits * arch.fill_drain_cycles + total.fills * arch.weight_load_cycles)
        / speeds.cycles_per_us,
        "vector_us": total.dequant * (arch.dequant_ops_per_elem or 0.0) / vector_ops_per_us,
        "dram_a_us": main.dram.a / speeds.dram_bytes_per_us,
        "dram_b_us": main.dram.b / speeds.dram_bytes_per_us,
        "dram_c_us": main.c_dram / speeds.dram_bytes_per_us,
        "noc_wait_us": main.dma_us - main.dram_us,
    }
    overlapping_us = sum(us for name, us in terms.items() if name != "launch_us")
    num_bytes, sent, adds = found.reduction
    reduction = {
        "reduction_dram_us": num_bytes / speeds.dram_bytes_per_us,
        "reduction_noc_us": sent / speeds.port_bytes_per_us,
        "reduction_add_us": adds / vector_ops_per_us,
    }
    if max(found.sync_us, found.pack_us) > max(main.main_us, terms["launch_us"], found.reduction_us):
        bound = "pack" if found.pack_us > found.sync_us else "sync"
    elif found.reduction_us > max(main.main_us, terms["launch_us"]):
        bound = "reduction"
    elif terms["launch_us"] > main.main_us:
        bound = "launch"
    elif main.compute_us >= main.dma_us:
        bound = "vector" if terms["vector_us"] > terms["matrix_us"] + terms["fill_drain_us"] else "compute"
    elif main.feed_us > max(main.dram_us, main.shared_us, main.noc_us):
        bound = "feed"
    elif main.shared_us > max(main.dram_us, main.noc_us):
        bound = "shared"
    else:
        bound = "noc" if main.noc_us > main.dram_us else "dram"
    before = {"launch_us": terms.pop("launch_us"), "sync_us": found.sync_us, "pack_us": found.pack_us}
    return {**before, **terms, "hidden_us": main.main_us - overlapping_us, **reduction}, bound
