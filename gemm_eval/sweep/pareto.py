"""Pareto fronts: the points of a design space that no other point beats in everything; exact, however many there are.

A point dominates another if it is no worse in every objective and better in at least one: duplicates share a front.
A point with a NaN, say a design that is not feasible, is on no front; infinities are ordinary values.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gemm_eval.errors import InvalidOptionError
from gemm_eval.words import shown

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

_KERNEL_OBJECTIVES = 3  # at least; fewer are padded with columns in which all points are equal


def pareto_front(values: npt.ArrayLike, *, maximize: Sequence[bool] | None = None) -> npt.NDArray[np.bool_]:
    """Find the points that no other point dominates.

    Args:
        values: [num_points, num_objectives >= 1] of numbers, compared as float64.
        maximize: [num_objectives], which objectives are better when larger; None: all are better when smaller.

    Returns:
        [num_points]: whether each point is on the front.

    Raises:
        InvalidOptionError: values that are no such table of numbers, or `maximize` of another length.
    """
    table = _costs(values, maximize)
    ranks, rows, distinct_of = _ranked(table)
    if table.shape[1] < _KERNEL_OBJECTIVES:
        # in lexicographic order, a point is on the front if its second rank is below all before
        second = _padded(ranks, 2)[:, 1]
        is_best = np.append(np.ones(min(1, len(second)), np.bool_), second[1:] < np.minimum.accumulate(second)[:-1])
    else:
        from gemm_eval.sweep.pareto_kernels import find_levels

        is_best = find_levels(ranks, True) == 0
    is_front = np.zeros(len(table), np.bool_)
    is_front[rows] = is_best[distinct_of]
    return is_front


def pareto_rank(values: npt.ArrayLike, *, maximize: Sequence[bool] | None = None) -> Integers:
    """Sort points into fronts: 0 for the front, 1 for the front of the rest, and so on (non-dominated sorting).

    Takes what `pareto_front` does; returns [num_points], the front that each point is on, -1 for points with a NaN.
    """
    from gemm_eval.sweep.pareto_kernels import find_levels

    table = _costs(values, maximize)
    ranks, rows, distinct_of = _ranked(table)
    rank = np.full(len(table), -1, np.int64)
    rank[rows] = find_levels(_padded(ranks, _KERNEL_OBJECTIVES), False)[distinct_of]
    return rank


def _costs(values: npt.ArrayLike, maximize: Sequence[bool] | None) -> Floats:
    """Return [num_points, num_objectives]: the values, with smaller better in all columns."""
    form = "values must be a table [num_points, num_objectives] of numbers that can be compared as float64"
    try:
        given = np.asarray(values)
        table = given.astype(np.float64) if given.dtype.kind in "biufO" else None
    except (TypeError, ValueError) as error:  # also rows of unequal length
        raise InvalidOptionError(f"{form}: {error}") from None
    if table is None:
        raise InvalidOptionError(f"{form}, got {given.dtype}")
    if table.ndim != 2 or table.shape[1] == 0:
        raise InvalidOptionError(
            f"values must be a table [num_points, num_objectives] with an objective or more, got shape {table.shape}"
        )
    num = table.shape[1]
    flags = [False] * num if maximize is None else maximize
    is_sequence = isinstance(flags, Sequence | np.ndarray) and not isinstance(flags, str) and len(flags) == num
    if not is_sequence or not all(isinstance(flag, bool | np.bool_) for flag in flags):
        raise InvalidOptionError(
            f"maximize must be one bool for each of the {num} objectives, or None, got {shown(maximize)}"
        )
    table[:, np.array(flags, np.bool_)] *= -1.0
    return table


def _ranked(table: Floats) -> tuple[Integers, npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Replace values by their ranks, which are whole and finite: no later step has to think of -0.0 or infinities.

    Returns:
        ranks: [num_distinct, num_objectives], of the distinct points without a NaN, in lexicographic order, 0 is best.
        rows: [num_valid], the rows given that have no NaN.
        distinct_of: [num_valid], the distinct point that each is equal to.
    """
    rows = np.flatnonzero(~np.isnan(table).any(axis=1))
    ranks = np.empty((len(rows), table.shape[1]), np.int64)
    for column in range(table.shape[1]):
        ranks[:, column] = np.unique(table[rows, column], return_inverse=True)[1]
    order = np.lexsort(ranks.T[::-1])
    ranks = ranks[order]
    is_new = np.ones(len(rows), np.bool_)
    is_new[1:] = (ranks[1:] != ranks[:-1]).any(axis=1)
    distinct_of = np.empty(len(rows), np.intp)
    distinct_of[order] = np.cumsum(is_new) - 1
    return ranks[is_new], rows, distinct_of


def _padded(ranks: Integers, num_objectives: int) -> Integers:
    """Append columns of equal ranks up to `num_objectives`: they change nothing about who dominates whom."""
    missing = max(0, num_objectives - ranks.shape[1])
    return np.pad(ranks, ((0, 0), (0, missing)))
