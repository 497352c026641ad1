"""Numba kernels of learned corrections: what they know of an answer, the trees, and where they fade to nothing.

Shapes: records [num] of KERNEL_COST_DTYPE; rows [some], which of them are corrected; sizes [num, 4] of G, M, K, N;
nodes of NODE_DTYPE, those of all trees one after another; roots [trees], those of smooth features first; sites
[sites, sizes], log2 of the sizes of the data, of GEMMs N and K; limits [1] of LIMITS_DTYPE.
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
    "N_alignment", "K_alignment", "version", "cta_m", "cta_n",
    "split_k", "tiles", "waves", "ctas", "cluster", "ctas_per_sm", "stages", "schedule", "last_wave", "tensor_busy",
    "rows_filled", "columns_filled", "sms", *(f"{name.removesuffix('_us')}_share" for name in _SHARES),
)  # fmt: skip
"""What a correction knows of an answer, in this order: `describe`."""

SMOOTH_FEATURES = FEATURES[: FEATURES.index("version") + 1]
"""The features that differ little between neighbouring sizes: sizes, layout, the latency of physics, what loads are as
wide as, which differs only where rows of A, B or C lie off 16 bytes, and the version of the library."""

NO_VERSION = -1
"""In the place of a version's number, the place in `Library.versions`: none is named."""

MOST_OF_KERNEL_LOG = 0.07
"""Most that the trees of all features, which know the kernel config, add to the log factor, either way. Where physics
takes another config from one row to the next, its time hardly changes; what was learned of the two configs differs."""

LEAF = len(FEATURES)
"""Instead of a feature: the node's number is a value, and its `left` itself. Beside the features stands -inf."""
NODE_DTYPE = np.dtype([("number", np.float64), ("left", np.uint32), ("feature", np.uint32)])
"""A node: what its feature is at most goes `left`, the rest to the node after that. Numbers without a sign: no look-up
asks whether one counts from the end."""

_LIMITS = (
    "baseline", "num_smooth", "lowest", "highest", "near", "far", "sort_size", "share", "carried_log", "latency",
    "max_latency_log2", "fall_per_octave", "least_m", "most_m", "most_g", "least_latency", "peak_flop_per_us",
    "dram_bytes_per_us", "weight_bytes", "launch_us", "is_a_along_m", "is_b_along_n", "spared_clock", "version",
)  # fmt: skip
LIMITS_DTYPE = np.dtype([(name, np.float64) for name in _LIMITS])
"""Fields of a correction: where the trees start, how many have smooth features alone, the least and most of the log
factor, up to which distance from a known site, in octaves, it holds in full, and from which on not at all, by which
size sites are in order, the share of it that a GPU takes, and what taking it from another adds to logs of intervals.
The next three are a `Fall`, 0 of GEMMs: the column of log2(latency), its most, and what an octave takes off the trees'
sum.

Of GEMMs alone: log2 of the sizes and of the least latency of its data, the data sheet's rates, 0 where they limit
nothing, bytes of a weight, the launch of a kernel, the layout, the share of the fall of the clock under tensor load
that this GPU is spared and the one it was learned on is not, and the number of the library's version."""

_LEVELS = 8  # of the trees of GEMMs
_LATENCY, _TENSOR_BUSY = FEATURES.index("latency"), FEATURES.index("tensor_busy")
_FADE_OCTAVES, _FADE_OCTAVES_OF_G = 1.0, 3.0  # beyond M, latency and G of the data; few GEMMs more take hardly longer
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
    x[14] = limit["version"]
    cta_m, cta_n = record["cta_m"], record["cta_n"]
    x[15] = math.log2(cta_m)
    x[16] = math.log2(cta_n)
    x[17] = math.log2(record["split_k"])
    x[18] = math.log2(record["num_tiles"])
    x[19] = math.log2(record["num_waves"])
    x[20] = math.log2(record["num_ctas"])
    x[21] = math.log2(record["cluster_m"] * record["cluster_n"])
    x[22] = record["ctas_per_sm"]
    x[23] = record["num_stages"]
    x[24] = record["schedule"]
    x[25] = record["last_wave_frac"]
    x[_TENSOR_BUSY] = record["tensor_busy_frac"]
    x[27] = M / (ceil_div(M, cta_m) * float(cta_m))
    x[28] = N / (ceil_div(N, cta_n) * float(cta_n))
    x[29] = math.log2(record["active_sms"])
    for place in range(len(_SHARE_PLACES)):
        x[30 + place] = record["times_us"][_SHARE_PLACES[place]] / us


