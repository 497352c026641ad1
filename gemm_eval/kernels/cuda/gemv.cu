// W4A16 for very few tokens on CUDA cores, in fp32; stands after streaming.cuh. A lane reads 16 bytes: 2 columns x 16
// of 64 k. A team is one warp: it owns all CTA_N columns of its CTA and every WARPS-th block of k. Weights go straight
// to registers; the ring of tokens and that of scales belong to the warp alone: the main loop has no CTA barrier.
//   CTA_M     tokens: 1, 2, 4 or 8        CTA_N    columns: 16, 32, 64 or 128
//   STAGES    blocks of k in flight per warp (CTA_N / 16 loads of 16 bytes per lane each)
//   SCALE_SUMS  1: integers are multiplied, and the sum of a group is scaled; 0: weights are scaled, then multiplied
//             (cheaper from 4 tokens on); modes 3 and 4 (fp4) scale weights in pairs of 16 bits, which is exact
//
// `q & 0x000f000f` is a pair of fp16 numbers u * 2^-24, `q & 0x00f000f0` one of u * 2^-20, and both are exact in fp32.
// That holds for bf16 activations too: their products are fp32 anyway.

// Weights are read once: past L1, first to leave L2 where the hint is heeded.
DEVICE uint4 load_streaming_16(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}

DEVICE const unsigned char* strip(const Source& from, int i) {
  return from.weights + i % 4 * 512 + (i < 4 ? 0u : from.weights_high);
}

#if MODE >= 3
#define PER_UNIT0 UNIT
#define PER_UNIT1 UNIT
#else
#define PER_UNIT0 16777216.0f  // column h = 0
#define PER_UNIT1 1048576.0f   // column h = 1
#endif
#if ACT_BF16
#define ZERO_SHIFT0 128.0f  // what turns the stored zero point into -z
#define ZERO_SHIFT1 128.0f
#else
#define ZERO_SHIFT0 1024.0f
#define ZERO_SHIFT1 64.0f
#endif

DEVICE float low_half(u32 pair) {
  float d;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}" : "=f"(d) : "r"(pair));
  return d;
}

DEVICE float high_half(u32 pair) {
  float d;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h;}" : "=f"(d) : "r"(pair));
  return d;
}

#if MODE >= 3
// Word j of a lane: [column h][k, k+1, k+8, k+9], scaled.
DEVICE void to_floats(u32 q, const GroupParams& params, float (&u)[2][4]) {
  u32 pairs[4];
  dequantize(q, params, pairs);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    u[i % 2][i / 2 * 2] = low_float(pairs[i]);
    u[i % 2][i / 2 * 2 + 1] = high_float(pairs[i]);
  }
}
#else
// Word j of a lane: [column h][k, k+1, k+8, k+9], in units.
DEVICE void to_floats(u32 q, float (&u)[2][4]) {
  const u32 high = q >> 8;
  const u32 pairs[2][2] = {{q & 0x000f000fu, high & 0x000f000fu}, {q & 0x00f000f0u, high & 0x00f000f0u}};
#pragma unroll
  for (int h = 0; h < 2; h++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      u[h][2 * i] = low_half(pairs[h][i]);
      u[h][2 * i + 1] = high_half(pairs[h][i]);
    }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, MIN_CTAS) w4a16_gemv(
    const act_t* __restrict__ a, const unsigned char* __restrict__ qweight, const unsigned char* __restrict__ scales,
    const act_t* __restrict__ bias, act_t* __restrict__ c, float* __restrict__ workspace, u32* __restrict__ counters,
    float alpha, int M, int N, int K, int lda, int column_blocks, int k_blocks, int groups,
    int split_blocks, int longer_splits) {
  extern __shared__ __align__(128) unsigned char smem[];
  const int lane = threadIdx.x & 31;
  const int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x >> 5, 0);
  const Unit unit = unit_of_cta(M);
  const int first_column = unit.column_tile * CTA_N, column_block = first_column >> 6;

  // Blocks of k of this split: `split_blocks`, and one more in the first `longer_splits`.
  const int begin = unit.split * split_blocks + min(unit.split, longer_splits) + warp;
  const int count = split_blocks + (unit.split < longer_splits) - warp;
  const int steps = count > 0 ? (count + TEAMS - 1) / TEAMS : 0;

  Source from;
  from.lane = lane;
  const bool has_high = column_block + 1 < column_blocks;  // if not, those columns are computed for nothing
  start_weights(from, qweight, first_column, column_block, has_high, k_blocks, begin);

  start_tokens(from, a, unit.end_token, K, lda, unit.first_token, begin, 0);
  const u32 ring = __shfl_sync(0xffffffffu, smem_address(smem), 0);  // not computed again and again
  const u32 token_ring = ring + warp * (STAGES * TOKEN_BYTES);
  from.to_tokens = lane_place(from, token_ring);
