"""The disk cache on files that are damaged or foreign, and on a disk that is full."""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gemm_eval.storage.cache import DiskCache, files, opening, sqlite
from tests.storage.disk_caches import (
    ROOT,
    Make,
    asides,
    check_damaged,
    integrity,
    key_of,
    other_connection,
    recorded,
    some,
    write_text,
)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def truncate_in_page(path: Path) -> None:
    os.truncate(path, 1000)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def fill_with_noise(path: Path) -> None:
    path.write_bytes(hashlib.shake_256(b"noise").digest(50_000))


def overwrite_tail(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:] = hashlib.shake_256(b"noise").digest(len(data) - 4096)
    path.write_bytes(data)


def change_values(path: Path) -> None:
    """What SQLite does not see: other digits in the values."""
    data = path.read_bytes()
    assert b'"i": 7' in data
    path.write_bytes(data.replace(b'"i": 7', b'"i": 8'))


def make_foreign(path: Path) -> None:
    path.unlink()
    with other_connection(path) as connection:
        connection.execute("CREATE TABLE photos (id, jpeg)")
        connection.execute("INSERT INTO photos VALUES (1, 'mine')")


def make_same_id_without_tables(path: Path) -> None:
    with other_connection(path) as connection:
        connection.execute("DROP TABLE entries")


def make_newer(path: Path) -> None:
    with other_connection(path) as connection:
        connection.execute(f"PRAGMA user_version = {sqlite.SCHEMA_VERSION + 1}")


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "file").write_text("mine")


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES = [
    truncate,
    truncate_in_page,
    empty,
    fill_with_noise,
    overwrite_tail,
    change_values,
    make_foreign,
    make_same_id_without_tables,
    make_newer,
    make_folder,
    make_pipe,
    write_text,
]


class TestDamage:
    def test_any_byte_of_the_first_page(self, make: Make, path: Path) -> None:
        """SQLite quotes them in messages, be they text or not. All, not some: `python -m tests.stress.cache`."""
        stride = 97
        with make() as cache:
            cache.put_many(some(3))
        whole = path.read_bytes()
        for place in (18, 36, *range(0, 4096, stride)):  # 18: which versions may write it; 36: how many pages are free
            for value in (whole[place] ^ 0xFF, 0):
                check_damaged(path, whole[:place] + bytes([value]) + whole[place + 1 :], some(3))

    @pytest.mark.parametrize("damage", DAMAGES)
    def test_is_set_aside_and_rebuilt(self, make: Make, path: Path, damage: Callable[[Path], None]) -> None:
        items = some(1000)
        with make() as cache:
            cache.put_many(items)
        damage(path)
        before = path.read_bytes() if path.is_file() else None
        cache = make()
        with recorded() as told:
            answers = cache.get_many(items)
            answers |= dict(cache.load_all())
        assert len(told) == 1
        assert told[0].filename == __file__, "the warning points at the caller"
        assert answers.items() <= items.items(), "never a wrong value"
        (aside,) = asides(path)
        assert f"set aside as {aside}" in str(told[0].message)
        if before is not None:
            assert (path.parent / aside).read_bytes() == before, "nothing is overwritten"
        assert cache.put_many(items) == 1000
        assert make().get_many(items) == items
        assert asides(path) == [aside]

    @pytest.mark.parametrize("damage", [fill_with_noise, make_newer, make_folder])
    def test_is_found_by_a_write_too(self, make: Make, path: Path, damage: Callable[[Path], None]) -> None:
        with make() as cache:
            cache.put_many(some(10))
        damage(path)
        with pytest.warns(RuntimeWarning, match="set aside"):
            assert cache.put_many(some(5)) == 5
        assert dict(cache.load_all()) == some(5)

    def test_the_wal_goes_with_its_file(self, make: Make, path: Path) -> None:
        """A file that was emptied while its -wal holds committed entries, as after a crash."""
        cache = make()
        cache.put_many(some(10))
        companions = {s: path.with_name(path.name + s).read_bytes() for s in ("-wal", "-shm")}
        cache.close()
        empty(path)
        for suffix, content in companions.items():
            path.with_name(path.name + suffix).write_bytes(content)
        with pytest.warns(RuntimeWarning, match="it is empty"):
            assert cache.put_many(some(3)) == 3
        (aside,) = asides(path)
        assert (path.parent / f"{aside}-wal").read_bytes() == companions["-wal"]
        assert dict(cache.load_all()) == some(3)

    def test_a_damaged_wal_loses_only_itself(self, make: Make, path: Path) -> None:
        with make() as cache:
            cache.put_many(some(10))
        path.with_name(path.name + "-wal").write_bytes(hashlib.shake_256(b"noise").digest(20_000))
        assert cache.get_many(some(10)) == some(10)
        assert cache.put_many(some(10, start=10)) == 10

    def test_three_are_kept_and_then_it_gives_up(self, make: Make, path: Path) -> None:
        seen = []
        for i in range(6):
            with make() as cache:
                if i:
                    with pytest.warns(RuntimeWarning, match="set aside"):
                        cache.put_many(some(1))
                cache.put_many(some(1))
            write_text(path)
            seen += [name for name in asides(path) if name not in seen]
        assert len(seen) == 5
        assert asides(path) == seen[-3:]

        path.unlink()
        stubborn = make()
        stubborn.put_many(some(1))
        with recorded() as told:
            for _ in range(6):
                stubborn.close()
                write_text(path)
                stubborn.put_many(some(1))
        assert "again and again" in stubborn.status
        assert len(told) == 4
        assert stubborn.get(key_of(0)) is None

    def test_folders_set_aside_are_never_deleted(self, make: Make, path: Path) -> None:
        path.parent.mkdir(parents=True)
        for _ in range(5):
            make_folder_here(path)
            with make() as cache, pytest.warns(RuntimeWarning, match="not a file"):
                cache.put_many(some(1))
        assert len(asides(path)) == 5

    def test_another_process_replaced_the_file(self, make: Make, path: Path) -> None:
        """The race is lost: the old connection notices, and both see the same new file."""
        slow, fast = make(), make()
        slow.put_many(some(10))
        identity = files.identity_of(path)
        assert identity is not None
        assert len(opening.replace_damaged(path, identity, "for the test", timeout_s=1)) == 1
        assert opening.replace_damaged(path, identity, "for the test", timeout_s=1) == []
        fast.put_many(some(3))
        assert opening.replace_damaged(path, identity, "for the test", timeout_s=1) == [], "not the new file"
        assert slow.get_many(some(10)) == some(3)
        slow.put_many(some(1, start=3))
        assert fast.get_many(some(10)) == some(4)
        slow.close()
        assert fast.get_many(some(10)) == some(4)
        assert path.with_name(path.name + "-wal").exists(), "closing the old file must not remove the new one's wal"

    def test_deleted_while_open(self, make: Make, path: Path) -> None:
        cache = make()
        cache.put_many(some(10))
        path.unlink()
        assert cache.get_many(some(10)) == {}
        assert cache.put_many(some(2)) == 2
        assert make().get_many(some(10)) == some(2)

    def test_many_processes_find_the_same_damage(self, make: Make, path: Path) -> None:
        with make() as cache:
            cache.put_many(some(10))
        write_text(path)
        code = (
            "import sys, pathlib, time, warnings; from gemm_eval.storage.cache import DiskCache\n"
            "warnings.simplefilter('ignore'); time.sleep(max(0, float(sys.argv[2]) - time.time()))\n"
            "for i in range(20):\n"
            "    c = DiskCache(pathlib.Path(sys.argv[1]), namespace='model 1', timeout_s=30)\n"
            "    assert c.put_many({sys.argv[3].encode() + bytes([i]): str(i)}) == 1, c.status\n"
            "    c.close()\n"
        )
        start = str(time.time() + 1.0)
        command = [sys.executable, "-c", code, str(path), start]
        workers = [subprocess.Popen([*command, f"{i:08}"], cwd=ROOT) for i in range(6)]
        assert [worker.wait(60) for worker in workers] == [0] * 6
        assert len(asides(path)) == 1
        assert make().num_entries == 120


