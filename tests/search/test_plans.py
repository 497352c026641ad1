"""Search plans and partitions: options, candidates, cost models of one's own."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from gemm_eval import (
    CostModel,
    GEMMEvaluator,
    GemmProblem,
    InfeasibleError,
    InvalidOptionError,
    MulticoreMapping,
    MulticoreSpec,
    PlanOptions,
    SearchPlan,
    UnsupportedError,
    check_cost_model,
    find_planned,
    load_arch,
)
from gemm_eval.mapping import LoopOrder, Partition, Tile, enumerate_partitions
from gemm_eval.search.restricted import enumerate_candidates
from tests.cases import case
from tests.oracle import naive

# ---- plans -----------------------------------------------------------------------------------------------------------


DEMO = load_arch("demo-8core")
SMALL = DEMO.with_(
    num_cores=6, cube_m=4, cube_n=4, cube_k=4, cube_k_by_dtype={}, sram_bytes=4096, lane_num=1, align_bytes=1
)
PLANS = ("balanced", "aggressive", PlanOptions.heuristic(2, 2))


def test_presets_and_own_sizes() -> None:
    assert PlanOptions() == PlanOptions("exact") == PlanOptions(SearchPlan.EXACT, None, None)
    assert (PlanOptions("balanced").top_k, PlanOptions("balanced").top_tiles) == (5, 3)
    assert (PlanOptions("aggressive").top_k, PlanOptions("aggressive").top_tiles) == (3, 1)
    assert PlanOptions.heuristic(top_k=7, top_tiles=2) == PlanOptions(SearchPlan.HEURISTIC, 7, 2)


def test_bad_options_are_refused() -> None:
    bad: list[tuple[Any, ...]] = [
        ("fast",), (None,), ("heuristic",), ("heuristic", 0, 1), ("heuristic", 1, True), ("heuristic", 1.0, 1),
        ("balanced", 4), ("exact", 1), ("aggressive", 3, 2),
    ]  # fmt: skip
    for arguments in bad:
        with case(arguments), pytest.raises(InvalidOptionError, match=r"must be|is for plan"):
            PlanOptions(*arguments)


def test_candidates_are_legal_distinct_and_few() -> None:
    shapes = [(1, 4096, 4096, 4096), (1, 1, 4096, 4096), (32, 7, 130, 2048), (1, 33, 7, 5)]
    for plan, shape in itertools.product(PLANS, shapes):
        options = plan if isinstance(plan, PlanOptions) else PlanOptions(plan)
        problem = GemmProblem(*shape)
        candidates = list(enumerate_candidates(DEMO, problem, options))
        with case((plan, shape)):
            assert options.top_k is not None
            assert options.top_tiles is not None
            assert 0 < len(candidates) <= options.top_k * options.top_tiles * 6
            assert len(set(candidates)) == len(candidates)
            assert all(naive.is_legal(DEMO, problem, mapping) for mapping in candidates)


def test_exact_candidates_are_all_that_is_legal() -> None:
    problem = GemmProblem(1, 17, 20, 33)
    candidates = set(enumerate_candidates(SMALL, problem, PlanOptions(), allow_idle_cores=False))
    expected = set()
    for row in enumerate_partitions(SMALL.num_cores).tolist():
        block = naive.full_block(problem, Partition(*row))
        sizes = [naive.legal_tile_sizes(size, 4) for size in (block.m, block.n, block.k)]
        for tile, order in itertools.product(itertools.product(*sizes), LoopOrder):
            mapping = MulticoreMapping(Partition(*row), Tile(*tile), order)
            if naive.is_legal(SMALL, problem, mapping):
                expected.add(mapping)
    assert candidates == expected


class OwnModel:
    """The model of this library as the cost model of a user."""

    def __init__(self, arch: MulticoreSpec) -> None:
        self.evaluator = GEMMEvaluator(arch, disk_cache=False)

    def latency_us(self, problem: GemmProblem, mapping: MulticoreMapping) -> float:
        return self.evaluator.evaluate_mapping(problem, mapping).latency_us


def test_every_plan_over_the_own_model_finds_what_the_exact_search_finds() -> None:
    for problem in (GemmProblem(1, 17, 20, 33), GemmProblem.grouped((17, 0, 5), 20, 13)):
        best_us = GEMMEvaluator(SMALL, disk_cache=False).evaluate_problem(problem).latency_us
        for plan in ("exact", *PLANS):
            with case(problem, plan):
                planned = find_planned(OwnModel(SMALL), SMALL, problem, plan)
                assert planned.latency_us == best_us
                assert planned.is_exhaustive is (plan == "exact")


def test_candidates_are_the_best_partitions_and_their_best_tiles() -> None:
    problem = GemmProblem(1, 512, 512, 512)
    candidates = list(enumerate_candidates(DEMO, problem, PlanOptions.heuristic(2, 2)))
    best = GEMMEvaluator(DEMO, disk_cache=False).top(problem, 2, distinct="partition")
    assert list(dict.fromkeys(mapping.partition for mapping in candidates)) == [r.mapping.partition for r in best]
    assert best[0].mapping in candidates


class Constant:
    """A cost model of a user: counts its calls, and prefers K to be the outermost loop."""

    def __init__(self, *latencies_us: Any) -> None:
        self.calls = 0
        self.latencies_us = latencies_us

    def latency_us(self, problem: GemmProblem, mapping: MulticoreMapping) -> Any:
        self.calls += 1
        if self.latencies_us:
            return self.latencies_us[self.calls % len(self.latencies_us)]
        return 1.0 if mapping.loop_order.name.startswith("K") else 2.0


def test_own_cost_model_decides() -> None:
    model = Constant()
    assert isinstance(model, CostModel)
    found = find_planned(model, DEMO, GemmProblem(1, 512, 512, 512), "aggressive")
    assert found.mapping.loop_order.name == "KMN"
    assert (found.latency_us, found.num_evaluated, found.is_exhaustive) == (1.0, model.calls, False)
    check_cost_model(model, DEMO, GemmProblem(1, 64, 64, 64))


def test_bad_latencies_are_refused() -> None:
    for latency_us in (0.0, -1.0, math.nan, math.inf, None, "1"):
        with case(latency_us), pytest.raises(InvalidOptionError, match="positive finite"):
            check_cost_model(Constant(latency_us), DEMO, GemmProblem(1, 64, 64, 64))


def test_what_cannot_be_is_said() -> None:
    tiny = DEMO.with_(sram_bytes=64)
    for plan in ("exact", *PLANS):
        with pytest.raises(InfeasibleError):
            find_planned(Constant(), tiny, GemmProblem(1, 64, 64, 64), plan)
    with pytest.raises(UnsupportedError):
        find_planned(Constant(), DEMO, GemmProblem(1, 8, 8, 8, "int4"), "balanced")  # type: ignore[arg-type]
    with pytest.raises(InvalidOptionError, match="plan must be"):
        find_planned(Constant(), DEMO, GemmProblem(1, 64, 64, 64), "quick")


# ---- partitions ------------------------------------------------------------------------------------------------------


def rows(num_cores: int, *, idle: bool = False) -> list[tuple[int, ...]]:
    return [tuple(row) for row in enumerate_partitions(num_cores, allow_idle_cores=idle).tolist()]


def formula(num_cores: int) -> int:
    """Ordered factorizations into four factors: C(e + 3, 3) for each prime to the power e."""
    count, prime = 1, 2
    while num_cores > 1:
        e = 0
        while num_cores % prime == 0:
            num_cores //= prime
            e += 1
        count *= math.comb(e + 3, 3)
        prime += 1
    return count


def test_all_are_there_once_in_order() -> None:
    for num_cores in (1, 2, 3, 6, 8, 12):
        candidates = list(itertools.product(range(1, num_cores + 1), repeat=4))
        for idle in (False, True):
            expected = [c for c in candidates if math.prod(c) == num_cores or (idle and math.prod(c) < num_cores)]
            with case(num_cores, idle):
                assert rows(num_cores, idle=idle) == sorted(expected, key=lambda row: (row[3], *row[:3]))
    for num_cores in (16, 30, 36, 64, 97, 108, 132):
        every = [row for used in range(1, num_cores + 1) for row in rows(used)]
        with case(num_cores):
            assert len(rows(num_cores)) == formula(num_cores)
            assert rows(num_cores, idle=True) == sorted(every, key=lambda row: (row[3], *row[:3]))
    assert len(rows(1 << 20)) == formula(1 << 20) == 1771
    assert len(rows((1 << 20) - 3)) == 4  # a prime


def test_impossible_num_cores_is_refused() -> None:
    for value in [0, -1, -8, 1.5, 8.0, True, "8", None, np.float64(8), math.nan]:
        with case(value):
            enumerate_partitions(8)  # 8.0 == 8 must not find its cached table
            enumerate_partitions(1)
            with pytest.raises(InvalidOptionError, match="num_cores must be"):
                enumerate_partitions(value)
