"""A GPU for measurements, and timing on it: a CUDA graph of several calls, replayed between two events.

This is the one meaning of "measured": data sets (`gemm_eval.measure.measure_shape`) and `config="profile"`
(`gemm_eval.kernels.tune`) make their graphs by `capture_calls`, replay them by `time_in_turns`, and differ in the
settings of a `TimingProtocol` only: profile takes shorter replays, and its configs take turns.
"""

import contextlib
import math
import platform
import statistics
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from gemm_eval.arch import ClockState, L2State
from gemm_eval.device import runtime
from gemm_eval.device.runtime import compile_text
from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.words import refusal

K = TypeVar("K", bound=Hashable)

_MIN_CALLS = 3
_MAX_PILOT_CALLS = 20
_PILOT_US = 300.0

FLUSH_PASSES = 1
"""Passes over `cold_bytes` of a flush (data sets that do not say so: 3, a read, a write and another read)."""

Call = Callable[[], None]
"""Puts work into a stream, such as a kernel or a graph, and returns at once."""


class Timer(Protocol):
    """A GPU with a stream that measurements have for themselves; `l2_bytes` is of its L2."""

    l2_bytes: int

    def capture(self, enqueue: Call) -> Call:
        """Record what `enqueue` queues as a CUDA graph; returns its launch."""

    def elapsed_us(self, call: Call) -> float:
        """Return the device time of what `call` queues, between two events, in us; waits for it."""

    def idle(self) -> None:
        """Queue a kernel that does nothing."""

    def flush_l2(self) -> None:
        """Queue reads of other memory, the default `cold_bytes_of` the L2, that leave no operand in L2."""

    def synchronize(self) -> None:
        """Wait for everything queued."""


