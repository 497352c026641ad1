"""Numba kernels of the exact search over kernel configs of a GPU."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gemm_eval._jit import entry_point, kernel
from gemm_eval.models.gpu.cost_kernels import (
    BEST_RASTER,
    NO_RASTER,
    ProblemTerms,
    ceil_div,
    config_cost,
    fill_record,
    lower_bound_us,
    problem_terms,
)

__all__ = [
    "evaluate_one_config",
    "evaluate_rows",
    "find_best_of_range",
    "find_best_rows",
    "find_top_of_problem",
]


@kernel
def _max_split(p: Any, row: Any, t: Any) -> int:
    """Most parts of K that the library makes of a tile; 0: it does not use the tile for this problem."""
    if row["schedule"] == _VECTOR:
        return 1 if row["cta_m"] >= t.M else 0  # K is split over threads already, and tokens are not tiled
    tiles = t.G * ceil_div(t.M, row["cta_m"]) * ceil_div(t.N, row["cta_n"])
    most = min(int(ceil_div(t.K, row["cta_k"]) / p["min_split_steps"]), p["max_split_parts"])
    if most <= 1:
        return 1
    room = (
        row["grid_cap"] if row["cluster_log2"] <= 1.0 else row["grid_cap"] - 1
    )  # proposals in larger clusters stay below
    limit = max(1, min(most, int(room / tiles)))
    if limit == 1 and p["is_split_full"] and min(most, int(p["num_sms"] / tiles)) > 1:
        return 0  # with another cluster K can be split, so it is
    return int(limit)


@kernel
def _next_split(steps: int, split: int) -> int:
    """The next number of parts that makes them shorter: the ones between only add partial sums."""
    part = -(-steps // split)
    return int(split + 1) if part <= 1 else int(-(-steps // (part - 1)))


_VECTOR = 3


class Choice(NamedTuple):
    """A config of a menu: its row, the parts of K, stream-K or not; `row` -1: there is none."""

    latency_us: float
    row: int
    split: int
    is_stream: bool
    num_candidates: int
    num_bounded: int


@kernel
def _cost_below(p: Any, row: Any, t: ProblemTerms, split: int, is_stream: bool, best: float) -> float:
    """The cost of a config under its best raster; inf if it cannot be below `best`, which is cheaper to find out."""
    latency = config_cost(p, row, t, split, is_stream, NO_RASTER).latency_us
    if latency > best:
        return np.inf
    if t.l2_hold_frac < 1.0:
        latency = config_cost(p, row, t, split, is_stream, BEST_RASTER).latency_us
    return float(latency)


@kernel
def _find_best(p: Any, menu: Any, first: int, stop: int, t: ProblemTerms, bounds: Any) -> Choice:
    """The best config of rows first..stop of `menu`; of equal ones the first. `bounds` is room for [stop - first]."""
    best, best_row, best_split, best_stream = np.inf, -1, 1, False
    num_candidates = num_bounded = 0
    has_stream_k = p["has_stream_k"] != 0
    start, least = first, np.inf
    for index in range(first, stop):
        row = menu[index]
        limit = _max_split(p, row, t)
        if p["is_split_full"]:
            bound = lower_bound_us(p, row, t, limit, False) if limit > 0 else np.inf
        else:
            bound = lower_bound_us(p, row, t, 1, has_stream_k or limit > 1)
        bounds[index - first] = bound
        if bound < least:
            start, least = index, bound
    for place in range(stop - first):
        # the most promising row first: it shuts most of the others out
        index = start if place == 0 else (first + place - 1 if first + place <= start else first + place)
        if bounds[index - first] > best:
            num_bounded += 1
            continue
        row = menu[index]
        steps = ceil_div(t.K, row["cta_k"])
        limit = _max_split(p, row, t)
        split = limit if p["is_split_full"] and limit > 0 else 1
        while split <= limit:
            latency = _cost_below(p, row, t, split, False, best)
            num_candidates += 1
            if latency < best or (latency == best and index < best_row):
                best, best_row, best_split, best_stream = latency, index, split, False
            split = _next_split(steps, split)
        if has_stream_k and row["schedule"] != _VECTOR:
            latency = _cost_below(p, row, t, 1, True, best)
            num_candidates += 1
            if latency < best or (latency == best and index < best_row):
                best, best_row, best_split, best_stream = latency, index, 1, True
    return Choice(best, best_row, best_split, best_stream, num_candidates, num_bounded)


@entry_point
def find_best_of_range(
    params: Any, menus: Any, ranges: Any, type_of: Any, sizes: Any, start: int, stop: int, out: Any
) -> None:
    """The best config of problems start..stop.

    Shapes: params [types] of GPU_PARAMS_DTYPE; menus [rows] of MENU_DTYPE, those of all types one after another; ranges
    [types, 2]: first and stop of each type's menu; type_of [num], index into params; sizes [num, 4] of G, M, K, N;
    out [num] of GPU_COST_DTYPE, active_sms stays 0 where no kernel exists.
    """
    bounds = np.empty(len(menus))
    for i in range(start, stop):
        kind = type_of[i]
        p = params[kind]
        t = problem_terms(p, sizes[i, 0], sizes[i, 1], sizes[i, 2], sizes[i, 3])
        best = _find_best(p, menus, ranges[kind, 0], ranges[kind, 1], t, bounds)
        if best.row >= 0:
            fill_record(p, menus[best.row], t, best.split, best.is_stream, BEST_RASTER, out[i])
        out[i]["num_candidates"] = best.num_candidates
        out[i]["num_bounded"] = best.num_bounded


@entry_point
def find_best_rows(
    params: Any, menus: Any, ranges: Any, type_of: Any, sizes: Any, start: int, stop: int, out_us: Any, out_which: Any
) -> None:
    """As `find_best_of_range`, but only latency [num] us and place [num, 3]: row of `menus`, split, is_stream."""
    bounds = np.empty(len(menus))
    for i in range(start, stop):
        kind = type_of[i]
        p = params[kind]
        t = problem_terms(p, sizes[i, 0], sizes[i, 1], sizes[i, 2], sizes[i, 3])
        best = _find_best(p, menus, ranges[kind, 0], ranges[kind, 1], t, bounds)
        out_us[i] = best.latency_us
        out_which[i, 0], out_which[i, 1], out_which[i, 2] = best.row, best.split, best.is_stream


@entry_point
def evaluate_rows(params: Any, menus: Any, type_of: Any, sizes: Any, which: Any, out_us: Any) -> None:
    """Latency [num] us of given configs, each by its place as in `find_best_rows`."""
    for i in range(len(type_of)):
        p = params[type_of[i]]
        t = problem_terms(p, sizes[i, 0], sizes[i, 1], sizes[i, 2], sizes[i, 3])
        row = menus[which[i, 0]]
        out_us[i] = config_cost(p, row, t, which[i, 1], which[i, 2] != 0, BEST_RASTER).latency_us


@entry_point
def find_top_of_problem(params: Any, menu: Any, G: int, M: int, K: int, N: int, out_us: Any, out_which: Any) -> int:
    """Latency of every config that a search looks at: [num] us, and [num, 3] of row, split, is_stream; returns num."""
    p = params[0]
    t = problem_terms(p, G, M, K, N)
    num = 0
    for index in range(len(menu)):
        row = menu[index]
        steps = -(-K // row["cta_k"])
        limit = _max_split(p, row, t)
        split = limit if p["is_split_full"] and limit > 0 else 1
        while split <= limit:
            if num < len(out_us):
                out_us[num] = config_cost(p, row, t, split, False, BEST_RASTER).latency_us
                out_which[num, 0], out_which[num, 1], out_which[num, 2] = index, split, 0
            num += 1
            split = _next_split(steps, split)
        if p["has_stream_k"] and row["schedule"] != _VECTOR:
            if num < len(out_us):
                out_us[num] = config_cost(p, row, t, 1, True, BEST_RASTER).latency_us
                out_which[num, 0], out_which[num, 1], out_which[num, 2] = index, 1, 1
            num += 1
    return num


@entry_point
def evaluate_one_config(
    params: Any, menu: Any, index: int, split: int, is_stream: bool, raster: int, G: int, M: int, K: int, N: int,
    out: Any,
) -> None:  # fmt: skip
    """Write the cost of one config to out[0]."""
    t = problem_terms(params[0], G, M, K, N)
    fill_record(params[0], menu[index], t, split, is_stream, raster, out[0])
    out[0]["num_candidates"] = 1
