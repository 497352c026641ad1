"""The GEMMs of a forward pass: shapes by hand, operations against parameter counts, sharding, experts, data types."""

from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations, product
from math import floor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_eval import InvalidOptionError, InvalidProblemError
from gemm_eval.dtypes import DType, DtypeScheme
from gemm_eval.moe import ExpertCounts, ExpertWeights, MoeLayer, PowerLaw, Uniform, expected_counts, route
from gemm_eval.transformer import (
    LayerGemm,
    ModelConfig,
    count_parameters,
    list_models,
    load_model,
    transformer_gemms,
)
from gemm_eval.transformer.loader import parse_config
from gemm_eval.transformer.shapes import expected_expert_load
from tests.transformer.hugging_face_samples import SAMPLES

MODELS = list_models()
PARAMETER_GEMMS_OUTSIDE_LAYERS = "lm_head"


def by_name(model: str | ModelConfig, **options: Any) -> dict[str, LayerGemm]:
    config = load_model(model) if isinstance(model, str) else model
    gemms = transformer_gemms(config, **({"phase": "prefill", "batch_size": 1, "seq_len": 512} | options))
    table = {gemm.name: gemm for gemm in gemms}
    assert len(table) == len(gemms), "names are unique"
    return table


def shapes(model: str | ModelConfig, **options: Any) -> dict[str, tuple[int, ...]]:
    """Name -> (G, M, K, N, layers)."""
    return {name: (*gemm.problem.sizes, gemm.num_layers) for name, gemm in by_name(model, **options).items()}


def flop(gemm: LayerGemm) -> int:
    return gemm.total_count * gemm.problem.flop


def layer_weight_flop(gemms: dict[str, LayerGemm]) -> int:
    return sum(flop(g) for g in gemms.values() if g.is_weight and g.name != PARAMETER_GEMMS_OUTSIDE_LAYERS)


# Shapes written out by hand: (G, M, K, N, layers) of some GEMMs, and names of others that are not there.