#if MODE != 0
  const u32 scale_ring = ring + TEAMS * STAGES * TOKEN_BYTES + warp * (STAGES * SCALE_BYTES);
  start_scales(from, scales, first_column, column_block, has_high, groups, begin, scale_ring);
#endif

  uint4 w[STAGES][STRIPS];
#pragma unroll
  for (int s = 0; s < STAGES; s++) {
    if (s < steps) {
#pragma unroll
      for (int i = 0; i < STRIPS; i++) w[s][i] = load_streaming_16(strip(from, i));
      copy_tokens(from, s * TOKEN_BYTES);
      copy_scales(from, s * SCALE_BYTES);
      advance(from);
    }
    commit_copies();
  }
  const Finish how = load_finish(bias, scales, alpha, first_column + 2 * ((int)threadIdx.x % (CTA_N / 2)), N);
  // Rows that are no tokens stay zero: copies never touch them.
#pragma unroll
  for (int i = 0; i < TOKEN_COPIES; i++)
    if (token_row(from, i) >= from.rows && token_row(from, i) < CTA_M) {
#pragma unroll
      for (int s = 0; s < STAGES; s++) store_shared_zeros_16(token_place(from, i) + s * TOKEN_BYTES);
    }

  float acc[STRIPS][2][CTA_M] = {};
#if MODE == 0
  float token_sums[CTA_M] = {};  // over all of K
#endif
#if MODE != 0
  const u32 scale_address = scale_ring + (lane >> 2) * (2 * PARAM_BYTES);
