"""Exact parameter counts of a `ModelConfig`, part by part."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from gemm_eval.transformer.config import ModelConfig
from gemm_eval.transformer.parts import GroupedAttention
from gemm_eval.transformer.shapes import Operand, Step, layer_shapes, local_kv_heads


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Parameters of a model by part, over all layers; the parts do not overlap.

    The router has the shared experts' gate with it; `vectors` are norms, biases and attention's sinks; `lm_head` is 0
    if it is the embedding. `idle_experts` and `idle_vectors` are parts of `experts` and `vectors`: of experts that a
    token does not use.
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


def count_parameters(config: ModelConfig) -> ParameterCounts:
    """Return the exact parameter count of `config`, part by part: of matrices those that its GEMMs multiply by."""
    step, hidden, moe = Step.of_whole(config.name), config.hidden_size, config.moe
    matrices: Counter[str] = Counter()
    for shape in layer_shapes(config, step):
        if shape.operand is not Operand.ACTIVATION:
            matrices[_part_of(shape.name)] += shape.num_layers * (shape.num_held or shape.G) * shape.K * shape.N
    num_idle = 0 if moe is None else moe.num_experts - moe.experts_per_token
    return ParameterCounts(
        embedding=config.vocab_size * hidden,
        position=config.num_positions * hidden,
        **{part: matrices[part] for part in ("attention", "ffn", "router", "experts", "shared_experts")},
        lm_head=0 if config.tied_embeddings else config.vocab_size * hidden,
        vectors=num_norm_elems(config, has_head=True)
        + num_bias_elems(config, step)
        + config.lm_head_bias * config.vocab_size,
        idle_experts=0 if moe is None else matrices["experts"] // moe.num_experts * num_idle,
        idle_vectors=0 if moe is None else num_idle * _expert_bias_elems(config, moe.intermediate_size),
    )


def _part_of(gemm: str) -> str:
    if gemm in ("router", "shared_gate"):
        return "router"
    if gemm.startswith(("expert_", "shared_")):
        return "experts" if gemm.startswith("expert_") else "shared_experts"
    return "ffn" if gemm in ("gate_up_proj", "up_proj", "down_proj") else "attention"


def num_norm_elems(config: ModelConfig, *, has_head: bool) -> int:
    """Return the parameters of all norms, those of queries, keys and latents too; `has_head`: and of the last one."""
    norm = config.hidden_size * (1 if config.norm == "rms" else 2)
    attention = config.attention
    if isinstance(attention, GroupedAttention):
        own = attention.qk_norm * 2 * attention.head_dim
    else:
        own = attention.kv_lora_rank + (attention.q_lora_rank or 0)
    return config.num_layers * (config.norms_per_layer * norm + own) + has_head * norm


def num_bias_elems(config: ModelConfig, step: Step) -> int:
    """Return the biases and sinks in the layers of one device.

    Biases of hidden channels are on every device; those of heads and of intermediate channels are divided.
    """
    hidden, attention, total = config.hidden_size, config.attention, 0
    if isinstance(attention, GroupedAttention):
        heads = step.tensor_split(attention.num_heads, "num_heads")
        qkv = (heads + 2 * local_kv_heads(attention.num_kv_heads, step)) * attention.head_dim
        total += config.num_layers * (
            attention.qkv_bias * qkv + attention.output_bias * hidden + attention.sinks * heads
        )
    if config.ffn is not None and config.ffn.has_bias:
        width = step.tensor_split(config.ffn.intermediate_size, "ffn.intermediate_size")
        total += config.num_dense_layers * ((1 + config.ffn.is_gated) * width + hidden)
    if config.moe is not None:
        moe = config.moe
        width = moe.intermediate_size // max(1, step.tensor_parallel // step.expert_parallel)
        total += moe.num_layers * moe.router_bias * moe.num_experts
        total += moe.num_experts // step.expert_parallel * _expert_bias_elems(config, width)
    return total


def _expert_bias_elems(config: ModelConfig, width: int) -> int:
    moe = config.moe
    return 0 if moe is None else moe.num_layers * moe.expert_bias * ((1 + moe.is_gated) * width + config.hidden_size)
