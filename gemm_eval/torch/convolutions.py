"""Convolutions as implicit GEMMs, in any number of dimensions, with groups, transposed, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gemm_eval.models.gpu import has_few_channels_on_cuda_cores
from gemm_eval.torch.eager_mode import bias_work, fill_work, has_channels_last, layout_work
from gemm_eval.torch.matmuls import Precision, dense_work
from gemm_eval.torch.work import ConvolutionWork, Work
from gemm_eval.transformer import GemmWork

__all__ = ["convolution_works"]

_LOAD_BYTES = 16
"""Channels of a position, or filters, are filled up to a multiple of it: what tensor cores are fed with at once."""
_ALIGNED_BYTES = 8
"""Channels first and a window of one are a GEMM of each image as it lies, if its rows start on so many bytes."""


def _gemm_sizes(x: Any, weight: Any, out_shape: Sequence[int], groups: int, transposed: bool) -> tuple[int, ...]:
    """G, M, K, N of the forward pass: positions times a window of channels times filters.

    A transposed one goes over positions of its input: each makes a window of all filters, which are added up.
    """
    window = math.prod(weight.shape[2:])
    batch = x.shape[0] if x.dim() == weight.dim() else 1
    if transposed:
        positions = batch * math.prod(x.shape[-(weight.dim() - 2) :])
        return groups, positions, weight.shape[0] // groups, weight.shape[1] * window
    positions = batch * math.prod(out_shape[-(weight.dim() - 2) :])
    return groups, positions, weight.shape[1] * window, weight.shape[0] // groups


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _work(
    sizes: tuple[int, ...], reads: Sequence[Any], write_bytes: int, dtype: Any, is_tf32: bool, weight: Any, groups: int
) -> tuple[Work, ...]:
    G, M, K, N = sizes
    works = dense_work((G, M, K, N), dtype, dtype, is_tf32)
    if not works or not isinstance(works[0], GemmWork):
        return works
    window = math.prod(weight.shape[2:])
    unit = _LOAD_BYTES // dtype.itemsize
    padded_sizes = [G, M, _padded(K, window, unit), _padded(N, window, unit)]
    is_depthwise = groups > 1 and weight.shape[1] == 1
    padded = None
    if padded_sizes != [G, M, K, N] and not is_depthwise:
        found = dense_work((G, M, padded_sizes[2], padded_sizes[3]), dtype, dtype, is_tf32)[0]
        padded = found.problem if isinstance(found, GemmWork) else None
    return (ConvolutionWork(works[0].problem, sum(map(_bytes, reads)), write_bytes, is_depthwise, padded),)


def _padded(size: int, window: int, unit: int) -> int:
    """A reduction or a number of columns, whose channels are filled up: of a window of them each position's."""
    per_window = window if size % window == 0 and window > 1 else 1
    channels = size // per_window
    return -(-channels // unit) * unit * per_window


def convolution_works(
    name: str, args: Sequence[Any], out: Any, precision: Precision
) -> tuple[tuple[Work, ...] | None, tuple[Work, ...]]:
    """Return what `convolution` or `convolution_backward` is for the models, and what eager mode runs.

    None: it is neither; nothing: eager mode runs the same. The gradient of the input is a transposed convolution of the
    same MACs, G x M x (K x N), and that of the weights reduces over positions.
    """
    is_tf32 = precision.convolution_tf32
    if name in ("convolution", "_convolution", "convolution_overrideable", "cudnn_convolution"):
        x, weight = args[0], args[1]
        transposed, groups = (False, args[6]) if name == "cudnn_convolution" else (bool(args[6]), int(args[8]))
        bias, stride = (None, args[3]) if name == "cudnn_convolution" else (args[2], args[3])
        sizes = _gemm_sizes(x, weight, out.shape, groups, transposed)
        works = _work(sizes, (x, weight), _bytes(out), x.dtype, is_tf32, weight, groups)
        if len(works) != 1 or not isinstance(works[0], ConvolutionWork):
            return works, ()
        work = works[0]
        is_strided = transposed or any(step != 1 for step in stride)
        if work.is_depthwise or (groups == 1 and (is_strided or weight.shape[2:].numel() > 1)):
            work = replace(work, window=1 if transposed else weight.shape[2:].numel())
        return (work,), _eager(work, x, weight, out, bias, is_tf32)
    if name != "convolution_backward":
        return None, ()
    grad, x, weight = args[0], args[1], args[2]
    transposed, groups, wanted = bool(args[7]), int(args[9]), args[10]
    G, M, K, N = _gemm_sizes(x, weight, grad.shape, groups, transposed)
    found: tuple[Work, ...] = ()
    if wanted[0]:
        found += _work((G, M, N, K), (grad, weight), _bytes(x), x.dtype, is_tf32, weight, groups)
    if wanted[1]:
        found += _work((G, K, M, N), (grad, x), _bytes(weight), x.dtype, is_tf32, weight, groups)
    return found, ()


def _eager(work: ConvolutionWork, x: Any, weight: Any, out: Any, bias: Any, is_tf32: bool) -> tuple[Work, ...]:
    """The kernels of eager mode: changes of layout around that of channels side by side, and the bias by itself."""
    channels, filters = int(x.shape[-weight.dim() + 1]), int(out.shape[-weight.dim() + 1])
    images = int(x.shape[0]) if x.dim() == weight.dim() else 1
    in_positions, out_positions = (t.numel() // max(1, images * c) for t, c in ((x, channels), (out, filters)))
    is_first = not (has_channels_last(x) or has_channels_last(weight))
    add_bias = () if bias is None else (bias_work(out.numel(), _bytes(out)),)
    if work.is_depthwise:
        return (replace(work, is_channels_first=True),) if is_first else (work, *add_bias)
    is_few = channels * x.dtype.itemsize < _LOAD_BYTES and work.window > 1
    if is_few and has_few_channels_on_cuda_cores(work.problem.K):
        return work, *add_bias
    is_plain = not work.window and work.problem.G == 1
    if is_first and is_plain and out_positions * x.dtype.itemsize % _ALIGNED_BYTES == 0:
        sizes = images, work.problem.N, work.problem.K, out_positions
        (found,) = dense_work(sizes, x.dtype, x.dtype, is_tf32)
        if isinstance(found, GemmWork):  # filters times the channels of each image, as they lie
            return replace(work, problem=found.problem, padded=None), *add_bias
    filled = _LOAD_BYTES // x.dtype.itemsize if is_few else channels
    if is_first:
        window = weight.shape[2:].numel()
        tensors = (images, channels, in_positions, _bytes(x)), (*map(int, weight.shape[:2]), window, _bytes(weight))
        before = [
            layout_work(count, size, positions, num_bytes, num_bytes * filled // channels)
            for count, size, positions, num_bytes in tensors
            if positions > 1
        ]
        return *before, work, layout_work(images, filters, out_positions, _bytes(out), _bytes(out)), *add_bias
    if is_few:
        filling = [fill_work(_bytes(one), _bytes(one) * filled // channels) for one in (x, weight)]
        return *filling, work, *add_bias
    return work, *add_bias
