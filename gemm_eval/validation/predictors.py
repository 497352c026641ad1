"""What a predictor of latencies is."""

from __future__ import annotations

from typing import Protocol

from gemm_eval.validation.timings import Floats, TimingSet

__all__ = ["Predictor"]


class Predictor(Protocol):
    """Predicts latencies, after a fit on measured ones (which does nothing if it has no constants)."""

    @property
    def name(self) -> str:
        """Name in tables and plots."""

    def fit(self, *train: TimingSet) -> Predictor:
        """Return a predictor whose constants are fitted on all of `train` together; this one stays as it is."""

    def predict(self, rows: TimingSet) -> Floats:
        """Return the latency of each row, in microseconds; what was measured must not be looked at."""
