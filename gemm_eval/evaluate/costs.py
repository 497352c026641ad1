"""Records of costs that an evaluator has found: in memory, bounded and safe for threads, and when asked on disk."""

from __future__ import annotations

import os
import threading
import weakref
from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from gemm_eval.evaluate.batch import ProblemBatch
from gemm_eval.evaluate.table import progress_bar
from gemm_eval.storage import cache_dir
from gemm_eval.workload import RowGroups

if TYPE_CHECKING:
    from gemm_eval.evaluate.backend import Backend, Kind, Records
    from gemm_eval.evaluate.disk import CostStore
    from gemm_eval.workload import GemmProblem

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
            records: list[bytes | None] = list(map(self._young.get, keys))
            old = self._old  # a record that ages meanwhile is still there
            if old:
                for row, key in enumerate(keys):
                    if records[row] is None and (record := old.get(key)) is not None:
                        records[row] = record
                        self._put(key, record)
            num_missing = records.count(None)
            self._hits += len(keys) - num_missing
            self._misses += num_missing
        return records

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
    """Give a forked child free locks: one that another thread held stays locked. The dicts are sound at any time."""
    for cache in list(_CACHES):
        cache._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


_RECORD_CACHE_SIZE = 1 << 18  # costs of about 0.6 KB each


class FoundCosts:
    """Finds the cost of each problem once, and remembers it; the backend searches.

    Args:
        backend: searches, and says how its records look.
        disk_cache: as for `GEMMEvaluator`.
    """

    def __init__(self, backend: Backend, disk_cache: bool | str | os.PathLike[str]) -> None:
        self._backend = backend
        self._disk_cache = disk_cache
        self._disk_lock = threading.Lock()
        self._is_disk_read = False
        self._records = RecordCache(_RECORD_CACHE_SIZE)
        self._kind_numbers: dict[Kind, int] = {}
        self._next_number = count()

    def find(self, problem: GemmProblem, kind: Kind) -> np.void:
        """Return the record of the best mapping, known or found now.

        Raises:
            UnsupportedError: the arch cannot run this kind.
            InfeasibleError: no mapping fits.
        """
        self._read_disk_once()
        key = record_key(self.number_of(kind), problem.sizes, problem.row_groups)
        record = self._records.get(key)
        if record is None:
            costs = self._backend.find(problem, self._backend.pack(kind))
            self._records.put_many([(key, costs.tobytes())])
        else:
            costs = np.frombuffer(record, self._backend.record_dtype)
        cost: np.void = costs[0]
        return cost

    def find_many(self, batch: ProblemBatch, progress: bool | None) -> Records:
        """Return the records of a batch, read-only; zeros where no mapping fits.

        Raises:
            UnsupportedError: the arch cannot run a kind; nothing has been searched then.
        """
        self._read_disk_once()
        packed = [self._backend.pack(kind) for kind in batch.kinds]
        keys = self._keys(batch)
        records = self._records.get_many(keys)
        missing: dict[RecordKey, int] = {}  # each missing problem once, and its first row
        for row, record in enumerate(records):
            if record is None:
                missing.setdefault(keys[row], row)
        if missing:
            chosen = np.fromiter(missing.values(), np.int64, len(missing))
            types = [kind.types for kind in batch.kinds]
            with progress_bar(len(chosen), f"GEMMs on {self._backend.arch.name}", progress) as advance:
                layouts = batch.layouts(missing.values())
                found = self._backend.find_many(
                    types, packed, batch.kind_of[chosen], batch.sizes[chosen], layouts, advance
                )
            fresh = {key: record.tobytes() for key, record in zip(missing, found, strict=True)}
            feasible = self._backend.is_feasible(found).tolist()  # only answers are worth remembering
            self._records.put_many(entry for entry, is_kept in zip(fresh.items(), feasible, strict=True) if is_kept)
            records = [fresh[key] if record is None else record for key, record in zip(keys, records, strict=True)]
        return np.frombuffer(b"".join(records), self._backend.record_dtype)  # type: ignore[arg-type]

    def _keys(self, batch: ProblemBatch) -> list[RecordKey]:
        numbers = np.array([self.number_of(kind) for kind in batch.kinds], np.int64)[batch.kind_of].tolist()
        keys: list[RecordKey] = list(zip(numbers, *batch.sizes.T.tolist(), strict=True))
        for row in batch.grouped_places:
            number, *sizes = keys[row]
            keys[row] = record_key(number, tuple(sizes), batch.row_groups_of(row))  # type: ignore[arg-type]
        return keys

    def save(self, batch: ProblemBatch, records: Records) -> int:
        """Keep records on disk; returns how many were written."""
        if self._disk_path is None:
            return 0
        # the file knows GEMMs that are called alone
        is_alone = np.array([kind.call_weights == 1.0 for kind in batch.kinds], np.bool_)[batch.kind_of]
        rows = np.flatnonzero(self._backend.is_feasible(records) & is_alone)
        return self.store().save(
            batch.kinds, batch.kind_of[rows], batch.sizes[rows], map(batch.row_groups_of, rows.tolist()), records[rows]
        )

    def clear(self) -> None:
        """Forget all that is in memory."""
        self._records.clear()

    def info(self) -> RecordCacheInfo:
        """Return how the memory is doing."""
        return self._records.info()

    def number_of(self, kind: Kind) -> int:
        """Return the number that stands for a kind in this memory."""
        # a fresh number for each try: by len(), two threads could give one number to two kinds
        number = self._kind_numbers.get(kind)
        return self._kind_numbers.setdefault(kind, next(self._next_number)) if number is None else number

    def store(self) -> CostStore:
        """Return the place on disk."""
        from gemm_eval.evaluate.disk import CostStore  # only where it is needed

        return CostStore(self._disk_path, self._backend, is_chosen=not isinstance(self._disk_cache, bool))

    @property
    def _disk_path(self) -> Path | None:
        if isinstance(self._disk_cache, bool):
            return default_path(self._backend.arch.name) if self._disk_cache else None
        return Path(self._disk_cache)

    def _read_disk_once(self) -> None:
        if self._is_disk_read:
            return
        with self._disk_lock:
            if not self._is_disk_read:
                path = self._disk_path
                if path is not None and os.path.exists(path):  # noqa: PTH110  Path.exists raises if a name is too long
                    self._records.put_many(
                        (record_key(self.number_of(stored.kind), stored.sizes, stored.row_groups), stored.record)
                        for stored in self.store().load()
                    )
                self._is_disk_read = True


def default_path(arch_name: str) -> Path | None:
    """Return the file of a chip in the user's cache folder; None: ``GEMM_EVAL_CACHE_DIR`` turns caching off."""
    folder = cache_dir()
    return None if folder is None else folder / "results" / f"{arch_name}.npz"
