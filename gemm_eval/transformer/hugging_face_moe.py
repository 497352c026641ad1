"""`config.json` of mixtures of experts: Mixtral, Phi-3.5-MoE, Qwen, DeepSeek and Kimi, GLM, gpt-oss, Llama 4."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gemm_eval.transformer.hugging_face_common import (
    Fields,
    attention,
    biases,
    kv_heads,
    num_layers,
    rotary_dim,
    sizes,
    some,
)
from gemm_eval.transformer.hugging_face_dense import qwen_windows
from gemm_eval.transformer.json import Keys

__all__ = [
    "read_deepseek",
    "read_glm4_moe",
    "read_gpt_oss",
    "read_llama4",
    "read_mixtral",
    "read_phimoe",
    "read_qwen2_moe",
    "read_qwen3_moe",
]

_ROPE_INTERVAL = 4  # of Llama 4: every fourth layer has no rotary positions, where the file does not say it


def _experts(keys: Keys, layers: Iterable[int], experts_key: str, width_key: str, **more: Any) -> Fields | None:
    """The experts of `layers`; None: there are none."""
    found = tuple(layers)
    if not found:
        keys.ignore(experts_key, "num_experts_per_tok", width_key)
        return None
    return {
        "num_layers": len(found),
        "layers": some(found, num_layers(keys)),
        "num_experts": keys.size(experts_key),
        "experts_per_token": keys.size("num_experts_per_tok"),
        "intermediate_size": keys.size(width_key),
        **more,
    }


def _dense(keys: Keys, moe: Fields | None, key: str = "intermediate_size") -> Fields | None:
    """The FFN of the layers without experts; None: all have them."""
    if moe is not None and moe["num_layers"] == num_layers(keys):
        keys.ignore(key)
        return None
    return {"intermediate_size": keys.size(key), "has_bias": False}


def read_mixtral(keys: Keys) -> Fields:
    """Mixtral."""
    layers = range(num_layers(keys))
    moe = _experts(keys, layers, "num_local_experts", "intermediate_size")
    return {**sizes(keys), "attention": attention(keys, windows=layers), "moe": moe}


def read_phimoe(keys: Keys) -> Fields:
    """Phi-3.5-MoE: Mixtral with layer norms and biases, one on the LM head too."""
    return read_mixtral(keys) | {
        "attention": attention(keys, windows=range(num_layers(keys)), **biases(keys)),
        "norm": "layer",
        "lm_head_bias": keys.flag("lm_head_bias", default=False),
    }


def _qwen_experts(keys: Keys, **shared: Any) -> Fields:
    step = keys.size("decoder_sparse_step", 1)
    dense = set(keys.items("mlp_only_layers", int) or ())
    layers = [layer for layer in range(num_layers(keys)) if (layer + 1) % step == 0 and layer not in dense]
    moe = _experts(keys, layers, "num_experts", "moe_intermediate_size", **shared)
    return {"moe": moe, "ffn": _dense(keys, moe)}


def read_qwen2_moe(keys: Keys) -> Fields:
    """Qwen1.5 and Qwen2 MoE: a shared expert with a gate of its own."""
    attended = attention(keys, windows=qwen_windows(keys), qkv_bias=keys.flag("qkv_bias", default=True))
    shared = keys.size("shared_expert_intermediate_size")
    experts = _qwen_experts(keys, num_shared_experts=1, shared_intermediate_size=shared, shared_gate=True)
    return {**sizes(keys), "attention": attended, **experts}


def read_qwen3_moe(keys: Keys) -> Fields:
    """Qwen3 MoE, also the language part of Qwen3-VL-MoE."""
    if not keys.flag("use_qk_norm", default=True):
        keys.refuse("use_qk_norm", "must be true: Qwen3 has norms of queries and keys")
    attended = attention(keys, windows=qwen_windows(keys), qk_norm=True, **biases(keys))
    return {**sizes(keys), "attention": attended, **_qwen_experts(keys)}


def read_deepseek(keys: Keys) -> Fields:
    """DeepSeek-V2 and V3, Kimi K2, Moonlight: latent attention, first layers dense, shared experts."""
    if keys.flag("attention_bias", default=False):
        keys.refuse("attention_bias", "must be false: latent attention with biases is not supported")
    keys.require("q_lora_rank", "n_routed_experts", "n_shared_experts", "first_k_dense_replace")
    keys.ignore("num_key_value_heads", "head_dim", "qk_head_dim", "moe_layer_freq", "num_experts_per_tok")
    keys.ignore("moe_intermediate_size", "n_shared_experts", "first_k_dense_replace")
    dims = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    latent = {
        "kind": "mla",
        "num_heads": keys.size("num_attention_heads"),
        "q_lora_rank": keys.optional_size("q_lora_rank"),
        **{key: keys.size(key) for key in dims},
    }
    layers: Iterable[int] = ()
    if "n_routed_experts" in keys:
        first, step = keys.count("first_k_dense_replace", 0), keys.size("moe_layer_freq", 1)
        layers = [layer for layer in range(num_layers(keys)) if layer >= first and layer % step == 0]
    # V3 balances its experts with a learned bias each (topk_method noaux_tc), which is part of the checkpoint
    method = keys.text("topk_method", "greedy" if keys.text("model_type") == "deepseek_v2" else "noaux_tc")
    moe = _experts(keys, layers, "n_routed_experts", "moe_intermediate_size", router_bias=method == "noaux_tc")
    if moe is not None:
        moe["num_shared_experts"] = keys.count("n_shared_experts", 0)
    rest = {"ffn": _dense(keys, moe), "moe": moe, "num_mtp_layers": _num_mtp_layers(keys)}
    return {**sizes(keys), "attention": latent, **rest}


def _num_mtp_layers(keys: Keys) -> int:
    return keys.count("num_nextn_predict_layers", 0)


def read_glm4_moe(keys: Keys) -> Fields:
    """GLM-4.5, 4.6, 4.7: DeepSeek-V3's experts behind grouped attention, half of a head turns."""
    bias = keys.flag("attention_bias", default=False)
    attended = attention(keys, qkv_bias=bias, qk_norm=keys.flag("use_qk_norm", default=False))
    layers = range(min(keys.count("first_k_dense_replace"), num_layers(keys)), num_layers(keys))
    moe = _experts(keys, layers, "n_routed_experts", "moe_intermediate_size", router_bias=True)
    if moe is not None:
        moe["num_shared_experts"] = keys.count("n_shared_experts")
    rest = {"ffn": _dense(keys, moe), "moe": moe, "num_mtp_layers": _num_mtp_layers(keys)}
    return {**sizes(keys), "attention": attended, **rest}


