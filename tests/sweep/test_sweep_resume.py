"""Sweeps in a folder: interrupted anywhere they go on where they were, and nothing half-written is ever read."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from gemm_eval import load_arch
from gemm_eval.errors import GemmEvalError, InvalidOptionError, StorageError
from gemm_eval.sweep import Adaptive, Grid, Random, Range, Space, load_sweep, run, sweep
from tests.sweep.test_sweep_folder import AIMS, SHAPES, SPACE, go
from tests.sweep.test_sweep_run import same

SAMPLINGS = [Grid(), Random(18, seed=2), Adaptive(18, 6, seed=2)]


class Counted:
    """`evaluate_rows`, counting the points that it has begun, and raising at one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.points: list[int] = []
        self.fails_at: int | None = None
        self.error: type[BaseException] = KeyboardInterrupt
        self._evaluate = run.evaluate_rows
        monkeypatch.setattr(run, "evaluate_rows", self)

    def __call__(self, work: Any, rows: Any, first: int, *more: Any) -> Any:
        if first == self.fails_at:
            raise self.error
        self.points += range(first, first + len(rows))
        return self._evaluate(work, rows, first, *more)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


def files(path: Path) -> list[str]:
    """Names but for the lock's, which stays."""
    return sorted(entry.name for entry in path.iterdir() if entry.name != ".lock")


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda sampling: type(sampling).__name__)
@pytest.mark.parametrize("fails_at", [0, 6, 15])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_interrupted_and_resumed(
    tmp_path: Path, counted: Counted, sampling: Any, fails_at: int, error: type[BaseException]
) -> None:
    whole = go(None, sampling=sampling).to_arrow()
    counted.points.clear()
    counted.fails_at, counted.error = fails_at, error
    with pytest.raises(error):
        go(tmp_path / "s", sampling=sampling)
    stored = load_sweep(tmp_path / "s")["point"].tolist()
    assert not set(range(fails_at, fails_at + 3)) & set(stored)
    assert not [name for name in files(tmp_path / "s") if name.startswith(".")]
    counted.fails_at = None
    counted.points.clear()
    result = go(tmp_path / "s", sampling=sampling)
    assert sorted(counted.points + stored) == list(range(18))  # what was stored is not evaluated again
    assert same(result.to_arrow(), whole)
    counted.points.clear()
    assert same(go(tmp_path / "s", sampling=sampling).to_arrow(), whole)
    assert counted.points == []


def test_threads_stop_soon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from gemm_eval.sweep import chunk

    begun: list[int] = []
    search = chunk.find_best_many

    def slow(*args: Any, **options: Any) -> Any:
        begun.append(1)
        time.sleep(0.05)
        return search(*args, **options)

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(chunk, "find_best_many", slow)
    monkeypatch.setattr(chunk, "_GEMMS_AT_ONCE", 1)
    monkeypatch.setattr(run.Store, "put", fail)
    with pytest.raises(KeyboardInterrupt):
        sweep(Space("demo-8core", sram_bytes=Range(1 << 14, 1 << 20, 400)), SHAPES, chunk_size=10)
    num = len(begun)
    time.sleep(0.15)
    assert len(begun) == num < 10 * 3 * (1 + (os.cpu_count() or 1))


def test_the_folder_keeps_its_chunks(tmp_path: Path, counted: Counted) -> None:
    go(tmp_path, chunk_size=4)
    (tmp_path / "points-0000000004.parquet").unlink()
    counted.points.clear()
    for size in (None, 5):
        assert same(go(tmp_path, chunk_size=size).to_arrow(), go(None).to_arrow())
        assert "points-0000000004.parquet" in files(tmp_path)
    assert counted.points[:4] == [4, 5, 6, 7]
    description = json.loads((tmp_path / "_sweep.json").read_text())
    assert load_sweep(tmp_path).description == description
    assert (description["chunk_size"], description["num_points"], description["constraints"]) == (4, 18, [])


def test_other_objectives_are_the_same_grid(tmp_path: Path) -> None:
    go(tmp_path)
    assert sweep(SPACE, SHAPES, "dram_bytes", path=tmp_path).objectives == ("dram_bytes",)
    assert load_sweep(tmp_path).objectives == AIMS
    adaptive = tmp_path / "adaptive"
    go(adaptive, sampling=Adaptive(4, 2))
    with pytest.raises(InvalidOptionError, match="differs in objectives"):
        sweep(SPACE, SHAPES, "dram_bytes", path=adaptive, sampling=Adaptive(4, 2))


