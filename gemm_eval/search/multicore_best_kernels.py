"""Numba kernels that keep the best candidates of a search, compared by the whole key of MODEL.md, "Choice"."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gemm_eval.jit import kernel

__all__ = ["KEY_INTS", "Best", "may_enter", "new_best", "offer", "worst_bytes_of", "worst_us_of"]

# Columns of a key: the two floats of `keys_f`, then the integers of `keys_i`, in the order of comparison.
KEY_INTS = 8  # active_cores, visits, sram_used_bytes, partition rank, loop order, tile_m, tile_n, tile_k


class Best(NamedTuple):
    """The best `limit` candidates so far, best first."""

    keys_f: Any  # float64 [limit, 2]: latency_us, busiest_core_bytes
    keys_i: Any  # int64 [limit, KEY_INTS]
    num: Any  # int64 [1]: how many rows are filled
    key: Any  # int64 [KEY_INTS]: the candidate at hand
    counters: Any  # int64: what the search counts


@kernel
def worst_us_of(best: Best) -> float:
    """Latency that a candidate must not exceed to be among the best."""
    last = best.keys_f.shape[0] - 1
    return best.keys_f[last, 0] if best.num[0] > last else np.inf


@kernel
def worst_bytes_of(best: Best) -> float:
    """Bytes that a candidate of the latency of the last must not exceed to be among the best."""
    return float(best.keys_f[best.keys_f.shape[0] - 1, 1])


@kernel
def may_enter(best: Best, latency_us: float, busiest_bytes: float) -> bool:
    """Whether a candidate that is at least this costly could still be among the best."""
    last = best.keys_f.shape[0] - 1
    if best.num[0] <= last:
        return True
    worst_us: float = best.keys_f[last, 0]
    worst_bytes: float = best.keys_f[last, 1]
    return latency_us < worst_us or (latency_us == worst_us and busiest_bytes <= worst_bytes)


@kernel
def offer(best: Best, latency_us: float, busiest_bytes: float) -> None:
    """Insert the candidate whose integers are in `best.key` at its place among the best, if it has one."""
    limit = best.keys_f.shape[0]
    row = best.num[0]
    while row > 0:  # find the first row from the end that is not worse
        other_us = best.keys_f[row - 1, 0]
        other_bytes = best.keys_f[row - 1, 1]
        if latency_us > other_us:
            break
        if latency_us == other_us:
            if busiest_bytes > other_bytes:
                break
            if busiest_bytes == other_bytes:
                i = 0
                while i < KEY_INTS - 1 and best.key[i] == best.keys_i[row - 1, i]:
                    i += 1
                if best.key[i] >= best.keys_i[row - 1, i]:
                    break
        row -= 1
    if row >= limit:
        return
    if best.num[0] < limit:
        best.num[0] += 1
    for later in range(best.num[0] - 1, row, -1):
        best.keys_f[later, 0] = best.keys_f[later - 1, 0]
        best.keys_f[later, 1] = best.keys_f[later - 1, 1]
        for i in range(KEY_INTS):
            best.keys_i[later, i] = best.keys_i[later - 1, i]
    best.keys_f[row, 0] = latency_us
    best.keys_f[row, 1] = busiest_bytes
    for i in range(KEY_INTS):
        best.keys_i[row, i] = best.key[i]


@kernel
def new_best(limit: int, counters: Any) -> Best:
    """None yet, of at most `limit`."""
    return Best(
        np.empty((limit, 2), np.float64),
        np.empty((limit, KEY_INTS), np.int64),
        np.zeros(1, np.int64),
        np.empty(KEY_INTS, np.int64),
        counters,
    )
