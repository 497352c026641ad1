// Hopper W4A8: as sm90.cu, with tokens in e4m3 and weights dequantized to e4m3, exactly, for wgmma of 8 bits.
//
// A CTA computes CTA_M tokens x 64 * ROW_BLOCKS columns; all warpgroups that compute share it. The sums of a group of K
// are in registers of their own: scaled by the group's scale they are added to those of the tile, in fp32. That is
// exact in the weights, and keeps what wgmma of 8 bits drops of long sums small. Integers of groups of 128 and columns
// are multiplied as they are stored, 0..15; after the main loop comes what that lacks. A token's scale comes last.
// Tokens lie in memory in the order of k that packed weights have in registers (KERNELS.md).
//
// Macros: CTA_M, TOKEN_PARTS (1, 2: parts of the tokens that follow each other), CONSUMERS, MB (64-column blocks of each),
// STAGES (of 128 k), CLUSTER_N (CTAs that share tokens), EPILOGUE_TOKENS. The prelude defines wgmma(sums, a, descriptor)
// for the tokens of a part, wgmma_first, which forgets what the sums were, and both for numbers of 16 bits (_halves).

#define NUM_GROUPS (MODE == 0 ? 1 : 128 / GROUP)  // of a unit of 128 k
#define GROUP_STEPS (4 / NUM_GROUPS)              // wgmmas of 32 k
#define PART_TOKENS (CTA_M / TOKEN_PARTS)
#define NUM_SUMS (PART_TOKENS / 2)
#define TOKEN_STAGE_BYTES (CTA_M * 128)
#define WEIGHT_STAGE_BYTES (ROW_BLOCKS * 4096)
#define SCALE_STAGE_BYTES (MODE == 0 ? 0 : ROW_BLOCKS * NUM_GROUPS * GROUP_BYTES)
#define USES_TMA_STORE (CTA_M > 16)
#define EPILOGUE_BYTES (USES_TMA_STORE ? CONSUMERS * EPILOGUE_TOKENS * 128 : 0)
#define PRODUCER_REGISTERS (CONSUMERS == 2 ? 40 : 56)
#define CONSUMER_REGISTERS (CONSUMERS == 2 ? 232 : 152)
#define IS_CORRECTED (NUM_GROUPS == 1)  // integers 0..15, else -8..7
#define ONES (ACT_BF16 ? 0x3f803f80u : 0x3c003c00u)
#define CHUNK 32  // units of 128 k that a stage has corrections and scales of
#define INTEGER_UNIT 512.0f  // the bits of an integer 0..15 are as many times 2^-9 in e4m3

// Shared memory of a CTA, from a multiple of 1,024 bytes on.
#define EPILOGUE_OFFSET (STAGES * TOKEN_STAGE_BYTES)
#define WEIGHT_OFFSET (EPILOGUE_OFFSET + EPILOGUE_BYTES)
#define SCALE_OFFSET (WEIGHT_OFFSET + STAGES * WEIGHT_STAGE_BYTES)
#define FULL_OFFSET (SCALE_OFFSET + STAGES * SCALE_STAGE_BYTES)
#define EMPTY_OFFSET (FULL_OFFSET + 8 * STAGES)

struct Place {
  u32 first_token, first_block;
};

DEVICE Place place(const Problem& p, u32 tile, u32 rank) {
  const u32 per_group = p.swizzle * p.tiles_n, group = tile / per_group, first = group * p.swizzle;
  const u32 rest = tile - group * per_group, height = min(p.tiles_m - first, p.swizzle);
  return {(first + rest % height) * CTA_M, (rest / height * CLUSTER_N + rank) * ROW_BLOCKS};
}

// ---- producer ----------------------------------------------------------------------------------------------------

