"""Narrow types on GPUs: quantization of A before a GEMM, and families of kernels for block-scaled types."""

import math
from typing import Any

import pytest

from gemm_eval import GEMMEvaluator, GemmProblem, GEMMResult, InvalidOptionError, load_arch
from gemm_eval.arch import SM_ARCHS, GpuSpec, list_archs
from gemm_eval.models.gpu import LIBRARIES, pack_gpu, quantization_of, unpack_gpu_cost
from gemm_eval.models.gpu.generic_kernels import miss_frac
from gemm_eval.models.gpu.sizes import NO_QUANTIZATION, Quantization
from gemm_eval.search.gpu import find_best_config, find_top_configs
from gemm_eval.workload import GemmTypes, RunOptions, make_problem
from tests.cases import case
from tools.laws.kernel_space import enumerate_configs, enumerate_kernels

# ---- quantization of A -----------------------------------------------------------------------------------------------


Sizes = tuple[int, int, int, int]
H200 = load_arch("h200-sxm", GpuSpec)


@pytest.fixture(scope="module")
def h200() -> GEMMEvaluator:
    return GEMMEvaluator(H200, disk_cache=False)


# what L2 misses


def test_missed_share_solves_its_equation_without_a_step() -> None:
    for footprint in (1.0 + 1e-6, 1.001, 1.01, 1.1, 1.5, 2.0, 3.0, 10.0, 30.0):
        missed = miss_frac(footprint)
        assert 0.0 < missed <= 1.0
        assert -math.expm1(-missed * footprint) == pytest.approx(missed, rel=1e-9), footprint
    assert [miss_frac(footprint) for footprint in (0.0, 0.5, 1.0, 1e6)] == [0.0, 0.0, 0.0, 1.0]
    assert miss_frac(1.0 + 1e-9) == pytest.approx(2e-9, rel=1e-6)
    shares = [miss_frac(1.0 + step / 500) for step in range(5000)]
    assert shares == sorted(shares)


# its time


FEW = (1, 16, 4096, 6144)


def quantized(evaluator: GEMMEvaluator, sizes: Sizes, dtype: str, source: Any = "bf16", **options: Any) -> GEMMResult:
    return evaluator.evaluate(*sizes, dtype, quantize_from=source, **options)


def test_one_scale_takes_two_passes_and_a_cast_and_others_one_pass() -> None:
    for dtype, expected in (
        ("fp8", Quantization(2, 2.0, has_cast=True)),
        ("fp4", Quantization(2, 2.0, has_cast=True)),
        ("fp8_block", Quantization(1, 2.0, has_cast=False)),
        ("nvfp4", Quantization(1, 2.0, has_cast=False)),
        ("int8", Quantization(1, 2.0, has_cast=False)),
        ("w4a8_fp8", Quantization(2, 2.0, has_cast=True)),
    ):
        types = GemmTypes.parse(dtype)
        assert quantization_of(types, "bf16") == quantization_of(types, "fp16") == expected, dtype
        assert quantization_of(types, "fp32") == expected._replace(elem_bytes=4.0)
        assert quantization_of(types, None) == NO_QUANTIZATION


# what is refused


@pytest.mark.parametrize(
    ("dtype", "source", "message"),
    [
        ("fp8", "bf61", "quantize_from must be"),
        ("fp8", "fp8", "quantize_from must be one of bf16, fp16, fp32"),
        ("fp8", "int4", "quantize_from must be one of bf16, fp16, fp32"),
        ("fp16", "bf16", "needs a narrower type of A .* multiplied as fp16"),
        ("bf16", "fp32", "needs a narrower type of A .* multiplied as bf16"),
        ("tf32", "fp32", "needs a narrower type of A .* multiplied as tf32"),
        ("w4a16", "bf16", "needs a narrower type of A .* multiplied as fp16"),
        *(("fp8", source, "quantize_from must be") for source in ("x" * 65, 1, 2.0, True, [], object())),
    ],
)
def test_what_cannot_be_quantized_is_refused(h200: GEMMEvaluator, dtype: str, source: Any, message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        quantized(h200, FEW, dtype, source)


# every way of asking


# how it is packed


# ---- families for block-scaled types ---------------------------------------------------------------------------------


GPUS = {
    arch.name: arch for arch in map(load_arch, list_archs()) if isinstance(arch, GpuSpec) and arch.sm_arch in SM_ARCHS
}
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
