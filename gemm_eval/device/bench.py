"""A GPU for measurements: a stream with graphs and events, random data, L2 flushes and markers, and the GPU's state."""

from __future__ import annotations

import contextlib
import platform
import subprocess
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any

import numpy as np

from gemm_eval.device import runtime
from gemm_eval.device.nvrtc import compile_text
from gemm_eval.device.timing import Call, TimingProtocol

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
