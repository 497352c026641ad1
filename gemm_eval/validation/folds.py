"""Cross-validation by pairs (N, K): the rows of a pair stay together, whatever their M and G.

A model that was fitted on M = 64 and M = 256 of a weight matrix has seen M = 128 of it, or nearly: only pairs that it
never saw say how it does on a new layer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from gemm_eval.errors import InvalidOptionError
from gemm_eval.validation.predictors import P, Predictor
from gemm_eval.validation.timings import Floats, Ints, Timings

__all__ = ["CrossFit", "assign_folds", "assign_joint_folds", "cross_fit", "fold_of_pairs"]


P_co = TypeVar("P_co", bound=Predictor, covariant=True)


class CrossFit(NamedTuple, Generic[P_co]):
    """Fits on all folds but one.

    Attributes:
        fits: by the fold that was held out.
        folds: of each set, [rows], the fold of each row.
    """

    fits: tuple[P_co, ...]
    folds: tuple[Ints, ...]

    def predict(self, timings: Timings, place: int = 0) -> Floats:
        """Return out-of-fold predictions, [rows], in microseconds: each row by the fit that its pair is not in.

        Args:
            timings: the rows of the set in `place`, in their order.
            place: which set.
        """
        predicted_us = np.empty(len(timings))
        for fold, fitted in enumerate(self.fits):
            held_out = self.folds[place] == fold
            if held_out.any():
                predicted_us[held_out] = fitted.predict(timings.select(held_out))
        return predicted_us


def cross_fit(
    predictor: P | Sequence[P], sets: Sequence[Timings], num_folds: int = 5, seed: int = 0, *,
    train: Sequence[Timings] = (), folds: Sequence[Ints] = (), num_threads: int = 1,
) -> CrossFit[P]:  # fmt: skip
    """Fit once for each fold, on the rows of all sets that are in other folds and in no band (see `Timings.bands`).

    A pair (N, K) that several sets have is held out of all of them at once.

    Args:
        predictor: what is fitted; several: one for each fold, where fits start at different places.
        sets: all in one cross-validation.
        num_folds, seed: see `assign_joint_folds`.
        train: those of `sets` that are fitted on; empty: all.
        folds: of the rows of each set, where they are not to be dealt here; the seed does not matter then.
        num_threads: fits at a time, for predictors that leave Python's lock to others.

    Raises:
        InvalidOptionError: fewer pairs than folds.
    """
    number_of = folds or assign_joint_folds(sets, num_folds, seed)
    predictors = predictor if isinstance(predictor, Sequence) else [predictor] * num_folds

    def fit(fold: int) -> P:
        kept = [
            timings.select((number != fold) & ~timings.in_band)
            for timings, number in zip(sets, number_of, strict=True)
            if not train or any(timings is item for item in train)
        ]
        return predictors[fold].fit(*(timings for timings in kept if len(timings)))

    if num_threads == 1:
        return CrossFit(tuple(map(fit, range(num_folds))), tuple(number_of))
    with ThreadPoolExecutor(min(num_folds, num_threads)) as threads:
        return CrossFit(tuple(threads.map(fit, range(num_folds))), tuple(number_of))


def assign_folds(timings: Timings, num_folds: int = 5, seed: int = 0) -> Ints:
    """Return the fold of each row, 0 .. `num_folds` - 1.

    The pairs are dealt to the folds in the order of a hash of (seed, N, K): the same set of pairs gives the same folds
    on every machine, in whatever order the rows come, and the folds differ by one pair at most.

    Raises:
        InvalidOptionError: fewer than two folds, or more folds than pairs.
    """
    return assign_joint_folds([timings], num_folds, seed)[0]


def assign_joint_folds(sets: Sequence[Timings], num_folds: int = 5, seed: int = 0) -> list[Ints]:
    """Return the fold of each row of each set; a pair that several sets have is in the same fold in all of them.

    Raises:
        InvalidOptionError: fewer than two folds, or more folds than pairs.
    """
    pairs = [item.pairs for item in sets]
    fold_of = fold_of_pairs(set().union(*pairs), num_folds, seed, ", ".join(item.name for item in sets))
    return [np.array([fold_of[pair] for pair in of_set], dtype=np.int64) for of_set in pairs]


def fold_of_pairs(pairs: Set[tuple[int, int]], num_folds: int, seed: int, what: str) -> dict[tuple[int, int], int]:
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
