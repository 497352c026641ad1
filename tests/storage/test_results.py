"""`ResultFile`: what is merged is found by others, of damaged and foreign files too, and by all who write at once."""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from operator import methodcaller
from pathlib import Path

import numpy as np
import pytest

from gemm_eval import GEMMEvaluator
from gemm_eval.errors import StorageError
from gemm_eval.storage import FileLock, ResultFile
from gemm_eval.storage import arrays as results
from tests.cases import case
from tools.stress.cache import SECTIONS, Task, Worker, add, damage_every_byte, kill_writers, lines_of

ROOT = Path(__file__).parents[2]
NOBODY = 65534
FIRST = SECTIONS[0]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    results._warned.clear()
    return tmp_path / "deep" / "folder" / "costs é #1%?.npz"


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that this test, as another user than root, may enter: pytest's own are root's alone."""
    folder = Path(tempfile.mkdtemp())
    is_root = os.geteuid() == 0
    if is_root:
        os.chown(folder, NOBODY, -1)
        os.seteuid(NOBODY)  # root may write anywhere
    yield folder
    if is_root:
        os.seteuid(0)
    shutil.rmtree(folder)


def asides(path: Path) -> list[Path]:
    return sorted(path.parent.glob("*.damaged-*"))


def test_arrays_come_back_and_sections_stay_apart(path: Path) -> None:
    file = ResultFile(path)
    assert (dict(file.read("a")), path.parent.exists()) == ({}, False)
    record = np.array([(1, 0.1), (2, np.nan)], [("count", "i8"), ("latency_us", "f8")])
    assert file.merge("a", lambda old: {"record": record, "none": np.zeros((0, 6), np.int64), **old})
    assert file.merge("b", lambda _: {"record": record[:1]})

    again = ResultFile(path).read("a")
    assert sorted(again) == ["none", "record"]
    assert (again["record"].tobytes(), again["record"].dtype) == (record.tobytes(), record.dtype)
    assert again["none"].shape == (0, 6)
    assert len(file.read("b")["record"]) == 1
    with np.load(path) as as_npz:  # any reader of .npz reads it
        assert as_npz["b/record"].tobytes() == record[:1].tobytes()
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_sections_written_longest_ago_go(path: Path) -> None:
    file = ResultFile(path, max_bytes=4096)
    for name in ("a", "b", "a", "c", "d"):
        assert file.merge(name, lambda _: {"x": np.zeros(1200, np.uint8)})
    assert [name for name in "abcd" if file.read(name)] == ["a", "c", "d"]
    assert file.merge("e", lambda _: {"x": np.zeros(9000, np.uint8)}), "one that is too large is kept alone"
    assert [name for name in "acde" if file.read(name)] == ["e"]


def _text(path: Path) -> None:
    path.write_text("dear diary")


def _folder(path: Path) -> None:
    path.mkdir()


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _others_npz(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, x=np.zeros(3))


FOREIGN: list[Callable[[Path], None]] = [Path.touch, _text, _folder, _pipe, _others_npz]


def test_a_foreign_file_is_never_touched_and_named(path: Path) -> None:
    path.parent.mkdir(parents=True)
    for make in FOREIGN:
        make(path)
        before = path.lstat(), path.read_bytes() if path.is_file() else None
        with case(make.__name__):
            chosen = ResultFile(path, is_chosen=True)
            for operation in (methodcaller("read", "a"), methodcaller("merge", "a", dict)):
                with pytest.raises(
                    StorageError, match=r"is no cache of gemm_eval: .*give the path of a new file"
                ) as told:
                    operation(chosen)
                assert str(path) in str(told.value)
            results._warned.clear()
            own = ResultFile(path)
            with pytest.warns(RuntimeWarning, match="is no cache of gemm_eval") as warned:
                assert not own.merge("a", dict)
            assert (own.read("a"), len(warned)) == ({}, 1)
            assert (path.lstat(), path.read_bytes() if path.is_file() else None) == before
            assert asides(path) == []
        path.rmdir() if path.is_dir() else path.unlink()


def test_a_user_hears_of_a_foreign_file(path: Path) -> None:
    path.parent.mkdir(parents=True)
    _text(path)
    evaluator = GEMMEvaluator("demo-8core", disk_cache=path)
    for _ in range(2):
        with pytest.raises(StorageError, match="is no cache of gemm_eval"):
            evaluator.evaluate(1, 64, 64, 64)
    assert path.read_text() == "dear diary"
    path.unlink()
    assert evaluator.save_to_disk(evaluator.evaluate_many([(1, 64, 64, 64)])) == 1


def test_damage_of_any_byte_is_noticed(tmp_path: Path) -> None:
    became = damage_every_byte(tmp_path, step=23)
    assert set(became) == {"left alone", "set aside", "used"}
    assert became["set aside"] > became["used"]


def test_a_file_cut_anywhere_is_set_aside_and_three_are_kept(path: Path) -> None:
    file = ResultFile(path)
    assert add(file, FIRST, ["a"])
    whole = path.read_bytes()
    for size in (100, len(whole) // 2, len(whole) - 1, 60):
        path.write_bytes(whole[:size])
        with pytest.warns(RuntimeWarning, match="cannot use the cache file .* set aside as"):
            assert file.read(FIRST) == {}
        assert not path.exists()
    assert [aside.stat().st_size for aside in asides(path)] == [len(whole) // 2, len(whole) - 1, 60]
    assert add(file, FIRST, ["b"])
    assert lines_of(file.read(FIRST)) == ["b"]


def test_links_are_followed(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(path)
    assert add(ResultFile(link, is_chosen=True), FIRST, ["a"])
    assert link.is_symlink()
    assert lines_of(ResultFile(path).read(FIRST)) == ["a"]


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no modes here")
def test_what_cannot_be_written_is_still_read(shared_folder: Path) -> None:
    path = shared_folder / "costs.npz"
    file = ResultFile(path)
    assert add(file, FIRST, ["a"])
    whole = path.read_bytes()
    shared_folder.chmod(0o500)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a read-only place is nobody's trouble
            assert lines_of(file.read(FIRST)) == ["a"]
            assert not add(file, FIRST, ["b"])
            assert not add(ResultFile(path.parent / "new.npz"), FIRST, ["b"])
        path.write_bytes(whole[:-1])
        with pytest.warns(RuntimeWarning, match="is damaged .*cannot be set aside"):
            assert file.read(FIRST) == {}
        path.chmod(0)
        assert (file.read(FIRST), add(file, FIRST, ["b"])) == ({}, False)
    finally:
        shared_folder.chmod(0o700)
        path.chmod(0o600)
    assert path.read_bytes() == whole[:-1]


def test_a_full_disk_leaves_the_old_file(path: Path) -> None:
    file = ResultFile(path)
    assert add(file, FIRST, ["a"])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        with pytest.warns(RuntimeWarning, match="cache file .*: File too large") as told:
            assert not add(file, FIRST, ["b" * 9000])
        assert not add(file, FIRST, ["b" * 9000]), "told once"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(told) == 1
    assert lines_of(file.read(FIRST)) == ["a"]
    assert sorted(left.name for left in path.parent.iterdir()) == [path.name, f"{path.name}.lock"]


def test_a_busy_file_is_read_and_a_write_to_it_skipped(path: Path) -> None:
    file = ResultFile(path, timeout_s=0.01)
    assert add(file, FIRST, ["a"])
    lock = FileLock(path.with_name(f"{path.name}.lock"))
    assert lock.acquire()
    try:
        assert not add(file, FIRST, ["b"])
        assert lines_of(file.read(FIRST)) == ["a"]
    finally:
        lock.release()
    assert add(file, FIRST, ["c"])


def test_temporary_files_of_killed_writers_go_and_those_of_other_files_stay(path: Path) -> None:
    path.parent.mkdir(parents=True)
    left, other = (path.parent / f".{name}.{'0' * 32}.tmp" for name in (path.name, f"{path.name}.more"))
    for file in (left, other):
        file.touch()
    assert add(ResultFile(path), FIRST, ["a"])
    assert (left.exists(), other.exists()) == (False, True)


FORK = """
import os, pathlib, sys, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is discouraged; people do it
from gemm_eval.storage import ResultFile
from tools.stress.cache import add, lines_of
file = ResultFile(pathlib.Path(sys.argv[1]), timeout_s=60)
stop = threading.Event()
def work():
    while not stop.is_set():
        assert add(file, "of threads", ["x"])
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
pids = []
for number in range(10):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if add(file, "of children", [str(number)]) else 2
        finally:
            os._exit(code)
    pids.append(pid)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
