// W4A16 with cp.async, ldmatrix and mma.sync.m16n8k16: SM80 and later. Stands after common.cuh; compiled for
//   TILE_M, TILE_N, TILE_K   tokens, columns and k of a step of a CTA; TILE_K is 64 or 128
//   WARP_M, WARP_N, WARPS_K  tokens and columns of a warp, and how many warps share a step's k
//   STAGES                   steps in the ring of shared memory
//   MIN_CTAS                 CTAs that must fit the registers of an SM
//
// A CTA has a range of units of 128 k, counted through all tiles: one tile, a part of one (split-K), or an even share
// of everything (stream-K). Each piece of the range within a tile runs the main loop, then the epilogue. CTAs that
// share a tile leave fp32 partial sums in the workspace; the last to arrive adds them in order of k.
//
// A stage of the ring holds tokens [TILE_M, TILE_K], 16-byte chunk c of row r at c ^ (r % 8); weights as packed, per 64
// columns TILE_K / 64 blocks; and the scales of its groups as packed. A warp takes whole blocks of 64 k: 16 bytes of a
// lane are its weights of 16 columns for four k16 steps.
//
// GROUPED (groups.cuh stands before): groups of tokens have weights of their own. How many tokens each has is in the GPU's
// memory alone, so each CTA counts the tiles of all groups, and their number says whether K is cut or CTAs have whole tiles.

#ifndef GROUPED
#define GROUPED 0
#endif

#define WARPS_M (TILE_M / WARP_M)
#define WARPS_N (TILE_N / WARP_N)
#define THREADS (32 * WARPS_M * WARPS_N * WARPS_K)
#define COLUMN_GROUPS (WARP_N / 16)  // of a warp, operands A of mma
#define TOKEN_GROUPS (WARP_M / 8)    // of a warp, operands B
#define K_BLOCKS (TILE_K / 64)       // of a stage
#define WARP_BLOCKS (K_BLOCKS / WARPS_K)
#define UNIT_K 128

#define TOKEN_BYTES (TILE_M * TILE_K * 2)
#define WEIGHT_BYTES (TILE_N * TILE_K / 2)
#if MODE == 0
#define STAGE_GROUPS 0
#define BLOCK_GROUPS 1
#else
#define STAGE_GROUPS (GROUP >= TILE_K ? 1 : TILE_K / GROUP)
#define BLOCK_GROUPS (GROUP == 32 ? 2 : 1)  // groups of a block of 64 k
#endif
#define SCALE_BYTES (TILE_N / 64 * STAGE_GROUPS * GROUP_BYTES)
#define GROUP_COPIES (STAGE_GROUPS * GROUP_BYTES / 16)  // of 64 columns and a step
#define SCALE_RUNS ((SCALE_BYTES / 16 + THREADS - 1) / THREADS)
#define BLOCK_COPIES (K_BLOCKS * 128)                                        // of 64 columns and a step
#define RUN_COPIES (BLOCK_COPIES > THREADS ? BLOCK_COPIES / THREADS : 1)     // of a thread, from one run of addresses
#define WEIGHT_RUNS (WEIGHT_BYTES / 16 / THREADS / RUN_COPIES)
#define STAGE_BYTES (TOKEN_BYTES + WEIGHT_BYTES + SCALE_BYTES)
#define RING_BYTES (STAGES * STAGE_BYTES)

// The epilogue's staging: [tokens, TILE_N + 4] in fp32, for as many token groups of each warp as the ring has room for.
#define OUT_STRIDE (TILE_N + 4)
#define PASS_FITS(groups) (WARPS_M * (groups) * 8 * OUT_STRIDE * 4 <= RING_BYTES)
#define PASS_GROUPS                                                      \
  (TOKEN_GROUPS >= 8 && PASS_FITS(8)   ? 8                               \
   : TOKEN_GROUPS >= 4 && PASS_FITS(4) ? 4                               \
   : TOKEN_GROUPS >= 2 && PASS_FITS(2) ? 2                               \
                                       : 1)
#define PASS_ROWS (WARPS_M * PASS_GROUPS * 8)

static_assert(TILE_M % WARP_M == 0 && TILE_N % WARP_N == 0 && TILE_N % 64 == 0, "tile");
static_assert(WARP_M % 16 == 0 || WARP_M == 8, "ldmatrix.x4 takes 16 tokens");
static_assert(WARP_N == 32 || WARP_N == 64, "a warp lies within 64 columns");
static_assert(K_BLOCKS % WARPS_K == 0 && UNIT_K % TILE_K == 0, "a warp takes whole blocks of 64 k");
static_assert(WEIGHT_BYTES / 16 % (THREADS * RUN_COPIES) == 0, "weights are copied by all threads");
static_assert(STAGES >= 2 && PASS_FITS(1), "ring");

