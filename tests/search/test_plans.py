"""Search plans and partitions: options, candidates, cost models of one's own, the evaluator under a plan."""

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
    PlanOptions,
    SearchPlan,
    UnsupportedError,
    check_cost_model,
    find_planned,
    load_arch,
)
from gemm_eval.mapping import LoopOrder, Partition, Tile, enumerate_partitions
from gemm_eval.models.multicore.model import pack_params
from gemm_eval.search.multicore import find_best
from gemm_eval.search.restricted import AnalyticCostModel, enumerate_candidates
from gemm_eval.search.restricted_kernels import fill_partition_scores
from tests.cases import case
from tests.oracle import naive

# ---- plans -----------------------------------------------------------------------------------------------------------


DEMO = load_arch("demo-8core")
SMALL = DEMO.with_(
    num_cores=6, cube_m=4, cube_n=4, cube_k=4, cube_k_by_dtype={}, sram_bytes=4096, lane_num=1, align_bytes=1
)
PLANS = ("balanced", "aggressive", PlanOptions.heuristic(2, 2))


def scores_of(problem: GemmProblem, num_cores: int = 16) -> dict[tuple[int, ...], float]:
    arch = DEMO.with_(num_cores=num_cores)
    partitions = enumerate_partitions(num_cores, allow_idle_cores=True)
    scores = np.empty(len(partitions))
    fill_partition_scores(pack_params(arch, problem.types), *problem.sizes, partitions, scores)
    return {tuple(row): score for row, score in zip(partitions.tolist(), scores.tolist(), strict=True)}


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


def test_scores_fit_the_shape() -> None:
    tall = scores_of(GemmProblem(1, 1 << 16, 4096, 1024))
    wide = scores_of(GemmProblem(1, 1024, 4096, 1 << 16))
    square = scores_of(GemmProblem(1, 4096, 4096, 4096))
    assert max(tall, key=tall.__getitem__) == (1, 16, 1, 1)
    assert max(wide, key=wide.__getitem__) == (1, 1, 16, 1)
    assert max(square, key=square.__getitem__) == (1, 4, 4, 1)
    assert square[1, 4, 4, 1] > square[1, 2, 8, 1] > square[1, 2, 2, 4]  # P_M near P_N, and K whole


def test_scores_avoid_idle_cores_and_what_cannot_run() -> None:
    decode = scores_of(GemmProblem(1, 1, 4096, 4096))
    assert decode[1, 1, 16, 1] > decode[1, 16, 1, 1]  # one row cannot be split
    partitions = enumerate_partitions(8)
    scores = np.empty(len(partitions))
    problem = GemmProblem(1, 64, 64, 64)
    params = pack_params(DEMO.with_(reduction="none"), problem.types)
    fill_partition_scores(params, *problem.sizes, partitions, scores)
    assert ((scores < 0) == (partitions[:, 3] > 1)).all()


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


def test_plan_exact_over_the_own_model_finds_what_the_exact_search_finds() -> None:
    problem = GemmProblem(1, 17, 20, 33)
    found = find_planned(AnalyticCostModel(SMALL), SMALL, problem, "exact")
    assert found.is_exhaustive
    assert found.latency_us == GEMMEvaluator(SMALL, disk_cache=False).evaluate_problem(problem).latency_us


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_evaluator_under_a_plan(plan: Any) -> None:
    exact = GEMMEvaluator(DEMO, disk_cache=False)
    planned = GEMMEvaluator(DEMO, plan=plan, disk_cache=False)
    shapes = [(1, 512, 512, 512), (1, 1, 4096, 4096), (8, 100, 200, 300)]
    table = planned.evaluate_many(shapes)
    for row, shape in enumerate(shapes):
        result = planned.evaluate(*shape)
        assert result == table[row]
        assert not result.is_exhaustive
        assert result.num_candidates > 0
        assert result.latency_us >= exact.evaluate(*shape).latency_us
        assert planned.evaluate_mapping(result.problem, result.mapping).latency_us == result.latency_us
    assert planned.on(DEMO.with_(num_cores=4)).evaluate(1, 64, 64, 64).is_exhaustive is False


def test_groups_that_differ_have_the_exact_plan_alone() -> None:
    """Equal ones are a batch, also beside groups without rows."""
    problem = GemmProblem.grouped((17, 0, 5), 20, 13)
    for plan in PLANS:
        with pytest.raises(UnsupportedError, match=r"groups of G=3 rows=22 .* differ: use plan exact"):
            find_planned(AnalyticCostModel(SMALL), SMALL, problem, plan)
        equal = find_planned(AnalyticCostModel(SMALL), SMALL, GemmProblem.grouped((17, 0, 17), 20, 13), plan)
        assert equal[:3] == find_planned(AnalyticCostModel(SMALL), SMALL, GemmProblem(2, 17, 20, 13), plan)[:3]
    found = find_planned(AnalyticCostModel(SMALL), SMALL, problem, "exact")
    assert found.is_exhaustive
    best = find_best(SMALL, problem, pack_params(SMALL, problem.types), allow_idle_cores=True)
    assert found.latency_us == best["latency_us"][0]


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
            find_planned(AnalyticCostModel(tiny), tiny, GemmProblem(1, 64, 64, 64), plan)
        with pytest.raises(InfeasibleError):
            GEMMEvaluator(tiny, plan=plan, disk_cache=False).evaluate(1, 64, 64, 64)
    with pytest.raises(UnsupportedError):
        find_planned(AnalyticCostModel(DEMO), DEMO, GemmProblem(1, 8, 8, 8, "int4"), "balanced")  # type: ignore[arg-type]
    with pytest.raises(InvalidOptionError, match="plan must be"):
        GEMMEvaluator(DEMO, plan="quick")


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
