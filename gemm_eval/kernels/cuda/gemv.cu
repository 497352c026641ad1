// W4A16 for very few tokens on CUDA cores, in fp32. A lane reads 16 bytes: 2 columns x 16 of 64 k. A warp owns all
// CTA_N columns of its CTA and every WARPS-th block of k; the tokens of a block and the scales go through a ring in
// shared memory that belongs to the warp alone, so the main loop has no CTA barrier.
//   CTA_M     tokens: 1, 2, 4 or 8        CTA_N    columns: 16, 32, 64 or 128      WARPS  warps, all along K
//   STAGES    blocks of k in flight per warp (CTA_N / 16 loads of 16 bytes per lane each)
//   MIN_CTAS  of an SM, for the register allocator
//   SCALE_SUMS  1: integers are multiplied, and the sum of a group is scaled; 0: weights are scaled, then multiplied
//             (cheaper from 4 tokens on)
//
// `q & 0x000f000f` is a pair of fp16 numbers u * 2^-24, `q & 0x00f000f0` one of u * 2^-20, and both are exact in fp32.
// That holds for bf16 activations too: their products are fp32 anyway.

#define THREADS (32 * WARPS)
#define STRIPS (CTA_N / 16)  // of 16 columns, each one load of a lane for a block of k
#define BLOCK_BYTES 2048     // of weights: 64 columns x 64 k
#if MODE == 0
#define GROUPS 1
#define SCALE_BYTES 0
#else
#define GROUPS (GROUP < 64 ? 64 / GROUP : 1)        // that a block of k touches
#define SCALE_BYTES (GROUPS * CTA_N * PARAM_BYTES)  // of a block of k
#endif
#define TOKEN_BYTES (CTA_M * 128)                   // of a block of k
#define SUM_STRIDE (CTA_N + 4)                      // floats from token to token: lanes of a store in distinct banks

// ---- ring of tokens and scales -----------------------------------------------------------------------------------

DEVICE void copy_async_16(u32 to, const void* from, bool wanted) {
  asm volatile("{.reg .pred p; setp.ne.s32 p, %2, 0; @p cp.async.cg.shared.global [%0], [%1], 16;}"
               :
               : "r"(to), "l"(from), "r"((int)wanted)
               : "memory");
}

DEVICE void copy_async_16(u32 to, const void* from, bool wanted, bool inside) {  // not inside: zeros
  asm volatile("{.reg .pred p; setp.ne.s32 p, %2, 0; @p cp.async.cg.shared.global [%0], [%1], 16, %3;}"
               :
               : "r"(to), "l"(from), "r"((int)wanted), "r"(inside ? 16 : 0)
               : "memory");
}

DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" : : : "memory"); }

template <int pending>
DEVICE void wait_copies() {
  asm volatile("cp.async.wait_group %0;" : : "n"(pending) : "memory");
}

// Four 8 x 8 matrices: lane l names row l % 8 of matrix l / 8, and gets elements 2 (l % 4), + 1 of row l / 4 of each.
DEVICE void load_matrices(u32 address, u32 (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

DEVICE u32 load_shared_4(u32 address) {
  u32 v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}

DEVICE uint2 load_shared_8(u32 address) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
  return v;
}

DEVICE void store_shared_zeros_16(u32 address) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" : : "r"(address), "r"(0) : "memory");
}

DEVICE float low_float(u32 pair) {
#if ACT_BF16
  return __uint_as_float(pair << 16);
#else
  return to_float((act_t)(pair & 0xffffu));
#endif
}

DEVICE float high_float(u32 pair) {
#if ACT_BF16
  return __uint_as_float(pair & 0xffff0000u);
#else
  return to_float((act_t)(pair >> 16));
#endif
}

