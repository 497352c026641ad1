"""Gradients of attention: what a problem counts, which kernels run, laws of their times, and forms without fusion."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemm_eval import AttentionProblem, GEMMEvaluator
from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.errors import InvalidProblemError, UnsupportedError
from gemm_eval.models.gpu.attention import attention_rows
from gemm_eval.models.gpu.attention.streams import CUDNN_BACKWARD, FLASH_BACKWARD, backward_terms

H100 = load_arch("h100-sxm", GpuSpec)
GPUS = ("h100-sxm", "h200-sxm", "b200", "a100-sxm-80gb", "l40s", "t4")
SIZES: dict[str, Any] = {"batch": 2, "q_len": 2048, "kv_len": 2048, "num_heads": 16, "num_kv_heads": 4, "head_dim": 128}


def gradients(**changes: Any) -> AttentionProblem:
    return AttentionProblem(**SIZES | {"backward": True} | changes)


def latency_us(problem: AttentionProblem, library: str | None = None, gpu: str = "h100-sxm") -> float:
    evaluator = GEMMEvaluator(gpu, correction=False)
    return evaluator.evaluate_attention_problems([problem], library=library)[0].latency_us


def test_a_problem_counts_five_products_and_all_gradients() -> None:
    forward = replace(gradients(v_head_dim=64), backward=False)
    backward = gradients(v_head_dim=64)
    pairs = 2 * 16 * 2048 * 2049 // 2
    assert backward.flop == 2 * pairs * (3 * 128 + 2 * 64)
    assert backward.num_bytes == 2 * forward.num_bytes
    assert "causal backward bf16" in str(backward)


@pytest.mark.parametrize(
    "changes", [{"kv_dtype": "fp8"}, {"is_latent": True, "num_kv_heads": 1, "num_heads": 16}, {"backward": 1}]
)
def test_what_has_no_gradients_is_no_problem(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidProblemError, match=r"gradients|backward"):
        gradients(**changes)


DRAWN = st.builds(
    lambda batch, length, more, kv_heads, group, dim, window, causal: AttentionProblem(
        batch, length, length + more * causal, kv_heads * group, kv_heads, dim, window=window if causal else None,
        causal=causal, dtype="fp16", backward=True,  # type: ignore[arg-type]
    ),
    st.sampled_from([1, 3, 32]), st.sampled_from([1, 63, 512, 3000]), st.sampled_from([0, 70]),
    st.sampled_from([1, 8]), st.sampled_from([1, 5, 8]), st.sampled_from([40, 64, 96, 128, 192, 256]),
    st.sampled_from([None, 1, 100, 2000]), st.booleans(),
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(GPUS), st.lists(DRAWN, min_size=1, max_size=6))
def test_no_time_is_below_a_roof_and_terms_add_up(name: str, problems: list[AttentionProblem]) -> None:
    arch = load_arch(name, GpuSpec)
    evaluator = GEMMEvaluator(arch)
    for problem, result in zip(problems, evaluator.evaluate_attention_problems(problems), strict=True):
        assert result.problem == problem
        assert result.latency_us >= result.roofs["matrix"]
        assert problem.num_bytes <= 3 * arch.l2_bytes or result.latency_us >= result.roofs["dram"]
        assert result.latency_us == pytest.approx(sum(result.breakdown.values()))
        assert set(result.breakdown) == set(result.term_meanings)


@settings(max_examples=25, deadline=None)
@given(DRAWN, st.sampled_from([CUDNN_BACKWARD, FLASH_BACKWARD]))
def test_tiles_are_those_that_a_mask_leaves(problem: AttentionProblem, kernel: Any) -> None:
    """A kernel that does nothing but its tiles takes as long as they are many."""
    size = next(dim for dim in (64, 128, 192, 256) if problem.head_dim <= dim)
    q_tile, k_tile = kernel.q_tiles[size], kernel.key_tiles[size]
    last = np.arange(problem.q_len) + problem.kv_len - problem.q_len
    first = last - (problem.window or problem.kv_len) + 1
    tiles = 0
    for start in range(0, problem.q_len, q_tile):
        end = min(start + q_tile, problem.q_len) - 1
        keys = (max(0, first[start]), last[end]) if problem.causal else (0, problem.kv_len - 1)
        tiles += int(keys[1]) // k_tile - int(keys[0]) // k_tile + 1
    zero = dict.fromkeys(("fixed_us", "cta_cycles", "exp_frac", "tail_frac"), 0.0)
    limits = dict.fromkeys(("l2_frac", "dram_frac", "hold_frac", "atomic_frac"), 1e9)
    rates = {f"matrix16_frac_{dim}": 1e9 for dim in (64, 128, 192, 256)}
    c = zero | limits | rates | {"step_cycles": 1000.0}
    many = replace(problem, batch=64)  # so that no CTA is waited for
    us = backward_terms(H100, c, attention_rows([many]), kernel)["compute_us"][0]
    heads = 64 * problem.num_heads
    spread = heads * tiles * 1000.0 / H100.num_sms / (H100.max_clock_ghz * 1e3)
    longest = -(-problem.q_len // q_tile) * 1000.0 / (H100.max_clock_ghz * 1e3)
    assert us == pytest.approx(max(spread, us if longest > spread else 0.0), rel=1e-6)


@pytest.mark.parametrize("library", ["cudnn", "flash"])
def test_masks_save_time_and_more_of_anything_takes_it(library: str) -> None:
    base = latency_us(gradients(), library)
    assert latency_us(gradients(window=256), library) < base < latency_us(gradients(causal=False), library)
    for more in ({"batch": 4}, {"num_heads": 32}, {"q_len": 4096, "kv_len": 4096}, {"head_dim": 256}):
        assert latency_us(gradients(**more), library) > base
    forward = latency_us(replace(gradients(), backward=False), library)
    assert 2 * forward < base < 5 * forward


@pytest.mark.parametrize(
    ("gpu", "library", "kernel"),
    [("h200-sxm", None, "cudnn"), ("b200", None, "cudnn"), ("a100-sxm-80gb", None, "flash"), ("l40s", "flash", "flash"),
     ("h200-sxm", "trtllm", "cudnn")],
)  # fmt: skip
def test_libraries_of_gradients(gpu: str, library: str | None, kernel: str) -> None:
    result = GEMMEvaluator(gpu).evaluate_attention(**SIZES, backward=True, library=library)
    assert result.kernel == f"{kernel}_backward"
    assert not result.has_positions


def test_sizes_of_deepseek_are_fast_where_they_are_causal() -> None:
    sizes = {"num_heads": 16, "num_kv_heads": 16, "head_dim": 192, "v_head_dim": 128}
    causal, full = (latency_us(gradients(**sizes, causal=causal), "cudnn") for causal in (True, False))
    assert full > 2.2 * causal
    with pytest.raises(UnsupportedError, match=r"values of another size.*gradients of attention by flash"):
        latency_us(gradients(**sizes), "flash")
    with pytest.raises(UnsupportedError, match="more than 256"):
        latency_us(gradients(head_dim=512))


def test_without_fusion_there_are_four_products_and_a_softmax() -> None:
    evaluator = GEMMEvaluator("demo-8core")
    result = evaluator.evaluate_attention(**SIZES | {"q_len": 256, "kv_len": 256}, backward=True)
    assert result.kernel == "unfused"
    assert list(result.breakdown) == ["shares_us", "values_us", "softmax_us", "queries_us", "keys_us"]
    assert result.latency_us == pytest.approx(sum(result.breakdown.values()))
    forward = evaluator.evaluate_attention(**SIZES | {"q_len": 256, "kv_len": 256}, fused=False)
    assert result.roofs["matrix"] == pytest.approx(2 * forward.roofs["matrix"])
    assert 1.5 * forward.latency_us < result.latency_us < 3 * forward.latency_us
    with pytest.raises(UnsupportedError, match="gradients of fused attention"):
        evaluator.evaluate_attention(**SIZES, backward=True, fused=True)
