"""What predicts latencies, a module for each kind: nothing outside of this package knows coefficients or packed rows.

`dense` (a library's own choice of a kernel, by GEMM), `w4a16` and `triton` (single configs), and `nvidia`
(nvMatmulHeuristics). A new kind is one module here, with a `Predictor` and, where its terms can be switched off, a
`Model`, and a command; one of single configs also says in `documents` which keys its documents have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, Self, TypeVar, runtime_checkable

from gemm_eval.models.gpu import Coefficient
from gemm_eval.validation.timings import Floats, Mask, Timings

__all__ = ["Coefficient", "Explains", "Model", "P", "Predictor"]


class Predictor(Protocol):
    """Predicts latencies, after a fit on measured ones (which does nothing if it has no constants)."""

    @property
    def name(self) -> str:
        """Name in tables and plots."""

    def fit(self, *train: Timings) -> Self:
        """Return a predictor whose constants are fitted on all of `train` together; this one stays as it is."""

    def predict(self, rows: Timings) -> Floats:
        """Return the latency of each row, in microseconds; what was measured must not be looked at."""


P = TypeVar("P", bound=Predictor)
"""One kind of predictor, which a fit gives back."""


@runtime_checkable
class Explains(Protocol):
    """A predictor whose predictions are sums of terms."""

    def breakdown(self, timings: Timings, row: int) -> dict[str, float]:
        """Return the terms of a row's prediction, in microseconds; negative: what overlaps."""


class Model(Predictor, Protocol):
    """A model of single configs whose terms can be switched off; what it was fitted on may have several parts."""

    @property
    def is_screened(self) -> bool:
        """Whether a term is first removed in sample, and held out only where that changes the error by little."""

    @property
    def buys_nothing_points(self) -> float:
        """A term whose removal raises the held-out MAPE by fewer percentage points buys nothing."""

    @property
    def num_threads(self) -> int:
        """Fits at a time."""

    @property
    def values(self) -> Mapping[str, float]:
        """Its coefficients, of a model of one part."""

    def parts(self, timings: Timings) -> Iterator[tuple[str, Self, Mask]]:
        """Yield name, model and rows of what has coefficients of its own, and rows enough for a fit."""

    def terms(self) -> Sequence[Coefficient]:
        """Return the coefficient of each term, of a model of one part; its `neutral` switches the term off."""

    def without(self, values: Mapping[str, float]) -> Self:
        """Return a model with these values of coefficients, which a fit of it leaves as they are."""

    def row_weights(self, rows: Timings) -> Floats:
        """Return what each row counts in a fit, [rows]."""
