"""`GEMMTable`: the results of a batch, column by column."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemm_eval.errors import GemmEvalError
from gemm_eval.mapping import LoopOrder
from gemm_eval.models.multicore.cost_kernels import BOUNDS
from gemm_eval.units import FLOP_PER_MAC

if TYPE_CHECKING:
    from gemm_eval.evaluate._batch import ProblemBatch
    from gemm_eval.evaluate._evaluator import GEMMEvaluator
    from gemm_eval.evaluate._result import GEMMResult
    from gemm_eval.workload import GemmProblem

__all__ = ["GEMMTable"]

_RECORD_COLUMNS = (
    "latency_us", "compute_us", "dram_us", "dram_bytes", "energy_pj", "sram_used_bytes", "active_cores",
    "P_G", "P_M", "P_N", "P_K", "tile_m", "tile_n", "tile_k",
)  # fmt: skip


class GEMMTable:
    """Results of `GEMMEvaluator.evaluate_many`, one row for each problem given, in the order given.

    ``table["latency_us"]`` is a column as an array, ``table[3]`` a row as a `GEMMResult`; `to_pandas` and `to_dicts`
    give all columns. Rows that are not feasible have nan latency (with ``errors="mark"``).
    """

    def __init__(self, evaluator: GEMMEvaluator, batch: ProblemBatch, records: npt.NDArray[np.void]) -> None:
        self._evaluator = evaluator
        self._batch = batch
        self._records = records
        self._columns: dict[str, npt.NDArray[Any]] = {}

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return f"<GEMMTable of {len(self)} GEMMs on {self._evaluator.arch.name}>"

    def __iter__(self) -> Iterator[GEMMResult]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, str):
            return self._column(key)
        row = range(len(self))[key]
        return self._evaluator.result_of_record(self.problem(row), self._records[row])

    def problem(self, row: int) -> GemmProblem:
        """Return the problem of a row."""
        return self._evaluator.problem_of(self._batch.types[self._batch.type_of[row]], self._batch.sizes[row])

    @property
    def records(self) -> npt.NDArray[np.void]:
        """[num_rows] of COST_DTYPE, read-only: the costs as the model returns them."""
        return self._records

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns, with units."""
        return (
            *("G", "M", "K", "N", "input_dtype", "weight_dtype", "output_dtype", "group_size"),
            *("latency_us", "tflop_per_s", "utilization_frac", "bound", "compute_us", "dram_us", "dram_bytes"),
            *("energy_pj", "sram_used_bytes", "active_cores", "P_G", "P_M", "P_N", "P_K", "tile_m", "tile_n", "tile_k"),
            "loop_order",
        )

    @property
    def is_feasible(self) -> npt.NDArray[np.bool_]:
        """[num_rows]: whether any mapping fits."""
        feasible: npt.NDArray[np.bool_] = self._records["active_cores"] > 0
        return feasible

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return plain Python values, a dict for each row; what is unknown or infeasible is None."""
        columns = {name: self._column(name).tolist() for name in self.columns}
        for name, values in columns.items():
            columns[name] = [None if isinstance(value, float) and value != value else value for value in values]  # noqa: PLR0124
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame of all columns.

        Raises:
            GemmEvalError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError:
            raise GemmEvalError("to_pandas needs pandas: pip install 'gemm_eval[sweep]'") from None
        return pd.DataFrame({name: self._column(name) for name in self.columns})

    def _column(self, name: str) -> npt.NDArray[Any]:
        if name not in self._columns:
            if name not in self.columns:
                raise KeyError(f"no column {name!r}; there are {', '.join(self.columns)}")
            column = self._make_column(name)
            column.setflags(write=False)
            self._columns[name] = column
        return self._columns[name]

    def _make_column(self, name: str) -> npt.NDArray[Any]:
        column: npt.NDArray[Any]
        if name in ("G", "M", "K", "N"):
            return self._batch.sizes[:, "GMKN".index(name)].copy()
        if name in ("input_dtype", "weight_dtype", "output_dtype", "group_size"):
            values = [getattr(types, name) for types in self._batch.types]
            texts = np.array([value if value is None else getattr(value, "value", value) for value in values], object)
            column = texts[self._batch.type_of]
            return column
        if name == "bound":
            codes = np.where(self.is_feasible, self._records["bound"], len(BOUNDS))
            column = np.array([*BOUNDS, None], object)[codes]
            return column
        if name == "loop_order":
            column = np.array([order.name for order in LoopOrder], object)[self._records["loop_order"]]
            return column
        if name in ("tflop_per_s", "utilization_frac"):
            flop = FLOP_PER_MAC * self._batch.sizes.astype(np.float64).prod(axis=1)
            rates: npt.NDArray[np.float64] = flop / self._column("latency_us") / 1e6
            if name == "utilization_frac":
                arch = self._evaluator.arch
                peaks = np.array([arch.peak_tflop_per_s(types.input_dtype) for types in self._batch.types])
                rates = rates / peaks[self._batch.type_of]
            return rates
        assert name in _RECORD_COLUMNS
        column = self._records[name].copy()
        if column.dtype.kind == "f":
            column[~self.is_feasible] = np.nan
        return column
