"""What the readers of `config.json` share: fields whose keys most architectures have in common."""

from __future__ import annotations

from typing import Any

from gemm_eval.transformer.json import Keys

__all__ = ["Fields", "attention", "biases", "gated", "head_dim", "num_layers", "sizes"]

Fields = dict[str, Any]
"""Fields of a `ModelConfig` or of a part of it, not validated yet."""

_MAX_LAYERS = 1 << 16


def num_layers(keys: Keys) -> int:
    """`num_hidden_layers`."""
    return keys.size("num_hidden_layers", at_most=_MAX_LAYERS)


def sizes(keys: Keys, *, tied: bool = False) -> Fields:
    """The fields whose keys most architectures share; `tied` is what a missing `tie_word_embeddings` stands for."""
    return {
        "hidden_size": keys.size("hidden_size"),
        "num_layers": num_layers(keys),
        "vocab_size": keys.size("vocab_size"),
        "tied_embeddings": keys.flag("tie_word_embeddings", default=tied),
    }


def head_dim(keys: Keys, hidden_key: str = "hidden_size", heads_key: str = "num_attention_heads") -> int:
    """The size of a head where the architecture derives it: hidden size over heads."""
    hidden, heads = keys.size(hidden_key), keys.size(heads_key)
    if hidden % heads:
        keys.refuse(heads_key, f"must divide {hidden_key} = {hidden}, as no head_dim is given")
    return hidden // heads


def attention(keys: Keys, *, window_layers: int = 0, derives_kv_heads: bool = False, **options: Any) -> Fields:
    """Grouped attention from the usual keys.

    `window_layers` holds where a window is given but no layer_types; `derives_kv_heads`: none given means one a head.
    """
    heads = keys.size("num_attention_heads")
    kv_heads = keys.size("num_key_value_heads", heads) if derives_kv_heads else keys.size("num_key_value_heads")
    if heads % kv_heads:
        keys.refuse("num_key_value_heads", f"must divide num_attention_heads = {heads}")
    layers, types = num_layers(keys), keys.items("layer_types", str)
    if types is not None:
        if len(types) != layers or not set(types) <= {"full_attention", "sliding_attention"}:
            keys.refuse("layer_types", f"must be {layers} times full_attention or sliding_attention")
        window_layers = types.count("sliding_attention")
    elif "sliding_window" not in keys:
        window_layers = 0
    return {
        "kind": "gqa",
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": keys.size("head_dim") if "head_dim" in keys else head_dim(keys),
        "window_size": keys.size("sliding_window") if window_layers else None,
        "num_window_layers": window_layers,
        **options,
    }


def gated(keys: Keys, *, has_bias: bool = False) -> Fields:
    """A gated FFN of `intermediate_size`."""
    return {"intermediate_size": keys.size("intermediate_size"), "has_bias": has_bias}


def biases(keys: Keys) -> Fields:
    """`attention_bias` as Llama means it: on all four projections."""
    bias = keys.flag("attention_bias", default=False)
    return {"qkv_bias": bias, "output_bias": bias}
