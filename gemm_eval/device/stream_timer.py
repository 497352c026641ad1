"""CUDA graphs and events on one stream, through CuPy: what `gemm_eval.device.timing` asks of a GPU."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

from gemm_eval.device import runtime
from gemm_eval.device.timing import Call

__all__ = ["StreamTimer"]


class StreamTimer:
    """See `Timer`.

    Args:
        stream: of CuPy; everything that is timed comes to it.
        device: number of its GPU, which is made the current one where it need be; None: it is the current one.
    """

    def __init__(self, stream: Any, device: int | None = None) -> None:
        self.cupy = runtime.import_cupy()
        self.stream = stream
        self._device = device
        self._events = [self.cupy.cuda.Event() for _ in range(2)]

    def _on_device(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._device is None else runtime.on_device(self._device)

    def capture(self, enqueue: Call) -> Call:
        """Return a call that replays a graph of all that `enqueue` queues."""
        with self._on_device(), self.stream as stream:
            stream.begin_capture()
            try:
                enqueue()
            except BaseException:
                with contextlib.suppress(Exception):  # the first error is the one to tell
                    stream.end_capture()
                raise
            graph = stream.end_capture()
            graph.upload(stream)
        return partial(graph.launch, self.stream)

    def elapsed_us(self, call: Call) -> float:
        """Run a call behind what is queued, wait for it, and return its device time in us."""
        start, stop = self._events
        with self._on_device():
            start.record(self.stream)
            call()
            stop.record(self.stream)
            stop.synchronize()
        return float(self.cupy.cuda.get_elapsed_time(start, stop)) * 1000.0

    def synchronize(self) -> None:
        """Wait for everything queued."""
        self.stream.synchronize()