// Where a lane reads what its warp needs next, and where in the ring that goes. A row of the ring's tokens is 128
// bytes, its 16-byte chunks c at c ^ (row % 8).
struct Source {
  const unsigned char* weights;
  const unsigned char* tokens;  // chunk lane % 8 of row lane / 8
  const unsigned char* scales;
  long long four_rows;            // bytes
  u32 weights_high, scales_high;  // to columns 64..127 of the CTA
  u32 to_tokens, to_scales;       // stage 0 of this warp's rings, this lane's place
  int row, rows;                  // lane / 8; rows of A in this tile
  int k_left;                     // of K, from this lane's chunk on
  int scale_chunk;
};

DEVICE const unsigned char* strip(const Source& from, int i) {
  return from.weights + i % 4 * 512 + (i < 4 ? 0u : from.weights_high);
}

DEVICE void copy_block(const Source& from, int stage) {
#pragma unroll
  for (int i = 0; i < (CTA_M + 3) / 4; i++)  // row 4 i + lane / 8
    copy_async_16((from.to_tokens ^ (i % 2 ? 64u : 0u)) + stage * TOKEN_BYTES + i * 512,
                  from.tokens + i * from.four_rows, 4 * i + from.row < from.rows, from.k_left > 0);
#if MODE != 0
  constexpr int chunks = SCALE_BYTES / 16, row_chunks = chunks / GROUPS, half_chunks = 4 * PARAM_BYTES;
#pragma unroll
  for (int i = 0; i < (chunks + 31) / 32; i++) {
    const int id = 32 * i + from.scale_chunk, column = id % row_chunks;
    const unsigned char* p = from.scales + id / row_chunks * (64 * PARAM_BYTES) + column % half_chunks * 16;
    copy_async_16(from.to_scales + stage * SCALE_BYTES + i * 512, p + (column < half_chunks ? 0u : from.scales_high),
                  id < chunks);
  }
#endif
}

DEVICE void advance(Source& from) {  // WARPS is even: exact for a group of two blocks too
  from.weights += WARPS * BLOCK_BYTES;
  from.tokens += WARPS * 128;
  from.k_left -= WARPS * 64;
#if MODE != 0
  from.scales += WARPS * 64 / GROUP * (64 * PARAM_BYTES);
#endif
}

// ---- from partial sums to C --------------------------------------------------------------------------------------

DEVICE float2 load_l2(const float* p) {
  float2 v;
  asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(p) : "memory");
  return v;
}

// What a thread's two columns are finished with; loaded at the start.
struct Finish {
  float scale0, scale1, bias0, bias1;
};

DEVICE Finish load_finish(const act_t* bias, const unsigned char* scales, float alpha, int column, int N) {
  Finish f = {alpha, alpha, 0.0f, 0.0f};
  if (column < N) {
    if (bias != nullptr) {
      const u32 pair = __ldg((const u32*)(bias + column));
      f.bias0 = low_float(pair);
      f.bias1 = high_float(pair);
    }
#if MODE == 0
    const u32 pair = __ldg((const u32*)((const act_t*)scales + column));
    f.scale0 *= low_float(pair);
    f.scale1 *= high_float(pair);
#endif
  }
  return f;
}

// Adds the sums of all warps ([WARPS][CTA_M][SUM_STRIDE] in shared memory), then those of all splits in their order:
// the CTA that comes last does that, and the result is the same bit for bit whichever it is. A thread's columns never
// change.
DEVICE void finish(float* sums, const Finish& f, act_t* c, float* workspace, u32* counters, int rows, int N,
                   int split, int splits) {
  const int pair = (int)threadIdx.x % (CTA_N / 2), first_row = (int)threadIdx.x / (CTA_N / 2);
  const int column = (int)blockIdx.x * CTA_N + 2 * pair;
  const u32 tile = blockIdx.z * gridDim.x + blockIdx.x;
  float* partial = workspace + (u64)tile * splits * (CTA_M * CTA_N) + 2 * pair;
  c += (u64)blockIdx.z * CTA_M * N + column;
#pragma unroll 1
  for (int row = first_row; row < rows; row += THREADS / (CTA_N / 2)) {
    float2 sum = {0.0f, 0.0f};
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      const float2 v = *(const float2*)(sums + (w * CTA_M + row) * SUM_STRIDE + 2 * pair);
      sum.x += v.x;
      sum.y += v.y;
    }
    if (splits > 1)
      *(float2*)(partial + (split * CTA_M + row) * CTA_N) = sum;
    else if (column < N)
      *(u32*)(c + (u64)row * N) = pack2(fmaf(sum.x, f.scale0, f.bias0), fmaf(sum.y, f.scale1, f.bias1));
  }
  if (splits == 1) return;
  __syncthreads();
  if (threadIdx.x == 0) {  // the barrier orders the CTA's stores before this, and this before its loads
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counters + tile) : "memory");
    *(volatile u32*)sums = before == (u32)splits - 1;
    if (before == (u32)splits - 1) counters[tile] = 0;
  }
  __syncthreads();
  if (!*(volatile u32*)sums || column >= N) return;
