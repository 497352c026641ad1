"""Hugging Face `config.json` files as they are: each architecture is read by its own key names.

Where a key is missing, the value is the one that the architecture itself derives (KV heads from heads, say); other
missing keys are errors, because a silent default of some library version would be a guess.
Source of names, rules, biases and norms: `configuration_*.py` and `modeling_*.py` of the architectures in Hugging
Face transformers (4.40 to 4.57), and the DeepSeek model repositories.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gemm_eval.transformer.config import ModelConfig, build_config
from gemm_eval.transformer.hugging_face_common import Fields, attention, biases, gated, num_layers, sizes
from gemm_eval.transformer.hugging_face_gpt import read_gpt2, read_gpt_neox, read_opt
from gemm_eval.transformer.hugging_face_moe import read_gpt_oss, read_llama4, read_llama4_text
from gemm_eval.transformer.json import Keys
from gemm_eval.words import did_you_mean

__all__ = ["MODEL_TYPES", "parse_config"]


def parse_config(data: Mapping[str, Any], *, name: str, origin: str) -> ModelConfig:
    """Return the `ModelConfig` that the content of a `config.json` describes; `origin` names the file in messages.

    Raises:
        ModelConfigError: `model_type` is unknown, a key is missing or has an impossible value, or keys contradict.
    """
    keys = Keys(data, origin)
    kind = keys.text("model_type")
    reader = _READERS.get(kind)
    if reader is None:
        hint = "; for the language part, give its text_config as a file of its own" if "text_config" in keys else ""
        keys.refuse("model_type", f"must be one of {', '.join(MODEL_TYPES)}{did_you_mean(kind, MODEL_TYPES)}{hint}")
    source = f"Hugging Face config.json, model_type {kind}"
    return build_config({"name": name, "source": source, **reader(keys)}, origin=origin)


def _read_llama(keys: Keys) -> Fields:
    ffn = gated(keys, has_bias=keys.flag("mlp_bias", default=False))
    attended = attention(keys, derives_kv_heads=True, **biases(keys))
    return {**sizes(keys), "attention": attended, "ffn": ffn}


def _read_mistral(keys: Keys) -> Fields:
    keys.require("sliding_window")  # null is no window, but a missing one would be 4096
    attended = attention(keys, window_layers=num_layers(keys))
    return {**sizes(keys), "attention": attended, "ffn": gated(keys)}


def _read_phi3(keys: Keys) -> Fields:
    attended = attention(keys, window_layers=num_layers(keys), derives_kv_heads=True)
    return {**sizes(keys), "attention": attended, "ffn": gated(keys)}


def _read_mixtral(keys: Keys) -> Fields:
    layers = num_layers(keys)
    moe = {
        "num_layers": layers,
        "num_experts": keys.size("num_local_experts"),
        "experts_per_token": keys.size("num_experts_per_tok"),
        "intermediate_size": keys.size("intermediate_size"),
    }
    return {**sizes(keys), "attention": attention(keys, window_layers=layers), "moe": moe}


def _qwen_window_layers(keys: Keys) -> int:
    """Qwen windows its upper layers, from max_window_layers on, and only if use_sliding_window says so."""
    if not keys.flag("use_sliding_window", default=False):
        return 0
    return max(0, num_layers(keys) - keys.count("max_window_layers"))


def _read_qwen2(keys: Keys) -> Fields:
    attended = attention(keys, window_layers=_qwen_window_layers(keys), qkv_bias=True)
    return {**sizes(keys), "attention": attended, "ffn": gated(keys)}


def _read_qwen3(keys: Keys) -> Fields:
    keys.size("head_dim")  # Qwen3 does not derive it from hidden_size
    attended = attention(keys, window_layers=_qwen_window_layers(keys), qk_norm=True, **biases(keys))
    return {**sizes(keys), "attention": attended, "ffn": gated(keys)}


def _qwen_experts(keys: Keys, **shared: Any) -> Fields:
    layers = num_layers(keys)
    step = keys.size("decoder_sparse_step", 1)
    dense = set(keys.items("mlp_only_layers", int) or ())
    num_moe = sum((layer + 1) % step == 0 and layer not in dense for layer in range(layers))
    moe = {
        "num_layers": num_moe,
        "num_experts": keys.size("num_experts"),
        "experts_per_token": keys.size("num_experts_per_tok"),
        "intermediate_size": keys.size("moe_intermediate_size"),
        **shared,
    }
    return {"moe": moe if num_moe else None, "ffn": gated(keys) if num_moe < layers else None}


def _read_qwen2_moe(keys: Keys) -> Fields:
    attended = attention(keys, window_layers=_qwen_window_layers(keys), qkv_bias=keys.flag("qkv_bias", default=True))
    shared = keys.size("shared_expert_intermediate_size")
    experts = _qwen_experts(keys, num_shared_experts=1, shared_intermediate_size=shared, shared_gate=True)
    return {**sizes(keys), "attention": attended, **experts}


def _read_qwen3_moe(keys: Keys) -> Fields:
    attended = attention(keys, window_layers=_qwen_window_layers(keys), qk_norm=True, **biases(keys))
    return {**sizes(keys), "attention": attended, **_qwen_experts(keys)}


def _read_deepseek(keys: Keys) -> Fields:
    if keys.flag("attention_bias", default=False):
        keys.refuse("attention_bias", "must be false: latent attention with biases is not supported")
    keys.require("q_lora_rank", "n_routed_experts", "n_shared_experts", "first_k_dense_replace")
    dims = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    latent = {
        "kind": "mla",
        "num_heads": keys.size("num_attention_heads"),
        "q_lora_rank": keys.optional_size("q_lora_rank"),
        **{key: keys.size(key) for key in dims},
    }
    layers = num_layers(keys)
    num_moe = 0
    if "n_routed_experts" in keys:
        first, step = keys.count("first_k_dense_replace", 0), keys.size("moe_layer_freq", 1)
        num_moe = sum(layer >= first and layer % step == 0 for layer in range(layers))
    moe: Fields | None = None
    if num_moe:
        # V3 balances its experts with a learned bias each (topk_method noaux_tc), which is part of the checkpoint
        method = keys.text("topk_method", "noaux_tc" if keys.text("model_type") == "deepseek_v3" else "greedy")
        moe = {
            "num_layers": num_moe,
            "num_experts": keys.size("n_routed_experts"),
            "experts_per_token": keys.size("num_experts_per_tok"),
            "intermediate_size": keys.size("moe_intermediate_size"),
            "num_shared_experts": keys.count("n_shared_experts", 0),
            "router_bias": method == "noaux_tc",
        }
    ffn = gated(keys) if num_moe < layers else None
    return {**sizes(keys), "attention": latent, "ffn": ffn, "moe": moe}


def _read_gemma(keys: Keys) -> Fields:
    return _gemma(keys, window_layers=0)


def _read_gemma2(keys: Keys) -> Fields:
    """Gemma 2: every other layer, from the first on, attends to a window."""
    keys.size("sliding_window")
    return _gemma(keys, window_layers=(num_layers(keys) + 1) // 2) | {"norms_per_layer": 4}


def _read_gemma3(keys: Keys) -> Fields:
    """Gemma 3, text: all layers but each sliding_window_pattern-th attend to a window."""
    layers, window_layers = num_layers(keys), 0
    keys.size("sliding_window")
    if "layer_types" not in keys:
        key = "_sliding_window_pattern" if "_sliding_window_pattern" in keys else "sliding_window_pattern"
        window_layers = layers - layers // keys.size(key)
    return _gemma(keys, window_layers=window_layers, qk_norm=True) | {"norms_per_layer": 4}


def _gemma(keys: Keys, *, window_layers: int, **options: Any) -> Fields:
    keys.size("head_dim")  # Gemma does not derive it from hidden_size
    attended = attention(keys, window_layers=window_layers, **options, **biases(keys))
    return {**sizes(keys, tied=True), "attention": attended, "ffn": gated(keys)}


_READERS: Mapping[str, Callable[[Keys], Fields]] = {
    "deepseek_v2": _read_deepseek,
    "deepseek_v3": _read_deepseek,
    "gemma": _read_gemma,
    "gemma2": _read_gemma2,
    "gemma3_text": _read_gemma3,
    "gpt2": read_gpt2,
    "gpt_neox": read_gpt_neox,
    "gpt_oss": read_gpt_oss,
    "llama": _read_llama,
    "llama4": read_llama4,
    "llama4_text": read_llama4_text,
    "mistral": _read_mistral,
    "mixtral": _read_mixtral,
    "opt": read_opt,
    "phi3": _read_phi3,
    "qwen2": _read_qwen2,
    "qwen2_moe": _read_qwen2_moe,
    "qwen3": _read_qwen3,
    "qwen3_moe": _read_qwen3_moe,
}

MODEL_TYPES = tuple(sorted(_READERS))
"""The `model_type` values of `config.json` that are read."""
