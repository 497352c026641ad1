"""What a model takes of a device: exact parameter counts, published models, and what vLLM was seen to take."""

import pickle
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.errors import InfeasibleError, InvalidOptionError
from gemm_eval.estimate import Replica, estimate_model, load_engine
from gemm_eval.transformer import (
    GroupedAttention,
    MemoryShare,
    ModelConfig,
    ModelMemory,
    WeightFormat,
    check_memory,
    count_parameters,
    largest_batch,
    list_models,
    load_model,
    memory_levers,
    model_memory,
    num_joined,
    num_parameters,
)

# ---- transformer memory ----------------------------------------------------------------------------------------------


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
            "q_a_proj", "kv_a_proj", "index_q_proj", "index_k_proj", "index_weights_proj", "linear_low_rank_a",
        )  # fmt: skip
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


def test_levers_are_types_that_the_arch_multiplies_and_prompts_beside_the_output() -> None:
    sizes: dict[str, Any] = {"batch_size": 1, "seq_len": 1280}
    for arch, dtype, expected in (
        ("t4", "bf16", ["w4a16"]),
        ("v100", "fp16", ["w4a16"]),
        ("l40s", "bf16", ["fp8", "w4a16"]),
    ):
        levers = memory_levers(load_model("llama-3-8b"), 14 * 10**9, arch=load_arch(arch), dtype=dtype, **sizes)
        assert [lever.value for lever in levers if lever.option == "dtype"] == expected
        assert ("tensor_parallel" in {lever.option for lever in levers}) == (arch != "t4")
    with pytest.raises(InfeasibleError) as caught:
        estimate_model("llama-3-70b", "mi300x", 128)
    (prompt,) = [int(lever.split("=")[1].split()[0]) for lever in caught.value.levers if lever.startswith("seq_len")]
    assert estimate_model("llama-3-70b", "mi300x", 128, prompt_len=prompt).fits


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


# ---- vllm memory -----------------------------------------------------------------------------------------------------


GIB = 1 << 30
VLLM = "https://github.com/vllm-project/vllm/"


def attention(hidden: int, heads: int, kv_heads: int, dim: int) -> int:
    return hidden * (heads + 2 * kv_heads) * dim + heads * dim * hidden


def ffn(hidden: int, width: int) -> int:
    return 3 * hidden * width


