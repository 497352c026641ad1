"""CUDA kernels around the matrix products of a stack of layers, one for each fused operation of a serving engine.

All are for bf16; a thread loads 16 bytes at once. `Kernels` compiles them and launches them on torch's current stream.
"""

from __future__ import annotations

from typing import Any

import cupy as cp
import numpy as np
import torch

VECTOR = 8
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

__device__ float2 turned(float2 value, float2 by) {
  return make_float2(value.x * by.x - value.y * by.y, value.y * by.x + value.x * by.y);
}

// Rows of queries, keys and values: queries are turned in place, keys turned and values copied into the cache.
// Elements i and i + head/2 of a head are a pair; angles [positions, head/2] are (cosine, sine).
extern "C" __global__ void rotary_kv_write(
    __nv_bfloat16* qkv, const float2* angles, __nv_bfloat16* keys, __nv_bfloat16* values, int num_heads,
    int num_kv_heads, int head_dim, int q_len, int kv_len) {
  const int sequence = blockIdx.x / q_len, position = kv_len - q_len + blockIdx.x % q_len;
  const int half = head_dim / 2, parts = half / 8, width = (num_heads + 2 * num_kv_heads) * head_dim;
  __nv_bfloat16* row = qkv + (long long)blockIdx.x * width;
  const long long cached = ((long long)sequence * kv_len + position) * num_kv_heads * head_dim;
  const float2* angle = angles + (long long)position * half;
  for (int task = threadIdx.x; task < (num_heads + num_kv_heads) * parts; task += blockDim.x) {
    const int head = task / parts, first = task % parts * 8;
    __nv_bfloat16* from = row + head * head_dim + first;
    __nv_bfloat16* to = head < num_heads ? from : keys + cached + (head - num_heads) * head_dim + first;
    Eight low = *(const Eight*)from, high = *(const Eight*)(from + half);
    for (int i = 0; i < 4; ++i) {
      const float2 a = __bfloat1622float2(low.of[i]), b = __bfloat1622float2(high.of[i]);
      const float2 one = turned(make_float2(a.x, b.x), angle[first + 2 * i]);
      const float2 two = turned(make_float2(a.y, b.y), angle[first + 2 * i + 1]);
      low.of[i] = __floats2bfloat162_rn(one.x, two.x);
      high.of[i] = __floats2bfloat162_rn(one.y, two.y);
    }
    *(Eight*)to = low;
    *(Eight*)(to + half) = high;
  }
  const __nv_bfloat16* from = row + (num_heads + num_kv_heads) * head_dim;
  for (int task = threadIdx.x; task < num_kv_heads * head_dim / 8; task += blockDim.x)
    ((Eight*)(values + cached))[task] = ((const Eight*)from)[task];
}

// RMS norm of each head of queries and keys, in place; a group of head_dim/8 threads has a head.
extern "C" __global__ void qk_norm(
    __nv_bfloat16* qkv, const __nv_bfloat16* of_queries, const __nv_bfloat16* of_keys, int num_heads, int num_kv_heads,
    int head_dim) {
  const int lanes = head_dim / 8, width = (num_heads + 2 * num_kv_heads) * head_dim;
  const int lane = threadIdx.x % lanes;
  for (int head = threadIdx.x / lanes; head < num_heads + num_kv_heads; head += blockDim.x / lanes) {
    Eight* place = (Eight*)(qkv + (long long)blockIdx.x * width + head * head_dim) + lane;
    Eight value = *place;
    const Eight by = ((const Eight*)(head < num_heads ? of_queries : of_keys))[lane];
    float squares = 0.0f;
    for (int i = 0; i < 4; ++i) {
      const float2 two = __bfloat1622float2(value.of[i]);
      squares += two.x * two.x + two.y * two.y;
    }
    for (int step = lanes / 2; step > 0; step >>= 1) squares += __shfl_xor_sync(0xffffffffu, squares, step);
    const float scale = rsqrtf(squares / head_dim + 1e-6f);
    for (int i = 0; i < 4; ++i) {
      const float2 two = __bfloat1622float2(value.of[i]), factor = __bfloat1622float2(by.of[i]);
      value.of[i] = __floats2bfloat162_rn(two.x * scale * factor.x, two.y * scale * factor.y);
    }
    *place = value;
  }
}

