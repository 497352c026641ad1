"""Answers for layers of experts: one as `MoeLayerResult`, many as `MoeLayerTable`."""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.errors import GemmEvalError
from gemm_eval.evaluate import CORRECTION, GEMMResult, GEMMTable, Result, interval_line
from gemm_eval.frozen import FrozenDict
from gemm_eval.models.gpu import say_tiles
from gemm_eval.moe.layer import LAYER_FIELDS, MoeLayer
from gemm_eval.units import tflop_per_s, time_text
from gemm_eval.words import MAX_ROWS, html_table, needs_extra, refusal

_SHOWN_FROM_US = 0.005
_BITS_OF_WIDE = 16


BREAKDOWN = (
    "routing_us", "permute_us", "quantize_us", "gemm1_us", "activation_us", "gemm2_us", "finalize_us", "shared_us",
    CORRECTION,
)  # fmt: skip
"""The terms of a layer's time, in the order they run; they add up to it. The last is what timings showed beyond them,
of either sign."""


class MoeDraw(NamedTuple):
    """One draw of the routing; with ``rank="mean"`` all numbers but `imbalance` are means over the ranks.

    `rows` are the rank's assignments (token, expert), `num_active` its experts that have tokens, `max_rows` the tokens
    of its busiest expert; `imbalance` is the tokens of the most loaded rank over the mean of all ranks.
    """

    latency_us: float
    breakdown: FrozenDict[str, float]
    rows: float
    num_active: float
    max_rows: float
    imbalance: float