// ---- instructions ------------------------------------------------------------------------------------------------

DEVICE void load_matrix_2(u32 address, u32 (&a)[2]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(a[0]), "=r"(a[1]) : "r"(address) : "memory");
}

DEVICE float4 load_l2_16(const float* p) {  // what other SMs wrote
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p) : "memory");
  return v;
}

// ---- arguments ---------------------------------------------------------------------------------------------------

struct Problem {
  const act_t* scales;
  const act_t* bias;
  act_t* c;
  float alpha;
  int M, N;
};

// ---- how the work is cut -----------------------------------------------------------------------------------------

// First unit of CTA `cta`, of `ctas` that share `units`: floor(cta * units / ctas) in 32 bits; ctas < 65536.
DEVICE u32 first_unit(u32 cta, u32 units, u32 ctas) {
  return cta * (units / ctas) + cta * (units % ctas) / ctas;
}

// The CTA that has `unit`.
DEVICE u32 owner_of(u32 unit, u32 units, u32 ctas) {
  u32 cta = (u32)((float)unit * ((float)ctas / (float)units));  // close; then exactly
  cta = cta < ctas ? cta : ctas - 1;
  while (first_unit(cta, units, ctas) > unit) --cta;
  while (cta + 1 < ctas && first_unit(cta + 1, units, ctas) <= unit) ++cta;
  return cta;
}

// The place of a tile: the raster walks `along` one dimension, `swizzle` tiles across before its next step.
DEVICE void place_of(u32 tile, u32 tiles_along, u32 tiles_across, u32 swizzle, u32& along, u32& across) {
  const u32 band = tile / (tiles_along * swizzle);
  const u32 within = tile - band * tiles_along * swizzle;
  const u32 left = tiles_across - band * swizzle;
  const u32 width = left < swizzle ? left : swizzle;
  along = within / width;
  across = band * swizzle + within - along * width;
}

// ---- operands of a warp ------------------------------------------------------------------------------------------

struct Weights {  // of a warp's columns and 64 k
  uint4 q[COLUMN_GROUPS];
#if MODE != 0
  u32 scale[COLUMN_GROUPS][BLOCK_GROUPS];
#endif
#if PARAM_BYTES == 4
  u32 zero[COLUMN_GROUPS][BLOCK_GROUPS];  // mode 4: more scales
#endif
};

// `weights` and `scales` are the lane's addresses in the stage, `block` is counted in the stage.
DEVICE void load_weights(Weights& w, u32 weights, u32 scales, u32 block) {
#pragma unroll
  for (int i = 0; i < COLUMN_GROUPS; ++i) {
    w.q[i] = load_shared_16(weights + block * 2048 + i * 512);
#if MODE != 0
#pragma unroll
    for (int h = 0; h < BLOCK_GROUPS; ++h) {
      const u32 group = GROUP >= TILE_K ? 0 : GROUP == 32 ? block * 2 + h : block;
      const u32 from = scales + group * GROUP_BYTES + i * 16 * PARAM_BYTES;
#if PARAM_BYTES == 4
      const uint2 v = load_shared_8(from);
      w.scale[i][h] = v.x;
      w.zero[i][h] = v.y;
#else
      w.scale[i][h] = load_shared_4(from);
#endif
    }
#endif
  }
}

DEVICE GroupParams params_of(const Weights& w, int i, int j) {
#if MODE == 0
  return params_of_step(0, 0, j);
#elif PARAM_BYTES == 2
  return params_of_step(w.scale[i][j / 2 % BLOCK_GROUPS], 0, j);
#else
  return params_of_step(w.scale[i][j / 2 % BLOCK_GROUPS], w.zero[i][j / 2 % BLOCK_GROUPS], j);
#endif
}

// Tokens of a warp for one k16 step; `address` is the lane's.
DEVICE void load_tokens(u32 (&b)[TOKEN_GROUPS][2], u32 address) {
#if TOKEN_GROUPS == 1
  load_matrix_2(address, b[0]);
#else
#pragma unroll
  for (int t = 0; t < TOKEN_GROUPS; t += 2) load_matrices(address + t * 8 * TILE_K * 2, b[t], b[t + 1]);
#endif
}

// ---- epilogue ----------------------------------------------------------------------------------------------------

