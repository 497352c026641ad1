"""`compare`, without a GPU: what is measured goes to the operation that launched it."""

import contextlib
import warnings
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: make test-torch")

from gemm_eval import GEMMEvaluator, list_archs  # noqa: E402
from gemm_eval.errors import ArchNotFoundError, GemmEvalError  # noqa: E402
from gemm_eval.torch import Comparison, MeasuredOperation, compare, measure_module, predict_module  # noqa: E402
from gemm_eval.torch.evaluate_module import arch_of_name  # noqa: E402
from gemm_eval.torch.measure_module import MARK, attribute  # noqa: E402
from tests.cases import case  # noqa: E402

CPU, GPU = torch.autograd.DeviceType.CPU, torch.autograd.DeviceType.CUDA


@dataclass(frozen=True)
class Event:
    """An event of kineto, as far as it is read."""

    values: tuple[Any, ...]

    def __getattr__(self, name: str) -> Any:
        names = ("name", "device_type", "correlation_id", "linked_correlation_id", "start_ns", "duration_ns",
                 "start_thread_id", "is_user_annotation")  # fmt: skip
        if name not in names:
            raise AttributeError(name)
        return lambda: self.values[names.index(name)]


def event(
    name: str, where: Any, number: int, linked: int, start_ns: int, duration_ns: int, *, thread: int = 1,
    is_user_annotation: bool | None = None,
) -> Event:  # fmt: skip
    is_mark = name.startswith(MARK) if is_user_annotation is None else is_user_annotation
    return Event((name, where, number, linked, start_ns, duration_ns, thread, is_mark))


def launched(name: str, number: int, linked: int, start_ns: int, us: float, *, thread: int = 1) -> list[Event]:
    """A kernel that runs long after its launch, and the launch."""
    return [
        event("cudaLaunchKernel", CPU, number, linked, start_ns, 10, thread=thread),
        event(name, GPU, number, linked, start_ns + 100_000, round(1e3 * us), thread=thread),
    ]


def test_kernels_go_to_the_mark_around_their_launch() -> None:
    events = [
        event(f"{MARK}0", CPU, 1, 0, 1000, 500), event("aten::mm", CPU, 2, 0, 1100, 300),
        *launched("splitk", 41, 2, 1300, 2.0), *launched("gemm", 40, 2, 1200, 10.0),
        event("aten::copy_", CPU, 3, 0, 1600, 100), event("cudaMemcpyAsync", CPU, 42, 3, 1650, 10),
        event("Memcpy HtoD", GPU, 42, 3, 1700, 3000), event(f"{MARK}12", CPU, 4, 0, 2000, 500),
        event("cuLaunchKernelEx", CPU, 43, 5, 2100, 10), event("elementwise", GPU, 43, 5, 9000, 1500),
        event("cudaMemsetAsync", CPU, 44, 5, 2200, 10), event("Memset (Device)", GPU, 44, 5, 9900, 500),
        event(f"{MARK}2", CPU, 6, 0, 3000, 10), *launched("of another thread", 45, 0, 3005, 4.0, thread=2),
        event("without its launch", GPU, 46, 7, 3007, 1000),
    ]  # fmt: skip
    found, outside_us = attribute(events)
    assert found == {0: [("gemm", 10.0), ("splitk", 2.0)], 12: [("elementwise", 1.5), ("Memset (Device)", 0.5)], 2: []}
    assert outside_us == 8.0


def test_a_mark_within_another_has_its_own_kernels() -> None:
    events = [
        *launched("before", 20, 1, 100, 1.0), event(f"{MARK}0", CPU, 1, 0, 50, 900),
        event(f"{MARK}1", CPU, 2, 0, 200, 100), *launched("inner", 21, 2, 250, 2.0),
        *launched("after", 22, 1, 400, 3.0),
    ]  # fmt: skip
    assert attribute(events) == ({0: [("before", 1.0), ("after", 3.0)], 1: [("inner", 2.0)]}, 0.0)


