"""What is caught above autograd, before it comes apart: attention, and linear layers of quantization packages."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any

from gemm_eval.extras import needs_extra
from gemm_eval.torch.attention import attention_work, flex_attention_work
from gemm_eval.torch.autocast import AUTOCAST, cast_as_autocast
from gemm_eval.torch.eager_mode import Operation, eager_works
from gemm_eval.torch.fast_paths import fast_paths_followed
from gemm_eval.torch.graph import Domain, Role
from gemm_eval.torch.recorder import Recorder
from gemm_eval.torch.shapes import Shapes
from gemm_eval.torch.work import Work

with needs_extra("gemm_eval.torch", "torch"):
    import torch
    from torch.overrides import TorchFunctionMode

__all__ = ["FunctionMode", "stand_in"]

_FLEX = "flex_attention"
_ATTENTION = torch.nn.functional.scaled_dot_product_attention

Works = Callable[[bool], tuple[Work, ...]]
"""What an operation is for the models, forward (False) or backward (True)."""


class _StandIn(torch.autograd.Function):
    """An operation that is written down, not run: its result has a shape and nothing in it."""

    @staticmethod
    def forward(ctx: Any, facts: tuple[Any, ...], *tensors: Any) -> Any:
        recorder, name, works, shapes, dtype = facts
        with recorder.quiet():
            outs = tuple(_empty(tensors[0], shape, kind or dtype) for shape, kind in shapes)
        recorder.add(name, works(False), [x for x in tensors if x is not None], outs)
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
        recorder.add(f"{name}_backward", works(True), reads, written, path=ctx.path, phase="backward")
        return None, *outs


def _empty(tensor: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """A result, of attention as its kernels leave it: heads of a token side by side."""
    if len(shape) != 4:
        return tensor.new_empty(shape, dtype=dtype)
    return tensor.new_empty((shape[0], shape[2], shape[1], shape[3]), dtype=dtype).transpose(1, 2)


def stand_in(
    recorder: Recorder, name: str, works: Works, tensors: Sequence[Any], shapes: Sequence[tuple[Any, Any]], dtype: Any
) -> Any:
    """Return what an operation on `tensors` would, without running it, and write down what it is, gradients included.

    Args:
        recorder: where.
        name: of the operation.
        works: what it is for the models.
        tensors: what it reads; the first says on which device.
        shapes: of each result, with its type; None: `dtype`. Only the first has a gradient.
        dtype: of the results.
    """
    return _StandIn.apply((recorder, name, works, tuple(shapes), dtype), *tensors)


def _is_one_kernel(x: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> bool:
    """Whether rms_norm is `_fused_rms_norm`: of one type, and nobody asks for a gradient."""
    del normalized_shape, eps
    tensors = [x] if weight is None else [x, weight]
    wants_grad = torch.is_grad_enabled() and any(one.requires_grad for one in tensors)
    return not wants_grad and len({one.dtype for one in tensors}) == 1


class FunctionMode(TorchFunctionMode):
    """Writes down attention as one operation, however torch would run it, and follows torch's fast paths.

    Args:
        recorder: where.
        shapes: of tensors without memory, on which stand-ins take the places of operations; None: they run.
        is_compiled: fast paths are those that torch.compile takes, not those of eager mode.
    """

    def __init__(self, recorder: Recorder, shapes: Shapes | None = None, *, is_compiled: bool = False) -> None:
        super().__init__()
        self._recorder = recorder
        self._shapes = shapes
        self._is_compiled = is_compiled
        self._stack = ExitStack()

    def __enter__(self) -> FunctionMode:
        self._stack.enter_context(fast_paths_followed(self._recorder, is_compiled=self._is_compiled))
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)
        self._stack.close()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _ATTENTION:
            if self._shapes is not None and torch.is_autocast_enabled("cuda"):
                args, kwargs = cast_as_autocast(args, kwargs)
            return self._attention(func, args, kwargs)
        if getattr(func, "_name", "") == _FLEX and isinstance(func, torch._ops.HigherOrderOperator):
            return self._flex(func, args, kwargs)
        if func is torch.nn.functional.multi_head_attention_forward:
            with self._attention_inside():
                return func(*args, **kwargs)
        if self._shapes is not None:
            if func in (torch.Tensor.tolist, torch.Tensor.numpy):
                return self._values(func, args, kwargs)
            if func in (torch.tensor, torch.as_tensor):  # made on the CPU, so that its values are seen
                kwargs = {name: value for name, value in kwargs.items() if name != "device"}
            elif func is torch.nn.functional.rms_norm and not self._is_compiled and _is_one_kernel(*args, **kwargs):
                return self._rms_norm(*args, **kwargs)
            elif func in AUTOCAST and torch.is_autocast_enabled("cuda"):
                args, kwargs = cast_as_autocast(args, kwargs)
        return func(*args, **kwargs)

    @contextmanager
    def _attention_inside(self) -> Iterator[None]:
        """Catch attention that a function of torch calls in itself, where no mode sees it; in this thread alone."""
        home, name, thread = torch.nn.functional, "scaled_dot_product_attention", threading.get_ident()
        original = getattr(home, name)

        def caught(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != thread:
                return original(*args, **kwargs)
            return self._attention(original, args, kwargs)

        setattr(home, name, caught)
        try:
            yield
        finally:
            setattr(home, name, original)

    def _rms_norm(self, x: Any, normalized_shape: Sequence[int], weight: Any = None, eps: Any = None) -> Any:
        """Stand in for what comes apart on "meta" and is one kernel on a GPU."""
        del eps
        with self._recorder.quiet():
            out = torch.empty_like(x, memory_format=torch.contiguous_format)
        reads = [x] if weight is None else [x, weight]
        rows = max(1, x.numel() // max(1, math.prod(normalized_shape)))
        read_bytes, write_bytes = (sum(one.numel() * one.element_size() for one in some) for some in (reads, [out]))
        domain = Domain(x.numel(), rows)
        name = "_fused_rms_norm"
        works = eager_works(Operation(name, Role.REDUCTION, domain, (), reads, [out], read_bytes, write_bytes))
        self._recorder.add(f"aten.{name}", works, reads, [out])
        return out

    def _values(self, func: Any, args: Any, kwargs: Any) -> Any:
        assert self._shapes is not None
        value = self._shapes.value_of(args[0])
        if value is None:
            self._shapes.refuse(func.__name__)
        return func(value, *args[1:], **kwargs)

    def _attention(self, func: Any, args: Any, kwargs: Any) -> Any:
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        bound = dict(zip(names, args, strict=False)) | kwargs
        q, k, v, mask = bound["query"], bound["key"], bound["value"], bound.get("attn_mask")
        is_causal = bool(bound.get("is_causal", False))
        precision = self._recorder.precision

        def works(is_backward: bool) -> tuple[Work, ...]:
            return attention_work(q, k, v, precision, mask=mask, is_causal=is_causal, is_backward=is_backward)

        name = "aten.scaled_dot_product_attention"
        if self._shapes is not None:
            shape = (*q.shape[:-1], v.shape[-1])
            return stand_in(self._recorder, name, works, (q, k, v, mask), [(shape, None)], q.dtype)
        return self._run(func, args, kwargs, name, works, [x for x in (q, k, v, mask) if x is not None])

    def _flex(self, func: Any, args: Any, kwargs: Any) -> Any:
        q, k, v, block_mask = args[0], args[1], args[2], args[4]
        precision = self._recorder.precision

        def works(is_backward: bool) -> tuple[Work, ...]:
            return flex_attention_work(q, k, v, block_mask, precision, is_backward=is_backward)

        name = _FLEX
        return self._run(func, args, kwargs, name, works, [q, k, v])

    def flex_attention(
        self, query: Any, key: Any, value: Any, score_mod: Any = None, block_mask: Any = None, scale: Any = None,
        enable_gqa: bool = False, return_lse: bool = False, kernel_options: Any = None, *, return_aux: Any = None,
    ) -> Any:  # fmt: skip
        """Stand in for flex_attention."""
        del score_mod, scale, enable_gqa, kernel_options
        mask = None if block_mask is None else block_mask.as_tuple()
        precision = self._recorder.precision

        def works(is_backward: bool) -> tuple[Work, ...]:
            return flex_attention_work(query, key, value, mask, precision, is_backward=is_backward)

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
            self._recorder.add(name, works(False), reads, [out[0] if isinstance(out, tuple) else out])
        return out
