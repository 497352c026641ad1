// W4A16 for few tokens on tensor cores (mma.sync.m16n8k16): the 16 bytes that a lane loads are its operand for 16
// columns x 64 k, so nothing is shuffled. Stands after streaming.cuh. Weights, tokens (the 8 columns of the
// instruction) and scales of a block go through a ring that belongs to the team: the main loop has no CTA barrier, and
// while a block is computed the next STAGES - 1 are on their way, without registers. A lane copies the very 16 bytes of
// weights that it reads back; tokens are copied by the team, so L2 is asked for them once a team.
//   CTA_M     tokens: 8, 16, 24 or 32     CTA_N    columns: 16, 32, 64, 128 or 256
//   STAGES    slots of the ring, at least 2, each for a block of k
//   SUBNORMAL fp16 only. 1: `q & 0x000f000f` is the pair of numbers u * 2^-24 and `q & 0x00f000f0` is u * 2^-20,
//             exactly; 0: `16 (64 + u)`, two instructions more a word
// Modes 3 and 4 (fp4): weights are scaled first, as in the kernels for many tokens. What follows is for the others.
//
// Weights enter the tensor core as integers. With e the value of one unit, the sum of e * (u + offset) * a over a group
// is brought to e * (u - zero) by the sum of a: an instruction whose weights are all -e * (offset + 8) gives that for
// all columns at once, and is where the sums of a group begin (with zero points: the plain sum, times the zero point of
// a column). Then the scale, in fp32.

#define TOKENS_AT (CTA_N * 32)  // in a slot of the ring: weights, tokens, scales
#define SCALES_AT (TOKENS_AT + TOKEN_BYTES)
#define SLOT_BYTES (SCALES_AT + WARPS_N * SCALE_BYTES)
#define RING_BYTES ((STAGES * SLOT_BYTES + 127) / 128 * 128)  // places of tokens in slot 0 are found by xor
// GROUPED: a team leaves its sums in the last slots of its ring, while the first are filled for the next unit.
#define SUM_SLOTS ((CTA_M * SUM_STRIDE * 4 + SLOT_BYTES - 1) / SLOT_BYTES)
#define AHEAD (GROUPED && SUM_SLOTS < STAGES ? STAGES - SUM_SLOTS : 0)
#define FINISH_OF(unit) \
  load_finish(bias, scales, alpha, unit.column_tile * CTA_N + 2 * ((int)threadIdx.x % (CTA_N / 2)), N)
#define TEAM_FLOATS (AHEAD ? RING_BYTES / 4 : CTA_M * SUM_STRIDE)

DEVICE void sync_team(int team) {
  if (WARPS_N == 1)
    __syncwarp();
  else
    named_barrier(team + 1, 32 * WARPS_N);
}

// `to`: this lane's place.
DEVICE void copy_weights(const Source& from, u32 to) {
#pragma unroll
  for (int i = 0; i < STRIPS; i++)
    copy_async_16(to + i * 512, from.weights + i % 4 * 512 + (i < 4 ? 0u : from.weights_high));
}

DEVICE void copy_tokens_and_scales(const Source& from, u32 slot) {
  copy_tokens(from, slot);
  copy_scales(from, slot);
}

// ---- weights as integers in the tensor core ----------------------------------------------------------------------

#define TILES (CTA_M / 8)  // of 8 tokens

#if MODE >= 3
#define PER_UNIT0 UNIT
#define PER_UNIT1 UNIT
#elif ACT_BF16  // 128 + u for both columns of a lane
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

#if MODE < 3
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
#endif

extern "C" __global__ void __launch_bounds__(THREADS, MIN_CTAS) w4a16_gemv_mma(
    const act_t* __restrict__ a, const unsigned char* __restrict__ qweight, const unsigned char* __restrict__ scales,
    const act_t* __restrict__ bias, act_t* __restrict__ c, float* __restrict__ workspace, u32* __restrict__ counters,
    float alpha, int M, int N, int K, int lda, int column_blocks, int k_blocks, int groups,
    int split_blocks, int longer_splits UNIT_PARAMETERS) {
  extern __shared__ __align__(128) unsigned char smem[];
  const int lane = threadIdx.x & 31;
  const int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x >> 5, 0);
  const int team = warp / WARPS_N, part = warp % WARPS_N;
