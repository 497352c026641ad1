"""Costs on disk: the records that an evaluator keeps for later processes, one ``.npz`` file for each chip."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import data_root
from gemm_eval.evaluate.backend import Backend, Kind, Records
from gemm_eval.storage import ResultFile
from gemm_eval.workload import TYPE_NAMES, RowGroups, RunOptions, make_types

_SCHEMA = "costs 5"  # of the arrays; raise it when they change their form
_DIGEST_BYTES = 16
_MAX_COSTS = 1 << 17  # of a section; of more the last stay
# The code at and below `evaluate`: layers above cannot change an answer, because imports go one way.
_CODE = (
    "*.py",
    *(f"{name}/**/*.py" for name in ("arch", "workload", "models", "search", "storage", "evaluate")),
)
# Specs of GPUs too: whether a calibration is of this GPU depends on the preset of its name.
_DATA = ("kernels/**/*.*", "calibration/**/*.*", "gpu/**/*.*")

_Key: TypeAlias = tuple[str, tuple[int, int, int, int], RowGroups]
"""A kind as a JSON text, sizes, and rows of groups, the smallest first; no rows where a GEMM is not grouped."""


class Stored(NamedTuple):
    """A problem and the record of its cost as bytes: data types and options, sizes, rows of groups that differ."""

    kind: Kind
    sizes: tuple[int, int, int, int]
    row_groups: RowGroups | None
    record: bytes


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

    def load(self) -> list[Stored]:
        """Return what is stored of every problem."""
        kinds: dict[str, Kind] = {}
        stored = []
        costs = {} if self._file is None else self._unpack(self._file.read(self.section))
        for (words, sizes, rows), record in costs.items():
            if words not in kinds:
                types, options = json.loads(words)
                kinds[words] = Kind(make_types(**dict(zip(TYPE_NAMES, types, strict=True))), RunOptions(*options))
            stored.append(Stored(kinds[words], sizes, rows or None, record))
        return stored

    def save(
        self,
        kinds: Sequence[Kind],
        kind_of: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        row_groups: Iterable[RowGroups | None],
        records: Records,
    ) -> int:
        """Store the costs of problems, given as for `ProblemBatch`; return how many were written.

        None are where the cache is off or cannot be written.
        """
        if self._file is None or not len(records):
            return 0
        words = [json.dumps([list(kind.types.words.values()), kind.options], separators=(",", ":")) for kind in kinds]
        keys = (
            (words[number], tuple(of_row), tuple(sorted(groups or ())))  # the order of groups does not matter
            for number, of_row, groups in zip(kind_of.tolist(), sizes.tolist(), row_groups, strict=True)
        )
        new = {key: record.tobytes() for key, record in zip(keys, records, strict=True)}
        is_written = self._file.merge(self.section, lambda old: self._pack(self._unpack(old) | new))
        return len(new) if is_written else 0

    def _pack(self, costs: dict[_Key, bytes]) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of a section: each problem [num, 6] is its kind, G, M, K, N and number of groups."""
        costs = dict(islice(costs.items(), max(0, len(costs) - _MAX_COSTS), None))
        numbers = {words: number for number, words in enumerate(dict.fromkeys(words for words, _, _ in costs))}
        return {
            "kinds": np.frombuffer(json.dumps(list(numbers)).encode(), np.uint8),
            "problems": np.array([(numbers[words], *sizes, len(rows)) for words, sizes, rows in costs], np.int64),
            "rows": np.array([number for _, _, rows in costs for number in rows], np.int64),
            "records": np.frombuffer(b"".join(costs.values()), self._dtype),
        }

    def _unpack(self, arrays: Any) -> dict[_Key, bytes]:
        if not arrays:
            return {}
        size = self._dtype.itemsize
        try:
            kinds, raw = json.loads(arrays["kinds"].tobytes()), arrays["records"].tobytes()
            rows, costs, end = arrays["rows"].tolist(), {}, 0
            for row, (number, G, M, K, N, num_rows) in enumerate(arrays["problems"].tolist()):
                key = (kinds[number], (G, M, K, N), tuple(rows[end : end + num_rows]))
                costs[key] = raw[row * size : (row + 1) * size]
                end += num_rows
        except (LookupError, TypeError, ValueError) as error:
            warnings.warn(f"results on disk make no sense ({error}), and are found anew", RuntimeWarning, stacklevel=4)
            return {}
        return costs


@cache
def answers_stamp() -> str:
    """Return a digest of the code that finds answers and of the tables and coefficients that it reads.

    It takes a few milliseconds, once in a process, and depends neither on where the library lies nor on the versions
    of Python, numpy and numba: answers are the same to the bit.

    Raises:
        ArchNotFoundError, OSError: the installation lost its data or its sources.
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
