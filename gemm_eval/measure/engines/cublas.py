"""cuBLAS with the same weights in 16 bits: what a user has who quantizes nothing."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, ClassVar

from gemm_eval.device import BenchDevice, TimingProtocol
from gemm_eval.measure.engines.base import Bound, Engine
from gemm_eval.measure.engines.operands import DenseGemm, Operands, Weights
from gemm_eval.measure.runners.cublas_handle import WORKSPACE_BYTES, CublasHandle
from gemm_eval.measure.runners.dense import find_library
from gemm_eval.measure.shapes import GemmShape

__all__ = ["CublasEngine"]


class CublasEngine(Engine[Any]):
    """cublasGemmEx on dequantized weights, with the arguments of `cupy.matmul` and `torch.matmul`."""

    name: ClassVar[str] = "cublas"

    def __init__(self, device: BenchDevice, operands: Operands, protocol: TimingProtocol) -> None:
        super().__init__(device, operands, protocol)
        with suppress(Exception):  # makes CuPy load its cuBLAS; without that, the loader's or PyTorch's is taken
            _ = device.cupy.cuda.Device().cublas_handle
        library, _ = find_library("libcublas")
        self._workspace = device.empty_bytes(WORKSPACE_BYTES)
        self._handle = CublasHandle(library, device.stream.ptr, self._workspace.data.ptr)

    def describe(self) -> str:
        """See `Engine`."""
        return f"cuBLAS {self._handle.version()}"

    def pack(self, weights: Weights) -> Any:
        """See `Engine`."""
        return weights.dense()

    def copy(self, packed: Any) -> Any:
        """See `Engine`."""
        return packed.copy()

    def num_bytes(self, packed: Any) -> int:
        """See `Engine`."""
        return int(packed.nbytes)

    def bind(self, gemm: DenseGemm) -> Bound:
        """See `Engine`."""
        a, c = self.operands.inputs(gemm.M, gemm.K), self.operands.output(gemm.M, gemm.N)
        shape, dtype = GemmShape(1, gemm.M, gemm.K, gemm.N), str(gemm.activation)
        calls = [self._handle.gemm(shape, dtype, a.data.ptr, packed.data.ptr, c.data.ptr) for packed in self.copies]
        return Bound(calls, lambda: c, dtype, "")
