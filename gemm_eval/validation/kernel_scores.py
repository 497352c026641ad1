"""Predicted against measured latencies of our W4A16 kernels, config by config, and baselines on the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gemm_eval._jit import read_only
from gemm_eval.models.gpu.calibration import coefficients_for
from gemm_eval.models.gpu.cost_kernels import BEST_RASTER, GPU_COST_DTYPE, KERNEL_COST_DTYPE
from gemm_eval.models.gpu.packed import pack_w4a16_coefficients
from gemm_eval.models.gpu.terms import Times
from gemm_eval.models.gpu.w4a16.coefficients import W4A16_FAMILIES
from gemm_eval.search.gpu_kernels import OF_OURS
from gemm_eval.validation.baselines import FittedRoofline, NaiveRoofline
from gemm_eval.validation.kernel_fit import MIN_ROWS, cross_fit
from gemm_eval.validation.kernel_timings import KernelTimings
from gemm_eval.validation.metrics import REGIMES, Metrics, measure_errors
from gemm_eval.validation.timings import Floats, Mask, TimingSet

__all__ = [
    "ALL",
    "NEAR_BEST",
    "KernelErrors",
    "Prediction",
    "breakdown_of",
    "measure_kernel_errors",
    "predict_as_it_is",
    "predict_held_out",
    "predict_naively",
    "predict_with_roofline",
    "regime_of",
    "tau_within_gemms",
    "worst_rows",
]

ALL = "all"
NEAR_BEST = 1.5
"""Rows are near the best of their GEMM up to this many times its least measured latency."""

_MIN_CONFIGS = 6  # of a GEMM, for a rank correlation within it
_TERMS = (*(name for name in Times._fields if name != "choice_us"), "hidden_us")  # our kernels are not chosen by others


@dataclass(frozen=True, eq=False)
class Prediction:
    """Predicted latencies of all rows of a table by one method.

    Attributes:
        name: of the method.
        how: where its constants come from, in words.
        predicted_us: [rows], in microseconds.
        coefficients: of the model, [fits, families] of COEFFICIENTS_DTYPE; None for other methods.
        fit_of: [rows], which of the fits predicted a row.
    """

    name: str
    how: str
    predicted_us: Floats
    coefficients: npt.NDArray[np.void] | None = None
    fit_of: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True)
class KernelErrors:
    """Errors of a prediction on the rows of a family and a regime.

    Attributes:
        predictor: name of the method.
        family: of `W4A16_FAMILIES`, or "all".
        regime: of `metrics.REGIMES`, or "near best": rows up to `NEAR_BEST` times the best of their GEMM.
        errors: over the rows.
        tau_within_gemms: mean over GEMMs with more than 5 of these configs of Kendall's tau-b of predicted and
            measured; None where no GEMM has as many, or all predictions are equal.
        num_gemms: GEMMs in that mean.
    """

    predictor: str
    family: str
    regime: str
    errors: Metrics
    tau_within_gemms: float | None
    num_gemms: int


def predict_held_out(timings: KernelTimings, num_folds: int = 5, seed: int = 0) -> Prediction:
    """Predict each row by a fit on the pairs (N, K) of other folds: `kernel_fit.cross_fit`.

    Raises:
        InvalidOptionError: fewer pairs than folds.
    """
    return Prediction("model", f"{num_folds}-fold by (N, K)", *cross_fit(timings, num_folds, seed))


def predict_as_it_is(timings: KernelTimings) -> Prediction:
    """Predict each row with the coefficients that the library has for this GPU."""
    found = {family: coefficients_for(timings.arch, "gemm-eval", family) for family in W4A16_FAMILIES}
    packed = pack_w4a16_coefficients({family: values for family, (values, _) in found.items()})
    texts = dict.fromkeys(origin.text for _, origin in found.values())
    zeros = np.zeros(len(timings), np.int64)
    return Prediction("model", "; ".join(texts), timings.predict(packed), packed[None], zeros)


def predict_naively(timings: KernelTimings) -> Prediction:
    """Predict each row by the data sheet alone: max(flop / peak, bytes / DRAM bandwidth), the same for all configs."""
    predicted_us = NaiveRoofline(timings.arch).predict(_as_set(timings))
    return Prediction("naive roofline", "data sheet", predicted_us)


def predict_with_roofline(
    timings: KernelTimings, num_folds: int = 5, seed: int = 0, train: KernelTimings | None = None
) -> Prediction:
    """Predict each row by a roofline with constants of its family: overhead, shares of peak and bandwidth, sharpness.

    Args:
        timings: what is predicted.
        num_folds, seed: deal the pairs to folds as for the model; a row is predicted by a fit on other folds.
        train: fit on these rows instead, and hold nothing out.
    """
    name = "fitted roofline"
    if train is not None:
        everything = np.ones(len(timings), bool)
        return Prediction(name, "fitted on all that the model is fitted on", _roofline(train, timings, everything))
    folds = timings.folds(num_folds, seed)
    predicted_us = np.empty(len(timings))
    for fold in range(num_folds):
        held_out = folds == fold
        predicted_us[held_out] = _roofline(timings.select(~held_out), timings, held_out)
    return Prediction(name, f"{num_folds}-fold by (N, K)", predicted_us)


def _roofline(train: KernelTimings, timings: KernelTimings, wanted: Mask) -> Floats:
    predicted_us = np.empty(len(timings))
    for kind in range(len(W4A16_FAMILIES)):
        rows = wanted & (timings.kind == kind)
        if not rows.any():
            continue
        of_family = train.select(train.kind == kind)
        roofline = FittedRoofline(timings.arch)
        if len(of_family) >= MIN_ROWS:
            roofline = roofline.fit(_as_set(of_family))
        predicted_us[rows] = roofline.predict(_as_set(timings.select(rows)))
    return predicted_us[wanted]


def _as_set(timings: KernelTimings) -> TimingSet:
    return TimingSet(timings.frame.assign(G=1), "w4a16", timings.arch.name, "gemm-eval")


def regime_of(timings: KernelTimings) -> npt.NDArray[np.str_]:
    """Name of each row's regime of M: decode, mid or prefill."""
    names = np.empty(len(timings), "U7")
    for regime in REGIMES[:-1]:
        names[_is_in(timings, regime.min_rows, regime.max_rows)] = regime.name
    return names


