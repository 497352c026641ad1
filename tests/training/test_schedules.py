"""Closed forms of pipeline schedules against the step played event by event."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_eval import InvalidOptionError, UnsupportedError
from gemm_eval.training import StageTimes, Task, num_in_flight, schedule_us, stage_chunks, timeline

US = st.floats(0.1, 10.0)
TIMES = st.builds(StageTimes, US, US, US)


def end_us(tasks: list[Task]) -> float:
    return max(task.end_us for task in tasks)


def most_in_flight(tasks: list[Task], stage: int, num_chunks: int) -> float:
    held = most = 0
    for task in tasks:
        if task.stage == stage:
            held += 1 if task.is_forward else -1
            most = max(most, held)
    return most / num_chunks


def play_zero_bubble(times: StageTimes, num_stages: int, num_micro: int) -> float:
    """ZB-H1 of equal stages: backward, then forward as far as 1F1B's memory goes, else weight gradients."""
    forward_us, dgrad_us, wgrad_us = times
    ready: list[dict[str, list[float]]] = [{"F": [], "B": [], "W": []} for _ in range(num_stages)]
    ready[0]["F"] = [0.0] * num_micro
    free, started = [0.0] * num_stages, [0] * num_stages  # forwards less dgrads
    counts = [dict.fromkeys("FBW", 0) for _ in range(num_stages)]
    while any(count["W"] < num_micro for count in counts):
        # the next event anywhere: of each device what it can start first, by priority at that time
        options = []
        for stage in range(num_stages):
            count = counts[stage]
            for rank, kind in enumerate("BFW"):
                if kind == "F" and started[stage] >= num_stages - stage:
                    continue
                if count[kind] < len(ready[stage][kind]):
                    options.append((max(free[stage], ready[stage][kind][count[kind]]), rank, stage, kind))
        at_us, _, stage, kind = min(options)
        us = {"F": forward_us, "B": dgrad_us, "W": wgrad_us}[kind]
        end_us = free[stage] = at_us + us
        counts[stage][kind] += 1
        if kind == "F":
            started[stage] += 1
            follower, where = ("F", stage + 1) if stage < num_stages - 1 else ("B", stage)
            ready[where][follower].append(end_us)
        elif kind == "B":
            started[stage] -= 1
            ready[stage]["W"].append(end_us)
            if stage:
                ready[stage - 1]["B"].append(end_us)
    return max(free)


@given(TIMES, st.integers(1, 8), st.integers(1, 4), st.integers(1, 4))
def test_equal_stages_take_what_the_simulator_says(
    times: StageTimes, num_stages: int, rounds: int, num_chunks: int
) -> None:
    num_chunks = num_chunks if num_stages > 1 else 1
    schedule = "interleaved" if num_chunks > 1 else "1f1b"
    stages, num_micro = [times] * num_stages, rounds * num_stages
    tasks = timeline(stages, num_micro, schedule, num_chunks)
    assert schedule_us(stages, num_micro, schedule, num_chunks) == pytest.approx(end_us(tasks))
    for stage in range(num_stages):
        held = num_in_flight(stage, num_stages, num_micro, schedule, num_chunks)
        assert held == pytest.approx(most_in_flight(tasks, stage, num_chunks))


@given(TIMES, st.lists(US, min_size=1, max_size=6), st.integers(1, 20))
def test_stages_in_proportion_take_at_most_the_closed_form_and_at_least_the_slowest(
    times: StageTimes, factors: list[float], num_micro: int
) -> None:
    stages = [StageTimes(*(factor * us for us in times)) for factor in factors]
    latency_us = end_us(timeline(stages, num_micro))
    assert latency_us <= schedule_us(stages, num_micro) * (1 + 1e-9)
    assert latency_us >= num_micro * max(stage.total_us for stage in stages) * (1 - 1e-9)


@given(st.lists(TIMES, min_size=1, max_size=6), st.integers(1, 20))
def test_unequal_stages_take_no_longer_than_as_many_of_the_slowest_passes(
    stages: list[StageTimes], num_micro: int
) -> None:
    pass_us = max(of.forward_us for of in stages) + max(of.dgrad_us + of.wgrad_us for of in stages)
    most_us = (num_micro + len(stages) - 1) * pass_us
    assert end_us(timeline(stages, num_micro)) <= most_us * (1 + 1e-9)


