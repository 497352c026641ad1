"""Speed of the GPU model on an H100: single GEMMs, cold and remembered, 10,000 distinct ones, and many GPUs.

``extra_info`` of the batches holds GEMMs per second. As plain tests these only check that the ways agree.
"""

import itertools
import time
import timeit
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from gemm_eval import GEMMEvaluator, GemmProblem, load_arch
from gemm_eval import progress as _threads
from gemm_eval.models import gpu as model
from gemm_eval.models.gpu import pack_gpu
from gemm_eval.search.gpu import find_best_config
from gemm_eval.workload import RunOptions
from tests.benchmarks.test_batch_speed import distinct_gemms
from tests.benchmarks.transformer_gemms import transformer_gemms

NUM_GEMMS = 10_000
NUM_SHAPES = 1000
NUM_CHIPS, NUM_OF_CHIP = 60, 28
DTYPES = ("fp16", "fp8", "w4a16")
OF_AMD = [("mi300x", "fp8_block"), ("mi300x", "fp8"), *(("mi355x", of) for of in ("bf16", "fp8_block", "fp8", "mxfp4"))]


@pytest.fixture(scope="module")
def evaluator() -> GEMMEvaluator:
    evaluator = GEMMEvaluator(load_arch("h100-sxm"), disk_cache=False)
    for dtype in DTYPES:  # compiles, or loads from disk, and packs
        evaluator.evaluate(1, 64, 64, 64, dtype)
        evaluator.evaluate_many([(1, 64, 64, 64)], dtype, progress=False)
    return evaluator


@pytest.mark.benchmark(group="1,000 transformer GEMMs, cold, each timed alone (microseconds a GEMM)")
@pytest.mark.parametrize(("gpu", "dtype"), [*(("h100-sxm", dtype) for dtype in DTYPES), *OF_AMD])
def test_cold(benchmark: Any, evaluator: GEMMEvaluator, gpu: str, dtype: str) -> None:
    shapes = transformer_gemms(NUM_SHAPES)
    if gpu != evaluator.arch.name:
        evaluator = GEMMEvaluator(gpu, disk_cache=False)
    evaluator.evaluate(1, 64, 64, 64, dtype)  # packs
    evaluator.cache_clear()
    turn = itertools.cycle(shapes)
    result = benchmark.pedantic(evaluator.evaluate, setup=lambda: (next(turn), {"dtype": dtype}), rounds=len(shapes))
    assert result.is_exhaustive
    assert evaluator.cache_info().hits == 0


@pytest.mark.benchmark(group="one GEMM on an H100")
def test_cached(benchmark: Any, evaluator: GEMMEvaluator) -> None:
    first = evaluator.evaluate(1, 4096, 4096, 4096)
    assert benchmark.pedantic(evaluator.evaluate, (1, 4096, 4096, 4096), rounds=1000, iterations=100) is first


@pytest.mark.benchmark(group="explain() of a GEMM on an H100 that no other has explained, after the first")
@pytest.mark.parametrize("dtype", DTYPES)
def test_explain(benchmark: Any, evaluator: GEMMEvaluator, dtype: str) -> None:
    evaluator.evaluate(1, 64, 64, 64, dtype).explain()
    turn = itertools.cycle(evaluator.evaluate(*shape, dtype) for shape in transformer_gemms(60))
    text = benchmark.pedantic(lambda result: result.explain(), setup=lambda: ((next(turn),), {}), rounds=50)
    assert "DRAM: " in text


@pytest.mark.benchmark(group=f"{NUM_GEMMS:,} distinct transformer GEMMs on an H100, cold, one thread")
@pytest.mark.parametrize("dtype", DTYPES)
def test_batch_on_one_thread(
    benchmark: Any, evaluator: GEMMEvaluator, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    gemms = distinct_gemms(NUM_GEMMS)
    with ThreadPoolExecutor(max_workers=1) as pool:
        monkeypatch.setattr(_threads, "_pool", lambda: pool)
        table = benchmark.pedantic(
            evaluator.evaluate_many, (gemms, dtype), {"progress": False}, setup=evaluator.cache_clear, rounds=3
        )
    if benchmark.stats:  # none with --benchmark-disable
        benchmark.extra_info["gemms_per_s"] = round(NUM_GEMMS / benchmark.stats.stats.median)
    assert table.is_feasible.all()
    assert evaluator.cache_info().records.misses == NUM_GEMMS
    for row in range(0, NUM_GEMMS, NUM_GEMMS // 20):
        assert table[row] == GEMMEvaluator(evaluator.arch, disk_cache=False).evaluate(*gemms[row].tolist(), dtype)


@pytest.mark.benchmark(group=f"{NUM_CHIPS} changed H100s x {NUM_OF_CHIP} transformer GEMMs, fp16")
def test_design_space(benchmark: Any, evaluator: GEMMEvaluator) -> None:
    base, gemms = evaluator.arch, transformer_gemms(NUM_OF_CHIP)
    archs = [base.with_(num_sms=100 + place, dram_gb_per_s=3000.0 + place) for place in range(NUM_CHIPS)]

    def evaluate_all() -> list[float]:
        tables = (GEMMEvaluator(arch, disk_cache=False).evaluate_many(gemms, "fp16", progress=False) for arch in archs)
        return [float(table["latency_us"].sum()) for table in tables]

    found = benchmark.pedantic(evaluate_all, rounds=3)
    if benchmark.stats:
        rate = NUM_CHIPS * NUM_OF_CHIP / benchmark.stats.stats.median
        benchmark.extra_info["evaluations_per_s"] = round(rate)
    assert len(set(found)) == NUM_CHIPS


@pytest.mark.benchmark(group="learned correction and interval of an answer, one GEMM on an H200")
def test_correction(benchmark: Any) -> None:
    """`extra_info` has CPU times in us, and that of search, correction and interval over that of the search."""
    arch = load_arch("h200-sxm")
    gemms = [GemmProblem(*sizes, "bf16") for sizes in transformer_gemms(NUM_SHAPES)]
    options = RunOptions("cublas", "cold", "burst")
    packed, physics = (pack_gpu(arch, gemms[0].types, options._replace(correction=is_on)) for is_on in (True, False))
    assert packed.correction is not None
    records = [find_best_config(arch, gemm, physics) for gemm in gemms]
    sizes, first, logs = [np.array([gemm.sizes]) for gemm in gemms], np.zeros(1, np.int64), np.zeros((5, 4))

    def search() -> None:
        for gemm in gemms:
            find_best_config(arch, gemm, physics)

    def correct() -> None:
        for record, of_gemm in zip(records, sizes, strict=True):
            model.correct(record.view(model.KERNEL_COST_DTYPE), first, of_gemm, *packed.correction)

    def add_intervals() -> None:
        for record, gemm in zip(records, gemms, strict=True):
            model.interval_ends(model.regime_place(*gemm.sizes), record["correction_trust"][0], logs)

    correct()
    benchmark.pedantic(correct, rounds=3)
    search_us, correction_us, interval_us = (
        min(timeit.repeat(part, timer=time.process_time, number=1, repeat=5)) * 1e6 / len(gemms)
        for part in (search, correct, add_intervals)
    )
    benchmark.extra_info |= {
        "search_us": search_us, "correction_us": correction_us, "interval_us": interval_us,
        "ratio": 1.0 + (correction_us + interval_us) / search_us,
    }  # fmt: skip
    assert any(record["correction_factor"][0] != 1.0 for record in records)