DEVICE void produce(const Problem& p, u32 smem, const TensorMap* map_a, const TensorMap* map_corrections,
                    const unsigned char* qweight, const unsigned char* scales, u32 box_rows) {
  constexpr u32 slice_rows = CTA_M / CLUSTER_N;
  const u32 rank = CLUSTER > 1 ? cluster_rank() : 0, stage_bytes = CLUSTER_N * box_rows * 128 + WEIGHT_STAGE_BYTES;
  const u16 all = CLUSTER > 1 ? (1u << CLUSTER_N) - 1 : 0;
  Scheduler scheduler(p);
  Work w;
  u32 stage = 0, phase = 0;
  while (scheduler.take(p, w)) {
    const Place at = place(p, w.tile, rank);
    for (u32 unit = w.begin; unit < w.end; unit++) {
      const u32 full = smem + FULL_OFFSET + 8 * stage;
      barrier_wait(smem + EMPTY_OFFSET + 8 * stage, phase ^ 1);
      barrier_expect(full, stage_bytes);
#pragma unroll
      for (u32 r = 0; r < ROW_BLOCKS; r++) {
        const u64 row = min(at.first_block + r, p.num_column_blocks - 1);
        copy_bulk(smem + WEIGHT_OFFSET + stage * WEIGHT_STAGE_BYTES + r * 4096,
                  qweight + (row * p.num_k_blocks + 2 * unit) * 2048, 4096, full, 0);
      }
      // the tensor map takes two tokens' bytes for a 16-bit number
      copy_tile(smem + stage * TOKEN_STAGE_BYTES + rank * slice_rows * 128, map_a, unit * 64,
                at.first_token + rank * slice_rows, full, all);
      if (++stage == STAGES) stage = 0, phase ^= 1;
    }
    // what the sums of the units lack (quantize.cu), and their scales
    for (u32 first = w.begin / CHUNK * CHUNK; IS_CORRECTED && first < w.end; first += CHUNK) {
      const u32 full = smem + FULL_OFFSET + 8 * stage, bytes = MODE == 0 ? 0 : min(CHUNK, p.num_units - first) * 128;
      barrier_wait(smem + EMPTY_OFFSET + 8 * stage, phase ^ 1);
      barrier_expect(full, stage_bytes - WEIGHT_STAGE_BYTES + ROW_BLOCKS * bytes);
#pragma unroll 1
      for (u32 r = 0; MODE != 0 && r < ROW_BLOCKS; r++) {
        const u64 row = min(at.first_block + r, p.num_column_blocks - 1);
        copy_bulk(smem + WEIGHT_OFFSET + stage * WEIGHT_STAGE_BYTES + r * 4096,
                  scales + (row * p.num_units + first) * 128, bytes, full, 0);
      }
      copy_tile(smem + stage * TOKEN_STAGE_BYTES + rank * slice_rows * 128, map_corrections, first * 2,
                at.first_token + rank * slice_rows, full, all);
      if (++stage == STAGES) stage = 0, phase ^= 1;
    }
  }
}

#if MODE != 0
DEVICE void produce_scales(const Problem& p, u32 smem, const unsigned char* scales) {
  constexpr u32 row_chunks = NUM_GROUPS * GROUP_BYTES / 16, chunks = ROW_BLOCKS * row_chunks;
  const u32 rank = CLUSTER > 1 ? cluster_rank() : 0, lane = threadIdx.x % 32;
  Scheduler scheduler(p);
  Work w;
  u32 stage = 0, phase = 0;
  while (scheduler.take(p, w)) {
    const Place at = place(p, w.tile, rank);
    for (u32 unit = w.begin; unit < w.end; unit++) {
      barrier_wait(smem + EMPTY_OFFSET + 8 * stage, phase ^ 1);
#pragma unroll
      for (u32 i = 0; i < (chunks + 31) / 32; i++) {
        const u32 id = i * 32 + lane;
        const u64 row = min(at.first_block + id / row_chunks, p.num_column_blocks - 1);
        copy_async_16_if(smem + SCALE_OFFSET + stage * SCALE_STAGE_BYTES + id * 16,
                         scales + (row * p.num_groups + unit * NUM_GROUPS) * GROUP_BYTES + id % row_chunks * 16,
                         id < chunks);
      }
      asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];"
                   ::"r"(smem + FULL_OFFSET + 8 * stage) : "memory");
      if (++stage == STAGES) stage = 0, phase ^= 1;
    }
    for (u32 first = w.begin / CHUNK * CHUNK; IS_CORRECTED && first < w.end; first += CHUNK) {  // nothing to copy
      barrier_wait(smem + EMPTY_OFFSET + 8 * stage, phase ^ 1);
      asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];"
                   ::"r"(smem + FULL_OFFSET + 8 * stage) : "memory");
      if (++stage == STAGES) stage = 0, phase ^= 1;
    }
  }
  wait_copies<0>();
}
#endif

