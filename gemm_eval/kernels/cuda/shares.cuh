// The work of grouped kernels of sm90.cu; stands after groups.cuh. Tiles of a group have even shares of its tokens, and
// cost what those take. CTAs have whole tiles in turn, the longest first. Where it is faster by the costs, the last one
// to two waves of them are cut along K, so that CTAs have even shares of what they cost.

// Of a tile of a group that has so many tokens, in multiples of 8.
DEVICE u32 share_of(u32 tokens, u32 tiles) { return tiles ? ((tokens + tiles - 1) / tiles + 7) / 8 * 8 : 0; }

// What such a tile takes for a unit of k, 8 being what dequantization alone takes: as timed on an H200.
DEVICE u32 share_cost(u32 share) { return max(share / 8 + 3, 8u); }

DEVICE u32 loop_of(u32 share);

// One warp fills the tables of groups, in the order of loops.
DEVICE void sort_groups(const TokenGroups& groups, u32 num_tokens) {
  const u32 lane = threadIdx.x % 32;
  u32 of_loop[NUM_SHARES + 1] = {};  // groups of a loop; then the place of its next
#pragma unroll 1
  for (u32 pass = 0; pass < 2; pass++) {
#pragma unroll 1
    for (u32 first = 0; first < groups.count; first += 32) {
      const u32 group = first + lane, tokens = group < groups.count ? group_tokens(groups, group, num_tokens) : 0;
      const u32 loop = group < groups.count ? loop_of(share_of(tokens, tiles_of(tokens))) : ~0u;
#pragma unroll
      for (u32 i = 0; i <= NUM_SHARES; i++) {
        const u32 lanes = __ballot_sync(0xffffffffu, loop == i);
        const u32 place = groups.order + 2 * (of_loop[i] + __popc(lanes & ((1u << lane) - 1)));
        if (pass && loop == i) asm volatile("st.shared.u16 [%0], %1;" ::"r"(place), "h"((u16)group) : "memory");
        of_loop[i] += __popc(lanes);
      }
    }
    u32 before = 0;
#pragma unroll
    for (u32 i = 0; i <= NUM_SHARES; i++) {
      const u32 num = of_loop[i];
      of_loop[i] = before, before += num;
    }
  }
  __syncwarp();
  u32 tiles_before = 0, cost_before = 0, most = 0;
#pragma unroll 1
  for (u32 first = 0; first < groups.count; first += 32) {
    const u32 at = first + lane, tokens = at < groups.count ? group_tokens(groups, group_at(groups, at), num_tokens) : 0;
    const u32 tiles = tiles_of(tokens), cost = tiles ? share_cost(share_of(tokens, tiles)) : 0;
    const u32 tiles_sum = sum_up_to(tiles), cost_sum = sum_up_to(tiles * cost);
    if (at < groups.count) {
      store_shared_4(groups.tile_starts + 4 * at, tiles_before + tiles_sum - tiles);
      store_shared_4(groups.cost_starts + 4 * at, cost_before + cost_sum - tiles * cost);
    }
    tiles_before += __shfl_sync(0xffffffffu, tiles_sum, 31), cost_before += __shfl_sync(0xffffffffu, cost_sum, 31);
    most = max(most, cost);
  }
  most = __reduce_max_sync(0xffffffffu, most);
  if (lane == 0) {
    store_shared_4(groups.tile_starts + 4 * groups.count, tiles_before);
    store_shared_4(groups.cost_starts + 4 * groups.count, cost_before);
    store_shared_4(groups.cost_starts + 4 * groups.count + 4, most);
  }
}

struct Problem {
  TokenGroups token_groups;
  u32 M, N;
  u32 num_column_blocks, num_k_blocks, num_groups;
  u32 tiles_m, tiles_n;
  u32 num_units;  // of 128 k in K
  u32 swizzle;    // tiles along M before the raster steps along N
  u32 plan;       // of how tiles are cut, in shared memory
};

// Part 0 has the first k. It waits for the others and adds theirs to its sums, so it goes to the last of the CTAs that
// share a tile: those it waits for run already.
struct Work {
  u32 tile, begin, end;  // units of K
  u32 part, parts;
  u32 first;  // the CTA that has part 0, counted from the last
};

// The first unit of k of tiles that are cut; CTAs that have a share of their costs, from the last CTA on, and how much.
struct CutShares {
  u32 first_unit, before, ctas, share, remainder;

  // The first `remainder` CTAs have a cost of one more than the others.
  DEVICE u32 start(u32 cta) const { return before + cta * share + min(cta, remainder); }

  DEVICE u32 owner(u32 position) const {
    const u32 at = position - before, larger = remainder * (share + 1);
    return at < larger ? at / (share + 1) : remainder + (at - larger) / share;
  }
};

// The cost of all units before `unit`.
DEVICE u32 position_of(const Problem& p, u32 unit) {
  const u32 of_tile_m = p.tiles_n * p.num_units;
  const TokenGroup group = find_group(p.token_groups, unit / of_tile_m, p.M);
  const u32 cost = load_shared_4(p.token_groups.cost_starts + 4 * group.at);
  const u32 share = share_of(group.end_token - group.first_token, group.tiles_m);
  return cost * of_tile_m + (unit - group.first_tile_m * of_tile_m) * share_cost(share);
}

