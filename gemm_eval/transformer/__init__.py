"""Transformer models as GEMMs: model configs, their exact parameter counts, and the GEMMs of prefill and decode."""

from gemm_eval.transformer._config import (
    Attention,
    Ffn,
    GroupedAttention,
    LatentAttention,
    ModelConfig,
    Moe,
    PublishedParameters,
)
from gemm_eval.transformer._gemms import LayerGemm, transformer_gemms
from gemm_eval.transformer._loader import list_models, load_model
from gemm_eval.transformer._parameters import ParameterCounts, count_parameters, num_parameters

__all__ = [
    "Attention",
    "Ffn",
    "GroupedAttention",
    "LatentAttention",
    "LayerGemm",
    "ModelConfig",
    "Moe",
    "ParameterCounts",
    "PublishedParameters",
    "count_parameters",
    "list_models",
    "load_model",
    "num_parameters",
    "transformer_gemms",
]
