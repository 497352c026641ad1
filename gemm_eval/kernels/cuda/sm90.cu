// Hopper W4A16: bulk copies into a ring, wgmma with the dequantized weights from registers.
//
// A CTA computes CTA_M tokens x 64 * ROW_BLOCKS columns. Warpgroup 0 copies; the others compute, either their shares of
// one tile's columns (COOPERATIVE) or, two of them, a tile each in turn (ping-pong). The weights are the 64-row operand
// of wgmma and come packed in its register order, so a block of 64 columns x 64 k is one contiguous bulk copy of 2 KiB
// and one load of 16 bytes a thread. The tokens are the columns of wgmma, in shared memory with 128-byte swizzle.
//
// Macros: CTA_M, CONSUMERS (warpgroups that compute), MB (64-column blocks of each), COOPERATIVE, STAGES, STEP_BLOCKS
// (64-k blocks of a stage: 1, 2), CLUSTER_M, CLUSTER_N, CLUSTER_K, EPILOGUE_TOKENS, CTAS_PER_SM. The prelude defines
// wgmma(acc, a, descriptor).
//
// CTAs of a cluster share the tokens or the weights of neighbouring tiles (CLUSTER_M x CLUSTER_N), or have a part of K
// each of one tile (CLUSTER_K, COOPERATIVE, one tile a CTA): then each adds up all parts for its share of the tokens.
//
// GROUPED (no clusters; groups.cuh stands before): groups of tokens have weights of their own. How many tokens each has is
// in the GPU's memory alone, so each CTA counts the tiles of all (shares.cuh). For their shares of tokens the kernel is
// compiled in steps, the most first: EACH_SHARE(f) is f(n, next) for each of NUM_SHARES. Shares of FEW_TOKENS or less have
// a smaller box of tokens (map_few).

#if GROUPED
#define WGMMA(n) wgmma<n>
#else
#define WGMMA(n) wgmma
#endif

#define UNIT_STEPS (2 / STEP_BLOCKS)  // stages of a unit of 128 k, in which K is cut
#if MODE == 0
#define STEP_GROUPS 0
#elif GROUP >= 64 * STEP_BLOCKS
#define STEP_GROUPS 1
#else
#define STEP_GROUPS (64 * STEP_BLOCKS / GROUP)
#endif
#define TOKEN_BLOCK_BYTES (CTA_M * 128)
#define TOKEN_STAGE_BYTES (STEP_BLOCKS * TOKEN_BLOCK_BYTES)
#define WEIGHT_STAGE_BYTES (ROW_BLOCKS * STEP_BLOCKS * 2048)
#define SCALE_STAGE_BYTES (ROW_BLOCKS * STEP_GROUPS * GROUP_BYTES)
#define USES_TMA_STORE (CTA_M > 16 && CLUSTER_K == 1)
#define EPILOGUE_BYTES (USES_TMA_STORE ? CONSUMERS * EPILOGUE_TOKENS * 128 : 0)
#define TOKEN_GROUPS (CTA_M / 8)
#define SHARE_GROUPS ((TOKEN_GROUPS + CLUSTER_K - 1) / CLUSTER_K)  // that a CTA of CLUSTER_K adds up, groups of 8
// Of a thread: what warpgroups that copy give up goes to those that compute.
#define IS_WIDE (MB * NUM_ACC > 128)
#define PRODUCER_REGISTERS (IS_WIDE ? (GROUPED ? 64 : 40) : CONSUMERS == 2 ? 64 : 56)
#define CONSUMER_REGISTERS (IS_WIDE ? (GROUPED ? 216 : 232) : CONSUMERS == 2 ? 216 : 152)

