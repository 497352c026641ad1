"""The operations of a step: in order, for every kind of layer, with GEMMs, bytes and messages that add up."""

from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidOptionError
from gemm_eval.moe import MoeLayer
from gemm_eval.transformer import (
    AttentionWork,
    Fusions,
    GemmWork,
    MemoryWork,
    ModelConfig,
    Operation,
    list_models,
    load_model,
    model_operations,
    transformer_gemms,
    with_redundant_experts,
)
from gemm_eval.workload import AttentionProblem, CollectiveProblem

NONE = Fusions(
    residual_norm=False, qkv=False, gate_up=False, gated_activation=False, rotary_kv_write=False, quantization=False
)
STEPS: list[dict[str, Any]] = [
    {"phase": "prefill", "batch_size": 2, "seq_len": 700},
    {"phase": "prefill", "batch_size": 2, "seq_len": 20_000, "new_tokens": 9000},
    {"phase": "decode", "batch_size": 16, "seq_len": 5000},
    {"phase": "decode", "batch_size": 3, "seq_len": 5000, "new_tokens": 4},
]


def operations(model: str | ModelConfig, **options: Any) -> tuple[Operation, ...]:
    config = load_model(model) if isinstance(model, str) else model
    return model_operations(config, **({"phase": "decode", "batch_size": 8, "seq_len": 1024} | options))


def names(found: Sequence[Operation]) -> list[str]:
    return [operation.name for operation in found]


def test_a_layer_of_llama_in_order() -> None:
    assert names(operations("llama-3-8b")) == [
        "embedding", "input_norm", "input_norm", "qkv_proj", "rotary_kv_write", "attention", "o_proj", "ffn_norm",
        "gate_up_proj", "ffn_activation", "down_proj", "final_norm", "lm_head", "logits_cast", "sampling",
    ]  # fmt: skip
    assert names(operations("llama-3-8b", fusions=NONE, tensor_parallel=2)) == [
        "embedding", "embedding_all_reduce", "input_norm", "input_norm_residual", "input_norm", "q_proj", "k_proj",
        "v_proj", "rotary", "kv_write", "attention", "o_proj", "attention_all_reduce", "ffn_norm_residual", "ffn_norm",
        "gate_proj", "up_proj", "ffn_activation", "ffn_activation_product", "down_proj", "ffn_all_reduce",
        "final_norm_residual", "final_norm", "lm_head", "logits_all_gather", "logits_cast", "sampling",
    ]  # fmt: skip


def test_a_layer_of_deepseek_in_order() -> None:
    found = operations("deepseek-v3", tensor_parallel=8)
    experts = [operation.name for operation in found if operation.layer_kind == "full attention, experts"]

    assert experts == [
        "input_norm", "qkv_a_proj", "q_a_norm", "q_b_proj", "kv_a_norm", "rotary_kv_write", "q_absorb", "attention",
        "v_absorb", "o_proj", "attention_all_reduce", "ffn_norm", "router", "experts", "shared_gate_up",
        "shared_activation", "shared_down", "shared_add", "ffn_all_reduce",
    ]  # fmt: skip
    spread = names(operations("deepseek-v3", expert_parallel=32, experts_as_layer=False))
    first = spread.index("router")
    assert spread[first : first + 10] == [
        "router", "dispatch", "routing", "expert_sort", "permute", "expert_gate_up", "expert_activation", "expert_down",
        "finalize", "combine",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["gemma-2-9b", "deepseek-v3", "llama-4-maverick", "qwen1.5-moe-a2.7b", "gpt-3-175b"])
@pytest.mark.parametrize("step", STEPS[1:3], ids=["prefill", "decode"])
def test_no_gemm_of_a_layer_is_left_out(name: str, step: dict[str, Any]) -> None:
    """Operations take the sizes of GEMMs by name."""
    config, counts = load_model(name), Counter[Any]()
    fusions = Fusions(qkv=config.attention.kind != "mla")
    for operation in operations(name, **step, experts_as_layer=False, fusions=fusions):
        if isinstance(operation.work, GemmWork):
            counts[operation.name, operation.work.problem] += operation.num_layers
    gemms = transformer_gemms(config, **step)

    assert counts == {(gemm.name, gemm.problem): gemm.total_count for gemm in gemms if gemm.is_weight}


