"""`config.json` of architectures whose layers are dense: Llama, Mistral, Phi, Qwen, GLM, Gemma."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gemm_eval.transformer.hugging_face_common import Fields, attention, biases, gated, num_layers, sizes
from gemm_eval.transformer.json import Keys

__all__ = [
    "qwen_windows",
    "read_gemma",
    "read_gemma2",
    "read_gemma3",
    "read_glm",
    "read_glm4",
    "read_llama",
    "read_ministral",
    "read_mistral",
    "read_phi3",
    "read_qwen2",
    "read_qwen3",
]


def read_llama(keys: Keys) -> Fields:
    """Llama 1 to 3."""
    ffn = gated(keys, has_bias=keys.flag("mlp_bias", default=False))
    attended = attention(keys, derives_kv_heads=True, **biases(keys))
    return {**sizes(keys), "attention": attended, "ffn": ffn}


def read_mistral(keys: Keys) -> Fields:
    """Mistral: all layers have the window, if there is one."""
    keys.require("sliding_window")  # null is no window, but a missing one would be 4096
    return {**sizes(keys), "attention": attention(keys, windows=range(num_layers(keys))), "ffn": gated(keys)}


def read_ministral(keys: Keys) -> Fields:
    """Ministral, whose file says of each layer whether it has the window; Ministral 3, which has none."""
    return {**sizes(keys), "attention": attention(keys, windows=range(num_layers(keys))), "ffn": gated(keys)}


def read_phi3(keys: Keys) -> Fields:
    """Phi-3, Phi-4, Phi-4-mini: all layers have the window, if there is one."""
    attended = attention(keys, windows=range(num_layers(keys)), derives_kv_heads=True)
    return {**sizes(keys), "attention": attended, "ffn": gated(keys)}


def read_glm(keys: Keys) -> Fields:
    """GLM-4: biases on queries, keys and values, half of a head turns."""
    bias = keys.flag("attention_bias", default=False)
    keys.fraction("partial_rotary_factor", 1.0)
    return {**sizes(keys), "attention": attention(keys, qkv_bias=bias), "ffn": gated(keys)}


def read_glm4(keys: Keys) -> Fields:
    """GLM-4-0414: norms after attention and FFN too."""
    return read_glm(keys) | {"norms_per_layer": 4}


def qwen_windows(keys: Keys) -> Iterable[int]:
    """Qwen windows its upper layers, from max_window_layers on, and only if use_sliding_window says so."""
    if not keys.flag("use_sliding_window", default=False):
        return ()
    return range(keys.count("max_window_layers"), num_layers(keys))


def read_qwen2(keys: Keys) -> Fields:
    """Qwen2 and Qwen2.5, also the language part of Qwen2-VL and Qwen2.5-VL."""
    attended = attention(keys, windows=qwen_windows(keys), qkv_bias=True)
    return {**sizes(keys), "attention": attended, "ffn": gated(keys)}


def read_qwen3(keys: Keys) -> Fields:
    """Qwen3, also the language part of Qwen3-VL."""
    keys.size("head_dim")  # Qwen3 does not derive it from hidden_size
    attended = attention(keys, windows=qwen_windows(keys), qk_norm=True, **biases(keys))
    return {**sizes(keys), "attention": attended, "ffn": gated(keys)}


def read_gemma(keys: Keys) -> Fields:
    """Gemma 1."""
    return _gemma(keys)


def read_gemma2(keys: Keys) -> Fields:
    """Gemma 2: every other layer, from the first on, attends to a window."""
    keys.size("sliding_window")
    return _gemma(keys, windows=range(0, num_layers(keys), 2)) | {"norms_per_layer": 4}


def read_gemma3(keys: Keys) -> Fields:
    """Gemma 3, text: all layers but each sliding_window_pattern-th attend to a window."""
    windows: list[int] = []
    keys.size("sliding_window")
    keys.ignore("_sliding_window_pattern", "sliding_window_pattern")
    if "layer_types" not in keys:
        key = "_sliding_window_pattern" if "_sliding_window_pattern" in keys else "sliding_window_pattern"
        period = keys.size(key)
        windows = [layer for layer in range(num_layers(keys)) if (layer + 1) % period]
    return _gemma(keys, windows=windows, qk_norm=True) | {"norms_per_layer": 4}


def _gemma(keys: Keys, *, windows: Iterable[int] = (), **options: Any) -> Fields:
    keys.size("head_dim")  # Gemma does not derive it from hidden_size
    attended = attention(keys, windows=windows, **options, **biases(keys))
    return {**sizes(keys, tied=True), "attention": attended, "ffn": gated(keys)}