// Shared memory of a CTA, from a multiple of 1,024 bytes on.
#define EPILOGUE_OFFSET (STAGES * TOKEN_STAGE_BYTES)
#define WEIGHT_OFFSET (EPILOGUE_OFFSET + EPILOGUE_BYTES)
#define SCALE_OFFSET (WEIGHT_OFFSET + STAGES * WEIGHT_STAGE_BYTES)
#define FULL_OFFSET (SCALE_OFFSET + STAGES * SCALE_STAGE_BYTES)
#define EMPTY_OFFSET (FULL_OFFSET + 8 * STAGES)
#define TURN_OFFSET (EMPTY_OFFSET + 8 * STAGES)  // ping-pong: a warpgroup's turn at the ring
#define PLACE_OFFSET (TURN_OFFSET + 32)          // GROUPED
#define TILE_STARTS_OFFSET (PLACE_OFFSET + 512)  // GROUPED
#define COST_STARTS_OFFSET (TILE_STARTS_OFFSET + GROUP_TABLE_BYTES)
#define ORDER_OFFSET (COST_STARTS_OFFSET + GROUP_TABLE_BYTES)
#define PLAN_OFFSET (ORDER_OFFSET + GROUP_ORDER_BYTES)

// ---- work --------------------------------------------------------------------------------------------------------

// A CTA's tile; may lie outside the problem.
struct Place {
#if GROUPED
  u32 first, tile_n, end_token, group, tokens;  // `tokens`: its share
  float group_factor;
  DEVICE u32 group_index() const { return group; }
  DEVICE u32 first_token() const { return first; }
#else
  u32 tile_m, tile_n;
  DEVICE u32 group_index() const { return 0; }
  DEVICE u32 first_token() const { return tile_m * CTA_M; }
#endif
};

// The tile of a CTA of a cluster that has `tile`.
DEVICE Place place(const Problem& p, u32 tile, u32 rank) {
  Place at;
#if GROUPED
  const TokenGroup of_tile = find_group(p.token_groups, tile / p.tiles_n, p.M);
  at.group = of_tile.index;
  at.group_factor = __ldg(p.token_groups.factors + of_tile.index);
  tile -= of_tile.first_tile_m * p.tiles_n;
  const u32 tiles_m = of_tile.tiles_m;
#else
  const u32 tiles_m = p.tiles_m;
#endif
  const u32 per_group = p.swizzle * p.tiles_n;
  const u32 group = tile / per_group, first = group * p.swizzle, rest = tile - group * per_group;
  const u32 height = min(tiles_m - first, p.swizzle);
#if GROUPED
  const u32 tokens = share_of(of_tile.end_token - of_tile.first_token, tiles_m);
  at.first = of_tile.first_token + (first + rest % height) * tokens;
  at.end_token = min(of_tile.end_token, at.first + tokens), at.tokens = tokens;
  at.tile_n = rest / height;
#else
  at.tile_m = (first + rest % height) * CLUSTER_M + rank % CLUSTER_M;
  at.tile_n = rest / height * CLUSTER_N + rank / CLUSTER_M;
#endif
  return at;
}

#if GROUPED
// The loop over items that a share belongs to; none: NUM_SHARES.
DEVICE u32 loop_of(u32 share) {
  u32 loop = 0;
#define IS_IN_NEXT(n, next) loop += share <= next;
  EACH_SHARE(IS_IN_NEXT)
  return loop;
}

// To find a group takes a while, so the thread that copies does it and leaves what it found to those that compute: before
// it copies the first stage of an item, when that is free. By then all but STAGES + 2 items before have been written.
#define PLACE_SLOTS 16
static_assert(STAGES + 2 < PLACE_SLOTS, "places of items");

DEVICE u32 place_slot(u32 smem, u32 item) { return smem + PLACE_OFFSET + item % PLACE_SLOTS * 32; }

DEVICE void leave_place(u32 smem, u32 item, const Place& at) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\nst.shared.v2.u32 [%0 + 16], {%5, %6};"
               ::"r"(place_slot(smem, item)), "r"(at.first), "r"(at.tile_n), "r"(at.end_token), "r"(at.group), "r"(at.tokens),
                 "f"(at.group_factor) : "memory");
}

