"""Exact search for the best mapping of a GEMM on a multi-core chip."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import MulticoreSpec
from gemm_eval.errors import InfeasibleError, InvalidOptionError
from gemm_eval.mapping import enumerate_partitions
from gemm_eval.models.multicore.cost_kernels import COST_DTYPE, block_of, sram_used_bytes
from gemm_eval.models.multicore.model import MulticoreCost, unpack_cost
from gemm_eval.search.multicore_kernels import NUM_COUNTERS, find_top_overlap, find_top_pipeline
from gemm_eval.workload import GemmProblem

__all__ = ["MAX_IDLE_CORES", "SearchCounts", "find_best", "find_best_few", "find_best_of_each_partition"]

MAX_IDLE_CORES = 4096
"""Largest chip on which partitions that leave cores idle are searched: their number grows as cores * log(cores)**3."""


class SearchCounts(NamedTuple):
    """What a search did. Everything not counted as a candidate was shown, by a bound or a rule, not to win."""

    num_candidates: int  # mappings whose cost was computed
    num_refused_sram: int  # tile choices that do not fit in SRAM
    num_partitions: int
    num_partitions_bounded: int  # whose lower bound is above the best
    num_partitions_dropped: int  # equal to a smaller partition, or a K split on a chip that cannot reduce


def find_best(
    arch: MulticoreSpec, problem: GemmProblem, params: npt.NDArray[np.void], *, allow_idle_cores: bool
) -> tuple[MulticoreCost, SearchCounts]:
    """Find the best mapping over every partition, legal tile and loop order; exhaustive, see MODEL.md, "Choice".

    Args:
        arch: the chip.
        problem: the GEMM.
        params: from `pack_params(arch, problem)`.
        allow_idle_cores: also search partitions whose product is below num_cores.

    Raises:
        InfeasibleError: not even the smallest tile fits in SRAM.
    """
    costs, counts = find_best_few(arch, problem, params, 1, allow_idle_cores=allow_idle_cores)
    return costs[0], counts


def find_best_few(
    arch: MulticoreSpec, problem: GemmProblem, params: npt.NDArray[np.void], limit: int, *, allow_idle_cores: bool
) -> tuple[list[MulticoreCost], SearchCounts]:
    """Find the `limit` best mappings, best first (fewer when there are not so many).

    Mappings that another one stands for are not listed: the same data movement under another name of the loop order, a
    larger tile with the same trip counts, or a tile_k smaller than what fits.

    Raises:
        InfeasibleError: not even the smallest tile fits in SRAM.
    """
    partitions = _partitions(arch, allow_idle_cores)
    costs, counts = _run(problem, params, partitions, limit, allow_idle_cores)
    if not costs:
        raise _infeasible(arch, problem, params, partitions)
    return costs, counts


def find_best_of_each_partition(
    arch: MulticoreSpec, problem: GemmProblem, params: npt.NDArray[np.void], *, allow_idle_cores: bool
) -> list[MulticoreCost]:
    """Find the best mapping within every partition, best first; partitions that amount to the same appear once.

    Raises:
        InfeasibleError: not even the smallest tile fits in SRAM.
    """
    partitions = _partitions(arch, allow_idle_cores)
    best: dict[tuple[int, ...], MulticoreCost] = {}
    for row in partitions:
        block = block_of(params[0], *problem.sizes, *(int(x) for x in row))
        costs, _ = _run(problem, params, row.reshape(1, 4), 1, False)
        if costs:
            best.setdefault((block.g, block.m, block.n, block.k), costs[0])
    if not best:
        raise _infeasible(arch, problem, params, partitions)
    return sorted(best.values(), key=lambda cost: (cost.latency_us, cost.busiest_core_bytes, cost.active_cores))


def _partitions(arch: MulticoreSpec, allow_idle_cores: bool) -> npt.NDArray[np.int64]:
    if allow_idle_cores and arch.num_cores > MAX_IDLE_CORES:
        raise InvalidOptionError(
            f"allow_idle_cores must be False above {MAX_IDLE_CORES} cores, got {arch.num_cores} cores ({arch.name})"
        )
    return enumerate_partitions(arch.num_cores, allow_idle_cores=allow_idle_cores)


def _run(
    problem: GemmProblem,
    params: npt.NDArray[np.void],
    partitions: npt.NDArray[np.int64],
    limit: int,
    has_all_products: bool,
) -> tuple[list[MulticoreCost], SearchCounts]:
    counters = np.zeros(NUM_COUNTERS, np.int64)
    out = np.zeros(limit, COST_DTYPE)
    find_top = find_top_pipeline if params["is_pipeline"][0] else find_top_overlap
    num = find_top(params, *problem.sizes, partitions, has_all_products, counters, out)
    return [unpack_cost(out[row]) for row in range(num)], SearchCounts(*counters.tolist())


def _infeasible(
    arch: MulticoreSpec, problem: GemmProblem, params: npt.NDArray[np.void], partitions: npt.NDArray[np.int64]
) -> InfeasibleError:
    record = params[0]
    demands = []
    for row in partitions:
        block = block_of(record, *problem.sizes, *(int(x) for x in row))
        if block.E_K > 1 and arch.reduction == "none":
            continue
        tile = (
            min(arch.cube_m, block.m),
            min(arch.cube_n, block.n),
            min(int(record["unit_k"]), block.k),
        )
        demands.append((int(sram_used_bytes(record, *tile)), tile))
    if not demands:
        return InfeasibleError(
            f"every partition of {arch.num_cores} cores splits K, and {arch.name} cannot add partial results",
            resource="partition",
            demand=2,
            limit=1,
            unit="cores along K",
            levers=("allow_idle_cores", "reduction: dram"),
        )
    demand, tile = min(demands)
    levers = [f"sram_bytes >= {-(-demand // arch.sram_usable_frac):,.0f}"]
    if arch.input_buffers == 2 and arch.timing == "overlap":
        levers.append("input_buffers: 1")
    if arch.output_buffers == 2:
        levers.append("output_buffers: 1")
    if arch.lane_num > 1 or arch.align_bytes > 1:
        levers.append("smaller lane_num or align_bytes (padding)")
    if problem.group_size and int(record["unit_k"]) > arch.cube_k_of(problem.input_dtype):
        levers.append("a smaller group_size")
    if record["has_dequant_copy"]:
        levers.append("dequant: inline (no dequantized copy)")
    return InfeasibleError(
        f"{problem} does not fit {arch.name}: its smallest tile, {tile[0]}x{tile[1]}x{tile[2]} (m x n x k), "
        "is larger than the usable SRAM of a core",
        resource="sram",
        demand=demand,
        limit=arch.sram_usable_bytes,
        unit="bytes",
        levers=tuple(levers),
    )
