"""How wrong predicted latencies are: relative errors and rank agreement, by regime of M.

The relative error of a row is predicted / measured - 1. Kendall's tau-b is over all pairs of rows of the group, so it
says whether the predictions order GEMMs of all shapes as the measurements do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gemm_eval.errors import InvalidInputError
from gemm_eval.models.gpu.calibration import ErrorFigures
from gemm_eval.validation.timings import Floats, Mask, TimingSet

__all__ = ["REGIMES", "Metrics", "Regime", "error_figures", "group_rows", "measure_errors"]


class Regime(NamedTuple):
    """Rows with `min_rows` <= M <= `max_rows` (None: no upper end)."""

    name: str
    min_rows: int
    max_rows: int | None

    def mask(self, timings: TimingSet) -> Mask:
        """Return which rows belong to it."""
        last = np.inf if self.max_rows is None else self.max_rows
        return timings.frame["M"].between(self.min_rows, last).to_numpy(dtype=bool)


REGIMES = (Regime("decode", 1, 16), Regime("mid", 17, 256), Regime("prefill", 257, None), Regime("all", 1, None))
"""The groups of rows that errors are reported for."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """Errors of a group of rows, as fractions (0.05 is 5%).

    Attributes:
        num: rows.
        mape_frac: mean of the absolute relative error.
        median_frac, p90_frac: its median and 90th percentile (linear interpolation).
        bias_frac: mean relative error; positive: predicted too slow.
        kendall_tau: tau-b of predicted and measured; None where it is undefined (one row, or all equal).
    """

    num: int
    mape_frac: float
    median_frac: float
    p90_frac: float
    bias_frac: float
    kendall_tau: float | None


def measure_errors(measured_us: Floats, predicted_us: Floats) -> Metrics:
    """Return the errors of `predicted_us` against `measured_us`, both positive, in microseconds.

    Raises:
        InvalidInputError: the shapes differ, there is no row, or a value is not positive and finite.
    """
    from scipy.stats import kendalltau

    if measured_us.shape != predicted_us.shape or measured_us.ndim != 1 or not measured_us.size:
        raise InvalidInputError(
            f"measured and predicted must be equally many, at least one, got {measured_us.shape}, {predicted_us.shape}"
        )
    for what, values in (("measured", measured_us), ("predicted", predicted_us)):
        bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
        if bad.size:
            raise InvalidInputError(f"{what} latencies must be positive, got {values[bad[0]]} us (row {bad[0] + 1})")
    error = predicted_us / measured_us - 1.0
    size = np.abs(error)
    tau = float(kendalltau(measured_us, predicted_us, variant="b").statistic) if measured_us.size > 1 else float("nan")
    return Metrics(
        num=int(measured_us.size),
        mape_frac=float(size.mean()),
        median_frac=float(np.median(size)),
        p90_frac=float(np.quantile(size, 0.9)),
        bias_frac=float(error.mean()),
        kendall_tau=None if np.isnan(tau) else tau,
    )


def error_figures(data: str, sha256: str, measured_us: Floats, predicted_us: Floats) -> ErrorFigures:
    """Return the errors on a data set, for a calibration file."""
    errors = measure_errors(measured_us, predicted_us)
    return ErrorFigures(
        data=data, sha256=sha256, num_rows=errors.num, mape_percent=_percent(errors.mape_frac),
        median_percent=_percent(errors.median_frac), p90_percent=_percent(errors.p90_frac),
        bias_percent=_percent(errors.bias_frac),
        kendall_tau=None if errors.kendall_tau is None else round(errors.kendall_tau, 4),
    )  # fmt: skip


def _percent(frac: float) -> float:
    return round(100.0 * frac, 3)


def group_rows(timings: TimingSet) -> Iterator[tuple[str, Mask]]:
    """Yield (name, rows) of the regimes that have rows, then of the set's bands, whose rows no regime counts."""
    outside = ~timings.in_band
    groups = [(regime.name, regime.mask(timings) & outside) for regime in REGIMES]
    groups += [(name, timings.band_mask(name)) for name in timings.bands]
    yield from ((name, mask) for name, mask in groups if mask.any())
