"""What the readers of `config.json` share: fields whose keys most architectures have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gemm_eval.transformer.json import Keys
from gemm_eval.transformer.layers import layers_text

__all__ = [
    "Fields",
    "attention",
    "biases",
    "gated",
    "head_dim",
    "kv_heads",
    "num_layers",
    "rotary_dim",
    "sizes",
    "some",
]

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


def some(layers: Iterable[int], num: int) -> str | None:
    """Some of `num` layers as text; None: all or none, which needs no saying."""
    found = sorted(layers)
    return layers_text(found) if 0 < len(found) < num else None


def kv_heads(keys: Keys, default: int | None = None) -> int:
    """`num_key_value_heads`, which divide the query heads."""
    heads = keys.size("num_attention_heads")
    found = keys.size("num_key_value_heads") if default is None else keys.size("num_key_value_heads", default)
    if heads % found:
        keys.refuse("num_key_value_heads", f"must divide num_attention_heads = {heads}")
    return found


def rotary_dim(keys: Keys, size: int) -> int | None:
    """Elements of a head of `size` that turn, where the file says that not all do."""
    factor = keys.fraction("partial_rotary_factor", 1.0)
    if "rope_parameters" in keys:
        factor = keys.part("rope_parameters").fraction("partial_rotary_factor", factor)
    return None if factor == 1 else int(size * factor)


def attention(keys: Keys, *, windows: Iterable[int] = (), derives_kv_heads: bool = False, **options: Any) -> Fields:
    """Grouped attention from the usual keys.

    `windows` are the layers with a window where one is given but no layer_types; `derives_kv_heads`: none given means
    one a head.
    """
    heads = keys.size("num_attention_heads")
    num_kv_heads = kv_heads(keys, heads if derives_kv_heads else None)
    layers, types = num_layers(keys), keys.items("layer_types", str)
    if types is not None:
        if len(types) != layers or not set(types) <= {"full_attention", "sliding_attention"}:
            keys.refuse("layer_types", f"must be {layers} times full_attention or sliding_attention")
        windows = [layer for layer, kind in enumerate(types) if kind == "sliding_attention"]
    elif "sliding_window" not in keys:
        windows = ()
    windows = tuple(windows)
    size = keys.size("head_dim") if "head_dim" in keys else head_dim(keys)
    return {
        "kind": "gqa",
        "num_heads": heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": size,
        "window_size": keys.size("sliding_window") if windows else None,
        "num_window_layers": len(windows),
        "window_layers": some(windows, layers),
        "rotary_dim": rotary_dim(keys, size),
        **options,
    }


def gated(keys: Keys, *, has_bias: bool = False) -> Fields:
    """A gated FFN of `intermediate_size`."""
    return {"intermediate_size": keys.size("intermediate_size"), "has_bias": has_bias}


def biases(keys: Keys) -> Fields:
    """`attention_bias` as Llama means it: on all four projections."""
    bias = keys.flag("attention_bias", default=False)
    return {"qkv_bias": bias, "output_bias": bias}
