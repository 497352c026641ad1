"""cuBLASLt through ctypes: the few functions that list the algorithms of a GEMM, and run one.

Names and values are those of cublasLt.h and library_types.h (CUDA 12 and 13). Sizes are those of a row-major
C[M,N] = A[M,K] x W[N,K]^T, which is the column-major C^T[N,M] = W x A^T: W, transposed, is the first operand.
"""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar, NamedTuple

from gemm_eval.errors import GemmEvalError
from gemm_eval.measure.runners.cublas_handle import COMPUTE_32F
from gemm_eval.measure.shapes import GemmShape

__all__ = ["Algorithm", "CublasLtLibrary", "HeuristicResult", "Layouts"]

# cublasLt.h, by enumeration: cublasLtMatmulDescAttributes_t, cublasLtMatmulPreferenceAttributes_t,
# cublasLtMatmulAlgoConfigAttributes_t
_DESC_TRANSA = 3
_PREF_MAX_WORKSPACE_BYTES = 1
_ALGO_CONFIG_SPLITK_NUM = 2

_OP_T = 1  # CUBLAS_OP_T of cublas_api.h
_CUDA_R_32F = 0  # library_types.h
_STATUS_NOT_SUPPORTED = 15  # CUBLAS_STATUS_NOT_SUPPORTED: the library has no algorithm


class HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: an algorithm (opaque), the workspace it wants, and what the library thinks."""

    _fields_: ClassVar = [
        ("algo", ctypes.c_uint64 * 8),
        ("workspaceSize", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("wavesCount", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


class Algorithm(NamedTuple):
    """One proposal of the library.

    Attributes:
        result: what it returned.
        split_k: parts of K; 1: K is not split.
    """

    result: HeuristicResult
    split_k: int


class Layouts(NamedTuple):
    """Descriptors of W, A and C of one GEMM."""

    w: ctypes.c_void_p
    a: ctypes.c_void_p
    c: ctypes.c_void_p


class CublasLtLibrary:
    """One handle; fp16 or bf16 operands, fp32 accumulation, alpha 1, beta 0.

    Args:
        library: the loaded libcublasLt.
        cuda_type: type of A, W and C, as library_types.h numbers it.
        workspace_bytes: the most that an algorithm may want.
    """

    def __init__(self, library: Any, cuda_type: int, workspace_bytes: int) -> None:
        self._library, self._type, self.workspace_bytes = library, cuda_type, workspace_bytes
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        self._handle, self._desc, self._preference = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cublasLtCreate", ctypes.byref(self._handle))
        compute, scale = ctypes.c_int(COMPUTE_32F), ctypes.c_int(_CUDA_R_32F)
        self._call("cublasLtMatmulDescCreate", ctypes.byref(self._desc), compute, scale)
        self._set("cublasLtMatmulDescSetAttribute", self._desc, _DESC_TRANSA, ctypes.c_int32(_OP_T))
        self._call("cublasLtMatmulPreferenceCreate", ctypes.byref(self._preference))
        most = ctypes.c_uint64(workspace_bytes)
        self._set("cublasLtMatmulPreferenceSetAttribute", self._preference, _PREF_MAX_WORKSPACE_BYTES, most)

    def _call(self, name: str, *args: Any) -> None:
        status = getattr(self._library, name)(*args)
        if status:
            raise GemmEvalError(f"{name} returned status {status}")

    def _set(self, name: str, target: ctypes.c_void_p, attribute: int, value: Any) -> None:
        self._call(name, target, ctypes.c_int(attribute), ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)))

    def version(self) -> int:
        """Return the library's version: 130100 is 13.1.0."""
        function = self._library.cublasLtGetVersion
        function.restype = ctypes.c_size_t
        return int(function())

    def layouts(self, shape: GemmShape) -> Layouts:
        """Return new descriptors for a GEMM; they live as long as the process."""
        _, m, k, n = shape
        return Layouts(self._layout(k, n), self._layout(k, m), self._layout(n, m))

    def _layout(self, rows: int, columns: int) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        sizes = ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows)
        self._call("cublasLtMatrixLayoutCreate", ctypes.byref(made), ctypes.c_int(self._type), *sizes)
        return made

    def algorithms(self, layouts: Layouts, count: int) -> list[Algorithm]:
        """Return up to `count` algorithms that the library proposes, the one it would run first; maybe none.

        Raises:
            GemmEvalError: the library fails.
        """
        results, found = (HeuristicResult * count)(), ctypes.c_int()
        status = self._library.cublasLtMatmulAlgoGetHeuristic(
            self._handle, self._desc, layouts.w, layouts.a, layouts.c, layouts.c, self._preference,
            ctypes.c_int(count), results, ctypes.byref(found),
        )  # fmt: skip
        if status == _STATUS_NOT_SUPPORTED:
            return []
        if status:
            raise GemmEvalError(f"cublasLtMatmulAlgoGetHeuristic returned status {status}")
        proposed = (results[index] for index in range(found.value))
        return [Algorithm(result, self._split_k(result)) for result in proposed if result.state == 0]

    def _split_k(self, result: HeuristicResult) -> int:
        value, written = ctypes.c_int32(), ctypes.c_size_t()
        self._call(
            "cublasLtMatmulAlgoConfigGetAttribute", ctypes.byref(result.algo), ctypes.c_int(_ALGO_CONFIG_SPLITK_NUM),
            ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)), ctypes.byref(written),
        )  # fmt: skip
        return max(1, value.value)

    def matmul_args(
        self, layouts: Layouts, algorithm: Algorithm, pointers: tuple[int, int, int], workspace: int, stream: int
    ) -> tuple[Any, ...]:
        """Return the arguments of `matmul`, made once for many calls; `pointers`: device addresses of W, A and C."""
        w, a, c = map(ctypes.c_void_p, pointers)
        return (
            self._handle, self._desc, ctypes.byref(self._one), w, layouts.w, a, layouts.a, ctypes.byref(self._zero),
            c, layouts.c, c, layouts.c, ctypes.byref(algorithm.result.algo),
            ctypes.c_void_p(workspace), ctypes.c_size_t(self.workspace_bytes), ctypes.c_void_p(stream),
        )  # fmt: skip

    def matmul(self, args: tuple[Any, ...]) -> None:
        """Enqueue a GEMM.

        Raises:
            GemmEvalError: the library refuses.
        """
        self._call("cublasLtMatmul", *args)
