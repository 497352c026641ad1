"""What a model takes of a device: held to its exact parameter count, and to what is known of published models."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_eval.arch import load_arch
from gemm_eval.errors import InfeasibleError, InvalidOptionError
from gemm_eval.transformer import (
    GroupedAttention,
    MemoryShare,
    check_memory,
    count_parameters,
    largest_batch,
    list_models,
    load_model,
    memory_levers,
    model_memory,
    num_joined,
    num_parameters,
    say_memory,
)

ONE: dict[str, Any] = {"batch_size": 1, "seq_len": 2048}


def test_dense_weights_are_all_parameters() -> None:
    for name in list_models():
        config = load_model(name)
        parts = model_memory(config, **ONE).weights
        assert sum(part.num_elems for part in parts) == num_parameters(config), name
        for dtype, num_bytes in (("bf16", 2), ("fp32", 4)):
            assert model_memory(config, **ONE, dtype=dtype).weight_bytes == num_bytes * num_parameters(config), name


@pytest.mark.parametrize(("name", "num_bytes"), [("gpt-oss-20b", 13_761_264_768), ("gpt-oss-120b", 65_248_815_744)])
def test_checkpoints_as_published(name: str, num_bytes: int) -> None:
    """total_size in model.safetensors.index.json of the model's page: experts in MXFP4, the rest in bf16."""
    memory = model_memory(load_model(name), **ONE)

    assert memory.weight_bytes == num_bytes == sum(part.num_bytes for part in memory.weights)
    assert set(memory.weight_bytes_by_type) == {"fp4 (group 32)", "bf16"}


def degrees(name: str) -> Iterator[int]:
    config = load_model(name)
    for tp in (2, 4, 8, 16):
        try:
            model_memory(config, **ONE, tensor_parallel=tp)
        except InvalidOptionError:
            return
        yield tp


@pytest.mark.parametrize("name", list_models())
def test_devices_hold_the_whole_model_and_what_is_replicated(name: str) -> None:
    """Over a tensor-parallel group parts sum to the whole, but for what each device has: named here, part by part."""
    config = load_model(name)
    whole = {part.name: part.num_elems for part in model_memory(config, **ONE, dtype="bf16").weights}
    attention, tied = config.attention, config.tied_embeddings
    for tp in degrees(name):
        part = model_memory(config, **ONE, dtype="bf16", tensor_parallel=tp)
        local = {item.name: item.num_elems for item in part.weights}
        padding = -config.vocab_size % tp * config.hidden_size
        of_latents = (
            "q_a_proj",
            "kv_a_proj",
            "index_q_proj",
            "index_k_proj",
            "index_weights_proj",
            "linear_low_rank_a",
        )
        more = dict.fromkeys(("norms", "router", "shared_gate", "positions", *of_latents), tp - 1)
        for item, num in whole.items():
            expected = num * (1 + more.get(item, 0))
            if item in ("embedding", "lm_head"):
                expected += padding
            if item == "qkv_proj" and isinstance(attention, GroupedAttention) and tp > attention.num_kv_heads:
                copies = tp // attention.num_kv_heads - 1
                expected += (
                    copies
                    * config.num_attention_layers
                    * config.hidden_size
                    * 2
                    * attention.num_kv_heads
                    * attention.head_dim
                )
            if (
                item == "linear_in_proj" and config.linear is not None and tp > config.linear.key_heads
            ):  # groups of Mamba2
                linear = config.linear
                copies = tp // linear.key_heads - 1
                expected += copies * linear.num_layers * config.hidden_size * 2 * linear.key_heads * linear.key_dim
            if item == "biases":
                assert num <= tp * local[item] <= tp * num
            else:
                assert tp * local[item] == expected, (item, tp)
        alone = model_memory(config, **ONE, dtype="bf16")
        assert alone.kv_cache_bytes <= tp * part.kv_cache_bytes <= tp * alone.kv_cache_bytes
        assert part.activation_bytes <= alone.activation_bytes
        assert tied == ("lm_head" not in local)


@pytest.mark.parametrize("name", list_models())
def test_pipeline_stages_hold_the_whole_model(name: str) -> None:
    """Stages share nothing, but the head of tied embeddings, which the last stage has too."""
    config = load_model(name)
    whole = model_memory(config, **ONE)
    for num in (2, 3, 5):
        stages = [model_memory(config, **ONE, pipeline_parallel=num, stage=index) for index in range(num)]
        copied = next(part for part in whole.weights if part.name == "embedding").num_bytes * config.tied_embeddings

        assert sum(stage.weight_bytes for stage in stages) == whole.weight_bytes + copied
        assert sum(stage.kv_cache_bytes for stage in stages) == whole.kv_cache_bytes
        most = model_memory(config, **ONE, pipeline_parallel=num)
        assert most.total_bytes == max(stage.total_bytes for stage in stages)
        assert most == stages[most.stage]


def test_quantized_weights_count_their_scales() -> None:
    config = load_model("llama-3-70b")
    counts = count_parameters(config)
    kept = counts.embedding + counts.lm_head

    kept += counts.vectors
    mixtral = load_model("mixtral-8x7b")  # whose idle experts are held too
    whole, spread = (model_memory(mixtral, **ONE, expert_parallel=degree).weight_bytes for degree in (1, 8))
    assert whole - spread == 2 * count_parameters(mixtral).experts * 7 // 8
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
    assert (error.resource, error.unit, error.limit) == ("dram", "bytes", int(0.9 * h200.dram_bytes))
    assert error.demand == model_memory(load_model("deepseek-v3"), **ONE, dtype="fp8").total_bytes
    assert error.levers == (
        "tensor_parallel=8 (85.6 GB a device)",
        "pipeline_parallel=8 (92.5 GB a device)",
        "expert_parallel=8 (101.4 GB a device)",
    )
    assert pickle.loads(pickle.dumps(error)).levers == error.levers
    assert "does not fit into 0.9 of the DRAM of a device (h200-sxm; memory_frac)" in str(error)


