"""Numba kernels of learned corrections: what they know of an answer, the trees, and where they fade to nothing.

Shapes: records [num] of KERNEL_COST_DTYPE; rows [some], which of them are corrected; sizes [num, 4] of G, M, K, N;
nodes of NODE_DTYPE, those of all trees one after another; roots [trees], those of smooth features first; pairs
[pairs, 2], log2 of N and of K; limits [1] of LIMITS_DTYPE.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gemm_eval.jit import entry_point, kernel
from gemm_eval.models.gpu.cost_kernels import ceil_div
from gemm_eval.models.gpu.terms import Times

OTHER_KERNELS = tuple(name for name in Times._fields if name == "quantize_us")
"""Terms of other kernels than the GEMM's, which no correction touches."""
_OTHER_PLACES = np.array([Times._fields.index(name) for name in OTHER_KERNELS], np.int64)

_SHARES = (
    "launch_us", "prologue_us", "matrix_us", "dequant_us", "step_wait_us", "tile_overhead_us", "l2_us", "dram_us",
    "outside_us", "store_us", "reduction_us", "power_us",
)  # fmt: skip
_SHARE_PLACES = tuple(Times._fields.index(name) for name in _SHARES)
FEATURES = (
    "M", "N", "K", "latency", "MN", "NK", "rate", "bandwidth", "G", "a_along_m", "b_along_n", "M_alignment",
    "N_alignment", "K_alignment", "cta_m", "cta_n",
    "split_k", "tiles", "waves", "ctas", "cluster", "ctas_per_sm", "stages", "schedule", "last_wave", "tensor_busy",
    "rows_filled", "columns_filled", "sms", *(f"{name.removesuffix('_us')}_share" for name in _SHARES),
)  # fmt: skip
"""What a correction knows of an answer, in this order: `describe`."""

SMOOTH_FEATURES = FEATURES[: FEATURES.index("K_alignment") + 1]
"""The features that differ little between neighbouring sizes: sizes, layout, the latency of physics, and what loads are
as wide as, which differs only where rows of A, B or C lie off 16 bytes."""

MOST_OF_KERNEL_LOG = 0.07
"""Most that the trees of all features, which know the kernel config, add to the log factor, either way. Where physics
takes another config from one row to the next, its time hardly changes; what was learned of the two configs differs."""

LEAF = len(FEATURES)
"""Instead of a feature: the node's number is a value, and its `left` itself. Beside the features stands -inf."""
NODE_DTYPE = np.dtype([("number", np.float64), ("left", np.int32), ("feature", np.int32)])
"""A node: what its feature is at most goes `left`, the rest to the node after that."""

_LIMITS = (
    "baseline", "num_smooth", "depth", "lowest", "highest", "least_m", "most_m", "most_g", "near", "far",
    "peak_flop_per_us", "dram_bytes_per_us", "weight_bytes", "launch_us", "is_a_along_m", "is_b_along_n",
)  # fmt: skip
LIMITS_DTYPE = np.dtype([(name, np.float64) for name in _LIMITS])
"""Fields of a correction: where the trees start, how many have smooth features alone, how deep all are, the least and
most of the log factor, log2 of the sizes of its data, up to which distance from a known (N, K), in octaves, it holds in
full, and from which on not at all, and the data sheet's rates, 0 where they limit nothing, bytes of a weight, the
launch of a kernel, and the layout."""

_FADE_OCTAVES, _FADE_OCTAVES_OF_G = 1.0, 3.0  # beyond the M and G of the data; few GEMMs more take hardly longer
_MOST_ALIGNED = 8  # elements of 16 bits in the widest load; rows of narrower ones always start on 16 bytes


@kernel
def _alignment(size: int) -> float:
    """log2 of the elements of a load that rows of a size allow."""
    return math.log2(min(size & -size, _MOST_ALIGNED))


@kernel
def _other_us(record: Any) -> float:
    """Time of `OTHER_KERNELS`."""
    total = 0.0
    for place in _OTHER_PLACES:
        total += record["times_us"][place]
    return total


