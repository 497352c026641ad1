"""Fused attention: kernels of GPUs with laws of their times, and mappings of multi-core chips by hand."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemm_eval import (
    AttentionProblem,
    GEMMEvaluator,
    InfeasibleError,
    MulticoreSpec,
    UnsupportedError,
    load_arch,
)
from gemm_eval.arch import GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.mapping import AttentionMapping, AttentionOrder, AttentionPartition, AttentionTile
from gemm_eval.models.gpu.attention import attention_coefficients, attention_costs, attention_rows, families_of_rows
from gemm_eval.models.gpu.attention.rows import tile_counts
from gemm_eval.models.gpu.attention.streams import _even_parts
from gemm_eval.models.multicore import MulticoreCost, attention_params, attention_sizes, unpack_attention_cost
from gemm_eval.models.multicore.attention_kernels import attention_sram_bytes
from gemm_eval.search import find_best_fused_attention
from tools.laws.multicore_attention import cost_of

# ---- GPUs ------------------------------------------------------------------------------------------------------------


TIMED = ("a100-sxm-80gb", "b200", "h200-sxm", "l40s", "rtx-pro-6000-server")


def gpu(name: str) -> GpuSpec:
    return load_arch(name, GpuSpec)


def wide(name: str) -> DType:
    return DType.BF16 if DType.BF16 in gpu(name).tensor_flop_per_cycle else DType.FP16


@given(
    st.integers(1, 300), st.integers(0, 600), st.integers(1, 900), st.booleans(),
    st.sampled_from([1, 3, 16, 64, 128]), st.sampled_from([1, 5, 32, 64, 256]),
)  # fmt: skip
def test_tiles_are_counted_one_by_one(q_len: int, cached: int, window: int, causal: bool, q: int, k: int) -> None:
    kv_len = q_len + cached
    visits = []
    for start in range(0, q_len, q):
        first, last = cached + start, min(cached + start + q, kv_len)
        low = max(0, first - window + 1) // k if causal else 0
        visits.append(-(-(last if causal else kv_len) // k) - low)

    assert tile_counts(q_len, kv_len, window, causal, q, k) == (len(visits), sum(visits), max(visits))


PROBLEMS = st.builds(
    lambda batch, q_len, cached, kv_heads, group, head_dim, window, narrow: (
        batch, q_len, q_len + cached, kv_heads * group, kv_heads, head_dim, window, narrow,
    ),
    st.sampled_from([1, 3, 16, 128]), st.sampled_from([1, 2, 7, 64, 1000, 5000]), st.sampled_from([0, 1, 100, 9000]),
    st.sampled_from([1, 2, 8, 32]), st.sampled_from([1, 4, 7, 16, 48]), st.sampled_from([40, 64, 96, 128, 192, 512]),
    st.sampled_from([None, 64, 3000]), st.booleans(),
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(TIMED), st.lists(PROBLEMS, min_size=2, max_size=8))
def test_many_problems_cost_what_each_costs(name: str, drawn: list[tuple[int, ...]]) -> None:
    arch = gpu(name)
    problems = [AttentionProblem(*sizes[:6], kv_dtype=DType.FP8 if sizes[7] else None) for sizes in drawn]
    coefficients = attention_coefficients(arch, "trtllm").values
    together = attention_costs(arch, coefficients, attention_rows(problems), "trtllm")
    for place, problem in enumerate(problems):
        alone = attention_costs(arch, coefficients, attention_rows([problem]), "trtllm")
        assert alone.latency_us[0] == pytest.approx(together.latency_us[place], rel=1e-12)
        assert alone.families[0] == together.families[place]


def families(name: str, *, decode: bool, library: str = "trtllm", **sizes: object) -> str:
    given_sizes = {"batch": 8, "q_len": 1, "kv_len": 4096, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128}
    rows = attention_rows([AttentionProblem(**(given_sizes | sizes))])  # type: ignore[arg-type]
    return str(families_of_rows(gpu(name), rows, library, is_decode=decode)[0])


def test_kernels_are_those_that_the_library_takes() -> None:
    assert families("h200-sxm", decode=True) == "packed_mma"
    assert families("h200-sxm", decode=True, kv_dtype="fp8") == "packed_wgmma"
    assert families("l40s", decode=True, kv_dtype="fp8") == "packed_mma_narrow"
    assert families("b200", decode=True) == "packed_tcgen05"
    assert families("b200", decode=True, num_kv_heads=32) == "single_tcgen05"
    assert families("h200-sxm", decode=True, num_kv_heads=32) == "single"
    assert families("h200-sxm", decode=True, num_kv_heads=32, kv_dtype="fp8") == "single_narrow"
    # CTAs of packed heads, four times, are fewer than the 132 SMs: a CTA for each head is more
    assert families("h200-sxm", decode=True, batch=4, kv_len=200) == "single"
    assert families("h200-sxm", decode=True, batch=5, kv_len=200) == "packed_mma"
    assert families("h200-sxm", decode=False, q_len=64) == "context"
    assert families("l40s", decode=False, q_len=64) == "context_mma"
    assert (
        families("h200-sxm", decode=False, q_len=64, num_kv_heads=32, head_dim=192, v_head_dim=128) == "latent_context"
    )
    latent = {"num_kv_heads": 1, "head_dim": 576, "v_head_dim": 512, "is_latent": True}
    assert families("h200-sxm", decode=True, **latent) == "latent_split"
    assert families("a100-sxm-80gb", decode=True, **latent) == "latent_whole"


def test_kernels_of_pytorch() -> None:
    assert families("h200-sxm", decode=False, q_len=64, library="cudnn") == "cudnn_context"
    assert families("a100-sxm-80gb", decode=True, library="flash") == "flash_decode"
    assert families("h200-sxm", decode=True, head_dim=256, library="cudnn") == "cudnn_decode_wide"


def test_flash_attention_cuts_keys_until_waves_are_full() -> None:
    """132 SMs, 2 CTAs each: 8 KV heads of a sequence with 64 blocks of keys take 32 parts, 256 of 264 CTAs."""
    parts = _even_parts(264, np.array([8.0, 8.0, 212.0, 128.0, 1.0]), np.array([64.0, 4.0, 512.0, 64.0, 1.0]))
    assert parts.tolist() == [32.0, 4.0, 1.0, 2.0, 1.0]


@pytest.mark.parametrize("name", TIMED)
@pytest.mark.parametrize("tokens", [1, 2, 7, 16])
def test_short_prompts_are_of_the_context_phase(name: str, tokens: int) -> None:
    """A fresh prompt runs the kernels of prompts, however few tokens it has; tokens over a cache can be verified."""
    evaluator = GEMMEvaluator(name)
    sizes = {"batch": 8, "q_len": tokens, "num_heads": 32, "dtype": "bf16"}
    prompt = evaluator.evaluate_attention(kv_len=tokens, num_kv_heads=8, **sizes)  # type: ignore[arg-type]
    latent = evaluator.evaluate_attention(kv_len=tokens, num_kv_heads=32, head_dim=192, v_head_dim=128, **sizes)  # type: ignore[arg-type]
    verified = evaluator.evaluate_attention(kv_len=8192, num_kv_heads=8, **sizes)  # type: ignore[arg-type]
    assert prompt.kernel == ("context_mma" if name in ("l40s", "rtx-pro-6000-server") else "context")
    assert latent.kernel == "latent_context"
    assert verified.kernel.startswith(("packed", "single"))


def latents_us(name: str, num_heads: int, batch: int = 64, kv_len: int = 32768, kv_dtype: str = "bf16") -> float:
    return GEMMEvaluator(name).evaluate_attention(
        batch=batch, q_len=1, kv_len=kv_len, num_heads=num_heads, num_kv_heads=1, head_dim=576, v_head_dim=512,
        dtype="bf16", kv_dtype=kv_dtype, is_latent=True,
    ).latency_us  # fmt: skip


def test_latents_of_many_heads_on_hopper() -> None:
    """A tile of 64 heads reads keys once, and a second one computes as much again: bound by DRAM, then by products."""
    for kv_dtype in ("bf16", "fp8"):
        few, tile, two = (latents_us("h200-sxm", heads, kv_dtype=kv_dtype) for heads in (8, 64, 128))
        assert few < tile < 1.05 * few
        assert 1.5 * tile < two < 2.1 * tile


@pytest.mark.parametrize("name", ["b200", "b300"])
def test_latents_of_many_heads_in_tcgen05(name: str) -> None:
    """Up to 32 heads stand in the columns of a product, 16 a CTA: 32 take two CTAs; 64 stand in the rows of one."""
    few, columns, two_columns, rows, two_rows = (latents_us(name, heads) for heads in (8, 16, 32, 64, 128))
    assert few < columns < 1.05 * few
    assert 1.4 * columns < two_columns < 2.0 * columns
    assert rows < 1.1 * columns
    assert 1.4 * rows < two_rows < 2.0 * rows


def test_128_heads_of_latents_in_fp8_run_in_clusters_on_sm_120() -> None:
    evaluator = GEMMEvaluator("rtx-pro-6000-server")
    sizes = {"batch": 8, "q_len": 1, "kv_len": 65536, "num_kv_heads": 1, "head_dim": 576, "v_head_dim": 512}
    results = {
        heads: evaluator.evaluate_attention(**sizes, num_heads=heads, dtype="bf16", kv_dtype="fp8", is_latent=True)  # type: ignore[arg-type]
        for heads in (64, 128)
    }
    assert [result.kernel for result in results.values()] == ["latent_whole", "latent_cluster"]
    assert [result.source for result in results.values()] == ["corrected", "analytic"]
    assert results[128].latency_us < results[64].latency_us / 3
    assert latents_us("rtx-pro-6000-server", 128) >= latents_us("rtx-pro-6000-server", 64)  # bf16 has no such kernel


def test_coefficients_carry_over_by_family() -> None:
    fitted, origins = attention_coefficients(gpu("h200-sxm"), "trtllm")
    assert origins["context"].is_calibrated
    assert (origins["latent_whole"].is_calibrated, origins["latent_whole"].gpu) == (False, "l40s")
    own, changed = attention_coefficients(gpu("h200-sxm").model_copy(update={"num_sms": 100}), "trtllm")
    assert (own, changed["context"].is_calibrated) == (fitted, False)


# ---- multi-core chips ------------------------------------------------------------------------------------------------


QK, KQ = AttentionOrder


def worked_chip(**changes: Any) -> MulticoreSpec:
    """One core at 1 GHz with cubes of 4, 1,000 bytes a microsecond, and one buffer of each kind: nothing overlaps."""
    fields: dict[str, Any] = {
        "name": "worked", "num_cores": 1, "frequency_ghz": 1.0, "cube_m": 4, "cube_k": 4, "cube_n": 4,
        "cube_steps_per_cycle": {"fp16": 1.0}, "sram_bytes": 1 << 20, "input_buffers": 1, "dram_gb_per_s": 1.0,
        "vector_ops_per_cycle": 16.0,
    }  # fmt: skip
    return MulticoreSpec(**fields | changes)


def problem(q_len: int = 8, kv_len: int = 8, **changes: Any) -> AttentionProblem:
    """Of one head of 4 elements, full."""
    kinds: dict[str, Any] = {"num_heads": 1, "num_kv_heads": 1, "head_dim": 4, "dtype": "fp16", "causal": False}
    return AttentionProblem(batch=1, q_len=q_len, kv_len=kv_len, **kinds | changes)


def cost(arch: MulticoreSpec, of: AttentionProblem, tile: tuple[int, int], order: AttentionOrder = QK,
         partition: tuple[int, int, int] = (1, 1, 1), *, is_folded: bool = False) -> MulticoreCost:  # fmt: skip
    """Cost of a mapping."""
    return cost_of(
        arch, of, AttentionMapping(AttentionPartition(*partition), AttentionTile(*tile), order, is_folded)
    )  # fmt: skip


def test_narrow_keys_are_widened_by_the_vector_unit() -> None:
    arch = worked_chip(dequant="vector", dequant_ops_per_elem=2.0)
    wide, narrow = (cost(arch, problem(kv_dtype=kv), (8, 8)) for kv in (None, "fp8"))
    assert narrow.kv_bytes * 2 == wide.kv_bytes
    assert narrow.sram_used_bytes == wide.sram_used_bytes + narrow.kv_bytes  # a copy as wide, of half the bytes
    more_us = narrow.breakdown["vector_us"] - wide.breakdown["vector_us"]
    assert more_us == pytest.approx(2.0 * 2 * 8 * 4 / 16 / 1000)
    with pytest.raises(UnsupportedError, match="no way to turn fp8 weights"):
        cost(worked_chip(), problem(kv_dtype="fp8"), (8, 8))


def test_the_sram_rule() -> None:
    arch = worked_chip(lane_num=3, align_bytes=16, output_buffers=2, input_buffers=2)
    used = attention_sram_bytes(attention_params(arch, problem())[0], attention_sizes(problem()), 4, 8)
    queries, keys = 6 * 16, 9 * 16  # rows padded to 3 lanes, 8 bytes to 16
    scores, weights = 6 * 32, 6 * 16
    output, stats = 6 * 16, 6 * 16
    assert used == 2 * (queries + 2 * keys) + scores + weights + 2 * output + stats


def test_what_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="no vector unit for the softmax"):
        attention_params(worked_chip(vector_ops_per_cycle=None, reduction="none"), problem())
    with pytest.raises(UnsupportedError, match="cannot multiply bf16"):
        attention_params(worked_chip(), problem(dtype="bf16"))
    with pytest.raises(InfeasibleError, match="no tiles of fused attention") as caught:
        find_best_fused_attention(worked_chip(sram_bytes=300, input_buffers=2), problem())
    assert caught.value.demand == 2 * (32 + 2 * 32) + 64 + 32 + 64 + 32
    assert caught.value.limit == 300
    assert caught.value.levers == ("sram_bytes >= 384", "input_buffers: 1", "fused=False")


@pytest.mark.parametrize("name", ["demo-8core", "ascend-910", "wormhole-n150", "ipu-gc200", "tpu-v7", "sg2260"])
def test_presets_answer(name: str) -> None:
    arch = load_arch(name)
    assert isinstance(arch, MulticoreSpec)
    for q_len in (1, 1024):
        dtype = "bf16" if "bf16" in arch.cube_steps_per_cycle else "fp16"
        of = AttentionProblem(4, q_len, 1024, 32, 8, 128, dtype)  # type: ignore[arg-type]
        found = unpack_attention_cost(find_best_fused_attention(arch, of)[0])
        assert found.scores >= 4 * 32 * of.num_pairs
        assert np.prod(found.mapping.partition) <= arch.num_cores
        assert found.sram_used_bytes <= arch.sram_usable_bytes
        assert sum(found.breakdown.values()) == pytest.approx(found.latency_us)
