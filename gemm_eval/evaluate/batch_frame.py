"""DataFrames of problems: a row for each, with sizes, or the rows of groups, and types and options of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemm_eval.checks import plain_integer
from gemm_eval.errors import InvalidOptionError, InvalidProblemError, UnsupportedError
from gemm_eval.evaluate.batch import SIZES, MakeKind, ProblemBatch, check_sizes
from gemm_eval.words import shown
from gemm_eval.workload import MAX_DIM, GemmProblem, RowGroups, check_row_groups

if TYPE_CHECKING:
    from gemm_eval.evaluate.backend import Kind


_ROW_GROUPS = "row_groups"
_KIND_COLUMNS = (
    *("dtype", "input_dtype", "weight_dtype", "output_dtype", "group_size", "scale_dtype", "zero_dtype"),
    *("group_n", "library", "l2", "clock", "quantize_from", "correction"),
)
_Sizes = npt.NDArray[np.int64]


def read_frame(frame: Any, make_kind: MakeKind) -> ProblemBatch:
    """Read a DataFrame of problems.

    Args:
        frame: with columns G, M, K, N and any of row_groups, dtype, input_dtype, weight_dtype, output_dtype,
            group_size, scale_dtype, zero_dtype, group_n, library, l2, clock, quantize_from, correction. Where a row has
            row_groups, G and M may be missing.
        make_kind: makes a kind from what a row says of types and options.

    Raises:
        InvalidProblemError: a row is no GEMM, or a column is missing or twice there.
        InvalidOptionError, UnsupportedError: options that `make_kind` refuses.
    """
    batch = _read(frame, make_kind)
    are_own = [not (isinstance(name, str) and name in (*SIZES, _ROW_GROUPS)) for name in frame.columns]
    return batch._replace(own=frame.loc[:, are_own].copy())


def _read(frame: Any, make_kind: MakeKind) -> ProblemBatch:
    names = [name for name in frame.columns if isinstance(name, str)]
    # a table's own frame has the column whether any row needs it or not
    has_groups = _ROW_GROUPS in names and (names.count(_ROW_GROUPS) > 1 or not frame[_ROW_GROUPS].isna().all())
    needed = SIZES[2:] if has_groups else SIZES
    missing = [name for name in needed if name not in names]
    if missing:
        raise InvalidProblemError(
            f"a DataFrame of problems needs the columns G, M, K, N (or row_groups, K, N); {', '.join(missing)} missing"
        )
    named = [name for name in _KIND_COLUMNS if name in names]
    for name in (*SIZES, _ROW_GROUPS, *named):
        if names.count(name) > 1:
            raise InvalidProblemError(f"a DataFrame of problems must have one column {name}, got {names.count(name)}")
    row_groups: tuple[RowGroups | None, ...] | None = None
    if has_groups:
        sizes, row_groups = _read_sizes(frame)
    else:
        sizes = check_sizes(np.column_stack([_integers(frame[name], name) for name in SIZES]))
    kind_of = np.zeros(len(sizes), np.int64)
    if not named and row_groups is None:
        return ProblemBatch(sizes, kind_of, (make_kind(),))
    kinds: dict[Kind, int] = {}
    seen: dict[tuple[Any, ...], int] = {}
    are_grouped = [False] * len(sizes) if row_groups is None else [groups is not None for groups in row_groups]
    columns = (_values(frame[name], name) for name in named)
    for place, row in enumerate(zip(are_grouped, *columns, strict=True)):
        if row not in seen:
            given = {name: value for name, value in zip(named, row[1:], strict=True) if value is not None}
            try:
                kind = make_kind(is_grouped=row[0], **given)
            except (InvalidProblemError, InvalidOptionError, UnsupportedError) as error:
                raise type(error)(f"problem {place}: {error}") from None
            seen[row] = kinds.setdefault(kind, len(kinds))
        kind_of[place] = seen[row]
    return ProblemBatch(sizes, kind_of, tuple(kinds), row_groups)


def _read_sizes(frame: Any) -> tuple[_Sizes, tuple[RowGroups | None, ...] | None]:
    """Return sizes [num, 4] and row groups of a frame some of whose rows may be grouped GEMMs."""
    given = _with_gaps(frame[_ROW_GROUPS])
    columns = [_with_gaps(frame[name]) if name in frame.columns else [None] * len(given) for name in SIZES]
    found: list[GemmProblem] = []
    for place, (groups, *sizes) in enumerate(zip(given, *columns, strict=True)):
        try:
            found.append(_problem(groups, sizes))
        except InvalidProblemError as error:
            raise InvalidProblemError(f"problem {place}: {error}") from None
    all_groups = tuple(problem.row_groups for problem in found)
    sizes_of = np.array([problem.sizes for problem in found], np.int64).reshape(-1, len(SIZES))
    return sizes_of, None if all_groups.count(None) == len(found) else all_groups


def _problem(row_groups: Any, sizes: Sequence[Any]) -> GemmProblem:
    """Return the problem of a row, its types left aside; G and M that are given must be those of its groups."""
    G, M, K, N = (_whole(size) for size in sizes)
    if row_groups is None:
        for name, size in (("G", G), ("M", M)):
            if size is None:
                raise InvalidProblemError(f"{name} must be an integer >= 1 where a row has no row_groups, got none")
        return GemmProblem(G, M, K, N)
    groups = check_row_groups(row_groups)
    return GemmProblem(len(groups) if G is None else G, max(groups) if M is None else M, K, N, row_groups=groups)


def _with_gaps(column: Any) -> list[Any]:
    """Return the values of a column, with None for gaps: nan, None, NA."""
    values = zip(column.tolist(), column.isna().tolist(), strict=True)
    return [None if is_gap else value for value, is_gap in values]


def _whole(value: Any) -> Any:
    """Return the int of a whole float, since a column with gaps is a column of floats; all else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() and plain_integer(value) is None else value


def _integers(column: Any, name: str) -> _Sizes:
    if not len(column):
        return np.zeros(0, np.int64)  # an empty DataFrame often has columns of objects
    values: npt.NDArray[Any] = column.to_numpy()
    if values.dtype.kind not in "iu":
        raise InvalidProblemError(f"column {name} must hold integers, got {column.dtype}")
    if values.dtype.kind == "u" and values.max() > MAX_DIM:
        place = int(np.argmax(values > MAX_DIM))
        raise InvalidProblemError(f"problem {place}: {name} must be in 1..2**40, got {values[place]}")
    return values.astype(np.int64)


def _values(column: Any, name: str) -> Iterable[Any]:
    """Return the values of a column of types, with None for gaps."""
    values: list[Any] = []
    for place, value in enumerate(_with_gaps(column)):
        plain = value.item() if isinstance(value, np.generic) else value
        if value is None:
            plain = None
        elif name in ("group_size", "group_n") and isinstance(plain, float) and plain.is_integer():
            plain = int(plain)  # a column with gaps is a column of floats
        elif name == "correction" and isinstance(plain, bool):
            pass
        elif isinstance(plain, bool) or not isinstance(plain, str | int | float):
            raise InvalidProblemError(f"problem {place}: {name} must be a plain value, got {shown(value)}")
        values.append(plain)
    return values
