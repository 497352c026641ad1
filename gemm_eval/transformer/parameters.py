"""Exact parameter counts of a `ModelConfig`, part by part."""

from __future__ import annotations

from dataclasses import dataclass

from gemm_eval.transformer.config import ModelConfig
from gemm_eval.transformer.parts import GroupedAttention, LatentAttention
from gemm_eval.transformer.stages import stage_config

__all__ = ["MTP_NORMS", "ParameterCounts", "count_parameters", "num_mtp_parameters", "num_parameters"]

MTP_NORMS = 3
"""Norms of a layer that predicts further tokens, besides a layer's own: of embedding, hidden state and output."""


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Parameters of a model by part, over all layers; the parts do not overlap.

    Attributes:
        embedding: the token embedding.
        position: the learned position table.
        attention, ffn, router, experts, shared_experts: weight matrices (router: with the shared experts' gate).
        lm_head: the output projection, 0 if it is the embedding.
        vectors: norms, biases and attention's sinks.
        idle_experts: the part of `experts` that a token does not use.
        idle_vectors: the part of `vectors` that belongs to these experts: their biases.
    """

    embedding: int
    position: int
    attention: int
    ffn: int
    router: int
    experts: int
    shared_experts: int
    lm_head: int
    vectors: int
    idle_experts: int
    idle_vectors: int = 0

    @property
    def layer_matrices(self) -> int:
        """Weight matrices of all layers: what the weight GEMMs without the LM head multiply by."""
        return self.attention + self.ffn + self.router + self.experts + self.shared_experts

    @property
    def active_layer_matrices(self) -> int:
        """Weight matrices of all layers that one token uses. Weight GEMMs do 2 FLOP for each and token, exactly."""
        return self.layer_matrices - self.idle_experts

    @property
    def total(self) -> int:
        """All parameters."""
        return self.embedding + self.position + self.layer_matrices + self.lm_head + self.vectors

    @property
    def active(self) -> int:
        """Parameters of the model without the experts that a token does not use; embeddings are counted."""
        return self.total - self.idle_experts - self.idle_vectors


def num_parameters(config: ModelConfig) -> int:
    """Return the exact number of parameters: embeddings, matrices, norms, biases, all experts.

    Buffers (rotary tables, causal masks), quantization scales and multi-token-prediction layers are not counted.
    """
    return count_parameters(config).total


def num_mtp_parameters(config: ModelConfig) -> int:
    """Return the parameters of the layers that predict further tokens, without their copies of embedding and head.

    Each is a last layer, a projection of hidden state and embedding to one, and three norms (DeepSeek-V3,
    README_WEIGHTS.md).
    """
    hidden = config.hidden_size
    last = count_parameters(stage_config(config, (config.num_layers - 1,)))
    outside = last.embedding + last.position + last.lm_head + hidden * (1 if config.norm == "rms" else 2)
    outside += config.lm_head_bias * config.vocab_size
    return config.num_mtp_layers * (last.total - outside + 2 * hidden * hidden + MTP_NORMS * hidden)


def count_parameters(config: ModelConfig) -> ParameterCounts:
    """Return the exact parameter count of `config`, part by part."""
    hidden, layers = config.hidden_size, config.num_layers
    matrices, vectors = _attention_parameters(config)
    norm = hidden if config.norm == "rms" else 2 * hidden
    all_vectors = layers * (vectors + config.norms_per_layer * norm) + norm + config.lm_head_bias * config.vocab_size

    ffn = 0
    if config.ffn is not None:
        width, ups = config.ffn.intermediate_size, 1 + config.ffn.is_gated
        ffn = config.num_dense_layers * (ups + 1) * hidden * width
        all_vectors += config.num_dense_layers * config.ffn.has_bias * (ups * width + hidden)

    router = experts = shared = idle = idle_vectors = 0
    if config.moe is not None:
        moe = config.moe
        projections = 2 + moe.is_gated
        expert = projections * hidden * moe.intermediate_size
        router = moe.num_layers * hidden * (moe.num_experts + moe.shared_gate)
        experts = moe.num_layers * moe.num_experts * expert
        idle = moe.num_layers * (moe.num_experts - moe.experts_per_token) * expert
        shared = moe.num_layers * projections * hidden * moe.shared_width
        all_vectors += moe.num_layers * moe.router_bias * moe.num_experts
        biases = moe.num_layers * moe.expert_bias * ((1 + moe.is_gated) * moe.intermediate_size + hidden)
        all_vectors += moe.num_experts * biases
        idle_vectors = (moe.num_experts - moe.experts_per_token) * biases

    return ParameterCounts(
        embedding=config.vocab_size * hidden,
        position=config.num_positions * hidden,
        attention=layers * matrices,
        ffn=ffn,
        router=router,
        experts=experts,
        shared_experts=shared,
        lm_head=0 if config.tied_embeddings else config.vocab_size * hidden,
        vectors=all_vectors,
        idle_experts=idle,
        idle_vectors=idle_vectors,
    )


def _attention_parameters(config: ModelConfig) -> tuple[int, int]:
    """Matrix and vector parameters of one layer's attention."""
    hidden, attention = config.hidden_size, config.attention
    if isinstance(attention, GroupedAttention):
        query = attention.num_heads * attention.head_dim
        qkv = query + 2 * attention.num_kv_heads * attention.head_dim
        vectors = attention.qkv_bias * qkv + attention.output_bias * hidden + attention.qk_norm * 2 * attention.head_dim
        vectors += attention.sinks * attention.num_heads
        return hidden * (qkv + query), vectors
    return _latent_parameters(hidden, attention)


def _latent_parameters(hidden: int, attention: LatentAttention) -> tuple[int, int]:
    heads, latent, rank = attention.num_heads, attention.kv_lora_rank, attention.q_lora_rank
    query = heads * (attention.qk_nope_head_dim + attention.qk_rope_head_dim)
    matrices = hidden * query if rank is None else rank * (hidden + query)
    matrices += hidden * (latent + attention.qk_rope_head_dim)
    matrices += latent * heads * (attention.qk_nope_head_dim + attention.v_head_dim)
    matrices += heads * attention.v_head_dim * hidden
    return matrices, latent + (rank or 0)  # the norms of the two latents
