"""Costs on disk: what an evaluator keeps for the next process, as JSON in the library's cache file."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NoReturn

import numpy as np

from gemm_eval._jit import source_stamp
from gemm_eval.cache import DiskCache
from gemm_eval.errors import GemmEvalError
from gemm_eval.evaluate._backend import Backend, Records, RunOptions
from gemm_eval.workload import GemmProblem

__all__ = ["CostStore"]

_SCHEMA = "costs 2"  # of keys and values; raise it when either changes its form
# the stamp of the kernels guards against a change that forgot to raise the model's version
_NAMESPACE = f"{_SCHEMA}, kernels {source_stamp()[:16]}"
_DIGEST_BYTES = 16
_TYPES = ("input_dtype", "weight_dtype", "output_dtype", "accumulator_dtype", "group_size", "scale_dtype", "zero_dtype")


@cache
def _cache_at(path: Path | None) -> DiskCache:
    """The one cache of this process for a file: all evaluators share its connection."""
    return DiskCache(path, namespace=_NAMESPACE)


class CostStore:
    """The costs of one backend, in a file that all processes of a user share.

    A key is a digest of what decides the backend's costs, then one of problem and options.

    Args:
        path: the file; None keeps nothing.
        backend: whose costs.
    """

    def __init__(self, path: Path | None, backend: Backend) -> None:
        self._cache = _cache_at(None if path is None else path.absolute())
        self._backend = backend
        dtype = backend.record_dtype
        self._names = dtype.names or ()
        self._kinds = [int if dtype[name].kind == "i" else float for name in self._names]
        self._prefix = _digest({"record": self._names} | dict(backend.stored_as()))

    def load(self) -> list[tuple[GemmProblem, RunOptions, bytes]]:
        """Return every problem that is stored, with its options and its record."""
        entries: list[tuple[GemmProblem, RunOptions, bytes]] = []
        num_skipped, reason = 0, ""
        for _, text in self._cache.load_all(prefix=self._prefix):
            try:
                entries.append(self._read(text))
            # an overflow is of a number, a recursion of nested lists
            except (ValueError, TypeError, LookupError, OverflowError, RecursionError, GemmEvalError) as error:
                num_skipped, reason = num_skipped + 1, reason or f"{type(error).__name__}: {error}"
        if num_skipped:
            warnings.warn(
                f"skipped {num_skipped} entries of the disk cache that make no sense; of the first: {reason}",
                RuntimeWarning,
                stacklevel=2,
            )
        return entries

    def _read(self, text: str) -> tuple[GemmProblem, RunOptions, bytes]:
        """Return what `save` wrote, or raise: an entry is not believed unless it can be the answer of a search."""
        entry = json.loads(text, parse_constant=_refuse_constant)
        sizes, types, options = entry["sizes"], entry["types"], RunOptions(*entry["options"])
        problem = GemmProblem(*sizes, **dict(zip(_TYPES, types, strict=True)))
        if self._backend.resolve(problem, options) != options:
            raise ValueError("its options are not spelled out")
        cost = [math.nan if value is None else value for value in entry["cost"]]
        if [type(value) for value in cost] != self._kinds:
            raise ValueError("its costs have other types")
        record = np.array([tuple(cost)], self._backend.record_dtype)
        if not self._backend.is_sound(dict(zip(self._names, cost, strict=True))):
            raise ValueError("no search gives these costs")
        return problem, options, record.tobytes()

    def save(self, problems: Iterable[tuple[GemmProblem, RunOptions]], records: Records) -> int:
        """Store costs; returns how many were written, which is 0 where the cache is off or cannot be written."""
        items: dict[bytes, str] = {}
        for (problem, options), record in zip(problems, records.tolist(), strict=True):
            types = [getattr(problem, name) for name in _TYPES]
            cost = [None if isinstance(value, float) and math.isnan(value) else value for value in record]
            what = {"sizes": problem.sizes, "types": types, "options": options}
            key = self._prefix + _digest(what)
            items[key] = json.dumps(what | {"cost": cost}, separators=(",", ":"))
        return self._cache.put_many(items)


def _digest(value: object) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")
