"""Work files and data sets: nothing measured is lost, nothing wrong is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gemm_eval.errors import GemmEvalError, InvalidInputError
from gemm_eval.kernels import WeightMode
from gemm_eval.measure import Campaign, GemmShape, GroupedShape, TimingProtocol, dataset_hash, read_timings
from gemm_eval.measure.data_set import columns_for
from gemm_eval.measure.shapes import Candidate
from tests.kernels.fake_kernels import FakeKernelRunner, item
from tests.measure.fake_runner import FakeRunner

pytest.importorskip("pyarrow")
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
    "candidates": [Candidate(*shape, rank, 1 + rank) for shape in SHAPES[:2] for rank in range(3)],
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
    if kind == "candidates":
        rows = frame[["G", "M", "K", "N", "rank", "split_k"]].to_numpy()
        assert sorted(Candidate(*row) for row in rows) == sorted(items)
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
        "dense": (None, None, None), "candidates": (True, "cublas", None), "kernels": (True, "gemm-eval", None),
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


def test_a_spent_budget_writes_what_there_is(tmp_path: Path) -> None:
    assert len(read_timings(campaign(tmp_path, stop_at=0.0).run(SHAPES))) == 0


def test_too_many_failures_in_a_row_stop_but_keep(tmp_path: Path) -> None:
    shapes = [GemmShape(1, 8, 128, n) for n in range(8, 80, 8)]
    with pytest.raises(GemmEvalError, match="5 GEMMs failed in a row"):
        campaign(tmp_path, FakeRunner(refused=shapes)).run(shapes)

    assert len(meta_of(tmp_path / "gpu-fake-fp16.parquet")["failed"]) == 5


def test_public_csv_gets_its_batch(tmp_path: Path) -> None:
    frame = read_timings(write(tmp_path / "a.csv", "M,K,N,latency_us\n1,128,32,2.72\n2,128,32,3\n"))

    assert frame[["G", "M", "K", "N", "latency_us"]].to_numpy().tolist() == [[1, 1, 128, 32, 2.72], [1, 2, 128, 32, 3]]


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


def test_missing_and_foreign_files_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="cannot read timings from"):
        read_timings(tmp_path / "a.csv")
    with pytest.raises(InvalidInputError, match=r"\.csv or \.parquet"):
        read_timings(tmp_path / "a.xlsx")


def test_hash_is_of_the_content(tmp_path: Path) -> None:
    one = write(tmp_path / "a.csv", "M,K,N,latency_us\n1,2,3,4.5\n5,6,7,8\n")
    same = write(tmp_path / "b.csv", "latency_us,N,K,M,G\n8.0,7,6,5,1\n4.50,3,2,1,1\n")
    other = write(tmp_path / "c.csv", "M,K,N,latency_us\n1,2,3,4.5\n5,6,7,8.1\n")

    assert dataset_hash(one) == dataset_hash(same) != dataset_hash(other)
    read_timings(one).to_parquet(tmp_path / "d.parquet")
    assert dataset_hash(tmp_path / "d.parquet") == dataset_hash(one)