@entry_point
def describe(records: Any, limits: Any, sizes: Any, out: Any) -> None:
    """Write the features of all records to `out` [num, features]; limits [num] say the layout of each."""
    for row in range(len(records)):
        _describe(records[row], limits[row], sizes[row, 0], sizes[row, 1], sizes[row, 2], sizes[row, 3], out[row])


@kernel
def _log_factor(nodes: Any, roots: Any, x: Any, limit: Any) -> float:
    """Return what trees of smooth features say, and what those that know the kernel add within `MOST_OF_KERNEL_LOG`.

    All trees are walked side by side, a node each, so that no step waits for another; a leaf leads to itself. Deep
    trees go on alone.
    """
    leaf, places = len(x) - 1, roots.copy()
    for _ in range(_LEVELS):
        for tree in range(len(roots)):
            node = nodes[places[tree]]
            places[tree] = node["left"] + (x[node["feature"]] > node["number"])
    for tree in range(len(roots)):
        node = nodes[places[tree]]
        while node["feature"] != leaf:
            places[tree] = node["left"] + (x[node["feature"]] > node["number"])
            node = nodes[places[tree]]
    smooth, of_kernel, num_smooth = 0.0, 0.0, int(limit["num_smooth"])
    for tree in range(num_smooth):
        smooth += nodes[places[tree]]["number"]
    for tree in range(num_smooth, len(roots)):
        of_kernel += nodes[places[tree]]["number"]
    total = float(limit["baseline"]) + smooth + min(MOST_OF_KERNEL_LOG, max(-MOST_OF_KERNEL_LOG, of_kernel))
    if limit["fall_per_octave"] > 0.0:
        total -= limit["fall_per_octave"] * min(x[int(limit["latency"])], limit["max_latency_log2"])
    return float(min(limit["highest"], max(limit["lowest"], total)))


@kernel
def _square_of(site: Any, x: Any, first: int) -> float:
    total = 0.0
    for size in range(len(site)):
        away = x[first + size] - site[size]
        total += away * away
    return total


@kernel
def _octaves(sites: Any, limit: Any, x: Any, first: int, enough: float) -> float:
    """Return the distance of x, whose sizes start at `first`, to the nearest site, or `far` where that is nearer.

    Sites are in the order of one of the sizes: those next to x there are looked at first, up to one within `enough`.
    """
    sort_size = int(limit["sort_size"])
    at, start, stop, nearest = x[first + sort_size], 0, len(sites), limit["far"] ** 2
    while start < stop:
        middle = (start + stop) // 2
        if sites[middle, sort_size] < at:
            start = middle + 1
        else:
            stop = middle
    for step in range(len(sites)):
        up, down = start + step, start - 1 - step
        above = sites[up, sort_size] - at if up < len(sites) else np.inf
        below = at - sites[down, sort_size] if down >= 0 else np.inf
        if min(above, below) ** 2 >= nearest or nearest <= enough * enough:
            break
        if up < len(sites):
            nearest = min(nearest, _square_of(sites[up], x, first))
        if down >= 0:
            nearest = min(nearest, _square_of(sites[down], x, first))
    return float(math.sqrt(nearest))


@kernel
def _faded(limit: Any, octaves: float) -> float:
    """Return how far a correction holds at a distance from its data, 0 to 1."""
    return float(max(0.0, min(1.0, (limit["far"] - octaves) / (limit["far"] - limit["near"]))))


@kernel
def _trust(pairs: Any, limit: Any, x: Any, G: int) -> float:
    """1 in the region of the data, falling to 0 outside of it."""
    beyond = max(limit["least_m"] - x[0], x[0] - limit["most_m"]) / _FADE_OCTAVES
    beyond = max(beyond, (math.log2(G) - limit["most_g"]) / _FADE_OCTAVES_OF_G)
    beyond = max(beyond, (limit["least_latency"] - x[_LATENCY]) / _FADE_OCTAVES)
    trust = min(1.0, 1.0 - beyond)
    return 0.0 if trust <= 0.0 else float(trust * _faded(limit, _octaves(pairs, limit, x, 1, limit["near"])))


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
def _write(
    record: Any, factor: float, trust: float, ceiling_us: float, limit: Any, G: int, M: int, K: int, N: int
) -> None:
    """Write a factor, its trust and the corrected latency to a record, above the floor and below a ceiling."""
    other_us = _other_us(record)
    us = record["physics_us"] - other_us
    factor = max(factor, min(1.0, _floor_us(limit, G, M, K, N) / us))
    factor = min(factor, max(0.0, ceiling_us - other_us) / us)
    record["correction_factor"], record["correction_trust"] = factor, trust
    record["latency_us"] = other_us + us * factor


