"""The vendor's dense GEMMs in fp16 and bf16: cuBLAS, and each algorithm that cuBLASLt proposes, through ctypes.

CuPy (14.2) refuses every cuBLAS call while a stream captures, its wrappers reset the workspace at each call, and for
3-D operands it copies a transposed B first. So the routines that `cupy.matmul(A, W.T, out=C)` would call are called
here, in the very library that CuPy has loaded, on a handle with a workspace of its own.

Names and values are those of cublas_api.h, cublasLt.h and library_types.h (CUDA 12 and 13). Row-major
C[M,N] = A[M,K] x W[N,K]^T is column-major C^T[N,M] = W x A^T: W, transposed, is the first operand.
"""

import ctypes
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from gemm_eval.device import BenchDevice, Call
from gemm_eval.errors import GemmEvalError, InvalidOptionError, UnsupportedError
from gemm_eval.measure.runner import CHECK_SHAPES, MAX_ERRORS, Runner, decode, relative_error
from gemm_eval.measure.shapes import Candidate, GemmItem, GemmShape
from gemm_eval.words import install_command, shown

COMPUTE_32F = 68
"""CUBLAS_COMPUTE_32F of cublas_api.h."""

CUDA_TYPES = {"fp16": 2, "bf16": 14}
"""CUDA_R_16F, CUDA_R_16BF of library_types.h."""

WORKSPACE_BYTES = 32 << 20
"""The size that NVIDIA recommends for Hopper."""

_GEMM_DEFAULT, _GEMM_DEFAULT_TENSOR_OP = -1, 99
_OP_N, _OP_T = 0, 1
_MIN_BUFFER_BYTES = 1 << 16  # the check's operands fit


class _Library:
    """A library of the vendor, whose routines return 0 where all is well."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._handle = ctypes.c_void_p()
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)

    def _call(self, name: str, *args: Any) -> None:
        if status := getattr(self._library, name)(*args):
            raise GemmEvalError(f"{name} returned status {status}")


class CublasHandle(_Library):
    """GEMMs with fp16 or bf16 operands and output and fp32 accumulation, on one stream with a workspace of its own."""

    def __init__(self, library: ctypes.CDLL, stream: int, workspace: int) -> None:
        super().__init__(library)
        self._call("cublasCreate_v2", ctypes.byref(self._handle))
        self._call("cublasSetStream_v2", self._handle, ctypes.c_void_p(stream))
        # after the stream: setting that resets the workspace
        self._call("cublasSetWorkspace_v2", self._handle, ctypes.c_void_p(workspace), ctypes.c_size_t(WORKSPACE_BYTES))

    def version(self) -> int:
        """Return the library's version, as it counts them."""
        version = ctypes.c_int()
        self._call("cublasGetVersion_v2", self._handle, ctypes.byref(version))
        return version.value

    def gemm(self, shape: GemmShape, dtype: str, a: int, w: int, c: int) -> Call:
        """Return a call that enqueues C[G,M,N] = A[G,M,K] x W[G,N,K]^T, all row-major, at these addresses."""
        num_batches, m, k, n = shape
        integer, kind = ctypes.c_int, ctypes.c_int(CUDA_TYPES[dtype])

        def operand(pointer: int, columns: int, stride: int) -> list[Any]:
            batched = [] if num_batches == 1 else [ctypes.c_longlong(stride)]
            return [ctypes.c_void_p(pointer), kind, integer(columns), *batched]

        name, algorithm, batches = "cublasGemmEx", _GEMM_DEFAULT_TENSOR_OP, []
        if num_batches > 1:
            name, algorithm, batches = "cublasGemmStridedBatchedEx", _GEMM_DEFAULT, [integer(num_batches)]
        args = (
            self._handle, integer(_OP_T), integer(_OP_N), integer(n), integer(m), integer(k), ctypes.byref(self._one),
            *operand(w, k, n * k), *operand(a, k, m * k), ctypes.byref(self._zero), *operand(c, n, m * n), *batches,
            integer(COMPUTE_32F), integer(algorithm),
        )  # fmt: skip
        function = getattr(self._library, name)

        def enqueue() -> None:
            if status := function(*args):
                raise GemmEvalError(f"{name} returned status {status} for (G, M, K, N) = {tuple(shape)}")

        return enqueue


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


