"""How long corrections and intervals of operations take in a cold answer: ``make bench`` prints each, and its ratio."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.dtypes import DType
from gemm_eval.models.gpu import attention, collective, layer_answers, memory_bound
from gemm_eval.workload import ENGINES, AttentionProblem, CollectiveProblem, GemmTypes, MoeWork

GPU = "h200-sxm"


def _of_attention(arch: GpuSpec) -> Callable[[], object]:
    library, rows = attention.DEFAULT_ATTENTION, attention.attention_rows([AttentionProblem(1, 1, 5000, 32, 8, 128)])
    costs = attention.attention_costs(arch, attention.attention_coefficients(arch, library).values, rows, library)
    return lambda: attention.attention_answers(arch, library, rows, costs)


def _of_collectives(arch: GpuSpec) -> Callable[[], object]:
    link, problem = collective.link_of(arch), CollectiveProblem("all_reduce", 123_456, 8, DType.BF16)
    return lambda: collective.collective_curve(arch, link, collective.NCCL, problem).at(problem.message_bytes)


def _of_memory_bound(arch: GpuSpec) -> Callable[[], object]:
    sizes, us = np.array([memory_bound.memory_bound_row("", 1e6, 1e6, 64, 4096)], np.float64), np.array([5.0])

    def answer() -> object:
        learned = memory_bound.memory_bound_model(arch, ENGINES)[2]
        return learned.answers(memory_bound.memory_bound_columns(sizes, us), us)

    return answer


def _of_layers(arch: GpuSpec) -> Callable[[], object]:
    sizes = (512, 2048, 768, 128, 128, 8, 4096, 128, 60, 1)
    columns: list[Any] = [np.array([size], np.float64) for size in sizes]
    work = MoeWork(*[*columns, GemmTypes.parse("bf16")])
    return lambda: layer_answers(arch, "triton", work, np.array([100.0]), is_on=True, is_warm=True)


@pytest.mark.benchmark(group="correction and interval of one cold answer, beside 100 additions of floats in Python")
@pytest.mark.parametrize("make", [None, _of_attention, _of_collectives, _of_memory_bound, _of_layers])
def test_a_correction_and_its_interval(
    benchmark: BenchmarkFixture, make: Callable[[GpuSpec], Callable[[], object]] | None
) -> None:
    arch = load_arch(GPU, GpuSpec)
    answer = (lambda: sum(float(number) for number in range(100))) if make is None else make(arch)
    answer()  # compiles, and reads files
    assert benchmark(answer) is not None