def test_levers_stay_within_the_devices_that_a_link_joins() -> None:
    config, sizes = load_model("llama-3.1-405b"), {"batch_size": 64, "seq_len": 8192}
    l40s = load_arch("l40s")
    assert num_joined(l40s) == 8
    for levers in (
        memory_levers(config, 40 * 10**9, arch=l40s, **sizes),
        memory_levers(load_model("deepseek-v3"), 40 * 10**9, arch=l40s, **sizes),
    ):
        assert not [lever for lever in levers if lever.option in ("tensor_parallel", "expert_parallel")]
    assert next(iter(memory_levers(config, 80 * 10**9, **sizes))).option == "tensor_parallel"
    assert num_joined(load_arch("demo-8core")) == 1


LEVERS = [
    ("llama-3-70b", {"batch_size": 4, "seq_len": 4096}, 80_000_000_000),
    ("llama-3-8b", {"batch_size": 64, "seq_len": 8192}, 40_000_000_000),
    ("mixtral-8x7b", {"batch_size": 8, "seq_len": 4096}, 60_000_000_000),
    ("qwen2.5-7b", {"batch_size": 1 << 20, "seq_len": 8192}, 80_000_000_000),
    ("gemma-3-27b", {"batch_size": 8, "seq_len": 1 << 17}, 100_000_000_000),
]


@pytest.mark.parametrize(("name", "sizes", "limit"), LEVERS)
def test_each_lever_makes_it_fit_and_less_of_it_does_not(name: str, sizes: dict[str, int], limit: int) -> None:
    config = load_model(name)
    assert model_memory(config, **sizes).total_bytes > limit
    levers = memory_levers(config, limit, **sizes)

    assert levers
    for option, value, total in levers:
        changed: dict[str, Any] = sizes | {option: value}
        assert model_memory(config, **changed).total_bytes == total <= limit
        if option in ("batch_size", "seq_len"):
            assert model_memory(config, **changed | {option: int(value) + 1}).total_bytes > limit
        elif isinstance(value, int):
            assert model_memory(config, **changed | {option: value // 2}).total_bytes > limit


def test_the_largest_batch() -> None:
    config = load_model("llama-3-8b")

    assert largest_batch(config, 10**10, seq_len=4096) == 0
    most = largest_batch(config, 72 * 10**9, seq_len=4096, kv_dtype="fp8")
    assert most > 1.9 * largest_batch(config, 72 * 10**9, seq_len=4096)
    for num, fits in ((most, True), (most + 1, False)):
        memory = model_memory(config, batch_size=num, seq_len=4096, kv_dtype="fp8")
        assert (memory.total_bytes <= 72 * 10**9) is fits
    with pytest.raises(InvalidOptionError, match="memory_frac must be above 0"):
        check_memory(config, load_arch("h200-sxm"), **ONE, share=MemoryShare(1.5))
    with pytest.raises(InfeasibleError, match=r"limit 15,075,482,009 bytes"):
        check_memory(config, load_arch("h200-sxm"), **ONE, share=MemoryShare(0.1))


def test_caches_in_blocks_and_types_of_their_own() -> None:
    llama, gemma = load_model("llama-3-8b"), load_model("gemma-2-9b")
    sizes = {"batch_size": 3, "seq_len": 1001}
    token = 32 * 2 * 8 * 128 * 2

    assert model_memory(llama, **sizes).kv_cache_bytes == 3 * 1001 * token
    assert model_memory(llama, **sizes, block_size=16).kv_cache_bytes == 3 * 1008 * token
    assert model_memory(llama, **sizes, kv_dtype="fp8").kv_cache_bytes == 3 * 1001 * token // 2
    # a window of 4096 positions that begins within a block reaches into 257 blocks of 16
    blocks = model_memory(gemma, batch_size=1, seq_len=8192, block_size=16).kv_cache_bytes
    assert blocks == 2 * 2 * 8 * 256 * 21 * (8192 + 257 * 16)
    short = model_memory(gemma, batch_size=1, seq_len=4000, block_size=16).kv_cache_bytes
    assert short == 2 * 2 * 8 * 256 * 42 * 4000


@given(
    st.sampled_from(list_models()), st.integers(1, 300), st.integers(1, 200_000), st.integers(1, 100_000),
    st.sampled_from([1, 16, 64]),
)  # fmt: skip
def test_more_is_never_less(name: str, batch: int, length: int, more: int, block: int) -> None:
    config = load_model(name)

    def total(batch_size: int, seq_len: int) -> int:
        return model_memory(config, batch_size=batch_size, seq_len=seq_len, block_size=block).total_bytes

    assert total(batch, length) <= total(batch, length + more)
    assert total(batch, length) <= total(batch + more, length)


def test_a_chip_that_does_not_say_its_dram_is_not_checked() -> None:
    chip = load_arch("demo-8core")

    memory = check_memory(load_model("llama-3.1-405b"), chip, **ONE)

    assert memory.weight_bytes > 800e9
    assert "does not say its dram_bytes" in say_memory(memory, chip)
    assert "within 0.9 of the DRAM of 150.8 GB" in say_memory(memory, load_arch("h200-sxm"))
