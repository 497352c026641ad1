"""The search over kernel configs of a GPU: against brute force, replayed, in batches; laws of what it finds."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gemm_eval import GemmProblem, InfeasibleError
from gemm_eval.arch import GpuSpec
from gemm_eval.models.gpu import BOUNDS, GpuCost, pack_gpu, unpack_gpu_cost
from gemm_eval.search.gpu import evaluate_config, find_best_config, find_top_configs
from gemm_eval.workload import RunOptions
from tests import strategies
from tests.cases import without_counts
from tests.oracle import naive_gpu
from tools.laws.kernel_space import enumerate_configs

# ---- the search ------------------------------------------------------------------------------------------------------


Case = tuple[GpuSpec, GemmProblem, RunOptions]

ARCHS = tuple(arch for arch in strategies.GPUS if not numba.config.DISABLE_JIT or arch.sm_arch in ("sm_80", "sm_89"))
few = settings(max_examples=max(1, settings.default.max_examples * 2 // 5))  # a changed chip is packed anew: 20 ms


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Presets, and chips of too little shared memory or of a strange number of SMs.

    Where library gemm-eval has kernels of its own, `test_w4a16_search` compares; the generic ones are hypothetical.
    """
    arch, problem, options = draw(strategies.gpu_cases(ARCHS))
    if problem.is_weight_quantized and pack_gpu(arch, problem.types, options).for_sizes(*problem.sizes).is_ours:
        options = options._replace(library="hypothetical")
    smem_frac = draw(st.sampled_from((1.0, 1.0, 1.0, 0.5, 0.2, 0.02)))
    num_sms = draw(st.sampled_from((arch.num_sms, arch.num_sms, 1, 7, 200)))
    return arch.with_(smem_per_cta_bytes=int(arch.smem_per_cta_bytes * smem_frac), num_sms=num_sms), problem, options


