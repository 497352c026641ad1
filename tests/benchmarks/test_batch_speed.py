"""Speed of `evaluate_many`: 100,000 distinct transformer GEMMs on 64 cores, exact, cold and then remembered.

``extra_info`` of each benchmark holds GEMMs per second. As plain tests these only check the contents.
"""

import random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gemm_eval import GEMMEvaluator, load_arch
from tests.benchmarks.transformer_gemms import transformer_gemms

NUM_GEMMS = 100_000
NUM_CORES = 64
NUM_SHAPES = 1000  # whose M is varied
MAX_TOKENS = 8192
GROUP = f"{NUM_GEMMS:,} distinct transformer GEMMs on {NUM_CORES} cores"


def distinct_gemms(count: int) -> npt.NDArray[np.int64]:
    """[count, 4] of G, M, K, N, all different: shapes of transformers with any number of tokens, always the same."""
    rng = random.Random("transformer gemms of any number of tokens")
    shapes = transformer_gemms(NUM_SHAPES)
    found: dict[tuple[int, int, int, int], None] = {}
    while len(found) < count:
        g, _, k, n = rng.choice(shapes)
        found[g, rng.randint(1, MAX_TOKENS), k, n] = None
    return np.array(list(found), np.int64)


@pytest.fixture(scope="module")
def gemms() -> npt.NDArray[np.int64]:
    return distinct_gemms(NUM_GEMMS)


@pytest.fixture(scope="module")
def evaluator() -> GEMMEvaluator:
    """The teaching chip, its cores and its DRAM bandwidth scaled by the same factor."""
    base = load_arch("demo-8core")
    factor = NUM_CORES // base.num_cores
    arch = base.with_(num_cores=NUM_CORES, dram_gb_per_s=base.dram_gb_per_s * factor)
    evaluator = GEMMEvaluator(arch, disk_cache=False)
    evaluator.evaluate_many([(1, 64, 64, 64), (1, 64, 64, 65)], progress=False)  # compiles, or loads from disk
    return evaluator


def note_rate(benchmark: Any) -> None:
    if benchmark.stats:  # none with --benchmark-disable
        benchmark.extra_info["gemms_per_s"] = round(NUM_GEMMS / benchmark.stats.stats.median)


@pytest.mark.benchmark(group=GROUP)
def test_cold(benchmark: Any, evaluator: GEMMEvaluator, gemms: npt.NDArray[np.int64]) -> None:
    table = benchmark.pedantic(
        evaluator.evaluate_many, (gemms,), {"progress": False}, setup=evaluator.cache_clear, rounds=1
    )
    note_rate(benchmark)
    assert len(table) == NUM_GEMMS
    assert table.is_feasible.all()
    assert evaluator.cache_info().records.misses == NUM_GEMMS
    for row in range(0, NUM_GEMMS, NUM_GEMMS // 20):
        assert table[row] == GEMMEvaluator(evaluator.arch, disk_cache=False).evaluate(*gemms[row])


@pytest.mark.benchmark(group=GROUP)
def test_cached(benchmark: Any, evaluator: GEMMEvaluator, gemms: npt.NDArray[np.int64]) -> None:
    evaluator.evaluate_many(gemms, progress=False)
    misses = evaluator.cache_info().records.misses
    table = benchmark.pedantic(evaluator.evaluate_many, (gemms,), {"progress": False}, rounds=5)
    note_rate(benchmark)
    assert len(table) == NUM_GEMMS
    assert evaluator.cache_info().records.misses == misses