DECODE = {"phase": "decode"}
HEADS_OF_8 = {"phase": "decode", "batch_size": 4, "seq_len": 1000}
BY_HAND: list[tuple[str, dict[str, Any], dict[str, tuple[int, ...]], tuple[str, ...]]] = [
    ("llama-3-8b", {"batch_size": 2, "seq_len": 2048}, {"qkv_proj": (1, 4096, 4096, 6144, 32),
        "attn_score": (16, 8192, 128, 2048, 32), "attn_value": (16, 8192, 2048, 128, 32),
        "o_proj": (1, 4096, 4096, 4096, 32), "gate_up_proj": (1, 4096, 4096, 28672, 32),
        "down_proj": (1, 4096, 14336, 4096, 32), "lm_head": (1, 2, 4096, 128256, 1)}, ()),
    ("llama-3-8b", DECODE | {"batch_size": 16, "seq_len": 2048}, {"qkv_proj": (1, 16, 4096, 6144, 32),
        "attn_score": (128, 4, 128, 2048, 32), "attn_value": (128, 4, 2048, 128, 32), "o_proj": (1, 16, 4096, 4096, 32),
        "gate_up_proj": (1, 16, 4096, 28672, 32), "down_proj": (1, 16, 14336, 4096, 32),
        "lm_head": (1, 16, 4096, 128256, 1)}, ()),
    # a plain FFN has no gate
    ("gpt-3-175b", DECODE | {"seq_len": 100}, {"up_proj": (1, 1, 12288, 49152, 96),
        "down_proj": (1, 1, 49152, 12288, 96), "attn_score": (96, 1, 128, 100, 96)}, ("gate_up_proj",)),
    # MLA expands keys and values in prefill, and absorbs the projections in decode
    ("deepseek-v3", {"batch_size": 2, "seq_len": 1024}, {"q_a_proj": (1, 2048, 7168, 1536, 61),
        "q_b_proj": (1, 2048, 1536, 128 * 192, 61), "kv_a_proj": (1, 2048, 7168, 576, 61),
        "kv_b_proj": (1, 2048, 512, 128 * 256, 61), "attn_score": (256, 1024, 192, 1024, 61),
        "attn_value": (256, 1024, 1024, 128, 61), "o_proj": (1, 2048, 128 * 128, 7168, 61)}, ("q_absorb", "v_absorb")),
    ("deepseek-v3", DECODE | {"batch_size": 4, "seq_len": 1024}, {"q_a_proj": (1, 4, 7168, 1536, 61),
        "q_b_proj": (1, 4, 1536, 128 * 192, 61), "kv_a_proj": (1, 4, 7168, 576, 61), "q_absorb": (128, 4, 128, 512, 61),
        "attn_score": (4, 128, 576, 1024, 61), "attn_value": (4, 128, 1024, 512, 61),
        "v_absorb": (128, 4, 512, 128, 61), "o_proj": (1, 4, 128 * 128, 7168, 61)}, ("kv_b_proj",)),
    ("deepseek-v2-lite", {"seq_len": 10}, {"q_proj": (1, 10, 2048, 16 * 192, 27)}, ("q_a_proj",)),
    ("deepseek-v3", {"seq_len": 4096, "expert_load": "expected"}, {"gate_up_proj": (1, 4096, 7168, 2 * 18432, 3),
        "down_proj": (1, 4096, 18432, 7168, 3), "router": (1, 4096, 7168, 256, 58),
        "expert_gate_up": (256, 128, 7168, 4096, 58), "expert_down": (256, 128, 2048, 7168, 58),
        "shared_gate_up": (1, 4096, 7168, 4096, 58), "shared_down": (1, 4096, 2048, 7168, 58)}, ()),
    # shared experts run as one
    ("deepseek-v2", {}, {"shared_gate_up": (1, 512, 5120, 2 * 2 * 1536, 59)}, ()),
    ("qwen1.5-moe-a2.7b", {}, {"shared_down": (1, 512, 5632, 2048, 24), "shared_gate": (1, 512, 2048, 1, 24)}, ()),
    ("mixtral-8x7b", {}, {}, ("shared_gate_up",)),
    # window layers see the window once the context is longer
    ("gemma-2-9b", DECODE | {"batch_size": 3, "seq_len": 8192}, {"attn_score": (24, 2, 256, 8192, 21),
        "attn_score_window": (24, 2, 256, 4096, 21), "attn_value_window": (24, 2, 4096, 256, 21)}, ()),
    ("gemma-2-9b", DECODE | {"batch_size": 3, "seq_len": 4096}, {"attn_score": (24, 2, 256, 4096, 42)},
     ("attn_score_window",)),
    ("mistral-7b", {"seq_len": 6000}, {"attn_score_window": (8, 24000, 128, 4096, 32)}, ("attn_score",)),
    # a chunk of prefill attends to what is cached, whose latents are expanded too; guessed tokens are verified at once
    ("llama-3-8b", {"batch_size": 2, "seq_len": 5000, "new_tokens": 1000}, {"qkv_proj": (1, 2000, 4096, 6144, 32),
        "attn_score": (16, 4000, 128, 5000, 32), "lm_head": (1, 2, 4096, 128256, 1)}, ()),
    ("deepseek-v3", {"batch_size": 2, "seq_len": 5000, "new_tokens": 1000}, {
        "kv_b_proj": (1, 10_000, 512, 128 * 256, 61), "q_b_proj": (1, 2000, 1536, 128 * 192, 61)}, ()),
    ("llama-3-8b", DECODE | {"batch_size": 16, "seq_len": 2048, "new_tokens": 4}, {"qkv_proj": (1, 64, 4096, 6144, 32),
        "attn_score": (128, 16, 128, 2048, 32), "lm_head": (1, 64, 4096, 128256, 1)}, ()),
    ("deepseek-v3", DECODE | {"batch_size": 2, "new_tokens": 3}, {"q_absorb": (128, 6, 128, 512, 61)}, ()),
    # KV heads are replicated beyond one a device; latent projections and the router are not divided
    ("llama-3-70b", HEADS_OF_8 | {"tensor_parallel": 8}, {
        "qkv_proj": (1, 4, 8192, (8 + 2) * 128, 80), "attn_score": (4, 8, 128, 1000, 80)}, ()),
    ("llama-3-70b", HEADS_OF_8 | {"tensor_parallel": 16}, {
        "qkv_proj": (1, 4, 8192, (4 + 2) * 128, 80), "attn_score": (4, 4, 128, 1000, 80)}, ()),
    ("deepseek-v3", {"tensor_parallel": 16}, {
        "q_a_proj": (1, 512, 7168, 1536, 61), "kv_a_proj": (1, 512, 7168, 576, 61),
        "router": (1, 512, 7168, 256, 58), "q_b_proj": (1, 512, 1536, 8 * 192, 61),
        "kv_b_proj": (1, 512, 512, 8 * 256, 61), "shared_down": (1, 512, 128, 7168, 58)}, ()),
    ("gpt-3-175b", {"tensor_parallel": 8}, {"lm_head": (1, 1, 12288, 6283, 1)}, ()),  # 50257 / 8 = 6282.1
    # every other layer of Maverick is dense
    ("llama-4-maverick", {"seq_len": 9000}, {
        "gate_up_proj": (1, 9000, 5120, 2 * 16384, 24), "attn_score_window": (8, 45000, 128, 8192, 36)}, ()),
    # experts: each divided by 4; half of them, each divided by 2; a quarter; groups that feed an eighth
    *(("qwen3-30b-a3b",
        {"seq_len": 4096, "expert_load": "expected", "tensor_parallel": tensor, "expert_parallel": expert},
        {"expert_gate_up": (*gate_up, 48), "router": (1, 4096, 2048, 128, 48)}, ()) for tensor, expert,
        gate_up in ((1, 1, (128, 256, 2048, 1536)), (4, 1, (128, 256, 2048, 384)), (4, 2, (64, 256, 2048, 768)),
        (4, 4, (32, 256, 2048, 1536)), (1, 8, (16, 2048, 2048, 1536)), (2, 8, (16, 1024, 2048, 1536)))),
]  # fmt: skip


