"""Reading what users give to `evaluate_many`: tuples, problems, arrays or DataFrames, checked before any work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.errors import InvalidProblemError
from gemm_eval.workload import MAX_DIM, MAX_MACS, GemmProblem

__all__ = ["ProblemBatch", "read_batch", "types_alone"]

_SIZES = ("G", "M", "K", "N")
_TYPE_COLUMNS = ("dtype", "input_dtype", "weight_dtype", "output_dtype", "group_size", "zero_dtype")


class ProblemBatch(NamedTuple):
    """Many problems: sizes apart, and a few problems that stand for the combinations of data types."""

    sizes: npt.NDArray[np.int64]  # [num_problems, 4] of G, M, K, N
    type_of: npt.NDArray[np.int64]  # [num_problems], index into `types`
    types: tuple[GemmProblem, ...]  # of size 1 x 1 x 1 x 1


def read_batch(problems: Any, make_problem: Callable[..., GemmProblem]) -> ProblemBatch:
    """Read a batch.

    Args:
        problems: an iterable of (G, M, K, N) or `GemmProblem`, an integer array [num_problems, 4], or a DataFrame with
            columns G, M, K, N and any of dtype, input_dtype, weight_dtype, output_dtype, group_size, zero_dtype.
        make_problem: makes a problem from sizes and single types, with the defaults of the call.

    Raises:
        InvalidProblemError: something in it is no GEMM; the message gives its place.
    """
    if hasattr(problems, "columns") and hasattr(problems, "to_dict"):
        return _read_frame(problems, make_problem)
    if isinstance(problems, np.ndarray):
        return ProblemBatch(_check_array(problems), np.zeros(len(problems), np.int64), (make_problem(1, 1, 1, 1),))
    if isinstance(problems, str | bytes | GemmProblem) or not isinstance(problems, Iterable):
        raise InvalidProblemError(f"problems must be an iterable of (G, M, K, N) or GemmProblem, got {problems!r}")
    items = list(problems)
    if any(isinstance(item, GemmProblem) for item in items):
        return _read_problems(items, make_problem)
    return ProblemBatch(_read_tuples(items), np.zeros(len(items), np.int64), (make_problem(1, 1, 1, 1),))


def _read_tuples(items: Sequence[Any]) -> npt.NDArray[np.int64]:
    for place, item in enumerate(items):
        if not isinstance(item, tuple | list | np.ndarray) or len(item) != 4:
            raise InvalidProblemError(f"problem {place} must be (G, M, K, N), got {item!r}")
    kinds = set(map(type, chain.from_iterable(items)))
    if not all(kind is int or issubclass(kind, np.integer) for kind in kinds):
        _refuse_first_bad(items)
    try:
        sizes = np.array(items, dtype=np.int64).reshape(-1, 4)
    except OverflowError:
        _refuse_first_bad(items)
        raise
    return _check_array(sizes)


def _check_array(sizes: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    if sizes.ndim != 2 or sizes.shape[1] != len(_SIZES):
        raise InvalidProblemError(f"an array of problems must have the shape [num, 4] of G, M, K, N, got {sizes.shape}")
    if sizes.dtype.kind not in "iu":
        raise InvalidProblemError(f"an array of problems must hold integers, got {sizes.dtype}")
    checked: npt.NDArray[np.int64] = np.ascontiguousarray(sizes, dtype=np.int64)
    # products in floating point are off by parts in 1e15; what comes near the limit is looked at exactly
    is_doubtful = (sizes < 1) | (sizes > MAX_DIM)
    is_large = checked.astype(np.float64).prod(axis=1) > MAX_MACS * (1 - 1e-9)
    suspects = np.flatnonzero(is_doubtful.any(axis=1) | is_large)
    if len(suspects):
        _refuse_first_bad([sizes[place] for place in suspects], suspects)
    return checked


def _refuse_first_bad(items: Sequence[Any], places: Any = None) -> None:
    """Find the first item that is no GEMM, and say so in the words of `GemmProblem`."""
    for index, item in enumerate(items):
        try:
            GemmProblem(*item)
        except InvalidProblemError as error:
            raise InvalidProblemError(f"problem {index if places is None else places[index]}: {error}") from None


def _read_problems(items: Sequence[Any], make_problem: Callable[..., GemmProblem]) -> ProblemBatch:
    types: dict[GemmProblem, int] = {}
    type_of = np.empty(len(items), np.int64)
    sizes = np.empty((len(items), 4), np.int64)
    for place, item in enumerate(items):
        if isinstance(item, GemmProblem):
            problem = item
        else:
            _read_tuples([item])
            problem = make_problem(*item)
        sizes[place] = problem.sizes
        type_of[place] = types.setdefault(types_alone(problem), len(types))
    return ProblemBatch(sizes, type_of, tuple(types))


def types_alone(problem: GemmProblem) -> GemmProblem:
    """Return the problem of size 1 x 1 x 1 x 1 with the same data types."""
    return GemmProblem(
        1, 1, 1, 1, problem.input_dtype, problem.weight_dtype, problem.output_dtype, None,
        problem.group_size, problem.scale_dtype, problem.zero_dtype,
    )  # fmt: skip


def _read_frame(frame: Any, make_problem: Callable[..., GemmProblem]) -> ProblemBatch:
    missing = [name for name in _SIZES if name not in frame.columns]
    if missing:
        raise InvalidProblemError(f"a DataFrame of problems needs the columns G, M, K, N; {', '.join(missing)} missing")
    sizes = _check_array(np.column_stack([_integers(frame[name].to_numpy(), name) for name in _SIZES]))
    named = [name for name in _TYPE_COLUMNS if name in frame.columns]
    types: dict[GemmProblem, int] = {}
    type_of = np.zeros(len(sizes), np.int64)
    if not named:
        return ProblemBatch(sizes, type_of, (make_problem(1, 1, 1, 1),))
    seen: dict[tuple[Any, ...], int] = {}
    for place, row in enumerate(zip(*(frame[name].tolist() for name in named), strict=True)):
        if row not in seen:
            given = {name: value for name, value in zip(named, row, strict=True) if not _is_missing(value)}
            if "group_size" in given and given["group_size"] == int(given["group_size"]):
                given["group_size"] = int(given["group_size"])  # a column with gaps is a column of floats
            seen[row] = types.setdefault(make_problem(1, 1, 1, 1, **given), len(types))
        type_of[place] = seen[row]
    return ProblemBatch(sizes, type_of, tuple(types))


def _integers(column: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    if column.dtype.kind not in "iu":
        raise InvalidProblemError(f"column {name} must hold integers, got {column.dtype}")
    return column


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and np.isnan(value))