// The experts of each token: the `top` largest of its logits, and their softmax; a warp has a token at a time.
extern "C" __global__ void routing(
    const __nv_bfloat16* logits, int* experts, float* weights, int* counts, int tokens, int num_experts, int top) {
  __shared__ int own[256];
  for (int expert = threadIdx.x; expert < num_experts; expert += blockDim.x) own[expert] = 0;
  __syncthreads();
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  for (int token = blockIdx.x * warps + threadIdx.x / 32; token < tokens; token += gridDim.x * warps) {
    float values[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int expert = lane + 32 * i;
      values[i] = expert < num_experts ? __bfloat162float(logits[(long long)token * num_experts + expert]) : -1e30f;
    }
    float largest = 0.0f, sum = 0.0f, mine = 0.0f;
    for (int round = 0; round < top; ++round) {
      float best = -1e30f;
      int place = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (values[i] > best) best = values[i], place = lane + 32 * i;
      for (int step = 16; step > 0; step >>= 1) {
        const float other = __shfl_xor_sync(0xffffffffu, best, step);
        const int its = __shfl_xor_sync(0xffffffffu, place, step);
        if (other > best || (other == best && its < place)) best = other, place = its;
      }
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (place == lane + 32 * i) values[i] = -1e30f;
      if (round == 0) largest = best;
      const float weight = __expf(best - largest);
      sum += weight;
      if (lane == round) {
        mine = weight;
        experts[(long long)token * top + round] = place;
        atomicAdd(own + place, 1);
      }
    }
    if (lane < top) weights[(long long)token * top + lane] = mine / sum;
  }
  __syncthreads();
  for (int expert = threadIdx.x; expert < num_experts; expert += blockDim.x)
    if (own[expert]) atomicAdd(counts + expert, own[expert]);
}

// Where each expert's rows begin, and a row for each choice of a token. `cursors` are 0 before.
extern "C" __global__ void expert_sort(
    const int* experts, const int* counts, int* cursors, int* offsets, int* row_of_choice, int choices,
    int num_experts) {
  __shared__ int begins[257], own[256];
  for (int expert = threadIdx.x; expert < num_experts; expert += blockDim.x) own[expert] = 0;
  if (threadIdx.x < 32) {
    int before = 0;
    for (int first = 0; first < num_experts; first += 32) {
      const int expert = first + threadIdx.x;
      const int number = expert < num_experts ? counts[expert] : 0;
      int upto = number;
      for (int step = 1; step < 32; step <<= 1) {
        const int other = __shfl_up_sync(0xffffffffu, upto, step);
        if (threadIdx.x >= step) upto += other;
      }
      if (expert < num_experts) begins[expert] = before + upto - number;
      before += __shfl_sync(0xffffffffu, upto, 31);
    }
    if (threadIdx.x == 0) begins[num_experts] = before;
  }
  __syncthreads();
  if (blockIdx.x == 0)
    for (int expert = threadIdx.x; expert <= num_experts; expert += blockDim.x) offsets[expert] = begins[expert];
  int mine[4], place[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int choice = (blockIdx.x * 4 + i) * blockDim.x + threadIdx.x;
    mine[i] = choice < choices ? experts[choice] : -1;
    if (mine[i] >= 0) place[i] = atomicAdd(own + mine[i], 1);
  }
  __syncthreads();
  for (int expert = threadIdx.x; expert < num_experts; expert += blockDim.x)
    if (own[expert]) begins[expert] += atomicAdd(cursors + expert, own[expert]);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (mine[i] >= 0) row_of_choice[(blockIdx.x * 4 + i) * blockDim.x + threadIdx.x] = begins[mine[i]] + place[i];
}

