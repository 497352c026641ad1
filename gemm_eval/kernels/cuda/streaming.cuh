// What the kernels for few tokens share; stands after common.cuh. A team of WARPS_N warps takes every TEAMS-th block of
// k of its CTA's part of K, for all CTA_N columns, each warp an equal part of them. Tokens and scales of a block go
// through a ring in shared memory that belongs to the team; at the end the sums of all teams are added, then those of
// all parts of K.
//   CTA_M     tokens                      CTA_N    columns: a power of 2, 16 to 128 a warp
//   WARPS     warps, TEAMS * WARPS_N; TEAMS is even
//   STAGES    blocks of k that a team has in flight
//   MIN_CTAS  of an SM, for the register allocator
//
// GROUPED (groups.cuh stands before): groups of tokens have weights of their own. The launch has as many CTAs as fit;
// each counts the tiles of all groups, says by their number into how many parts K is cut, and works through its units.

#ifndef GROUPED
#define GROUPED 0
#endif

#ifndef FUSION
#define GATED 0
#define SUMMED 0
#endif

#define THREADS (32 * WARPS)
#define TEAMS (WARPS / WARPS_N)
#define COLUMNS (CTA_N / WARPS_N)  // of a warp
#define STRIPS (COLUMNS / 16)      // of 16 columns, each one load of a lane for a block of k
#define BLOCK_BYTES 2048           // of weights: 64 columns x 64 k
#if MODE == 0
#define GROUPS 1
#define SCALE_BYTES 0
#else
#define GROUPS (GROUP < 64 ? 64 / GROUP : 1)          // that a block of k touches
#define SCALE_BYTES (GROUPS * COLUMNS * PARAM_BYTES)  // of a warp and block of k
#endif
#define TOKEN_BYTES (CTA_M * 128)                                 // of a block of k
#define TOKEN_COPIES ((CTA_M + 4 * WARPS_N - 1) / (4 * WARPS_N))  // of a lane
#define SUM_STRIDE (CTA_N + 4)  // floats from token to token: lanes of a store in distinct banks

// ---- what a CTA computes ------------------------------------------------------------------------------------------

// Tokens x CTA_N columns, over a part of K.
struct Unit {
  int column_tile;
  int first_token, end_token;  // the last is that of A, or of the group
  int split, splits;
  u32 tile;  // counted through all: the place of its counter and of its parts' sums
};

#if GROUPED
#define UNIT_PARAMETERS \
  , const int* __restrict__ token_offsets, u32 num_token_groups, const float* __restrict__ factors, \
      u32 most_cut SUMMED_PARAMETERS

// Of all groups.
struct Units {
  u32 count, tiles_n, splits;
};

// In steps of all teams: what a CTA's start and end cost, and to add the sums of a part.
#define UNIT_STEPS 4
#define PART_STEPS 2

// K is cut so that the CTAs are done first; of even ways the fewest parts. All lanes have the same answer.
DEVICE u32 parts_of(u32 tiles, u32 blocks, u32 num_ctas, bool may_be_cut) {
  const u32 parts = threadIdx.x % 32 + 1, units = tiles * parts, waves = (units + num_ctas - 1) / num_ctas;
  const u32 steps = ((blocks + parts - 1) / parts + TEAMS - 1) / TEAMS;
  const u32 cost = waves * (steps + UNIT_STEPS) + (parts - 1) * PART_STEPS;
  const bool can = parts == 1 || (may_be_cut && parts <= MOST_PARTS && parts * TEAMS <= blocks &&
                                  units <= MAX_CUT_WAVES * num_ctas);
  return __reduce_min_sync(0xffffffffu, can ? cost * 32 + parts : 0xffffffffu) % 32;
}

// All threads call this: the table of tiles is there for all when it returns.
DEVICE Units count_units(const TokenGroups& groups, int M, int N, int K, u32 most_cut) {
  if (threadIdx.x < 32) count_tiles(groups, M);
  __syncthreads();
  const u32 tiles_m = load_shared_4(groups.tile_starts + 4 * groups.count), tiles_n = (N + CTA_N - 1) / CTA_N;
  const u32 parts = parts_of(tiles_m * tiles_n, (K + 63) / 64, gridDim.x, tiles_m <= most_cut);
  return {tiles_m * tiles_n * parts, tiles_n, parts};
}

