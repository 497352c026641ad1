"""How good the choice of a config is, by method: measured time of what it chooses over the best measured of a GEMM.

A method orders the configs of a GEMM that were timed. Where only some of a GEMM's configs were timed, the choice is
among these alone, so those GEMMs are told apart from the ones whose configs were all timed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gemm_eval.mapping import Schedule
from gemm_eval.validation.metrics import ALL, rows_by_gemm
from gemm_eval.validation.timings import Floats, Ints, Mask, Timings

__all__ = [
    "TOP",
    "Choices",
    "Loss",
    "first_rows",
    "measure_loss",
    "order_by",
    "profile_us",
    "random_choice",
    "random_speeds",
    "ranked_choice",
    "share_of_configs",
    "static_points",
]

TOP = (1, 3, 10)
"""Shares of GEMMs are told whose best config is among so many first ones."""

_SMALL_TILE, _LARGE_TILE, _LARGE_M = 64, 128, 128
_PREFERRED_POINTS, _SMALLER_POINTS = 100.0, 50.0
_COLUMNS_OF_POINT = 32
_STEP, _STEP_POINTS = 64, 10.0
_CLUSTER_SIZES, _CLUSTER_POINTS = 128, 5.0
_COOPERATIVE_POINTS = 20.0
_LEAST_SPEED_PERCENTILE = 5.0
_US_PER_S = 1e6


@dataclass(frozen=True, eq=False)
class Choices:
    """What a method chose for each GEMM.

    Attributes:
        method: its name.
        chosen_us: [gemms], measured time of the choice; of several, the best, because they are profiled.
        speeds: [gemms], best measured time over that, 0..1.
        place: [gemms], place of the best config in the method's order, from 1; NaN where it gives no order.
        in_top: [gemms, `TOP`], whether the best is among so many first ones, or how likely; NaN likewise.
        profiled_us: [gemms], device time of timing what the method wants timed.
        how: in a few words; of methods that time several, how many.
    """

    method: str
    chosen_us: Floats
    speeds: Floats
    place: Floats
    in_top: Floats
    profiled_us: Floats
    how: str = ""


@dataclass(frozen=True, slots=True)
class Loss:
    """How far choices are from the best measured, as fractions (0.02 is 2%), over GEMMs.

    Attributes:
        method: its name.
        how: as in `Choices`.
        group, regime: which GEMMs.
        num_gemms: how many.
        mean_frac, median_frac, p95_frac, worst_frac: of the regret: measured time of the choice / best measured - 1.
        speed_frac: geometric mean of best measured / time of the choice (1: always the best).
        p5_speed_frac, least_speed_frac: its 5th percentile, and the least.
        top1_frac, top3_frac, top10_frac: share of GEMMs whose best config is among so many first ones of the method's
            order; None: it gives no order that goes so far.
        profiled_s: median device time of what the method times, in seconds; 0: nothing.
    """

    method: str
    how: str
    group: str
    regime: str
    num_gemms: int
    mean_frac: float
    median_frac: float
    p95_frac: float
    worst_frac: float
    speed_frac: float
    p5_speed_frac: float
    least_speed_frac: float
    top1_frac: float | None
    top3_frac: float | None
    top10_frac: float | None
    profiled_s: float


def first_rows(timings: Timings) -> Ints:
    """Return a row of each GEMM, [gemms], in the order of `timings.gemm`."""
    return np.unique(timings.gemm, return_index=True)[1].astype(np.int64)


def static_points(timings: Timings) -> Floats:
    """Points of each row by a fixed rule, [rows]: what practitioners write before they have a model. More is better.

    100 where the tile has as many tokens as preferred (64 below M = 128, else 128), 50 where it has fewer; the columns
    of the tile / 32; 10 for steps of 64 k; 5 for each CTA of the cluster where M and N are at least 128; 20 for
    cooperating warpgroups. Ties go to the first in the order of the registry.
    """
    names = ("M", "N", "cta_m", "cta_n", "cta_k", "cluster_m", "cluster_n")
    M, N, cta_m, cta_n, cta_k, cluster_m, cluster_n = (timings.column(name) for name in names)
    is_cooperative = timings.frame["schedule"].str.upper().to_numpy(str) == Schedule.COOPERATIVE.name
    preferred = np.where(M < _LARGE_M, _SMALL_TILE, _LARGE_TILE)
    points = np.where(cta_m == preferred, _PREFERRED_POINTS, 0.0)
    points += np.where(cta_m < preferred, _SMALLER_POINTS, 0.0)
    points += cta_n / _COLUMNS_OF_POINT
    points += np.where(cta_k == _STEP, _STEP_POINTS, 0.0)
    is_large = np.minimum(M, N) >= _CLUSTER_SIZES
    points += np.where(is_large, _CLUSTER_POINTS * cluster_m * cluster_n, 0.0)
    points += np.where(is_cooperative, _COOPERATIVE_POINTS, 0.0)
    result: Floats = points
    return result


def order_by(timings: Timings, cost: Floats) -> Ints:
    """Return the rows GEMM by GEMM, least `cost` first; ties in the order of the registry, never in that of the table.

    Triton's kernels have no registry: there ties are in the order of the table.
    """
    assert timings.packed is not None
    return np.lexsort((timings.packed.place, cost, timings.gemm))


def profile_us(timings: Timings) -> Floats:
    """Device time of timing each row once as the table says: replays x calls x latency, [rows], in microseconds."""
    calls = timings.frame["num_replays"].to_numpy(np.float64)
    if "calls_per_replay" in timings.frame:
        calls = calls * timings.frame["calls_per_replay"].to_numpy(np.float64)
    total: Floats = calls * timings.measured_us
    return total


def share_of_configs(timings: Timings, share: float) -> Ints:
    """Return how many configs such a share of a GEMM's is, at least one, [gemms]."""
    return np.maximum(1, (share * np.bincount(timings.gemm)).astype(np.int64))