@dataclass(frozen=True)
class TimingProtocol:
    """The settings of a timing. A replay is one launch of a CUDA graph of n calls, between two events.

    Attributes:
        l2: ``cold``: the calls of a replay rotate over weight copies, and L2 is flushed before each replay (outside the
            events). ``warm``: one weight copy, no flush. A and C are one buffer each: as the layer before leaves them.
            ``cold-all``: like cold, and A and C have as many copies.
        clock: ``burst``: short replays with idle time between them, so that the clock stays at boost. ``sustained``:
            replays without a pause, after `warm_up_s` of them.
        target_busy_us, max_busy_us: busy time of a replay; n follows from it.
        max_calls: most calls in a graph.
        cold_bytes: what the weight copies exceed together, where the graph has calls enough; more where the L2 is large
            (`cold_bytes_of`). A flush of L2 reads as much as the default is on that GPU.
        l2_multiple: of the L2, what `cold_bytes_of` is at least.
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
    l2_multiple: int = 4
    num_replays: int = 5
    num_short_replays: int = 7
    idle_s: float = 0.015
    max_short_rows: int = 256
    warm_up_s: float = 0.3
    give_up_ratio: float = 3.0

    @classmethod
    def quick(cls, **settings: Any) -> Self:
        """Return a shorter one, for comparing many kernels: three replays of a millisecond, and shorter pauses."""
        shorter = {"target_busy_us": 1_000.0, "num_replays": 3, "num_short_replays": 3, "idle_s": 0.008}
        return cls(**(shorter | {"give_up_ratio": 2.0} | settings))

    @property
    def is_quick(self) -> bool:
        """True where replays are as short as those of `quick`."""
        return self == self.quick(l2=self.l2, clock=self.clock)

    def __post_init__(self) -> None:
        for name, value, allowed in (("l2", self.l2, tuple(L2State)), ("clock", self.clock, tuple(ClockState))):
            if value not in allowed:
                raise InvalidOptionError(refusal(name, value, allowed))

    def replays_of(self, M: int) -> int:
        """Return how many replays of a GEMM with M rows are measured."""
        return self.num_short_replays if self.max_short_rows >= M else self.num_replays

    def idle_s_of(self, M: int) -> float:
        """Return the pause before each replay of a GEMM with M rows, in seconds."""
        return 0.0 if self.clock == "sustained" or self.max_short_rows >= M else self.idle_s

    def cold_bytes_of(self, l2_bytes: int) -> int:
        """Return how many bytes must be read between two reads of a line for it to have left an L2 of that size."""
        return max(self.cold_bytes, self.l2_multiple * l2_bytes)

    def num_weight_copies(self, weight_bytes: int, l2_bytes: int, most: int) -> int:
        """Return how many copies of the weights calls go round, 1 to `most`: cold, the others together exceed L2."""
        if self.l2 == "warm":
            return 1
        return max(1, min(self.cold_bytes_of(l2_bytes) // weight_bytes + 2, self.max_calls, most))

    def describe(self) -> dict[str, Any]:
        """Return the settings, for the meta file."""
        return asdict(self) | {"flush_passes": FLUSH_PASSES}


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
    """A captured graph of `num_calls` calls.

    `last_call` is queued untimed before each replay: the clock is up, and the kernel's code is on the chip. Where a
    first, short replay was so slow that no longer one was captured, `given_up_us` is what a call took in it.
    """

    launch: Call
    num_calls: int
    last_call: Call
    given_up_us: float | None = None


def num_calls(latency_us: float, protocol: TimingProtocol) -> int:
    """Return how many calls a replay has: about the target of busy time, at least 3 if the limit allows, at least 1."""
    wanted = round(protocol.target_busy_us / latency_us)
    at_most = int(protocol.max_busy_us / latency_us)
    return max(1, min(max(wanted, _MIN_CALLS), at_most, protocol.max_calls))


def capture_calls(
    device: Timer, calls: Sequence[Call], protocol: TimingProtocol, *, floor_us: float = 0.0, best_us: float = math.inf
) -> TimedGraph:
    """Capture as many of `calls` (one a copy of the weights), in turn, as a replay has; `best_us`: `give_up_ratio`."""
    calls[0]()  # a library picks its kernel, and the driver loads it
    device.synchronize()
    rough_us = max(device.elapsed_us(calls[-1]), 1.0)
    pilot = _captured(device, calls, min(_MAX_PILOT_CALLS, max(1, int(_PILOT_US / rough_us))))
    pilot.launch()
    pilot_us = (device.elapsed_us(pilot.launch) - floor_us) / pilot.num_calls
    if pilot_us > protocol.give_up_ratio * best_us:
        return pilot._replace(given_up_us=pilot_us)
    graph = _captured(device, calls, num_calls(max(pilot_us, 1.0), protocol))
    graph.launch()
    device.synchronize()
    return graph


def _captured(device: Timer, calls: Sequence[Call], count: int) -> TimedGraph:
    def enqueue() -> None:
        for index in range(count):
            calls[index % len(calls)]()

    return TimedGraph(device.capture(enqueue), count, calls[-1])


def measure_floor_us(device: Timer, num_samples: int = 21) -> float:
    """Return the cost of two events and the launch of a graph of one empty kernel, in us: charged to no GEMM."""
    device.idle()  # the driver loads it
    launch = device.capture(device.idle)
    launch()
    device.synchronize()
    samples = []
    for _ in range(num_samples):
        device.flush_l2()  # keeps the device busy while the host enqueues, as in a measurement
        samples.append(device.elapsed_us(launch))
    return statistics.median(samples)


def time_in_turns(
    device: Timer, graphs: Mapping[K, TimedGraph], M: int, protocol: TimingProtocol, *, floor_us: float = 0.0,
    sleep: Callable[[float], None] = time.sleep, failures: dict[K, Exception] | None = None,
) -> dict[K, list[float]]:  # fmt: skip
    """Replay graphs of GEMMs with M rows in turns, and return the time of one call in each replay, in us.

    In turns, so that a clock that falls, falls for all. `floor_us` is subtracted from each replay. Graphs that fail are
    put into `failures` and left out from then on; where that is None, their exceptions are raised.
    """
    samples: dict[K, list[float]] = {key: [] for key in graphs}
    for _ in range(protocol.replays_of(M)):
        for key, graph in graphs.items():
            if failures is not None and key in failures:
                continue
            if idle_s := protocol.idle_s_of(M):
                sleep(idle_s)
            try:
                graph.last_call()
                if protocol.l2 != "warm":
                    device.flush_l2()
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


_READ_THREADS = 512
_READ_CTAS_PER_SM = 4
_LOAD_BYTES = 16
_READ_ENTRY = "gemm_eval_read"
_READ_TEXT = f"""
extern "C" __global__ void {_READ_ENTRY}(const uint4* data, long long count, unsigned* never) {{
  unsigned sum = 0;
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x, s = (long long)gridDim.x * blockDim.x;
  for (; i + 3 * s < count; i += 4 * s) {{  // four loads in flight
    uint4 a = data[i], b = data[i + s], c = data[i + 2 * s], d = data[i + 3 * s];
    sum += a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
  }}
  for (; i < count; i += s) {{
    uint4 v = data[i];
    sum += v.x ^ v.y ^ v.z ^ v.w;
  }}
  if (count && sum == 0x9e3779b9u) *never = sum;  // keeps the loads alive
}}
"""


class ReadPass:
    """A kernel that reads memory and does nothing with it, loaded on the current GPU for one stream."""

    def __init__(self, device: int, stream: int) -> None:
        limits = runtime.limits_of_device(device)
        major, minor = limits.compute_capability
        compiled = compile_text(_READ_TEXT, _READ_ENTRY, f"sm_{major}{minor}", {})
        self._handle = runtime.StreamHandle(stream)
        self._function = runtime.load_function(compiled, device, 0, stream)
        self._num_ctas = _READ_CTAS_PER_SM * limits.num_sms

    def queue(self, address: int, num_bytes: int) -> None:
        """Queue a pass over `num_bytes` (those of whole 16 bytes) at an address; of no bytes, a kernel that is idle."""
        count = num_bytes // _LOAD_BYTES
        arguments = np.uint64(address), np.int64(count), np.uint64(address)
        grid, block = ((self._num_ctas, 1, 1), (_READ_THREADS, 1, 1)) if count else ((1, 1, 1), (32, 1, 1))
        self._function(grid, block, arguments, 0, self._handle)


class StreamTimer(ABC):
    """A `Timer` on a stream of CuPy, whose GPU is made the current one where it need be."""

    def __init__(self, stream: Any, device: int) -> None:
        self.cupy = runtime.import_cupy()
        self.stream = stream
        self.device = device
        cuda = self.cupy.cuda.runtime
        self.l2_bytes = int(cuda.deviceGetAttribute(cuda.cudaDevAttrL2CacheSize, device))
        self._events = [self.cupy.cuda.Event() for _ in range(2)]

    @abstractmethod
    def new_bytes(self, num_bytes: int) -> int:
        """Return the address of new memory that is held as long as the timer, for `flush_l2`."""

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
        """Queue a pass over unused memory, so that L2 holds clean lines of it alone."""
        self.read_bytes(self._flush_address, self.flush_bytes)

    def idle(self) -> None:
        """Queue a kernel that does nothing."""
        self.read_bytes(0, 0)

    def synchronize(self) -> None:
        """Wait for everything queued."""
        self.stream.synchronize()


MARKER_NAME = "gemm_eval_marker"
"""The kernel that separates the calls of a trace; its grid says which call follows."""

_BENCH_TEXT = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>

__device__ long long first() { return blockIdx.x * (long long)blockDim.x + threadIdx.x; }
__device__ long long step() { return (long long)gridDim.x * blockDim.x; }

extern "C" __global__ void gemm_eval_marker() {}

__device__ unsigned long long mix(unsigned long long z) {  // splitmix64
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// Two standard normal numbers for each pair of 16-bit elements (Box-Muller).
extern "C" __global__ void gemm_eval_normal(unsigned* data, long long pairs, unsigned long long seed, int is_bf16) {
  for (long long i = first(); i < pairs; i += step()) {
    unsigned long long bits = mix(mix(seed) + (unsigned long long)i);
    float u = ((unsigned)(bits >> 40) + 0.5f) * (1.0f / 16777216.0f);
    float angle = 6.2831853f * ((unsigned)(bits & 0xffffffu) * (1.0f / 16777216.0f));
    float radius = sqrtf(-2.0f * logf(u));
    float x = radius * cosf(angle), y = radius * sinf(angle);
    unsigned short lo, hi;
    if (is_bf16) {
      lo = __bfloat16_as_ushort(__float2bfloat16_rn(x));
      hi = __bfloat16_as_ushort(__float2bfloat16_rn(y));
    } else {
      lo = __half_as_ushort(__float2half_rn(x));
      hi = __half_as_ushort(__float2half_rn(y));
    }
    data[i] = (unsigned)lo | ((unsigned)hi << 16);
  }
}
"""


