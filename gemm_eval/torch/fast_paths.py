"""Fast paths of torch: attention and encoder layers that run as one operation where nothing has a gradient.

`nn.MultiheadAttention` and `nn.TransformerEncoderLayer` leave them out under a mode, and on the device "meta": no trace
would see them. While they are followed, operations of torch run in their place, those that they launch on a GPU
(`native_multi_head_attention_cuda` and `transformer_encoder_layer_forward` in ATen/native/transformers).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gemm_eval.extras import needs_extra
from gemm_eval.torch.recorder import Recorder

with needs_extra("gemm_eval.torch", "torch"):
    import torch
    from torch.nn import functional

__all__ = ["fast_paths_followed"]

_FUSED = (torch.float16, torch.bfloat16, torch.float32)
"""Types that fused attention on a GPU takes."""
_HEAD_MULTIPLE = 8
"""Of elements of a head: else torch's attention is not fused in the fast path either."""
_GELU = 2
"""What `TransformerEncoderLayer.activation_relu_or_gelu` calls it; 1 is a relu, 0 anything else."""

_lock = threading.Lock()
_followers: dict[int, list[tuple[Recorder, bool]]] = {}
"""Who follows, innermost last, and whether as compiled, by thread."""
_originals: dict[Any, Any] = {}


@contextmanager
def fast_paths_followed(recorder: Recorder, *, is_compiled: bool) -> Iterator[None]:
    """Run what torch's fast paths launch on a GPU, where it would take them; in this thread alone.

    Args:
        recorder: whose path is that of the layer, where an encoder layer runs none of its modules.
        is_compiled: as torch.compile has it, which takes the fast path of encoder layers, and not that of attention
            (`torch._dynamo.variables.torch.tracing_state_functions`, torch 2.14).
    """
    thread = threading.get_ident()
    with _lock:
        if not _followers:
            for kind, fast in _FAST.items():
                _originals[kind] = kind.forward
                kind.forward = _following(kind.forward, fast)
        _followers.setdefault(thread, []).append((recorder, is_compiled))
    try:
        yield
    finally:
        with _lock:
            _followers[thread].pop()
            if not _followers[thread]:
                del _followers[thread]
            if not _followers:
                for kind, original in _originals.items():
                    kind.forward = original


