// W4A16 for few tokens on tensor cores (mma.sync.m16n8k16): the 16 bytes that a lane loads are its operand for 16
// columns x 64 k, so nothing is shuffled. A team of WARPS_N warps takes every TEAMS-th block of k for all CTA_N columns
// of its CTA, each warp an equal part of them. Weights, tokens (the 8 columns of the instruction) and scales of a block
// go through a ring in shared memory that belongs to the team: the main loop has no CTA barrier, and while a block is
// computed the next STAGES - 1 are on their way, without registers. A lane copies the very 16 bytes of weights that it
// reads back; tokens are copied by the team, so L2 is asked for them once a team.
//   CTA_M     tokens: 8, 16, 24 or 32     CTA_N    columns: 16, 32, 64, 128 or 256; at most 128 a warp
//   WARPS     warps, TEAMS * WARPS_N
//   STAGES    blocks of k in the ring of a team, at least 2
//   MIN_CTAS  of an SM, for the register allocator
//   SUBNORMAL fp16 only. 1: `q & 0x000f000f` is the pair of numbers u * 2^-24 and `q & 0x00f000f0` is u * 2^-20,
//             exactly; 0: `16 (64 + u)`, two instructions more a word
//
// Weights enter the tensor core as integers. With e the value of one unit, the sum of e * (u + offset) * a over a group
// is brought to e * (u - zero) by the sum of a: an instruction whose weights are all -e * (offset + 8) gives that for
// all columns at once, and is where the sums of a group begin (with zero points: the plain sum, times the zero point of
// a column). Then the scale, in fp32.

#define THREADS (32 * WARPS)
#define TEAMS (WARPS / WARPS_N)
#define COLUMNS (CTA_N / WARPS_N)  // of a warp
#define STRIPS (COLUMNS / 16)      // of 16 columns, each one load of a lane for a block of k
#define BLOCK_BYTES 2048     // of weights: 64 columns x 64 k
#if MODE == 0
#define GROUPS 1
#define SCALE_BYTES 0
#else
#define GROUPS (GROUP < 64 ? 64 / GROUP : 1)        // that a block of k touches
#define SCALE_BYTES (GROUPS * COLUMNS * PARAM_BYTES)  // of a warp and block of k
#endif
#define TOKEN_BYTES (CTA_M * 128)                   // of a block of k
#define TOKENS_AT (CTA_N * 32)                      // in a slot of the ring: weights, tokens, scales
#define SCALES_AT (TOKENS_AT + TOKEN_BYTES)
#define SLOT_BYTES (SCALES_AT + WARPS_N * SCALE_BYTES)
#define TOKEN_COPIES ((CTA_M + 4 * WARPS_N - 1) / (4 * WARPS_N))  // of a lane
#define RING_BYTES ((STAGES * SLOT_BYTES + 127) / 128 * 128)  // places of tokens in slot 0 are found by xor
#define SUM_STRIDE (CTA_N + 4)                      // floats from token to token: lanes of a store in distinct banks

// ---- ring of a team ----------------------------------------------------------------------------------------------

DEVICE void copy_async_16(u32 to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" : : "r"(to), "l"(from) : "memory");
}

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

DEVICE void sync_team(int team) {
  if (WARPS_N == 1)
    __syncwarp();
  else
    asm volatile("bar.sync %0, %1;" : : "r"(team + 1), "n"(32 * WARPS_N) : "memory");
}

