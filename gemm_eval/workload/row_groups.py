"""Row groups: a grouped GEMM's number of rows of each group, and those of many problems as numba kernels take them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.checks import plain_integer
from gemm_eval.errors import InvalidProblemError
from gemm_eval.jit import read_only
from gemm_eval.words import shown
from gemm_eval.workload.types import MAX_DIM

__all__ = [
    "MAX_GROUPS",
    "NO_LAYOUTS",
    "Layouts",
    "RowGroups",
    "check_row_groups",
    "distinct_groups",
    "pack_layouts",
    "without_lone_groups",
]

MAX_GROUPS = 1024
"""Most groups of a grouped GEMM."""

RowGroups = tuple[int, ...]
"""Rows of A and C of each group; 0 where a group has none."""

_PLAIN = (tuple, list)


def check_row_groups(value: Any) -> RowGroups:
    """Return the rows of each group as plain ints.

    Raises:
        InvalidProblemError: they are no 1 to `MAX_GROUPS` integers in 0..`MAX_DIM`, or all of them are 0.
    """
    if type(value) is np.ndarray and value.ndim == 1 and value.dtype.kind in "iu":
        value = value.tolist()
    if type(value) in _PLAIN and len(value) <= MAX_GROUPS and set(map(type, value)) == {int}:
        # nearly all there are: a layer has hundreds of groups, and each is looked at in C here
        if min(value) >= 0 and 0 < max(value) <= MAX_DIM:
            return tuple(value)
    elif _is_no_list(value):
        raise InvalidProblemError(f"row_groups must be the rows of each group, (120, 3, 0, 17), got {shown(value)}")
    groups: list[int] = []
    for item in value:  # one by one: what is no list of groups may be endless
        number = plain_integer(item)
        if number is None or not 0 <= number <= MAX_DIM:
            raise InvalidProblemError(
                f"row_groups must be integers in 0..2**40, got {shown(item)} for group {len(groups)}"
            )
        groups.append(number)
        if len(groups) > MAX_GROUPS:
            raise InvalidProblemError(f"row_groups must be at most {MAX_GROUPS:,} groups, got more")
    if not any(groups):
        what = "no group" if not groups else f"{len(groups)} groups without a row"
        raise InvalidProblemError(f"row_groups must have a row in one group at least, got {what}")
    return tuple(groups)


def _is_no_list(value: Any) -> bool:
    is_word = isinstance(value, str | bytes | dict | set | frozenset)
    # an array without dimensions has `__iter__`, which raises
    return is_word or not isinstance(value, Iterable) or getattr(value, "ndim", 1) != 1


class Layouts(NamedTuple):
    """How the rows of many problems lie in groups, as numba kernels take them.

    Groups of equally many rows stand together, the largest first, and those without a row are left out: nothing depends
    on the order of groups. A problem without row groups is G groups of M rows, and has no entry.

    Attributes:
        of: [num_problems], which layout a problem has, -1: none; or [0], where no problem has any.
        starts: [num_layouts + 1], where each one's groups start in the next two.
        rows: [num_sizes], rows of such a group, at least 1.
        counts: [num_sizes], groups that have so many.
    """

    of: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]

    def take(self, rows: Any) -> Layouts:
        """Return those of some problems."""
        return self._replace(of=read_only(self.of[rows])) if len(self.of) else self

    def row_groups(self, problem: int, num_groups: int) -> RowGroups | None:
        """Return the rows of each of a problem's groups, the largest first; None: it has none of its own."""
        which = int(self.of[problem]) if len(self.of) else -1
        if which < 0:
            return None
        some = slice(*self.starts[which : which + 2].tolist())
        groups = np.repeat(self.rows[some], self.counts[some]).tolist()
        return (*groups, *[0] * (num_groups - len(groups)))

    def mean_rows(self, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the mean rows of a group of each problem [num, 4], rounded down: M where groups do not differ."""
        found: npt.NDArray[np.int64] = sizes[:, 1].copy()
        places = np.flatnonzero(self.of >= 0)
        if len(places):
            sums = np.add.reduceat(self.rows * self.counts, self.starts[:-1])
            found[places] = sums[self.of[places]] // sizes[places, 0]
        return found

    def is_grouped(self, num_problems: int) -> npt.NDArray[np.bool_]:
        """Say of each problem [num_problems] whether its groups differ."""
        return self.of >= 0 if len(self.of) else np.zeros(num_problems, np.bool_)


def without_lone_groups(sizes: npt.NDArray[np.int64], layouts: Layouts) -> tuple[npt.NDArray[np.int64], Layouts]:
    """Return sizes [num, 4] and layouts with one GEMM in place of each problem that has rows in a single group.

    So (0, 120, 0) is a GEMM of 120 rows: empty groups are no work.
    """
    if not len(layouts.of):
        return sizes, layouts
    groups = np.add.reduceat(layouts.counts, layouts.starts[:-1])
    is_lone = np.append(groups == 1, False)[layouts.of]  # of -1 too: it is not
    if not is_lone.any():
        return sizes, layouts
    of, sizes = layouts.of.copy(), sizes.copy()
    sizes[is_lone, 0] = 1
    of[is_lone] = -1
    return sizes, layouts._replace(of=read_only(of))


def distinct_groups(
    row_groups: RowGroups | None, G: int, M: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], bool]:
    """Return rows of groups that have any, the most first, how many groups have so many, and whether these are several.

    None: G groups of M, a batch.
    """
    found = {M: G} if row_groups is None else Counter(rows for rows in row_groups if rows)
    rows = sorted(found, reverse=True)
    counts = np.array([found[size] for size in rows], np.int64)
    return np.array(rows, np.int64), counts, row_groups is not None and int(counts.sum()) > 1


NO_LAYOUTS = Layouts(*(read_only(np.array(values, np.int64)) for values in ([], [0], [], [])))
"""Of plain problems, however many."""


def pack_layouts(row_groups: Sequence[RowGroups | None]) -> Layouts:
    """Pack the row groups of problems; None: G groups of M rows."""
    if all(groups is None for groups in row_groups):
        return NO_LAYOUTS
    places: dict[RowGroups, int] = {}
    of = [-1 if groups is None else places.setdefault(groups, len(places)) for groups in row_groups]
    starts, rows, counts = [0], [], []
    for groups in places:
        for num_rows, count in sorted(Counter(groups).items(), reverse=True):
            if num_rows:
                rows.append(num_rows)
                counts.append(count)
        starts.append(len(rows))
    arrays = (np.array(values, np.int64) for values in (of, starts, rows, counts))
    return Layouts(*map(read_only, arrays))
