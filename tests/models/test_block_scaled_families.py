"""Kernels of block-scaled types: which GPU runs which, and for how many rows of C a tile is used."""

from __future__ import annotations

import pytest

from gemm_eval import GEMMEvaluator, GemmProblem, load_arch
from gemm_eval.arch import GpuSpec, list_archs
from gemm_eval.mapping import KernelConfig
from gemm_eval.models.gpu import LIBRARIES, pack_gpu, unpack_gpu_cost
from gemm_eval.search.gpu import evaluate_config, find_best_config, find_top_configs
from gemm_eval.workload import GemmTypes, RunOptions, make_problem
from tests.cases import case
from tools.laws.kernel_space import enumerate_configs, enumerate_kernels

GPUS = {arch.name: arch for arch in map(load_arch, list_archs()) if isinstance(arch, GpuSpec)}
PHYSICS = RunOptions("trtllm", correction=False)
FAMILY_OF = {
    "fp8": {"sm_89": "sm89_block_fp8", "sm_90": "sm90_block_fp8", "sm_100": "sm100_block_fp8",
            "sm_103": "sm100_block_fp8", "sm_120": "sm120_block_fp8"},
    "fp4": {"sm_100": "sm100_block_fp4", "sm_103": "sm100_block_fp4", "sm_120": "sm120_block_fp4"},
}  # fmt: skip
TILES = {  # rows of C -> rows that its tiles have
    "h200-sxm": {1: {16, 32, 48, 64, 128}, 16: {16, 32, 48, 64, 128}, 17: {32, 48, 64, 128}, 49: {64, 128},
                 64: {64, 128}, 65: {128}, 4096: {128}},
    "rtx-pro-6000-server": {1: {32, 64}, 64: {32, 64}, 65: {64}, 4096: {64}},
    "l40s": {1: {32}, 4096: {32}},
}  # fmt: skip


def of_rows(M: int, dtype: str = "fp8_block") -> GemmProblem:
    return make_problem(1, M, 1024, 768, default_dtype=GPUS["h200-sxm"].default_dtype, dtype=dtype)


def test_every_generation_with_such_types_has_a_family_for_them() -> None:
    for arch in GPUS.values():
        for dtype in ("fp8_block", "mxfp8", "mxfp4", "nvfp4"):
            types = GemmTypes.parse(dtype)
            if types.a.dtype not in arch.tensor_flop_per_cycle:
                continue
            with case(arch.name, dtype):
                expected = FAMILY_OF[types.a.dtype][arch.sm_arch]
                assert LIBRARIES["trtllm"].family(arch, types) == expected
                for M in (1, 64, 300):
                    best = find_best_config(arch, of_rows(M, dtype), pack_gpu(arch, types, PHYSICS))
                    assert unpack_gpu_cost(best[0]).config.family == expected
                assert {config.family for config in enumerate_configs(arch, of_rows(64, dtype), "trtllm")} == {expected}


@pytest.mark.parametrize("name", TILES)
def test_a_tile_is_used_for_as_many_rows_as_the_library_uses_it(name: str) -> None:
    arch = GPUS[name]
    for M, rows in TILES[name].items():
        with case(M):
            problem = of_rows(M)
            used = {kernel.config.cta_m for kernel in enumerate_kernels(arch, problem, "trtllm") if kernel.splits}
            listed = find_top_configs(arch, problem, pack_gpu(arch, problem.types, PHYSICS), 10_000)
            assert {config.cta_m for config in enumerate_configs(arch, problem, "trtllm")} == used == rows
            assert {int(row["cta_m"]) for row in listed} == rows


@pytest.mark.parametrize("name", TILES)
def test_the_search_is_that_of_brute_force_at_the_edges(name: str) -> None:
    arch = GPUS[name]
    for M in (1, 16, 17, 32, 33, 64, 65, 128, 129):
        with case(M):
            problem = of_rows(M)
            packed = pack_gpu(arch, problem.types, PHYSICS)
            us = [
                evaluate_config(arch, problem, packed, config)["latency_us"][0]
                for config in enumerate_configs(arch, problem, "trtllm")
                if config.raster_swizzle == 1  # L2 holds all of this: no raster is better
            ]
            assert find_best_config(arch, problem, packed)["latency_us"][0] == min(us)


def test_a_tile_that_is_not_used_can_be_evaluated() -> None:
    """What holds for the library's choice does not make a config illegal."""
    arch, few, many = GPUS["h200-sxm"], of_rows(16), of_rows(500)
    config = next(config for config in enumerate_configs(arch, few, "trtllm") if config.cta_m == 16)
    packed = pack_gpu(arch, many.types, PHYSICS)

    assert config not in set(enumerate_configs(arch, many, "trtllm"))
    replayed = evaluate_config(arch, many, packed, config)["latency_us"][0]
    assert replayed > find_best_config(arch, many, packed)["latency_us"][0]


def test_k_is_never_split() -> None:
    for name, dtype in (("h200-sxm", "fp8_block"), ("b200", "fp8_block"), ("b200", "nvfp4"), ("l40s", "fp8_block")):
        problem = make_problem(1, 1, 16384, 128, default_dtype=GPUS[name].default_dtype, dtype=dtype)
        assert {config.split_k for config in enumerate_configs(GPUS[name], problem, "trtllm")} == {1}, name


def test_a_step_is_as_long_as_the_family_says() -> None:
    for name, dtype, step_elems in (
        ("rtx-pro-6000-server", "nvfp4", 128), ("rtx-pro-6000-server", "fp8_block", 128), ("b200", "nvfp4", 256),
        ("l40s", "fp8_block", 128),
    ):  # fmt: skip
        result = GEMMEvaluator(name, disk_cache=False).evaluate(1, 300, 4096, 4096, dtype)
        assert isinstance(result.mapping, KernelConfig)
        assert result.mapping.cta_k == step_elems, (name, dtype)


def test_gpus_with_timings_are_calibrated_and_others_take_theirs_over() -> None:
    for name, dtype, source in (
        ("h200-sxm", "fp8_block", "calibrated"), ("b200", "nvfp4", "calibrated"), ("b300", "nvfp4", "analytic"),
        ("rtx-pro-6000-server", "nvfp4", "calibrated"), ("rtx-5090", "nvfp4", "analytic"),
        ("h100-sxm", "fp8_block", "analytic"), ("l4", "fp8_block", "analytic"),
    ):  # fmt: skip
        result = GEMMEvaluator(name, disk_cache=False).evaluate(1, 64, 4096, 4096, dtype, correction=False)
        assert result.source == source, name
        if source == "analytic":
            assert "carried over from trtllm kernels on" in result.explain(), name
