// out[m, j] = a[m, permutation[j]]: activations with their columns in the order of weights that were sorted by group.
// Two rows at a time lie in shared memory as pairs (row m, row m + 1), so that a read of 4 bytes at a random place serves
// both. Global memory is read and written in vectors of 16 bytes. A part of blockIdx.x writes its share of the columns.
// STAGED 0: two rows do not fit shared memory, and are read at random places from the caches.
#define VECTOR_ELEMS 8
#define LOWER_HALVES 0x5410
#define UPPER_HALVES 0x7632

__device__ inline uint4 rows_of_pairs(const unsigned* pairs, int halves) {
  return make_uint4(__byte_perm(pairs[0], pairs[1], halves), __byte_perm(pairs[2], pairs[3], halves),
                    __byte_perm(pairs[4], pairs[5], halves), __byte_perm(pairs[6], pairs[7], halves));
}

__device__ inline uint4 pairs_of_rows(unsigned first_x, unsigned second_x, unsigned first_y, unsigned second_y) {
  return make_uint4(__byte_perm(first_x, second_x, LOWER_HALVES), __byte_perm(first_x, second_x, UPPER_HALVES),
                    __byte_perm(first_y, second_y, LOWER_HALVES), __byte_perm(first_y, second_y, UPPER_HALVES));
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_CTAS)
    gemm_eval_gather(const unsigned short* __restrict__ a, const int4* __restrict__ permutation,
                     unsigned short* __restrict__ out, int M, int K, long long lda) {
#if STAGED
  extern __shared__ uint4 staged[];
  const unsigned* pairs_of_k = reinterpret_cast<const unsigned*>(staged);
#endif
  const int num_vectors = K / VECTOR_ELEMS;
  const int share = (num_vectors + gridDim.x - 1) / gridDim.x;
  const int begin = blockIdx.x * share;
  const int end = min(begin + share, num_vectors);
  for (long long m = 2LL * blockIdx.y; m < M; m += 2LL * gridDim.y) {
    const bool has_second = m + 1 < M;
    const unsigned short* first = a + m * lda;
    const unsigned short* second = has_second ? first + lda : first;
#if STAGED
#pragma unroll 4
    for (int v = threadIdx.x; v < num_vectors; v += THREADS) {
      const uint4 x = reinterpret_cast<const uint4*>(first)[v], y = reinterpret_cast<const uint4*>(second)[v];
      staged[2 * v] = pairs_of_rows(x.x, y.x, x.y, y.y);
      staged[2 * v + 1] = pairs_of_rows(x.z, y.z, x.w, y.w);
    }
    __syncthreads();
#endif
#pragma unroll 1  // 8 reads of one vector are enough in flight, and more would spill
    for (int v = begin + threadIdx.x; v < end; v += THREADS) {
      const int4 low = permutation[2 * v], high = permutation[2 * v + 1];
      const int order[VECTOR_ELEMS] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      unsigned pairs[VECTOR_ELEMS];
#pragma unroll
      for (int i = 0; i < VECTOR_ELEMS; ++i) {
        const unsigned k = min(unsigned(order[i]), unsigned(K - 1));  // whatever a tensor holds: read nothing but rows
#if STAGED
        pairs[i] = pairs_of_k[k];
#else
        pairs[i] = first[k] | unsigned(second[k]) << 16;
#endif
      }
      uint4* row = reinterpret_cast<uint4*>(out + m * K);
      row[v] = rows_of_pairs(pairs, LOWER_HALVES);
      if (has_second) row[num_vectors + v] = rows_of_pairs(pairs, UPPER_HALVES);
    }
#if STAGED
    __syncthreads();
#endif
  }
}