// Each token's row, read once and written to the rows of its choices.
extern "C" __global__ void permute(const Eight* x, const int* row_of_choice, Eight* out, int vectors, int top) {
  const long long choice = (long long)blockIdx.x * top;
  for (int place = threadIdx.x; place < vectors; place += blockDim.x) {
    const Eight value = x[(long long)blockIdx.x * vectors + place];
    for (int k = 0; k < top; ++k) out[(long long)row_of_choice[choice + k] * vectors + place] = value;
  }
}

extern "C" __global__ void gather(const Eight* table, const long long* ids, Eight* out, int vectors) {
  const long long from = ids[blockIdx.x] * vectors, to = (long long)blockIdx.x * vectors;
  for (int place = threadIdx.x; place < vectors; place += blockDim.x) out[to + place] = table[from + place];
}

extern "C" __global__ void finalize(
    const Eight* y, const int* row_of_choice, const float* weights, Eight* out, int vectors, int top) {
  const long long choice = (long long)blockIdx.x * top;
  for (int place = threadIdx.x; place < vectors; place += blockDim.x) {
    float sums[8] = {0.0f};
    for (int k = 0; k < top; ++k) {
      const float weight = weights[choice + k];
      const Eight value = y[(long long)row_of_choice[choice + k] * vectors + place];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 two = __bfloat1622float2(value.of[i]);
        sums[2 * i] += weight * two.x;
        sums[2 * i + 1] += weight * two.y;
      }
    }
    Eight sum;
    for (int i = 0; i < 4; ++i) sum.of[i] = __floats2bfloat162_rn(sums[2 * i], sums[2 * i + 1]);
    out[(long long)blockIdx.x * vectors + place] = sum;
  }
}

extern "C" __global__ void marker() {}

