"""Numba kernels of the search plans: scores of partitions, and the largest tiles of a block."""

from __future__ import annotations

import math
from typing import Any

from gemm_eval.jit import entry_point, kernel
from gemm_eval.models.multicore.cost_kernels import block_of, sram_used_bytes
from gemm_eval.models.multicore.count_kernels import ceil_div
from gemm_eval.search.multicore_kernels import most_units, most_units_k

__all__ = ["count_legal_mappings", "fill_largest_tiles", "fill_partition_scores"]

# The score of a partition is a weighted sum of terms in 0..1; higher is better. The weights were set by reasoning, not
# fitted: an unbalanced or idle chip costs in proportion, a split K costs traffic and adds, shape and squareness decide
# between what is left.
BALANCE_WEIGHT = 4.0
"""Useful share of the busiest core's work times cores: 1 when all cores have equal work."""
WHOLE_K_WEIGHT = 2.0
"""K is not split, so that there is nothing to reduce; worth more than any shape."""
SHAPE_WEIGHT = 1.0
"""Cores along M and N in proportion to the shape: along M when M >> N, along N when N >> M, else half and half."""
SQUARE_WEIGHT = 0.5
"""P_M near P_N: the least traffic for square blocks."""
LONG_RATIO = 4.0
"""M >> N means M >= LONG_RATIO * N."""


@entry_point
def fill_partition_scores(params: Any, G: int, M: int, K: int, N: int, partitions: Any, scores: Any) -> None:
    """Fill `scores`, float64 [num_partitions]; -1 for what the chip cannot run or another partition stands for."""
    p = params[0]
    log_cores = math.log(max(2.0, float(p["num_cores"])))
    total = float(G) * M * K * N
    wanted = 0.5
    if M >= LONG_RATIO * N:
        wanted = 1.0
    elif N >= LONG_RATIO * M:
        wanted = 0.0
    for rank in range(partitions.shape[0]):
        P_G, P_M, P_N, P_K = partitions[rank]
        blk = block_of(p, G, M, K, N, P_G, P_M, P_N, P_K)
        is_twin = blk.E_G != P_G or blk.E_M != P_M or blk.E_N != P_N or blk.E_K != P_K
        if blk.E_K > 1 and p["reduction"] == 0:
            scores[rank] = -1.0
            continue
        balance = total / (float(blk.g) * blk.m * blk.k * blk.n * p["num_cores"])
        log_m = math.log(blk.E_M)
        log_n = math.log(blk.E_N)
        share_m = log_m / (log_m + log_n) if log_m + log_n > 0.0 else wanted
        score = BALANCE_WEIGHT * balance
        score += WHOLE_K_WEIGHT * (1.0 - math.log(blk.E_K) / log_cores)
        score += SHAPE_WEIGHT * (1.0 - abs(share_m - wanted))
        score += SQUARE_WEIGHT * (min(blk.E_M, blk.E_N) / max(blk.E_M, blk.E_N))
        scores[rank] = score - (1e-9 if is_twin else 0.0)


@kernel
def _volume(tile_m: int, tile_n: int, tile_k: int) -> float:
    return float(tile_m) * tile_n * tile_k


@entry_point
def fill_largest_tiles(params: Any, m: int, n: int, k: int, out: Any) -> int:
    """Fill `out`, int64 [limit, 3] of tile_m, tile_n, tile_k, with the largest tiles of a block, largest first.

    Of the tiles with the same trip counts the smallest stands for all. Size is the volume tile_m*tile_n*tile_k, which
    for given SRAM is largest for the shape that moves least.

    Returns:
        How many there are: 0 if none fits.
    """
    p = params[0]
    limit = out.shape[0]
    units_m = ceil_div(m, p["cube_m"])
    units_n = ceil_div(n, p["cube_n"])
    units_k = ceil_div(k, p["unit_k"])
    num = 0
    top_m = most_units(p, min(p["cube_n"], n), p["cube_m"], units_m, m)
    while top_m > 0:
        low_m = ceil_div(units_m, ceil_div(units_m, top_m))
        top_m = low_m - 1
        tile_m = min(low_m * p["cube_m"], m)
        top_n = most_units(p, tile_m, p["cube_n"], units_n, n)
        while top_n > 0:
            low_n = ceil_div(units_n, ceil_div(units_n, top_n))
            top_n = low_n - 1
            tile_n = min(low_n * p["cube_n"], n)
            fit_k = most_units_k(p, k, tile_m, tile_n, units_k)
            if fit_k == 0:
                continue
            tile_k = min(ceil_div(units_k, ceil_div(units_k, fit_k)) * p["unit_k"], k)
            volume = _volume(tile_m, tile_n, tile_k)
            row = num
            while row > 0 and volume > _volume(out[row - 1, 0], out[row - 1, 1], out[row - 1, 2]):
                row -= 1
            if row >= limit:
                continue
            num = min(num + 1, limit)
            for later in range(num - 1, row, -1):
                for i in range(3):
                    out[later, i] = out[later - 1, i]
            out[row, 0] = tile_m
            out[row, 1] = tile_n
            out[row, 2] = tile_k
    return num


@entry_point
def count_legal_mappings(params: Any, G: int, M: int, K: int, N: int, partitions: Any) -> int:
    """Count the mappings that a naive search costs: every partition, every legal tile that fits, six loop orders."""
    p = params[0]
    count = 0
    for rank in range(partitions.shape[0]):
        P_G, P_M, P_N, P_K = partitions[rank]
        blk = block_of(p, G, M, K, N, P_G, P_M, P_N, P_K)
        units_m = ceil_div(blk.m, p["cube_m"])
        units_n = ceil_div(blk.n, p["cube_n"])
        units_k = ceil_div(blk.k, p["unit_k"])
        for um in range(1, units_m + 1):
            tile_m = min(um * p["cube_m"], blk.m)
            for un in range(1, units_n + 1):
                tile_n = min(un * p["cube_n"], blk.n)
                if sram_used_bytes(p, tile_m, tile_n, min(p["unit_k"], blk.k)) > p["sram_usable_bytes"]:
                    break
                count += 6 * most_units_k(p, blk.k, tile_m, tile_n, units_k)
    return count
