"""The time of a CUDA graph of torch's, as the examples that measure take it."""

from __future__ import annotations

import torch

WAIT_CYCLES = 2_000_000


def replay_us(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> float:
    """Return the time of a replay, which is in the queue when the GPU comes to it."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(stream):
        torch.cuda._sleep(WAIT_CYCLES)
        start.record()
        graph.replay()
        end.record()
    end.synchronize()
    return float(start.elapsed_time(end) * 1e3)