// What an operation before leaves: weights are read, and x written (as it was).
extern "C" __global__ void operation_before(const float4* weights, long long num_weights, float4* x, long long num_x) {
  const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x, step = (long long)gridDim.x * blockDim.x;
  float sum = 0.0f;
#pragma unroll 8
  for (long long i = first; i < num_weights; i += step) sum += weights[i].x;
  for (long long i = first; i < num_x; i += step) {
    float4 value = x[i];
    if (sum == 12345.678f) value.x = sum;
    x[i] = value;
  }
}
"""
MOST_ROUTING_CTAS = 264
BEFORE_CTAS = 264


class Kernels:
    """The kernels, each as a function of torch tensors that launches it on torch's current stream."""

    def __init__(self) -> None:
        self._module = cp.RawModule(code=SOURCE, options=("--std=c++17",))
        self._functions: dict[str, Any] = {}

    def _launch(self, name: str, grid: int, block: int, *arguments: torch.Tensor | int | np.int64) -> None:
        if name not in self._functions:
            self._functions[name] = self._module.get_function(name)
        plain = [_plain(x) for x in arguments]
        with cp.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            self._functions[name]((grid,), (block,), tuple(plain))

    def norm(self, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        """Return the RMS norm of x [rows, width], after it was added to `residual` in place where there is one."""
        rows, vectors = x.shape[0], x.shape[1] // VECTOR
        out = torch.empty_like(x)
        name = "rms_norm" if residual is None else "add_rms_norm"
        self._launch(name, rows, _threads(vectors), x, x if residual is None else residual, weight, out, vectors)
        return out

    def silu_mul(self, x: torch.Tensor) -> torch.Tensor:
        """Return gate, through its sigmoid, times up, [rows, width] of x [rows, 2 width]."""
        rows, vectors = x.shape[0], x.shape[1] // 2 // VECTOR
        out = torch.empty(rows, x.shape[1] // 2, device=x.device, dtype=x.dtype)
        self._launch("silu_mul", rows, _threads(vectors), x, x, x, out, vectors)
        return out

    def rotary_kv_write(
        self, qkv: torch.Tensor, angles: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor], num_heads: int,
        q_len: int,
    ) -> None:  # fmt: skip
        """Turn queries and keys of qkv [batch * q_len, width] and write the cache, [batch, kv_len, KV heads, head]."""
        _, kv_len, num_kv_heads, head_dim = cache[0].shape
        sizes = num_heads, num_kv_heads, head_dim, q_len, kv_len
        self._launch("rotary_kv_write", qkv.shape[0], 256, qkv, angles, *cache, *sizes)

    def qk_norm(
        self, qkv: torch.Tensor, weights: tuple[torch.Tensor, torch.Tensor], num_heads: int, num_kv: int
    ) -> None:
        """Norm each head of queries and keys of qkv [tokens, width] in place."""
        self._launch("qk_norm", qkv.shape[0], 256, qkv, *weights, num_heads, num_kv, weights[0].shape[0])

    def routing(self, logits: torch.Tensor, top: int, counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return experts and weights [tokens, top] of logits [tokens, experts], and count tokens of each expert."""
        tokens, num = logits.shape
        experts = torch.empty(tokens, top, device=logits.device, dtype=torch.int32)
        weights = torch.empty(tokens, top, device=logits.device, dtype=torch.float32)
        warps = next((num for num in (4, 8, 16) if num * MOST_ROUTING_CTAS >= tokens), 32)
        grid = min(MOST_ROUTING_CTAS, -(-tokens // warps))
        self._launch("routing", grid, 32 * warps, logits, experts, weights, counts, tokens, num, top)
        return experts, weights

    def expert_sort(
        self, experts: torch.Tensor, counts: torch.Tensor, cursors: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return offsets [experts + 1] and the row of each choice [tokens, top], int32."""
        (tokens, top), num = experts.shape, counts.shape[0]
        offsets = torch.empty(num + 1, device=experts.device, dtype=torch.int32)
        row_of_choice = torch.empty_like(experts)
        grid = -(-tokens * top // (4 * MAX_THREADS))
        self._launch(
            "expert_sort", grid, MAX_THREADS, experts, counts, cursors, offsets, row_of_choice, tokens * top, num
        )
        return offsets, row_of_choice

    def permute(self, x: torch.Tensor, row_of_choice: torch.Tensor) -> torch.Tensor:
        """Return the rows of x [tokens, width] that the choices [tokens, top] take."""
        (tokens, top), vectors = row_of_choice.shape, x.shape[1] // VECTOR
        out = torch.empty(tokens * top, x.shape[1], device=x.device, dtype=x.dtype)
        self._launch("permute", tokens, min(MAX_THREADS // 2, _threads(vectors)), x, row_of_choice, out, vectors, top)
        return out

    def gather(self, table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Return rows of a table [any, width] by ids [tokens], int64."""
        out = torch.empty(ids.shape[0], table.shape[1], device=ids.device, dtype=table.dtype)
        vectors = table.shape[1] // VECTOR
        self._launch("gather", ids.shape[0], _threads(vectors), table, ids, out, vectors)
        return out

    def finalize(self, y: torch.Tensor, row_of_choice: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the weighted sum of each token's rows of y [choices, width]."""
        tokens, top = weights.shape
        vectors = y.shape[1] // VECTOR
        out = torch.empty(tokens, y.shape[1], device=y.device, dtype=y.dtype)
        self._launch("finalize", tokens, _threads(vectors), y, row_of_choice, weights, out, vectors, top)
        return out

    def operation_before(self, weights: torch.Tensor, x: torch.Tensor) -> None:
        """Read weights, and write x as it was."""
        sizes = (np.int64(tensor.numel() * tensor.element_size() // 16) for tensor in (weights, x))
        num_weights, num_x = sizes
        self._launch("operation_before", BEFORE_CTAS, MAX_THREADS, weights, num_weights, x, num_x)

    def marker(self) -> None:
        """Do nothing: a kernel between operations."""
        self._launch("marker", 1, 32)


def _plain(argument: torch.Tensor | int | np.int64) -> Any:
    if isinstance(argument, torch.Tensor):
        return argument.data_ptr()
    return argument if isinstance(argument, np.int64) else np.int32(argument)


def _threads(vectors: int) -> int:
    return min(MAX_THREADS, -(-vectors // 32) * 32)
