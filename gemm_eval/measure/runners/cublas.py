"""The vendor's dense GEMM: cuBLAS on CuPy's memory, stream and graphs, with the arguments of `cupy.matmul`.

`cupy.matmul(A, W.T, out=C)` passes a transposed 2-D view to cublasGemmEx without a copy, but CuPy (14.2) refuses every
cuBLAS call while a stream captures, its wrappers set the stream at each call (which resets the workspace), and for 3-D
operands it copies a transposed B first. So the routines that it would call are called here through ctypes, in the very
library that CuPy has loaded, on a handle with a workspace of its own. The check compares with `cupy.matmul`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gemm_eval.device import Call
from gemm_eval.errors import GemmEvalError
from gemm_eval.measure.runners.base import OperandLayout
from gemm_eval.measure.runners.checks import CHECK_SHAPES, relative_error
from gemm_eval.measure.runners.dense import COMPUTE_32F, DenseDevice
from gemm_eval.measure.shapes import GemmShape

__all__ = ["CublasRunner"]

_GEMM_DEFAULT, _GEMM_DEFAULT_TENSOR_OP = -1, 99
_OP_N, _OP_T = 0, 1
_WORKSPACE_BYTES = 32 << 20  # what NVIDIA recommends for Hopper


class CublasRunner(DenseDevice):
    """cuBLAS with fp16 or bf16 operands and output, and fp32 accumulation."""

    kernel = "cublas"

    def __init__(self, dtype: str) -> None:
        super().__init__(dtype)
        self._library, self._path = self.load_library("libcublas")
        self._handle = ctypes.c_void_p()
        self._call("cublasCreate_v2", ctypes.byref(self._handle))
        self._call("cublasSetStream_v2", self._handle, ctypes.c_void_p(self.stream.ptr))
        self._workspace = self.empty_bytes(_WORKSPACE_BYTES)  # after the stream: setting that resets the workspace
        self._call(
            "cublasSetWorkspace_v2",
            self._handle,
            ctypes.c_void_p(self._workspace.data.ptr),
            ctypes.c_size_t(_WORKSPACE_BYTES),
        )
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)

    def _call(self, name: str, *args: Any) -> None:
        status = getattr(self._library, name)(*args)
        if status:
            raise GemmEvalError(f"{name} returned status {status}")

    def bind(self, shape: GemmShape, layout: OperandLayout) -> Sequence[Call]:
        """See `Runner`. Row-major C = A x W^T is column-major C^T = W x A^T: W is transposed, A is not."""
        a = self.buffers["A"].data.ptr + layout.input_offset
        c = self.buffers["C"].data.ptr + layout.output_offset
        weights = self.buffers["W"].data.ptr
        return [self._bind_one(shape, a, weights + offset, c) for offset in layout.weight_offsets]

    def _bind_one(self, shape: GemmShape, a: int, w: int, c: int) -> Call:
        num_batches, m, k, n = shape
        pointer, integer, long = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
        one, zero, kind = ctypes.byref(self._one), ctypes.byref(self._zero), integer(self.cuda_type)
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

    def check(self) -> Mapping[str, float]:
        """See `Runner`."""
        return {layout: self.check_one(shape, self._bind_first(shape)) for layout, shape in CHECK_SHAPES.items()}

    def _bind_first(self, shape: GemmShape) -> Call:
        return self.bind(shape, OperandLayout(0, (0,), 0))[0]

    def compare_with_matmul(self) -> float | str:
        """Return the relative difference from `cupy.matmul(A, W.T, out=C)` on a small GEMM, or why there is none."""
        if self.input_dtype != "fp16":
            return "compared for fp16 only"
        try:
            _, m, k, n = shape = CHECK_SHAPES["2-D"]
            _, _, ours = self.run_poisoned(shape, self._bind_first(shape))
            a = self.buffers["A"][: 2 * m * k].view(self.cupy.float16).reshape(m, k)
            w = self.buffers["W"][: 2 * n * k].view(self.cupy.float16).reshape(n, k)
            out = self.cupy.empty((m, n), self.cupy.float16)
            self.cupy.matmul(a, w.T, out=out)
            theirs = self.cupy.asnumpy(out).astype("float64")
            return relative_error(ours[0], theirs)
        except Exception as error:  # whatever CuPy's own GEMM says: the timings stand without the comparison
            return f"not compared: {error}"

    def describe(self) -> dict[str, Any]:
        """See `Runner`."""
        version = ctypes.c_int()
        self._call("cublasGetVersion_v2", self._handle, ctypes.byref(version))
        return {
            "library": Path(self._path).name,
            "library_version": version.value,
            "routines": "cublasGemmEx (G = 1, CUBLAS_GEMM_DEFAULT_TENSOR_OP), cublasGemmStridedBatchedEx (G > 1, "
            "CUBLAS_GEMM_DEFAULT), CUBLAS_COMPUTE_32F, alpha 1, beta 0: the arguments of cupy.matmul(A, W.T, out=C)",
            "workspace_bytes": _WORKSPACE_BYTES,
            "layouts": "A[G,M,K] and C[G,M,N] row-major; B is the transposed view of W[G,N,K], row-major",
            "data": "standard normal A and W",
            "relative_difference_from_cupy_matmul": self.compare_with_matmul(),
        }
