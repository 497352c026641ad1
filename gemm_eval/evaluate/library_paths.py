"""Paths of a chip's library: which of its code a GEMM takes, by its sizes, and the chip as it is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import LibraryPath, MulticoreSpec
from gemm_eval.dtypes import HALF_BITS_PER_BYTE
from gemm_eval.models.multicore import COST_DTYPE
from gemm_eval.workload import GemmProblem, GemmTypes

if TYPE_CHECKING:
    from gemm_eval.evaluate.backend import Records


BackendT = TypeVar("BackendT")
_NONE = -1


class LibraryPaths(Generic[BackendT]):
    """The paths in their order, each with a backend of its own; `bool` says whether there are any.

    Args:
        arch: the chip, whose rules have the paths.
        paths: limits and changes by name.
        make_backend: makes the backend for the chip as it is on a path.
    """

    def __init__(
        self, arch: MulticoreSpec, paths: Mapping[str, LibraryPath], make_backend: Callable[[MulticoreSpec], BackendT]
    ) -> None:
        self._names = tuple(paths)
        self._paths = tuple(paths.values())
        self._backends = tuple(
            make_backend(arch.with_(rules=arch.rules.on_path(name))) for name in self._names if arch.rules
        )

    def __bool__(self) -> bool:
        return bool(self._paths)

    @property
    def backends(self) -> tuple[BackendT, ...]:
        """The backends of the paths, in their order."""
        return self._backends

    def name_of(self, problem: GemmProblem) -> str | None:
        """Return the name of the path that a GEMM takes; None: none of them."""
        which = self._which(problem)
        return None if which == _NONE else self._names[which]

    def backend_of(self, problem: GemmProblem) -> BackendT | None:
        """Return the backend of the path that a GEMM takes; None: none of them."""
        which = self._which(problem)
        return None if which == _NONE else self._backends[which]

    def of_each(
        self,
        types: Sequence[GemmTypes],
        kind_of: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        on_path: Callable[[BackendT, npt.NDArray[np.int64]], Records],
        elsewhere: Callable[[npt.NDArray[np.int64]], Records],
    ) -> Records:
        """Put together what is found for the GEMMs of each path, and for those of none.

        Args:
            types: by kind.
            kind_of: [num], index into `types`.
            sizes: [num, 4] of G, M, K, N.
            on_path: given a backend and rows, returns their records.
            elsewhere: the same for rows of no path.
        """
        which = np.full(len(sizes), _NONE, np.int64)
        for kind in np.unique(kind_of):
            rows = np.flatnonzero(kind_of == kind)
            which[rows] = self._choose(types[kind], sizes[rows])
        out = np.zeros(len(sizes), COST_DTYPE)
        for path in np.unique(which).tolist():
            rows = np.flatnonzero(which == path)
            out[rows] = elsewhere(rows) if path == _NONE else on_path(self._backends[path], rows)
        return out

    def _which(self, problem: GemmProblem) -> int:
        if not self._paths:
            return _NONE
        return int(self._choose(problem.types, np.array([problem.sizes], np.int64))[0])

    def _choose(self, types: GemmTypes, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the first path whose limits hold, of GEMMs of one kind."""
        _, M, K, N = sizes.T.astype(object)  # Python ints: products of any size
        half_bits = M * K * types.a.dtype.half_bits + K * N * types.b.dtype.half_bits + M * N * types.c.half_bits
        found = np.full(len(sizes), _NONE, np.int64)
        for place in reversed(range(len(self._paths))):
            path = self._paths[place]
            holds = np.ones(len(sizes), bool)
            limits = (M, path.max_rows), (N, path.max_columns), (K, path.max_reduction), (M * K * N, path.max_macs)
            for size, most in limits:
                if most is not None:
                    holds &= (size <= most).astype(bool)
            if path.max_bytes is not None:
                holds &= (half_bits <= path.max_bytes * HALF_BITS_PER_BYTE).astype(bool)
            found[holds] = place
        return found