// The first unit at a position or behind it.
DEVICE u32 unit_at(const Problem& p, u32 position) {
  const TokenGroups& groups = p.token_groups;
  const u32 of_tile_m = p.tiles_n * p.num_units, at = last_group(groups, groups.cost_starts, position / of_tile_m);
  const u32 left = position - load_shared_4(groups.cost_starts + 4 * at) * of_tile_m;
  const u32 tokens = group_tokens(groups, group_at(groups, at), p.M);
  const u32 cost = share_cost(share_of(tokens, tiles_of(tokens)));
  return load_shared_4(groups.tile_starts + 4 * at) * of_tile_m + (left + cost - 1) / cost;
}

// Whole tiles of the last waves, at worst as long as the first of them, against even shares and what cutting costs.
// CTAs at different places of K share no lines in L2: where stages have 64 k, which are read in the shortest pieces, they
// take a quarter longer, as timed on an H200.
#define CUT_COST (8 * CUT_UNITS)
#define CUT_WAITS 4
DEVICE CutShares cut_shares_of(const Problem& p, bool may_be_cut) {
  const u32 num_ctas = gridDim.x, tiles = p.tiles_m * p.tiles_n, of_tile_m = p.tiles_n * p.num_units;
  const CutShares whole = {tiles * p.num_units, 0, 0, 1, 0};
  if (!may_be_cut || tiles == 0) return whole;
  const u32 first_tile = tiles < 2 * num_ctas ? 0 : (tiles / num_ctas - 1) * num_ctas, rest = tiles % num_ctas;
  const u32 costs = p.token_groups.cost_starts + 4 * p.token_groups.count, most = load_shared_4(costs + 4);
  const u32 before = position_of(p, first_tile * p.num_units), cost = load_shared_4(costs) * of_tile_m - before;
  const u32 longest = position_of(p, first_tile * p.num_units + p.num_units - 1) - before;
  const u32 whole_cost = max(cost / num_ctas + (rest ? longest * (num_ctas - rest) / num_ctas : 0), longest);
  const u32 ctas = max(min(min(num_ctas, cost / most), (tiles - first_tile) * MOST_PARTS), 1u);  // each has a unit at least
  const u32 even_cost = cost / ctas, waits = STEP_BLOCKS == 1 ? even_cost / CUT_WAITS : 0;
  if (even_cost + waits + CUT_COST >= whole_cost) return whole;
  return {first_tile * p.num_units, before, ctas, cost / ctas, cost % ctas};
}

// One warp leaves them, and the units of this CTA, to all.
DEVICE void leave_plan(const Problem& p, bool may_be_cut) {
  const CutShares cut = cut_shares_of(p, may_be_cut);
  const u32 lane = threadIdx.x % 32, cta = cut.ctas - 1 - blockIdx.x;
  const u32 mine = blockIdx.x < cut.ctas && lane < 2 ? unit_at(p, cut.start(cta + lane)) : 0;
  if (lane < 2) store_shared_4(p.plan + 20 + 4 * lane, mine);
  const u32 all[5] = {cut.first_unit, cut.before, cut.ctas, cut.share, cut.remainder};
#pragma unroll
  for (u32 i = 0; i < 5; i++)
    if (lane == i) store_shared_4(p.plan + 4 * i, all[i]);
}

struct Scheduler {
  u32 whole, num_whole;  // the next whole tile, and how many there are
  u32 next, last;        // units of tiles that are cut, of which the last CTAs have the first

  DEVICE Scheduler(const Problem& p) {
    whole = blockIdx.x, num_whole = load_shared_4(p.plan) / p.num_units;
    next = load_shared_4(p.plan + 20), last = load_shared_4(p.plan + 24);
  }

  DEVICE bool take(const Problem& p, Work& w) {
    w.begin = 0, w.end = p.num_units, w.part = 0, w.parts = 1;
    if (whole < num_whole) {
      w.tile = whole, whole += gridDim.x;
      return true;
    }
    if (next >= last) return false;
    w.tile = next / p.num_units;
    const u32 start = w.tile * p.num_units;
    w.begin = next - start, w.end = min(p.num_units, w.begin + (last - next));
    if (w.end - w.begin < p.num_units) {
      const CutShares cut = {load_shared_4(p.plan), load_shared_4(p.plan + 4), load_shared_4(p.plan + 8),
                             load_shared_4(p.plan + 12), load_shared_4(p.plan + 16)};
      w.first = cut.owner(position_of(p, start));
      w.part = cut.ctas - 1 - blockIdx.x - w.first;
      w.parts = cut.owner(position_of(p, start + p.num_units - 1)) - w.first + 1;
    }
    next += w.end - w.begin;
    return true;
  }

  // Where the sums of a part but the first lie: a CTA begins with it, so there is one for each.
  DEVICE u32 slot(const Problem& p, const Work& w, u32 part) const { return w.first + part; }
};
#define COUNTER_TILE(p, w) (w.tile - load_shared_4(p.plan) / p.num_units)
