"""Not what cuBLASLt picks but what it picks from: the algorithms it proposes for a GEMM, each run by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gemm_eval.device import Call
from gemm_eval.errors import GemmEvalError, InvalidOptionError, UnsupportedError
from gemm_eval.measure.runners.base import OperandLayout
from gemm_eval.measure.runners.checks import CHECK_SHAPES
from gemm_eval.measure.runners.cublaslt_library import Algorithm, CublasLtLibrary, Layouts
from gemm_eval.measure.runners.dense import DenseDevice
from gemm_eval.measure.shapes import Candidate, GemmShape

__all__ = ["CandidateRunner", "CandidateTable"]

_WORKSPACE_BYTES = 64 << 20
_MAX_CANDIDATES = 64
_NUM_CHECKED = 8


class CandidateTable:
    """What a library proposes, asked once for each GEMM.

    Args:
        library: the library.
        count: how many algorithms to ask for.
    """

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
        _, algorithms = self._ask(shape)
        return [Candidate(*shape, rank, algorithm.split_k) for rank, algorithm in enumerate(algorithms)]

    def find(self, candidate: Candidate) -> tuple[Layouts, Algorithm]:
        """Return descriptors and algorithm of a candidate.

        Raises:
            GemmEvalError: the library does not propose it (any more).
        """
        layouts, algorithms = self._ask(candidate.shape)
        if candidate not in self.of(candidate.shape):
            raise GemmEvalError(f"the library does not propose {candidate}")
        return layouts, algorithms[candidate.rank]


class CandidateRunner(DenseDevice):
    """cuBLASLt with fp16 or bf16 operands and output and fp32 accumulation; one algorithm at a time."""

    kernel = "cublaslt-candidates"

    def __init__(self, dtype: str) -> None:
        super().__init__(dtype)
        library, self._path = self.load_library("libcublasLt")
        self._library = CublasLtLibrary(library, self.cuda_type, _WORKSPACE_BYTES)
        self._workspace = self.empty_bytes(_WORKSPACE_BYTES)
        self._count = _NUM_CHECKED
        self._table = CandidateTable(self._library, self._count)

    @property
    def settings(self) -> dict[str, Any]:
        """What makes ranks comparable: a work file holds rows of one version and one number of proposals."""
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

    def bind(self, shape: Candidate, layout: OperandLayout) -> Sequence[Call]:
        """See `Runner`."""
        a = self.buffers["A"].data.ptr + layout.input_offset
        c = self.buffers["C"].data.ptr + layout.output_offset
        weights = self.buffers["W"].data.ptr
        found = self._table.find(shape)
        return [self._bind_one(*found, (weights + offset, a, c)) for offset in layout.weight_offsets]

    def _bind_one(self, layouts: Layouts, algorithm: Algorithm, pointers: tuple[int, int, int]) -> Call:
        args = self._library.matmul_args(layouts, algorithm, pointers, self._workspace.data.ptr, self.stream.ptr)
        return lambda: self._library.matmul(args)

    def check(self) -> Mapping[str, float]:
        """See `Runner`: every candidate of one GEMM, with the worst error."""
        candidates = self._table.of(CHECK_SHAPES["2-D"])
        if not candidates:
            raise GemmEvalError(f"{self.kernel} {self.input_dtype}: the library proposes no algorithm at all")
        first = OperandLayout(0, (0,), 0)
        return {"2-D": max(self.check_one(candidate, self.bind(candidate, first)[0]) for candidate in candidates)}

    def describe(self) -> dict[str, Any]:
        """See `Runner`."""
        return {
            "library": Path(self._path).name,
            "library_version": self._library.version(),
            "routines": "cublasLtMatmul with each algorithm of cublasLtMatmulAlgoGetHeuristic, in its order (rank); "
            "CUBLAS_COMPUTE_32F, alpha 1, beta 0",
            "candidates": f"up to {self._count} of each GEMM",
            "workspace_bytes": _WORKSPACE_BYTES,
            "layouts": "A[M,K] and C[M,N] row-major; B is the transposed view of W[N,K], row-major",
            "data": "standard normal A and W",
        }
