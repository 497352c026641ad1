"""Records of costs that an evaluator has found: in memory, bounded, and when asked in a file that processes share."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import warnings
from array import array
from collections.abc import Mapping
from functools import cache
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import data_root
from gemm_eval.evaluate.backend import Backend, Kind
from gemm_eval.evaluate.batch import ProblemBatch
from gemm_eval.progress import progress_bar
from gemm_eval.storage import ResultFile, cache_dir
from gemm_eval.workload import RowGroups, RunOptions, make_types

if TYPE_CHECKING:
    from gemm_eval.evaluate.backend import Records
    from gemm_eval.workload import GemmProblem

_SCHEMA = "costs 5"  # of the arrays; raise it when they change their form
_DIGEST_BYTES = 16
_MAX_COSTS = 1 << 17  # of a section; of more the last stay
# The code at and below `evaluate`: layers above cannot change an answer, because imports go one way.
_CODE = ("*.py", *(f"{name}/**/*.py" for name in ("arch", "workload", "models", "search", "storage", "evaluate")))
# Specs of GPUs too: whether a calibration is of this GPU depends on the preset of its name.
_DATA = ("kernels/**/*.*", "calibration/**/*.*", "gpu/**/*.*")

Costs: TypeAlias = dict[tuple[Kind, tuple[int, int, int, int], RowGroups], bytes]
"""Records by kind, sizes, and rows of groups, the smallest first; no rows where a GEMM is not grouped."""


class CostStore:
    """The costs of one backend, in a file that all processes of a user share.

    They lie in a section of that file, under a digest of all that decides them: spec and options, and code and data of
    this library. Costs of other states stay beside them.

    Args:
        path: the file; None: nothing is kept.
        backend: finds the costs.
        is_chosen: the user named the file; see `ResultFile`.

    Raises:
        StorageError: from every method, where the file that the user named is no cache.
    """

    def __init__(self, path: Path | None, backend: Backend, *, is_chosen: bool = False) -> None:
        self._file = None if path is None else ResultFile(path.absolute(), is_chosen=is_chosen)
        self._dtype = backend.record_dtype
        decides = {"schema": _SCHEMA, "library": answers_stamp(), "record": str(self._dtype)}
        text = json.dumps(decides | dict(backend.stored_as()), sort_keys=True, separators=(",", ":"))
        self.section = hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()

    def load(self) -> Costs:
        """Return all costs that are stored."""
        return {} if self._file is None else self._unpack(self._file.read(self.section))

    def save(self, costs: Costs) -> int:
        """Store costs; return how many were written: none where the cache is off or cannot be written."""
        if self._file is None or not costs:
            return 0
        is_written = self._file.merge(self.section, lambda old: self._pack(self._unpack(old) | costs))
        return len(costs) if is_written else 0

    def _pack(self, costs: Costs) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of a section: each problem [num, 6] is its kind, G, M, K, N and number of groups."""
        costs = dict(islice(costs.items(), max(0, len(costs) - _MAX_COSTS), None))
        numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kind for kind, _, _ in costs))}
        words = [(list(kind.types.words.values()), kind.options) for kind in numbers]
        return {
            "kinds": np.frombuffer(json.dumps(words).encode(), np.uint8),
            "problems": np.array([(numbers[kind], *sizes, len(rows)) for kind, sizes, rows in costs], np.int64),
            "rows": np.array([number for _, _, rows in costs for number in rows], np.int64),
            "records": np.frombuffer(b"".join(costs.values()), self._dtype),
        }

    def _unpack(self, arrays: Any) -> Costs:
        if not arrays:
            return {}
        size = self._dtype.itemsize
        try:
            words, raw = json.loads(arrays["kinds"].tobytes()), arrays["records"].tobytes()
            kinds = [Kind(make_types(*types), RunOptions(*options)) for types, options in words]
            rows, costs, end = arrays["rows"].tolist(), {}, 0
            for row, (number, G, M, K, N, num_rows) in enumerate(arrays["problems"].tolist()):
                key = (kinds[number], (G, M, K, N), tuple(rows[end : end + num_rows]))
                costs[key] = raw[row * size : (row + 1) * size]
                end += num_rows
        except (LookupError, TypeError, ValueError) as error:
            warnings.warn(
                f"results on disk are damaged ({error}): they are computed again", RuntimeWarning, stacklevel=4
            )
            return {}
        return costs


