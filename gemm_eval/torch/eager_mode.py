"""Kernels that PyTorch has for an operation of eager mode and for optimizers. TORCH.md, "Eager kernels".

The choice and the threads of each are those of torch's source (aten/src/ATen/native/cuda: TensorIterator's loops,
Reduce.cuh, Shape.cu, Normalization.cuh, PersistentSoftmax.cuh), seen on a GPU with its profiler. Names are those of
`gemm_eval.workload.memory_kernel`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from gemm_eval.errors import InvalidOptionError
from gemm_eval.torch.graph import CTA_ELEMENTS, DEALT, Domain, Role, dealt
from gemm_eval.transformer import MemoryWork
from gemm_eval.words import shown

_CHUNK_BYTES = 2048  # that a CTA of vector loads takes: 128 threads, 16 bytes each
_VECTOR_BYTES = 16
_WARP = 32
_FAR = 64  # elements read before the neighbour in memory of the first: lines do not stay in L1 so long
_LONG_SUM = 256  # elements of a thread beyond which a sum has a CTA, not a warp
_MAX_WARP_SOFTMAX, _TWO_ROWS = 2048, 128  # elements of a row of softmax that a warp holds, and of which it holds two
_BATCH_NORM_THREADS = (32, 64, 128, 256, 512)
_TILE = 32
_MIN_SUMS = 2
_MIN_IMAGE_DIM = 4

_ENGINES_WORDS = {"topk": "top_k"}  # kernels of engines stand for torch's where none of these was timed
_GATHERED = ("embedding", "index_select", "index", "gather", "take", "_unsafe_index")
_ERROR_FUNCTIONS = ("gelu", "erf", "erfc", "erfinv")
_SOFTMAXES = ("_softmax", "_log_softmax", "_safe_softmax")
_NORMS = {"native_layer_norm": "torch_layer_norm", "_fused_rms_norm": "torch_rms_norm"}


class Operation(NamedTuple):
    """An operation that ran: its name without namespace, overload, and the underscore of an in-place form.

    `inputs` and `outputs` are all tensors of its arguments and results; bytes count each tensor once.
    """

    name: str
    role: Role
    domain: Domain
    args: Sequence[Any]
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    read_bytes: int
    write_bytes: int


def eager_works(of: Operation) -> tuple[MemoryWork, ...]:
    """Return the kernels that eager mode runs for an operation, in their order."""
    if of.role is Role.REDUCTION:
        return _of_rows(of)
    if of.role is Role.WINDOW and of.name not in _GATHERED:
        return (_window(of),)
    if of.role in (Role.ELEMENTWISE, Role.CONSTANT, Role.WINDOW):
        return _elementwise(of)
    return (_dealt(_ENGINES_WORDS.get(of.name, of.name), of.read_bytes, of.write_bytes, of.domain.num_elements),)


def bias_work(num_elements: int, num_bytes: int) -> MemoryWork:
    """Return the kernel that adds a bias to the result of a convolution."""
    return _dealt("torch_offsets", num_bytes, num_bytes, num_elements)


def bias_of_mask_works(num_elements: int, item_bytes: int) -> tuple[MemoryWork, ...]:
    """Return the kernels that make a bias of a mask of truth values: two constants, then a choice between them."""
    constant = vector_work(0, item_bytes)
    return constant, constant, _dealt("torch_offsets", num_elements, num_elements * item_bytes, num_elements)


def layout_work(images: int, channels: int, positions: int, read_bytes: int, write_bytes: int) -> MemoryWork:
    """Return cuDNN's kernel between channels first and channels last; its tiles are of 32 channels x 32 positions."""
    in_tiles = (-(-size // _TILE) * _TILE for size in (channels, positions))
    lanes = images * math.prod(in_tiles)
    return _dealt("cudnn_layout", read_bytes, write_bytes, lanes)


def has_channels_last(tensor: Any) -> bool:
    """Say whether the channels of images lie side by side."""
    return bool(
        tensor.dim() >= _MIN_IMAGE_DIM and tensor.shape[1] > 1 and tensor.stride(1) == 1 and not tensor.is_contiguous()
    )


def _elementwise(of: Operation) -> tuple[MemoryWork, ...]:
    count, read, written = of.domain.num_elements, of.read_bytes, of.write_bytes
    if of.name == "cat":
        return (vector_work(read, written) if _is_joined_by_vectors(of) else _dealt("torch_cat", read, written, count),)
    if of.name == "roll":
        shifts = of.args[1] if isinstance(of.args[1], list | tuple) else [of.args[1]]
        return (_dealt("torch_roll", read, written, count),) * max(1, len(shifts))
    if of.name == "constant_pad_nd":
        size = _item_bytes(of.outputs)
        return vector_work(0, written), _dealt("torch_offsets", read, read, read // size)
    if "batch_norm" in of.name:
        return _batch_norm(of)
    if of.name in _GATHERED or of.role is Role.CONSTANT:
        return (vector_work(read, written),)
    return (_loop(of.name, of.inputs, of.outputs, count, read, written),)


def _loop(
    name: str, inputs: Sequence[Any], outputs: Sequence[Any], count: int, read_bytes: int, write_bytes: int
) -> MemoryWork:
    """Return a loop of TensorIterator: over vectors, over single elements, or with divisions that find each element."""
    tensors = [tensor for tensor in (*inputs, *outputs) if tensor.dim()]
    if all(_lies_as(tensors[0], tensor) for tensor in tensors):
        types = {str(tensor.dtype) for tensor in tensors}
        narrows = len(tensors) == _MIN_SUMS and [str(t.dtype) for t in tensors] == ["torch.float32", "torch.bfloat16"]
        if len(types) <= 1 or narrows:
            return vector_work(read_bytes, write_bytes, "torch_gelu" if name in _ERROR_FUNCTIONS else "torch_vector")
        return _dealt("torch_cast", read_bytes, write_bytes, count)
    if outputs and any(_is_scattered(outputs[0], tensor) for tensor in inputs):
        return _dealt("torch_scattered", read_bytes, write_bytes, count)
    what = "torch_offsets_wide" if _item_bytes(outputs or tensors) >= 4 else "torch_offsets"
    return _dealt(what, read_bytes, write_bytes, count)


def _lies_as(one: Any, other: Any) -> bool:
    """Say whether two tensors have the same elements at the same places, without gaps."""
    last = sum((size - 1) * stride for size, stride in zip(other.shape, other.stride(), strict=True))
    is_dense = other.numel() == 0 or last + 1 == other.numel()
    return bool((one.shape, one.stride()) == (other.shape, other.stride()) and is_dense)


def _is_scattered(out: Any, tensor: Any) -> bool:
    """Say whether neighbours in the result lie far apart in an input, and are not met again soon."""
    if tensor.dim() != out.dim() or tensor.shape != out.shape:
        return False
    between = 1
    for at in sorted(range(out.dim()), key=out.stride):
        if out.shape[at] == 1:
            continue
        if tensor.stride(at) <= 1:
            return between > _FAR
        between *= int(out.shape[at])
    return False


def _is_joined_by_vectors(of: Operation) -> bool:
    parts = of.inputs
    dim = of.args[1] if len(of.args) > 1 and isinstance(of.args[1], int) else 0
    return all(
        part.is_contiguous() and math.prod(part.shape[dim:]) * part.element_size() % _VECTOR_BYTES == 0
        for part in parts
        if part.dim()
    )


def _of_rows(of: Operation) -> tuple[MemoryWork, ...]:
    sums, width = of.domain.rows or 0, of.domain.width
    rows = max(1, sums)
    read, written = of.read_bytes, of.write_bytes
    if of.name in _NORMS:
        row = MemoryWork(_NORMS[of.name], read, written, rows, width)
        return (*_made_contiguous(of.inputs[0]), row)
    if of.name == "native_group_norm":
        few = sums * 4
        moments = MemoryWork("torch_moments", read, few, rows, width)
        return moments, vector_work(few, few), _dealt("torch_offsets", read, written, of.domain.num_elements)
    if of.name in _SOFTMAXES and of.domain.is_inner:
        return (*_made_contiguous(of.inputs[0]), _softmax(rows, width, read, written))
    if "backward" in of.name or ("norm" in of.name and of.name not in ("norm", "linalg_vector_norm")):
        return (_dealt("torch_offsets", read, written, of.domain.num_elements),)
    if not of.domain.is_inner or rows < _MIN_SUMS:  # columns, or one sum that all SMs share
        return (vector_work(read + written, 0),)
    if width > _LONG_SUM * _WARP:
        return (MemoryWork("torch_sum_cta", read, written, rows, width),)
    return (MemoryWork("torch_sum", read, written, rows, width),)


def _made_contiguous(tensor: Any) -> tuple[MemoryWork, ...]:
    """Return the copy that a kernel of contiguous rows needs of another tensor."""
    if tensor.is_contiguous():
        return ()
    num_bytes = tensor.numel() * tensor.element_size()
    return (_dealt("torch_offsets", num_bytes, num_bytes, tensor.numel()),)


def _softmax(rows: int, width: int, read_bytes: int, write_bytes: int) -> MemoryWork:
    if width > _MAX_WARP_SOFTMAX:
        return MemoryWork("torch_softmax_cta", read_bytes, write_bytes, rows, width)
    filled = 1 << max(0, math.ceil(math.log2(max(1, width))))
    together = 2 if filled <= _TWO_ROWS else 1
    return MemoryWork("torch_softmax", read_bytes, write_bytes, -(-rows // together), max(_WARP, filled) * together)


def _batch_norm(of: Operation) -> tuple[MemoryWork, ...]:
    """Statistics as fp32 and their roots, then all elements: by planes of an image, or channels side by side."""
    x = of.inputs[0]
    channels = int(x.shape[1])
    few = channels * 4
    before = (vector_work(few, few), vector_work(few, few))
    if has_channels_last(x):
        return (*before, _dealt("torch_batch_norm_last", of.read_bytes, of.write_bytes, x.numel()))
    planes = int(x.shape[0]) * channels
    plane = max(1, x.numel() // max(1, planes))
    threads = max(_batch_norm_threads(plane // 4), min(_batch_norm_threads(plane), 64))
    warps = threads // _WARP
    main = MemoryWork("torch_batch_norm", of.read_bytes, of.write_bytes, planes * warps, -(-plane // warps))
    return (*before, main)


def _batch_norm_threads(size: int) -> int:
    return next((threads for threads in _BATCH_NORM_THREADS if size <= threads), _BATCH_NORM_THREADS[-1])


def _window(of: Operation) -> MemoryWork:
    read, written, count = of.read_bytes, of.write_bytes, of.domain.num_elements
    if "bilinear" in of.name and len(of.outputs[0].shape) == 4:
        images, channels, *sides = of.outputs[0].shape
        return MemoryWork("torch_bilinear", read, written, -(-math.prod(sides) // _WARP), images * channels * _WARP)
    if "nearest" in of.name:
        return _dealt("torch_offsets", read, written, count)
    return _dealt("torch_max_pool" if "max" in of.name else "torch_avg_pool", read, written, count)


def vector_work(read_bytes: int, write_bytes: int, what: str = "torch_vector") -> MemoryWork:
    """Return a kernel of vector loads: threads for what it writes, or reads where that is all."""
    return MemoryWork(what, read_bytes, write_bytes, -(-(write_bytes or read_bytes) // _CHUNK_BYTES), CTA_ELEMENTS)


def _dealt(what: str, read_bytes: int, write_bytes: int, num_elements: int) -> MemoryWork:
    return MemoryWork(what, read_bytes, write_bytes, -(-num_elements // CTA_ELEMENTS), CTA_ELEMENTS)


def _item_bytes(tensors: Sequence[Any]) -> int:
    return max(int(tensor.element_size()) for tensor in tensors)


OPTIMIZERS = {"adamw": 2, "adam": 2, "sgd": 0, "sgd_momentum": 1, "lion": 1, "adagrad": 1, "rmsprop": 1}
"""Optimizers, and how many states of its own size a parameter has."""


def optimizer_works(optimizer: Any, parameters: Iterable[Any]) -> list[MemoryWork]:
    """Return the kernels of a step, as torch's ``fused=True`` has them: states have the types of their parameters.

    `optimizer` is a name of `OPTIMIZERS`, or an optimizer of torch, of which its class and momentum are read. Of
    `parameters` those count that have gradients.
    """
    num_states = OPTIMIZERS.get(_name(optimizer))
    if num_states is None:
        raise InvalidOptionError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {shown(optimizer)}")
    sizes: Counter[str] = Counter()
    for parameter in parameters:
        if parameter.requires_grad:
            sizes[str(parameter.dtype)] += parameter.numel() * parameter.element_size()
    return [
        dealt(DEALT, (2 + num_states) * num_bytes, (1 + num_states) * num_bytes, num_bytes)
        for num_bytes in sizes.values()
    ]


def _name(optimizer: Any) -> str:
    if isinstance(optimizer, str):
        return optimizer.lower()
    name = type(optimizer).__name__.lower()
    has_momentum = any(group.get("momentum") for group in getattr(optimizer, "param_groups", ()))
    return "sgd_momentum" if name == "sgd" and has_momentum else name
