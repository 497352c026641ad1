"""Reading the config of a cuBLAS kernel from its name and launch."""

from __future__ import annotations

import re

from gemm_eval.arch import THREADS_PER_WARP
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder, Schedule
from gemm_eval.models.gpu import LOAD_BYTES, step_elems
from gemm_eval.workload import GemmProblem

__all__ = ["config_of_kernel", "tiles_of_grid"]

# nvjet_sm90_hsh_128x64_64x8_2x1_v_bz_coopA_splitK_TNT: tile N x M, k-step x stages, cluster N x M, raster, options
_NAME = re.compile(
    r"nvjet_sm90_[a-z]+_(?P<cta_n>\d+)x(?P<cta_m>\d+)_(?P<cta_k>\d+)x(?P<stages>\d+)"
    r"_(?P<cluster_n>\d+)x(?P<cluster_m>\d+)_(?P<raster>[vh])_(?P<options>\w+)$"
)
_COMPUTING_WARPS = 8
# cutlass_80_tensorop_i16832gemm_s8_128x64_128x3_tn_align16: tile N x M, k-step x stages, elements of one load; names
# cutlass_75_tensorop_.. have no stages: two k-steps, or parts of one, of which one is in registers
_CUTLASS = re.compile(
    r"cutlass_(?:75|80)_(?:wmma_)?tensorop_\w+?gemm_\w+?_(?P<cta_n>\d+)x(?P<cta_m>\d+)"
    r"(?:_(?P<cta_k>\d+)x(?P<stages>\d+))?_tn_align(?P<elements>\d+)"
)
_TWO_STAGES = 2
_SWIZZLES = ((6, 8), (3, 4), (2, 2), (1, 1))  # from so many columns of tiles on, so many lie side by side in the grid


def config_of_kernel(problem: GemmProblem, name: str, num_ctas: int, num_threads: int) -> KernelConfig | None:
    """Return the config that a kernel's name and launch tell, or None where they do not.

    The name says that K is split, but not into how many parts: that is what makes the grid come out. Where it does not
    come out, a persistent grid hides the number, and the answer is None. On all 1,722 split kernels of
    arch/measured/h200-sxm/cublaslt/fp16-candidates whose grid comes out, the number is the one that cuBLASLt reports.

    Args:
        problem: what it computed.
        name: of the kernel, as a profiler gives it.
        num_ctas: the product of the sides of its grid.
        num_threads: of a CTA.
    """
    found = _NAME.match(name)
    if found is None:
        return _config_of_cutlass(problem, name, num_ctas, num_threads)
    n, m, k, stages, cluster_n, cluster_m = (
        int(found[key]) for key in ("cta_n", "cta_m", "cta_k", "stages", "cluster_n", "cluster_m")
    )
    if k != step_elems(problem.types, "sm90_wgmma"):
        return None
    split = 1
    if "splitK" in found["options"]:
        split, rest = divmod(num_ctas, tiles_of_grid(problem, m, n, cluster_m, cluster_n))
        if rest or not 2 <= split <= -(-problem.K // k):
            return None
    return KernelConfig(
        "sm90_wgmma", m, n, k, cluster_m, cluster_n, _COMPUTING_WARPS, stages,
        Schedule.COOPERATIVE if "coop" in found["options"] else Schedule.PINGPONG,
        Decomposition.SPLIT_K if split > 1 else Decomposition.DATA_PARALLEL, split,
        RasterOrder.ALONG_N if found["raster"] == "v" else RasterOrder.ALONG_M, 1,
    )  # fmt: skip


def _config_of_cutlass(problem: GemmProblem, name: str, num_ctas: int, num_threads: int) -> KernelConfig | None:
    found = _CUTLASS.search(name)
    if found is None:
        return None
    n, m, load_elems = (int(found[key]) for key in ("cta_n", "cta_m", "elements"))
    k = step_elems(problem.types, "sm80_mma")
    family, tiles = "sm80_mma", tiles_of_grid(problem, m, n, 1, 1)
    load_bytes = load_elems * problem.types.a.dtype.bits // 8
    if load_bytes < LOAD_BYTES[0]:
        family = "mma_unaligned" if load_bytes >= LOAD_BYTES[1] else "mma_elementwise"
        across = next(across for least, across in _SWIZZLES if -(-problem.N // n) >= least)
        tiles = tiles_of_grid(problem, m, n, 1, across)
    stages, part = _TWO_STAGES, 0
    if found["stages"] is not None and family != "mma_elementwise":
        stages, part = divmod(int(found["cta_k"]) * int(found["stages"]), k)
    split, rest = divmod(num_ctas, tiles)
    if part or rest or stages < _TWO_STAGES or not 1 <= split <= -(-problem.K // k):
        return None
    return KernelConfig(
        family, m, n, k, 1, 1, num_threads // THREADS_PER_WARP, stages, Schedule.MULTISTAGE,
        Decomposition.SPLIT_K if split > 1 else Decomposition.DATA_PARALLEL, split, RasterOrder.ALONG_M, 1,
    )  # fmt: skip


def tiles_of_grid(problem: GemmProblem, cta_m: int, cta_n: int, cluster_m: int, cluster_n: int) -> int:
    """Tiles of all of C, when the grid is rounded up to whole clusters."""
    tiles_m = -(-problem.M // (cta_m * cluster_m)) * cluster_m
    tiles_n = -(-problem.N // (cta_n * cluster_n)) * cluster_n
    return problem.G * tiles_m * tiles_n