// Eight columns of a token, from sums to C.
DEVICE void store_output(const Problem& problem, int token, int column, float (&v)[8]) {
#if MODE == 0
  const uint4 scales = *reinterpret_cast<const uint4*>(problem.scales + column);
  const u32 scale[4] = {scales.x, scales.y, scales.z, scales.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] *= to_float((act_t)(scale[i / 2] >> (16 * (i % 2))));
#endif
  if (problem.bias) {
    const uint4 biases = *reinterpret_cast<const uint4*>(problem.bias + column);
    const u32 bias[4] = {biases.x, biases.y, biases.z, biases.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = v[i] * problem.alpha + to_float((act_t)(bias[i / 2] >> (16 * (i % 2))));
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] *= problem.alpha;
  }
  uint4 out;
  out.x = pack2(v[0], v[1]);
  out.y = pack2(v[2], v[3]);
  out.z = pack2(v[4], v[5]);
  out.w = pack2(v[6], v[7]);
  *reinterpret_cast<uint4*>(problem.c + (u64)token * problem.N + column) = out;
}

// ---- kernel ------------------------------------------------------------------------------------------------------

// `split`: CTAs of a tile; 0: stream-K. `lda` in elements. KB, NB, GB as in KERNELS.md.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_CTAS)
    w4a16_sm80(const act_t* __restrict__ a, int lda, const u32* __restrict__ qweight, const act_t* __restrict__ scales,
               const act_t* __restrict__ bias, act_t* __restrict__ c, float* __restrict__ workspace,
               u32* __restrict__ counters, float alpha, int M, int N, int K, int NB, int KB, int GB, u32 units_of_tile,
               u32 split, u32 raster_along_n, u32 raster_swizzle
#if GROUPED
               , const int* __restrict__ token_offsets, u32 num_token_groups, const float* __restrict__ factors,
               u32 most_cut
#endif
) {
  extern __shared__ __align__(128) unsigned char ring[];
  const u32 ring_address = smem_address(ring);
  const u32 tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const u32 warp_n = warp % WARPS_N, warp_m = warp / WARPS_N % WARPS_M, warp_k = warp / (WARPS_N * WARPS_M);
#if GROUPED
  const u32 tiles_n = (N + TILE_N - 1) / TILE_N;
  const TokenGroups token_groups = {token_offsets, factors, ring_address + RING_BYTES, num_token_groups};
  if (warp == 0) count_tiles(token_groups, M);
  __syncthreads();
  const u32 all_tiles_m = load_shared_4(token_groups.tile_starts + 4 * num_token_groups);
  const u32 cta = blockIdx.x, tiles = all_tiles_m * tiles_n, units = tiles * units_of_tile;
  const CutTiles cut_tiles = cut_tiles_of(tiles, units_of_tile, gridDim.x, all_tiles_m <= most_cut);
  const u32 ctas = cut_tiles.ctas;
  if (cta >= ctas) return;
  u32 unit, end_unit;
  if (!cut_tiles.is_cut) {
    unit = first_unit(cta, tiles, ctas) * units_of_tile;
    end_unit = first_unit(cta + 1, tiles, ctas) * units_of_tile;
  } else if (split == 0) {
#else
  const Problem problem = {scales, bias, c, alpha * UNIT, M, N};
  const u32 tiles_m = (M + TILE_M - 1) / TILE_M, tiles_n = (N + TILE_N - 1) / TILE_N;
  const u32 cta = blockIdx.x, ctas = gridDim.x, units = tiles_m * tiles_n * units_of_tile;
  u32 unit, end_unit;
  if (split == 0) {
#endif
    unit = first_unit(cta, units, ctas);
    end_unit = first_unit(cta + 1, units, ctas);
  } else {
    const u32 tile = cta / split, part = cta - tile * split;
    unit = tile * units_of_tile + first_unit(part, units_of_tile, split);
    end_unit = tile * units_of_tile + first_unit(part + 1, units_of_tile, split);
  }
  const u32 begin_unit = unit;

  // places of the lane in a stage
  const u32 row = warp_m * WARP_M + (TOKEN_GROUPS == 1 ? lane % 8 : lane % 8 + lane / 16 * 8);
  const u32 tokens_lane = ring_address + row * (TILE_K * 2);
  const u32 swizzle_lane = (lane / 8 % 2 ^ lane % 8) * 16;
  const u32 first_group = warp_n * COLUMN_GROUPS;  // of 16 columns, in the tile
  const u32 weights_lane =
      ring_address + TOKEN_BYTES + first_group / 4 * (K_BLOCKS * 2048) + first_group % 4 * 512 + lane * 16;
  const u32 scales_lane = ring_address + TOKEN_BYTES + WEIGHT_BYTES + first_group / 4 * (STAGE_GROUPS * GROUP_BYTES) +
                          first_group % 4 * (16 * PARAM_BYTES) + lane / 4 * (2 * PARAM_BYTES);
  const u32 first_block = warp_k * WARP_BLOCKS;

  // places of the thread's copies: a row of tokens is TILE_K / 8 chunks
  constexpr u32 row_chunks = TILE_K / 8, copy_rows = THREADS / row_chunks;
  const u32 copy_row = tid / row_chunks, copy_chunk = tid % row_chunks;
  const u32 token_to = ring_address + copy_row * (TILE_K * 2) + (copy_chunk ^ copy_row % 8) * 16;

  while (unit < end_unit) {
    const u32 tile = unit / units_of_tile, tile_unit = tile * units_of_tile;
    const u32 stop_unit = end_unit < tile_unit + units_of_tile ? end_unit : tile_unit + units_of_tile;
    const bool cut = stop_unit - unit != units_of_tile;
    u32 tile_m, tile_n;
#if GROUPED
    const TokenGroup group = find_group(token_groups, tile / tiles_n, M);
    const u32 group_tile = tile - group.first_tile_m * tiles_n, tiles_m = group.tiles_m;
    const int end_token = group.end_token, first_token = group.first_token;
    const u32 first_block_row = group.index * NB;
    const Problem problem = {
        scales + (MODE == 0 ? (u64)first_block_row * 64 : 0), bias ? bias + (u64)group.index * N : bias, c,
        alpha * UNIT * __ldg(factors + group.index), end_token, N};
#else
    const u32 group_tile = tile;
    const int end_token = M, first_token = 0;
    const u32 first_block_row = 0;
#endif
    if (raster_along_n) {
      place_of(group_tile, tiles_n, tiles_m, raster_swizzle, tile_n, tile_m);
    } else {
      place_of(group_tile, tiles_m, tiles_n, raster_swizzle, tile_m, tile_n);
    }
    const int m0 = first_token + tile_m * TILE_M, n0 = tile_n * TILE_N;

    // ---- copies, a step at a time: where the thread's next ones come from
    const int steps = (stop_unit - unit) * (UNIT_K / TILE_K);
    const int first_k = (unit - tile_unit) * UNIT_K;
    const u32 first_nb = n0 / 64, last_nb = NB - 1 - first_nb;  // the last counted from the first
    const char* token_from =
        reinterpret_cast<const char*>(a) + ((u64)(m0 + copy_row) * lda + first_k + copy_chunk * 8) * 2;
    const u64 token_stride = (u64)copy_rows * lda * 2;
    const int rows_left = end_token - m0 - (int)copy_row;
    int k_left = K - first_k - (int)copy_chunk * 8;
    const char* weight_from[WEIGHT_RUNS];
#pragma unroll
    for (int i = 0; i < WEIGHT_RUNS; ++i) {
      const u32 copy = i * (RUN_COPIES * THREADS) + tid, nb = copy / BLOCK_COPIES;
      weight_from[i] = reinterpret_cast<const char*>(qweight) +
                       ((u64)(first_block_row + first_nb + (nb < last_nb ? nb : last_nb)) * KB + first_k / 64) * 2048 +
                       copy % BLOCK_COPIES * 16;
    }
#if MODE != 0
    const char* scale_from[SCALE_RUNS];
    int scale_k = first_k;
#pragma unroll
    for (int i = 0; i < SCALE_RUNS; ++i) {
      const u32 copy = i * THREADS + tid, nb = copy / GROUP_COPIES;
      scale_from[i] = reinterpret_cast<const char*>(scales) +
                      ((u64)(first_block_row + first_nb + (nb < last_nb ? nb : last_nb)) * GB + first_k / GROUP) * GROUP_BYTES +
                      copy % GROUP_COPIES * 16;
    }
#endif

    auto copy_step = [&](u32 stage) {
      constexpr u32 token_copies = TILE_M * row_chunks;
      const char* token = token_from;
#pragma unroll
      for (u32 i = 0; i * THREADS < token_copies; ++i) {
        if (token_copies % THREADS == 0 || i * THREADS + tid < token_copies) {
          copy_async_16_or_zeros(stage + token_to + i * copy_rows * (TILE_K * 2), token,
                                 k_left > 0 && (int)(i * copy_rows) < rows_left);
        }
        token += token_stride;
      }
      token_from += TILE_K * 2;
      k_left -= TILE_K;
      const u32 weight_to = stage + ring_address + TOKEN_BYTES + tid * 16;
#pragma unroll
      for (int i = 0; i < WEIGHT_RUNS; ++i) {
#pragma unroll
        for (int j = 0; j < RUN_COPIES; ++j) {
          copy_async_16(weight_to + (i * RUN_COPIES + j) * THREADS * 16, weight_from[i] + j * THREADS * 16);
        }
        weight_from[i] += K_BLOCKS * 2048;
      }
#if MODE != 0
#pragma unroll
      for (int i = 0; i < SCALE_RUNS; ++i) {
        if (i * THREADS + tid < SCALE_BYTES / 16) {
          copy_async_16(weight_to + WEIGHT_BYTES + i * THREADS * 16, scale_from[i]);
        }
        if (GROUP <= TILE_K) {
          scale_from[i] += STAGE_GROUPS * GROUP_BYTES;
        } else if (scale_k % GROUP == GROUP - TILE_K) {  // the group ends with this step
          scale_from[i] += GROUP_BYTES;
        }
      }
      scale_k += TILE_K;
#endif
    };

    // ---- main loop
    float sums[COLUMN_GROUPS][TOKEN_GROUPS][4];
#pragma unroll
    for (int i = 0; i < COLUMN_GROUPS; ++i) {
#pragma unroll
      for (int t = 0; t < TOKEN_GROUPS; ++t) sums[i][t][0] = sums[i][t][1] = sums[i][t][2] = sums[i][t][3] = 0.0f;
    }

    __syncthreads();  // the ring is free
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
      if (s < steps) copy_step(s * STAGE_BYTES);
      commit_copies();
    }
    wait_copies<STAGES - 2>();
    __syncthreads();

    u32 read = 0, write = (STAGES - 1) * STAGE_BYTES;  // stages
    Weights weights;
    u32 tokens[2][TOKEN_GROUPS][2];
    load_weights(weights, weights_lane, scales_lane, first_block);
    load_tokens(tokens[0], tokens_lane + first_block * 128 + swizzle_lane);

#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
#pragma unroll
      for (int block = 0; block < WARP_BLOCKS; ++block) {
        GroupParams params[COLUMN_GROUPS];
        Weights next;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const bool last = block == WARP_BLOCKS - 1 && j == 3;
          if (j % PARAM_STEPS == 0) {
#pragma unroll
            for (int i = 0; i < COLUMN_GROUPS; ++i) params[i] = params_of(weights, i, j);
          }
          if (last) {  // all of this stage is in registers: the next must be there, and this one is free
            wait_copies<STAGES - 2>();
            __syncthreads();
            read = read == (STAGES - 1) * STAGE_BYTES ? 0 : read + STAGE_BYTES;
          }
          const u32 next_block = first_block + (last ? 0 : j == 3 ? block + 1 : block);
          load_tokens(tokens[(j + 1) % 2], read + tokens_lane + next_block * 128 + (swizzle_lane ^ (j + 1) % 4 * 32));
          if (j == 3) load_weights(next, read + weights_lane, read + scales_lane, next_block);
          if (block == 0 && j == 0) {
            if (step + STAGES - 1 < steps) copy_step(write);
            commit_copies();
            write = write == (STAGES - 1) * STAGE_BYTES ? 0 : write + STAGE_BYTES;
          }
          u32 operand[2][4];
          dequantize(word_of(weights.q[0], j), params[0], operand[0]);
#pragma unroll
          for (int i = 0; i < COLUMN_GROUPS; ++i) {
            if (i + 1 < COLUMN_GROUPS) dequantize(word_of(weights.q[i + 1], j), params[i + 1], operand[(i + 1) % 2]);
#pragma unroll
            for (int t = 0; t < TOKEN_GROUPS; ++t) {
              const u32(&b)[2] = tokens[j % 2][t];
              mma(sums[i][t], operand[i % 2], b[0], b[1], sums[i][t]);
            }
          }
        }
        weights = next;
      }
    }
    wait_copies<0>();

    // ---- epilogue: sums through shared memory to rows of C, or of the workspace
    float* const out = reinterpret_cast<float*>(ring);
    constexpr u32 pieces = TILE_N / 8;  // of a row
    const u32 split_of = split == 0 ? cta * 2 + (begin_unit < tile_unit) : cta;
    float* const slot = workspace + (u64)split_of * (TILE_M * TILE_N);
    const u32 lane_row = warp_m * (PASS_GROUPS * 8) + lane % 4 * 2, lane_column = warp_n * WARP_N + lane / 4;
