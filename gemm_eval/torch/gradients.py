"""Kernels that eager mode runs for gradients of norms, windows and gathers. TORCH.md, "Eager kernels".

As in `eager_mode`, the choice is that of torch's source (layer_norm_kernel.cu, group_norm_kernel.cu, Normalization.cuh,
Embedding.cu, Indexing.cu, UpSample*.cu, *Pool*.cu); constants are those of 28 drawn modules with gradients on an H200.
"""

from __future__ import annotations

import math

from gemm_eval.torch import eager_mode as eager
from gemm_eval.torch.eager_mode import Operation, bytes_of, constant_work, copied_work, has_channels_last, vector_work
from gemm_eval.torch.graph import blocks
from gemm_eval.transformer import MemoryWork

_WARP, _NORM_ROWS, _MIN_CTA_PLANE = 32, 1 << 16, 512
_LONE_WARP = 2  # how often a warp counts that is alone in its CTA
_MAX_LOOPED_IMAGES = 128  # that a thread goes over for the weights of a group norm; more are divided among 32
_MIN_COLUMNS = 66 * _WARP
"""Columns from which a CTA of 32 x 32 threads goes over all rows of a norm's weights; of fewer rows it always does."""
_PART_WORK = MemoryWork("torch_columns_shared", 0, 0, 132, _WARP * 16)  # a sum of what parts of the rows gave
_MOST_FUSED_INDICES, _SORT_BYTES = 3072, 8  # places that one kernel takes unsorted; bytes of a key
_SAME_FACTOR = 0.7  # by how much longer that takes where all places are the same two
_NUM_CHECKS = 12  # small kernels that look at the places of an index
_STATISTICS = 90  # instructions of batch norm's gradient for each element, beside a copy's
_PIXEL, _SHARED_PIXELS = 650, 180
"""Instructions of interpolation's gradient for each element, and how many additions to one element double them."""
_POOL, _POOL_PLACE, _MAX_POOL, _ADAPTIVE_POOL, _COLUMN = 480, 58, 340, 130, 280
"""Instructions of pooling's gradients for each element, and for each place of the windows over it; of `col2im`."""
_BICUBIC_STEPS, _GRID_STEPS, _GRID_GRADIENT_STEPS, _GRID_THREADS, _PIXEL_THREADS = 88, 9, 18, 256, 1024
"""Steps of a thread for each image and channel, of bicubic interpolation's gradient, grid sampling and its gradient;
then the positions of a CTA: of grid sampling, and of bicubic interpolation."""


def eager_works(of: Operation) -> tuple[MemoryWork, ...]:
    """Return the kernels that eager mode runs for an operation, in their order."""
    return (of.name in _WORKS and _WORKS[of.name](of)) or eager.forward_works(of)


