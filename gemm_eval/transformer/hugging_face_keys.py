"""Keys of `config.json` that say nothing about sizes or operations, so that readers pass them over.

A key that is neither read nor listed here is refused by its name, because it may change the answer.
"""

from __future__ import annotations

__all__ = ["IRRELEVANT", "OF_WRAPPERS", "REFUSED_TYPES", "WRAPPERS"]

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
    "initial_context_length",
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
    )
)  # fmt: skip
"""Keys of models that see and hear: their encoders are no part of the language model that is read."""

WRAPPERS = {
    "gemma3": "gemma3_text", "glm4v": "glm4v_text", "glm4v_moe": "glm4v_moe_text", "kimi_vl": "deepseek_v3",
    "kimi_k25": "kimi_k2", "llama4": "llama4_text", "mistral3": "mistral", "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen2_vl": "qwen2_vl_text", "qwen3_vl": "qwen3_vl_text", "qwen3_vl_moe": "qwen3_vl_moe_text",
}  # fmt: skip
"""Models that hold a language model in `text_config`, and the `model_type` of that where it does not say its own."""

REFUSED_TYPES = {
    "bamba": "its state-space layers",
    "deepseek_v32": "its sparse attention (index_topk), an indexer before each layer of attention",
    "falcon_h1": "its state-space layers",
    "gemma3n": "its per-layer embeddings and shared KV layers",
    "gemma3n_text": "its per-layer embeddings and shared KV layers",
    "glm_moe_dsa": "its sparse attention (index_topk), an indexer before each layer of attention",
    "jamba": "its state-space layers",
    "kimi_linear": "its linear attention (Kimi delta attention)",
    "lfm2": "its short convolutions",
    "lfm2_moe": "its short convolutions",
    "mamba": "its state-space layers",
    "mamba2": "its state-space layers",
    "minimax": "its linear attention (lightning attention)",
    "mllama": "its layers of cross-attention to an image",
    "mllama_text_model": "its layers of cross-attention to an image",
    "nemotron_h": "its state-space layers",
    "qwen3_5": "its linear attention (gated delta net)",
    "qwen3_5_moe": "its linear attention (gated delta net)",
    "qwen3_next": "its linear attention (gated delta net) in three layers of four",
    "rwkv": "its recurrent layers",
}
"""Known architectures that are refused, and what of theirs is not modelled."""
