// Tokens of a layer go to their experts: rows of A by expert, each a copy of a token, and where the choices of tokens
// have theirs; later their results are added up. A CTA has a share of the tokens, and of the vectors of 16 bytes of a
// row those of blockIdx.y. Choices that name no expert here have no row; a token without any gets a result of zeros. The
// order of rows within an expert changes no bit of the results.

static_assert(MAX_CHOICES == 32, "a warp has a choice of a token in each lane");

// Choices of each expert, [experts] in shared memory: in all, and in those before `split`.
__device__ inline void count_choices(const int* __restrict__ ids, int begin, int end, int num_experts, int* counts,
                                     int split, int* before) {
#pragma unroll 4
  for (int i = begin + threadIdx.x; i < end; i += THREADS) {
    const unsigned expert = ids[i];
    if (expert >= num_experts) continue;
    atomicAdd(counts + expert, 1);
    if (i < split) atomicAdd(before + expert, 1);
  }
}

#if ENTRY == 1
// Of many tokens: counts [shares, experts], so that not every CTA counts all.
extern "C" __global__ void __launch_bounds__(THREADS)
    gemm_eval_count_choices(const int* __restrict__ ids, int* __restrict__ counts, int num_tokens, int num_choices,
                            int num_experts) {
  extern __shared__ int of_share[];
  const int share = (num_tokens + gridDim.x - 1) / gridDim.x;
  for (int e = threadIdx.x; e < num_experts; e += THREADS) of_share[e] = 0;
  __syncthreads();
  const int begin = min(blockIdx.x * share, num_tokens), end = min(begin + share, num_tokens);
  count_choices(ids, begin * num_choices, end * num_choices, num_experts, of_share, 0, of_share);
  __syncthreads();
  for (int e = threadIdx.x; e < num_experts; e += THREADS) counts[blockIdx.x * num_experts + e] = of_share[e];
}
#elif ENTRY == 2
// Of each token: the results of its choices times their weights, added up in the order of choices; LOADS at once.
#define LOADS 8
extern "C" __global__ void __launch_bounds__(THREADS)
    gemm_eval_sum_choices(const uint4* __restrict__ results, const int* __restrict__ choice_rows,
                          const float* __restrict__ weights, uint4* __restrict__ out, int num_choices,
                          int num_vectors) {
  __shared__ int rows[MAX_CHOICES];
  __shared__ float of_rows[MAX_CHOICES];
  if (threadIdx.x < MAX_CHOICES) {
    const int choice = blockIdx.x * num_choices + threadIdx.x;
    const int row = threadIdx.x < num_choices ? choice_rows[choice] : -1;
    rows[threadIdx.x] = row, of_rows[threadIdx.x] = threadIdx.x < num_choices ? weights[choice] : 0.0f;
  }
  __syncthreads();
  for (int v = blockIdx.y * THREADS + threadIdx.x; v < num_vectors; v += gridDim.y * THREADS) {
    float sums[8] = {};
    for (int first = 0; first < num_choices; first += LOADS) {
      uint4 of_choice[LOADS];
#pragma unroll
      for (int i = 0; i < LOADS; i++) of_choice[i] = results[(long long)max(rows[first + i], 0) * num_vectors + v];
#pragma unroll
      for (int i = 0; i < LOADS; i++) {
        if (rows[first + i] < 0) continue;
        const u32 pairs[4] = {of_choice[i].x, of_choice[i].y, of_choice[i].z, of_choice[i].w};
#pragma unroll
        for (int j = 0; j < 8; j++)
          sums[j] = fmaf(of_rows[first + i], j % 2 ? high_float(pairs[j / 2]) : low_float(pairs[j / 2]), sums[j]);
      }
    }
    out[(long long)blockIdx.x * num_vectors + v] =
        make_uint4(pack2(sums[0], sums[1]), pack2(sums[2], sums[3]), pack2(sums[4], sums[5]), pack2(sums[6], sums[7]));
  }
}
#else
extern "C" __global__ void __launch_bounds__(THREADS)
    gemm_eval_route(const uint4* __restrict__ x, long long stride, const int* __restrict__ ids,
                    const int* __restrict__ counts, uint4* __restrict__ rows, int* __restrict__ offsets,
                    unsigned* __restrict__ row_tokens, int* __restrict__ choice_rows, uint4* __restrict__ out,
                    int num_tokens, int num_choices, int num_experts, int num_vectors, int num_out_vectors) {
  extern __shared__ int next_rows[];  // [experts]: of the share, and behind it: of all shares
  __shared__ int token_rows[MAX_CHOICES];
  int* totals = next_rows + num_experts;
  const int lane = threadIdx.x % 32, share = (num_tokens + gridDim.x - 1) / gridDim.x;
  const int begin = min(blockIdx.x * share, num_tokens), end = min(begin + share, num_tokens);
  for (int e = threadIdx.x; e < num_experts; e += THREADS) {
    int before = 0, all = 0;
#pragma unroll 8
    for (int s = 0; counts != nullptr && s < gridDim.x; s++) {
      const int of_share = counts[s * num_experts + e];
      before += s < blockIdx.x ? of_share : 0, all += of_share;
    }
    next_rows[e] = before, totals[e] = all;
  }
  __syncthreads();
  if (counts == nullptr) {
    count_choices(ids, 0, num_tokens * num_choices, num_experts, totals, begin * num_choices, next_rows);
    __syncthreads();
  }
  if (threadIdx.x < 32) {
    int start = 0;
    for (int first = 0; first < num_experts; first += 32) {
      const int e = first + lane, all = e < num_experts ? totals[e] : 0;
      int sum = all;
      for (int distance = 1; distance < 32; distance *= 2) {
        const int below = __shfl_up_sync(0xffffffffu, sum, distance);
        if (lane >= distance) sum += below;
      }
      if (e < num_experts) {
        next_rows[e] += start + sum - all;
        if (blockIdx.x == 0 && blockIdx.y == 0) offsets[e] = start + sum - all;
      }
      start += __shfl_sync(0xffffffffu, sum, 31);
    }
    if (blockIdx.x == 0 && blockIdx.y == 0 && lane == 0) offsets[num_experts] = start;
    __syncwarp();
  }
  const int part = (num_vectors + gridDim.y - 1) / gridDim.y;
  const int first_vector = blockIdx.y * part, end_vector = min(first_vector + part, num_vectors);
  for (int token = begin; token < end; token++) {
    if (threadIdx.x < MAX_CHOICES) {
      const unsigned expert = lane < num_choices ? ids[token * num_choices + lane] : num_experts;
      const unsigned alike = __match_any_sync(0xffffffffu, expert);  // of tokens that name an expert twice
      int row = -1;
      if (expert < num_experts) row = next_rows[expert] + __popc(alike & ((1u << lane) - 1));
      __syncwarp();
      if (expert < num_experts && lane == __ffs(alike) - 1) next_rows[expert] += __popc(alike);
      const unsigned num_rows = __popc(__ballot_sync(0xffffffffu, row >= 0));
      token_rows[lane] = row;
      if (blockIdx.y == 0 && row >= 0) row_tokens[row] = token | num_rows << 24;
      if (blockIdx.y == 0 && lane < num_choices) choice_rows[token * num_choices + lane] = row;
      if (num_rows == 0 && blockIdx.y == 0)
        for (int v = lane; v < num_out_vectors; v += 32)
          out[(long long)token * num_out_vectors + v] = make_uint4(0, 0, 0, 0);
    }
    __syncthreads();
    for (int v = first_vector + threadIdx.x; v < end_vector; v += THREADS) {
      const uint4 value = x[token * stride + v];
      for (int choice = 0; choice < num_choices; choice++)
        if (token_rows[choice] >= 0) rows[(long long)token_rows[choice] * num_vectors + v] = value;
    }
    __syncthreads();
  }
}
#endif