@kernel
def correct_record(
    record: Any, G: int, M: int, K: int, N: int, nodes: Any, roots: Any, pairs: Any, limit: Any, x: Any
) -> None:  # fmt: skip
    """Write `correction_factor` and the corrected latency to a record; `x` is `room_for_features`."""
    _describe(record, limit, G, M, K, N, x)
    trust = _trust(pairs, limit, x, G)
    if trust > 0.0:
        wanted = _log_factor(nodes, roots, x, limit)
        wanted *= 1.0 - limit["spared_clock"] * x[_TENSOR_BUSY] * x[_TENSOR_BUSY]  # as the clock falls
        _write(record, math.exp(trust * wanted), trust, np.inf, limit, G, M, K, N)


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
def carry(records: Any, rows: Any, sizes: Any, factors: Any, trusts: Any, ceilings_us: Any, limits: Any) -> None:
    """Write factors and trusts [rows] of the same GEMMs elsewhere to records, no latency above `ceilings_us` [rows]."""
    for index in range(len(rows)):
        row = rows[index]
        is_changed = factors[index] != 1.0 or ceilings_us[index] < records[row]["latency_us"]
        if is_changed and records[row]["active_sms"] > 0:
            G, M, K, N = sizes[row, 0], sizes[row, 1], sizes[row, 2], sizes[row, 3]
            _write(records[row], factors[index], trusts[index], ceilings_us[index], limits[0], G, M, K, N)


@entry_point
def interval_ends(regime: int, trust: float, logs: Any) -> tuple[float, float]:
    """Return the factors to both ends of the interval of a GEMM.

    logs [regimes, 4]: of corrected answers, low and high, and of the terms alone, with their signs; where a correction
    fades, intervals go over to those of the terms.
    """
    low = logs[regime, 0] * trust + logs[regime, 2] * (1.0 - trust)
    high = logs[regime, 1] * trust + logs[regime, 3] * (1.0 - trust)
    return math.exp(low), math.exp(high)


@entry_point
def interval_rows(regimes: Any, trusts: Any, logs: Any, out: Any) -> None:
    """Write `interval_ends` of GEMMs [rows] to `out` [rows, 2]."""
    for row in range(len(regimes)):
        out[row, 0], out[row, 1] = interval_ends(regimes[row], trusts[row], logs)


@kernel
def _spread_of(spreads: Any, us: float, octaves: float) -> int:
    """Return the first spread that holds for a latency and a distance; the last holds for all."""
    for row in range(len(spreads) - 1):
        if us <= spreads[row, 0] and octaves <= spreads[row, 1]:
            return row
    return len(spreads) - 1


@kernel
def _answer(
    x: Any, physics_us: float, nodes: Any, roots: Any, sites: Any, limit: Any, spreads: Any, physics_spreads: Any,
    out: Any,
) -> None:  # fmt: skip
    """Write an answer to `out` [4]; see `answer_rows`."""
    octaves, trust, factor = limit["far"], 0.0, 1.0
    if limit["share"] > 0.0:
        octaves = _octaves(sites, limit, x, 0, min(limit["near"], spreads[0, 1]) if len(spreads) > 1 else 0.0)
        trust = limit["share"] * _faded(limit, octaves)
    if trust > 0.0:
        factor = math.exp(trust * _log_factor(nodes, roots, x, limit))
    own = _spread_of(spreads, physics_us * factor, octaves)
    of_terms = _spread_of(physics_spreads, physics_us, 0.0)
    out[0] = factor
    for end in (2, 3):
        log = spreads[own, end] * trust + physics_spreads[of_terms, end] * (1.0 - trust)
        log = math.hypot(log, limit["carried_log"])
        out[end - 1] = math.exp(-log if end == _LOW else log)
    out[3] = octaves


_LOW = 2  # column of spreads