#pragma unroll 1
  for (int row = first_row; row < rows; row += THREADS / (CTA_N / 2)) {
    float2 sum = {0.0f, 0.0f};
    const float* p = partial + row * CTA_N;
    int s = 0;
#pragma unroll 1
    for (; s + 4 <= splits; s += 4) {
      float2 v[4];
#pragma unroll
      for (int i = 0; i < 4; i++) v[i] = load_l2(p + (s + i) * (CTA_M * CTA_N));
#pragma unroll
      for (int i = 0; i < 4; i++) sum.x += v[i].x, sum.y += v[i].y;
    }
#pragma unroll 1
    for (; s < splits; s++) {
      const float2 v = load_l2(p + s * (CTA_M * CTA_N));
      sum.x += v.x, sum.y += v.y;
    }
    *(u32*)(c + (u64)row * N) = pack2(fmaf(sum.x, f.scale0, f.bias0), fmaf(sum.y, f.scale1, f.bias1));
  }
}

// ---- main loop ---------------------------------------------------------------------------------------------------

#define PER_UNIT0 16777216.0f  // column h = 0
#define PER_UNIT1 1048576.0f   // column h = 1
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

extern "C" __global__ void __launch_bounds__(THREADS, MIN_CTAS) w4a16_gemv(
    const act_t* __restrict__ a, const unsigned char* __restrict__ qweight, const unsigned char* __restrict__ scales,
    const act_t* __restrict__ bias, act_t* __restrict__ c, float* __restrict__ workspace, u32* __restrict__ counters,
    float alpha, int M, int N, int K, int lda, int column_blocks, int k_blocks, int groups,
    int split_blocks, int longer_splits) {
  extern __shared__ __align__(128) unsigned char smem[];
  const int lane = threadIdx.x & 31;
  const int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x >> 5, 0);
  const int split = blockIdx.y, splits = gridDim.y, first_token = (int)blockIdx.z * CTA_M;
  const int first_column = (int)blockIdx.x * CTA_N, column_block = first_column >> 6;

  // Blocks of k of this split: `split_blocks`, and one more in the first `longer_splits`.
  const int begin = split * split_blocks + min(split, longer_splits) + warp;
  const int count = split_blocks + (split < longer_splits) - warp;
  const int steps = count > 0 ? (count + WARPS - 1) / WARPS : 0;

  Source from;
  from.weights = qweight + ((u64)column_block * k_blocks + begin) * BLOCK_BYTES + (first_column & 63) * 32 + lane * 16;
  const bool has_high = column_block + 1 < column_blocks;  // if not, those columns are computed for nothing
  from.weights_high = has_high ? (u32)k_blocks * BLOCK_BYTES : 0u;

  from.row = lane >> 3;
  from.rows = min(M - first_token, CTA_M);
  from.k_left = K - begin * 64 - (lane & 7) * 8;
  from.tokens = (const unsigned char*)(a + (long long)(first_token + from.row) * lda + begin * 64ll + (lane & 7) * 8);
  from.four_rows = 8ll * lda;
  const u32 ring = __shfl_sync(0xffffffffu, smem_address(smem), 0);  // not computed again and again
  const u32 token_ring = ring + warp * (STAGES * TOKEN_BYTES);
  from.to_tokens = token_ring + from.row * 128 + (((lane & 7) ^ from.row) << 4);
