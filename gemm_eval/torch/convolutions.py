"""Convolutions as implicit GEMMs, in any number of dimensions, with groups, transposed, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gemm_eval.torch.matmuls import Precision, dense_work
from gemm_eval.torch.work import ConvolutionWork, GemmWork, Work

__all__ = ["convolution_works"]

_LOAD_BYTES = 16
"""Channels of a position, or filters, are filled up to a multiple of it: what tensor cores are fed with at once."""
_FEW_CHANNELS = 4
"""Up to here channels are filled up to as many: kernels for the first layer of images."""


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
    if channels <= _FEW_CHANNELS and per_window > 1:
        return _FEW_CHANNELS * per_window
    return -(-channels // unit) * unit * per_window


def convolution_works(name: str, args: Sequence[Any], out: Any, precision: Precision) -> tuple[Work, ...] | None:
    """Return what `convolution` or `convolution_backward` is for the models; None: it is neither.

    The gradient of the input is a transposed convolution of the same MACs, G x M x (K x N), and that of the weights
    reduces over positions.
    """
    is_tf32 = precision.convolution_tf32
    if name in ("convolution", "_convolution", "convolution_overrideable", "cudnn_convolution"):
        x, weight = args[0], args[1]
        transposed, groups = (False, args[6]) if name == "cudnn_convolution" else (bool(args[6]), int(args[8]))
        sizes = _gemm_sizes(x, weight, out.shape, groups, transposed)
        return _work(sizes, (x, weight), _bytes(out), x.dtype, is_tf32, weight, groups)
    if name != "convolution_backward":
        return None
    grad, x, weight = args[0], args[1], args[2]
    transposed, groups, wanted = bool(args[7]), int(args[9]), args[10]
    G, M, K, N = _gemm_sizes(x, weight, grad.shape, groups, transposed)
    works: tuple[Work, ...] = ()
    if wanted[0]:
        works += _work((G, M, N, K), (grad, weight), _bytes(x), x.dtype, is_tf32, weight, groups)
    if wanted[1]:
        works += _work((G, K, M, N), (grad, x), _bytes(weight), x.dtype, is_tf32, weight, groups)
    return works
