"""More `config.json` files, of newer models and of models that also see: with text_config, as they are published.

Counts are the safetensors totals of the model pages. Left out are encoders and projectors (Gemma 3: 416,866,032 and
1152 x hidden_size + 1152; Mistral Small 3.1: the total is that of 2501, which has the language model alone), the
multi-token-prediction layers of GLM-4.5, and the scales of fp8 (Kimi K2).
"""

from __future__ import annotations

from typing import Any

from tests.transformer.hugging_face_samples import (
    GEMMA,
    LLAMA,
    QWEN,
    QWEN3,
    UNTIED,
    Sample,
    decoder,
    deepseek,
    qwen_moe,
)

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

NEWER_SAMPLES: dict[str, Sample] = {
    "llama-3.2-1b": Sample(
        decoder("llama", 2048, 16, 128256, 32, 8, 8192, **{**LLAMA, **_TIED}, head_dim=64),
        1_235_814_400,
        "llama-3.2-1b",
    ),
    "llama-3.2-3b": Sample(
        decoder("llama", 3072, 28, 128256, 24, 8, 8192, **{**LLAMA, **_TIED}, head_dim=128),
        3_212_749_824,
        "llama-3.2-3b",
    ),
    "qwen3-4b": Sample(
        decoder("qwen3", 2560, 36, 151936, 32, 8, 9728, **{**QWEN3, **_TIED}), 4_022_468_096, "qwen3-4b"
    ),
    "qwen3-32b": Sample(decoder("qwen3", 5120, 64, 151936, 64, 8, 25600, **QWEN3), 32_762_123_264, "qwen3-32b"),
    "qwen3-coder-480b-a35b": Sample(
        decoder("qwen3_moe", 6144, 62, 151936, 96, 8, 8192, **qwen_moe(160, 8, 2560), **QWEN3),
        480_154_875_392,
        "qwen3-coder-480b-a35b",
    ),
    "qwen2.5-vl-7b": Sample({**_QWEN2_5, "model_type": "qwen2_5_vl", "vision_config": {"depth": 32}}, 7_615_616_512),
    "qwen2-vl-7b": Sample(
        _seeing("qwen2_vl", {**_QWEN2_5, "model_type": "qwen2_vl_text"}, **UNTIED), 7_615_616_512, "qwen2.5-7b"
    ),
    "qwen3-vl-8b": Sample(_seeing("qwen3_vl", {**_QWEN3, "model_type": "qwen3_vl_text"}, **UNTIED), 8_190_735_360),
    "qwen3-vl-30b-a3b": Sample(
        _seeing("qwen3_vl_moe", {**_QWEN3_MOE, "model_type": "qwen3_vl_moe_text"}, **UNTIED),
        30_532_122_624,
        "qwen3-30b-a3b",
    ),
    "gemma-2-2b": Sample(decoder("gemma2", 2304, 26, 256000, 8, 4, 9216, sliding_window=4096, **GEMMA), 2_614_341_888),
    "gemma-2-27b": Sample(
        decoder("gemma2", 4608, 46, 256000, 32, 16, 36864, sliding_window=4096, **{**GEMMA, "head_dim": 128}),
        27_227_128_320,
        "gemma-2-27b",
    ),
    "gemma-3-4b": Sample(_gemma3(2560, 34, 10240), 4_300_079_472 - 416_866_032 - 2_950_272, "gemma-3-4b"),
    "gemma-3-12b": Sample(
        _gemma3(3840, 48, 15360, num_attention_heads=16, num_key_value_heads=8),
        12_187_325_040 - 416_866_032 - 4_424_832,
        "gemma-3-12b",
    ),
    "gemma-3-27b": Sample(
        _gemma3(5376, 62, 21504, num_attention_heads=32, num_key_value_heads=16, head_dim=128),
        27_432_406_640 - 416_866_032 - 6_194_304,
        "gemma-3-27b",
    ),
    "mistral-small-3.1-24b": Sample(
        _seeing("mistral3", _MISTRAL, spatial_merge_size=2), 23_572_403_200, "mistral-small-3.1-24b"
    ),
    "mistral-nemo-12b": Sample(
        decoder("mistral", 5120, 40, 131072, 32, 8, 14336, **_NO_WINDOW, **UNTIED), 12_247_782_400, "mistral-nemo-12b"
    ),
    "mistral-large-2407": Sample(
        decoder("mistral", 12288, 88, 32768, 96, 8, 28672, **_NO_WINDOW, **UNTIED),
        122_610_069_504,
        "mistral-large-2407",
    ),
    "ministral-8b": Sample(
        decoder("mistral", 4096, 36, 131072, 32, 8, 12288, head_dim=128, sliding_window=32768, **UNTIED),
        8_019_808_256,
        "ministral-8b",
    ),
    "ministral-8b-as-ministral": Sample(
        decoder("ministral", 4096, 36, 131072, 32, 8, 12288, head_dim=128, sliding_window=32768, **UNTIED),
        8_019_808_256,
        "ministral-8b",
    ),
    "mistral-nemo-as-ministral3": Sample(
        decoder("ministral3", 5120, 40, 131072, 32, 8, 14336, **_NO_WINDOW, **UNTIED),
        12_247_782_400,
        "mistral-nemo-12b",
    ),
    "mixtral-8x22b": Sample(
        decoder(
            "mixtral", *(6144, 56, 32000, 48, 8, 16384), num_local_experts=8, num_experts_per_tok=2,
            sliding_window=None, **UNTIED,
        ),
        140_620_634_112,
        "mixtral-8x22b",
    ),
    "phi-4": Sample(
        decoder("phi3", 5120, 40, 100352, 40, 10, 17920, sliding_window=None, **UNTIED), 14_659_507_200, "phi-4"
    ),
    "phi-4-mini": Sample(
        decoder("phi3", *(3072, 32, 200064, 24, 8, 8192), sliding_window=262144, partial_rotary_factor=0.75, **_TIED),
        3_836_021_760,
        "phi-4-mini",
    ),
    "phi-3.5-moe": Sample(
        decoder(
            "phimoe", *(4096, 32, 32064, 32, 8, 6400), attention_bias=True, lm_head_bias=True, num_local_experts=16,
            num_experts_per_tok=2, sliding_window=131072, **UNTIED,
        ),
        41_873_153_344,
        "phi-3.5-moe",
    ),
    "glm-4-9b": Sample(decoder("glm", *_GLM_9B, **_GLM4), 9_400_279_040 - 40 * 2 * 4096),  # 0414 has two norms more
    "glm-4-9b-0414": Sample(decoder("glm4", *_GLM_9B, **_GLM4), 9_400_279_040, "glm-4-9b-0414"),
    "glm-4.1v-9b": Sample(
        _seeing("glm4v", decoder("glm4v_text", *_GLM_9B, **_GLM4), **UNTIED), 9_400_279_040, "glm-4-9b-0414"
    ),
    "glm-4-32b-0414": Sample(
        decoder("glm4", 6144, 61, 151552, 48, 2, 23040, **{**_GLM4, "attention_bias": False}),
        32_566_081_536,
        "glm-4-32b-0414",
    ),
    "glm-4.5-air": Sample(
        _glm4_moe(4096, 46, 10944, 1, 128, 1408), 110_468_824_832 - 2_375_059_584 - 1_241_513_984, "glm-4.5-air"
    ),
    "glm-4.5": Sample(
        _glm4_moe(5120, 92, 12288, 3, 160, 1536), 358_337_791_296 - 3_988_069_792 - 1_551_892_480, "glm-4.5"
    ),
    "glm-4.5v": Sample(
        _seeing("glm4v_moe", {**_glm4_moe(4096, 46, 10944, 1, 128, 1408), "model_type": "glm4v_moe_text"}, **UNTIED),
        110_468_824_832 - 2_375_059_584 - 1_241_513_984,
        "glm-4.5-air",
    ),
    "kimi-k2": Sample(_KIMI_K2, 1_026_408_232_448, "kimi-k2"),
    "kimi-k2.5": Sample(_seeing("kimi_k25", _KIMI_K2, **UNTIED), 1_026_408_232_448, "kimi-k2"),
    "kimi-vl-a3b": Sample(_seeing("kimi_vl", _MOONLIGHT, **UNTIED), 15_960_110_208),  # of the sizes alone
}  # fmt: skip
