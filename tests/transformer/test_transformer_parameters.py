"""Parameter counts of public models, and against a plain list of tensors; sets and kinds of layers, pipeline stages."""

from collections.abc import Iterator
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_eval import ModelConfigError
from gemm_eval.errors import InvalidOptionError
from gemm_eval.transformer import (
    Ffn,
    GroupedAttention,
    LatentAttention,
    ModelConfig,
    Moe,
    count_parameters,
    layer_kinds,
    list_models,
    load_model,
    num_parameters,
    stage_layers,
)
from gemm_eval.transformer.loader import MODEL_TYPES, parse_config
from gemm_eval.transformer.parts import layers_text, parse_layers
from tests.transformer.hugging_face_samples import SAMPLES

ROUNDED_REL_TOL = 0.01

MODELS = list_models()


def deviation(config: ModelConfig) -> float:
    """Relative deviation from the published count, 0 where that is exact and reproduced."""
    assert config.published is not None
    return num_parameters(config) / config.published.num_parameters - 1


@pytest.mark.parametrize("name", MODELS)
def test_preset_has_its_published_parameters(name: str) -> None:
    config = load_model(name)

    assert config.published is not None
    assert abs(deviation(config)) <= (0 if config.published.is_exact else ROUNDED_REL_TOL)


@pytest.mark.parametrize("name", SAMPLES)
def test_config_json_has_its_published_parameters(name: str) -> None:
    sample = SAMPLES[name]

    assert num_parameters(parse_config(sample.config, name=name, origin="config.json")) == sample.num_parameters


def test_samples_cover_every_architecture() -> None:
    configs = [sample.config for sample in SAMPLES.values()]
    texts = [config["text_config"] for config in configs if "text_config" in config]

    assert {config["model_type"] for config in (*configs, *texts)} == set(MODEL_TYPES) - {"qwen2_5_vl_text"}


@pytest.mark.parametrize(
    ("name", "published_billions", "counts_embedding"),
    [
        ("mixtral-8x7b", 12.9, True),  # arXiv:2401.04088: 13B active
        ("deepseek-v2", 21.4, True),  # arXiv:2405.04434: 21B
        ("deepseek-v3", 36.6, False),  # README_WEIGHTS.md: 36.6B with the output head, without the embedding
        ("qwen3-30b-a3b", 3.35, True),  # model card: 3.3B
        ("qwen1.5-moe-a2.7b", 2.69, True),  # model card: 2.7B
        ("qwen3-235b-a22b", 22.2, True),  # model card: 22B
        ("gpt-oss-120b", 5.71, True),  # arXiv:2508.10925, table 1: 5.13B, without the embedding's 0.58B
        ("gpt-oss-20b", 4.19, True),  # 3.61B without it
        ("llama-4-scout", 17.2, True),  # model card: 17B
        ("llama-4-maverick", 17.2, True),  # model card: 17B
        ("kimi-k2", 32.86, True),  # arXiv:2507.20534, table 2: 32.6B
        ("glm-4.5", 33.63, True),  # arXiv:2508.06471, table 1: 32B, without the embedding's 0.78B
        ("glm-4.5-air", 13.42, True),  # 12B, without it
        ("qwen3-coder-480b-a35b", 35.47, True),  # model card: 35B
        ("phi-3.5-moe", 6.64, True),  # model card: 6.6B
        ("mixtral-8x22b", 39.15, True),  # model card: 39B
        ("deepseek-v2-lite", 2.66, True),  # arXiv:2405.04434: 2.4B, without the embedding
    ],
)
def test_active_parameters(name: str, published_billions: float, counts_embedding: bool) -> None:
    counts = count_parameters(load_model(name))
    active = counts.active - (0 if counts_embedding else counts.embedding)

    assert active / 1e9 == pytest.approx(published_billions, rel=0.005)


# The oracle: every tensor of a checkpoint by its shape, layer by layer and expert by expert.


