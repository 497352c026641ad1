"""The weights that a device holds, part by part: matrices as stored, with their scales, and all vectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemm_eval.dtypes import DType, DtypeScheme
from gemm_eval.transformer.attention_shapes import attention_shapes, local_kv_heads
from gemm_eval.transformer.config import ModelConfig
from gemm_eval.transformer.ffn_shapes import ffn_shapes, lm_head_shape
from gemm_eval.transformer.parameters import MTP_NORMS
from gemm_eval.transformer.parts import GroupedAttention
from gemm_eval.transformer.shapes import Operand, Shape, Step
from gemm_eval.transformer.stages import stage_config
from gemm_eval.transformer.types import WeightTypes, weight_types

__all__ = ["WeightPart", "local_weights", "mtp_weights"]

_BITS_PER_BYTE = 8


@dataclass(frozen=True, slots=True)
class WeightPart:
    """Some weights of one type on one device, in all of its layers.

    Attributes:
        name: the GEMM they are of, ``"embedding"``, ``"positions"``, ``"norms"`` or ``"biases"``; those of layers that
            predict further tokens begin with ``mtp_``.
        types: type of an element, and how it is scaled.
        num_elems: elements without scales.
        num_bytes: with all that is stored beside them.
    """

    name: str
    types: str
    num_elems: int
    num_bytes: int


def local_weights(
    config: ModelConfig, step: Step, types: WeightTypes, *, has_embedding: bool = True, has_head: bool = True
) -> tuple[WeightPart, ...]:
    """Return the weights of one device of a tensor-parallel group that has all layers of `config`.

    The vocabulary and what belongs to heads and intermediate channels is divided; norms, routers, latent projections
    and biases on hidden channels are on every device.
    """
    head = lm_head_shape(config, step)
    found = [*_matrices((*attention_shapes(config, step), *ffn_shapes(config, step)), types)]
    if has_embedding or (has_head and config.tied_embeddings):
        found.insert(0, _kept("embedding", head.N * config.hidden_size, types.kept))
    if has_embedding and config.num_positions:
        found.append(_kept("positions", config.num_positions * config.hidden_size, types.kept))
    found.append(_kept("norms", _num_norm_elems(config, has_head=has_head), types.kept))
    biases = _num_bias_elems(config, step) + has_head * config.lm_head_bias * head.N
    if biases:
        found.append(_kept("biases", biases, types.kept))
    if has_head and not config.tied_embeddings:
        found += _matrices((head,), types)
    return tuple(found)


def mtp_weights(
    config: ModelConfig, step: Step, dtype: str | DtypeScheme | None, dense_dtype: str | None
) -> tuple[WeightPart, ...]:
    """Return the weights of the layers that predict further tokens: each a last layer, a projection and three norms.

    Embedding and head are the model's own.
    """
    last = stage_config(config, range(config.num_layers - 1, config.num_layers))
    types = weight_types(last, dtype, dense_dtype)
    hidden = config.hidden_size
    one = [
        *local_weights(last, step, types, has_embedding=False, has_head=False),
        _kept("eh_proj", 2 * hidden * hidden, types.kept),
        _kept("norms", MTP_NORMS * hidden, types.kept),
    ]
    num = config.num_mtp_layers
    return tuple(WeightPart(f"mtp_{p.name}", p.types, num * p.num_elems, num * p.num_bytes) for p in one if num)


def _kept(name: str, num_elems: int, dtype: DType) -> WeightPart:
    return WeightPart(name, str(dtype), num_elems, num_elems * dtype.bits // _BITS_PER_BYTE)


def _matrices(shapes: tuple[Shape, ...], types: WeightTypes) -> Iterator[WeightPart]:
    for shape in shapes:
        if shape.operand is Operand.ACTIVATION:
            continue
        for stored in types.of(shape):
            num = (shape.num_held or shape.G) * stored.num_layers
            num_bytes = -(-stored.stored_bits(shape.N, shape.K, types.kept) // _BITS_PER_BYTE)
            yield WeightPart(shape.name, str(stored.types.b), num * shape.K * shape.N, num * num_bytes)


def _num_norm_elems(config: ModelConfig, *, has_head: bool) -> int:
    norm = config.hidden_size * (1 if config.norm == "rms" else 2)
    attention = config.attention
    if isinstance(attention, GroupedAttention):
        own = attention.qk_norm * 2 * attention.head_dim
    else:
        own = attention.kv_lora_rank + (attention.q_lora_rank or 0)
    return config.num_layers * (config.norms_per_layer * norm + own) + has_head * norm


def _num_bias_elems(config: ModelConfig, step: Step) -> int:
    """Biases and sinks. Those of hidden channels are on every device, those of heads and channels are divided."""
    hidden, attention, found = config.hidden_size, config.attention, 0
    if isinstance(attention, GroupedAttention):
        heads = step.tensor_split(attention.num_heads, "num_heads")
        qkv = (heads + 2 * local_kv_heads(attention.num_kv_heads, step)) * attention.head_dim
        found += config.num_layers * (
            attention.qkv_bias * qkv + attention.output_bias * hidden + attention.sinks * heads
        )
    if config.ffn is not None and config.ffn.has_bias:
        width = step.tensor_split(config.ffn.intermediate_size, "ffn.intermediate_size")
        found += config.num_dense_layers * ((1 + config.ffn.is_gated) * width + hidden)
    if config.moe is not None:
        moe = config.moe
        found += moe.num_layers * moe.router_bias * moe.num_experts
        width = moe.intermediate_size // max(1, step.tensor_parallel // step.expert_parallel)
        local = moe.num_experts // step.expert_parallel
        found += moe.num_layers * moe.expert_bias * local * ((1 + moe.is_gated) * width + hidden)
    return found
