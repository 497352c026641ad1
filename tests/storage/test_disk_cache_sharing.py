"""The disk cache among others: who may not write, who holds a lock, no shared memory, forks."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gemm_eval.storage.cache import DiskCache, files, opening, sqlite, store
from tests.storage.disk_caches import (
    NOBODY,
    Make,
    asides,
    integrity,
    key_of,
    other_connection,
    recorded,
    run_python,
    some,
    write_text,
)


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that other users can reach, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def unprivileged() -> Iterator[Callable[[], contextlib.AbstractContextManager[None]]]:
    """Permissions do not bind root: be nobody for a while."""

    @contextlib.contextmanager
    def as_nobody() -> Iterator[None]:
        if os.geteuid() != 0:
            yield
            return
        os.seteuid(NOBODY)
        try:
            yield
        finally:
            os.seteuid(0)

    return as_nobody  # type: ignore[return-value]


class TestReadOnly:
    @pytest.mark.parametrize("wal_left", [False, True])
    @pytest.mark.parametrize("what", ["folder", "file"])
    def test_only_reads(self, make: Make, shared_folder: Path, unprivileged: Any, what: str, wal_left: bool) -> None:
        path = shared_folder / "cache.sqlite3"
        writer = make(path=path)
        writer.put_many(some(10))
        if not wal_left:
            writer.close()
        if what == "folder":
            shared_folder.chmod(0o555)
        else:
            for found in shared_folder.iterdir():
                found.chmod(0o444)
            if os.geteuid() == 0:
                os.chown(shared_folder, NOBODY, -1)
        with unprivileged():
            cache = make(path=path)
            assert cache.get_many(some(20)) == some(10)
            assert cache.status == "read only"
            assert cache.put_many(some(5, start=100)) == 0
            assert cache.clear() == 0
            cache.touch(some(10))
            assert dict(cache.load_all()) == some(10)
            cache.close()
        shared_folder.chmod(0o755)
        os.chown(shared_folder, os.geteuid(), -1)
        assert asides(path) == []
        writer.close()
        assert writer.num_entries == 10

    def test_no_file_no_cache(self, make: Make, shared_folder: Path, unprivileged: Any) -> None:
        shared_folder.chmod(0o555)
        with unprivileged():
            for path in (shared_folder / "cache.sqlite3", shared_folder / "sub" / "cache.sqlite3"):
                cache = make(path=path)
                assert cache.put_many(some(5)) == 0
                assert cache.get(key_of(0)) is None
                assert cache.status.startswith("given up")
        assert list(shared_folder.iterdir()) == []

    def test_unreadable(self, make: Make, shared_folder: Path, unprivileged: Any) -> None:
        path = shared_folder / "inner" / "cache.sqlite3"
        with make(path=path) as writer:
            writer.put_many(some(10))
        path.parent.chmod(0)
        with unprivileged():
            cache = make(path=path)
            assert cache.get(key_of(0)) is None
            assert cache.put_many(some(1)) == 0
        path.parent.chmod(0o755)

    def test_damaged_and_read_only(self, make: Make, shared_folder: Path, unprivileged: Any) -> None:
        path = shared_folder / "cache.sqlite3"
        write_text(path)
        shared_folder.chmod(0o555)
        with unprivileged(), recorded() as told:
            cache = make(path=path)
            for _ in range(3):
                assert cache.put_many(some(1)) == 0
                assert cache.get(key_of(0)) is None
        assert len(told) <= 1
        assert path.read_text() == "dear diary"

    def test_a_file_where_a_folder_should_be(self, make: Make, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("mine")
        cache = make(path=tmp_path / "file" / "cache.sqlite3")
        for _ in range(5):
            assert cache.put_many(some(1)) == 0
        assert cache.status.startswith("given up")
        assert (tmp_path / "file").read_text() == "mine"


class TestLocked:
    def test_writes_are_skipped_and_reads_go_on(self, make: Make, path: Path) -> None:
        cache = make(timeout_s=0.3)
        cache.put_many(some(10))
        with other_connection(path) as other:
            other.execute("BEGIN IMMEDIATE")
            begin_s = time.monotonic()
            assert cache.put_many(some(10, start=10)) == 0
            assert 0.25 < time.monotonic() - begin_s < 2
            assert cache.get_many(some(20)) == some(10)
            begin_s = time.monotonic()
            for _ in range(10):
                assert cache.put_many(some(10, start=10)) == 0
            assert time.monotonic() - begin_s < 1, "it waits in vain only once in a while"
            other.execute("COMMIT")
        assert cache.put_many(some(10, start=10)) == 10

    def test_all_skipped_when_nothing_may_be_read(
        self, make: Make, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(opening, "is_on_network", lambda _: True)  # a rollback journal lets one keep others out
        with make() as cache:
            cache.put_many(some(10))
        with other_connection(path) as other:
            other.execute("BEGIN EXCLUSIVE")
            for _ in range(10):
                assert cache.put_many(some(1, start=10)) == 0
                assert cache.get(key_of(0)) is None
        assert cache.get_many(some(20)) == some(10), "it did not give up"

    def test_due_stamps_do_not_wait(self, make: Make, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        cache = make(timeout_s=30)
        with monkeypatch.context() as patch:
            patch.setattr(store.time, "time", lambda: 1e9)
            cache.put_many(some(10))
        cache.get_many(some(10))
        with other_connection(path) as other:
            other.execute("BEGIN IMMEDIATE")
            begin_s = time.monotonic()
            cache.close()
            assert time.monotonic() - begin_s < 5

    def test_guard_held_by_another(self, make: Make, path: Path) -> None:
        path.parent.mkdir(parents=True)
        cache = make(timeout_s=0.1)
        with files.guard(path, exclusive=True, timeout_s=1):
            assert cache.put_many(some(1)) == 0
        assert cache.put_many(some(1)) == 1


def synchronous(cache: DiskCache) -> int:
    connection = cache._session._store._connection  # type: ignore[union-attr]
    return int(connection.execute("PRAGMA synchronous").fetchone()[0])


class TestWithoutWal:
    def test_network_file_system(self, make: Make, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with make() as cache:
            cache.put_many(some(10))
        monkeypatch.setattr(opening, "is_on_network", lambda _: True)
        for start in (10, 20):  # taken out of WAL mode, then found so
            with make() as cache:
                assert cache.put_many(some(10, start=start)) == 10
                assert not path.with_name(path.name + "-wal").exists()
                assert cache.get_many(some(start + 10)) == some(start + 10)
                assert synchronous(cache) == 2
        with other_connection(path) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        monkeypatch.undo()
        with make() as cache:
            assert cache.get_many(some(30)) == some(30)
            assert synchronous(cache) == 1
            with other_connection(path) as connection:
                assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)

    @pytest.mark.parametrize("was_wal", [False, True])
    def test_no_shared_memory(self, make: Make, path: Path, monkeypatch: pytest.MonkeyPatch, was_wal: bool) -> None:
        """SQLite's file system layer "unix-dotfile" has locks but no shared memory, so WAL fails in it."""
        if was_wal:
            with make() as cache:
                cache.put_many(some(10))
        monkeypatch.setattr(sqlite, "_URI_OPTIONS", "&vfs=unix-dotfile")
        with make() as cache, make() as other:
            assert cache.put_many(some(10)) == 10
            assert other.put_many(some(10, start=10)) == 10
            assert cache.get_many(some(20)) == some(20)
            assert synchronous(cache) == 2
        assert asides(path) == []

    def test_mounts(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        mounts = tmp_path / "mountinfo"
        mounts.write_text(
            "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
            "22 21 0:30 / /home rw shared:1 - nfs4 server:/home rw\n"
            "23 22 0:31 / /home/local\\040disk rw - xfs /dev/sdb rw\n"
            "24 21 0:32 / /mnt/ssh rw - fuse.sshfs host: rw\n"
            "25 21 0:33 / /over rw - nfs server:/over rw\n"
            "26 21 0:34 / /over rw - tmpfs tmpfs rw\n"
        )
        monkeypatch.setattr(files, "_MOUNTS", mounts)
        assert [
            files.is_on_network(Path(folder))
            for folder in ("/", "/home", "/home/me/.cache", "/home/local disk/x", "/mnt/ssh/a", "/homework", "/over/x")
        ] == [False, True, True, False, True, False, False]
        monkeypatch.setattr(files, "_MOUNTS", tmp_path / "absent")
        assert not files.is_on_network(Path("/home"))


FORK = """
import os, pathlib, sys, threading
from gemm_eval.storage.cache import DiskCache
cache = DiskCache(pathlib.Path(sys.argv[1]), namespace="model 1", timeout_s=10)
idle = DiskCache(pathlib.Path(sys.argv[1]), namespace="model 1", timeout_s=10)
assert cache.put_many({b"parent": "1"}) == 1
inherited = cache._session._store
pid = os.fork()
if pid == 0:
    code = 1
    try:
        assert cache.get(b"parent") == "1"
        assert cache._session._store is not inherited
        assert cache.put_many({b"child": "2"}) == 1
        assert idle.get(b"child") == "2"
        cache.close()
        code = 0
    finally:
        os._exit(code)
assert cache.put_many({b"more": "3"}) == 1
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert cache.get_many([b"parent", b"child", b"more"]) == {b"parent": "1", b"child": "2", b"more": "3"}
"""

FORK_IN_USE = """
import os, pathlib, sys, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is discouraged; people do it
from gemm_eval.storage.cache import DiskCache
cache = DiskCache(pathlib.Path(sys.argv[1]), namespace="model 1", timeout_s=10)
stop = threading.Event()
def work(name):
    i = 0
    while not stop.is_set():
        i += 1
        assert cache.put_many({b"%d-%d" % (name, i % 100): str(i)}) == 1
threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
for thread in threads: thread.start()
pids = []
for i in range(20):
    time.sleep(0.02)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            assert cache.put_many({b"child-%d" % i: str(i)}) == 1
            assert cache.get(b"child-%d" % i) == str(i)
            code = 0
        finally:
            os._exit(code)
    pids.append(pid)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
stop.set()
for thread in threads: thread.join()
assert codes == [0] * 20, codes
assert all(cache.get(b"child-%d" % i) == str(i) for i in range(20))
"""

GARBAGE = """
import gc, os, pathlib, sys
from gemm_eval.storage.cache import DiskCache
path = pathlib.Path(sys.argv[1])
def num_open():
    return sum(os.path.realpath(f"/proc/self/fd/{fd}").startswith(str(path)) for fd in os.listdir("/proc/self/fd"))
for _ in range(3):
    DiskCache(path, namespace="x").put_many({b"k": "1"})
gc.collect()
if os.path.isdir("/proc/self/fd"):
    assert num_open() == 0
left = DiskCache(path, namespace="x")  # open at exit
assert left.get(b"k") == "1"
"""


class TestProcesses:
    def test_fork(self, make: Make, path: Path) -> None:
        run_python(FORK, path)
        assert make().num_entries == 3
        assert integrity(make()) == "ok"

    def test_fork_while_threads_write(self, make: Make, path: Path) -> None:
        run_python(FORK_IN_USE, path)
        assert integrity(make()) == "ok"

    def test_a_fork_that_python_did_not_see(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        cache = make()
        cache.put_many(some(3))
        store = cache._session._store  # type: ignore[union-attr]
        assert store is not None
        pid = os.getpid()
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: pid + 1)
            assert cache.get(key_of(0)) is None
            assert cache.put_many(some(1)) == 0
            assert "forked" in cache.status
        store.close()

    def test_garbage_is_closed(self, path: Path) -> None:
        run_python(GARBAGE, path)
        assert [p.name for p in path.parent.iterdir() if p.name.endswith(("-wal", "-shm"))] == []
