"""Numba kernels that spread the groups of a grouped GEMM over sets of cores: MODEL.md, "Grouped GEMMs".

A *run* is the groups of equal rows that a set of cores has: it computes them one after another, as a batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gemm_eval.jit import entry_point, kernel
from gemm_eval.models.multicore.count_kernels import ceil_div


class Spread(NamedTuple):
    """Which set of cores has which groups; the runs of a set stand together, most rows first."""

    starts: Any  # int64 [num_sets + 1], where the runs of each set start in the next two; entries behind are unused
    sizes: Any  # int64 [num_runs], which row count: a place among those of the problem
    counts: Any  # int64 [num_runs], groups of a run, at least 1
    loads: Any  # int64 [num_sets], steps of the matrix unit along m of a set
    members: Any  # int64 [num_sets], its groups
    scratch: Any  # int64 [3, num_groups], runs in the order in which they were made: set, size, count


@kernel
def new_spread(counts: Any, num_cores: int) -> Spread:
    """Room for any spread of these groups over at most so many sets of cores."""
    num_groups = 0
    for count in counts:
        num_groups += count
    most_sets = min(num_cores, num_groups)
    return Spread(
        np.empty(most_sets + 1, np.int64),
        np.empty(num_groups, np.int64),
        np.empty(num_groups, np.int64),
        np.empty(most_sets, np.int64),
        np.empty(most_sets, np.int64),
        np.empty((3, num_groups), np.int64),
    )


@kernel
def _least_loaded(loads: Any, members: Any, num_sets: int) -> int:
    """The set of the least load, of equal ones the one of the fewest groups, of those the first."""
    chosen = 0
    for s in range(1, num_sets):
        if loads[s] < loads[chosen] or (loads[s] == loads[chosen] and members[s] < members[chosen]):
            chosen = s
    return chosen


@kernel
def fill_spread(p: Any, rows: Any, counts: Any, P_G: int, P_M: int, spread: Spread) -> int:
    """Spread groups over at most P_G sets of cores; return how many sets have one.

    Args:
        rows, counts: int64 [num_sizes], row counts of the groups, descending, and how many groups have each.
        spread: from `new_spread`, filled.
    """
    starts, loads, members, scratch = spread.starts, spread.loads, spread.members, spread.scratch
    num_sets = min(P_G, loads.shape[0])
    loads[:num_sets] = 0
    members[:num_sets] = 0
    num_runs = 0
    num_used = 0
    for size in range(rows.shape[0]):
        weight = ceil_div(ceil_div(rows[size], P_M), p["cube_m"])
        first_run = num_runs
        most = 1
        if num_sets == 1 or rows.shape[0] == 1:  # equal groups lie as those of a batch
            most = ceil_div(counts[size], num_sets)
        left = counts[size]
        while left > 0:
            chosen = _least_loaded(loads, members, num_sets)
            taken = min(left, most)
            loads[chosen] += taken * weight
            members[chosen] += taken
            left -= taken
            num_used = max(num_used, chosen + 1)
            run = first_run
            while run < num_runs and scratch[0, run] != chosen:
                run += 1
            if run == num_runs:
                scratch[0, run] = chosen
                scratch[1, run] = size
                scratch[2, run] = 0
                num_runs += 1
            scratch[2, run] += taken
    # by set, in the order in which they were made
    starts[: num_used + 1] = 0
    for run in range(num_runs):
        starts[scratch[0, run] + 1] += 1
    for s in range(num_used):
        starts[s + 1] += starts[s]
    for run in range(num_runs):
        place = starts[scratch[0, run]]
        spread.sizes[place] = scratch[1, run]
        spread.counts[place] = scratch[2, run]
        starts[scratch[0, run]] += 1
    for s in range(num_used, 0, -1):
        starts[s] = starts[s - 1]
    starts[0] = 0
    return num_used


@kernel
def parts_of(num_rows: int, P_M: int) -> int:
    """E_M of a group: cores along M that have some of its rows."""
    return ceil_div(num_rows, ceil_div(num_rows, P_M))


@kernel
def active_cores_of(rows: Any, P_M: int, E_N: int, E_K: int, spread: Spread, num_sets: int) -> int:
    """Cores that have some rows of some group."""
    num = 0
    for s in range(num_sets):
        most = 0
        for run in range(spread.starts[s], spread.starts[s + 1]):
            most = max(most, parts_of(rows[spread.sizes[run]], P_M))
        num += most
    return num * E_N * E_K


@entry_point
def spread_of(params: Any, rows: Any, counts: Any, P_G: int, P_M: int) -> Any:
    """Return the runs of each set of cores, int64 [num_runs, 3]: set, rows of a group, groups; `params` is [1]."""
    spread = new_spread(counts, P_G)
    num_sets = fill_spread(params[0], rows, counts, P_G, P_M, spread)
    out = np.empty((spread.starts[num_sets], 3), np.int64)
    for s in range(num_sets):
        for run in range(spread.starts[s], spread.starts[s + 1]):
            out[run, 0] = s
            out[run, 1] = rows[spread.sizes[run]]
            out[run, 2] = spread.counts[run]
    return out
