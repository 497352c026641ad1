"""Load model configs: presets by name, YAML files, and Hugging Face `config.json` files as they are.

Names, rules and what a missing key stands for are those of `configuration_*.py` and `modeling_*.py` in Hugging Face
transformers (4.40 to 4.57) and the DeepSeek repositories. Other keys are refused by name: a default would be a guess.
"""

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from gemm_eval.arch import data_root, preset_files, read_yaml
from gemm_eval.dtypes import DType
from gemm_eval.errors import ArchError, ModelConfigError
from gemm_eval.transformer.config import ModelConfig, build_config
from gemm_eval.transformer.hugging_face_keys import Fields, Keys, read_json
from gemm_eval.transformer.hugging_face_models import READERS
from gemm_eval.transformer.hugging_face_quantization import read_quantization
from gemm_eval.words import did_you_mean, shown

_OF_FILES = (
    "_name_or_path", "_commit_hash", "architectures", "auto_map", "model_type", "model_name", "name_or_path",
    "transformers_version", "transformers.js_config", "task_specific_params", "custom_pipelines", "problem_type",
    "id2label", "label2id", "num_labels", "finetuning_task", "tokenizer_class", "prefix", "license", "version",
    "unsloth_fixed", "unsloth_version", "device_map", "use_safetensors", "_attn_implementation_autoset",
    "_attn_implementation", "attn_implementation", "_flash_attn_2_enabled", "gradient_checkpointing",
    "_experts_implementation", "torchscript", "return_dict", "output_hidden_states", "output_attentions",
    "is_encoder_decoder", "is_decoder", "chunk_size_feed_forward",
)  # fmt: skip
_OF_TOKENS = (
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id", "unk_token_id", "mask_token_id",
    "decoder_start_token_id", "forced_eos_token_id", "image_token_id", "video_token_id",
    "image_token_index", "video_token_index", "vision_start_token_id", "vision_end_token_id", "vision_token_id",
    "boi_token_index", "eoi_token_index", "image_start_token_id", "image_end_token_id", "video_start_token_id",
    "video_end_token_id", "media_placeholder_token_id", "boi_token_id", "eoi_token_id", "image_break_token_id",
    "initial_context_length", "length_penalty", "repetition_penalty", "temperature", "top_k", "top_p", "typical_p",
    "max_length", "num_beams", "num_beam_groups", "num_return_sequences",
)  # fmt: skip
_OF_TRAINING = (
    "initializer_range", "initializer_factor", "init_std", "embd_pdrop", "attn_pdrop", "resid_pdrop", "summary_type",
    "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout", "embed_dropout",
    "dropout", "layerdrop", "activation_dropout", "attention_dropout", "hidden_dropout", "hidden_dropout_prob",
    "attention_probs_dropout_prob", "router_aux_loss_coef", "router_z_loss_coef", "router_jitter_noise",
    "input_jitter_noise", "output_router_logits", "aux_loss_alpha", "seq_aux", "ep_size", "pretraining_tp",
    "classifier_dropout", "use_cache", "cache_implementation", "max_window_layers",
)  # fmt: skip
# What they do costs the same whatever they say: constants of norms, positions, routing and softmax.
_OF_VALUES = (
    "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "rope_theta", "rope_scaling", "rope_ratio",
    "rope_parameters", "rope_local_base_freq", "rope_interleave", "rope_type", "rotary_emb_base",
    "max_position_embeddings", "original_max_position_embeddings", "max_sequence_length", "n_ctx", "n_positions",
    "hidden_act", "hidden_activation", "activation_function", "scoring_func", "topk_method", "topk_group", "n_group",
    "norm_topk_prob", "routed_scaling_factor", "swiglu_limit", "query_pre_attn_scalar", "attn_logit_softcapping",
    "final_logit_softcapping", "attn_scale", "attn_temperature_tuning", "floor_scale", "scale_attn_weights",
    "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "experts_per_token", "use_parallel_residual",
    "mscale", "softmax_scale", "scale_fmt", "for_llm_compressor",
)  # fmt: skip

IRRELEVANT = frozenset((*_OF_FILES, *_OF_TOKENS, *_OF_TRAINING, *_OF_VALUES))
"""Keys that all architectures may have, and whose values change neither sizes nor operations."""

OF_WRAPPERS = frozenset(
    (
        "vision_config", "audio_config", "multimodal_projector_bias", "projector_hidden_act", "spatial_merge_size",
        "vision_feature_layer", "vision_feature_select_strategy", "mm_tokens_per_image", "vision_tower",
        "mm_projector_lr", "use_unified_vision_chunk", "video_placeholder", "media_proc_cfg", "projector_ln_eps",
        "ignore_index",
    )
)  # fmt: skip
"""Keys of models that see and hear: their encoders are no part of the language model that is read."""

WRAPPERS = {
    "gemma3": "gemma3_text", "glm4v": "glm4v_text", "glm4v_moe": "glm4v_moe_text", "kimi_vl": "deepseek_v3",
    "kimi_k25": "kimi_k2", "llama4": "llama4_text", "mistral3": "mistral", "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen2_vl": "qwen2_vl_text", "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3_vl_text", "qwen3_vl_moe": "qwen3_vl_moe_text",
}  # fmt: skip
"""Models that hold a language model in `text_config`, and the `model_type` of that where it does not say its own."""

