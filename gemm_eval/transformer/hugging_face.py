"""Hugging Face `config.json` files as they are: each architecture is read by its own key names.

Where a key is missing, the value is the one that the architecture itself derives (KV heads from heads, say); other
missing keys are errors, because a silent default of some library version would be a guess. Keys that are neither read
nor known to say nothing about sizes and operations are refused by name.
Source of names, rules, biases and norms: `configuration_*.py` and `modeling_*.py` of the architectures in Hugging
Face transformers (4.40 to 4.57), and the DeepSeek model repositories.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gemm_eval.dtypes import DType
from gemm_eval.transformer.config import ModelConfig, build_config
from gemm_eval.transformer.hugging_face_common import Fields
from gemm_eval.transformer.hugging_face_dense import (
    read_gemma,
    read_gemma2,
    read_gemma3,
    read_glm,
    read_glm4,
    read_llama,
    read_ministral,
    read_mistral,
    read_phi3,
    read_qwen2,
    read_qwen3,
)
from gemm_eval.transformer.hugging_face_gpt import read_gpt2, read_gpt_neox, read_opt
from gemm_eval.transformer.hugging_face_keys import IRRELEVANT, OF_WRAPPERS, REFUSED_TYPES, WRAPPERS
from gemm_eval.transformer.hugging_face_moe import (
    read_deepseek,
    read_glm4_moe,
    read_gpt_oss,
    read_llama4,
    read_mixtral,
    read_phimoe,
    read_qwen2_moe,
    read_qwen3_moe,
)
from gemm_eval.transformer.hugging_face_quantization import read_quantization
from gemm_eval.transformer.json import Keys
from gemm_eval.words import did_you_mean

__all__ = ["MODEL_TYPES", "parse_config"]

_DTYPES = {"bfloat16": DType.BF16, "float16": DType.FP16, "float32": DType.FP32}
_INHERITED = ("dtype", "torch_dtype", "quantization_config", "tie_word_embeddings")
# Gemma 3's published files leave out of text_config what its configuration class says (transformers, Gemma3TextConfig).
_TEXT_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma3": {
        "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "sliding_window_pattern": 6,
    },
}  # fmt: skip


def parse_config(data: Mapping[str, Any], *, name: str, origin: str) -> ModelConfig:
    """Return the `ModelConfig` that the content of a `config.json` describes; `origin` names the file in messages.

    Of a model that also sees or hears, the language part (`text_config`) is read.

    Raises:
        ModelConfigError: `model_type` is unknown or of an architecture that is not modelled, a key is missing, unknown
            or has an impossible value, or keys contradict.
    """
    keys = Keys(data, origin)
    kind = keys.text("model_type")
    said, outer = kind, None
    if kind in WRAPPERS and "text_config" in keys:
        outer = keys
        keys = keys.part("text_config").over(
            outer, _INHERITED, {"model_type": WRAPPERS[kind], **_TEXT_DEFAULTS.get(kind, {})}
        )
        kind = keys.text("model_type")
        said = f"{said}, text_config of model_type {kind}"
    reader = _READERS.get(kind)
    if reader is None:
        if kind in REFUSED_TYPES:
            keys.refuse("model_type", f"is of an architecture that is not modelled: {REFUSED_TYPES[kind]}")
        hint = "; for the language part, give its text_config as a file of its own" if "text_config" in keys else ""
        keys.refuse("model_type", f"must be one of {', '.join(MODEL_TYPES)}{did_you_mean(kind, MODEL_TYPES)}{hint}")
    fields: Fields = {"name": name, "source": f"Hugging Face config.json, model_type {said}", **reader(keys)}
    fields["dtype"] = _dtype(keys)
    plain = build_config(fields, origin=origin)
    if "quantization_config" in keys:
        fields["quantization"] = read_quantization(keys.part("quantization_config"), plain, kind)
    if outer is not None:
        outer.refuse_rest(IRRELEVANT | OF_WRAPPERS)
    keys.refuse_rest(IRRELEVANT | (OF_WRAPPERS if kind in WRAPPERS else frozenset()))
    return build_config(fields, origin=origin) if "quantization" in fields else plain


def _dtype(keys: Keys) -> DType | None:
    """`dtype`, or `torch_dtype` as older files call it."""
    key = "dtype" if "dtype" in keys else "torch_dtype"
    keys.ignore("torch_dtype")
    if key not in keys:
        return None
    word = keys.text(key).removeprefix("torch.")
    if word not in _DTYPES:
        keys.refuse(key, f"must be one of {', '.join(_DTYPES)}")
    return _DTYPES[word]


_READERS: Mapping[str, Callable[[Keys], Fields]] = {
    "deepseek_v2": read_deepseek,
    "deepseek_v3": read_deepseek,
    "gemma": read_gemma,
    "gemma2": read_gemma2,
    "gemma3_text": read_gemma3,
    "glm": read_glm,
    "glm4": read_glm4,
    "glm4_moe": read_glm4_moe,
    "glm4v_moe_text": read_glm4_moe,
    "glm4v_text": read_glm4,
    "gpt2": read_gpt2,
    "gpt_neox": read_gpt_neox,
    "gpt_oss": read_gpt_oss,
    "kimi_k2": read_deepseek,
    "llama": read_llama,
    "llama4_text": read_llama4,
    "ministral": read_ministral,
    "ministral3": read_ministral,
    "mistral": read_mistral,
    "mixtral": read_mixtral,
    "opt": read_opt,
    "phi3": read_phi3,
    "phimoe": read_phimoe,
    "qwen2": read_qwen2,
    "qwen2_5_vl": read_qwen2,
    "qwen2_5_vl_text": read_qwen2,
    "qwen2_moe": read_qwen2_moe,
    "qwen2_vl": read_qwen2,
    "qwen2_vl_text": read_qwen2,
    "qwen3": read_qwen3,
    "qwen3_moe": read_qwen3_moe,
    "qwen3_vl_moe_text": read_qwen3_moe,
    "qwen3_vl_text": read_qwen3,
}

MODEL_TYPES = tuple(sorted({*_READERS, *WRAPPERS}))
"""The `model_type` values of `config.json` that are read."""
