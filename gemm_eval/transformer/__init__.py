"""Transformer models as GEMMs: model configs, their exact parameter counts, and the GEMMs of prefill and decode."""

from gemm_eval.transformer.config import ModelConfig
from gemm_eval.transformer.experts import moe_layer_of
from gemm_eval.transformer.fit import (
    MemoryLever,
    check_memory,
    largest_batch,
    largest_seq_len,
    memory_levers,
    say_memory,
)
from gemm_eval.transformer.gemms import LayerGemm, transformer_gemms
from gemm_eval.transformer.loader import list_models, load_model
from gemm_eval.transformer.memory import WHAT_COUNTS, ModelMemory, model_memory
from gemm_eval.transformer.parameters import ParameterCounts, count_parameters, num_parameters
from gemm_eval.transformer.parts import (
    Attention,
    Ffn,
    GroupedAttention,
    LatentAttention,
    Moe,
    PublishedParameters,
)
from gemm_eval.transformer.quantization import Quantization, QuantizedPart, WeightFormat
from gemm_eval.transformer.stages import stage_config, stage_layers
from gemm_eval.transformer.types import types_on
from gemm_eval.transformer.weights import WeightPart

__all__ = [
    "WHAT_COUNTS",
    "Attention",
    "Ffn",
    "GroupedAttention",
    "LatentAttention",
    "LayerGemm",
    "MemoryLever",
    "ModelConfig",
    "ModelMemory",
    "Moe",
    "ParameterCounts",
    "PublishedParameters",
    "Quantization",
    "QuantizedPart",
    "WeightFormat",
    "WeightPart",
    "check_memory",
    "count_parameters",
    "largest_batch",
    "largest_seq_len",
    "list_models",
    "load_model",
    "memory_levers",
    "model_memory",
    "moe_layer_of",
    "num_parameters",
    "say_memory",
    "stage_config",
    "stage_layers",
    "transformer_gemms",
    "types_on",
]
