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
import numpy.typing as npt

from gemm_eval._jit import source_stamp
from gemm_eval.arch import MulticoreSpec
from gemm_eval.cache import DiskCache
from gemm_eval.errors import GemmEvalError
from gemm_eval.mapping import LoopOrder
from gemm_eval.models.multicore.cost_kernels import BOUNDS, COST_DTYPE
from gemm_eval.models.multicore.model import MODEL_VERSION
from gemm_eval.workload import GemmProblem

__all__ = ["CostStore"]

_SCHEMA = "costs 1"  # of keys and values; raise it when either changes its form
# the stamp of the kernels guards against a change that forgot to raise the model's version
_NAMESPACE = f"{_SCHEMA}, {MODEL_VERSION}, {','.join(COST_DTYPE.names or ())}, kernels {source_stamp()[:16]}"
_DIGEST_BYTES = 16
_TYPES = ("input_dtype", "weight_dtype", "output_dtype", "accumulator_dtype", "group_size", "scale_dtype", "zero_dtype")
# what a spec says about itself does not change what it costs
_WORDS = {"name", "title", "notes", "is_coarse", "published", "sources", "provenance", "area_mm2", "tdp_w"}

_NAMES = COST_DTYPE.names or ()
_KINDS = [int if COST_DTYPE[name].kind == "i" else float for name in _NAMES]
_ENERGY = _NAMES.index("energy_pj")  # the one number that may be unknown
_AT_LEAST_1 = ("P_G", "P_M", "P_N", "P_K", "tile_m", "tile_n", "tile_k", "active_cores")


@cache
def _cache_at(path: Path | None) -> DiskCache:
    """The one cache of this process for a file: all evaluators share its connection."""
    return DiskCache(path, namespace=_NAMESPACE)


class CostStore:
    """The costs of one arch and one set of options, in a file that all processes of a user share.

    A key is a digest of the arch and options, then one of the problem; the namespace holds schema and model version.

    Args:
        path: the file; None keeps nothing.
        arch, options: whose costs; the names and words of the spec do not matter.
    """

    def __init__(self, path: Path | None, arch: MulticoreSpec, options: dict[str, object]) -> None:
        self._cache = _cache_at(None if path is None else path.absolute())
        spec = arch.model_dump(mode="json", exclude=_WORDS)
        self._num_cores = arch.num_cores
        self._prefix = _digest({"arch": spec, "options": options})

    def load(self) -> list[tuple[GemmProblem, bytes]]:
        """Return every problem that is stored, with its record of `COST_DTYPE`."""
        entries: list[tuple[GemmProblem, bytes]] = []
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

    def _read(self, text: str) -> tuple[GemmProblem, bytes]:
        """Return what `save` wrote, or raise: an entry is not believed unless it can be the answer of a search."""
        entry = json.loads(text, parse_constant=_refuse_constant)
        sizes, types, cost = entry["sizes"], entry["types"], entry["cost"]
        problem = GemmProblem(*sizes, **dict(zip(_TYPES, types, strict=True)))
        if cost[_ENERGY] is None:
            cost[_ENERGY] = math.nan
        if [type(value) for value in cost] != _KINDS:
            raise ValueError("its costs have other types")
        record = dict(zip(_NAMES, cost, strict=True))
        if not (
            min(cost[:_ENERGY]) >= 0
            and max(cost[:_ENERGY]) < math.inf
            and all(record[name] >= 1 for name in _AT_LEAST_1)
            and record["active_cores"] <= record["P_G"] * record["P_M"] * record["P_N"] * record["P_K"]
            and record["P_G"] * record["P_M"] * record["P_N"] * record["P_K"] <= self._num_cores
            and record["loop_order"] < len(LoopOrder)
            and record["bound"] < len(BOUNDS)
            and record["latency_us"] > 0
            and not (cost[_ENERGY] < 0 or cost[_ENERGY] == math.inf)
        ):
            raise ValueError("no search gives these costs")
        return problem, np.array([tuple(cost)], COST_DTYPE).tobytes()

    def save(self, problems: Iterable[GemmProblem], records: npt.NDArray[np.void]) -> int:
        """Store costs; returns how many were written, which is 0 where the cache is off or cannot be written."""
        items: dict[bytes, str] = {}
        for problem, record in zip(problems, records.tolist(), strict=True):
            types = [getattr(problem, name) for name in _TYPES]
            cost = [None if isinstance(value, float) and math.isnan(value) else value for value in record]
            entry = {"sizes": problem.sizes, "types": types, "cost": cost}
            key = self._prefix + _digest({"sizes": problem.sizes, "types": types})
            items[key] = json.dumps(entry, separators=(",", ":"))
        return self._cache.put_many(items)


def _digest(value: object) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")
