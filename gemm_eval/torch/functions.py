"""Functions of torch that are caught above autograd, before they come apart, on tensors without memory.

These are attention, fast paths of `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` (TORCH.md), and GEMMs
within autocast, which torch has not for such tensors: norms stay as they are, as a cast that fuses costs no bytes.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial, wraps
from typing import Any

from gemm_eval.torch.eager_mode import Operation, bytes_of
from gemm_eval.torch.gradients import eager_works
from gemm_eval.torch.graph import Domain, Role, Work
from gemm_eval.torch.operators import attention_work, flex_attention_work, is_fused
from gemm_eval.torch.recorder import Recorder
from gemm_eval.torch.shapes import Shapes
from gemm_eval.transformer import MemoryWork
from gemm_eval.words import needs_extra

with needs_extra("gemm_eval.torch", "torch"):
    import torch
    from torch.nn import functional
    from torch.overrides import TorchFunctionMode
    from torch.utils._pytree import tree_map_only


_CONVOLUTIONS = " ".join(f"conv{word}{dims}d" for word in ("", "_transpose") for dims in (1, 2, 3))
_LOWER = (
    f"linear bilinear {_CONVOLUTIONS} einsum chain_matmul matmul __matmul__ __rmatmul__ mm bmm mv addmm addmv addbmm "
    "baddbmm prelu"
)
_FP32 = (
    "layer_norm group_norm rms_norm softmax softmin log_softmax cross_entropy nll_loss mse_loss smooth_l1_loss l1_loss "
    "huber_loss binary_cross_entropy_with_logits kl_div cosine_similarity cosine_embedding_loss margin_ranking_loss "
    "softplus exp expm1 log log10 log1p log2 pow __pow__ __rpow__ reciprocal rsqrt cumsum cumprod cdist dist acos asin "
    "cosh sinh tan erfinv renorm logsumexp interpolate upsample"
)
_HOMES = torch.nn.functional, torch, torch.Tensor
AUTOCAST = {
    getattr(home, name): is_lower
    for is_lower, names in ((True, _LOWER), (False, _FP32))
    for name in names.split()
    for home in _HOMES
    if hasattr(home, name)
}
"""Functions that autocast runs in its lower type (True), or in fp32 (False): aten/src/ATen/autocast_mode.h."""


@contextmanager
def replaced(home: Any, name: str, value: Any) -> Iterator[None]:
    """Put a value in the place of an attribute."""
    original = getattr(home, name)
    setattr(home, name, value)
    try:
        yield
    finally:
        setattr(home, name, original)


def cast_as_autocast(args: Any, kwargs: Any, casts: dict[int, Any], *, is_lower: bool = True) -> Any:
    """Return arguments with floating tensors in the lower type of autocast, or in fp32.

    `casts` keeps what became of weights, which autocast casts once; views of weights it casts each time.
    """
    wanted = torch.get_autocast_dtype("cuda") if is_lower else torch.float32

    def cast(tensor: Any) -> Any:
        if not tensor.is_floating_point() or tensor.dtype in (wanted, torch.float64):
            return tensor
        if not (is_lower and tensor.is_leaf and tensor.requires_grad) or tensor._is_view():
            return tensor.to(wanted)
        if id(tensor) not in casts:
            casts[id(tensor)] = tensor, tensor.to(wanted)  # with the tensor, whose id is given to no other
        return casts[id(tensor)][1]

    return tree_map_only(torch.Tensor, cast, (args, kwargs))


_FUSED = (torch.float16, torch.bfloat16, torch.float32)  # types that fused attention on a GPU takes
_HEAD_MULTIPLE = 8  # of elements of a head
_APART = "aten._transform_bias_rescale_qkv"
_GELU = 2  # of `TransformerEncoderLayer.activation_relu_or_gelu`; 1 is a relu, 0 anything else
_lock = threading.Lock()
_followers: dict[int, list[tuple[Recorder, bool]]] = {}  # by thread, the innermost last, and whether as compiled
_originals: dict[Any, Any] = {}


@contextmanager
def fast_paths_followed(recorder: Recorder, *, is_compiled: bool) -> Iterator[None]:
    """Run what torch's fast paths launch on a GPU, where it would take them; in this thread alone.

    `recorder` has the path of the layer, where an encoder layer runs none of its modules. `is_compiled`: as
    torch.compile has it, which takes the fast path of encoder layers, and not that of attention
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
    @wraps(original)
    def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
        followers = _followers.get(threading.get_ident())
        out = fast(*followers[-1], module, *args, **kwargs) if followers else None
        return original(module, *args, **kwargs) if out is None else out

    return forward


