"""What choosing a W4A16 kernel costs: the model's time on this machine, and what profiling takes on the device."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gemm_eval.arch import GpuSpec
from gemm_eval.evaluate import select_config
from gemm_eval.validation.choice import first_rows, profile_us
from gemm_eval.validation.predictors.w4a16_rows import types_of
from gemm_eval.validation.timings import Floats, Mask, Timings

__all__ = ["ChoiceCost", "measure_choice_cost", "pauses_and_flushes_s", "time_select_config"]

_FLUSH_PASSES = 3  # over `cold_bytes` before each cold replay, where a meta file does not say: 2 reads and a write
_US_PER_S = 1e6


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
        return _US_PER_S * self.profile_s / self.model_us if self.model_us else 0.0


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
    device_s = np.bincount(timings.gemm, profile_us(timings))[is_full] / _US_PER_S
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
        found[place] = _US_PER_S * (clock() - start)
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
