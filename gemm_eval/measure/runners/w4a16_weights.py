"""Random 4-bit weights as our kernels read them: bytes to fill pools with, and sizes."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.dtypes import DType
from gemm_eval.kernels import (
    BLOCK_COLUMNS,
    BLOCK_K,
    PackedW4,
    QuantizedFp4,
    k_blocks,
    pack_fp4,
    pack_scales,
    scale_rows,
    scale_unit,
    scales_dtype,
    scales_shape,
)
from gemm_eval.kernels.families import WeightMode, ceil_div
from gemm_eval.measure.kernel_shapes import QuantShape
from gemm_eval.measure.shapes import KernelItem

__all__ = ["SCALES_SHARE", "PackedSizes", "copy_bytes", "packed_sizes", "pattern_unit", "scale_pattern", "word_pattern"]

SCALES_SHARE = 4
"""The pool of weights is so many times that of scales: a scale and a zero point for 32 weights take a quarter."""

_ALIGN_BYTES = 256
_BLOCK_BYTES = BLOCK_COLUMNS * BLOCK_K // 2
_WORDS = 1 << 24
_PATTERN_SHAPE = 64, 1 << 14  # groups, columns
_LEAST_SCALE, _LARGEST_SCALE = 0.005, 0.015  # products of normal activations stay far from the largest fp16
_E8M0_SCALES = (118, 121)  # bytes: 2^-9 to 2^-7
_E4M3_SCALES = (0x70, 0x7F)  # bytes: 128 to 448
_LARGEST_E4M3 = 448
_FP4_COLUMNS = 1 << 12


class PackedSizes(NamedTuple):
    """Packed weights of one GEMM: NB, KB and GB of KERNELS.md, and bytes."""

    num_column_blocks: int
    num_k_blocks: int
    num_groups: int
    qweight_bytes: int
    scales_bytes: int


def packed_sizes(item: KernelItem | QuantShape) -> PackedSizes:
    """Return the sizes of the packed weights of a GEMM."""
    num_columns, num_k = ceil_div(item.N, BLOCK_COLUMNS), k_blocks(item.K)
    num_groups = scale_rows(item.mode, num_k, item.group_size)
    scale_bytes = np.dtype(scales_dtype(item.mode, DType.FP16)).itemsize
    scales = scale_bytes * prod(scales_shape(item.mode, num_columns, num_groups))
    return PackedSizes(num_columns, num_k, num_groups, num_columns * num_k * _BLOCK_BYTES, scales)


def copy_bytes(item: KernelItem | QuantShape) -> int:
    """Return the distance of two copies in the pool; a quarter of it keeps copies of the scales aligned and apart."""
    sizes, step = packed_sizes(item), SCALES_SHARE * _ALIGN_BYTES
    return ceil_div(sizes.qweight_bytes + sizes.scales_bytes, step) * step


def word_pattern(seed: int) -> npt.NDArray[np.uint32]:
    """Return words whose nibbles are all equally likely."""
    return np.random.default_rng(seed).integers(0, 1 << 32, _WORDS, dtype=np.uint32)


def pattern_unit(mode: WeightMode, activation: DType) -> float:
    """Return `PackedW4.scale_unit` of what `scale_pattern` returns."""
    if mode.is_fp4:
        return _fp4_weights(mode, activation, 0, columns=BLOCK_COLUMNS).scale_unit
    if mode is not WeightMode.GROUP:
        return 1.0
    unit = scale_unit(np.full((1, 1), _LARGEST_SCALE), activation)
    assert unit is not None  # one value spans nothing
    return unit


def scale_pattern(mode: WeightMode, activation: DType, seed: int) -> npt.NDArray[Any]:
    """Return packed scales, and zero points in mode GROUP_ZERO, of a matrix; any part of them is valid."""
    packed: npt.NDArray[Any]
    rng, shape = np.random.default_rng(seed), _PATTERN_SHAPE
    if mode.is_fp4:
        packed = _fp4_weights(mode, activation, seed).scales
        return packed
    scales = rng.uniform(_LEAST_SCALE, _LARGEST_SCALE, shape).astype(np.float32) / pattern_unit(mode, activation)
    zeros = rng.integers(0, 16, shape, dtype=np.uint8) if mode is WeightMode.GROUP_ZERO else None
    packed = pack_scales(scales, zeros, mode, activation)
    return packed


def _fp4_weights(mode: WeightMode, activation: DType, seed: int, columns: int = _FP4_COLUMNS) -> PackedW4:
    """Weights whose scales are a pattern; the codes are none."""
    groups = _PATTERN_SHAPE[0]
    low, high = _E8M0_SCALES if mode is WeightMode.MXFP4 else _E4M3_SCALES
    scales = np.random.default_rng(seed).integers(low, high, (groups, columns), dtype=np.uint8)
    scales[0, 0] = high - 1  # what the unit goes by
    codes = np.ones((groups * mode.group_sizes[0], columns), np.uint8)
    return pack_fp4(QuantizedFp4(codes, scales, _LARGEST_SCALE / _LARGEST_E4M3), mode, activation)
