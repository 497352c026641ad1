"""Grouped bf16 GEMMs as PyTorch runs them: CUTLASS kernels behind `torch.nn.functional.grouped_mm`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from gemm_eval.device import Call
from gemm_eval.errors import GemmEvalError, UnsupportedError
from gemm_eval.measure.runners.base import OperandLayout
from gemm_eval.measure.runners.checks import MAX_ERRORS
from gemm_eval.measure.runners.torch_device import TorchDevice
from gemm_eval.measure.shapes import GroupedShape
from gemm_eval.words import shown

__all__ = ["CHECK_GROUPS", "GroupedRunner"]

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


class GroupedRunner(TorchDevice):
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
        """See `Runner`."""
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
        """See `Runner`."""
        return _BYTES_PER_ELEM * shape.G * shape.K * shape.N

    def bind(self, shape: GroupedShape, layout: OperandLayout) -> Sequence[Call]:
        """See `Runner`. C is no buffer of the runner: its offset is not read."""
        start = layout.input_offset // _BYTES_PER_ELEM
        a = self._buffers["A"][start : start + shape.rows * shape.K].view(shape.rows, shape.K)
        ends = self._ends(shape.row_groups)
        return [self._bind_one(a, self._weights(shape, offset), ends) for offset in layout.weight_offsets]

    def _weights(self, shape: GroupedShape, offset: int) -> Any:
        """A copy of B[G,K,N], K contiguous."""
        start = offset // _BYTES_PER_ELEM
        count = shape.G * shape.N * shape.K
        return self._buffers["W"][start : start + count].view(shape.G, shape.N, shape.K).transpose(1, 2)

    def _ends(self, row_groups: Sequence[int]) -> Any:
        return self.torch.tensor(list(accumulate(row_groups)), dtype=self.torch.int32, device="cuda")

    def _bind_one(self, a: Any, b: Any, ends: Any) -> Call:
        grouped_mm = self._grouped_mm

        def enqueue() -> None:
            grouped_mm(a, b, offs=ends)

        return enqueue

    def capture(self, enqueue: Call) -> Call:
        """See `Runner`."""
        self.torch.cuda.empty_cache()  # outputs of graphs that are gone
        return super().capture(enqueue)

    def check(self) -> Mapping[str, float]:
        """See `Runner`."""
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
        """See `Runner`."""
        torch = self.torch
        return {
            "library": "CUTLASS through PyTorch",
            "library_version": f"torch {torch.__version__}, CUDA {torch.version.cuda}",
            "routines": f"{self._routine}(a, w.transpose(1, 2), offs=ends of the groups' rows)",
            "layouts": "A[rows,K] and C[rows,N] row-major, groups one after another; B_i is the transposed view of "
            "W[i][N,K], row-major",
            "data": "standard normal A and W; C is memory of PyTorch's allocator, the same at each call of a graph",
        }
