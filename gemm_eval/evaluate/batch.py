"""Many GEMMs at once: their sizes and types, from lists, arrays and data frames, and their answers as columns."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from gemm_eval.errors import InvalidOptionError, InvalidProblemError, UnsupportedError
from gemm_eval.evaluate.backend import Kind, Problems
from gemm_eval.units import FLOP_PER_MAC
from gemm_eval.words import needs_extra, plain_integer, refusal, shown
from gemm_eval.workload import (
    MAX_DIM,
    MAX_MACS,
    NO_LAYOUTS,
    TYPE_NAMES,
    GemmProblem,
    GemmTypes,
    RowGroups,
    RunOptions,
    check_row_groups,
    pack_layouts,
    problem_of,
)

if TYPE_CHECKING:
    from gemm_eval.evaluate.evaluator import GEMMEvaluator
    from gemm_eval.evaluate.result import GEMMResult
    from gemm_eval.workload import GemmProblem


_Sizes: TypeAlias = npt.NDArray[np.int64]
SIZES = ("G", "M", "K", "N")
"""Names of the sizes, in their order."""


MakeKind: TypeAlias = Callable[..., "Kind"]
"""Makes a kind from the types and options of a row, by name, and `is_grouped`; it raises where they cannot be."""


class ProblemBatch(NamedTuple):
    """Many problems: sizes apart, and the few kinds (data types and options) that they are of.

    Attributes:
        sizes: [num_problems, 4] of G, M, K, N; of a grouped GEMM M is of the largest group.
        kind_of: [num_problems], index into `kinds`.
        kinds: data types and options.
        row_groups: [num_problems], rows of each group, None of a batch of G; None: all problems are batches.
        own: what a DataFrame of problems has besides G, M, K, N and row_groups, row by row, for `GEMMTable.to_pandas`;
            None: no DataFrame was given.
    """

    sizes: npt.NDArray[np.int64]
    kind_of: npt.NDArray[np.int64]
    kinds: tuple[Kind, ...]
    row_groups: tuple[RowGroups | None, ...] | None = None
    own: Any = None

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """[num_problems], rows of A and C in all."""
        rows: npt.NDArray[np.int64] = self.sizes[:, 0] * self.sizes[:, 1]
        for place in self.grouped_rows:
            rows[place] = sum(self.row_groups_of(place) or ())
        return rows

    @property
    def grouped_rows(self) -> list[int]:
        """Rows of the batch that are grouped GEMMs."""
        return [place for place, groups in enumerate(self.row_groups or ()) if groups is not None]

    def row_groups_of(self, row: int) -> RowGroups | None:
        """Return the rows of each group of a problem, None of a batch."""
        return None if self.row_groups is None else self.row_groups[row]

    def packed(self, packed: Sequence[Any], rows: Sequence[int]) -> Problems:
        """Return problems of some rows, as backends take them, with what was packed of each kind."""
        layouts = NO_LAYOUTS if self.row_groups is None else pack_layouts([self.row_groups[row] for row in rows])
        chosen = np.array(rows, np.int64)
        return Problems(self.kinds, packed, self.kind_of[chosen], self.sizes[chosen], layouts)

    def problem(self, row: int) -> GemmProblem:
        """Return the problem of a row."""
        G, M, K, N = self.sizes[row].tolist()
        return problem_of(self.kinds[self.kind_of[row]].types, G, M, K, N, self.row_groups_of(row))


def are_sizes(G: Any, M: Any, K: Any, N: Any) -> bool:
    """Return True if these are plain ints that make a GEMM; other things may make one too."""
    return (
        type(G) is type(M) is type(K) is type(N) is int
        and 1 <= G <= MAX_DIM
        and 1 <= M <= MAX_DIM
        and 1 <= K <= MAX_DIM
        and 1 <= N <= MAX_DIM
        and G * M * K * N <= MAX_MACS
    )


def read_batch(problems: Any, make_kind: MakeKind, kind_of_problem: Callable[[GemmProblem], Kind]) -> ProblemBatch:
    """Read a batch as `GEMMEvaluator.evaluate_many` takes it.

    Args:
        problems: an iterable of (G, M, K, N) or `GemmProblem`, an integer array [num_problems, 4], or a DataFrame.
        make_kind: makes the kind of a row, with the defaults of the call.
        kind_of_problem: makes the kind of a problem, with the options of the call.
    """
    if hasattr(problems, "columns") and hasattr(problems, "iloc"):
        return read_frame(problems, make_kind)
    if isinstance(problems, np.ndarray):
        return ProblemBatch(check_sizes(problems), np.zeros(len(problems), np.int64), (make_kind(),))
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
    return is_sequence and len(item) == len(SIZES)


def _read_tuples(items: Sequence[Any], places: Sequence[int] | None = None) -> _Sizes:
    kinds = set(map(type, chain.from_iterable(items)))
    are_plain = all(kind is int or (issubclass(kind, np.integer) and np.dtype(kind).kind in "iu") for kind in kinds)
    try:
        sizes = np.array(items if are_plain else _sizes_one_by_one(items, places), dtype=np.int64)
    except OverflowError:
        sizes = np.array(_sizes_one_by_one(items, places), dtype=np.int64)
    return check_sizes(sizes.reshape(-1, 4), places)


def check_sizes(sizes: npt.NDArray[Any], places: Sequence[int] | None = None) -> _Sizes:
    """Return a copy of an array [num, 4] of G, M, K, N, after a look at each number; `places`: for the messages."""
    if sizes.ndim != 2 or sizes.shape[1] != len(SIZES):
        raise InvalidProblemError(f"an array of problems must have the shape [num, 4] of G, M, K, N, got {sizes.shape}")
    if sizes.dtype.kind not in "iu":
        raise InvalidProblemError(f"an array of problems must hold integers, got {sizes.dtype}")
    if np.ma.is_masked(sizes):
        place = int(np.flatnonzero(np.ma.getmaskarray(sizes).any(axis=1))[0])
        raise InvalidProblemError(f"problem {place}: G, M, K and N must be integers >= 1, got a masked one")
    checked: _Sizes = np.array(sizes, dtype=np.int64, order="C", subok=False)  # never the caller's own
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
    items: Sequence[Any], make_kind: MakeKind, kind_of_problem: Callable[[GemmProblem], Kind]
) -> ProblemBatch:
    kinds: dict[Kind, int] = {}
    kind_of, sizes = np.empty(len(items), np.int64), np.empty((len(items), 4), np.int64)
    row_groups: list[RowGroups | None] = [None] * len(items)
    places = [place for place, item in enumerate(items) if not isinstance(item, GemmProblem)]
    if places:
        sizes[places] = _read_tuples([items[place] for place in places], places)
        kind_of[places] = kinds.setdefault(make_kind(), len(kinds))
    numbers: dict[tuple[GemmTypes, bool], int] = {}
    for place, item in enumerate(items):
        if isinstance(item, GemmProblem):
            sizes[place], row_groups[place] = item.sizes, item.row_groups
            kind_key = item.types, item.is_grouped
            if kind_key not in numbers:
                numbers[kind_key] = kinds.setdefault(kind_of_problem(item), len(kinds))
            kind_of[place] = numbers[kind_key]
    return ProblemBatch(sizes, kind_of, tuple(kinds), _groups_or_none(row_groups))


def _groups_or_none(row_groups: Sequence[RowGroups | None]) -> tuple[RowGroups | None, ...] | None:
    return None if row_groups.count(None) == len(row_groups) else tuple(row_groups)


_ROW_GROUPS = "row_groups"
_TYPE_COLUMNS = tuple(name for name in TYPE_NAMES if name != "accumulator_dtype")  # which follows from the input
_KIND_COLUMNS = ("dtype", *_TYPE_COLUMNS, *RunOptions._fields)


def read_frame(frame: Any, make_kind: MakeKind) -> ProblemBatch:
    """Read a DataFrame with columns G, M, K, N and any of row_groups and the names of types and options.

    Where a row has row_groups, G and M may be missing.
    """
    names = [name for name in frame.columns if isinstance(name, str)]
    # a table's own frame has the column whether any row needs it or not
    has_groups = _ROW_GROUPS in names and (names.count(_ROW_GROUPS) > 1 or not frame[_ROW_GROUPS].isna().all())
    missing = [name for name in (SIZES[2:] if has_groups else SIZES) if name not in names]
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
    kinds: dict[Kind, int] = {}
    seen: dict[tuple[Any, ...], int] = {}
    if not named and row_groups is None:
        kinds[make_kind()] = 0
    else:
        are_grouped = [groups is not None for groups in row_groups or [None] * len(sizes)]
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
    are_own = [not (isinstance(name, str) and name in (*SIZES, _ROW_GROUPS)) for name in frame.columns]
    return ProblemBatch(sizes, kind_of, tuple(kinds), row_groups, frame.loc[:, are_own].copy())


def _read_sizes(frame: Any) -> tuple[_Sizes, tuple[RowGroups | None, ...] | None]:
    """Return sizes [num, 4] and row groups of a frame some of whose rows may be grouped GEMMs."""
    given = _with_gaps(frame[_ROW_GROUPS])
    columns = [_with_gaps(frame[name]) if name in frame.columns else [None] * len(given) for name in SIZES]
    problems: list[GemmProblem] = []
    for place, (groups, *sizes) in enumerate(zip(given, *columns, strict=True)):
        try:
            problems.append(_problem(groups, sizes))
        except InvalidProblemError as error:
            raise InvalidProblemError(f"problem {place}: {error}") from None
    all_sizes = np.array([problem.sizes for problem in problems], np.int64).reshape(-1, len(SIZES))
    return all_sizes, _groups_or_none([problem.row_groups for problem in problems])


def _problem(row_groups: Any, sizes: Sequence[Any]) -> GemmProblem:
    """Return the problem of a row, its types left aside; G and M that are given must be those of its groups."""
    # a column with gaps is a column of floats
    G, M, K, N = (
        int(size) if isinstance(size, float) and size.is_integer() and plain_integer(size) is None else size
        for size in sizes
    )
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
        if name in ("group_size", "group_n") and isinstance(plain, float) and plain.is_integer():
            plain = int(plain)  # a column with gaps is a column of floats
        is_flag = name == "correction" and isinstance(plain, bool)
        if value is not None and not is_flag and (isinstance(plain, bool) or not isinstance(plain, str | int | float)):
            raise InvalidProblemError(f"problem {place}: {name} must be a plain value, got {shown(value)}")
        values.append(plain)
    return values


_COST_COLUMNS = (
    *("latency_us", "physics_us", "low_us", "high_us", "source"),
    *("tflop_per_s", "utilization_frac", "bound", "compute_us", "dram_us", "dram_bytes", "energy_pj"),
    *("sram_used_bytes", "active_cores"),
)
_INTERVAL = ("low_us", "high_us")


class GEMMTable:
    """Results of `GEMMEvaluator.evaluate_many`, one row for each problem given, in the order given.

    ``table["latency_us"]`` is a column as an array, ``table[3]`` a row as a `GEMMResult`; `to_pandas` and `to_dicts`
    give all columns: the problem and its options, the cost, the terms of `GEMMResult.breakdown`, the mapping. Rows that
    are not feasible (with ``errors="mark"``) have nan for times, 0 for whole numbers, None for words such as `bound`;
    asking for such a row raises `InfeasibleError`.

    `row_groups` of a grouped GEMM are a tuple (in `to_dicts` a list), None elsewhere; its G is the number of groups,
    its M the rows of the largest, and its FLOP are those of the rows that there are.

    Attributes:
        evaluator: the evaluator that made this table.
        batch: the problems, and the kinds that they are of.
        records: [num_rows], read-only: the costs as the model returns them, in its own structured type.
    """

    def __init__(self, evaluator: GEMMEvaluator, batch: ProblemBatch, records: npt.NDArray[np.void]) -> None:
        self.evaluator = evaluator
        self.batch = batch
        self.records = records
        self._columns: dict[str, npt.NDArray[Any]] = {}

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        return f"<GEMMTable of {len(self)} GEMMs on {self.evaluator.arch.name}>"

    def _repr_html_(self) -> str:
        from gemm_eval.evaluate.result import table_html

        return table_html(self)

    def __iter__(self) -> Iterator[GEMMResult]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, str):
            return self._column(key)
        row = operator.index(key)
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        problem, kind = self.problem(row), self.batch.kinds[self.batch.kind_of[row]]
        if not self.is_feasible[row]:  # this raises, and says what would help
            return self.evaluator.evaluate_problem(problem, **kind.options._asdict())
        return self.evaluator.result_of_record(problem, kind, self.records[row].copy())

    def problem(self, row: int) -> GemmProblem:
        """Return the problem of a row."""
        return self.batch.problem(row)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns, with units."""
        backend = self.evaluator.backend
        terms = (name for name in backend.term_columns if name not in _COST_COLUMNS)  # a GPU's dram_us is both
        return (*self._problem_columns, *_COST_COLUMNS, *terms, *backend.mapping_columns)

    @property
    def _problem_columns(self) -> tuple[str, ...]:
        return ("G", "M", "K", "N", "row_groups", *_TYPE_COLUMNS, *self.evaluator.backend.option_columns)

    @cached_property
    def is_feasible(self) -> npt.NDArray[np.bool_]:
        """[num_rows], read-only: whether any mapping fits."""
        feasible = self.evaluator.backend.is_feasible(self.records)
        feasible.setflags(write=False)
        return feasible

    @cached_property
    def _ends_us(self) -> npt.NDArray[np.float64]:
        """Ends of the intervals, [2, num_rows]."""
        return self.evaluator.backend.intervals(self.batch.packed((), range(len(self))), self.records)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return plain Python values, a dict for each row; what is unknown or infeasible is None."""
        columns: dict[str, list[Any]] = {}
        for name in self.columns:
            column = self._column(name).astype(object)
            if name not in self._problem_columns:
                column[~self.is_feasible] = None
            if name in ("energy_pj", *_INTERVAL):
                column[np.isnan(self._column(name))] = None
            columns[name] = column.tolist()
            if name == "row_groups":  # as JSON has them
                columns[name] = [None if groups is None else list(groups) for groups in columns[name]]
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame of all columns.

        Where the problems were a DataFrame, its own columns stand first, and its index is kept. One that has the name
        of a column of results, such as a measured `latency_us`, is called `latency_us_given` then, and is left out
        where it says nothing else.

        Raises:
            GemmEvalError: pandas is not installed.
        """
        with needs_extra("to_pandas", "table"):
            import pandas as pd
        frame = pd.DataFrame({name: self._column(name) for name in self.columns})
        if (own := self.batch.own) is None:
            return frame
        frame.index = own.index
        says_more = [not (name in self.columns and self._is_said(frame, name, own)) for name in map(_text, own.columns)]
        kept = own.loc[:, says_more].rename(columns={name: f"{name}_given" for name in frame.columns})
        return pd.concat([kept, frame], axis=1)

    def _is_said(self, frame: Any, name: str, own: Any) -> bool:
        """Return True if a column of the user's adds nothing to ours of its name."""
        given = own[name]
        return name in self._problem_columns or given.ndim > 1 or given.isna().all() or given.equals(frame[name])

    def _column(self, name: str) -> npt.NDArray[Any]:
        if name not in self._columns:
            if name not in self.columns:
                raise KeyError(refusal("column", name, self.columns))
            column = self._make_column(name)
            column.setflags(write=False)
            self._columns[name] = column
        return self._columns[name]

    def _make_column(self, name: str) -> npt.NDArray[Any]:
        column: npt.NDArray[Any]
        if name in ("G", "M", "K", "N"):
            return self.batch.sizes[:, "GMKN".index(name)].copy()
        if name == "row_groups":
            column = np.full(len(self), None, object)
            for place in self.batch.grouped_rows:
                column[place] = self.batch.row_groups_of(place)
            return column
        kinds, kind_of = self.batch.kinds, self.batch.kind_of
        if name in self._problem_columns:
            values = [
                kind.types.words[name] if name in _TYPE_COLUMNS else getattr(kind.options, name) for kind in kinds
            ]
            column = np.array([getattr(value, "value", value) for value in values], object)[kind_of]
            return self.evaluator.backend.spell_options(name, column, self.records)
        if name in _INTERVAL:
            column = self._ends_us[_INTERVAL.index(name)]
            return column
        if name in ("tflop_per_s", "utilization_frac"):
            macs = self.batch.rows * self.batch.sizes[:, 2:].prod(axis=1)  # exact: below 2**63, see MAX_MACS
            flop = FLOP_PER_MAC * macs
            latency_us: npt.NDArray[np.float64] = self._column("latency_us")
            if name == "tflop_per_s":
                column = flop / latency_us / 1e6  # these two as `GEMMResult` has them, to the bit
                return column
            peaks = np.array([self.evaluator.backend.highest_tflop_per_s(kind.types.a.dtype) for kind in kinds], float)
            column = flop / (latency_us * (peaks * 1e6)[kind_of])
            return column
        return self.evaluator.backend.column(name, self.records)


def _text(label: Any) -> str:
    """Return the label of a column; of any other than a text an empty one: some cannot be compared."""
    return label if isinstance(label, str) else ""
