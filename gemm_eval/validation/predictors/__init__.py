"""Predictors of latencies, a module for each kind; nothing else knows coefficients or packed rows of GEMMs.

`dense` (a library's own choice of a kernel, by GEMM), `w4a16` and `triton` (single configs, over `configs`), and
`nvidia` (nvMatmulHeuristics).
"""

from __future__ import annotations

from typing import Protocol, Self, TypeVar

from gemm_eval.validation.timings import Floats, Timings

__all__ = ["P", "Predictor"]


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
