"""Costs in memory: their bound, their counts, and many threads at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from gemm_eval import GEMMEvaluator, GemmProblem
from gemm_eval.evaluate.backend import Kind
from gemm_eval.evaluate.costs import FoundCosts

EVALUATOR = GEMMEvaluator("demo-8core", disk_cache=False)
PROBLEMS = [GemmProblem(1, M, 32, 16) for M in range(1, 81)]
KIND: Kind = EVALUATOR.kind_of_types(PROBLEMS[0].types, EVALUATOR.preferred)


def memory(maxsize: int) -> FoundCosts:
    return FoundCosts(EVALUATOR.backend, disk_cache=False, maxsize=maxsize)


def find(costs: FoundCosts, *places: int) -> None:
    for place in places:
        latency_us = costs.find(PROBLEMS[place], KIND)["latency_us"]
        assert latency_us == EVALUATOR.evaluate_problem(PROBLEMS[place]).latency_us


@pytest.mark.parametrize("maxsize", [2, 3, 10, 64])
def test_the_oldest_half_is_forgotten_where_there_are_too_many(maxsize: int) -> None:
    costs = memory(maxsize)
    find(costs, *range(maxsize))
    assert costs.info() == (0, maxsize, maxsize, maxsize)
    find(costs, *range(maxsize))
    assert costs.info() == (maxsize, maxsize, maxsize, maxsize)
    find(costs, maxsize)  # one too many
    assert costs.info().currsize == maxsize // 2
    find(costs, maxsize)
    assert costs.info()[:2] == (maxsize + 1, maxsize + 1)
    find(costs, 0)
    assert costs.info().misses == maxsize + 2
    costs.clear()
    assert costs.info() == (0, 0, maxsize, 0)


def test_threads_never_see_a_wrong_record() -> None:
    costs = memory(50)

    def work(seed: int) -> None:
        for turn in range(400):
            find(costs, (seed * 7 + turn * 11) % len(PROBLEMS))
            if (turn, seed) == (200, 0):
                costs.clear()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert costs.info().currsize <= 50 + 8  # each thread may add one at once