@cache
def answers_stamp() -> str:
    """Return a digest of the code that finds answers and of the tables and coefficients that it reads.

    It depends neither on where the library lies nor on the versions of Python, numpy and numba: answers are the same to
    the bit.
    """
    return _digest(Path(__file__).parent.parent, data_root())


def _digest(package: Path, data: Path) -> str:
    digest = hashlib.sha256()
    for root, patterns in ((package, _CODE), (data, _DATA)):
        for path in _files(root, patterns):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()


def _files(root: Path, patterns: tuple[str, ...]) -> list[Path]:
    return sorted(path for pattern in patterns for path in root.glob(pattern) if path.is_file())


_MAX_RECORDS = 1 << 18  # costs of about 0.6 KB each

RecordKey: TypeAlias = tuple[int, int, int, int, int] | tuple[int, int, int, int, int, bytes]
"""(number of the kind in its evaluator, G, M, K, N), and of a grouped GEMM a digest of its row groups."""


def record_key(number: int, sizes: tuple[int, int, int, int], row_groups: RowGroups | None) -> RecordKey:
    """Return the key of a problem; groups in another order have the same one."""
    if row_groups is None:
        return (number, *sizes)
    # a digest, since a thousand groups are 8 KB and the bound of a cache counts entries; at 16 bytes two do not meet
    rows = array("q", sorted(row_groups)).tobytes()
    return (number, *sizes, hashlib.blake2b(rows, digest_size=_DIGEST_BYTES).digest())


class RecordCacheInfo(NamedTuple):
    """Hits and misses of the costs that an evaluator keeps, its bound, and how many it holds.

    Where many threads evaluate at once, a hit or a miss may go uncounted.
    """

    hits: int
    misses: int
    maxsize: int
    currsize: int


