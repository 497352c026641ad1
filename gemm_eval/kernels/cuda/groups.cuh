// GROUPED launches: tokens that follow each other in groups, each with weights of its own. How many a group has is read
// from the GPU's memory, whatever it holds: no token outside of A is touched.
//
// FUSION, of a layer of experts:
//   1 GATED    columns 16 i + j and 16 i + 8 + j of W, j < 8, are gate and up of column 8 i + j of C, which has N / 2:
//              silu(gate) * up, in fp32
//   2 SUMMED   rows of C are multiplied with the weights of their tokens' choices and added up, in the order of choices:
//              whoever comes last to some columns of a token does that, with the same bits whoever it is (gemv_mma.cu)

#ifndef FUSION
#define FUSION 0
#endif
#ifndef SORTED
#define SORTED 0
#endif
#define GATED (FUSION == 1)
#define SUMMED (FUSION == 2)

struct TokenGroups {
  const int* offsets;    // [count + 1]: the first token of each group, and the end of the last
  const float* factors;  // [count]: of the sums
  u32 tile_starts;       // in shared memory, [count + 1]: tiles of GROUP_TILE_M tokens of all groups before
  u32 count;
#if SORTED             // in the order of their shares, the most first: `tile_starts` too
  u32 order;           // in shared memory, [count] of 16 bits: groups
  u32 cost_starts;     // as `tile_starts`, of costs of tiles; behind them the highest
#endif
};

struct TokenGroup {
  u32 at, index, first_tile_m, tiles_m;
  u32 first_token, end_token;
};

DEVICE void store_shared_4(u32 address, u32 v) {
  asm volatile("st.shared.u32 [%0], %1;" : : "r"(address), "r"(v) : "memory");
}

DEVICE u32 token_offset(const TokenGroups& groups, u32 group, u32 num_tokens) {
  return (u32)min(max(__ldg(groups.offsets + group), 0), (int)num_tokens);
}

// Of the group at a place in the order of the tables.
DEVICE u32 group_at(const TokenGroups& groups, u32 at) {
#if SORTED
  u32 group;
  asm volatile("ld.shared.u16 %0, [%1];" : "=r"(group) : "r"(groups.order + 2 * at));
  return group;
#else
  return at;
#endif
}

DEVICE u32 group_tokens(const TokenGroups& groups, u32 group, u32 num_tokens) {
  return max((int)(token_offset(groups, group + 1, num_tokens) - token_offset(groups, group, num_tokens)), 0);
}

DEVICE u32 tiles_of(u32 tokens) { return (tokens + GROUP_TILE_M - 1) / GROUP_TILE_M; }

// Of the lanes up to this one.
DEVICE u32 sum_up_to(u32 value) {
#pragma unroll
  for (u32 distance = 1; distance < 32; distance *= 2) {
    const u32 below = __shfl_up_sync(0xffffffffu, value, distance);
    if (threadIdx.x % 32 >= distance) value += below;
  }
  return value;
}

// One warp fills `tile_starts`.
DEVICE void count_tiles(const TokenGroups& groups, u32 num_tokens) {
  const u32 lane = threadIdx.x % 32;
  u32 before = 0;
#pragma unroll 4
  for (u32 first = 0; first < groups.count; first += 32) {
    const u32 group = first + lane;
    const u32 tiles = group < groups.count ? tiles_of(group_tokens(groups, group, num_tokens)) : 0;
    const u32 sum = sum_up_to(tiles);
    if (group < groups.count) store_shared_4(groups.tile_starts + 4 * group, before + sum - tiles);
    before += __shfl_sync(0xffffffffu, sum, 31);
  }
  if (lane == 0) store_shared_4(groups.tile_starts + 4 * groups.count, before);
}

// The last place in a table of those that start at a tile or cost, or before.
DEVICE u32 last_group(const TokenGroups& groups, u32 table, u32 start) {
  u32 low = 0, high = groups.count;
  while (high - low > 1) {
    const u32 middle = (low + high) / 2;
    if (load_shared_4(table + 4 * middle) <= start) low = middle;
    else high = middle;
  }
  return low;
}

// The group that has `tile_m`, counted through all groups.
DEVICE TokenGroup find_group(const TokenGroups& groups, u32 tile_m, u32 num_tokens) {
  const u32 low = last_group(groups, groups.tile_starts, tile_m), group = group_at(groups, low);
  const u32 start = load_shared_4(groups.tile_starts + 4 * low);
  return {low, group, start, load_shared_4(groups.tile_starts + 4 * low + 4) - start, token_offset(groups, group, num_tokens),
          token_offset(groups, group + 1, num_tokens)};
}

