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
from gemm_eval.torch.graph import CTA_ELEMENTS, DEALT, Domain, Role, blocks, dealt
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

    def blocks(self, what: str) -> MemoryWork:
        """Return a kernel that goes over all elements in blocks."""
        return blocks(what, self.read_bytes, self.write_bytes, self.domain.num_elements)


def eager_works(of: Operation) -> tuple[MemoryWork, ...]:
    """Return the kernels that eager mode runs for an operation, in their order."""
    if of.role is Role.REDUCTION:
        return _of_rows(of)
    if of.role is Role.WINDOW and of.name not in _GATHERED:
        return (_window(of),)
    if of.role in (Role.ELEMENTWISE, Role.CONSTANT, Role.WINDOW):
        return _elementwise(of)
    return (of.blocks(_ENGINES_WORDS.get(of.name, of.name)),)


def bias_work(num_elements: int, num_bytes: int) -> MemoryWork:
    """Return the kernel that adds a bias to the result of a convolution."""
    return blocks("torch_offsets", num_bytes, num_bytes, num_elements)


def bias_of_mask_works(num_elements: int, item_bytes: int) -> tuple[MemoryWork, ...]:
    """Return the kernels that make a bias of a mask of truth values: two constants, then a choice between them."""
    constant = vector_work(0, item_bytes)
    return constant, constant, blocks("torch_offsets", num_elements, num_elements * item_bytes, num_elements)


