"""fp8 and int8 GEMMs of the vendor, which CuPy does not reach: cuBLASLt as PyTorch calls it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gemm_eval.device import Call
from gemm_eval.errors import GemmEvalError, UnsupportedError
from gemm_eval.measure.runners.base import OperandLayout
from gemm_eval.measure.runners.checks import CHECK_SHAPES, relative_error
from gemm_eval.measure.runners.torch_device import TorchDevice
from gemm_eval.measure.shapes import GemmShape
from gemm_eval.words import shown

__all__ = ["CublasLtRunner"]

_OUTPUTS = {"fp8": ("bf16", 2), "int8": ("int32", 4)}
_MIN_BUFFER_BYTES = 1 << 16
_CHUNK_ELEMS = 1 << 27
_FP8_SIGMA, _FP8_MAX = 64.0, 448.0
_INT8_SIGMA, _INT8_MAX = 32.0, 127.0
_MAX_ERROR = {"fp8": 1e-2, "int8": 1e-9}  # the bf16 output rounds; integers are exact


class CublasLtRunner(TorchDevice):
    """`torch._scaled_mm` (fp8 e4m3, tensor-wise scales, bf16 output) and `torch._int_mm` (int8, int32 output)."""

    kernel = "cublaslt"

    def __init__(self, dtype: str) -> None:
        if dtype not in _OUTPUTS:
            raise UnsupportedError(f"--kernel cublaslt measures {', '.join(_OUTPUTS)}, got {shown(dtype)}; see cublas")
        super().__init__()
        torch = self.torch
        self.input_dtype = self.weight_dtype = dtype
        self.output_dtype, self._output_bytes = _OUTPUTS[dtype]
        self.pool_bytes = 0
        self._scale = torch.full((), 1.0 / _FP8_SIGMA, device="cuda", dtype=torch.float32)
        self._element = torch.float8_e4m3fn if dtype == "fp8" else torch.int8
        self._output = torch.bfloat16 if dtype == "fp8" else torch.int32
        self._buffers: dict[str, Any] = {}

    def allocate(self, shapes: Sequence[GemmShape], pool_bytes: int) -> None:
        """See `Runner`."""
        outputs = max(_MIN_BUFFER_BYTES, *(self._output_bytes * s.M * s.N for s in shapes))
        self.torch.manual_seed(1)
        self._buffers = {
            "A": self._random(max(_MIN_BUFFER_BYTES, *(s.M * s.K for s in shapes))),
            "W": self._random(pool_bytes),
            "C": self.torch.empty(outputs, dtype=self.torch.uint8, device="cuda"),
        }
        self.torch.cuda.synchronize()
        self.torch.cuda.empty_cache()
        self.pool_bytes = pool_bytes

    def _random(self, count: int) -> Any:
        torch = self.torch
        buffer = torch.empty(count, dtype=torch.uint8, device="cuda")
        sigma, largest = (_FP8_SIGMA, _FP8_MAX) if self.input_dtype == "fp8" else (_INT8_SIGMA, _INT8_MAX)
        for start in range(0, count, _CHUNK_ELEMS):
            values = torch.randn(min(_CHUNK_ELEMS, count - start), device="cuda").mul_(sigma).clamp_(-largest, largest)
            if self.input_dtype == "int8":
                values.round_()
            buffer[start : start + len(values)] = values.to(self._element).view(torch.uint8)
        return buffer

    def weight_bytes(self, shape: GemmShape) -> int:
        """See `Runner`."""
        return shape.K * shape.N

    def _views(self, shape: GemmShape, layout: OperandLayout, copy: int) -> tuple[Any, Any, Any]:
        if shape.G != 1:
            raise UnsupportedError(f"--kernel cublaslt measures G = 1, got G = {shape.G}")
        a_start, w_start, c_start = layout.input_offset, layout.weight_offsets[copy], layout.output_offset
        a = self._buffers["A"][a_start : a_start + shape.M * shape.K].view(self._element).view(shape.M, shape.K)
        w = self._buffers["W"][w_start : w_start + shape.N * shape.K].view(self._element).view(shape.N, shape.K)
        num_bytes = self._output_bytes * shape.M * shape.N
        return a, w, self._buffers["C"][c_start : c_start + num_bytes].view(self._output).view(shape.M, shape.N)

    def bind(self, shape: GemmShape, layout: OperandLayout) -> Sequence[Call]:
        """See `Runner`."""
        return [self._bind_one(*self._views(shape, layout, copy)) for copy in range(len(layout.weight_offsets))]

    def _bind_one(self, a: Any, w: Any, c: Any) -> Call:
        torch, b, scale = self.torch, w.t(), self._scale
        if self.input_dtype == "int8":

            def enqueue() -> None:
                torch._int_mm(a, b, out=c)

        else:

            def enqueue() -> None:
                torch._scaled_mm(
                    a, b, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16, use_fast_accum=True, out=c
                )

        return enqueue

    def check(self) -> Mapping[str, float]:
        """See `Runner`."""
        torch = self.torch
        shape = CHECK_SHAPES["2-D"]
        layout = OperandLayout(0, (0,), 0)
        a, w, c = self._views(shape, layout, 0)
        self._buffers["C"].fill_(0xFF)  # NaN in bf16, -1 in int32
        self.bind(shape, layout)[0]()
        self.synchronize()
        exact = a.to(torch.float64).cpu().numpy() @ w.to(torch.float64).cpu().numpy().T
        if self.input_dtype == "fp8":
            exact = exact / _FP8_SIGMA**2
        error = relative_error(c.to(torch.float64).cpu().numpy(), exact)
        if not error < _MAX_ERROR[self.input_dtype]:
            raise GemmEvalError(f"{self.kernel} {self.input_dtype} is wrong: error {error:.2g}")
        return {"2-D": error}

    def describe(self) -> dict[str, Any]:
        """See `Runner`."""
        torch = self.torch
        is_fp8 = self.input_dtype == "fp8"
        call = "torch._scaled_mm(a, w.t(), tensor-wise scales, use_fast_accum=True)" if is_fp8 else "torch._int_mm"
        return {
            "library": "cuBLASLt through PyTorch",
            "library_version": f"torch {torch.__version__}, CUDA {torch.version.cuda}",
            "routines": call,
            "workspace_bytes": None,
            "workspace": "as PyTorch sets it by default",
            "layouts": "A[M,K] and C[M,N] row-major; B is the transposed view of W[N,K], row-major",
            "data": f"normal A and W, sigma {_FP8_SIGMA if is_fp8 else _INT8_SIGMA}, clipped to "
            f"{_FP8_MAX if is_fp8 else _INT8_MAX}",
        }