@pytest.mark.parametrize(("num_stages", "num_micro"), [(2, 6), (4, 8), (8, 24)])
def test_zero_bubble_fills_all_but_the_published_bubble(num_stages: int, num_micro: int) -> None:
    equal = StageTimes(1.0, 1.0, 1.0)
    closed_us = schedule_us([equal] * num_stages, num_micro, "zero-bubble")
    assert closed_us == num_micro * 3 + (num_stages - 1) == play_zero_bubble(equal, num_stages, num_micro)
    short = StageTimes(1.0, 1.2, 0.8)
    closed_us = schedule_us([short] * num_stages, num_micro, "zero-bubble")
    assert play_zero_bubble(short, num_stages, num_micro) == pytest.approx(closed_us, rel=0.03)


@pytest.mark.parametrize(("num_stages", "num_micro"), [(2, 4), (8, 20), (16, 120)])
def test_dualpipe_has_the_published_bubble(num_stages: int, num_micro: int) -> None:
    """(PP / 2 - 1) (F&B + B - 3W) of the whole backward pass B, beside PP + 1 microbatches whose passes are alone."""
    equal, pair_us = StageTimes(1.0, 1.0, 1.0), 2.4
    latency_us = schedule_us([equal] * num_stages, num_micro, "dualpipe", pairs_us=[pair_us] * num_stages)
    busy_us = (num_micro - num_stages - 1) * pair_us + (num_stages + 1) * equal.total_us
    assert latency_us - busy_us == pytest.approx((num_stages / 2 - 1) * (pair_us + 2.0 - 3.0))


@pytest.mark.parametrize(("num_stages", "num_micro"), [(1, 4), (3, 8), (4, 4), (4, 9)])
def test_numbers_that_dualpipe_does_not_take_are_refused(num_stages: int, num_micro: int) -> None:
    with pytest.raises(InvalidOptionError, match=f"got {num_stages} and {num_micro}"):
        schedule_us([StageTimes(1.0, 1.0, 1.0)] * num_stages, num_micro, "dualpipe")


@given(st.lists(TIMES, min_size=4, max_size=4), st.integers(4, 16), st.floats(0.5, 1.0))
def test_dualpipe_waits_for_its_busiest_device(stages: list[StageTimes], rounds: int, share: float) -> None:
    pairs_us = [share * stage.total_us for stage in stages]
    latency_us = schedule_us(stages, 2 * rounds, "dualpipe", pairs_us=pairs_us)
    slowest_us = max(pairs_us[0] + pairs_us[3], pairs_us[1] + pairs_us[2]) / 2
    assert latency_us >= 2 * rounds * slowest_us * (1 - 1e-9)
    longer_us = schedule_us(stages, 2 * rounds + 2, "dualpipe", pairs_us=pairs_us)
    assert 0 < longer_us - latency_us <= 2 * max(pairs_us) * (1 + 1e-9)
    assert latency_us <= schedule_us(stages, 2 * rounds, "dualpipe") * (1 + 1e-9)  # one after the other


def test_what_is_not_played_is_refused() -> None:
    times = StageTimes(1.0, 1.1, 0.9)
    with pytest.raises(UnsupportedError, match="got dualpipe"):
        timeline([times] * 16, 120, "dualpipe")
    for stages, num_micro in ((4, 6), (1, 4)):
        with pytest.raises(InvalidOptionError, match="several chunks take two or more stages"):
            timeline([times] * stages, num_micro, "interleaved", 2)


@given(st.lists(TIMES, min_size=1, max_size=5), st.integers(1, 3), st.integers(1, 3))
def test_a_step_has_each_pass_once_and_no_stage_does_two_things_at_once(
    stages: list[StageTimes], rounds: int, num_chunks: int
) -> None:
    num_chunks = num_chunks if len(stages) > 1 else 1
    num_micro = rounds * len(stages)
    tasks = timeline(stages, num_micro, "interleaved" if num_chunks > 1 else "1f1b", num_chunks)
    for stage, times in enumerate(stages):
        own = [task for task in tasks if task.stage == stage]
        assert {task[1:4] for task in own} == set(itertools.product((False, True), range(num_micro), range(num_chunks)))
        assert len(own) == 2 * num_micro * num_chunks
        assert all(later.start_us >= task.end_us for task, later in itertools.pairwise(own))
        assert sum(task.end_us - task.start_us for task in own) == pytest.approx(num_micro * times.total_us)


@given(st.integers(1, 130), st.integers(1, 16), st.integers(1, 8))
def test_runs_of_layers_are_all_layers_once_and_as_even_as_they_go(num: int, num_stages: int, num_chunks: int) -> None:
    stages = stage_chunks(num, num_stages, num_chunks)
    in_order = [stages[index % num_stages][index // num_stages] for index in range(num_stages * num_chunks)]
    assert [layer for run in in_order for layer in run] == list(range(num))
    lengths = [len(run) for run in in_order]
    assert max(lengths) - min(lengths) <= 1
    assert lengths[0] == lengths[-1] == min(lengths) or num % len(lengths) > len(lengths) - 2