def _attention_forward(
    recorder: Recorder, is_compiled: bool, module: Any, query: Any, key: Any, value: Any, key_padding_mask: Any = None,
    need_weights: bool = True, attn_mask: Any = None, average_attn_weights: bool = True, is_causal: bool = False,
) -> Any:  # fmt: skip
    """`MultiheadAttention.forward`; None: not its fast path, or one with masks, which is not followed."""
    del is_causal  # without a mask, it is not causal either
    is_fast = (
        not is_compiled
        and not module.training
        and query is key is value
        and key_padding_mask is None
        and attn_mask is None
        and module.bias_k is None
        and module.bias_v is None
        and not module.add_zero_attn
        and _can_be_fast(query, module)
    )
    if not is_fast:
        return None
    out, weights = _attention(recorder, module, query, needs_weights=need_weights)
    if weights is not None and average_attn_weights:
        weights = weights.sum(1).div_(module.num_heads)
    return out, weights


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
        and layer.activation_relu_or_gelu
        and layer.norm1.eps == layer.norm2.eps
        and not any(one._forward_hooks or one._forward_pre_hooks for one in layer.modules())
        and _can_be_fast(src, layer.self_attn, layer.norm1, layer.norm2, layer.linear1, layer.linear2)
    )
    return _layer(recorder, layer, src) if is_fast else None


def _can_be_fast(x: Any, attention: Any, *others: Any) -> bool:
    """Check what both fast paths ask of settings and tensors, but for their device and for modes."""
    is_set = (
        torch.backends.mha.get_fastpath_enabled()
        and not torch.is_autocast_enabled()
        and not x.is_nested
        and x.dim() == 3
        and x.numel()
        and attention.batch_first
        and attention._qkv_same_embed_dim
        and attention.num_heads % 2 == 0
        and x.dtype in _FUSED
    )
    if not is_set:
        return False
    layers = (attention.out_proj, *others)
    parts = [getattr(layer, name, None) for layer in layers for name in ("weight", "bias")]
    tensors = [x, attention.in_proj_weight, attention.in_proj_bias, *parts]
    return all(type(each) in (torch.Tensor, torch.nn.Parameter) and each.dtype == x.dtype for each in tensors) and not (
        torch.is_grad_enabled() and any(each.requires_grad for each in tensors)
    )


def _attention(recorder: Recorder, module: Any, x: Any, *, needs_weights: bool = False) -> tuple[Any, Any]:
    """Return self-attention of x[B, S, E], and its weights[B, heads, S, S] or None.

    Where attention is fused it is two GEMMs with biases, and between them attention on views of q, k, v. Else, after a
    GEMM without bias, a kernel adds that and takes heads apart, and products and a softmax follow
    (aten/src/ATen/native/transformers/cuda/attention.cu, `native_multi_head_attention_cuda`).
    """
    batch, length, width = x.shape
    heads, dim = module.num_heads, module.head_dim
    view = x.view(batch, length, heads, dim).transpose(1, 2)
    weights = None
    if not needs_weights and dim % _HEAD_MULTIPLE == 0 and is_fused(view, view, view, None, is_causal=False):
        packed = functional.linear(x, module.in_proj_weight, module.in_proj_bias)
        q, k, v = (one.view(batch, -1, heads, dim).transpose(1, 2) for one in packed.chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v)
    else:
        projected = torch.matmul(x, module.in_proj_weight.detach().t())
        with recorder.marked():
            with recorder.quiet():
                apart = (projected + module.in_proj_bias).view(batch, length, 3, heads, dim).permute(2, 0, 3, 1, 4)
                q, k, v = packed = apart.contiguous()
                q.mul_(dim**-0.5)
            num_bytes = packed.numel() * packed.element_size()
            work = MemoryWork("torch_layer_norm", num_bytes, num_bytes, batch * length, width)  # CTAs of a position
            recorder.add(_APART, (work,), [projected, module.in_proj_bias], [packed])
        scores = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2)).view(batch, heads, length, length)
        weights = torch.softmax(scores, -1)
        y = torch.bmm(weights.flatten(0, 1), v.flatten(0, 1)).view(batch, heads, length, dim)
    y = y.transpose(1, 2).reshape(x.shape)
    return functional.linear(y, module.out_proj.weight, module.out_proj.bias), weights if needs_weights else None


