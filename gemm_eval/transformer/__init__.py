"""Transformer models as GEMMs: model configs, their exact parameter counts, and the GEMMs of prefill and decode."""

from gemm_eval.transformer.config import (
    ModelConfig,
    layer_kinds,
    stage_config,
    stage_layers,
    with_redundant_experts,
)
from gemm_eval.transformer.gemms import LayerGemm, model_on, transformer_gemms, types_on
from gemm_eval.transformer.loader import list_models, load_model
from gemm_eval.transformer.memory import (
    CHUNK_TOKENS,
    WHAT_COUNTS,
    ModelMemory,
    count_parameters,
    model_memory,
    num_parameters,
)
from gemm_eval.transformer.memory_limits import (
    MEMORY_FRAC,
    Limit,
    MemoryShare,
    check_memory,
    largest_batch,
    memory_document,
    memory_levers,
    memory_limit,
    num_joined,
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
    sends_to_other_node,
)
from gemm_eval.transformer.parts import (
    Ffn,
    GroupedAttention,
    LatentAttention,
    Moe,
    WeightFormat,
)
from gemm_eval.transformer.shapes import Layout, legal_layouts, moe_layer_of
from gemm_eval.transformer.training import EMBEDDING, GROUPS, HEAD, MTP_HEAD, SEND, TrainingPart, training_parts

__all__ = [
    "CHUNK_TOKENS", "EMBEDDING", "GROUPS", "HEAD", "MEMORY_FRAC", "MTP_HEAD", "SEND", "WHAT_COUNTS", "AttentionWork",
    "Ffn", "Fusions", "GemmWork", "GroupedAttention", "LatentAttention", "LayerGemm", "Layout", "Limit", "MemoryShare",
    "MemoryWork", "MixerWork", "ModelConfig", "ModelMemory", "Moe", "Operation", "TrainingPart", "WeightFormat",
    "check_memory", "count_parameters", "largest_batch", "layer_kinds", "legal_layouts", "list_models", "load_model",
    "memory_document", "memory_levers", "memory_limit", "model_memory", "model_on", "model_operations", "moe_layer_of",
    "num_joined", "num_parameters", "say_memory", "sends_to_other_node", "stage_config", "stage_layers",
    "training_parts", "transformer_gemms", "types_on", "with_redundant_experts",
]  # fmt: skip