def _layer_norm(of: Operation) -> tuple[MemoryWork, ...]:
    grad, x = of.inputs[:2]
    rows, width, num_bytes = of.domain.rows or 1, of.domain.width, bytes_of(x)
    works = [*copied_work(grad), *copied_work(x)]
    weights = [out for out in of.outputs if out.numel() != x.numel()]
    if len(weights) < len(of.outputs):
        works.append(MemoryWork("torch_norm_gradient", 2 * num_bytes, num_bytes, rows, width))
    if weights and rows > _NORM_ROWS and width < _MIN_COLUMNS:
        works += [vector_work(2 * num_bytes, num_bytes // _WARP), *[_PART_WORK] * len(weights)]
    elif weights:
        works.append(MemoryWork("torch_norm_weights", 0, 0, -(-width // _WARP) * _WARP, rows))
    return tuple(works)


def _group_norm(of: Operation) -> tuple[MemoryWork, ...]:
    x, images, channels = of.args[1], int(of.args[5]), int(of.args[6])
    num_bytes, planes = bytes_of(x), images * channels
    few, plane = blocks("torch_scales", 4 * planes, 4 * planes, planes), x.numel() // planes
    sums = MemoryWork("torch_moments", 2 * num_bytes, 0, planes, plane)
    if plane < _MIN_CTA_PLANE:  # a warp each, of which no more than one a CTA
        sums = MemoryWork("torch_sum", 2 * num_bytes, 0, _LONE_WARP * planes, plane)
    steps = images // 3 if images > _MAX_LOOPED_IMAGES else images * (3 if x.element_size() < 4 else 1)
    operands = [(2, 1), (2, 1), (0, 1), (2, 1), (0, 1)]
    return (
        *copied_work(of.args[0]), *copied_work(x), sums,
        few, few, blocks(eager.loop_kernel((2, 2), operands, x.element_size()), 2 * num_bytes, num_bytes, x.numel()),
        eager.chain_work("torch_norm_weights", 0, 0, -(-channels // _WARP), steps),
    )  # fmt: skip


def _batch_norm(of: Operation) -> tuple[MemoryWork, ...]:
    grad, x, weight, mean, is_training = of.args[0], of.args[1], of.args[2], of.args[3], bool(of.args[7])
    num_bytes, channels = bytes_of(x), int(x.shape[1])
    positions = x.numel() // max(1, channels)
    is_last = has_channels_last(x) and has_channels_last(grad)
    if is_training and eager.is_of_cudnn(x, weight, weight, has_mean=mean is not None):
        if is_last:
            return (of.blocks("cudnn_batch_norm_last"),)
        return (MemoryWork("cudnn_batch_norm_training", 2 * num_bytes, num_bytes, channels, positions),)
    if has_channels_last(grad) or not has_channels_last(x):  # a CTA for each channel, which reads twice
        if not is_last:
            return (
                MemoryWork("torch_batch_norm_gradient", 4 * num_bytes, num_bytes, channels, eager.channel_width(x)),
            )
        sums = eager.channels_work("torch_statistics_last", 2 * num_bytes, 0, channels, positions)
    else:
        sums = MemoryWork("torch_statistics", 2 * num_bytes, 0, channels, eager.channel_width(x))
    out, few = of.outputs[0], [0 if dim != 1 else 1 for dim in range(x.dim())]
    strides = out.stride(), grad.stride(), x.stride(), *[few] * 5
    kernel = eager.loop_kernel(x.shape, strides, x.element_size(), _STATISTICS)
    return constant_work(channels * 4), sums, blocks(kernel, 2 * num_bytes, num_bytes, x.numel())


def _softmax(of: Operation) -> tuple[MemoryWork, ...]:
    """Return a product with the gradient, but of a logarithm, and a kernel of rows."""
    x, rows, width = of.args[0], of.domain.rows or 1, of.domain.width
    if not of.domain.is_inner:
        return ()
    num_bytes = bytes_of(x)
    product = vector_work(2 * num_bytes, num_bytes)
    return *[product] * ("log" not in of.name), eager.softmax_work(rows, width, 2 * num_bytes, num_bytes)


def _embedding(of: Operation) -> tuple[MemoryWork, ...]:
    """Return a kernel of a CTA for 32 columns; of many rows places are sorted before, and each has a CTA."""
    grad, indices, out = of.args[0], of.args[1], of.outputs[0]
    count, width = indices.numel(), int(out.shape[-1])
    before = *copied_work(grad), constant_work(bytes_of(out))
    if count <= _MOST_FUSED_INDICES:
        steps = count / 12 * (1.0 + _SAME_FACTOR * min(1.0, 2 / int(out.shape[0])))
        return *before, eager.chain_work("torch_parts", 0, 0, -(-width // _WARP) * _WARP, math.ceil(steps))
    rows = min(count, int(out.shape[0]))
    sums = MemoryWork("torch_exp", bytes_of(grad), rows * width * 4, rows * -(-width // 256) * 2, 2 * width)
    return *before, *_sorted(count), *[constant_work(4)] * _NUM_CHECKS, sums, sums


def _sorted(count: int, num_passes: int = _SORT_BYTES) -> list[MemoryWork]:
    one_pass = MemoryWork("torch_sort_pass", 8 * count, 8 * count, -(-count // 1024), 1024)
    return [constant_work(4), one_pass] * num_passes


def _index_put(of: Operation) -> tuple[MemoryWork, ...]:
    """Return the kernels that add up rows: places are looked at and sorted, and a warp adds all that have one.

    Nothing where rows are replaced.
    """
    if len(of.args) < 4 or not of.args[3]:
        return ()
    out, indices = of.outputs[0], [index for index in of.args[1] if index is not None]
    count, rows = max(index.numel() for index in indices), max(1, int(out.shape[0]))
    look = [
        work for index in indices * 2 for work in eager.reduction_works(index, list(range(index.dim())), 0, 8, "_max")
    ]
    num_passes = max(1, math.ceil(math.log2(rows + 1) / 8))
    steps = -(-count // rows)
    return (
        constant_work(bytes_of(out)), *look, *[constant_work(4)] * _NUM_CHECKS, *_sorted(count, num_passes),
        eager.chain_work("torch_parts", 0, 0, min(count, rows), 2 * steps),
    )  # fmt: skip


def _interpolation(of: Operation) -> tuple[MemoryWork, ...]:
    grad, out = of.args[0], of.outputs[0]
    is_last, elements = has_channels_last(grad), grad.numel()
    before = (*copied_work(grad, is_last=is_last), constant_work(bytes_of(out)))
    if "bicubic" in of.name:
        images, channels, *sides = map(int, grad.shape)
        warps = -(-math.prod(sides) // _PIXEL_THREADS) * _WARP
        return *before, eager.chain_work("torch_norm_weights", 0, 0, warps, images * channels * _BICUBIC_STEPS // 4)
    instructions = round(_PIXEL * (1.0 + elements / out.numel() / _SHARED_PIXELS))
    return *before, blocks(f"torch_scattered {instructions}", bytes_of(grad), bytes_of(grad), elements)


def _grid(of: Operation) -> tuple[MemoryWork, ...]:
    """Return a kernel of a thread for each position, which goes over all channels."""
    x, grid = of.args[0], of.args[1 + ("backward" in of.name)]
    warps = -(-grid.numel() // 2 // _GRID_THREADS) * (_GRID_THREADS // _WARP)
    steps = _GRID_GRADIENT_STEPS if "backward" in of.name else _GRID_STEPS
    before = (constant_work(bytes_of(x)),) if "backward" in of.name else ()
    work = eager.chain_work("torch_norm_weights", of.read_bytes, of.write_bytes, warps, int(x.shape[1]) * steps // 4)
    return *before, work


def _pooling(of: Operation) -> tuple[MemoryWork, ...]:
    grad, out = of.args[0], of.outputs[0]
    before = copied_work(grad, is_last=has_channels_last(out))
    if "avg_pool2d" not in of.name or "adaptive" in of.name:
        instructions = _ADAPTIVE_POOL if "adaptive" in of.name else _MAX_POOL
        before = (*before, constant_work(bytes_of(out)))
    else:
        instructions = _POOL + round(_POOL_PLACE * math.prod(of.args[2]) * grad.numel() / out.numel())
    return *before, blocks(f"torch_offsets {instructions}", bytes_of(grad), bytes_of(out), out.numel())


def _columns(of: Operation) -> tuple[MemoryWork, ...]:
    x = of.args[0]
    return *copied_work(x), blocks(f"torch_offsets {_COLUMN}", bytes_of(x), of.write_bytes, x.numel())


_POOLS = (
    "max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "avg_pool2d_backward",
    "_adaptive_avg_pool2d_backward",
)  # fmt: skip
_WORKS = {
    "native_layer_norm_backward": _layer_norm, "_fused_rms_norm_backward": _layer_norm,
    "native_group_norm_backward": _group_norm, "native_batch_norm_backward": _batch_norm,
    "_softmax_backward_data": _softmax, "_log_softmax_backward_data": _softmax,
    "embedding_dense_backward": _embedding, "index_put": _index_put, "col2im": _columns,
    "upsample_bilinear2d_backward": _interpolation, "upsample_bicubic2d_backward": _interpolation,
    "grid_sampler_2d": _grid, "grid_sampler_2d_backward": _grid, **dict.fromkeys(_POOLS, _pooling),
}  # fmt: skip
