"""`GEMMTable`: answers for many GEMMs as columns."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemm_eval.extras import needs_extra
from gemm_eval.units import FLOP_PER_MAC
from gemm_eval.words import refusal

if TYPE_CHECKING:
    from gemm_eval.evaluate.batch import ProblemBatch
    from gemm_eval.evaluate.evaluator import GEMMEvaluator
    from gemm_eval.evaluate.result import GEMMResult
    from gemm_eval.workload import GemmProblem


_TYPE_COLUMNS = (
    *("input_dtype", "weight_dtype", "output_dtype", "group_size", "scale_dtype", "zero_dtype", "group_n"),
    *("layout", "accumulate"),
)
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
        problem, options = self.problem(row), self.batch.kinds[self.batch.kind_of[row]].options
        if not self.is_feasible[row]:
            return self.evaluator.evaluate_problem(problem, **options._asdict())  # raises, and says what would help
        return self.evaluator.result_of_record(problem, options, self.records[row])

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
        batch, layouts = self.batch, self.batch.layouts(range(len(self)))
        return self.evaluator.backend.intervals(batch.kinds, batch.kind_of, batch.sizes, layouts, self.records)

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