@pytest.mark.parametrize(("model", "options", "expected", "absent"), BY_HAND)
def test_shapes(
    model: str, options: dict[str, Any], expected: dict[str, tuple[int, ...]], absent: tuple[str, ...]
) -> None:
    samples = {"deepseek-v2-lite": SAMPLES["deepseek-v2-lite"].config}
    config = parse_config(samples[model], name="lite", origin="here") if model in samples else model
    table = shapes(config, **({"seq_len": 512} | options))

    assert {name: table[name] for name in expected} == expected
    assert not set(absent) & set(table)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_absorption_is_a_choice_and_keeps_weight_work(phase: str) -> None:
    yes = by_name("deepseek-v2", phase=phase, batch_size=4, seq_len=640, absorb_mla=True)
    no = by_name("deepseek-v2", phase=phase, batch_size=4, seq_len=640, absorb_mla=False)

    assert set(yes) - set(no) == {"q_absorb", "v_absorb"}
    assert set(no) - set(yes) == {"kv_b_proj"}
    assert layer_weight_flop(yes) == layer_weight_flop(no)
    # per score 576 + 512 MAC instead of 192 + 128, but B of the scores is read once instead of once a head
    assert sum(flop(yes[n]) for n in ("attn_score", "attn_value")) * 320 == 1088 * sum(
        flop(no[n]) for n in ("attn_score", "attn_value")
    )


# Operations against parameters.