def make_folder_here(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


class TestNoSpace:
    @contextlib.contextmanager
    def by_file_size(self, cache: DiskCache) -> Iterator[None]:
        """The system refuses to let any file grow."""
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    @contextlib.contextmanager
    def by_page_count(self, cache: DiskCache) -> Iterator[None]:
        """SQLite itself says that the disk is full."""
        connection = cache._session._store._connection  # type: ignore[union-attr]
        (limit,) = connection.execute("PRAGMA max_page_count").fetchone()
        connection.execute("PRAGMA max_page_count = 50").fetchall()
        yield
        connection.execute(f"PRAGMA max_page_count = {limit}").fetchall()

    @pytest.mark.parametrize("how", ["by_file_size", "by_page_count"])
    def test_writes_fail_quietly_and_reads_go_on(self, make: Make, how: str) -> None:
        cache = make()
        cache.put_many(some(50))
        with getattr(self, how)(cache), recorded() as told:
            for start in (100, 2000, 4000):
                assert cache.put_many(some(1500, start=start)) == 0
                assert cache.get_many(some(50)) == some(50)
        assert len(told) == 1
        assert cache.num_entries == 50
        assert cache.put_many(some(1500, start=100)) == 1500, "there is room again"
        assert cache.get_many(some(50)) == some(50)
        cache.close()
        assert integrity(cache) == "ok"

    def test_no_room_for_the_file_itself(self, make: Make, path: Path) -> None:
        cache = make()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
        try:
            with recorded() as told:
                for _ in range(5):
                    assert cache.put_many(some(10)) == 0
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert len(told) == 1
        assert cache.status.startswith("given up")
        assert {p.name for p in path.parent.iterdir()} <= {f"{path.name}.guard"}
        assert make().put_many(some(10)) == 10
