"""Searches of a part of the space: candidates of search plans, for any cost model, and the mappings that a library has.

Plans are for cost models whose every evaluation is expensive: a simulator, a compiler, a chip. Their candidates are the
mappings that the model of this library finds best.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from gemm_eval.arch import LibraryRules, MulticoreSpec
from gemm_eval.errors import InfeasibleError, InvalidOptionError
from gemm_eval.jit import read_only
from gemm_eval.mapping import LoopOrder, MulticoreMapping, Partition, Tile, enumerate_partitions
from gemm_eval.models import multicore as model
from gemm_eval.models.multicore import COST_DTYPE, unpack_cost
from gemm_eval.progress import run_in_chunks
from gemm_eval.search import multicore as exact
from gemm_eval.search.multicore import Integers, Records, Run
from gemm_eval.search.restricted_kernels import NO_LIMIT, Rules, find_top_ruled
from gemm_eval.words import refusal, shown
from gemm_eval.workload import NO_LAYOUTS, GemmProblem, Layouts


class SearchPlan(enum.StrEnum):
    """The part of the space of mappings that a search looks at."""

    EXACT = "exact"
    BALANCED = "balanced"
    AGGRESSIVE = "aggressive"
    HEURISTIC = "heuristic"


_PRESETS = {SearchPlan.BALANCED: (5, 3), SearchPlan.AGGRESSIVE: (3, 1)}


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """A search plan: the `top_k` partitions that are best by our model, and the `top_tiles` best tiles of each.

    >>> PlanOptions("balanced").top_k, PlanOptions.heuristic(top_k=2, top_tiles=1).top_tiles
    (5, 1)

    Attributes:
        plan: exact: everything; balanced: 5 partitions x 3 tiles; aggressive: 3 partitions x 1 tile; heuristic: as
            given. Each tile is tried in all loop orders.
        top_k, top_tiles: set by the plan, except for heuristic; None for exact.

    Raises:
        InvalidOptionError: an unknown plan, or sizes that are missing, below 1 or not for this plan.
    """

    plan: SearchPlan = SearchPlan.EXACT
    top_k: int | None = None
    top_tiles: int | None = None

    def __post_init__(self) -> None:
        try:
            plan = SearchPlan(self.plan)
        except ValueError:
            raise InvalidOptionError(refusal("plan", self.plan, SearchPlan)) from None
        object.__setattr__(self, "plan", plan)
        for name, preset in zip(("top_k", "top_tiles"), _PRESETS.get(plan, (None, None)), strict=True):
            value = getattr(self, name)
            if plan is SearchPlan.HEURISTIC:
                if type(value) is not int or value < 1:
                    raise InvalidOptionError(f"{name} must be an integer >= 1 for plan heuristic, got {shown(value)}")
            elif value not in (None, preset):
                raise InvalidOptionError(f"{name} is for plan heuristic, plan {plan} sets it to {preset}")
            else:
                object.__setattr__(self, name, preset)

    @classmethod
    def heuristic(cls, top_k: int, top_tiles: int) -> PlanOptions:
        """Return a plan of your own sizes."""
        return cls(SearchPlan.HEURISTIC, top_k, top_tiles)


@runtime_checkable
class CostModel(Protocol):
    """A cost model that a search can use: it gives the latency of a legal mapping. `check_cost_model` tests one."""

    def latency_us(self, problem: GemmProblem, mapping: MulticoreMapping) -> float:
        """Return the latency of `problem` under `mapping`, in microseconds: positive, finite, the same every time."""
        ...


class PlannedMapping(NamedTuple):
    """The best mapping of a planned search, and how many were evaluated."""

    mapping: MulticoreMapping
    latency_us: float
    num_evaluated: int
    is_exhaustive: bool


def find_planned(
    cost_model: CostModel, arch: MulticoreSpec, problem: GemmProblem,
    options: PlanOptions | SearchPlan | str = SearchPlan.BALANCED, *, allow_idle_cores: bool = True,
) -> PlannedMapping:  # fmt: skip
    """Find the best mapping by a user's cost model among the candidates of a plan.

    Plan exact tries every legal mapping, which for a large GEMM is millions of evaluations: it cannot know what bounds
    hold for a model that it does not know. Of equal latencies the first candidate wins.

    Args:
        cost_model: evaluated once for each candidate.
        arch: says which mappings are legal, and which of them a plan tries.
        options: a plan, its name, or `PlanOptions`.
        allow_idle_cores: also partitions whose product is below num_cores.

    Raises:
        InvalidOptionError: a bad plan, or a latency that is no positive finite number.
        UnsupportedError: the arch cannot run the types.
        InfeasibleError: no mapping fits.
    """
    options = options if isinstance(options, PlanOptions) else PlanOptions(options)  # type: ignore[arg-type]
    best: MulticoreMapping | None = None
    best_us = math.inf
    num = 0
    for mapping in enumerate_candidates(arch, problem, options, allow_idle_cores=allow_idle_cores):
        latency_us = cost_model.latency_us(problem, mapping)
        num += 1
        if not (isinstance(latency_us, int | float | np.number) and 0 < latency_us < math.inf):
            raise InvalidOptionError(
                f"the cost model must return a positive finite latency, got {shown(latency_us)} for {mapping}"
            )
        if latency_us < best_us:
            best, best_us = mapping, float(latency_us)
    if best is None:
        raise exact.infeasible_error(
            arch, problem, model.pack_params(arch, problem.types), allow_idle_cores=allow_idle_cores
        )
    return PlannedMapping(best, best_us, num, options.plan is SearchPlan.EXACT)


def enumerate_candidates(
    arch: MulticoreSpec, problem: GemmProblem, options: PlanOptions, *, allow_idle_cores: bool = True
) -> Iterator[MulticoreMapping]:
    """Yield the mappings that a plan tries, the most promising first (plan exact: by rank, every legal one)."""
    exact.check_idle_cores(arch, allow_idle_cores=allow_idle_cores)
    params = model.pack_params(arch, problem.types)
    candidates: Iterator[tuple[Any, Iterable[Tile]]]
    if options.top_k is None or options.top_tiles is None:
        partitions = enumerate_partitions(arch.num_cores, allow_idle_cores=allow_idle_cores).tolist()
        candidates = ((row, _legal_tiles(arch, params, problem, row)) for row in partitions)
    else:
        best = exact.find_best_of_each_partition(arch, problem, params, allow_idle_cores=allow_idle_cores)
        partitions = [unpack_cost(record).mapping.partition for record in best[: options.top_k]]
        candidates = ((row, _best_tiles(arch, params, problem, row, options.top_tiles)) for row in partitions)
    for partition, tiles in candidates:
        for tile, order in itertools.product(tiles, LoopOrder):
            yield MulticoreMapping(Partition(*partition), tile, order)


def check_cost_model(cost_model: CostModel, arch: MulticoreSpec, problem: GemmProblem) -> None:
    """Check that a user's cost model keeps to the protocol, on the candidates of plan balanced: a conformance test.

    Raises:
        InvalidOptionError: it has no `latency_us`, returns something else than a positive finite number, or returns
            another number the second time.
    """
    if not isinstance(cost_model, CostModel):
        raise InvalidOptionError(f"a cost model needs a method latency_us(problem, mapping), got {shown(cost_model)}")
    for _ in range(2):
        first = find_planned(cost_model, arch, problem)
        again = cost_model.latency_us(problem, first.mapping)
        if again != first.latency_us:
            raise InvalidOptionError(
                f"the cost model must return the same latency every time, got {shown(first.latency_us)} and {again!r} "
                f"for {first.mapping}"
            )


def _best_tiles(
    arch: MulticoreSpec, params: Records, problem: GemmProblem, partition: Partition, limit: int
) -> Iterable[Tile]:
    records = exact.find_best_of_partitions(arch, problem, params, np.array([partition]), limit)
    return dict.fromkeys(unpack_cost(record).mapping.tile for record in records)


def _legal_tiles(arch: MulticoreSpec, params: Records, problem: GemmProblem, partition: list[int]) -> Iterator[Tile]:
    record = model.params_in_room(params, problem)[0]
    # what is legal follows from the largest group
    block = model.block_of(record, *(model.batch_sizes(problem) or problem.sizes), *partition)
    if block.E_K > 1 and arch.reduction == "none":
        return
    units = (block.m, arch.cube_m), (block.n, arch.cube_n), (block.k, int(record["unit_k"]))
    sizes_m, sizes_n, sizes_k = ([*range(unit, size, unit), size] for size, unit in units)
    for tile_m, tile_n in itertools.product(sizes_m, sizes_n):
        for tile_k in sizes_k:
            if model.sram_used_bytes(record, tile_m, tile_n, tile_k) > record["sram_usable_bytes"]:
                break
            yield Tile(tile_m, tile_n, tile_k)


_RULES = ("splits", "partitions", "loop_orders", "tile_m", "tile_n", "tile_k", "whole", "loads_once", "max_tile_bytes")
"""Fields of `LibraryRules` that leave mappings out."""


def find_ruled_many(
    arch: MulticoreSpec, rules: LibraryRules, params: Records, type_of: Integers, sizes: Integers,
    layouts: Layouts = NO_LAYOUTS, *, allow_idle_cores: bool, run: Run = run_in_chunks,
) -> Records:  # fmt: skip
    """Find the best mapping of many problems among those that a library has; else as `find_best_many`.

    GEMMs whose groups differ are searched as if there were no rules.

    Args:
        arch: the chip, as the library uses it.
        params: of what the library believes the chip to be.
    """
    if not (rules.restricts_tiles or rules.restricts_partitions):
        return exact.find_best_many(
            arch.num_cores, params, type_of, sizes, layouts, allow_idle_cores=allow_idle_cores, run=run
        )
    allowed, packed = allowed_partitions(arch, rules, allow_idle_cores=allow_idle_cores), _pack(rules)
    partitions = enumerate_partitions(arch.num_cores, allow_idle_cores=allow_idle_cores)
    find_grouped = exact.SEARCHES[bool(params["is_pipeline"][0])][1]
    find_batches: Callable[..., int] = find_top_ruled

    def find_ruled(*given: Any) -> None:
        find_batches(*given[:-1], allowed, packed, given[-1])

    def find_all(*given: Any) -> None:
        find_grouped(*given[:-1], partitions, allow_idle_cores, given[-1])

    return exact.run_by_layout((find_ruled, find_all), params, type_of, sizes, layouts, run=run)


def find_ruled_few(
    arch: MulticoreSpec, rules: LibraryRules, problem: GemmProblem, params: Records, limit: int, *, by_partition: bool,
    allow_idle_cores: bool,
) -> Records:  # fmt: skip
    """Find the best few mappings of a library (`by_partition`: of each), costed as it believes; none: nothing fits."""
    sizes = model.batch_sizes(problem)
    if sizes is None or not (rules.restricts_tiles or rules.restricts_partitions):
        try:
            if by_partition:
                costs = exact.find_best_of_each_partition(arch, problem, params, allow_idle_cores=allow_idle_cores)
                return costs[:limit]
            return exact.find_best(arch, problem, params, limit, allow_idle_cores=allow_idle_cores)
        except InfeasibleError:
            return np.zeros(0, COST_DTYPE)
    params = model.params_in_room(read_only(params), problem)
    partitions, packed = allowed_partitions(arch, rules, allow_idle_cores=allow_idle_cores), _pack(rules)
    asked = params, model.FIRST, np.array([sizes]), 0, 1
    if not by_partition:
        out = np.zeros((1, limit), COST_DTYPE)
        return out[0, : find_top_ruled(*asked, partitions, packed, out)]
    # by blocks: of partitions that cut the same ones the last of these, which is the first
    distinct = {model.block_of(params[0], *sizes, *row.tolist())[:4]: row for row in partitions[::-1]}
    costs = np.zeros((len(distinct), 1), COST_DTYPE)
    for index, partition in enumerate(distinct.values()):
        find_top_ruled(*asked, partition.reshape(1, 4), packed, costs[index : index + 1])
    return exact.sort_costs(costs[costs["active_cores"] > 0])[:limit]


def ruled_out_error(
    arch: MulticoreSpec, rules: LibraryRules, problem: GemmProblem, params: Records, *, allow_idle_cores: bool
) -> InfeasibleError:
    """Return the error for a problem that has mappings on the chip, but none that its library has."""
    sizes, values = np.array([problem.sizes], np.int64), {name: getattr(rules, name) for name in rules.model_fields_set}
    given = [name for name in _RULES if values.get(name)]

    def is_ruled_out_by(name: str) -> bool:
        others = LibraryRules(**{rule: value for rule, value in values.items() if rule != name})
        records = find_ruled_many(arch, others, params, model.FIRST, sizes, allow_idle_cores=allow_idle_cores)
        return bool(records["active_cores"][0])

    alone = [name for name in given if is_ruled_out_by(name)]
    named = (" and also " if alone else " with ").join(f"rules.{name}" for name in alone or given)
    return InfeasibleError(
        f"{problem} fits {arch.name}, but {rules.title or 'its library'} has no mapping for it: {named} leaves none",
        resource="rules", demand=1, limit=0, unit="mappings",
        levers=("policy='best'", *(f"without rules.{name}" for name in alone)),
    )  # fmt: skip


def allowed_partitions(arch: MulticoreSpec, rules: LibraryRules, *, allow_idle_cores: bool) -> Integers:
    """Return the partitions that a library has, int64 [num, 4] of (P_G, P_M, P_N, P_K) by rank."""
    partitions = enumerate_partitions(arch.num_cores, allow_idle_cores=allow_idle_cores)
    if rules.partitions:
        allowed = {tuple(parts) for parts in rules.partitions}
        partitions = np.array([row for row in partitions.tolist() if tuple(row) in allowed], np.int64).reshape(-1, 4)
    for dimension, name in enumerate("GMNK"):
        if name not in rules.splits:
            partitions = partitions[partitions[:, dimension] == 1]
    return read_only(np.ascontiguousarray(partitions))


@lru_cache(maxsize=64)
def _pack(rules: LibraryRules) -> Rules:
    limits = [rules.max_tile_bytes.get(name, NO_LIMIT) for name in ("A", "B")]
    orders = [not rules.loop_orders or order.name.lower() in rules.loop_orders for order in LoopOrder]
    tile_m, tile_n, tile_k = (
        read_only(np.array(sorted(sizes), np.int64)) for sizes in (rules.tile_m, rules.tile_n, rules.tile_k)
    )
    return Rules(
        tile_m, tile_n, tile_k, read_only(np.array([name in rules.whole for name in "MNK"])),
        read_only(np.array([name in rules.loads_once for name in "ABC"])), read_only(np.array(limits, np.int64)),
        read_only(np.array(orders)),
    )  # fmt: skip
