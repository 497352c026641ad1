"""Costs on disk: what an evaluator keeps for the next process, as JSON in the library's cache file."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import MulticoreSpec
from gemm_eval.cache import DiskCache, default_path
from gemm_eval.errors import GemmEvalError
from gemm_eval.models.multicore.cost_kernels import COST_DTYPE
from gemm_eval.models.multicore.model import MODEL_VERSION
from gemm_eval.workload import GemmProblem

__all__ = ["CostStore"]

_SCHEMA = "costs 1"  # of keys and values; raise it when either changes its form
_NAMESPACE = f"{_SCHEMA}, {MODEL_VERSION}, {','.join(COST_DTYPE.names or ())}"
_DIGEST_BYTES = 16
_TYPES = ("input_dtype", "weight_dtype", "output_dtype", "accumulator_dtype", "group_size", "scale_dtype", "zero_dtype")
# what a spec says about itself does not change what it costs
_WORDS = {"name", "title", "notes", "is_coarse", "published", "sources", "provenance", "area_mm2", "tdp_w"}


@cache
def _cache_at(path: Path | None) -> DiskCache:
    """The one cache of this process for a file: all evaluators share its connection."""
    return DiskCache(path, namespace=_NAMESPACE)


def _shared_cache() -> DiskCache:
    return _cache_at(default_path())


class CostStore:
    """The costs of one arch and one set of options, in a file that all processes of a user share.

    A key is a digest of the arch and options, then one of the problem; the namespace holds schema and model version.
    """

    def __init__(self, arch: MulticoreSpec, options: dict[str, object]) -> None:
        spec = arch.model_dump(mode="json", exclude=_WORDS)
        self._prefix = _digest({"arch": spec, "options": options})

    def load(self) -> Iterator[tuple[GemmProblem, bytes]]:
        """Yield every problem that is stored, with its record of `COST_DTYPE`."""
        for _, text in _shared_cache().load_all(prefix=self._prefix):
            try:
                entry = json.loads(text)
                sizes, types, cost = entry["sizes"], entry["types"], entry["cost"]
                record = np.array([tuple(math.nan if value is None else value for value in cost)], COST_DTYPE)
                yield GemmProblem(*sizes, **dict(zip(_TYPES, types, strict=True))), record.tobytes()
            except (ValueError, TypeError, KeyError, GemmEvalError) as error:
                warnings.warn(
                    f"skipped an entry of the disk cache that makes no sense: {error}", RuntimeWarning, stacklevel=2
                )

    def save(self, problems: Iterable[GemmProblem], records: npt.NDArray[np.void]) -> int:
        """Store costs; returns how many were written, which is 0 where the cache is off or cannot be written."""
        items: dict[bytes, str] = {}
        for problem, record in zip(problems, records.tolist(), strict=True):
            types = [getattr(problem, name) for name in _TYPES]
            cost = [None if isinstance(value, float) and math.isnan(value) else value for value in record]
            entry = {"sizes": problem.sizes, "types": types, "cost": cost}
            key = self._prefix + _digest({"sizes": problem.sizes, "types": types})
            items[key] = json.dumps(entry, separators=(",", ":"))
        return _shared_cache().put_many(items)


def _digest(value: object) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()
