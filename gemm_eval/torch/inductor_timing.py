"""Timing of Inductor's candidates without the host's part: many calls in one CUDA graph, each after a flush of L2.

Inductor puts events around a call. Until the call has launched its kernel the GPU waits, and what Python takes for a
library's function counts as the kernel's time: 10 to 40 us on a busy host, more than most kernels of few tokens take. A
graph of one call is no better below 10 us: the same kernel took 7 and 16 us on an H200, torch 2.11.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["time_in_graphs"]

_MOST_CALLS = 10
_GRAPH_MS = 1.0  # so many calls as this holds
_REPLAYS = 5
_LEAST_MS = 1e-4  # where a difference is within its noise


def time_in_graphs(choices: Sequence[Any]) -> bool:
    """Let candidates of a GEMM be timed in CUDA graphs, all or none; return whether they are.

    None where this torch times them otherwise than torch 2.10 to 2.15 do, or in another process.

    Args:
        choices: Inductor's `ChoiceCaller`s.
    """
    from torch._inductor import config

    # what goes to another process is pickled, and timed there
    if config.autotune_in_subproc or getattr(config, "pipeline_max_autotune_gemm", False):
        return False
    if len(choices) < 2 or not all(_can_be_timed(choice) for choice in choices):
        return False
    for choice in choices:
        choice.benchmark = _in_graph(choice.bmreq, choice.benchmark)
    return True


def _can_be_timed(choice: Any) -> bool:
    from torch._inductor.select_algorithm import ExternKernelCaller, TritonTemplateCaller

    # others, such as graphs of several kernels and calls that allocate their result, are timed in ways of their own
    if not isinstance(choice, ExternKernelCaller | TritonTemplateCaller) or choice.layout.device.type != "cuda":
        return False
    is_timed_by_request = callable(getattr(getattr(choice, "bmreq", None), "do_bench", None))
    return is_timed_by_request and getattr(choice, "has_out_variant", True)


def _in_graph(request: Any, benchmark: Callable[..., float]) -> Callable[..., float]:
    def benchmark_in_graph(*args: Any, **kwargs: Any) -> float:
        import torch

        do_bench = request.do_bench

        def of_graph(call: Callable[[], Any], *tensors: Any, **options: Any) -> Any:
            try:
                return _graph_ms(call)
            except RuntimeError:  # it cannot be captured, or does not run, which Inductor is to see
                torch.cuda.synchronize()
                return do_bench(call, *tensors, **options)

        # launchers take the stream that is current when they are made, and the default one cannot be captured
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        request.do_bench = of_graph
        try:
            with torch.cuda.stream(stream):
                return benchmark(*args, **kwargs)
        finally:
            del request.do_bench
            torch.cuda.current_stream().wait_stream(stream)

    return benchmark_in_graph


def _graph_ms(call: Callable[[], Any]) -> float:
    """Return what a call takes on the GPU when its operands are not in L2: what it adds to a graph of flushes."""
    import torch

    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    flushed = torch.empty(l2_bytes // 4, dtype=torch.int32, device="cuda")
    call()  # modules are loaded, workspaces allocated
    once_ms = _elapsed_ms(call)
    num_calls = max(1, min(_MOST_CALLS, round(_GRAPH_MS / max(once_ms, _LEAST_MS))))

    def flush_and_call() -> None:
        flushed.zero_()
        call()

    both_ms, flush_ms = (_replay_ms(each, num_calls) for each in (flush_and_call, flushed.zero_))
    return max((both_ms - flush_ms) / num_calls, _LEAST_MS)


def _replay_ms(call: Callable[[], Any], num_calls: int) -> float:
    """Return the least time of replays of a graph of calls on the current stream."""
    import torch

    graph = torch.cuda.CUDAGraph()
    # not `torch.cuda.graph`, which may collect garbage and empties the allocator's cache each time
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        for _ in range(num_calls):
            call()
    finally:
        graph.capture_end()
    graph.replay()
    return min(_elapsed_ms(graph.replay) for _ in range(_REPLAYS))


def _elapsed_ms(call: Callable[[], Any]) -> float:
    import torch

    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))
