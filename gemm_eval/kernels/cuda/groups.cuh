// GROUPED launches: tokens that follow each other in groups, each with weights of its own. How many a group has is read
// from the GPU's memory, whatever it holds: no token outside of A is touched.

struct TokenGroups {
  const int* offsets;    // [count + 1]: the first token of each group, and the end of the last
  const float* factors;  // [count]: of the sums
  u32 tile_starts;       // in shared memory, [count + 1]: tiles of GROUP_TILE_M tokens of all groups before
  u32 count;
};

struct TokenGroup {
  u32 index, first_tile_m, tiles_m;
  u32 first_token, end_token;
};

DEVICE void store_shared_4(u32 address, u32 v) {
  asm volatile("st.shared.u32 [%0], %1;" : : "r"(address), "r"(v) : "memory");
}

DEVICE u32 token_offset(const TokenGroups& groups, u32 group, u32 num_tokens) {
  return (u32)min(max(__ldg(groups.offsets + group), 0), (int)num_tokens);
}

// One warp fills `tile_starts`.
DEVICE void count_tiles(const TokenGroups& groups, u32 num_tokens) {
  const u32 lane = threadIdx.x % 32;
  u32 before = 0;
#pragma unroll 4
  for (u32 first = 0; first < groups.count; first += 32) {
    const u32 group = first + lane;
    u32 tiles = 0;
    if (group < groups.count) {
      const int tokens = token_offset(groups, group + 1, num_tokens) - token_offset(groups, group, num_tokens);
      tiles = (max(tokens, 0) + GROUP_TILE_M - 1) / GROUP_TILE_M;
    }
    u32 sum = tiles;  // of the lanes up to this one
#pragma unroll
    for (u32 distance = 1; distance < 32; distance *= 2) {
      const u32 below = __shfl_up_sync(0xffffffffu, sum, distance);
      if (lane >= distance) sum += below;
    }
    if (group < groups.count) store_shared_4(groups.tile_starts + 4 * group, before + sum - tiles);
    before += __shfl_sync(0xffffffffu, sum, 31);
  }
  if (lane == 0) store_shared_4(groups.tile_starts + 4 * groups.count, before);
}

// The group that has `tile_m`, counted through all groups: the last of those that start there or before.
DEVICE TokenGroup find_group(const TokenGroups& groups, u32 tile_m, u32 num_tokens) {
  u32 low = 0, high = groups.count;
  while (high - low > 1) {
    const u32 middle = (low + high) / 2;
    if (load_shared_4(groups.tile_starts + 4 * middle) <= tile_m) low = middle;
    else high = middle;
  }
  const u32 start = load_shared_4(groups.tile_starts + 4 * low);
  return {low, start, load_shared_4(groups.tile_starts + 4 * low + 4) - start, token_offset(groups, low, num_tokens),
          token_offset(groups, low + 1, num_tokens)};
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
  return {low, start, load_shared_4(groups.tile_starts + 4 * low + 4) - start, token_offset(groups, low, num_tokens),
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
