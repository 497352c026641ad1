"""What a learned correction and its interval add to an answer that nobody asked for before.

Each test times the correction alone, one problem at a time; `test_gpu_speed.py` has that of GEMMs on GPUs.
``extra_info`` has microseconds a problem: of the correction (`correction_us`) and of whole cold answers that have it
(`answer_us`), and their ratio.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from gemm_eval import GEMMEvaluator, GemmProblem, load_arch
from gemm_eval.arch import MulticoreSpec
from gemm_eval.evaluate.chip_correction import chip_correction
from gemm_eval.models.gpu.memory_bound import (
    MemoryBoundRows,
    memory_bound_columns,
    memory_bound_model,
    memory_bound_row,
    memory_bound_us,
)
from tests.benchmarks.transformer_gemms import transformer_gemms

NUM = 1000
GROUP = "a learned correction and its interval, 1,000 problems"
KERNELS = [(1e3 * 1.01**place, 1e3 * 1.01**place, 64 + place, 1 + place) for place in range(NUM)]


def run(benchmark: Any, correct_one: Callable[[int], object], evaluate: Callable[..., Any], args: Sequence[Any]) -> int:
    """Benchmark the correction of each problem; return how many of the answers have a corrected time."""

    def correct_all() -> None:
        for place in range(len(args)):
            correct_one(place)

    correct_all()
    benchmark.pedantic(correct_all, rounds=5)
    evaluate(*args[0])
    start = time.perf_counter()
    results = [evaluate(*each) for each in args]
    answer_us = (time.perf_counter() - start) * 1e6 / len(args)
    if benchmark.stats:  # none with --benchmark-disable
        correction_us = benchmark.stats.stats.min * 1e6 / len(args)
        benchmark.extra_info |= {
            "correction_us": correction_us, "answer_us": answer_us, "ratio": correction_us / answer_us,
        }  # fmt: skip
    return sum(result.source == "corrected" for result in results)


@pytest.mark.benchmark(group=GROUP)
@pytest.mark.parametrize(("chip", "dtype"), [("arc-pro-b60", "fp16"), ("tpu-v4", "bf16")])
def test_of_chips(benchmark: Any, chip: str, dtype: str) -> None:
    arch = load_arch(chip, MulticoreSpec)
    evaluator, correction = GEMMEvaluator(arch, disk_cache=False), chip_correction(arch)
    assert correction is not None
    gemms = transformer_gemms(NUM)
    records = evaluator.evaluate_many(gemms, dtype, progress=False).records.copy()
    rows, sizes = [records[place : place + 1] for place in range(NUM)], [np.array([each]) for each in gemms]
    types, peak = GemmProblem(*gemms[0], dtype).types, evaluator.backend.highest_tflop_per_s(dtype)

    def correct_one(place: int) -> None:
        correction.correct(types, sizes[place], rows[place], peak)

    evaluator.cache_clear()
    assert run(benchmark, correct_one, evaluator.evaluate, [(*each, dtype) for each in gemms]) > NUM // 4


@pytest.mark.benchmark(group=GROUP)
def test_of_memory_bound_kernels(benchmark: Any) -> None:
    evaluator = GEMMEvaluator("h200-sxm", disk_cache=False)
    arch = evaluator.arch
    coefficients, _, learned = memory_bound_model(arch, "engines")
    rows = [
        MemoryBoundRows(*np.array([memory_bound_row("", read, write, num, width)], np.float64).T.copy())
        for read, write, width, num in KERNELS
    ]
    times = [memory_bound_us(arch, coefficients, row) for row in rows]

    def correct_one(place: int) -> None:
        answers = learned.answers(memory_bound_columns(rows[place], times[place]), times[place])
        answers.ends_us(times[place] * answers.factor)

    assert run(benchmark, correct_one, evaluator.evaluate_memory_bound, KERNELS) > NUM // 4
