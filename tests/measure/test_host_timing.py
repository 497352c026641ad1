"""GEMMs and streams on this machine: which ones, how they are timed, which samples count. No time is asserted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, pairwise

import numpy as np
import pytest

from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.measure.host import campaign as streams
from gemm_eval.measure.host import timing as timed
from gemm_eval.measure.host.campaign import measure_bandwidth, measure_host, stream_gb_per_s, working_sets
from gemm_eval.measure.host.cpu import blas_info, detect_host, pinned_blas
from gemm_eval.measure.host.host_kernels import copy_words, read_words, run_chain
from gemm_eval.measure.host.timing import HostShape, pick_host_shapes, time_host_shapes, time_launch
from tests.measure.host_samples import FACTS, measurement

FEW = [HostShape(1, 8, 16), HostShape(5, 7, 3), HostShape(32, 32, 32)]


# which GEMMs


def test_shapes_span_rows_and_pairs() -> None:
    shapes = pick_host_shapes(mac_per_us=1e5, budget_s=90.0)

    assert 100 <= len(shapes) <= 200
    assert len(set(shapes)) == len(shapes)
    assert {shape.M for shape in shapes} >= {1, 2, 3, 12, 256, 2048}
    assert len({(shape.K, shape.N) for shape in shapes}) >= 10
    assert any(shape.N % 16 and shape.K % 16 for shape in shapes)


def test_shapes_come_shuffled_in_the_same_order() -> None:
    shapes = pick_host_shapes(1e5, 90.0)
    assert shapes == pick_host_shapes(1e5, 90.0)
    assert sum(a.num_macs > b.num_macs for a, b in pairwise(shapes)) > len(shapes) // 4


def test_a_slow_machine_leaves_out_the_largest() -> None:
    fast, slow = (pick_host_shapes(rate, 60.0) for rate in (1e6, 1e3))
    assert set(slow) < set(fast)
    assert max(shape.num_macs for shape in slow) <= min(shape.num_macs for shape in set(fast) - set(slow))


# how they are timed


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_timings_of_a_few(dtype: str) -> None:
    found = {timing.shape: timing for timing in time_host_shapes(FEW, dtype, budget_s=0.3)}

    assert set(found) <= set(FEW)  # on a busy machine one may never run undisturbed
    for timing in found.values():
        assert 0.0 < timing.min_us <= timing.latency_us
        assert timing.spread_frac >= 0.0
        assert timing.num_samples >= 1
        assert timing.calls_per_sample >= 1


def test_launch_is_of_the_least_gemm() -> None:
    assert time_launch().shape == HostShape(1, 1, 1)


def test_unknown_type() -> None:
    with pytest.raises(InvalidOptionError, match="--dtype must be one of fp32, fp64, got"):
        time_host_shapes(FEW, "fp16", budget_s=1.0)


def test_disturbed_samples_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's count of switches rises during every other sample."""
    counts = cycle((0, 1, 1, 1))
    monkeypatch.setattr(timed, "_num_switches", lambda: next(counts))
    monkeypatch.setattr(timed, "_SWITCH_EVERY_S", float("inf"))  # on a busy machine a sample may last long
    monkeypatch.setattr(timed, "_NUM_PASSES", 1)
    (found,) = time_host_shapes(FEW[:1], budget_s=0.05)

    assert found.num_disturbed >= 1
    assert abs(found.num_samples - found.num_disturbed) <= 1


def test_what_never_runs_undisturbed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter(range(1_000_000))
    monkeypatch.setattr(timed, "_num_switches", lambda: next(counts))
    monkeypatch.setattr(timed, "_SWITCH_EVERY_S", float("inf"))  # on a busy machine a sample may last long
    assert time_host_shapes(FEW, budget_s=0.05) == []


