"""The timing protocol: how one GEMM is timed so that it repeats, and what is charged to it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from gemm_eval._words import shown
from gemm_eval.errors import InvalidOptionError
from gemm_eval.measure._runner import Enqueue, OperandLayout, Runner
from gemm_eval.measure._shapes import GemmItem, rough_latency_us

__all__ = ["Timing", "TimingProtocol", "measure_floor_us", "measure_shape", "num_calls", "plan_layout"]

_ALIGN_BYTES = 256
_MAX_PILOT_CALLS = 20
_PILOT_US = 300.0


@dataclass(frozen=True)
class TimingProtocol:
    """How a GEMM is timed. A replay is one launch of a CUDA graph of n calls, between two events.

    Attributes:
        l2: ``cold``: the calls of a replay rotate over weight copies, and L2 is flushed before each replay (outside the
            events). ``warm``: one weight copy, no flush. A and C are one buffer each: as the layer before leaves them.
        clock: ``burst``: short replays with idle time between them, so that the clock stays at boost. ``sustained``:
            replays without a pause, after `warm_up_s` of them.
        target_busy_us, max_busy_us: busy time of a replay; n follows from it.
        max_calls: most calls in a graph.
        cold_bytes: what the weight copies exceed together, where the graph has calls enough; over 4 times the L2.
        num_replays, num_short_replays: measured replays; the latter at M <= `max_short_rows`.
        idle_s: pause before each replay of a larger M in a burst.
        max_short_rows: largest M that is short and bound by memory, and needs no pause.
        warm_up_s: busy time before the first measured replay of a sustained measurement.
        give_up_ratio: where one GEMM is timed in several ways, a way that a first short replay shows to take so many
            times the best known time gets no more than one such replay.
    """

    l2: str = "cold"
    clock: str = "burst"
    target_busy_us: float = 3_000.0
    max_busy_us: float = 9_000.0
    max_calls: int = 400
    cold_bytes: int = 256_000_000
    num_replays: int = 5
    num_short_replays: int = 7
    idle_s: float = 0.015
    max_short_rows: int = 256
    warm_up_s: float = 0.3
    give_up_ratio: float = 3.0

    @classmethod
    def quick(cls, **settings: Any) -> TimingProtocol:
        """Return a shorter one, for comparing many kernels: three replays of a millisecond, and shorter pauses."""
        shorter = {"target_busy_us": 1_000.0, "num_replays": 3, "num_short_replays": 3, "idle_s": 0.008}
        return cls(**(shorter | {"give_up_ratio": 2.0} | settings))

    @property
    def is_quick(self) -> bool:
        """Whether replays are as short as those of `quick`."""
        return self == self.quick(l2=self.l2, clock=self.clock)

    def __post_init__(self) -> None:
        for name, allowed in (("l2", ("cold", "warm")), ("clock", ("burst", "sustained"))):
            if getattr(self, name) not in allowed:
                raise InvalidOptionError(
                    f"{name} must be one of {', '.join(allowed)}, got {shown(getattr(self, name))}"
                )

    def replays_of(self, shape: GemmItem) -> int:
        """Return how many replays of `shape` are measured."""
        return self.num_short_replays if self.max_short_rows >= shape.M else self.num_replays

    def idle_s_of(self, shape: GemmItem) -> float:
        """Return the pause before each replay, in seconds."""
        return 0.0 if self.clock == "sustained" or self.max_short_rows >= shape.M else self.idle_s

    def describe(self) -> dict[str, Any]:
        """Return the settings, for the meta file."""
        return asdict(self)


@dataclass(frozen=True)
class Timing:
    """Device time of one GEMM, over replays: median, minimum, and interquartile range over median."""

    latency_us: float
    min_us: float
    spread_frac: float
    num_replays: int
    calls_per_replay: int
    num_weight_copies: int


def num_calls(latency_us: float, protocol: TimingProtocol) -> int:
    """Return how many calls a replay has: about the target of busy time, at least 3 if the limit allows, at least 1."""
    wanted = round(protocol.target_busy_us / latency_us)
    at_most = int(protocol.max_busy_us / latency_us)
    return max(1, min(max(wanted, 3), at_most, protocol.max_calls))


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


def measure_floor_us(runner: Runner, num_samples: int = 21) -> float:
    """Return the cost of two events and the launch of a graph of one empty kernel, in us: charged to no GEMM."""
    launch = runner.capture(runner.idle)
    launch()
    runner.synchronize()
    samples = []
    for _ in range(num_samples):
        runner.flush_l2()  # keeps the device busy while the host enqueues, as in a measurement
        samples.append(runner.elapsed_us(launch))
    return statistics.median(samples)


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
    pilot_calls = min(_MAX_PILOT_CALLS, max(1, int(_PILOT_US / rough_latency_us(shape))))
    pilot = runner.capture(lambda: _enqueue(calls, pilot_calls))
    pilot()
    pilot_us = (runner.elapsed_us(pilot) - floor_us) / pilot_calls
    if best_us is not None and pilot_us > protocol.give_up_ratio * best_us:
        return Timing(pilot_us, pilot_us, 0.0, 1, pilot_calls, min(len(calls), pilot_calls))
    count = num_calls(max(pilot_us, 1.0), protocol)
    launch = runner.capture(lambda: _enqueue(calls, count))
    launch()
    runner.synchronize()
    if protocol.clock == "sustained":
        _warm_up(runner, launch, protocol.warm_up_s)
    samples = []
    for _ in range(protocol.replays_of(shape)):
        if idle_s := protocol.idle_s_of(shape):
            sleep(idle_s)
        calls[-1]()  # untimed: the clock is up, and the kernel's code is on the device's chip
        if protocol.l2 == "cold":
            runner.flush_l2()
        samples.append((runner.elapsed_us(launch) - floor_us) / count)
    return replace(_summarize(samples), calls_per_replay=count, num_weight_copies=min(len(calls), count))


def _enqueue(calls: Any, count: int) -> None:
    for index in range(count):
        calls[index % len(calls)]()


def _warm_up(runner: Runner, launch: Enqueue, seconds: float) -> None:
    busy_us = 0.0
    while busy_us < seconds * 1e6:
        busy_us += max(runner.elapsed_us(launch), 1.0)


def _summarize(samples: list[float]) -> Timing:
    median = statistics.median(samples)
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else [median] * 3
    return Timing(median, min(samples), (high - low) / median, len(samples), 0, 0)
