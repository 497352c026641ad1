"""`compare`, without a GPU: what is measured goes to the operation that launched it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: make test-torch")

from gemm_eval import GEMMEvaluator, list_archs  # noqa: E402
from gemm_eval.errors import ArchNotFoundError, GemmEvalError  # noqa: E402
from gemm_eval.torch import Comparison, MeasuredOperation, compare, predict_module  # noqa: E402
from gemm_eval.torch.local_gpu import arch_of_name  # noqa: E402
from gemm_eval.torch.measure_module import MARK, attribute  # noqa: E402


@dataclass(eq=False)
class Kernel:
    name: str
    duration: float


@dataclass(eq=False)
class Event:
    """An event of torch's profiler (`torch.autograd.profiler_util.FunctionEvent`), as far as it is read."""

    name: str
    kernels: list[Kernel] = field(default_factory=list)
    cpu_children: list[Event] = field(default_factory=list)
    device_type: Any = "DeviceType.CPU"


def flat(*events: Event) -> list[Event]:
    """All of them in one list, as the profiler gives them: children too."""
    return [one for event in events for one in (event, *flat(*event.cpu_children))]


def test_kernels_go_to_the_mark_around_their_launch() -> None:
    launch = Event("cudaLaunchKernel", [Kernel("splitk", 2.0)])
    mm = Event("aten::mm", [Kernel("gemm", 10.0)], [launch])
    events = flat(
        Event(f"{MARK}0", [], [mm]),
        Event("aten::copy_", [Kernel("Memcpy HtoD", 3.0)]),
        Event(f"{MARK}12", [], [Event("aten::relu", [Kernel("elementwise", 1.5)])]),
        Event(f"{MARK}2", [], []),
    )
    found, outside_us = attribute(events)
    assert found == {0: [("gemm", 10.0), ("splitk", 2.0)], 12: [("elementwise", 1.5)], 2: []}
    assert outside_us == 3.0


def test_marks_on_the_gpu_are_not_counted_again() -> None:
    inner = Event("aten::mm", [Kernel("gemm", 10.0)])
    on_gpu = Event(f"{MARK}0", [Kernel("gemm", 10.0)], [], "DeviceType.CUDA")
    assert attribute([*flat(Event(f"{MARK}0", [], [inner])), on_gpu]) == ({0: [("gemm", 10.0)]}, 0.0)
    shadow = Event(f"{MARK}0", [Kernel(f"{MARK}0", 11.0)], [inner])
    assert attribute(flat(shadow)) == ({0: [("gemm", 10.0)]}, 0.0)


def test_events_of_torch_itself_are_read() -> None:
    """On the CPU there are no kernels, but marks and operations under them have the form that is read."""
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU]) as profiler, record_function(f"{MARK}7"):
        torch.ones(4) + 1
    found, outside_us = attribute(profiler.events())
    assert (found, outside_us) == ({7: []}, 0.0)


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
    rows = tuple(
        MeasuredOperation((one,), 2.0 * one.latency_us, ("kernel",)) for one in prediction.operations
    )  # fmt: skip
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
