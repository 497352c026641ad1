"""How many measured times lie in the 80% intervals of rows that these had not seen."""

from __future__ import annotations

import numpy as np

from gemm_eval.models.gpu import REGIMES_OF_M, Interval, fit_intervals, interval_of, regime_places
from gemm_eval.validation.timings import Floats, Ints, Mask, Timings

__all__ = ["REGIMES_OF_M", "are_inside", "in_interval"]


def are_inside(timings: Timings, predicted_us: Floats, folds: Ints) -> Mask:
    """Return which rows lie in the 80% interval of their regime, by the errors of all other folds."""
    M, log_errors = timings.sizes[:, 1], timings.log_errors(predicted_us)
    inside = np.zeros(len(timings), bool)
    for fold in range(int(folds.max()) + 1):
        here = folds == fold
        others = ~here & ~timings.in_band
        if here.any() and others.any():
            interval = interval_of(fit_intervals(M[others], log_errors[others]))
            inside[here] = in_interval(interval, M[here], log_errors[here])
    return inside


def in_interval(interval: Interval, M: Ints, log_errors: Floats) -> Mask:
    """Return which log(measured / predicted) lie within the factors of an interval."""
    places = regime_places(M)
    low, high = np.log(interval.low_frac)[places], np.log(interval.high_frac)[places]
    inside: Mask = (log_errors >= low) & (log_errors <= high)
    return inside
