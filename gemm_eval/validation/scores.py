"""Predictions for rows that a predictor was not fitted on, their errors, and where those are largest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gemm_eval.validation.folds import CrossFit, cross_fit
from gemm_eval.validation.metrics import ALL, Errors, Metrics, measure_groups, row_groups
from gemm_eval.validation.predictors import Explains, Predictor
from gemm_eval.validation.predictors.intervals import are_inside
from gemm_eval.validation.timings import Floats, Ints, Mask, Timings

__all__ = [
    "Score",
    "make_score",
    "score",
    "score_held_out",
    "worst_pairs",
    "worst_rows",
]


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
