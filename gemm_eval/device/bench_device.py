"""A GPU for measurements: a stream of its own, random data, flush and marker, through CuPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemm_eval.device.runtime import import_cupy, limits_of_device, name_of_device
from gemm_eval.device.stream_timer import StreamTimer

__all__ = ["MARKER_NAME", "BenchDevice"]

MARKER_NAME = "gemm_eval_marker"
"""The kernel that separates the calls of a trace; its grid says which call follows."""

_SOURCE = r"""
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
        cupy = import_cupy()
        super().__init__(stream or cupy.cuda.Stream(non_blocking=True), device=0)
        self.gpu_name = name_of_device(0)
        self.num_sms = limits_of_device(0).num_sms
        module = self.cupy.RawModule(code=_SOURCE, options=("-std=c++17",))
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
