"""The disk cache: what it keeps, for whom, and how much of it."""

from __future__ import annotations

import itertools
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from gemm_eval.errors import InvalidOptionError
from gemm_eval.storage.cache import DiskCache, default_path, disk, store
from tests.storage.disk_caches import Make, key_of, other_connection, run_python, some

KIB, MIB = 1 << 10, 1 << 20


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
