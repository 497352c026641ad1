"""Tensors without memory in the places of real ones, and the few values that control flow asks for.

Everything runs on torch's device "meta", where tensors have shapes, types and storages, and no elements. What little
code reads of values are mostly positions, masks and sizes: small tensors that are made of constants and of inputs.
Their values are kept beside them, computed on the CPU; whatever depends on a weight or an activation has none.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn

from gemm_eval.errors import UnsupportedError
from gemm_eval.torch.eager_mode import has_channels_last
from gemm_eval.torch.recorder import described, tensors_of
from gemm_eval.words import needs_extra

with needs_extra("gemm_eval.torch", "torch"):
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.utils._pytree import tree_map_only

_META = torch.device("meta")
_CPU = torch.device("cpu")
_MAX_KNOWN = {True: 1 << 20, False: 1 << 10}
"""Most elements of a tensor whose values are kept: of integers and truth values, and of others."""
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_READ = frozenset(("_local_scalar_dense", "equal", "is_nonzero"))
_SIZED_BY_VALUES = frozenset(
    ("nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount", "repeat_interleave")
)
_CONVOLUTION = "aten::convolution"
_ROWS = ("native_layer_norm", "native_group_norm", "_softmax", "_log_softmax", "_safe_softmax")
_BATCH_NORM_GRADIENT = "aten::native_batch_norm_backward"
_LIES_OTHERWISE = frozenset(
    (_CONVOLUTION, _BATCH_NORM_GRADIENT, "aten::pixel_unshuffle", *(f"aten::{name}" for name in _ROWS))
)
"""On a GPU their first result is contiguous, or has channels last as an operand has; on "meta" it is not so."""
_MASKS = (torch.bool, torch.uint8)
_NEVER_KNOWN = ("rand", "normal", "bernoulli", "multinomial", "dropout", "empty", "uniform", "exponential")


class Shapes:
    """Runs operations on tensors without memory.

    Attributes:
        where: has the `last_path` of the module that runs, for errors.
    """

    where: Any = None

    def __init__(self) -> None:
        self._metas: dict[int, tuple[Any, Any]] = {}
        self._values: dict[int, tuple[Any, Any]] = {}
        self._stale: set[int] = set()
        self._made: dict[Any, Any] = {}
        self._storages: list[Any] = []

    def of(self, tensor: Any, *, keeps_grad: bool = False, is_weight: bool = False) -> Any:
        """Return the tensor that stands for another dense one, with its values where they are few and no weights.

        `keeps_grad`: it requires a gradient where the other does.
        """
        known = self._metas.get(id(tensor))
        if known is not None:
            return known[1]
        if tensor.layout is not torch.strided or type(tensor) not in _PLAIN:
            what = tensor.layout if type(tensor) in _PLAIN else f"a {type(tensor).__name__}"
            raise UnsupportedError(f"a tensor of shape {list(tensor.shape)} is {what}: only dense ones can be traced")
        result = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=_META)
        if keeps_grad and tensor.requires_grad:
            result.requires_grad_()
        self._metas[id(tensor)] = tensor, result
        if not (is_weight or tensor.is_meta) and _is_small(tensor):
            self._learn(result, tensor.detach().to(_CPU, copy=True))
        return result

    def value_of(self, tensor: Any) -> Any:
        """Return the values of a tensor; None: they are not known."""
        known = self._values.get(id(tensor))
        if known is None or StorageWeakRef(tensor.untyped_storage()).cdata in self._stale:
            return None
        return known[1]

    def run(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
        """Run an operation; return the arguments that it ran with, and its result."""
        if any(map(_is_foreign, args)) or any(map(_is_foreign, kwargs.values())):
            args, kwargs = tree_map_only(torch.Tensor, self.of, (args, kwargs))
        if func._schema.name == "aten::index" and len(args) > 1:
            args = (args[0], [self._places(func, index) for index in args[1]], *args[2:])
        values = self._values_for(func, args, kwargs)
        if _asks_for_values(func, args, kwargs):
            if values is None:
                self.refuse(func)
            answer = func(*values[0], **values[1])
            is_tensor = isinstance(answer, torch.Tensor | tuple | list)
            return args, kwargs, tree_map_only(torch.Tensor, self.of, answer) if is_tensor else answer
        if kwargs.get("device") is not None or _is_factory(func):
            kwargs = kwargs | {"device": _META}
        out = self._out(func, args, kwargs)
        if values is not None and _is_small(out):
            self._learn(out, func(*values[0], **values[1]))
        elif func._schema.is_mutable:
            self._forget(func, args)
        return args, kwargs, out

    def _out(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of an operation: sizes and strides as those of the last one that had the same arguments."""
        key = (func, described(args), described(kwargs)) if _is_fresh(func) else None
        try:
            earlier = self._made.get(key)
        except TypeError:  # an argument has no hash
            key = earlier = None
        if earlier is not None:
            outs = tuple(torch.empty_strided(*like[:2], dtype=like[2], device=_META) for like in earlier)
            return outs if len(outs) > 1 else outs[0]
        out = func(*args, **kwargs)
        if func._schema.name in _LIES_OTHERWISE:
            out = _as_on_a_gpu(func._schema.name, args, out)
        outs = out if isinstance(out, tuple) else (out,)
        if key is not None and all(isinstance(one, torch.Tensor) for one in outs):
            inputs = {one.untyped_storage()._cdata for one in tensors_of((args, kwargs))}
            if not any(one.untyped_storage()._cdata in inputs for one in outs):
                self._made[key] = described(outs)
        return out

    def clear(self) -> None:
        """Let go of all tensors, so that what is still there afterwards is held by others."""
        self._metas.clear()
        self._values.clear()

    def refuse(self, what: Any) -> NoReturn:
        """Say that what runs depends on values."""
        where = getattr(self.where, "last_path", "") or "the module"
        raise UnsupportedError(
            f"{where} asks for values of tensors ({what}), which depend on weights that a trace does not have; give "
            "the module a form of fixed shapes (transformers: model.set_experts_implementation('grouped_mm')), or run "
            "it: with gemm_eval.torch.predict(arch)"
        )

    def _values_for(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Arguments with values in the places of tensors; None: some are not known, or the result is to have none."""
        if any(word in func._schema.name for word in _NEVER_KNOWN):
            return None
        if any(self.value_of(tensor) is None for tensor in tensors_of((args, kwargs))):
            return None
        swapped_args, swapped = tree_map_only(torch.Tensor, self.value_of, (args, kwargs))
        if swapped.get("device") is not None or _is_factory(func):
            swapped = swapped | {"device": _CPU}
        return swapped_args, swapped

    def _places(self, func: Any, index: Any) -> Any:
        """Return a mask of truth values, which says how many come out, as the places where it holds."""
        if index is None or index.dtype not in _MASKS:
            return index
        value = self.value_of(index)
        if value is None or value.dim() != 1:
            self.refuse(func)
        return self.of(value.nonzero().squeeze(1))

    def _learn(self, tensor: Any, value: Any) -> None:
        for each, values in zip(tensors_of(tensor), tensors_of(value), strict=True):
            self._values[id(each)] = each, values

    def _forget(self, func: Any, args: Sequence[Any]) -> None:
        """Forget the values of tensors that are written over, and of other views of them."""
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in tensors_of(value):
                    storage = StorageWeakRef(tensor.untyped_storage())
                    self._storages.append(storage)  # its identity is given to no other
                    self._stale.add(storage.cdata)


def _as_on_a_gpu(name: str, args: Sequence[Any], out: Any) -> Any:
    """Return the result of an operation as it lies in memory on a GPU."""
    first, *rest = tensors_of(out)
    form = torch.contiguous_format
    if name == _BATCH_NORM_GRADIENT and args[7]:  # with statistics of its own it lies as the input
        return out
    if name == _CONVOLUTION and any(has_channels_last(one) for one in args[:2]):
        form = torch.channels_last if first.dim() == 4 else torch.channels_last_3d
    if not first.is_contiguous(memory_format=form) or (form is torch.channels_last and not has_channels_last(first)):
        first = torch.empty_like(first, memory_format=form)
    return (first, *rest) if isinstance(out, tuple) else first


def _asks_for_values(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    name = func._schema.name.rpartition("::")[2]
    if name == "repeat_interleave":
        return not args[1:] and kwargs.get("output_size") is None
    return name in _READ or name in _SIZED_BY_VALUES


@lru_cache(maxsize=4096)
def _is_factory(func: Any) -> bool:
    arguments = func._schema.arguments
    return any(one.name == "device" for one in arguments) and not any("Tensor" in str(one.type) for one in arguments)


@lru_cache(maxsize=4096)
def _is_fresh(func: Any) -> bool:
    """Say whether all results of an operation are tensors of their own."""
    returns = func._schema.returns
    is_new = not func._schema.is_mutable and all(
        one.alias_info is None and str(one.type) == "Tensor" for one in returns
    )
    return is_new and bool(returns)


def _is_small(value: Any) -> bool:
    sizes = [tensor.numel() <= _MAX_KNOWN[not (tensor.is_floating_point() or tensor.is_complex())]
             for tensor in tensors_of(value)]  # fmt: skip
    return bool(sizes) and all(sizes)


def _is_foreign(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_is_foreign, value))
    return isinstance(value, torch.Tensor) and not value.is_meta
