"""Controls for racecheck: rings as those of our kernels, and nothing else.

compute-sanitizer --tool racecheck python -m tools.racecheck_control         all threads signal that a stage is read
compute-sanitizer --tool racecheck python -m tools.racecheck_control lane    one lane for its warp, after __syncwarp
compute-sanitizer --tool racecheck python -m tools.racecheck_control team    teams of two warps, each with a barrier

The first two have a ring of bulk copies between full and empty mbarriers, the third one of `cp.async` for each team. On
Hopper (compute-sanitizer of CUDA 13.0) the first and the third are clean and the second is reported, though all are
right: what racecheck says of kernels that signal by one lane is to be read with that in mind.
"""

import sys

import numpy as np

from gemm_eval.device.runtime import import_cupy

_STEPS = 16
_SOURCE = r"""
typedef unsigned u32;

__device__ void wait(u32 bar, u32 parity) {
  asm volatile("{.reg .pred p;\nretry: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
               "@p bra done;\nbra retry;\ndone:}"
               ::"r"(bar), "r"(parity) : "memory");
}

extern "C" __global__ void ring(const uint4* in, uint4* out, int steps) {  // 128 readers, and a warp that copies
  __shared__ __align__(128) uint4 stages[2][128];
  __shared__ __align__(8) unsigned long long bars[4];  // full, empty
  u32 bar = (u32)__cvta_generic_to_shared(bars), smem = (u32)__cvta_generic_to_shared(stages);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 4; i++)
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar + 8 * i), "r"(i < 2 ? 1 : SIGNALS));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x >= 128) {
    for (int k = 0; threadIdx.x == 128 && k < steps; k++) {
      u32 i = k % 2;
      wait(bar + 16 + 8 * i, (k / 2 & 1) ^ 1);
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 2048;" ::"r"(bar + 8 * i) : "memory");
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 2048, [%2];"
                   ::"r"(smem + 2048 * i), "l"(in + k * 128), "r"(bar + 8 * i) : "memory");
    }
    return;
  }
  uint4 sum = {0, 0, 0, 0};
  for (int k = 0; k < steps; k++) {
    u32 i = k % 2;
    wait(bar + 8 * i, k / 2 & 1);
    uint4 v = stages[i][threadIdx.x];
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    if (SIGNALS == 4) __syncwarp();
    if (SIGNALS == 128 || threadIdx.x % 32 == 0)
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar + 16 + 8 * i) : "memory");
  }
  out[threadIdx.x] = sum;
}
"""

_TEAMS_SOURCE = r"""
typedef unsigned u32;

__device__ void sync_team(int team) { asm volatile("bar.sync %0, 64;" ::"r"(team + 1) : "memory"); }

extern "C" __global__ void ring(const uint4* in, uint4* out, int steps) {  // each thread reads what its partner copied
  __shared__ __align__(128) uint4 stages[2][128];
  const int team = threadIdx.x / 64, partner = threadIdx.x ^ 32;
  u32 to = (u32)__cvta_generic_to_shared(&stages[0][threadIdx.x]);
  uint4 sum = {0, 0, 0, 0};
  for (int k = 0; k <= steps; k++) {
    if (k > 0) {
      asm volatile("cp.async.wait_group 0;" ::: "memory");
      sync_team(team);
    }
    if (k < steps) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\ncp.async.commit_group;"
                                ::"r"(to + 2048 * (k % 2)), "l"(in + k * 128 + threadIdx.x) : "memory");
    if (k > 0) {
      uint4 v = stages[(k - 1) % 2][partner];
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
  }
  __syncthreads();
  stages[0][threadIdx.x ^ 64] = sum;  // over the ring, as sums of teams
  __syncthreads();
  out[threadIdx.x ^ 32] = stages[0][threadIdx.x ^ 64];
}
"""


def main(which: str) -> None:
    """Run a ring once, and check its sums."""
    cupy = import_cupy()
    is_teams = which == "team"
    options = ("-std=c++17", "-arch=sm_90a", f"-DSIGNALS={4 if which == 'lane' else 128}")
    module = cupy.RawModule(code=_TEAMS_SOURCE if is_teams else _SOURCE, options=options)
    data = np.random.default_rng(0).integers(0, 1 << 20, (_STEPS, 128, 4), dtype=np.uint32)
    out = cupy.zeros((128, 4), cupy.uint32)
    num_threads = 128 if is_teams else 160
    module.get_function("ring")((1,), (num_threads,), (cupy.asarray(data), out, np.int32(_STEPS)))
    assert np.array_equal(cupy.asnumpy(out), data.sum(0, dtype=np.uint32))


if __name__ == "__main__":
    main("".join(sys.argv[1:2]))
