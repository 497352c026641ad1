"""Transformer models as GEMMs: model configs, their exact parameter counts, and the GEMMs of prefill and decode."""

from gemm_eval.transformer.config import ModelConfig
from gemm_eval.transformer.experts import moe_layer_of
from gemm_eval.transformer.gemms import LayerGemm, transformer_gemms
from gemm_eval.transformer.loader import list_models, load_model
from gemm_eval.transformer.memory import WHAT_COUNTS, ModelMemory, check_memory, model_memory, say_memory
from gemm_eval.transformer.parameters import ParameterCounts, count_parameters, num_parameters
from gemm_eval.transformer.parts import (
    Attention,
    Ffn,
    GroupedAttention,
    LatentAttention,
    Moe,
    PublishedParameters,
)
from gemm_eval.transformer.types import types_on

__all__ = [
    "WHAT_COUNTS",
    "Attention",
    "Ffn",
    "GroupedAttention",
    "LatentAttention",
    "LayerGemm",
    "ModelConfig",
    "ModelMemory",
    "Moe",
    "ParameterCounts",
    "PublishedParameters",
    "check_memory",
    "count_parameters",
    "list_models",
    "load_model",
    "model_memory",
    "moe_layer_of",
    "num_parameters",
    "say_memory",
    "transformer_gemms",
    "types_on",
]
