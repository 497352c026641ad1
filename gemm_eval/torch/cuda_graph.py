"""Time of a module as a CUDA graph, where launches leave no gaps."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gemm_eval.extras import needs_extra

with needs_extra("compare", "torch"):
    import torch

__all__ = ["measure_graph_us"]

_REPLAYS = 11
_PAUSE_S = 0.03
_WAIT_CYCLES = 2_000_000


def measure_graph_us(run: Callable[[], Any]) -> float | None:
    """Return the median time of a replay of everything that `run` launches; None, with a warning: it has no graph.

    While it is captured, `torch.cuda.is_current_stream_capturing` says False, so that it does what it does otherwise:
    transformers makes attention masks where it says True, and other kernels run.
    """
    graph = torch.cuda.CUDAGraph()
    try:
        _run_without_waiting(run)
        # the outer context sets the stream back, which a capture that fails does not
        with torch.cuda.stream(torch.cuda.current_stream()), _as_not_captured(), torch.cuda.graph(graph):
            out = run()
    except Exception as error:  # it ran before, whatever it is that it may not do now
        cause = error.__context__ or error  # the end of a capture fails too, and says less
        what = f"{type(cause).__name__}: {str(cause).partition(chr(10))[0]}"
        warnings.warn(f"no time in a CUDA graph: the module cannot be captured ({what})", RuntimeWarning, stacklevel=3)
        return None
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


def _run_without_waiting(run: Callable[[], Any]) -> None:
    """Run it on a stream of its own, as before every capture; fail where it waits for the GPU.

    In a capture that would fail too, but leave torch's allocator in the midst of one.
    """
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


@contextmanager
def _as_not_captured() -> Iterator[None]:
    """Let code that asks torch whether it is captured do what it did in eager mode."""
    original = torch.cuda.is_current_stream_capturing
    torch.cuda.is_current_stream_capturing = lambda: False
    try:
        yield
    finally:
        torch.cuda.is_current_stream_capturing = original
