"""Folds for cross-validation: the rows of a pair (N, K) stay together, whatever their M and G.

A model that was fitted on M = 64 and M = 256 of a weight matrix has seen M = 128 of it, or nearly: only pairs that it
never saw say how it does on a new layer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence, Set

import numpy as np
import numpy.typing as npt

from gemm_eval.errors import InvalidOptionError
from gemm_eval.validation.timings import TimingSet

__all__ = ["assign_folds", "assign_joint_folds", "fold_of_pairs"]


def assign_folds(timings: TimingSet, num_folds: int = 5, seed: int = 0) -> npt.NDArray[np.int64]:
    """Return the fold of each row, 0 .. `num_folds` - 1.

    The pairs are dealt to the folds in the order of a hash of (seed, N, K): the same set of pairs gives the same folds
    on every machine, in whatever order the rows come, and the folds differ by one pair at most.

    Raises:
        InvalidOptionError: fewer than two folds, or more folds than pairs.
    """
    return assign_joint_folds([timings], num_folds, seed)[0]


def assign_joint_folds(sets: Sequence[TimingSet], num_folds: int = 5, seed: int = 0) -> list[npt.NDArray[np.int64]]:
    """Return the fold of each row of each set; a pair that several sets have is in the same fold in all of them.

    Raises:
        InvalidOptionError: fewer than two folds, or more folds than pairs.
    """
    rows = [list(zip(item.column("N").tolist(), item.column("K").tolist(), strict=True)) for item in sets]
    fold_of = fold_of_pairs(set().union(*rows), num_folds, seed, ", ".join(item.name for item in sets))
    return [np.array([fold_of[pair] for pair in of_set], dtype=np.int64) for of_set in rows]


def fold_of_pairs(
    pairs: Set[tuple[int, int]], num_folds: int, seed: int, what: str = "these timings"
) -> dict[tuple[int, int], int]:
    """Return the fold of each pair (N, K).

    Raises:
        InvalidOptionError: fewer than two folds, or more folds than pairs; `what` names the pairs' owner.
    """
    ordered = sorted(pairs, key=lambda pair: _digest(seed, *pair))
    if not 2 <= num_folds <= len(ordered):
        raise InvalidOptionError(
            f"num_folds must be in 2..{len(ordered)}, the number of (N, K) pairs of {what}, got {num_folds}"
        )
    return {pair: place % num_folds for place, pair in enumerate(ordered)}


def _digest(seed: int, N: int, K: int) -> bytes:
    return hashlib.sha256(f"{seed}:{N}:{K}".encode()).digest()
