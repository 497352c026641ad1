"""`config.json` files of public models, with the key names that they really have, and their parameter counts.

Keys that say nothing about sizes are left out but for a few, which a reader has to ignore. Counts are the safetensors
totals of the model pages (for gpt-neox-20b: its model card; for deepseek-v3: the main model, without the
multi-token-prediction layer and the scales of FP8; for gpt-oss: its model card, arXiv:2508.10925, to the parameter as
GGUF files count them). Left out are encoders and projectors (Llama 4: 871,932,416; Gemma 3: 416,866,032 and
1152 x hidden_size + 1152; Mistral Small 3.1: the total is that of 2501, which has the language model alone), the
multi-token-prediction layers of GLM-4.5 and GLM-5 (9,952,920,576), and the scales of fp8 (Kimi K2, MiniMax-M2). Mamba
Codestral: its model card. Those of Bamba, ERNIE and Qwen3.5 follow from the sizes alone. Attention of
granite-4.0-h-small is in layers 5, 15, 25 and 35, as in its file.
"""

from typing import Any, NamedTuple

from hypothesis import strategies as st


class Sample(NamedTuple):
    """A `config.json`, the exact parameter count, and the preset with the same sizes if there is one."""

    config: dict[str, Any]
    num_parameters: int
    preset: str | None = None


_NOISE = {"torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": [2, 3], "rope_scaling": None, "use_cache": True}


def decoder(
    kind: str, hidden: int, layers: int, vocab: int, heads: int, kv_heads: int, width: int, **more: Any
) -> dict[str, Any]:
    return {
        **_NOISE, "model_type": kind, "hidden_size": hidden, "num_hidden_layers": layers, "vocab_size": vocab,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "intermediate_size": width, **more,
    }  # fmt: skip


UNTIED: dict[str, Any] = {"tie_word_embeddings": False}
LLAMA: dict[str, Any] = {"attention_bias": False, "mlp_bias": False, **UNTIED}
QWEN: dict[str, Any] = {"use_sliding_window": False, "sliding_window": 131072, "max_window_layers": 28, **UNTIED}
QWEN3: dict[str, Any] = {"head_dim": 128, "attention_bias": False, **QWEN, "sliding_window": None}
GEMMA: dict[str, Any] = {"head_dim": 256, "attention_bias": False}  # ties its embeddings without saying so
_DEEPSEEK: dict[str, Any] = {
    "attention_bias": False, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "moe_layer_freq": 1, **UNTIED,
}  # fmt: skip


def deepseek(rank: int | None, dense: int, experts: int, shared: int, chosen: int, width: int) -> dict[str, Any]:
    return {
        **_DEEPSEEK, "q_lora_rank": rank, "first_k_dense_replace": dense, "n_routed_experts": experts,
        "n_shared_experts": shared, "num_experts_per_tok": chosen, "moe_intermediate_size": width,
    }  # fmt: skip


def qwen_moe(experts: int, chosen: int, width: int, **more: Any) -> dict[str, Any]:
    return {
        "decoder_sparse_step": 1, "mlp_only_layers": [], "num_experts": experts, "num_experts_per_tok": chosen,
        "moe_intermediate_size": width, **more,
    }  # fmt: skip


def _gpt2(hidden: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "model_type": "gpt2", "activation_function": "gelu_new", "n_ctx": 1024, "n_embd": hidden, "n_head": heads,
        "n_layer": layers, "n_positions": 1024, "vocab_size": 50257,
    }  # fmt: skip


def _opt(hidden: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "model_type": "opt", "do_layer_norm_before": True, "ffn_dim": 4 * hidden, "hidden_size": hidden,
        "max_position_embeddings": 2048, "num_attention_heads": heads, "num_hidden_layers": layers, "vocab_size": 50272,
        "word_embed_proj_dim": hidden,
    }  # fmt: skip


