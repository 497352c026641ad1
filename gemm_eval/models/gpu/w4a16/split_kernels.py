"""Numba kernels of the ways in which our W4A16 kernels may cut K."""

from __future__ import annotations

from typing import Any

from gemm_eval.jit import entry_point, kernel
from gemm_eval.models.gpu.cost_kernels import ProblemTerms, ceil_div
from gemm_eval.models.gpu.w4a16.family_kernels import (
    GROUPED_FAMILIES,
    MULTISTAGE_FAMILIES,
    SM90_CLUSTER,
    STREAMING_FAMILIES,
)
from gemm_eval.models.gpu.w4a16.shared_kernels import (
    BLOCK,
    CUT_UNITS,
    MAX_CUT_WAVES,
    MOST_PARTS,
    UNIT_K,
    tiles_of_rows,
)
from gemm_eval.models.gpu.w4a16.streaming_kernels import parts_of_groups

__all__ = ["MAX_SPLITS", "MAX_STREAMING_TOKENS", "list_splits", "splits_of_row"]

MAX_STREAMING_TOKENS = 64
_MAX_STREAMING_CUTS = 5
_MAX_WAVES_OF_SPLIT, _MAX_SPLIT = 4, 32  # of `w4a16_sm80`
MAX_SPLITS = 9
"""Most ways to cut K that a kernel has for one GEMM, the whole K among them."""


@kernel
def _add_cut(cuts: Any, num: int, parts: int) -> int:
    """Insert `parts` into the sorted cuts[1:num], once; cuts[0] is the whole K."""
    place = num
    while place > 1 and cuts[place - 1] >= parts:
        place -= 1
    if place < num and cuts[place] == parts:
        return num
    for at in range(num, place, -1):
        cuts[at] = cuts[at - 1]
    cuts[place] = parts
    return num + 1


@kernel
def list_splits(p: Any, row: Any, t: ProblemTerms, splits: Any) -> int:
    """Write the ways to cut K that a kernel has for these sizes, at most `MAX_SPLITS`, to `splits`; returns how many.

    0: the kernel cannot run the GEMM. These are the rules of `gemm_eval.kernels`; tests compare the two.
    """
    M, K, N = t.M, t.K, t.N
    cta_m, cta_n = row["cta_m"], row["cta_n"]
    is_grouped = row["family"] in GROUPED_FAMILIES
    if (is_grouped and t.G == 1) or (t.is_grouped and not is_grouped):
        return 0
    tiles = (tiles_of_rows(t, cta_m) if is_grouped else ceil_div(M, cta_m)) * ceil_div(N, cta_n)
    num_sms = p["num_sms"]
    expected = row["expected_ctas"]
    splits[0] = 1
    num = 1
    if row["family"] in STREAMING_FAMILIES:
        if M > MAX_STREAMING_TOKENS:
            return 0
        if is_grouped:
            splits[num] = 0
            return num + 1 if parts_of_groups(row, tiles_of_rows(t, cta_m), K, N) > 1 else num
        teams, blocks = row["cta_k"] // BLOCK, ceil_div(K, BLOCK)
        for at_once in range(2):
            for waves in range(1, 5):
                ctas = num_sms * waves * (expected if at_once else 1)
                parts = min(ctas // tiles, blocks // teams)
                if parts > 1:
                    steps = ceil_div(ceil_div(blocks, parts), teams)
                    parts = ceil_div(blocks, steps * teams)
                    if parts > 1:
                        num = _add_cut(splits, num, parts)
        several = num - 1
        if several > _MAX_STREAMING_CUTS:  # first, last and evenly between
            for at in range(_MAX_STREAMING_CUTS):
                splits[1 + at] = splits[1 + at * (several - 1) // (_MAX_STREAMING_CUTS - 1)]
            num = 1 + _MAX_STREAMING_CUTS
        return num
    units = ceil_div(K, UNIT_K)
    if is_grouped:
        slots = row["grid_cap"]
        ctas = min(slots, tiles * units, tiles * MOST_PARTS)
        if ceil_div(tiles * units, ctas) + CUT_UNITS >= ceil_div(tiles, slots) * units:
            return num
        splits[num] = 0
        return num + 1 if tiles <= MAX_CUT_WAVES * slots else num
    if row["family"] in MULTISTAGE_FAMILIES:
        if units == 1 or tiles > _MAX_WAVES_OF_SPLIT * expected * num_sms:
            return num
        for ctas in (1, max(1, expected // 2), expected, 2 * expected):
            parts = min(ctas * num_sms // tiles, units, _MAX_SPLIT)
            if parts > 1:
                num = _add_cut(splits, num, parts)
        splits[num] = 0
        return num + 1
    if row["family"] == SM90_CLUSTER:
        splits[0] = row["cluster_k"]
        return 1 if units >= splits[0] and tiles * splits[0] <= row["expected_cap"] else 0
    if ceil_div(M, cta_m) < row["cluster_m"] or ceil_div(N, cta_n) < row["cluster_n"]:
        return 0
    tiles = ceil_div(M, cta_m * row["cluster_m"]) * ceil_div(N, cta_n * row["cluster_n"])
    slots = row["expected_cap"] // (row["cluster_m"] * row["cluster_n"])
    for parts in (2, 3, 4, 6, 8, 12, 16):
        if parts <= units and tiles * parts <= 2 * slots:
            splits[num] = parts
            num += 1
    if tiles % slots != 0 and units > 1:
        splits[num] = 0
        num += 1
    return num


@entry_point
def splits_of_row(
    params: Any, candidates: Any, index: int, K: int, N: int, group_rows: Any, group_counts: Any, is_grouped: bool,
    splits: Any,
) -> int:  # fmt: skip
    """`list_splits` of one of the candidates, for groups of rows, the most first, or a batch."""
    G = rows = 0
    for i in range(len(group_rows)):
        G += group_counts[i]
        rows += group_counts[i] * group_rows[i]
    M = group_rows[0]
    t = ProblemTerms(
        G, M, K, N, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, rows, group_rows, group_counts,
        is_grouped,
    )  # fmt: skip
    return int(list_splits(params[0], candidates[index], t, splits))