DEVICE Place take_place(u32 smem, u32 item) {
  const u32 slot = place_slot(smem, item);
  const uint4 low = load_shared_16(slot);
  const uint2 high = load_shared_8(slot + 16);
  return {low.x, low.y, low.z, low.w, high.x, __uint_as_float(high.y)};
}
#endif

// ---- producer ----------------------------------------------------------------------------------------------------

// One thread copies weights and tokens.
DEVICE void produce(const Problem& p, u32 smem, const TensorMap* map_a, const TensorMap* map_few,
                    const unsigned char* qweight, u32 box_rows) {
  const u32 rank = CLUSTER > 1 ? cluster_rank() : 0;
  const u32 rank_m = rank % CLUSTER_M, rank_n = rank / CLUSTER_M;
  u16 token_mask = 0, weight_mask = 0;  // CTAs with the same tokens, and with the same weights
  if (CLUSTER_N > 1)
    for (u32 n = 0; n < CLUSTER_N; n++) token_mask |= (u16)(1u << (n * CLUSTER_M + rank_m));
  if (CLUSTER_M > 1)
    for (u32 m = 0; m < CLUSTER_M; m++) weight_mask |= (u16)(1u << (rank_n * CLUSTER_M + m));
  u32 stage_bytes = STEP_BLOCKS * CLUSTER_N * box_rows * 128 + WEIGHT_STAGE_BYTES;
  constexpr u32 slice_rows = CTA_M / CLUSTER_N, slice_bytes = STEP_BLOCKS * 2048 / CLUSTER_M;

  Scheduler scheduler(p);
  Work w;
  u32 stage = 0, phase = 0;
#if GROUPED
  Work next;
  Place next_at;
  bool has_next = scheduler.take(p, next);
  if (has_next) next_at = place(p, next.tile, rank);
  for (u32 item = 0; has_next; item++) {
    w = next;
    const Place at = next_at;
    has_next = scheduler.take(p, next);
    if (has_next) next_at = place(p, next.tile, rank);  // what it reads comes while this tile is copied
    const bool is_few = at.tokens <= FEW_TOKENS;
    const TensorMap* map = is_few ? map_few : map_a;
    stage_bytes = STEP_BLOCKS * (is_few ? min(box_rows, (u32)FEW_TOKENS) : box_rows) * 128 + WEIGHT_STAGE_BYTES;
#else
  while (scheduler.take(p, w)) {
    const Place at = place(p, w.tile, rank);
    const TensorMap* map = map_a;
#endif
    const u32 first_row = at.group_index() * p.num_column_blocks;
    for (u32 step = w.begin * UNIT_STEPS; step < w.end * UNIT_STEPS; step++) {
      const u32 block = step * STEP_BLOCKS, full = smem + FULL_OFFSET + 8 * stage;
      barrier_wait(smem + EMPTY_OFFSET + 8 * stage, phase ^ 1);
#if GROUPED
      if (step == w.begin * UNIT_STEPS) leave_place(smem, item, at);
#endif
      barrier_expect(full, stage_bytes);
#pragma unroll
      for (u32 r = 0; r < ROW_BLOCKS; r++) {
        const u64 row = first_row + min(at.tile_n * ROW_BLOCKS + r, p.num_column_blocks - 1);
        copy_bulk(smem + WEIGHT_OFFSET + stage * WEIGHT_STAGE_BYTES + r * STEP_BLOCKS * 2048 + rank_m * slice_bytes,
                  qweight + (row * p.num_k_blocks + block) * 2048 + rank_m * slice_bytes, slice_bytes, full,
                  weight_mask);
      }
#pragma unroll
      for (u32 b = 0; b < STEP_BLOCKS; b++)
        copy_tile(smem + stage * TOKEN_STAGE_BYTES + b * TOKEN_BLOCK_BYTES + rank_n * slice_rows * 128, map,
                  (block + b) * 64, at.first_token() + rank_n * slice_rows, full, token_mask);
      if (++stage == STAGES) stage = 0, phase ^= 1;
    }
  }
}

#if MODE != 0
// One warp copies scales: they are too few bytes for bulk copies, which take their time each.
DEVICE void produce_scales(const Problem& p, u32 smem, const unsigned char* scales) {
  constexpr u32 row_chunks = STEP_GROUPS * GROUP_BYTES / 16, chunks = ROW_BLOCKS * row_chunks;
  const u32 rank = CLUSTER > 1 ? cluster_rank() : 0, lane = threadIdx.x % 32;
  Scheduler scheduler(p);
  Work w;
  u32 stage = 0, phase = 0;
  while (scheduler.take(p, w)) {
    const Place at = place(p, w.tile, rank);
    const u32 first_row = at.group_index() * p.num_column_blocks;
    for (u32 step = w.begin * UNIT_STEPS; step < w.end * UNIT_STEPS; step++) {
      const u32 group = step * (64 * STEP_BLOCKS) / GROUP;
      barrier_wait(smem + EMPTY_OFFSET + 8 * stage, phase ^ 1);
#pragma unroll
      for (u32 i = 0; i < (chunks + 31) / 32; i++) {
        const u32 id = i * 32 + lane;
        const u64 row = first_row + min(at.tile_n * ROW_BLOCKS + id / row_chunks, p.num_column_blocks - 1);
        copy_async_16_if(smem + SCALE_OFFSET + stage * SCALE_STAGE_BYTES + id * 16,
                         scales + (row * p.num_groups + group) * GROUP_BYTES + id % row_chunks * 16, id < chunks);
      }
      asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];"
                   ::"r"(smem + FULL_OFFSET + 8 * stage) : "memory");
      if (++stage == STAGES) stage = 0, phase ^= 1;
    }
  }
  wait_copies<0>();
}
#endif

