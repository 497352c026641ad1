"""AMD Instinct: presets, whose kernels run, what carries over to siblings, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gemm_eval import GEMMEvaluator, GemmProblem, InvalidOptionError, UnsupportedError, estimate_model, load_arch
from gemm_eval.arch import GFX_ARCHS, GpuSpec, gpu_slug, ladder_of
from gemm_eval.dtypes import DType
from gemm_eval.mapping import KernelConfig
from gemm_eval.models.gpu import coefficients_for
from gemm_eval.models.gpu.learned import OTHER_MAKER
from gemm_eval.models.gpu.memory_bound import memory_bound_coefficients
from gemm_eval.moe import moe_layer
from gemm_eval.validation.tables import find_timings

PEAKS = {  # dense fp16 TFLOP/s of the data sheets; of the two GPUs of an MI250X one
    "mi210": 181.0, "mi250x": 191.5, "mi300a": 980.6, "mi300x": 1307.4, "mi325x": 1307.4, "mi350x": 2306.9,
    "mi355x": 2516.6,
}  # fmt: skip


def test_presets_are_those_of_the_data_sheets_and_have_the_names_of_drivers() -> None:
    for name, peak in PEAKS.items():
        spec = load_arch(name, GpuSpec)
        assert spec.peak_tflop_per_s("fp16") == pytest.approx(peak, rel=1e-3)
        assert spec.sm_arch in GFX_ARCHS
        assert gpu_slug(f"AMD Instinct {name.upper()}") == name
    assert load_arch("mi300").name == "mi300x"
    assert ladder_of("gfx942") == GFX_ARCHS


def test_each_type_has_the_library_that_runs_it() -> None:
    expected = {
        "bf16": ("hipblaslt", "mfma"), "fp8": ("aiter", "mfma_fp8"), "fp8_block": ("aiter", "mfma_fp8_block"),
        "mxfp8": ("aiter", "mfma_mxfp8"), "mxfp4": ("aiter", "mfma_mxfp4"), "int8": ("aiter", "mfma_int8"),
    }  # fmt: skip
    evaluator = GEMMEvaluator("mi355x")
    for dtype, (library, family) in expected.items():
        result = evaluator.evaluate(1, 64, 512, 512, dtype=dtype)
        assert isinstance(result.mapping, KernelConfig)
        assert (result.options["library"], result.mapping.family) == (library, family)
        assert evaluator.top(result.problem, 3)[0].latency_us == result.latency_us
    assert GEMMEvaluator("mi250x").evaluate(1, 64, 512, 512, dtype="int8").options["library"] == "hipblaslt"


def test_siblings_take_coefficients_of_their_generation_and_no_other_maker_does() -> None:
    for gpu, timed in {"mi325x": "mi300x", "mi300a": "mi300x", "mi308x": "mi300x", "mi350x": "mi355x"}.items():
        origin = coefficients_for(load_arch(gpu, GpuSpec), "aiter", "mfma_fp8_block")[1]
        assert (origin.gpu, origin.is_calibrated) == (timed, False)
    assert coefficients_for(load_arch("mi300x", GpuSpec), "cublas", "sm80_mma")[1].gpu is None
    assert coefficients_for(load_arch("h200-sxm", GpuSpec), "aiter", "mfma")[1].gpu is None


REFUSED: dict[str, Callable[[GEMMEvaluator], object]] = {
    "library cublas": lambda ev: ev.evaluate(1, 64, 64, 64, library="cublas"),
    "fp16 x int4": lambda ev: ev.evaluate(1, 64, 128, 128, dtype="w4a16"),
    "fp4": lambda ev: ev.evaluate(1, 64, 128, 128, dtype="mxfp4"),
    "attention on latents": lambda ev: estimate_model("deepseek-v3", ev, batch=1, prompt_len=16, tensor_parallel=8),
    "attention by trtllm": lambda ev: ev.evaluate_attention(batch=1, q_len=1, kv_len=64, num_heads=2, library="trtllm"),
    "engine vllm": lambda ev: estimate_model("llama-3-8b", ev, batch=1, prompt_len=16, engine="vllm"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_modelled_on_nvidia_alone_is_refused(what: str) -> None:
    with pytest.raises(UnsupportedError, match=what):
        REFUSED[what](GEMMEvaluator("mi300x"))


CARRIED: dict[str, Callable[[GEMMEvaluator], Any]] = {
    "attention": lambda ev: ev.evaluate_attention(batch=1, q_len=1, kv_len=64, num_heads=2),
    "memory-bound": lambda ev: ev.evaluate_memory_bound(1 << 20, 1 << 20),
    "quantize_from": lambda ev: ev.evaluate(1, 64, 64, 64, dtype="fp8", quantize_from="bf16"),
}


@pytest.mark.parametrize("what", CARRIED)
def test_shares_of_another_maker_hold_only_where_the_spec_names_whose(what: str) -> None:
    result = CARRIED[what](GEMMEvaluator("mi300x"))
    assert result.source == "analytic"
    if what != "quantize_from":
        assert result.high_us / result.low_us == pytest.approx(math.exp(2 * OTHER_MAKER))
    with pytest.raises(UnsupportedError, match=f"{what}.* without carried_from"):
        CARRIED[what](GEMMEvaluator(load_arch("mi300x").with_(carried_from=None)))


def test_a_share_of_the_dram_bandwidth_is_one_of_what_a_large_read_reaches() -> None:
    own, other = (load_arch(name, GpuSpec) for name in ("mi300x", "h200-sxm"))
    ours, theirs = (memory_bound_coefficients(arch)[0] for arch in (own, other))
    assert ours["dram_frac"] / theirs["dram_frac"] == pytest.approx(
        own.dram_efficiency_frac / other.dram_efficiency_frac
    )
    assert ours["l2_frac"] == theirs["l2_frac"]


def test_links_between_any_two_gpus_are_all_used_only_by_all_ranks() -> None:
    """Two of eight GPUs have one link of seven, where a switch gives each its whole rate."""
    ev = GEMMEvaluator("mi300x")
    results = {num: ev.evaluate_collective("all_reduce", 1 << 28, num) for num in (2, 4, 8)}
    rates = {num: result.bus_gb_per_s for num, result in results.items()}
    assert rates[2] < 64 < rates[4] < 3 * 64 < rates[8] < 7 * 48 * 1.05
    assert [result.library for result in results.values()] == ["aiter"] * 3
    assert ev.evaluate_collective("all_reduce", 1 << 14, 8, library="rccl").algorithm.startswith("ring, LL")
    with pytest.raises(InvalidOptionError, match="rccl, aiter"):
        ev.evaluate_collective("all_reduce", 1 << 14, 8, library="nccl")


def test_experts_run_aiters_kernels_and_whole_models_answer() -> None:
    result, carried = (moe_layer(gpu, 64, 2048, 768, 16, 2, dtype="fp8_block") for gpu in ("mi355x", "mi300x"))
    assert (result.library, result.source) == ("aiter-moe", "corrected")
    assert carried.source == "analytic"
    for name, ranks in (("llama-3-8b", 1), ("gpt-oss-20b", 2)):
        estimate = estimate_model(name, "mi300x", batch=4, prompt_len=128, output_len=8, tensor_parallel=ranks)
        assert 1.1 < estimate.tpot_interval_us[1] / estimate.tpot_us < 1.6
        kinds = {cost.operation.kind for cost in estimate.decode.costs if cost.latency_us > 0}
        assert {"gemm", "attention", "moe" if ranks > 1 else "memory"} <= kinds


def test_amds_libraries_are_refused_on_nvidia() -> None:
    for library, dtype in (("aiter", "fp8"), ("hipblaslt", "bf16")):
        with pytest.raises(UnsupportedError, match=f"library {library} .*gfx942"):
            GEMMEvaluator("h200-sxm").evaluate(1, 64, 64, 64, dtype=dtype, library=library)


def test_an_l2_for_each_die_reads_more_than_one_for_all() -> None:
    """Panels that tiles of two XCDs share are read by both: from the Infinity Cache, as far as it holds them."""
    problem = GemmProblem(1, 16384, 8192, 8192, DType.BF16)
    apart = load_arch("mi300x", GpuSpec)
    mapping = GEMMEvaluator(apart).evaluate_problem(problem).mapping

    def dram_us(spec: GpuSpec) -> float:
        return GEMMEvaluator(spec).evaluate_mapping(problem, mapping).breakdown["dram_us"]

    assert dram_us(apart) > 1.02 * dram_us(apart.with_(num_l2_caches=1))
    assert dram_us(apart) < dram_us(apart.with_(l3_bytes=None, l3_gb_per_s=None))


@pytest.mark.parametrize(
    ("gpu", "name", "most"),
    [("mi300x", "fp8_block", 0.07), ("mi355x", "bf16", 0.09), ("mi355x", "mxfp4", 0.06), ("mi355x", "mxfp8", 0.07)],
)
def test_answers_are_near_what_was_timed(gpu: str, name: str, most: float) -> None:
    (timings,) = find_timings(gpu, [f"aiter/{name}"])
    answers = GEMMEvaluator(gpu, disk_cache=False).evaluate_many(timings.problems(), progress=False)
    assert np.abs(answers["latency_us"] / timings.measured_us - 1.0).mean() < most
    assert set(answers["source"]) <= {"calibrated", "corrected"}
