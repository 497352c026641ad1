"""The vendor's dense GEMM: cuBLAS on CuPy's memory, stream and graphs, with the arguments of `cupy.matmul`.

`cupy.matmul(A, W.T, out=C)` passes a transposed 2-D view to cublasGemmEx without a copy, but CuPy (14.2) refuses every
cuBLAS call while a stream captures, its wrappers set the stream at each call (which resets the workspace), and for 3-D
operands it copies a transposed B first. So the routines that it would call are called here through ctypes, in the very
library that CuPy has loaded, on a handle with a workspace of its own. The check compares with `cupy.matmul`.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gemm_eval.errors import GemmEvalError, UnsupportedError
from gemm_eval.measure._checks import CHECK_SHAPES, decode, relative_error
from gemm_eval.measure._cupy_device import CupyDevice
from gemm_eval.measure._runner import Enqueue, OperandLayout
from gemm_eval.measure._shapes import GemmShape

__all__ = ["CublasRunner"]

_CUDA_TYPES = {"fp16": 2, "bf16": 14}  # CUDA_R_16F, CUDA_R_16BF of library_types.h
_COMPUTE_32F = 68  # CUBLAS_COMPUTE_32F of cublas_api.h
_GEMM_DEFAULT, _GEMM_DEFAULT_TENSOR_OP = -1, 99
_OP_N, _OP_T = 0, 1
_WORKSPACE_BYTES = 32 << 20  # what NVIDIA recommends for Hopper
_MIN_BUFFER_BYTES = 1 << 16  # the check's operands fit
_MAX_ERROR = {"fp16": 2e-3, "bf16": 1e-2}


def _load_cublas() -> tuple[ctypes.CDLL, str]:
    """Return the cuBLAS that this process has loaded already, else the one that the loader finds."""
    names = []
    maps = Path("/proc/self/maps")
    if maps.exists():
        names = [line.split(None, 5)[5].strip() for line in maps.read_text().splitlines() if "/libcublas.so" in line]
    names += ["libcublas.so.13", "libcublas.so.12", "libcublas.so"]
    for name in names:
        try:
            return ctypes.CDLL(name), name
        except OSError:
            continue
    raise GemmEvalError(f"cuBLAS was not found on {sys.platform}: pip install 'gemm_eval[gpu]'")


class CublasRunner(CupyDevice):
    """cuBLAS with fp16 or bf16 operands and output, and fp32 accumulation."""

    kernel = "cublas"

    def __init__(self, dtype: str) -> None:
        if dtype not in _CUDA_TYPES:
            raise UnsupportedError(f"--kernel cublas measures {', '.join(_CUDA_TYPES)}, got {dtype!r}; see cublaslt")
        super().__init__()
        self.input_dtype = self.weight_dtype = self.output_dtype = dtype
        self.pool_bytes = 0
        self._type = _CUDA_TYPES[dtype]
        _ = self.cupy.cuda.Device().cublas_handle  # makes CuPy load its cuBLAS
        self._library, self._path = _load_cublas()
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
        self._buffers: dict[str, Any] = {}

    def _call(self, name: str, *args: Any) -> None:
        status = getattr(self._library, name)(*args)
        if status:
            raise GemmEvalError(f"{name} returned status {status}")

    def allocate(self, shapes: Sequence[GemmShape], pool_bytes: int) -> None:
        """See `Runner`."""
        inputs = max(_MIN_BUFFER_BYTES, *(2 * s.G * s.M * s.K for s in shapes))
        outputs = max(_MIN_BUFFER_BYTES, *(2 * s.G * s.M * s.N for s in shapes))
        is_bf16 = self.input_dtype == "bf16"
        self._buffers = {
            "A": self.empty_bytes(inputs),
            "W": self.empty_bytes(pool_bytes),
            "C": self.empty_bytes(outputs),
        }
        self.fill_normal(self._buffers["A"], 1, is_bf16=is_bf16)
        self.fill_normal(self._buffers["W"], 2, is_bf16=is_bf16)
        self.pool_bytes = self._buffers["W"].nbytes

    def weight_bytes(self, shape: GemmShape) -> int:
        """See `Runner`."""
        return 2 * shape.G * shape.K * shape.N

    def bind(self, shape: GemmShape, layout: OperandLayout) -> Sequence[Enqueue]:
        """See `Runner`. Row-major C = A x W^T is column-major C^T = W x A^T: W is transposed, A is not."""
        a = self._buffers["A"].data.ptr + layout.input_offset
        c = self._buffers["C"].data.ptr + layout.output_offset
        weights = self._buffers["W"].data.ptr
        return [self._bind_one(shape, a, weights + offset, c) for offset in layout.weight_offsets]

    def _bind_one(self, shape: GemmShape, a: int, w: int, c: int) -> Enqueue:
        num_batches, m, k, n = shape
        pointer, integer, long = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
        one, zero, kind = ctypes.byref(self._one), ctypes.byref(self._zero), integer(self._type)
        sizes = (self._handle, integer(_OP_T), integer(_OP_N), integer(n), integer(m), integer(k))
        args: tuple[Any, ...]
        if num_batches == 1:
            name, algorithm = "cublasGemmEx", integer(_GEMM_DEFAULT_TENSOR_OP)
            args = (
                *sizes, one, pointer(w), kind, integer(k), pointer(a), kind, integer(k), zero, pointer(c), kind,
                integer(n), integer(_COMPUTE_32F), algorithm,
            )  # fmt: skip
        else:
            name, algorithm = "cublasGemmStridedBatchedEx", integer(_GEMM_DEFAULT)
            args = (
                *sizes, one, pointer(w), kind, integer(k), long(n * k), pointer(a), kind, integer(k), long(m * k), zero,
                pointer(c), kind, integer(n), long(m * n), integer(num_batches), integer(_COMPUTE_32F), algorithm,
            )  # fmt: skip
        function = getattr(self._library, name)

        def enqueue() -> None:
            status = function(*args)
            if status:
                raise GemmEvalError(f"{name} returned status {status} for (G, M, K, N) = {tuple(shape)}")

        return enqueue

    def check(self) -> Mapping[str, float]:
        """See `Runner`."""
        errors = {}
        for layout, shape in CHECK_SHAPES.items():
            a, w, c = (
                decode(values, self.input_dtype, size)
                for values, size in zip(
                    self._run_poisoned(shape),
                    ((shape.G, shape.M, shape.K), (shape.G, shape.N, shape.K), (shape.G, shape.M, shape.N)),
                    strict=True,
                )
            )
            errors[layout] = relative_error(c, a @ w.transpose(0, 2, 1))
            if not errors[layout] < _MAX_ERROR[self.input_dtype]:  # NaN does not pass
                raise GemmEvalError(f"{self.kernel} {self.input_dtype} {layout} is wrong: error {errors[layout]:.2g}")
        return errors

    def _run_poisoned(self, shape: GemmShape) -> tuple[Any, Any, Any]:
        for name, seed in (("A", 11), ("W", 12)):
            self.fill_normal(self._buffers[name][:_MIN_BUFFER_BYTES], seed, is_bf16=self.input_dtype == "bf16")
        self._buffers["C"].fill(0xFF)  # NaN in fp16 and bf16
        self.cupy.cuda.runtime.deviceSynchronize()
        self.bind(shape, OperandLayout(0, (0,), 0))[0]()
        self.synchronize()
        counts = (shape.G * shape.M * shape.K, shape.G * shape.N * shape.K, shape.G * shape.M * shape.N)
        a, w, c = (
            self.cupy.asnumpy(self._buffers[name][: 2 * count]) for name, count in zip("AWC", counts, strict=True)
        )
        return a, w, c

    def compare_with_matmul(self) -> float | str:
        """Return the relative difference from `cupy.matmul(A, W.T, out=C)` on a small GEMM, or why there is none."""
        if self.input_dtype != "fp16":
            return "compared for fp16 only"
        try:
            _, m, k, n = shape = CHECK_SHAPES["2-D"]
            _, _, ours = self._run_poisoned(shape)
            a = self._buffers["A"][: 2 * m * k].view(self.cupy.float16).reshape(m, k)
            w = self._buffers["W"][: 2 * n * k].view(self.cupy.float16).reshape(n, k)
            out = self.cupy.empty((m, n), self.cupy.float16)
            self.cupy.matmul(a, w.T, out=out)
            theirs = self.cupy.asnumpy(out).astype("float64")
            return relative_error(decode(ours, "fp16", (m, n)), theirs)
        except Exception as error:
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
