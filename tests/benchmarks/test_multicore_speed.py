"""Speed of the multi-core model. ``make bench`` prints each group with the ratio to its fastest row in parentheses.

As plain tests (``make test``) they only check that the compared ways agree.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from gemm_eval import GEMMEvaluator, GemmProblem, load_arch
from tests.benchmarks.transformer_gemms import transformer_gemms
from tests.oracle import naive

SQUARE = (1, 4096, 4096, 4096)


@pytest.fixture(scope="module")
def evaluator() -> GEMMEvaluator:
    """The teaching chip, exactly its 8 cores at work, as in the naive search."""
    evaluator = GEMMEvaluator(load_arch("demo-8core"), allow_idle_cores=False)
    evaluator.evaluate(*SQUARE)  # compiles, or loads from the disk cache
    evaluator.cache_clear()
    return evaluator


@pytest.mark.benchmark(group="one GEMM: 1x4096x4096x4096 on demo-8core")
class TestOneGemm:
    def test_cold(self, benchmark: Any, evaluator: GEMMEvaluator) -> None:
        result = benchmark.pedantic(
            evaluator.evaluate, SQUARE, setup=evaluator.cache_clear, rounds=1000, warmup_rounds=10
        )
        assert result.is_exhaustive

    def test_cached(self, benchmark: Any, evaluator: GEMMEvaluator) -> None:
        first = evaluator.evaluate(*SQUARE)
        assert benchmark.pedantic(evaluator.evaluate, SQUARE, rounds=1000, iterations=100) is first

    @pytest.mark.slow
    def test_naive_exhaustive(self, benchmark: Any, evaluator: GEMMEvaluator) -> None:
        problem = GemmProblem(*SQUARE)
        found = benchmark.pedantic(naive.find_best, (evaluator.arch, problem), rounds=1)
        assert found is not None
        assert found[0] == evaluator.evaluate(*SQUARE).mapping


@pytest.mark.benchmark(group="1,000 transformer GEMMs, cold, each timed alone (microseconds a GEMM)")
@pytest.mark.parametrize("idle", [False, True], ids=["all-cores", "idle-cores"])
@pytest.mark.parametrize("dtype", ["fp16", "w4a16"])
@pytest.mark.parametrize("num_cores", [8, 64, 132])
def test_cold_transformer_gemms(benchmark: Any, num_cores: int, dtype: str, idle: bool) -> None:
    base = load_arch("demo-8core")
    arch = base.with_(num_cores=num_cores, dram_gb_per_s=base.dram_gb_per_s * num_cores / base.num_cores)
    evaluator = GEMMEvaluator(arch, allow_idle_cores=idle)
    shapes = transformer_gemms(1000)
    evaluator.evaluate(*shapes[0], dtype=dtype)
    evaluator.cache_clear()
    turn = itertools.cycle(shapes)
    result = benchmark.pedantic(evaluator.evaluate, setup=lambda: (next(turn), {"dtype": dtype}), rounds=len(shapes))
    assert result.is_exhaustive
    assert evaluator.cache_info().hits == 0


@pytest.mark.benchmark(group="1,000 transformer GEMMs, cold, by preset (microseconds a GEMM)")
@pytest.mark.parametrize("name", ["sg2260e", "tpu-v5e", "ascend-910", "wormhole-n150", "ipu-gc200"])
def test_cold_presets(benchmark: Any, name: str) -> None:
    evaluator = GEMMEvaluator(load_arch(name))
    shapes = transformer_gemms(1000)
    evaluator.evaluate(*shapes[0])
    evaluator.cache_clear()
    turn = itertools.cycle(shapes)
    result = benchmark.pedantic(evaluator.evaluate, setup=lambda: (next(turn), {}), rounds=len(shapes))
    assert result.is_exhaustive


@pytest.mark.benchmark(group="pipeline timing, 8 cores, cold")
@pytest.mark.parametrize("shape", [(1, 16, 4096, 12288), (1, 1024, 1024, 1024), (1, 4096, 4096, 4096)], ids=str)
def test_cold_pipeline(benchmark: Any, shape: tuple[int, int, int, int]) -> None:
    evaluator = GEMMEvaluator(load_arch("demo-8core").with_(timing="pipeline"))
    evaluator.evaluate(1, 64, 64, 64)
    result = benchmark.pedantic(evaluator.evaluate, shape, setup=evaluator.cache_clear, rounds=10)
    assert result.is_exhaustive