def _layer(recorder: Recorder, layer: Any, src: Any) -> Any:
    """Return an encoder layer of src[B, S, E]: sums in place, and an activation that is a GEMM's."""

    def norm(name: str, x: Any) -> Any:
        with _within(recorder, name):
            module = getattr(layer, name)
            return functional.layer_norm(x, (x.shape[-1],), module.weight, module.bias, module.eps)

    x = norm("norm1", src) if layer.norm_first else src
    with _within(recorder, "self_attn"):
        x, _ = _attention(recorder, layer.self_attn, x)
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


_FLEX = "flex_attention"
_INSIDE = (
    (torch.nn.functional, ("scaled_dot_product_attention",)), (torch.nn.functional, ("linear", "softmax")),
    (torch, ("bmm", "baddbmm")),
)  # fmt: skip
"""Functions that `multi_head_attention_forward` calls: where there is no autocast the first alone matters."""
_ATTENTION = torch.nn.functional.scaled_dot_product_attention

Works = Callable[..., tuple[Work, ...]]
"""Makes what an operation is for the models, of `is_backward`."""


class _StandIn(torch.autograd.Function):
    """An operation that is written down, not run: its result has a shape and nothing in it."""

    @staticmethod
    def forward(ctx: Any, facts: tuple[Any, ...], *tensors: Any) -> Any:
        recorder, name, works, shapes, dtype = facts
        with recorder.quiet():
            outs = tuple(_empty(tensors[0], shape, kind or dtype) for shape, kind in shapes)
        recorder.add(name, works(is_backward=False), [x for x in tensors if x is not None], outs)
        ctx.facts, ctx.path = facts, recorder.path
        ctx.save_for_backward(*tensors)
        ctx.mark_non_differentiable(*outs[1:])
        return outs if len(outs) > 1 else outs[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        recorder, name, works, *_ = ctx.facts
        tensors = ctx.saved_tensors
        needed = ctx.needs_input_grad[1:]
        with recorder.quiet():
            outs = [torch.empty_like(x) if is_needed else None for x, is_needed in zip(tensors, needed, strict=True)]
        reads = [gradients[0], *(x for x in tensors if x is not None)]
        written = [x for x in outs if x is not None]
        recorder.add(f"{name}_backward", works(is_backward=True), reads, written, path=ctx.path, phase="backward")
        return None, *outs


def _empty(tensor: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return a result, of attention as its kernels leave it: heads of a token side by side."""
    if len(shape) != 4:
        return tensor.new_empty(shape, dtype=dtype)
    return tensor.new_empty((shape[0], shape[2], shape[1], shape[3]), dtype=dtype).transpose(1, 2)


def stand_in(
    recorder: Recorder, name: str, works: Works, tensors: Sequence[Any], shapes: Sequence[tuple[Any, Any]], dtype: Any
) -> Any:
    """Return what an operation on `tensors` would, without running it, and write down what it is, gradients included.

    `shapes` are of each result, with its type (None: `dtype`); only the first has a gradient. The first tensor says on
    which device they are.
    """
    return _StandIn.apply((recorder, name, works, tuple(shapes), dtype), *tensors)


@contextmanager
def functions_caught(recorder: Recorder, shapes: Shapes | None = None, *, is_compiled: bool = False) -> Iterator[None]:
    """Write down attention as one operation, however torch would run it, and follow torch's fast paths.

    On `shapes` of tensors without memory stand-ins take the places of operations; None: they run. `is_compiled`: fast
    paths are those that torch.compile takes, not those of eager mode.
    """
    mode = _FunctionMode(recorder, shapes, is_compiled)
    stand_ins = nullcontext() if shapes is None else _flex_attention_caught(mode.flex_attention)
    with fast_paths_followed(recorder, is_compiled=is_compiled), mode, stand_ins:
        yield


class _FunctionMode(TorchFunctionMode):
    def __init__(self, recorder: Recorder, shapes: Shapes | None, is_compiled: bool) -> None:
        super().__init__()
        self._recorder, self._shapes, self._is_compiled = recorder, shapes, is_compiled
        self._casts: dict[int, Any] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_cast = self._shapes is not None and torch.is_autocast_enabled("cuda")
        if is_cast and (func is _ATTENTION or func in AUTOCAST):
            args, kwargs = cast_as_autocast(args, kwargs, self._casts, is_lower=AUTOCAST.get(func, True))
        if func is _ATTENTION:
            return self._attention(func, args, kwargs)
        if getattr(func, "_name", "") == _FLEX and isinstance(func, torch._ops.HigherOrderOperator):
            q, k, v, _, mask = args[:5]
            works = partial(flex_attention_work, q, k, v, mask, self._recorder.precision)
            return self._run(func, args, kwargs, _FLEX, works, [q, k, v])
        if func is torch.nn.functional.multi_head_attention_forward:
            with self._caught_inside(is_cast=is_cast):
                return func(*args, **kwargs)
        if self._shapes is not None:
            if func in (torch.Tensor.tolist, torch.Tensor.numpy):
                value = self._shapes.value_of(args[0])
                return self._shapes.refuse(func.__name__) if value is None else func(value, *args[1:], **kwargs)
            if func in (torch.tensor, torch.as_tensor):  # made on the CPU, so that its values are seen
                kwargs = {name: value for name, value in kwargs.items() if name != "device"}
            elif func is torch.nn.functional.rms_norm and not self._is_compiled:
                out = self._rms_norm(*args, **kwargs)
                if out is not None:
                    return out
        return func(*args, **kwargs)

    @contextmanager
    def _caught_inside(self, *, is_cast: bool) -> Iterator[None]:
        """Catch what a function of torch calls in itself, where no mode sees it: attention, and what is cast."""
        thread = threading.get_ident()

        def catching(original: Any) -> Any:
            def caught(*args: Any, **kwargs: Any) -> Any:
                is_ours = threading.get_ident() == thread
                return self.__torch_function__(original, (), args, kwargs) if is_ours else original(*args, **kwargs)

            return caught

        with ExitStack() as stack:
            for home, names in _INSIDE if is_cast else _INSIDE[:1]:
                for name in names:
                    stack.enter_context(replaced(home, name, catching(getattr(home, name))))
            yield

    def _rms_norm(self, x: Any, normalized_shape: Sequence[int], weight: Any = None, eps: Any = None) -> Any:
        """Replace what comes apart on "meta", and is one kernel on a GPU where it has one type."""
        del eps
        reads = [x] if weight is None else [x, weight]
        if len({tensor.dtype for tensor in reads}) > 1:
            return None
        name, rows = "_fused_rms_norm", max(1, x.numel() // max(1, math.prod(normalized_shape)))

        def works(*, is_backward: bool) -> tuple[Work, ...]:
            inputs, outputs = ([x, x, *reads[1:]], reads) if is_backward else (reads, [x])
            num_bytes = (sum(map(bytes_of, tensors)) for tensors in (inputs, outputs))
            of = f"{name}_backward" if is_backward else name
            return eager_works(Operation(of, Role.REDUCTION, Domain(x.numel(), rows), (), inputs, outputs, *num_bytes))

        rows_of = (rows, x.numel() // rows)  # no four dimensions, whose results are attention's
        return stand_in(self._recorder, f"aten.{name}", works, reads, [(rows_of, None)], x.dtype).view(x.shape)

    def _attention(self, func: Any, args: Any, kwargs: Any) -> Any:
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        bound = dict(zip(names, args, strict=False)) | kwargs
        q, k, v, mask = bound["query"], bound["key"], bound["value"], bound.get("attn_mask")
        is_causal = bool(bound.get("is_causal", False))
        if self._shapes is not None and not is_fused(q, k, v, mask, is_causal):
            return func(*args, **kwargs)  # comes apart into what the GPU runs
        works = partial(attention_work, q, k, v, self._recorder.precision, mask=mask, is_causal=is_causal)
        name = "aten.scaled_dot_product_attention"
        if self._shapes is not None:
            shape = (*q.shape[:-1], v.shape[-1])
            return stand_in(self._recorder, name, works, (q, k, v, mask), [(shape, None)], q.dtype)
        return self._run(func, args, kwargs, name, works, [x for x in (q, k, v, mask) if x is not None])

    def flex_attention(
        self, query: Any, key: Any, value: Any, score_mod: Any = None, block_mask: Any = None, scale: Any = None,
        enable_gqa: bool = False, return_lse: bool = False, kernel_options: Any = None, *, return_aux: Any = None,
    ) -> Any:  # fmt: skip
        """Replace flex_attention."""
        del score_mod, scale, enable_gqa, kernel_options
        mask = None if block_mask is None else block_mask.as_tuple()
        works = partial(flex_attention_work, query, key, value, mask, self._recorder.precision)
        rows = tuple(query.shape[:-1])
        shapes = [((*rows, value.shape[-1]), None)]
        if return_lse or return_aux is not None:
            shapes.append((rows, torch.float32))
        out = stand_in(self._recorder, _FLEX, works, (query, key, value), shapes, query.dtype)
        if return_aux is None:
            return out
        from torch.nn.attention.flex_attention import AuxOutput

        return out[0], AuxOutput(lse=out[1], max_scores=out[1])

    def _run(self, func: Any, args: Any, kwargs: Any, name: str, works: Works, reads: Sequence[Any]) -> Any:
        with self._recorder.marked():
            with self._recorder.quiet():
                out = func(*args, **kwargs)
            self._recorder.add(name, works(is_backward=False), reads, [out[0] if isinstance(out, tuple) else out])
        return out


_HOME = "torch.nn.attention.flex_attention"
_NAME = "_gemm_eval_stand_in"  # in the module of the function, whose names its code sees


def _calls_stand_in(*args: Any, **kwargs: Any) -> Any:
    return _gemm_eval_stand_in(*args, **kwargs)  # type: ignore[name-defined]  # noqa: F821


@contextmanager
def _flex_attention_caught(handler: Callable[..., Any]) -> Iterator[None]:
    """Call `handler`, which has its arguments, in the place of flex_attention, in this thread."""
    home = sys.modules.get(_HOME)
    if home is None:  # then nobody calls it either
        yield
        return
    function, thread = home.flex_attention, threading.get_ident()
    code, defaults, kwdefaults = function.__code__, function.__defaults__, function.__kwdefaults__
    original = type(function)(code, function.__globals__, function.__name__, defaults)
    original.__kwdefaults__ = kwdefaults

    def chosen(*args: Any, **kwargs: Any) -> Any:
        return (handler if threading.get_ident() == thread else original)(*args, **kwargs)

    setattr(home, _NAME, chosen)
    function.__code__, function.__defaults__, function.__kwdefaults__ = _calls_stand_in.__code__, None, None
    try:
        yield
    finally:
        function.__code__, function.__defaults__, function.__kwdefaults__ = code, defaults, kwdefaults
        delattr(home, _NAME)