@entry_point
def answer_rows(
    x: Any, physics_us: Any, nodes: Any, roots: Any, sites: Any, limits: Any, spreads: Any, physics_spreads: Any,
    out: Any,
) -> None:  # fmt: skip
    """Write to `out` [rows, 4] factors of latencies, those to both ends of intervals, and octaves to a site.

    x [rows, features and -inf], sizes first; physics_us [rows]; spreads [spreads, 4], of corrected answers and of the
    terms alone: latency and distance up to which each holds, and the logs of its ends without signs.
    """
    for row in range(len(x)):
        _answer(x[row], physics_us[row], nodes, roots, sites, limits[0], spreads, physics_spreads, out[row])


@entry_point
def describe_memory_bound(sizes: Any, latency_us: Any, out: Any) -> None:
    """Write `MEMORY_BOUND_FEATURES` to `out` [rows, features and -inf], given the first six: sizes [rows, 6]."""
    for row in range(len(out)):
        x, num = out[row], max(sizes[row, 2], 1.0)
        for place in range(6):  # number by number: a row takes a second to compile
            x[place] = sizes[row, place]
        x[6], x[7], x[8] = x[3] / num, (x[0] + x[1]) / num, latency_us[row]
        for place in range(9):
            x[place] = math.log2(max(x[place], _LEAST))
        x[9] = -np.inf


MEMORY_BOUND_FEATURES = (
    "read_bytes", "write_bytes", "num_rows", "threads", "trips", "loads", "row_threads", "row_bytes", "latency"
)  # fmt: skip
"""What a correction knows of a memory-bound kernel, in this order, all in log2; the first three are sizes."""

_LEAST = 1e-3  # of what a logarithm is taken of


@entry_point
def answer_attention(
    table: Any, physics_us: Any, nodes: Any, roots: Any, sites: Any, limits: Any, spreads: Any, physics_spreads: Any,
    out: Any,
) -> None:  # fmt: skip
    """Write answers as of `answer_rows` on problems to `out` [rows, 4 and features and -inf].

    `table` is that of `AttentionRows`. After each answer stand its `ATTENTION_FEATURES`.
    """
    for row in range(len(out)):
        x, us = out[row, 4:], physics_us[row]
        batch, q_len, kv_len, num_heads = table[0, row], table[1, row], table[2, row], table[3, row]
        num_kv_heads, head_dim, value_dim, window = table[4, row], table[5, row], table[6, row], table[7, row]
        is_causal, q_bits, kv_bits, is_latent = table[8, row], table[9, row], table[10, row], table[11, row]
        keys = min(kv_len, window + q_len - 1.0)
        elements = head_dim + value_dim * (1.0 - is_latent)
        x[0], x[1] = math.log2(head_dim), math.log2(value_dim)
        x[2], x[3] = math.log2(q_bits), math.log2(kv_bits)
        x[4] = 0.0 if is_latent > 0.0 else math.log2(num_heads / num_kv_heads)
        x[5] = math.log2(window) if window < kv_len else _NO_WINDOW_LOG2
        x[6] = is_causal
        x[7], x[8], x[9] = math.log2(us), math.log2(q_len), math.log2(kv_len)
        x[10], x[11] = math.log2(batch * num_heads), math.log2(batch * num_kv_heads)
        x[12] = math.log2(batch * keys * num_kv_heads * elements * kv_bits / 8.0)
        x[13] = -np.inf
        _answer(x, us, nodes, roots, sites, limits[0], spreads, physics_spreads, out[row, :4])


INCREASING_ATTENTION = ("latency", "q_len", "kv_len", "heads", "kv_heads", "kv_bytes")
"""Features with which a correction never falls. Longer or more sequences, or more heads of the same groups, change
these alone. With MLA all heads share latents, so the group is no feature there."""

ATTENTION_FEATURES = (
    "head_dim", "value_dim", "q_bits", "kv_bits", "group", "window", "is_causal", *INCREASING_ATTENTION
)  # fmt: skip
"""Features of a problem, in this order; the first five also give its distance from those that were timed."""

_NO_WINDOW_LOG2 = 20.0  # of positions