def test_shadows_of_ranges_on_the_gpu_are_no_kernels() -> None:
    mark = event(f"{MARK}0", CPU, 1, 0, 1000, 500)
    shadows = [
        event(f"{MARK}0", GPU, 1, 0, 101_200, 10_000),
        event("a range of the module", GPU, 2, 0, 101_200, 10_000, is_user_annotation=True),
    ]
    assert attribute([mark, *launched("gemm", 40, 3, 1200, 10.0), *shadows]) == ({0: [("gemm", 10.0)]}, 0.0)


def test_numbers_that_several_events_have_count_no_kernel_twice() -> None:
    """As in a profile of torch 2.11 on an H200: overhead has the number of its operation, calls those of others."""
    events = [
        event(f"{MARK}0", CPU, 1, 0, 364_197, 2_318_380),
        event("aten::gather", CPU, 11, 0, 364_377, 2_048_625),
        event("Activity Buffer Request", CPU, 11, 0, 364_409, 1_949_041),
        event("cudaLaunchKernel", CPU, 20, 11, 2_365_913, 44_651),
        event("vectorized_gather", GPU, 20, 11, 2_407_927, 6431),
        event(f"{MARK}0", GPU, 1, 0, 2_407_927, 6431),
        event(f"{MARK}1", CPU, 15, 0, 2_939_153, 205_602),
        event("aten::as_strided", CPU, 20, 0, 2_607_096, 1627),  # the number of the launch above
        event("customary", CPU, 46, 21, 2_940_000, 100),  # a range of the user, that is no call of CUDA
        event("cuLaunchKernelEx", CPU, 46, 21, 2_990_147, 14_960),
        event("nvjet", GPU, 46, 21, 3_125_109, 9760),
        event(f"{MARK}1", GPU, 15, 0, 3_125_109, 9760),
        event(f"{MARK}2", CPU, 23, 0, 3_251_670, 19_864_504),
        event("aten::clamp_min", CPU, 25, 0, 3_289_705, 19_762_839),
        event("cudaMalloc", CPU, 56, 25, 3_314_414, 129_640),
        event("cudaLaunchKernel", CPU, 63, 25, 21_401_890, 1_632_080),
        event("Lazy Function Loading", CPU, 25, 0, 22_983_563, 26_804),
        event("vectorized_elementwise", GPU, 63, 25, 23_030_160, 4735),
        event("cudaDeviceSynchronize", CPU, 15, 0, 23_192_845, 13_590),  # the number of a mark
    ]
    found, outside_us = attribute(events)
    assert found == {0: [("vectorized_gather", 6.431)], 1: [("nvjet", 9.76)], 2: [("vectorized_elementwise", 4.735)]}
    assert outside_us == 0.0


def test_events_of_torch_itself_are_read() -> None:
    """On the CPU there are no kernels, but marks and operations under them have the form that is read."""
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU]) as profiler, record_function(f"{MARK}7"):
        torch.ones(4) + 1
    events = profiler.profiler.kineto_results.events()
    assert attribute(events) == ({7: []}, 0.0)
    (mark,) = [one for one in events if one.name() == f"{MARK}7"]
    inner = event("cudaLaunchKernel", CPU, 1 << 40, 0, mark.start_ns() + 1, 1, thread=mark.start_thread_id())
    assert attribute([*events, inner, event("add", GPU, 1 << 40, 0, 0, 1000)]) == ({7: [("add", 1.0)]}, 0.0)


class FakeCuda:
    """What `measure_graph_us` asks of torch.cuda: nothing runs, and every replay takes 2 ms."""

    def __init__(self) -> None:
        self.where, self.sync_debug_mode = "default", 0

    def Stream(self) -> Any:  # noqa: N802
        return SimpleNamespace(wait_stream=lambda stream: None)

    def current_stream(self) -> Any:
        return SimpleNamespace(wait_stream=lambda stream: None)

    def stream(self, stream: Any) -> Any:
        return contextlib.nullcontext(stream)

    def CUDAGraph(self) -> Any:  # noqa: N802
        return SimpleNamespace(replay=lambda: None)

    @contextlib.contextmanager
    def graph(self, graph: Any) -> Any:
        self.where = "capture"
        try:
            yield
        except KeyError:
            raise RuntimeError("the capture was invalidated") from None
        finally:
            self.where = "default"

    def Event(self, enable_timing: bool) -> Any:  # noqa: N802
        return SimpleNamespace(record=lambda: None, synchronize=lambda: None, elapsed_time=lambda end: 2.0)

    def _sleep(self, cycles: int) -> None:
        pass

    def get_sync_debug_mode(self) -> Any:
        return self.sync_debug_mode

    def set_sync_debug_mode(self, mode: Any) -> None:
        warnings.warn("a prototype", UserWarning, stacklevel=2)
        self.sync_debug_mode = mode

    def is_current_stream_capturing(self) -> bool:
        return self.where == "capture"


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    for name in (one for one in vars(FakeCuda) if not one.startswith("__")):
        monkeypatch.setattr(torch.cuda, name, getattr(fake, name))
    monkeypatch.setattr(measure_module, "_PAUSE_S", 0.0)
    return fake