def layout_work(images: int, channels: int, positions: int, read_bytes: int, write_bytes: int) -> MemoryWork:
    """Return cuDNN's kernel between channels first and channels last; its tiles are of 32 channels x 32 positions."""
    in_tiles = (-(-size // _TILE) * _TILE for size in (channels, positions))
    return blocks("cudnn_layout", read_bytes, write_bytes, images * math.prod(in_tiles))


def has_channels_last(tensor: Any) -> bool:
    """Say whether the channels of images lie side by side."""
    return bool(
        tensor.dim() >= _MIN_IMAGE_DIM and tensor.shape[1] > 1 and tensor.stride(1) == 1 and not tensor.is_contiguous()
    )


def vector_work(read_bytes: int, write_bytes: int, what: str = "torch_vector") -> MemoryWork:
    """Return a kernel of vector loads: threads for what it writes, or reads where that is all."""
    return MemoryWork(what, read_bytes, write_bytes, -(-(write_bytes or read_bytes) // _CHUNK_BYTES), CTA_ELEMENTS)


def _elementwise(of: Operation) -> tuple[MemoryWork, ...]:
    read, written = of.read_bytes, of.write_bytes
    if of.name == "cat":
        dim = of.args[1] if len(of.args) > 1 and isinstance(of.args[1], int) else 0
        is_joined_by_vectors = all(
            part.is_contiguous() and math.prod(part.shape[dim:]) * part.element_size() % _VECTOR_BYTES == 0
            for part in of.inputs
            if part.dim()
        )
        return (vector_work(read, written) if is_joined_by_vectors else of.blocks("torch_cat"),)
    if of.name == "roll":
        shifts = of.args[1] if isinstance(of.args[1], list | tuple) else [of.args[1]]
        return (of.blocks("torch_roll"),) * max(1, len(shifts))
    if of.name == "constant_pad_nd":
        return vector_work(0, written), blocks("torch_offsets", read, read, read // _item_bytes(of.outputs))
    if "batch_norm" in of.name:
        return _batch_norm(of)
    if of.name in _GATHERED or of.role is Role.CONSTANT:
        return (vector_work(read, written),)
    return (_loop(of),)


def _loop(of: Operation) -> MemoryWork:
    """Return a loop of TensorIterator: over vectors, over single elements, or with divisions that find each element."""
    tensors = [tensor for tensor in (*of.inputs, *of.outputs) if tensor.dim()]
    if all(_lies_as(tensors[0], tensor) for tensor in tensors):
        types = [str(tensor.dtype) for tensor in tensors]
        if len(set(types)) <= 1 or types == ["torch.float32", "torch.bfloat16"]:
            what = "torch_gelu" if of.name in _ERROR_FUNCTIONS else "torch_vector"
            return vector_work(of.read_bytes, of.write_bytes, what)
        return of.blocks("torch_cast")
    if of.outputs and any(_is_scattered(of.outputs[0], tensor) for tensor in of.inputs):
        return of.blocks("torch_scattered")
    return of.blocks("torch_offsets_wide" if _item_bytes(of.outputs or tensors) >= 4 else "torch_offsets")


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
        if out.shape[at] != 1 and tensor.stride(at) <= 1:
            return between > _FAR
        between *= int(out.shape[at])
    return False


def _of_rows(of: Operation) -> tuple[MemoryWork, ...]:
    sums, width = of.domain.rows or 0, of.domain.width
    rows, read, written = max(1, sums), of.read_bytes, of.write_bytes
    if of.name in _NORMS:
        return (*_made_contiguous(of.inputs[0]), MemoryWork(_NORMS[of.name], read, written, rows, width))
    if of.name == "native_group_norm":
        few = sums * 4
        moments = MemoryWork("torch_moments", read, few, rows, width)
        return moments, vector_work(few, few), of.blocks("torch_offsets")
    if of.name in _SOFTMAXES and of.domain.is_inner:
        softmax = (*_made_contiguous(of.inputs[0]), _softmax(rows, width, read, written))
        return (*softmax, *_zeros_of_masked_rows(of, rows, width)) if of.name == "_safe_softmax" else softmax
    if "backward" in of.name or ("norm" in of.name and of.name not in ("norm", "linalg_vector_norm")):
        return (of.blocks("torch_offsets"),)
    if not of.domain.is_inner or rows < _MIN_SUMS:  # columns, or one sum that all SMs share
        return (vector_work(read + written, 0),)
    return (MemoryWork("torch_sum_cta" if width > _LONG_SUM * _WARP else "torch_sum", read, written, rows, width),)


def _made_contiguous(tensor: Any) -> tuple[MemoryWork, ...]:
    """Return the copy that a kernel of contiguous rows needs of another tensor."""
    num_bytes = tensor.numel() * tensor.element_size()
    return () if tensor.is_contiguous() else (blocks("torch_offsets", num_bytes, num_bytes, tensor.numel()),)


def _zeros_of_masked_rows(of: Operation, rows: int, width: int) -> tuple[MemoryWork, ...]:
    """Return the kernels of `_safe_softmax` after its softmax: it writes zeros to rows that are all -inf.

    They compare each element with -inf, reduce each row of truth values, make a zero, and choose (torch 2.11,
    seen with its profiler).
    """
    num_elements = rows * width
    return (
        vector_work(of.read_bytes, num_elements),
        MemoryWork("torch_sum", num_elements, rows, rows, width),
        vector_work(0, _item_bytes(of.outputs)),
        blocks("torch_offsets_wide", of.write_bytes + rows, of.write_bytes, num_elements),
    )


def _softmax(rows: int, width: int, read_bytes: int, write_bytes: int) -> MemoryWork:
    if width > _MAX_WARP_SOFTMAX:
        return MemoryWork("torch_softmax_cta", read_bytes, write_bytes, rows, width)
    filled = 1 << max(0, math.ceil(math.log2(max(1, width))))
    together = 2 if filled <= _TWO_ROWS else 1
    return MemoryWork("torch_softmax", read_bytes, write_bytes, -(-rows // together), max(_WARP, filled) * together)


def _batch_norm(of: Operation) -> tuple[MemoryWork, ...]:
    """Statistics as fp32 and their roots, then all elements: by planes of an image, or channels side by side."""

    def threads_of(size: int) -> int:
        return next((threads for threads in _BATCH_NORM_THREADS if size <= threads), _BATCH_NORM_THREADS[-1])

    x = of.inputs[0]
    channels = int(x.shape[1])
    few = channels * 4
    before = (vector_work(few, few), vector_work(few, few))
    if has_channels_last(x):
        return (*before, blocks("torch_batch_norm_last", of.read_bytes, of.write_bytes, x.numel()))
    planes = int(x.shape[0]) * channels
    plane = max(1, x.numel() // max(1, planes))
    warps = max(threads_of(plane // 4), min(threads_of(plane), 64)) // _WARP
    return *before, MemoryWork("torch_batch_norm", of.read_bytes, of.write_bytes, planes * warps, -(-plane // warps))


def _window(of: Operation) -> MemoryWork:
    if "bilinear" in of.name and len(of.outputs[0].shape) == 4:
        images, channels, *sides = of.outputs[0].shape
        rows, width = -(-math.prod(sides) // _WARP), images * channels * _WARP
        return MemoryWork("torch_bilinear", of.read_bytes, of.write_bytes, rows, width)
    if "nearest" in of.name:
        return of.blocks("torch_offsets")
    return of.blocks("torch_max_pool" if "max" in of.name else "torch_avg_pool")


def _item_bytes(tensors: Sequence[Any]) -> int:
    return max(int(tensor.element_size()) for tensor in tensors)


OPTIMIZERS = {"adamw": 2, "adam": 2, "sgd": 0, "sgd_momentum": 1, "lion": 1, "adagrad": 1, "rmsprop": 1}
"""Optimizers, and how many states of its own size a parameter has."""


def optimizer_works(optimizer: Any, parameters: Iterable[Any]) -> list[MemoryWork]:
    """Return the kernels of a step, as torch's ``fused=True`` has them: states have the types of their parameters.

    `optimizer` is a name of `OPTIMIZERS`, or an optimizer of torch, of which its class and momentum are read. Of
    `parameters` those count that have gradients.
    """
    name = (optimizer if isinstance(optimizer, str) else type(optimizer).__name__).lower()
    if name == "sgd" and any(group.get("momentum") for group in getattr(optimizer, "param_groups", ())):
        name = "sgd_momentum"
    if name not in OPTIMIZERS:
        raise InvalidOptionError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {shown(optimizer)}")
    sizes: Counter[str] = Counter()
    for parameter in parameters:
        if parameter.requires_grad:
            sizes[str(parameter.dtype)] += parameter.numel() * parameter.element_size()
    states = OPTIMIZERS[name]
    return [dealt(DEALT, (2 + states) * size, (1 + states) * size, size) for size in sizes.values()]
