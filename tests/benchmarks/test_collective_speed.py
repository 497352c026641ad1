"""How long a message takes to evaluate: sweeps of whole models ask for tens of thousands."""

import itertools

from pytest_benchmark.fixture import BenchmarkFixture

from gemm_eval import GEMMEvaluator


def test_a_message_that_was_not_asked_before(benchmark: BenchmarkFixture) -> None:
    evaluator, sizes = GEMMEvaluator("h200-sxm"), itertools.count(1 << 10)
    result = benchmark(lambda: evaluator.evaluate_collective("all_reduce", next(sizes), 8))
    assert result.latency_us > 0.0


def test_a_message_that_was(benchmark: BenchmarkFixture) -> None:
    evaluator = GEMMEvaluator("h200-sxm")
    result = benchmark(evaluator.evaluate_collective, "all_reduce", 1 << 20, 8)
    assert result.algorithm == "two-shot"
