"""One open cache file: the SQL. Not safe for threads; `gemm_eval.storage.cache.session` sees to that.

The file is in WAL mode with ``synchronous=NORMAL``: a commit appends to the ``-wal`` file without waiting for the disk.
A process killed at any moment loses nothing that it committed, because the operating system still holds those writes;
after a power cut the last commits may be gone, but the file is whole, because checkpoints do wait for the disk. That
is right for a cache. Where WAL cannot work (no shared memory between the processes, as on network file systems) the
file has a rollback journal and ``synchronous=FULL``, without which a power cut could damage it.

SQLite does not notice changed bytes inside a value, so each entry carries a CRC-32 over namespace, key and value.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import operator
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Concatenate, ParamSpec, TypeVar
from zlib import crc32

from gemm_eval.storage.cache.eviction import give_back_all, keep_bound, make_room
from gemm_eval.storage.cache.sqlite import translated
from gemm_eval.storage.cache.trouble import Kind, Trouble

__all__ = ["Store"]

READ_BATCH = 500  # keys in one SELECT; old SQLite takes at most 999 variables
WRITE_BATCH = 16_384  # entries in one transaction: how long others may have to wait
ENTRY_BYTES = 80  # that SQLite adds to value and twice the key; measured for values of 0.2 to 0.5 KB
TOUCH_BATCH = 1024  # stamps due that a read writes itself, if no write came before
COARSE_S = 3600  # a last-used stamp newer than this is good enough

P = ParamSpec("P")
T = TypeVar("T")


def _translating(method: Callable[Concatenate[Store, P], T]) -> Callable[Concatenate[Store, P], T]:
    @functools.wraps(method)
    def wrapper(self: Store, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with translated():
            return method(self, *args, **kwargs)

    return wrapper


class Store:
    """Entries of one namespace in an open file. All methods but `close` raise `Trouble` and nothing else.

    Args:
        connection: from `gemm_eval.storage.cache.sqlite.open_existing`.
        namespace: what the entries belong to.
        max_bytes: bound of the main file.
        patience_s: how long to wait for others, as the connection was opened with.
        is_read_only: nothing can be written.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        *,
        namespace: str,
        max_bytes: int,
        patience_s: float,
        is_read_only: bool,
    ) -> None:
        self._connection = connection
        self._max_bytes = max_bytes
        self._patience_s = patience_s
        self.is_read_only = is_read_only
        seed = namespace.encode()
        self._seed = crc32(seed + b"\0")
        # 64 bits stand for the name; should two names ever agree in them, the checksums still differ
        self._namespace = int.from_bytes(hashlib.blake2b(seed, digest_size=8).digest(), "big", signed=True)
        self._touched: set[bytes] = set()

    def close(self) -> None:
        """Close the file. The last to close it also folds the ``-wal`` file in."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()

    @_translating
    def set_patience(self, patience_s: float) -> None:
        """Wait that long for others from now on."""
        if patience_s != self._patience_s:
            self._connection.execute(f"PRAGMA busy_timeout = {round(patience_s * 1000)}")
            self._patience_s = patience_s

    @_translating
    def get_many(self, keys: Iterable[bytes]) -> dict[bytes, str]:
        """Those of `keys` that are stored, with their values; notes which of them need a newer stamp."""
        found: dict[bytes, str] = {}
        oldest_s, newest_s = _coarse_now()
        todo = iter(keys)
        while batch := tuple(itertools.islice(todo, READ_BATCH)):
            marks = ",".join("?" * len(batch))
            sql = f"SELECT key, value, checksum, last_used_s FROM entries WHERE namespace = ? AND key IN ({marks})"
            wanted = set(batch)
            for key, value, checksum, last_used_s in self._connection.execute(sql, (self._namespace, *batch)):
                found[key] = self._checked(key, value, checksum)
                if key not in wanted or not isinstance(last_used_s, int):
                    raise Trouble(Kind.DAMAGED, "an entry is not what its index says")
                if not oldest_s <= last_used_s <= newest_s:
                    self._touched.add(key)
        if len(self._touched) >= TOUCH_BATCH:
            with contextlib.suppress(Trouble):  # the answer matters more
                self.flush_touched()
        return found

    @_translating
    def page(self, after: bytes, *, is_first: bool, limit: int) -> list[tuple[bytes, str]]:
        """At most `limit` entries in the order of their keys: those above `after`, on the first page also `after`."""
        sql = (
            "SELECT key, value, checksum FROM entries WHERE namespace = ? AND key "
            f"{'>=' if is_first else '>'} ? ORDER BY key LIMIT ?"
        )
        rows = self._connection.execute(sql, (self._namespace, after, limit))
        found = [(key, self._checked(key, value, checksum)) for key, value, checksum in rows]
        keys = [key for key, _ in found]
        # in a damaged index a reader could go in circles
        if not all(itertools.starmap(operator.lt, itertools.pairwise(keys if is_first else [after, *keys]))):
            raise Trouble(Kind.DAMAGED, "its entries are not in order")
        return found

    @_translating
    def remove_many(self, keys: Iterable[bytes]) -> None:
        """Remove the entries of `keys`."""
        if self.is_read_only:
            return
        with self._transaction():
            self._connection.executemany(
                "DELETE FROM entries WHERE namespace = ? AND key = ?", [(self._namespace, key) for key in keys]
            )

    @_translating
    def put_many(self, items: Mapping[bytes, str]) -> int:
        """Store `items`, evict what the file has no room for, and return how many were written."""
        if self.is_read_only:
            return 0
        todo = iter(items.items())
        num_written = 0
        while batch := list(itertools.islice(todo, WRITE_BATCH)):
            with self._transaction():
                now_s = int(time.time())
                new_bytes = sum(len(key) * 2 + len(value) for key, value in batch) + ENTRY_BYTES * len(batch)
                make_room(self._connection, max_bytes=self._max_bytes, new_bytes=new_bytes)
                self._connection.executemany(
                    "INSERT INTO entries (namespace, key, value, checksum, last_used_s) VALUES (?, ?, ?, ?, ?) "
                    "ON CONFLICT (namespace, key) DO UPDATE SET "
                    "value = excluded.value, checksum = excluded.checksum, last_used_s = excluded.last_used_s",
                    [(self._namespace, key, value, self._checksum(key, value.encode()), now_s) for key, value in batch],
                )
                self._stamp_touched()
                keep_bound(self._connection, max_bytes=self._max_bytes)
            num_written += len(batch)
        return num_written

    def touch(self, keys: Iterable[bytes]) -> None:
        """Note that `keys` were used."""
        self._touched.update(keys)

    @_translating
    def flush_touched(self) -> None:
        """Write the stamps that are due; if somebody else is writing just now, forget them."""
        if not self._touched or self.is_read_only:
            self._touched.clear()
            return
        patience_s = self._patience_s
        self.set_patience(0.0)
        try:
            with self._transaction():
                self._stamp_touched()
        finally:
            self._touched.clear()
            self.set_patience(patience_s)

    @_translating
    def num_entries(self) -> int:
        """Entries of this namespace."""
        (num,) = self._connection.execute("SELECT count(*) FROM entries WHERE namespace = ?", (self._namespace,))
        return int(num[0])

    @_translating
    def clear(self, *, all_namespaces: bool) -> int:
        """Remove the entries, give the room back, and return how many there were."""
        if self.is_read_only:
            return 0
        with self._transaction():
            sql = "SELECT 1 FROM entries WHERE namespace < ? OR namespace > ? LIMIT 1"
            has_others = self._connection.execute(sql, (self._namespace, self._namespace)).fetchone() is not None
            # without WHERE SQLite drops whole pages instead of row after row
            where = f" WHERE namespace = {self._namespace}" if has_others and not all_namespaces else ""
            num_removed = self._connection.execute(f"SELECT count(*) FROM entries{where}").fetchone()[0]
            self._connection.execute(f"DELETE FROM entries{where}")
            self._touched.clear()
        give_back_all(self._connection)
        return int(num_removed)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        # IMMEDIATE: waits for the right to write before it reads, so it cannot fail half way for being late
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            raise

    def _stamp_touched(self) -> None:
        if self._touched:
            oldest_s, newest_s = _coarse_now()
            now_s = int(time.time())
            self._connection.executemany(
                "UPDATE entries SET last_used_s = ? "
                "WHERE namespace = ? AND key = ? AND last_used_s NOT BETWEEN ? AND ?",
                [(now_s, self._namespace, key, oldest_s, newest_s) for key in self._touched],
            )
            self._touched.clear()

    def _checksum(self, key: bytes, value: bytes) -> int:
        return crc32(value, crc32(key, self._seed))

    def _checked(self, key: object, value: object, checksum: object) -> str:
        if isinstance(key, bytes) and isinstance(value, bytes) and self._checksum(key, value) == checksum:
            return value.decode(errors="replace")  # it was encoded here: nothing to replace
        raise Trouble(Kind.DAMAGED, "an entry does not agree with its checksum")


def _coarse_now() -> tuple[int, int]:
    """The stamps that need no update: a clock that was wrong once must not keep entries for ever."""
    now_s = int(time.time())
    return now_s - COARSE_S, now_s + COARSE_S
