"""How GEMMs are timed, and the files of a campaign."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gemm_eval.device import Call, TimedGraph, capture_calls, measure_floor_us, time_in_turns
from gemm_eval.errors import GemmEvalError, InvalidInputError, InvalidOptionError
from gemm_eval.kernels import WeightMode
from gemm_eval.measure import (
    Campaign,
    GemmShape,
    GroupedShape,
    TimingProtocol,
    dataset_hash,
    measure_shape,
    read_timings,
)
from gemm_eval.measure.data_set import columns_for
from gemm_eval.measure.runner import place_copies
from tests.kernels.fake_kernels import FakeKernelRunner, item
from tests.measure.fake_runner import OVERHEAD_US, FakeRunner

# ---- measure protocol ------------------------------------------------------------------------------------------------


COLD = TimingProtocol()
L2_BYTES = FakeRunner.l2_bytes


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


# ---- measure files ---------------------------------------------------------------------------------------------------


SHAPES = [GemmShape(1, 17, 4096, 1024), GemmShape(1, 300, 512, 512), GemmShape(4, 8, 128, 128)]


def campaign(folder: Path, runner: FakeRunner | None = None, **settings: Any) -> Campaign:
    said: list[str] = []
    return Campaign(
        runner or FakeRunner(), TimingProtocol(idle_s=0.0), folder, "gpu-fake-fp16", said.append,
        pool_bytes=1 << 30, with_trace=False, **settings,
    )  # fmt: skip


def meta_of(path: Path) -> dict[str, Any]:
    meta: dict[str, Any] = yaml.safe_load(path.with_suffix(".meta.yaml").read_text())
    return meta


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


GROUPED = GroupedShape(4, 30, 512, 256, (30, 0, 1, 0), "some", 2, 16, 4, 2, 1, 1, "uniform", 7)
KINDS: dict[str, list[Any]] = {
    "dense": [*SHAPES],
    "kernels": [
        *(item(rows, cta_m=m) for rows in (16, 300) for m in (16, 32)), item(mode=WeightMode.COLUMN, group_size=0)
    ],
    "grouped": [GROUPED, GROUPED._replace(take=1), GROUPED._replace(row_groups=(30, 2, 1, 0), seed=8)],
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_campaign_has_a_row_for_each_item_and_a_rerun_measures_what_is_missing(tmp_path: Path, kind: str) -> None:
    items, runner_of = KINDS[kind], FakeKernelRunner if kind == "kernels" else FakeRunner
    campaign(tmp_path, runner_of()).run(items[:2])
    runner = runner_of()
    path = campaign(tmp_path, runner).run(items)
    frame, meta = read_timings(path), meta_of(path)

    bound = [line for line in runner.log if line.startswith("bind")]
    assert sorted(bound) == sorted(f"bind {tuple(one)}" for one in items[2:])
    assert len(frame) == len(items)
    assert set(frame.columns) == set(columns_for(type(items[0])))
    assert sorted(map(tuple, frame[["G", "M", "K", "N"]].to_numpy())) == sorted(tuple(one[:4]) for one in items)
    if kind == "grouped":
        assert sorted(frame["row_groups"]) == ["30 0 1 0", "30 0 1 0", "30 2 1 0"]
        assert (sorted(frame["take"]), set(frame["rows"])) == ([0, 0, 1], {31, 33})
        assert frame["cta_m"].isna().all()
        assert "grouped GEMM" in meta["what"]
    if kind == "kernels":
        assert sorted(frame["group_size"]) == [-1, 128, 128, 128, 128]  # -1: one scale a column
    else:
        assert frame["latency_us"].tolist() == pytest.approx([10.0] * len(items))
    assert (meta.get("has_all_candidates"), meta.get("library"), meta.get("has_row_groups")) == {
        "dense": (None, None, None), "kernels": (True, "gemm-eval", None),
        "grouped": (None, None, True),
    }[kind]  # fmt: skip
    assert meta["sha256"] == dataset_hash(path)
    assert meta["failed"] == []


def test_other_settings_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    campaign(tmp_path).run(SHAPES)
    other = campaign(tmp_path)
    other.protocol = TimingProtocol(idle_s=0.0, num_replays=9)
    with pytest.raises(GemmEvalError, match="started with other settings"):
        other.run(SHAPES)
    monkeypatch.setattr(FakeRunner, "settings", {"library_version": 2})  # ranks of two versions
    with pytest.raises(GemmEvalError, match="started with other settings"):
        campaign(tmp_path).run(SHAPES)


def test_a_failed_gemm_is_listed_and_tried_again(tmp_path: Path) -> None:
    path = campaign(tmp_path, FakeRunner(refused=[SHAPES[1]])).run(SHAPES)
    assert len(read_timings(path)) == 2
    assert meta_of(path)["failed"] == [{"G": 1, "M": 300, "K": 512, "N": 512, "error": "GemmEvalError: refused"}]

    campaign(tmp_path).run(SHAPES)
    assert len(read_timings(path)) == 3
    assert meta_of(path)["failed"] == []


def test_a_cut_off_line_is_measured_again(tmp_path: Path) -> None:
    path = campaign(tmp_path).run(SHAPES)
    work = path.with_suffix(".jsonl")
    lines = [line for line in work.read_text().splitlines() if '"state"' not in line]
    work.write_text("\n".join(lines)[:-9])

    campaign(tmp_path).run(SHAPES)
    assert len(read_timings(path)) == 3
    assert all(json.loads(line) for line in work.read_text().splitlines())


def test_a_damaged_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    work = campaign(tmp_path).run(SHAPES).with_suffix(".jsonl")
    work.write_text("{\n" + work.read_text())

    with pytest.raises(GemmEvalError, match="jsonl:1 is damaged"):
        campaign(tmp_path).run(SHAPES)


def test_too_many_failures_in_a_row_stop_but_keep(tmp_path: Path) -> None:
    shapes = [GemmShape(1, 8, 128, n) for n in range(8, 80, 8)]
    with pytest.raises(GemmEvalError, match="5 GEMMs failed in a row"):
        campaign(tmp_path, FakeRunner(refused=shapes)).run(shapes)

    assert len(meta_of(tmp_path / "gpu-fake-fp16.parquet")["failed"]) == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("M,K,latency_us\n1,2,3\n", "lacks N; it has M, K, latency_us"),
        ("M,K,N,latency_us\n1,2,3,0\n", "latency_us must be positive and finite, got 0 in row 0"),
        ("M,K,N,latency_us\n1,2,3,1\n1,2,3,inf\n", "latency_us must be positive and finite, got inf in row 1"),
        ("M,K,N,latency_us\n1,2,3,\n", "latency_us must be positive and finite, got nan"),
        ("M,K,N,latency_us\n0,2,3,1\n", "M must be >= 1, got 0 in row 0"),
        ("M,K,N,latency_us\n1.5,2,3,1\n", "M must be integers"),
        ("M,K,N,latency_us\nx,2,3,1\n", "M must be integers"),
        ("M,K,N,latency_us\n1,2,3,fast\n", "latency_us must be numbers"),
        ("", "cannot read timings from .*a.csv"),
    ],
)
def test_bad_files_are_clear_errors(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        read_timings(write(tmp_path / "a.csv", text))


def test_hash_is_of_the_content(tmp_path: Path) -> None:
    one = write(tmp_path / "a.csv", "M,K,N,latency_us\n1,2,3,4.5\n5,6,7,8\n")
    same = write(tmp_path / "b.csv", "latency_us,N,K,M,G\n8.0,7,6,5,1\n4.50,3,2,1,1\n")
    other = write(tmp_path / "c.csv", "M,K,N,latency_us\n1,2,3,4.5\n5,6,7,8.1\n")

    assert dataset_hash(one) == dataset_hash(same) != dataset_hash(other)
    read_timings(one).to_parquet(tmp_path / "d.parquet")
    assert dataset_hash(tmp_path / "d.parquet") == dataset_hash(one)
