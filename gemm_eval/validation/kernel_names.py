"""Reading the config of a cuBLAS Hopper kernel from its name and launch."""

from __future__ import annotations

import re

from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder, Schedule

__all__ = ["config_of_kernel"]

# nvjet_sm90_hsh_128x64_64x8_2x1_v_bz_coopA_splitK_TNT: tile N x M, k-step x stages, cluster N x M, raster, options
_NAME = re.compile(
    r"nvjet_sm90_\w+?_(?P<cta_n>\d+)x(?P<cta_m>\d+)_(?P<cta_k>\d+)x(?P<stages>\d+)_(?P<cluster_n>\d+)x(?P<cluster_m>\d+)"
    r"_(?P<raster>[vh])_(?P<options>.*)$"
)


def config_of_kernel(name: str, num_ctas: int, M: int, N: int, G: int = 1) -> KernelConfig | None:
    """Return the config that a kernel's name tells, or None for a kernel of another kind.

    The name says that K is split, but not into how many parts: that is what makes the grid (`num_ctas`) come out. It
    stays unknown, and the answer None, where a persistent grid hides it.
    """
    found = _NAME.match(name)
    if found is None:
        return None
    n, m, k, stages, cluster_n, cluster_m = (
        int(found[key]) for key in ("cta_n", "cta_m", "cta_k", "stages", "cluster_n", "cluster_m")
    )
    split = 1
    if "splitK" in found["options"]:
        tiles_n = -(-(-(-N // n)) // cluster_n) * cluster_n
        tiles_m = -(-(-(-M // m)) // cluster_m) * cluster_m
        split, rest = divmod(num_ctas, G * tiles_m * tiles_n)
        if rest or split < 2:
            return None
    return KernelConfig(
        "sm90_wgmma", m, n, k, cluster_m, cluster_n, 8, stages,
        Schedule.COOPERATIVE if "coop" in found["options"] else Schedule.PINGPONG,
        Decomposition.SPLIT_K if split > 1 else Decomposition.DATA_PARALLEL, split,
        RasterOrder.ALONG_N if found["raster"] == "v" else RasterOrder.ALONG_M, 1,
    )  # fmt: skip
