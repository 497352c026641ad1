"""`config.json` files of public models, with the key names that they really have, and their parameter counts.

Keys that say nothing about sizes are left out but for a few, which a reader has to ignore. Counts are the safetensors
totals of the model pages (for gpt-neox-20b: its model card; for deepseek-v3: the main model, without the
multi-token-prediction layer and the scales of FP8; for gpt-oss: its model card, arXiv:2508.10925, to the parameter as
GGUF files count them; for Llama 4: without the vision encoder and its projector, 871,932,416 together).
"""

from __future__ import annotations

from typing import Any, NamedTuple


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

SAMPLES: dict[str, Sample] = {
    "llama-2-7b": Sample(_LLAMA_2_7B, 6_738_415_616, "llama-2-7b"),
    "llama-3-8b": Sample(decoder("llama", 4096, 32, 128256, 32, 8, 14336, **LLAMA), 8_030_261_248, "llama-3-8b"),
    "llama-3-70b": Sample(decoder("llama", 8192, 80, 128256, 64, 8, 28672, **LLAMA), 70_553_706_496, "llama-3-70b"),
    "llama-3.1-405b": Sample(
        decoder("llama", 16384, 126, 128256, 128, 8, 53248, **LLAMA), 405_853_388_800, "llama-3.1-405b"
    ),
    "mistral-7b-v0.1": Sample(
        decoder("mistral", 4096, 32, 32000, 32, 8, 14336, sliding_window=4096, **UNTIED), 7_241_732_096, "mistral-7b"
    ),
    "mixtral-8x7b": Sample(
        decoder(
            "mixtral", *(4096, 32, 32000, 32, 8, 14336), num_local_experts=8, num_experts_per_tok=2,
            sliding_window=None, **UNTIED,
        ),
        46_702_792_704,
        "mixtral-8x7b",
    ),
    "qwen2.5-7b": Sample(decoder("qwen2", 3584, 28, 152064, 28, 4, 18944, **QWEN), 7_615_616_512, "qwen2.5-7b"),
    "qwen2.5-72b": Sample(decoder("qwen2", 8192, 80, 152064, 64, 8, 29568, **QWEN), 72_706_203_648, "qwen2.5-72b"),
    "qwen3-8b": Sample(decoder("qwen3", 4096, 36, 151936, 32, 8, 12288, **QWEN3), 8_190_735_360, "qwen3-8b"),
    "qwen1.5-moe-a2.7b": Sample(
        decoder(
            "qwen2_moe", *(2048, 24, 151936, 16, 16, 5632),
            **qwen_moe(60, 4, 1408, shared_expert_intermediate_size=5632), **QWEN,
        ),
        14_315_784_192,
        "qwen1.5-moe-a2.7b",
    ),
    "qwen3-30b-a3b": Sample(
        decoder("qwen3_moe", 2048, 48, 151936, 32, 4, 6144, **qwen_moe(128, 8, 768), **QWEN3),
        30_532_122_624,
        "qwen3-30b-a3b",
    ),
    "qwen3-235b-a22b": Sample(
        decoder("qwen3_moe", 4096, 94, 151936, 64, 4, 12288, **qwen_moe(128, 8, 1536), **QWEN3),
        235_093_634_560,
        "qwen3-235b-a22b",
    ),
    "gpt-oss-20b": Sample(_gpt_oss(24, 32), 20_914_757_184, "gpt-oss-20b"),
    "gpt-oss-120b": Sample(_gpt_oss(36, 128), 116_829_156_672, "gpt-oss-120b"),
    "llama-4-scout": Sample(_SCOUT, 107_769_861_120, "llama-4-scout"),
    "llama-4-maverick": Sample(_MAVERICK, 400_711_848_960, "llama-4-maverick"),
    "llama-4-scout-text": Sample({**_SCOUT["text_config"], **UNTIED}, 107_769_861_120, "llama-4-scout"),
    "deepseek-v2": Sample(
        decoder("deepseek_v2", 5120, 60, 102400, 128, 128, 12288, **deepseek(1536, 1, 160, 2, 6, 1536)),
        235_741_434_880,
        "deepseek-v2",
    ),
    "deepseek-v2-lite": Sample(
        decoder("deepseek_v2", 2048, 27, 102400, 16, 16, 10944, **deepseek(None, 1, 64, 2, 6, 1408)),
        15_706_484_224,
        "deepseek-v2-lite",
    ),
    "deepseek-v3": Sample(
        decoder(
            "deepseek_v3", *(7168, 61, 129280, 128, 128, 18432), topk_method="noaux_tc", num_nextn_predict_layers=1,
            **deepseek(1536, 3, 256, 1, 8, 2048),
        ),
        671_026_419_200,
        "deepseek-v3",
    ),
    "gemma-2b": Sample(decoder("gemma", 2048, 18, 256000, 8, 1, 16384, **GEMMA), 2_506_172_416),
    "gemma-7b": Sample(decoder("gemma", 3072, 28, 256000, 16, 16, 24576, **GEMMA), 8_537_680_896, "gemma-7b"),
    "gemma-2-9b": Sample(
        decoder("gemma2", 3584, 42, 256000, 16, 8, 14336, sliding_window=4096, **GEMMA), 9_241_705_984, "gemma-2-9b"
    ),
    "gemma-3-1b": Sample(
        decoder("gemma3_text", *(1152, 26, 262144, 4, 1, 6912), sliding_window=512, sliding_window_pattern=6, **GEMMA),
        999_885_952,
    ),
    "gpt2": Sample(_gpt2(768, 12, 12), 124_439_808),
    "gpt2-xl": Sample(_gpt2(1600, 48, 25), 1_557_611_200),
    "gpt-neox-20b": Sample(
        {
            "model_type": "gpt_neox", "hidden_size": 6144, "intermediate_size": 24576, "num_attention_heads": 64,
            "num_hidden_layers": 44, "rotary_pct": 0.25, "use_parallel_residual": True, "vocab_size": 50432, **UNTIED,
        },
        20_554_567_680,
    ),
    "opt-125m": Sample(_opt(768, 12, 12), 125_239_296),
    "opt-1.3b": Sample(_opt(2048, 24, 32), 1_315_758_080),
    "phi-3-mini-4k": Sample(
        decoder("phi3", 3072, 32, 32064, 32, 32, 8192, sliding_window=2047, **UNTIED), 3_821_079_552, "phi-3-mini"
    ),
}  # fmt: skip