// ---- consumer ----------------------------------------------------------------------------------------------------

// A warp has read a stage: tells all CTAs that copy into it.
DEVICE void release_if(u32 smem, u32 stage, u32 rank, bool condition) {
  const u32 bar = smem + EMPTY_OFFSET + 8 * stage;
  __syncwarp();  // one lane speaks for the reads of all
  condition &= threadIdx.x % 32 < SIGNAL_LANES;
  if (CLUSTER == 1) {
    barrier_arrive_if(bar, condition);
  } else {
    const u32 rank_m = rank % CLUSTER_M, rank_n = rank / CLUSTER_M;
#pragma unroll
    for (u32 m = 0; m < CLUSTER_M; m++) barrier_arrive_at_if(bar, rank_n * CLUSTER_M + m, condition);
#pragma unroll
    for (u32 n = 0; n < CLUSTER_N; n++) barrier_arrive_at_if(bar, n * CLUSTER_M + rank_m, condition && n != rank_n);
  }
}

// What a thread reads of a block of 64 columns x 64 k: weights, and scales (and zero points) of its groups.
struct Block {
  uint4 q;
  uint2 params[GROUP == 32 ? 2 : 1];
};

DEVICE Block load_block(u32 weights, u32 scales) {
  Block block;
  block.q = load_shared_16(weights);
#pragma unroll
  for (u32 g = 0; g < (GROUP == 32 ? 2 : 1); g++) {
    if (MODE == 1 || MODE == 3) block.params[g].x = load_shared_4(scales + g * GROUP_BYTES);
    if (MODE == 2 || MODE == 4) block.params[g] = load_shared_8(scales + g * GROUP_BYTES);
  }
  return block;
}

// Operand registers of a block.
DEVICE void dequantize_block(const Block& block, u32 (&a)[4][4]) {
  GroupParams params;
#pragma unroll
  for (u32 j = 0; j < 4; j++) {
    const uint2 of_group = block.params[GROUP == 32 ? j / 2 : 0];
#if MODE < 3
    if (j == 0 || (GROUP == 32 && j == 2)) params = make_params(of_group.x, of_group.y);
#else
    if (j % PARAM_STEPS == 0) params = params_of_step(of_group.x, of_group.y, j);
#endif
    dequantize(word_of(block.q, j), params, a[j]);
  }
}

