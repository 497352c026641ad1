"""The vendor's dense GEMMs in fp16 and bf16: cuBLAS through ctypes.

CuPy (14.2) refuses every cuBLAS call while a stream captures, its wrappers reset the workspace at each call, and for
3-D operands it copies a transposed B first. So the routines that `cupy.matmul(A, W.T, out=C)` would call are called
here, in the very library that CuPy has loaded, on a handle with a workspace of its own.

Names and values are those of cublas_api.h and library_types.h (CUDA 12 and 13). Row-major C[M,N] = A[M,K] x W[N,K]^T
is column-major C^T[N,M] = W x A^T: W, transposed, is the first operand.
"""

import ctypes
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gemm_eval.device import BenchDevice, Call
from gemm_eval.errors import GemmEvalError, UnsupportedError
from gemm_eval.measure.runner import CHECK_SHAPES, MAX_ERRORS, Runner, decode, relative_error
from gemm_eval.measure.shapes import GemmShape
from gemm_eval.words import install_command, shown

_COMPUTE_32F = 68  # CUBLAS_COMPUTE_32F
_CUDA_TYPES = {"fp16": 2, "bf16": 14}  # CUDA_R_16F, CUDA_R_16BF
_GEMM_DEFAULT, _GEMM_DEFAULT_TENSOR_OP = -1, 99
_OP_N, _OP_T = 0, 1
WORKSPACE_BYTES = 32 << 20  # the size that NVIDIA recommends for Hopper
_MIN_BUFFER_BYTES = 1 << 16  # the check's operands fit


class CublasHandle:
    """GEMMs with fp16 or bf16 operands and output and fp32 accumulation, on one stream with a workspace of its own."""

    def __init__(self, library: ctypes.CDLL, stream: int, workspace: int) -> None:
        self._library, self._handle = library, ctypes.c_void_p()
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        self._call("cublasCreate_v2", ctypes.byref(self._handle))
        self._call("cublasSetStream_v2", self._handle, ctypes.c_void_p(stream))
        # after the stream: setting that resets the workspace
        self._call("cublasSetWorkspace_v2", self._handle, ctypes.c_void_p(workspace), ctypes.c_size_t(WORKSPACE_BYTES))

    def _call(self, name: str, *args: Any, detail: str = "") -> None:
        if status := getattr(self._library, name)(*args):
            raise GemmEvalError(f"{name} returned status {status}{detail}")

    def version(self) -> int:
        version = ctypes.c_int()
        self._call("cublasGetVersion_v2", self._handle, ctypes.byref(version))
        return version.value

    def gemm(self, shape: GemmShape, dtype: str, a: int, w: int, c: int) -> Call:
        """Return a call that enqueues C[G,M,N] = A[G,M,K] x W[G,N,K]^T, all row-major, at these addresses."""
        num_batches, m, k, n = shape
        integer, kind = ctypes.c_int, ctypes.c_int(_CUDA_TYPES[dtype])

        def operand(pointer: int, columns: int, stride: int) -> list[Any]:
            batched = [] if num_batches == 1 else [ctypes.c_longlong(stride)]
            return [ctypes.c_void_p(pointer), kind, integer(columns), *batched]

        name, algorithm, batches = "cublasGemmEx", _GEMM_DEFAULT_TENSOR_OP, []
        if num_batches > 1:
            name, algorithm, batches = "cublasGemmStridedBatchedEx", _GEMM_DEFAULT, [integer(num_batches)]
        args = (
            self._handle, integer(_OP_T), integer(_OP_N), integer(n), integer(m), integer(k), ctypes.byref(self._one),
            *operand(w, k, n * k), *operand(a, k, m * k), ctypes.byref(self._zero), *operand(c, n, m * n), *batches,
            integer(_COMPUTE_32F), integer(algorithm),
        )  # fmt: skip
        return lambda: self._call(name, *args, detail=f" for (G, M, K, N) = {tuple(shape)}")


def find_library(stem: str) -> tuple[ctypes.CDLL, str]:
    """Return a library such as ``libcublas``, as this process has loaded it already or as the loader finds it."""
    names = []
    maps = Path("/proc/self/maps")
    if maps.exists():
        names = [line.split(None, 5)[5].strip() for line in maps.read_text().splitlines() if f"/{stem}.so" in line]
    for name in (*names, f"{stem}.so.13", f"{stem}.so.12", f"{stem}.so"):
        try:
            return ctypes.CDLL(name), name
        except OSError:
            continue
    raise GemmEvalError(f"{stem} was not found on {sys.platform}: {install_command('gpu')}")


