"""What of a grouped GEMM the kernels of multi-core chips take: a batch, where its groups are equal, or its row counts."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.jit import read_only
from gemm_eval.workload import GemmProblem

__all__ = ["GroupSizes", "batch_sizes", "group_sizes"]


class GroupSizes(NamedTuple):
    """Row counts of the groups that have any.

    Attributes:
        rows: int64 [num_sizes], distinct, descending.
        counts: int64 [num_sizes], groups that have so many.
    """

    rows: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]


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
