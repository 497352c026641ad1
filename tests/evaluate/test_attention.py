"""`evaluate_attention`: what users ask, what they get, and what is refused."""

from __future__ import annotations

import json
import pickle

import pytest

from gemm_eval import (
    AttentionProblem,
    GEMMEvaluator,
    InfeasibleError,
    InvalidOptionError,
    InvalidProblemError,
    UnsupportedError,
    load_arch,
)

SIZES = {"batch": 8, "q_len": 1, "kv_len": 4096, "num_heads": 32, "num_kv_heads": 8}


def test_an_answer_says_why() -> None:
    result = GEMMEvaluator("h200-sxm").evaluate_attention(**SIZES, dtype="bf16", kv_dtype="fp8")
    assert (result.arch_name, result.source, result.is_fused, result.has_positions) == (
        "h200-sxm", "calibrated", True, True,
    )  # fmt: skip
    assert result.flop == 2 * 8 * 32 * 4096 * 256
    assert result.tflop_per_s == pytest.approx(result.flop / result.latency_us / 1e6)
    text = result.explain()
    assert "batch=8 q=1 kv=4096 32/8 heads x 128 causal bf16, KV fp8 on h200-sxm" in text
    assert "packed_wgmma" in text
    assert "fitted on timings of h200-sxm" in text
    assert repr(result).startswith("<AttentionResult batch=8")
    document = json.loads(json.dumps(result.to_dict()))
    assert sum(document["breakdown"].values()) == pytest.approx(document["latency_us"])
    assert document["problem"]["kv_dtype"] == "fp8"
    assert pickle.loads(pickle.dumps(result)) == result


def test_bounds_are_what_takes_most() -> None:
    evaluator = GEMMEvaluator("h200-sxm")
    assert (
        evaluator.evaluate_attention(batch=1, q_len=16384, kv_len=16384, num_heads=32, dtype="bf16").bound == "matrix"
    )
    assert evaluator.evaluate_attention(batch=128, q_len=1, kv_len=16384, num_heads=32, dtype="bf16").bound == "dram"
    assert evaluator.evaluate_attention(batch=1, q_len=1, kv_len=16, num_heads=8, dtype="bf16").bound == "latency"


def test_answers_are_kept_and_shared() -> None:
    evaluator = GEMMEvaluator("h200-sxm")
    first = evaluator.evaluate_attention(**SIZES, dtype="bf16")
    assert evaluator.evaluate_attention(**SIZES, dtype="bfloat16", kv_dtype="bf16") is first
    problem = AttentionProblem(8, 1, 4096, 32, 8, 128, "bf16")  # type: ignore[arg-type]
    assert evaluator.evaluate_attention_problems([problem, problem]) == [first, first]
    assert evaluator.evaluate_attention_problems([]) == []


@pytest.mark.parametrize("arch", ["h200-sxm", "demo-8core"])
def test_unfused_is_two_gemms_and_a_softmax(arch: str) -> None:
    evaluator = GEMMEvaluator(arch)
    result = evaluator.evaluate_attention(batch=2, q_len=256, kv_len=256, num_heads=8, num_kv_heads=2, fused=False)
    scores = evaluator.evaluate(4, 1024, 128, 256)
    values = evaluator.evaluate(4, 1024, 256, 128)
    assert result.breakdown["scores_us"] == scores.latency_us
    assert result.breakdown["values_us"] == values.latency_us
    assert result.breakdown["softmax_us"] > 0
    assert (result.is_fused, result.has_positions, result.kernel) == (False, False, "unfused")
    assert "unfused" in result.explain()


def test_fused_beats_unfused_on_long_prompts() -> None:
    evaluator = GEMMEvaluator("h100-sxm")
    sizes = {"batch": 1, "q_len": 8192, "kv_len": 8192, "num_heads": 32, "num_kv_heads": 8, "dtype": "bf16"}
    fused, apart = (evaluator.evaluate_attention(**sizes, fused=fused) for fused in (True, False))  # type: ignore[arg-type]
    assert 3 * fused.latency_us < apart.latency_us
    assert fused.source == "analytic"  # no timing of this very chip


def test_multicore_chips_say_their_mapping() -> None:
    evaluator = GEMMEvaluator("demo-8core")
    result = evaluator.evaluate_attention(batch=1, q_len=4096, kv_len=4096, num_heads=32, num_kv_heads=8)
    assert result.is_fused
    assert result.mapping is not None
    assert result.mapping.is_folded
    assert result.kernel == f"fused {result.mapping}"
    assert result.dram_bytes is not None
    assert result.dram_bytes >= result.problem.num_bytes
    assert result.bound == "vector"
    assert sum(result.breakdown.values()) == pytest.approx(result.latency_us)
    assert max(result.roofs.values()) <= result.latency_us
    assert "hidden" in result.explain()
    assert set(result.term_meanings) == set(result.breakdown)
    document = json.loads(json.dumps(result.to_dict()))
    assert document["mapping"]["tile_q"] == result.mapping.tile.tile_q
    assert pickle.loads(pickle.dumps(result)) == result
    apart = evaluator.evaluate_attention(
        batch=1, q_len=4096, kv_len=4096, num_heads=32, num_kv_heads=8, fused=False
    )  # fmt: skip
    assert 3 * result.latency_us < apart.latency_us


