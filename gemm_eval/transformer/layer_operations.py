"""The operations of a layer, in the order in which serving engines run them."""

from __future__ import annotations

from collections.abc import Iterator

from gemm_eval.transformer.attention_operations import attention_inputs, attention_operations
from gemm_eval.transformer.expert_operations import expert_operations
from gemm_eval.transformer.ffn_shapes import ffn_shapes
from gemm_eval.transformer.operation_context import Context
from gemm_eval.transformer.operation_kinds import Operation

__all__ = ["layer_operations"]

_POST_ATTENTION, _POST_FFN = 3, 4  # norms of a layer from which on it has one there too


def layer_operations(context: Context) -> Iterator[Operation]:
    """Yield the operations of the layers of one kind; the first layer of a model has no residual to add yet."""
    num_norms = context.config.norms_per_layer
    dense = () if context.config.moe is not None else tuple(ffn_shapes(context.config, context.step))
    inputs = [*attention_inputs(context), *(dense[:1] if num_norms == 1 else ())]
    has_shared_norm = num_norms == 1 and context.config.moe is not None  # which the router reads as it is
    operand = None if has_shared_norm else context.narrow_input(*inputs)
    yield from context.norms("input_norm", adds=True, starts=context.is_start, operand=operand)
    yield from attention_operations(context, is_quantized=operand is not None)
    yield from context.all_reduce("attention_all_reduce")
    if num_norms >= _POST_ATTENTION:
        yield from context.norms("post_attention_norm", adds=False)
    if num_norms > 1:
        operand = context.narrow_input(dense[0]) if dense else None  # a router reads what is not quantized
        yield from context.norms("ffn_norm", adds=True, operand=operand)
    if context.config.moe is not None:
        yield from expert_operations(context)
    else:
        yield from context.network(dense, "ffn_activation", is_quantized=operand is not None)
        yield from context.all_reduce("ffn_all_reduce")
    if num_norms >= _POST_FFN:
        yield from context.norms("post_ffn_norm", adds=False)
