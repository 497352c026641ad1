"""Laws of the GPU model: costs add up, narrow weights move fewer bytes, and what no library runs is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gemm_eval import GemmProblem, UnsupportedError
from gemm_eval.arch import GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.models.gpu import BOUNDS, GpuCost, pack_gpu, unpack_gpu_cost
from gemm_eval.models.gpu.sizes import load_bytes_of
from gemm_eval.models.gpu.w4a16.candidates import W4A16_SIZES, has_w4a16_kernels
from gemm_eval.search.gpu import find_best_config
from gemm_eval.workload import RunOptions
from tests import strategies

Case = tuple[GpuSpec, GemmProblem, RunOptions]

ROUNDING = 1e-9

few = settings(max_examples=max(1, settings.default.max_examples * 2 // 5))  # a changed chip is packed anew: 20 ms


def best(arch: GpuSpec, problem: GemmProblem, options: RunOptions) -> GpuCost:
    return unpack_gpu_cost(find_best_config(arch, problem, pack_gpu(arch, problem.types, options))[0])


@given(strategies.gpu_cases())
def test_a_cost_adds_up_and_no_bound_is_beaten(case: Case) -> None:
    arch, problem, options = case
    cost = best(arch, problem, options)
    latency_us, breakdown = cost.latency_us, dict(cost.breakdown)

    assert 0 < latency_us < math.inf
    chip_us = sum(breakdown[f"{name}_us"] for name in ("matrix", "dequant", "step_wait", "tile_overhead"))
    longest = {"chip": chip_us, "quantize": breakdown["quantize_us"] + breakdown["cast_us"]} | {
        name: breakdown[f"{term}_us"]
        for name, term in (
            ("launch", "launch"),
            ("prologue", "prologue"),
            ("l2", "l2"),
            ("dram", "dram"),
            ("fill", "outside"),
            ("store", "store"),
            ("reduction", "reduction"),
        )
    }
    of_chip = {"compute", "dequant", "latency"}
    assert cost.bound in BOUNDS
    assert longest["chip" if cost.bound in of_chip else cost.bound] == max(longest.values())
    assert sum(breakdown.values()) == pytest.approx(latency_us, rel=ROUNDING)
    assert breakdown.pop("hidden_us") <= ROUNDING * latency_us
    assert min(breakdown.values()) >= 0
    assert sum(cost.traffic.values()) == cost.dram_bytes
    assert min(cost.traffic.values()) >= 0
    assert 1 <= cost.active_sms <= arch.num_sms
    assert 0 < cost.smem_bytes <= arch.smem_per_sm_bytes

    assert latency_us > arch.graph_node_us


@few
@given(strategies.gpu_cases(quantized=True))
def test_quantized_weights_move_fewer_bytes(case: Case) -> None:
    arch, problem, options = case
    assume(problem.K >= 64)  # a scale takes as much as a few weights
    assume(problem.N >= 8)  # fewer columns are padded
    # cold: what L2 keeps of a call before is a coefficient of the library
    narrow = best(arch, problem, RunOptions(options.library)).traffic
    dense = best(arch, GemmProblem(*problem.sizes, problem.input_dtype), RunOptions()).traffic
    assert narrow["b_bytes"] + narrow["scale_bytes"] <= dense["b_bytes"]


@few
@given(st.sampled_from(strategies.GPUS), st.data())
def test_what_no_library_runs_is_refused(arch: GpuSpec, data: st.DataObject) -> None:
    problem = data.draw(strategies.gpu_problems(arch))
    # kernels for few rows, and cuBLAS's for all others
    has_few_rows = problem.input_dtype is problem.weight_dtype is DType.FP8 and arch.sm_arch in ("sm_89", "sm_120")
    has_few_rows &= not problem.types.is_block_scaled
    for library in ("cublas", "gemm-eval", "trtllm"):
        options = RunOptions(library)
        is_refused = (library == "cublas") == problem.is_weight_quantized
        if library == "trtllm" and not problem.is_weight_quantized:
            is_theirs = problem.input_dtype is DType.INT8 and arch.sm_arch in ("sm_80", "sm_89")
            is_theirs |= has_few_rows
            is_refused = not (problem.types.is_block_scaled or is_theirs)
        if library == "gemm-eval":
            is_refused |= not (has_w4a16_kernels(arch, problem.types) and W4A16_SIZES.takes(*problem.sizes[1:]))
        if library == "trtllm":
            is_padded = problem.is_weight_quantized or has_few_rows
            is_refused |= not (load_bytes_of(problem) == 16 or is_padded)
        if is_refused:
            with pytest.raises(UnsupportedError):
                best(arch, problem, options)
        else:
            assert best(arch, problem, options).latency_us > 0
