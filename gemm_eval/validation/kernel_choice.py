"""How good the choice of a W4A16 kernel is, by method: measured time of what it chooses over the best measured.

A method orders the configs of a GEMM that were timed. Where only some of a GEMM's configs were timed, the choice is
among these alone, so those GEMMs are told apart from the ones whose configs were all timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval.evaluate import select_config
from gemm_eval.mapping import Schedule
from gemm_eval.models.gpu.w4a16.cost_kernels import MAX_SPLITS
from gemm_eval.search.gpu_kernels import OF_OURS
from gemm_eval.validation.kernel_timings import KernelTimings, types_of
from gemm_eval.validation.timings import Floats, Mask

__all__ = [
    "TOP",
    "Choices",
    "Regret",
    "first_rows",
    "has_all_configs",
    "measure_regret",
    "order_by",
    "pauses_and_flushes_s",
    "profile_us",
    "random_choice",
    "ranked_choice",
    "static_points",
    "time_select_config",
]

Ints = npt.NDArray[np.int64]

TOP = (1, 3, 10)
"""Shares of GEMMs are told whose best config is among so many first ones."""

_SMALL_TILE, _LARGE_TILE, _LARGE_M = 64, 128, 128
_PREFERRED_POINTS, _SMALLER_POINTS = 100.0, 50.0
_COLUMNS_OF_POINT = 32
_STEP, _STEP_POINTS = 64, 10.0
_CLUSTER_SIZES, _CLUSTER_POINTS = 128, 5.0
_COOPERATIVE_POINTS = 20.0
_FLUSH_PASSES = 3  # over `cold_bytes`, before each cold replay: 2 reads and a write
_US_PER_S = 1e6


@dataclass(frozen=True, eq=False)
class Choices:
    """What a method chose for each GEMM.

    Attributes:
        method: its name.
        chosen_us: [gemms], measured time of the choice; of several, the best, because they are profiled.
        place: [gemms], place of the best config in the method's order, from 1; NaN where it gives no order.
        in_top: [gemms, `TOP`], whether the best is among so many first ones, or how likely; NaN likewise.
        profiled_us: [gemms], device time of timing what the method wants timed.
        how: in a few words.
    """

    method: str
    chosen_us: Floats
    place: Floats
    in_top: Floats
    profiled_us: Floats
    how: str = ""


@dataclass(frozen=True, slots=True)
class Regret:
    """How far choices are from the best measured, as fractions (0.02 is 2%), over GEMMs.

    Attributes:
        method: its name.
        num_gemms: GEMMs.
        mean_frac, median_frac, p95_frac, worst_frac: of measured time of the choice / best measured - 1.
        speed_frac: geometric mean of best measured / time of the choice (1: always the best).
        top1_frac, top3_frac, top10_frac: share of GEMMs whose best config is among so many first ones of the method's
            order; None: it gives no order that goes so far.
        profiled_s: median device time of what the method times, in seconds; 0: nothing.
    """

    method: str
    num_gemms: int
    mean_frac: float
    median_frac: float
    p95_frac: float
    worst_frac: float
    speed_frac: float
    top1_frac: float | None
    top3_frac: float | None
    top10_frac: float | None
    profiled_s: float


def first_rows(timings: KernelTimings) -> Ints:
    """Return a row of each GEMM, [gemms], in the order of `timings.gemm`."""
    return np.unique(timings.gemm, return_index=True)[1].astype(np.int64)


def has_all_configs(timings: KernelTimings) -> Mask:
    """Whether every config that the GPU has for a GEMM was timed, [gemms]."""
    rows = first_rows(timings)
    num_timed = np.bincount(timings.gemm)
    num_legal = np.empty(len(rows), np.int64)
    packed = timings.packed
    none_us, none = np.empty(0), np.empty((0, 2), np.int64)
    for place, row in enumerate(rows.tolist()):
        kind = int(timings.type_of[row])
        of_type = slice(kind, kind + 1)
        candidates = packed.candidates[slice(*packed.ranges[kind].tolist())]
        _, M, K, N = (int(size) for size in timings.sizes[row])
        num_legal[place] = OF_OURS.find_top(
            packed.params[of_type], candidates, packed.coefficients[of_type], 1, M, K, N, none_us, none
        )
    is_all: Mask = num_timed == num_legal
    return is_all


def static_points(timings: KernelTimings) -> Floats:
    """Points of each row by a fixed rule, [rows]: what practitioners write before they have a model. More is better.

    100 where the tile has as many tokens as preferred (64 below M = 128, else 128), 50 where it has fewer; the columns
    of the tile / 32; 10 for steps of 64 k; 5 for each CTA of the cluster where M and N are at least 128; 20 for
    cooperating warpgroups. Ties go to the first in the order of the registry.
    """
    menu = timings.packed.candidates[timings.which[:, 0]]
    M, N = timings.sizes[:, 1], timings.sizes[:, 3]
    preferred = np.where(M < _LARGE_M, _SMALL_TILE, _LARGE_TILE)
    points = np.where(menu["cta_m"] == preferred, _PREFERRED_POINTS, 0.0)
    points += np.where(menu["cta_m"] < preferred, _SMALLER_POINTS, 0.0)
    points += menu["cta_n"] / _COLUMNS_OF_POINT
    points += np.where(menu["cta_k"] == _STEP, _STEP_POINTS, 0.0)
    is_large = np.minimum(M, N) >= _CLUSTER_SIZES
    points += np.where(is_large, _CLUSTER_POINTS * menu["cluster_m"] * menu["cluster_n"], 0.0)
    points += np.where(menu["schedule"] == int(Schedule.COOPERATIVE), _COOPERATIVE_POINTS, 0.0)
    result: Floats = points
    return result


def order_by(timings: KernelTimings, cost: Floats) -> Ints:
    """Return the rows GEMM by GEMM, least `cost` first; ties in the order of the registry, never in that of the table.

    The registry's order: its list of kernels, of each the whole K first, then fewer parts before more, then stream-K.
    """
    parts = np.where(timings.which[:, 1] == 0, MAX_SPLITS << 32, timings.which[:, 1])
    return np.lexsort((parts, timings.which[:, 0], cost, timings.gemm))


def profile_us(timings: KernelTimings) -> Floats:
    """Device time of timing each row once as the table says: replays x calls x latency, [rows], in microseconds."""
    calls = timings.frame["num_replays"].to_numpy(np.float64) * timings.frame["calls_per_replay"].to_numpy(np.float64)
    total: Floats = calls * timings.measured_us
    return total


def ranked_choice(timings: KernelTimings, method: str, order: Ints, num: int = 1, how: str = "") -> Choices:
    """Choose by an order of the rows (`order_by`): the first of each GEMM, or the measured best of the first `num`."""
    gemm = timings.gemm[order]
    starts = np.flatnonzero(np.diff(gemm, prepend=-1))
    place = np.arange(len(order)) - starts[gemm] + 1.0
    measured_us = timings.measured_us[order]
    is_chosen = place <= num
    chosen_us = np.minimum.reduceat(np.where(is_chosen, measured_us, np.inf), starts)
    is_best = measured_us == timings.best_us[order]
    place_of_best = np.minimum.reduceat(np.where(is_best, place, np.inf), starts)
    profiled = is_chosen if num > 1 else np.zeros(len(order), bool)
    profiled_us = np.add.reduceat(np.where(profiled, profile_us(timings)[order], 0.0), starts)
    in_top = (place_of_best[:, None] <= np.array(TOP)).astype(np.float64)
    return Choices(method, chosen_us, place_of_best, in_top, profiled_us, how)


def random_choice(timings: KernelTimings) -> Choices:
    """Choose any timed config of a GEMM, each as likely: what is expected of that."""
    num = np.bincount(timings.gemm).astype(np.float64)
    chosen_us = np.bincount(timings.gemm, timings.measured_us) / num
    in_top = np.minimum(np.array(TOP), num[:, None]) / num[:, None]
    return Choices("random", chosen_us, np.full(len(num), np.nan), in_top, np.zeros(len(num)), "expected value")


def measure_regret(timings: KernelTimings, choices: Choices, gemms: Mask) -> Regret:
    """Return how far the choices are from the best, over the GEMMs where `gemms` [gemms] is true, at least one."""
    best_us = timings.best_us[first_rows(timings)]
    ratio = (choices.chosen_us / best_us)[gemms]
    shares = choices.in_top[gemms].mean(axis=0)
    top1, top3, top10 = (None if np.isnan(share) else float(share) for share in shares)
    regret = ratio - 1.0
    return Regret(
        choices.method, len(ratio), float(regret.mean()), float(np.median(regret)), float(np.quantile(regret, 0.95)),
        float(regret.max()), float(np.exp(-np.log(ratio).mean())), top1, top3, top10,
        float(np.median(choices.profiled_us[gemms])) / _US_PER_S,
    )  # fmt: skip


def time_select_config(timings: KernelTimings, gemms: Mask, clock: Callable[[], float] = time.perf_counter) -> Floats:
    """Time `select_config` on each GEMM on this machine, one thread, the model loaded: [gemms], in us."""
    rows = timings.frame.iloc[first_rows(timings)[gemms]].to_dict("records")
    asked = [
        (
            replace(types_of(row["input_dtype"], row["mode"], row["group_size"]), M=row["M"], K=row["K"], N=row["N"]),
            {"library": "gemm-eval", "l2": row.get("l2", "cold"), "clock": row.get("clock", "burst")},
        )
        for row in rows
    ]
    first_of_types = {(row["input_dtype"], row["mode"], row["group_size"]): place for place, row in enumerate(rows)}
    for place in first_of_types.values():
        select_config(asked[place][0], timings.arch, **asked[place][1])  # compiles, or loads what was compiled
    found = np.empty(len(rows))
    for place, (problem, options) in enumerate(asked):
        start = clock()
        select_config(problem, timings.arch, **options)
        found[place] = _US_PER_S * (clock() - start)
    return found


def pauses_and_flushes_s(timings: KernelTimings, protocols: dict[str, dict[str, Any]]) -> Floats:
    """Time of each row that the device waits or flushes L2 between replays, [rows], in seconds; 0 where not known.

    Args:
        timings: the rows.
        protocols: of each table, the settings that its meta file has under `protocol`.
    """
    num = timings.frame["num_replays"].to_numpy(np.float64)
    found = np.zeros(len(timings))
    bytes_per_s = 1e9 * timings.arch.dram_achievable_gb_per_s
    for name, protocol in protocols.items():
        rows = (timings.frame["table"] == name).to_numpy(bool) & (num > 1)  # rows given up have one short replay
        is_long = timings.sizes[:, 1] > protocol.get("max_short_rows", np.inf)
        pause_s = np.where(is_long & (protocol.get("clock") == "burst"), protocol.get("idle_s", 0.0), 0.0)
        flush_s = _FLUSH_PASSES * protocol.get("cold_bytes", 0) / bytes_per_s if protocol.get("l2") == "cold" else 0.0
        found[rows] = (num * (pause_s + flush_s))[rows]
    return found