def ranked_choice(timings: Timings, method: str, order: Ints, num: int | Ints = 1, how: str = "") -> Choices:
    """Choose by an order of the rows (`order_by`): the first of each GEMM, or the measured best of the first `num`."""
    gemm = timings.gemm[order]
    starts = np.flatnonzero(np.diff(gemm, prepend=-1))
    place = np.arange(len(order)) - starts[gemm] + 1.0
    measured_us = timings.measured_us[order]
    is_chosen = place <= np.broadcast_to(num, len(starts))[gemm]
    chosen_us = np.minimum.reduceat(np.where(is_chosen, measured_us, np.inf), starts)
    is_best = measured_us == timings.best_us[order]
    place_of_best = np.minimum.reduceat(np.where(is_best, place, np.inf), starts)
    profiled = is_chosen if np.max(num) > 1 else np.zeros(len(order), bool)
    profiled_us = np.add.reduceat(np.where(profiled, profile_us(timings)[order], 0.0), starts)
    in_top = (place_of_best[:, None] <= np.array(TOP)).astype(np.float64)
    speeds = timings.best_us[order[starts]] / chosen_us
    return Choices(method, chosen_us, speeds, place_of_best, in_top, profiled_us, how)


def random_choice(timings: Timings) -> Choices:
    """Choose any timed config of a GEMM, each as likely: what is expected of that."""
    num = np.bincount(timings.gemm).astype(np.float64)
    chosen_us = np.bincount(timings.gemm, timings.measured_us) / num
    in_top = np.minimum(np.array(TOP), num[:, None]) / num[:, None]
    speeds = timings.best_us[first_rows(timings)] / chosen_us
    none = np.full(len(num), np.nan)
    return Choices("random", chosen_us, speeds, none, in_top, np.zeros(len(num)), "expected value")


def random_speeds(timings: Timings, how: str) -> Choices:
    """Choose as `random_choice`, but by the geometric mean over a GEMM's configs, as speeds are averaged."""
    chosen = random_choice(timings)
    logs = np.log(timings.measured_us)
    speeds = np.array([np.exp(logs[rows].min() - logs[rows].mean()) for rows in rows_by_gemm(timings.gemm)])
    best_us = timings.best_us[first_rows(timings)]
    return replace(chosen, method="at random", chosen_us=best_us / speeds, speeds=speeds, how=how)


def measure_loss(timings: Timings, choices: Choices, gemms: Mask, group: str = ALL, regime: str = ALL) -> Loss:
    """Return how far the choices are from the best, over the GEMMs where `gemms` [gemms] is true, at least one."""
    regret = (choices.chosen_us / timings.best_us[first_rows(timings)])[gemms] - 1.0
    speeds = choices.speeds[gemms]
    top1, top3, top10 = (None if np.isnan(share) else float(share) for share in choices.in_top[gemms].mean(axis=0))
    return Loss(
        choices.method, choices.how, group, regime, len(regret), float(regret.mean()), float(np.median(regret)),
        float(np.quantile(regret, 0.95)), float(regret.max()), float(np.exp(np.log(speeds).mean())),
        float(np.percentile(speeds, _LEAST_SPEED_PERCENTILE)), float(speeds.min()), top1, top3, top10,
        float(np.median(choices.profiled_us[gemms])) / _US_PER_S,
    )  # fmt: skip
