"""`FoundCosts`: the records that an evaluator has found, in memory and, when asked, on disk."""

from __future__ import annotations

import os
import threading
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gemm_eval.evaluate.batch import ProblemBatch
from gemm_eval.evaluate.progress import progress_bar
from gemm_eval.evaluate.records import RecordCache, RecordCacheInfo, RecordKey, record_key

if TYPE_CHECKING:
    from gemm_eval.evaluate.backend import Backend, Kind, Records
    from gemm_eval.evaluate.disk import CostStore
    from gemm_eval.workload import GemmProblem

__all__ = ["FoundCosts"]

_RECORD_CACHE_SIZE = 1 << 18  # costs of about 0.6 KB each


class FoundCosts:
    """Finds the cost of each problem once; what it is and how it is found is the backend's business.

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
        found: np.void = costs[0]
        return found

    def find_many(self, batch: ProblemBatch, progress: bool | None) -> Records:
        """Return the records of a batch, read-only; zeros where no mapping fits.

        Raises:
            UnsupportedError: the arch cannot run a kind; nothing has been searched then.
        """
        self._read_disk_once()
        packed = [self._backend.pack(kind) for kind in batch.kinds]
        keys = self._keys(batch)
        found = self._records.get_many(keys)
        places: dict[RecordKey, int] = {}  # each missing problem once, and where it stands first
        for place, record in enumerate(found):
            if record is None:
                places.setdefault(keys[place], place)
        if places:
            chosen = np.fromiter(places.values(), np.int64, len(places))
            types = [kind.types for kind in batch.kinds]
            with progress_bar(len(chosen), f"GEMMs on {self._backend.arch.name}", progress) as advance:
                layouts = batch.layouts(places.values())
                records = self._backend.find_many(
                    types, packed, batch.kind_of[chosen], batch.sizes[chosen], layouts, advance
                )
            fresh = {key: record.tobytes() for key, record in zip(places, records, strict=True)}
            feasible = self._backend.is_feasible(records).tolist()  # only answers are worth remembering
            self._records.put_many(entry for entry, is_kept in zip(fresh.items(), feasible, strict=True) if is_kept)
            found = [fresh[key] if record is None else record for key, record in zip(keys, found, strict=True)]
        return np.frombuffer(b"".join(found), self._backend.record_dtype)  # type: ignore[arg-type]

    def _keys(self, batch: ProblemBatch) -> list[RecordKey]:
        numbers = np.array([self.number_of(kind) for kind in batch.kinds], np.int64)[batch.kind_of].tolist()
        keys: list[RecordKey] = list(zip(numbers, *batch.sizes.T.tolist(), strict=True))
        for place in batch.grouped_places:
            number, *sizes = keys[place]
            keys[place] = record_key(number, tuple(sizes), batch.row_groups_of(place))  # type: ignore[arg-type]
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
            from gemm_eval.evaluate.disk import default_path

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
