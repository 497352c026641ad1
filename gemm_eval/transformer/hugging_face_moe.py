"""`config.json` of mixtures of experts whose layers are built in ways of their own: gpt-oss, Llama 4."""

from __future__ import annotations

from gemm_eval.transformer.hugging_face_common import Fields, attention, biases, gated, num_layers, sizes
from gemm_eval.transformer.json import Keys

__all__ = ["read_gpt_oss", "read_llama4", "read_llama4_text"]

_ROPE_INTERVAL = 4  # of Llama 4: every fourth layer has no rotary positions, where the file does not say it


def read_gpt_oss(keys: Keys) -> Fields:
    """gpt-oss: biases everywhere, sinks in attention; every other layer, from the first on, attends to a window."""
    layers = num_layers(keys)
    keys.size("sliding_window")
    attended = attention(keys, window_layers=(layers + 1) // 2, sinks=True, **biases(keys))
    moe = {
        "num_layers": layers,
        "num_experts": keys.size("num_local_experts"),
        "experts_per_token": keys.size("num_experts_per_tok"),
        "intermediate_size": keys.size("intermediate_size"),
        "router_bias": True,
        "expert_bias": True,
    }
    return {**sizes(keys), "attention": attended, "moe": moe}


def read_llama4(keys: Keys) -> Fields:
    """Llama 4 as published, of which the language part is read: its vision encoder is no part of the model here."""
    return read_llama4_text(keys.part("text_config"))


def read_llama4_text(keys: Keys) -> Fields:
    """Llama 4, text: layers with rotary positions attend within chunks; each layer with experts has a shared one too.

    Its norms of queries and keys have no weights.
    """
    layers = num_layers(keys)
    heads, kv_heads = keys.size("num_attention_heads"), keys.size("num_key_value_heads")
    if heads % kv_heads:
        keys.refuse("num_key_value_heads", f"must divide num_attention_heads = {heads}")
    chunk = keys.optional_size("attention_chunk_size")
    num_chunked = _num_rope_layers(keys, layers) if chunk is not None else 0
    attended = {
        "kind": "gqa",
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": keys.size("head_dim"),
        "window_size": chunk if num_chunked else None,
        "num_window_layers": num_chunked,
        **biases(keys),
    }
    num_moe = _num_moe_layers(keys, layers)
    moe = {
        "num_layers": num_moe,
        "num_experts": keys.size("num_local_experts"),
        "experts_per_token": keys.size("num_experts_per_tok"),
        "intermediate_size": keys.size("intermediate_size"),
        "num_shared_experts": 1,
    }
    ffn = gated(keys) | {"intermediate_size": keys.size("intermediate_size_mlp")} if num_moe < layers else None
    return {**sizes(keys), "attention": attended, "ffn": ffn, "moe": moe if num_moe else None}


def _num_rope_layers(keys: Keys, layers: int) -> int:
    """Layers with rotary positions: `no_rope_layers` says 1 of them, its name notwithstanding."""
    with_rope = keys.items("no_rope_layers", int)
    if not with_rope:
        return layers - layers // keys.size("no_rope_layer_interval", _ROPE_INTERVAL)
    if len(with_rope) != layers or not set(with_rope) <= {0, 1}:
        keys.refuse("no_rope_layers", f"must be {layers} times 0 or 1")
    return sum(with_rope)


def _num_moe_layers(keys: Keys, layers: int) -> int:
    """Layers with experts: those listed, or each interleave_moe_layer_step-th."""
    listed = keys.items("moe_layers", int)
    if listed is None:
        return layers // keys.size("interleave_moe_layer_step")
    if len(set(listed)) != len(listed) or not all(0 <= layer < layers for layer in listed):
        keys.refuse("moe_layers", f"must be different layers of 0..{layers - 1}")
    return len(listed)