// Tiles of tokens of one group that read the same weights follow each other, then columns, then parts of K.
DEVICE Unit unit_at(const Units& units, u32 index, const TokenGroup& group) {
  const u32 in_group = index - group.first_tile_m * units.tiles_n * units.splits;
  const u32 rest = group.tiles_m == 1 ? in_group : in_group / group.tiles_m, token_tile = in_group - rest * group.tiles_m;
  const u32 split = units.splits == 1 ? 0 : rest / units.tiles_n, column_tile = rest - split * units.tiles_n;
  return {(int)column_tile, (int)(group.first_token + token_tile * CTA_M), (int)group.end_token, (int)split,
          (int)units.splits, (group.first_tile_m + token_tile) * units.tiles_n + column_tile};
}
#else
#define UNIT_PARAMETERS

// The only one.
DEVICE Unit unit_of_cta(int M) {
  return {(int)blockIdx.x, (int)blockIdx.z * CTA_M, M, (int)blockIdx.y, (int)gridDim.y,
          blockIdx.z * gridDim.x + blockIdx.x};
}
#endif

// ---- ring of a team ----------------------------------------------------------------------------------------------

DEVICE void store_shared_zeros_16(u32 address) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" : : "r"(address), "r"(0) : "memory");
}

// Where a lane reads what its team needs next, and where in the ring that goes. A row of the ring's tokens is 128
// bytes, its 16-byte chunks c at c ^ (row % 8).
struct Source {
  const unsigned char* weights;
  const unsigned char* tokens;    // chunk lane % 8 of `row`
  const unsigned char* scales;
  long long token_stride;         // bytes, from copy to copy
  u32 weights_high, scales_high;  // to columns 64..127 of the warp
  u32 to_tokens, to_scales;       // this lane's places for the first block
  int row, rows;                  // thread of the team / 8; rows of A in this tile
  int k_left;                     // of K, from this lane's chunk on
  int lane;                       // set before the rest
};

// The first block is `begin`; the warp's columns start at `first_column`, which lies in `column_block`.
DEVICE void start_weights(Source& from, const unsigned char* qweight, int first_column, int column_block, bool has_high,
                          int k_blocks, int begin) {
  from.weights =
      qweight + ((u64)column_block * k_blocks + begin) * BLOCK_BYTES + (first_column & 63) * 32 + from.lane * 16;
  from.weights_high = has_high ? (u32)k_blocks * BLOCK_BYTES : 0u;
}

// All but `to_tokens`. `part`: which warp of the team.
DEVICE void start_tokens(Source& from, const act_t* a, int M, int K, int lda, int first_token, int begin, int part) {
  from.row = part * 4 + (from.lane >> 3);
  from.rows = min(M - first_token, CTA_M);
  from.k_left = K - begin * 64 - (from.lane & 7) * 8;
  from.tokens =
      (const unsigned char*)(a + (long long)(first_token + from.row) * lda + begin * 64ll + (from.lane & 7) * 8);
  from.token_stride = 8ll * WARPS_N * lda;
}

// Where the lane's first chunk of the first block goes in the tokens of a ring.
DEVICE u32 lane_place(const Source& from, u32 ring) {
  return ring + from.row * 128 + (((from.lane ^ from.row) & 7) << 4);
}

// `ring`: where the warp's scales of the first block go.
DEVICE void start_scales(Source& from, const unsigned char* scales, int first_column, int column_block, bool has_high,
                         int groups, int begin, u32 ring) {
#if MODE != 0
  from.scales = scales + (((u64)column_block * groups + begin * 64 / GROUP) * 64 + (first_column & 63)) * PARAM_BYTES;
  from.scales_high = has_high ? (u32)groups * GROUP_BYTES : 0u;
  from.to_scales = ring + from.lane * 16;
#endif
}

DEVICE int token_row(const Source& from, int i) { return i * (4 * WARPS_N) + from.row; }

DEVICE u32 token_place(const Source& from, int i) {
  return (from.to_tokens ^ (WARPS_N == 1 && i % 2 ? 64u : 0u)) + i * (512 * WARPS_N);
}

// `slot`: bytes from the first block's places on.
DEVICE void copy_tokens(const Source& from, u32 slot) {
#pragma unroll
  for (int i = 0; i < TOKEN_COPIES; i++)
    copy_async_16_or_zeros_if(token_place(from, i) + slot, from.tokens + i * from.token_stride,
                              token_row(from, i) < from.rows, from.k_left > 0);
}

