"""Times kernels that are bound by memory, written as serving engines have them: norms, an activation, a cast.

    python examples/measure_memory_bound.py --out FOLDER     # a GPU, CuPy and pandas; a minute

Each is captured in a CUDA graph of many launches on the same tensors, so that what fits in L2 is warm, as a layer
leaves it for the next; the time is that of a replay over the number of launches, the median of several. Values are
random normal bf16; before it is timed, each kernel is held to numpy in float64.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import cupy as cp
import numpy as np
import pandas as pd

ROWS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
WIDTHS = (1024, 2048, 4096, 5120, 8192, 14336, 28672)
MOST_ELEMENTS = 1 << 28
LAUNCHES, REPLAYS = 50, 15
EPSILON = 1e-6
VECTOR = 8  # elements that a thread loads at once, 16 bytes
MAX_THREADS = 1024

SOURCE = r"""
#include <cuda_bf16.h>
struct alignas(16) Eight { __nv_bfloat162 of[4]; };

__device__ float sum_of_block(float value) {
  __shared__ float parts[32];
  for (int step = 16; step > 0; step >>= 1) value += __shfl_xor_sync(0xffffffffu, value, step);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = threadIdx.x % 32 < blockDim.x / 32 ? parts[threadIdx.x % 32] : 0.0f;
  for (int step = 16; step > 0; step >>= 1) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

template <bool ADDS, int PASSES>
__device__ void norm(const Eight* x, Eight* residual, const Eight* weight, Eight* out, int vectors, float width) {
  const long long row = (long long)blockIdx.x * vectors;
  Eight kept[PASSES];
  float squares = 0.0f;
#pragma unroll
  for (int pass = 0; pass < PASSES; ++pass) {
    const int place = threadIdx.x + pass * blockDim.x;
    if (place >= vectors) break;
    Eight value = x[row + place];
    if (ADDS) {
      const Eight more = residual[row + place];
      for (int i = 0; i < 4; ++i) value.of[i] = __hadd2(value.of[i], more.of[i]);
      residual[row + place] = value;
    }
    kept[pass] = value;
    for (int i = 0; i < 4; ++i) {
      const float2 two = __bfloat1622float2(value.of[i]);
      squares += two.x * two.x + two.y * two.y;
    }
  }
  const float scale = rsqrtf(sum_of_block(squares) / width + 1e-6f);
#pragma unroll
  for (int pass = 0; pass < PASSES; ++pass) {
    const int place = threadIdx.x + pass * blockDim.x;
    if (place >= vectors) break;
    const Eight by = weight[place];
    Eight value = kept[pass];
    for (int i = 0; i < 4; ++i) {
      const float2 two = __bfloat1622float2(value.of[i]), factor = __bfloat1622float2(by.of[i]);
      value.of[i] = __floats2bfloat162_rn(two.x * scale * factor.x, two.y * scale * factor.y);
    }
    out[row + place] = value;
  }
}

extern "C" __global__ void add_rms_norm(const Eight* x, Eight* residual, const Eight* weight, Eight* out, int vectors) {
  norm<true, 4>(x, residual, weight, out, vectors, 8.0f * vectors);
}
extern "C" __global__ void rms_norm(const Eight* x, Eight* residual, const Eight* weight, Eight* out, int vectors) {
  norm<false, 4>(x, residual, weight, out, vectors, 8.0f * vectors);
}
extern "C" __global__ void silu_mul(const Eight* x, Eight* residual, const Eight* weight, Eight* out, int vectors) {
  const long long row = (long long)blockIdx.x;
  for (int place = threadIdx.x; place < vectors; place += blockDim.x) {
    Eight gate = x[row * 2 * vectors + place];
    const Eight up = x[(row * 2 + 1) * vectors + place];
    for (int i = 0; i < 4; ++i) {
      const float2 a = __bfloat1622float2(gate.of[i]), b = __bfloat1622float2(up.of[i]);
      gate.of[i] = __floats2bfloat162_rn(a.x / (1.0f + __expf(-a.x)) * b.x, a.y / (1.0f + __expf(-a.y)) * b.y);
    }
    out[row * vectors + place] = gate;
  }
}
extern "C" __global__ void cast(const Eight* x, Eight* residual, const Eight* weight, float4* out, int vectors) {
  const long long row = (long long)blockIdx.x * vectors;
  for (int place = threadIdx.x; place < vectors; place += blockDim.x) {
    const Eight value = x[row + place];
    const float2 a = __bfloat1622float2(value.of[0]), b = __bfloat1622float2(value.of[1]);
    const float2 c = __bfloat1622float2(value.of[2]), d = __bfloat1622float2(value.of[3]);
    out[2 * (row + place)] = make_float4(a.x, a.y, b.x, b.y);
    out[2 * (row + place) + 1] = make_float4(c.x, c.y, d.x, d.y);
  }
}
"""


def norm_of(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """RMS norm in float64."""
    found: np.ndarray = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * weight
    return found


class Kernel(NamedTuple):
    """A kernel: what it should give in float64 of x, residual and weight, and how often an output row is read, written.

    Attributes:
        reference: [rows, width] of x (silu_mul: [rows, 2*width]), residual and weight -> output.
        inputs: rows of x that an output row has.
        reads, writes: bytes for each element of the output.
    """

    reference: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
    inputs: int
    reads: int
    writes: int


def silu_mul_of(x: np.ndarray) -> np.ndarray:
    """Gate, through its sigmoid, times up, in float64."""
    gate, up = np.split(x, 2, axis=1)
    found: np.ndarray = gate / (1 + np.exp(-gate)) * up
    return found


KERNELS = {
    "add_rms_norm": Kernel(lambda x, residual, weight: norm_of(x + residual, weight), 1, 4, 4),
    "rms_norm": Kernel(lambda x, _, weight: norm_of(x, weight), 1, 2, 2),
    "silu_mul": Kernel(lambda x, *_: silu_mul_of(x), 2, 4, 2),
    "cast": Kernel(lambda x, *_: x, 1, 2, 4),
}


def bf16(values: cp.ndarray) -> cp.ndarray:
    """The upper halves of float32 values, rounded: bf16 as 16-bit integers."""
    bits = values.astype(cp.float32).view(cp.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(cp.uint16)


def wide(values: cp.ndarray) -> np.ndarray:
    """bf16 as float64."""
    found: np.ndarray = cp.asnumpy((values.astype(cp.uint32) << 16).view(cp.float32)).astype(np.float64)
    return found


class Case:
    """A kernel on tensors of one size."""

    def __init__(self, module: cp.RawModule, name: str, rows: int, width: int) -> None:
        self.kernel, self.function = KERNELS[name], module.get_function(name)
        self.grid, self.vectors = (rows,), np.int32(width // VECTOR)
        self.block = (min(MAX_THREADS, -(-(width // VECTOR) // 32) * 32),)
        self.x = bf16(cp.random.standard_normal((rows, self.kernel.inputs * width), dtype=cp.float32))
        self.residual = bf16(cp.random.standard_normal((rows, width), dtype=cp.float32))
        self.weight = bf16(cp.random.standard_normal(width, dtype=cp.float32))
        self.out = (
            cp.full((rows, width), 0x7FFF, cp.uint16) if name != "cast" else cp.full((rows, width), cp.nan, cp.float32)
        )

    def launch(self) -> None:
        """Run it once."""
        self.function(self.grid, self.block, (self.x, self.residual, self.weight, self.out, self.vectors))

    def check(self) -> None:
        """Hold the first run to float64."""
        some = slice(0, 64)
        expected = self.kernel.reference(wide(self.x[some]), wide(self.residual[some]), wide(self.weight))
        self.launch()
        found = cp.asnumpy(self.out[some]).astype(np.float64) if self.out.dtype == cp.float32 else wide(self.out[some])
        error = np.abs(found - expected).max() / np.abs(expected).max()
        if not error < 0.02:  # also where it is no number
            raise SystemExit(f"wrong by {error:.3g}: {self.grid[0]} x {self.vectors * VECTOR}")

    def time_us(self) -> float:
        """Return the time of one launch in a graph of many."""
        stream = cp.cuda.Stream(non_blocking=True)
        with stream:
            self.launch()
            stream.begin_capture()
            for _ in range(LAUNCHES):
                self.launch()
            graph = stream.end_capture()
            times = []
            for _ in range(REPLAYS):
                start, end = cp.cuda.Event(), cp.cuda.Event()
                start.record(stream)
                graph.launch(stream)
                end.record(stream)
                end.synchronize()
                times.append(cp.cuda.get_elapsed_time(start, end) * 1e3 / LAUNCHES)
        return float(np.median(times))


def cases() -> Iterator[tuple[str, int, int]]:
    """Yield kernel, rows and width of the output."""
    for name in KERNELS:
        for rows in ROWS:
            for width in WIDTHS:
                if rows * width <= MOST_ELEMENTS // (2 if name == "silu_mul" else 1):
                    yield name, rows, width


def main() -> None:
    """Check and time all cases, and write a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the table")
    options = parser.parse_args()
    module = cp.RawModule(code=SOURCE, options=("--std=c++17",))
    rows = []
    for name, num, width in cases():
        case = Case(module, name, num, width)
        case.check()
        size, of = num * width, KERNELS[name]
        rows.append((name, num, width, size * of.reads, size * of.writes, round(case.time_us(), 4)))
    columns = ["what", "rows", "width", "read_bytes", "write_bytes", "latency_us"]
    options.out.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows, columns=columns).to_csv(options.out / "kernels.csv", index=False)
    print(f"{len(rows)} rows")


if __name__ == "__main__":
    main()