def _following(original: Any, fast: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
        followers = _followers.get(threading.get_ident())
        out = fast(*followers[-1], module, *args, **kwargs) if followers else None
        return original(module, *args, **kwargs) if out is None else out

    return forward


def _attention_forward(
    recorder: Recorder, is_compiled: bool, module: Any, query: Any, key: Any, value: Any, key_padding_mask: Any = None,
    need_weights: bool = True, attn_mask: Any = None, average_attn_weights: bool = True, is_causal: bool = False,
) -> Any:  # fmt: skip
    """`MultiheadAttention.forward`; None: not its fast path, or one with masks or weights, which is not followed."""
    del recorder, average_attn_weights, is_causal  # without a mask, it is not causal either
    is_fast = (
        not is_compiled
        and not module.training
        and query is key is value
        and not (need_weights or key_padding_mask is not None or attn_mask is not None)
        and _is_set_to_be_fast(query, module)
        and module.bias_k is None
        and module.bias_v is None
        and not module.add_zero_attn
        and _can_be_fast(query, _weights(module))
    )
    return (_attention(module, query), None) if is_fast else None


def _layer_forward(
    recorder: Recorder, is_compiled: bool, layer: Any, src: Any, src_mask: Any = None, src_key_padding_mask: Any = None,
    is_causal: bool = False,
) -> Any:  # fmt: skip
    """`TransformerEncoderLayer.forward`; None: not its fast path, or one with masks, which is not followed."""
    del is_compiled, is_causal
    is_fast = (
        not layer.training
        and src_mask is None
        and src_key_padding_mask is None
        and _is_set_to_be_fast(src, layer.self_attn)
        and layer.activation_relu_or_gelu
        and layer.norm1.eps == layer.norm2.eps
        and not any(one._forward_hooks or one._forward_pre_hooks for one in layer.modules())
        and _can_be_fast(src, _weights(layer.self_attn, layer.norm1, layer.norm2, layer.linear1, layer.linear2))
    )
    return _layer(recorder, layer, src) if is_fast else None


def _weights(attention: Any, *others: Any) -> list[Any]:
    """Weights and biases; None: a module has none."""
    pairs = [(getattr(one, "weight", None), getattr(one, "bias", None)) for one in (attention.out_proj, *others)]
    return [attention.in_proj_weight, attention.in_proj_bias, *(one for pair in pairs for one in pair)]


def _is_set_to_be_fast(x: Any, attention: Any) -> bool:
    """What both ask of their attention, and of how torch is set; and that attention is fused in the fast path."""
    return bool(
        torch.backends.mha.get_fastpath_enabled()
        and not torch.is_autocast_enabled()
        and not x.is_nested
        and x.dim() == 3
        and x.numel()
        and attention.batch_first
        and attention._qkv_same_embed_dim
        and attention.num_heads % 2 == 0
        and attention.head_dim % _HEAD_MULTIPLE == 0
    )


def _can_be_fast(x: Any, weights: list[Any]) -> bool:
    """What both ask of their tensors, but that these lie on a device that runs, and that no mode is there."""
    return (
        x.dtype in _FUSED
        and all(type(one) in (torch.Tensor, torch.nn.Parameter) and one.dtype == x.dtype for one in (x, *weights))
        and not (torch.is_grad_enabled() and any(one.requires_grad for one in (x, *weights)))
    )


def _attention(module: Any, x: Any) -> Any:
    """Self-attention of x[B, S, E]: two GEMMs with biases, and between them fused attention on views of q, k, v."""
    packed = functional.linear(x, module.in_proj_weight, module.in_proj_bias)
    q, k, v = (
        one.view(x.shape[0], -1, module.num_heads, module.head_dim).transpose(1, 2) for one in packed.chunk(3, -1)
    )
    y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
    return functional.linear(y, module.out_proj.weight, module.out_proj.bias)


def _layer(recorder: Recorder, layer: Any, src: Any) -> Any:
    """An encoder layer of src[B, S, E]: sums in place, and an activation that is a GEMM's."""

    def norm(name: str, x: Any) -> Any:
        with _within(recorder, name):
            module = getattr(layer, name)
            return functional.layer_norm(x, (x.shape[-1],), module.weight, module.bias, module.eps)

    x = norm("norm1", src) if layer.norm_first else src
    with _within(recorder, "self_attn"):
        x = _attention(layer.self_attn, x)
    x.add_(src)
    if not layer.norm_first:
        x = norm("norm1", x)
    y = norm("norm2", x) if layer.norm_first else x
    with _within(recorder, "linear1"):
        y = torch._addmm_activation(
            layer.linear1.bias, y.view(-1, y.shape[-1]), layer.linear1.weight.t(),
            use_gelu=layer.activation_relu_or_gelu == _GELU,
        )  # fmt: skip
    with _within(recorder, "linear2"):
        y = torch.addmm(layer.linear2.bias, y, layer.linear2.weight.t()).view(src.shape)
    y.add_(x)
    return y if layer.norm_first else norm("norm2", y)


@contextmanager
def _within(recorder: Recorder, name: str) -> Iterator[None]:
    """Where a module of the layer would run."""
    outer = recorder.path
    recorder.path = f"{outer}.{name}" if outer else name
    try:
        yield
    finally:
        recorder.path = outer


_FAST: dict[Any, Callable[..., Any]] = {
    torch.nn.MultiheadAttention: _attention_forward,
    torch.nn.TransformerEncoderLayer: _layer_forward,
}
