"""Folders of sweeps: one writer at a time, and nothing in them is believed that does not prove where it belongs."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gemm_eval.errors import GemmEvalError, InvalidOptionError, StorageError
from gemm_eval.storage import FileLock
from gemm_eval.sweep import Adaptive, LogRange, Random, Space, SweepResult, folder, load_sweep, read_sweep_file, sweep
from gemm_eval.sweep.sweep_file import Chunks
from tests.sweep.test_sweep_run import same

SHAPES = [(1, 64, 96, 128)]
SPACE = Space("demo-8core", num_cores=[2, 4, 8], sram_bytes=LogRange(1 << 14, 1 << 20, 6), area_mm2="= num_cores")
AIMS = ("latency_us", "area_mm2")
PART = "points-0000000003.parquet"


def go(path: Path | None, space: Space = SPACE, sampling: Any = None, **options: Any) -> SweepResult:
    return sweep(space, SHAPES, AIMS, sampling=sampling, path=path, **{"chunk_size": 3, "progress": False, **options})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "sweep"
    go(path)
    return path


@pytest.fixture
def points(whole: Path, tmp_path: Path) -> Path:
    """A copy of a sweep of 18 points in parts of 3."""
    return Path(shutil.copytree(whole, tmp_path / "points"))


# Chunks


def test_chunks_cover_every_point_once() -> None:
    rng = random.Random(1)
    for _ in range(200):
        chunks = Chunks(rng.randint(1, 60), rng.randint(1, 12), rng.randint(1, 70))
        cuts = [
            cut
            for begin in range(0, chunks.num_points, chunks.batch_size)
            for cut in chunks.between(begin, min(begin + chunks.batch_size, chunks.num_points))
        ]
        assert [at for first, num in cuts for at in range(first, first + num)] == list(range(chunks.num_points))
        firsts = dict(cuts)
        assert all(chunks.num_at(at) == firsts.get(at, 0) for at in range(-3, chunks.num_points + 20))
        assert max(firsts.values()) <= min(chunks.size, chunks.batch_size)


# One writer


def test_a_folder_has_one_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen begin at once, each with chunks of its own size: one does it, the others are told."""
    begun, is_open = threading.Barrier(16), threading.Event()
    put = folder.write_whole

    def slow(path: Path, raw: bytes) -> None:
        is_open.wait(20)
        put(path, raw)

    monkeypatch.setattr("gemm_eval.sweep.folder.write_whole", slow)
    outcomes: list[str] = []

    def run(size: int) -> None:
        begun.wait()
        try:
            assert same(go(tmp_path / "s", chunk_size=size).to_arrow(), reference)
            outcomes.append("done")
        except StorageError as error:
            outcomes.append(str(error))
            if len(outcomes) == 15:
                is_open.set()

    reference = go(None).to_arrow()
    threads = [threading.Thread(target=run, args=(size,)) for size in range(1, 17)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    busy = f"another sweep is at work in {tmp_path / 's'}: wait for its end, or choose another folder"
    assert outcomes == [busy] * 15 + ["done"]
    assert same(go(tmp_path / "s").to_arrow(), reference)


_HOLD = """
import os, sys, time
from pathlib import Path
from gemm_eval.storage import FileLock
lock = FileLock(Path(sys.argv[1]))
assert lock.acquire()
child = os.fork()  # a worker, which outlives its parent
if child:
    print(child, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_lock_ends_with_its_process_and_not_with_its_children(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    process = subprocess.Popen([sys.executable, "-c", _HOLD, path], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        assert not FileLock(path).acquire()
        assert not FileLock(path).acquire(timeout_s=0.02)
        process.kill()
        process.wait()
        lock = FileLock(path)
        assert lock.acquire()
        lock.release()
        lock.release()
    finally:
        process.kill()
        process.stdout.close()
        os.kill(child, signal.SIGKILL)


# Parts that do not belong


def other_part(points: Path, tmp_path: Path) -> None:
    go(tmp_path / "other", Space("demo-8core", {**SPACE.fields, "num_cores": [2, 4, 6]}))
    shutil.copy(tmp_path / "other" / PART, points / PART)


def rewritten(change: Callable[[Any], Any]) -> Callable[[Path, Path], None]:
    """The same rows written anew, by somebody else, with a change."""

    def spoil(points: Path, tmp_path: Path) -> None:
        import pyarrow.parquet as pq

        pq.write_table(change(pq.read_table(points / PART, partitioning=None)), points / PART)

    return spoil


def another_value(table: Any) -> Any:
    import pyarrow as pa

    return table.set_column(table.schema.get_field_index("latency_us"), "latency_us", pa.array([1e-9] * 3))


def replaced(make: Callable[[Path], None]) -> Callable[[Path, Path], None]:
    def spoil(points: Path, tmp_path: Path) -> None:
        (points / PART).unlink()
        make(points / PART)

    return spoil


def damaged(change: Callable[[bytearray], bytes]) -> Callable[[Path, Path], None]:
    return lambda points, _: (points / PART).write_bytes(change(bytearray((points / PART).read_bytes()))) and None


def flipped(data: bytearray) -> bytes:
    data[len(data) // 4] ^= 0x40  # in the middle of the values, where the format itself sees nothing
    return data


SPOILS: dict[str, Callable[[Path, Path], Any]] = {
    "of another sweep": other_part,
    "of other rows": lambda points, _: shutil.copy(points / "points-0000000006.parquet", points / PART),
    "of another length": rewritten(lambda table: table.slice(0, 2)),
    "with another value": rewritten(another_value),
    "a folder": replaced(Path.mkdir),
    "a pipe": replaced(os.mkfifo),
    "a link to nothing": replaced(lambda path: path.symlink_to("../nothing")),
    "empty": damaged(lambda data: b""),
    "cut": damaged(lambda data: data[:-20]),
    "flipped": damaged(flipped),
    "other bytes": damaged(lambda data: b"x" * 500),
}


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_part_proves_that_it_belongs(points: Path, tmp_path: Path, spoil: str) -> None:
    expected = load_sweep(points).to_arrow()
    SPOILS[spoil](points, tmp_path)
    with pytest.raises(GemmEvalError, match=f"{PART} cannot be used: .*; the same call of sweep evaluates its points"):
        load_sweep(points).pareto()
    with pytest.warns(RuntimeWarning, match=f"{PART} is set aside as _damaged-{PART}: .* are evaluated again"):
        result = go(points)
    assert same(result.to_arrow(), expected)
    assert os.path.lexists(points / f"_damaged-{PART}")
    assert not (tmp_path / "nothing").exists()
    assert same(go(points).to_arrow(), expected)


def test_parts_of_points_that_would_choose_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As another version of numpy, scipy or optuna would make of the same seed."""
    take = LogRange.take
    for sampling in (Random(9, seed=2), Adaptive(9, 3, seed=2)):
        path = tmp_path / type(sampling).__name__
        go(path, sampling=sampling)
        with monkeypatch.context() as patch:
            patch.setattr(LogRange, "take", lambda self, unit: take(self, 1.0 - unit))
            with pytest.warns(RuntimeWarning, match="its points choose something else"):
                result = go(path, sampling=sampling)
            assert same(result.to_arrow(), go(None, sampling=sampling).to_arrow())


# The description


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "is no folder of a sweep"),
        (b"[]", "holds no table"),
        (b"{}", "of another version of gemm_eval"),
        (b'{"version": 1}', "of another version of gemm_eval"),
        (b'{"version": 4}', "is damaged: its content is not what was written; bring it back"),
        (b"\xff\xfe", "is no folder of a sweep"),
        (b"[" * 100_000, "is no folder of a sweep"),
        (b"1" * 5000, "is no folder of a sweep"),
        (b" " * ((1 << 24) + 1), "larger than"),
    ],
)
def test_descriptions_that_are_none(points: Path, raw: bytes, message: str) -> None:
    (points / "_sweep.json").write_bytes(raw)
    with pytest.raises(GemmEvalError, match=message):
        load_sweep(points)
    with pytest.raises(GemmEvalError, match=message):
        go(points)
    assert (points / "_sweep.json").read_bytes() == raw


