"""Reading what users give to `evaluate_many`: tuples, problems, arrays or DataFrames, checked before any work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.errors import InvalidOptionError, InvalidProblemError, UnsupportedError
from gemm_eval.words import shown
from gemm_eval.workload import MAX_DIM, MAX_MACS, GemmProblem, problem_of

if TYPE_CHECKING:
    from gemm_eval.evaluate.backend import Kind

__all__ = ["ProblemBatch", "are_sizes", "read_batch"]

_SIZES = ("G", "M", "K", "N")
_KIND_COLUMNS = (
    *("dtype", "input_dtype", "weight_dtype", "output_dtype", "group_size", "scale_dtype", "zero_dtype"),
    *("group_n", "library", "l2", "clock", "quantize_from", "correction"),
)


class ProblemBatch(NamedTuple):
    """Many problems: sizes apart, and the few kinds (data types and options) that they are of."""

    sizes: npt.NDArray[np.int64]  # [num_problems, 4] of G, M, K, N
    kind_of: npt.NDArray[np.int64]  # [num_problems], index into `kinds`
    kinds: tuple[Kind, ...]

    def problem(self, row: int) -> GemmProblem:
        """Return the problem of a row."""
        return problem_of(self.kinds[self.kind_of[row]].types, *self.sizes[row].tolist())


def are_sizes(G: Any, M: Any, K: Any, N: Any) -> bool:
    """Say whether these are plain ints that make a GEMM; other things may make one too."""
    return (
        type(G) is type(M) is type(K) is type(N) is int
        and 1 <= G <= MAX_DIM
        and 1 <= M <= MAX_DIM
        and 1 <= K <= MAX_DIM
        and 1 <= N <= MAX_DIM
        and G * M * K * N <= MAX_MACS
    )


def read_batch(
    problems: Any, make_kind: Callable[..., Kind], kind_of_problem: Callable[[GemmProblem], Kind]
) -> ProblemBatch:
    """Read a batch.

    Args:
        problems: an iterable of (G, M, K, N) or `GemmProblem`, an integer array [num_problems, 4], or a DataFrame with
            columns G, M, K, N and any of dtype, input_dtype, weight_dtype, output_dtype, group_size, scale_dtype,
            zero_dtype, group_n, library, l2, clock, quantize_from, correction.
        make_kind: makes a kind from what a row says of these, with the defaults of the call.
        kind_of_problem: makes the kind of a problem, with the options of the call.

    Raises:
        InvalidProblemError: something in it is no GEMM; the message gives its place.
        InvalidOptionError, UnsupportedError: options that `make_kind` refuses.
    """
    if hasattr(problems, "columns") and hasattr(problems, "iloc"):
        return _read_frame(problems, make_kind)
    if isinstance(problems, np.ndarray):
        return ProblemBatch(_check_array(problems), np.zeros(len(problems), np.int64), (make_kind(),))
    if isinstance(problems, str | bytes | GemmProblem) or not isinstance(problems, Iterable):
        raise InvalidProblemError(f"problems must be an iterable of (G, M, K, N) or GemmProblem, got {shown(problems)}")
    items = []
    for place, item in enumerate(problems):  # one by one: what is no batch may be endless
        if not (isinstance(item, GemmProblem) or _is_row(item)):
            raise InvalidProblemError(f"problem {place} must be (G, M, K, N), got {shown(item)}")
        items.append(item)
    if any(isinstance(item, GemmProblem) for item in items):
        return _read_problems(items, make_kind, kind_of_problem)
    return ProblemBatch(_read_tuples(items), np.zeros(len(items), np.int64), (make_kind(),))


def _is_row(item: Any) -> bool:
    is_sequence = isinstance(item, tuple | list) or (isinstance(item, np.ndarray) and item.ndim == 1)
    return is_sequence and len(item) == len(_SIZES)


def _read_tuples(items: Sequence[Any], places: Sequence[int] | None = None) -> npt.NDArray[np.int64]:
    kinds = set(map(type, chain.from_iterable(items)))
    are_plain = all(kind is int or (issubclass(kind, np.integer) and np.dtype(kind).kind in "iu") for kind in kinds)
    try:
        sizes = np.array(items if are_plain else _sizes_one_by_one(items, places), dtype=np.int64).reshape(-1, 4)
    except OverflowError:
        sizes = np.array(_sizes_one_by_one(items, places), dtype=np.int64)
    return _check_array(sizes, places)


def _check_array(sizes: npt.NDArray[Any], places: Sequence[int] | None = None) -> npt.NDArray[np.int64]:
    if sizes.ndim != 2 or sizes.shape[1] != len(_SIZES):
        raise InvalidProblemError(f"an array of problems must have the shape [num, 4] of G, M, K, N, got {sizes.shape}")
    if sizes.dtype.kind not in "iu":
        raise InvalidProblemError(f"an array of problems must hold integers, got {sizes.dtype}")
    if np.ma.is_masked(sizes):
        place = int(np.flatnonzero(np.ma.getmaskarray(sizes).any(axis=1))[0])
        raise InvalidProblemError(f"problem {place}: G, M, K and N must be integers >= 1, got a masked one")
    checked: npt.NDArray[np.int64] = np.array(sizes, dtype=np.int64, order="C", subok=False)  # never the caller's own
    # products in floating point are off by parts in 1e15; what comes near the limit is looked at exactly
    is_doubtful = (sizes < 1) | (sizes > MAX_DIM)
    is_large = checked.astype(np.float64).prod(axis=1) > MAX_MACS * (1 - 1e-9)
    suspects = np.flatnonzero(is_doubtful.any(axis=1) | is_large)
    if len(suspects):
        where = suspects if places is None else np.array(places)[suspects]
        _sizes_one_by_one([sizes[index] for index in suspects], where)
    return checked


def _sizes_one_by_one(items: Sequence[Any], places: Any = None) -> list[tuple[int, int, int, int]]:
    """Return the sizes of items; the first one that is no GEMM is refused in the words of `GemmProblem`."""
    sizes = []
    for index, item in enumerate(items):
        try:
            sizes.append(GemmProblem(*item).sizes)
        except InvalidProblemError as error:
            raise InvalidProblemError(f"problem {index if places is None else places[index]}: {error}") from None
    return sizes


def _read_problems(
    items: Sequence[Any], make_kind: Callable[..., Kind], kind_of_problem: Callable[[GemmProblem], Kind]
) -> ProblemBatch:
    kinds: dict[Kind, int] = {}
    kind_of = np.empty(len(items), np.int64)
    sizes = np.empty((len(items), 4), np.int64)
    places = [place for place, item in enumerate(items) if not isinstance(item, GemmProblem)]
    if places:
        sizes[places] = _read_tuples([items[place] for place in places], places)
        kind_of[places] = kinds.setdefault(make_kind(), len(kinds))
    for place, item in enumerate(items):
        if isinstance(item, GemmProblem):
            sizes[place] = item.sizes
            kind_of[place] = kinds.setdefault(kind_of_problem(item), len(kinds))
    return ProblemBatch(sizes, kind_of, tuple(kinds))


def _read_frame(frame: Any, make_kind: Callable[..., Kind]) -> ProblemBatch:
    names = [name for name in frame.columns if isinstance(name, str)]
    missing = [name for name in _SIZES if name not in names]
    if missing:
        raise InvalidProblemError(f"a DataFrame of problems needs the columns G, M, K, N; {', '.join(missing)} missing")
    named = [name for name in _KIND_COLUMNS if name in names]
    for name in (*_SIZES, *named):
        if names.count(name) > 1:
            raise InvalidProblemError(f"a DataFrame of problems must have one column {name}, got {names.count(name)}")
    sizes = _check_array(np.column_stack([_integers(frame[name], name) for name in _SIZES]))
    kinds: dict[Kind, int] = {}
    kind_of = np.zeros(len(sizes), np.int64)
    if not named:
        return ProblemBatch(sizes, kind_of, (make_kind(),))
    seen: dict[tuple[Any, ...], int] = {}
    for place, row in enumerate(zip(*(_values(frame[name], name) for name in named), strict=True)):
        if row not in seen:
            given = {name: value for name, value in zip(named, row, strict=True) if value is not None}
            try:
                kind = make_kind(**given)
            except (InvalidProblemError, InvalidOptionError, UnsupportedError) as error:
                raise type(error)(f"problem {place}: {error}") from None
            seen[row] = kinds.setdefault(kind, len(kinds))
        kind_of[place] = seen[row]
    return ProblemBatch(sizes, kind_of, tuple(kinds))


def _integers(column: Any, name: str) -> npt.NDArray[np.int64]:
    if not len(column):
        return np.zeros(0, np.int64)  # an empty DataFrame often has columns of objects
    values: npt.NDArray[Any] = column.to_numpy()
    if values.dtype.kind not in "iu":
        raise InvalidProblemError(f"column {name} must hold integers, got {column.dtype}")
    if values.dtype.kind == "u" and values.max() > MAX_DIM:
        place = int(np.argmax(values > MAX_DIM))
        raise InvalidProblemError(f"problem {place}: {name} must be in 1..2**40, got {values[place]}")
    return values.astype(np.int64)


def _values(column: Any, name: str) -> list[Any]:
    """Return the values of a column of types, with None for gaps: nan, None, NA."""
    values: list[Any] = []
    for place, (value, is_gap) in enumerate(zip(column.tolist(), column.isna().tolist(), strict=True)):
        plain = value.item() if isinstance(value, np.generic) else value
        if is_gap:
            plain = None
        elif name in ("group_size", "group_n") and isinstance(plain, float) and plain.is_integer():
            plain = int(plain)  # a column with gaps is a column of floats
        elif name == "correction" and isinstance(plain, bool):
            pass
        elif isinstance(plain, bool) or not isinstance(plain, str | int | float):
            raise InvalidProblemError(f"problem {place}: {name} must be a plain value, got {shown(value)}")
        values.append(plain)
    return values
