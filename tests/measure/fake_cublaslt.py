"""libcublasLt without a GPU: enough of it to list algorithms and to see what would be run."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

from gemm_eval.measure import CandidateRunner
from gemm_eval.measure.cublas import CublasLtLibrary

VERSION = 130_100
FP16, WORKSPACE = 2, 64 << 20
NOT_SUPPORTED, INTERNAL_ERROR = 15, 14


class FakeCublasLt:
    """Proposes `splits` for each GEMM, an algorithm by its place; keeps what was set and run.

    Attributes:
        refused: (rows, columns) of C^T for which there is no algorithm.
        unusable: places of proposals whose state is not good.
        status: what cublasLtMatmul returns; `heuristic_status`: what the heuristic returns.
    """

    def __init__(self, splits: tuple[int, ...] = (1, 4, 1)) -> None:
        self.splits = splits
        self.refused: set[tuple[int, int]] = set()
        self.unusable: set[int] = set()
        self.status = self.heuristic_status = 0
        self.num_asked = 0
        self.layouts: dict[int, tuple[int, int, int, int]] = {}
        self.set: dict[str, tuple[int, int]] = {}
        self.runs: list[dict[str, int]] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cublasLt"):
            raise AttributeError(name)

        class Function:  # takes a restype, as ctypes' own do
            def __call__(function, *args: Any) -> int:  # noqa: N805
                return int(getattr(self, f"do_{name.removeprefix('cublasLt')}")(*args) or 0)

        return Function()

    def do_GetVersion(self) -> int:  # noqa: N802
        return VERSION

    def do_Create(self, handle: Any) -> None:  # noqa: N802
        handle._obj.value = 1

    def do_MatmulDescCreate(self, desc: Any, compute: Any, scale: Any) -> None:  # noqa: N802
        desc._obj.value = 2
        self.set["types"] = (compute.value, scale.value)

    def do_MatmulDescSetAttribute(self, desc: Any, attribute: Any, value: Any, size: Any) -> None:  # noqa: N802
        assert (desc.value, size.value) == (2, 4)
        self.set["desc"] = (attribute.value, value._obj.value)

    def do_MatmulPreferenceCreate(self, preference: Any) -> None:  # noqa: N802
        preference._obj.value = 3

    def do_MatmulPreferenceSetAttribute(self, preference: Any, attribute: Any, value: Any, size: Any) -> None:  # noqa: N802
        assert (preference.value, size.value) == (3, 8)
        self.set["preference"] = (attribute.value, value._obj.value)

    def do_MatrixLayoutCreate(self, layout: Any, kind: Any, rows: Any, columns: Any, stride: Any) -> None:  # noqa: N802
        layout._obj.value = 100 + len(self.layouts)
        self.layouts[layout._obj.value] = (kind.value, rows.value, columns.value, stride.value)

    def do_MatmulAlgoGetHeuristic(self, *args: Any) -> int:  # noqa: N802
        handle, desc, _w, _a, c, d, preference, count, results, found = args
        assert (handle.value, desc.value, preference.value, c.value) == (1, 2, 3, d.value)
        self.num_asked += 1
        if self.layouts[c.value][1:3] in self.refused:
            return NOT_SUPPORTED
        found._obj.value = min(count.value, len(self.splits))
        for place in range(found._obj.value):
            results[place].algo[0] = place
            results[place].state = INTERNAL_ERROR if place in self.unusable else 0
        return self.heuristic_status

    def do_MatmulAlgoConfigGetAttribute(self, algo: Any, attribute: Any, value: Any, size: Any, written: Any) -> None:  # noqa: N802
        assert (attribute.value, size.value) == (2, ctypes.sizeof(value._obj))
        value._obj.value, written._obj.value = self.splits[algo._obj[0]], 4

    def do_Matmul(self, *args: Any) -> int:  # noqa: N802
        handle, desc, alpha, w, w_layout, a, a_layout, beta, c, c_layout, d, d_layout, algo, *rest = args
        work, work_bytes, stream = rest
        assert (handle.value, desc.value, alpha._obj.value, beta._obj.value) == (1, 2, 1.0, 0.0)
        assert (c.value, c_layout.value) == (d.value, d_layout.value)
        operands = {"w": (w, w_layout), "a": (a, a_layout), "c": (c, c_layout)}
        self.runs.append(
            {name: pointer.value for name, (pointer, _) in operands.items()}
            | {f"{name}_layout": layout.value for name, (_, layout) in operands.items()}
            | {"algo": algo._obj[0], "workspace": work.value, "bytes": work_bytes.value, "stream": stream.value}
        )
        return self.status


def buffer(pointer: int) -> Any:
    return SimpleNamespace(data=SimpleNamespace(ptr=pointer))


def bare_runner(fake: FakeCublasLt) -> CandidateRunner:
    """A runner whose device is missing: only addresses are there."""
    runner = CandidateRunner.__new__(CandidateRunner)
    runner.input_dtype, runner.stream = "fp16", SimpleNamespace(ptr=0x50)
    runner.buffers = {"A": buffer(0x10000), "W": buffer(0x20000), "C": buffer(0x30000)}
    runner._library, runner._path = CublasLtLibrary(fake, FP16, WORKSPACE), "/lib/libcublasLt.so.13"
    runner._workspace = buffer(0x4000)
    return runner