@pytest.mark.parametrize("name", list_models())
def test_every_layer_is_there_once(name: str) -> None:
    config = load_model(name)
    for step, degree in product(STEPS, (1, 3)):
        counts = {"attention": 0, "o_proj": 0, "ffn_norm": 0, "ffn": 0}
        for stage in range(degree):
            seen: set[str] = set()
            found = operations(name, **step, pipeline_parallel=degree, stage=stage)
            for operation in found:
                if operation.name == "attention" and operation.layer_kind in seen:
                    continue  # further calls of the same layers: chunks
                if operation.name in counts:
                    counts[operation.name] += operation.num_layers
                if operation.name in ("down_proj", "experts"):
                    counts["ffn"] += operation.num_layers
                if operation.name == "attention":
                    seen.add(operation.layer_kind)
            assert ("embedding" in names(found)) == (stage == 0)
            assert ("lm_head" in names(found)) == (stage == degree - 1)
            assert ("stage_send" in names(found)) == (stage < degree - 1)
        of_attention = {counts.pop("attention"), counts.pop("o_proj")}
        assert of_attention == {config.num_attention_layers}, (step, degree)
        assert set(counts.values()) == {config.num_layers - len(config.bare_layers)}, (step, degree)


def attention(model: str | ModelConfig, **options: Any) -> list[Operation]:
    return [operation for operation in operations(model, **options) if isinstance(operation.work, AttentionWork)]


def calls(model: str | ModelConfig, **options: Any) -> list[AttentionProblem]:
    return [work.problem for o in operations(model, **options) if isinstance(work := o.work, AttentionWork)]


def test_attention_of_windows_latents_and_sinks() -> None:
    window, full = calls("gpt-oss-20b", seq_len=4096)
    assert (window.window, full.window, window.has_sinks) == (128, None, True)
    assert [operation.num_layers for operation in attention("gpt-oss-20b", seq_len=4096)] == [12, 12]
    assert (full.num_heads, full.num_kv_heads, full.head_dim, full.q_len, full.kv_len) == (64, 8, 64, 1, 4096)

    _, decode = calls("deepseek-v3", tensor_parallel=8, kv_dtype="fp8")
    assert (decode.num_heads, decode.num_kv_heads, decode.head_dim, decode.v_head_dim) == (16, 1, 576, 512)
    assert decode.is_latent
    assert (decode.kv_dtype, decode.dtype) == (DType.FP8, DType.BF16)
    _, prefill = calls("deepseek-v3", phase="prefill")
    assert (prefill.num_heads, prefill.num_kv_heads, prefill.head_dim, prefill.v_head_dim) == (128, 128, 192, 128)
    assert not prefill.is_latent


@given(st.integers(1, 40_000), st.integers(0, 40_000), st.integers(1, 3))
def test_chunks_are_cut_at_their_bounds(new: int, cached: int, batch: int) -> None:
    """Llama 4: a position sees those of its own chunk of 8,192."""
    found = attention("llama-4-scout", phase="prefill", batch_size=batch, seq_len=new + cached, new_tokens=new)
    problems = [(call.layer_kind, call.work.problem) for call in found if isinstance(call.work, AttentionWork)]
    chunked = [problem for kind, problem in problems if kind.startswith("window")]
    full = [problem for kind, problem in problems if kind.startswith("full")]

    assert sum(call.batch * call.num_pairs for call in chunked) == batch * sum(
        position % 8192 + 1 for position in range(cached, cached + new)
    )
    assert sum(call.batch * call.q_len for call in chunked) == batch * new
    assert [call.num_pairs for call in full] == [sum(range(cached + 1, cached + new + 1))]


def nbytes(found: Sequence[Operation], name: str) -> tuple[int, int]:
    memory = [operation for operation in found if operation.name == name]
    assert all(isinstance(operation.work, MemoryWork) for operation in memory)
    return tuple(
        sum(getattr(item.work, side) * item.num_layers for item in memory) for side in ("read_bytes", "write_bytes")
    )  # type: ignore[return-value]


def test_bytes_of_memory_bound_operations() -> None:
    found = operations("llama-3-8b", tensor_parallel=2)
    token = 8 * 2  # eight tokens of two bytes

    assert nbytes(found, "ffn_norm") == (32 * token * 2 * 4096,) * 2
    assert nbytes(found, "input_norm") == ((31 * 2 + 1) * token * 4096,) * 2
    assert nbytes(found, "ffn_activation") == (32 * token * 14336, 32 * token * 7168)
    assert nbytes(found, "rotary_kv_write") == (32 * token * (16 + 2 * 4) * 128,) * 2
    fp8 = operations("llama-3-8b", kv_dtype="fp8", tensor_parallel=2)
    assert nbytes(fp8, "rotary_kv_write") == (32 * token * (16 + 8) * 128, 32 * token * (16 + 4) * 128)
    assert nbytes(found, "logits_cast") == (token * 128256, 2 * token * 128256)
    unfused = operations("llama-3-8b", fusions=NONE, tensor_parallel=2)
    assert nbytes(unfused, "rotary") == (32 * token * (16 + 4) * 128,) * 2
    assert nbytes(unfused, "kv_write") == (32 * token * 2 * 4 * 128,) * 2