@entry_point
def answer_layers(
    work: Any, compute_log2: float, weight_log2: float, is_warm: bool, physics_us: Any, nodes: Any, roots: Any,
    sites: Any, limits: Any, spreads: Any, physics_spreads: Any, out: Any,
) -> None:  # fmt: skip
    """Write answers as of `answer_rows` on layers of experts to `out` [rows, 4 and features and -inf].

    After each answer stand its `LAYER_FEATURES`. No factor takes a time below the data sheet's.

    Args:
        work: columns [rows] of `MoeWork`, up to `gated`.
        compute_log2, weight_log2: log2 of us at the data sheet's rates: a product of a row, reading a weight.
        is_warm: L2 may hold the weights.
    """
    for row in range(len(out)):
        x, us = out[row, 4:], physics_us[row]
        for place in range(9):
            x[place] = math.log2(max(work[place][row], 1.0 if place < _NUM_LAYER_SIZES else _LEAST_ROWS))
        rows, active, most = x[6], x[7], x[8]
        columns = x[1] + x[2] + math.log2(2.0 + work[9][row])
        x[8], x[9], x[10], x[11] = active - x[4], rows - active, most, most - (rows - active)
        x[12] = math.log2(max(us, _LEAST_US))
        x[13], x[14] = x[12] - rows - columns - compute_log2, x[12] - active - columns - weight_log2
        x[15] = -np.inf
        _answer(x, us, nodes, roots, sites, limits[0], spreads, physics_spreads, out[row, :4])
        room = x[13] if is_warm else min(x[13], x[14])
        out[row, 0] = max(out[row, 0], min(1.0, 2.0**-room)) if work[6][row] > 0.0 else 1.0


_LAYER_SIZES = ("num_tokens", "hidden", "inter", "num_experts", "num_local_experts", "topk")
_NUM_LAYER_SIZES = len(_LAYER_SIZES)
LAYER_FEATURES = (
    *_LAYER_SIZES, "local_rows", "num_active", "active", "mean_rows", "most_rows", "imbalance", "latency",
    "above_compute", "above_weights",
)  # fmt: skip
"""What a correction knows of a layer of experts, in this order, in log2: sizes, loads, and its latency by the terms,
also beside rooflines. The first six also give its distance from those that were timed."""

_LEAST_US, _LEAST_ROWS = 1e-2, 1e-1  # so that logarithms are finite


CHIP_FEATURES = ("G", "M", "N", "K", "MN", "NK", "M_alignment", "K_alignment", "N_alignment")
"""What a correction knows of a GEMM on a multi-core chip, in this order."""

_MOST_CHIP_ALIGNED = 4096  # elements: powers of two up to here camp on memory channels


@kernel
def _describe_sizes(G: int, M: int, K: int, N: int, x: Any) -> None:
    x[0] = math.log2(G)
    x[1] = math.log2(M)
    x[2] = math.log2(N)
    x[3] = math.log2(K)
    x[4] = x[1] + x[2]
    x[5] = x[2] + x[3]
    x[6] = math.log2(min(M & -M, _MOST_CHIP_ALIGNED))
    x[7] = math.log2(min(K & -K, _MOST_CHIP_ALIGNED))
    x[8] = math.log2(min(N & -N, _MOST_CHIP_ALIGNED))


@entry_point
def describe_sizes(sizes: Any, out: Any) -> None:
    """Write `CHIP_FEATURES` of GEMMs, sizes [rows, 4] of G, M, K, N, to `out` [rows, features]."""
    for row in range(len(sizes)):
        _describe_sizes(sizes[row, 0], sizes[row, 1], sizes[row, 2], sizes[row, 3], out[row])


@entry_point
def correct_sizes(
    records: Any, sizes: Any, peak_flop_per_us: float, nodes: Any, roots: Any, sites: Any, limits: Any, spreads: Any,
    physics_spreads: Any,
) -> None:  # fmt: skip
    """Write corrected latencies, no faster than the peak, and intervals to records [rows] of a multi-core chip."""
    x, answer = np.empty(len(CHIP_FEATURES) + 1), np.empty(4)
    x[len(CHIP_FEATURES)] = -np.inf
    for row in range(len(records)):
        record, G, M, K, N = records[row], sizes[row, 0], sizes[row, 1], sizes[row, 2], sizes[row, 3]
        _describe_sizes(G, M, K, N, x)
        physics_us = record["latency_us"]
        _answer(x, physics_us, nodes, roots, sites, limits[0], spreads, physics_spreads, answer)
        least_us = 2.0 * G * M * K * N / peak_flop_per_us
        record["latency_us"] = max(physics_us * answer[0], min(physics_us, least_us))
        record["correction_us"] = record["latency_us"] - physics_us
        record["low_frac"], record["high_frac"] = answer[1], answer[2]