def test_wrong_products_are_found() -> None:
    draws = np.random.default_rng(0)
    A, B = (draws.random((64, 64), np.float32) for _ in range(2))
    timed.check_product(A, B, A @ B, draws)
    with pytest.raises(GemmEvalError, match=r"BLAS is wrong: element \(\d+, \d+\)"):
        timed.check_product(A, B, A @ B * np.float32(1.001), draws)
    with pytest.raises(GemmEvalError, match="BLAS is wrong"):
        timed.check_product(A, B, np.full((64, 64), np.nan, np.float32), draws)


# threads


@pytest.fixture
def _same_mask() -> Iterator[None]:
    mask = getattr(os, "sched_getaffinity", lambda _: None)(0)
    yield
    assert getattr(os, "sched_getaffinity", lambda _: None)(0) == mask


@pytest.mark.usefixtures("_same_mask")
def test_threads_are_limited_and_pinned_for_a_while() -> None:
    before, cpus = blas_info(), detect_host().cpus
    if not before.max_threads:
        pytest.skip("this BLAS does not let its threads be limited")
    with pinned_blas(1, cpus):
        assert blas_info().max_threads == 1
        if cpus:
            assert os.sched_getaffinity(0) == {cpus[0]}
    assert blas_info() == before


@pytest.mark.usefixtures("_same_mask")
def test_more_threads_than_blas_has() -> None:
    with pytest.raises(InvalidOptionError, match=r"BLAS .*threads"), pinned_blas(1 << 20, (0,)):
        pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_threads": 0}, "--threads must be 1 to"),
        ({"num_threads": 1 << 20}, "--threads must be 1 to"),
        ({"budget_s": 1.0}, "--budget-s must be at least 5, got 1"),
        ({"budget_s": float("nan")}, "--budget-s must be at least 5, got nan"),
        ({"dtype": "bf16"}, "--dtype must be one of fp32, fp64, got"),
    ],
)
def test_options_out_of_range(options: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        measure_host(**options)  # type: ignore[arg-type]


# streams


def test_working_sets_grow_beyond_the_last_cache() -> None:
    sizes = working_sets(FACTS, 4)
    assert sizes[0] == 4 * (16 << 10)
    assert all(b == 2 * a for a, b in pairwise(sizes))
    assert 2 * FACTS.last_cache_bytes < sizes[-1] <= FACTS.memory_bytes // 8
    little = replace(FACTS, memory_bytes=64 << 20)
    assert working_sets(little, 4)[-1] <= little.memory_bytes // 8
    assert working_sets(replace(FACTS, memory_bytes=1), 4) == [sizes[0]]


def test_streams_are_measured() -> None:
    points = measure_bandwidth([1 << 16], 2, ())
    assert [(point.kind, point.num_threads, point.working_set_bytes) for point in points] == [
        ("read", 2, 1 << 16),
        ("copy", 2, 1 << 16),
    ]
    assert all(point.gb_per_s > 0.0 for point in points)
    assert measure_bandwidth([1 << 16], 1, (), stop_at=0.0) == []


def test_a_failing_thread_stops_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(kind: str, size: int) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(streams, "_make_stream", fail)
    with pytest.raises(MemoryError, match="no room"):
        measure_bandwidth([1 << 16], 2, ())


def test_bandwidth_of_a_size_is_that_of_the_nearest() -> None:
    points = measurement().bandwidth
    assert stream_gb_per_s(points, 4, 50 << 20).gb_per_s == 30.0
    assert stream_gb_per_s(points, 1, 100).gb_per_s == 60.0
    with pytest.raises(ValueError, match="no bandwidth of kind copy with 4 threads"):
        stream_gb_per_s(points, 4, 1, "copy")


def test_loops_do_what_they_say() -> None:
    words = np.arange(10, dtype=np.int64)
    target = np.zeros_like(words)
    copy_words(words, target, 3)
    assert target.tolist() == (words + 2).tolist()
    assert read_words(words, 2) == sum(i for i in range(10)) + sum(i ^ 1 for i in range(10))
    state = 5
    for _ in range(2):
        state ^= state << 13
        state ^= state >> 7
        state ^= state << 17
    assert run_chain(5, 2) == (state + (1 << 63)) % (1 << 64) - (1 << 63)