@pytest.mark.parametrize("name", MODELS)
def test_weight_gemms_do_two_operations_for_each_active_parameter_and_token(name: str) -> None:
    """Exact where the tokens spread over the experts evenly: T*k/E is whole, and no expert is idle."""
    config = load_model(name)
    tokens = 7680  # a multiple of 15 (60 experts, 4 chosen), 80/3 (160, 6), 32 (256, 8), 16 and 4
    gemms = by_name(config, batch_size=3, seq_len=tokens // 3)
    counts = count_parameters(config)

    assert layer_weight_flop(gemms) == 2 * tokens * (counts.layer_matrices - counts.idle_experts)
    # and so within norms and biases of the non-embedding parameters that a token uses
    active = counts.active - counts.embedding - counts.position - counts.lm_head
    assert layer_weight_flop(gemms) / tokens == pytest.approx(2 * active, rel=1e-3)
    head = 2 * config.vocab_size * config.hidden_size
    assert flop(gemms["lm_head"]) == 3 * head


# Sharding.


# Experts.


def routings(tokens: int, experts: int, chosen: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    return product(combinations(range(experts), chosen), repeat=tokens)


@pytest.mark.parametrize("experts", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_expected_load_is_the_mean_over_every_routing(experts: int, tokens: int) -> None:
    for chosen in range(1, experts + 1):
        for local in range(1, experts + 1):
            hits = [len({e for token in r for e in token if e < local}) for r in routings(tokens, experts, chosen)]
            active = max(1, floor(Fraction(sum(hits), len(hits)) + Fraction(1, 2)))
            rows = max(1, floor(Fraction(tokens * chosen * local, experts * active) + Fraction(1, 2)))
            load = expected_expert_load(tokens, num_experts=experts, experts_per_token=chosen, num_local_experts=local)

            assert load == (active, min(rows, tokens)), (chosen, local)


@given(
    st.integers(1, 100_000),
    st.integers(1, 300).flatmap(lambda e: st.tuples(st.just(e), st.integers(1, e), st.integers(1, e))),
    st.floats(1, 20),
)
def test_load_stays_in_its_bounds(tokens: int, expert_counts: tuple[int, int, int], imbalance: float) -> None:
    experts, chosen, local = expert_counts
    sizes = {"num_experts": experts, "experts_per_token": chosen, "num_local_experts": local}
    num_active, rows = expected_expert_load(tokens, **sizes)
    num_skewed, most_rows = expected_expert_load(tokens, **sizes, imbalance=imbalance)

    assert 1 <= num_active == num_skewed <= local
    assert 1 <= rows <= most_rows <= tokens
    expected = tokens * chosen * local / experts
    if expected >= num_active:
        assert abs(num_active * rows - expected) <= num_active / 2 + 1e-6


# Experts as one grouped GEMM.


def groups(model: str, **options: Any) -> tuple[int, ...]:
    """Rows of each expert."""
    gate_up, down = (by_name(model, **options)[name].problem for name in ("expert_gate_up", "expert_down"))
    assert gate_up.row_groups == down.row_groups
    return gate_up.row_groups or (gate_up.M,) * gate_up.G


def test_experts_have_the_rows_of_uniform_routing_by_default() -> None:
    rows = groups("deepseek-v3", phase="decode", batch_size=64, seq_len=100)

    assert rows == tuple(expected_counts(64, 256, 8, 256).tolist())
    assert sum(rows) == 64 * 8
    assert 215 <= sum(count > 0 for count in rows) <= 228  # 256 * (1 - (31/32)^64) = 222.4
    assert rows[0] >= 5
    assert rows == groups("deepseek-v3", phase="decode", batch_size=64, seq_len=100, expert_load="Uniform")
    # one token reads the experts that it chose
    assert groups("deepseek-v3", phase="decode", batch_size=1, seq_len=100) == (1,) * 8 + (0,) * 248
    counts = ExpertCounts((9, 0, 7, 4, 0, 0, 0, 0))
    assert groups("mixtral-8x7b", seq_len=10, expert_load=counts) == (9, 7, 4, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(("tensor", "expert"), [(1, 1), (4, 2), (1, 8), (2, 8)])
@pytest.mark.parametrize("load", ["uniform", "balanced", "power_law_1.2", PowerLaw(1.01), Uniform()])
def test_devices_have_their_share_of_experts(tensor: int, expert: int, load: Any) -> None:
    degrees = {"tensor_parallel": tensor, "expert_parallel": expert}
    rows = groups("qwen3-30b-a3b", seq_len=4096, expert_load=load, **degrees)
    mean = 4096 * max(1, expert // tensor) * 8 / expert

    assert len(rows) == 128 // expert
    assert list(rows) == sorted(rows, reverse=True)
    if load in ("uniform", "balanced") or expert == 1:
        assert sum(rows) == mean
    else:
        assert mean < sum(rows) < 3 * mean  # of the most loaded device


def test_a_draw_is_of_median_load() -> None:
    options: dict[str, Any] = {"seq_len": 256, "expert_parallel": 8, "expert_load": "power_law_1.2"}
    rows = groups("qwen3-30b-a3b", **options)
    layer = MoeLayer(256 * 8, 2048, 768, 128, 8, ep=8, distribution="power_law_1.2", num_draws=5, seed=0)

    assert sum(rows) == sorted(route(layer).rows)[2]
    assert rows in route(layer).groups


def test_imbalance_asks_for_a_batch() -> None:
    with_word = shapes("mixtral-8x7b", seq_len=1024, expert_imbalance=1.5, expert_load="uniform")
    without = shapes("mixtral-8x7b", seq_len=1024, expert_imbalance=1.5)

    assert with_word == without
    assert by_name("mixtral-8x7b", seq_len=1024, expert_imbalance=1.5)["expert_down"].problem.row_groups is None
    with pytest.raises(InvalidOptionError, match=r"power_law_1.2 has one of its own: leave it at 1"):
        shapes("mixtral-8x7b", expert_imbalance=1.5, expert_load="power_law_1.2")


# Data types.


@pytest.mark.parametrize(("option", "name"), [("quantize_lm_head", "lm_head"), ("quantize_router", "router")])
def test_lm_head_and_router_are_quantized_if_asked(option: str, name: str) -> None:
    scheme = DtypeScheme(DType.BF16, DType.INT4, DType.BF16, 64)  # of one's own
    gemms = by_name("mixtral-8x7b", dtype=scheme, dense_dtype="fp16", **{option: True})
    kept = {"lm_head", "router", "attn_score", "attn_value"} - {name}

    for gemm in gemms.values():
        types = (gemm.problem.input_dtype, gemm.problem.weight_dtype)
        assert types == (("fp16", "fp16") if gemm.name in kept else ("bf16", "int4")), gemm.name


# What is refused.


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        ("llama-3-8b", {"phase": "training"}, "phase must be one of prefill, decode, train, got 'training'"),
        ("llama-3-8b", {"batch_size": 0}, "batch_size must be an integer in 1..2**40, got 0"),
        ("llama-3-8b", {"seq_len": 1.5}, "seq_len must be"),
        ("llama-3-8b", {"batch_size": True}, "batch_size must be"),
        ("llama-3-8b", {"tensor_parallel": "2"}, "tensor_parallel must be"),
        ("llama-3-8b", {"expert_parallel": -1}, "expert_parallel must be"),
        ("llama-3-8b", {"tensor_parallel": 3}, "tensor_parallel must divide num_heads of llama-3-8b = 32, got 3"),
        ("llama-3-8b", {"expert_parallel": 7}, "models with experts, and llama-3-8b has none: leave it at 1, got 7"),
        ("llama-3-8b", {"tensor_parallel": 64}, "tensor_parallel must divide num_heads"),
        ("qwen2.5-7b", {"tensor_parallel": 14}, "num_kv_heads = 4 of qwen2.5-7b replicates"),
        ("qwen2.5-7b", {"tensor_parallel": 28},
            "ffn.intermediate_size of qwen2.5-7b = 18944, got 28; possible: 1, 2, 4"),
        ("mixtral-8x7b", {"expert_parallel": 3}, "expert_parallel must divide moe.num_experts of mixtral-8x7b = 8"),
        ("mixtral-8x7b", {"tensor_parallel": 4, "expert_parallel": 6}, "must divide the other, got 4 and 6"),
        ("mixtral-8x7b", {"expert_load": "unifrom"},
            "expert_load is expected, or a distribution: distribution must be"),
        ("mixtral-8x7b", {"expert_load": 3}, "expert_load is expected, or a distribution"),
        ("mixtral-8x7b", {"expert_load": ExpertWeights((1.0, 2.0))}, "one for each of num_experts = 8, got 2"),
        ("mixtral-8x7b", {"expert_imbalance": 0.5}, "expert_imbalance must be a finite number >= 1, got 0.5"),
        ("mixtral-8x7b", {"expert_imbalance": float("nan")}, "expert_imbalance must be"),
        ("mixtral-8x7b", {"expert_imbalance": float("inf")}, "expert_imbalance must be"),
        ("mixtral-8x7b", {"expert_imbalance": "high"}, "expert_imbalance must be"),
    ],
)  # fmt: skip
def test_bad_options_are_refused(model: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        by_name(model, **options)

    assert words in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [{"dtype": "w3a16"}, {"dtype": 3}, {"expert_dtype": "w3a16"}, {"dense_dtype": "float"}, {"batch_size": 1 << 39}],
)
def test_impossible_problems_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidProblemError):
        by_name("llama-3-8b", **options)
