"""Tensor maps (TMA descriptors), through the driver alone.

Names and values are those of cuda.h: CUtensorMapDataType, CUtensorMapSwizzle, CUtensorMapL2promotion.
"""

from __future__ import annotations

import ctypes
from functools import cache, lru_cache
from typing import Any

import numpy

from gemm_eval.dtypes import DType
from gemm_eval.errors import GemmEvalError, InvalidProblemError

__all__ = ["encode_tensor_map"]

_MAP_BYTES = 128
_MAP_ALIGNMENT_BYTES = 64
_BYTES_PER_ELEM = 2
_DATA_TYPE = {DType.FP16: 6, DType.BF16: 9}
_INTERLEAVE_NONE = 0
_SWIZZLE_128B = 3
_L2_PROMOTION_256B = 3
_FILL_ZERO = 0
_BOX_ROWS_MAX = 256
_BOX_COLUMNS_MAX = 64


@cache
def _encoder() -> Any:
    last_error: OSError | None = None
    for name in ("libcuda.so.1", "nvcuda.dll"):
        try:
            return ctypes.CDLL(name).cuTensorMapEncodeTiled
        except OSError as error:
            last_error = last_error or error
        except AttributeError:
            raise GemmEvalError("tensor maps need an NVIDIA driver for CUDA 12 or later") from None
    raise GemmEvalError(f"tensor maps need the NVIDIA driver: {last_error}")


@lru_cache(maxsize=1024)
def encode_tensor_map(
    address: int, dtype: DType, shape: tuple[int, int], row_stride: int, box: tuple[int, int]
) -> numpy.void:
    """Encode a row-major matrix of 16-bit elements for TMA, as an argument for a launch.

    Boxes are swizzled by 128 bytes; what of them lies outside of the matrix is read as 0 and not written.

    Args:
        address: of the matrix, a multiple of 16 bytes.
        dtype: DType.FP16 or DType.BF16.
        shape: (rows, columns) of the matrix.
        row_stride: elements from row to row, a multiple of 8.
        box: (rows, columns) that one copy moves; at most 256 and 64.

    Raises:
        InvalidProblemError: the driver cannot encode such a matrix.
        GemmEvalError: there is no driver, or one that is too old.
    """
    if not (1 <= box[0] <= _BOX_ROWS_MAX and 1 <= box[1] <= _BOX_COLUMNS_MAX):
        raise InvalidProblemError(f"box must be 1..{_BOX_ROWS_MAX} x 1..{_BOX_COLUMNS_MAX} elements, got {box}")
    storage = (ctypes.c_uint8 * (_MAP_BYTES + _MAP_ALIGNMENT_BYTES))()
    aligned = -(-ctypes.addressof(storage) // _MAP_ALIGNMENT_BYTES) * _MAP_ALIGNMENT_BYTES
    u64, u32 = ctypes.c_uint64, ctypes.c_uint32
    result = _encoder()(
        ctypes.c_void_p(aligned),
        _DATA_TYPE[dtype],
        u32(2),
        ctypes.c_void_p(address),
        (u64 * 2)(shape[1], shape[0]),
        (u64 * 1)(row_stride * _BYTES_PER_ELEM),
        (u32 * 2)(box[1], box[0]),
        (u32 * 2)(1, 1),
        _INTERLEAVE_NONE,
        _SWIZZLE_128B,
        _L2_PROMOTION_256B,
        _FILL_ZERO,
    )
    if result:
        raise InvalidProblemError(
            f"the driver refuses a tensor map (CUresult {result}): address {address:#x}, {shape[0]} x {shape[1]} "
            f"{dtype}, {row_stride} elements from row to row, box {box[0]} x {box[1]}"
        )
    encoded: numpy.void = numpy.frombuffer(ctypes.string_at(aligned, _MAP_BYTES), dtype=f"V{_MAP_BYTES}")[0]
    return encoded