stop.set()
for thread in threads: thread.join()
assert codes == [0] * 10, codes
assert sorted(lines_of(file.read("of children"))) == sorted(map(str, range(10)))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forks_while_threads_write(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORK, str(path)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_kills_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    outcome = kill_writers(tmp_path, num_kills=3, num_processes=4, num_threads=4, seed=3)
    assert outcome.is_sound, outcome
    assert outcome.num_confirmed > 100


@pytest.mark.slow
def test_damaged_while_in_use(tmp_path: Path) -> None:
    """Somebody writes rubbish into the file, cuts it and deletes it while three processes use it."""
    path, rng = tmp_path / "costs.npz", random.Random(2)
    workers = [Worker(Task(str(path), seed, 3.0, 4, may_warn=True)) for seed in range(3)]
    try:
        num_damages, end_s = 0, time.monotonic() + 3.0
        while time.monotonic() < end_s or num_damages < 3:
            time.sleep(rng.uniform(0.1, 0.4))
            if path.exists():
                size = path.stat().st_size
                if num_damages % 3 == 0:
                    with path.open("r+b") as file:
                        file.seek(rng.randrange(max(1, size)))
                        file.write(rng.randbytes(200))
                elif num_damages % 3 == 1:
                    os.truncate(path, size // 3)
                else:
                    path.unlink(missing_ok=True)
                num_damages += 1
        assert all(worker.result(90.0) > 0 for worker in workers)
    finally:
        for worker in workers:
            worker.stop()
