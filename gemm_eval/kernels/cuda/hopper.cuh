// What the kernels of sm90.cu and sm90_fp8.cu share: barriers, bulk copies, the order of work, results to memory. A CTA
// has a warpgroup that copies and CONSUMERS that compute, all of them blocks of 64 columns with CTA_M tokens.

#ifndef GROUPED
#define GROUPED 0
#endif
#if !GROUPED
#define GATED 0
#define COUNTER_TILE(p, w) w.tile
#endif

#define NUM_THREADS (128 * (1 + CONSUMERS))
#define ROW_BLOCKS (COOPERATIVE ? CONSUMERS * MB : MB)
#define CLUSTER (CLUSTER_M * CLUSTER_N)
#define NUM_ACC (CTA_M / 2)
#define TILE_FLOATS (ROW_BLOCKS * 64 * CTA_M)

struct alignas(64) TensorMap { u64 v[16]; };

// ---- barriers and copies -----------------------------------------------------------------------------------------

DEVICE void barrier_init(u32 bar, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

DEVICE void barrier_expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

// Without a branch: the compiler keeps wgmma asynchronous only in straight code.
DEVICE void barrier_arrive_if(u32 bar, bool condition) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %1, 0;\n@p mbarrier.arrive.shared::cta.b64 _, [%0];\n}"
      ::"r"(bar), "r"((u32)condition) : "memory");
}

// Of another CTA of the cluster. What was read is in registers by now; a release at the scope of the cluster would wait
// for all of the thread's memory accesses, and halve the speed.
DEVICE void barrier_arrive_at_if(u32 bar, u32 rank, bool condition) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b32 remote;\nsetp.ne.u32 p, %2, 0;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "@p mbarrier.arrive.shared::cluster.b64 _, [remote];\n}"
      ::"r"(bar), "r"(rank), "r"((u32)condition) : "memory");
}

DEVICE void barrier_wait(u32 bar, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\nretry:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra ready;\nbra retry;\nready:\n}" ::"r"(bar), "r"(parity) : "memory");
}

DEVICE void copy_bulk(u32 dst, const void* src, u32 bytes, u32 bar, u16 mask) {
  if (mask)
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
        ::"r"(dst), "l"(src), "r"(bytes), "r"(bar), "h"(mask) : "memory");
  else
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(dst), "l"(src), "r"(bytes), "r"(bar) : "memory");
}

DEVICE void copy_tile(u32 dst, const TensorMap* map, u32 x, u32 y, u32 bar, u16 mask) {
  if (mask)
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(dst), "l"(map), "r"(x), "r"(y), "r"(bar), "h"(mask) : "memory");
  else
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
        ::"r"(dst), "l"(map), "r"(x), "r"(y), "r"(bar) : "memory");
}

DEVICE void store_tile(const TensorMap* map, u32 src, u32 x, u32 y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
               ::"l"(map), "r"(x), "r"(y), "r"(src) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

DEVICE u32 cluster_rank() {
  u32 r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}

DEVICE void cluster_sync() {
  asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
}

// Shared-memory operand of wgmma: K-major, 128-byte swizzle, 8 rows every 1,024 bytes.
DEVICE u64 descriptor(u32 address) {
  return (u64)((address & 0x3ffff) >> 4) | (1ull << 16) | ((u64)(1024 >> 4) << 32) | (1ull << 62);
}

// One lane of a warp that is here as one; the compiler then knows that operands are uniform.
DEVICE bool is_elected() {
  u32 elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(elected));
  return elected;
}

DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int pending>
DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// ---- work --------------------------------------------------------------------------------------------------------

#if !GROUPED  // else in shares.cuh
struct Problem {
  u32 M, N;
  u32 num_column_blocks, num_k_blocks, num_groups;
  u32 tiles_m, tiles_n;  // of clusters
  u32 num_units;         // of 128 k in K
  u32 split;             // parts of K; 0: stream-K
  u32 share, remainder;  // stream-K: units of all tiles over clusters
  u32 swizzle;           // tiles along M before the raster steps along N
};

// Part 0 has the first k. It waits for the others and adds theirs to its sums, so it goes to the last of the clusters
// that share a tile: those it waits for run already.
struct Work {
  u32 tile, begin, end;  // units of K
  u32 part, parts;
};

struct Scheduler {
  u32 cluster, num_clusters;
  u32 next, last;  // items; stream-K: units, of which the last clusters have the first

  // The first `remainder` clusters take one unit more than the others.
  DEVICE static u32 first_unit(const Problem& p, u32 cluster) {
    return cluster * p.share + min(cluster, p.remainder);
  }