#if CLUSTER_K > 1
DEVICE u32 address_in(u32 address, u32 rank) {
  u32 there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// Each CTA sends the others their shares of its sums, into the rings, which all have read by now, and adds up its own
// share in the order of k: acc[b][0 .. 4 * SHARE_GROUPS).
DEVICE void exchange_parts(u32 smem, u32 part, u32 half, float (&acc)[MB][NUM_ACC]) {
  const u32 mine = smem + threadIdx.x % 128 * 16;
  cluster_sync();
#pragma unroll
  for (u32 j = 0; j < TOKEN_GROUPS; j++) {
    const u32 there = address_in(mine, j / SHARE_GROUPS);
#pragma unroll
    for (u32 b = 0; b < MB; b++) {
      const u32 slot = (part * ROW_BLOCKS + half * MB + b) * SHARE_GROUPS + j % SHARE_GROUPS;
      asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};"
                   ::"r"(there + slot * 2048), "f"(acc[b][4 * j]), "f"(acc[b][4 * j + 1]), "f"(acc[b][4 * j + 2]),
                     "f"(acc[b][4 * j + 3]) : "memory");
    }
  }
  cluster_sync();
#pragma unroll
  for (u32 b = 0; b < MB; b++)
#pragma unroll
    for (u32 j = 0; j < SHARE_GROUPS; j++)
#pragma unroll
      for (u32 other = 0; other < CLUSTER_K; other++) {
        const u32 slot = (other * ROW_BLOCKS + half * MB + b) * SHARE_GROUPS + j;
        const uint4 v = load_shared_16(mine + slot * 2048);
        const float of_part[4] = {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                                  __uint_as_float(v.w)};
#pragma unroll
        for (u32 i = 0; i < 4; i++) acc[b][4 * j + i] = other ? acc[b][4 * j + i] + of_part[i] : of_part[i];
      }
}

// A CTA's share of a tile, two columns at a time: neighbours in the register order swap tokens.
DEVICE void write_share(const Problem& p, float (&acc)[NUM_ACC], act_t* c, u32 first_token, u32 end_token, u32 column,
                        const float (&scale)[2], const float (&shift)[2]) {
  const u32 lane = threadIdx.x % 32;
  const bool is_odd = lane / 4 % 2;
#pragma unroll
  for (u32 j = 0; j < SHARE_GROUPS; j++)
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
      const float even = acc[4 * j + 2 * h] * scale[h] + shift[h], odd = acc[4 * j + 2 * h + 1] * scale[h] + shift[h];
      const float got = __shfl_xor_sync(0xffffffffu, is_odd ? even : odd, 4);
      const u32 token = first_token + 8 * j + lane % 4 * 2 + is_odd, n = column + 8 * h - is_odd;
      if (token < end_token && n < p.N) *(u32*)(c + (u64)token * p.N + n) = is_odd ? pack2(got, odd) : pack2(even, got);
    }
}
#endif