class BenchDevice(StreamTimer):
    """Device 0, one stream, and what the protocol does besides GEMMs. `stream` is a CuPy stream."""

    def __init__(self, stream: Any = None) -> None:
        super().__init__(stream or runtime.import_cupy().cuda.Stream(non_blocking=True), device=0)
        self.gpu_name = runtime.name_of_device(0)
        self.num_sms = runtime.limits_of_device(0).num_sms
        module = self.cupy.RawModule(code=_BENCH_TEXT, options=("-std=c++17",))
        self._kernels = {name: module.get_function(f"gemm_eval_{name}") for name in ("marker", "normal")}
        self._flush_buffer: Any = None

    def new_bytes(self, num_bytes: int) -> int:
        """See `StreamTimer`."""
        self._flush_buffer = self.empty_bytes(num_bytes)
        return int(self._flush_buffer.data.ptr)

    def _launch(self, name: str, blocks: int, threads: int, *args: Any) -> None:
        with self.stream:
            self._kernels[name]((blocks,), (threads,), args)

    def empty_bytes(self, num_bytes: int) -> Any:
        """Return a new device buffer of uint8, a multiple of 256 bytes."""
        return self.cupy.empty(-(-num_bytes // 256) * 256, self.cupy.uint8)

    def fill_normal(self, buffer: Any, seed: int, *, is_bf16: bool) -> None:
        """Fill a buffer of bytes with standard normal fp16 or bf16 numbers."""
        count = buffer.nbytes // 4
        self._launch("normal", 8 * self.num_sms, 256, buffer, np.int64(count), np.uint64(seed), np.int32(is_bf16))
        self.synchronize()

    def free_unused(self) -> None:
        """Give memory that CuPy holds for later back to the driver."""
        self.synchronize()
        self.cupy.get_default_memory_pool().free_all_blocks()

    def mark(self, index: int) -> None:
        """Queue the marker kernel with a grid of index + 1 blocks."""
        self._launch("marker", index + 1, 32)


_STATE_FIELDS = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw")
_REASON_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")  # new and old name


def _query(fields: tuple[str, ...]) -> dict[str, str]:
    command = ["nvidia-smi", "-i", "0", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    values = done.stdout.strip().splitlines()[0].split(", ")
    return dict(zip(fields, values, strict=True))


def read_gpu_state() -> dict[str, str]:
    """Return clocks (MHz), temperature (C), power (W), throttle reasons (bits) and time; or the `error` met."""
    state = {"time": datetime.now(UTC).isoformat(timespec="seconds")}
    error = ""
    for reasons in _REASON_FIELDS:
        try:
            return state | _query((*_STATE_FIELDS, reasons))
        except (OSError, subprocess.SubprocessError, ValueError, IndexError) as caught:
            error = str(caught)
    return state | {"error": error}


def describe_gpu(runner: Any) -> dict[str, Any]:
    """Return what the runner's GPU and its software are; runners without CuPy have nothing to say."""
    cupy = getattr(runner, "cupy", None)
    if cupy is None:
        return {}
    try:
        fixed: dict[str, Any] = dict(_query(("driver_version", "clocks.max.sm", "clocks.max.mem", "power.limit")))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        fixed = {"nvidia_smi_error": str(error)}
    versions = cupy.cuda.runtime
    return {
        "name": runner.gpu_name, "num_sms": runner.num_sms, "l2_bytes": runner.l2_bytes, **fixed,
        "cuda_runtime": versions.runtimeGetVersion(), "cuda_driver_api": versions.driverGetVersion(),
        "cupy": cupy.__version__, "python": platform.python_version(),
    }  # fmt: skip
