"""Whole models: one estimate with nothing cached, the same again, and many points of (model, arch, batch, context).

Rounds of the first have an evaluator of their own, whose answers nobody asked for before; the kernels of the search are
compiled. The second takes 1 ms for Llama-3-8B. ``extra_info`` of the third has milliseconds a point on one core.
"""

from itertools import count, product
from typing import Any

import pytest

from gemm_eval import GEMMEvaluator, estimate_model, estimate_models

MODELS = ("llama-3-8b", "llama-3-70b", "qwen3-30b-a3b", "gpt-oss-20b")
ARCHS = ("h200-sxm", "b200")
BATCHES, PROMPTS = (1, 3, 9, 16, 50, 128), (100, 777, 3000, 9000)
MS_PER_S = 1e3


@pytest.mark.parametrize("model", ["llama-3-8b", "qwen3-30b-a3b"])
def test_one_estimate_with_nothing_cached(benchmark: Any, model: str) -> None:
    sizes = count(1000)

    def fresh() -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (model, GEMMEvaluator("h200-sxm", disk_cache=False), 17), {"prompt_len": next(sizes)}

    estimate_model(model, "h200-sxm", 17)
    benchmark.pedantic(estimate_model, setup=fresh, rounds=15)


@pytest.mark.parametrize("model", ["llama-3-8b", "qwen3-30b-a3b"])
def test_the_same_estimate_again(benchmark: Any, model: str) -> None:
    evaluator = GEMMEvaluator("h200-sxm", disk_cache=False)
    estimate_model(model, evaluator, 17)
    benchmark(estimate_model, model, evaluator, 17)


def test_many_points(benchmark: Any) -> None:
    points = len(list(product(MODELS, ARCHS, BATCHES, PROMPTS)))

    def run() -> None:
        evaluators = [GEMMEvaluator(arch, disk_cache=False) for arch in ARCHS]
        assert len(list(estimate_models(MODELS, evaluators, BATCHES, PROMPTS, ignore_memory=True))) == points

    run()
    benchmark.pedantic(run, rounds=3)
    if benchmark.enabled:
        benchmark.extra_info["ms_a_point"] = benchmark.stats.stats.min / points * MS_PER_S


def test_ten_thousand_points_by_two_workers(benchmark: Any) -> None:
    """All their start included; every point is another GEMM, as batches and prompts differ."""
    archs = (*ARCHS, "a100-sxm-80gb", "l40s", "h100-sxm")
    points = MODELS, archs, range(1, 21), range(100, 2525, 97)
    if not benchmark.enabled:  # where benchmarks are but run through, a few do
        points = MODELS[:1], archs[:1], range(1, 3), range(100, 300, 97)

    def run() -> int:
        return sum(1 for _ in estimate_models(*points, num_workers=2, ignore_memory=True))

    assert benchmark.pedantic(run, rounds=1) == (10_000 if benchmark.enabled else 6)