def _is_in(timings: KernelTimings, low: int, high: int | None) -> Mask:
    M = timings.sizes[:, 1]
    inside: Mask = (low <= M) & (True if high is None else high >= M)
    return inside


def measure_kernel_errors(timings: KernelTimings, prediction: Prediction) -> list[KernelErrors]:
    """Return the errors of each family, and of all together, in each regime of M and near the best."""
    near = timings.measured_us <= NEAR_BEST * timings.best_us
    regimes = [(regime.name, _is_in(timings, regime.min_rows, regime.max_rows)) for regime in REGIMES]
    families = [(ALL, np.ones(len(timings), bool))]
    families += [(name, timings.kind == kind) for kind, name in enumerate(W4A16_FAMILIES)]
    found = []
    for family, of_family in families:
        for regime, of_regime in [*regimes, ("near best", near)]:
            rows = of_family & of_regime
            if rows.any():
                errors = measure_errors(timings.measured_us[rows], prediction.predicted_us[rows])
                tau, num = tau_within_gemms(
                    timings.gemm[rows], timings.measured_us[rows], prediction.predicted_us[rows]
                )
                found.append(KernelErrors(prediction.name, family, regime, errors, tau, num))
    return found


def tau_within_gemms(
    gemm: npt.NDArray[np.int64], measured_us: Floats, predicted_us: Floats
) -> tuple[float | None, int]:
    """Return the mean of Kendall's tau-b within the GEMMs that have more than 5 rows, and how many there are."""
    from scipy.stats import kendalltau

    taus = [
        float(kendalltau(measured_us[rows], predicted_us[rows], variant="b").statistic)
        for rows in rows_by_gemm(gemm)
        if len(rows) >= _MIN_CONFIGS and np.ptp(predicted_us[rows]) > 0.0
    ]
    kept = [tau for tau in taus if np.isfinite(tau)]
    return (float(np.mean(kept)) if kept else None), len(kept)


def rows_by_gemm(gemm: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the places of the rows of each GEMM, by its number."""
    order = np.argsort(gemm, kind="stable")
    cuts = np.flatnonzero(np.diff(gemm[order])) + 1
    yield from np.split(order, cuts)


def worst_rows(timings: KernelTimings, prediction: Prediction, num: int) -> npt.NDArray[np.int64]:
    """Return the places of the rows near the best with the largest errors in size, worst first."""
    size = np.abs(prediction.predicted_us / timings.measured_us - 1.0)
    size[timings.measured_us > NEAR_BEST * timings.best_us] = -1.0
    worst = np.argsort(-size, kind="stable")[:num]
    return worst[size[worst] >= 0.0]


def breakdown_of(timings: KernelTimings, prediction: Prediction, row: int) -> dict[str, float]:
    """Return the terms of the model's prediction of a row, in microseconds; `hidden`, which is negative, overlaps.

    The terms add up to the prediction.
    """
    assert prediction.coefficients is not None
    assert prediction.fit_of is not None
    kind = int(timings.type_of[row])
    out = np.zeros(1, GPU_COST_DTYPE)
    place, parts = (int(value) for value in timings.which[row])
    _, M, K, N = (int(value) for value in timings.sizes[row])
    coefficients = read_only(prediction.coefficients[int(prediction.fit_of[row])][None])
    packed = timings.packed
    OF_OURS.evaluate_one(
        packed.params[kind : kind + 1], packed.candidates, coefficients, place, parts, BEST_RASTER, 1, M, K, N,
        out.view(KERNEL_COST_DTYPE),
    )  # fmt: skip
    return {term.removesuffix("_us"): float(out[term][0]) for term in _TERMS}
