"""GEMMs of PyTorch: fp8 and int8 through cuBLASLt, and grouped bf16 GEMMs of CUTLASS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from gemm_eval.device import BenchDevice, Call, import_cupy
from gemm_eval.errors import GemmEvalError, UnsupportedError
from gemm_eval.extras import install_command
from gemm_eval.measure.runner import CHECK_SHAPES, MAX_ERRORS, LibraryRunner, relative_error
from gemm_eval.measure.shapes import GemmShape, GroupedShape
from gemm_eval.words import shown


class TorchDevice(BenchDevice):
    """Device 0 and a stream that PyTorch and CuPy share."""

    kernel = ""

    def __init__(self) -> None:
        try:
            import torch
        except ImportError:
            what = f"--kernel {self.kernel}" if self.kernel else "this"
            raise GemmEvalError(f"{what} needs PyTorch with CUDA: {install_command('torch')}") from None
        cupy = import_cupy()
        self.torch: Any = torch
        self._torch_stream = torch.cuda.Stream()
        torch.cuda.set_stream(self._torch_stream)
        super().__init__(cupy.cuda.ExternalStream(self._torch_stream.cuda_stream))

    def capture(self, enqueue: Call) -> Call:
        graph = self.torch.cuda.CUDAGraph()
        self.torch.cuda.synchronize()
        graph.capture_begin(capture_error_mode="relaxed")
        try:
            enqueue()
        finally:
            graph.capture_end()

        return partial(graph.replay)

    def free_unused(self) -> None:
        super().free_unused()
        self.torch.cuda.empty_cache()


_OUTPUTS = {"fp8": ("bf16", 2), "int8": ("int32", 4)}
_MIN_BUFFER_BYTES = 1 << 16
_CHUNK_ELEMS = 1 << 27
_FP8_SIGMA, _FP8_MAX = 64.0, 448.0
_INT8_SIGMA, _INT8_MAX = 32.0, 127.0
_MAX_ERROR = {"fp8": 1e-2, "int8": 1e-9}  # the bf16 output rounds; integers are exact


class CublasLtRunner(LibraryRunner, TorchDevice):
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
        return shape.K * shape.N

    def _views(self, shape: GemmShape, weight_offset: int) -> tuple[Any, Any, Any]:
        if shape.G != 1:
            raise UnsupportedError(f"--kernel cublaslt measures G = 1, got G = {shape.G}")
        a = self._buffers["A"][: shape.M * shape.K].view(self._element).view(shape.M, shape.K)
        w = self._buffers["W"][weight_offset : weight_offset + shape.N * shape.K]
        c = self._buffers["C"][: self._output_bytes * shape.M * shape.N]
        return a, w.view(self._element).view(shape.N, shape.K), c.view(self._output).view(shape.M, shape.N)

    def bind(self, shape: GemmShape, weight_offsets: Sequence[int]) -> Sequence[Call]:
        return [self._bind_one(*self._views(shape, offset)) for offset in weight_offsets]

    def _bind_one(self, a: Any, w: Any, c: Any) -> Call:
        torch, b, scale = self.torch, w.t(), self._scale
        if self.input_dtype == "int8":
            return lambda: torch._int_mm(a, b, out=c)
        how = {"scale_a": scale, "scale_b": scale, "out_dtype": torch.bfloat16, "use_fast_accum": True, "out": c}
        return lambda: torch._scaled_mm(a, b, **how)

    def check(self) -> Mapping[str, float]:
        torch = self.torch
        shape = CHECK_SHAPES["2-D"]
        a, w, c = self._views(shape, 0)
        self._buffers["C"].fill_(0xFF)  # NaN in bf16, -1 in int32
        self.bind(shape, (0,))[0]()
        self.synchronize()
        exact = a.to(torch.float64).cpu().numpy() @ w.to(torch.float64).cpu().numpy().T
        if self.input_dtype == "fp8":
            exact = exact / _FP8_SIGMA**2
        error = relative_error(c.to(torch.float64).cpu().numpy(), exact)
        if not error < _MAX_ERROR[self.input_dtype]:
            raise GemmEvalError(f"{self.kernel} {self.input_dtype} is wrong: error {error:.2g}")
        return {"2-D": error}

    def describe(self) -> dict[str, Any]:
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


_BYTES_PER_ELEM = 2
_SEED_INPUT, _SEED_WEIGHTS, _SEED_CHECK = 1, 2, 11
_MOST_CHECKED_FLOP = 2e11  # of a layout that is to be timed: the reference runs in float64
_NUM_CHECKED = 12

# Rows of each group, K, N: groups without a row in every place, single rows, ragged tiles, and both of the kernels that
# PyTorch chooses from by mean rows and by N (small: 64 rows a tile; large: 128).
CHECK_GROUPS: Mapping[str, tuple[tuple[int, ...], int, int]] = {
    "skewed": ((40, 0, 1, 300, 0, 7), 144, 80),
    "empty at both ends": ((0, 64, 0), 256, 192),
    "one": ((33,), 128, 264),
    "equal": ((24,) * 5, 136, 72),
    "large tiles": ((300, 200, 257), 320, 512),
    "large tiles, skewed": ((1, 0, 900, 0, 129), 264, 776),
}
"""Layouts that results are checked on, besides some of those that are timed."""


class GroupedRunner(LibraryRunner, TorchDevice):
    """`torch.nn.functional.grouped_mm` with offsets of the groups' rows: bf16 operands and output.

    It has no argument for its output, so each call gets one of PyTorch's allocator: in a graph the same memory at each
    call.
    """

    kernel = "grouped"

    def __init__(self, dtype: str) -> None:
        if dtype != "bf16":
            raise UnsupportedError(f"--kernel grouped measures bf16, got {shown(dtype)}")
        super().__init__()
        self.input_dtype = self.weight_dtype = self.output_dtype = dtype
        self.pool_bytes = 0
        functional = self.torch.nn.functional
        self._routine = "torch.nn.functional.grouped_mm"
        self._grouped_mm: Any = getattr(functional, "grouped_mm", None)
        if self._grouped_mm is None:  # PyTorch before 2.10
            self._routine, self._grouped_mm = "torch._grouped_mm", self.torch._grouped_mm
        self._buffers: dict[str, Any] = {}
        self._to_check: list[GroupedShape] = []

    def allocate(self, shapes: Sequence[GroupedShape], pool_bytes: int) -> None:
        self._buffers = {
            "A": self._normal(max(s.rows * s.K for s in shapes), _SEED_INPUT),
            "W": self._normal(pool_bytes // _BYTES_PER_ELEM, _SEED_WEIGHTS),
        }
        self.torch.cuda.synchronize()
        self.pool_bytes = pool_bytes
        small = [shape for shape in shapes if shape.flop < _MOST_CHECKED_FLOP]
        self._to_check = small[:: max(1, len(small) // _NUM_CHECKED)]

    def _normal(self, count: int, seed: int) -> Any:
        torch = self.torch
        generator = torch.Generator(device="cuda").manual_seed(seed)
        return torch.empty(count, dtype=torch.bfloat16, device="cuda").normal_(generator=generator)

    def weight_bytes(self, shape: GroupedShape) -> int:
        return _BYTES_PER_ELEM * shape.G * shape.K * shape.N

    def bind(self, shape: GroupedShape, weight_offsets: Sequence[int]) -> Sequence[Call]:
        a = self._buffers["A"][: shape.rows * shape.K].view(shape.rows, shape.K)
        grouped_mm, ends = self._grouped_mm, self._ends(shape.row_groups)
        return [partial(grouped_mm, a, self._weights(shape, offset), offs=ends) for offset in weight_offsets]

    def _weights(self, shape: GroupedShape, offset: int) -> Any:
        """Return a copy of B[G,K,N], K contiguous."""
        start = offset // _BYTES_PER_ELEM
        count = shape.G * shape.N * shape.K
        return self._buffers["W"][start : start + count].view(shape.G, shape.N, shape.K).transpose(1, 2)

    def _ends(self, row_groups: Sequence[int]) -> Any:
        return self.torch.tensor(list(accumulate(row_groups)), dtype=self.torch.int32, device="cuda")

    def capture(self, enqueue: Call) -> Call:
        self.torch.cuda.empty_cache()  # outputs of graphs that are gone
        return super().capture(enqueue)

    def check(self) -> Mapping[str, float]:
        errors = {}
        for number, (name, (groups, k, n)) in enumerate(CHECK_GROUPS.items()):
            a = self._normal(sum(groups) * k, _SEED_CHECK + 2 * number).view(-1, k)
            w = self._normal(len(groups) * n * k, _SEED_CHECK + 2 * number + 1).view(len(groups), n, k)
            errors[name] = self._check_one(name, groups, a, w.transpose(1, 2))
        for shape in self._to_check:
            a = self._buffers["A"][: shape.rows * shape.K].view(shape.rows, shape.K)
            name = f"{shape.model} tp {shape.tp} ep {shape.ep} gemm {shape.gemm}, {shape.num_tokens} tokens, "
            name += shape.distribution
            errors[name] = self._check_one(name, shape.row_groups, a, self._weights(shape, 0))
        self.torch.cuda.empty_cache()
        return errors

    def _check_one(self, name: str, groups: Sequence[int], a: Any, b: Any) -> float:
        """Return the relative error of one layout."""
        torch = self.torch
        poison = torch.full((a.shape[0], b.shape[2]), float("nan"), dtype=torch.bfloat16, device="cuda")
        del poison  # the output is likely to get its memory: what the kernel leaves out shows
        out = self._grouped_mm(a, b, offs=self._ends(groups))
        error = norm = 0.0
        start = 0
        for group, rows in enumerate(groups):
            if rows:
                exact = a[start : start + rows].double() @ b[group].double()
                error += float((out[start : start + rows].double() - exact).square().sum())
                norm += float(exact.square().sum())
            start += rows
        relative = float((error / norm) ** 0.5)
        if not relative < MAX_ERRORS[self.input_dtype]:  # NaN does not pass
            raise GemmEvalError(f"{self._routine} is wrong for {name}: error {relative:.2g}")
        return relative

    def describe(self) -> dict[str, Any]:
        torch = self.torch
        return {
            "library": "CUTLASS through PyTorch",
            "library_version": f"torch {torch.__version__}, CUDA {torch.version.cuda}",
            "routines": f"{self._routine}(a, w.transpose(1, 2), offs=ends of the groups' rows)",
            "layouts": "A[rows,K] and C[rows,N] row-major, groups one after another; B_i is the transposed view of "
            "W[i][N,K], row-major",
            "data": "standard normal A and W; C is memory of PyTorch's allocator, the same at each call of a graph",
        }
