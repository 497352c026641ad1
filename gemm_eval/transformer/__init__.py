"""Transformer models as GEMMs: model configs, their exact parameter counts, and the GEMMs of prefill and decode."""

from gemm_eval.transformer.config import LayerKind, ModelConfig, layer_kinds, stage_config, stage_layers
from gemm_eval.transformer.gemms import LayerGemm, model_on, transformer_gemms, types_on
from gemm_eval.transformer.loader import list_models, load_model
from gemm_eval.transformer.memory import (
    CHUNK_TOKENS,
    MEMORY_FRAC,
    WHAT_COUNTS,
    MemoryLever,
    ModelMemory,
    ParameterCounts,
    WeightPart,
    check_memory,
    count_parameters,
    largest_batch,
    largest_seq_len,
    memory_document,
    memory_levers,
    model_memory,
    num_joined,
    num_parameters,
    say_memory,
)
from gemm_eval.transformer.operations import (
    AttentionWork,
    Fusions,
    GemmWork,
    MemoryWork,
    MixerWork,
    Operation,
    model_operations,
)
from gemm_eval.transformer.parts import (
    Attention,
    Ffn,
    GroupedAttention,
    Indexer,
    LatentAttention,
    LinearAttention,
    Moe,
    PublishedParameters,
    Quantization,
    QuantizedPart,
    WeightFormat,
)
from gemm_eval.transformer.shapes import moe_layer_of

__all__ = [
    "CHUNK_TOKENS", "MEMORY_FRAC", "WHAT_COUNTS", "Attention", "AttentionWork", "Ffn", "Fusions",
    "GemmWork", "GroupedAttention", "Indexer", "LatentAttention", "LayerGemm", "LayerKind", "LinearAttention",
    "MemoryLever", "MemoryWork", "MixerWork",
    "ModelConfig", "ModelMemory", "Moe", "Operation", "ParameterCounts", "PublishedParameters",
    "Quantization", "QuantizedPart", "WeightFormat", "WeightPart", "check_memory", "count_parameters", "largest_batch",
    "largest_seq_len", "layer_kinds", "list_models", "load_model", "memory_document", "memory_levers", "model_memory",
    "model_on", "model_operations", "moe_layer_of", "num_joined", "num_parameters", "say_memory",
    "stage_config", "stage_layers", "transformer_gemms", "types_on",
]  # fmt: skip