def _gpt_oss(layers: int, experts: int) -> dict[str, Any]:
    more: dict[str, Any] = {
        "attention_bias": True, "head_dim": 64, "layer_types": ["sliding_attention", "full_attention"] * (layers // 2),
        "sliding_window": 128, "num_local_experts": experts, "num_experts_per_tok": 4,
        "quantization_config": {"modules_to_not_convert": ["lm_head"], "quant_method": "mxfp4"}, "swiglu_limit": 7.0,
    }  # fmt: skip
    return decoder("gpt_oss", 2880, layers, 201088, 64, 8, 2880, **more, **UNTIED)


def _llama4(experts: int, step: int, **more: Any) -> dict[str, Any]:
    text = decoder(
        "llama4_text",
        *(5120, 48, 202048, 40, 8, 8192),
        **{"attention_bias": False, "attention_chunk_size": 8192, "head_dim": 128, "intermediate_size_mlp": 16384},
        **{"interleave_moe_layer_step": step, "num_experts_per_tok": 1, "num_local_experts": experts},
        **more,
    )
    return {"model_type": "llama4", "text_config": text, "vision_config": {"hidden_size": 1408}, **UNTIED}


_SCOUT = _llama4(16, 1, use_qk_norm=True, moe_layers=list(range(48)), no_rope_layers=[1, 1, 1, 0] * 12)
_MAVERICK = _llama4(128, 2, use_qk_norm=False, no_rope_layers=[])
_LLAMA_2_7B = decoder("llama", 4096, 32, 32000, 32, 32, 11008, **UNTIED)
del _LLAMA_2_7B["num_key_value_heads"]  # older files have none: one KV head a head

_TIED = {"tie_word_embeddings": True}
_NO_WINDOW = {"head_dim": 128, "sliding_window": None}
_GLM4 = {"attention_bias": True, "head_dim": 128, "partial_rotary_factor": 0.5, **UNTIED}


def _seeing(kind: str, text: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A model that also sees: `text_config` beside an encoder, whose keys nobody reads."""
    return {
        "architectures": ["AnyForConditionalGeneration"], "image_token_index": 10, "model_type": kind,
        "text_config": text, "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 1024, "num_hidden_layers": 2},
        **more,
    }  # fmt: skip


def _gemma3(hidden: int, layers: int, width: int, **more: Any) -> dict[str, Any]:
    """As published, the file leaves out what the smallest model of the family has too."""
    text = {
        "hidden_size": hidden, "intermediate_size": width, "model_type": "gemma3_text", "num_hidden_layers": layers,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024, **more,
    }  # fmt: skip
    return _seeing("gemma3", text, boi_token_index=255999, eoi_token_index=256000, mm_tokens_per_image=256)


def _glm4_moe(hidden: int, layers: int, width: int, dense: int, experts: int, expert_width: int) -> dict[str, Any]:
    return decoder(
        "glm4_moe", *(hidden, layers, 151552, 96, 8, width), **_GLM4, first_k_dense_replace=dense,
        moe_intermediate_size=expert_width, n_group=1, n_routed_experts=experts, n_shared_experts=1,
        norm_topk_prob=True, num_experts_per_tok=8, num_nextn_predict_layers=1, routed_scaling_factor=1.0, topk_group=1,
        use_qk_norm=dense > 1,
    )  # fmt: skip


_KIMI_K2 = decoder(
    "kimi_k2", *(7168, 61, 163840, 64, 64, 18432), **deepseek(1536, 1, 384, 1, 8, 2048), topk_method="noaux_tc",
    scoring_func="sigmoid", seq_aux=True, ep_size=1, num_nextn_predict_layers=0,
)  # fmt: skip
_MOONLIGHT = decoder(
    "deepseek_v3", 2048, 27, 163840, 16, 16, 11264, **deepseek(None, 1, 64, 2, 6, 1408), topk_method="noaux_tc"
)
_QWEN3_MOE = decoder("qwen3_moe", 2048, 48, 151936, 32, 4, 6144, **qwen_moe(128, 8, 768), **QWEN3)
_QWEN3 = decoder("qwen3", 4096, 36, 151936, 32, 8, 12288, **QWEN3)
_QWEN2_5 = decoder("qwen2", 3584, 28, 152064, 28, 4, 18944, **QWEN)
_MISTRAL = decoder("mistral", 5120, 40, 131072, 32, 8, 32768, **_NO_WINDOW)
_GLM_9B = (4096, 40, 151552, 32, 2, 13696)
_KIMI_LINEAR: dict[str, Any] = {
    "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "mla_use_nope": True, "head_dim": 72, "first_k_dense_replace": 1, "moe_layer_freq": 1, "num_experts": 256,
    "num_experts_per_token": 8, "num_shared_experts": 1, "moe_intermediate_size": 1024, "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid", "num_expert_group": 1, "use_grouped_topk": True, **UNTIED,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4,
        "kda_layers": [layer for layer in range(1, 27) if layer % 4],
    },
}  # fmt: skip
_QWEN3_NEXT: dict[str, Any] = {
    "head_dim": 256, "partial_rotary_factor": 0.25, "attention_bias": False, "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "linear_value_head_dim": 128, "shared_expert_intermediate_size": 512, **qwen_moe(512, 10, 512), **UNTIED,
}  # fmt: skip


_GLM_5 = decoder(
    "glm_moe_dsa", *(6144, 78, 154880, 64, 64, 12288), topk_method="noaux_tc", n_group=1, topk_group=1,
    **{**deepseek(2048, 3, 256, 1, 8, 2048), "qk_nope_head_dim": 192, "v_head_dim": 256}, num_nextn_predict_layers=1,
    head_dim=64, qk_head_dim=256, index_head_dim=128, index_n_heads=32, index_topk=2048, indexer_rope_interleave=True,
)  # fmt: skip
_MINIMAX_M2 = decoder(
    "minimax_m2", *(3072, 62, 200064, 48, 8, 1536), head_dim=128, rotary_dim=64, num_local_experts=256,
    num_experts_per_tok=8, use_qk_norm=True, qk_norm_type="per_layer", use_routing_bias=True, use_mtp=True,
    mtp_transformer_layers=1, num_mtp_modules=3, shared_intermediate_size=0, scoring_func="sigmoid", **UNTIED,
)  # fmt: skip
_CODESTRAL: dict[str, Any] = {
    **_NOISE, "model_type": "mamba2", "hidden_size": 4096, "num_hidden_layers": 64, "vocab_size": 32768,
    "num_heads": 128, "head_dim": 64, "n_groups": 8, "state_size": 128, "conv_kernel": 4, "expand": 2,
    "chunk_size": 256, "use_conv_bias": True, "use_bias": False, "time_step_limit": [0.0, float("inf")], **UNTIED,
}  # fmt: skip
_BAMBA = decoder(
    "bamba", *(4096, 32, 128256, 32, 8, 14336), attn_layer_indices=[9, 18, 27], attn_rotary_emb=64, mamba_n_heads=128,
    mamba_d_head=64, mamba_n_groups=1, mamba_d_state=128, mamba_d_conv=4, mamba_expand=2, mamba_chunk_size=256,
    mamba_conv_bias=True, mamba_proj_bias=False, **UNTIED,
)  # fmt: skip
_ERNIE = decoder("ernie4_5", 1024, 18, 103424, 16, 2, 3072, head_dim=128, use_bias=False, tie_word_embeddings=True)
_ERNIE_MOE = decoder(
    "ernie4_5_moe", *(2560, 28, 103424, 20, 4, 12288), head_dim=128, use_bias=False, tie_word_embeddings=True,
    moe_intermediate_size=1536, moe_num_experts=64, moe_num_shared_experts=2, moe_k=6, moe_layer_start_index=1,
    moe_layer_end_index=27, moe_layer_interval=1,
)  # fmt: skip
_QWEN3_5: dict[str, Any] = {
    "head_dim": 256, "attention_bias": False, "attn_output_gate": True, "full_attention_interval": 4,
    "rope_parameters": {"partial_rotary_factor": 0.25}, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_num_key_heads": 16, "linear_value_head_dim": 128, "mtp_num_hidden_layers": 1, "mlp_only_layers": [],
    "mamba_ssm_dtype": "float32", **UNTIED,
}  # fmt: skip
_QWEN3_5_27B = decoder("qwen3_5", 5120, 64, 248320, 24, 4, 17408, linear_num_value_heads=48, **_QWEN3_5)
_QWEN3_5_MOE = decoder(
    "qwen3_5_moe", *(2048, 40, 248320, 16, 2, 5120), linear_num_value_heads=32,
    shared_expert_intermediate_size=512, **{**_QWEN3_5, **qwen_moe(256, 8, 512)},
)  # fmt: skip
_NANO_V2 = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-"
_NANO_3 = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
_NANO_EXPERTS: dict[str, Any] = {
    "n_routed_experts": 128, "num_experts_per_tok": 6, "moe_intermediate_size": 1856, "n_shared_experts": 1,
    "moe_shared_expert_intermediate_size": 3712, "n_group": 1, "topk_group": 1,
}  # fmt: skip


def _nemotron(
    pattern: str, hidden: int, heads: int, kv_heads: int, width: int, states: int, size: int, **more: Any
) -> dict[str, Any]:
    return decoder(
        "nemotron_h", hidden, len(pattern), 131072, heads, kv_heads, width, head_dim=128, mlp_bias=False,
        hybrid_override_pattern=pattern, mamba_num_heads=states, mamba_head_dim=size, n_groups=8, ssm_state_size=128,
        conv_kernel=4, mlp_hidden_act="relu2", mamba_ssm_cache_dtype="float32", use_conv_bias=True, **more, **UNTIED,
    )  # fmt: skip


_GRANITE = decoder(
    "granitemoehybrid", *(4096, 40, 100352, 32, 8, 768), num_local_experts=72, num_experts_per_tok=10,
    shared_intermediate_size=1536, mamba_n_heads=128, mamba_d_head=64, mamba_n_groups=1, mamba_d_state=128,
    mamba_d_conv=4, mamba_expand=2, mamba_chunk_size=256, mamba_conv_bias=True, mamba_proj_bias=False,
    layer_types=["attention" if layer % 10 == 5 else "mamba" for layer in range(40)], embedding_multiplier=12,
    logits_scaling=16, residual_multiplier=0.22, attention_multiplier=0.0078125, position_embedding_type="nope",
    tie_word_embeddings=True,
)  # fmt: skip
SAMPLES: dict[str, Sample] = {
    "llama-2-7b": Sample(_LLAMA_2_7B, 6_738_415_616, "llama-2-7b"),
    "llama-3-8b": Sample(decoder("llama", 4096, 32, 128256, 32, 8, 14336, **LLAMA), 8_030_261_248, "llama-3-8b"),
    "mistral-7b-v0.1": Sample(decoder("mistral", 4096, 32, 32000, 32, 8, 14336, sliding_window=4096, **UNTIED),
        7_241_732_096, "mistral-7b"),
    "mixtral-8x7b": Sample(decoder("mixtral", *(4096, 32, 32000, 32, 8, 14336), num_local_experts=8,
        num_experts_per_tok=2, sliding_window=None, **UNTIED), 46_702_792_704, "mixtral-8x7b"),
    "qwen2.5-7b": Sample(decoder("qwen2", 3584, 28, 152064, 28, 4, 18944, **QWEN), 7_615_616_512, "qwen2.5-7b"),
    "qwen3-8b": Sample(decoder("qwen3", 4096, 36, 151936, 32, 8, 12288, **QWEN3), 8_190_735_360, "qwen3-8b"),
    "qwen1.5-moe-a2.7b": Sample(decoder("qwen2_moe", *(2048, 24, 151936, 16, 16, 5632),
        **qwen_moe(60, 4, 1408, shared_expert_intermediate_size=5632), **QWEN), 14_315_784_192, "qwen1.5-moe-a2.7b"),
    "qwen3-30b-a3b": Sample(decoder("qwen3_moe", 2048, 48, 151936, 32, 4, 6144, **qwen_moe(128, 8, 768), **QWEN3),
        30_532_122_624, "qwen3-30b-a3b"),
    "gpt-oss-20b": Sample(_gpt_oss(24, 32), 20_914_757_184, "gpt-oss-20b"),
    "llama-4-scout": Sample(_SCOUT, 107_769_861_120, "llama-4-scout"),
    "llama-4-maverick": Sample(_MAVERICK, 400_711_848_960, "llama-4-maverick"),
    "llama-4-scout-text": Sample({**_SCOUT["text_config"], **UNTIED}, 107_769_861_120, "llama-4-scout"),
    "deepseek-v2": Sample(decoder("deepseek_v2", 5120, 60, 102400, 128, 128, 12288,
        topk_method="group_limited_greedy", n_group=8, topk_group=3,
        **deepseek(1536, 1, 160, 2, 6, 1536)), 235_741_434_880, "deepseek-v2"),
    "deepseek-v2-lite": Sample(decoder("deepseek_v2", 2048, 27, 102400, 16, 16, 10944,
        **deepseek(None, 1, 64, 2, 6, 1408)), 15_706_484_224, "deepseek-v2-lite"),
    "deepseek-v3.2": Sample(decoder("deepseek_v32", *(7168, 61, 129280, 128, 128, 18432), topk_method="noaux_tc",
        num_nextn_predict_layers=1, index_n_heads=64, index_head_dim=128, index_topk=2048,
        **deepseek(1536, 3, 256, 1, 8, 2048)), 671_877_944_064, "deepseek-v3.2"),
    "kimi-linear-48b-a3b": Sample(decoder("kimi_linear", *(2304, 27, 163840, 32, 32, 9216), **_KIMI_LINEAR),
        49_122_681_728, "kimi-linear-48b-a3b"),
    "qwen3-next-80b-a3b": Sample(decoder("qwen3_next", *(2048, 48, 151936, 16, 2, 5120), **_QWEN3_NEXT),
        79_674_391_296, "qwen3-next-80b-a3b"),
    "glm-5": Sample(_GLM_5, 743_911_218_432), "minimax-m2": Sample(_MINIMAX_M2, 228_689_764_864),
    "mamba-codestral-7b": Sample(_CODESTRAL, 7_285_403_648),
    "nemotron-nano-9b-v2": Sample(_nemotron(_NANO_V2, 4480, 40, 8, 15680, 128, 80), 8_888_227_328),
    "nemotron-3-nano-30b-a3b": Sample(_nemotron(_NANO_3, 2688, 32, 2, 1856, 64, 64, **_NANO_EXPERTS),
                                      31_577_937_344 + 23 * 128, "nemotron-3-nano-30b-a3b"),
    "bamba-9b": Sample(_BAMBA, 9_780_235_392), "ernie-4.5-0.3b": Sample(_ERNIE, 360_748_032),
    "ernie-4.5-21b-a3b": Sample(_ERNIE_MOE, 21_825_437_888),
    "qwen3.5-27b": Sample(_seeing("qwen3_5", {**_QWEN3_5_27B, "model_type": "qwen3_5_text"}, **UNTIED), 26_895_998_464),
    "qwen3.5-35b-a3b": Sample(_seeing("qwen3_5_moe", {**_QWEN3_5_MOE, "model_type": "qwen3_5_moe_text"}, **UNTIED),
                              34_660_610_688),
    "granite-4.0-h-small": Sample(_GRANITE, 32_207_337_984, "granite-4.0-h-small"),
    "deepseek-v3": Sample(decoder("deepseek_v3", *(7168, 61, 129280, 128, 128, 18432), topk_method="noaux_tc",
        num_nextn_predict_layers=1, n_group=8, topk_group=4,
        **deepseek(1536, 3, 256, 1, 8, 2048)), 671_026_419_200, "deepseek-v3"),
    "gemma-7b": Sample(decoder("gemma", 3072, 28, 256000, 16, 16, 24576, **GEMMA), 8_537_680_896, "gemma-7b"),
    "gemma-2-9b": Sample(decoder("gemma2", 3584, 42, 256000, 16, 8, 14336, sliding_window=4096, **GEMMA), 9_241_705_984,
        "gemma-2-9b"),
    "gemma-3-1b": Sample(decoder("gemma3_text", *(1152, 26, 262144, 4, 1, 6912), sliding_window=512,
        sliding_window_pattern=6, **GEMMA), 999_885_952),
    "gpt2": Sample(_gpt2(768, 12, 12), 124_439_808),
    "gpt-neox-20b": Sample({"model_type": "gpt_neox", "hidden_size": 6144, "intermediate_size": 24576,
        "num_attention_heads": 64, "num_hidden_layers": 44, "rotary_pct": 0.25, "use_parallel_residual": True,
        "vocab_size": 50432, **UNTIED}, 20_554_567_680),
    "opt-125m": Sample(_opt(768, 12, 12), 125_239_296),
    "phi-3-mini-4k": Sample(decoder("phi3", 3072, 32, 32064, 32, 32, 8192, sliding_window=2047, **UNTIED),
        3_821_079_552, "phi-3-mini"),
    "llama-3.2-1b": Sample(decoder("llama", 2048, 16, 128256, 32, 8, 8192, **{**LLAMA, **_TIED}, head_dim=64),
        1_235_814_400, "llama-3.2-1b"),
    "qwen2.5-vl-7b": Sample({**_QWEN2_5, "model_type": "qwen2_5_vl", "vision_config": {"depth": 32}}, 7_615_616_512),
    "qwen2-vl-7b": Sample(_seeing("qwen2_vl", {**_QWEN2_5, "model_type": "qwen2_vl_text"}, **UNTIED), 7_615_616_512,
        "qwen2.5-7b"),
    "qwen3-vl-8b": Sample(_seeing("qwen3_vl", {**_QWEN3, "model_type": "qwen3_vl_text"}, **UNTIED), 8_190_735_360),
    "qwen3-vl-30b-a3b": Sample(_seeing("qwen3_vl_moe", {**_QWEN3_MOE, "model_type": "qwen3_vl_moe_text"}, **UNTIED),
        30_532_122_624, "qwen3-30b-a3b"),
    "gemma-3-4b": Sample(_gemma3(2560, 34, 10240), 4_300_079_472 - 416_866_032 - 2_950_272, "gemma-3-4b"),
    "gemma-3-27b": Sample(_gemma3(5376, 62, 21504, num_attention_heads=32, num_key_value_heads=16, head_dim=128),
        27_432_406_640 - 416_866_032 - 6_194_304, "gemma-3-27b"),
    "mistral-small-3.1-24b": Sample(_seeing("mistral3", _MISTRAL, spatial_merge_size=2), 23_572_403_200,
        "mistral-small-3.1-24b"),
    "mistral-nemo-12b": Sample(decoder("mistral", 5120, 40, 131072, 32, 8, 14336, **_NO_WINDOW, **UNTIED),
        12_247_782_400, "mistral-nemo-12b"),
    "ministral-8b": Sample(decoder("mistral", 4096, 36, 131072, 32, 8, 12288, head_dim=128, sliding_window=32768,
        **UNTIED), 8_019_808_256, "ministral-8b"),
    "ministral-8b-as-ministral": Sample(decoder("ministral", 4096, 36, 131072, 32, 8, 12288, head_dim=128,
        sliding_window=32768, **UNTIED), 8_019_808_256, "ministral-8b"),
    "mistral-nemo-as-ministral3": Sample(decoder("ministral3", 5120, 40, 131072, 32, 8, 14336, **_NO_WINDOW, **UNTIED),
        12_247_782_400, "mistral-nemo-12b"),
    "phi-4-mini": Sample(decoder("phi3", *(3072, 32, 200064, 24, 8, 8192), sliding_window=262144,
        partial_rotary_factor=0.75, **_TIED), 3_836_021_760, "phi-4-mini"),
    "phi-3.5-moe": Sample(decoder("phimoe", *(4096, 32, 32064, 32, 8, 6400), attention_bias=True, lm_head_bias=True,
        num_local_experts=16, num_experts_per_tok=2, sliding_window=131072, **UNTIED), 41_873_153_344, "phi-3.5-moe"),
    "glm-4-9b": Sample(decoder("glm", *_GLM_9B, **_GLM4), 9_400_279_040 - 40 * 2 * 4096),  # 0414 has two norms more
    "glm-4-9b-0414": Sample(decoder("glm4", *_GLM_9B, **_GLM4), 9_400_279_040, "glm-4-9b-0414"),
    "glm-4.1v-9b": Sample(_seeing("glm4v", decoder("glm4v_text", *_GLM_9B, **_GLM4), **UNTIED), 9_400_279_040,
        "glm-4-9b-0414"),
    "glm-4.5-air": Sample(_glm4_moe(4096, 46, 10944, 1, 128, 1408), 110_468_824_832 - 2_375_059_584 - 1_241_513_984,
        "glm-4.5-air"),
    "glm-4.5v": Sample(_seeing("glm4v_moe",
        {**_glm4_moe(4096, 46, 10944, 1, 128, 1408), "model_type": "glm4v_moe_text"}, **UNTIED),
        110_468_824_832 - 2_375_059_584 - 1_241_513_984, "glm-4.5-air"),
    "kimi-k2": Sample(_KIMI_K2, 1_026_408_232_448, "kimi-k2"),
    "kimi-k2.5": Sample(_seeing("kimi_k25", _KIMI_K2, **UNTIED), 1_026_408_232_448, "kimi-k2"),
    "kimi-vl-a3b": Sample(_seeing("kimi_vl", _MOONLIGHT, **UNTIED), 15_960_110_208),  # of the sizes alone
}  # fmt: skip

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