DEVICE void copy_scales(const Source& from, u32 slot) {
#if MODE != 0
  constexpr int chunks = SCALE_BYTES / 16, row_chunks = chunks / GROUPS, half_chunks = GROUP_BYTES / 16;
#pragma unroll
  for (int i = 0; i < (chunks + 31) / 32; i++) {
    const int id = 32 * i + from.lane, column = id % row_chunks;
    const unsigned char* p = from.scales + id / row_chunks * GROUP_BYTES + column % half_chunks * 16;
    copy_async_16_if(from.to_scales + slot + i * 512, p + (column < half_chunks ? 0u : from.scales_high), id < chunks);
  }
#endif
}

DEVICE void advance(Source& from) {  // TEAMS is even: exact for a group of two blocks too
  from.weights += TEAMS * BLOCK_BYTES;
  from.tokens += TEAMS * 128;
  from.k_left -= TEAMS * 64;
#if MODE != 0
  from.scales += TEAMS * 64 / GROUP * GROUP_BYTES;
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

// Stores two columns of a row; of gate and up, which a thread and the fourth after it have, one pair for both.
#if GATED
DEVICE void store_gated(act_t* c, int pair, float x, float y) {
  const u32 lanes = 0xffu << (threadIdx.x & 24);
  const float up0 = __shfl_down_sync(lanes, x, 4), up1 = __shfl_down_sync(lanes, y, 4);
  if (pair % 8 < 4) *(u32*)c = pack2(gated(x, up0), gated(y, up1));
}
#define C_COLUMNS(N) (N / 2)
#define STORE_PAIR(c, pair, x, y) store_gated(c, pair, x, y)
#else
#define C_COLUMNS(N) N
#define STORE_PAIR(c, pair, x, y) *(u32*)(c) = pack2(x, y)
#endif

// Adds the sums of all teams ([CTA_M][SUM_STRIDE] each, `team_floats` apart in shared memory), then those of all splits in
// their order: the CTA that comes last does that, and the result is the same bit for bit whichever it is. A thread's
// columns never change. Returns whether this CTA has stored C.
DEVICE bool finish(float* sums, u32 team_floats, const Finish& f, act_t* c, float* workspace, u32* counters, int rows,
                   int N, const Unit& unit) {
  const int pair = (int)threadIdx.x % (CTA_N / 2), first_row = (int)threadIdx.x / (CTA_N / 2);
  const int split = unit.split, splits = unit.splits;
#if GROUPED
  const int column = unit.column_tile * CTA_N + 2 * pair;
  const u32 tile = unit.tile;
#else  // read again, not kept in registers through the main loop
  const int column = (int)blockIdx.x * CTA_N + 2 * pair;
  const u32 tile = blockIdx.z * gridDim.x + blockIdx.x;
#endif
  float* partial = workspace + (u64)tile * splits * (CTA_M * CTA_N) + 2 * pair;
#if GROUPED
  c += (u64)unit.first_token * C_COLUMNS(N);
  c += GATED ? unit.column_tile * (CTA_N / 2) + pair / 8 * 8 + pair % 8 * 2 : column;
#else
  c += (u64)blockIdx.z * CTA_M * N + column;
#endif
#pragma unroll 1
  for (int row = first_row; row < rows; row += THREADS / (CTA_N / 2)) {
    float2 sum = {0.0f, 0.0f};
#pragma unroll
    for (int w = 0; w < TEAMS; w++) {
      const float2 v = *(const float2*)(sums + w * team_floats + row * SUM_STRIDE + 2 * pair);
      sum.x += v.x;
      sum.y += v.y;
    }
    if (splits > 1)
      *(float2*)(partial + (split * CTA_M + row) * CTA_N) = sum;
    else if (column < N)
      STORE_PAIR(c + (u64)row * C_COLUMNS(N), pair, fmaf(sum.x, f.scale0, f.bias0), fmaf(sum.y, f.scale1, f.bias1));
  }
  if (splits == 1) return true;
  __syncthreads();
  if (threadIdx.x == 0) {  // the barrier orders the CTA's stores before this, and this before its loads
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counters + tile) : "memory");
    *(volatile u32*)sums = before == (u32)splits - 1;
    if (before == (u32)splits - 1) counters[tile] = 0;
  }
  __syncthreads();
  if (!*(volatile u32*)sums || (!SUMMED && column >= N)) return false;
  if (column >= N) return true;
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
    STORE_PAIR(c + (u64)row * C_COLUMNS(N), pair, fmaf(sum.x, f.scale0, f.bias0), fmaf(sum.y, f.scale1, f.bias1));
  }
  return true;
}