#if MODE != 0
  const u32 scale_ring = ring + WARPS * STAGES * TOKEN_BYTES + warp * (STAGES * SCALE_BYTES);
  from.scales = scales + (((u64)column_block * groups + begin * 64 / GROUP) * 64 + (first_column & 63)) * PARAM_BYTES;
  from.scales_high = has_high ? (u32)groups * (64 * PARAM_BYTES) : 0u;
  from.to_scales = scale_ring + lane * 16;
  from.scale_chunk = lane;
#endif

  uint4 w[STAGES][STRIPS];
#pragma unroll
  for (int s = 0; s < STAGES; s++) {
    if (s < steps) {
#pragma unroll
      for (int i = 0; i < STRIPS; i++) w[s][i] = load_streaming_16(strip(from, i));
      copy_block(from, s);
      advance(from);
    }
    commit_copies();
  }
  const Finish how = load_finish(bias, scales, alpha, first_column + 2 * ((int)threadIdx.x % (CTA_N / 2)), N);
  // Rows that are no tokens stay zero: copies never touch them.
#pragma unroll
  for (int i = 0; i < (CTA_M + 3) / 4; i++)
    if (4 * i + from.row >= from.rows && 4 * i + from.row < CTA_M) {
#pragma unroll
      for (int s = 0; s < STAGES; s++)
        store_shared_zeros_16((from.to_tokens ^ (i % 2 ? 64u : 0u)) + s * TOKEN_BYTES + i * 512);
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
#if MODE != 0
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
            u32 pairs[CTA_M][4];
#pragma unroll
            for (int m = 0; m < CTA_M; m++)  // each lane gets row m: all eight rows of a matrix are that one
              load_matrices(token_ring + stage * TOKEN_BYTES + m * 128 +
                                (((half * 4 + (lane >> 3)) ^ (m & 7)) << 4),
                            pairs[m]);
#pragma unroll
            for (int jj = 0; jj < 2; jj++) {
              float x[CTA_M][4];
#pragma unroll
              for (int m = 0; m < CTA_M; m++) {
                x[m][0] = low_float(pairs[m][2 * jj]), x[m][1] = high_float(pairs[m][2 * jj]);
                x[m][2] = low_float(pairs[m][2 * jj + 1]), x[m][3] = high_float(pairs[m][2 * jj + 1]);
#if MODE == 0
                token_sums[m] += (x[m][0] + x[m][1]) + (x[m][2] + x[m][3]);
#elif SCALE_SUMS
                d_tokens[m] += (x[m][0] + x[m][1]) + (x[m][2] + x[m][3]);
#endif
              }
#pragma unroll
              for (int i = 0; i < STRIPS; i++) {
                const int j = 2 * half + jj;
                float u[2][4];
                to_floats(j == 0 ? w[stage][i].x : j == 1 ? w[stage][i].y : j == 2 ? w[stage][i].z : w[stage][i].w, u);
#pragma unroll
                for (int h = 0; h < 2; h++)
#pragma unroll
                  for (int k = 0; k < 4; k++) {
#if MODE != 0 && !SCALE_SUMS
                    u[h][k] = fmaf(u[h][k], scale[i][h], zero[i][h]);
#endif
#pragma unroll
                    for (int m = 0; m < CTA_M; m++) {
#if MODE != 0 && SCALE_SUMS
                      d[i][h][m] = fmaf(u[h][k], x[m][k], d[i][h][m]);
#else
                      acc[i][h][m] = fmaf(u[h][k], x[m][k], acc[i][h][m]);
#endif
                    }
                  }
              }
            }
          }
#if MODE != 0 && SCALE_SUMS
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
          copy_block(from, stage);
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
  finish(sums, how, c, workspace, counters, from.rows, N, split, splits);
}
