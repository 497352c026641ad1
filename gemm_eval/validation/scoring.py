"""Predictions for rows that a predictor was not fitted on, and their errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gemm_eval.validation.baselines import FittedRoofline, NaiveRoofline, RooflineSpec
from gemm_eval.validation.folds import assign_joint_folds
from gemm_eval.validation.metrics import Metrics, group_rows, measure_errors
from gemm_eval.validation.nvidia_heuristics import NvidiaHeuristics, is_available, knows_types
from gemm_eval.validation.predictors import Predictor
from gemm_eval.validation.timings import Floats, TimingSet

__all__ = ["Score", "cross_validate", "cross_validate_sets", "make_baselines", "make_score", "score", "worst_pairs"]


@dataclass(frozen=True, eq=False)
class Score:
    """Predictions of one predictor for one set.

    Attributes:
        timings: the measured rows.
        predictor: its name.
        predicted_us: one a row, in microseconds.
        num_folds: of the cross-validation; 0: not refitted on this set.
        fitted_on: what the predictor was fitted on, in words, where that is not the rest of this set.
        errors: group of rows (see `group_rows`) -> its errors.
    """

    timings: TimingSet
    predictor: str
    predicted_us: Floats
    num_folds: int
    errors: dict[str, Metrics]
    fitted_on: str = ""

    @property
    def fit(self) -> str:
        """How the constants came about, in a few words."""
        folds = f"{self.num_folds}-fold" if self.num_folds else ""
        return f"{folds} {self.fitted_on}".strip() or "as it is"


def cross_validate(predictor: Predictor, timings: TimingSet, num_folds: int = 5, seed: int = 0) -> Floats:
    """Return out-of-fold predictions: each row by a fit on the folds that it, and its pair (N, K), is not in.

    Rows of a band (see `TimingSet.bands`) are predicted, but not fitted on.

    Raises:
        InvalidOptionError: fewer pairs than folds.
    """
    return cross_validate_sets(predictor, [timings], num_folds, seed)[0]


def cross_validate_sets(
    predictor: Predictor, sets: Sequence[TimingSet], num_folds: int = 5, seed: int = 0, train: Sequence[TimingSet] = ()
) -> list[Floats]:
    """Return out-of-fold predictions of several sets by fits on all of them together; see `cross_validate`.

    A pair (N, K) that several sets have is held out of all of them at once.

    Args:
        predictor: what is fitted.
        sets: what is predicted.
        num_folds, seed: see `assign_joint_folds`.
        train: those of `sets` that are fitted on; empty: all.

    Raises:
        InvalidOptionError: fewer pairs than folds.
    """
    folds = assign_joint_folds(sets, num_folds, seed)
    predictions = [np.empty(len(timings)) for timings in sets]
    for fold in range(num_folds):
        kept = [
            timings.select((number != fold) & ~timings.in_band)
            for timings, number in zip(sets, folds, strict=True)
            if not train or any(timings is item for item in train)
        ]
        fitted = predictor.fit(*(timings for timings in kept if len(timings)))
        for timings, number, predicted_us in zip(sets, folds, predictions, strict=True):
            held_out = number == fold
            if held_out.any():
                predicted_us[held_out] = fitted.predict(timings.select(held_out))
    return predictions


def score(predictor: Predictor, timings: TimingSet, num_folds: int = 5, seed: int = 0) -> Score:
    """Predict `timings`, cross-validated (`num_folds` 0: with the constants that `predictor` has), and measure errors.

    Raises:
        UnsupportedError: the predictor does not take these data types.
        InvalidOptionError: fewer pairs than folds.
    """
    refit = num_folds > 0
    predicted_us = cross_validate(predictor, timings, num_folds, seed) if refit else predictor.predict(timings)
    return make_score(timings, predictor.name, predicted_us, num_folds)


def make_score(
    timings: TimingSet, predictor: str, predicted_us: Floats, num_folds: int = 0, fitted_on: str = ""
) -> Score:
    """Measure the errors of predictions; see `Score`."""
    measured_us = timings.latency_us
    errors = {name: measure_errors(measured_us[rows], predicted_us[rows]) for name, rows in group_rows(timings)}
    return Score(timings, predictor, predicted_us, num_folds, errors, fitted_on)


def make_baselines(arch: RooflineSpec, timings: TimingSet) -> list[Predictor]:
    """Return what a model that is fitted on `timings` is compared with: rooflines, and nvMatmulHeuristics if it can."""
    baselines: list[Predictor] = [NaiveRoofline(arch), FittedRoofline(arch)]
    if is_available(arch.name) and knows_types(timings):
        baselines += [NvidiaHeuristics(arch.name), NvidiaHeuristics(arch.name, is_refit=True)]
    return baselines


def worst_pairs(scored: Score, num: int = 10) -> pd.DataFrame:
    """Return the pairs (N, K) with the largest mean errors, without rows of bands: where a model lacks something.

    Returns:
        Columns N, K, num, mape_frac, bias_frac, worst_M and worst_frac (the row with the largest error of the pair).
    """
    outside = ~scored.timings.in_band
    error = scored.predicted_us / scored.timings.latency_us - 1.0
    frame = scored.timings.frame[["N", "K", "M"]].assign(error=error, size=np.abs(error)).loc[outside]
    groups = frame.groupby(["N", "K"], sort=True)
    worst = frame.loc[groups["size"].idxmax()].set_index(["N", "K"])
    table = groups.agg(num=("size", "size"), mape_frac=("size", "mean"), bias_frac=("error", "mean"))
    table = table.assign(worst_M=worst["M"], worst_frac=worst["error"])
    return table.sort_values("mape_frac", ascending=False, kind="stable").head(num).reset_index()