def scales(rows: int, columns: int) -> int:
    """Bytes of the fp32 scales of blocks of 128 x 128."""
    return 4 * -(-rows // 128) * -(-columns // 128)


def qwen25(**sizes: int) -> ModelConfig:
    """Qwen2.5 of another size: config.json of Qwen/Qwen2.5-14B and -32B."""
    config = load_model("qwen2.5-72b")
    heads, width = sizes.pop("heads"), sizes.pop("width")
    assert config.ffn is not None
    parts = {
        "attention": config.attention.model_copy(update={"num_heads": heads}),
        "ffn": config.ffn.model_copy(update={"intermediate_size": width}),
    }
    return config.model_copy(update={**sizes, **parts, "published": None})


def llama_405b_fp8() -> ModelConfig:
    """Llama-3.1-405B-FP8 as first published: 16 KV heads; attention, and networks of the first and last layer, bf16."""
    config = load_model("llama-3.1-405b")
    form = WeightFormat.model_validate({"weight_dtype": "fp8", "input_dtype": "fp8"})
    quantization = {
        "method": "fbgemm_fp8",
        "parts": [{"gemms": ["gate_up_proj", "down_proj"], "layers": "1-124", "format": form.model_dump()}],
    }
    data = config.model_dump(mode="json", exclude={"published"}, exclude_none=True)
    data["attention"]["num_kv_heads"] = 16
    return ModelConfig.model_validate(data | {"quantization": quantization}, strict=False)


def deepseek_v3_fp8(tp: int) -> int:
    """Bytes of DeepSeek-V3 on a rank, config.json of deepseek-ai/DeepSeek-V3: fp8 in blocks, bf16 where it is kept."""
    hidden, heads, rank = 7168, 128 // tp, 512
    down = hidden * (1536 + 576)  # latents of queries and of the cache, on each rank
    up = 1536 * heads * 192 + rank * heads * 256 + heads * 128 * hidden
    dense, expert = ffn(hidden, 18432 // tp), ffn(hidden, 2048 // tp)
    fp8 = 61 * (down + up) + 3 * dense + 58 * 257 * expert
    kept = 2 * 129280 // tp * hidden + 58 * 256 * hidden
    return fp8 + 4 * fp8 // (128 * 128) + 2 * kept


GPT_OSS_EXPERT = 2 * 3072 * 2944 + 2944 * 3072  # hidden size 2880 to 256, width 2880 to 128, for Marlin's kernels


class Row(NamedTuple):
    """A model on a rank: bytes of weights by hand, what vLLM prints (GiB), bytes of a position in the cache, source."""

    config: str | ModelConfig
    options: dict[str, Any]
    weight_bytes: int
    printed_gib: float | None
    position_bytes: int
    source: str


ROWS = {
    "llama-3-8b": Row(
        "llama-3-8b", {},
        2 * (2 * 128256 * 4096 + 32 * (attention(4096, 32, 8, 128) + ffn(4096, 14336))),
        14.96, 32 * 2 * 8 * 128 * 2, "pull/10511",
    ),
    "llama-3-8b TP2": Row(
        "llama-3-8b", {"tensor_parallel": 2},
        128256 * 4096 * 2 + 32 * (attention(4096, 32, 8, 128) + ffn(4096, 14336)),
        7.48, 32 * 2 * 4 * 128 * 2, "pull/10511",
    ),
    "llama-3.1-70b W8A8": Row(
        "llama-3-70b", {"dtype": "int8", "kv_dtype": "bf16"},
        2 * 2 * 128256 * 8192 + 80 * (attention(8192, 64, 8, 128) + ffn(8192, 28672)),
        67.7229, 80 * 2 * 8 * 128 * 2, "pull/12569",
    ),
    "llama-3.1-405b FP8 TP8": Row(
        llama_405b_fp8(), {"tensor_parallel": 8},
        (2 * 2 * 128256 * 16384 + 126 * 2 * attention(16384, 128, 16, 128) + (124 + 2 * 2) * ffn(16384, 53248)) // 8,
        57.7520, 126 * 2 * 2 * 128 * 2, "issues/6746",
    ),
    "qwen2.5-14b TP2": Row(
        qwen25(num_layers=48, hidden_size=5120, heads=40, width=13824), {"tensor_parallel": 2},
        2 * 152064 * 5120 + 48 * (attention(5120, 40, 8, 128) + ffn(5120, 13824)),
        13.9476, 48 * 2 * 4 * 128 * 2, "issues/13061",
    ),
    "qwen2.5-32b TP2": Row(
        qwen25(num_layers=64, hidden_size=5120, heads=40, width=27648), {"tensor_parallel": 2},
        2 * 152064 * 5120 + 64 * (attention(5120, 40, 8, 128) + ffn(5120, 27648)),
        30.7293, 64 * 2 * 4 * 128 * 2, "issues/12865",
    ),
    "qwen3-30b-a3b TP4": Row(
        "qwen3-30b-a3b", {"tensor_parallel": 4},
        2 * (2 * 151936 * 2048 + 48 * (attention(2048, 32, 4, 128) + 128 * ffn(2048, 768))) // 4 + 2 * 48 * 128 * 2048,
        14.2474, 48 * 2 * 1 * 128 * 2, "issues/17469",
    ),
    "qwen3-235b-a22b FP8 TP4": Row(
        "qwen3-235b-a22b", {"tensor_parallel": 4, "dtype": "fp8_block", "kv_dtype": "bf16"},
        2 * 2 * 151936 * 4096 // 4 + 94 * (attention(4096, 64, 4, 128) + 128 * ffn(4096, 1536)) // 4
        + 94 * 128 * (scales(768, 4096) + scales(4096, 384)) + 94 * 2 * 128 * 4096,
        None, 94 * 2 * 1 * 128 * 2, "issues/21348",
    ),
    "deepseek-v2-lite": Row(
        "deepseek-v2-lite", {},
        2 * (
            2 * 102400 * 2048 + ffn(2048, 10944) + 26 * 66 * ffn(2048, 1408) + 26 * 64 * 2048
            + 27 * (2048 * 16 * 192 + 2048 * 576 + 512 * 16 * 256 + 16 * 128 * 2048)
        ),
        29.3010, 27 * (512 + 64) * 2, "pull/4650",
    ),
    "deepseek-v3 FP8 TP8": Row(
        "deepseek-v3", {"tensor_parallel": 8, "kv_dtype": "bf16"}, deepseek_v3_fp8(8), None, 61 * (512 + 64) * 2,
        "blob/main/vllm/model_executor/models/deepseek_v2.py",
    ),
    "gpt-oss-120b MXFP4, Marlin": Row(
        "gpt-oss-120b", {"multiples": load_engine("vllm").expert_multiples["sm_90"]},
        36 * 128 * (GPT_OSS_EXPERT * 17 // 32 + 2 * 3 * 2880)
        + 2 * (2 * 201088 * 2880 + 36 * (attention(2880, 64, 8, 64) + 128 * 2880)),
        65.9651, 18 * 2 * 8 * 64 * 2, "issues/23278",
    ),
    "qwen2.5-72b AWQ TP2": Row(
        "qwen2.5-72b", {"tensor_parallel": 2, "dtype": "w4a16"},
        2 * 152064 * 8192 + 80 * (attention(8192, 64, 8, 128) + ffn(8192, 29568)) * (4 * 128 + 16) // (8 * 128) // 2,
        None, 80 * 2 * 4 * 128 * 2, "blob/main/vllm/model_executor/layers/quantization/awq.py",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_weights_and_a_position_of_the_cache(name: str) -> None:
    row = ROWS[name]
    config = row.config if isinstance(row.config, ModelConfig) else load_model(row.config)
    memory, longer = (
        model_memory(config, batch_size=1, seq_len=positions, block_size=16, **row.options)
        for positions in (4096, 4096 + 1600)
    )
    assert memory.weight_bytes == pytest.approx(row.weight_bytes, rel=0.01)
    if row.printed_gib is not None:
        assert memory.weight_bytes / GIB == pytest.approx(row.printed_gib, rel=0.015), VLLM + row.source
    assert longer.kv_cache_bytes - memory.kv_cache_bytes == 1600 * row.position_bytes


@pytest.mark.parametrize(
    ("name", "seq_len", "cache_gib", "num", "source"),
    [
        # GiB of the cache, and how many sequences of so many positions it holds: blocks of 16, or "concurrency"
        ("llama-3-8b", 16, 3.81, 1952, "issues/10517"), ("llama-3-8b", 16, 2.89, 1478, "issues/10517"),
        ("qwen3-235b-a22b FP8 TP4", 178880, 8.11, 1, "issues/21348"),
    ],
)  # fmt: skip
def test_what_a_cache_holds(name: str, seq_len: int, cache_gib: float, num: float, source: str) -> None:
    row = ROWS[name]
    config = row.config if isinstance(row.config, ModelConfig) else load_model(row.config)
    memory = model_memory(config, batch_size=1, seq_len=seq_len, block_size=16, **row.options)
    assert num * memory.kv_cache_bytes / GIB == pytest.approx(cache_gib, rel=0.02), VLLM + source


def test_a_window_and_a_state_have_blocks_of_one_pool() -> None:
    window = model_memory(load_model("gemma-3-27b"), batch_size=1, seq_len=8192, block_size=16).kv_cache_bytes
    # 10 layers of all positions; 52 of 1,024, which begin anywhere in a block
    assert window == (10 * 8192 + 52 * (1024 + 16)) * 2 * 16 * 128 * 2
    kimi = load_model("kimi-linear-48b-a3b")
    memory = model_memory(kimi, batch_size=1, seq_len=120_000, tensor_parallel=2, block_size=16)
    # a block has room for a state of 16 heads in fp32, and 3 taps of q, k and v in 16 bits
    state = 16 * 128 * 128 * 4 + 3 * 3 * 16 * 128 * 2
    block = -(-state // (16 * 576 * 2)) * 16
    assert memory.kv_cache_bytes == 7 * 576 * 2 * -(-120_000 // block) * block + 20 * state
    # 2.48 sequences of 120,000 positions in 2.30 GiB: issues/28228
    assert memory.kv_cache_bytes / GIB == pytest.approx(2.30 / 2.48, rel=0.02)


@pytest.mark.parametrize(
    ("name", "dram_gib", "frac", "seqs", "tokens", "cache_gib", "source"),
    [
        ("llama-3-8b", 24.0, 0.9, 256, 20_000, 3.81, "issues/10517"),  # an RTX 3090, prompts in one step
        ("llama-3-8b", 24.0, 0.9, 256, 29_000, 2.89, "issues/10517"),
        ("gpt-oss-120b MXFP4, Marlin", 79.65, 0.9, 1024, 8192, -2.14, "issues/23278"),  # an H100
        ("gpt-oss-120b MXFP4, Marlin", 79.65, 0.95, 1024, 1024, 1.71, "issues/27508"),
    ],
)  # fmt: skip
def test_what_is_left_for_the_cache(
    name: str, dram_gib: float, frac: float, seqs: int, tokens: int, cache_gib: float, source: str
) -> None:
    """Within 2% of what vLLM may use: its share less weights, activations of a profile run, and libraries."""
    engine, arch = load_engine("vllm"), load_arch("h100-sxm").model_copy(update={"dram_bytes": int(dram_gib * GIB)})
    row = ROWS[name]
    assert isinstance(row.config, str)
    memory: ModelMemory = model_memory(
        load_model(row.config), batch_size=seqs, seq_len=-(-tokens // seqs), chunk_tokens=tokens,
        logit_bytes=engine.logit_bytes, **row.options,
    )  # fmt: skip
    limit = engine.memory_share(frac).limit_on(arch)
    assert limit is not None
    left = limit(memory) - memory.weight_bytes - memory.activation_bytes
    assert left / GIB == pytest.approx(cache_gib, abs=0.02 * frac * dram_gib), VLLM + source


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_each_engine_fills_its_own_share(engine: str) -> None:
    replica = Replica("llama-3-8b", "h100-sxm", engine=engine, memory_frac=0.8)
    num = replica.largest_batch(4096)
    assert num is not None
    dram, memory = load_arch("h100-sxm", GpuSpec).dram_bytes, replica.memory(num, 4096)
    usable = dram - load_engine(engine).reserve_bytes
    cache = {
        "vllm": 0.8 * dram - load_engine(engine).reserve_bytes - memory.weight_bytes - memory.activation_bytes,
        "sglang": 0.8 * usable - memory.weight_bytes,
        "trtllm": 0.8 * (usable - memory.weight_bytes - memory.activation_bytes),
    }[engine]
    assert memory.kv_cache_bytes <= cache < (num + 1) / num * memory.kv_cache_bytes + 0.02 * memory.activation_bytes
