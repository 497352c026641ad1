"""Libraries vllm and sglang: whose timed kernels answer for an engine's, and what is refused."""

import pytest

from gemm_eval import GEMMEvaluator, estimate_model, moe_layer
from gemm_eval.arch import list_archs, load_arch
from gemm_eval.errors import UnsupportedError
from gemm_eval.evaluate import GEMMResult
from tests.cases import case

GPUS = [name for name in list_archs() if getattr(load_arch(name), "sm_arch", "").startswith("sm_")]
TYPES = ("bf16", "fp16", "fp32", "tf32", "fp8", "fp8_block", "nvfp4", "mxfp8", "mxfp4", "int8", "w4a16", "w8a16")


def answer(evaluator: GEMMEvaluator, dtype: str, library: str) -> GEMMResult | str:
    """Return the result, or the words of a refusal."""
    try:
        return evaluator.evaluate(1, 64, 4096, 6144, dtype=dtype, library=library)
    except UnsupportedError as error:
        return str(error)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_every_answer_is_that_of_a_library_that_was_timed_or_a_refusal(engine: str) -> None:
    """The time is the library's; the interval is its own where the engine runs its kernels, else wider."""
    same, other, refused = set(), set(), set()
    for name in GPUS:
        evaluator = GEMMEvaluator(name)
        for dtype in TYPES:
            with case((name, dtype)):
                result = answer(evaluator, dtype, engine)
                if isinstance(result, str):
                    assert f"of {engine} no kernels" in result or "cannot multiply" in result
                    refused.add((name, dtype))
                    continue
                base, _, library = result.options["library"].partition("/")
                timed = evaluator.evaluate(1, 64, 4096, 6144, dtype=dtype, library=library)
                assert base == engine
                assert result.latency_us == timed.latency_us
                if result.high_us == timed.high_us:
                    assert result.source == timed.source
                    same.add((name, dtype))
                else:
                    assert result.high_us > timed.high_us > timed.low_us > result.low_us
                    assert result.source == "analytic"
                    other.add((name, dtype))

    assert {(name, "bf16") for name in GPUS if name not in {"v100", "t4"}} <= same
    assert {("b200", "fp8_block"), ("gb300", "fp8_block")} <= same
    assert {("b200", "nvfp4"), ("rtx-5090", "nvfp4"), ("l40s", "fp8"), ("h200-sxm", "w4a16")} <= other
    assert (("h200-sxm", "fp8") in same) == (engine == "sglang")  # cuBLAS, through FlashInfer
    assert {("v100", "bf16"), ("b200", "int8"), ("h200-sxm", "nvfp4"), ("a100-sxm-80gb", "fp8")} <= refused


def test_tables_ranks_and_words_name_engine_and_library() -> None:
    evaluator = GEMMEvaluator("b200", library="vllm")
    result = evaluator.evaluate(1, 64, 4096, 6144, dtype="nvfp4")
    table = evaluator.evaluate_many([(1, 64, 4096, 6144)], dtype="nvfp4")

    assert list(table["library"]) == ["vllm/trtllm"]
    assert (table["low_us"][0], table["high_us"][0]) == pytest.approx((result.low_us, result.high_us))
    assert evaluator.top(result.problem, 1)[0].options["library"] == "vllm/trtllm"
    assert "FlashInfer's CuTe DSL kernels" in result.explain()
    assert evaluator.evaluate(1, 64, 4096, 6144, dtype="int8").options["library"] == "cublas"  # not known of vLLM


@pytest.mark.parametrize(
    ("gpu", "dtype", "vllm", "sglang"),
    [
        ("a100-sxm-80gb", "bf16", "triton", "triton"),
        ("h200-sxm", "w4a16", "marlin", "marlin"),
        ("h200-sxm", "w4a16_mxfp4", "marlin", "triton"),
        ("b200", "nvfp4", "trtllm-gen", "trtllm-gen"),
        ("b200", "w4a16", "marlin", "marlin"),
    ],
)
def test_layers_of_experts_run_the_kernels_that_were_timed_through_sglang(
    gpu: str, dtype: str, vllm: str, sglang: str
) -> None:
    for engine, library in (("vllm", vllm), ("sglang", sglang)):
        layer = moe_layer(gpu, 64, 4096, 1536, 128, 8, library=engine, dtype=dtype)
        assert layer.library is not None
        assert layer.library.startswith(library)
    with pytest.raises(UnsupportedError, match="of vllm no kernels"):
        moe_layer("h200-sxm", 64, 4096, 1536, 128, 8, dtype="fp8", library="vllm")


def test_a_model_takes_an_engines_kernels() -> None:
    """Of fp8 SGLang runs cuBLAS, which is the default; vLLM's CUTLASS widens the interval alone."""
    default, sglang, vllm = (
        estimate_model("llama-3-8b", GEMMEvaluator("h200-sxm", library=library), 8, prompt_len=512, dtype="fp8")
        for library in (None, "sglang", "vllm")
    )
    assert default.ttft_us == sglang.ttft_us == vllm.ttft_us
    assert default.ttft_interval_us == sglang.ttft_interval_us
    assert vllm.ttft_interval_us[1] > sglang.ttft_interval_us[1]
