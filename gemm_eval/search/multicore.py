"""Exact search for the best mapping of a GEMM or of fused attention on a multi-core chip.

Records are of COST_DTYPE and parameters of PARAMS_DTYPE; `type_of` [num_problems] is an index into `params`, `sizes`
[num_problems, 4] are G, M, K, N, and `layouts` the row groups of grouped GEMMs. MODEL.md, "Choice", is the order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import MulticoreSpec
from gemm_eval.errors import InfeasibleError, InvalidOptionError
from gemm_eval.jit import read_only, with_fixed_types
from gemm_eval.mapping import enumerate_partitions
from gemm_eval.models import multicore as model
from gemm_eval.models.multicore import COST_DTYPE
from gemm_eval.progress import run_in_chunks
from gemm_eval.search.grouped_kernels import find_top_grouped_overlap, find_top_grouped_pipeline
from gemm_eval.search.multicore_kernels import find_top_overlap, find_top_pipeline
from gemm_eval.workload import NO_LAYOUTS, AttentionProblem, GemmProblem, Layouts

MAX_IDLE_CORES = 4096
"""Largest chip on which partitions that leave cores idle are searched: their number grows as cores * log(cores)**3."""

Records: TypeAlias = npt.NDArray[np.void]
Integers: TypeAlias = npt.NDArray[np.int64]
Run: TypeAlias = Callable[[Callable[[int, int], object], int], object]

# of overlap and of pipeline timing: of batches, and of GEMMs whose groups differ
SEARCHES: tuple[tuple[Callable[..., int], ...], ...] = (
    (find_top_overlap, find_top_grouped_overlap), (find_top_pipeline, find_top_grouped_pipeline)
)  # fmt: skip

_SEARCHES_OF_ONE = [list(map(with_fixed_types, searches)) for searches in SEARCHES]

# What a search compares, MODEL.md, "Choice"; the rank of a partition is that of (P_K, P_G, P_M, P_N).
_KEY = (
    *("latency_us", "busiest_core_bytes", "active_cores", "visits", "sram_used_bytes", "P_K", "P_G", "P_M", "P_N"),
    *("loop_order", "tile_m", "tile_n", "tile_k"),
)


def find_best(
    arch: MulticoreSpec, problem: GemmProblem, params: Records, limit: int = 1, *, allow_idle_cores: bool
) -> Records:
    """Find the `limit` best mappings over every partition, legal tile and loop order; fewer if that is all.

    Mappings that another one stands for are not listed: the same data movement under another name of the loop order, a
    larger tile with the same trip counts, or (overlap timing) another tile_k, of which the best is listed.

    Args:
        params: from `pack_params(arch, problem.types)`.
        allow_idle_cores: also search partitions whose product is below num_cores.

    Raises:
        InfeasibleError: not even the smallest tile fits in SRAM.
    """
    partitions = enumerate_partitions(arch.num_cores, allow_idle_cores=allow_idle_cores)
    costs = find_best_of_partitions(arch, problem, params, partitions, limit, has_all_products=allow_idle_cores)
    if not len(costs):
        raise infeasible_error(arch, problem, params, allow_idle_cores=allow_idle_cores)
    return costs


def find_best_of_each_partition(
    arch: MulticoreSpec, problem: GemmProblem, params: Records, *, allow_idle_cores: bool
) -> Records:
    """Find the best mapping of every distinct partition, best first; InfeasibleError: no tile fits in SRAM."""
    best: dict[tuple[int | bytes, ...], Records] = {}
    for row in enumerate_partitions(arch.num_cores, allow_idle_cores=allow_idle_cores):
        parts = _parts(problem, params, row.tolist())
        if parts not in best:
            costs = find_best_of_partitions(arch, problem, params, row.reshape(1, 4), 1)
            if len(costs):
                best[parts] = costs
    if not best:
        raise infeasible_error(arch, problem, params, allow_idle_cores=allow_idle_cores)
    return sort_costs(np.concatenate(list(best.values())))


def sort_costs(costs: Records) -> Records:
    """Return records, best first."""
    return costs[np.lexsort([costs[name] for name in reversed(_KEY)])]


def find_best_many(
    num_cores: int, params: Records, type_of: Integers, sizes: Integers, layouts: Layouts = NO_LAYOUTS, *,
    allow_idle_cores: bool, run: Run = run_in_chunks,
) -> Records:  # fmt: skip
    """Find the best mapping of many problems; active_cores is 0 where nothing fits.

    Args:
        params: of any chips that have this many cores and the same timing.
        run: gets what to do from start to stop, and the number of problems. A result does not depend on it.
    """
    partitions = enumerate_partitions(num_cores, allow_idle_cores=allow_idle_cores)
    kernels = SEARCHES[bool(params["is_pipeline"][0])]
    return run_by_layout(kernels, params, type_of, sizes, layouts, partitions, allow_idle_cores, run=run)


def run_by_layout(
    kernels: Sequence[Callable[..., object]], params: Records, type_of: Integers, sizes: Integers, layouts: Layouts,
    *options: object, stored: Records | None = None, run: Run = run_in_chunks,
) -> Records:  # fmt: skip
    """Return what kernels write: one for batches, equal groups among them, one for GEMMs whose groups differ.

    Args:
        options: of both kernels, after the numbers of the first problem and of the one behind the last.
        stored: records of the problems, which the kernels read.
    """
    params, type_of = model.with_room(read_only(params), type_of, sizes, layouts)
    out = np.zeros(len(sizes), COST_DTYPE)
    parts: list[tuple[Any, tuple[Any, ...]]] = [(slice(None), (sizes,))]
    if len(layouts.of):
        split = model.split_layouts(sizes, layouts)
        of_groups = sizes[split.grouped], layouts.of[split.grouped], *layouts[1:]
        parts = [(split.batches, (split.sizes,)), (split.grouped, of_groups)]
    for kernel, (rows, problems) in zip(kernels, parts, strict=False):
        some = out[rows].reshape(-1, 1)
        given = params, type_of[rows], *problems
        # numba compiles anew for an array that is read-only
        rest = (*options, some) if stored is None else (*options, stored[rows].copy(), some)
        if len(some):
            run(partial(_run_part, kernel, given, rest), len(some))
        out[rows] = some[:, 0]
    return out


def _run_part(
    kernel: Callable[..., object], given: tuple[Any, ...], rest: tuple[Any, ...], start: int, stop: int
) -> None:
    kernel(*given, start, stop, *rest)


def replay_mappings(
    params: Records, type_of: Integers, sizes: Integers, records: Records, layouts: Layouts = NO_LAYOUTS
) -> Records:
    """Evaluate the mappings of records again; zeros where one is illegal, and counts of the search are 0."""
    kernels: tuple[Callable[..., None], ...] = model.evaluate_range, model.evaluate_grouped
    return run_by_layout(kernels, params, type_of, sizes, layouts, True, stored=records)


def check_idle_cores(arch: MulticoreSpec, *, allow_idle_cores: bool) -> None:
    """Raise `InvalidOptionError` when idle cores are to be searched on a chip too large for it."""
    if allow_idle_cores and arch.num_cores > MAX_IDLE_CORES:
        raise InvalidOptionError(
            f"allow_idle_cores must be False above {MAX_IDLE_CORES} cores, got {arch.num_cores} cores ({arch.name})"
        )


def find_best_of_partitions(
    arch: MulticoreSpec, problem: GemmProblem, params: Records, partitions: Integers, limit: int, *,
    has_all_products: bool = False,
) -> Records:  # fmt: skip
    """Find the `limit` best mappings of partitions [num, 4], best first; `has_all_products`: these are all."""
    out = np.zeros((1, limit), COST_DTYPE)
    if arch.resident or arch.by_dtype:  # a look into the record takes longer
        params = model.params_in_room(params, problem)
    sizes = model.kernel_sizes(problem)
    num = _SEARCHES_OF_ONE[arch.timing == "pipeline"][len(sizes) > 1](
        params, model.FIRST, *sizes, 0, 1, partitions, has_all_products, out
    )
    return out[0, :num]


def _parts(problem: GemmProblem, params: Records, partition: list[int]) -> tuple[int | bytes, ...]:
    """Return what tells a partition from others: blocks of a batch, or the rows of groups that a set of cores has."""
    sizes = model.batch_sizes(problem)
    block = model.block_of(params[0], *(sizes or problem.sizes), *partition)
    if sizes is not None:
        return block.g, block.m, block.n, block.k
    rows, counts = model.group_sizes(problem)
    blocks = -(-rows // partition[1])
    return block.n, block.k, blocks.tobytes(), model.spread_of(params, rows, counts, *partition[:2]).tobytes()


def infeasible_error(
    arch: MulticoreSpec, problem: GemmProblem, params: Records, *, allow_idle_cores: bool
) -> InfeasibleError:
    """Return the error for a problem that no mapping fits: what the smallest tile needs, and what would help."""
    record = model.params_in_room(params, problem)[0]
    demands = []
    for row in enumerate_partitions(arch.num_cores, allow_idle_cores=allow_idle_cores):
        block = model.block_of(record, *problem.sizes, *row.tolist())
        if block.E_K == 1 or arch.reduction != "none":
            tile = min(arch.cube_m, block.m), min(arch.cube_n, block.n), min(int(record["unit_k"]), block.k)
            demands.append((int(model.sram_used_bytes(record, *tile)), tile))
    if not demands:
        return InfeasibleError(
            f"every partition of {arch.num_cores} cores splits K, and {arch.name} cannot add partial results",
            resource="partition", demand=2, limit=1, unit="cores along K",
            levers=("allow_idle_cores", "reduction: dram"),
        )  # fmt: skip
    demand, tile = min(demands)
    limit = int(record["sram_usable_bytes"])
    levers = _sram_levers(arch, demand, limit)
    if arch.lane_num > 1 or arch.align_bytes > 1:
        levers.append("smaller lane_num or align_bytes (padding)")
    if problem.group_size and int(record["unit_k"]) > arch.cube_k_of(problem.input_dtype):
        levers.append("a smaller group_size")
    if record["has_dequant_copy"]:
        levers.append("dequant: inline (no dequantized copy)")
    return InfeasibleError(
        f"{problem} does not fit {arch.name}: its smallest tile, {tile[0]}x{tile[1]}x{tile[2]} (m x n x k), "
        "is larger than the usable SRAM of a core",
        resource="sram", demand=demand, limit=limit, unit="bytes", levers=tuple(levers),
    )  # fmt: skip


def _sram_levers(arch: MulticoreSpec, demand: int, limit: int) -> list[str]:
    taken = arch.sram_usable_bytes - limit
    levers = [f"sram_bytes >= {-(-(demand + taken) // arch.sram_usable_frac):,.0f}"]
    if arch.resident:
        levers.append("fewer resident operands")
    if arch.input_buffers == 2 and arch.timing == "overlap":
        levers.append("input_buffers: 1")
    if arch.output_buffers == 2:
        levers.append("output_buffers: 1")
    return levers


def find_best_fused_attention(arch: MulticoreSpec, problem: AttentionProblem) -> Records:
    """Find the best mapping over every partition, tile and loop order; exhaustive: MODEL.md, "Fused attention".

    Returns an array [1] of ATTENTION_COST_DTYPE.
    """
    from gemm_eval.models.multicore import (
        ATTENTION_COST_DTYPE,
        attention_params,
        attention_sizes,
        evaluate_attention_mapping,
    )
    from gemm_eval.search.attention_kernels import ATTENTION_KEY_INTS, find_best_attention

    params, sizes = attention_params(arch, problem), attention_sizes(problem)
    ints, counters = np.empty(ATTENTION_KEY_INTS, np.int64), np.array([0, 0, np.iinfo(np.int64).max])
    if not find_best_attention(params, sizes, problem.num_pairs * problem.group, ints, counters):
        demand, limit = int(counters[2]), int(params["sram_usable_bytes"][0])
        raise InfeasibleError(
            f"no tiles of fused attention, {problem}, fit in the SRAM of a core of {arch.name}",
            resource="sram", demand=demand, limit=limit, unit="bytes",
            levers=(*_sram_levers(arch, demand, limit), "fused=False"),
        )  # fmt: skip
    _, _, _, P_KV, P_U, P_Q, is_folded, order, tile_q, tile_kv = ints.tolist()
    out = np.zeros(1, ATTENTION_COST_DTYPE)
    evaluate_attention_mapping(params, sizes, P_U, P_Q, P_KV, is_folded, tile_q, tile_kv, order, out)
    out["num_candidates"], out["num_partitions"] = counters[:2].tolist()
    return out
