"""Numba kernels of the exact search over kernel configs of a GPU, compiled for the rules of each kind of kernels.

params [types] of GPU_PARAMS_DTYPE; candidates [rows] of CANDIDATE_DTYPE, of all types one after another; columns
[columns, rows] for their bounds; ranges [types, 2], first and stop of each type's candidates; coefficients [types,
sets]; type_of [num]; sizes [num, 4]; layouts: `Layouts`; `split` is a number of parts of K, or STREAM_K.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gemm_eval.jit import kernel, named_entry_point, with_fixed_types
from gemm_eval.models.gpu.correction_kernels import correct_record, room_for_features
from gemm_eval.models.gpu.cost_kernels import BEST_RASTER, CostRules, ProblemTerms, write_record
from gemm_eval.models.gpu.generic_kernels import GENERIC
from gemm_eval.models.gpu.w4a16.cost_kernels import W4A16

NEAR_CONFIGS = 4
"""Most configs of a GEMM that a learned correction ranks: more change no choice of held-out GEMMs for the better."""

NEAR_RATIO = 1.03
"""Most that these may take by the terms, over the least latency of the GEMM."""

_MORE_SPLITS = 16  # a whole K, stream-K, and the few ways of a GPU of few SMs


class Counts(NamedTuple):
    """Counts of a search: configs that it returns, that were costed, and that a bound dismissed."""

    num: int
    num_candidates: int
    num_bounded: int


class Searches(NamedTuple):
    """The searches of one kind of kernels, each compiled when it is first called; `of_one`: for arrays of one type."""

    find_best_of_range: Callable[..., None]
    find_best_of_one: Callable[..., None]
    find_corrected_of_range: Callable[..., None]
    find_corrected_of_one: Callable[..., None]
    find_best_rows: Callable[..., None]
    evaluate_rows: Callable[..., None]
    list_configs: Callable[..., int]
    evaluate_configs: Callable[..., None]


@kernel
def _room_for_splits(candidates: Any) -> int:
    """Most ways to split K of any kernel: no more parts than CTAs fit the GPU, and stream-K; never fewer than ours."""
    most = 0
    for index in range(len(candidates)):
        most = max(most, candidates[index]["grid_cap"])
    return most + _MORE_SPLITS


@kernel
def _groups_of(layouts: Any, i: int, G: int, M: int, one: Any) -> Any:
    """Return rows and counts [sizes], and whether they were given as groups; `one` [2, 1] has room for a plain GEMM."""
    layout = layouts.of[i] if len(layouts.of) > 0 else -1
    if layout >= 0:
        first, stop = layouts.starts[layout], layouts.starts[layout + 1]
        # copies: read-only as they are, all that is called with them would be compiled for both kinds of arrays
        return layouts.rows[first:stop].copy(), layouts.counts[first:stop].copy(), True
    one[0, 0], one[1, 0] = M, G
    return one[0], one[1], False


def _make_searches(name: str, rules: CostRules) -> Searches:
    """Write the searches for some rules; `name` tells their compiled code from that of others."""
    problem_terms, list_splits, row_bounds_us, is_beaten, latency_below_us, config_cost = rules

    @kernel
    def find_best(
        p: Any, candidates: Any, columns: Any, first: int, stop: int, c: Any, t: ProblemTerms, splits: Any,
        bounds: Any, ratio: float, us: Any, which: Any,
    ) -> Counts:  # fmt: skip
        """Write the best configs of candidates first..stop, best first, to `us` [room] and `which` [room, 2].

        As many as there is room for, that take at most `ratio` times the best; of equal ones the first ones. `which` is
        the row of a kernel and how K is split. `splits` and `bounds` are room, for all ways to split K and
        [stop - first].
        """
        last, num = len(us) - 1, 0
        num_candidates = num_bounded = 0
        us[:], which[:, 0] = np.inf, -1
        bounds = bounds[: stop - first]
        row_bounds_us(p, c, t, columns, first, bounds)
        start, least, most = first, np.inf, np.inf
        for place in range(stop - first):
            if bounds[place] < least:
                start, least = first + place, bounds[place]
        for place in range(stop - first):
            # the most promising row first: it shuts most of the others out
            index = start if place == 0 else (first + place - 1 if first + place <= start else first + place)
            if bounds[index - first] > most:
                num_bounded += 1
                continue
            row = candidates[index]
            of_row = c[row["coefficient_set"]]
            for way in range(list_splits(p, row, t, splits)):
                split = splits[way]
                if is_beaten(p, row, columns, index, of_row, t, split, most):
                    num_bounded += 1
                    continue
                latency_us = latency_below_us(p, row, of_row, t, split, most)
                num_candidates += 1
                at = last
                if latency_us > most or not (latency_us < us[at] or (latency_us == us[at] and index < which[at, 0])):
                    continue
                while at > 0 and (latency_us < us[at - 1] or (latency_us == us[at - 1] and index < which[at - 1, 0])):
                    us[at], which[at, 0], which[at, 1] = us[at - 1], which[at - 1, 0], which[at - 1, 1]
                    at -= 1
                us[at], which[at, 0], which[at, 1] = latency_us, index, split
                most = min(us[last], ratio * us[0])
        while num <= last and us[num] < np.inf and us[num] <= most:
            num += 1
        return Counts(num, num_candidates, num_bounded)

    @named_entry_point(name)
    def find_best_of_range(
        params: Any, candidates: Any, columns: Any, ranges: Any, coefficients: Any, type_of: Any, sizes: Any,
        layouts: Any, start: int, stop: int, out: Any,
    ) -> None:  # fmt: skip
        """Write the best configs of problems start..stop to `out` [num] of KERNEL_COST_DTYPE; active_sms 0: none."""
        bounds, splits = np.empty(len(candidates)), np.empty(_room_for_splits(candidates), np.int64)
        one, us, which = np.empty((2, 1), np.int64), np.empty(1), np.empty((1, 2), np.int64)
        for i in range(start, stop):
            kind = type_of[i]
            p, c = params[kind], coefficients[kind]
            groups = _groups_of(layouts, i, sizes[i, 0], sizes[i, 1], one)
            t = problem_terms(p, c[0], sizes[i, 2], sizes[i, 3], *groups)
            first, end = ranges[kind, 0], ranges[kind, 1]
            counts = find_best(p, candidates, columns, first, end, c, t, splits, bounds, 1.0, us, which)
            if counts.num > 0:
                row = candidates[which[0, 0]]
                cost = config_cost(p, row, c[row["coefficient_set"]], t, which[0, 1], BEST_RASTER)
                write_record(p, row, t, which[0, 1], cost, out[i])
            out[i]["num_candidates"] = counts.num_candidates
            out[i]["num_bounded"] = counts.num_bounded

    @named_entry_point(name)
    def find_corrected_of_range(
        params: Any, candidates: Any, columns: Any, coefficients: Any, nodes: Any, roots: Any, pairs: Any, limits: Any,
        sizes: Any, rows: Any, out: Any, start: int, stop: int,
    ) -> None:  # fmt: skip
        """Write the best configs of single GEMMs rows[start:stop] by corrected latencies, of `NEAR_CONFIGS`, to `out`.

        Their `correction_factor` is that of the GEMM: over the least latency by the terms.
        """
        bounds, splits = np.empty(len(candidates)), np.empty(_room_for_splits(candidates), np.int64)
        one, x = np.empty((2, 1), np.int64), room_for_features()
        us, which = np.empty(NEAR_CONFIGS), np.empty((NEAR_CONFIGS, 2), np.int64)
        p, c, limit = params[0], coefficients[0], limits[0]
        for place in range(start, stop):
            i = rows[place]
            record, least_us, best = out[i], np.inf, 0
            M, K, N = sizes[i, 1], sizes[i, 2], sizes[i, 3]
            one[0, 0], one[1, 0] = M, 1
            t = problem_terms(p, c[0], K, N, one[0], one[1], False)
            counts = find_best(
                p, candidates, columns, 0, len(candidates), c, t, splits, bounds, NEAR_RATIO, us, which
            )  # fmt: skip
            for turn in range(counts.num + 1):  # the best by the terms last, and what beats it once more
                near = counts.num - 1 - turn if turn < counts.num else best
                if turn == counts.num and best == 0:
                    break
                row = candidates[which[near, 0]]
                cost = config_cost(p, row, c[row["coefficient_set"]], t, which[near, 1], BEST_RASTER)
                write_record(p, row, t, which[near, 1], cost, record)
                correct_record(record, 1, M, K, N, nodes, roots, pairs, limit, x)
                if record["latency_us"] <= least_us:
                    least_us, best = record["latency_us"], near
            if counts.num > 0:
                record["correction_factor"] = record["latency_us"] / us[0]
            record["num_candidates"] = counts.num_candidates
            record["num_bounded"] = counts.num_bounded

    @named_entry_point(name)
    def find_best_rows(
        params: Any, candidates: Any, columns: Any, ranges: Any, coefficients: Any, type_of: Any, sizes: Any,
        layouts: Any, start: int, stop: int, out_us: Any, out_which: Any,
    ) -> None:  # fmt: skip
        """Search as `find_best_of_range` does, for latency [num] us and place [num, 2]: a row or -1, split."""
        bounds, splits = np.empty(len(candidates)), np.empty(_room_for_splits(candidates), np.int64)
        one = np.empty((2, 1), np.int64)
        for i in range(start, stop):
            kind = type_of[i]
            p, c = params[kind], coefficients[kind]
            groups = _groups_of(layouts, i, sizes[i, 0], sizes[i, 1], one)
            t = problem_terms(p, c[0], sizes[i, 2], sizes[i, 3], *groups)
            first, end = ranges[kind, 0], ranges[kind, 1]
            out_which[i, 1] = 1
            best = out_us[i : i + 1], out_which[i : i + 1]
            find_best(p, candidates, columns, first, end, c, t, splits, bounds, 1.0, *best)

    @named_entry_point(name)
    def evaluate_rows(
        params: Any, candidates: Any, coefficients: Any, type_of: Any, sizes: Any, layouts: Any, which: Any,
        out_us: Any,
    ) -> None:  # fmt: skip
        """Latency [num] us of given configs, each by its place as in `find_best_rows`, under its best raster."""
        one = np.empty((2, 1), np.int64)
        for i in range(len(type_of)):
            kind = type_of[i]
            p, row = params[kind], candidates[which[i, 0]]
            groups = _groups_of(layouts, i, sizes[i, 0], sizes[i, 1], one)
            t = problem_terms(p, coefficients[kind, 0], sizes[i, 2], sizes[i, 3], *groups)
            c = coefficients[kind, row["coefficient_set"]]
            out_us[i] = config_cost(p, row, c, t, which[i, 1], BEST_RASTER).latency_us

    @named_entry_point(name)
    def list_configs(
        params: Any, candidates: Any, coefficients: Any, G: int, M: int, K: int, N: int, layouts: Any, out: Any
    ) -> int:  # fmt: skip
        """Write the place [num, 2] of every config of the search, as many as have room; return num."""
        p = params[0]
        groups = _groups_of(layouts, 0, G, M, np.empty((2, 1), np.int64))
        t = problem_terms(p, coefficients[0, 0], K, N, *groups)
        splits = np.empty(_room_for_splits(candidates), np.int64)
        num = 0
        for index in range(len(candidates)):
            row = candidates[index]
            for way in range(list_splits(p, row, t, splits)):
                if num < len(out):
                    out[num, 0], out[num, 1] = index, splits[way]
                num += 1
        return num

    @named_entry_point(name)
    def evaluate_configs(
        params: Any, candidates: Any, coefficients: Any, which: Any, raster: int,
        G: int, M: int, K: int, N: int, layouts: Any, out: Any,
    ) -> None:  # fmt: skip
        """Write the costs of configs [num, 2] of one GEMM to `out` [num] of KERNEL_COST_DTYPE."""
        p = params[0]
        groups = _groups_of(layouts, 0, G, M, np.empty((2, 1), np.int64))
        t = problem_terms(p, coefficients[0, 0], K, N, *groups)
        for place in range(len(which)):
            row, split = candidates[which[place, 0]], which[place, 1]
            cost = config_cost(p, row, coefficients[0, row["coefficient_set"]], t, split, raster)
            write_record(p, row, t, split, cost, out[place])
            out[place]["num_candidates"] = 1

    return Searches(
        find_best_of_range, with_fixed_types(find_best_of_range), find_corrected_of_range,
        with_fixed_types(find_corrected_of_range), find_best_rows, evaluate_rows, list_configs, evaluate_configs,
    )  # fmt: skip


OF_GENERIC = _make_searches("generic", GENERIC)
"""Searches of generic kernels of libraries."""

OF_OURS = _make_searches("w4a16", W4A16)
"""Searches of our W4A16 kernels, each with all its ways to cut K."""
