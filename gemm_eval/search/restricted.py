"""Searches of a part of the space: candidates of search plans, for any cost model, and the mappings that a library has.

Plans are for cost models whose every evaluation is expensive: a simulator, a compiler, a chip. The library's own model
searches exactly in tens of microseconds (``make plans`` prints what each plan costs and loses).
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from gemm_eval.arch import LibraryRules, MulticoreSpec
from gemm_eval.errors import InfeasibleError, InvalidOptionError, UnsupportedError
from gemm_eval.jit import read_only
from gemm_eval.mapping import LoopOrder, MulticoreMapping, Partition, Tile, enumerate_partitions
from gemm_eval.models import multicore as model
from gemm_eval.models.multicore import COST_DTYPE
from gemm_eval.progress import run_in_chunks
from gemm_eval.search import multicore as exact
from gemm_eval.search.multicore import Integers, Records, Run
from gemm_eval.search.restricted_kernels import (
    NO_LIMIT,
    Rules,
    fill_largest_tiles,
    fill_partition_scores,
    find_top_ruled,
)
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
    """A search plan and its sizes: the `top_k` partitions of best score, and in each the `top_tiles` largest tiles.

    >>> PlanOptions("balanced").top_k, PlanOptions.heuristic(top_k=2, top_tiles=1).top_tiles
    (5, 1)

    Attributes:
        plan: exact: everything; balanced: 5 partitions x 3 tiles; aggressive: 3 partitions x the largest tile;
            heuristic: as given.
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


class AnalyticCostModel:
    """The library's own model as a `CostModel`."""

    def __init__(self, arch: MulticoreSpec) -> None:
        self._arch = arch
        self._problem: GemmProblem | None = None

    def latency_us(self, problem: GemmProblem, mapping: MulticoreMapping) -> float:
        """Return the latency by cost model 1, in microseconds."""
        if problem != self._problem:
            self._problem, self._params = problem, model.pack_params(self._arch, problem.types)
        return float(model.evaluate_mapping(self._arch, problem, self._params, mapping)["latency_us"][0])


class PlannedMapping(NamedTuple):
    """The best mapping of a planned search, and how many were evaluated."""

    mapping: MulticoreMapping
    latency_us: float
    num_evaluated: int
    is_exhaustive: bool


def find_planned(
    cost_model: CostModel,
    arch: MulticoreSpec,
    problem: GemmProblem,
    options: PlanOptions | SearchPlan | str = SearchPlan.BALANCED,
    *,
    allow_idle_cores: bool = True,
) -> PlannedMapping:
    """Find the best mapping by a user's cost model among the candidates of a plan.

    Plan exact tries every legal mapping, which for a large GEMM is millions of evaluations: it cannot know what bounds
    hold for a model that it does not know. Of equal latencies the first candidate wins.

    Args:
        cost_model: evaluated once for each candidate.
        arch: says which mappings are legal; its timing and rates only matter to the order of candidates.
        problem: the GEMM.
        options: a plan, its name, or `PlanOptions`.
        allow_idle_cores: also partitions whose product is below num_cores.

    Raises:
        InvalidOptionError: a bad plan, or a latency that is no positive finite number.
        UnsupportedError: the arch cannot run the types, or a heuristic plan is asked for groups that differ.
        InfeasibleError: no mapping fits.
    """
    options = as_plan_options(options)
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
    params = model.params_in_room(model.pack_params(arch, problem.types), problem)
    sizes = model.batch_sizes(problem)
    if sizes is None:
        if options.plan is not SearchPlan.EXACT:
            raise UnsupportedError(
                f"plan {options.plan} scores how a partition cuts a batch, and the groups of {problem} differ: "
                "use plan exact"
            )
        sizes = problem.sizes  # what is legal follows from the largest group
    partitions = enumerate_partitions(arch.num_cores, allow_idle_cores=allow_idle_cores)
    if options.plan is SearchPlan.EXACT:
        ranks = np.arange(len(partitions))
    else:
        scores = np.empty(len(partitions))
        fill_partition_scores(params, *sizes, partitions, scores)
        assert options.top_k is not None
        # stable: of equal scores the smaller rank comes first
        ranks = np.argsort(-scores, kind="stable")[: options.top_k]
        ranks = ranks[scores[ranks] > 0]
    for rank in ranks:
        partition = Partition(*partitions[rank].tolist())
        block = model.block_of(params[0], *sizes, *partition)
        if block.E_K > 1 and arch.reduction == "none":
            continue
        if options.top_tiles is None:
            tiles = _legal_tiles(arch, params, block.m, block.n, block.k)
        else:
            tiles = iter(_largest_tiles(params.tobytes(), block.m, block.n, block.k, options.top_tiles))
        for tile, order in itertools.product(tiles, LoopOrder):
            yield MulticoreMapping(partition, tile, order)


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


def as_plan_options(plan: PlanOptions | SearchPlan | str) -> PlanOptions:
    """Return the options that a plan's name stands for, or the options themselves."""
    return plan if isinstance(plan, PlanOptions) else PlanOptions(plan)  # type: ignore[arg-type]


@lru_cache(maxsize=1 << 14)
def _largest_tiles(params: bytes, m: int, n: int, k: int, limit: int) -> tuple[Tile, ...]:
    """Return the largest tiles of a block, which partitions and problems share: arch and types decide them."""
    from gemm_eval.models.multicore import PARAMS_DTYPE

    out = np.empty((limit, 3), np.int64)
    num = fill_largest_tiles(np.frombuffer(params, PARAMS_DTYPE), m, n, k, out)
    return tuple(Tile(*row) for row in out[:num].tolist())


def _legal_tiles(arch: MulticoreSpec, params: Records, m: int, n: int, k: int) -> Iterator[Tile]:
    record = params[0]
    units = (m, arch.cube_m), (n, arch.cube_n), (k, int(record["unit_k"]))
    sizes_m, sizes_n, sizes_k = ([*range(unit, block, unit), block] for block, unit in units)
    for tile_m, tile_n in itertools.product(sizes_m, sizes_n):
        for tile_k in sizes_k:
            if model.sram_used_bytes(record, tile_m, tile_n, tile_k) > record["sram_usable_bytes"]:
                break
            yield Tile(tile_m, tile_n, tile_k)


_RULES = ("splits", "partitions", "loop_orders", "tile_m", "tile_n", "tile_k", "whole", "loads_once", "max_tile_bytes")
"""Fields of `LibraryRules` that leave mappings out."""


def find_ruled_many(
    arch: MulticoreSpec,
    rules: LibraryRules,
    params: Records,
    type_of: Integers,
    sizes: Integers,
    layouts: Layouts = NO_LAYOUTS,
    *,
    allow_idle_cores: bool,
    run: Run = run_in_chunks,
) -> Records:
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
    arch: MulticoreSpec,
    rules: LibraryRules,
    problem: GemmProblem,
    params: Records,
    limit: int,
    *,
    by_partition: bool,
    allow_idle_cores: bool,
) -> Records:
    """Find the best few mappings of a library (`by_partition`: of each), costed as it believes; none: nothing fits."""
    sizes = model.batch_sizes(problem)
    if sizes is None or not (rules.restricts_tiles or rules.restricts_partitions):
        try:
            if by_partition:
                costs = exact.find_best_of_each_partition(arch, problem, params, allow_idle_cores=allow_idle_cores)
                return costs[:limit]
            return exact.find_best_few(arch, problem, params, limit, allow_idle_cores=allow_idle_cores)
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