// Four 8 x 8 matrices: lane l names row l % 8 of matrix l / 8, and gets elements 2 (l % 4), + 1 of row l / 4 of each.
DEVICE void load_matrices(u32 address, u32 (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

DEVICE void load_shared_16(u32 address, u32 (&r)[4]) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
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

// Where a lane reads what its team needs next, and where in the ring that goes. A row of the ring's tokens is 128
// bytes, its 16-byte chunks c at c ^ (row % 8).
struct Source {
  const unsigned char* weights;
  const unsigned char* tokens;  // chunk lane % 8 of `row`
  const unsigned char* scales;
  long long token_stride;                // bytes, from copy to copy
  u32 weights_high, scales_high;         // to columns 64..127 of the warp
  u32 to_weights, to_tokens, to_scales;  // this lane's places in slot 0
  int row, rows;                         // thread of the team / 8; rows of A in this tile
  int k_left;                            // of K, from this lane's chunk on
  int lane;
};

DEVICE int token_row(const Source& from, int i) { return i * (4 * WARPS_N) + from.row; }

DEVICE u32 token_place(const Source& from, int i) {
  return (from.to_tokens ^ (WARPS_N == 1 && i % 2 ? 64u : 0u)) + i * (512 * WARPS_N);
}

DEVICE void copy_weights(const Source& from, u32 slot) {
#pragma unroll
  for (int i = 0; i < STRIPS; i++)
    copy_async_16(from.to_weights + slot + i * 512, from.weights + i % 4 * 512 + (i < 4 ? 0u : from.weights_high));
}

DEVICE void copy_tokens_and_scales(const Source& from, u32 slot) {
#pragma unroll
  for (int i = 0; i < TOKEN_COPIES; i++)
    copy_async_16(token_place(from, i) + slot, from.tokens + i * from.token_stride, token_row(from, i) < from.rows,
                  from.k_left > 0);
#if MODE != 0
  constexpr int chunks = SCALE_BYTES / 16, row_chunks = chunks / GROUPS, half_chunks = 4 * PARAM_BYTES;
#pragma unroll
  for (int i = 0; i < (chunks + 31) / 32; i++) {
    const int id = 32 * i + from.lane, column = id % row_chunks;
    const unsigned char* p = from.scales + id / row_chunks * (64 * PARAM_BYTES) + column % half_chunks * 16;
    copy_async_16(from.to_scales + slot + i * 512, p + (column < half_chunks ? 0u : from.scales_high),
                  id < chunks);
  }
#endif
}

DEVICE void advance(Source& from) {  // TEAMS is even: exact for a group of two blocks too
  from.weights += TEAMS * BLOCK_BYTES;
  from.tokens += TEAMS * 128;
  from.k_left -= TEAMS * 64;
#if MODE != 0
  from.scales += TEAMS * 64 / GROUP * (64 * PARAM_BYTES);
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

// Adds the sums of all teams ([TEAMS][CTA_M][SUM_STRIDE] in shared memory), then those of all splits in their order:
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
    for (int w = 0; w < TEAMS; w++) {
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

// ---- weights as integers in the tensor core ----------------------------------------------------------------------

#define TILES (CTA_M / 8)  // of 8 tokens

#if ACT_BF16  // 128 + u for both columns of a lane
#define UNIT0 0x3f803f80u     // one unit, for rows 0..7 (columns h = 0)
#define UNIT1 0x3f803f80u     // and rows 8..15
#define MINUS8_0 0xc308c308u  // -(offset + 8) units
#define MINUS8_1 0xc308c308u
#define PER_UNIT0 1.0f
#define PER_UNIT1 1.0f
#define ZERO_SHIFT0 0.0f      // what turns the stored zero point into -(offset + z)
#define ZERO_SHIFT1 0.0f
#elif SUBNORMAL  // u
#define UNIT0 0x00010001u
#define UNIT1 0x00100010u
#define MINUS8_0 0x80088008u
#define MINUS8_1 0x80808080u
#define PER_UNIT0 16777216.0f
#define PER_UNIT1 1048576.0f
#define ZERO_SHIFT0 1024.0f
#define ZERO_SHIFT1 64.0f
#else  // 64 + u, of 16 each
#define UNIT0 0x4c004c00u
#define UNIT1 0x4c004c00u
#define MINUS8_0 0xe480e480u
#define MINUS8_1 0xe480e480u
#define PER_UNIT0 0.0625f
#define PER_UNIT1 0.0625f
#define ZERO_SHIFT0 960.0f
#define ZERO_SHIFT1 0.0f
#endif

DEVICE void to_integers(u32 q, u32 (&a)[4]) {
#if ACT_BF16
  a[0] = and_or<0x000f000fu, 0x43004300u>(q);
  a[1] = and_or<0x000f000fu, 0x43004300u>(q >> 4);
  a[2] = and_or<0x000f000fu, 0x43004300u>(q >> 8);
  a[3] = and_or<0x000f000fu, 0x43004300u>(q >> 12);
#elif SUBNORMAL
  const u32 high = q >> 8;
  a[0] = q & 0x000f000fu;
  a[1] = q & 0x00f000f0u;
  a[2] = high & 0x000f000fu;
  a[3] = high & 0x00f000f0u;
#else
  a[0] = and_or<0x00f000f0u, 0x64006400u>(q << 4);
  a[1] = and_or<0x00f000f0u, 0x64006400u>(q);
  a[2] = and_or<0x00f000f0u, 0x64006400u>(q >> 4);
  a[3] = and_or<0x00f000f0u, 0x64006400u>(q >> 8);
#endif
}

DEVICE void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, const float (&c)[4]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32." MMA_TYPE "." MMA_TYPE ".f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_CTAS) w4a16_gemv_mma(
    const act_t* __restrict__ a, const unsigned char* __restrict__ qweight, const unsigned char* __restrict__ scales,
    const act_t* __restrict__ bias, act_t* __restrict__ c, float* __restrict__ workspace, u32* __restrict__ counters,
    float alpha, int M, int N, int K, int lda, int column_blocks, int k_blocks, int groups,
    int split_blocks, int longer_splits) {
  extern __shared__ __align__(128) unsigned char smem[];
  const int lane = threadIdx.x & 31;
  const int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x >> 5, 0);
  const int split = blockIdx.y, splits = gridDim.y, first_token = (int)blockIdx.z * CTA_M;
  const int team = warp / WARPS_N, part = warp % WARPS_N;
  const int first_column = (int)blockIdx.x * CTA_N + part * COLUMNS;
  const int column_block = min(first_column >> 6, column_blocks - 1);  // columns past the last: computed for nothing

  // Blocks of k of this split: `split_blocks`, and one more in the first `longer_splits`.
  const int begin = split * split_blocks + min(split, longer_splits) + team;
  const int count = split_blocks + (split < longer_splits) - team;
  const int steps = count > 0 ? (count + TEAMS - 1) / TEAMS : 0;

  const u32 ring = __shfl_sync(0xffffffffu, smem_address(smem), 0) + team * RING_BYTES;
  Source from;
  from.lane = lane;
  from.weights = qweight + ((u64)column_block * k_blocks + begin) * BLOCK_BYTES + (first_column & 63) * 32 + lane * 16;
  const bool has_high = column_block + 1 < column_blocks;  // as above
  from.weights_high = has_high ? (u32)k_blocks * BLOCK_BYTES : 0u;
  from.to_weights = ring + part * (STRIPS * 512) + lane * 16;
  if (steps > 0) copy_weights(from, 0);

  from.row = part * 4 + (lane >> 3);
  from.rows = min(M - first_token, CTA_M);
  from.k_left = K - begin * 64 - (lane & 7) * 8;
  from.tokens = (const unsigned char*)(a + (long long)(first_token + from.row) * lda + begin * 64ll + (lane & 7) * 8);
  from.token_stride = 8ll * WARPS_N * lda;
  from.to_tokens = ring + TOKENS_AT + from.row * 128 + (((lane ^ from.row) & 7) << 4);
#if MODE != 0
  from.scales = scales + (((u64)column_block * groups + begin * 64 / GROUP) * 64 + (first_column & 63)) * PARAM_BYTES;
  from.to_scales = ring + SCALES_AT + part * SCALE_BYTES + lane * 16;
  from.scales_high = has_high ? (u32)groups * (64 * PARAM_BYTES) : 0u;
#endif
#pragma unroll
  for (int s = 0; s < STAGES; s++) {
    if (s < steps) {
      if (s > 0) copy_weights(from, s * SLOT_BYTES);
      copy_tokens_and_scales(from, s * SLOT_BYTES);
      advance(from);
    }
    if (s < STAGES - 1) commit_copies();  // the last by the first step
  }
  const int finished = (int)blockIdx.x * CTA_N + 2 * ((int)threadIdx.x % (CTA_N / 2));
  const Finish how = load_finish(bias, scales, alpha, finished, N);
  // Rows that are no tokens stay zero: copies never touch them.
#pragma unroll
  for (int i = 0; i < TOKEN_COPIES; i++)
    if (token_row(from, i) >= from.rows && token_row(from, i) < CTA_M) {
#pragma unroll 1
      for (u32 slot = 0; slot < STAGES * SLOT_BYTES; slot += SLOT_BYTES)
        store_shared_zeros_16(token_place(from, i) + slot);
    }

  float acc[STRIPS][TILES][4] = {};
  float constant[TILES][4] = {};  // mode 0: what belongs to all columns alike, over all of K
  const u32 matrix_row = lane & 7, matrix = lane >> 3;
  const u32 token_address = ring + TOKENS_AT + matrix_row * 128 + ((matrix ^ matrix_row) << 4);  // chunks 0..3
#if MODE != 0
  const u32 scale_address = ring + SCALES_AT + part * SCALE_BYTES + (lane >> 2) * (2 * PARAM_BYTES);
#endif
#if MODE == 2
  const u32 of_all[4] = {UNIT0, UNIT1, UNIT0, UNIT1};
#else
  const u32 of_all[4] = {MINUS8_0, MINUS8_1, MINUS8_0, MINUS8_1};
#endif

  u32 slot = 0, free = 0;
#pragma unroll 1
  for (int step = 0; step < steps; step++) {
    wait_copies<STAGES - 2>();
    sync_team(team);  // this block is there for all lanes, and all have read the one before
    if (step > 0 && step + STAGES - 1 < steps) {
      copy_weights(from, free);
      copy_tokens_and_scales(from, free);
      advance(from);
    }
    commit_copies();
    u32 b[TILES][2][4];
#pragma unroll
    for (int t = 0; t < TILES; t++) {
      load_matrices(token_address + slot + t * 1024, b[t][0]);
      load_matrices((token_address ^ 64u) + slot + t * 1024, b[t][1]);
    }
#if MODE == 0
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int t = 0; t < TILES; t++)
        mma(constant[t], of_all, b[t][j / 2][j % 2 * 2], b[t][j / 2][j % 2 * 2 + 1], constant[t]);
#else
    float sums[GROUPS][TILES][4];
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
      const float zeros[4] = {};
#pragma unroll
      for (int j = g * (4 / GROUPS); j < (g + 1) * (4 / GROUPS); j++)
#pragma unroll
        for (int t = 0; t < TILES; t++) {
          const u32 b0 = b[t][j / 2][j % 2 * 2], b1 = b[t][j / 2][j % 2 * 2 + 1];
          if (j == g * (4 / GROUPS))
            mma(sums[g][t], of_all, b0, b1, zeros);
          else
            mma(sums[g][t], of_all, b0, b1, sums[g][t]);
        }
    }
#endif
#pragma unroll
    for (int i = 0; i < STRIPS; i++) {
      u32 q[4];
      load_shared_16(from.to_weights + slot + i * 512, q);
#pragma unroll
      for (int g = 0; g < GROUPS; g++) {
#if MODE != 0
        float d[TILES][4];
#endif
#pragma unroll
        for (int j = g * (4 / GROUPS); j < (g + 1) * (4 / GROUPS); j++) {
          u32 weights[4];
          to_integers(q[j], weights);
#pragma unroll
          for (int t = 0; t < TILES; t++) {
            const u32 b0 = b[t][j / 2][j % 2 * 2], b1 = b[t][j / 2][j % 2 * 2 + 1];
#if MODE == 0
            mma(acc[i][t], weights, b0, b1, acc[i][t]);
#else
            if (j > g * (4 / GROUPS))
              mma(d[t], weights, b0, b1, d[t]);
            else if (MODE == 1)
              mma(d[t], weights, b0, b1, sums[g][t]);
            else {
              const float zeros[4] = {};
              mma(d[t], weights, b0, b1, zeros);
            }
#endif
          }
        }
#if MODE != 0
        const u32 params = scale_address + slot + (g * STRIPS + i) * (16 * PARAM_BYTES);
#if MODE == 2
        const uint2 of_group = load_shared_8(params);
        const u32 scale_pair = of_group.x;
        const float z0 = low_float(of_group.y) + ZERO_SHIFT0, z1 = high_float(of_group.y) + ZERO_SHIFT1;
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
          for (int r = 0; r < 4; r++) d[t][r] = fmaf(r < 2 ? z0 : z1, sums[g][t][r], d[t][r]);
#else
        const u32 scale_pair = load_shared_4(params);
#endif
        const float s0 = low_float(scale_pair), s1 = high_float(scale_pair);
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
          for (int r = 0; r < 4; r++) acc[i][t][r] = fmaf(r < 2 ? s0 : s1, d[t][r], acc[i][t][r]);
#endif
      }
    }
    free = slot;
    slot = slot == (STAGES - 1) * SLOT_BYTES ? 0u : slot + SLOT_BYTES;
  }

  wait_copies<0>();
  __syncthreads();  // the rings are free
  float* sums = (float*)smem;
  float* mine = sums + team * (CTA_M * SUM_STRIDE) + (lane & 3) * 2 * SUM_STRIDE + part * COLUMNS + (lane >> 2);
#pragma unroll
  for (int i = 0; i < STRIPS; i++)
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
      for (int r = 0; r < 4; r++)
        mine[(8 * t + r % 2) * SUM_STRIDE + 16 * i + r / 2 * 8] =
            (acc[i][t][r] + constant[t][r]) * (r < 2 ? PER_UNIT0 : PER_UNIT1);
  __syncthreads();
  finish(sums, how, c, workspace, counters, from.rows, N, split, splits);
}