class FoundCosts:
    """Finds the cost of each problem once, and remembers it as bytes; the backend searches.

    Dicts are changed by single operations only, so threads need no lock.

    Args:
        backend: searches, and says how its records look.
        disk_cache: as for `GEMMEvaluator`.
        maxsize: most records that are kept; of more the oldest half is forgotten.
    """

    def __init__(
        self, backend: Backend, disk_cache: bool | str | os.PathLike[str], maxsize: int = _MAX_RECORDS
    ) -> None:
        self._backend = backend
        self._disk_cache = disk_cache
        self._disk_lock = threading.Lock()
        self._is_disk_read = False
        self._maxsize = maxsize
        self._records: dict[RecordKey, bytes] = {}
        self._hits = self._misses = 0
        self._kind_numbers: dict[Kind, int] = {}
        self._next_number = count()

    def find(self, problem: GemmProblem, kind: Kind) -> np.void:
        """Return the record of the best mapping, known or found now."""
        if not self._is_disk_read:
            self._read_disk()
        key = record_key(self.number_of(kind), problem.sizes, problem.row_groups)
        record = self._records.get(key)
        if record is None:
            self._misses += 1
            costs = self._backend.find(problem, self._backend.pack(kind))
            self._remember({key: costs.tobytes()})
        else:
            self._hits += 1
            costs = np.frombuffer(record, self._backend.record_dtype)
        cost: np.void = costs[0]
        return cost

    def find_many(self, batch: ProblemBatch, progress: bool | None) -> Records:
        """Return the records of a batch, read-only; zeros where no mapping fits."""
        if not self._is_disk_read:
            self._read_disk()
        packed = [self._backend.pack(kind) for kind in batch.kinds]
        keys = self._keys(batch)
        records = list(map(self._records.get, keys))
        num_missing = records.count(None)
        self._hits += len(keys) - num_missing
        self._misses += num_missing
        if num_missing:
            missing: dict[RecordKey, int] = {}  # each missing problem once, and its first row
            for row, record in enumerate(records):
                if record is None:
                    missing.setdefault(keys[row], row)
            with progress_bar(len(missing), f"GEMMs on {self._backend.arch.name}", progress) as advance:
                costs = self._backend.find_many(batch.packed(packed, list(missing.values())), advance)
            raw, size = costs.tobytes(), costs.itemsize
            fresh = {key: raw[size * row : size * (row + 1)] for row, key in enumerate(missing)}
            feasible = self._backend.is_feasible(costs).tolist()  # only answers are worth remembering
            self._remember({key: fresh[key] for key, is_kept in zip(fresh, feasible, strict=True) if is_kept})
            if len(missing) == len(keys):  # nothing to join
                return np.frombuffer(raw, costs.dtype)
            records = [fresh[key] if record is None else record for key, record in zip(keys, records, strict=True)]
        return np.frombuffer(b"".join(records), self._backend.record_dtype)  # type: ignore[arg-type]

    def _remember(self, records: Mapping[RecordKey, bytes]) -> None:
        self._records.update(records)
        if len(self._records) > self._maxsize:
            oldest_first = list(self._records)
            for key in oldest_first[: len(oldest_first) - self._maxsize // 2]:
                self._records.pop(key, None)

    def _keys(self, batch: ProblemBatch) -> list[RecordKey]:
        numbers = np.array([self.number_of(kind) for kind in batch.kinds], np.int64)[batch.kind_of].tolist()
        keys: list[RecordKey] = list(zip(numbers, *batch.sizes.T.tolist(), strict=True))
        for row in batch.grouped_rows:
            number, *sizes = keys[row]
            keys[row] = record_key(number, tuple(sizes), batch.row_groups_of(row))  # type: ignore[arg-type]
        return keys

    def number_of(self, kind: Kind) -> int:
        """Return the number that stands for a kind in this memory."""
        # a fresh number for each try: by len(), two threads could give one number to two kinds
        number = self._kind_numbers.get(kind)
        return self._kind_numbers.setdefault(kind, next(self._next_number)) if number is None else number

    def clear(self) -> None:
        """Forget all that is in memory."""
        self._records.clear()
        self._hits = self._misses = 0

    def info(self) -> RecordCacheInfo:
        """Return how the memory is doing."""
        return RecordCacheInfo(self._hits, self._misses, self._maxsize, len(self._records))

    def save(self, batch: ProblemBatch, records: Records) -> int:
        """Keep records on disk; returns how many were written: of GEMMs that are called alone, where a mapping fits."""
        feasible = self._backend.is_feasible(records).tolist()
        raw, size, costs = records.tobytes(), records.itemsize, {}
        for row, (number, sizes) in enumerate(zip(batch.kind_of.tolist(), batch.sizes.tolist(), strict=True)):
            if feasible[row] and batch.kinds[number].call_weights == 1.0:
                groups = tuple(sorted(batch.row_groups_of(row) or ()))  # the order of groups does not matter
                costs[batch.kinds[number], tuple(sizes), groups] = raw[size * row : size * (row + 1)]
        return self.store().save(costs)

    def store(self) -> CostStore:
        """Return the place on disk."""
        return CostStore(self._disk_path, self._backend, is_chosen=not isinstance(self._disk_cache, bool))

    @property
    def _disk_path(self) -> Path | None:
        if isinstance(self._disk_cache, bool):
            return default_path(self._backend.arch.name) if self._disk_cache else None
        return Path(self._disk_cache)

    def _read_disk(self) -> None:
        with self._disk_lock:
            if not self._is_disk_read:
                path = self._disk_path
                if path is not None and os.path.exists(path):  # noqa: PTH110  Path.exists raises if a name is too long
                    costs = self.store().load()
                    self._remember(
                        {
                            record_key(self.number_of(kind), sizes, groups or None): record
                            for (kind, sizes, groups), record in costs.items()
                        }
                    )
                self._is_disk_read = True


def default_path(arch_name: str) -> Path | None:
    """Return the file of a chip in the user's cache folder; None: ``GEMM_EVAL_CACHE_DIR`` turns caching off."""
    folder = cache_dir()
    return None if folder is None else folder / "results" / f"{arch_name}.npz"