def test_folders_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (7, b"s", "a\0b"):
        for use in (go, load_sweep):
            with pytest.raises(GemmEvalError):
                use(path)  # type: ignore[operator]
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidOptionError, match="must be a folder, and is a file"):
        go(tmp_path / "file")
    with pytest.raises(GemmEvalError, match="is no folder of a sweep"):
        load_sweep(tmp_path / "file")
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "letter.txt").write_text("dear")
    with pytest.raises(InvalidOptionError, match=r"must be a new folder or one of a sweep, and holds letter\.txt"):
        go(tmp_path / "letters")
    assert [path.name for path in (tmp_path / "letters").iterdir() if path.name != ".lock"] == ["letter.txt"]
    monkeypatch.setattr("gemm_eval.sweep.sweep_file._MAX_BYTES", 1000)
    with pytest.raises(InvalidOptionError, match="takes 1,000 bytes at most"):
        go(tmp_path / "s")
    assert not (tmp_path / "s" / "_sweep.json").exists()


# Full disks


SPACE_FILE = """
base: demo-8core
fields: {num_cores: [4, 8], launch_us: {range: [0.0, 1.0], num: 20}}
workloads: [{name: one, gemms: [[1, 16, 128, 256]]}]
"""
_FILL = """
import resource
from pathlib import Path
from gemm_eval.cli.app import app
from gemm_eval.sweep import read_sweep_file, sweep

asked = read_sweep_file("space.yaml")
sweep(asked.space, asked.workloads, path="begun", progress=False, **asked.options)  # which also fills other caches
Path("begun/points-0000000016.parquet").unlink()
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
for words in (["new"], ["begun", "--json"]):
    try:
        app(["sweep", "space.yaml", "--out", *words])
    except SystemExit as end:
        assert end.code == 1, end
"""


def test_a_full_disk_is_one_line_and_nothing_half_is_believed(tmp_path: Path) -> None:
    """By a limit on the size of files, which the command finds as it finds a full disk."""
    pytest.importorskip("typer")
    (tmp_path / "space.yaml").write_text(SPACE_FILE)
    run = subprocess.run([sys.executable, "-c", _FILL], cwd=tmp_path, capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "")
    plain, as_json = run.stderr.splitlines()
    assert plain.startswith("error: cannot write new: File too large; what is done is kept: the same call goes on")
    assert json.loads(as_json)["error"]["type"] == "StorageError"
    names = [path.name for path in sorted((tmp_path / "begun").iterdir())]
    assert names == [".lock", "_sweep.json", "points-0000000000.parquet", "points-0000000032.parquet"]
    assert [path.name for path in (tmp_path / "new").iterdir()] == [".lock"]
    asked = read_sweep_file(tmp_path / "space.yaml")
    options = {**asked.options, "progress": False}
    whole = sweep(asked.space, asked.workloads, **options).to_arrow()
    for name in ("begun", "new"):
        assert same(sweep(asked.space, asked.workloads, path=tmp_path / name, **options).to_arrow(), whole)
