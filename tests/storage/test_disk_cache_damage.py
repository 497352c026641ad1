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

from gemm_eval import GEMMEvaluator
from gemm_eval.errors import StorageError
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


def make_foreign_with_wal(path: Path) -> None:
    """Somebody's database whose last rows are in its -wal, which the last to close the file would fold in."""
    make_foreign(path)
    code = (
        "import os, sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('PRAGMA journal_mode = WAL')\n"
        "c.execute('CREATE TABLE more (id)'); c.commit(); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    assert path.with_name(f"{path.name}-wal").stat().st_size


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


def make_link(path: Path) -> None:
    path.unlink()
    path.with_name("notes.txt").write_text("mine")
    path.symlink_to("notes.txt")


def make_dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


DAMAGES = [truncate, truncate_in_page, overwrite_tail, change_values, make_same_id_without_tables, make_newer]
FOREIGN = [
    empty, fill_with_noise, make_foreign, make_foreign_with_wal, make_folder, make_pipe, make_link, write_text,
]  # fmt: skip


def snapshot(folder: Path) -> dict[str, tuple[object, ...]]:
    """All that lies in a folder but guards: names, kinds, inodes, links and content."""
    return {
        str(found.relative_to(folder)): (
            found.lstat().st_mode, found.lstat().st_ino, str(found.readlink()) if found.is_symlink() else "",
            found.read_bytes() if found.is_file() else b"",
        )
        for found in folder.rglob("*")
        if found.suffix != ".guard"
    }  # fmt: skip


class TestDamage:
    def test_any_byte_of_the_first_page(self, make: Make, path: Path) -> None:
        """SQLite quotes them in messages, be they text or not. All, not some: `python -m tools.stress.cache`."""
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

    @pytest.mark.parametrize("damage", [overwrite_tail, make_newer])
    def test_is_found_by_a_write_too(self, make: Make, path: Path, damage: Callable[[Path], None]) -> None:
        with make() as cache:
            cache.put_many(some(10))
        damage(path)
        with pytest.warns(RuntimeWarning, match="set aside"):
            assert cache.put_many(some(5)) == 5
        assert dict(cache.load_all()) == some(5)

    def test_an_old_wal_meets_no_new_file(self, make: Make, path: Path) -> None:
        """A file that was cut while its -wal holds committed entries, as after a crash."""
        cache = make()
        cache.put_many(some(10))
        companions = {s: path.with_name(path.name + s).read_bytes() for s in ("-wal", "-shm")}
        cache.close()
        truncate_in_page(path)
        for suffix, content in companions.items():
            path.with_name(path.name + suffix).write_bytes(content)
        with pytest.warns(RuntimeWarning, match="set aside"):
            assert cache.put_many(some(3)) == 3
        assert len(asides(path)) == 1
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
            truncate_in_page(path)
            seen += [name for name in asides(path) if name not in seen]
        assert len(seen) == 5
        assert asides(path) == seen[-3:]

        path.unlink()
        stubborn = make()
        stubborn.put_many(some(1))
        with recorded() as told:
            for _ in range(6):
                stubborn.close()
                truncate_in_page(path)
                stubborn.put_many(some(1))
        assert "again and again" in stubborn.status
        assert len(told) == 4
        assert stubborn.get(key_of(0)) is None

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
        truncate_in_page(path)
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


class TestForeign:
    @pytest.mark.parametrize("change", FOREIGN)
    def test_is_never_touched(self, make: Make, path: Path, change: Callable[[Path], None]) -> None:
        with make() as cache:
            cache.put_many(some(3))
        change(path)
        before = snapshot(path.parent)
        for cache in (make(is_chosen=True), make(is_chosen=True, max_bytes=1 << 20)):
            for operation in (lambda c: c.get_many(some(3)), lambda c: c.put_many(some(3)), lambda c: c.clear()):
                with pytest.raises(StorageError, match="is no cache of gemm_eval") as raised:
                    operation(cache)
                assert str(path) in str(raised.value)
                assert "give the path of a new file" in str(raised.value)
        with recorded() as told:
            cache = make()  # of the library's own choice: it works without
            for _ in range(5):
                assert (cache.get_many(some(3)), cache.put_many(some(3))) == ({}, 0)
        assert len(told) == 1
        assert snapshot(path.parent) == before

    def test_a_link_to_nothing_stays(self, make: Make, path: Path) -> None:
        path.parent.mkdir(parents=True)
        path.touch()
        make_dangling_link(path)
        with recorded():
            assert make(is_chosen=True).put_many(some(1)) == 0
        assert str(path.readlink()) == "nowhere"
        assert asides(path) == []

    def test_a_link_to_a_cache_is_followed(self, make: Make, path: Path) -> None:
        with make() as cache:
            cache.put_many(some(3))
        link = path.with_name("link")
        link.symlink_to(path.name)
        assert make(path=link, is_chosen=True).get_many(some(3)) == some(3)

    def test_a_user_hears_of_it(self, path: Path) -> None:
        """A file that `disk_cache` names stays; once it is gone, the same evaluator begins a cache there."""
        path.parent.mkdir(parents=True)
        write_text(path)
        evaluator = GEMMEvaluator("demo-8core", disk_cache=path)
        for _ in range(2):
            with pytest.raises(StorageError, match="is no cache of gemm_eval"):
                evaluator.evaluate(1, 64, 64, 64)
        assert path.read_text() == "dear diary"
        path.unlink()
        table = evaluator.evaluate_many([(1, 64, 64, 64)])
        assert evaluator.save_to_disk(table) == 1


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