// The main loop of an item, from the first stage on, which is there.
template <u32 TOKENS>
DEVICE void multiply(const Work& w, const u32& smem, const u32& weights, const u32& scales, const u32& rank,
                     const u32& consumer, const u32& lane, u32& stage, u32& phase, u32& previous, u32& released,
                     float (&acc)[MB][TOKENS / 2], u32 (&a)[2][4][4]) {
  Block block = load_block(weights + stage * WEIGHT_STAGE_BYTES, scales + stage * SCALE_STAGE_BYTES);
  for (u32 unit = w.begin; unit < w.end; unit++) {
#pragma unroll
    for (u32 k = 0; k < 2; k++) {  // blocks of 64 k
      const u32 in_stage = k % STEP_BLOCKS;
      if (!COOPERATIVE && k == 2 - STEP_BLOCKS)
        barrier_arrive_if(smem + TURN_OFFSET + 8 * (1 - consumer), unit == w.end - 1 && lane < SIGNAL_LANES);
      const u64 tokens = descriptor(smem + stage * TOKEN_STAGE_BYTES + in_stage * TOKEN_BLOCK_BYTES);
#pragma unroll
      for (u32 b = 0; b < MB; b++) {
        // The next block is read before this one is dequantized; after the last, this one's place once more.
        const bool is_last_of_stage = b == MB - 1 && in_stage == STEP_BLOCKS - 1;
        u32 next_b = b + 1, next_in_stage = in_stage;
        if (b == MB - 1) next_b = 0, next_in_stage = (in_stage + 1) % STEP_BLOCKS;
        if (is_last_of_stage) {
          previous = stage;
          if (k == 0 || unit + 1 < w.end) {
            if (++stage == STAGES) stage = 0, phase ^= 1;
          }
          barrier_wait(smem + FULL_OFFSET + 8 * stage, phase);
        }
        const u32 group = MODE == 0 ? 0 : next_in_stage * 64 / GROUP;
        const Block next = load_block(
            weights + stage * WEIGHT_STAGE_BYTES + (next_b * STEP_BLOCKS + next_in_stage) * 2048,
            scales + stage * SCALE_STAGE_BYTES + (next_b * STEP_GROUPS + group) * GROUP_BYTES);
        u32(&operand)[4][4] = a[(k * MB + b) % 2];
        dequantize_block(block, operand);
        wgmma_fence();
#pragma unroll
        for (u32 j = 0; j < 4; j++) WGMMA(TOKENS)(acc[b], operand[j], tokens + 2 * j);
        wgmma_commit();
        wgmma_wait<1>();  // all but what was just issued: the other operand registers are free
        if (b == 0 && in_stage == 0) release_if(smem, released, rank, k > 0 || unit > w.begin);
        if (is_last_of_stage) released = previous;
        block = next;
      }
    }
  }
  wgmma_wait<0>();
  release_if(smem, released, rank, true);
}

// A thread that computes, and where it reads weights and scales of the first stage.
struct Reader {
  u32 rank, consumer, thread, warp, lane;
  u32 half;  // which blocks of the tile
  u32 weights, scales;
  DEVICE Reader(u32 smem) {
    rank = CLUSTER > 1 ? cluster_rank() : 0;
    consumer = threadIdx.x / 128 - 1;
    thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    half = COOPERATIVE ? consumer : 0;
    weights = smem + WEIGHT_OFFSET + half * MB * STEP_BLOCKS * 2048 + thread * 16;
    scales = smem + SCALE_OFFSET + half * MB * STEP_GROUPS * GROUP_BYTES + (8 * warp + lane / 4) * 2 * PARAM_BYTES;
  }
};

struct Output {
  const TensorMap* map_c;
  const act_t *column_scales, *bias;
  act_t* c;
  float* workspace;
  u32* counters;
  float alpha;
};