  DEVICE static u32 owner(const Problem& p, u32 unit) {
    const u32 larger = p.remainder * (p.share + 1);
    return unit < larger ? unit / (p.share + 1) : p.remainder + (unit - larger) / p.share;
  }

  DEVICE Scheduler(const Problem& p) {
    cluster = blockIdx.x / CLUSTER;
    num_clusters = gridDim.x / CLUSTER;
    if (p.split) {
      next = cluster;
      last = p.tiles_m * p.tiles_n * p.split;
    } else {
      cluster = num_clusters - 1 - cluster;
      next = first_unit(p, cluster);
      last = first_unit(p, cluster + 1);
    }
  }

  DEVICE bool take(const Problem& p, Work& w) {
    if (next >= last) return false;
    if (p.split) {
      w.tile = next / p.split;
      w.part = p.split - 1 - (next - w.tile * p.split);
      w.parts = p.split;
      w.begin = w.part * p.num_units / p.split;
      w.end = (w.part + 1) * p.num_units / p.split;
      next += num_clusters;
    } else {
      w.tile = next / p.num_units;
      const u32 start = w.tile * p.num_units;
      w.begin = next - start;
      w.end = min(p.num_units, w.begin + (last - next));
      if (w.end - w.begin == p.num_units) {
        w.part = 0, w.parts = 1;
      } else {
        const u32 first = owner(p, start);
        w.part = cluster - first;
        w.parts = owner(p, start + p.num_units - 1) - first + 1;
      }
      next += w.end - w.begin;
    }
    return true;
  }

  // Where the sums of a part but the first lie: stream-K begins with it, so there is one for each cluster.
  DEVICE u32 slot(const Problem& p, const Work& w, u32 part) const {
    return p.split ? w.tile * (p.split - 1) + part - 1 : owner(p, w.tile * p.num_units) + part;
  }
};
#endif

// ---- results -----------------------------------------------------------------------------------------------------

template <u32 SUMS>  // of a block of columns, for twice as many tokens: CTA_M, or what a tile of a group has
DEVICE void write_direct(const Problem& p, float (&acc)[SUMS], act_t* c, u32 first_token, u32 end_token, u32 column,
                         const float (&scale)[2], const float (&shift)[2]) {
  const u32 lane = threadIdx.x % 32;
#pragma unroll
  for (u32 i = 0; i < SUMS; i++) {
    const u32 token = first_token + i / 4 * 8 + lane % 4 * 2 + i % 2, h = i % 4 / 2, n = column + 8 * h;
#if GATED
    const float gate = acc[i] * scale[0] + shift[0];
    if (h == 0 && token < end_token && n < p.N)
      c[(u64)token * (p.N / 2) + n / 16 * 8 + n % 8] = to_act(gated(gate, acc[(i + 2) % SUMS] * scale[1] + shift[1]));
#else
    if (token < end_token && n < p.N) c[(u64)token * p.N + n] = to_act(acc[i] * scale[h] + shift[h]);
#endif
  }
}

// Tokens that end before the box does: those below are of another tile or group, which a copy of it would overwrite.
DEVICE void store_rows(const Problem& p, act_t* c, u32 buffer, u32 first_token, u32 end_token, u32 first_column) {
  constexpr u32 chunks = GATED ? 4 : 8;  // 16 bytes each
  const u32 row_elems = GATED ? p.N / 2 : p.N, chunk = threadIdx.x % chunks, n = first_column + chunk * 8;
  const u32 rows = min(end_token - first_token, (u32)EPILOGUE_TOKENS);
  for (u32 row = threadIdx.x % 128 / chunks; row < rows && n < row_elems; row += 128 / chunks)
    *(uint4*)(c + (u64)(first_token + row) * row_elems + n) = load_shared_16(buffer + row * 128 + (chunk ^ row % 8) * 16);
}

