"""AMD Instinct: presets, whose kernels run, what carries over to siblings, and what is refused."""

from typing import Any

import numpy as np
import pytest

from gemm_eval import (
    GEMMEvaluator,
    GemmProblem,
    InvalidOptionError,
    UnsupportedError,
    estimate_model,
    estimate_training,
    load_arch,
)
from gemm_eval.arch import GFX_ARCHS, GpuSpec, gpu_slug, ladder_of
from gemm_eval.dtypes import DType
from gemm_eval.mapping import KernelConfig
from gemm_eval.models.gpu import coefficients_for
from gemm_eval.models.gpu.memory_bound import memory_bound_coefficients
from gemm_eval.moe import moe_layer
from gemm_eval.validation.subjects.gemms import compare_choices
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
    result, carried = (
        moe_layer(gpu, 64, 2048, 768, 16, 2, dtype=of) for gpu, of in {"mi355x": "mxfp4", "mi300x": "fp8_block"}.items()
    )
    assert (result.library, result.source) == ("aiter-moe", "corrected")
    assert carried.source == "analytic"
    for name, ranks in (("llama-3-8b", 1), ("gpt-oss-20b", 2)):
        estimate = estimate_model(name, "mi300x", batch=4, prompt_len=128, output_len=8, tensor_parallel=ranks)
        assert 1.1 < estimate.tpot_interval_us[1] / estimate.tpot_us < 1.6
        kinds = {cost.operation.kind for cost in estimate.decode.costs if cost.latency_us > 0}
        assert {"gemm", "attention", "moe" if ranks > 1 else "memory"} <= kinds


def test_latents_of_a_lone_sequence_are_read_by_16_cus() -> None:
    """aiter cuts a sequence into 16 parts at most: as many sequences as fill the GPU take hardly longer."""
    sizes: dict[str, Any] = {
        "q_len": 1, "kv_len": 32768, "num_heads": 16, "num_kv_heads": 1, "head_dim": 576, "v_head_dim": 512,
    }  # fmt: skip
    us = [GEMMEvaluator("mi300x").evaluate_attention(batch=of, is_latent=True, **sizes).latency_us for of in (1, 4, 64)]
    assert us[0] <= us[1] < 1.2 * us[0]
    assert us[2] > 2.0 * us[0]


def test_models_go_over_nodes_and_training_steps_answer() -> None:
    """Eight NICs of 400 Gb/s a node: 16 GPUs exchange bytes over the network."""
    result = GEMMEvaluator("mi355x").evaluate_collective("all_reduce", 1 << 26, 16)
    assert result.num_nodes == 2
    assert result.latency_us > GEMMEvaluator("mi355x").evaluate_collective("all_reduce", 1 << 26, 8).latency_us
    step = estimate_training("llama-3-8b", "mi300x", num_devices=16, global_batch=16, seq_len=512)
    assert 0.1 < step.mfu_frac < 0.9
    with pytest.raises(UnsupportedError, match=r"at most 4 GPUs, got 8 ranks: give its YAML an interconnect\.network"):
        GEMMEvaluator("mi300a").evaluate_collective("all_reduce", 1 << 20, 8)


def test_kernels_run_only_a_k_of_whole_steps() -> None:
    """aiter's kernels have no k-step that is partly full: of K = 2880 only those of 64 bytes run."""
    ev = GEMMEvaluator("mi355x")
    for K, step in ((2880, 64), (4224, 128), (4096, 256), (100, 64)):
        mapping = ev.evaluate(1, 16, K, 128, dtype="fp8").mapping
        assert isinstance(mapping, KernelConfig)
        assert mapping.cta_k == step


def test_versions_of_aiter_have_their_own_tiles() -> None:
    """Weights whose rows are shuffled have kernels of 96 rows, CK's of weights as they are do not; some split K."""
    ev = GEMMEvaluator("mi355x")
    problem = ev.evaluate(1, 96, 7168, 2048, dtype="fp8_block").problem
    rows = {}
    for version in ("ck", "ck-tile", "preshuffled"):
        rows[version] = {r.mapping.cta_m for r in ev.top(problem, 200, library=f"aiter/{version}")}  # type: ignore[union-attr]
    assert 96 in rows["preshuffled"]
    assert not {48, 80, 96, 192} & rows["ck"]
    assert 192 in rows["ck-tile"]
    few = ev.evaluate(1, 16, 7168, 512, dtype="fp8_block").problem
    whole, split = (ev.top(few, 50, library=f"aiter/ck{of}")[:] for of in ("", "-split"))
    assert {r.mapping.split_k for r in whole} == {1}  # type: ignore[union-attr]
    assert split[0].mapping.split_k > 1  # type: ignore[union-attr]
    assert split[0].latency_us < 0.9 * whole[0].latency_us


def test_the_first_of_several_kernels_is_near_the_fastest() -> None:
    (fp8,) = (item for item in compare_choices(load_arch("mi355x", GpuSpec)) if item.dtype == "fp8_row")
    assert fp8.num_gemms > 200
    assert fp8.model_frac < 0.08 < fp8.any_frac


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
    [
        ("mi300x", "fp8_block-ck", 0.05), ("mi300x", "fp8_block-ck-tile-split", 0.05),
        ("mi355x", "fp8_block-preshuffled-split", 0.07), ("mi355x", "bf16", 0.09), ("mi355x", "mxfp4", 0.06),
        ("mi355x", "mxfp8", 0.07),
    ],
)  # fmt: skip
def test_answers_are_near_what_was_timed(gpu: str, name: str, most: float) -> None:
    (timings,) = find_timings(gpu, [f"aiter/{name}"])
    answers = GEMMEvaluator(gpu, disk_cache=False).evaluate_many(
        timings.problems(), library=timings.library_word, progress=False
    )
    assert np.abs(answers["latency_us"] / timings.measured_us - 1.0).mean() < most
    assert set(answers["source"]) <= {"calibrated", "corrected"}
