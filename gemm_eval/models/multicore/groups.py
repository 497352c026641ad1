"""What kernels of multi-core chips take of a grouped GEMM: a batch, where its groups are equal, or row counts."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.jit import read_only
from gemm_eval.workload import GemmProblem, Layouts


class GroupSizes(NamedTuple):
    """Row counts of the groups that have any."""

    rows: npt.NDArray[np.int64]  # int64 [num_sizes], distinct, descending
    counts: npt.NDArray[np.int64]  # int64 [num_sizes], groups that have so many


def group_sizes(problem: GemmProblem) -> GroupSizes:
    """Return the row counts of a problem; of a batch those of G groups of M rows."""
    groups = problem.row_groups
    counts = {problem.M: problem.G} if groups is None else Counter(filter(None, groups))
    pairs = np.array(sorted(counts.items(), reverse=True), np.int64)
    return GroupSizes(*(read_only(np.ascontiguousarray(column)) for column in pairs.T))


def batch_sizes(problem: GemmProblem) -> tuple[int, int, int, int] | None:
    """Return (G, M, K, N) of the batch that a problem is, groups without rows left out; None where rows differ."""
    if problem.row_groups is None:
        return problem.sizes
    if not all(num_rows in (0, problem.M) for num_rows in problem.row_groups):
        return None
    return problem.row_groups.count(problem.M), problem.M, problem.K, problem.N


class SplitLayouts(NamedTuple):
    """Many problems, told apart by what kernels they are for.

    Attributes:
        batches: [num_batches], rows of those that are batches, also where groups without rows are left out.
    """

    batches: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]  # [num_batches, 4], their G, M, K, N
    grouped: npt.NDArray[np.int64]  # rows of the others, whose groups differ


def split_layouts(sizes: npt.NDArray[np.int64], layouts: Layouts) -> SplitLayouts:
    """Tell problems of these sizes, int64 [num, 4], apart."""
    num_sizes = np.append(np.diff(layouts.starts), 0)[layouts.of]  # row -1: none
    batches = np.flatnonzero(num_sizes <= 1)
    of_batches = sizes[batches]
    equal = num_sizes[batches] == 1
    first = layouts.starts[layouts.of[batches[equal]]]
    of_batches[equal, 0] = layouts.counts[first]
    of_batches[equal, 1] = layouts.rows[first]
    return SplitLayouts(batches, of_batches, np.flatnonzero(num_sizes > 1))
