"""Exact search for the best mapping of a GEMM or of fused attention on a multi-core chip."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import MulticoreSpec
from gemm_eval.errors import InfeasibleError, InvalidOptionError
from gemm_eval.jit import read_only
from gemm_eval.mapping import enumerate_partitions
from gemm_eval.models.multicore import (
    COST_DTYPE,
    FIRST,
    batch_sizes,
    block_of,
    evaluate_grouped,
    evaluate_range,
    group_sizes,
    lone_layout,
    params_in_room,
    split_layouts,
    spread_of,
    sram_used_bytes,
    with_room,
)
from gemm_eval.search.grouped_kernels import find_top_grouped_overlap, find_top_grouped_pipeline
from gemm_eval.search.multicore_kernels import find_top_overlap, find_top_pipeline
from gemm_eval.search.threads import run_in_chunks
from gemm_eval.workload import NO_LAYOUTS, AttentionProblem, GemmProblem, Layouts

MAX_IDLE_CORES = 4096
"""Largest chip on which partitions that leave cores idle are searched: their number grows as cores * log(cores)**3."""

# What a search compares, MODEL.md, "Choice"; the rank of a partition is that of (P_K, P_G, P_M, P_N).
_KEY = (
    *("latency_us", "busiest_core_bytes", "active_cores", "visits", "sram_used_bytes", "P_K", "P_G", "P_M", "P_N"),
    *("loop_order", "tile_m", "tile_n", "tile_k"),
)


def find_best(
    arch: MulticoreSpec, problem: GemmProblem, params: npt.NDArray[np.void], *, allow_idle_cores: bool
) -> npt.NDArray[np.void]:
    """Find the best mapping over every partition, legal tile and loop order; exhaustive, see MODEL.md, "Choice".

    Returns an array [1] of COST_DTYPE.

    Args:
        arch: the chip.
        problem: the GEMM.
        params: from `pack_params(arch, problem.types)`.
        allow_idle_cores: also search partitions whose product is below num_cores.

    Raises:
        InfeasibleError: not even the smallest tile fits in SRAM.
    """
    return find_best_few(arch, problem, params, 1, allow_idle_cores=allow_idle_cores)


def find_best_few(
    arch: MulticoreSpec, problem: GemmProblem, params: npt.NDArray[np.void], limit: int, *, allow_idle_cores: bool
) -> npt.NDArray[np.void]:
    """Find the `limit` best mappings, best first (fewer when there are not so many).

    Mappings that another one stands for are not listed: the same data movement under another name of the loop order, a
    larger tile with the same trip counts, or (overlap timing) another tile_k, of which the best is listed. Returns an
    array of COST_DTYPE.

    Raises:
        InfeasibleError: not even the smallest tile fits in SRAM.
    """
    partitions = _partitions(arch, allow_idle_cores)
    costs = _run(arch, problem, params, partitions, limit, allow_idle_cores)
    if not len(costs):
        raise infeasible_error(arch, problem, params, allow_idle_cores=allow_idle_cores)
    return costs


def find_best_of_each_partition(
    arch: MulticoreSpec, problem: GemmProblem, params: npt.NDArray[np.void], *, allow_idle_cores: bool
) -> npt.NDArray[np.void]:
    """Find the best mapping within every partition, best first; partitions that amount to the same appear once.

    Raises:
        InfeasibleError: not even the smallest tile fits in SRAM.
    """
    partitions = _partitions(arch, allow_idle_cores)
    best: dict[tuple[int | bytes, ...], npt.NDArray[np.void]] = {}
    for row in partitions:
        parts = _parts(problem, params, row.tolist())
        if parts not in best:
            costs = _run(arch, problem, params, row.reshape(1, 4), 1, False)
            if len(costs):
                best[parts] = costs
    if not best:
        raise infeasible_error(arch, problem, params, allow_idle_cores=allow_idle_cores)
    return sort_costs(np.concatenate(list(best.values())))


def sort_costs(costs: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """Return records [num] of COST_DTYPE, best first: MODEL.md, "Choice"."""
    return costs[np.lexsort([costs[name] for name in reversed(_KEY)])]


def find_best_many(
    arch: MulticoreSpec,
    params: npt.NDArray[np.void],
    type_of: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    layouts: Layouts = NO_LAYOUTS,
    *,
    allow_idle_cores: bool,
    on_progress: Callable[[int], None] | None = None,
) -> npt.NDArray[np.void]:
    """Find the best mapping of many problems, on all cores of this machine.

    Threads take chunks of the problems and release the GIL. A result does not depend on how many threads there are.

    Args:
        arch: the chip.
        params: [num_types] of PARAMS_DTYPE.
        type_of: [num_problems], index into `params`.
        sizes: [num_problems, 4] of G, M, K, N, each within the limits that `GemmProblem` sets.
        layouts: the row groups of grouped GEMMs.
        allow_idle_cores: as for `find_best`.
        on_progress: called now and then with the number of problems that are newly done.

    Returns:
        [num_problems] of COST_DTYPE, with active_cores 0 where nothing fits.
    """
    return _find_many(
        _partitions(arch, allow_idle_cores), params, type_of, sizes, layouts, allow_idle_cores,
        lambda work, num: run_in_chunks(work, num, on_progress),
    )  # fmt: skip


def find_best_of_archs(
    num_cores: int,
    params: npt.NDArray[np.void],
    type_of: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    layouts: Layouts = NO_LAYOUTS,
    *,
    allow_idle_cores: bool,
) -> npt.NDArray[np.void]:
    """Find the best mapping of many problems on many chips, in this thread; the GIL is released.

    Args:
        num_cores: of every chip.
        params: [num_types] of PARAMS_DTYPE, of any chips that have this many cores and the same timing.
        type_of, sizes, layouts, allow_idle_cores: as for `find_best_many`.

    Returns:
        [num_problems] of COST_DTYPE, with active_cores 0 where nothing fits.
    """
    partitions = enumerate_partitions(num_cores, allow_idle_cores=allow_idle_cores)
    return _find_many(
        partitions, params, type_of, sizes, layouts, allow_idle_cores, lambda work, num: work(0, num)
    )  # fmt: skip


def _find_many(
    partitions: npt.NDArray[np.int64],
    params: npt.NDArray[np.void],
    type_of: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    layouts: Layouts,
    allow_idle_cores: bool,
    run: Callable[[Callable[[int, int], object], int], object],
) -> npt.NDArray[np.void]:
    """Find the best mappings of batches and of grouped GEMMs; `run` gets what to do from start to stop, and the end."""
    params, type_of = with_room(read_only(params), type_of, sizes, layouts)
    is_pipeline = bool(params["is_pipeline"][0])
    find = find_top_pipeline if is_pipeline else find_top_overlap

    def find_batches(type_of: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
        out = np.zeros((len(sizes), 1), COST_DTYPE)
        run(
            lambda start, stop: find(params, type_of, sizes, start, stop, partitions, allow_idle_cores, out), len(sizes)
        )  # fmt: skip
        return out[:, 0]

    if not len(layouts.of):
        return find_batches(type_of, sizes)
    split = split_layouts(sizes, layouts)
    records = np.zeros(len(sizes), COST_DTYPE)
    if len(split.batches):
        records[split.batches] = find_batches(type_of[split.batches], split.sizes)
    if len(split.grouped):
        of_rows, of_sizes, of = type_of[split.grouped], sizes[split.grouped], layouts.of[split.grouped]
        find_grouped = find_top_grouped_pipeline if is_pipeline else find_top_grouped_overlap
        out = np.zeros((len(split.grouped), 1), COST_DTYPE)

        def search_grouped(start: int, stop: int) -> None:
            find_grouped(
                params, of_rows, of_sizes, of, *layouts[1:], start, stop, partitions, allow_idle_cores, out
            )  # fmt: skip

        run(search_grouped, len(out))
        records[split.grouped] = out[:, 0]
    return records


def check_idle_cores(arch: MulticoreSpec, *, allow_idle_cores: bool) -> None:
    """Raise `InvalidOptionError` when idle cores are to be searched on a chip too large for it."""
    if allow_idle_cores and arch.num_cores > MAX_IDLE_CORES:
        raise InvalidOptionError(
            f"allow_idle_cores must be False above {MAX_IDLE_CORES} cores, got {arch.num_cores} cores ({arch.name})"
        )


def _partitions(arch: MulticoreSpec, allow_idle_cores: bool) -> npt.NDArray[np.int64]:
    return enumerate_partitions(arch.num_cores, allow_idle_cores=allow_idle_cores)


def _run(
    arch: MulticoreSpec,
    problem: GemmProblem,
    params: npt.NDArray[np.void],
    partitions: npt.NDArray[np.int64],
    limit: int,
    has_all_products: bool,
) -> npt.NDArray[np.void]:
    out = np.zeros((1, limit), COST_DTYPE)
    if arch.resident or arch.by_dtype:  # a look into the record takes longer
        params = params_in_room(params, problem)
    is_pipeline = arch.timing == "pipeline"
    sizes = batch_sizes(problem)
    table = np.array([sizes or problem.sizes])
    if sizes is None:
        find_grouped = find_top_grouped_pipeline if is_pipeline else find_top_grouped_overlap
        layout = lone_layout(problem)
        num = find_grouped(params, FIRST, table, *layout, 0, 1, partitions, has_all_products, out)
    else:
        find_top = find_top_pipeline if is_pipeline else find_top_overlap
        num = find_top(params, FIRST, table, 0, 1, partitions, has_all_products, out)
    return out[0, :num]


def _parts(problem: GemmProblem, params: npt.NDArray[np.void], partition: list[int]) -> tuple[int | bytes, ...]:
    """Return what tells a partition from others: blocks of a batch, or the rows of groups that a set of cores has."""
    sizes = batch_sizes(problem)
    block = block_of(params[0], *(sizes or problem.sizes), *partition)
    if sizes is not None:
        return block.g, block.m, block.n, block.k
    rows, counts = group_sizes(problem)
    blocks = -(-rows // partition[1])
    return block.n, block.k, blocks.tobytes(), spread_of(params, rows, counts, *partition[:2]).tobytes()


def infeasible_error(
    arch: MulticoreSpec, problem: GemmProblem, params: npt.NDArray[np.void], *, allow_idle_cores: bool
) -> InfeasibleError:
    """Return the error for a problem that no mapping fits: what the smallest tile needs, and what would help."""
    record = params_in_room(params, problem)[0]
    demands = []
    for row in _partitions(arch, allow_idle_cores):
        block = block_of(record, *problem.sizes, *row.tolist())
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
    taken = arch.sram_usable_bytes - int(record["sram_usable_bytes"])
    levers = [f"sram_bytes >= {-(-(demand + taken) // arch.sram_usable_frac):,.0f}"]
    if arch.resident:
        levers.append("fewer resident operands")
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
        limit=int(record["sram_usable_bytes"]),
        unit="bytes",
        levers=tuple(levers),
    )


def replay_mappings(
    params: npt.NDArray[np.void],
    type_of: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    found: npt.NDArray[np.void],
    layouts: Layouts = NO_LAYOUTS,
) -> npt.NDArray[np.void]:
    """Evaluate the mappings of records again, whatever numbers they hold.

    Args:
        params: [num_types] of PARAMS_DTYPE.
        type_of: [num], index into `params`.
        sizes: [num, 4] of G, M, K, N.
        found: [num] of COST_DTYPE.
        layouts: the row groups of grouped GEMMs.

    Returns:
        [num] of COST_DTYPE, zeros where a mapping is illegal; counts of the search are 0.
    """
    params, type_of = with_room(read_only(params), type_of, sizes, layouts)
    if not len(layouts.of):
        return _replay_batches(params, type_of, sizes, found)
    split = split_layouts(sizes, layouts)
    out = np.zeros(len(found), COST_DTYPE)
    out[split.batches] = _replay_batches(params, type_of[split.batches], split.sizes, found[split.batches])
    rows = split.grouped
    if len(rows):
        replayed = np.zeros(len(rows), COST_DTYPE)
        of_rows = (type_of[rows], sizes[rows], layouts.of[rows], *layouts[1:])
        stored = found[rows]
        run_in_chunks(
            lambda start, stop: evaluate_grouped(params, *of_rows, start, stop, True, stored, replayed), len(rows)
        )  # fmt: skip
        out[rows] = replayed
    return out


def _replay_batches(
    params: npt.NDArray[np.void],
    type_of: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    found: npt.NDArray[np.void],
) -> npt.NDArray[np.void]:
    found = found.copy()  # numba compiles anew for an array that is read-only
    out = np.zeros(len(found), COST_DTYPE)
    run_in_chunks(lambda start, stop: evaluate_range(params, type_of, sizes, start, stop, True, found, out), len(found))
    return out


def find_best_fused_attention(arch: MulticoreSpec, problem: AttentionProblem) -> npt.NDArray[np.void]:
    """Find the best mapping over every partition, tile and loop order; exhaustive: MODEL.md, "Fused attention".

    Returns an array [1] of ATTENTION_COST_DTYPE.

    Raises:
        UnsupportedError: the chip cannot compute it; see `attention_params`.
        InfeasibleError: not even the smallest tiles fit in SRAM.
    """
    from gemm_eval.models.multicore import (
        ATTENTION_COST_DTYPE,
        attention_params,
        attention_sizes,
        evaluate_attention_mapping,
    )
    from gemm_eval.search.attention_kernels import ATTENTION_KEY_INTS, find_best_attention

    params, sizes = attention_params(arch, problem), attention_sizes(problem)
    floats, ints = np.empty(2), np.empty(ATTENTION_KEY_INTS, np.int64)
    counters = np.array([0, 0, np.iinfo(np.int64).max])
    find_best_attention(params, sizes, problem.num_pairs * problem.group, floats, ints, counters)
    if np.isinf(floats[0]):
        raise _attention_error(arch, problem, demand=int(counters[2]), limit=int(params["sram_usable_bytes"][0]))
    _, _, _, P_KV, P_U, P_Q, is_folded, order, tile_q, tile_kv = ints.tolist()
    out = np.zeros(1, ATTENTION_COST_DTYPE)
    evaluate_attention_mapping(params, sizes, P_U, P_Q, P_KV, is_folded, tile_q, tile_kv, order, out)
    out["num_candidates"], out["num_partitions"] = counters[:2].tolist()
    return out


def _attention_error(arch: MulticoreSpec, problem: AttentionProblem, *, demand: int, limit: int) -> InfeasibleError:
    levers = [f"sram_bytes >= {-(-(demand + arch.sram_usable_bytes - limit) // arch.sram_usable_frac):,.0f}"]
    if arch.resident:
        levers.append("fewer resident operands")
    if arch.input_buffers == 2 and arch.timing == "overlap":
        levers.append("input_buffers: 1")
    if arch.output_buffers == 2:
        levers.append("output_buffers: 1")
    return InfeasibleError(
        f"no tiles of fused attention, {problem}, fit in the SRAM of a core of {arch.name}",
        resource="sram", demand=demand, limit=limit, unit="bytes", levers=(*levers, "fused=False"),
    )  # fmt: skip
