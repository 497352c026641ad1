"""What a predictor of latencies is, and which ones a validation compares."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any, Protocol

from gemm_eval.validation.timings import Floats, TimingSet

if TYPE_CHECKING:
    from gemm_eval.arch import GpuSpec

__all__ = ["Predictor", "load_calibrate", "load_model_predictor"]


class Predictor(Protocol):
    """Predicts latencies, after a fit on measured ones (which does nothing if it has no constants)."""

    @property
    def name(self) -> str:
        """Name in tables and plots."""

    def fit(self, train: TimingSet) -> Predictor:
        """Return a predictor whose constants are fitted on `train`; this one stays as it is."""

    def predict(self, rows: TimingSet) -> Floats:
        """Return the latency of each row, in microseconds; measured latencies must not be looked at."""


def load_model_predictor(arch: GpuSpec, library: str) -> Predictor | None:
    """Return the GPU cost model with the committed calibration of `library`; None where the model is not built in."""
    fit = _fit_module()
    predictor: Predictor | None = None if fit is None else fit.model_predictor(arch, library)
    return predictor


def load_calibrate() -> Any:
    """Return `calibrate(arch, library, sets, *, max_evaluations, seed)`; None where the model is not built in."""
    fit = _fit_module()
    return None if fit is None else fit.calibrate


def _fit_module() -> Any:
    name = "gemm_eval.validation.fit"
    return importlib.import_module(name) if importlib.util.find_spec(name) is not None else None
