"""Fitting the coefficients of the Triton model, and predicting rows that were held out.

Robust least squares on log latencies over all rows, within the coefficients' ranges, from their defaults on.
"""

from __future__ import annotations

import datetime
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import numpy as np

from gemm_eval.arch import GpuSpec, read_yaml
from gemm_eval.errors import InvalidInputError
from gemm_eval.models.gpu.triton import TRITON_COEFFICIENTS, TritonCalibration, default_triton_coefficients
from gemm_eval.validation.metrics import error_figures
from gemm_eval.validation.timings import Floats
from gemm_eval.validation.triton import TritonTimings, read_triton_timings

__all__ = [
    "MIN_ROWS",
    "calibrate_triton",
    "cross_fit_triton",
    "fit_triton",
    "predict_folds",
]

MIN_ROWS = 200
"""For a fit of all coefficients."""

_LOSS_SCALE = 0.1  # log ratio: errors well below are squared, those well above count by their size
_TOLERANCE = 1e-5  # of the loss: coefficients settle within a percent, errors to the fourth digit
_EVALUATIONS = 60
_DIFFERENCE = 1e-4  # for derivatives, of a coefficient's range
_OFF_BOUNDS = 1e-3  # scipy wants a start inside the bounds
_DIGITS = 6  # of a coefficient in a file


def fit_triton(
    timings: TritonTimings, fixed: Mapping[str, float] | None = None, start: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Fit the coefficients on all rows and return them, each in its own unit.

    Args:
        timings: at least `MIN_ROWS` rows.
        fixed: coefficients that keep these values; they may be out of their ranges.
        start: where to begin; default: the coefficients' defaults.

    Raises:
        InvalidInputError: too few rows, or one whose kernel cannot be launched on this GPU.
    """
    from scipy.optimize import least_squares

    if len(timings) < MIN_ROWS:
        raise InvalidInputError(f"a fit needs at least {MIN_ROWS} timings of Triton kernels, got {len(timings)}")
    if not (timings.launches.ctas_per_sm > 0).all():
        row = int(np.argmin(timings.launches.ctas_per_sm > 0)) + 1
        raise InvalidInputError(f"row {row} has a kernel that cannot be launched on {timings.arch.name}")
    given = dict(fixed or {})
    items = [item for item in TRITON_COEFFICIENTS if item.name not in given]
    low, high = np.array([item.low for item in items]), np.array([item.high for item in items])
    logs = np.log(timings.measured_us)
    begin = default_triton_coefficients() if start is None else start

    def values(x: Floats) -> dict[str, float]:
        found = np.clip(low + x * (high - low), low, high).tolist()
        return given | {item.name: value for item, value in zip(items, found, strict=True)}

    def errors(x: Floats) -> Floats:
        result: Floats = np.log(timings.predict(values(x))) - logs
        return result

    first = (np.array([begin[item.name] for item in items]) - low) / (high - low)
    found = least_squares(
        errors, np.clip(first, _OFF_BOUNDS, 1.0 - _OFF_BOUNDS), bounds=(0.0, 1.0), loss="soft_l1", f_scale=_LOSS_SCALE,
        diff_step=np.array([_DIFFERENCE]), ftol=_TOLERANCE, max_nfev=_EVALUATIONS,
    )  # fmt: skip
    return values(found.x)


def cross_fit_triton(
    timings: TritonTimings,
    num_folds: int = 5,
    seed: int = 0,
    *,
    fixed: Mapping[str, float] | None = None,
    starts: Sequence[Mapping[str, float]] | None = None,
) -> list[dict[str, float]]:
    """Return one fit for each fold, on the pairs (N, K) of all others.

    Args:
        timings, fixed: as in `fit_triton`.
        num_folds, seed: deal the pairs to the folds.
        starts: where to begin, by fold.

    Raises:
        InvalidInputError: as `fit_triton`.
        InvalidOptionError: fewer pairs than folds.
    """
    folds = timings.folds(num_folds, seed)

    def fit(fold: int) -> dict[str, float]:
        return fit_triton(timings.select(folds != fold), fixed, starts[fold] if starts else None)

    with ThreadPoolExecutor(min(num_folds, os.cpu_count() or 1)) as threads:  # numpy leaves Python's lock to others
        return list(threads.map(fit, range(num_folds)))


def predict_folds(
    timings: TritonTimings, num_folds: int, seed: int, predict: Callable[[int, TritonTimings], Floats]
) -> Floats:
    """Return the predictions of `predict(fold, its rows)` of all rows, in microseconds."""
    folds = timings.folds(num_folds, seed)
    predicted_us = np.empty(len(timings))
    for fold in range(num_folds):
        held_out = folds == fold
        predicted_us[held_out] = predict(fold, timings.select(held_out))
    return predicted_us


def calibrate_triton(arch: GpuSpec, path: Path, *, num_folds: int = 5, seed: int = 0) -> TritonCalibration:
    """Fit all coefficients on a table of timings; the errors are of each data set, held out by (N, K).

    Args:
        arch: the GPU that the table is of.
        path: ``timings.parquet``, with the machine code beside it.
        num_folds, seed: deal the pairs to the folds.

    Raises:
        InvalidInputError: the table cannot be read, or has too few rows.
        InvalidOptionError: fewer pairs than folds.
    """
    timings = read_triton_timings(arch, path)
    coefficients = fit_triton(timings)
    fits = cross_fit_triton(timings, num_folds, seed)
    predicted_us = predict_folds(timings, num_folds, seed, lambda fold, rows: rows.predict(fits[fold]))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return TritonCalibration(
        gpu=arch.name, triton_version=_triton_version(path), code_version=version("gemm_eval"),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        folds=f"{num_folds}-fold by (N, K) over all data sets together, seed {seed}",
        coefficients={name: float(f"{value:.{_DIGITS}g}") for name, value in coefficients.items()},
        errors=tuple(
            error_figures(
                f"triton/{name}", digest, timings.measured_us[timings.of_set(name)], predicted_us[timings.of_set(name)]
            )
            for name in timings.data_sets
        ),
    )  # fmt: skip


def _triton_version(path: Path) -> str:
    meta_path = path.with_suffix(".meta.yaml")
    meta = read_yaml(meta_path) if meta_path.is_file() else {}
    versions = meta.get("versions")
    return str(versions.get("triton", "unknown")) if isinstance(versions, dict) else "unknown"
