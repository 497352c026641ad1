"""`compare` measures a module on this machine's GPU, beside its prediction."""

import re
import statistics
import time
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from gemm_eval.errors import GemmEvalError
from gemm_eval.torch.evaluate_module import Arch, arch_of_name, arguments_of, evaluator_of
from gemm_eval.torch.functions import functions_caught, replaced
from gemm_eval.torch.fusion import kernels_of
from gemm_eval.torch.price import assemble, price_kernels
from gemm_eval.torch.recorder import Recorder, current_precision
from gemm_eval.torch.render import Comparison, MeasuredOperation
from gemm_eval.torch.trace import follow_modules
from gemm_eval.words import as_integer, check_flag, needs_extra

with needs_extra("compare", "torch"):
    import torch


_REPLAYS = 11
_PAUSE_S = 0.03
_WAIT_CYCLES = 2_000_000


def measure_graph_us(run: Callable[[], Any]) -> float | None:
    """Return the median time of a replay of everything that `run` launches; None, with a warning: it has no graph."""
    try:
        graph = capture_graph(run)
    except Exception as error:  # it ran before, whatever it is that it may not do now
        cause = error.__context__ or error  # the end of a capture fails too, and says less
        what = f"{type(cause).__name__}: {str(cause).partition(chr(10))[0]}"
        warnings.warn(f"no time in a CUDA graph: the module cannot be captured ({what})", RuntimeWarning, stacklevel=3)
        return None
    return replay_us(graph)


def capture_graph(run: Callable[[], Any]) -> Any:
    """Return a CUDA graph of everything that `run` launches.

    While it is captured, `torch.cuda.is_current_stream_capturing` says False, so that it does what it does otherwise:
    transformers makes attention masks where it says True, and other kernels run.
    """
    graph = torch.cuda.CUDAGraph()
    _run_without_waiting(run)
    # the outer context sets the stream back, which a capture that fails does not
    uncaptured = replaced(torch.cuda, "is_current_stream_capturing", lambda: False)
    with torch.cuda.stream(torch.cuda.current_stream()), uncaptured, torch.cuda.graph(graph):
        run()
    return graph


def replay_us(graph: Any, prepare: Callable[[], Any] | None = None, num_replays: int = _REPLAYS) -> float:
    """Return the median time of a replay but the first; `prepare` launches what runs before each, untimed."""
    times = []
    for _ in range(num_replays):
        time.sleep(_PAUSE_S)  # clocks of a GPU that is not hot
        torch.cuda._sleep(_WAIT_CYCLES)  # so that the graph is in the queue when the GPU comes to it
        if prepare is not None:
            prepare()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end))  # milliseconds
    return float(statistics.median(times[1:]))


def _run_without_waiting(run: Callable[[], Any]) -> None:
    """Run it on a stream of its own, as before every capture; fail where it waits for the GPU, as in a capture."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    before = torch.cuda.get_sync_debug_mode()
    _set_sync_debug_mode("error")
    try:
        with torch.cuda.stream(stream):
            run()
    finally:
        _set_sync_debug_mode(before)
    torch.cuda.current_stream().wait_stream(stream)


def _set_sync_debug_mode(mode: int | str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that not every wait is seen
        torch.cuda.set_sync_debug_mode(mode)


MARK = "gemm_eval #"
"""Name, without its number, of the range that stands around an operation in the profile."""

_WARM_UPS = 3
_NS_PER_US = 1000
_LAUNCH = re.compile("cu(da)?[A-Z]")
"""Calls of CUDA's runtime (`cudaLaunchKernel`, `cudaMemsetAsync`) and driver (`cuLaunchKernelEx`)."""
Kernels = list[tuple[str, float]]
"""Name and microseconds of what ran on the GPU."""


class _Mark(NamedTuple):
    """When the host was within a marked operation."""

    begin_ns: int
    end_ns: int
    number: int


