"""What the runners of fp16 and bf16 GEMMs share: the vendor's libraries, operands of random data, and the check."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gemm_eval.device import BenchDevice, Call
from gemm_eval.errors import GemmEvalError, UnsupportedError
from gemm_eval.extras import install_command
from gemm_eval.measure.runners.checks import MAX_ERRORS, decode, relative_error
from gemm_eval.measure.runners.cublas_handle import CUDA_TYPES
from gemm_eval.measure.shapes import GemmItem
from gemm_eval.words import shown

__all__ = ["DenseDevice", "find_library"]

_MIN_BUFFER_BYTES = 1 << 16  # the check's operands fit


def find_library(stem: str) -> tuple[ctypes.CDLL, str]:
    """Return the library, say ``libcublas``, that this process has loaded already, else the one the loader finds.

    Raises:
        GemmEvalError: there is none.
    """
    names = []
    maps = Path("/proc/self/maps")
    if maps.exists():
        names = [line.split(None, 5)[5].strip() for line in maps.read_text().splitlines() if f"/{stem}.so" in line]
    names += [f"{stem}.so.13", f"{stem}.so.12", f"{stem}.so"]
    for name in names:
        try:
            return ctypes.CDLL(name), name
        except OSError:
            continue
    raise GemmEvalError(f"{stem} was not found on {sys.platform}: {install_command('gpu')}")


class DenseDevice(BenchDevice):
    """A device with operands of fp16 or bf16: A and C in one buffer each, weights in a pool.

    Attributes:
        buffers: of bytes, by operand: A, W, C.
        cuda_type: the data type as CUDA numbers it.
    """

    kernel = ""

    def __init__(self, dtype: str) -> None:
        if dtype not in CUDA_TYPES:
            known = ", ".join(CUDA_TYPES)
            raise UnsupportedError(f"--kernel {self.kernel} measures {known}, got {shown(dtype)}; see cublaslt")
        super().__init__()
        self.input_dtype = self.weight_dtype = self.output_dtype = dtype
        self.pool_bytes = 0
        self.cuda_type = CUDA_TYPES[dtype]
        self.buffers: dict[str, Any] = {}

    def load_library(self, stem: str) -> tuple[ctypes.CDLL, str]:
        """Return CuPy's own copy of a library of the vendor, and its path."""
        _ = self.cupy.cuda.Device().cublas_handle  # makes CuPy load its cuBLAS, and with it cuBLASLt
        return find_library(stem)

    def allocate(self, shapes: Sequence[GemmItem], pool_bytes: int) -> None:
        """See `Runner`."""
        inputs = max(_MIN_BUFFER_BYTES, *(2 * s.G * s.M * s.K for s in shapes))
        outputs = max(_MIN_BUFFER_BYTES, *(2 * s.G * s.M * s.N for s in shapes))
        is_bf16 = self.input_dtype == "bf16"
        self.buffers = {
            "A": self.empty_bytes(inputs),
            "W": self.empty_bytes(pool_bytes),
            "C": self.empty_bytes(outputs),
        }
        self.fill_normal(self.buffers["A"], 1, is_bf16=is_bf16)
        self.fill_normal(self.buffers["W"], 2, is_bf16=is_bf16)
        self.pool_bytes = self.buffers["W"].nbytes

    def weight_bytes(self, shape: GemmItem) -> int:
        """See `Runner`."""
        return 2 * shape.G * shape.K * shape.N

    def run_poisoned(self, shape: GemmItem, enqueue: Call) -> tuple[Any, Any, Any]:
        """Run a small GEMM, bound at offsets 0, into a C full of NaN; returns A, W[G,N,K] and C as float64."""
        for name, seed in (("A", 11), ("W", 12)):
            self.fill_normal(self.buffers[name][:_MIN_BUFFER_BYTES], seed, is_bf16=self.input_dtype == "bf16")
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
        """Return the relative error of a small GEMM.

        Raises:
            GemmEvalError: it is wrong.
        """
        a, w, c = self.run_poisoned(shape, enqueue)
        error = relative_error(c, a @ w.transpose(0, 2, 1))
        if not error < MAX_ERRORS[self.input_dtype]:  # NaN does not pass
            raise GemmEvalError(f"{self.kernel} {self.input_dtype} is wrong for {tuple(shape)}: error {error:.2g}")
        return error
