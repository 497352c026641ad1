"""The pipeline of a prompt's chunks against a simulation of its events, and what follows from the formula."""

from __future__ import annotations

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_eval.estimate.model import pipeline_us

TIMES = st.integers(1, 8).flatmap(
    lambda stages: st.lists(st.lists(st.floats(0.0, 1e6), min_size=stages, max_size=stages), min_size=1, max_size=9)
)


def simulate(chunk_us: list[list[float]]) -> float:
    """Run chunks through queues before each stage, event by event."""
    num_stages, now = len(chunk_us[0]), 0.0
    queues: list[list[int]] = [[] for _ in range(num_stages)]
    queues[0] = list(range(len(chunk_us)))
    busy = [False] * num_stages
    events: list[tuple[float, int, int]] = []
    while True:
        for stage in range(num_stages):
            if queues[stage] and not busy[stage]:
                chunk = queues[stage].pop(0)
                busy[stage] = True
                heapq.heappush(events, (now + chunk_us[chunk][stage], stage, chunk))
        if not events:
            return now
        now, stage, chunk = heapq.heappop(events)
        busy[stage] = False
        if stage + 1 < num_stages:
            queues[stage + 1].append(chunk)


@given(TIMES)
def test_the_recurrence_is_the_simulation(chunk_us: list[list[float]]) -> None:
    found = pipeline_us(chunk_us)
    assert found == pytest.approx(simulate(chunk_us))
    stage_us = [sum(column) for column in zip(*chunk_us, strict=True)]
    assert max(*stage_us, *map(sum, chunk_us)) <= found * (1 + 1e-12) + 1e-9
    assert found <= sum(stage_us) * (1 + 1e-12) + 1e-9
    assert pipeline_us(chunk_us[:-1] or chunk_us) <= found * (1 + 1e-12)


def test_equal_chunks_take_one_stage_more_each() -> None:
    assert pipeline_us([[2.0, 3.0, 1.0]] * 5) == 2.0 + 3.0 + 1.0 + 4 * 3.0
