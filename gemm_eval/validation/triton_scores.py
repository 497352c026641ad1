"""How well the Triton model predicts timings of configs and chooses among them, beside baselines on the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval.models.gpu.triton import TritonConfig, triton_coefficients
from gemm_eval.validation.baselines import FittedRoofline, NaiveRoofline
from gemm_eval.validation.kernel_scores import rows_by_gemm, tau_within_gemms
from gemm_eval.validation.metrics import Metrics, measure_errors
from gemm_eval.validation.timings import Floats
from gemm_eval.validation.triton import CONFIG_COLUMNS, TritonTimings
from gemm_eval.validation.triton_choice import (
    TritonChoice,
    choice_speeds,
    measure_choices,
    random_choices,
    row_groups,
)
from gemm_eval.validation.triton_fit import cross_fit_triton, predict_folds

__all__ = [
    "TritonErrors",
    "TritonPrediction",
    "TritonStudy",
    "study_triton",
    "worst_choices",
]


@dataclass(frozen=True, eq=False)
class TritonPrediction:
    """Predicted latencies of all rows by one method.

    Attributes:
        name: of the method.
        how: where its constants come from, in words.
        predicted_us: [rows], in microseconds.
        has_order: it tells the configs of a GEMM apart.
    """

    name: str
    how: str
    predicted_us: Floats
    has_order: bool


@dataclass(frozen=True, slots=True)
class TritonErrors:
    """Errors of a prediction on the rows of a data set and a regime.

    Attributes:
        predictor: name of the method.
        data_set: name, or "all".
        regime: of `metrics.REGIMES`.
        errors: over the rows.
        tau_within_gemms: mean over GEMMs with more than 5 of these configs of Kendall's tau-b of predicted and
            measured; None for methods that give no order.
    """

    predictor: str
    data_set: str
    regime: str
    errors: Metrics
    tau_within_gemms: float | None


@dataclass(frozen=True, eq=False)
class TritonStudy:
    """All scores of a table of timings.

    Attributes:
        timings: the rows.
        predictions: of all methods, the model first.
        errors: of all predictions, data sets and regimes that have rows.
        choices: likewise of all methods that give an order.
    """

    timings: TritonTimings
    predictions: tuple[TritonPrediction, ...]
    errors: tuple[TritonErrors, ...]
    choices: tuple[TritonChoice, ...]


def study_triton(timings: TritonTimings, num_folds: int = 5, seed: int = 0, *, is_fit: bool = True) -> TritonStudy:
    """Score the model and the baselines on a table of timings.

    Args:
        timings: the rows.
        num_folds, seed: deal the pairs (N, K) to folds; a row is predicted by fits on other folds.
        is_fit: else the coefficients that the library has for this GPU are scored, and nothing is fitted.

    Raises:
        InvalidInputError: too few rows for a fit.
        InvalidOptionError: fewer pairs than folds.
    """
    predictions = tuple(_held_out(timings, num_folds, seed) if is_fit else _as_it_is(timings))
    errors = tuple(item for one in predictions for item in _measure_errors(timings, one))
    ordered = [one for one in predictions if one.has_order]
    choices = tuple(item for one in ordered for item in measure_choices(timings, one.name, one.predicted_us))
    return TritonStudy(timings, predictions, errors, (*choices, *random_choices(timings)))


def _held_out(timings: TritonTimings, num_folds: int, seed: int) -> Iterator[TritonPrediction]:
    folds = f"{num_folds}-fold by (N, K)"
    fits = cross_fit_triton(timings, num_folds, seed)
    bare = timings.without_code()
    refits = cross_fit_triton(bare, num_folds, seed, starts=fits)

    def by(place: list[dict[str, float]], rows: TritonTimings) -> Floats:
        return predict_folds(rows, num_folds, seed, lambda fold, part: part.predict(place[fold]))

    yield TritonPrediction("model", f"with machine code, {folds}", by(fits, timings), True)
    yield TritonPrediction("no code, refit", f"estimated code, fitted on it, {folds}", by(refits, bare), True)
    yield TritonPrediction("no code", "estimated code, coefficients of the model", by(fits, bare), True)
    roofline_us = predict_folds(timings, num_folds, seed, _Roofline(timings, num_folds, seed))
    yield TritonPrediction("fitted roofline", f"by data set, {folds}", roofline_us, False)
    yield _naive(timings)


def _as_it_is(timings: TritonTimings) -> Iterator[TritonPrediction]:
    coefficients, origin = triton_coefficients(timings.arch)
    bare = timings.without_code()
    yield TritonPrediction("model", f"with machine code, {origin.text}", timings.predict(coefficients), True)
    yield TritonPrediction("no code", f"estimated code, {origin.text}", bare.predict(coefficients), True)
    yield _naive(timings)


def _naive(timings: TritonTimings) -> TritonPrediction:
    predicted_us = NaiveRoofline(timings.arch).predict(timings.as_set())
    return TritonPrediction("naive roofline", "data sheet", predicted_us, False)


@dataclass(frozen=True, eq=False)
class _Roofline:
    """Predicts the rows of a fold by rooflines, one for each data set, that are fitted on the other folds."""

    timings: TritonTimings
    num_folds: int
    seed: int

    def __call__(self, fold: int, rows: TritonTimings) -> Floats:
        train = self.timings.folds(self.num_folds, self.seed) != fold
        predicted_us = np.empty(len(rows))
        for name in rows.data_sets:
            mask = rows.of_set(name)
            fitted_on = self.timings.select(train & self.timings.of_set(name)).as_set()
            predicted_us[mask] = FittedRoofline(rows.arch).fit(fitted_on).predict(rows.select(mask).as_set())
        return predicted_us


def _measure_errors(timings: TritonTimings, prediction: TritonPrediction) -> Iterator[TritonErrors]:
    for name, regime, mask in row_groups(timings):
        measured_us, predicted_us = timings.measured_us[mask], prediction.predicted_us[mask]
        tau = tau_within_gemms(timings.gemm[mask], measured_us, predicted_us)[0] if prediction.has_order else None
        yield TritonErrors(prediction.name, name, regime, measure_errors(measured_us, predicted_us), tau)


def worst_choices(study: TritonStudy, num: int) -> list[dict[str, Any]]:
    """Return the GEMMs for which the model's first choice is slowest against the best, worst first.

    Returns:
        Keys data_set, M, N, K, speed_frac, and config, measured_us and predicted_us of `chosen` and of `best`.
    """
    timings, predicted_us = study.timings, study.predictions[0].predicted_us
    groups: list[npt.NDArray[np.int64]] = list(rows_by_gemm(timings.gemm))
    speeds = choice_speeds(timings, predicted_us)[:, 0]
    found = []
    for place in np.argsort(speeds, kind="stable")[:num].tolist():
        rows = groups[place]
        chosen = int(rows[np.argmin(predicted_us[rows])])
        best = int(rows[np.argmin(timings.measured_us[rows])])
        gemm: dict[Any, Any] = timings.frame.loc[[chosen], ["data_set", "M", "N", "K"]].to_dict("records")[0]
        parts = {"chosen": _record(timings, predicted_us, chosen), "best": _record(timings, predicted_us, best)}
        found.append({**gemm, "speed_frac": float(speeds[place]), **parts})
    return found


def _record(timings: TritonTimings, predicted_us: Floats, row: int) -> dict[str, Any]:
    config = TritonConfig(*timings.frame[list(CONFIG_COLUMNS)].iloc[row].tolist())
    measured_us = float(timings.measured_us[row])
    return {"config": str(config), "measured_us": measured_us, "predicted_us": float(predicted_us[row])}