_NOT_MODELLED = {
    "its layers of Mamba2 and attention side by side": "falcon_h1",
    "its state-space layers, which are not of Mamba2": "jamba mamba",
    "its attention blocks that layers share, and their adapters": "zamba zamba2",
    "its compressed and sparse caches, and hyper-connections": "deepseek_v4",
    "its sizes, of which the file has lists by layer": "hunyuan_v1_moe nemotron-nas",
    "its per-layer embeddings and shared KV layers": "gemma3n gemma3n_text",
    "its short convolutions": "lfm2 lfm2_moe",
    "its linear attention (lightning attention)": "minimax",
    "its sparse attention, an indexer over blocks of keys": "minimax_m3 minimax_m3_vl",
    "its heads of other sizes in layers with a window": "gemma4 gemma4_text",
    "its layers of cross-attention to an image": "mllama mllama_text_model",
    "its recurrent layers": "rwkv",
}
REFUSED_TYPES = {kind: what for what, kinds in _NOT_MODELLED.items() for kind in kinds.split()}
"""Known architectures that are refused, and what of theirs is not modelled."""


_DTYPES = {"bfloat16": DType.BF16, "float16": DType.FP16, "float32": DType.FP32}
_INHERITED = ("dtype", "torch_dtype", "quantization_config", "tie_word_embeddings")
# Gemma 3's published files leave out of text_config what its configuration class says (transformers, Gemma3TextConfig).
_TEXT_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma3": {"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "sliding_window_pattern": 6},
}  # fmt: skip


def parse_config(data: Mapping[str, Any], *, name: str, origin: str) -> ModelConfig:
    """Return the `ModelConfig` that the content of a `config.json` describes; `origin` names the file in messages.

    Of a model that also sees or hears, the language part (`text_config`) is read.
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
    reader = READERS.get(kind)
    if reader is None:
        if kind in REFUSED_TYPES:
            keys.refuse("model_type", f"is of an architecture that is not modelled: {REFUSED_TYPES[kind]}")
        hint = (
            "; for the language part, give its text_config as a file of its own" if "text_config" in keys else
            "; if its layers are those of one of these, say that one in a copy of the file"
        )  # fmt: skip
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
    key = "dtype" if "dtype" in keys else "torch_dtype"
    keys.ignore("torch_dtype")
    if key not in keys:
        return None
    word = keys.text(key).removeprefix("torch.")
    if word not in _DTYPES:
        keys.refuse(key, f"must be one of {', '.join(_DTYPES)}")
    return _DTYPES[word]


MODEL_TYPES = tuple(sorted({*READERS, *WRAPPERS}))
"""The `model_type` values of `config.json` that are read."""


_CONFIG_FILE = "config.json"
_HUB_FOLDER = re.compile(r"models--.+--(?P<name>.+)")  # how the Hugging Face cache names a model's folder
_MAX_NAME_CHARS = 96


def list_models() -> tuple[str, ...]:
    """Names of the model configs that come with the library, sorted."""
    return tuple(sorted(preset_files("models")))


def load_model(name_or_path: str | os.PathLike[str]) -> ModelConfig:
    """Load a model config: a preset, a YAML file, a Hugging Face `config.json`, or a folder that holds one.

    >>> load_model("llama-3-8b").hidden_size
    4096

    Nothing is downloaded. A `config.json` is read as it is; see `gemm_eval.transformer.loader.MODEL_TYPES` for
    the architectures. It has no name of its own, so the model is called as its file or folder.

    Raises:
        ModelConfigError: there is no such preset or file, or its content is malformed, unsafe, of an unknown
            architecture, or does not hold together; the message names file and key.
    """
    if isinstance(name_or_path, str) and (preset := _load_preset(name_or_path, data_root())) is not None:
        return preset
    return _load(_resolve(name_or_path))


@lru_cache(maxsize=256)
def _load_preset(name: str, root: Path) -> ModelConfig | None:  # noqa: ARG001  another root has other presets
    path = preset_files("models").get(name)
    return None if path is None else _load(path)


def _load(path: Path) -> ModelConfig:
    if _is_folder(path):
        path /= _CONFIG_FILE
    if path.suffix in (".yaml", ".yml"):
        try:
            data = read_yaml(path)
        except ArchError as error:
            raise ModelConfigError(str(error)) from None
        return build_config({"name": path.stem} | data, origin=str(path))
    return parse_config(read_json(path), name=_name_of(path), origin=str(path))


def _resolve(name_or_path: str | os.PathLike[str]) -> Path:
    if not isinstance(name_or_path, str | os.PathLike):
        raise ModelConfigError(f"a model is given by name or path, got {shown(name_or_path)}")
    text = os.fspath(name_or_path)
    if not isinstance(text, str) or "\0" in text:
        raise ModelConfigError(f"no model of the name {shown(text)}")
    if isinstance(name_or_path, os.PathLike) or text.endswith((".yaml", ".yml", ".json")) or os.sep in text:
        return Path(text)
    if text and _is_folder(Path(text)):
        return Path(text)
    hint = did_you_mean(text, list_models()) or f"; known: {', '.join(list_models())}"
    raise ModelConfigError(f"no model of the name {shown(text)}{hint} (a file is given by its path)")


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # no such path can be, because a part is too long
        return False


def _name_of(path: Path) -> str:
    resolved = path.resolve() if path.name != _CONFIG_FILE else path.absolute()
    name = resolved.stem if path.name != _CONFIG_FILE else resolved.parent.name
    for parent in resolved.parents:
        if match := _HUB_FOLDER.fullmatch(parent.name):
            name = match["name"]
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("._-")[:_MAX_NAME_CHARS]
    return safe or "model"
