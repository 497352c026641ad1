"""Fitting the corrections that the library ships, and the held-out verdict on each."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec
from gemm_eval.errors import InvalidInputError
from gemm_eval.models.gpu import (
    FEATURES,
    GPU_MODEL_VERSION,
    Correction,
    CorrectionData,
    CorrectionErrors,
    calibration_path,
    coefficients_for,
    find_correction,
    fit_intervals,
    load_calibration,
    physics_digest,
)
from gemm_eval.validation.fit import provenance
from gemm_eval.validation.folds import CrossFit, cross_fit
from gemm_eval.validation.metrics import REGIMES
from gemm_eval.validation.predictors.corrected import CorrectedPredictor, Key, Learned
from gemm_eval.validation.predictors.dense import ModelPredictor, model_predictor, rows_of_family
from gemm_eval.validation.timings import Floats, Ints, Timings

__all__ = [
    "FittedCorrection",
    "calibrate_correction",
    "corrected_predictor",
    "held_out",
    "held_out_answers",
    "refit_intervals",
]

MIN_PAIRS = 20
"""Pairs (N, K) of a question, for a correction that is on."""
SAME_PERCENT = 0.05
"""Points of MAPE by which a regime may be worse: less than what other folds change."""

_FOLDS = 5
_DIGITS = 3


class FittedCorrection(NamedTuple):
    """A correction as its two files hold it."""

    correction: Correction
    arrays: bytes  # of the .npz file

    def write(self, path: Path) -> None:
        """Write both files, `path` being the YAML file's; of one that is off there are no arrays."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.correction.to_yaml(), encoding="utf-8")
        if self.correction.is_on:
            path.with_suffix(".npz").write_bytes(self.arrays)
        else:
            path.with_suffix(".npz").unlink(missing_ok=True)


class _Rows(NamedTuple):
    """The rows that one correction is for, of all sets, with held-out predictions."""

    names: list[str]  # of the sets
    hashes: list[str]
    set_of: Ints  # [rows]
    M: Ints
    measured_us: Floats
    physics_us: Floats
    corrected_us: Floats
    physics_log_errors: Floats
    corrected_log_errors: Floats

    def errors(self, rows: npt.NDArray[np.bool_]) -> tuple[float, float]:
        """Return both MAPEs in percent."""
        found = (np.abs(us[rows] / self.measured_us[rows] - 1.0).mean() for us in (self.physics_us, self.corrected_us))
        physics, corrected = (round(100.0 * float(error), _DIGITS) for error in found)
        return physics, corrected


def calibrate_correction(
    arch: GpuSpec, library: str, family: str, sets: Sequence[Timings], *, seed: int = 0
) -> list[FittedCorrection]:
    """Fit a correction for each question that the rows of a kernel family ask, on all sets together.

    What is written is fitted on what the committed coefficients leave of all rows. Its errors are those of other fits,
    of coefficients and trees alike, on four fifths of the pairs (N, K). It is on if they are smaller than those of
    physics alone, in no regime of M worse by `SAME_PERCENT`, over at least `MIN_PAIRS` pairs.

    Args:
        arch: a GPU that has a calibration of the family.
        library: whose kernels ran.
        family: the kernel family.
        sets: timings.
        seed: deals the pairs to the folds.

    Raises:
        InvalidOptionError: no such library or family.
        InvalidInputError: too few rows or pairs, sets of another GPU or library, or no calibration to correct.
        GemmEvalError: scikit-learn is not installed.
    """
    coefficients, origin = coefficients_for(arch, library, family)
    if not origin.is_calibrated:
        raise InvalidInputError(
            f"{library}'s {family} kernels on {arch.name} have no calibration that could be corrected"
        )
    kept = rows_of_family(arch, library, family, sets)
    crossed = cross_fit(corrected_predictor(arch, library, family), kept, _FOLDS, seed)
    shipped = CorrectedPredictor(model_predictor(arch, library)).learn(*kept)
    digest = physics_digest(coefficients, GPU_MODEL_VERSION)
    return [
        _fitted(arch, library, key, learned, rows, digest, seed)
        for key, rows in _by_key(shipped, kept, crossed)
        if (learned := shipped.learned.get(key)) is not None
    ]


def refit_intervals(
    arch: GpuSpec, library: str, family: str, sets: Sequence[Timings], *, seed: int = 0
) -> list[Correction]:
    """Return the committed corrections of a family with intervals that are fitted anew, and nothing else.

    Arguments and errors are those of `calibrate_correction`, but coefficients stay as they are, so this takes seconds:
    corrections alone are fitted on four fifths of the pairs (N, K).
    """
    kept = rows_of_family(arch, library, family, sets)
    predictor = CorrectedPredictor(model_predictor(arch, library), fitted_on=frozenset())
    crossed = cross_fit(predictor, kept, _FOLDS, seed)
    refitted = []
    for (of_family, question), rows in _by_key(predictor, kept, crossed):
        found = find_correction(arch, library, of_family, question, GPU_MODEL_VERSION)
        if found is not None:
            refitted.append(found[0].model_copy(update=_intervals_of(rows)))
    return refitted


