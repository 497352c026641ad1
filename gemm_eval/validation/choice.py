"""Quality of the config that a predictor would choose, and the cost of choosing it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gemm_eval.arch import GpuSpec
from gemm_eval.evaluate import select_config
from gemm_eval.mapping import Schedule
from gemm_eval.validation.metrics import ALL, rows_by_gemm
from gemm_eval.validation.predictors.w4a16 import types_of
from gemm_eval.validation.timings import Floats, Ints, Mask, Timings

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


_FLUSH_PASSES = 3  # over `cold_bytes` before each cold replay, where a meta file does not say: 2 reads and a write
_CHOICE_COST_US_PER_S = 1e6


@dataclass(frozen=True, slots=True)
class ChoiceCost:
    """What it takes to choose a kernel for one GEMM, medians over those whose configs were all timed.

    Attributes:
        num_gemms: GEMMs; 0: there is none, so the model's times are of all GEMMs, and what profiling takes is 0.
        num_configs: configs of a GEMM.
        model_us, model_p90_us: `select_config` on this machine, one thread, in microseconds; and its 90th
            percentile.
        profile_device_s: device time of all replays of all configs, as the tables say, in seconds.
        profile_s: that and the pauses and L2 flushes between replays; no build, no launch that is not timed.
    """

    num_gemms: int
    num_configs: int
    model_us: float
    model_p90_us: float
    profile_device_s: float
    profile_s: float

    @property
    def ratio(self) -> float:
        """Time of profiling over that of the model."""
        return _CHOICE_COST_US_PER_S * self.profile_s / self.model_us if self.model_us else 0.0


def measure_choice_cost(
    arch: GpuSpec, timings: Timings, is_full: Mask, protocols: dict[str, dict[str, Any]]
) -> ChoiceCost:
    """Time the model's choice, and add up what profiling took.

    Args:
        arch: the GPU.
        timings: rows of configs.
        is_full: [gemms], whether all configs of a GEMM were timed.
        protocols: see `pauses_and_flushes_s`.
    """
    model_us = time_select_config(arch, timings, is_full if is_full.any() else np.ones(len(is_full), bool))
    median_us, p90_us = float(np.median(model_us)), float(np.quantile(model_us, 0.9))
    if not is_full.any():
        return ChoiceCost(0, 0, median_us, p90_us, 0.0, 0.0)
    device_s = np.bincount(timings.gemm, profile_us(timings))[is_full] / _CHOICE_COST_US_PER_S
    between_s = np.bincount(timings.gemm, pauses_and_flushes_s(arch, timings, protocols))[is_full]
    num_configs = int(np.median(np.bincount(timings.gemm)[is_full]))
    return ChoiceCost(
        int(is_full.sum()), num_configs, median_us, p90_us, float(np.median(device_s)),
        float(np.median(device_s + between_s)),
    )  # fmt: skip


def time_select_config(
    arch: GpuSpec, timings: Timings, gemms: Mask, clock: Callable[[], float] = time.perf_counter
) -> Floats:
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
        select_config(asked[place][0], arch, **asked[place][1])  # compiles, or loads what was compiled
    found = np.empty(len(rows))
    for place, (problem, options) in enumerate(asked):
        start = clock()
        select_config(problem, arch, **options)
        found[place] = _CHOICE_COST_US_PER_S * (clock() - start)
    return found


def pauses_and_flushes_s(arch: GpuSpec, timings: Timings, protocols: dict[str, dict[str, Any]]) -> Floats:
    """Time of each row that the device waits or flushes L2 between replays, [rows], in seconds; 0 where not known.

    Args:
        arch: the GPU.
        timings: the rows.
        protocols: of each table, the settings that its meta file has under `protocol`.
    """
    num = timings.frame["num_replays"].to_numpy(np.float64)
    found = np.zeros(len(timings))
    bytes_per_s = 1e9 * arch.dram_achievable_gb_per_s
    for name, protocol in protocols.items():
        rows = (timings.frame["table"] == name).to_numpy(bool) & (num > 1)  # rows given up have one short replay
        is_long = timings.sizes[:, 1] > protocol.get("max_short_rows", np.inf)
        pause_s = np.where(is_long & (protocol.get("clock") == "burst"), protocol.get("idle_s", 0.0), 0.0)
        passes = protocol.get("flush_passes", _FLUSH_PASSES) if protocol.get("l2") == "cold" else 0
        flush_s = passes * protocol.get("cold_bytes", 0) / bytes_per_s
        found[rows] = (num * (pause_s + flush_s))[rows]
    return found