// ---- consumer ----------------------------------------------------------------------------------------------------

// 64 columns x 64 k, two operands of wgmma: the words of k16 steps 2 i and 2 i + 1 are 32 k of both columns of a lane.
// Tokens of k % 16 >= 8, bytes 1 and 3, have their sign turned (quantize.cu). Bytes are u, a nibble, there 15 - u, and
// `correct` adds what that lacks; for small groups they are u - 8, there 8 - u: |u - 8| and a sign.
DEVICE void dequantize_words(const uint4& q, u32 (&first)[4], u32 (&second)[4]) {
#pragma unroll
  for (u32 j = 0; j < 4; j++) {
    u32(&a)[4] = j < 2 ? first : second;
    const u32 word = word_of(q, j);
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
      u32& d = a[j % 2 * 2 + h];
#if IS_CORRECTED
      // (bits ^ turned) & nibbles, in one instruction
      asm("lop3.b32 %0, %1, %2, %3, 0x28;" : "=r"(d) : "r"(h ? word >> 4 : word), "r"(0x0f000f00u), "n"(0x0f0f0f0f));
#else
      const u32 size = __vabsdiffu4((h ? word >> 4 : word) & 0x0f0f0f0fu, 0x08080808u);
      d = size | (((h ? word : word << 4) ^ 0x00800080u) & 0x80808080u);
#endif
    }
  }
}

DEVICE void release(u32 smem, u32 stage, u32 rank) {
  const u32 bar = smem + EMPTY_OFFSET + 8 * stage;
  __syncwarp();  // one lane speaks for the reads of all
  const bool speaks = threadIdx.x % 32 < SIGNAL_LANES;
  barrier_arrive_if(bar, speaks);
#pragma unroll
  for (u32 n = 0; CLUSTER > 1 && n < CLUSTER_N; n++) barrier_arrive_at_if(bar, n, speaks && n != rank);
}

struct Block {  // what a thread reads of 64 columns x 128 k
  uint4 q[2];
  u32 scales[NUM_GROUPS];
};

DEVICE Block load_block(u32 weights, u32 scales) {
  Block block;
  block.q[0] = load_shared_16(weights);
  block.q[1] = load_shared_16(weights + 2048);
#pragma unroll
  for (u32 g = 0; g < NUM_GROUPS; g++) block.scales[g] = MODE == 0 ? 0 : load_shared_4(scales + g * GROUP_BYTES);
  return block;
}

DEVICE void add_scaled(float* acc, const float (&sums)[NUM_SUMS], u32 scales) {
  const float of_column[2] = {MODE == 0 ? 1.f : low_float(scales), MODE == 0 ? 1.f : high_float(scales)};
#pragma unroll
  for (u32 i = 0; i < NUM_SUMS; i++) acc[i] += of_column[i / 2 % 2] * sums[i];
}

#if IS_CORRECTED
// Adds the scales of up to 32 units times what their sums lack: that and its rest, both of 16 bits.
DEVICE void correct(u32 smem, u32 scales, u32 stage, u32 first, const Work& w, float (&sums)[NUM_SUMS],
                    float (&acc)[MB][NUM_ACC]) {
#pragma unroll
  for (u32 b = 0; b < MB; b++) {
    u32 a[2][4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
      const u32 slot = 8 * i + threadIdx.x % 4 * 2;
      u32 words[2];
#pragma unroll
      for (u32 n = 0; n < 2; n++) {
        const u32 unit = first + slot + n;
        words[n] = MODE == 0 ? ONES : load_shared_4(scales + b * 4096 + (slot + n) * 128);
        if (unit < w.begin || unit >= w.end) words[n] = 0;
      }
      a[i / 2][i % 2 * 2] = __byte_perm(words[0], words[1], 0x5410);
      a[i / 2][i % 2 * 2 + 1] = __byte_perm(words[0], words[1], 0x7632);
    }
#pragma unroll
    for (u32 t = 0; t < TOKEN_PARTS; t++) {
      const u64 corrections = descriptor(smem + stage * TOKEN_STAGE_BYTES + t * PART_TOKENS * 128);
      wgmma_fence();
      wgmma_halves_first(sums, a[0], corrections);
#pragma unroll
      for (u32 j = 1; j < 4; j++) wgmma_halves(sums, a[j % 2], corrections + 2 * j);
      wgmma_commit();
      wgmma_wait<0>();
#pragma unroll
      for (u32 i = 0; i < NUM_SUMS; i++) acc[b][t * NUM_SUMS + i] += sums[i];
    }
  }
}
#endif

