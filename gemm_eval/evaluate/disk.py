"""Costs on disk: what an evaluator keeps for the next process, as JSON in the library's cache file."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from gemm_eval.errors import GemmEvalError
from gemm_eval.evaluate.backend import Backend, Kind, Records
from gemm_eval.evaluate.batch import are_sizes
from gemm_eval.evaluate.stamp import answers_stamp
from gemm_eval.storage import DiskCache
from gemm_eval.workload import (
    TYPE_NAMES,
    GemmProblem,
    RowGroups,
    RunOptions,
    check_row_groups,
    make_types,
    pack_layouts,
)

_SCHEMA = "costs 4"  # of keys and values; raise it when either changes its form
_DIGEST_BYTES = 16


@cache
def _cache_at(path: Path | None, *, is_chosen: bool = False) -> DiskCache:
    """The one cache of this process for a file: all evaluators share its connection."""
    # what code and data answered is nobody's business after a change: a version of the model may be forgotten
    return DiskCache(path, namespace=f"{_SCHEMA}, library {answers_stamp()}", is_chosen=is_chosen)


class Stored(NamedTuple):
    """What is stored of a problem: data types and options, sizes, rows of groups that differ, and its record."""

    kind: Kind
    sizes: tuple[int, int, int, int]
    row_groups: RowGroups | None
    record: bytes


class _Entry(NamedTuple):
    """What is stored of a problem, not yet believed."""

    kind: int  # its place in a list of kinds
    sizes: tuple[int, int, int, int]
    row_groups: RowGroups | None
    record: bytes


class CostStore:
    """The costs of one backend, in a file that all processes of a user share.

    A key is a digest of what decides the backend's costs, then one of problem and options.

    Args:
        path: the file; None keeps nothing.
        backend: whose costs.
        is_chosen: the user named the file; see `DiskCache`.

    Raises:
        StorageError: from every method, where the file that the user named is no cache.
    """

    def __init__(self, path: Path | None, backend: Backend, *, is_chosen: bool = False) -> None:
        self._cache = _cache_at(None if path is None else path.absolute(), is_chosen=is_chosen)
        self._backend = backend
        dtype = backend.record_dtype
        self._names = dtype.names or ()
        self._types = [int if dtype[name].kind == "i" else float for name in self._names]
        self._prefix = _digest({"record": self._names} | dict(backend.stored_as()))

    def load(self) -> list[Stored]:
        """Return what is stored of every problem.

        What is read is not believed: an entry whose record the model of today does not give to its mapping, to the bit,
        is removed, with a RuntimeWarning, and is searched anew when it is asked for.
        """
        keys: list[bytes] = []
        entries: list[_Entry] = []
        bad: dict[bytes, str] = {}
        numbers: dict[str, int] = {}
        kinds: list[tuple[Kind, Records]] = []
        for key, text in self._cache.load_all(prefix=self._prefix):
            try:
                entries.append(self._read(text, numbers, kinds))
                keys.append(key)
            # an overflow is of a number, a recursion of nested lists
            except (ValueError, TypeError, LookupError, OverflowError, RecursionError, GemmEvalError) as error:
                bad[key] = f"{type(error).__name__}: {error}"
        believed = []
        for key, entry, is_true in zip(keys, entries, self._are_true(entries, kinds), strict=True):
            if is_true:
                believed.append(Stored(kinds[entry.kind][0], *entry[1:]))
            else:
                bad[key] = "the model does not give this cost to this mapping"
        if bad:
            self._cache.remove_many(bad)
            warnings.warn(
                f"removed {len(bad)} entries of the disk cache that make no sense; of the first: "
                f"{next(iter(bad.values()))}",
                RuntimeWarning,
                stacklevel=2,
            )
        return believed

    def _read(self, text: str, numbers: dict[str, int], kinds: list[tuple[Kind, Records]]) -> _Entry:
        """Return what `save` wrote, or raise; kinds are checked once, and numbered."""
        entry = json.loads(text, parse_constant=_refuse_constant)
        G, M, K, N = entry["sizes"]
        if not are_sizes(G, M, K, N):
            raise ValueError("its sizes make no GEMM")
        row_groups = _row_groups(entry["row_groups"], G, M)
        is_grouped = row_groups is not None  # options that are left out may mean something else then
        words = json.dumps([entry["types"], entry["options"], is_grouped])
        if words not in numbers:
            kind = self._kind(entry["types"], RunOptions(*entry["options"]), is_grouped=is_grouped)
            kinds.append((kind, self._backend.pack(kind)))
            numbers[words] = len(kinds) - 1
        cost = [math.nan if value is None else value for value in entry["cost"]]
        if [type(value) for value in cost] != self._types:
            raise ValueError("its costs have other types")
        record = np.array([tuple(cost)], self._backend.record_dtype)
        if min(record[name][0] for name in self._backend.search_counts) < 0:
            raise ValueError("its counts are negative")
        return _Entry(numbers[words], (G, M, K, N), row_groups, record.tobytes())

    def _kind(self, types: Any, options: RunOptions, *, is_grouped: bool) -> Kind:
        known = make_types(**dict(zip(TYPE_NAMES, types, strict=True)))
        if self._backend.resolve(known, options, is_grouped=is_grouped) != options:
            raise ValueError("its options are not spelled out")
        return Kind(known, options)

    def _are_true(self, entries: Sequence[_Entry], kinds: Sequence[tuple[Kind, Any]]) -> list[bool]:
        """Say of each entry whether its record is what the model gives to its mapping."""
        if not entries:
            return []
        groups = [entry.row_groups for entry in entries]
        records = np.frombuffer(b"".join(entry.record for entry in entries), self._backend.record_dtype)
        again = self._backend.replay_many(
            [packed for _, packed in kinds],
            np.array([entry.kind for entry in entries]),
            np.array([entry.sizes for entry in entries]),
            pack_layouts(groups),
            records,
        )
        for name in self._backend.search_counts:
            again[name] = records[name]
        size = records.dtype.itemsize
        feasible = self._backend.is_feasible(again).tolist()
        new = again.tobytes()
        return [
            is_feasible and new[place * size : (place + 1) * size] == entry.record
            for place, (entry, is_feasible) in enumerate(zip(entries, feasible, strict=True))
        ]

    def save(self, problems: Iterable[tuple[GemmProblem, RunOptions]], records: Records) -> int:
        """Store costs; returns how many were written, which is 0 where the cache is off or cannot be written."""
        items: dict[bytes, str] = {}
        for (problem, options), record in zip(problems, records.tolist(), strict=True):
            types = list(problem.types.words.values())
            cost = [None if isinstance(value, float) and math.isnan(value) else value for value in record]
            groups = None if problem.row_groups is None else sorted(problem.row_groups)  # their order does not matter
            what = {"sizes": problem.sizes, "row_groups": groups, "types": types, "options": options}
            key = self._prefix + _digest(what)
            items[key] = json.dumps(what | {"cost": cost}, separators=(",", ":"))
        return self._cache.put_many(items)


def _row_groups(value: Any, G: int, M: int) -> RowGroups | None:
    """Return row groups as `save` writes them, of a problem of G groups, the largest of M rows."""
    if value is None:
        return None
    groups = check_row_groups(value)
    if (len(groups), groups[-1]) != (G, M) or list(groups) != sorted(groups):
        raise ValueError("its row groups are not those of its sizes, from the smallest to the largest")
    return groups


def _digest(value: object) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")