@dataclass(frozen=True, slots=True)
class MoeLayerResult(Result):
    """The time of a layer of experts on one rank, and why: means over draws, where nothing else is said.

    Communication between ranks is not in it, nor the router's GEMM.

    Attributes:
        source: see `Result`; of a library whose layers were not timed, that of its GEMMs.
        library: whose kernels run the GEMMs, on a GPU; None on a multi-core chip, or where a rank has no token.
        std_us, min_us, max_us: spread over draws: standard deviation (of these draws), least and most.
        breakdown: microseconds by term, in the order they run.
        bound: what limits: of the largest term, if that is a GEMM, what limits that (see `GEMMResult`), else its name.
        gemm1, gemm2: the two grouped GEMMs in the draw of median latency; None where the rank has no token there.
        imbalance: tokens of the most loaded rank over the mean of all ranks; 1 where there is one.
        expert_imbalance: tokens of the rank's busiest expert over the mean of its experts; 0 without a token.
        rows, num_active: assignments (token, expert) of the rank, and its experts that have tokens.
        flop, dram_bytes: operations and DRAM traffic of the rank's GEMMs, shared experts included.
    """

    layer: MoeLayer
    arch_name: str
    library: str | None
    latency_us: float
    low_us: float
    high_us: float
    source: str
    std_us: float
    min_us: float
    max_us: float
    bound: str
    imbalance: float
    expert_imbalance: float
    rows: float
    num_active: float
    flop: float
    dram_bytes: float
    breakdown: FrozenDict[str, float]
    draws: tuple[MoeDraw, ...]
    gemm1: GEMMResult | None
    gemm2: GEMMResult | None
    _derived: ClassVar = ("tflop_per_s",)
    _derived_before: ClassVar = "breakdown"

    def __repr__(self) -> str:
        return f"<MoeLayerResult {self.layer} on {self.arch_name}: {self.latency_us:.4g} us, bound {self.bound}>"

    @property
    def tflop_per_s(self) -> float:
        """Achieved rate of the GEMMs' operations over the time of the whole layer, in 1e12 FLOP/s."""
        return tflop_per_s(self.flop, self.latency_us)

    def explain(self) -> str:
        """Return a short text: how long, on how many rows of how many experts, and where the time goes."""
        spread = ""
        if len(self.draws) > 1:
            spread = f" (mean of {len(self.draws)} draws, {time_text(self.min_us)} to {time_text(self.max_us)})"
        whose = {"most_loaded": "the most loaded rank", "mean": "the mean rank"}.get(
            str(self.layer.rank), f"rank {self.layer.rank}"
        )
        of_ranks = f"; the most loaded of {self.layer.ep} ranks has {self.imbalance:.2f}x the mean" * (
            self.layer.ep > 1
        )
        shown = {name: us for name, us in self.breakdown.items() if abs(us) >= _SHOWN_FROM_US}
        times = ", ".join(f"{_words(name)} {time_text(us)}" for name, us in shown.items())
        lines = [
            f"{self.layer} on {self.arch_name}: {time_text(self.latency_us)}{spread}, {self.tflop_per_s:,.1f} TFLOP/s, "
            f"bound by {_words(self.bound)}.",
            interval_line(self.low_us, self.high_us),
            f"Load of {whose}: {self.rows:,.1f} rows on {self.num_active:,.1f} of {self.layer.num_local_experts} "
            f"experts, the busiest with {self.expert_imbalance:.2f}x the mean{of_ranks}.",
            f"Time: {times}.",
            *(
                f"GEMM {number}: {result.problem}, {time_text(result.latency_us)}, bound by "
                f"{result.backend.bounds[result.bound]}."
                for number, result in ((1, self.gemm1), (2, self.gemm2))
                if result is not None
            ),
            *self._say_kernels(),
        ]
        return "\n".join(lines)

    def _say_kernels(self) -> list[str]:
        """Say whose kernels run, by which release's rule, and what narrow weights are for where they save no time."""
        if self.library is None or self.gemm1 is None:
            return []
        types = self.gemm1.problem.types
        tiles = say_tiles(self.library.partition("/")[0], types)
        lines = [f"Kernels: {self.library}{'; ' if tiles else ''}{tiles}."]
        times = _BITS_OF_WIDE / types.b.dtype.bits
        if types.is_weight_quantized and times * self.gemm1.dram_us < self.gemm1.latency_us:
            lines.append(
                f"Weights of {types.b.dtype} save memory here, not time: those of 16 bits would take {times:.2g} times "
                "as much, and may be faster where they fit (dtype='bf16')."
            )
        return lines

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with a row for each draw.

        Raises:
            GemmEvalError: pandas is not installed.
        """
        rows = [draw._asdict() | dict(draw.breakdown) for draw in self.draws]
        return _frame(rows, [name for name in (*MoeDraw._fields, *BREAKDOWN) if name != "breakdown"])


def _frame(rows: list[dict[str, Any]], columns: Sequence[str]) -> Any:
    with needs_extra("to_pandas", "sweep"):
        import pandas as pd
    return pd.DataFrame(rows, columns=list(columns))


_WORDS = {
    "gemm1": "GEMM 1", "gemm2": "GEMM 2", "finalize": "the sum over experts", "shared": "shared experts",
    "dram": "DRAM bandwidth", "l2": "L2 bandwidth",
}  # fmt: skip


def _words(term: str) -> str:
    name = term.removesuffix("_us")
    return _WORDS.get(name, name)


Floats = npt.NDArray[np.float64]

_WORD_COLUMNS = ("bound", "library", "source")
_COST_COLUMNS = (
    "latency_us", "low_us", "high_us", "std_us", "min_us", "max_us", *BREAKDOWN, *_WORD_COLUMNS, "imbalance",
    "expert_imbalance", "rows", "num_active", "flop", "dram_bytes",
)  # fmt: skip


class DrawColumns(NamedTuple):
    """The draws of all layers, those of a layer together: layer i has draws `starts[i]` to `starts[i + 1]`.

    `terms` are [num_draws, len(BREAKDOWN)] us; `values` [num_draws] each are rows, num_active, max_rows, imbalance,
    flop and dram_bytes; `gemm_rows` [num_draws, 2] are rows of the GEMMs' table that stand for a draw; -1: none runs.
    `low_us`, `high_us` and `source` are of layers.
    """

    starts: npt.NDArray[np.int64]
    terms: Floats
    values: dict[str, Floats]
    gemm_rows: npt.NDArray[np.int64]
    low_us: Floats
    high_us: Floats
    source: list[str]


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
        self._arch_name, self._layers, self._draws, self._gemms = arch_name, layers, draws, gemms
        self._errors = errors
        self._latency_us: Floats = draws.terms.sum(axis=1)
        self._columns: dict[str, npt.NDArray[Any]] = self._means()

    def __len__(self) -> int:
        return len(self._layers)

    def __repr__(self) -> str:
        return f"<MoeLayerTable of {len(self)} layers on {self._arch_name}>"

    def _repr_html_(self) -> str:
        headers = ("layer", "latency", "80% interval", "source")
        results = [self[int(row)] for row in np.flatnonzero(self.is_feasible)[:MAX_ROWS]]
        rows = (
            (str(r.layer), time_text(r.latency_us), f"{time_text(r.low_us)} to {time_text(r.high_us)}", r.source)
            for r in results
        )
        return html_table(repr(self), rows, headers)

    def __iter__(self) -> Iterator[MoeLayerResult]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, key: int | str) -> Any:
        if not isinstance(key, str):
            row = operator.index(key)
            if not -len(self) <= row < len(self):
                raise IndexError(f"row {row} of {len(self)}")
            return self._result(row % len(self))
        if key not in self.columns:
            raise KeyError(refusal("column", key, self.columns))
        if key not in self._columns:
            column = self._columns[key] = self._column(key)
            column.setflags(write=False)
        return self._columns[key]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns, with units."""
        return (*LAYER_FIELDS, *_COST_COLUMNS)

    @property
    def is_feasible(self) -> npt.NDArray[np.bool_]:
        """[num_rows]: whether the arch and the library can run each layer."""
        return np.isfinite(self["latency_us"])

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
        costs = {name: self[name].tolist() for name in _COST_COLUMNS}
        return [
            layer.to_dict() | {name: values[row] if is_feasible else None for name, values in costs.items()}
            for row, (layer, is_feasible) in enumerate(zip(self._layers, self.is_feasible, strict=True))
        ]

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame of all columns.

        Raises:
            GemmEvalError: pandas is not installed.
        """
        return _frame(self.to_dicts(), self.columns)

    def _means(self) -> dict[str, npt.NDArray[Any]]:
        """Return the columns of numbers: means over draws where a name does not say otherwise."""
        starts, num_draws = self._draws.starts[:-1], np.diff(self._draws.starts)

        def mean(of_draws: Floats) -> Floats:
            return np.add.reduceat(of_draws, starts) / num_draws

        columns = {term: mean(self._draws.terms[:, index]) for index, term in enumerate(BREAKDOWN)}
        deviation = self._latency_us - np.repeat(mean(self._latency_us), num_draws)
        columns |= {
            "latency_us": sum(columns.values(), np.zeros(len(self))), "std_us": np.sqrt(mean(deviation**2)),
            "min_us": np.minimum.reduceat(self._latency_us, starts),
            "max_us": np.maximum.reduceat(self._latency_us, starts),
            "low_us": self._draws.low_us, "high_us": self._draws.high_us,
            **{name: mean(values) for name, values in self._draws.values.items()},
        }  # fmt: skip
        local = np.array([layer.num_local_experts for layer in self._layers], float)
        busiest, rows = columns.pop("max_rows") * local, columns["rows"]
        columns["expert_imbalance"] = np.divide(busiest, rows, out=np.zeros(len(self)), where=rows > 0)
        for column in columns.values():
            column.setflags(write=False)
        return columns

    def _column(self, name: str) -> npt.NDArray[Any]:
        if name in _WORD_COLUMNS:
            words: dict[str, Callable[[int], str | None]] = {
                "bound": self._bound, "library": self._library, "source": self._draws.source.__getitem__,
            }  # fmt: skip
            word_of = words[name]
            return _objects([word_of(row) if feasible else None for row, feasible in enumerate(self.is_feasible)])
        fields = [getattr(layer, name) for layer in self._layers]
        return np.array(fields) if all(type(value) is int for value in fields) else _objects(fields)

    def _median_gemms(self, row: int) -> list[int]:
        """Return the rows [2] of the GEMMs' table in the draw of median latency, the lower one of two."""
        start, stop = self._draws.starts[row], self._draws.starts[row + 1]
        order = np.argsort(self._latency_us[start:stop], kind="stable")
        rows: npt.NDArray[np.int64] = self._draws.gemm_rows[start + order[(stop - start - 1) // 2]]
        return list(map(int, rows))

    def _bound(self, row: int) -> str:
        largest = max(BREAKDOWN, key=lambda term: self[term][row])
        if largest in ("gemm1_us", "gemm2_us"):
            gemm = self._median_gemms(row)[0 if largest == "gemm1_us" else 1]
            if gemm >= 0:
                return str(self._gemms["bound"][gemm])
        return largest.removesuffix("_us")

    def _library(self, row: int) -> str | None:
        gemm = self._median_gemms(row)[0]
        return str(self._gemms["library"][gemm]) if gemm >= 0 and "library" in self._gemms.columns else None

    def _result(self, row: int) -> MoeLayerResult:
        if row in self._errors:
            raise self._errors[row]
        gemm1, gemm2 = (None if gemm < 0 else self._gemms[gemm] for gemm in self._median_gemms(row))
        values: dict[str, Any] = {
            name: self[name][row] if name in _WORD_COLUMNS else float(self[name][row]) for name in _COST_COLUMNS
        }
        breakdown = FrozenDict((term, values.pop(term)) for term in BREAKDOWN)
        draws = tuple(map(self._draw, range(self._draws.starts[row], self._draws.starts[row + 1])))
        return MoeLayerResult(
            layer=self._layers[row], arch_name=self._arch_name, breakdown=breakdown, draws=draws, gemm1=gemm1,
            gemm2=gemm2, **values,
        )  # fmt: skip

    def _draw(self, draw: int) -> MoeDraw:
        terms = FrozenDict(zip(BREAKDOWN, self._draws.terms[draw].tolist(), strict=True))
        values = {name: float(self._draws.values[name][draw]) for name in MoeDraw._fields[2:]}
        return MoeDraw(float(self._latency_us[draw]), terms, **values)


def _objects(values: list[Any]) -> npt.NDArray[Any]:
    column = np.empty(len(values), object)
    column[:] = values
    return column