@few
@given(cases())
def test_bounds_are_below_the_cost_of_every_config(case: Case) -> None:
    from gemm_eval.models.gpu.cost_kernels import BEST_RASTER, STREAM_K
    from gemm_eval.models.gpu.generic_kernels import config_cost, problem_terms, row_bounds_us
    from gemm_eval.models.gpu.packed import pack_bound_columns

    arch, problem, options = case
    space = naive_gpu.space_of(arch, problem, options)
    p, c = space.params[0], space.coefficients[0, 0]
    terms = problem_terms(p, c, problem.K, problem.N, np.array([problem.M]), np.array([problem.G]), False)
    bounds = np.empty(len(space.menu))
    row_bounds_us(p, c, terms, pack_bound_columns(space.params, space.coefficients[0], space.menu), 0, bounds)
    for index in range(0, len(space.menu), max(1, len(space.menu) // 20)):
        splits = space.choices[index].splits
        ways = {splits[0], splits[-1]} if splits else set()
        for way in ways | ({STREAM_K} if space.choices[index].has_stream_k else set()):
            assert bounds[index] <= config_cost(p, space.menu[index], c, terms, way, BEST_RASTER).latency_us
        assert np.isfinite(bounds[index]) or not ways


@few
@given(cases(), st.integers(1, 60))
def test_top_is_sorted_distinct_legal_and_starts_with_the_best(case: Case, k: int) -> None:
    arch, problem, options = case
    packed = pack_gpu(arch, problem.types, options)
    try:
        best = find_best_config(arch, problem, packed)
    except InfeasibleError:
        return
    top = find_top_configs(arch, problem, packed, k)
    configs = [unpack_gpu_cost(record).config for record in top]

    assert without_counts(top[:1]) == without_counts(best)
    assert np.all(np.diff(top["latency_us"]) >= 0)
    assert len(set(configs)) == len(configs) <= k
    for place in {0, len(top) // 2, len(top) - 1}:
        replayed = evaluate_config(arch, problem, packed, configs[place])
        assert without_counts(replayed) == without_counts(top[place : place + 1])


def test_what_the_search_lists_are_configs_of_the_space() -> None:
    arch = next(arch for arch in strategies.GPUS if arch.name == "l4")
    for sizes in ((1, 16, 4096, 4096), (2, 300, 1000, 1001)):
        for types in ({}, {"weight_dtype": "int4", "group_size": 128}):
            problem = GemmProblem(*sizes, **types)  # type: ignore[arg-type]
            space = set(enumerate_configs(arch, problem))
            top = find_top_configs(arch, problem, pack_gpu(arch, problem.types, RunOptions()), 10**6)
            assert {unpack_gpu_cost(record).config for record in top} <= space


_PRINT_COSTS = """
import json, sys
from tests.property.test_gpu_search_exact import costs_of_fixed_configs
json.dump(costs_of_fixed_configs(), sys.stdout)
"""


def costs_of_fixed_configs() -> list[list[Any]]:
    """Records of a search, and of some configs of every family, as plain numbers."""
    by_name = {arch.name: arch for arch in strategies.GPUS}
    costs = []
    for name in ("h100-sxm", "a100-sxm-80gb", "b200"):
        for types in ({}, {"weight_dtype": "int4", "group_size": 128}):
            for sizes in ((1, 17, 4096, 1024), (3, 300, 1000, 1001), (1, 8192, 8192, 10240)):
                arch, problem = by_name[name], GemmProblem(*sizes, **types)  # type: ignore[arg-type]
                packed = pack_gpu(arch, problem.types, RunOptions())
                configs = list(enumerate_configs(arch, problem))
                for config in configs[:: 997 if len(configs) > 2000 else 23]:  # our own kernels are few
                    costs += evaluate_config(arch, problem, packed, config).tolist()
    arch, problem = by_name["l4"], GemmProblem(1, 100, 4096, 4096)
    costs += find_best_config(arch, problem, pack_gpu(arch, problem.types, RunOptions())).tolist()
    return [list(cost) for cost in costs]


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="compares a run with the JIT to one without")
def test_the_kernels_as_plain_python_give_the_same_bits() -> None:
    env = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    root = Path(__file__).parents[2]
    run = subprocess.run(
        [sys.executable, "-c", _PRINT_COSTS], env=env, cwd=root, capture_output=True, text=True, check=True
    )
    assert json.loads(run.stdout) == costs_of_fixed_configs()


def test_the_menu_of_a_search_holds_the_best_of_each_occupancy() -> None:
    """Of the numbers of stages only the largest for each number of CTAs of an SM is searched."""
    for arch in strategies.GPUS:
        for problem in (GemmProblem(1, 64, 4096, 4096), GemmProblem(1, 64, 4097, 4096)):
            packed = pack_gpu(arch, problem.types, RunOptions())
            menu = packed.for_sizes(*problem.sizes).candidates
            space = naive_gpu.space_of(arch, problem, RunOptions()).menu
            key = ["family", "cta_m", "cta_n", "cluster_m", "cluster_n", "num_warps", "schedule", "ctas_per_sm"]
            most: dict[Any, int] = {}
            for row in space:
                most[row[key].item()] = max(most.get(row[key].item(), 0), int(row["num_stages"]))
            assert {row[key].item(): int(row["num_stages"]) for row in menu} == most


# ---- laws ------------------------------------------------------------------------------------------------------------


ROUNDING = 1e-9


def best_cost(arch: GpuSpec, problem: GemmProblem, options: RunOptions) -> GpuCost:
    return unpack_gpu_cost(find_best_config(arch, problem, pack_gpu(arch, problem.types, options))[0])


@given(strategies.gpu_cases())
def test_a_cost_adds_up_and_no_bound_is_beaten(case: Case) -> None:
    arch, problem, options = case
    cost = best_cost(arch, problem, options)
    latency_us, breakdown = cost.latency_us, dict(cost.breakdown)

    assert 0 < latency_us < math.inf
    chip_us = sum(breakdown[f"{name}_us"] for name in ("matrix", "dequant", "step_wait", "tile_overhead"))
    longest = {"chip": chip_us, "quantize": breakdown["quantize_us"] + breakdown["cast_us"]} | {
        name: breakdown[f"{term}_us"]
        for name, term in (
            ("launch", "launch"), ("prologue", "prologue"), ("l2", "l2"), ("dram", "dram"), ("fill", "outside"),
            ("store", "store"), ("reduction", "reduction"),
        )
    }  # fmt: skip
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
    narrow = best_cost(arch, problem, RunOptions(options.library)).traffic
    dense = best_cost(arch, GemmProblem(*problem.sizes, problem.input_dtype), RunOptions()).traffic
    assert narrow["b_bytes"] + narrow["scale_bytes"] <= dense["b_bytes"]