@pytest.mark.parametrize("name", list_models())
def test_fusions_never_add_bytes_or_change_operations(name: str) -> None:
    for step in STEPS:
        fused, apart = (operations(name, **step, fusions=fusions, experts_as_layer=False) for fusions in (None, NONE))
        total = {
            key: sum(o.work.num_bytes * o.num_layers for o in found if isinstance(o.work, MemoryWork))
            for key, found in (("fused", fused), ("apart", apart))
        }
        flop = [
            sum(o.work.problem.flop * o.num_layers for o in found if isinstance(o.work, GemmWork))
            for found in (fused, apart)
        ]

        assert total["fused"] < total["apart"]
        assert flop[0] == flop[1]
        assert len(fused) < len(apart)


def messages(model: str, **options: Any) -> dict[str, tuple[str, int, int, int]]:
    return {
        o.name: (o.work.what, o.work.message_bytes, o.work.num_ranks, o.num_layers)
        for o in operations(model, **options)
        if isinstance(o.work, CollectiveProblem) and not o.layer_kind.endswith("dense")
    }


def test_messages() -> None:
    hidden = 8 * 2048 * 2
    assert messages("qwen3-30b-a3b") == {}
    assert messages("qwen3-30b-a3b", tensor_parallel=4) == {
        "embedding_all_reduce": ("all_reduce", hidden, 4, 1),
        "attention_all_reduce": ("all_reduce", hidden, 4, 48),
        "ffn_all_reduce": ("all_reduce", hidden, 4, 48),
        "logits_all_gather": ("all_gather", 8 * 151936 // 4 * 2, 4, 1),
    }
    assert messages("qwen3-30b-a3b", expert_parallel=8, pipeline_parallel=2) == {
        "dispatch": ("all_to_all", 8 * hidden, 8, 24),
        "combine": ("all_to_all", 8 * hidden, 8, 24),
        "stage_send": ("send", 2 * hidden, 2, 1),
    }
    block = messages("qwen3-30b-a3b", expert_parallel=8, dtype="fp8_block")
    assert (block["dispatch"][1], block["combine"][1]) == (4 * hidden, 8 * hidden)  # bytes of fp8, and of bf16


def between(model: str | ModelConfig, **options: Any) -> dict[str, tuple[int, int | None, int | None]]:
    return {
        o.name: (o.work.message_bytes, o.work.ranks_per_node, o.work.network_bytes)
        for o in operations(model, **options)
        if isinstance(o.work, CollectiveProblem)
    }


def test_messages_between_nodes() -> None:
    token, wide = 2048 * 2, {"expert_parallel": 16, "node_devices": 8}
    few = between("qwen3-30b-a3b", **wide)  # half of the copies leave the node, each by itself
    assert few["dispatch"] == few["combine"] == (64 * token, None, 32 * token)
    moe = load_model("qwen3-30b-a3b").moe
    assert moe is not None
    for tokens, copies in ((256, moe.experts_per_token), (257, moe.nodes_of_token(2))):
        sent = between("qwen3-30b-a3b", batch_size=tokens, **wide)["dispatch"][2]
        assert sent == pytest.approx(tokens * token * copies / 2, abs=1)
    assert between("qwen3-30b-a3b", expert_parallel=8, node_devices=8)["dispatch"] == (64 * token, None, None)
    for degrees, is_far in (
        ({"pipeline_parallel": 8}, [False] * 7),
        ({"pipeline_parallel": 10}, [False] * 7 + [True, False]),
        ({"pipeline_parallel": 4, "tensor_parallel": 4}, [False, True, False]),
        ({"pipeline_parallel": 3, "expert_parallel": 16}, [True, True]),
    ):
        for stage, far in enumerate(is_far):
            sends = between("qwen3-30b-a3b", stage=stage, node_devices=8, **degrees)
            assert sends["stage_send"][1] == (1 if far else None), (degrees, stage)


@pytest.mark.parametrize("num_nodes", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize(("groups", "chosen"), [(1, 1), (8, 4), (4, 1)])
def test_nodes_of_a_token_are_those_of_draws(num_nodes: int, groups: int, chosen: int) -> None:
    moe = load_model("deepseek-v3").moe
    assert moe is not None
    moe = moe.model_copy(update={"num_groups": groups, "groups_per_token": chosen})
    rng, num_draws = np.random.default_rng(0), 4000
    of_groups = rng.permuted(np.tile(np.arange(groups), (num_draws, 1)), axis=1)[:, :chosen]
    size = 256 // groups
    among = (of_groups[:, :, None] * size + np.arange(size)).reshape(num_draws, -1)
    experts = rng.permuted(among, axis=1)[:, : moe.experts_per_token]
    nodes = [len(set(row)) for row in (experts * num_nodes // 256).tolist()]
    error = 4 * np.std(nodes) / num_draws**0.5 + 1e-9
    assert moe.nodes_of_token(num_nodes) == pytest.approx(np.mean(nodes), abs=error)


def test_redundant_experts_let_more_devices_divide_them() -> None:
    config = load_model("deepseek-v3")
    with pytest.raises(InvalidOptionError, match="must divide moe"):
        operations(config, expert_parallel=144)
    more = with_redundant_experts(config, 32)
    for ranks in (144, 288):
        experts = [o.work for o in operations(more, expert_parallel=ranks) if isinstance(o.work, MoeLayer)]
        assert [layer.num_local_experts for layer in experts] == [288 // ranks]
    assert with_redundant_experts(config, 0) == config
    for model, num in (("llama-3-8b", 1), ("deepseek-v3", 257)):
        with pytest.raises(InvalidOptionError, match="redundant"):
            with_redundant_experts(load_model(model), num)


@pytest.mark.parametrize(("tensor", "expert"), [(1, 1), (4, 2), (2, 8)])
def test_experts_are_a_layer_for_moe_layers(tensor: int, expert: int) -> None:
    degrees = {"tensor_parallel": tensor, "expert_parallel": expert}
    experts = [o for o in operations("deepseek-v3", **degrees, dtype="fp8_block") if isinstance(o.work, MoeLayer)]
    groups = max(1, expert // tensor)

    assert len(experts) == 1
    assert experts[0].num_layers == 58
    work = experts[0].work
    assert isinstance(work, MoeLayer)
    layer = work
    assert (layer.num_tokens, layer.tp, layer.ep) == (8 * groups, max(1, tensor // expert), expert)
    assert layer.with_(dtype=None) == MoeLayer(
        8 * groups, 7168, 2048, 256, 8, tp=max(1, tensor // expert), ep=expert, distribution="uniform"
    )
    assert str(getattr(layer.dtype, "b", "")) == "fp8 (group 128x128)"


@pytest.mark.parametrize(
    ("dtype", "bits", "apart"),
    [
        ("fp8", 8, set()), ("int8", 8, {"o_proj"}), ("fp8_block", 8 + 32 / 128, {"o_proj"}),
        ("nvfp4", 4 + 8 / 16, {"o_proj"}), ("w4a8_fp8", 8, set()),
    ],
)  # fmt: skip
def test_norms_and_activations_write_what_gemms_read(dtype: str, bits: float, apart: set[str]) -> None:
    found = operations("llama-3-8b", dtype=dtype)
    gemms = {o.name: o.work for o in found if isinstance(o.work, GemmWork)}
    assert {name for name, work in gemms.items() if work.quantize_from and not work.is_quantized} == apart
    assert {o.problem.output_dtype for o in gemms.values()} == {DType.BF16}  # the epilogue applies the scales
    assert nbytes(found, "ffn_norm") == (32 * 8 * 4096 * 2 * 2, 32 * 8 * 4096 * (2 + bits / 8))
    assert nbytes(found, "ffn_activation") == (32 * 8 * 14336 * 2 * 2, 32 * 8 * 14336 * bits / 8)
    separate = operations("llama-3-8b", dtype=dtype, fusions=Fusions(quantization=False))
    assert nbytes(separate, "ffn_norm") == (32 * 8 * 4096 * 2 * 2,) * 2
    assert not any(o.work.is_quantized for o in separate if isinstance(o.work, GemmWork))


def test_kinds_and_words() -> None:
    found = operations("deepseek-v3", tensor_parallel=2)

    assert {operation.kind for operation in found} == {"gemm", "attention", "memory", "moe", "collective"}
    assert len(set(found)) == len(found)
    for options, message in (
        ({"fusions": "all"}, "fusions must be Fusions, got 'all'"),
        ({"stage": 1}, "stage must be an integer in 0..0, got 1"),
        ({"experts_as_layer": 1}, "experts_as_layer must be True or False"),
        ({"phase": "train"}, "phase must be one of prefill, decode"),
        ({"expert_parallel": 2}, "expert_parallel is for models with experts: llama-3-8b has none"),
        ({"new_tokens": 0}, "new_tokens must be an integer in 1..1024, got 0"),
        ({"new_tokens": 2000}, "new_tokens must be an integer in 1..1024, got 2000"),
    ):
        with pytest.raises(InvalidOptionError) as caught:
            operations("llama-3-8b", **options)
        assert message in str(caught.value)
    with pytest.raises(InvalidOptionError, match="qkv must be True or False"):
        Fusions(qkv=1)  # type: ignore[arg-type]
