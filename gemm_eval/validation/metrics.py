"""How wrong predicted latencies are: relative errors and rank agreement, by regime of M and group of rows.

The relative error of a row is predicted / measured - 1. Kendall's tau-b is over all pairs of rows of the group, so it
says whether the predictions order GEMMs of all shapes as the measurements do. Of timings of single configs tau within a
GEMM says more: whether its configs are told apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.errors import InvalidInputError
from gemm_eval.validation.predictors.intervals import REGIMES_OF_M
from gemm_eval.validation.timings import Floats, Ints, Mask, Timings

__all__ = [
    "ALL",
    "REGIMES",
    "Errors",
    "Metrics",
    "Regime",
    "error_figures",
    "measure_errors",
    "measure_groups",
    "regime_of",
    "row_groups",
    "rows_by_gemm",
    "tau_within_gemms",
]

ALL = "all"
"""The group of all rows, and the regime of all M."""

_MIN_CONFIGS = 6  # of a GEMM, for a rank correlation within it


class Regime(NamedTuple):
    """Rows with `min_rows` <= M <= `max_rows` (None: no upper end)."""

    name: str
    min_rows: int
    max_rows: int | None

    def mask(self, timings: Timings) -> Mask:
        """Return which rows belong to it."""
        last = np.inf if self.max_rows is None else self.max_rows
        return timings.frame["M"].between(self.min_rows, last).to_numpy(dtype=bool)


REGIMES = (*(Regime(*limits) for limits in REGIMES_OF_M), Regime(ALL, 1, None))
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


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of a prediction on the rows of a group and a regime.

    Attributes:
        predictor: name of the method.
        group: of `Timings.groups`, or "all".
        regime: of `REGIMES`, "near best", or a band.
        errors: over the rows.
        tau_within_gemms: mean over GEMMs with more than 5 of these configs of Kendall's tau-b of predicted and
            measured; None where no GEMM has as many, or the method does not tell them apart.
        num_gemms: GEMMs in that mean.
    """

    predictor: str
    group: str
    regime: str
    errors: Metrics
    tau_within_gemms: float | None = None
    num_gemms: int = 0


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


def error_figures(measured_us: Floats, predicted_us: Floats) -> dict[str, Any]:
    """Return the errors on a data set as a calibration file has them: `models.gpu.calibration.ErrorFigures`."""
    errors = measure_errors(measured_us, predicted_us)
    return {
        "num_rows": errors.num,
        "mape_percent": _percent(errors.mape_frac),
        "median_percent": _percent(errors.median_frac),
        "p90_percent": _percent(errors.p90_frac),
        "bias_percent": _percent(errors.bias_frac),
        "kendall_tau": None if errors.kendall_tau is None else round(errors.kendall_tau, 4),
    }


def _percent(frac: float) -> float:
    return round(100.0 * frac, 3)


def measure_groups(timings: Timings, predictor: str, predicted_us: Floats, *, has_order: bool = False) -> list[Errors]:
    """Return the errors of all groups of rows; of predictions that tell configs apart also tau within GEMMs."""
    found = []
    for group, regime, rows in row_groups(timings):
        measured, predicted = timings.measured_us[rows], predicted_us[rows]
        tau = tau_within_gemms(timings.gemm[rows], measured, predicted) if has_order else (None, 0)
        found.append(Errors(predictor, group, regime, measure_errors(measured, predicted), *tau))
    return found


def row_groups(timings: Timings) -> Iterator[tuple[str, str, Mask]]:
    """Yield (group, regime, rows) wherever there are rows, all groups together first.

    Regimes are those of M, then rows near the best of their GEMM, then the set's bands, whose rows no regime counts.
    """
    outside = ~timings.in_band
    regimes = [(regime.name, regime.mask(timings) & outside) for regime in REGIMES]
    if timings.form.near_best is not None:
        regimes.append(("near best", timings.measured_us <= timings.form.near_best * timings.best_us))
    regimes += [(name, timings.band_mask(name)) for name in timings.bands]
    groups = [(ALL, np.ones(len(timings), bool)), *((name, timings.of_group(name)) for name in timings.groups)]
    for group, of_group in groups:
        for name, of_regime in regimes:
            if (rows := of_group & of_regime).any():
                yield group, name, rows


def regime_of(timings: Timings) -> npt.NDArray[np.str_]:
    """Name of each row's regime of M: decode, mid or prefill."""
    names = np.empty(len(timings), "U7")
    for regime in REGIMES[:-1]:
        names[regime.mask(timings)] = regime.name
    return names


def tau_within_gemms(gemm: Ints, measured_us: Floats, predicted_us: Floats) -> tuple[float | None, int]:
    """Return the mean of Kendall's tau-b within the GEMMs that have more than 5 rows, and how many there are."""
    from scipy.stats import kendalltau

    taus = [
        float(kendalltau(measured_us[rows], predicted_us[rows], variant="b").statistic)
        for rows in rows_by_gemm(gemm)
        if len(rows) >= _MIN_CONFIGS and np.ptp(predicted_us[rows]) > 0.0
    ]
    kept = [tau for tau in taus if np.isfinite(tau)]
    return (float(np.mean(kept)) if kept else None), len(kept)


def rows_by_gemm(gemm: Ints) -> Iterator[Ints]:
    """Yield the places of the rows of each GEMM, by its number."""
    order = np.argsort(gemm, kind="stable")
    cuts = np.flatnonzero(np.diff(gemm[order])) + 1
    yield from np.split(order, cuts)
