"""Corrections of the model of GEMMs, learned by trees: fits, what held-out rows say of them, their files."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec
from gemm_eval.errors import InvalidInputError
from gemm_eval.extras import has_package, needs_extra
from gemm_eval.models.gpu import (
    FEATURES,
    GPU_MODEL_VERSION,
    KERNEL_COST_DTYPE,
    LEAF,
    MAX_LOG_FACTOR,
    MOST_OF_KERNEL_LOG,
    OTHER_KERNELS,
    SMOOTH_FEATURES,
    Correction,
    CorrectionData,
    CorrectionErrors,
    Region,
    Trees,
    calibration_path,
    coefficients_for,
    correct,
    describe,
    find_correction,
    fit_intervals,
    load_calibration,
    pack_correction,
    physics_digest,
    question_of,
)
from gemm_eval.validation.fit import MIN_ROWS, CrossFit, cross_fit, provenance
from gemm_eval.validation.metrics import REGIMES
from gemm_eval.validation.predictors.dense import ModelPredictor, model_predictor, rows_of_family
from gemm_eval.validation.predictors.dense_rows import best_records, pack_problems, with_families
from gemm_eval.validation.timings import LEAST_KERNEL_US, Floats, Ints, Timings
from gemm_eval.workload import GemmTypes, RunOptions

# More trees, or larger ones, change held-out errors by a tenth of a point.
_HOW: dict[str, Any] = {
    "max_leaf_nodes": 31, "max_depth": 8, "min_samples_leaf": 15, "l2_regularization": 1.0, "early_stopping": False,
    "random_state": 0,
}  # fmt: skip
_SMOOTH: dict[str, Any] = {"max_iter": 60, "learning_rate": 0.11}  # trees of smooth features
_OF_KERNEL: dict[str, Any] = {"max_iter": 30, "learning_rate": 0.15}  # those that know the kernel config too


def is_available() -> bool:
    """Whether scikit-learn is installed."""
    return has_package("sklearn")


def fit_trees(features: Floats, targets: Floats, weights: Floats, pairs: Ints) -> Trees:
    """Fit trees to `targets` [rows] by least squares: first those of smooth features, then all features to the rest.

    Args:
        features: [rows, features], in the order of `correction_kernels.FEATURES`.
        targets: [rows].
        weights: [rows], of the squares.
        pairs: [pairs, 2] of N and K, kept with the trees.

    Raises:
        GemmEvalError: scikit-learn is not installed.
    """
    with needs_extra("a learned correction", "calibrate"):
        from sklearn.ensemble import HistGradientBoostingRegressor

    def fit(how: dict[str, Any], x: Floats, y: Floats, seed: int) -> tuple[Trees, Floats]:
        fitted = HistGradientBoostingRegressor(**_HOW, **how).fit(x, y, sample_weight=weights)
        return _spread(trees_of(fitted, pairs), x, seed), fitted.predict(x)

    smooth, predicted = fit(_SMOOTH, features[:, : len(SMOOTH_FEATURES)], targets, 0)
    rest = np.clip(targets - predicted, -MOST_OF_KERNEL_LOG, MOST_OF_KERNEL_LOG)
    of_kernel, _ = fit(_OF_KERNEL, features, rest, 1)
    num_nodes = len(smooth.number)
    return Trees(
        np.concatenate([smooth.number, of_kernel.number]),
        np.concatenate([smooth.left, of_kernel.left + num_nodes]).astype(np.int16),
        np.concatenate([smooth.feature, of_kernel.feature]),
        np.concatenate([smooth.roots, of_kernel.roots + num_nodes]).astype(np.int16),
        smooth.num_smooth, np.maximum(smooth.depth, of_kernel.depth), smooth.baseline + of_kernel.baseline, pairs,
    )  # fmt: skip


def _spread(trees: Trees, features: Floats, seed: int) -> Trees:
    """Move each threshold to a random place between the values of the data around it.

    The data do not tell where between two values a step lies. All trees would have it in the middle; this way their
    sum is a ramp of small steps from one value to the next. Values for the data stay as they are.
    """
    number, rng = trees.number.copy(), np.random.default_rng(seed)
    for index in range(features.shape[1]):
        nodes, values = np.flatnonzero(trees.feature == index), np.unique(features[:, index])
        above = np.clip(np.searchsorted(values, number[nodes], side="right"), 1, max(1, len(values) - 1))
        if len(nodes):
            low, high = values[above - 1], values[above]
            number[nodes] = low + (high - low) * rng.random(len(nodes))
    return trees._replace(number=number)


def trees_of(fitted: Any, pairs: Ints) -> Trees:
    """Return the trees of a fitted `HistGradientBoostingRegressor`, whose nodes are read as its predictor has them."""
    number: list[float] = []
    left: list[int] = []
    feature: list[int] = []
    roots: list[int] = []
    for (predictor,) in fitted._predictors:
        nodes = predictor.nodes
        roots.append(len(number))
        order = [0]  # breadth first, so that both children of a node are neighbours
        for place, number_of in enumerate(order):
            node = nodes[number_of]
            if node["is_leaf"]:
                number.append(float(node["value"]))
                left.append(roots[-1] + place)
                feature.append(LEAF)
            else:
                number.append(float(node["num_threshold"]))
                left.append(roots[-1] + len(order))
                feature.append(int(node["feature_idx"]))
                order += [int(node["left"]), int(node["right"])]
    depth = max(predictor.get_max_depth() for (predictor,) in fitted._predictors)
    return Trees(
        np.array(number), np.array(left, np.int16), np.array(feature, np.int8), np.array(roots, np.int16),
        np.array([len(roots)], np.int16), np.array([depth], np.int16),
        np.asarray(fitted._baseline_prediction, np.float64).reshape(1), pairs,
    )  # fmt: skip


Key = tuple[str, str]
"""Kernel family and question of a correction."""

_NEAR_OCTAVES, _FAR_OCTAVES = 1.0, 2.0  # from the nearest known (N, K); held-out pairs are rarely farther than 1
_TAIL = 0.01  # of the residuals, which bounds leave out


class Learned(NamedTuple):
    """A correction and where it holds."""

    trees: Trees
    region: Region
    bounds: tuple[float, float]


class Answers(NamedTuple):
    """What physics says of the rows of a set."""

    records: npt.NDArray[np.void]  # [rows] of GPU_COST_DTYPE
    keys: list[Key]  # [rows]
    types: list[GemmTypes]  # [rows]
    options: RunOptions

    def of_key(self, key: Key) -> npt.NDArray[np.int64]:
        """Return the rows that a correction is for."""
        return np.flatnonzero([item == key for item in self.keys])


@dataclass(frozen=True)
class CorrectedPredictor:
    """The model and its learned corrections; see `Predictor`.

    Attributes:
        physics: the model.
        fitted_on: names of the sets that its coefficients are fitted on; None: all; if none of these is given to a
            fit, they stay as they are.
        learned: by family and question.
    """

    physics: ModelPredictor
    fitted_on: frozenset[str] | None = None
    learned: Mapping[Key, Learned] = field(default_factory=dict)
    name: str = "corrected"

    @property
    def arch(self) -> GpuSpec:
        """The GPU."""
        return self.physics.arch

    def fit(self, *train: Timings) -> CorrectedPredictor:
        """Return one whose coefficients and corrections are fitted on `train`."""
        of_physics = [item for item in train if self.fitted_on is None or item.name in self.fitted_on]
        physics = self.physics.fit(*of_physics) if of_physics else self.physics
        return replace(self, physics=physics).learn(*train)

    def learn(self, *train: Timings) -> CorrectedPredictor:
        """Return one with the coefficients of this one, and corrections that are fitted on `train`.

        Questions of fewer than `MIN_ROWS` rows have none.
        """
        answers = [self.answers(item) for item in train]
        keys = dict.fromkeys(key for found in answers for key in found.keys)
        learned = {}
        for key in keys:
            parts = [(item, found, found.of_key(key)) for item, found in zip(train, answers, strict=True)]
            if sum(len(rows) for *_, rows in parts) >= MIN_ROWS:
                learned[key] = _learn([part for part in parts if len(part[2])])
        return replace(self, learned=learned)

    def predict(self, rows: Timings) -> Floats:
        """Return the latency of each row, in microseconds."""
        answers = self.answers(rows)
        for key in dict.fromkeys(answers.keys):
            if (found := self.learned.get(key)) is not None:
                places = answers.of_key(key)
                packed = pack_correction(
                    self.arch, answers.types[places[0]], answers.options, found.trees, found.region, found.bounds
                )
                correct(answers.records.view(KERNEL_COST_DTYPE), places, rows.sizes, *packed)
        latency_us: Floats = answers.records["latency_us"] + rows.timer_us
        return latency_us

    def answers(self, timings: Timings) -> Answers:
        """Return what physics says of each row at its best config."""
        library = self.physics.library
        packed = pack_problems(self.arch, library, [timings])
        records = best_records(packed, with_families(packed, self.physics.coefficients))
        options = RunOptions(library, timings.l2, timings.clock, timings.quantize_from or None)
        types = [problem.types for problem in timings.problems()]
        questions = {of_row: question_of(of_row, options) for of_row in set(types)}
        keys = [(str(family), questions[of_row]) for family, of_row in zip(packed.family_of, types, strict=True)]
        return Answers(records, keys, types, options)


def _learn(parts: Sequence[tuple[Timings, Answers, npt.NDArray[np.int64]]]) -> Learned:
    """Fit trees on the rows of sets; the rows of a small set count more, so that no set drowns the others.

    A row counts by the share of its time that the correction can change.
    """
    features, targets, weights = [], [], []
    most = max(len(rows) for *_, rows in parts)
    for timings, answers, rows in parts:
        records = answers.records[rows]
        x = np.empty((len(rows), len(FEATURES)))
        describe(records.view(KERNEL_COST_DTYPE), timings.sizes[rows], x)
        other_us = sum((records[name] for name in OTHER_KERNELS), np.zeros(len(rows)))
        kernel_us = records["physics_us"] - other_us
        features.append(x)
        targets.append(np.log(np.maximum(timings.kernel_us[rows] - other_us, LEAST_KERNEL_US) / kernel_us))
        weights.append(np.sqrt(most / len(rows)) * (kernel_us / records["physics_us"]))
    residuals = np.concatenate(targets)
    low, high = np.quantile(residuals, (_TAIL, 1.0 - _TAIL)).tolist()
    bounds = max(-MAX_LOG_FACTOR, min(low, 0.0)), min(MAX_LOG_FACTOR, max(high, 0.0))
    sizes = np.concatenate([timings.sizes[rows] for timings, _, rows in parts])
    pairs = np.unique(sizes[:, [3, 2]], axis=0)
    trees = fit_trees(np.concatenate(features), np.clip(residuals, *bounds), np.concatenate(weights), pairs)
    region = Region(
        min_m=int(sizes[:, 1].min()), max_m=int(sizes[:, 1].max()), max_g=int(sizes[:, 0].max()), near=_NEAR_OCTAVES,
        far=_FAR_OCTAVES,
    )  # fmt: skip
    return Learned(trees, region, bounds)


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