@kernel
def _describe(record: Any, limit: Any, G: int, M: int, K: int, N: int, x: Any) -> None:
    """Write `FEATURES` to x: of the problem, and of what the model says of its best config."""
    rows, columns, depth = math.log2(M), math.log2(N), math.log2(K)
    us = record["physics_us"] - _other_us(record)
    latency = math.log2(us)
    x[0] = rows
    x[1] = columns
    x[2] = depth
    x[3] = latency
    x[4] = rows + columns
    x[5] = columns + depth
    x[6] = rows + columns + depth + math.log2(G) - latency
    x[7] = math.log2(float(N) * K + float(M) * K + float(M) * N) + math.log2(G) - latency
    x[8] = math.log2(G)
    x[9] = limit["is_a_along_m"]
    x[10] = limit["is_b_along_n"]
    x[11] = _alignment(M) if x[9] != 0.0 else _alignment(_MOST_ALIGNED)
    x[12] = _alignment(N)
    x[13] = _alignment(K)
    cta_m, cta_n = record["cta_m"], record["cta_n"]
    x[14] = math.log2(cta_m)
    x[15] = math.log2(cta_n)
    x[16] = math.log2(record["split_k"])
    x[17] = math.log2(record["num_tiles"])
    x[18] = math.log2(record["num_waves"])
    x[19] = math.log2(record["num_ctas"])
    x[20] = math.log2(record["cluster_m"] * record["cluster_n"])
    x[21] = record["ctas_per_sm"]
    x[22] = record["num_stages"]
    x[23] = record["schedule"]
    x[24] = record["last_wave_frac"]
    x[25] = record["tensor_busy_frac"]
    x[26] = M / (ceil_div(M, cta_m) * float(cta_m))
    x[27] = N / (ceil_div(N, cta_n) * float(cta_n))
    x[28] = math.log2(record["active_sms"])
    for place in range(len(_SHARE_PLACES)):
        x[29 + place] = record["times_us"][_SHARE_PLACES[place]] / us


@entry_point
def describe(records: Any, limits: Any, sizes: Any, out: Any) -> None:
    """Write the features of all records to `out` [num, features]; limits [num] say the layout of each."""
    for row in range(len(records)):
        _describe(records[row], limits[row], sizes[row, 0], sizes[row, 1], sizes[row, 2], sizes[row, 3], out[row])


@kernel
def _sum_of_trees(nodes: Any, roots: Any, first: int, stop: int, depth: int, x: Any) -> float:
    """Return the sum over trees; each is walked to the same depth, so that no branch is guessed and walks overlap."""
    total = 0.0
    for tree in range(first, stop):
        place = roots[tree]
        for _ in range(depth):
            node = nodes[place]
            place = node["left"] + (x[node["feature"]] > node["number"])
        total += nodes[place]["number"]
    return total


@kernel
def _log_factor(nodes: Any, roots: Any, x: Any, limit: Any) -> float:
    """Return what trees of smooth features say, and what those that know the kernel add within `MOST_OF_KERNEL_LOG`."""
    num_smooth, depth = int(limit["num_smooth"]), int(limit["depth"])
    smooth = _sum_of_trees(nodes, roots, 0, num_smooth, depth, x)
    of_kernel = _sum_of_trees(nodes, roots, num_smooth, len(roots), depth, x)
    return float(limit["baseline"]) + smooth + min(MOST_OF_KERNEL_LOG, max(-MOST_OF_KERNEL_LOG, of_kernel))


@kernel
def _trust(pairs: Any, limit: Any, x: Any, G: int) -> float:
    """1 in the region of the data, falling to 0 outside of it."""
    beyond = max(limit["least_m"] - x[0], x[0] - limit["most_m"]) / _FADE_OCTAVES
    beyond = max(beyond, (math.log2(G) - limit["most_g"]) / _FADE_OCTAVES_OF_G)
    trust = min(1.0, 1.0 - beyond)
    if trust <= 0.0:
        return 0.0
    nearest = np.inf
    for place in range(len(pairs)):
        across, along = x[1] - pairs[place, 0], x[2] - pairs[place, 1]
        nearest = min(nearest, across * across + along * along)
    return float(trust * max(0.0, min(1.0, (limit["far"] - math.sqrt(nearest)) / (limit["far"] - limit["near"]))))


