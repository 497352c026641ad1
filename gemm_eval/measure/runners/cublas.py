"""The vendor's dense GEMM: cuBLAS on CuPy's memory, stream and graphs, with the arguments of `cupy.matmul`.

`cupy.matmul(A, W.T, out=C)` passes a transposed 2-D view to cublasGemmEx without a copy, but CuPy (14.2) refuses every
cuBLAS call while a stream captures, its wrappers set the stream at each call (which resets the workspace), and for 3-D
operands it copies a transposed B first. So the routines that it would call are called here through ctypes, in the very
library that CuPy has loaded, on a handle with a workspace of its own. The check compares with `cupy.matmul`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gemm_eval.device import Call
from gemm_eval.measure.runners.base import OperandLayout
from gemm_eval.measure.runners.checks import CHECK_SHAPES, relative_error
from gemm_eval.measure.runners.cublas_handle import WORKSPACE_BYTES, CublasHandle
from gemm_eval.measure.runners.dense import DenseDevice
from gemm_eval.measure.shapes import GemmShape

__all__ = ["CublasRunner"]


class CublasRunner(DenseDevice):
    """cuBLAS with fp16 or bf16 operands and output, and fp32 accumulation."""

    kernel = "cublas"

    def __init__(self, dtype: str) -> None:
        super().__init__(dtype)
        library, self._path = self.load_library("libcublas")
        self._workspace = self.empty_bytes(WORKSPACE_BYTES)
        self._handle = CublasHandle(library, self.stream.ptr, self._workspace.data.ptr)

    def bind(self, shape: GemmShape, layout: OperandLayout) -> Sequence[Call]:
        """See `Runner`."""
        a = self.buffers["A"].data.ptr + layout.input_offset
        c = self.buffers["C"].data.ptr + layout.output_offset
        weights = self.buffers["W"].data.ptr
        return [self._handle.gemm(shape, self.input_dtype, a, weights + offset, c) for offset in layout.weight_offsets]

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
        return {
            "library": Path(self._path).name,
            "library_version": self._handle.version(),
            "routines": "cublasGemmEx (G = 1, CUBLAS_GEMM_DEFAULT_TENSOR_OP), cublasGemmStridedBatchedEx (G > 1, "
            "CUBLAS_GEMM_DEFAULT), CUBLAS_COMPUTE_32F, alpha 1, beta 0: the arguments of cupy.matmul(A, W.T, out=C)",
            "workspace_bytes": WORKSPACE_BYTES,
            "layouts": "A[G,M,K] and C[G,M,N] row-major; B is the transposed view of W[G,N,K], row-major",
            "data": "standard normal A and W",
            "relative_difference_from_cupy_matmul": self.compare_with_matmul(),
        }