class DenseDevice(BenchDevice, Runner):
    """A device with operands of fp16 or bf16: A and C in one buffer each, weights in a pool."""

    kernel = ""

    def __init__(self, dtype: str) -> None:
        if dtype not in CUDA_TYPES:
            known = ", ".join(CUDA_TYPES)
            raise UnsupportedError(f"--kernel {self.kernel} measures {known}, got {shown(dtype)}; see cublaslt")
        super().__init__()
        self.input_dtype = self.weight_dtype = self.output_dtype = dtype
        self.pool_bytes = 0
        self.buffers: dict[str, Any] = {}

    def load_library(self, stem: str) -> tuple[ctypes.CDLL, str]:
        """Return CuPy's own copy of a library of the vendor, and its path."""
        _ = self.cupy.cuda.Device().cublas_handle  # makes CuPy load its cuBLAS, and with it cuBLASLt
        return find_library(stem)

    def allocate(self, shapes: Sequence[GemmItem], pool_bytes: int) -> None:
        inputs = max(_MIN_BUFFER_BYTES, *(2 * s.G * s.M * s.K for s in shapes))
        outputs = max(_MIN_BUFFER_BYTES, *(2 * s.G * s.M * s.N for s in shapes))
        sizes = {"A": inputs, "W": pool_bytes, "C": outputs}
        self.buffers = {name: self.empty_bytes(size) for name, size in sizes.items()}
        self._fill(slice(None), 1, 2)
        self.pool_bytes = self.buffers["W"].nbytes

    def _fill(self, part: slice, *seeds: int) -> None:
        for name, seed in zip("AW", seeds, strict=True):
            self.fill_normal(self.buffers[name][part], seed, is_bf16=self.input_dtype == "bf16")

    def weight_bytes(self, shape: GemmItem) -> int:
        return 2 * shape.G * shape.K * shape.N

    def run_poisoned(self, shape: GemmItem, enqueue: Call) -> tuple[Any, Any, Any]:
        """Run a small GEMM, bound at offsets 0, into a C full of NaN; returns A, W[G,N,K] and C as float64."""
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
        return a, w, c

    def check_one(self, shape: GemmItem, enqueue: Call) -> float:
        """Return the relative error of a small GEMM; raise a GemmEvalError if it is wrong."""
        a, w, c = self.run_poisoned(shape, enqueue)
        error = relative_error(c, a @ w.transpose(0, 2, 1))
        if not error < MAX_ERRORS[self.input_dtype]:  # NaN does not pass
            raise GemmEvalError(f"{self.kernel} {self.input_dtype} is wrong for {tuple(shape)}: error {error:.2g}")
        return error


class CublasRunner(DenseDevice):
    """cuBLAS with fp16 or bf16 operands and output, and fp32 accumulation."""

    kernel = "cublas"

    def __init__(self, dtype: str) -> None:
        super().__init__(dtype)
        library, self._path = self.load_library("libcublas")
        self._workspace = self.empty_bytes(WORKSPACE_BYTES)
        self._handle = CublasHandle(library, self.stream.ptr, self._workspace.data.ptr)

    def bind(self, shape: GemmShape, weight_offsets: Sequence[int]) -> Sequence[Call]:
        a, weights, c = (self.buffers[name].data.ptr for name in "AWC")
        return [self._handle.gemm(shape, self.input_dtype, a, weights + offset, c) for offset in weight_offsets]

    def check(self) -> Mapping[str, float]:
        return {layout: self.check_one(shape, self.bind(shape, (0,))[0]) for layout, shape in CHECK_SHAPES.items()}

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


# cublasLt.h, by enumeration: cublasLtMatmulDescAttributes_t, cublasLtMatmulPreferenceAttributes_t,
# cublasLtMatmulAlgoConfigAttributes_t
_DESC_TRANSA = 3
_PREF_MAX_WORKSPACE_BYTES = 1
_ALGO_CONFIG_SPLITK_NUM = 2

