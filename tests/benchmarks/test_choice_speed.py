"""Choosing a W4A16 kernel on an H200 by the model: over a fixed mix of GEMMs, beside costing every config.

``extra_info`` has the median and the 90th percentile over the GEMMs in microseconds, each GEMM the least of some tries,
configs of a GEMM and those that were costed, and the ratio of times to a choice that costs all configs, in one run.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gemm_eval import GemmProblem, load_arch
from gemm_eval.evaluate import select_config
from gemm_eval.models.gpu import Packed, pack_gpu
from gemm_eval.search.gpu import find_best_config
from gemm_eval.search.gpu_kernels import OF_OURS
from gemm_eval.workload import NO_LAYOUTS, RunOptions

ARCH = load_arch("h200-sxm")
TOKENS = {"decode": (1, 2, 4, 8, 16, 24), "mid": (32, 48, 64, 96, 128, 256), "prefill": (512, 1024, 2048, 4096, 8192)}
WEIGHTS = (  # K, N: narrow, square, wide
    (4096, 1024), (7168, 2048), (14336, 4096), (4096, 4096), (5120, 5120), (8192, 8192), (2048, 11008),
    (4096, 14336), (8192, 28672),
)  # fmt: skip
TRIES = 5
US_PER_S = 1e6
NO_LATENCY, NO_PLACES = np.empty(0), np.empty((0, 2), np.int64)


def problems(tokens: tuple[int, ...]) -> list[GemmProblem]:
    return [GemmProblem(1, M, K, N, "fp16", "int4", group_size=128) for M, (K, N) in itertools.product(tokens, WEIGHTS)]


class CostsAll:
    """The plain way: the time of every config, and the least of them."""

    def __init__(self, packed: Packed) -> None:
        self.tables = packed.params, packed.candidates, packed.coefficients
        self.latency_us, self.places = np.empty(1 << 14), np.empty((1 << 14, 2), np.int64)

    def __call__(self, problem: GemmProblem) -> float:
        num = OF_OURS.find_top(*self.tables, *problem.sizes, NO_LAYOUTS, self.latency_us, self.places)
        return float(self.latency_us[:num].min())


def times_us(choose: Callable[[GemmProblem], Any], asked: list[GemmProblem]) -> npt.NDArray[np.float64]:
    """[problems], the least of some tries of each."""
    found = np.full(len(asked), np.inf)
    for place, problem in enumerate(asked):
        for _ in range(TRIES):
            start = time.perf_counter()
            choose(problem)
            found[place] = min(found[place], US_PER_S * (time.perf_counter() - start))
    return found


@pytest.mark.benchmark(group="choosing a W4A16 kernel on an H200, all GEMMs of a regime")
@pytest.mark.parametrize("regime", TOKENS)
def test_choice(benchmark: Any, regime: str) -> None:
    asked = problems(TOKENS[regime])
    packed = pack_gpu(ARCH, asked[0].types, RunOptions())
    costs_all = CostsAll(packed)
    best = [find_best_config(ARCH, problem, packed) for problem in asked]
    assert [costs_all(problem) for problem in asked] == [record["latency_us"][0] for record in best]

    def choose_all() -> None:
        for problem in asked:
            select_config(problem, ARCH)

    benchmark.pedantic(choose_all, rounds=3, warmup_rounds=1)
    if benchmark.stats:
        us, plain_us = times_us(lambda problem: select_config(problem, ARCH), asked), times_us(costs_all, asked)
        benchmark.extra_info |= {
            "median_us": round(float(np.median(us)), 1),
            "p90_us": round(float(np.quantile(us, 0.9)), 1),
            "num_costed": float(np.median([record["num_candidates"][0] for record in best])),
            "ratio": round(float(np.median(plain_us / us)), 2),
        }
