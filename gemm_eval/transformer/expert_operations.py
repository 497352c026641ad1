"""The operations of a layer of experts: router, messages, routed experts, shared experts."""

from __future__ import annotations

from collections.abc import Iterator

from gemm_eval.moe import MoeLayer
from gemm_eval.transformer.experts import EXPECTED
from gemm_eval.transformer.ffn_shapes import ffn_shapes
from gemm_eval.transformer.operation_context import Context
from gemm_eval.transformer.operation_kinds import CollectiveOperation, MoeOperation, Operation
from gemm_eval.transformer.parts import Moe
from gemm_eval.transformer.shapes import Shape

__all__ = ["expert_operations"]

_BITS_PER_BYTE = 8
_FP32_BYTES = 4
_CHOICE_BYTES = 8  # an expert's number and its weight, for each that a token takes


def expert_operations(context: Context) -> Iterator[Operation]:
    """Yield the operations of layers with experts.

    Beyond a tensor-parallel group (`expert_parallel` above `tensor_parallel`) tokens go to their experts and back, one
    copy for each expert that a token takes. Within one, each device has all tokens, and the sums are reduced.
    """
    moe, step = context.config.moe, context.step
    assert moe is not None
    shapes = {shape.name: shape for shape in ffn_shapes(context.config, step)}
    yield from context.gemms(shapes["router"])
    up = shapes["expert_gate_up" if moe.is_gated else "expert_up"]
    is_spread = step.expert_parallel > step.tensor_parallel
    inputs = max(1, context.types.of(up)[0].types.a.dtype.bits // _BITS_PER_BYTE)
    if is_spread:
        yield _all_to_all(context, "dispatch", moe, inputs)
    if context.experts_as_layer:
        for stored in context.types.of(up):
            layer = _moe_layer(context, moe).with_(dtype=stored.types)
            yield MoeOperation("experts", context.layer_kind, stored.num_layers, layer)
    else:
        yield from _routed(context, moe, up, shapes["expert_down"])
    if is_spread:
        yield _all_to_all(context, "combine", moe, context.elem_bytes)
    if moe.num_shared_experts:
        hidden = context.config.hidden_size
        both = (shapes["shared_gate_up" if moe.is_gated else "shared_up"], shapes["shared_down"])
        yield from context.network(both, "shared_activation")
        if moe.shared_gate:
            yield from context.gemms(shapes["shared_gate"])
        yield context.memory("shared_add", "add", hidden, reads=2)
    yield from context.all_reduce("ffn_all_reduce")


def _all_to_all(context: Context, name: str, moe: Moe, elem_bytes: int) -> Operation:
    """The copies of a device's tokens: its tensor-parallel group has them all, and each device sends its share."""
    step = context.step
    copies = -(-step.tokens * moe.experts_per_token // step.tensor_parallel)
    size = copies * context.config.hidden_size * elem_bytes
    return CollectiveOperation(name, context.layer_kind, context.num_layers, "all_to_all", size, step.expert_parallel)


def _moe_layer(context: Context, moe: Moe) -> MoeLayer:
    step = context.step
    groups = max(1, step.expert_parallel // step.tensor_parallel)
    load = step.expert_load
    return MoeLayer(
        step.tokens * groups,
        context.config.hidden_size,
        moe.intermediate_size,
        moe.num_experts,
        moe.experts_per_token,
        tp=max(1, step.tensor_parallel // step.expert_parallel),
        ep=step.expert_parallel,
        distribution="balanced" if load == EXPECTED else load,
        gated=moe.is_gated,
        seed=step.expert_seed,
    )


def _routed(context: Context, moe: Moe, up: Shape, down: Shape) -> Iterator[Operation]:
    """Routed experts as grouped GEMMs, with what is around them."""
    tokens, hidden = context.step.tokens, context.config.hidden_size
    rows = sum(up.row_groups) if up.row_groups is not None else up.G * up.M
    per_elem = context.elem_bytes
    choices = moe.experts_per_token * _CHOICE_BYTES
    experts = moe.num_experts
    yield context.memory("routing", "top_k", experts, reads=_FP32_BYTES / per_elem, writes=choices / experts / per_elem)
    yield context.memory("expert_sort", "sort", moe.experts_per_token, reads=2, writes=2)
    yield context.memory("permute", "permute", hidden, writes=rows / tokens)
    yield from context.gemms(up)
    yield from context.activation("expert_activation", down.K, is_gated=moe.is_gated, rows=rows)
    yield from context.gemms(down)
    yield context.memory("finalize", "weighted_sum", hidden, reads=rows / tokens)
