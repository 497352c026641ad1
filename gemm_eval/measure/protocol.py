"""One GEMM of a runner, timed by a `TimingProtocol`: where its operands lie, how long a replay is, what it took."""

from __future__ import annotations

import time
from collections.abc import Callable

from gemm_eval.device import Call, Timing, TimingProtocol, graph_of, num_calls, summarize, time_in_turns
from gemm_eval.errors import InvalidOptionError
from gemm_eval.measure.runners import OperandLayout, Runner
from gemm_eval.measure.shapes import GemmItem, rough_latency_us

__all__ = ["measure_shape", "plan_layout"]

_ALIGN_BYTES = 256
_MAX_PILOT_CALLS = 20
_PILOT_US = 300.0


def plan_layout(weight_bytes: int, pool_bytes: int, protocol: TimingProtocol) -> OperandLayout:
    """Place as many weight copies as the protocol asks for and the pool holds, without overlap.

    Raises:
        InvalidOptionError: not even one copy fits.
    """
    stride = -(-weight_bytes // _ALIGN_BYTES) * _ALIGN_BYTES
    if weight_bytes > pool_bytes:
        raise InvalidOptionError(
            f"--pool-gib must hold one copy of the weights: {weight_bytes:,} bytes, got {pool_bytes:,}"
        )
    fitting = 1 + (pool_bytes - weight_bytes) // stride
    wanted = 1 if protocol.l2 == "warm" else protocol.cold_bytes // weight_bytes + 2
    copies = min(fitting, wanted, protocol.max_calls)
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
    calls = runner.bind(shape, plan_layout(runner.weight_bytes(shape), runner.pool_bytes, protocol))
    calls[0]()  # the library picks its kernel, and the driver loads it
    runner.synchronize()
    pilot = graph_of(runner, calls, min(_MAX_PILOT_CALLS, max(1, int(_PILOT_US / rough_latency_us(shape)))))
    pilot.launch()
    pilot_us = (runner.elapsed_us(pilot.launch) - floor_us) / pilot.num_calls
    if best_us is not None and pilot_us > protocol.give_up_ratio * best_us:
        return Timing(pilot_us, pilot_us, 0.0, 1, pilot.num_calls, min(len(calls), pilot.num_calls))
    graph = graph_of(runner, calls, num_calls(max(pilot_us, 1.0), protocol))
    graph.launch()
    runner.synchronize()
    if protocol.clock == "sustained":
        _warm_up(runner, graph.launch, protocol.warm_up_s)

    def prepare(_: GemmItem) -> None:
        calls[-1]()  # untimed: the clock is up, and the kernel's code is on the device's chip
        if protocol.l2 == "cold":
            runner.flush_l2()

    samples = time_in_turns(
        runner,
        {shape: graph},
        protocol.replays_of(shape.M),
        before=prepare,
        idle_s=protocol.idle_s_of(shape.M),
        floor_us=floor_us,
        sleep=sleep,
    )
    return summarize(
        samples[shape], calls_per_replay=graph.num_calls, num_weight_copies=min(len(calls), graph.num_calls)
    )


def _warm_up(runner: Runner, launch: Call, seconds: float) -> None:
    busy_us = 0.0
    while busy_us < seconds * 1e6:
        busy_us += max(runner.elapsed_us(launch), 1.0)
