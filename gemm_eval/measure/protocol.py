"""One GEMM of a runner, timed by a `TimingProtocol`: where its operands lie, how long a replay is, what it took."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from gemm_eval.device import Call, Timing, TimingProtocol, capture_calls, summarize, time_in_turns
from gemm_eval.errors import InvalidOptionError
from gemm_eval.measure.runners import OperandLayout, Runner
from gemm_eval.measure.shapes import GemmItem, GroupedShape, rows_of

__all__ = ["measure_shape", "plan_layout"]

_ALIGN_BYTES = 256


def plan_layout(
    weight_bytes: int, pool_bytes: int, l2_bytes: int, protocol: TimingProtocol, *, read_bytes: int | None = None
) -> OperandLayout:
    """Place as many weight copies as the protocol asks for on a GPU with that L2, and the pool holds, without overlap.

    Args:
        weight_bytes: of one copy.
        pool_bytes, l2_bytes: sizes of the pool and of the L2.
        protocol: how cold weights are.
        read_bytes: what a call reads of a copy; None: all of it.

    Raises:
        InvalidOptionError: not even one copy fits.
    """
    stride = -(-weight_bytes // _ALIGN_BYTES) * _ALIGN_BYTES
    if weight_bytes > pool_bytes:
        raise InvalidOptionError(
            f"--pool-gib must hold one copy of the weights: {weight_bytes:,} bytes, got {pool_bytes:,}"
        )
    most = 1 + (pool_bytes - weight_bytes) // stride
    copies = protocol.num_weight_copies(weight_bytes if read_bytes is None else read_bytes, l2_bytes, most=most)
    return OperandLayout(0, tuple(i * stride for i in range(copies)), 0)


def measure_shape(
    runner: Runner,
    shape: GemmItem,
    protocol: TimingProtocol,
    *,
    floor_us: float = 0.0,
    best_us: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Timing:
    """Time one GEMM.

    Args:
        floor_us: what `measure_floor_us` returned; subtracted from each replay.
        best_us: best known time of this GEMM; far above it the first short replay must do, as `num_replays` 1 says.
        sleep: pauses that many seconds (for tests).

    Raises:
        Exception: whatever the runner raises: a GEMM that its library refuses, or a device error.
    """
    weight_bytes = runner.weight_bytes(shape)
    read = weight_bytes * shape.num_active // shape.G if isinstance(shape, GroupedShape) else weight_bytes
    layout = plan_layout(weight_bytes, runner.pool_bytes, runner.l2_bytes, protocol, read_bytes=read)
    calls = runner.bind(shape, layout)
    graph = capture_calls(runner, calls, protocol, floor_us=floor_us, best_us=best_us or math.inf)
    copies = min(len(calls), graph.num_calls)
    if graph.given_up_us is not None:
        return Timing(graph.given_up_us, graph.given_up_us, 0.0, 1, graph.num_calls, copies)
    if protocol.clock == "sustained":
        _warm_up(runner, graph.launch, protocol.warm_up_s)
    samples = time_in_turns(runner, {shape: graph}, rows_of(shape), protocol, floor_us=floor_us, sleep=sleep)
    return summarize(samples[shape], calls_per_replay=graph.num_calls, num_weight_copies=copies)


def _warm_up(runner: Runner, launch: Call, seconds: float) -> None:
    busy_us = 0.0
    while busy_us < seconds * 1e6:
        busy_us += max(runner.elapsed_us(launch), 1.0)
