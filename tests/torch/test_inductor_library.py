"""Which candidates of Inductor's go because a library's kernel surely beats them, and how the others are timed."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("torch", reason="torch is not installed: make test-torch")
pytest.importorskip("triton", reason="triton is not installed: make test-torch")
import torch
from torch._inductor import config
from torch._inductor.exc import LoweringException
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses import fake_tensor
from torch.fx.experimental.proxy_tensor import make_fx

from gemm_eval import GpuSpec, load_arch
from gemm_eval.models.gpu.triton import TritonConfig
from gemm_eval.torch import inductor, prune_inductor
from gemm_eval.torch.inductor import missing_interface
from gemm_eval.torch.inductor_ranking import KernelTraits, Library, LibraryTime, graph_times_us, has_epilogue
from gemm_eval.workload import GemmProblem
from tests.torch.inductor_without_gpu import columns, externs, fake_gpu, lower, rows, templates

if missing_interface() is not None:
    pytest.skip(f"this torch has another Inductor: {missing_interface()}", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of what it imports late
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
SLOWER = (rows(257, 2560), columns(2560, 6144))  # Triton 22.5 us, cuBLAS 16.4
EQUAL = (rows(16, 4096), columns(4096, 6144))  # 16.2 and 16.2
SMALL = (rows(64, 4096), columns(4096, 1024))

# Layers on an H200, torch 2.11, in CUDA graphs with cold weights: M, N, K, us; then the kernel of Inductor's template.
MEASURED_TRITON = [
    (16, 6144, 4096, 16.2, (16, 32, 128, 2, 5)), (16, 6144, 4096, 16.4, (16, 64, 128, 4, 5)),
    (128, 4096, 4096, 13.9, (64, 64, 128, 4, 5)), (128, 4096, 4096, 15.8, (64, 128, 128, 4, 4)),
    (64, 3072, 1024, 5.1, (64, 32, 128, 4, 5)), (512, 1024, 1024, 5.3, (64, 64, 128, 4, 5)),
    (512, 1024, 1024, 6.2, (64, 128, 128, 4, 4)), (2048, 4096, 1024, 30.0, (128, 128, 64, 4, 3)),
    (2048, 4096, 1024, 34.1, (128, 128, 64, 8, 5)), (32, 1024, 4096, 12.1, (32, 32, 128, 4, 5)),
    (257, 6144, 2560, 22.5, (64, 128, 128, 4, 4)), (128, 2560, 9728, 28.1, (64, 64, 128, 4, 5)),
]  # fmt: skip
MEASURED_CUBLAS = [
    (16, 6144, 4096, 16.2), (128, 4096, 4096, 14.0), (1024, 28672, 4096, 312.2), (4096, 4096, 14336, 594.4),
    (64, 3072, 1024, 5.5), (512, 1024, 1024, 5.1), (2048, 4096, 1024, 26.0), (32, 1024, 4096, 8.4),
    (257, 6144, 2560, 16.2), (1500, 2560, 4096, 42.5), (16, 19456, 2560, 31.0), (128, 2560, 9728, 21.5),
]  # fmt: skip


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    with fake_gpu("NVIDIA H200"):
        yield


@pytest.fixture(scope="module")
def h200() -> GpuSpec:
    return load_arch("h200-sxm", GpuSpec)


def bf16(M: int, N: int, K: int) -> GemmProblem:
    return GemmProblem(1, M, K, N, "bf16", "bf16", "bf16")  # type: ignore[arg-type]


def num_left(function: Any, *tensors: Any, **options: Any) -> int:
    with prune_inductor(**options) as pruned:
        (after,) = lower(function, *tensors)
    assert len(templates(after)) == pruned.num_kept
    assert pruned.notes == []
    return pruned.num_kept


def test_triton_in_a_graph_is_predicted_without_events_and_dirty_lines(h200: GpuSpec) -> None:
    ratios = []
    for M, N, K, measured_us, sizes in MEASURED_TRITON:
        times = graph_times_us(h200, bf16(M, N, K), [TritonConfig(*sizes, group_m=8)], KernelTraits())
        assert times is not None
        ratios.append(float(times[0]) / measured_us)

    assert 0.97 < statistics.geometric_mean(ratios) < 1.1
    assert 0.85 < min(ratios) < max(ratios) < 1.25


def test_the_library_is_predicted_as_it_was_timed(h200: GpuSpec) -> None:
    library = Library(h200)
    for M, N, K, measured_us in MEASURED_CUBLAS:
        found = library.time(bf16(M, N, K), has_epilogue=False)
        assert found is not None
        assert 0.8 < found.latency_us / measured_us < 1.05
        assert found.latest_us > found.latency_us


def test_a_candidate_is_surely_slower_beyond_the_errors_of_both_models() -> None:
    library = LibraryTime(9.0, 10.0)

    assert not library.beats(9.5)
    assert not library.beats(11.8)
    assert library.beats(12.0)
    assert library._replace(has_few_tiles=True).beats(12.0)
    assert not library._replace(has_few_tiles=True).beats(12.0, is_best=True)


def test_what_cublas_surely_beats_goes_and_its_kernel_alone_is_left() -> None:
    (before,) = lower(torch.mm, *SLOWER)
    with prune_inductor() as pruned:
        (after,) = lower(torch.mm, *SLOWER)

    assert templates(after) == []
    assert [one.name for one in after] == externs(before) == ["mm"]
    assert (pruned.num_kept, pruned.num_slower, pruned.num_before) == (0, 3, len(templates(before)))
    (gemm,) = pruned.gemms
    assert gemm.library_us == pytest.approx(16.2, rel=0.1)
    assert min(one.graph_us for one in gemm.templates[0].candidates if one.graph_us) > 1.4 * gemm.library_us
    said = str(pruned).splitlines()
    assert said[0].endswith("candidates stay for 1 GEMMs; 3 are surely slower than libraries")
    assert said[1].endswith(" us in a CUDA graph); 3 are surely slower")
    assert num_left(torch.mm, *SLOWER, drop_slower=False) == 3


def test_what_may_be_as_fast_stays() -> None:
    assert num_left(torch.mm, *EQUAL) == 3
    (before,) = lower(torch.mm, *EQUAL)
    with prune_inductor(top_k=1.0) as pruned:  # one by one, not template by template
        lower(torch.mm, *EQUAL)
    assert 3 < pruned.num_kept < len(templates(before))
    assert pruned.num_kept + pruned.num_slower <= pruned.num_before


def test_a_bias_is_the_librarys_too_and_a_matrix_is_copied_first() -> None:
    a, b = SMALL
    assert num_left(torch.addmm, ((1024,), (1,), BF16), a, b) == 1  # its tiles are few: the best stays
    assert num_left(torch.addmm, rows(64, 1024), a, b) > 1


def test_a_kernel_that_may_be_fused_counts_for_the_templates() -> None:
    def relu(a: Any, b: Any) -> Any:
        return torch.relu(torch.mm(a, b))

    def viewed(a: Any, b: Any) -> Any:
        return torch.mm(a, b).view(4, 16, 1024)

    def viewed_relu(a: Any, b: Any) -> Any:
        return torch.relu(viewed(a, b))

    assert num_left(torch.mm, *SMALL) == num_left(viewed, *SMALL) == 1
    assert num_left(relu, *SMALL) == num_left(viewed_relu, *SMALL) > 1
    assert num_left(relu, *SLOWER) == 0  # the gap is wider than what fusion saves
    assert has_epilogue(None)


@pytest.mark.parametrize("name", ["fp8", "8 bytes", "no library", "A100"])
def test_where_a_model_was_not_held_against_timings_all_stay(name: str) -> None:
    scalar = ((), (), torch.float32)
    if name == "fp8":
        a, b = rows(257, 2560, FP8), columns(2560, 6144, FP8)
        assert num_left(lambda *x: torch._scaled_mm(*x, out_dtype=BF16), a, b, scalar, scalar) == 3
    elif name == "8 bytes":
        assert num_left(torch.mm, rows(257, 2564), columns(2564, 6144)) == 3
    elif name == "no library":
        nothing_to_choose = contextlib.suppress(LoweringException)  # `lower` chooses among kernels of libraries
        with prune_inductor() as pruned, config.patch(max_autotune_gemm_backends="TRITON"), nothing_to_choose:
            lower(torch.mm, *SLOWER)
        assert (pruned.num_kept, pruned.num_slower) == (3, 0)
    else:
        assert num_left(torch.mm, *SLOWER, arch="a100-sxm-80gb") == 3
    assert num_left(torch.mm, *SLOWER) == 0


def test_kernels_with_tma_stay() -> None:
    with config.patch({"triton.enable_persistent_tma_matmul": True}), prune_inductor() as pruned:
        lower(torch.mm, *SLOWER)

    kept = {"tma" in one.name: one.num_kept for one in pruned.gemms[0].templates}
    assert kept == {False: 0, True: 3}


@pytest.mark.parametrize("is_addmm", [False, True])
def test_inductor_lowers_what_has_no_template_left(is_addmm: bool) -> None:
    """An operation behind the GEMM becomes a kernel of its own; with one kernel left nothing is timed."""

    def function(bias: Any, a: Any, b: Any) -> Any:
        return torch.relu(torch.addmm(bias, a, b) if is_addmm else torch.mm(a, b))

    sizes = (((6144,), (1,), BF16), *SLOWER)
    with fake_tensor.FakeTensorMode() as mode, prune_inductor() as pruned:
        inputs = [torch.empty_strided(size, stride, dtype=dtype, device="cuda") for size, stride, dtype in sizes]
        lowering = GraphLowering(make_fx(function)(*inputs), example_inputs=inputs)
        patched = config.patch({"triton.autotune_cublasLt": False})  # which is a second kernel for a bias
        with V.set_graph_handler(lowering), V.set_fake_mode(mode), patched:
            lowering.run(*inputs)

    assert pruned.num_kept == 0
    (kernel,) = [one for one in lowering.operations if hasattr(one, "python_kernel_name")]
    assert kernel.python_kernel_name == f"extern_kernels.{'addmm' if is_addmm else 'mm'}"


class FakeGraph:
    """A CUDA graph on a GPU where a flush takes 20 us and a call 7, behind 30 us of the host's."""

    can_capture = True
    captured = None
    clock_us = 0.0

    def __init__(self) -> None:
        self.length_us = 0.0

    def capture_begin(self, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"
        FakeGraph.captured = self

    def capture_end(self) -> None:
        FakeGraph.captured = None
        if not FakeGraph.can_capture:
            raise RuntimeError

    def replay(self) -> None:
        FakeGraph.clock_us += 30.0 + self.length_us


def takes(length_us: float) -> None:
    if FakeGraph.captured is None:
        FakeGraph.clock_us += length_us
    else:
        FakeGraph.captured.length_us += length_us


class FakeEvent:
    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at_us = FakeGraph.clock_us

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: FakeEvent) -> float:
        return (end.at_us - self.at_us) / 1e3


