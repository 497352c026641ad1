"""How wrong predicted latencies are: relative errors and rank agreement, by regime of M and group of rows.

The relative error of a row is predicted / measured - 1. Kendall's tau-b is over all pairs of rows of the group, so it
says whether the predictions order GEMMs of all shapes as the measurements do. Of timings of single configs tau within a
GEMM says more: whether its configs are told apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from gemm_eval.errors import InvalidInputError
from gemm_eval.models.gpu import REGIMES_OF_M, Interval, fit_intervals, interval_of, regime_places
from gemm_eval.validation.fit import CrossFit, cross_fit
from gemm_eval.validation.predictors import Explains, Predictor
from gemm_eval.validation.timings import Floats, Ints, Mask, Timings


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


@dataclass(frozen=True, eq=False)
class Score:
    """Predictions of one predictor for one set, and their errors.

    Attributes:
        timings: the measured rows.
        predictor: its name.
        predicted_us: one a row, in microseconds.
        errors: of the groups of rows that there are (`metrics.row_groups`).
        how: how its constants came about, in a few words.
        num_folds: of the cross-validation; 0: not refitted on this set.
        has_order: it tells the configs of a GEMM apart.
        fitted: what predicted the rows, where that is to be asked again; several: one for each fold.
        fit_of: [rows], which of `fitted` predicted a row.
        is_inside: [rows], whether the measured time lies in the 80% interval around the prediction; None: it has none.
    """

    timings: Timings
    predictor: str
    predicted_us: Floats
    errors: tuple[Errors, ...]
    how: str = ""
    num_folds: int = 0
    has_order: bool = False
    fitted: tuple[Predictor, ...] = ()
    fit_of: Ints | None = None
    is_inside: Mask | None = None

    @property
    def coverage(self) -> dict[str, float]:
        """Share of rows inside their 80% interval, by regime of M and band; empty: there are no intervals."""
        if self.is_inside is None:
            return {}
        groups = row_groups(self.timings)
        return {regime: float(self.is_inside[rows].mean()) for group, regime, rows in groups if group == ALL}

    @property
    def by_regime(self) -> dict[str, Metrics]:
        """Errors of all rows by regime of M, and those of bands."""
        return {item.regime: item.errors for item in self.errors if item.group == ALL}

    def breakdown(self, row: int) -> dict[str, float]:
        """Return the terms of a row's prediction, in microseconds, of a model that has terms; they add up to it."""
        assert self.fit_of is not None
        predictor = self.fitted[int(self.fit_of[row])]
        assert isinstance(predictor, Explains), f"{self.predictor} has no terms"
        return predictor.breakdown(self.timings, row)


def score(
    predictor: Predictor, timings: Timings, num_folds: int = 5, seed: int = 0, *, has_interval: bool = False
) -> Score:
    """Predict `timings`, cross-validated (`num_folds` 0: with the constants that `predictor` has), and measure errors.

    Errors are those of whole answers (`Timings.whole`), whatever a fit learns from. With `has_interval` also how many
    rows lie in 80% intervals, each fitted on the errors of other folds.

    Raises:
        UnsupportedError: the predictor does not take these data types.
        InvalidOptionError: fewer pairs than folds.
    """
    asked = timings.whole()
    if not num_folds:
        return make_score(asked, predictor.name, predictor.predict(asked))
    crossed = cross_fit(predictor, [timings], num_folds, seed)
    predicted_us = crossed.predict(asked)
    is_inside = are_inside(asked, predicted_us, crossed.folds[0]) if has_interval else None
    return make_score(asked, predictor.name, predicted_us, f"{num_folds}-fold", num_folds, is_inside=is_inside)


def score_held_out(
    name: str, how: str, timings: Timings, crossed: CrossFit[Predictor], *, has_order: bool = True
) -> Score:
    """Score single configs by fits on other pairs (N, K)."""
    predicted_us = crossed.predict(timings)
    return make_score(
        timings, name, predicted_us, how, len(crossed.fits), has_order=has_order, fitted=crossed.fits,
        fit_of=crossed.folds[0],
    )  # fmt: skip


def make_score(
    timings: Timings, predictor: str, predicted_us: Floats, how: str = "as it is", num_folds: int = 0, *,
    has_order: bool = False, fitted: Sequence[Predictor] = (), fit_of: Ints | None = None,
    is_inside: Mask | None = None,
) -> Score:  # fmt: skip
    """Measure the errors of predictions; arguments as the attributes of `Score`."""
    errors = measure_groups(timings, predictor, predicted_us, has_order=has_order)
    fits = tuple(fitted)
    return Score(timings, predictor, predicted_us, tuple(errors), how, num_folds, has_order, fits, fit_of, is_inside)


def worst_pairs(scored: Score, num: int = 10) -> pd.DataFrame:
    """Return the pairs (N, K) with the largest mean errors, without rows of bands: where a model lacks something.

    Returns:
        Columns N, K, num, mape_frac, bias_frac, worst_M and worst_frac (the row with the largest error of the pair).
    """
    outside = ~scored.timings.in_band
    error = scored.predicted_us / scored.timings.measured_us - 1.0
    frame = scored.timings.frame[["N", "K", "M"]].assign(error=error, size=np.abs(error)).loc[outside]
    groups = frame.groupby(["N", "K"], sort=True)
    worst = frame.loc[groups["size"].idxmax()].set_index(["N", "K"])
    table = groups.agg(num=("size", "size"), mape_frac=("size", "mean"), bias_frac=("error", "mean"))
    table = table.assign(worst_M=worst["M"], worst_frac=worst["error"])
    return table.sort_values("mape_frac", ascending=False, kind="stable").head(num).reset_index()


def worst_rows(scored: Score, num: int) -> Ints:
    """Return the places of the rows near the best of their GEMM with the largest errors in size, worst first."""
    timings = scored.timings
    size = np.abs(scored.predicted_us / timings.measured_us - 1.0)
    if timings.form.near_best is not None:
        size[timings.measured_us > timings.form.near_best * timings.best_us] = -1.0
    worst = np.argsort(-size, kind="stable")[:num]
    return worst[size[worst] >= 0.0]
