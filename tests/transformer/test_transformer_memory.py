"""What a model takes of a device: held to its exact parameter count, and to what is known of published models."""

from __future__ import annotations

import pickle

import pytest

from gemm_eval.arch import load_arch
from gemm_eval.errors import InfeasibleError
from gemm_eval.transformer import (
    check_memory,
    count_parameters,
    list_models,
    load_model,
    model_memory,
    say_memory,
    types_on,
)

ONE = {"batch_size": 1, "seq_len": 2048}


def test_dense_weights_are_all_parameters_but_vectors() -> None:
    for name in list_models():
        config = load_model(name)
        counts = count_parameters(config)
        for dtype, num_bytes in (("bf16", 2), ("fp32", 4)):
            assert model_memory(config, **ONE, dtype=dtype).weight_bytes == num_bytes * (counts.total - counts.vectors)


def test_devices_hold_the_whole_model_together() -> None:
    """No degree holds less than its share, and no more than what is replicated: KV heads, latents, routers."""
    for name in list_models():
        config = load_model(name)
        alone = model_memory(config, **ONE)
        for tp in (2, 4, 8):
            if name.startswith("qwen2.5-7b") and tp == 8:  # 28 heads
                continue
            part = model_memory(config, **ONE, tensor_parallel=tp)
            assert alone.weight_bytes <= tp * part.weight_bytes <= 1.12 * alone.weight_bytes, (name, tp)
            assert alone.kv_cache_bytes <= tp * part.kv_cache_bytes


def test_idle_experts_are_held_too() -> None:
    config = load_model("mixtral-8x7b")
    whole = model_memory(config, batch_size=1, seq_len=1)
    spread = model_memory(config, batch_size=1, seq_len=1, expert_parallel=8)
    experts = 2 * count_parameters(config).experts

    assert whole.weight_bytes - spread.weight_bytes == experts * 7 // 8


def test_quantized_weights_count_their_scales() -> None:
    config = load_model("llama-3-70b")
    counts = count_parameters(config)
    kept = counts.embedding + counts.lm_head

    w4a16 = model_memory(config, **ONE, dtype="w4a16").weight_bytes
    assert w4a16 == counts.layer_matrices * (4 + 16 / 128) / 8 + 2 * kept
    fp8 = model_memory(config, **ONE, dtype="fp8")
    assert fp8.weight_bytes == counts.layer_matrices + 2 * kept
    assert model_memory(config, **ONE, dtype="fp8", dense_dtype="fp8").kv_cache_bytes * 2 == fp8.kv_cache_bytes


def test_kv_caches() -> None:
    for name, batch, length, elems in (
        ("llama-3-70b", 3, 1000, 3 * 1000 * 80 * 2 * 8 * 128),
        ("deepseek-v3", 3, 1000, 3 * 1000 * 61 * (512 + 64)),  # one latent for all heads
        ("gemma-2-9b", 1, 8192, (21 * 8192 + 21 * 4096) * 2 * 8 * 256),  # half of the layers see a window
        ("gemma-2-9b", 1, 100, 42 * 100 * 2 * 8 * 256),
    ):
        assert model_memory(load_model(name), batch_size=batch, seq_len=length).kv_cache_bytes == 2 * elems, name
    replicated = model_memory(load_model("llama-3-70b"), **ONE, tensor_parallel=16)
    assert replicated.kv_cache_bytes == model_memory(load_model("llama-3-70b"), **ONE, tensor_parallel=8).kv_cache_bytes


def test_what_does_not_fit_says_what_would_help() -> None:
    h200 = load_arch("h200-sxm")
    with pytest.raises(InfeasibleError) as caught:
        check_memory(load_model("deepseek-v3"), h200, **ONE, dtype="fp8")

    error = caught.value
    assert (error.resource, error.unit, error.limit) == ("dram", "bytes", 141_000_000_000)
    assert error.demand == model_memory(load_model("deepseek-v3"), **ONE, dtype="fp8").total_bytes
    assert error.levers == ("tensor_parallel = 8", "narrower weights (dtype)")
    assert pickle.loads(pickle.dumps(error)).levers == error.levers
    with pytest.raises(InfeasibleError, match="a smaller batch_size or seq_len"):
        check_memory(load_model("llama-3-8b"), h200, batch_size=512, seq_len=8192)
    with pytest.raises(InfeasibleError) as caught:  # no power of two divides it so far
        check_memory(load_model("qwen2.5-7b"), h200, batch_size=1 << 30, seq_len=8192)
    assert caught.value.levers == ("narrower weights (dtype)", "a smaller batch_size or seq_len")


def test_a_chip_that_does_not_say_its_dram_is_not_checked() -> None:
    chip = load_arch("demo-8core")

    memory = check_memory(load_model("llama-3.1-405b"), chip, **ONE)

    assert memory.weight_bytes > 800e9
    assert "not known" in say_memory(memory, chip)
    assert "of 141 GB" in say_memory(memory, load_arch("h200-sxm"))


def test_types_of_an_arch() -> None:
    for arch, dtype, dense, found in (
        ("h200-sxm", None, None, ("fp16", "fp16")),
        ("h200-sxm", "fp8", None, ("fp8", "bf16")),
        ("h200-sxm", "w4a16", "bf16", ("w4a16", "bf16")),
        ("tpu-v5e", "int8", None, ("int8", "bf16")),
        ("ascend-910", "int8", None, ("int8", "fp16")),  # has no bf16
        ("rk3588-npu", None, None, ("int8", "bf16")),
    ):
        assert tuple(types_on(load_arch(arch), dtype, dense).values()) == found, arch
