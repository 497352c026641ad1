// Rows of fp16 or bf16 to e4m3 with a scale for each row: out[m, place of k] = a[m, k] / scales[m], scales[m] = largest
// magnitude of the row / 448. Of each 16 k the four bytes 4 t .. 4 t + 3 are those of k = 2 t, 2 t + 8, 2 t + 1 and
// 2 t + 9: so packed weights have them in registers (KERNELS.md). Bytes beyond K, up to a multiple of 128, are 0. With
// a permutation k is row permutation[k] of the weights. A CTA quantizes a row at a time.
//
// W4A8 kernels take an integer u - 8 as u, and where k % 16 >= 8, whose tokens have their sign turned here, as 15 - u: so
// products of either sign alternate, and their sums stay small. For each 128 k a correction has what that lacks, the sum
// of -8 and 7 times the tokens, in 2^9: of 32 such, as numbers of 16 bits, and then what these lack themselves.
typedef unsigned int u32;
#define VECTOR 16

#if ACT_BF16
__device__ inline float low_of(u32 pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_of(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
#else
__device__ inline float half_of(unsigned short x) {
  float d;
  asm("cvt.f32.f16 %0, %1;" : "=f"(d) : "h"(x));
  return d;
}
__device__ inline float low_of(u32 pair) { return half_of((unsigned short)(pair & 0xffffu)); }
__device__ inline float high_of(u32 pair) { return half_of((unsigned short)(pair >> 16)); }
#endif

__device__ inline u32 e4m3_of(float lo, float hi) {  // two bytes, lo first
  unsigned short d;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(d) : "f"(hi), "f"(lo));
  return d;
}

__device__ inline float sum_of_e4m3(u32 pair) {  // two bytes
  u32 halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((unsigned short)pair));
  float lo, hi;
  asm("cvt.f32.f16 %0, %1;" : "=f"(lo) : "h"((unsigned short)(halves & 0xffffu)));
  asm("cvt.f32.f16 %0, %1;" : "=f"(hi) : "h"((unsigned short)(halves >> 16)));
  return lo + hi;
}

__device__ inline unsigned short rounded(float x) {
  unsigned short d;
#if ACT_BF16
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(d) : "f"(x));
#else
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(d) : "f"(x));
#endif
  return d;
}

__device__ inline float float_of(unsigned short x) {
#if ACT_BF16
  return __uint_as_float((u32)x << 16);
#else
  return half_of(x);
#endif
}

// Pairs (k, k + 1) of 16 numbers of a row.
__device__ inline void load_vector(const unsigned short* row, const int* permutation, int v, int K, u32 (&pairs)[8]) {
#pragma unroll
  for (int i = 0; i < 8; i++) pairs[i] = 0;
  if (permutation) {
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
      const int k = VECTOR * v + i;
      if (k < K) pairs[i / 2] |= (u32)row[min((u32)permutation[k], (u32)(K - 1))] << (i % 2 * 16);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 2; i++)
    if (VECTOR * v + 8 * i < K) {
      const uint4 x = __ldg(reinterpret_cast<const uint4*>(row + VECTOR * v + 8 * i));
      pairs[4 * i] = x.x, pairs[4 * i + 1] = x.y, pairs[4 * i + 2] = x.z, pairs[4 * i + 3] = x.w;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    gemm_eval_quantize(const unsigned short* __restrict__ a, const int* __restrict__ permutation,
                       uint4* __restrict__ out, unsigned short* __restrict__ corrections,
                       float* __restrict__ scales, int M, int K, long long lda) {
  __shared__ float of_warps[THREADS / 32];
  const int num_vectors = (K + 127) / 128 * 8;
  for (int m = blockIdx.x; m < M; m += gridDim.x) {
    const unsigned short* row = a + m * lda;
    u32 pairs[8];
    float largest = 0.f;
    for (int v = threadIdx.x; v < num_vectors; v += THREADS) {
      load_vector(row, permutation, v, K, pairs);
#pragma unroll
      for (int i = 0; i < 8; i++) largest = fmaxf(largest, fmaxf(fabsf(low_of(pairs[i])), fabsf(high_of(pairs[i]))));
    }
    for (int d = 16; d; d /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, d));
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = largest;
    __syncthreads();
    for (int w = 0; w < THREADS / 32; w++) largest = fmaxf(largest, of_warps[w]);
    __syncthreads();
    largest = fmaxf(largest, 1e-30f);  // rows of zeros, and what no fp32 reciprocal reaches
    const float inverse = 448.f / largest;
    if (threadIdx.x == 0) scales[m] = largest / 448.f;
    const int num_units = num_vectors / 8, num_chunks = (num_units + 31) / 32;
    unsigned short* of_row = corrections + (long long)m * num_chunks * 64;
    if (threadIdx.x < 64 && num_units % 32 && threadIdx.x % 32 >= num_units % 32)
      of_row[(num_chunks - 1) * 64 + threadIdx.x] = 0;
    for (int v = threadIdx.x; v < num_vectors; v += THREADS) {
      load_vector(row, permutation, v, K, pairs);
      u32 words[4];
#pragma unroll
      for (int t = 0; t < 4; t++)
        words[t] = e4m3_of(low_of(pairs[t]) * inverse, low_of(pairs[t + 4]) * -inverse) |
                   e4m3_of(high_of(pairs[t]) * inverse, high_of(pairs[t + 4]) * -inverse) << 16;
      float plain = 0.f, turned = 0.f;
#pragma unroll
      for (int t = 0; t < 4; t++) {
        plain += sum_of_e4m3(__byte_perm(words[t], 0, 0x4420));
        turned += sum_of_e4m3(__byte_perm(words[t], 0, 0x4431));
      }
      float lack = (-8.f * plain - 7.f * turned) / 512.f;
      const u32 mask = 0xffu << (threadIdx.x & 24);  // eight lanes have 128 k
      for (int d = 4; d; d /= 2) lack += __shfl_xor_sync(mask, lack, d);
      if (threadIdx.x % 8 == 0) {
        unsigned short* to = of_row + v / 8 / 32 * 64 + v / 8 % 32;
        to[0] = rounded(lack);
        to[32] = rounded(lack - float_of(rounded(lack)));
      }
      out[(long long)m * num_vectors + v] = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}
