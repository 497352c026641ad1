"""The disk cache: what it keeps, and all that can happen to a file."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import pickle
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gemm_eval.errors import InvalidOptionError
from gemm_eval.storage.cache import DiskCache, default_path, disk, files, opening, sqlite, store

KIB, MIB = 1 << 10, 1 << 20
ROOT = Path(__file__).parents[2]
NOBODY = 65534


def key_of(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


def some(num: int, *, size: int = 300, start: int = 0) -> dict[bytes, str]:
    return {key_of(i): f'{{"i": {i}, "text": "{"ä" * (size // 2)}"}}' for i in range(start, start + num)}


def asides(path: Path) -> list[str]:
    return sorted(p.name for p in path.parent.glob(f"{path.name}.damaged-*") if not p.name.endswith(("-wal", "-shm")))


def run_python(code: str, *args: object) -> str:
    """Run `code` in a fresh interpreter that turns every warning into an error, and return what it printed."""
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", code, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, "not even an unraisable exception"
    return done.stdout


@contextlib.contextmanager
def recorded() -> Iterator[list[warnings.WarningMessage]]:
    """All warnings of a block; they must be RuntimeWarnings."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        yield told
    assert all(warning.category is RuntimeWarning for warning in told)


@contextlib.contextmanager
def other_connection(path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "folder" / "cache é #1%?.sqlite3"


@pytest.fixture
def make(path: Path) -> Iterator[Callable[..., DiskCache]]:
    made = []

    def make(**options: Any) -> DiskCache:
        cache = DiskCache(options.pop("path", path), **({"namespace": "model 1", "timeout_s": 0.2} | options))
        made.append(cache)
        return cache

    yield make
    for cache in made:
        cache.close()


Make = Callable[..., DiskCache]


class TestKeepsEntries:
    def test_round_trip(self, make: Make) -> None:
        cache, items = make(), some(1000)
        assert cache.put_many(items) == 1000
        absent = key_of(5000)
        assert cache.get_many([*items, absent]) == items
        assert cache.get(key_of(7)) == items[key_of(7)]
        assert cache.get(absent) is None
        assert dict(cache.load_all()) == items
        assert cache.num_entries == 1000
        assert cache.status == "read and write"

    def test_other_objects_and_processes_see_it(self, make: Make, path: Path) -> None:
        make().put_many(some(10))
        assert make().get_many(some(20)) == some(10)
        code = "import sys, pathlib; from gemm_eval.storage.cache import DiskCache; "
        code += "c = DiskCache(pathlib.Path(sys.argv[1]), namespace='model 1'); print(len(dict(c.load_all())))"
        assert run_python(code, path) == "10\n"

    def test_replaces(self, make: Make) -> None:
        cache = make()
        cache.put_many({b"k" * 32: "1", b"l" * 32: "2"})
        cache.put_many({b"k" * 32: "3"})
        assert dict(cache.load_all()) == {b"k" * 32: "3", b"l" * 32: "2"}

    @pytest.mark.parametrize("num", [disk.PAGE_ENTRIES - 1, disk.PAGE_ENTRIES, 2 * disk.PAGE_ENTRIES + 1])
    def test_loads_in_pages_in_order(self, make: Make, num: int) -> None:
        cache, items = make(), some(num, size=10)
        cache.put_many(items)
        assert list(cache.load_all()) == sorted(items.items())

    def test_loads_by_prefix(self, make: Make) -> None:
        cache = make()
        items = {bytes([a, b, c]): "0" for a, b, c in itertools.product((0, 7, 255), repeat=3)}
        cache.put_many(items)
        for prefix in (b"", b"\0", b"\7\7", b"\xff", b"\xff\xff\xff", b"\1"):
            assert dict(cache.load_all(prefix)) == {k: v for k, v in items.items() if k.startswith(prefix)}

    def test_many_transactions(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(store, "WRITE_BATCH", 7)
        monkeypatch.setattr(store, "READ_BATCH", 3)
        cache = make()
        assert cache.put_many(some(100)) == 100
        assert cache.get_many(some(100)) == some(100)

    def test_nothing_asked(self, make: Make, path: Path) -> None:
        cache = make()
        assert cache.put_many({}) == 0
        assert cache.get_many([]) == {}
        assert not path.parent.exists()

    def test_close_and_go_on(self, make: Make) -> None:
        with make() as cache:
            cache.put_many(some(3))
        assert cache.status == "not open"
        assert cache.num_entries == 3

    def test_pickles(self, make: Make) -> None:
        cache = make()
        cache.put_many(some(3))
        copy = pickle.loads(pickle.dumps(cache))
        assert copy.get_many(some(3)) == some(3)
        assert repr(copy) == repr(cache)
        copy.close()

    def test_threads_share_one_object(self, make: Make) -> None:
        cache, items = make(timeout_s=10), some(400)
        errors = []

        def work(mine: dict[bytes, str]) -> None:
            try:
                for key, value in mine.items():
                    assert cache.put_many({key: value}) == 1
                    assert cache.get(key) == value
            except BaseException as error:
                errors.append(error)

        pairs = list(items.items())
        threads = [threading.Thread(target=work, args=(dict(pairs[i::8]),)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        assert dict(cache.load_all()) == items

    def test_entries_are_json_text_in_plain_sql(self, make: Make, path: Path) -> None:
        make().put_many({key_of(1): '{"a": 1}'})
        with other_connection(path) as connection:
            assert connection.execute("SELECT value, typeof(value) FROM entries").fetchall() == [('{"a": 1}', "text")]
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)


class TestNamespaces:
    def test_side_by_side(self, make: Make) -> None:
        old, new = make(namespace="schema 1, model 1"), make(namespace="schema 1, model 2")
        key = key_of(0)
        old.put_many({key: '"old"', key_of(1): '"only old"'})
        new.put_many({key: '"new"'})
        assert (old.get(key), new.get(key)) == ('"old"', '"new"')
        assert new.get(key_of(1)) is None
        assert dict(new.load_all()) == {key: '"new"'}
        assert (old.num_entries, new.num_entries) == (2, 1)

    def test_clear_one_or_all(self, make: Make) -> None:
        one, two, three = (make(namespace=f"model {i}") for i in (1, 2, 3))
        for cache in (one, two, three):
            cache.put_many(some(100))
        assert one.clear() == 100
        assert (one.num_entries, two.num_entries) == (0, 100)
        assert one.clear(all_namespaces=True) == 200
        assert (two.num_entries, three.num_entries) == (0, 0)

    def test_an_entry_moved_to_another_namespace_is_not_believed(self, make: Make, path: Path) -> None:
        with make(namespace="model 1") as old, make(namespace="model 2") as new:
            old.put_many(some(1))
            new.put_many(some(1, start=1))
        with other_connection(path) as connection:
            connection.execute("UPDATE entries SET namespace = (SELECT namespace FROM entries WHERE id = 2)")
        with pytest.warns(RuntimeWarning, match="checksum"):
            assert new.get(key_of(0)) is None


class TestOff:
    def test_every_call_is_a_no_op(self) -> None:
        with DiskCache(None, namespace="x") as cache:
            assert cache.put_many(some(3)) == 0
            assert cache.get(key_of(0)) is None
            assert cache.get_many(some(3)) == {}
            assert list(cache.load_all()) == []
            cache.touch(some(3))
            assert (cache.num_entries, cache.size_bytes, cache.clear(), cache.path) == (0, 0, 0, None)
            assert cache.status == "off"

    def test_default_path(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", "off")
        assert default_path() is None
        monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", str(tmp_path))
        found = default_path()
        assert found is not None
        assert found.parent == tmp_path

    def test_import_and_construction_cost_nothing(self, path: Path) -> None:
        code = (
            "import sys, pathlib; from gemm_eval.storage import DiskCache; c = DiskCache(pathlib.Path(sys.argv[1]), "
            "namespace='x'); print(sorted({'sqlite3', 'numba', 'numpy'} & set(sys.modules)))"
        )
        assert run_python(code, path) == "[]\n"
        assert not path.parent.exists()


class TestWrongUse:
    @pytest.mark.parametrize("key", ["text", 1, None, bytearray(8)])
    def test_keys(self, make: Make, key: Any) -> None:
        cache = make()
        for call in (cache.get, lambda k: cache.get_many([k]), lambda k: cache.touch([k]), cache.load_all):
            with pytest.raises(TypeError, match="digest"):
                call(key)
        if not isinstance(key, bytearray):
            with pytest.raises(TypeError, match="digest"):
                cache.put_many({key: "1"})

    def test_values(self, make: Make) -> None:
        cache = make()
        with pytest.raises(TypeError, match="JSON text"):
            cache.put_many({b"k": b"1"})  # type: ignore[dict-item]
        with pytest.raises(UnicodeEncodeError):
            cache.put_many({b"a": "1", b"k": "\ud800"})
        assert cache.put_many({b"k": "1"}) == 1
        assert dict(cache.load_all()) == {b"k": "1"}

    @pytest.mark.parametrize(
        "options", [{"namespace": ""}, {"namespace": "\ud800"}, {"max_bytes": 1000}, {"timeout_s": -1}, {"path": 3}]
    )
    def test_options(self, make: Make, options: Any) -> None:
        with pytest.raises(InvalidOptionError):
            make(**options)


class TestBound:
    def test_size_and_order_of_eviction(self, make: Make) -> None:
        cache = make(max_bytes=MIB)
        for start in range(0, 10_000, 500):
            cache.put_many(some(500, start=start))
            main_bytes = cache.size_bytes - wal_bytes(cache)
            assert main_bytes <= MIB
        left = dict(cache.load_all())
        assert len(left) * 300 > MIB / 2, "it may not throw away more than it must"
        assert left == some(len(left), start=10_000 - len(left)), "the newest stay"
        cache.close()
        assert cache.size_bytes <= MIB

    def test_one_write_larger_than_the_bound(self, make: Make) -> None:
        cache = make(max_bytes=256 * KIB)
        cache.put_many(some(5000))
        assert cache.get(key_of(4999)) is not None
        cache.close()
        assert cache.size_bytes <= 256 * KIB
        assert cache.put_many({b"k": '"' + "x" * MIB + '"'}) == 1
        cache.close()
        assert cache.size_bytes <= 256 * KIB
        assert cache.get(b"k") is None, "it never fits"
        assert cache.put_many(some(10)) == 10
        assert cache.num_entries == 10

    def test_a_smaller_bound_gives_pages_back(self, make: Make) -> None:
        with make() as cache:
            cache.put_many(some(5000))
        assert cache.size_bytes > MIB
        with make(max_bytes=256 * KIB) as small:
            small.put_many(some(1, start=9000))
        assert small.size_bytes <= 256 * KIB
        assert small.get(key_of(9000)) is not None

    def test_clear_gives_pages_back(self, make: Make) -> None:
        cache = make()
        cache.put_many(some(5000))
        assert cache.size_bytes > MIB
        assert cache.clear() == 5000
        assert cache.size_bytes <= 64 * KIB

    @pytest.mark.parametrize("use", ["get", "get_many", "touch"])
    def test_used_entries_stay(self, make: Make, monkeypatch: pytest.MonkeyPatch, use: str) -> None:
        now_s = [1e9]
        monkeypatch.setattr(store.time, "time", lambda: now_s[0])
        cache = make(max_bytes=MIB)
        precious = some(50)
        cache.put_many(precious)
        for start in range(1000, 30_000, 500):
            now_s[0] += store.COARSE_S + 1
            for key in precious:
                if use == "get":
                    cache.get(key)
            if use == "get_many":
                cache.get_many(precious)
            elif use == "touch":
                cache.touch(precious)
            cache.put_many(some(500, start=start))
        assert cache.get_many(precious) == precious
        assert cache.get(key_of(1000)) is None, "others went"

    def test_stamps_are_written_in_batches(self, make: Make, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        now_s = [1e9]
        monkeypatch.setattr(store.time, "time", lambda: now_s[0])
        monkeypatch.setattr(store, "TOUCH_BATCH", 10)
        cache = make()
        cache.put_many(some(20))

        def num_fresh() -> int:
            with other_connection(path) as connection:
                sql = "SELECT count(*) FROM entries WHERE last_used_s = ?"
                return int(connection.execute(sql, (int(now_s[0]),)).fetchone()[0])

        now_s[0] += store.COARSE_S / 2
        cache.get_many(some(20))
        cache.close()
        assert num_fresh() == 0, "the old stamps are good enough"
        now_s[0] += store.COARSE_S
        cache.get_many(some(9))
        assert num_fresh() == 0, "not on every read"
        cache.get(key_of(9))
        assert num_fresh() == 10
        cache.get_many(some(5, start=10))
        cache.close()
        assert num_fresh() == 15, "at the latest when closing"

    def test_stamps_from_the_future_are_mended(self, make: Make, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        cache = make()
        with monkeypatch.context() as patch:
            patch.setattr(store.time, "time", lambda: 4e9)
            cache.put_many(some(5))
        cache.get_many(some(5))
        cache.close()
        with other_connection(path) as connection:
            assert connection.execute("SELECT max(last_used_s) FROM entries").fetchone()[0] <= time.time()


def wal_bytes(cache: DiskCache) -> int:
    assert cache.path is not None
    wal = cache.path.with_name(cache.path.name + "-wal")
    return wal.stat().st_size if wal.exists() else 0


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


def write_text(path: Path) -> None:
    path.write_text("dear diary")


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


def check_damaged(path: Path, content: bytes, items: dict[bytes, str]) -> bool:
    """Check that a file is used, or set aside with a warning, and that the cache works on; say whether it was."""
    for found in path.parent.iterdir():
        found.unlink()
    path.write_bytes(content)
    with recorded() as told:
        with DiskCache(path, namespace="model 1") as cache:
            answers = cache.get_many(items)
            answers |= dict(cache.load_all())
            assert answers.items() <= items.items()
            assert cache.put_many(items) == len(items), cache.status
        with DiskCache(path, namespace="model 1") as cache:
            assert cache.get_many(items) == items
    assert len(told) == len(asides(path)) <= 1
    return bool(told)


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


def integrity(cache: DiskCache) -> str:
    assert cache.path is not None
    with other_connection(cache.path) as connection:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])


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
