"""Fitting the coefficients of our W4A16 families on timings of known configs, and predicting rows that were held out.

Robust least squares on log latencies, within the coefficients' ranges, from their defaults on. Rows count by
1 / sqrt(configs of their GEMM), or a few GEMMs with hundreds of configs would be all that counts, and those beyond
twice the best of their GEMM by less, because nobody chooses them.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gemm_eval._words import shown
from gemm_eval.arch import GpuSpec
from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.models.gpu.calibration import Calibration, ErrorFigures
from gemm_eval.models.gpu.model import GPU_MODEL_VERSION
from gemm_eval.models.gpu.packed import pack_w4a16_coefficients
from gemm_eval.models.gpu.w4a16.coefficients import W4A16_FAMILIES, w4a16_coefficients_of, w4a16_defaults
from gemm_eval.validation.kernel_timings import KernelTimings, read_kernel_timings
from gemm_eval.validation.metrics import error_figures
from gemm_eval.validation.timings import Floats

__all__ = [
    "MIN_ROWS",
    "calibrate_kernel_family",
    "cross_fit",
    "fit_kernel_family",
    "fit_kernels",
    "row_weights",
]

MIN_ROWS = 30
"""Of a family, for a fit of its coefficients."""

_LOSS_SCALE = 0.05  # log ratio: errors well below are squared, those well above count by their size
_EVALUATIONS = 60
_DIFFERENCE = 1e-4  # for derivatives, of a coefficient's range
_OFF_BOUNDS = 1e-3  # scipy wants a start inside the bounds
_NEAR = 2.0
_DIGITS = 6  # of a coefficient in a file


def row_weights(timings: KernelTimings) -> Floats:
    """What each row counts in a fit."""
    weights = np.minimum(1.0, _NEAR * timings.best_us / timings.measured_us) / np.sqrt(timings.num_configs)
    scaled: Floats = weights / weights.mean()
    return scaled


def fit_kernel_family(
    timings: KernelTimings, family: str, fixed: Mapping[str, float] | None = None
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Fit the coefficients of `family` on its rows.

    Args:
        timings: rows of all families.
        family: one of `W4A16_FAMILIES`.
        fixed: coefficients that keep these values; they may be out of their ranges.

    Returns:
        All coefficients, and the names of those that were fitted.
    """
    from scipy.optimize import least_squares

    given = dict(fixed or {})
    rows = timings.select(timings.kind == W4A16_FAMILIES.index(family))
    items = [item for item in w4a16_coefficients_of(family) if item.name not in given]
    low, high = np.array([item.low for item in items]), np.array([item.high for item in items])
    root, logs = np.sqrt(row_weights(rows)), np.log(rows.measured_us)

    def values(x: Floats) -> dict[str, float]:
        found = zip(items, np.clip(low + x * (high - low), low, high).tolist(), strict=True)
        return given | {item.name: value for item, value in found}

    def errors(x: Floats) -> Floats:
        result: Floats = root * (np.log(_predict(rows, family, values(x))) - logs)
        return result

    start = np.clip((np.array([item.default for item in items]) - low) / (high - low), _OFF_BOUNDS, 1.0 - _OFF_BOUNDS)
    x = least_squares(
        errors, start, bounds=(0.0, 1.0), loss="soft_l1", f_scale=_LOSS_SCALE, diff_step=np.array([_DIFFERENCE]),
        max_nfev=_EVALUATIONS,
    ).x  # fmt: skip
    return values(x), tuple(item.name for item in items)


def fit_kernels(timings: KernelTimings, families: Collection[str] = W4A16_FAMILIES) -> dict[str, dict[str, float]]:
    """Fit several families, side by side; one with too few rows gets its defaults."""
    found = {family: w4a16_defaults(family) for family in W4A16_FAMILIES}
    enough = [
        family for family in families if np.count_nonzero(timings.kind == W4A16_FAMILIES.index(family)) >= MIN_ROWS
    ]
    for family in enough:
        found[family] = fit_kernel_family(timings, family)[0]
    return found


def cross_fit(
    timings: KernelTimings, num_folds: int = 5, seed: int = 0
) -> tuple[Floats, npt.NDArray[np.void], npt.NDArray[np.int64]]:
    """Predict each row by a fit on the pairs (N, K) of other folds.

    Returns:
        Predictions in microseconds, [rows]; fits, [folds, families] of COEFFICIENTS_DTYPE; fold of each row, [rows].

    Raises:
        InvalidOptionError: fewer pairs than folds.
    """
    folds = timings.folds(num_folds, seed)
    fits = [pack_w4a16_coefficients(fit_kernels(timings.select(folds != fold))) for fold in range(num_folds)]
    predicted_us = np.empty(len(timings))
    for fold, coefficients in enumerate(fits):
        predicted_us[folds == fold] = timings.select(folds == fold).predict(coefficients)
    return predicted_us, np.stack(fits), folds


def _predict(rows: KernelTimings, family: str, values: Mapping[str, float]) -> Floats:
    packed = pack_w4a16_coefficients({name: values if name == family else {} for name in W4A16_FAMILIES})
    return rows.predict(packed)


def calibrate_kernel_family(
    arch: GpuSpec, family: str, paths: Sequence[Path], *, num_folds: int = 5, seed: int = 0
) -> Calibration:
    """Fit a W4A16 family on tables of our kernels; the errors are held out by (N, K) over all tables together.

    Args:
        arch: the GPU that the tables are of.
        family: one of `W4A16_FAMILIES`.
        paths: tables of `gemm-eval measure --kernel w4a16`.
        num_folds, seed: deal the pairs to the folds.

    Raises:
        InvalidInputError: no table, one that cannot be read, or too few rows of the family.
        InvalidOptionError: no such family, or fewer pairs than folds.
    """
    if family not in W4A16_FAMILIES:
        raise InvalidOptionError(f"W4A16 families are {', '.join(W4A16_FAMILIES)}, got {shown(family)}")
    timings = read_kernel_timings(arch, paths)
    rows = timings.select(timings.kind == W4A16_FAMILIES.index(family))
    if len(rows) < MIN_ROWS:
        raise InvalidInputError(f"a fit needs at least {MIN_ROWS} rows of {family}, got {len(rows)}")
    coefficients, fitted = fit_kernel_family(rows, family)
    predicted_us = cross_fit(rows, num_folds, seed)[0]
    return Calibration(
        gpu=arch.name, library="gemm-eval", family=family, model_version=GPU_MODEL_VERSION,
        code_version=version("gemm_eval"), date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        folds=f"{num_folds}-fold by (N, K) over all tables together, seed {seed}",
        coefficients={name: float(f"{value:.{_DIGITS}g}") for name, value in coefficients.items()}, fitted=fitted,
        errors=tuple(_figures(path, rows, predicted_us) for path in paths),
    )  # fmt: skip


def _figures(path: Path, rows: KernelTimings, predicted_us: Floats) -> ErrorFigures:
    mask = (rows.frame["table"] == path.stem).to_numpy(bool)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return error_figures(f"w4a16/{path.stem}", digest, rows.measured_us[mask], predicted_us[mask])
