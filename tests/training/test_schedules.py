"""Closed forms of pipeline schedules against the simulator of `tests.training.pipelines`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_eval.training import StageTimes, num_in_flight, schedule_us, stage_chunks
from tests.training.pipelines import simulate, simulate_zero_bubble

US = st.floats(0.1, 10.0)
TIMES = st.builds(StageTimes, US, US, US)


@given(TIMES, st.integers(1, 8), st.integers(1, 4), st.integers(1, 4))
def test_equal_stages_take_what_the_simulator_says(
    times: StageTimes, num_stages: int, rounds: int, num_chunks: int
) -> None:
    num_chunks = num_chunks if num_stages > 1 else 1
    schedule = "interleaved" if num_chunks > 1 else "1f1b"
    stages, num_micro = [times] * num_stages, rounds * num_stages
    latency_us, most = simulate(stages, num_micro, num_chunks)
    assert schedule_us(stages, num_micro, schedule, num_chunks) == pytest.approx(latency_us)
    held = [num_in_flight(stage, num_stages, num_micro, schedule, num_chunks) for stage in range(num_stages)]
    assert held == pytest.approx(most)


@given(st.lists(TIMES, min_size=1, max_size=6), st.integers(1, 20))
def test_unequal_stages_take_at_most_the_closed_form_and_at_least_the_slowest(
    stages: list[StageTimes], num_micro: int
) -> None:
    latency_us, _ = simulate(stages, num_micro)
    assert latency_us <= schedule_us(stages, num_micro) * (1 + 1e-9)
    assert latency_us >= num_micro * max(stage.total_us for stage in stages) * (1 - 1e-9)


@pytest.mark.parametrize(("num_stages", "num_micro"), [(2, 6), (4, 8), (8, 24)])
def test_zero_bubble_fills_all_but_the_published_bubble(num_stages: int, num_micro: int) -> None:
    equal = StageTimes(1.0, 1.0, 1.0)
    closed_us = schedule_us([equal] * num_stages, num_micro, "zero-bubble")
    assert closed_us == num_micro * 3 + (num_stages - 1) == simulate_zero_bubble(equal, num_stages, num_micro)
    short = StageTimes(1.0, 1.2, 0.8)
    closed_us = schedule_us([short] * num_stages, num_micro, "zero-bubble")
    assert simulate_zero_bubble(short, num_stages, num_micro) == pytest.approx(closed_us, rel=0.03)


def test_dualpipe_has_the_published_bubble() -> None:
    times = StageTimes(1.0, 1.1, 0.9)  # (PP / 2 - 1) (F&B + B - 3W), of the whole backward pass B
    backward = 2.0
    bubble_us = schedule_us([times] * 16, 120, "dualpipe") - 120 * times.total_us
    assert bubble_us == pytest.approx(7 * ((1.0 + backward) + backward - 3 * 0.9))


@given(st.integers(1, 130), st.integers(1, 16), st.integers(1, 8))
def test_runs_of_layers_are_all_layers_once_and_as_even_as_they_go(num: int, num_stages: int, num_chunks: int) -> None:
    stages = stage_chunks(num, num_stages, num_chunks)
    in_order = [stages[index % num_stages][index // num_stages] for index in range(num_stages * num_chunks)]
    assert [layer for run in in_order for layer in run] == list(range(num))
    lengths = [len(run) for run in in_order]
    assert max(lengths) - min(lengths) <= 1
    assert lengths[0] == lengths[-1] == min(lengths) or num % len(lengths) > len(lengths) - 2
