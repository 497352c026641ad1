"""The arithmetic of the timing protocol, on a runner whose clock is known."""

from __future__ import annotations

import itertools

import pytest

from gemm_eval.device import Call, TimedGraph, capture_calls, measure_floor_us, num_calls, time_in_turns
from gemm_eval.errors import InvalidOptionError
from gemm_eval.measure import GemmShape, TimingProtocol, measure_shape
from gemm_eval.measure.runner import place_copies
from tests.measure.fake_runner import OVERHEAD_US, FakeRunner

COLD = TimingProtocol()
L2_BYTES = FakeRunner.l2_bytes


@pytest.mark.parametrize(
    ("latency_us", "calls"),
    [
        (1.0, 400), (3.0, 400), (10.0, 300), (1000.0, 3), (2000.0, 3), (3000.0, 3), (4000.0, 2), (8999.0, 1),
        (20_000.0, 1),
    ],
)  # fmt: skip
def test_calls_of_a_replay(latency_us: float, calls: int) -> None:
    assert num_calls(latency_us, COLD) == calls


def test_weight_copies_exceed_the_l2_and_do_not_overlap() -> None:
    weight_bytes = 2 * 1001 * 999
    offsets = place_copies(weight_bytes, 1 << 30, L2_BYTES, COLD)

    assert len(offsets) * weight_bytes > COLD.cold_bytes
    assert all(offset % 256 == 0 for offset in offsets)
    assert all(b - a >= weight_bytes for a, b in itertools.pairwise(offsets))
    assert offsets[-1] + weight_bytes <= 1 << 30


def test_as_many_copies_as_the_pool_holds() -> None:
    assert len(place_copies(400, 1000, L2_BYTES, COLD)) == 2
    assert len(place_copies(1000, 1000, L2_BYTES, COLD)) == 1
    assert len(place_copies(400, 1 << 20, L2_BYTES, TimingProtocol(l2="warm"))) == 1
    with pytest.raises(InvalidOptionError, match=r"one copy of the weights: 1,001 bytes, got 1,000"):
        place_copies(1001, 1000, L2_BYTES, COLD)


@pytest.mark.parametrize(("l2_mib", "cold_bytes"), [(4, 256_000_000), (60, 256_000_000), (126, 4 * 126 << 20)])
def test_other_copies_and_a_flush_exceed_every_l2_four_times(l2_mib: int, cold_bytes: int) -> None:
    l2_bytes, weight_bytes = l2_mib << 20, 1 << 20
    copies = COLD.num_weight_copies(weight_bytes, l2_bytes, most=10_000)

    assert COLD.cold_bytes_of(l2_bytes) == cold_bytes
    assert min(cold_bytes, 398 * weight_bytes) <= (copies - 1) * weight_bytes  # 400 calls of a graph at most


def test_overhead_is_not_charged() -> None:
    runner = FakeRunner(latency_us=7.0)
    floor_us = measure_floor_us(runner)
    timing = measure_shape(runner, GemmShape(1, 8, 4096, 4096), COLD, floor_us=floor_us)

    assert floor_us == OVERHEAD_US
    assert timing.latency_us == pytest.approx(7.0)
    assert timing.min_us == pytest.approx(7.0)
    assert timing.spread_frac == pytest.approx(0.0, abs=1e-9)
    assert (timing.num_replays, timing.calls_per_replay, timing.num_weight_copies) == (7, 400, 9)


def test_successive_calls_read_different_weights() -> None:
    runner = FakeRunner(latency_us=100.0)
    measure_shape(runner, GemmShape(1, 8, 4096, 4096), COLD)
    last_replay = runner.weights_read[-30:]

    assert len(set(last_replay[:9])) == 9
    assert last_replay[:9] == last_replay[9:18]


def test_cold_is_flushed_before_each_replay_and_warm_never() -> None:
    cold, warm = FakeRunner(), FakeRunner()
    measure_shape(cold, GemmShape(1, 8, 512, 512), COLD)
    timing = measure_shape(warm, GemmShape(1, 8, 512, 512), TimingProtocol(l2="warm"))

    assert cold.log.count("flush") == 7
    assert "flush" not in warm.log
    assert timing.num_weight_copies == 1


@pytest.mark.parametrize(("rows", "clock", "pauses"), [(256, "burst", 0), (257, "burst", 5), (257, "sustained", 0)])
def test_pauses_keep_the_clock_up(rows: int, clock: str, pauses: int) -> None:
    slept: list[float] = []
    measure_shape(FakeRunner(100.0), GemmShape(1, rows, 512, 512), TimingProtocol(clock=clock), sleep=slept.append)

    assert slept == [0.015] * pauses


def test_sustained_warms_up() -> None:
    runner = FakeRunner(latency_us=1000.0)
    measure_shape(runner, GemmShape(1, 512, 512, 512), TimingProtocol(clock="sustained"))

    assert runner.now_us > 300_000


def test_unknown_words_are_errors() -> None:
    with pytest.raises(InvalidOptionError, match=r"l2 must be one of .*, got 'hot'"):
        TimingProtocol(l2="hot")
    with pytest.raises(InvalidOptionError, match="clock must be one of burst, sustained"):
        TimingProtocol(clock="base")


def test_a_way_that_is_far_slower_gets_a_short_replay() -> None:
    runner = FakeRunner(latency_us=100.0)
    calls = runner.bind(GemmShape(1, 8, 512, 512), place_copies(1 << 19, 1 << 30, L2_BYTES, COLD))
    graph = capture_calls(runner, calls, COLD, floor_us=OVERHEAD_US, best_us=100.0 / 3 - 1)
    fair = capture_calls(runner, calls, COLD, floor_us=OVERHEAD_US, best_us=100.0 / 3 + 1)

    assert graph.given_up_us == pytest.approx(100.0)
    assert graph.num_calls == 2  # 300 us
    assert (fair.given_up_us, fair.num_calls) == (None, 30)


def test_a_graph_that_fails_is_left_out_or_raises() -> None:
    class Clock(FakeRunner):
        def elapsed_us(self, enqueue: Call) -> float:
            enqueue()
            return 10.0

    def fail() -> None:
        raise RuntimeError("launch failure")

    order: list[str] = []
    graphs = {
        name: TimedGraph(launch, num_calls, lambda name=name: order.append(name))  # type: ignore[misc]
        for name, launch, num_calls in (("works", lambda: None, 4), ("fails", fail, 4), ("hasty", lambda: None, -1))
    }
    failures: dict[str, Exception] = {}
    protocol = TimingProtocol(num_short_replays=3)
    samples = time_in_turns(Clock(), graphs, 16, protocol, floor_us=2.0, failures=failures)

    assert samples == {"works": [2.0, 2.0, 2.0], "fails": [], "hasty": []}
    assert order == ["works", "fails", "hasty", "works", "works"]
    assert {name: str(error) for name, error in failures.items()} == {
        "fails": "launch failure", "hasty": "it took -8.0 us",
    }  # fmt: skip
    with pytest.raises(RuntimeError, match="launch failure"):
        time_in_turns(Clock(), graphs, 16, protocol)