_CUDA_R_32F = 0  # library_types.h
_STATUS_NOT_SUPPORTED = 15  # CUBLAS_STATUS_NOT_SUPPORTED: the library has no algorithm
_LT_WORKSPACE_BYTES = 64 << 20
_MAX_CANDIDATES = 64
_NUM_CHECKED = 8


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
    """A proposal of the library, and the number of parts that it splits K into (1: not split)."""

    result: HeuristicResult
    split_k: int


class Layouts(NamedTuple):
    """Descriptors of W, A and C of one GEMM."""

    w: ctypes.c_void_p
    a: ctypes.c_void_p
    c: ctypes.c_void_p


class CublasLtLibrary(_Library):
    """A handle of cuBLASLt for fp16 or bf16 operands, fp32 accumulation, alpha 1, beta 0."""

    def __init__(self, library: Any, cuda_type: int, workspace_bytes: int) -> None:
        super().__init__(library)
        self._type, self._workspace_bytes = cuda_type, workspace_bytes
        self._desc, self._preference = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cublasLtCreate", ctypes.byref(self._handle))
        compute, scale = ctypes.c_int(COMPUTE_32F), ctypes.c_int(_CUDA_R_32F)
        self._call("cublasLtMatmulDescCreate", ctypes.byref(self._desc), compute, scale)
        self._set("cublasLtMatmulDescSetAttribute", self._desc, _DESC_TRANSA, ctypes.c_int32(_OP_T))
        self._call("cublasLtMatmulPreferenceCreate", ctypes.byref(self._preference))
        most = ctypes.c_uint64(workspace_bytes)
        self._set("cublasLtMatmulPreferenceSetAttribute", self._preference, _PREF_MAX_WORKSPACE_BYTES, most)

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
        """Return up to `count` algorithms that the library proposes, the one it would run first; maybe none."""
        results, num_results = (HeuristicResult * count)(), ctypes.c_int()
        status = self._library.cublasLtMatmulAlgoGetHeuristic(
            self._handle, self._desc, layouts.w, layouts.a, layouts.c, layouts.c, self._preference,
            ctypes.c_int(count), results, ctypes.byref(num_results),
        )  # fmt: skip
        if status == _STATUS_NOT_SUPPORTED:
            return []
        if status:
            raise GemmEvalError(f"cublasLtMatmulAlgoGetHeuristic returned status {status}")
        proposed = (results[index] for index in range(num_results.value))
        return [Algorithm(result, self._split_k(result)) for result in proposed if result.state == 0]

    def _split_k(self, result: HeuristicResult) -> int:
        value, written = ctypes.c_int32(), ctypes.c_size_t()
        self._call(
            "cublasLtMatmulAlgoConfigGetAttribute", ctypes.byref(result.algo), ctypes.c_int(_ALGO_CONFIG_SPLITK_NUM),
            ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)), ctypes.byref(written),
        )  # fmt: skip
        return max(1, value.value)

    def bind(
        self, layouts: Layouts, algorithm: Algorithm, pointers: tuple[int, int, int], workspace: int, stream: int
    ) -> Call:
        """Return a call that enqueues a GEMM; `pointers`: device addresses of W, A and C."""
        w, a, c = map(ctypes.c_void_p, pointers)
        args = (
            self._handle, self._desc, ctypes.byref(self._one), w, layouts.w, a, layouts.a, ctypes.byref(self._zero),
            c, layouts.c, c, layouts.c, ctypes.byref(algorithm.result.algo),
            ctypes.c_void_p(workspace), ctypes.c_size_t(self._workspace_bytes), ctypes.c_void_p(stream),
        )  # fmt: skip
        return lambda: self._call("cublasLtMatmul", *args)


