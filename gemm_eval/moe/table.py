"""`MoeLayerTable`: many layers of experts, column by column."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.errors import GemmEvalError
from gemm_eval.evaluate import GEMMTable
from gemm_eval.extras import needs_extra
from gemm_eval.frozen import FrozenDict
from gemm_eval.moe.layer import LAYER_FIELDS, MoeLayer
from gemm_eval.moe.result import MoeDraw, MoeLayerResult
from gemm_eval.moe.terms import BREAKDOWN
from gemm_eval.words import refusal

Floats = npt.NDArray[np.float64]

_COST_COLUMNS = (
    *("latency_us", "std_us", "min_us", "max_us"),
    *BREAKDOWN,
    *("bound", "library", "imbalance", "expert_imbalance", "rows", "num_active", "flop", "dram_bytes"),
)
_MEANS = ("imbalance", "rows", "num_active", "flop", "dram_bytes")


class DrawColumns(NamedTuple):
    """The draws of all layers, those of a layer together.

    Attributes:
        starts: [num_layers + 1], where each layer's draws begin.
        terms: [num_draws, len(BREAKDOWN)] us.
        values: [num_draws] each: rows, num_active, max_rows, imbalance, flop, dram_bytes.
        gemm_rows: [num_draws, 2], rows of the GEMMs' table that stand for a draw; -1: no GEMM runs.
    """

    starts: npt.NDArray[np.int64]
    terms: Floats
    values: dict[str, Floats]
    gemm_rows: npt.NDArray[np.int64]


class MoeLayerTable:
    """Results of `moe_layers`, one row for each layer given, in the order given.

    ``table["latency_us"]`` is a column as an array, ``table[3]`` a row as a `MoeLayerResult`; `to_pandas` and
    `to_dicts` give all columns: the layer's fields, the mean over draws with its spread, the terms, and what the rank
    has to do. Of a layer that the arch or the library cannot run, ``errors="mark"``, `is_feasible` is False, times are
    nan and ``table[3]`` raises why.
    """

    def __init__(
        self, arch_name: str, layers: list[MoeLayer], draws: DrawColumns, gemms: GEMMTable,
        errors: Mapping[int, GemmEvalError],
    ) -> None:  # fmt: skip
        self._arch_name = arch_name
        self._layers = layers
        self._draws = draws
        self._gemms = gemms
        self._errors = errors
        self._latency_us: Floats = draws.terms.sum(axis=1)
        self._num_draws: npt.NDArray[np.int64] = np.diff(draws.starts)
        self._columns: dict[str, npt.NDArray[Any]] = {}

    def __len__(self) -> int:
        return len(self._layers)

    def __repr__(self) -> str:
        return f"<MoeLayerTable of {len(self)} layers on {self._arch_name}>"

    def __iter__(self) -> Iterator[MoeLayerResult]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, str):
            return self._column(key)
        row = operator.index(key)
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return self._result(row % len(self))

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns, with units."""
        return (*LAYER_FIELDS, *_COST_COLUMNS)

    @property
    def is_feasible(self) -> npt.NDArray[np.bool_]:
        """[num_rows]: whether the arch and the library can run each layer."""
        is_feasible: npt.NDArray[np.bool_] = np.isfinite(self._column("latency_us"))
        return is_feasible

    @property
    def gemms(self) -> GEMMTable:
        """The GEMMs of all layers and draws, evaluated in one batch."""
        return self._gemms

    @property
    def layers(self) -> tuple[MoeLayer, ...]:
        """The layers, in the order given."""
        return tuple(self._layers)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return plain Python values, a dict for each row; costs of a layer that cannot run are None."""
        costs = {name: self._column(name).astype(object) for name in _COST_COLUMNS}
        for column in costs.values():
            column[~self.is_feasible] = None
        costs = {name: column.tolist() for name, column in costs.items()}
        return [
            layer.to_dict() | {name: values[row] for name, values in costs.items()}
            for row, layer in enumerate(self._layers)
        ]

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame of all columns.

        Raises:
            GemmEvalError: pandas is not installed.
        """
        with needs_extra("to_pandas", "sweep"):
            import pandas as pd
        return pd.DataFrame(self.to_dicts(), columns=list(self.columns))

    def _column(self, name: str) -> npt.NDArray[Any]:
        if name not in self._columns:
            if name not in self.columns:
                raise KeyError(refusal("column", name, self.columns))
            column = self._make_column(name)
            column.setflags(write=False)
            self._columns[name] = column
        return self._columns[name]

    def _make_column(self, name: str) -> npt.NDArray[Any]:
        if name in LAYER_FIELDS:
            fields = [getattr(layer, name) for layer in self._layers]
            return np.array(fields) if all(type(value) is int for value in fields) else _objects(fields)
        first = self._draws.starts[:-1]
        if name in BREAKDOWN:
            return self._mean(self._draws.terms[:, BREAKDOWN.index(name)])
        if name == "latency_us":
            total: Floats = sum((self._column(term) for term in BREAKDOWN), np.zeros(len(self)))
            return total
        if name == "std_us":
            mean = np.repeat(self._mean(self._latency_us), self._num_draws)
            return np.asarray(np.sqrt(self._mean((self._latency_us - mean) ** 2)))
        if name in ("min_us", "max_us"):
            ends: Floats = (np.minimum if name == "min_us" else np.maximum).reduceat(self._latency_us, first)
            return ends
        if name in _MEANS:
            return self._mean(self._draws.values[name])
        if name == "expert_imbalance":
            local = np.array([layer.num_local_experts for layer in self._layers], float)
            busiest, rows = self._mean(self._draws.values["max_rows"]), self._column("rows")
            shares: Floats = np.divide(busiest * local, rows, out=np.zeros(len(self)), where=rows > 0)
            return shares
        return _objects([self._bound(row) if name == "bound" else self._library(row) for row in range(len(self))])

    def _mean(self, of_draws: Floats) -> Floats:
        means: Floats = np.add.reduceat(of_draws, self._draws.starts[:-1]) / self._num_draws
        return means

    def _median_gemms(self, row: int) -> npt.NDArray[np.int64]:
        """[2] rows of the GEMMs' table in the draw of median latency, the lower one of two."""
        start, stop = self._draws.starts[row], self._draws.starts[row + 1]
        order = np.argsort(self._latency_us[start:stop], kind="stable")
        rows: npt.NDArray[np.int64] = self._draws.gemm_rows[start + order[(stop - start - 1) // 2]]
        return rows

    def _bound(self, row: int) -> str | None:
        if not self.is_feasible[row]:
            return None
        largest = max(BREAKDOWN, key=lambda term: self._column(term)[row])
        if largest in ("gemm1_us", "gemm2_us"):
            gemm = self._median_gemms(row)[0 if largest == "gemm1_us" else 1]
            if gemm >= 0:
                return str(self._gemms["bound"][gemm])
        return largest.removesuffix("_us")

    def _library(self, row: int) -> str | None:
        if not self.is_feasible[row]:
            return None
        gemm = self._median_gemms(row)[0]
        return str(self._gemms["library"][gemm]) if gemm >= 0 and "library" in self._gemms.columns else None

    def _result(self, row: int) -> MoeLayerResult:
        if row in self._errors:
            raise self._errors[row]
        gemms = [None if gemm < 0 else self._gemms[int(gemm)] for gemm in self._median_gemms(row)]
        values = {name: self._column(name)[row] for name in _COST_COLUMNS}
        numbers: dict[str, Any] = {name: float(values.pop(name)) for name in (*_COST_COLUMNS[:4], *BREAKDOWN)}
        numbers |= {name: value if name in ("bound", "library") else float(value) for name, value in values.items()}
        return MoeLayerResult(
            layer=self._layers[row],
            arch_name=self._arch_name,
            breakdown=FrozenDict((term, numbers.pop(term)) for term in BREAKDOWN),
            draws=tuple(map(self._draw, range(self._draws.starts[row], self._draws.starts[row + 1]))),
            gemm1=gemms[0],
            gemm2=gemms[1],
            **numbers,
        )

    def _draw(self, draw: int) -> MoeDraw:
        terms = FrozenDict(zip(BREAKDOWN, self._draws.terms[draw].tolist(), strict=True))
        names = ("rows", "num_active", "max_rows", "imbalance")
        values = {name: float(self._draws.values[name][draw]) for name in names}
        return MoeDraw(float(self._latency_us[draw]), terms, **values)


def _objects(values: list[Any]) -> npt.NDArray[Any]:
    column = np.empty(len(values), object)
    column[:] = values
    return column
