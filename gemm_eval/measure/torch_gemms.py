"""GEMMs of PyTorch: dense ones of all types through cuBLAS and cuBLASLt, and grouped bf16 GEMMs of CUTLASS."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple

from gemm_eval.device import BenchDevice, Call, import_cupy
from gemm_eval.errors import GemmEvalError, UnsupportedError
from gemm_eval.measure.runner import CHECK_SHAPES, MAX_ERRORS, Runner, relative_error
from gemm_eval.measure.shapes import DrawnShape, GemmShape, GroupedShape
from gemm_eval.words import install_command, shown
from gemm_eval.workload import ACCUMULATE


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


class _Elements(NamedTuple):
    """Numbers of one type, as PyTorch has them: names of its types, standard deviation and largest, largest error."""

    inputs: str
    outputs: str
    sigma: float
    largest: float
    max_error: float
    call: str


_MATMUL = "torch.mm (G = 1) or torch.bmm"
_NO_LIMIT = float("inf")
_ELEMENTS = {
    "fp16": _Elements("float16", "float16", 1.0, _NO_LIMIT, MAX_ERRORS["fp16"], _MATMUL),
    "bf16": _Elements("bfloat16", "bfloat16", 1.0, _NO_LIMIT, MAX_ERRORS["bf16"], _MATMUL),
    "fp32": _Elements("float32", "float32", 1.0, _NO_LIMIT, 1e-5, f"{_MATMUL}, without TF32"),
    "tf32": _Elements("float32", "float32", 1.0, _NO_LIMIT, 1e-3, f"{_MATMUL}, with TF32 allowed"),
    "fp8": _Elements(
        "float8_e4m3fn", "bfloat16", 64.0, 448.0, 1e-2, "torch._scaled_mm(tensor-wise scales, use_fast_accum=True)"
    ),
    "fp8-full": _Elements("float8_e4m3fn", "bfloat16", 64.0, 448.0, 1e-2, "torch._scaled_mm(tensor-wise scales)"),
    "int8": _Elements("int8", "int32", 32.0, 127.0, 1e-9, "torch._int_mm"),
}  # fmt: skip
_OUTPUT_NAMES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "int32": "int32"}
_CHUNK_ELEMS = 1 << 27
_LINE_BYTES = 256
_CHECK_LAYOUTS = ("tn", "nn", "nt", "tt")


class TorchRunner(TorchDevice, Runner):
    """Dense GEMMs as PyTorch runs them, by cuBLAS and cuBLASLt: of every type, layout, and in batches.

    All operands of a drawn GEMM rotate. Of others B alone does, and A and C are one buffer each behind the pool.
    """

    kernel = "torch"
    dtypes: ClassVar[tuple[str, ...]] = tuple(_ELEMENTS)

    def __init__(self, dtype: str) -> None:
        if dtype not in self.dtypes:
            raise UnsupportedError(f"--kernel {self.kernel} measures {', '.join(self.dtypes)}, got {shown(dtype)}")
        super().__init__()
        torch = self.torch
        self.dtype, self._how = dtype, _ELEMENTS[dtype]
        self.input_dtype = self.weight_dtype = dtype.partition("-")[0]
        self.output_dtype = _OUTPUT_NAMES[self._how.outputs]
        self.accumulate = ACCUMULATE[1] if dtype.endswith("-full") else None
        self.pool_bytes = 0
        self._input, self._output = getattr(torch, self._how.inputs), getattr(torch, self._how.outputs)
        self._scale = torch.full((), 1.0 / self._how.sigma, device="cuda", dtype=torch.float32)
        self._inputs: Any = None
        self._outputs: Any = None
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"

    @property
    def settings(self) -> dict[str, Any]:
        return {"dtype": self.dtype} if "-" in self.dtype else {}

    def _sizes(self, shape: GemmShape | DrawnShape) -> tuple[int, int, int]:
        """Return the bytes of A, B and C, to whole lines."""
        G, M, K, N = shape[:4]
        kinds = (self._input, G * M * K), (self._input, G * K * N), (self._output, G * M * N)
        a, b, c = (-(-count * kind.itemsize // _LINE_BYTES) * _LINE_BYTES for kind, count in kinds)
        return a, b, c

    def weight_bytes(self, shape: GemmShape | DrawnShape) -> int:
        """Return the bytes of what each call has a copy of: A and B of a drawn GEMM, else B."""
        a, b, _ = self._sizes(shape)
        return a + b if isinstance(shape, DrawnShape) else b

    def _num_outputs(self, shape: GemmShape | DrawnShape) -> int:
        """Return the copies of C among which calls go round: one, or as many as L2 does not hold."""
        return self.flush_bytes // self._sizes(shape)[2] + 2 if isinstance(shape, DrawnShape) else 1

    def allocate(self, shapes: Sequence[GemmShape | DrawnShape], pool_bytes: int) -> None:
        checks = [DrawnShape(*shape, "tn", 0) for shape in CHECK_SHAPES.values()]
        beside = max((self._sizes(s)[0] for s in shapes if not isinstance(s, DrawnShape)), default=0)
        outputs = max(self._num_outputs(s) * self._sizes(s)[2] for s in (*shapes, *checks))
        self.torch.manual_seed(1)
        self._inputs = self._random(pool_bytes + beside)
        self._outputs = self.torch.empty(outputs, dtype=self.torch.uint8, device="cuda")
        self.torch.cuda.synchronize()
        self.torch.cuda.empty_cache()
        self.pool_bytes = pool_bytes

    def _random(self, num_bytes: int) -> Any:
        torch = self.torch
        buffer = torch.empty(-(-num_bytes // _LINE_BYTES) * _LINE_BYTES, dtype=torch.uint8, device="cuda")
        for part in buffer.view(self._input).split(_CHUNK_ELEMS):
            values = torch.randn(len(part), device="cuda").mul_(self._how.sigma)
            values.clamp_(-self._how.largest, self._how.largest)
            part.copy_(values.round_() if self.input_dtype == "int8" else values)
        return buffer

    def _views(self, shape: GemmShape | DrawnShape, offset: int) -> tuple[Any, Any, Any]:
        """Return A[G,M,K], B[G,K,N] and C[G,M,N] of one call, without G where it is 1."""
        if shape.G != 1 and not self._how.call.startswith(_MATMUL):
            raise UnsupportedError(f"{self._how.call} takes G = 1, got G = {shape.G}")
        G, M, K, N = shape[:4]
        layout, (_, b_bytes, c_bytes) = getattr(shape, "layout", "tn"), self._sizes(shape)
        a_offset = offset + b_bytes if isinstance(shape, DrawnShape) else self.pool_bytes
        c_offset = offset // self.weight_bytes(shape) % self._num_outputs(shape) * c_bytes

        def view(buffer: Any, start: int, dtype: Any, rows: int, columns: int, *, is_turned: bool = False) -> Any:
            part = buffer[start : start + dtype.itemsize * G * rows * columns].view(dtype)
            whole = part.view(G, columns, rows).transpose(1, 2) if is_turned else part.view(G, rows, columns)
            return whole if G > 1 else whole[0]

        return (
            view(self._inputs, a_offset, self._input, M, K, is_turned=layout[1] == "t"),
            view(self._inputs, offset, self._input, K, N, is_turned=layout[0] == "t"),
            view(self._outputs, c_offset, self._output, M, N),
        )

    def bind(self, shape: GemmShape | DrawnShape, weight_offsets: Sequence[int]) -> Sequence[Call]:
        return [self._bind_one(*self._views(shape, offset)) for offset in weight_offsets]

    def _bind_one(self, a: Any, b: Any, c: Any) -> Call:
        torch, scale = self.torch, self._scale
        if self.input_dtype == "int8":
            return partial(torch._int_mm, a, b, out=c)
        if self.input_dtype == "fp8":
            how = {"scale_a": scale, "scale_b": scale, "out_dtype": torch.bfloat16, "out": c}
            return partial(torch._scaled_mm, a, b, **how, use_fast_accum=self.dtype == "fp8")
        return partial(torch.bmm if a.dim() == 3 else torch.mm, a, b, out=c)

    def check(self) -> Mapping[str, float]:
        is_plain = self._how.call.startswith(_MATMUL)
        cases = [(name, layout) for name in CHECK_SHAPES for layout in _CHECK_LAYOUTS] if is_plain else [("2-D", "tn")]
        return {
            f"{name} {layout}": self._check_one(DrawnShape(*CHECK_SHAPES[name], layout, 0)) for name, layout in cases
        }

    def _check_one(self, shape: DrawnShape) -> float:
        torch = self.torch
        a, b, c = self._views(shape, 0)
        c.fill_(-1 if self.output_dtype == "int32" else float("nan"))
        self._bind_one(a, b, c)()
        self.synchronize()
        exact = (a.to(torch.float64) @ b.to(torch.float64)).cpu().numpy()
        if self.input_dtype == "fp8":
            exact = exact / self._how.sigma**2
        error = relative_error(c.to(torch.float64).cpu().numpy(), exact)
        if not error < self._how.max_error:  # NaN does not pass
            raise GemmEvalError(f"{self.kernel} {self.dtype} is wrong for {tuple(shape)}: error {error:.2g}")
        return error

    def describe(self) -> dict[str, Any]:
        torch = self.torch
        is_bounded = self._how.largest < _NO_LIMIT
        return {
            "library": "cuBLAS and cuBLASLt through PyTorch",
            "library_version": f"torch {torch.__version__}, CUDA {torch.version.cuda}",
            "routines": self._how.call,
            "workspace_bytes": None,
            "workspace": "as PyTorch sets it by default",
            "layouts": "C[G,M,N] row-major; B is the transposed view of W[G,N,K] and A[G,M,K] row-major, where no "
            "column says otherwise",
            "data": f"normal A and B, sigma {self._how.sigma:g}"
            + (f", clipped to {self._how.largest:g}" if is_bounded else ""),
        }


class CublasLtRunner(TorchRunner):
    """The types for which PyTorch runs cuBLASLt."""

    kernel = "cublaslt"
    dtypes: ClassVar[tuple[str, ...]] = ("fp8", "int8")


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


class GroupedRunner(TorchDevice, Runner):
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
            words = "{model} tp {tp} ep {ep} gemm {gemm}, {num_tokens} tokens, {distribution}"
            name = words.format(**shape._asdict())
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
        for weights, rows, values in zip(b, a.split(tuple(groups)), out.split(tuple(groups)), strict=True):
            exact = rows.double() @ weights.double()
            error += float((values.double() - exact).square().sum())
            norm += float(exact.square().sum())
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