#endif

  for (int step = 0; step < steps; step += STAGES) {
#pragma unroll
    for (int stage = 0; stage < STAGES; stage++) {
      if (step + stage < steps) {
        wait_copies<STAGES - 1>();
        __syncwarp();
        const bool more = step + stage + STAGES < steps;
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
#if MODE >= 3
          uint2 stored[STRIPS];
#pragma unroll
          for (int i = 0; i < STRIPS; i++) {
            const u32 address = scale_address + stage * SCALE_BYTES + i * (16 * PARAM_BYTES);
            stored[i] = PARAM_BYTES == 4 ? load_shared_8(address) : make_uint2(load_shared_4(address), 0);
          }
#elif MODE != 0
          float scale[STRIPS][2], zero[STRIPS][2];
#pragma unroll
          for (int i = 0; i < STRIPS; i++) {
            const u32 address = scale_address + stage * SCALE_BYTES + (g * STRIPS + i) * (16 * PARAM_BYTES);
#if MODE == 2
            const uint2 v = load_shared_8(address);
            scale[i][0] = low_float(v.x), scale[i][1] = high_float(v.x);
            zero[i][0] = (low_float(v.y) + ZERO_SHIFT0) / PER_UNIT0;
            zero[i][1] = (high_float(v.y) + ZERO_SHIFT1) / PER_UNIT1;
#else
            const u32 v = load_shared_4(address);
            scale[i][0] = low_float(v), scale[i][1] = high_float(v);
            zero[i][0] = -8.0f / PER_UNIT0, zero[i][1] = -8.0f / PER_UNIT1;
#endif
#if !SCALE_SUMS
            zero[i][0] *= scale[i][0], zero[i][1] *= scale[i][1];
#endif
          }
#if SCALE_SUMS
          float d[STRIPS][2][CTA_M] = {}, d_tokens[CTA_M] = {};
#endif
#endif
#pragma unroll
          for (int half = g * (2 / GROUPS); half < (g + 1) * (2 / GROUPS); half++) {  // two k16 steps
            u32 pairs[CTA_M][2][2];
#pragma unroll
            for (int m = 0; m < CTA_M; m++)  // each lane gets row m: all eight rows of a matrix are that one
              load_matrices(token_ring + stage * TOKEN_BYTES + m * 128 +
                                (((half * 4 + (lane >> 3)) ^ (m & 7)) << 4),
                            pairs[m][0], pairs[m][1]);
#pragma unroll
            for (int jj = 0; jj < 2; jj++) {
              float x[CTA_M][4];
#pragma unroll
              for (int m = 0; m < CTA_M; m++) {
                x[m][0] = low_float(pairs[m][jj][0]), x[m][1] = high_float(pairs[m][jj][0]);
                x[m][2] = low_float(pairs[m][jj][1]), x[m][3] = high_float(pairs[m][jj][1]);
#if MODE == 0
                token_sums[m] += (x[m][0] + x[m][1]) + (x[m][2] + x[m][3]);
#elif MODE < 3 && SCALE_SUMS
                d_tokens[m] += (x[m][0] + x[m][1]) + (x[m][2] + x[m][3]);
#endif
              }
#pragma unroll
              for (int i = 0; i < STRIPS; i++) {
                float u[2][4];
#if MODE >= 3
                to_floats(word_of(w[stage][i], 2 * half + jj), params_of_step(stored[i].x, stored[i].y, 2 * half + jj), u);
#else
                to_floats(word_of(w[stage][i], 2 * half + jj), u);
#endif
#pragma unroll
                for (int h = 0; h < 2; h++)
#pragma unroll
                  for (int k = 0; k < 4; k++) {
#if (MODE == 1 || MODE == 2) && !SCALE_SUMS
                    u[h][k] = fmaf(u[h][k], scale[i][h], zero[i][h]);
#endif
#pragma unroll
                    for (int m = 0; m < CTA_M; m++) {
#if (MODE == 1 || MODE == 2) && SCALE_SUMS
                      d[i][h][m] = fmaf(u[h][k], x[m][k], d[i][h][m]);
#else
                      acc[i][h][m] = fmaf(u[h][k], x[m][k], acc[i][h][m]);
#endif
                    }
                  }
              }
            }
          }
#if (MODE == 1 || MODE == 2) && SCALE_SUMS
#pragma unroll
          for (int i = 0; i < STRIPS; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
              for (int m = 0; m < CTA_M; m++)
                acc[i][h][m] = fmaf(scale[i][h], fmaf(zero[i][h], d_tokens[m], d[i][h][m]), acc[i][h][m]);
#endif
        }
        __syncwarp();  // all lanes have read this stage
        if (more) {
#pragma unroll
          for (int i = 0; i < STRIPS; i++) w[stage][i] = load_streaming_16(strip(from, i));
          copy_tokens(from, stage * TOKEN_BYTES);
          copy_scales(from, stage * SCALE_BYTES);
          advance(from);
        }
        commit_copies();
      }
    }
  }

  wait_copies<0>();
  __syncthreads();  // the rings are free
  float* sums = (float*)smem;
  float* mine = sums + warp * (CTA_M * SUM_STRIDE) + (lane >> 2);
#pragma unroll
  for (int i = 0; i < STRIPS; i++)
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int m = 0; m < CTA_M; m++) {
        float v = acc[i][h][m];
#if MODE == 0
        v = fmaf(h == 0 ? -8.0f / PER_UNIT0 : -8.0f / PER_UNIT1, token_sums[m], v);
#endif
        v += __shfl_xor_sync(0xffffffffu, v, 1);  // the four lanes of a column
        v += __shfl_xor_sync(0xffffffffu, v, 2);
        if ((lane & 3) == 0) mine[m * SUM_STRIDE + 16 * i + 8 * h] = v * (h == 0 ? PER_UNIT0 : PER_UNIT1);
      }
  __syncthreads();
  finish(sums, CTA_M * SUM_STRIDE, how, c, workspace, counters, from.rows, N, unit);
}
