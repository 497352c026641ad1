"""Kernels that PyTorch has for an operation of eager mode and for optimizers. TORCH.md, "Eager kernels".

The choice and the threads of each are those of torch's source (aten/src/ATen/native/cuda: TensorIterator's loops,
Reduce.cuh, Shape.cu, Normalization.cuh, PersistentSoftmax.cuh), seen on a GPU with its profiler. Names are those of
`gemm_eval.workload.memory_kernel`.
"""

import itertools
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
_LONG_SUM = 256  # elements of a thread beyond which a sum has a CTA, not a warp
_MAX_WARP_SOFTMAX, _TWO_ROWS = 2048, 128  # elements of a row of softmax that a warp holds, and of which it holds two
_MAX_HELD_SOFTMAX = 9216  # that a CTA of 1,024 threads holds, nine each (`cunn_SoftMaxForwardReg`); else it reads again
_BATCH_NORM_THREADS = (32, 64, 128, 256, 512)
_COPY_PIECE, _SHORT_COPY = 512, 1 << 19  # bytes
_SHORT_TAIL, _WHOLE_TAIL, _ODD_VECTORS = 512, 32, "torch_vector 40"
"""Bytes of a part of `cat` side by side: fewer, and not so many times so many, are stored in parts of lines."""
_CAST_ELEMENTS = 512  # of a CTA that casts them one by one; of fewer no thread waits for four
_GATHER_THREADS = 256
_MAX_REDUCE_THREADS, _MOST_VALUES = 512, 256  # of a CTA of Reduce.cuh; of a thread before CTAs share an output
_NUM_SMS, _L2_BYTES = 132, 50 << 20  # of a GPU of Hopper
_GPU_THREADS = _NUM_SMS * 2048
_MAX_COLUMN_CTAS = 128
_MAX_POOL_THREADS = 1024  # of adaptive pooling; and of a CTA that takes windows apart, of which an SM runs one
_MIN_LAST_CHANNELS = 16
_POOLS = {"torch_max_pool": 562, "torch_avg_pool": 406, "torch_avg_pool_last": 781, "torch_max_pool_last": 562}
"""Instructions of a thread for each output of pooling, for a window of 3 x 3."""
_USUAL_WINDOW = (3, 3)
_MAX_POOL, _AVERAGE_POOL = (0.53, 0.052), (0.8, 0.027)
"""Share of these instructions for any window, and for each of its elements: fitted on 60 windows of 2 x 2 to 7 x 7."""
_INTERPOLATIONS = (("torch_bilinear", 8, 2.4), ("torch_bicubic", 4, 2.3))
"""Kernels, channels that a thread takes together, and steps that each of the others counts as."""
_ALONE_SHARE, _BUSY_WARPS = 0.66, 70  # of a step of bilinear interpolation alone; warps of an SM that add one
_BICUBIC_WARPS, _TAPS, _LINES_BASE, _LINES_SHARE = 17.8, 16, 0.63, 0.017
"""Warps of an SM that take as long as a step alone; loads of a step; turns of a warp, and more for each line."""
_MULTI_BLOCK = (
    (0, 20, 20000),
    (20, 40, 10000),
    (40, 80, 8000),
    (80, 199, 5000),
    (199, 799, 3000),
    (799, 4000, 800),
    (4000, 1 << 31, 400),
)  # rows of `topk` more than, at most, and elements from which CTAs share a row
_DIGIT_THREADS, _LEAST_ITEMS, _MOST_ITEMS = 202_752, 4, 64  # of a GPU at once; elements of a thread
_CTA_DIGITS, _DIGIT_SHARE = 600, 0.575
"""Elements that the counters of a CTA count as, and what one is of a step: two calls on an H200, a third within 5%."""
_MAX_SORTED_IN_CTA = 4096
_IMAGE_DIMS = (4, 5)

_GATHERED = ("embedding", "index_select", "index", "gather", "take", "_unsafe_index")
_SHUFFLES = ("pixel_shuffle", "pixel_unshuffle", "channel_shuffle")
_COPIES = ("clone", "copy", "_to_copy", "to", "_reshape_copy")
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "masked_fill", "where", "logical_not", "isnan", "isinf")
_INTO = ("index_add", "index_copy", "index_put", "scatter", "scatter_add", "scatter_reduce")
_SUMS_INTO = ("index_add", "scatter_add", "scatter_reduce")
_ATOMIC_BYTES, _LEAST_SAME, _SAME_STEPS = 4, 500, 0.3
"""Smaller numbers are added by comparing and swapping, one after the other at one place: many take 32 ns each, which
are steps of a thread. Three calls on an H200."""
_LOGARITHM_STEPS = 1.5  # of a scan of logarithms, for each of one that adds
_LOSSES = {"mse_loss": 1, "smooth_l1_loss": 1, "huber_loss": 1, "binary_cross_entropy": 1}
_EXTREMES = ("max", "min", "amax", "amin", "aminmax")
_PLACES = ("argmax", "argmin")
_INSTRUCTIONS = {
    "silu glu sigmoid tanh elu exp expm1 celu selu sin cos rsqrt sqrt _weight_norm": 20,
    "gelu erf erfc erfinv log log1p": 25, "softplus logaddexp log_sigmoid_forward": 46, "mish": 65,
}  # fmt: skip
FUNCTIONS = {name: count for names, count in _INSTRUCTIONS.items() for name in names.split()}
"""Instructions of a thread for each element, by names of operations, beside one that adds or compares."""
_MAX_EXP = 20
_LOOP, _DIMENSION, _OPERAND = 70, 2.8, 1.4
"""Likewise, of a loop with divisions: an element, a dimension of it, and an operand in each dimension."""
_MIXED, _BYTES, _LINE, _MISS = 48, 20, 25, 108
"""Likewise: of types that differ; of truth values beside numbers; of a line of L1 for each element; of a lost one."""
_LINE_BYTES, _L1_STEPS = 128, 256  # of a line, and elements after which its other elements are read too late
_SOFTMAXES = ("_softmax", "_log_softmax", "_safe_softmax")
_NORMS = {"native_layer_norm": "torch_layer_norm", "_fused_rms_norm": "torch_rms_norm"}
_NORM_VECTOR = 4  # elements of a load of a norm of layers; other rows take two kernels


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