template <u32 SUMS>
DEVICE void write_through_smem(const Problem& p, float (&acc)[SUMS], act_t* c, const TensorMap* map_c, u32 buffer,
                               u32 first_token, u32 end_token, u32 first_column, const float (&scale)[2],
                               const float (&shift)[2]) {
  const u32 thread = threadIdx.x % 128, lane = threadIdx.x % 32, warp = thread / 32, id = threadIdx.x / 128;
  // lanes 8 i .. 8 i + 7 give the rows of matrix i: tokens of j (i < 2) or j + 1, columns 8 (i % 2) of the warp's 16
#if GATED  // 8 columns of a warp, matrix i has tokens of j + i
  const u32 row = lane / 8 % 2 * 8 + lane % 8, chunk = warp ^ lane % 8;
#else
  const u32 row = lane / 16 * 8 + lane % 8, chunk = (warp * 2 + lane / 8 % 2) ^ (lane % 8);
#endif
  const u32 address = buffer + row * 128 + chunk * 16;
#pragma unroll
  for (u32 t = 0; t < 2 * SUMS; t += EPILOGUE_TOKENS) {
    constexpr bool is_even = 2 * SUMS % EPILOGUE_TOKENS == 0;
    const u32 end = is_even ? t + EPILOGUE_TOKENS : min(t + EPILOGUE_TOKENS, 2 * SUMS);
    if (thread == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    named_barrier(id, 128);
#pragma unroll
    for (u32 j = t / 8; j < end / 8; j += 2) {
      const bool is_pair = j + 1 < end / 8;
      u32 r[4];
#if GATED
#pragma unroll
      for (u32 i = 0; i < (is_pair ? 2 : 1); i++) {
        const float* g = acc + 4 * (j + i);
        r[i] = pack2(gated(g[0] * scale[0] + shift[0], g[2] * scale[1] + shift[1]),
                     gated(g[1] * scale[0] + shift[0], g[3] * scale[1] + shift[1]));
      }
      const u32 to = address + (j - t / 8) * 1024;
      if (is_pair)
        asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};"
                     ::"r"(to), "r"(r[0]), "r"(r[1]) : "memory");
      else
        asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(to), "r"(r[0]) : "memory");
#else
#pragma unroll
      for (u32 i = 0; i < (is_pair ? 4 : 2); i++) {
        const u32 at = 4 * (j + i / 2) + 2 * (i % 2), h = i % 2;
        r[i] = pack2(acc[at] * scale[h] + shift[h], acc[at + 1] * scale[h] + shift[h]);
      }
      const u32 to = address + (j - t / 8) * 1024;
      if (is_pair)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                     ::"r"(to), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
      else
        asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};"
                     ::"r"(to), "r"(r[0]), "r"(r[1]) : "memory");
#endif
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    named_barrier(id, 128);
    const u32 last = is_even ? end_token : min(end_token, first_token + 2 * SUMS);
    if (GATED || end - t < EPILOGUE_TOKENS || (GROUPED && first_token + t + EPILOGUE_TOKENS > end_token)) {
      if (first_token + t < last) store_rows(p, c, buffer, first_token + t, last, first_column);
    } else {
      if (thread == 0) store_tile(map_c, buffer, first_column, first_token + t);
    }
  }
}

DEVICE u32 load_acquire(const u32* p) {
  u32 v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

// Part 0 adds the sums of the others to its own, in the order of k; the others leave theirs in the workspace. Returns
// whether this is part 0.
template <u32 SUMS>
DEVICE bool reduce_parts(const Problem& p, const Scheduler& scheduler, const Work& w, float (&acc)[MB][SUMS],
                         float* workspace, u32* counters, u32 rank, u32 half) {
  const u32 thread = threadIdx.x % 128, id = threadIdx.x / 128;
  u32* counter = counters + ((u64)COUNTER_TILE(p, w) * CLUSTER + rank) * (COOPERATIVE ? CONSUMERS : 1) + half;
  float* sums = workspace + (u64)rank * TILE_FLOATS + half * MB * 64 * CTA_M + thread * 4;
  constexpr u64 slot_floats = (u64)CLUSTER * TILE_FLOATS;
  if (w.part > 0) {
    float* mine = sums + scheduler.slot(p, w, w.part) * slot_floats;
#pragma unroll
    for (u32 b = 0; b < MB; b++)
#pragma unroll
      for (u32 i = 0; i < SUMS; i += 4)
        __stcg((float4*)(mine + (b * SUMS + i) * 128),
               make_float4(acc[b][i], acc[b][i + 1], acc[b][i + 2], acc[b][i + 3]));
    named_barrier(id, 128);  // and with the release, all of the warpgroup's stores are there before the count
    if (thread == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
    return false;
  }
  if (thread == 0) {
    while (load_acquire(counter) != w.parts - 1) {}
    *counter = 0;
  }
  named_barrier(id, 128);
#pragma unroll 1
  for (u32 part = 1; part < w.parts; part++) {
    const float* from = sums + scheduler.slot(p, w, part) * slot_floats;
#pragma unroll
    for (u32 b = 0; b < MB; b++)
#pragma unroll
      for (u32 i = 0; i < SUMS; i += 4) {
        const float4 v = __ldcg((const float4*)(from + (b * SUMS + i) * 128));
        acc[b][i] += v.x;
        acc[b][i + 1] += v.y;
        acc[b][i + 2] += v.z;
        acc[b][i + 3] += v.w;
      }
  }
  return true;
}