def test_a_module_that_is_captured_does_what_it_does_in_eager_mode(cuda: FakeCuda) -> None:
    asked = []

    def run() -> None:
        asked.append((cuda.where, cuda.sync_debug_mode, torch.cuda.is_current_stream_capturing()))

    assert measure_module.measure_graph_us(run) == 2000.0
    assert asked == [("default", "error", False), ("capture", 0, False)]
    cuda.where = "capture"
    assert torch.cuda.is_current_stream_capturing()  # it says what is true again


def test_a_module_that_cannot_be_captured_has_no_time_in_a_graph(cuda: FakeCuda) -> None:
    def is_captured() -> None:
        if cuda.where == "capture":
            raise KeyError("operation not permitted when stream is capturing\nand more lines")

    def waits() -> None:
        if cuda.sync_debug_mode == "error":
            raise RuntimeError("called a synchronizing CUDA operation")

    for run, what in ((is_captured, "KeyError: .operation not permitted"), (waits, "RuntimeError: called a sync")):
        with case(what):
            with pytest.warns(RuntimeWarning, match=rf"cannot be captured \({what}") as caught:
                assert measure_module.measure_graph_us(run) is None
            assert len(caught) == 1
            assert cuda.sync_debug_mode == 0
            cuda.where = "capture"
            assert torch.cuda.is_current_stream_capturing()
            cuda.where = "default"


def test_gpus_are_known_by_the_names_that_their_drivers_have() -> None:
    for name, arch in (
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("NVIDIA L40S", "l40s"),
    ):
        assert arch_of_name(name) == arch
        assert arch in list_archs()
    with pytest.raises(ArchNotFoundError, match="say which arch"):
        arch_of_name("NVIDIA GeForce GTX 1080")


def test_without_a_gpu_it_says_what_needs_none() -> None:
    if torch.cuda.is_available():
        pytest.skip("torch sees a GPU: tests/gpu/test_torch_compare_gpu.py")
    with pytest.raises(GemmEvalError, match="predict_module needs none"):
        compare(torch.nn.Linear(4, 4), torch.zeros(1, 4))


def test_a_comparison_sets_times_side_by_side() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)).bfloat16()
    x = torch.zeros(8, 64, dtype=torch.bfloat16)
    prediction = predict_module(module, x, GEMMEvaluator("h200-sxm", disk_cache=False), fusion="eager")
    rows = tuple(MeasuredOperation((one,), 2.0 * one.latency_us, ("kernel",)) for one in prediction.operations)
    found = Comparison(prediction, (*rows, MeasuredOperation((), 1.0, ("copy",))), 0.5, None, "NVIDIA H200")
    assert found.predicted_us == pytest.approx(prediction.latency_us)
    assert found.measured_us == pytest.approx(2.0 * prediction.latency_us + 1.5)
    assert found.ratio == pytest.approx(found.predicted_us / found.measured_us)
    text = str(found)
    assert "0.50" in text
    assert "kernels of no operation: 0.50 us" in text
    assert "(free)" in text
    assert [row["name"] for row in found.to_dicts()] == ["aten.addmm", "aten.relu", "aten.addmm", "(free)"]
    graph = Comparison(prediction, rows, 0.0, prediction.latency_us, "NVIDIA H200")
    assert graph.ratio == 1.0