// An item of at most TOKENS tokens, from `stage` on, to C.
template <u32 TOKENS>
DEVICE void compute(const Problem& p, const Scheduler& scheduler, const Work& w, u32 smem, u32 item, u32 stage,
                    u32 phase, const Reader& from, const Output& out) {
  const u32 consumer = from.consumer, warp = from.warp, lane = from.lane, rank = from.rank, half = from.half;
  u32 previous = 0, released = 0;
  float acc[MB][TOKENS / 2];
  u32 a[2][4][4];
#pragma unroll
  for (u32 b = 0; b < MB; b++)
#pragma unroll
    for (u32 i = 0; i < TOKENS / 2; i++) acc[b][i] = 0.f;
  barrier_wait(smem + FULL_OFFSET + 8 * stage, phase);
  multiply<TOKENS>(w, smem, from.weights, from.scales, rank, consumer, lane, stage, phase, previous, released, acc, a);

#if CLUSTER_K > 1
  const u32 share = cluster_rank();
  exchange_parts(smem, w.part, half, acc);
#else
  if (w.parts > 1 && !reduce_parts(p, scheduler, w, acc, out.workspace, out.counters, rank, half)) return;
#endif
#if GROUPED
  const Place at = take_place(smem, item);
  const u32 end_token = at.end_token;
  const float factor = out.alpha * at.group_factor;
  const act_t* of_columns = out.column_scales + (u64)at.group_index() * p.num_column_blocks * 64;
  const act_t* shifts = out.bias ? out.bias + (u64)at.group_index() * p.N : nullptr;
#else
  const Place at = place(p, w.tile, rank);
  const u32 end_token = p.M;
  const float factor = out.alpha;
  const act_t *of_columns = out.column_scales, *shifts = out.bias;
#endif
#pragma unroll
  for (u32 b = 0; b < MB; b++) {
    const u32 block = at.tile_n * ROW_BLOCKS + half * MB + b, column = block * 64 + warp * 16 + lane / 4;
    float scale[2], shift[2];
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
      const u32 n = column + 8 * h;
      scale[h] = MODE == 0 && n < p.N ? factor * to_float(of_columns[n]) : factor * UNIT;
      shift[h] = out.bias && n < p.N ? to_float(shifts[n]) : 0.f;
    }
#if CLUSTER_K > 1
    write_share(p, acc[b], out.c, at.first_token() + share * (8 * SHARE_GROUPS), min(end_token, (at.tile_m + 1) * CTA_M), column,
                scale, shift);
#else
    if (USES_TMA_STORE)
      write_through_smem(p, acc[b], out.c, out.map_c, smem + EPILOGUE_OFFSET + consumer * EPILOGUE_TOKENS * 128,
                         at.first_token(), end_token, block * (GATED ? 32 : 64), scale, shift);
    else
      write_direct(p, acc[b], out.c, at.first_token(), end_token, column, scale, shift);
#endif
  }
}

#if GROUPED
// Items of shares up to TOKENS, to the first of a share of `below` or less. A loop for each: in one for all, the compiler
// would let each wgmma wait.
template <u32 TOKENS>
DEVICE void consume_shares(const Problem& p, Scheduler& scheduler, Work& w, bool& has, u32& item, u32& count, u32 below,
                           u32 smem, const Reader& from, const Output& out) {
#pragma unroll 1
  for (; has; item++, has = scheduler.take(p, w)) {
    if (COOPERATIVE || item % 2 == from.consumer) {
      if (!COOPERATIVE && item) barrier_wait(smem + TURN_OFFSET + 8 * from.consumer, (item - 1) / 2 & 1);
      const u32 stage = count % STAGES, phase = count / STAGES & 1;
      barrier_wait(smem + FULL_OFFSET + 8 * stage, phase);
      if (load_shared_4(place_slot(smem, item) + 16) <= below) break;
      compute<TOKENS>(p, scheduler, w, smem, item, stage, phase, from, out);
    }
    count += (w.end - w.begin) * UNIT_STEPS;
  }
}
#endif

