"""Numba kernels that take a mapping from somewhere else: which rule it breaks, and what it costs."""

from __future__ import annotations

from typing import Any

from gemm_eval.jit import entry_point, kernel
from gemm_eval.models.multicore.cost_kernels import block_of, evaluate_into, sram_used_bytes

RULES = (
    "num_cores", "reduction",
    "tile_m_block", "tile_m_multiple", "tile_n_block", "tile_n_multiple", "tile_k_block", "tile_k_multiple",
    "sram",
)  # fmt: skip
"""Rules of a legal mapping, in the order in which they are checked."""
_NUM_CORES, _REDUCTION, _TILE_M, _TILE_N, _TILE_K, _SRAM = 0, 1, 2, 4, 6, 8
_KEEPS_ALL = -1
_NUM_ORDERS = 6


@kernel
def _broken_tile_rule(size: int, unit: int, block: int, first: int) -> int:
    if size > block:
        return first
    return first + 1 if size % unit != 0 and size != block else _KEEPS_ALL


@entry_point
def find_broken_rule(
    params: Any, G: int, M: int, K: int, N: int, P_G: int, P_M: int, P_N: int, P_K: int,
    tile_m: int, tile_n: int, tile_k: int,
) -> int:  # fmt: skip
    """Which of `RULES` a mapping of numbers >= 1 breaks first, or -1; `params` is [1] of PARAMS_DTYPE."""
    p = params[0]
    used = P_G
    for count in (P_M, P_N, P_K):  # one after another: the product of all may not fit into 63 bits
        if max(used, count) > p["num_cores"]:
            return _NUM_CORES
        used *= count
    if used > p["num_cores"]:
        return _NUM_CORES
    blk = block_of(p, G, M, K, N, P_G, P_M, P_N, P_K)
    if blk.E_K > 1 and p["reduction"] == 0:
        return _REDUCTION
    broken = _broken_tile_rule(tile_m, p["cube_m"], blk.m, _TILE_M)
    if broken == _KEEPS_ALL:
        broken = _broken_tile_rule(tile_n, p["cube_n"], blk.n, _TILE_N)
    if broken == _KEEPS_ALL:
        broken = _broken_tile_rule(tile_k, p["unit_k"], blk.k, _TILE_K)
    if broken == _KEEPS_ALL and sram_used_bytes(p, tile_m, tile_n, tile_k) > p["sram_usable_bytes"]:
        broken = _SRAM
    return broken


@kernel
def is_replayable(params: Any, G: int, M: int, K: int, N: int, row: Any) -> bool:
    """Whether a record of COST_DTYPE, whatever numbers it holds, has a legal mapping; `params` is [1]."""
    P_G, P_M, P_N, P_K = row["P_G"], row["P_M"], row["P_N"], row["P_K"]
    tile_m, tile_n, tile_k, order = row["tile_m"], row["tile_n"], row["tile_k"], row["loop_order"]
    if min(P_G, P_M, P_N, P_K, tile_m, tile_n, tile_k) < 1 or order < 0 or order >= _NUM_ORDERS:
        return False
    broken: int = find_broken_rule(params, G, M, K, N, P_G, P_M, P_N, P_K, tile_m, tile_n, tile_k)
    return broken == _KEEPS_ALL


@entry_point
def replay_range(params: Any, type_of: Any, sizes: Any, start: int, stop: int, stored: Any, out: Any) -> None:
    """Evaluate the mappings of the records start..stop-1 of `stored`, whatever numbers they hold.

    Shapes: params [num_types] of PARAMS_DTYPE; type_of [num]; sizes [num, 4] of G, M, K, N; stored [num] of COST_DTYPE;
    out [num] of COST_DTYPE, zeros: they stay where a mapping is illegal.
    """
    for i in range(start, stop):
        t = type_of[i]
        G, M, K, N = sizes[i, 0], sizes[i, 1], sizes[i, 2], sizes[i, 3]
        row = stored[i]
        if is_replayable(params[t : t + 1], G, M, K, N, row):
            evaluate_into(
                params[t], G, M, K, N, row["P_G"], row["P_M"], row["P_N"], row["P_K"],
                row["tile_m"], row["tile_n"], row["tile_k"], row["loop_order"], out[i],
            )  # fmt: skip
