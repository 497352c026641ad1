"""Quality of the config that a predictor would choose for a GEMM, among those that were timed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gemm_eval.mapping import Schedule
from gemm_eval.validation.metrics import ALL, rows_by_gemm
from gemm_eval.validation.timings import Floats, Ints, Mask, Timings

TOP = (1, 3, 10)
"""Shares of GEMMs are reported whose best config is among so many first ones."""

_LEAST_SPEED_PERCENTILE = 5.0
_US_PER_S = 1e6


class Choices(NamedTuple):
    """Choices of a method, one for each GEMM: arrays are [gemms].

    Attributes:
        chosen_us: measured time of the choice; of several, the best, because they are profiled.
        speeds: best measured time over that, 0..1.
        place: of the best config in the method's order, from 1; NaN where it gives no order.
        in_top: [gemms, `TOP`], whether the best is among so many first ones, or how likely; NaN likewise.
        profiled_us: device time of timing what the method wants timed.
        how: in a few words; of methods that time several, how many.
    """

    method: str
    chosen_us: Floats
    speeds: Floats
    place: Floats
    in_top: Floats
    profiled_us: Floats
    how: str = ""


class Loss(NamedTuple):
    """Loss of choices against the best measured, as fractions (0.02 is 2%), over GEMMs of a group and regime.

    Attributes:
        mean_frac, median_frac, p95_frac, worst_frac: of the regret: measured time of the choice / best measured - 1.
        speed_frac: geometric mean of best measured / time of the choice (1: always the best).
        p5_speed_frac, least_speed_frac: its 5th percentile, and the least.
        top1_frac, top3_frac, top10_frac: share of GEMMs whose best config is among so many first ones of the method's
            order; None: it gives no order that goes so far.
        profiled_s: median device time of what the method times, in seconds.
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
    """Return points of each row by a fixed rule, [rows], as written before one has a model; more is better.

    100 where the tile has as many tokens as preferred (64 below M = 128, else 128), 50 where it has fewer; the columns
    of the tile / 32; 10 for steps of 64 k; 5 for each CTA of the cluster where M and N are at least 128; 20 for
    cooperating warpgroups.
    """
    names = ("M", "N", "cta_m", "cta_n", "cta_k", "cluster_m", "cluster_n")
    M, N, cta_m, cta_n, cta_k, cluster_m, cluster_n = (timings.column(name) for name in names)
    is_cooperative = timings.frame["schedule"].str.upper().to_numpy(str) == Schedule.COOPERATIVE.name
    preferred = np.where(M < 128, 64, 128)
    points: Floats = np.where(cta_m == preferred, 100.0, np.where(cta_m < preferred, 50.0, 0.0)) + cta_n / 32
    points += np.where(cta_k == 64, 10.0, 0.0)
    points += np.where(np.minimum(M, N) >= 128, 5.0 * cluster_m * cluster_n, 0.0)
    points += np.where(is_cooperative, 20.0, 0.0)
    return points


def order_by(timings: Timings, cost: Floats) -> Ints:
    """Return the rows GEMM by GEMM, least `cost` first; ties in the order of the registry, never in that of the table.

    Triton's kernels have no registry: there ties are in the order of the table.
    """
    return np.lexsort((timings.column("registry_place"), cost, timings.gemm))


def profile_us(timings: Timings) -> Floats:
    """Return the device time of timing each row as its table says: replays x calls x latency, in microseconds."""
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
    rank = np.arange(len(order)) - starts[gemm] + 1.0
    measured_us = timings.measured_us[order]
    is_chosen = rank <= np.broadcast_to(num, len(starts))[gemm]
    chosen_us = np.minimum.reduceat(np.where(is_chosen, measured_us, np.inf), starts)
    is_best = measured_us == timings.best_us[order]
    place_of_best = np.minimum.reduceat(np.where(is_best, rank, np.inf), starts)
    profiled = is_chosen if np.max(num) > 1 else np.zeros(len(order), bool)
    profiled_us = np.add.reduceat(np.where(profiled, profile_us(timings)[order], 0.0), starts)
    in_top = (place_of_best[:, None] <= np.array(TOP)).astype(np.float64)
    speeds = timings.best_us[order[starts]] / chosen_us
    return Choices(method, chosen_us, speeds, place_of_best, in_top, profiled_us, how)


def random_choice(timings: Timings) -> Choices:
    """Return the expected choice of a method that takes any timed config of a GEMM, each as likely."""
    num = np.bincount(timings.gemm).astype(np.float64)
    chosen_us = np.bincount(timings.gemm, timings.measured_us) / num
    in_top = np.minimum(np.array(TOP), num[:, None]) / num[:, None]
    speeds = timings.best_us[first_rows(timings)] / chosen_us
    none = np.full(len(num), np.nan)
    return Choices("random", chosen_us, speeds, none, in_top, np.zeros(len(num)), "expected value")


def random_speeds(timings: Timings, how: str) -> Choices:
    """Choose as `random_choice`, but by the geometric mean over a GEMM's configs, as speeds are averaged."""
    logs = np.log(timings.measured_us)
    speeds = np.array([np.exp(logs[rows].min() - logs[rows].mean()) for rows in rows_by_gemm(timings.gemm)])
    best_us = timings.best_us[first_rows(timings)]
    return random_choice(timings)._replace(method="at random", chosen_us=best_us / speeds, speeds=speeds, how=how)


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