class CublasRunner(BenchDevice, Runner):
    """cuBLAS with fp16 or bf16 operands and output, and fp32 accumulation.

    A and C have one buffer each, weights a pool.
    """

    kernel = "cublas"

    def __init__(self, dtype: str) -> None:
        if dtype not in _CUDA_TYPES:
            raise UnsupportedError(
                f"--kernel cublas measures {', '.join(_CUDA_TYPES)}, got {shown(dtype)}; see cublaslt"
            )
        super().__init__()
        self.input_dtype = self.weight_dtype = self.output_dtype = dtype
        self.pool_bytes = 0
        self.buffers: dict[str, Any] = {}
        _ = self.cupy.cuda.Device().cublas_handle  # makes CuPy load its cuBLAS
        library, self._path = find_library("libcublas")
        self._workspace = self.empty_bytes(WORKSPACE_BYTES)
        self._handle = CublasHandle(library, self.stream.ptr, self._workspace.data.ptr)

    def allocate(self, shapes: Sequence[GemmShape], pool_bytes: int) -> None:
        inputs = max(_MIN_BUFFER_BYTES, *(2 * s.G * s.M * s.K for s in shapes))
        outputs = max(_MIN_BUFFER_BYTES, *(2 * s.G * s.M * s.N for s in shapes))
        sizes = {"A": inputs, "W": pool_bytes, "C": outputs}
        self.buffers = {name: self.empty_bytes(size) for name, size in sizes.items()}
        self._fill(slice(None), 1, 2)
        self.pool_bytes = self.buffers["W"].nbytes

    def _fill(self, part: slice, *seeds: int) -> None:
        for name, seed in zip("AW", seeds, strict=True):
            self.fill_normal(self.buffers[name][part], seed, is_bf16=self.input_dtype == "bf16")

    def weight_bytes(self, shape: GemmShape) -> int:
        return 2 * shape.G * shape.K * shape.N

    def bind(self, shape: GemmShape, weight_offsets: Sequence[int]) -> Sequence[Call]:
        a, weights, c = (self.buffers[name].data.ptr for name in "AWC")
        return [self._handle.gemm(shape, self.input_dtype, a, weights + offset, c) for offset in weight_offsets]

    def check(self) -> Mapping[str, float]:
        return {layout: self._check_one(shape) for layout, shape in CHECK_SHAPES.items()}

    def _check_one(self, shape: GemmShape) -> float:
        """Run a small GEMM into a C full of NaN, and return its relative error."""
        (enqueue,) = self.bind(shape, (0,))
        self._fill(slice(_MIN_BUFFER_BYTES), 11, 12)
        self.buffers["C"].fill(0xFF)  # NaN in fp16 and bf16
        self.cupy.cuda.runtime.deviceSynchronize()
        enqueue()
        self.synchronize()
        sizes = (shape.G, shape.M, shape.K), (shape.G, shape.N, shape.K), (shape.G, shape.M, shape.N)
        a, w, c = (
            decode(self.cupy.asnumpy(self.buffers[name][: 2 * size[0] * size[1] * size[2]]), self.input_dtype, size)
            for name, size in zip("AWC", sizes, strict=True)
        )
        error = relative_error(c, a @ w.transpose(0, 2, 1))
        if not error < MAX_ERRORS[self.input_dtype]:  # NaN does not pass
            raise GemmEvalError(f"{self.kernel} {self.input_dtype} is wrong for {tuple(shape)}: error {error:.2g}")
        return error

    def describe(self) -> dict[str, Any]:
        return {
            "library": Path(self._path).name,
            "library_version": self._handle.version(),
            "routines": "cublasGemmEx (G = 1, CUBLAS_GEMM_DEFAULT_TENSOR_OP), cublasGemmStridedBatchedEx (G > 1, "
            "CUBLAS_GEMM_DEFAULT), CUBLAS_COMPUTE_32F, alpha 1, beta 0: the arguments of cupy.matmul(A, W.T, out=C)",
            "workspace_bytes": WORKSPACE_BYTES,
            "layouts": "A[G,M,K] and C[G,M,N] row-major; B is the transposed view of W[G,N,K], row-major",
            "data": "standard normal A and W",
        }
