"""The memory of costs: records of `COST_DTYPE` by problem, bounded, and safe to use from many threads."""

from __future__ import annotations

import os
import threading
import weakref
from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple, TypeAlias

from gemm_eval.workload import RowGroups

_DIGEST_BYTES = 16

RecordKey: TypeAlias = tuple[int, int, int, int, int] | tuple[int, int, int, int, int, bytes]
"""(number of the data types in their evaluator, G, M, K, N), and of a grouped GEMM a digest of its row groups."""


def record_key(number: int, sizes: tuple[int, int, int, int], row_groups: RowGroups | None) -> RecordKey:
    """Return the key of a problem; groups in another order have the same one.

    Args:
        number: of the data types in their evaluator.
        sizes: G, M, K, N.
        row_groups: rows of each group, None where all have M.
    """
    if row_groups is None:
        return (number, *sizes)
    # a digest, since a thousand groups are 8 KB and the bound of a cache counts entries; at 16 bytes two do not meet
    rows = array("q", sorted(row_groups)).tobytes()
    return (number, *sizes, blake2b(rows, digest_size=_DIGEST_BYTES).digest())


class RecordCacheInfo(NamedTuple):
    """Hits and misses of the costs that an evaluator keeps, its bound, and how many it holds."""

    hits: int
    misses: int
    maxsize: int
    currsize: int


class RecordCache:
    """Costs as raw bytes, in two generations: a bound on memory, and close to least-recently-used at no cost per hit.

    New and used entries are young. When the young fill half of the bound they become the old, and the old that nobody
    used since are forgotten.
    """

    def __init__(self, maxsize: int) -> None:
        self._half = max(1, maxsize // 2)
        self._young: dict[RecordKey, bytes] = {}
        self._old: dict[RecordKey, bytes] = {}
        self._hits = 0
        self._misses = 0
        self._lock = threading.Lock()
        _CACHES.add(self)

    def get(self, key: RecordKey) -> bytes | None:
        """Return the record of one problem, or None."""
        return self.get_many((key,))[0]

    def get_many(self, keys: Sequence[RecordKey]) -> list[bytes | None]:
        """Return a record or None for each key."""
        with self._lock:
            found: list[bytes | None] = list(map(self._young.get, keys))
            old = self._old  # what ages meanwhile is still found
            if old:
                for place, key in enumerate(keys):
                    if found[place] is None and (record := old.get(key)) is not None:
                        found[place] = record
                        self._put(key, record)
            num_missing = found.count(None)
            self._hits += len(keys) - num_missing
            self._misses += num_missing
        return found

    def put_many(self, entries: Iterable[tuple[RecordKey, bytes]]) -> None:
        """Remember records."""
        with self._lock:
            for key, record in entries:
                self._put(key, record)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._young.clear()
            self._old.clear()
            self._hits = self._misses = 0

    def info(self) -> RecordCacheInfo:
        """Return how the cache is doing."""
        with self._lock:
            held = len(self._young.keys() | self._old.keys())
            return RecordCacheInfo(self._hits, self._misses, 2 * self._half, held)

    def _put(self, key: RecordKey, record: bytes) -> None:
        self._young[key] = record
        if len(self._young) >= self._half:
            self._old = self._young
            self._young = {}


_CACHES: weakref.WeakSet[RecordCache] = weakref.WeakSet()


def _renew_locks() -> None:
    """A lock that another thread held at the fork would stay locked in the child; the dicts are sound at any time."""
    for cache in list(_CACHES):
        cache._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
