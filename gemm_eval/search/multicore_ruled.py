"""What a chip's library would choose: a search of the mappings that it has, by what it believes of the chip."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import LibraryRules, MulticoreSpec
from gemm_eval.errors import InfeasibleError
from gemm_eval.jit import read_only
from gemm_eval.mapping import LoopOrder, enumerate_partitions
from gemm_eval.models.multicore import COST_DTYPE, batch_sizes, block_of, params_in_room, split_layouts, with_room
from gemm_eval.search.multicore import find_best_few, find_best_many, find_best_of_each_partition, sort_costs
from gemm_eval.search.multicore_ruled_kernels import NO_LIMIT, Rules, find_best_ruled, find_top_ruled
from gemm_eval.search.threads import run_in_chunks
from gemm_eval.workload import NO_LAYOUTS, GemmProblem, Layouts

__all__ = ["allowed_partitions", "find_ruled_few", "find_ruled_many", "ruled_out_error"]

_RULES = ("splits", "partitions", "loop_orders", "tile_m", "tile_n", "tile_k", "whole", "loads_once", "max_tile_bytes")
"""Fields of `LibraryRules` that leave mappings out."""


def find_ruled_many(
    arch: MulticoreSpec,
    rules: LibraryRules,
    params: npt.NDArray[np.void],
    type_of: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    layouts: Layouts = NO_LAYOUTS,
    *,
    allow_idle_cores: bool,
    on_progress: Callable[[int], None] | None = None,
) -> npt.NDArray[np.void]:
    """Find the best mapping of many problems among those that a library has; exhaustive, see MODEL.md, "Choice".

    Args:
        arch: the chip, as the library uses it.
        rules: which mappings there are.
        params: [num_types] of PARAMS_DTYPE, of what the library believes the chip to be.
        type_of: [num_problems], index into `params`.
        sizes: [num_problems, 4] of G, M, K, N.
        layouts: the row groups of grouped GEMMs, which are searched as if there were no rules where groups differ.
        allow_idle_cores: as for `find_best`.
        on_progress: as for `find_best_many`.

    Returns:
        [num_problems] of COST_DTYPE, with active_cores 0 where nothing fits.
    """
    if not (rules.restricts_tiles or rules.restricts_partitions):
        options: dict[str, Any] = {"allow_idle_cores": allow_idle_cores, "on_progress": on_progress}
        return find_best_many(arch, params, type_of, sizes, layouts, **options)
    if len(layouts.of):
        split = split_layouts(sizes, layouts)
        out = np.zeros(len(sizes), COST_DTYPE)
        out[split.batches] = find_ruled_many(
            arch, rules, params, type_of[split.batches], split.sizes,
            allow_idle_cores=allow_idle_cores, on_progress=on_progress,
        )  # fmt: skip
        rows = split.grouped
        if len(rows):
            out[rows] = find_best_many(
                arch, params, type_of[rows], sizes[rows], layouts.take(rows),
                allow_idle_cores=allow_idle_cores, on_progress=on_progress,
            )  # fmt: skip
        return out
    params, type_of = with_room(read_only(params), type_of, sizes, NO_LAYOUTS)
    partitions = allowed_partitions(arch, rules, allow_idle_cores=allow_idle_cores)
    packed = _pack(rules)
    out = np.zeros(len(sizes), COST_DTYPE)
    run_in_chunks(
        lambda start, stop: find_best_ruled(params, type_of, sizes, start, stop, partitions, packed, out),
        len(sizes),
        on_progress,
    )
    return out


def find_ruled_few(
    arch: MulticoreSpec,
    rules: LibraryRules,
    problem: GemmProblem,
    params: npt.NDArray[np.void],
    limit: int,
    *,
    by_partition: bool,
    allow_idle_cores: bool,
) -> npt.NDArray[np.void]:
    """Find the best few mappings among those that a library has, best first: the first is that of `find_ruled_many`.

    Args:
        arch, rules, allow_idle_cores: as for `find_ruled_many`.
        problem: the GEMM; where its groups differ, the search is as if the rules left all mappings.
        params: [1] of PARAMS_DTYPE, of what the library believes the chip to be.
        limit: how many.
        by_partition: return the best of each partition.

    Returns:
        [at most `limit`] of COST_DTYPE, costed as the library believes; none where nothing fits.
    """
    sizes = batch_sizes(problem)
    if sizes is None or not (rules.restricts_tiles or rules.restricts_partitions):
        try:
            if by_partition:
                costs = find_best_of_each_partition(arch, problem, params, allow_idle_cores=allow_idle_cores)
                return costs[:limit]
            return find_best_few(arch, problem, params, limit, allow_idle_cores=allow_idle_cores)
        except InfeasibleError:
            return np.zeros(0, COST_DTYPE)
    record = params_in_room(read_only(params), problem)[0]
    partitions, packed = allowed_partitions(arch, rules, allow_idle_cores=allow_idle_cores), _pack(rules)
    if not by_partition:
        out = np.zeros(limit, COST_DTYPE)
        return out[: find_top_ruled(record, *sizes, partitions, packed, out)]
    costs = np.zeros(len(partitions), COST_DTYPE)
    seen = set()
    for row, partition in enumerate(partitions):
        block = block_of(record, *sizes, *partition.tolist())
        if block[:4] not in seen:
            seen.add(block[:4])
            find_top_ruled(record, *sizes, partition.reshape(1, 4), packed, costs[row : row + 1])
    return sort_costs(costs[costs["active_cores"] > 0])[:limit]


def ruled_out_error(
    arch: MulticoreSpec,
    rules: LibraryRules,
    problem: GemmProblem,
    params: npt.NDArray[np.void],
    *,
    allow_idle_cores: bool,
) -> InfeasibleError:
    """Return the error for a problem that has mappings on the chip, but none that its library has.

    Args:
        arch, rules, params, allow_idle_cores: as for `find_ruled_many`, of one type.
        problem: which.
    """
    sizes, said = np.array([problem.sizes], np.int64), {name: getattr(rules, name) for name in rules.model_fields_set}
    given = [name for name in _RULES if said.get(name)]

    def is_ruled_out_by(name: str) -> bool:
        others = LibraryRules(**{rule: value for rule, value in said.items() if rule != name})
        found = find_ruled_many(arch, others, params, np.zeros(1, np.int64), sizes, allow_idle_cores=allow_idle_cores)
        return bool(found["active_cores"][0])

    alone = [name for name in given if is_ruled_out_by(name)]
    named = (" and also " if alone else " with ").join(f"rules.{name}" for name in alone or given)
    return InfeasibleError(
        f"{problem} fits {arch.name}, but {rules.title or 'its library'} has no mapping for it: {named} leaves none",
        resource="rules",
        demand=1,
        limit=0,
        unit="mappings",
        levers=("policy='best'", *(f"without rules.{name}" for name in alone)),
    )


def allowed_partitions(arch: MulticoreSpec, rules: LibraryRules, *, allow_idle_cores: bool) -> npt.NDArray[np.int64]:
    """Return the partitions that a library has, int64 [num, 4] of (P_G, P_M, P_N, P_K) by rank."""
    found = enumerate_partitions(arch.num_cores, allow_idle_cores=allow_idle_cores)
    if rules.partitions:
        known = {tuple(parts) for parts in rules.partitions}
        found = np.array([row for row in found.tolist() if tuple(row) in known], np.int64).reshape(-1, 4)
    for place, name in enumerate("GMNK"):
        if name not in rules.splits:
            found = found[found[:, place] == 1]
    return read_only(np.ascontiguousarray(found))


@lru_cache(maxsize=64)
def _pack(rules: LibraryRules) -> Rules:
    limits = [rules.max_tile_bytes.get(name, NO_LIMIT) for name in ("A", "B")]
    orders = [not rules.loop_orders or order.name.lower() in rules.loop_orders for order in LoopOrder]
    tile_m, tile_n, tile_k = (
        read_only(np.array(sorted(sizes), np.int64)) for sizes in (rules.tile_m, rules.tile_n, rules.tile_k)
    )
    return Rules(
        tile_m,
        tile_n,
        tile_k,
        read_only(np.array([name in rules.whole for name in "MNK"])),
        read_only(np.array([name in rules.loads_once for name in "ABC"])),
        read_only(np.array(limits, np.int64)),
        read_only(np.array(orders)),
    )