def forward_works(of: Operation) -> tuple[MemoryWork, ...]:
    """Return the kernels that eager mode runs for an operation that `gradients` has no rule of, in their order."""
    if of.role is Role.REDUCTION:
        return _batch_norm(of) if "batch_norm" in of.name and "backward" not in of.name else _of_rows(of)
    if of.name == "nll_loss_backward" and of.args[1].dim() == 2:
        return constant_work(of.write_bytes), _nll_loss(of.args[1])
    if of.name == "im2col":
        return _windows_apart(of)
    if of.role is Role.WINDOW and of.name not in _GATHERED:
        return _window(of)
    if of.role in (Role.ELEMENTWISE, Role.CONSTANT, Role.WINDOW):
        return _elementwise(of)
    if of.name in _ALONE:
        return _ALONE[of.name](of)
    return (of.blocks(of.name),)


def bias_of_mask_works(num_elements: int, item_bytes: int) -> tuple[MemoryWork, ...]:
    """Return the kernels that make a bias of a mask of truth values: two constants, then a choice between them."""
    constant = constant_work(item_bytes)
    return constant, constant, blocks("torch_offsets", num_elements, num_elements * item_bytes, num_elements)


def has_channels_last(tensor: Any) -> bool:
    """Say whether the channels of images lie side by side, as torch takes it (`is_channels_last_strides_2d`)."""
    if tensor.dim() not in _IMAGE_DIMS:
        return False
    least, first = 0, tensor.stride(1)
    for dim in (1, *range(tensor.dim() - 1, 1, -1), 0):
        step, size = tensor.stride(dim), tensor.shape[dim]
        if not size or step < least or (dim == 0 and step == first) or not first:
            return False
        least = step * size
    return True


def bytes_of(tensor: Any) -> int:
    """Return the bytes of all elements of a tensor."""
    return int(tensor.numel() * tensor.element_size())


def far(kernel: str, num_bytes: int) -> str:
    """Return the name of a kernel that waits longer for its elements where they come from DRAM."""
    return f"{kernel}_far" if num_bytes > _L2_BYTES else kernel