#if GROUPED
  const TokenGroups token_groups = {token_offsets, factors, smem_address(smem) + GROUP_TABLE_AT, num_token_groups};
  const Units units = count_units(token_groups, M, N, K, most_cut);
  const int all_blocks = (K + 63) / 64;
  split_blocks = all_blocks / (int)units.splits, longer_splits = all_blocks % (int)units.splits;
  const unsigned char *all_weights = qweight, *all_scales = scales;
  const act_t* all_bias = bias;
  const float factor = alpha;
  if (blockIdx.x >= units.count) return;
#endif
  Unit unit;
  Source from;
  Finish how;
  int steps;
  u32 ring, to_weights;
#if MODE != 0
  u32 scale_ring = 0;
#endif
#if GROUPED
  const auto start = [&](u32 index) {
    const TokenGroup group = find_group_by_warp(token_groups, index / (units.tiles_n * units.splits), M);
    unit = unit_at(units, index, group);
    const u64 column_blocks_before = (u64)group.index * column_blocks;
    qweight = all_weights + column_blocks_before * k_blocks * BLOCK_BYTES;
    scales = all_scales + column_blocks_before * (MODE == 0 ? 64 * sizeof(act_t) : (u64)groups * GROUP_BYTES);
    bias = all_bias ? all_bias + (u64)group.index * N : nullptr;
    alpha = factor * __ldg(factors + group.index);
#else
  {
    unit = unit_of_cta(M);
#endif
    const int first_column = unit.column_tile * CTA_N + part * COLUMNS;
    const int column_block = min(first_column >> 6, column_blocks - 1);  // columns past the last: computed for nothing

    // Blocks of k of this split: `split_blocks`, and one more in the first `longer_splits`.
    const int begin = unit.split * split_blocks + min(unit.split, longer_splits) + team;
    const int count = split_blocks + (unit.split < longer_splits) - team;
    steps = count > 0 ? (count + TEAMS - 1) / TEAMS : 0;

    ring = __shfl_sync(0xffffffffu, smem_address(smem), 0) + team * RING_BYTES;
    from.lane = lane;
    const bool has_high = column_block + 1 < column_blocks;  // if not: as above
    start_weights(from, qweight, first_column, column_block, has_high, k_blocks, begin);
    to_weights = ring + part * (STRIPS * 512) + lane * 16;
    if (!GROUPED && steps > 0) copy_weights(from, to_weights);

    start_tokens(from, a, unit.end_token, K, lda, unit.first_token, begin, part);
    from.to_tokens = lane_place(from, ring + TOKENS_AT);
#if MODE != 0
    scale_ring = ring + SCALES_AT + part * SCALE_BYTES;
    start_scales(from, scales, first_column, column_block, has_high, groups, begin, scale_ring);
#endif
#if GROUPED
#pragma unroll
    for (int s = 0; s < AHEAD; s++) {
      if (s < steps) {
        copy_weights(from, to_weights + s * SLOT_BYTES);
        copy_tokens_and_scales(from, s * SLOT_BYTES);
        advance(from);
      }
      commit_copies();
    }
    how = FINISH_OF(unit);
  };
  start(blockIdx.x);
#pragma unroll 1
  for (u32 index = blockIdx.x;; index += gridDim.x) {
#endif
#pragma unroll
    for (int s = AHEAD; s < STAGES; s++) {
      if (s < steps) {
        if (GROUPED || s > 0) copy_weights(from, to_weights + s * SLOT_BYTES);
        copy_tokens_and_scales(from, s * SLOT_BYTES);
        advance(from);
      }
      if (s < STAGES - 1) commit_copies();  // the last by the first step
    }
    if (!GROUPED) how = FINISH_OF(unit);
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
    const u32 scale_address = scale_ring + (lane >> 2) * (2 * PARAM_BYTES);
#endif
#if MODE == 2
    const u32 of_all[4] = {UNIT0, UNIT1, UNIT0, UNIT1};
#elif MODE < 2
    const u32 of_all[4] = {MINUS8_0, MINUS8_1, MINUS8_0, MINUS8_1};
#endif

    u32 slot = 0, free = 0;
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
      wait_copies<STAGES - 2>();
      sync_team(team);  // this block is there for all lanes, and all have read the one before
      if (step > 0 && step + STAGES - 1 < steps) {
        copy_weights(from, to_weights + free);
        copy_tokens_and_scales(from, free);
        advance(from);
      }
      commit_copies();
      u32 b[TILES][4][2];
#pragma unroll
      for (int t = 0; t < TILES; t++) {
        load_matrices(token_address + slot + t * 1024, b[t][0], b[t][1]);
        load_matrices((token_address ^ 64u) + slot + t * 1024, b[t][2], b[t][3]);
      }
#if MODE == 0
#pragma unroll
      for (int j = 0; j < 4; j++)
#pragma unroll
        for (int t = 0; t < TILES; t++)
          mma(constant[t], of_all, b[t][j][0], b[t][j][1], constant[t]);
#elif MODE < 3
      float sums[GROUPS][TILES][4];
#pragma unroll
      for (int g = 0; g < GROUPS; g++) {
        const float zeros[4] = {};
#pragma unroll
        for (int j = g * (4 / GROUPS); j < (g + 1) * (4 / GROUPS); j++)
#pragma unroll
          for (int t = 0; t < TILES; t++) {
            const u32 b0 = b[t][j][0], b1 = b[t][j][1];
            if (j == g * (4 / GROUPS))
              mma(sums[g][t], of_all, b0, b1, zeros);
            else
              mma(sums[g][t], of_all, b0, b1, sums[g][t]);
          }
      }
#endif
#pragma unroll
      for (int i = 0; i < STRIPS; i++) {
        const uint4 loaded = load_shared_16(to_weights + slot + i * 512);
        const u32 q[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
#if MODE >= 3  // scaled weights: their products are exact, and a group has few k to scale the sum of
        const u32 row = scale_address + slot + i * (16 * PARAM_BYTES);
        const uint2 stored = PARAM_BYTES == 4 ? load_shared_8(row) : make_uint2(load_shared_4(row), 0);
        GroupParams params;
#pragma unroll
        for (int j = 0; j < 4; j++) {
          if (j % PARAM_STEPS == 0) params = params_of_step(stored.x, stored.y, j);
          u32 weights[4];
          dequantize(q[j], params, weights);
#pragma unroll
          for (int t = 0; t < TILES; t++) mma(acc[i][t], weights, b[t][j][0], b[t][j][1], acc[i][t]);
        }
#else
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
              const u32 b0 = b[t][j][0], b1 = b[t][j][1];
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
#endif
      }
      free = slot;
      slot = slot == (STAGES - 1) * SLOT_BYTES ? 0u : slot + SLOT_BYTES;
    }

    wait_copies<0>();
    if (AHEAD) sync_team(team);
    else __syncthreads();  // the rings are free
    const Unit done = unit;
    const Finish how_done = how;
    const int rows = from.rows;
#if GROUPED
    const bool has_next = index + gridDim.x < units.count;
    if (has_next) start(index + gridDim.x);
#endif
    float* sums = (float*)(smem + AHEAD * SLOT_BYTES);
    float* mine = sums + team * TEAM_FLOATS + (lane & 3) * 2 * SUM_STRIDE + part * COLUMNS + (lane >> 2);
#pragma unroll
    for (int i = 0; i < STRIPS; i++)
#pragma unroll
      for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int r = 0; r < 4; r++)
          mine[(8 * t + r % 2) * SUM_STRIDE + 16 * i + r / 2 * 8] =
              (acc[i][t][r] + constant[t][r]) * (r < 2 ? PER_UNIT0 : PER_UNIT1);
    __syncthreads();
    const bool is_stored = finish(sums, TEAM_FLOATS, how_done, c, workspace, counters, rows, N, done);
#if SUMMED
    if (is_stored) {
      __threadfence();
      __syncthreads();
      const Choices choices = CHOICES(units.tiles_n);
      add_choices(choices, c, done.first_token, done.first_token + rows, done.column_tile * CTA_N, CTA_N,
                  N, done.column_tile, warp, WARPS);
    }
#endif
#if GROUPED
    if (!has_next) break;
    __syncthreads();  // the sums are read
#endif
  }
}
