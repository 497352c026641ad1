"""Choosing among timed W4A16 kernels: points by hand, orders, regret and the cost of a choice."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest

from gemm_eval.models.gpu import pack_gpu
from gemm_eval.models.gpu.packed import Joined, join_packed
from gemm_eval.models.gpu.w4a16.candidates import config_of_row
from gemm_eval.validation import studies
from gemm_eval.validation.subjects import w4a16
from gemm_eval.validation.tables import Timings
from gemm_eval.workload import GemmProblem, RunOptions
from tests.validation.inputs import H200
from tools.laws.kernel_space import enumerate_configs

TYPES = GemmProblem(
    1, 64, 64, 64, input_dtype="fp16", weight_dtype="int4", output_dtype="fp16", group_size=128, scale_dtype="fp16"
)
SMALL, LARGE = (1, 4096, 4096), (2048, 4096, 8192)  # M, K, N


@cache
def packed() -> Joined:
    return join_packed([pack_gpu(H200, TYPES.types, RunOptions("gemm-eval"))])


def timings_of(rows: Sequence[tuple[tuple[int, int, int], int, int, float]], replays: int = 3) -> Timings:
    """Timings of (M, K, N), row of the menu, parts of K and latency in us."""
    menus = packed().candidates
    records: list[Mapping[str, Any]] = []
    for (M, K, N), place, parts, latency_us in rows:
        config = config_of_row(menus[place], parts)
        names = {name: getattr(config, name).name.lower() for name in ("schedule", "decomposition", "raster_order")}
        head = {"G": 1, "M": M, "K": K, "N": N, "input_dtype": "fp16", "weight_dtype": "int4", "output_dtype": "fp16"}
        tail = {"mode": "group", "group_size": 128, "latency_us": latency_us, "table": "mine"}
        counts = {"num_replays": replays, "calls_per_replay": 10}
        records.append(head | tail | counts | config._asdict() | names)
    which = np.array([(place, parts) for _, place, parts, _ in rows], np.int64)
    packing = w4a16.W4A16Rows(packed(), np.zeros(len(rows), np.int64), which)
    return w4a16.w4a16_timings(pd.DataFrame(records), packing, "mine", "h200-sxm")


def two_gemms() -> Timings:
    """The best of the first is its third config, of the second its second; the table is sorted by time."""
    return timings_of(
        [(SMALL, 7, 1, 10.0), (SMALL, 3, 1, 11.0), (SMALL, 5, 1, 20.0), (LARGE, 9, 1, 40.0), (LARGE, 8, 1, 60.0)]
    )


def test_regret_of_known_choices() -> None:
    timings = two_gemms()
    order = studies.order_by(timings, np.array([3.0, 1.0, 2.0, 1.0, 2.0]))  # chooses 11 of 10 us, and 40 of 40 us
    first, two = studies.ranked_choice(timings, "first", order), studies.ranked_choice(timings, "two", order, 2)
    all_gemms = np.ones(2, bool)
    regret = studies.measure_loss(timings, first, all_gemms)
    assert first.chosen_us.tolist() == [11.0, 40.0]
    assert first.in_top.tolist() == [[0.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    assert regret.mean_frac == pytest.approx(0.05)
    assert regret.median_frac == pytest.approx(0.05)
    assert regret.p95_frac == pytest.approx(0.095)
    assert regret.worst_frac == pytest.approx(0.1)
    assert regret.speed_frac == pytest.approx((10 / 11) ** 0.5)
    assert regret.least_speed_frac == pytest.approx(10 / 11)
    assert regret.p5_speed_frac == pytest.approx(1.0 - 0.95 * (1.0 - 10 / 11))
    assert (regret.top1_frac, regret.top3_frac, regret.top10_frac) == (0.5, 1.0, 1.0)
    assert regret.profiled_s == 0.0
    assert two.chosen_us.tolist() == [11.0, 40.0]
    assert two.profiled_us.tolist() == [30 * (11.0 + 20.0), 30 * 100.0]
    assert studies.measure_loss(timings, first, np.array([True, False])).worst_frac == pytest.approx(0.1)
    assert studies.ranked_choice(timings, "all", order, 9).chosen_us.tolist() == [10.0, 40.0]
    alike = timings_of([(SMALL, 7, 1, 10.0), (SMALL, 3, 1, 10.0)])  # equal best configs count by the first
    assert studies.ranked_choice(alike, "", studies.order_by(alike, np.array([1.0, 0.0]))).in_top[0, 0] == 1.0


def test_time_of_profiling() -> None:
    timings = two_gemms()
    protocol = {"l2": "cold", "clock": "burst", "idle_s": 0.5, "max_short_rows": 256, "cold_bytes": 0}
    assert studies.profile_us(timings).tolist() == [300.0, 330.0, 600.0, 1200.0, 1800.0]
    assert w4a16.pauses_and_flushes_s(H200, timings, {"mine": protocol}).tolist() == [0.0, 0.0, 0.0, 1.5, 1.5]
    assert w4a16.pauses_and_flushes_s(H200, timings, {"other": protocol}).tolist() == [0.0] * 5
    flushes_s = w4a16.pauses_and_flushes_s(
        H200, timings, {"mine": {"l2": "cold", "cold_bytes": 1e9 * H200.dram_achievable_gb_per_s}}
    )
    assert flushes_s.tolist() == pytest.approx([9.0] * 5)
    ticks = iter(range(100))
    assert w4a16.time_select_config(H200, timings, np.ones(2, bool), lambda: next(ticks)).tolist() == [1e6, 1e6]
    given_up = timings_of([(LARGE, 9, 1, 40.0)], replays=1)
    assert w4a16.pauses_and_flushes_s(H200, given_up, {"mine": protocol}).tolist() == [0.0]


def test_which_gemms_have_all_configs() -> None:
    M, K, N = SMALL
    problem = replace(TYPES, M=M, K=K, N=N)
    menus = packed()[1]
    places = {config_of_row(menus[place], 1): place for place in range(len(menus))}
    rows = []
    for config in enumerate_configs(H200, problem, "gemm-eval"):
        base = config
        if config.family != "w4a16_sm90_cluster":  # K is cut by those that are compiled so
            base = config._replace(decomposition=type(config.decomposition).DATA_PARALLEL, split_k=1)
        parts = 0 if config.decomposition.name == "STREAM_K" else config.split_k
        rows.append((SMALL, places[base], parts, 1.0 + len(rows)))
    assert w4a16.has_all_configs(timings_of([*rows, (LARGE, 9, 1, 1.0)])).tolist() == [True, False]
    assert w4a16.has_all_configs(timings_of(rows[1:])).tolist() == [False]