#pragma unroll
    for (int pass = 0; pass < TOKEN_GROUPS / PASS_GROUPS; ++pass) {
      __syncthreads();  // all have read what lies there
#pragma unroll
      for (int k = 0; k < WARPS_K; ++k) {
        if (warp_k == k) {
#pragma unroll
          for (int t = 0; t < PASS_GROUPS; ++t) {
#pragma unroll
            for (int i = 0; i < COLUMN_GROUPS; ++i) {
#pragma unroll
              for (int e = 0; e < 4; ++e) {
                float* const to = out + (lane_row + t * 8 + e % 2) * OUT_STRIDE + lane_column + i * 16 + e / 2 * 8;
                const float sum = sums[i][pass * PASS_GROUPS + t][e];
                *to = k == 0 ? sum : *to + sum;
              }
            }
          }
        }
        __syncthreads();
      }
#pragma unroll 2
      for (u32 piece = tid; piece < PASS_ROWS * pieces; piece += THREADS) {
        const u32 r = piece / pieces, column = piece % pieces * 8;
        const u32 tile_row = r / (PASS_GROUPS * 8) * WARP_M + pass * (PASS_GROUPS * 8) + r % (PASS_GROUPS * 8);
        if (m0 + (int)tile_row < end_token && n0 + (int)column < N) {
          // lanes 4..7 of 8 take their second half first: no two of the eight meet in a bank
          const u32 flip = tid / 4 % 2 * 4;
          const float4 x = *reinterpret_cast<const float4*>(out + r * OUT_STRIDE + column + flip);
          const float4 y = *reinterpret_cast<const float4*>(out + r * OUT_STRIDE + column + (flip ^ 4));
          if (cut) {
            float* const to = slot + tile_row * TILE_N + column;
            *reinterpret_cast<float4*>(to + flip) = x;
            *reinterpret_cast<float4*>(to + (flip ^ 4)) = y;
          } else {
            const float4 low = flip ? y : x, high = flip ? x : y;
            float v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
            store_output(problem, m0 + tile_row, n0 + column, v);
          }
        }
      }
    }

    if (cut) {  // the last CTA of the tile adds all parts
      const u32 first_cta = split == 0 ? owner_of(tile_unit, units, ctas) : tile * split;
      const u32 last_cta =
          split == 0 ? owner_of(tile_unit + units_of_tile - 1, units, ctas) : tile * split + split - 1;
      __threadfence();
      __syncthreads();
      int arrived_last = 0;
      if (tid == 0) {
        arrived_last = atomicAdd(counters + tile, 1u) == last_cta - first_cta;
        if (arrived_last) counters[tile] = 0;
      }
      if (__syncthreads_or(arrived_last)) {
        __threadfence();
        // only the first part can be one that its CTA began in an earlier tile
        const u32 first_slot =
            split == 0 ? first_cta * 2 + (first_unit(first_cta, units, ctas) < tile_unit) : first_cta;
        const u32 second_slot = split == 0 ? first_cta * 2 + 2 : first_cta + 1, slot_step = split == 0 ? 2 : 1;
        const u32 more = last_cta - first_cta;
        const u32 rows = end_token - m0 < TILE_M ? end_token - m0 : TILE_M;
        for (u32 piece = tid; piece < rows * pieces; piece += THREADS) {
          const u32 r = piece / pieces, column = piece % pieces * 8;
          if (n0 + (int)column < N) {
            const float* from = workspace + r * TILE_N + column;
            float4 low = load_l2_16(from + (u64)first_slot * (TILE_M * TILE_N));
            float4 high = load_l2_16(from + (u64)first_slot * (TILE_M * TILE_N) + 4);
            from += (u64)second_slot * (TILE_M * TILE_N);
#pragma unroll 4
            for (u32 part = 0; part < more; ++part) {
              const float4 x = load_l2_16(from), y = load_l2_16(from + 4);
              low.x += x.x, low.y += x.y, low.z += x.z, low.w += x.w;
              high.x += y.x, high.y += y.y, high.z += y.z, high.w += y.w;
              from += (u64)slot_step * (TILE_M * TILE_N);
            }
            float v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
            store_output(problem, m0 + r, n0 + column, v);
          }
        }
      }
    }
    unit = stop_unit;
  }
}
