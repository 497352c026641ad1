"""Numba kernels of the exact search over our W4A16 kernels: all of them, each with all its ways to cut K.

A problem counts as one GEMM here, whatever its G: kernels have no batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gemm_eval._jit import entry_point, kernel
from gemm_eval.models.gpu.cost_kernels import ProblemTerms, write_record
from gemm_eval.models.gpu.w4a16.cost_kernels import MAX_CUTS, cuts_of, lower_bound_us, w4a16_cost, w4a16_terms

__all__ = ["evaluate_w4a16", "evaluate_w4a16_configs", "find_best_w4a16", "find_top_w4a16"]


@kernel
def _write(p: Any, row: Any, c: Any, t: ProblemTerms, parts: int, out: Any) -> None:
    split, is_stream = max(1, parts), parts == 0
    write_record(p, row, t, split, is_stream, w4a16_cost(p, row, c, t, split, is_stream), out)


@entry_point
def find_best_w4a16(
    params: Any, menus: Any, ranges: Any, coefficients: Any, type_of: Any, sizes: Any, start: int, stop: int, out: Any
) -> None:
    """The best config of problems start..stop; of equal ones the first.

    Shapes: params [types] of GPU_PARAMS_DTYPE; menus [rows] of W4A16_MENU_DTYPE, those of all types one after another;
    ranges [types, 2]: first and stop of each type's menu; coefficients [types, families, coefficients]; type_of [num];
    sizes [num, 4] of G, M, K, N; out [num] of GPU_COST_DTYPE, active_sms stays 0 where no kernel exists.
    """
    cuts, bounds = np.empty(MAX_CUTS, np.int64), np.empty(len(menus))
    for i in range(start, stop):
        kind = type_of[i]
        p = params[kind]
        M, K, N = sizes[i, 1], sizes[i, 2], sizes[i, 3]
        t = w4a16_terms(p, M, K, N)
        best, best_row, best_parts = np.inf, -1, 1
        num_candidates = num_bounded = 0
        first, least = ranges[kind, 0], np.inf
        for index in range(ranges[kind, 0], ranges[kind, 1]):
            row = menus[index]
            bounds[index] = lower_bound_us(p, row, coefficients[kind, row["kind"]], t, 0)
            if bounds[index] < least:
                first, least = index, bounds[index]
        for place in range(ranges[kind, 0], ranges[kind, 1]):
            # the most promising row first: it shuts most of the others out
            index = first if place == ranges[kind, 0] else (place - 1 if place <= first else place)
            if bounds[index] > best:
                num_bounded += 1
                continue
            row = menus[index]
            c = coefficients[kind, row["kind"]]
            for cut in range(cuts_of(p, row, M, K, N, cuts)):
                parts = cuts[cut]
                if lower_bound_us(p, row, c, t, parts) > best:
                    num_bounded += 1
                    continue
                latency_us = w4a16_cost(p, row, c, t, max(1, parts), parts == 0).latency_us
                num_candidates += 1
                if latency_us < best or (latency_us == best and index < best_row):
                    best, best_row, best_parts = latency_us, index, parts
        if best_row >= 0:
            row = menus[best_row]
            _write(p, row, coefficients[kind, row["kind"]], t, best_parts, out[i])
        out[i]["num_candidates"] = num_candidates
        out[i]["num_bounded"] = num_bounded


@entry_point
def find_top_w4a16(
    params: Any, menu: Any, coefficients: Any, M: int, K: int, N: int, out_us: Any, out_which: Any
) -> int:
    """Latency of every config: [num] us, and [num, 2] of row and parts of K (0: stream-K); returns num."""
    p = params[0]
    t = w4a16_terms(p, M, K, N)
    cuts = np.empty(MAX_CUTS, np.int64)
    num = 0
    for index in range(len(menu)):
        row = menu[index]
        for place in range(cuts_of(p, row, M, K, N, cuts)):
            if num < len(out_us):
                parts = cuts[place]
                cost = w4a16_cost(p, row, coefficients[0, row["kind"]], t, max(1, parts), parts == 0)
                out_us[num] = cost.latency_us
                out_which[num, 0], out_which[num, 1] = index, parts
            num += 1
    return num


@entry_point
def evaluate_w4a16(
    params: Any, menu: Any, coefficients: Any, index: int, parts: int, M: int, K: int, N: int, out: Any
) -> None:
    """Write the cost of one config to out[0]; `parts` of K, 0: stream-K."""
    row = menu[index]
    t = w4a16_terms(params[0], M, K, N)
    _write(params[0], row, coefficients[0, row["kind"]], t, parts, out[0])
    out[0]["num_candidates"] = 1


@entry_point
def evaluate_w4a16_configs(
    params: Any, menus: Any, coefficients: Any, type_of: Any, sizes: Any, which: Any, out_us: Any
) -> None:
    """Latency [num] us of known configs: `which` [num, 2] of row of `menus` and parts of K; other shapes as above."""
    for i in range(len(type_of)):
        p = params[type_of[i]]
        row = menus[which[i, 0]]
        parts = which[i, 1]
        t = w4a16_terms(p, sizes[i, 1], sizes[i, 2], sizes[i, 3])
        c = coefficients[row["kind"]]
        out_us[i] = w4a16_cost(p, row, c, t, max(1, parts), parts == 0).latency_us