def corrected_predictor(arch: GpuSpec, library: str, family: str) -> CorrectedPredictor:
    """Return a predictor whose coefficients are fitted on the sets that the calibration of a family names."""
    named = load_calibration(calibration_path(arch.name, library, family)).errors
    return CorrectedPredictor(ModelPredictor(arch, library), frozenset(errors.data for errors in named))


def held_out(crossed: CrossFit[CorrectedPredictor], timings: Timings, place: int = 0) -> tuple[Floats, Floats]:
    """Return what physics and the corrected model say of each row of a set by fits without its pair."""
    physics = CrossFit(tuple(fit.physics for fit in crossed.fits), crossed.folds)
    return physics.predict(timings, place), crossed.predict(timings, place)


def held_out_answers(crossed: CrossFit[CorrectedPredictor], timings: Timings, place: int = 0) -> tuple[Floats, Floats]:
    """As `held_out`, but corrected only where the committed correction is on, as users' answers are."""
    physics_us, corrected_us = held_out(crossed, timings, place)
    first = crossed.fits[0]
    keys = first.answers(timings).keys
    is_on = {}
    for family, question in dict.fromkeys(keys):
        found = find_correction(first.arch, timings.library, family, question, GPU_MODEL_VERSION)
        is_on[family, question] = found is not None and found[0].is_on
    return physics_us, np.where([is_on[key] for key in keys], corrected_us, physics_us)


def _by_key(
    predictor: CorrectedPredictor, kept: Sequence[Timings], crossed: CrossFit[CorrectedPredictor]
) -> Iterator[tuple[Key, _Rows]]:
    answers = [predictor.answers(item) for item in kept]
    asked = [item.whole() for item in kept]  # errors and intervals are those of what users get
    predicted = [held_out(crossed, item, place) for place, item in enumerate(asked)]
    for key in dict.fromkeys(key for found in answers for key in found.keys):
        some = [(place, rows) for place, found in enumerate(answers) if len(rows := found.of_key(key))]
        yield key, _Rows(
            [kept[place].name for place, _ in some],
            [kept[place].content_hash.removeprefix("sha256:") for place, _ in some],
            np.concatenate([np.full(len(rows), number) for number, (_, rows) in enumerate(some)]),
            np.concatenate([kept[place].sizes[rows, 1] for place, rows in some]),
            np.concatenate([asked[place].measured_us[rows] for place, rows in some]),
            np.concatenate([predicted[place][0][rows] for place, rows in some]),
            np.concatenate([predicted[place][1][rows] for place, rows in some]),
            *(
                np.concatenate([asked[place].log_errors(predicted[place][number])[rows] for place, rows in some])
                for number in range(2)
            ),
        )  # fmt: skip


def _intervals_of(rows: _Rows) -> dict[str, Any]:
    return {
        "physics_intervals": fit_intervals(rows.M, rows.physics_log_errors),
        "intervals": fit_intervals(rows.M, rows.corrected_log_errors),
    }


def _is_better(errors: Sequence[CorrectionErrors]) -> bool:
    """Say whether a correction helps over all rows, and costs no regime more than another deal of folds does."""
    gains = {item.regime: item.physics_mape_percent - item.corrected_mape_percent for item in errors}
    return gains["all"] > 0.0 and min(gains.values()) > -SAME_PERCENT


def _fitted(
    arch: GpuSpec, library: str, key: Key, learned: Learned, rows: _Rows, digest: str, seed: int
) -> FittedCorrection:
    family, question = key
    errors = []
    for regime in REGIMES:
        last = np.inf if regime.max_rows is None else regime.max_rows
        mask = (regime.min_rows <= rows.M) & (last >= rows.M)
        if mask.any():
            physics, corrected = rows.errors(mask)
            errors.append(
                CorrectionErrors(
                    regime=regime.name, num_rows=int(mask.sum()), physics_mape_percent=physics,
                    corrected_mape_percent=corrected,
                )
            )  # fmt: skip
    data = []
    for place, (name, sha256) in enumerate(zip(rows.names, rows.hashes, strict=True)):
        physics, corrected = rows.errors(rows.set_of == place)
        data.append(
            CorrectionData(
                data=name, sha256=sha256, num_rows=int(np.count_nonzero(rows.set_of == place)),
                physics_mape_percent=physics, corrected_mape_percent=corrected,
            )
        )  # fmt: skip
    arrays = io.BytesIO()
    learned.trees.save(arrays)
    correction = Correction(
        gpu=arch.name, library=library, family=family, question=question, model_version=GPU_MODEL_VERSION,
        is_on=_is_better(errors) and len(learned.trees.pairs) >= MIN_PAIRS, physics=digest,
        arrays_sha256=hashlib.sha256(arrays.getvalue()).hexdigest(), features=FEATURES,
        min_log_factor=learned.bounds[0], max_log_factor=learned.bounds[1], region=learned.region, data=tuple(data),
        errors=tuple(errors),
        **_intervals_of(rows), **provenance(_FOLDS, "sets", seed),
    )  # fmt: skip
    return FittedCorrection(correction, arrays.getvalue())