def compare(
    module: torch.nn.Module, example_inputs: Any, arch: Arch | None = None, *, repeats: int = 10,
    cuda_graph: bool = True, attention_library: str | None = None, **options: Any,
) -> Comparison:  # fmt: skip
    """Run a module on the GPU that is here, and show what each operation took beside what is predicted.

    >>> print(compare(model.cuda(), inputs))         # doctest: +SKIP

    Eager: each operation is a kernel, or a few. torch's profiler says what ran on the GPU, and under which operation it
    was launched. It runs without gradients, and is left as it was.

    The CUDA graph is of the operations that ran in eager mode (TORCH.md, "compare"). A module that cannot be captured
    (it waits for the GPU) gives a warning, and no time in a graph.

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
    if not torch.cuda.is_available():
        raise GemmEvalError("compare measures on a GPU, and torch sees none; predict_module needs none")
    of = arch_of_name(torch.cuda.get_device_name()) if arch is None else arch
    evaluator = evaluator_of(of, options, attention_library)
    args, kwargs = arguments_of(example_inputs)

    def run() -> Any:
        return module(*args, **kwargs)

    with torch.no_grad():
        for _ in range(_WARM_UPS):
            run()
        recorder, kernels_of_call, outside = _profiled(run, module, repeats)
        graph_us = measure_graph_us(run) if cuda_graph else None
    trace = recorder.finish()
    priced = price_kernels(kernels_of(trace, "eager"), evaluator, attention_library)
    rows = [
        MeasuredOperation(tuple(operations), *_median(kernels_of_call.get(index, [])))
        for index, operations in enumerate(priced)
        if operations or index in kernels_of_call
    ]
    prediction = assemble(trace, evaluator, "eager", attention_library)
    return Comparison(prediction, tuple(rows), outside, graph_us, torch.cuda.get_device_name())


def _profiled(run: Any, module: Any, repeats: int) -> tuple[Recorder, dict[int, list[Kernels]], float]:
    """Run under the profiler; kernels of each operation in each run, and microseconds outside of all of them."""
    from torch.profiler import ProfilerActivity, profile, record_function

    def mark(number: int) -> AbstractContextManager[Any]:
        result: AbstractContextManager[Any] = record_function(f"{MARK}{number}")
        return result

    result: dict[int, list[Kernels]] = {}
    outside_us, names = [], None
    for _ in range(repeats):
        recorder = Recorder(current_precision(), mark=mark)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            with follow_modules(recorder, module), functions_caught(recorder), recorder:
                out = run()
            torch.cuda.synchronize()
        del out
        now = [call.name for call in recorder.trace.calls]
        if names is not None and now != names:
            raise GemmEvalError("the module does not do the same in each run: there is nothing to take the median of")
        names = now
        of_mark, outside = attribute(profiler.profiler.kineto_results.events())
        outside_us.append(outside)
        for number, kernels in of_mark.items():
            if number in recorder.call_of_mark:
                result.setdefault(recorder.call_of_mark[number], []).append(kernels)
            else:  # a view that ran a kernel would be one; its time is not lost
                outside_us[-1] += sum(us for _, us in kernels)
    return recorder, result, statistics.median(outside_us)


def attribute(events: Iterable[Any]) -> tuple[dict[int, Kernels], float]:
    """Return the kernels of each marked operation, and the microseconds of kernels that none launched.

    A kernel belongs to the innermost mark within which the host launched it, in the same thread. `events` are kineto's:
    a call of CUDA and what it launched have one `correlation_id`, and as `linked_correlation_id` that of the operation
    around. Numbers of operations and of calls are counted apart: one may be both.
    """
    marks: dict[int, list[_Mark]] = {}
    launches: dict[tuple[int, int], Any] = {}
    kernels = []
    for event in events:
        name = event.name()
        number = int(name.removeprefix(MARK)) if name.startswith(MARK) else None
        if event.device_type() != torch.autograd.DeviceType.CPU:
            if number is None and not event.is_user_annotation():  # ranges throw shadows over kernels
                kernels.append(event)
        elif number is not None:
            begin = event.start_ns()
            marks.setdefault(event.start_thread_id(), []).append(_Mark(begin, begin + event.duration_ns(), number))
        elif _LAUNCH.match(name):
            launches[event.correlation_id(), event.linked_correlation_id()] = event
    for of_thread in marks.values():
        of_thread.sort()
    result: dict[int, Kernels] = {mark.number: [] for of_thread in marks.values() for mark in of_thread}
    outside_us = 0.0
    for kernel in sorted(kernels, key=lambda event: event.start_ns()):
        launch = launches.get((kernel.correlation_id(), kernel.linked_correlation_id()))
        number = None
        if launch is not None:
            time_ns, of_thread = launch.start_ns(), marks.get(launch.start_thread_id(), [])
            before = of_thread[: bisect_right(of_thread, time_ns, key=lambda mark: mark.begin_ns)]
            number = next((mark.number for mark in reversed(before) if time_ns <= mark.end_ns), None)
        us = kernel.duration_ns() / _NS_PER_US
        if number is None:
            outside_us += us
        else:
            result[number].append((kernel.name(), us))
    return result, outside_us


def _median(runs: Sequence[Kernels]) -> tuple[float, tuple[str, ...]]:
    """Median of the time of an operation over runs, and the names of its kernels."""
    if not runs:
        return 0.0, ()
    return statistics.median(sum(us for _, us in kernels) for kernels in runs), tuple(name for name, _ in runs[-1])