// The same, by a warp that is here as one: two looks at the table instead of ten.
DEVICE TokenGroup find_group_by_warp(const TokenGroups& groups, u32 tile_m, u32 num_tokens) {
  const u32 lane = threadIdx.x % 32;
  u32 low = 0;
#pragma unroll
  for (u32 step = 32; step > 0; step /= 32) {
    const u32 group = low + lane * step;
    if (step > 1 && groups.count <= 32) continue;
    const bool is_before = group < groups.count && load_shared_4(groups.tile_starts + 4 * group) <= tile_m;
    low += (__popc(__ballot_sync(0xffffffffu, is_before)) - 1) * step;
  }
  const u32 start = load_shared_4(groups.tile_starts + 4 * low);
  return {low, low, start, load_shared_4(groups.tile_starts + 4 * low + 4) - start, token_offset(groups, low, num_tokens),
          token_offset(groups, low + 1, num_tokens)};
}

// How CTAs share the tiles of all groups.
#define MOST_PARTS 8  // of a tile: their sums are added one after the other
#define MAX_CUT_WAVES 2  // of tiles, or of parts of them: more are even enough whole
#define CUT_UNITS 10  // what cutting K costs, in units of 128 k of a CTA: as timed on an H200 where tiles have few tokens
struct CutTiles {
  bool is_cut;  // K too; else CTAs have whole tiles
  u32 ctas;     // that have a share
};

// K is cut where the longest share, and what cutting costs, are shorter than the waves of whole tiles.
DEVICE CutTiles cut_tiles_of(u32 tiles, u32 units_of_tile, u32 num_ctas, bool may_be_cut) {
  const u32 units = tiles * units_of_tile, waves = (tiles + num_ctas - 1) / num_ctas;
  const u32 ctas = min(min(num_ctas, units), tiles * MOST_PARTS);
  if (may_be_cut && tiles > 0 && (units + ctas - 1) / ctas + CUT_UNITS < waves * units_of_tile) return {true, ctas};
  return {false, min(num_ctas, tiles)};
}

#if GATED
// An exact division has a branch, and takes as long as ten other instructions; this one is off by 2 units.
DEVICE float gated(float gate, float up) { return __fdividef(gate, 1.0f + __expf(-gate)) * up; }
#endif

#if SUMMED
// Choices of a token: the experts that it goes to.
struct Choices {
  const u32* tokens;     // [rows]: the token of a row of C, and above 24 bits how many of its choices have rows
  const int* rows;       // [tokens, count]: the row of a choice; -1: none here
  const float* weights;  // [tokens, count]
  act_t* sums;           // [tokens, N]
  u32* counters;         // [tokens, parts of N]
  u32 count, parts;
};
#define SUMMED_PARAMETERS                                                                                         \
  , const u32 *__restrict__ row_tokens, const int *__restrict__ choice_rows, const float *__restrict__ weights, \
      act_t *__restrict__ summed, u32 *__restrict__ sum_counters, u32 num_choices
#define CHOICES(parts) {row_tokens, choice_rows, weights, summed, sum_counters, num_choices, parts}

// Warps that wrote columns of the rows `first` .. `end` - 1 of C come here when all have: each counts some of the rows, and
// adds up the tokens whose last row that was.
DEVICE void add_choices(const Choices& choices, const act_t* c, u32 first, u32 end, u32 first_column, u32 num_columns,
                        u32 N, u32 part, u32 warp, u32 num_warps) {
  const u32 lane = threadIdx.x % 32, end_column = min(first_column + num_columns, N);
#pragma unroll 1
  for (u32 start = first + warp; start < end; start += 32 * num_warps) {
    const u32 row = start + lane * num_warps;
    u32 token = 0;
    bool is_last = false;
    if (row < end) {
      const u32 entry = __ldg(choices.tokens + row);
      token = entry & 0xffffffu;
      u32 *counter = choices.counters + (u64)token * choices.parts + part, before;
      asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
      is_last = before + 1 == entry >> 24;
      if (is_last) *counter = 0;
    }
    __threadfence();  // the other lanes read what this one has seen
    for (u32 left = __ballot_sync(0xffffffffu, is_last); left; left &= left - 1) {
      const u64 of_token = __shfl_sync(0xffffffffu, token, __ffs(left) - 1);
#pragma unroll 1
      for (u32 column = first_column + 2 * lane; column < end_column; column += 64) {
        float low = 0.0f, high = 0.0f;
#pragma unroll 4
        for (u32 choice = 0; choice < choices.count; choice++) {
          const int from = __ldg(choices.rows + of_token * choices.count + choice);
          if (from < 0) continue;
          const u32 pair = __ldcg((const u32*)(c + (u64)from * N + column));
          const float weight = __ldg(choices.weights + of_token * choices.count + choice);
          low = fmaf(weight, low_float(pair), low), high = fmaf(weight, high_float(pair), high);
        }
        *(u32*)(choices.sums + of_token * N + column) = pack2(low, high);
      }
    }
  }
}
#else
#define SUMMED_PARAMETERS
#endif
