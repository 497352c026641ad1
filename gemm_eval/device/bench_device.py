"""A GPU for measurements: a stream of its own, random data, flush and marker, through CuPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemm_eval.device.runtime import import_cupy
from gemm_eval.device.stream_timer import StreamTimer
from gemm_eval.device.timing import Call

__all__ = ["MARKER_NAME", "BenchDevice"]

MARKER_NAME = "gemm_eval_marker"
"""The kernel that separates the calls of a trace; its grid says which call follows."""

_FLUSH_BYTES = 256_000_000
_SOURCE = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>

__device__ long long first() { return blockIdx.x * (long long)blockDim.x + threadIdx.x; }
__device__ long long step() { return (long long)gridDim.x * blockDim.x; }

extern "C" __global__ void gemm_eval_marker() {}
extern "C" __global__ void gemm_eval_idle() {}

extern "C" __global__ void gemm_eval_dirty(uint4* data, long long count) {
  for (long long i = first(); i < count; i += step()) {
    uint4 v = data[i];
    v.x += 1u;
    data[i] = v;
  }
}

extern "C" __global__ void gemm_eval_read(const uint4* data, long long count, unsigned* never) {
  unsigned sum = 0;
  long long i = first(), s = step();
  for (; i + 3 * s < count; i += 4 * s) {  // four loads in flight
    uint4 a = data[i], b = data[i + s], c = data[i + 2 * s], d = data[i + 3 * s];
    sum += a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
  }
  for (; i < count; i += s) {
    uint4 v = data[i];
    sum += v.x ^ v.y ^ v.z ^ v.w;
  }
  if (sum == 0x9e3779b9u) *never = sum;  // keeps the loads alive
}

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
        cupy = import_cupy()
        super().__init__(stream or cupy.cuda.Stream(non_blocking=True))
        properties = self.cupy.cuda.runtime.getDeviceProperties(0)
        name = properties["name"]
        self.gpu_name = name.decode() if isinstance(name, bytes) else str(name)
        self.l2_bytes = int(properties.get("l2CacheSize", 0))
        self.num_sms = int(properties["multiProcessorCount"])
        module = self.cupy.RawModule(code=_SOURCE, options=("-std=c++17",))
        self._kernels = {
            name: module.get_function(f"gemm_eval_{name}") for name in ("marker", "idle", "dirty", "read", "normal")
        }
        self._flush_buffers: list[Any] = []

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

    def flush_l2(self) -> None:
        """Read and write one buffer of 256 MB, then read another: L2 is left with clean lines that nobody wants."""
        if not self._flush_buffers:
            self._flush_buffers = [self.empty_bytes(_FLUSH_BYTES) for _ in range(2)]
            for buffer in self._flush_buffers:
                buffer.fill(1)
            self.cupy.cuda.runtime.deviceSynchronize()
        count = np.int64(_FLUSH_BYTES // 16)
        dirty, clean = self._flush_buffers
        self._launch("dirty", 8 * self.num_sms, 256, dirty, count)
        self._launch("read", 8 * self.num_sms, 256, clean, count, dirty)

    def read_once(self, buffer: Any) -> None:
        """Enqueue one pass over a buffer of bytes (a multiple of 16) that does nothing with them."""
        count = np.int64(buffer.nbytes // 16)
        self._launch("read", 4 * self.num_sms, 512, buffer, count, buffer)

    def mark(self, index: int) -> None:
        """Queue the marker kernel with a grid of index + 1 blocks."""
        self._launch("marker", index + 1, 32)

    def idle(self) -> None:
        """Queue a kernel that does nothing."""
        self._launch("idle", 1, 32)

    def capture(self, enqueue: Call) -> Call:
        """Record what `enqueue` queues as a CUDA graph, and wait until the device has it; returns its launch."""
        launch = super().capture(enqueue)
        self.synchronize()
        return launch