DEVICE void consume(const Problem& p, u32 smem, const Output& out) {
  const Reader from(smem);
  Scheduler scheduler(p);
  Work w;
  u32 count = 0;  // stages taken from the ring, by both warpgroups in ping-pong
#if GROUPED
  u32 item = 0;
  bool has = scheduler.take(p, w);
#define CONSUME(n, below) \
  consume_shares<n>(p, scheduler, w, has, item, count, below, smem, from, out);
  EACH_SHARE(CONSUME)
#else
  for (u32 item = 0; scheduler.take(p, w); item++) {
    const u32 steps = (w.end - w.begin) * UNIT_STEPS;
    if (!COOPERATIVE && item % 2 != from.consumer) {
      count += steps;
      continue;
    }
    // A barrier tells two phases apart, no more: not before the other warpgroup has met all its stages.
    if (!COOPERATIVE && item) barrier_wait(smem + TURN_OFFSET + 8 * from.consumer, (item - 1) / 2 & 1);
    const u32 stage = count % STAGES, phase = count / STAGES & 1;
    count += steps;
    compute<CTA_M>(p, scheduler, w, smem, item, stage, phase, from, out);
  }
#endif
  if (USES_TMA_STORE && from.thread == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

#if CLUSTER * CLUSTER_K > 1
#define CLUSTER_ATTRIBUTE __cluster_dims__(CLUSTER * CLUSTER_K, 1, 1)
#else
#define CLUSTER_ATTRIBUTE
#endif

extern "C" __global__ void CLUSTER_ATTRIBUTE __launch_bounds__(NUM_THREADS, CTAS_PER_SM)
w4a16_sm90(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_c,
           const unsigned char* __restrict__ qweight, const unsigned char* __restrict__ scales,
           const act_t* __restrict__ bias, act_t* __restrict__ c, float* workspace, u32* counters, float alpha, u32 M,
           u32 N, u32 num_column_blocks, u32 num_k_blocks, u32 num_groups, u32 tiles_m, u32 tiles_n, u32 split,
           u32 share, u32 remainder, u32 swizzle, u32 box_rows
#if GROUPED
           , const __grid_constant__ TensorMap map_few, const int* __restrict__ token_offsets, u32 num_token_groups,
           const float* __restrict__ factors, u32 most_cut
#else
#define map_few map_a
#endif
) {
  extern __shared__ unsigned char raw[];
  const u32 smem = (smem_address(raw) + 1023) & ~1023u;
#if GROUPED
  Problem p = {{token_offsets, factors, smem + TILE_STARTS_OFFSET, num_token_groups, smem + ORDER_OFFSET,
                smem + COST_STARTS_OFFSET},
               M, N, num_column_blocks, num_k_blocks, num_groups, 0, tiles_n, num_k_blocks / 2, swizzle,
               smem + PLAN_OFFSET};
  if (threadIdx.x / 32 == 1) {
    sort_groups(p.token_groups, M);
    __syncwarp();
    p.tiles_m = load_shared_4(p.token_groups.tile_starts + 4 * num_token_groups);
    leave_plan(p, most_cut > 0);
  }
#else
  const Problem p = {M, N, num_column_blocks, num_k_blocks, num_groups, tiles_m, tiles_n, num_k_blocks / 2, split,
                     share, remainder, swizzle};
#endif

  if (threadIdx.x == 0) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map_a) : "memory");
    for (u32 s = 0; s < STAGES; s++) {
      barrier_init(smem + FULL_OFFSET + 8 * s, MODE == 0 ? 1 : 1 + 32);
      barrier_init(smem + EMPTY_OFFSET + 8 * s,
                   SIGNAL_LANES * 4 * (COOPERATIVE ? CONSUMERS : 1) * (CLUSTER_M + CLUSTER_N - 1));
    }
    for (u32 w = 0; w < CONSUMERS; w++) barrier_init(smem + TURN_OFFSET + 8 * w, SIGNAL_LANES * 4);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    if (USES_TMA_STORE) asm volatile("prefetch.tensormap [%0];" ::"l"(&map_c) : "memory");
  }
  __syncwarp();
#if GROUPED
  __syncthreads();
#elif CLUSTER > 1
  cluster_sync();
#else
  // The thread that copies weights made the barriers itself and need not wait for the others.
  if (threadIdx.x < 32) asm volatile("bar.arrive 0, %0;" ::"n"(NUM_THREADS) : "memory");
  else asm volatile("bar.sync 0, %0;" ::"n"(NUM_THREADS) : "memory");
#endif

  if (threadIdx.x < 128) {
#if CTAS_PER_SM == 1
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
#endif
    if (threadIdx.x / 32 == 0 && is_elected()) produce(p, smem, &map_a, &map_few, qweight, box_rows);
#if MODE != 0
    if (threadIdx.x / 32 == 1) produce_scales(p, smem, scales);
#endif
    if (CLUSTER_K > 1) {  // the two of exchange_parts
      cluster_sync();
      cluster_sync();
    }
  } else {
#if CTAS_PER_SM == 1
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
#endif
    const Output out = {&map_c, (const act_t*)scales, bias, c, workspace, counters, alpha};
    consume(p, smem, out);
  }
  __syncwarp();
  if (CLUSTER > 1) cluster_sync();  // no CTA leaves while others copy into it or signal to it
}
