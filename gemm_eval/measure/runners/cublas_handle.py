"""A handle of cuBLAS on one stream, in a library that is loaded already, through ctypes."""

from __future__ import annotations

import ctypes
from typing import Any

from gemm_eval.device import Call
from gemm_eval.errors import GemmEvalError
from gemm_eval.measure.shapes import GemmShape

__all__ = ["COMPUTE_32F", "CUDA_TYPES", "WORKSPACE_BYTES", "CublasHandle"]

COMPUTE_32F = 68
"""CUBLAS_COMPUTE_32F of cublas_api.h."""

CUDA_TYPES = {"fp16": 2, "bf16": 14}
"""CUDA_R_16F, CUDA_R_16BF of library_types.h."""

WORKSPACE_BYTES = 32 << 20
"""What NVIDIA recommends for Hopper."""

_GEMM_DEFAULT, _GEMM_DEFAULT_TENSOR_OP = -1, 99
_OP_N, _OP_T = 0, 1


class CublasHandle:
    """GEMMs with fp16 or bf16 operands and output, and fp32 accumulation.

    Args:
        library: cuBLAS.
        stream: handle of the stream that GEMMs come to.
        workspace: address of `WORKSPACE_BYTES`, for this handle alone.

    Raises:
        GemmEvalError: the library refuses.
    """

    def __init__(self, library: ctypes.CDLL, stream: int, workspace: int) -> None:
        self._library = library
        self._handle = ctypes.c_void_p()
        self._call("cublasCreate_v2", ctypes.byref(self._handle))
        self._call("cublasSetStream_v2", self._handle, ctypes.c_void_p(stream))
        # after the stream: setting that resets the workspace
        self._call("cublasSetWorkspace_v2", self._handle, ctypes.c_void_p(workspace), ctypes.c_size_t(WORKSPACE_BYTES))
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)

    def _call(self, name: str, *args: Any) -> None:
        status = getattr(self._library, name)(*args)
        if status:
            raise GemmEvalError(f"{name} returned status {status}")

    def version(self) -> int:
        """Return the library's version, as it counts them."""
        version = ctypes.c_int()
        self._call("cublasGetVersion_v2", self._handle, ctypes.byref(version))
        return version.value

    def gemm(self, shape: GemmShape, dtype: str, a: int, w: int, c: int) -> Call:
        """Return what enqueues C[G,M,N] = A[G,M,K] x W[G,N,K]^T, all row-major, at these addresses.

        Row-major C = A x W^T is column-major C^T = W x A^T: W is transposed, A is not.
        """
        num_batches, m, k, n = shape
        pointer, integer, long = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
        one, zero, kind = ctypes.byref(self._one), ctypes.byref(self._zero), integer(CUDA_TYPES[dtype])
        sizes = (self._handle, integer(_OP_T), integer(_OP_N), integer(n), integer(m), integer(k))
        args: tuple[Any, ...]
        if num_batches == 1:
            name, algorithm = "cublasGemmEx", integer(_GEMM_DEFAULT_TENSOR_OP)
            args = (
                *sizes, one, pointer(w), kind, integer(k), pointer(a), kind, integer(k), zero, pointer(c), kind,
                integer(n), integer(COMPUTE_32F), algorithm,
            )  # fmt: skip
        else:
            name, algorithm = "cublasGemmStridedBatchedEx", integer(_GEMM_DEFAULT)
            args = (
                *sizes, one, pointer(w), kind, integer(k), long(n * k), pointer(a), kind, integer(k), long(m * k), zero,
                pointer(c), kind, integer(n), long(m * n), integer(num_batches), integer(COMPUTE_32F), algorithm,
            )  # fmt: skip
        function = getattr(self._library, name)

        def enqueue() -> None:
            status = function(*args)
            if status:
                raise GemmEvalError(f"{name} returned status {status} for (G, M, K, N) = {tuple(shape)}")

        return enqueue