def read_gpt_oss(keys: Keys) -> Fields:
    """gpt-oss: biases everywhere, sinks in attention; every other layer, from the first on, attends to a window."""
    layers = num_layers(keys)
    keys.size("sliding_window")
    attended = attention(keys, windows=range(0, layers, 2), sinks=True, **biases(keys))
    moe = _experts(keys, range(layers), "num_local_experts", "intermediate_size", router_bias=True, expert_bias=True)
    return {**sizes(keys), "attention": attended, "moe": moe}


def read_llama4(keys: Keys) -> Fields:
    """Llama 4, text: layers with rotary positions attend within chunks; each layer with experts has a shared one too.

    Its norms of queries and keys have no weights.
    """
    layers = num_layers(keys)
    with_rope = _rope_layers(keys, layers)
    chunk = keys.optional_size("attention_chunk_size")
    chunked = _chunked_layers(keys, with_rope) if chunk is not None else []
    size = keys.size("head_dim")
    attended = {
        "kind": "gqa",
        "num_heads": keys.size("num_attention_heads"),
        "num_kv_heads": kv_heads(keys),
        "head_dim": size,
        "window_size": chunk if chunked else None,
        "num_window_layers": len(chunked),
        "window_layers": some(chunked, layers),
        "window_is_chunk": bool(chunked),
        "rotary_dim": rotary_dim(keys, size),
        "no_rope_layers": some(set(range(layers)) - set(with_rope), layers),
        "qk_l2_norm": keys.flag("use_qk_norm", default=True),
        **biases(keys),
    }
    moe = _experts(keys, _llama4_moe_layers(keys, layers), "num_local_experts", "intermediate_size")
    if moe is not None:
        moe["num_shared_experts"] = 1
    keys.ignore("interleave_moe_layer_step")
    return {**sizes(keys), "attention": attended, "ffn": _dense(keys, moe, "intermediate_size_mlp"), "moe": moe}


def _rope_layers(keys: Keys, layers: int) -> list[int]:
    """Layers with rotary positions: `no_rope_layers` says 1 of them, its name notwithstanding."""
    keys.ignore("no_rope_layer_interval")
    with_rope = keys.items("no_rope_layers", int)
    if not with_rope:
        interval = keys.size("no_rope_layer_interval", _ROPE_INTERVAL)
        return [layer for layer in range(layers) if (layer + 1) % interval]
    if len(with_rope) != layers or not set(with_rope) <= {0, 1}:
        keys.refuse("no_rope_layers", f"must be {layers} times 0 or 1")
    return [layer for layer in range(layers) if with_rope[layer]]


def _chunked_layers(keys: Keys, with_rope: list[int]) -> list[int]:
    types = keys.items("layer_types", str)
    if types is None:
        return with_rope
    layers = num_layers(keys)
    if len(types) != layers or not set(types) <= {"full_attention", "chunked_attention"}:
        keys.refuse("layer_types", f"must be {layers} times full_attention or chunked_attention")
    return [layer for layer, kind in enumerate(types) if kind == "chunked_attention"]


def _llama4_moe_layers(keys: Keys, layers: int) -> list[int]:
    """Layers with experts: those listed, or each interleave_moe_layer_step-th."""
    listed = keys.items("moe_layers", int)
    if listed is None:
        step = keys.size("interleave_moe_layer_step")
        return list(range(step - 1, layers, step))
    if len(set(listed)) != len(listed) or not all(0 <= layer < layers for layer in listed):
        keys.refuse("moe_layers", f"must be different layers of 0..{layers - 1}")
    return sorted(listed)