def test_a_decode_step_of_one_sequence_splits_the_keys_over_cores() -> None:
    evaluator = GEMMEvaluator(load_arch("demo-8core").with_(dram_sharing="static"))
    result = evaluator.evaluate_attention(batch=1, q_len=1, kv_len=65536, num_heads=8, num_kv_heads=1)
    assert result.mapping is not None
    assert result.mapping.partition == (1, 1, 8)
    assert result.bound == "dram"
    assert result.breakdown["reduction_noc_us"] > 0


def test_multicore_chips_that_cannot_fuse_fall_back() -> None:
    demo = load_arch("demo-8core")
    no_vector = demo.with_(vector_ops_per_cycle=None, dequant="none", reduction="none")
    for arch, error, words in (
        (no_vector, UnsupportedError, "no vector unit for the softmax"),
        (demo.with_(sram_bytes=16384), InfeasibleError, "no tiles of fused attention.* sram_bytes >= 73,182"),
    ):
        evaluator = GEMMEvaluator(arch)
        sizes = {"batch": 1, "q_len": 64, "kv_len": 64, "num_heads": 4, "head_dim": 256}
        with pytest.raises(error, match=words):
            evaluator.evaluate_attention(**sizes, fused=True)  # type: ignore[arg-type]
        assert evaluator.evaluate_attention(**sizes).kernel == "unfused"  # type: ignore[arg-type]


def test_kernels_that_pytorch_calls() -> None:
    evaluator = GEMMEvaluator("h200-sxm")
    prompt = {"batch": 1, "q_len": 8192, "kv_len": 8192, "num_heads": 32, "num_kv_heads": 8, "dtype": "bf16"}
    found = {name: evaluator.evaluate_attention(**prompt, library=name) for name in ("cudnn", "flash")}  # type: ignore[arg-type]
    assert [item.kernel for item in found.values()] == ["cudnn_context", "flash_context"]
    assert not any(item.has_positions for item in found.values())
    assert found["cudnn"].latency_us < 0.7 * found["flash"].latency_us  # wgmma against mma.sync
    assert found["cudnn"].source == "calibrated"
    assert found["cudnn"].breakdown["prepare_us"] == 0
    carried = GEMMEvaluator("h100-sxm").evaluate_attention(**prompt, library="cudnn")  # type: ignore[arg-type]
    assert (carried.source, carried.origin) == (
        "analytic", "carried over from cudnn kernels on h200-sxm, fitted on nothing of this GPU",
    )  # fmt: skip


CUDNN = {"dtype": "bf16", "library": "cudnn"}


@pytest.mark.parametrize(
    ("arch", "more", "error", "words"),
    [
        ("a100-sxm-80gb", {"num_heads": 12}, InvalidProblemError, "num_kv_heads must divide"),
        ("a100-sxm-80gb", {"fused": "yes"}, InvalidOptionError, "fused must be True or False"),
        ("a100-sxm-80gb", {"dtype": "fp8"}, UnsupportedError, "no tensor cores for fp8 attention"),
        ("h200-sxm", {"fused": False, "library": "cudnn"}, InvalidOptionError, "fused attention on GPUs"),
        ("h200-sxm", {"library": "xformers"}, InvalidOptionError, "library"),
        ("h200-sxm", CUDNN | {"kv_dtype": "fp8"}, UnsupportedError, "types of 8 bits.*cudnn"),
        ("h200-sxm", CUDNN | {"window": 128}, UnsupportedError, "windows.*cudnn"),
        ("h200-sxm", CUDNN | {"head_dim": 512}, UnsupportedError, "heads of more than 256.*cudnn"),
        ("h200-sxm", CUDNN | {"v_head_dim": 64}, UnsupportedError, "values of another size.*cudnn"),
        ("h200-sxm", CUDNN | {"has_sinks": True}, UnsupportedError, "attention sinks.*cudnn"),
        ("h200-sxm", CUDNN | {"q_len": 16}, UnsupportedError, "chunks of a prompt.*cudnn"),
    ],
)
def test_refusal(arch: str, more: dict[str, object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        GEMMEvaluator(arch).evaluate_attention(**SIZES | more)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["demo-8core", "trainium1", "tpu-v5e"])
def test_a_narrow_cache_costs_whole_prompts_nothing(name: str) -> None:
    """Keys of a prompt are read as the projection leaves them; those of a cache are widened at every visit."""
    evaluator = GEMMEvaluator(name)
    sizes = {"batch": 1, "q_len": 1024, "kv_len": 1024, "num_heads": 8, "num_kv_heads": 8, "dtype": "bf16"}
    wide, narrow = (evaluator.evaluate_attention(**sizes, kv_dtype=dtype) for dtype in ("bf16", "fp8"))  # type: ignore[arg-type]
    assert narrow.latency_us == wide.latency_us
    assert narrow.roofs == wide.roofs
    chunk = evaluator.evaluate_attention(**sizes | {"kv_len": 4096}, kv_dtype="fp8")  # type: ignore[arg-type]
    assert chunk.breakdown["dram_kv_us"] > 0


def test_rows_of_unfused_scores_are_padded() -> None:
    """148 keys lie in rows of 152, for which kernels load 16 bytes at once: twice as many keys are never sooner."""
    evaluator = GEMMEvaluator("b300")
    sizes = {"batch": 1, "num_heads": 4, "num_kv_heads": 1, "head_dim": 128, "dtype": "bf16", "fused": False}
    times = [evaluator.evaluate_attention(q_len=n, kv_len=n, **sizes).latency_us for n in (148, 152, 296)]  # type: ignore[arg-type]
    assert times[0] <= times[1] <= times[2]
