"""Every algorithm that a library proposes is timed by itself, and told apart in the data set."""

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from gemm_eval.errors import GemmEvalError, InvalidOptionError, UnsupportedError
from gemm_eval.measure import CandidateRunner, GemmShape
from gemm_eval.measure.cublas import CandidateTable, CublasLtLibrary, HeuristicResult
from gemm_eval.measure.shapes import Candidate

# ---- a library that only pretends ------------------------------------------------------------------------------------


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


# ---- tests -----------------------------------------------------------------------------------------------------------


SHAPE = GemmShape(1, 17, 4096, 1024)


def table(fake: FakeCublasLt, count: int = 8) -> CandidateTable:
    return CandidateTable(CublasLtLibrary(fake, FP16, WORKSPACE), count)


def test_struct_is_laid_out_as_in_the_header() -> None:
    assert HeuristicResult.workspaceSize.offset == 64
    assert HeuristicResult.wavesCount.offset == 76
    assert HeuristicResult.reserved.size == 16


def test_the_library_is_set_up_for_a_transposed_weight() -> None:
    fake = FakeCublasLt()
    library = CublasLtLibrary(fake, FP16, WORKSPACE)
    layouts = library.layouts(SHAPE)

    assert fake.set == {"types": (68, 0), "desc": (3, 1), "preference": (1, WORKSPACE)}
    assert fake.layouts[layouts.w.value or 0] == (FP16, 4096, 1024, 4096)  # K x N, columns of K
    assert fake.layouts[layouts.a.value or 0] == (FP16, 4096, 17, 4096)
    assert fake.layouts[layouts.c.value or 0] == (FP16, 1024, 17, 1024)
    assert library.version() == VERSION


def test_candidates_keep_the_order_and_the_split() -> None:
    fake = FakeCublasLt((1, 4, 0, 2))

    assert table(fake).of(SHAPE) == [Candidate(*SHAPE, rank, split) for rank, split in enumerate((1, 4, 1, 2))]
    assert len(table(fake, count=2).of(SHAPE)) == 2


def test_no_algorithm_is_no_error_and_a_failure_is() -> None:
    fake = FakeCublasLt()
    fake.refused = {(1024, 17)}
    assert table(fake).of(SHAPE) == []

    fake.refused, fake.heuristic_status = set(), INTERNAL_ERROR
    with pytest.raises(GemmEvalError, match="cublasLtMatmulAlgoGetHeuristic returned status 14"):
        table(fake).of(SHAPE)


def test_unusable_proposals_are_skipped() -> None:
    fake = FakeCublasLt((1, 4, 2))
    fake.unusable = {1}
    proposals = table(fake)

    assert [candidate.split_k for candidate in proposals.of(SHAPE)] == [1, 2]
    assert proposals.find(proposals.of(SHAPE)[1])[1].result.algo[0] == 2


def test_unknown_candidates_and_batches_are_errors() -> None:
    with pytest.raises(GemmEvalError, match="does not propose"):
        table(FakeCublasLt()).find(Candidate(*SHAPE, 1, 8))
    with pytest.raises(UnsupportedError, match="measures G = 1, got G = 4"):
        table(FakeCublasLt()).of(GemmShape(4, 8, 128, 128))


def test_each_candidate_runs_its_own_algorithm() -> None:
    fake = FakeCublasLt()
    library = CublasLtLibrary(fake, FP16, WORKSPACE)
    proposals = CandidateTable(library, 8)
    for candidate in proposals.of(SHAPE):
        library.bind(*proposals.find(candidate), (0x1000, 0x2000, 0x3000), 0x4000, 0x50)()

    assert fake.num_asked == 1
    assert [run["algo"] for run in fake.runs] == [0, 1, 2]
    run = fake.runs[1]
    assert (run["w"], run["a"], run["c"]) == (0x1000, 0x2000, 0x3000)
    assert (run["workspace"], run["bytes"], run["stream"]) == (0x4000, WORKSPACE, 0x50)
    assert fake.layouts[run["w_layout"]][2] == SHAPE.N
    assert fake.layouts[run["a_layout"]][2] == SHAPE.M

    fake.status = 7
    with pytest.raises(GemmEvalError, match="cublasLtMatmul returned status 7"):
        library.bind(*proposals.find(candidate), (1, 2, 3), 4, 5)()


def test_the_runner_binds_checks_and_describes(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCublasLt()
    runner = bare_runner(fake)
    candidates = runner.candidates([SHAPE], 2)
    assert [candidate.rank for candidate in candidates] == [0, 1]

    for call in runner.bind(candidates[1], (0, 256)):
        call()
    assert [(run["w"], run["a"], run["c"], run["algo"]) for run in fake.runs] == [
        (0x20000, 0x10000, 0x30000, 1),
        (0x20100, 0x10000, 0x30000, 1),
    ]

    monkeypatch.setattr(runner, "check_one", lambda candidate, enqueue: [1e-4, 3e-4][candidate.rank])
    assert runner.check() == {"2-D": 3e-4}
    assert runner.settings == {"library_version": VERSION, "candidates": 2}
    assert runner.describe()["library"] == "libcublasLt.so.13"
    with pytest.raises(InvalidOptionError, match="--candidates must be 1 to 64, got 0"):
        runner.candidates([SHAPE], 0)

    fake.splits = ()
    runner.candidates([], 2)
    with pytest.raises(GemmEvalError, match="proposes no algorithm at all"):
        runner.check()