@pytest.mark.parametrize(
    ("options", "differs"),
    [
        ({"space": Space("demo-8core", num_cores=[8])}, "fields, num_points, columns"),
        ({"workloads": [(1, 64, 96, 129)]}, "workloads"),
        ({"constraints": "area_mm2 <= 100"}, "constraints"),
        ({"allow_idle_cores": True}, "options"),
        ({"sampling": Random(18)}, "sampling"),
        ({"space": Space("demo-8core", {**SPACE.fields, "area_mm2": lambda a: a.num_cores})}, "fields"),
        ({"space": Space(load_arch("demo-8core").with_(launch_us=9.0), SPACE.fields)}, "bases"),
    ],
)
def test_another_sweep_is_refused(tmp_path: Path, options: dict[str, Any], differs: str) -> None:
    go(tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
    arguments: dict[str, Any] = {"space": SPACE, "workloads": SHAPES, "objectives": AIMS} | options
    with pytest.raises(InvalidOptionError, match=f"holds another sweep .it differs in {differs}.: choose another"):
        sweep(**arguments, path=tmp_path)
    assert before == {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}


def test_functions_are_told_apart_by_their_values(tmp_path: Path) -> None:
    def of_factor(factor: float) -> Space:
        return Space("demo-8core", {**SPACE.fields, "area_mm2": lambda a: factor * a.num_cores})

    first = sweep(of_factor(1.0), SHAPES, AIMS, path=tmp_path)
    assert sweep(of_factor(1.0), SHAPES, AIMS, path=tmp_path).to_arrow() == first.to_arrow()
    with pytest.raises(InvalidOptionError, match="it differs in fields"):
        sweep(of_factor(2.0), SHAPES, AIMS, path=tmp_path)


def test_what_killed_writers_left_is_not_read(tmp_path: Path) -> None:
    whole = go(tmp_path).to_arrow()
    ours = tmp_path / f".points-0000000006.parquet.{'a' * 32}.tmp"
    others = [tmp_path / ".points-0000000006.parquet.abc.tmp", tmp_path / "notes.md"]
    for left in (ours, *others):
        left.write_bytes(b"half")
    (tmp_path / "points-0000000003.parquet").unlink()
    assert same(go(tmp_path).to_arrow(), whole)
    assert not ours.exists()
    assert all(left.exists() for left in others)


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    begun, new = tmp_path / "begun", tmp_path / "new"
    go(begun)
    for part in begun.glob("*.parquet"):
        part.unlink()
    monkeypatch.setattr(os, "fsync", fail)
    for folder in (begun, new):
        with pytest.raises(StorageError, match=r"cannot write .*: No space left on device; what is done is kept"):
            go(folder)
    assert (files(begun), files(new)) == (["_sweep.json"], [])
    monkeypatch.undo()
    assert len(go(begun)) == len(go(new)) == 18


def test_a_sweep_is_read_without_its_space(tmp_path: Path) -> None:
    space = Space(
        ["demo-8core", "sg2260e"], {"mac_pj.fp16": [0.5, 0.25]}, num_cores=[4, 8], launch_us=lambda a: a.num_cores / 8,
        noc_gb_per_s=[None, 100.0], load_sharing="private", reduction="dram", dequant="none",
        variables={"half": "= num_cores / 2"},
    )  # fmt: skip
    aims = ("latency_us", "energy_pj")
    given = sweep(space, {"one": SHAPES}, aims, ["num_cores <= 7"], dtype="fp16", path=tmp_path)
    read = load_sweep(tmp_path)
    assert repr(read) == repr(given) == "<SweepResult of 16 points on demo-8core, sg2260e>"
    assert same(read.to_arrow(), given.to_arrow())
    assert read.pareto().equals(given.pareto())
    assert read.rank().equals(given.rank())
    assert read.excluded().equals(given.excluded())
    assert read.explain(3) == given.explain(3)
    assert [read.arch(point) for point in range(16)] == [
        space.arch(space.values(row)[0]) for row in space.grid_rows(0, 16)
    ]
    assert read.workloads == given.workloads
    assert read.evaluate(5)["one"]["latency_us"][0] == read["latency_us"][5]


def test_a_point_reads_its_file_only(tmp_path: Path) -> None:
    result = go(tmp_path)
    row = result.row(7)
    rows = result.rows([8, 6, 8])
    for part in tmp_path.glob("*.parquet"):
        if part.name != "points-0000000006.parquet":
            part.write_bytes(b"")
    again = load_sweep(tmp_path)
    assert again.row(7) == row
    assert again.explain(7)
    assert list(rows["point"]) == [8, 6, 8]
    with pytest.raises(GemmEvalError, match="cannot be used"):
        again.row(9)


def test_a_sweep_with_gaps(tmp_path: Path) -> None:
    whole = go(tmp_path)
    frame = whole.to_pandas()
    for first in (0, 6):
        (tmp_path / f"points-{first:010d}.parquet").unlink()
    rest = load_sweep(tmp_path)
    assert len(rest) == 12
    assert rest["point"].tolist() == [3, 4, 5, *range(9, 18)]
    assert rest.row(9) == whole.row(9)
    assert rest.rows([3])["point"].tolist() == [9]
    with pytest.raises(InvalidOptionError, match="point 7 is not done yet: 12 of 18 are"):
        rest.arch(7)
    front = rest.pareto()
    kept = frame[frame["point"].isin(rest["point"])]
    assert front["latency_us"].min() == kept.loc[kept["excluded"] == "", "latency_us"].min()
    assert set(front["point"]) <= set(rest["point"])
