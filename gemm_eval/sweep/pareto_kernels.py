"""Numba kernel of Pareto fronts and ranks: divide and conquer in O(n log(n)**(num_objectives - 1)), exact.

Points come as ranks, distinct and in lexicographic order. So a point is dominated by earlier ones only, and an earlier
one dominates it if it is no worse in the columns after the first: the first is no worse by the order, and equal points
there are none. What is left to find is, for a block of earlier and a block of later points, who is no worse in columns
1, 2, ...: the ranks of the last column are halved, and where all of one side are below all of the other that column is
settled. Two columns are left at the end, for which a sweep over one and a Fenwick tree over the other are enough.

H. T. Kung, F. Luccio, F. P. Preparata, "On finding the maxima of a set of vectors", J. ACM 22(4), 1975; M. T. Jensen,
"Reducing the run-time complexity of multiobjective EAs", IEEE Trans. Evol. Comput. 7(5), 2003.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gemm_eval.jit import entry_point, kernel

Integers = npt.NDArray[np.int64]

# Points are compared pair by pair in blocks of this many, and where one side has no more than `_FEW`. On 100,000 points
# twice or half as much makes a fifth of a difference in time; answers do not depend on them.
_BLOCK = 32
_FEW = 12

_NONE = -1  # level in the tree where there is no point yet


@kernel
def _compare_each(ranks: Integers, levels: Integers, earlier: Integers, later: Integers, last: int) -> None:
    """Do what `_raise_later` does, pair by pair."""
    for t in later:
        for s in earlier:
            if levels[s] >= levels[t]:
                column = 1
                while column <= last and ranks[s, column] <= ranks[t, column]:
                    column += 1
                if column > last:
                    levels[t] = levels[s] + 1


@kernel
def _sweep(ranks: Integers, levels: Integers, tree: Integers, earlier: Integers, later: Integers) -> None:
    """Do what `_raise_later` does for columns 1 and 2; leaves `tree` as empty as it was."""
    num_in = 0
    for t in later:
        while num_in < len(earlier) and ranks[earlier[num_in], 1] <= ranks[t, 1]:
            s = earlier[num_in]
            node = ranks[s, 2] + 1
            while node < len(tree) and tree[node] < levels[s]:  # nodes above hold at least as much as this one
                tree[node] = levels[s]
                node += node & -node
            num_in += 1
        node = ranks[t, 2] + 1
        while node > 0:
            levels[t] = max(levels[t], tree[node] + 1)
            node &= node - 1
    for s in earlier[:num_in]:
        node = ranks[s, 2] + 1
        while node < len(tree) and tree[node] != _NONE:
            tree[node] = _NONE
            node += node & -node


@kernel
def _raise_later(
    ranks: Integers, levels: Integers, tree: Integers, earlier: Integers, later: Integers, last: int
) -> None:
    """Raise each later point above all earlier ones that are no worse in columns 1..last.

    `earlier` and `later` are point numbers, sorted by column 1. `tree` [num_points + 1] is empty.
    """
    if min(len(earlier), len(later)) <= _FEW:
        _compare_each(ranks, levels, earlier, later, last)
        return
    if last == 2:
        _sweep(ranks, levels, tree, earlier, later)
        return
    earlier_ranks, later_ranks = ranks[earlier, last], ranks[later, last]
    if earlier_ranks.max() <= later_ranks.min():
        _raise_later(ranks, levels, tree, earlier, later, last - 1)
        return
    low = min(earlier_ranks.min(), later_ranks.min())
    high = max(earlier_ranks.max(), later_ranks.max())
    middle = (low + high + 1) // 2  # above `low`, so both halves have fewer ranks than the whole
    earlier_low, later_low = earlier[earlier_ranks < middle], later[later_ranks < middle]
    earlier_high, later_high = earlier[earlier_ranks >= middle], later[later_ranks >= middle]
    _raise_later(ranks, levels, tree, earlier_low, later_low, last)
    _raise_later(ranks, levels, tree, earlier_low, later_high, last - 1)
    _raise_later(ranks, levels, tree, earlier_high, later_high, last)


@kernel
def _candidates(ranks: Integers, levels: Integers, start: int, stop: int, only_front: bool) -> Integers:
    """Points start..stop - 1 sorted by column 1; with `only_front` those that nothing is known to dominate."""
    points = np.arange(start, stop)
    if only_front:
        points = points[levels[start:stop] == 0]
    return points[np.argsort(ranks[points, 1])]


@entry_point
def find_levels(ranks: Integers, only_front: bool) -> Integers:
    """Return the front that each point is on: 0 for the points that none dominates, 1 for those of the rest, ...

    Args:
        ranks: [num_points, num_objectives >= 3], each 0 .. num_points - 1, smaller is better; rows are distinct and in
            lexicographic order.
        only_front: stop at the first front: all other points get 1.
    """
    num, last = len(ranks), ranks.shape[1] - 1
    levels = np.zeros(num, np.int64)
    tree = np.full(num + 1, _NONE, np.int64)
    for start in range(0, num, _BLOCK):
        # The points before `start` have their levels. The last `width` of them were not compared with the `width`
        # points from here: as in a Fenwick tree, that is each pair once.
        width = start & -start
        if width > 0:
            earlier = _candidates(ranks, levels, start - width, start, only_front)
            later = _candidates(ranks, levels, start, min(start + width, num), only_front)
            _raise_later(ranks, levels, tree, earlier, later, last)
        for point in range(start + 1, min(start + _BLOCK, num)):
            if not (only_front and levels[point] > 0):
                _compare_each(ranks, levels, np.arange(start, point), np.arange(point, point + 1), last)
    return levels
