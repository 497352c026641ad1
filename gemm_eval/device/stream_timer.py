"""CUDA graphs and events on one stream, through CuPy: what `gemm_eval.device.timing` asks of a GPU."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from functools import cached_property, partial
from typing import Any

from gemm_eval.device import runtime
from gemm_eval.device.read_pass import ReadPass
from gemm_eval.device.timing import Call, TimingProtocol

__all__ = ["StreamTimer"]


class StreamTimer(ABC):
    """See `Timer`.

    Args:
        stream: of CuPy; everything that is timed comes to it.
        device: number of its GPU, which is made the current one where it need be.
    """

    def __init__(self, stream: Any, device: int) -> None:
        self.cupy = runtime.import_cupy()
        self.stream = stream
        self.device = device
        cuda = self.cupy.cuda.runtime
        self.l2_bytes = int(cuda.deviceGetAttribute(cuda.cudaDevAttrL2CacheSize, device))
        self._events = [self.cupy.cuda.Event() for _ in range(2)]

    @abstractmethod
    def new_bytes(self, num_bytes: int) -> int:
        """Return the address of new memory that is held as long as the timer, for `flush_l2`.

        Raises:
            GemmEvalError: there is not so much.
        """

    @property
    def flush_bytes(self) -> int:
        """Bytes that a flush reads."""
        return TimingProtocol().cold_bytes_of(self.l2_bytes)

    @cached_property
    def _flush_address(self) -> int:
        return self.new_bytes(self.flush_bytes)

    @cached_property
    def _read_pass(self) -> ReadPass:
        return ReadPass(self.device, self.stream.ptr)

    def capture(self, enqueue: Call) -> Call:
        """Return a call that replays a graph of all that `enqueue` queues."""
        with runtime.on_device(self.device), self.stream as stream:
            stream.begin_capture()
            try:
                enqueue()
            except BaseException:
                with contextlib.suppress(Exception):  # the first error is the one to tell
                    stream.end_capture()
                raise
            graph = stream.end_capture()
            graph.upload(stream)
        self.synchronize()
        return partial(graph.launch, self.stream)

    def elapsed_us(self, call: Call) -> float:
        """Run a call behind what is queued, wait for it, and return its device time in us."""
        start, stop = self._events
        with runtime.on_device(self.device):
            start.record(self.stream)
            call()
            stop.record(self.stream)
            stop.synchronize()
        return float(self.cupy.cuda.get_elapsed_time(start, stop)) * 1000.0

    def read_bytes(self, address: int, num_bytes: int) -> None:
        """Queue one pass over memory that does nothing with it."""
        with runtime.on_device(self.device):
            self._read_pass.queue(address, num_bytes)

    def flush_l2(self) -> None:
        """Queue a pass over memory that nobody wants: L2 is left with clean lines of it."""
        self.read_bytes(self._flush_address, self.flush_bytes)

    def idle(self) -> None:
        """Queue a kernel that does nothing."""
        self.read_bytes(0, 0)

    def synchronize(self) -> None:
        """Wait for everything queued."""
        self.stream.synchronize()