class CandidateTable:
    """The proposals of a library, asked once for each GEMM."""

    def __init__(self, library: CublasLtLibrary, count: int) -> None:
        self._library, self._count = library, count
        self._known: dict[GemmShape, tuple[Layouts, list[Algorithm]]] = {}

    def _ask(self, shape: GemmShape) -> tuple[Layouts, list[Algorithm]]:
        if shape.G != 1:
            raise UnsupportedError(f"--kernel cublaslt-candidates measures G = 1, got G = {shape.G}")
        if shape not in self._known:
            layouts = self._library.layouts(shape)
            self._known[shape] = layouts, self._library.algorithms(layouts, self._count)
        return self._known[shape]

    def of(self, shape: GemmShape) -> list[Candidate]:
        """Return the candidates of a GEMM, the library's choice first; none if the library cannot run it."""
        return [Candidate(*shape, rank, item.split_k) for rank, item in enumerate(self._ask(shape)[1])]

    def find(self, candidate: Candidate) -> tuple[Layouts, Algorithm]:
        """Return descriptors and algorithm of a candidate."""
        shape = GemmShape(*candidate[:4])
        if candidate not in self.of(shape):
            raise GemmEvalError(f"the library does not propose {candidate}")
        layouts, algorithms = self._ask(shape)
        return layouts, algorithms[candidate.rank]


class CandidateRunner(DenseDevice):
    """cuBLASLt with fp16 or bf16 operands and output and fp32 accumulation; one algorithm at a time."""

    kernel = "cublaslt-candidates"

    def __init__(self, dtype: str) -> None:
        super().__init__(dtype)
        library, self._path = self.load_library("libcublasLt")
        self._library = CublasLtLibrary(library, CUDA_TYPES[dtype], _LT_WORKSPACE_BYTES)
        self._workspace = self.empty_bytes(_LT_WORKSPACE_BYTES)
        self.candidates([], _NUM_CHECKED)

    @property
    def settings(self) -> dict[str, Any]:
        """Return the version and the number of proposals, without which ranks do not compare."""
        return {"library_version": self._library.version(), "candidates": self._count}

    def candidates(self, shapes: Sequence[GemmShape], count: int) -> list[Candidate]:
        """Return up to `count` candidates of each GEMM, and go by this list from now on.

        Raises:
            InvalidOptionError: `count` is out of range.
            UnsupportedError: a batched GEMM.
        """
        if not 1 <= count <= _MAX_CANDIDATES:
            raise InvalidOptionError(f"--candidates must be 1 to {_MAX_CANDIDATES}, got {count}")
        self._count = count
        self._table = CandidateTable(self._library, count)
        return [candidate for shape in shapes for candidate in self._table.of(shape)]

    def bind(self, shape: Candidate, weight_offsets: Sequence[int]) -> Sequence[Call]:
        a, weights, c = (self.buffers[name].data.ptr for name in "AWC")
        layouts, algorithm = self._table.find(shape)
        workspace, stream = self._workspace.data.ptr, self.stream.ptr
        return [
            self._library.bind(layouts, algorithm, (weights + offset, a, c), workspace, stream)
            for offset in weight_offsets
        ]

    def check(self) -> Mapping[str, float]:
        """See `Runner`: every candidate of one GEMM, with the worst error."""
        candidates = self._table.of(CHECK_SHAPES["2-D"])
        if not candidates:
            raise GemmEvalError(f"{self.kernel} {self.input_dtype}: the library proposes no algorithm at all")
        return {"2-D": max(self.check_one(candidate, self.bind(candidate, (0,))[0]) for candidate in candidates)}

    def describe(self) -> dict[str, Any]:
        return {
            "library": Path(self._path).name,
            "library_version": self._library.version(),
            "routines": "cublasLtMatmul with each algorithm of cublasLtMatmulAlgoGetHeuristic, in its order (rank); "
            "CUBLAS_COMPUTE_32F, alpha 1, beta 0",
            "candidates": f"up to {self._count} of each GEMM",
            "workspace_bytes": _LT_WORKSPACE_BYTES,
            "layouts": "A[M,K] and C[M,N] row-major; B is the transposed view of W[N,K], row-major",
            "data": "standard normal A and W",
        }