@pytest.fixture
def fake_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    def stream(_: Any) -> Any:
        return contextlib.nullcontext()

    for name, value in {
        "Stream": mock.MagicMock(), "stream": stream, "current_stream": mock.MagicMock(), "CUDAGraph": FakeGraph,
        "synchronize": lambda: None, "Event": FakeEvent,
        "get_device_properties": lambda _: mock.Mock(L2_cache_size=1 << 20),
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: mock.Mock(zero_=lambda: takes(20.0)))
    monkeypatch.setattr(FakeGraph, "can_capture", True)


@pytest.mark.parametrize("can_capture", [True, False])
@pytest.mark.usefixtures("fake_graphs")
def test_a_candidates_time_is_what_it_adds_to_a_graph_of_flushes(
    can_capture: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeGraph, "can_capture", can_capture)
    do_bench = mock.Mock(return_value=1.0)
    request = type("Request", (), {"do_bench": do_bench})()

    def benchmark(*tensors: Any, out: Any) -> Any:
        return request.do_bench(lambda: takes(7.0), *tensors, out)

    timed = inductor._in_graph(request, benchmark)

    if can_capture:
        assert timed("a", "b", out="c") == pytest.approx(7e-3)
        assert not do_bench.called
    else:
        assert timed("a", "b", out="c") == 1.0
        assert do_bench.call_args.args[1:] == ("a", "b", "c")
    assert request.do_bench is do_bench


def benchmarks(function: Any, *tensors: Any) -> list[bool]:
    """Whether each candidate is timed in a graph."""
    with prune_inductor():
        (after,) = lower(function, *tensors)
    return ["benchmark" in vars(one) for one in after]


def test_all_candidates_of_a_gemm_are_timed_in_graphs_or_none() -> None:
    assert benchmarks(torch.mm, *EQUAL) == [True] * 4
    assert benchmarks(torch.mm, *SLOWER) == [False]  # there is no choice
    assert not any(benchmarks(torch.mm, rows(16, 65536), columns(65536, 16)))  # decompose_k is several kernels
    with config.patch(autotune_in_subproc=True):
        assert benchmarks(torch.mm, *EQUAL) == [False] * 4
    (without,) = lower(torch.mm, *EQUAL)
    assert not any("benchmark" in vars(one) for one in without)