@kernel
def _floor_us(limit: Any, G: int, M: int, K: int, N: int) -> float:
    """Return what no kernel is faster than, by the data sheet."""
    floor = float(limit["launch_us"])
    if limit["peak_flop_per_us"] > 0.0:
        floor = max(floor, 2.0 * G * M * K * N / limit["peak_flop_per_us"])
    if limit["dram_bytes_per_us"] > 0.0:
        floor = max(floor, float(limit["weight_bytes"]) * G * K * N / limit["dram_bytes_per_us"])
    return float(floor)


@kernel
def _write(record: Any, factor: float, ceiling_us: float, limit: Any, G: int, M: int, K: int, N: int) -> None:
    """Write a factor and the corrected latency to a record, above the data sheet's floor and below a ceiling."""
    other_us = _other_us(record)
    us = record["physics_us"] - other_us
    factor = max(factor, min(1.0, _floor_us(limit, G, M, K, N) / us))
    factor = min(factor, max(0.0, ceiling_us - other_us) / us)
    record["correction_factor"] = factor
    record["latency_us"] = other_us + us * factor


@kernel
def correct_record(
    record: Any, G: int, M: int, K: int, N: int, nodes: Any, roots: Any, pairs: Any, limit: Any, x: Any
) -> None:  # fmt: skip
    """Write `correction_factor` and the corrected latency to a record; `x` is `room_for_features`."""
    _describe(record, limit, G, M, K, N, x)
    trust = _trust(pairs, limit, x, G)
    if trust > 0.0:
        wanted = min(limit["highest"], max(limit["lowest"], _log_factor(nodes, roots, x, limit)))
        _write(record, math.exp(trust * wanted), np.inf, limit, G, M, K, N)


@kernel
def room_for_features() -> Any:
    """Return room for the features of a record, and what stands beside them."""
    x = np.empty(len(FEATURES) + 1)
    x[LEAF] = -np.inf
    return x


@entry_point
def correct(records: Any, rows: Any, sizes: Any, nodes: Any, roots: Any, pairs: Any, limits: Any) -> None:
    """Write `correction_factor` and the corrected latency to records of best configs; those without an SM stay."""
    x = room_for_features()
    for index in range(len(rows)):
        row = rows[index]
        if records[row]["active_sms"] > 0:
            G, M, K, N = sizes[row, 0], sizes[row, 1], sizes[row, 2], sizes[row, 3]
            correct_record(records[row], G, M, K, N, nodes, roots, pairs, limits[0], x)


@entry_point
def carry(records: Any, rows: Any, sizes: Any, factors: Any, ceilings_us: Any, limits: Any) -> None:
    """Write factors [rows] of the same GEMMs elsewhere to records, and no latency above `ceilings_us` [rows]."""
    for index in range(len(rows)):
        row = rows[index]
        is_changed = factors[index] != 1.0 or ceilings_us[index] < records[row]["latency_us"]
        if is_changed and records[row]["active_sms"] > 0:
            G, M, K, N = sizes[row, 0], sizes[row, 1], sizes[row, 2], sizes[row, 3]
            _write(records[row], factors[index], ceilings_us[index], limits[0], G, M, K, N)


@entry_point
def correct_rows(x: Any, nodes: Any, roots: Any, sites: Any, limits: Any, out: Any) -> None:
    """Write to `out` [rows, 3] log factors, how far they are trusted, and octaves to the nearest site.

    x [rows, features and -inf], sizes first; sites [sites, sizes]; limits [6]: baseline, depth, least and most of the
    log factor, octaves up to which it holds in full, and from which on not at all.
    """
    for row in range(len(x)):
        log_factor = limits[0] + _sum_of_trees(nodes, roots, 0, len(roots), int(limits[1]), x[row])
        nearest = np.inf
        for site in range(len(sites)):
            total = 0.0
            for size in range(sites.shape[1]):
                away = x[row, size] - sites[site, size]
                total += away * away
            nearest = min(nearest, total)
        octaves = math.sqrt(nearest)
        out[row, 0] = min(limits[3], max(limits[2], log_factor))
        out[row, 1] = max(0.0, min(1.0, (limits[5] - octaves) / (limits[5] - limits[4])))
        out[row, 2] = octaves
