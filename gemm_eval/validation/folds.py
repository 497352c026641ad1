"""Folds for cross-validation: the rows of a pair (N, K) stay together, whatever their M and G.

A model that was fitted on M = 64 and M = 256 of a weight matrix has seen M = 128 of it, or nearly: only pairs that it
never saw say how it does on a new layer.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from gemm_eval.errors import InvalidOptionError
from gemm_eval.validation.timings import TimingSet

__all__ = ["assign_folds"]


def assign_folds(timings: TimingSet, num_folds: int = 5, seed: int = 0) -> npt.NDArray[np.int64]:
    """Return the fold of each row, 0 .. `num_folds` - 1.

    The pairs are dealt to the folds in the order of a hash of (seed, N, K): the same set of pairs gives the same folds
    on every machine, in whatever order the rows come, and the folds differ by one pair at most.

    Raises:
        InvalidOptionError: fewer than two folds, or more folds than pairs.
    """
    N, K = timings.column("N").tolist(), timings.column("K").tolist()
    rows = list(zip(N, K, strict=True))
    pairs = sorted(set(rows), key=lambda pair: _digest(seed, *pair))
    if not 2 <= num_folds <= len(pairs):
        raise InvalidOptionError(
            f"num_folds must be in 2..{len(pairs)}, the number of (N, K) pairs of {timings.name}, got {num_folds}"
        )
    fold_of = {pair: place % num_folds for place, pair in enumerate(pairs)}
    return np.array([fold_of[pair] for pair in rows], dtype=np.int64)


def _digest(seed: int, N: int, K: int) -> bytes:
    return hashlib.sha256(f"{seed}:{N}:{K}".encode()).digest()
