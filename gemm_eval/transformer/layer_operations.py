"""The operations of a layer, in the order in which serving engines run them."""

from __future__ import annotations

from collections.abc import Iterator

from gemm_eval.transformer.attention_operations import attention_operations
from gemm_eval.transformer.expert_operations import expert_operations
from gemm_eval.transformer.ffn_shapes import ffn_shapes
from gemm_eval.transformer.operation_context import Context
from gemm_eval.transformer.operation_kinds import Operation

__all__ = ["layer_operations"]

_POST_ATTENTION, _POST_FFN = 3, 4  # norms of a layer from which on it has one there too


def layer_operations(context: Context) -> Iterator[Operation]:
    """Yield the operations of the layers of one kind; the first layer of a model has no residual to add yet."""
    num_norms = context.config.norms_per_layer
    yield from context.norms("input_norm", adds=True, starts=context.is_start)
    yield from attention_operations(context)
    yield from context.all_reduce("attention_all_reduce")
    if num_norms >= _POST_ATTENTION:
        yield from context.norms("post_attention_norm", adds=False)
    if num_norms > 1:
        yield from context.norms("ffn_norm", adds=True)
    if context.config.moe is not None:
        yield from expert_operations(context)
    else:
        shapes = ffn_shapes(context.config, context.step)
        yield from context.network(tuple(shapes), "ffn_activation")
        yield from context.all_reduce("ffn_all_reduce")
    if num_norms >= _POST_FFN:
        yield from context.norms("post_ffn_norm", adds=False)
