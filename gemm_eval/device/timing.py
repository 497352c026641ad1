"""How work on a GPU is timed so that it repeats: as a CUDA graph of several calls, replayed between two events.

There is one implementation, `time_in_turns`, and two callers, whose "measured" does not mean the same yet: data sets
(`gemm_eval.measure.measure_shape`) and `config="profile"` (`gemm_eval.kernels.tune.time_configs`). They differ in:

=====================  =============================================  ==============================================
                       data sets                                      profile
=====================  =============================================  ==============================================
L2 before a replay     `BenchDevice.flush_l2`: 256 MB read and         `fill_call`: twice the L2 read
                       written, other 256 MB read
floor                  `measure_floor_us` is subtracted from each      nothing is subtracted
                       replay
just before a replay   one untimed call, then the flush                the fill only
copies of the weights  exceed 256 MB together                          exceed three times the L2, two at least
calls of a graph       from a graph of up to 20 calls, less the floor  from one call after the first
first launch           untimed                                         timed, as all others
order                  a GEMM after the other                          configs in turns: a falling clock falls for all
settings               `TimingProtocol`: 3 ms busy, 5 or 7 replays,    `gemm_eval.kernels.tune.PROTOCOL`: 1 ms busy, 5
                       pauses of 15 ms                                 replays, pauses of 8 ms
=====================  =============================================  ==============================================

Which is right for what can be said only after GEMMs were measured both ways; until then neither changes.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.words import shown

__all__ = [
    "BenchTimer",
    "Call",
    "TimedGraph",
    "Timer",
    "Timing",
    "TimingProtocol",
    "graph_of",
    "measure_floor_us",
    "num_calls",
    "summarize",
    "time_in_turns",
]

K = TypeVar("K", bound=Hashable)

_MIN_CALLS = 3

Call = Callable[[], None]
"""Puts work into a stream, such as a kernel or a graph, and returns at once."""


class Timer(Protocol):
    """A GPU with a stream."""

    def capture(self, enqueue: Call) -> Call:
        """Record what `enqueue` queues as a CUDA graph; returns its launch."""

    def elapsed_us(self, call: Call) -> float:
        """Return the device time of what `call` queues, between two events, in us; waits for it."""


class BenchTimer(Timer, Protocol):
    """A GPU with a stream that measurements have for themselves."""

    def idle(self) -> None:
        """Queue a kernel that does nothing."""

    def flush_l2(self) -> None:
        """Queue reads and writes that leave nothing of the operands in L2."""

    def synchronize(self) -> None:
        """Wait for everything queued."""


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

    def replays_of(self, M: int) -> int:
        """Return how many replays of a GEMM with M rows are measured."""
        return self.num_short_replays if self.max_short_rows >= M else self.num_replays

    def idle_s_of(self, M: int) -> float:
        """Return the pause before each replay of a GEMM with M rows, in seconds."""
        return 0.0 if self.clock == "sustained" or self.max_short_rows >= M else self.idle_s

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


class TimedGraph(NamedTuple):
    """A captured graph: its launch, and how many calls it replays."""

    launch: Call
    num_calls: int


def num_calls(latency_us: float, protocol: TimingProtocol) -> int:
    """Return how many calls a replay has: about the target of busy time, at least 3 if the limit allows, at least 1."""
    wanted = round(protocol.target_busy_us / latency_us)
    at_most = int(protocol.max_busy_us / latency_us)
    return max(1, min(max(wanted, _MIN_CALLS), at_most, protocol.max_calls))


def graph_of(device: Timer, calls: Sequence[Call], count: int) -> TimedGraph:
    """Capture `count` calls, of `calls` in turn."""

    def enqueue() -> None:
        for index in range(count):
            calls[index % len(calls)]()

    return TimedGraph(device.capture(enqueue), count)


def measure_floor_us(device: BenchTimer, num_samples: int = 21) -> float:
    """Return the cost of two events and the launch of a graph of one empty kernel, in us: charged to no GEMM."""
    launch = device.capture(device.idle)
    launch()
    device.synchronize()
    samples = []
    for _ in range(num_samples):
        device.flush_l2()  # keeps the device busy while the host enqueues, as in a measurement
        samples.append(device.elapsed_us(launch))
    return statistics.median(samples)


def time_in_turns(
    device: Timer,
    graphs: Mapping[K, TimedGraph],
    num_replays: int,
    *,
    before: Callable[[K], None],
    idle_s: float = 0.0,
    floor_us: float = 0.0,
    sleep: Callable[[float], None] = time.sleep,
    failures: dict[K, Exception] | None = None,
) -> dict[K, list[float]]:
    """Replay graphs in turns, and return the time of one call in each replay, in us.

    Args:
        device: where they were captured.
        graphs: by what they time.
        num_replays: of each.
        before: queues what comes before a replay, untimed.
        idle_s: pause before each replay, in seconds.
        floor_us: subtracted from each replay.
        sleep: pauses that many seconds (for tests).
        failures: graphs that fail, or take a time that cannot be, are put in here and left out from then on; None:
            their exceptions are raised.

    Raises:
        Exception: whatever `before` and the device raise, where `failures` is None.
    """
    samples: dict[K, list[float]] = {key: [] for key in graphs}
    for _ in range(num_replays):
        for key, graph in graphs.items():
            if failures is not None and key in failures:
                continue
            if idle_s:
                sleep(idle_s)
            try:
                before(key)
                latency_us = (device.elapsed_us(graph.launch) - floor_us) / graph.num_calls
                if failures is not None and not 0 < latency_us < math.inf:
                    raise GemmEvalError(f"it took {latency_us} us")
            except Exception as error:  # whatever a driver says: the other graphs may work
                if failures is None:
                    raise
                failures[key] = error
            else:
                samples[key].append(latency_us)
    return samples


def summarize(samples: Sequence[float], *, calls_per_replay: int, num_weight_copies: int) -> Timing:
    """Return what the times of one call over replays, in us, come to."""
    median = statistics.median(samples)
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else [median] * 3
    return Timing(median, min(samples), (high - low) / median, len(samples), calls_per_replay, num_weight_copies)
