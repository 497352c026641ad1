"""Costs on disk: the records that an evaluator keeps for later processes, one ``.npz`` file for each chip."""

from __future__ import annotations

import hashlib
import json
import warnings
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import data_root
from gemm_eval.evaluate.backend import Backend, Kind
from gemm_eval.storage import ResultFile
from gemm_eval.workload import RowGroups, RunOptions, make_types

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
            warnings.warn(f"results on disk make no sense ({error}), and are found anew", RuntimeWarning, stacklevel=4)
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