def tensors(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden = config.hidden_size
    yield "embedding", (config.vocab_size, hidden)
    if config.num_positions:
        yield "position", (config.num_positions, hidden)
    for layer in range(config.num_layers):
        for _ in range(config.norms_per_layer):
            yield from norm(config)
        yield from attention_tensors(config)
        if layer >= config.num_dense_layers:
            assert config.moe is not None
            yield from moe_tensors(hidden, config.moe)
        else:
            assert config.ffn is not None
            yield from ffn_tensors("ffn", hidden, config.ffn.intermediate_size, config.ffn.is_gated)
            if config.ffn.has_bias:
                for width in ((config.ffn.intermediate_size,) * (1 + config.ffn.is_gated)) + (hidden,):
                    yield "vectors", (width,)
    yield from norm(config)
    if not config.tied_embeddings:
        yield "lm_head", (config.vocab_size, hidden)
    if config.lm_head_bias:
        yield "vectors", (config.vocab_size,)


def norm(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "vectors", (config.hidden_size,)
    if config.norm == "layer":
        yield "vectors", (config.hidden_size,)


def attention_tensors(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, a = config.hidden_size, config.attention
    if isinstance(a, LatentAttention):
        head = a.qk_nope_head_dim + a.qk_rope_head_dim
        if a.q_lora_rank is None:
            yield "attention", (a.num_heads * head, hidden)
        else:
            yield "attention", (a.q_lora_rank, hidden)
            yield "vectors", (a.q_lora_rank,)
            yield "attention", (a.num_heads * head, a.q_lora_rank)
        yield "attention", (a.kv_lora_rank + a.qk_rope_head_dim, hidden)
        yield "vectors", (a.kv_lora_rank,)
        yield "attention", (a.num_heads * (a.qk_nope_head_dim + a.v_head_dim), a.kv_lora_rank)
        yield "attention", (hidden, a.num_heads * a.v_head_dim)
        return
    for heads in (a.num_heads, a.num_kv_heads, a.num_kv_heads):
        yield "attention", (heads * a.head_dim, hidden)
        if a.qkv_bias:
            yield "vectors", (heads * a.head_dim,)
    if a.qk_norm:
        yield "vectors", (a.head_dim,)
        yield "vectors", (a.head_dim,)
    if a.sinks:
        yield "vectors", (a.num_heads,)
    yield "attention", (hidden, a.num_heads * a.head_dim)
    if a.output_bias:
        yield "vectors", (hidden,)


def moe_tensors(hidden: int, moe: Moe) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "router", (moe.num_experts, hidden)
    if moe.router_bias:
        yield "vectors", (moe.num_experts,)
    for _ in range(moe.num_experts):
        yield from ffn_tensors("experts", hidden, moe.intermediate_size, moe.is_gated)
        if moe.expert_bias:
            for width in ((moe.intermediate_size,) * (1 + moe.is_gated)) + (hidden,):
                yield "vectors", (width,)
    for _ in range(moe.num_shared_experts):
        width = moe.shared_intermediate_size or moe.intermediate_size
        yield from ffn_tensors("shared_experts", hidden, width, moe.is_gated)
    if moe.shared_gate:
        yield "router", (1, hidden)


def ffn_tensors(part: str, hidden: int, width: int, is_gated: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    if is_gated:
        yield part, (width, hidden)
    yield part, (width, hidden)
    yield part, (hidden, width)


sizes = st.integers(1, 12)
grouped = st.builds(
    lambda kv, group, dim, *flags: GroupedAttention(
        num_heads=kv * group, num_kv_heads=kv, head_dim=dim, qkv_bias=flags[0], output_bias=flags[1], qk_norm=flags[2],
        sinks=flags[3],
    ),
    *(sizes, sizes, sizes),
    *(st.booleans(),) * 4,
)  # fmt: skip
latent = st.builds(
    LatentAttention, num_heads=sizes, q_lora_rank=st.none() | sizes, kv_lora_rank=sizes, qk_nope_head_dim=sizes,
    qk_rope_head_dim=sizes, v_head_dim=sizes,
)  # fmt: skip
ffns = st.builds(Ffn, intermediate_size=sizes, is_gated=st.booleans(), has_bias=st.booleans())


@st.composite
def models(draw: st.DrawFn) -> ModelConfig:
    layers = draw(st.integers(1, 5))
    moe_layers = draw(st.integers(0, layers))
    moe = None
    if moe_layers:
        experts, shared = draw(sizes), draw(st.integers(0, 3))
        moe = Moe(
            num_layers=moe_layers, num_experts=experts, experts_per_token=draw(st.integers(1, experts)),
            intermediate_size=draw(sizes), is_gated=draw(st.booleans()), num_shared_experts=shared,
            shared_intermediate_size=draw(st.none() | sizes) if shared else None,
            shared_gate=draw(st.booleans()) if shared else False, router_bias=draw(st.booleans()),
            expert_bias=draw(st.booleans()),
        )  # fmt: skip
    return ModelConfig(
        name="small", hidden_size=draw(sizes), num_layers=layers, vocab_size=draw(sizes),
        attention=draw(grouped | latent), ffn=draw(ffns) if moe_layers < layers else None, moe=moe,
        tied_embeddings=draw(st.booleans()), norm=draw(st.sampled_from(["rms", "layer"])),
        norms_per_layer=draw(st.integers(1, 4)), num_positions=draw(st.integers(0, 9)),
        lm_head_bias=draw(st.booleans()),
    )  # fmt: skip


@given(models())
def test_every_part_is_the_sum_of_its_tensors(config: ModelConfig) -> None:
    parts: dict[str, int] = {}
    for part, shape in tensors(config):
        parts[part] = parts.get(part, 0) + prod(shape)
    counts = count_parameters(config)

    assert {part: getattr(counts, part) for part in parts} == parts
    assert num_parameters(config) == counts.total == sum(parts.values())


@given(models())
def test_idle_experts_are_those_not_chosen(config: ModelConfig) -> None:
    counts = count_parameters(config)

    if config.moe is None:
        assert counts.active == counts.total
    else:
        chosen, every = config.moe.experts_per_token, config.moe.num_experts
        assert (counts.experts - counts.idle_experts) * every == counts.experts * chosen
        assert counts.total - counts.active == counts.idle_experts + counts.idle_vectors
        assert (counts.idle_vectors > 0) == (config.moe.expert_bias and chosen < every)


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        (range(3, 61), "3-60"), (range(1, 48, 2), "1-47:2"), ([0], "0"), ([0, 5, 6, 7], "0, 5-7"),
        ([0, 1, 2, 3, 4, 6, 7, 8, 9, 10], "0-4, 6-10"), ([0, 7], "0, 7"),
    ],
)  # fmt: skip
def test_layers_as_text(layers: list[int], text: str) -> None:
    assert layers_text(layers) == text
    assert parse_layers(text) == tuple(layers)


@given(st.sets(st.integers(0, 500), min_size=1))
def test_text_is_read_back(layers: set[int]) -> None:
    assert parse_layers(layers_text(layers)) == tuple(sorted(layers))


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-9:0", "1,1", "0-3, 2", "65536", "1-99999", "-1", "1:2"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="layers"):
        parse_layers(text)
    config = load_model("mixtral-8x7b")
    assert config.moe is not None
    with pytest.raises(ModelConfigError):
        config.with_(moe=config.moe.model_dump() | {"layers": text})


def test_layers_are_as_many_as_is_said_and_there() -> None:
    config = load_model("llama-4-maverick")
    assert config.moe is not None
    for layers, message in (
        ("0-44:2, 48", "moe.layers must be layers of 0..47"),
        ("0-3", "num_layers = 24 layers, got 4"),
    ):
        with pytest.raises(ModelConfigError, match=message):
            config.with_(moe=config.moe.model_dump() | {"layers": layers})
    assert config.moe_layers == tuple(range(1, 48, 2))
    assert config.dense_layers == tuple(range(0, 48, 2))
    assert set(range(48)) - set(config.window_layers) == set(range(3, 48, 4))


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("llama-3-8b", {"full attention, dense": 32}),
        ("gpt-oss-20b", {"window attention, experts": 12, "full attention, experts": 12}),
        ("gemma-3-27b", {"window attention, dense": 52, "full attention, dense": 10}),
        ("deepseek-v3", {"full attention, dense": 3, "full attention, experts": 58}),
        ("llama-4-maverick", {"window attention, dense": 24, "window attention, experts": 12,
                              "full attention without rotary positions, experts": 12}),
        ("gpt-3-175b", {"full attention, dense": 96}),
    ],
)  # fmt: skip
def test_kinds_of_layers(name: str, kinds: dict[str, int]) -> None:
    found = layer_kinds(load_model(name))

    assert {kind.name: len(kind.layers) for kind in found} == kinds
    assert sorted(layer for kind in found for layer in kind.layers) == list(range(load_model(name).num_layers))


@pytest.mark.parametrize(
    ("num", "stages", "sizes"),
    [(32, 4, [8, 8, 8, 8]), (61, 4, [15, 15, 16, 15]), (62, 4, [15, 16, 16, 15]), (5, 2, [3, 2]), (3, 3, [1, 1, 1])],
)
def test_stages_are_even_and_the_last_is_not_the_longest(num: int, stages: int, sizes: list[int]) -> None:
    found = stage_layers(num, stages)

    assert [len(layers) for layers in found] == sizes
    assert [layer for layers in found for layer in layers] == list(range(num))
    with pytest.raises(InvalidOptionError, match=f"at most the number of layers, {num}, got {num + 1}"):
        stage_layers(num, num + 1)