DEVICE void scale_tokens(const Problem& p, float (&acc)[MB][NUM_ACC], const float* token_scales, u32 first_token) {
  const u32 last = (p.M - 1) & ~1u;
#pragma unroll
  for (u32 j = 0; j < CTA_M / 8; j++) {
    const float2 s = __ldg((const float2*)(token_scales + min(first_token + 8 * j + threadIdx.x % 4 * 2, last)));
#pragma unroll
    for (u32 b = 0; b < MB; b++)
#pragma unroll
      for (u32 i = 0; i < 4; i++) acc[b][4 * j + i] *= i % 2 ? s.y : s.x;
  }
}

DEVICE void consume(const Problem& p, u32 smem, const TensorMap* map_c, const float* token_scales,
                    const act_t* column_scales, const act_t* bias, act_t* c, float* workspace, u32* counters,
                    float alpha) {
  const u32 rank = CLUSTER > 1 ? cluster_rank() : 0;
  const u32 consumer = threadIdx.x / 128 - 1, thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
  const u32 weights = smem + WEIGHT_OFFSET + consumer * MB * 4096 + thread * 16;
  const u32 scales = smem + SCALE_OFFSET + consumer * MB * NUM_GROUPS * GROUP_BYTES + (8 * warp + lane / 4) * 4;
  float acc[MB][NUM_ACC], sums[NUM_SUMS];
  u32 a[4][4];

  Scheduler scheduler(p);
  Work w;
  u32 stage = 0, phase = 0;
  while (scheduler.take(p, w)) {
#pragma unroll
    for (u32 b = 0; b < MB; b++)
#pragma unroll
      for (u32 i = 0; i < NUM_ACC; i++) acc[b][i] = 0.f;

    barrier_wait(smem + FULL_OFFSET + 8 * stage, phase);
    Block block = load_block(weights + stage * WEIGHT_STAGE_BYTES, scales + stage * SCALE_STAGE_BYTES);
    dequantize_words(block.q[0], a[0], a[1]);
    for (u32 unit = w.begin; unit < w.end; unit++) {
      const u32 current = stage;
#pragma unroll
      for (u32 b = 0; b < MB; b++) {
        Block next;
#pragma unroll
        for (u32 t = 0; t < TOKEN_PARTS; t++) {
          const u64 tokens = descriptor(smem + current * TOKEN_STAGE_BYTES + t * PART_TOKENS * 128);
#pragma unroll
          for (u32 j = 0; j < 4; j++) {
            if (j % 2 == 0 || j % GROUP_STEPS == 0) wgmma_fence();
            if (j % GROUP_STEPS == 0) wgmma_first(sums, a[j], tokens + 2 * j);
            else wgmma(sums, a[j], tokens + 2 * j);
            if (j % 2 || GROUP_STEPS == 1) wgmma_commit();
            // The second half of the block, and then the first of the next one, while the tensor core works.
            if (j == 1 && t == 0) dequantize_words(block.q[1], a[2], a[3]);
            if (j == 3 && t == TOKEN_PARTS - 1) {
              if (b == MB - 1) {
                if (unit + 1 < w.end && ++stage == STAGES) stage = 0, phase ^= 1;
                barrier_wait(smem + FULL_OFFSET + 8 * stage, phase);
              }
              const u32 next_b = (b + 1) % MB;
              next = load_block(weights + stage * WEIGHT_STAGE_BYTES + next_b * 4096,
                                scales + stage * SCALE_STAGE_BYTES + next_b * NUM_GROUPS * GROUP_BYTES);
              wgmma_wait<1>();
              dequantize_words(next.q[0], a[0], a[1]);
            }
            if ((j + 1) % GROUP_STEPS == 0) {
              wgmma_wait<0>();
              add_scaled(acc[b] + t * NUM_SUMS, sums, block.scales[j / GROUP_STEPS]);
            }
          }
        }
        block = next;
      }
      release(smem, current, rank);
    }
    if (++stage == STAGES) stage = 0, phase ^= 1;
#if IS_CORRECTED
    for (u32 first = w.begin / CHUNK * CHUNK; first < w.end; first += CHUNK) {
      barrier_wait(smem + FULL_OFFSET + 8 * stage, phase);
      const u32 of_block = smem + WEIGHT_OFFSET + stage * WEIGHT_STAGE_BYTES + consumer * MB * 4096;
      correct(smem, of_block + (8 * warp + lane / 4) * 4, stage, first, w, sums, acc);
      release(smem, stage, rank);
      if (++stage == STAGES) stage = 0, phase ^= 1;
    }
#endif

    if (w.parts > 1 && !reduce_parts(p, scheduler, w, acc, workspace, counters, rank, consumer)) continue;
    const Place at = place(p, w.tile, rank);
    scale_tokens(p, acc, token_scales, at.first_token);
#pragma unroll
    for (u32 b = 0; b < MB; b++) {
      const u32 block_n = at.first_block + consumer * MB + b, column = block_n * 64 + warp * 16 + lane / 4;
      float scale[2], shift[2];
#pragma unroll
      for (u32 h = 0; h < 2; h++) {
        const u32 n = column + 8 * h;
        scale[h] = alpha * INTEGER_UNIT * (MODE == 0 && n < p.N ? to_float(column_scales[n]) : 1.f);
        shift[h] = bias && n < p.N ? to_float(bias[n]) : 0.f;
      }
      if (USES_TMA_STORE)
        write_through_smem(p, acc[b], c, map_c, smem + EPILOGUE_OFFSET + consumer * EPILOGUE_TOKENS * 128,
                           at.first_token, p.M, block_n * 64, scale, shift);
      else
        write_direct(p, acc[b], c, at.first_token, p.M, column, scale, shift);
    }
  }
  if (USES_TMA_STORE && thread == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

#if CLUSTER > 1
#define CLUSTER_ATTRIBUTE __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTER_ATTRIBUTE
#endif

extern "C" __global__ void CLUSTER_ATTRIBUTE __launch_bounds__(NUM_THREADS, 1)
w4a8_sm90(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_corrections,
          const __grid_constant__ TensorMap map_c,
          const float* __restrict__ token_scales, const unsigned char* __restrict__ qweight,
          const unsigned char* __restrict__ scales, const act_t* __restrict__ bias, act_t* __restrict__ c,
          float* workspace, u32* counters, float alpha, u32 M, u32 N, u32 num_column_blocks, u32 num_k_blocks,
          u32 num_groups, u32 tiles_m, u32 tiles_n, u32 split, u32 share, u32 remainder, u32 swizzle, u32 box_rows) {
  extern __shared__ unsigned char raw[];
  const u32 smem = (smem_address(raw) + 1023) & ~1023u;
  const Problem p = {M, N, num_column_blocks, num_k_blocks, num_groups, tiles_m, tiles_n, num_k_blocks / 2, split,
                     share, remainder, swizzle};
  if (threadIdx.x == 0) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map_a) : "memory");
    for (u32 s = 0; s < STAGES; s++) {
      barrier_init(smem + FULL_OFFSET + 8 * s, MODE == 0 ? 1 : 1 + 32);
      barrier_init(smem + EMPTY_OFFSET + 8 * s, SIGNAL_LANES * 4 * CONSUMERS * CLUSTER_N);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    if (USES_TMA_STORE) asm volatile("prefetch.tensormap [%0];" ::"l"(&map_c) : "memory");
  }
  __syncwarp();
#if CLUSTER > 1
  cluster_sync();
#else
  __syncthreads();
#endif
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
    if (threadIdx.x / 32 == 0 && is_elected()) produce(p, smem, &map_a, &map_corrections, qweight, scales, box_rows);
#if MODE != 0
    if (threadIdx.x / 32 == 1) produce_scales(p, smem, scales);
#endif
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
    consume(p, smem, &map_c, token_scales, (const act_t*)scales, bias, c, workspace, counters, alpha);
  }
  __syncwarp();
  if (CLUSTER > 1) cluster_sync();  // no CTA leaves while others copy into it or signal to it
}