def vector_work(read_bytes: int, write_bytes: int, what: str = "torch_vector") -> MemoryWork:
    """Return a kernel of vector loads: threads for what it writes, or reads where that is all."""
    return MemoryWork(what, read_bytes, write_bytes, -(-(write_bytes or read_bytes) // _CHUNK_BYTES), CTA_ELEMENTS)


def _elementwise(of: Operation) -> tuple[MemoryWork, ...]:
    read, written = of.read_bytes, of.write_bytes
    if of.name in ("cat", "stack"):
        return _joined(of)
    if of.name == "roll":
        shifts = of.args[1] if isinstance(of.args[1], list | tuple) else [of.args[1]]
        return (of.blocks("torch_roll"),) * max(1, len(shifts))
    if of.name == "constant_pad_nd":
        if max(of.args[1], default=0) <= 0:
            return (_copy(of.outputs[0]),)
        x, out = of.inputs[0], of.outputs[0]
        kernel = loop_kernel(x.shape, (out.stride(), x.stride()), out.element_size())
        return constant_work(written), blocks(kernel, read, read, read // _item_bytes(of.outputs))
    if "batch_norm" in of.name:
        return _batch_norm(of)
    if of.name in _GATHERED:
        return (_gather(of),)
    if of.name in _INTO:
        return _into(of)
    if of.role is Role.CONSTANT:
        return (constant_work(written),)
    if of.name == "masked_fill" and not _is_in_place(of):
        return _copy(of.outputs[0]), _loop(of)
    return (_loop(of),)


def constant_work(num_bytes: int) -> MemoryWork:
    """Return a kernel that writes one value everywhere."""
    return vector_work(0, num_bytes, "torch_constant")


def _is_in_place(of: Operation) -> bool:
    """Say whether the result is the first argument."""
    first, out = of.args[0], of.outputs[0]
    return bool(hasattr(first, "untyped_storage") and first.untyped_storage()._cdata == out.untyped_storage()._cdata)


def _copy(tensor: Any) -> MemoryWork:
    """Return the copy of a tensor without gaps, which the driver makes: if long, fast in pieces of 512 bytes alone."""
    num_bytes = tensor.numel() * tensor.element_size()
    is_fast = num_bytes % _COPY_PIECE == 0 or num_bytes < _SHORT_COPY
    return vector_work(num_bytes, num_bytes, "memcpy" if is_fast else "memcpy_odd")


def _joined(of: Operation) -> tuple[MemoryWork, ...]:
    """Return the kernel of `cat`: whole vectors, single elements of tensors without gaps, or any elements.

    Of several types each tensor has a copy of its own.
    """
    dim = of.args[1] if len(of.args) > 1 and isinstance(of.args[1], int) else 0
    parts, out = [part for part in of.inputs if part.dim()], of.outputs[0]
    if len({part.dtype for part in parts}) > 1:
        steps = list(out.stride())
        if of.name == "stack":
            del steps[dim]
        kernels = [
            loop_kernel(part.shape, (steps, part.stride()), out.element_size(), is_cast=part.dtype != out.dtype)
            for part in parts
        ]
        return tuple(
            blocks(kernel, bytes_of(part), part.numel() * out.element_size(), part.numel())
            for kernel, part in zip(kernels, parts, strict=True)
        )
    if of.name == "stack" and dim < 0:
        dim += 1
    if all(part.is_contiguous() for part in parts):
        item_bytes = parts[0].element_size()
        tails = [item_bytes * math.prod(x.shape[dim:] if dim or of.name == "cat" else x.shape) for x in parts]
        if all(size % _VECTOR_BYTES == 0 for size in tails):
            is_odd = any(size < _SHORT_TAIL and size % _WHOLE_TAIL for size in tails)
            return (vector_work(of.read_bytes, of.write_bytes, _ODD_VECTORS if is_odd else "torch_vector"),)
        return (of.blocks("torch_cat_contiguous"),)
    return (of.blocks("torch_cat_contiguous" if all(map(has_channels_last, parts)) else "torch_cat"),)


def _gather(of: Operation) -> MemoryWork:
    """Return a kernel of a CTA for each row of whole vectors, or of an index for each element."""
    out, source = of.outputs[0], of.inputs[0]
    indices = len(of.inputs) - 1
    dim = of.args[1] if of.name == "index_select" else 0
    is_of_rows = of.name in ("embedding", "index_select", "index") and indices == 1 and dim == 0
    if is_of_rows and of.name == "index":
        is_of_rows = of.args[1][0] is not None and "bool" not in str(of.inputs[1].dtype)
    elif of.name == "gather":  # an index that is expanded over the columns
        is_of_rows = of.args[1] == 0 and not any(of.inputs[1].stride()[1:])
    row = math.prod(source.shape[1:])
    row_bytes = row * source.element_size()
    if is_of_rows and source.is_contiguous() and row_bytes and row_bytes % _VECTOR_BYTES == 0:
        ctas = out.numel() // row * -(-row_bytes // (_VECTOR_BYTES * _GATHER_THREADS))
        return MemoryWork("torch_gather", of.read_bytes, of.write_bytes, ctas, row)
    return of.blocks("torch_index" if of.name in ("index", "_unsafe_index") else "torch_gather_elements")


def _into(of: Operation) -> tuple[MemoryWork, ...]:
    """Return the kernels that store or add at places of an index: of a copy, unless in place."""
    target = of.outputs[0]
    copies = () if _is_in_place(of) else (_copy(target),)
    num_bytes = of.domain.num_elements * target.element_size()
    kernel = "torch_index"
    if of.name in _SUMS_INTO:
        kernel = "torch_index_add" if of.name == "index_add" else "torch_scatter_add"
    work = blocks(kernel, of.read_bytes, num_bytes, of.domain.num_elements)
    if of.name == "index_add" and target.element_size() < _ATOMIC_BYTES:
        count = of.inputs[-1].shape[of.args[1]] // max(1, target.shape[of.args[1]])
        if count > _LEAST_SAME:
            work = chain_work("torch_norm_weights", 0, 0, 1, round(count * _SAME_STEPS))
    is_twice = of.name == "scatter_reduce" and of.args[-1] is False  # old elements do not count: replaced first
    return *copies, *[work] * (1 + is_twice)


def _loop(of: Operation) -> MemoryWork:
    """Return a loop of TensorIterator: over vectors, over single elements, or with divisions that find each element."""
    tensors = [tensor for tensor in (*of.inputs, *of.outputs) if tensor.dim()]
    types = [str(tensor.dtype) for tensor in tensors]
    function = FUNCTIONS.get(of.name, 0)
    is_mixed = len(set(types)) > 1 and of.name not in _COMPARISONS
    if all(_lies_as(tensors[0], tensor) for tensor in tensors):
        if of.name in _COPIES and len(set(types)) == 1 and len(of.inputs) == 1:
            return _copy(tensors[0])
        is_narrowed = types in (["torch.float32", "torch.bfloat16"], ["torch.float32", "torch.float16"])
        if is_narrowed or not is_mixed:
            kernel = "torch_gelu" if function > _MAX_EXP else "torch_exp" if function else "torch_vector"
            return vector_work(of.read_bytes, of.write_bytes, kernel)
        is_short = of.domain.num_elements <= _CAST_ELEMENTS
        return vector_work(of.read_bytes, of.write_bytes, "torch_exp") if is_short else of.blocks("torch_cast")
    if not of.outputs or of.name in _SHUFFLES:
        return of.blocks(_shuffle_kernel(of) if of.outputs else "torch_offsets")
    out = of.outputs[0]
    strides = [_strides_over(tensor, out.dim()) for tensor in (out, *of.inputs)]
    more = function + (_MIXED if is_mixed else _BYTES * (len(set(types)) > 1))
    return of.blocks(loop_kernel(out.shape, strides, out.element_size(), more, is_cast=is_mixed))


def loop_kernel(
    shape: Sequence[int], strides: Sequence[Sequence[int]], item_bytes: int, more: int = 0, *, is_cast: bool = False
) -> str:
    """Return the kernel of a loop that finds each element by divisions, with its instructions for each element.

    Neighbours of the result that lie in lines of their own take a line each, which L1 may lose before it is read again.

    Args:
        strides: of the result, then of each input, over `shape`.
        more: instructions beyond those of a copy.
    """
    dims = _iterated(shape, strides)
    instructions = _LOOP + len(dims) * (_DIMENSION + _OPERAND * len(strides)) + more
    for index in range(1, len(strides) if dims else 0):
        steps = math.prod(size for size, _ in itertools.takewhile(lambda dim: dim[1][index] > 1, dims))  # noqa: B023
        if steps > 1:
            share = min(1.0, dims[0][1][index] * item_bytes / _LINE_BYTES)
            instructions += share * (_LINE * min(1.0, steps / _WARP) + _MISS * min(1.0, steps / _L1_STEPS))
    kernel = "torch_offsets_cast" if is_cast else "torch_offsets_wide" if item_bytes >= 4 else "torch_offsets"
    return f"{kernel} {round(instructions)}"


def _iterated(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> list[tuple[int, tuple[int, ...]]]:
    """Return size and strides of the dimensions that a loop goes over, the fastest of the result first.

    Follows TensorIterator: dimensions that lie behind each other in all tensors are one.
    """
    dims = [(int(size), steps) for size, *steps in zip(shape, *strides, strict=True) if size != 1]
    result: list[tuple[int, tuple[int, ...]]] = []
    dims.reverse()
    for size, steps in sorted(dims, key=lambda dim: dim[1][0]):
        before = result[-1] if result else None
        if before and all(before[0] * first == step for first, step in zip(before[1], steps, strict=True)):
            result[-1] = before[0] * size, before[1]
        else:
            result.append((size, tuple(steps)))
    return result


def _shuffle_kernel(of: Operation) -> str:
    """Return the copy that changes the order of channels, or of channels and positions, as a loop."""
    x, factor = of.inputs[0], int(of.args[1])
    if x.dim() != min(_IMAGE_DIMS) or of.name == "channel_shuffle":
        return "torch_scattered"
    (images, channels, height, width), (image, channel, row, column) = x.shape, x.stride()
    if of.name == "pixel_shuffle":
        shape = (images, channels // factor**2, height, factor, width, factor)
        strides = (image, channel * factor**2, row, channel * factor, column, channel)
    else:
        shape = (images, channels, factor, factor, height // factor, width // factor)
        strides = (image, channel, row, column, row * factor, column * factor)
    dense = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    return loop_kernel(shape, (dense, strides), x.element_size())


def _strides_over(tensor: Any, num_dims: int) -> list[int]:
    """Return the strides of a tensor over a shape that it is expanded to."""
    own = (0 if size == 1 else int(step) for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return [*[0] * (num_dims - tensor.dim()), *own]


def _lies_as(one: Any, other: Any) -> bool:
    """Say whether two tensors have the same elements at the same places, without gaps."""
    if one.shape != other.shape:
        return False
    steps = [(size - 1) * stride for size, stride in zip(other.shape, other.stride(), strict=True)]
    is_alike = steps == [(size - 1) * stride for size, stride in zip(one.shape, one.stride(), strict=True)]
    return bool(is_alike and (other.numel() == 0 or sum(steps) + 1 == other.numel()))


def _of_rows(of: Operation) -> tuple[MemoryWork, ...]:
    sums, width, x = of.domain.rows or 0, of.domain.width, of.inputs[0]
    rows, read, written = max(1, sums), of.read_bytes, of.write_bytes
    if of.name in _NORMS:
        wide = "_wide" if x.element_size() >= 4 else ""
        copies = copied_work(x)
        if width % _NORM_VECTOR and of.name == "native_layer_norm":
            moments = MemoryWork("torch_moments", read, rows * 8, rows, width)
            return (*copies, moments, MemoryWork("torch_norm_rows", read, written, rows, width))
        return (*copies, MemoryWork(_NORMS[of.name] + wide, read, written, rows, width))
    if of.name == "native_group_norm":
        few = sums * 4
        moments = MemoryWork("torch_moments", read, few, rows, width)
        scales = blocks("torch_scales", few, few, x.shape[0] * x.shape[1])
        return moments, scales, of.blocks(loop_kernel((2, 2), [(2, 1), (2, 1), (0, 1), (0, 1)], x.element_size()))
    if of.name in _SOFTMAXES and of.domain.is_inner:
        softmax = (*copied_work(of.inputs[0]), softmax_work(rows, width, read, written))
        return (*softmax, *_zeros_of_masked_rows(of, rows, width)) if of.name == "_safe_softmax" else softmax
    if "backward" in of.name or ("norm" in of.name and of.name not in ("norm", "linalg_vector_norm")):
        return (of.blocks("torch_offsets"),)
    if of.name == "nll_loss_forward" and of.args[0].dim() == 2:
        return (_nll_loss(of.args[0]),)
    if of.name.startswith("_adaptive_avg_pool"):
        planes = math.prod(x.shape[:2])
        if has_channels_last(x) and x.dim() == min(_IMAGE_DIMS):
            return (_adaptive_pool_last(of),)
        return (MemoryWork("torch_adaptive_pool", read, written, planes, x.numel() // planes),)
    if of.name == "binary_cross_entropy_with_logits":
        return _cross_entropy(of)
    before = []
    num_bytes = x.numel() * x.element_size()
    if of.name in _LOSSES:
        before = [vector_work(2 * num_bytes, num_bytes)]
        if of.outputs[0].dim():
            return tuple(before)
    if of.name in _PLACES and width == 1:
        return (constant_work(written),)
    kind = "_arg" if of.name in _PLACES else "_max" if of.name in _EXTREMES else ""
    return (*before, *reduction_works(x, _dims(of), num_bytes, written, kind))


def _nll_loss(scores: Any) -> MemoryWork:
    threads = 1 << min(10, max(5, round(math.log2(max(1, len(scores)) / 16))))
    return MemoryWork("torch_nll_loss", 0, 0, threads // _WARP, _WARP * -(-len(scores) // threads))


def _adaptive_pool_last(of: Operation) -> MemoryWork:
    """Return the pooling of channels side by side: CTAs of an image, whose threads sum up windows one by one.

    Follows AdaptiveAveragePooling.cu: threads along channels, columns and rows of the result.
    """
    images, channels, height, width = of.inputs[0].shape
    sides = of.outputs[0].shape[2:]
    columns, rows = (min(_floor_power(side), 32) for side in reversed(sides))
    along = min(_floor_power(channels), _MAX_POOL_THREADS // (columns * rows))
    parts = -(-channels // (along * 4))
    outputs = math.prod(-(-side // threads) for side, threads in zip(sides, (rows, columns), strict=True))
    windows = math.prod(-(-size // side) for size, side in zip((height, width), sides, strict=True))
    steps = outputs * windows * -(-channels // (along * parts))
    warps = images * parts * max(1, along * columns * rows // _WARP)
    return chain_work("torch_adaptive_pool_last", of.read_bytes, of.write_bytes, warps, steps)


def _floor_power(size: int) -> int:
    return 1 << (max(1, int(size)).bit_length() - 1)


def _dims(of: Operation) -> list[int]:
    """Return the dimensions that are summed up, all of them where no argument says which."""
    dims = next(iter(of.args[2 if of.name in ("norm", "linalg_vector_norm") else 1 :][:1]), None)
    dims = [dims] if type(dims) is int else dims
    num_dims = of.inputs[0].dim()
    if (
        of.name in _LOSSES
        or not isinstance(dims, list | tuple)
        or not dims
        or not all(type(dim) is int for dim in dims)
    ):
        return list(range(num_dims))
    return [dim % max(1, num_dims) for dim in dims]


def _cross_entropy(of: Operation) -> tuple[MemoryWork, ...]:
    """Return the five kernels that PyTorch composes it of, and the sum: a logarithm, a product, sums."""
    x, out = of.inputs[0], of.outputs[0]
    num_bytes = x.numel() * x.element_size()
    works = [vector_work(num_bytes, num_bytes), constant_work(num_bytes), *[vector_work(2 * num_bytes, num_bytes)] * 3]
    if not out.dim() and x.dim():
        works += reduction_works(x, list(range(x.dim())), num_bytes, out.element_size())
    return tuple(works)


def reduction_works(x: Any, dims: Sequence[int], read: int, written: int, kind: str = "") -> tuple[MemoryWork, ...]:
    """Return the kernel of Reduce.cuh, whose threads each go over some values, and what several CTAs meet at.

    Follows `setReduceConfig`: a CTA is as wide as the dimension that moves fastest; its threads divide outputs or,
    where there are many, values among them.
    """
    sizes = list(zip(x.shape, x.stride(), strict=True))
    reduced = [stride for dim, (size, stride) in enumerate(sizes) if dim in dims and size > 1]
    kept = [(stride, size) for dim, (size, stride) in enumerate(sizes) if dim not in dims and size > 1]
    inputs = math.prod(x.shape[dim] for dim in dims) if dims else 1
    outputs = max(1, x.numel() // max(1, inputs))
    is_inner = not kept or (bool(reduced) and min(reduced) < kept[-1][0])  # of results the last dimension is fastest
    vector = 1
    if not is_inner and kept[-1][0] == 1:
        others = [stride for stride, _ in kept if stride != 1] + reduced
        vector = next((v for v in (4, 2) if kept[-1][1] % v == 0 and not any(stride % v for stride in others)), 1)
    most = _MAX_REDUCE_THREADS // vector
    dim0, dim1 = (inputs, outputs) if is_inner else (outputs // vector, inputs)
    if not kept and inputs > 128:
        dim0 //= 4
    wide, high = (min(most, 1 << (max(1, size).bit_length() - 1)) for size in (dim0, dim1))
    width = min(wide, _WARP)
    height = min(high, most // width)
    width = min(wide, most // height)
    values, parts = -(-inputs // width) if is_inner else inputs, 1
    at_once = vector if is_inner else width * vector
    if values >= min(height * 16, _MOST_VALUES):
        values = -(-values // height)
        ctas = -(-outputs // at_once)
        room = _GPU_THREADS // (width * height)
        if values >= _MOST_VALUES and ctas <= room:
            parts = max(min(-(-room // ctas), -(-values // 16)), -(-values // _MOST_VALUES))
            values, ctas = -(-values // parts), ctas * parts
    else:
        ctas = -(-outputs // (at_once * height))
    kernel = "torch_sum" if is_inner else "torch_columns"
    kernel += "_shared" if parts > 1 else kind
    if is_inner and len(_iterated([x.shape[dim] for dim in dims], [[x.stride(dim) for dim in dims]])) > 1:
        kernel = "torch_sum_apart"  # elements are found by divisions
    warps = ctas * -(-width * height // _WARP)
    work = MemoryWork(kernel, read, written, warps, _WARP * values)
    steps = -(-parts // (width * height if is_inner else height))
    return (work, MemoryWork("torch_parts", 0, 0, 1, _WARP * steps)) if steps > 1 else (work,)


def copied_work(tensor: Any, *, is_last: bool = False) -> tuple[MemoryWork, ...]:
    """Return the copy that a kernel of contiguous rows, or of channels last, needs of another tensor."""
    num_bytes, dims, dense, step = bytes_of(tensor), range(tensor.dim()), [0] * tensor.dim(), 1
    for dim in [1, *reversed(dims[2:]), 0] if is_last else reversed(dims):
        dense[dim], step = step, step * int(tensor.shape[dim])
    if all(tensor.shape[dim] == 1 or tensor.stride(dim) == dense[dim] for dim in dims):
        return ()
    kernel = loop_kernel(tensor.shape, (dense, tensor.stride()), tensor.element_size())
    return (blocks(kernel, num_bytes, num_bytes, tensor.numel()),)


def _zeros_of_masked_rows(of: Operation, rows: int, width: int) -> tuple[MemoryWork, ...]:
    """Return the kernels of `_safe_softmax` after its softmax: it writes zeros to rows that are all -inf.

    They compare each element with -inf, reduce each row of truth values, make a zero, and choose (torch 2.11,
    seen with its profiler).
    """
    num_elements = rows * width
    return (
        vector_work(of.read_bytes, num_elements),
        MemoryWork("torch_sum", num_elements, rows, rows, width),
        constant_work(_item_bytes(of.outputs)),
        blocks("torch_offsets_wide", of.write_bytes + rows, of.write_bytes, num_elements),
    )


def softmax_work(rows: int, width: int, read_bytes: int, write_bytes: int) -> MemoryWork:
    """Return the kernel of softmax over rows, or of its gradient: a warp, or a CTA for each."""
    if width > _MAX_WARP_SOFTMAX:
        kernel = "torch_softmax_cta" if width <= _MAX_HELD_SOFTMAX else "torch_softmax_long"
        return MemoryWork(kernel, read_bytes, write_bytes, rows, width)
    filled = 1 << max(0, math.ceil(math.log2(max(1, width))))
    together = 2 if filled <= _TWO_ROWS else 1
    return MemoryWork("torch_softmax", read_bytes, write_bytes, -(-rows // together), max(_WARP, filled) * together)


def _batch_norm(of: Operation) -> tuple[MemoryWork, ...]:
    """Statistics as fp32 and their roots, then all elements: by planes of an image, or channels side by side."""
    x, weight, bias, mean, *_ = of.args
    channels = int(x.shape[1])
    is_last = has_channels_last(x) or (x.is_contiguous() and x.stride(1) == 1)
    is_training = of.role is Role.REDUCTION
    positions = x.numel() // max(1, channels)
    planes = int(x.shape[0]) * channels
    plane = max(1, x.numel() // max(1, planes))
    warps = max(_threads_of(plane // 4), min(_threads_of(plane), 64)) // _WARP
    planes_name = far("torch_batch_norm", of.read_bytes + of.write_bytes)
    by_planes = MemoryWork(planes_name, of.read_bytes, of.write_bytes, planes * warps, -(-plane // warps))
    if is_of_cudnn(x, weight, bias, has_mean=mean is not None or is_training):
        if not is_training:
            return (of.blocks("cudnn_batch_norm_last") if is_last else by_planes,)
        if is_last:
            return (of.blocks("cudnn_batch_norm_last"),)
        return (MemoryWork("cudnn_batch_norm_training", of.read_bytes, of.write_bytes, channels, positions),)
    few = channels * 4
    root = vector_work(few, few, "torch_exp")
    is_cast = mean is not None and mean.element_size() < 4
    small = blocks("torch_cast", few, few, channels) if is_cast and channels > _CAST_ELEMENTS else root
    if is_last:
        statistics, last = (channels_work(name, of.read_bytes, num_bytes, channels, positions) for name, num_bytes in (
            ("torch_statistics_last", 0), ("torch_transform_last", of.write_bytes)))  # fmt: skip
        return (small, statistics, root, last) if is_training else (small, root, last)
    if not x.is_contiguous():  # a loop with divisions, and a sum of columns
        loop = of.blocks("torch_batch_norm_loop")
        dims = [dim for dim in range(x.dim()) if dim != 1]
        return (*(reduction_works(x, dims, of.read_bytes, few, "_arg") if is_training else (small,)), root, loop)
    if not is_training:
        return small, root, by_planes
    return MemoryWork("torch_statistics", of.read_bytes, few, channels, channel_width(x)), root, by_planes


def _threads_of(size: int) -> int:
    return next((threads for threads in _BATCH_NORM_THREADS if size <= threads), _BATCH_NORM_THREADS[-1])


def channel_width(x: Any) -> int:
    """Return the elements of a channel that a CTA goes over, those of idle threads included.

    Of a CTA's 512 threads, as many as a plane has are in use, times the planes.
    """
    positions = x.numel() // max(1, int(x.shape[1]))
    threads = _threads_of(max(1, positions // max(1, int(x.shape[0]))))
    in_use = min(_BATCH_NORM_THREADS[-1], threads * min(int(x.shape[0]), _BATCH_NORM_THREADS[-1] // threads))
    return int(-(-positions // in_use) * _BATCH_NORM_THREADS[-1])


def channels_work(kernel: str, read_bytes: int, write_bytes: int, channels: int, positions: int) -> MemoryWork:
    """Return a kernel of batch norm whose CTAs have some channels side by side, at some of the positions."""
    threads_x = min(1 << (channels.bit_length() - 1), _WARP)
    columns = -(-channels // threads_x)
    ctas = columns * min(-(-positions // (_BATCH_NORM_THREADS[-1] // threads_x * 16)), _MAX_COLUMN_CTAS)
    return MemoryWork(kernel, read_bytes, write_bytes, ctas, -(-positions * threads_x * columns // ctas))


def is_of_cudnn(x: Any, weight: Any, bias: Any, *, has_mean: bool) -> bool:
    """Say whether batch norm is cuDNN's: values in fp32, or in fp16 with weights in fp32."""
    if weight is None or bias is None or not has_mean or x.dim() <= 2:
        return False
    types = str(x.dtype), str(weight.dtype)
    return types in (("torch.float32", "torch.float32"), ("torch.float16", "torch.float32"))


def _window(of: Operation) -> tuple[MemoryWork, ...]:
    out, read, written = of.outputs[0], of.read_bytes, of.write_bytes
    is_last = has_channels_last(of.inputs[0])
    if ("bilinear" in of.name or "bicubic" in of.name) and len(out.shape) == min(_IMAGE_DIMS):
        if "bilinear" in of.name and is_last and out.shape[1] >= _MIN_LAST_CHANNELS:
            return (of.blocks("torch_bilinear_last"),)
        return _interpolation(of)
    if "nearest" in of.name:
        return (of.blocks("torch_scattered" if is_last else "torch_offsets"),)
    window = of.args[1] if len(of.args) > 1 and isinstance(of.args[1], list | tuple) else _USUAL_WINDOW
    places = math.prod(window) ** (len(out.shape[2:]) if len(window) == 1 else 1)
    base, place = _MAX_POOL if "max" in of.name else _AVERAGE_POOL
    share = base + place * places
    if "max" in of.name and is_last and len(out.shape) == min(_IMAGE_DIMS):
        ctas, outputs = _cta_outputs(out.shape)
        width = round(_WARP * outputs / _MAX_POOL_THREADS * share)
        return (MemoryWork("torch_max_pool_last", read, written, -(-ctas // _NUM_SMS) * _NUM_SMS * _WARP, width),)
    kernel = f"torch_{'max' if 'max' in of.name else 'avg'}_pool{'_last' * is_last}"
    return (of.blocks(f"{kernel} {round(_POOLS[kernel] * share)}"),)


def _cta_outputs(shape: Sequence[int]) -> tuple[int, float]:
    """Return the CTAs of pooling with channels last, and the outputs of each: DilatedMaxPool2d.cu."""
    images, channels, height, width = map(int, shape)
    columns = min(_floor_power(width), _MAX_POOL_THREADS // min(_floor_power(channels), _WARP))
    rows = min(_floor_power(height), _MAX_POOL_THREADS // (min(_floor_power(channels), _WARP) * columns))
    along = min(_floor_power(channels), _MAX_POOL_THREADS // (columns * rows))
    ctas = images * math.prod(-(-size // step) for size, step in
                              ((channels, along * 4), (width, columns * 2), (height, rows * 2)))  # fmt: skip
    return ctas, images * channels * height * width / ctas


def _interpolation(of: Operation) -> tuple[MemoryWork, ...]:
    """Return a loop of a thread for each position over images and channels (UpSampleBilinear2d.cu, ...Bicubic2d.cu).

    The compiler takes some channels together; the rest wait for each other's loads. Warps of an SM take turns, the
    longer in lines of memory that they share with no others (bicubic, whose result is zero before).
    """
    x, out = of.inputs[0], of.outputs[0]
    images, channels, *sides = map(int, out.shape)
    positions = math.prod(sides)
    ctas = -(-positions // _MAX_POOL_THREADS)
    warps = -(-ctas // _NUM_SMS) * min(_MAX_POOL_THREADS, positions) / _WARP
    kernel, together, alone = _INTERPOLATIONS["bicubic" in of.name]
    steps = images * (channels - channels % together * (1.0 - alone))
    if "bilinear" in of.name:
        width = round(_WARP * steps * (_ALONE_SHARE + warps / _BUSY_WARPS))
        at_once = min(ctas, 2 * _NUM_SMS) * _WARP  # the others take their turns, which the width counts
        return (MemoryWork(kernel, of.read_bytes, of.write_bytes, at_once, width),)
    item_bytes, near = x.element_size(), _WARP * int(x.shape[-1]) / sides[-1]
    reads = min(near + 3, near * x.stride(3) * item_bytes / _LINE_BYTES + 1)
    lines = _TAPS * reads + min(_WARP, _WARP * out.stride(3) * item_bytes / _LINE_BYTES + 1)
    warps = _BICUBIC_WARPS + warps * (_LINES_BASE + _LINES_SHARE * lines)
    work = MemoryWork(kernel, of.read_bytes, of.write_bytes, round(warps * _NUM_SMS), round(_WARP * steps))
    return constant_work(of.write_bytes), work


def _windows_apart(of: Operation) -> tuple[MemoryWork, ...]:
    """Return the kernels of `im2col`: a copy, then one for each image, a thread for a channel at each position."""
    x, out = of.inputs[0], of.outputs[0]
    images, window = int(x.shape[0]), math.prod(of.args[1])
    ctas = -(-out.numel() // (images * window * _MAX_POOL_THREADS))
    waves = -(-ctas // _NUM_SMS)
    warps, num_bytes = ctas * _MAX_POOL_THREADS // _WARP, bytes_of(x)
    each = chain_work("torch_im2col", of.read_bytes // images, of.write_bytes // images, warps, waves * (window + 4))
    return *copied_work(x), vector_work(num_bytes, num_bytes), *[each] * images


def chain_work(kernel: str, read_bytes: int, write_bytes: int, warps: int, steps: int) -> MemoryWork:
    """Return a kernel whose threads take so many steps, each after the last one's memory."""
    return MemoryWork(kernel, read_bytes, write_bytes, warps, _WARP * steps)


def _scan(of: Operation) -> tuple[MemoryWork, ...]:
    """Return a sum of all before each element: a thread for each column, rows by CTAs, or one row by all."""
    x, dim = of.args[0], of.args[1] % max(1, of.args[0].dim()) if len(of.args) > 1 else 0
    before = copied_work(x)
    if x.dim() <= 1:
        return constant_work(4), of.blocks("act")
    inner = math.prod(x.shape[dim + 1 :])
    rows = max(1, x.numel() // max(1, x.shape[dim]))
    if inner > 1:
        steps = round(x.shape[dim] * (_LOGARITHM_STEPS if of.name == "logcumsumexp" else 1.0))
        return *before, chain_work("torch_scan", of.read_bytes, of.write_bytes, -(-rows // _WARP), steps)
    return *before, MemoryWork("torch_scan_rows", of.read_bytes, of.write_bytes, rows, int(x.shape[dim]))


def _topk(of: Operation) -> tuple[MemoryWork, ...]:
    """Return the choice of `topk`, by a CTA for each row or, of long rows or many, by several; then a sort of it."""
    x, k = of.args[0], int(of.args[1])
    dim = of.args[2] if len(of.args) > 2 and of.args[2] is not None else -1
    width = int(x.shape[dim]) if x.dim() else 1
    rows = x.numel() // max(1, width)
    num_bytes = x.numel() * x.element_size()
    works = list(copied_work(x))
    if any(rows > least and rows <= most and width >= long for least, most, long in _MULTI_BLOCK):
        items = min(max(x.numel() // _DIGIT_THREADS, _LEAST_ITEMS), _MOST_ITEMS) * _GATHER_THREADS  # of a CTA
        counted = round(_DIGIT_SHARE * (x.numel() + _CTA_DIGITS * rows * -(-width // items)))
        digit, choice = (MemoryWork("torch_digits", num_bytes, 0, counted // _WARP, times * _WARP) for times in (1, 2))
        sums = MemoryWork("torch_digit_sums", 0, 0, rows, 256)
        works += [constant_work(4)] * 3 + [digit, sums, sums] * x.element_size()
        works += [constant_work(4)] * 5 + [choice]
    else:
        steps = _WARP * -(-width // 1024) if width > 1 else _WARP // 4  # one digit tells a single element
        works.append(MemoryWork("torch_topk", num_bytes, 0, rows * -(-min(width, 1024) // _WARP), steps))
    return (*works, *_sorted_rows(rows, k)) if len(of.args) < 5 or of.args[4] is not False else tuple(works)


def _sorted_rows(rows: int, width: int) -> tuple[MemoryWork, ...]:
    """Return the sort of pairs of short rows within CTAs."""
    if width <= 1:
        return ()
    if width <= _WARP:
        return (MemoryWork("torch_sort_warp", 0, 0, -(-rows // 2), _WARP),)
    threads = max(_WARP, (1 << (width - 1).bit_length()) // _WARP)
    return (MemoryWork("torch_sort_rows", 0, 0, rows * (threads // _WARP), _WARP * (4 if width <= 128 else _WARP)),)


def _sort(of: Operation) -> tuple[MemoryWork, ...]:
    """Return a sort: of rows within CTAs, or, of longer ones, a pass for each byte of the keys."""
    x = of.args[0]
    dim = next((arg for arg in of.args[1:] if type(arg) is int), -1)
    width = int(x.shape[dim]) if x.dim() else 1
    rows = x.numel() // max(1, width)
    copy, index = vector_work(of.read_bytes, of.read_bytes), constant_work(x.numel() * 8)
    if width <= _MAX_SORTED_IN_CTA:
        return copy, index, index, copy, *_sorted_rows(rows, width)
    few = constant_work(4)
    passes = [
        few,
        MemoryWork("torch_sort_pass", of.read_bytes, of.write_bytes, -(-x.numel() // CTA_ELEMENTS), CTA_ELEMENTS),
    ]
    return copy, index, few, few, *passes, *passes * x.element_size()


_ALONE = {"topk": _topk, "sort": _sort, "argsort": _sort, "cumsum": _scan, "cumprod": _scan, "logcumsumexp": _scan}


def _item_bytes(tensors: Sequence[Any]) -> int:
    return max(int(tensor.element_size()) for tensor in tensors)


OPTIMIZERS = {"adamw": 2, "adam": 2, "sgd": 0, "sgd_momentum": 1, "lion": 1, "adagrad": 1, "rmsprop": 1}
"""Optimizers, and how many states of its own size a parameter has."""

_ADAM = "torch_vector 200"
"""Instructions of a thread for each parameter: powers, a root and divisions in fp32. Set by GPT-2's step on an H100."""


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
    what = _ADAM if name in ("adam", "adamw") else DEALT
    return [dealt(what, (2 + states) * size, (1 + states) * size, size) for size in sizes.values()]
