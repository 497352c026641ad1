"""Speed of grouped GEMMs and of layers of experts on an H200 in bf16: single ones, and a batch of layers, all cold.

``extra_info`` of the batch holds layers and GEMMs per second. As plain tests these only check the contents.
"""

import itertools
from typing import Any

import numpy as np
import pytest

from gemm_eval import GEMMEvaluator, MoeLayer, MoeLayerTable, moe_layer, moe_layers
from gemm_eval.moe import layer as _layer
from gemm_eval.moe import power_law_counts

ARCH, DTYPE = "h200-sxm", "bf16"
NUM_DRAWS = 200
NUM_TOKENS, TOPK, ALPHA = 1024, 8, 1.2
K, N = 7168, 4096  # of DeepSeek-V3's experts

MODELS = (  # hidden, inter, experts, of a token
    (7168, 2048, 256, 8),  # DeepSeek-V3
    (4096, 1536, 128, 8),  # Qwen3-235B
)
TOKENS = tuple(round(8 * 2 ** (step / 2)) for step in range(21))  # 8 to 8192
EPS, TPS = (1, 2, 4, 8, 16, 32), (1, 2, 4, 8)
DISTRIBUTIONS = ("balanced", "power_law_1.2")
LAYERS = [
    MoeLayer(tokens, *sizes, tp=tp, ep=ep, distribution=distribution, dtype=DTYPE)
    for sizes, tokens, ep, tp, distribution in itertools.product(MODELS, TOKENS, EPS, TPS, DISTRIBUTIONS)
]


@pytest.fixture(scope="module")
def evaluator() -> GEMMEvaluator:
    evaluator = GEMMEvaluator(ARCH, disk_cache=False)
    evaluator.evaluate_grouped((3, 0, 1), 64, 64, DTYPE)  # compiles, or loads from disk, and packs
    moe_layers(evaluator, LAYERS[:2], progress=False)
    return evaluator


@pytest.mark.benchmark(group="one grouped GEMM on an H200, skewed, cold, each timed alone")
@pytest.mark.parametrize("num_groups", [64, 256])
def test_cold(benchmark: Any, evaluator: GEMMEvaluator, num_groups: int) -> None:
    counts = power_law_counts(NUM_TOKENS, num_groups, TOPK, ALPHA, 1, np.random.default_rng(0), NUM_DRAWS)
    problems = [tuple(draw) for draw in counts.tolist()]
    evaluator.cache_clear()
    turn = iter(problems)
    result = benchmark.pedantic(
        evaluator.evaluate_grouped, setup=lambda: ((next(turn), K, N, DTYPE), {}), rounds=len(problems)
    )

    assert result.is_exhaustive
    assert (result.problem.G, result.problem.rows) == (num_groups, NUM_TOKENS * TOPK)
    assert evaluator.cache_info().hits == 0
    row_groups = result.problem.row_groups
    assert result == GEMMEvaluator(ARCH, disk_cache=False).evaluate_grouped(row_groups, K, N, DTYPE)


@pytest.mark.benchmark(group=f"{len(LAYERS):,} layers of DeepSeek-V3 and Qwen3-235B on an H200, cold, routing too")
def test_layers(benchmark: Any, evaluator: GEMMEvaluator) -> None:
    def forget() -> None:
        evaluator.cache_clear()
        _layer._route.cache_clear()

    table: MoeLayerTable = benchmark.pedantic(
        moe_layers, (evaluator, LAYERS), {"progress": False}, setup=forget, rounds=3
    )
    num_gemms = evaluator.cache_info().records.misses
    if benchmark.stats:  # none with --benchmark-disable
        median_s = benchmark.stats.stats.median
        benchmark.extra_info |= {
            "layers_per_s": round(len(LAYERS) / median_s), "gemms_per_s": round(num_gemms / median_s),
        }  # fmt: skip

    assert len(table) == len(LAYERS) == 2016
    assert num_gemms > len(LAYERS)
    assert (table["latency_us"] > 0).all()
    for place in range(0, len(LAYERS), len(LAYERS) // 10):
        given = {name: getattr(LAYERS[place], name) for name in MoeLayer.__dataclass_fields__}
        assert table[place] == moe_layer(GEMMEvaluator(ARCH, disk_cache=False), **given)
