"""`compare`: predicted beside measured, operation by operation, on the GPU that is here."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from gemm_eval.checks import as_integer, check_flag
from gemm_eval.errors import GemmEvalError
from gemm_eval.extras import needs_extra
from gemm_eval.torch.assemble import assemble, price_kernels
from gemm_eval.torch.comparison import Comparison, MeasuredOperation
from gemm_eval.torch.evaluate_module import Arch, arguments_of, check_attention_library, evaluator_for
from gemm_eval.torch.functions import FunctionMode
from gemm_eval.torch.fusion import kernels_of
from gemm_eval.torch.local_gpu import local_arch
from gemm_eval.torch.module_paths import follow_modules
from gemm_eval.torch.recorder import Recorder, current_precision

with needs_extra("compare", "torch"):
    import torch

__all__ = ["MARK", "attribute", "compare"]

MARK = "gemm_eval #"
"""Name, without its number, of the range that stands around an operation in the profile."""

_WARM_UPS = 3
_REPLAYS = 11
_PAUSE_S = 0.03
_WAIT_CYCLES = 2_000_000
Kernels = list[tuple[str, float]]
"""Name and microseconds of what ran on the GPU."""


def compare(
    module: torch.nn.Module,
    example_inputs: Any,
    arch: Arch | None = None,
    *,
    repeats: int = 10,
    cuda_graph: bool = True,
    attention_library: str | None = None,
    **options: Any,
) -> Comparison:
    """Run a module on the GPU that is here, and show what each operation took beside what is predicted.

    >>> print(compare(model.cuda(), inputs))         # doctest: +SKIP

    Eager: each operation is a kernel, or a few. torch's profiler says what ran on the GPU, and under which operation it
    was launched. It runs without gradients, and is left as it was.

    Args:
        module: on a GPU.
        example_inputs: as for `predict_module`, with tensors on that GPU.
        arch: what to predict for; None: this GPU, by its name.
        repeats: runs that are profiled, 1 to 1000; the median of each operation is taken.
        cuda_graph: time the whole in a CUDA graph too, where launches leave no gaps.
        attention_library: as for `predict_module`.
        options: of a new `GEMMEvaluator`; by default weights come from DRAM (`l2="cold"`), as in a large module.

    Raises:
        GemmEvalError: torch sees no GPU, this GPU is none that is known, or runs differ in what they do.
        InvalidOptionError: an argument is out of its range.
    """
    repeats = as_integer("repeats", repeats, 1, 1000)
    check_flag("cuda_graph", cuda_graph)
    check_attention_library(attention_library)
    if not torch.cuda.is_available():
        raise GemmEvalError("compare measures on a GPU, and torch sees none; predict_module needs none")
    evaluator = evaluator_for(local_arch() if arch is None else arch, options)
    args, kwargs = arguments_of(example_inputs)

    def run() -> Any:
        return module(*args, **kwargs)

    with torch.no_grad():
        for _ in range(_WARM_UPS):
            run()
        recorder, kernels_of_call, outside = _profiled(run, module, repeats)
        graph_us = _graph_us(run) if cuda_graph else None
    trace = recorder.finish()
    priced = price_kernels(kernels_of(trace, "eager"), evaluator, attention_library)
    rows = [
        MeasuredOperation(tuple(operations), *_median(kernels_of_call.get(place, [])))
        for place, operations in enumerate(priced)
        if operations or place in kernels_of_call
    ]
    prediction = assemble(trace, evaluator, "eager", attention_library)
    return Comparison(prediction, tuple(rows), outside, graph_us, torch.cuda.get_device_name())


def _profiled(run: Any, module: Any, repeats: int) -> tuple[Recorder, dict[int, list[Kernels]], float]:
    """Run under the profiler; kernels of each operation in each run, and microseconds outside of all of them."""
    from torch.profiler import ProfilerActivity, profile, record_function

    def mark(number: int) -> AbstractContextManager[Any]:
        found: AbstractContextManager[Any] = record_function(f"{MARK}{number}")
        return found

    found: dict[int, list[Kernels]] = {}
    outside_us, names = [], None
    for _ in range(repeats):
        recorder = Recorder(current_precision(), mark=mark)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            with follow_modules(recorder, module), FunctionMode(recorder), recorder:
                out = run()
            torch.cuda.synchronize()
        del out
        now = [call.name for call in recorder.trace.calls]
        if names is not None and now != names:
            raise GemmEvalError("the module does not do the same in each run: there is nothing to take the median of")
        names = now
        of_mark, outside = attribute(profiler.events())
        outside_us.append(outside)
        for number, kernels in of_mark.items():
            if number in recorder.call_of_mark:
                found.setdefault(recorder.call_of_mark[number], []).append(kernels)
            else:  # a view that ran a kernel would be one; its time is not lost
                outside_us[-1] += sum(us for _, us in kernels)
    return recorder, found, statistics.median(outside_us)


def attribute(events: Iterable[Any]) -> tuple[dict[int, Kernels], float]:
    """Return the kernels of each marked operation, and the microseconds of kernels that none launched.

    Args:
        events: of torch's profiler (`profile.events()`): each has `name`, `cpu_children`, and `kernels` that were
            launched in it and in none of its children (by correlation of launch and kernel), with
            `name` and `duration`.
    """
    events = [event for event in events if _is_on_cpu(event)]
    found: dict[int, Kernels] = {}
    seen: set[int] = set()
    for event in events:
        number = _number_of(event.name)
        if number is None:
            continue
        kernels: Kernels = []
        todo = [event]
        while todo:
            inner = todo.pop()
            if id(inner) in seen:
                continue
            seen.add(id(inner))
            kernels += _kernels(inner)
            todo += reversed(list(inner.cpu_children))
        found.setdefault(number, []).extend(kernels)
    outside_us = sum(us for event in events if id(event) not in seen for _, us in _kernels(event))
    return found, outside_us


def _kernels(event: Any) -> Kernels:
    """What an event launched itself, without the shadows that ranges throw over kernels."""
    return [(one.name, float(one.duration)) for one in event.kernels if _number_of(one.name) is None]


def _is_on_cpu(event: Any) -> bool:
    """Ranges stand in the profile twice: where they were opened, and over the kernels on the GPU."""
    return str(getattr(event, "device_type", "CPU")).rpartition(".")[2] == "CPU"


def _number_of(name: str) -> int | None:
    return int(name.removeprefix(MARK)) if name.startswith(MARK) else None


def _median(runs: Sequence[Kernels]) -> tuple[float, tuple[str, ...]]:
    """Median of the time of an operation over runs, and the names of its kernels."""
    if not runs:
        return 0.0, ()
    return statistics.median(sum(us for _, us in kernels) for kernels in runs), tuple(name for name, _ in runs[-1])


def _graph_us(run: Any) -> float:
    """Median time of a replay of everything as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    times = []
    for _ in range(_REPLAYS):
        time.sleep(_PAUSE_S)  # clocks of a GPU that is not hot
        torch.cuda._sleep(_WAIT_CYCLES)  # so that the graph is in the queue when the GPU comes to it
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end))  # milliseconds
    del out
    return float(statistics.median(times[1:]))
