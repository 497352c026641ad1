"""Corrections of the model of GEMMs, learned by trees: fits, errors on held-out rows, their files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from gemm_eval.arch import GpuSpec, L2State, MulticoreSpec, list_archs, load_arch
from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.evaluate import CHIPS
from gemm_eval.models import gpu as gpu_model
from gemm_eval.models.gpu import ALL_OURS
from gemm_eval.models.gpu.triton import TRITON
from gemm_eval.validation.exam import Exam
from gemm_eval.validation.fit import MIN_ROWS, CrossFit, cross_fit, provenance
from gemm_eval.validation.learned import (
    FittedCorrection,
    bounds_of,
    fitted_correction,
    spread_out,
    spread_thresholds,
    trees_of,
)
from gemm_eval.validation.metrics import ALL, REGIMES
from gemm_eval.validation.subjects import Fitted, chips, triton, written
from gemm_eval.validation.subjects.chip_timings import read_chip_timings
from gemm_eval.validation.subjects.dense import ModelPredictor, model_predictor, rows_of_family
from gemm_eval.validation.subjects.dense_rows import best_records, pack_problems, with_families
from gemm_eval.validation.tables import LEAST_KERNEL_US, Floats, Ints, Timings, list_correction_timings, measured_root
from gemm_eval.words import check_word, needs_extra
from gemm_eval.workload import GemmTypes, RunOptions

# More trees, or larger ones, change held-out errors by a tenth of a point. Leaves of few rows are drawn to 0, without
# which sets of some hundred rows lose where physics is right.
_HOW: dict[str, Any] = {
    "max_leaf_nodes": 31, "max_depth": 8, "min_samples_leaf": 15, "l2_regularization": 40.0, "early_stopping": False,
    "random_state": 0,
}  # fmt: skip
_SMOOTH: dict[str, Any] = {"max_iter": 60, "learning_rate": 0.11}  # trees of smooth features
_OF_KERNEL: dict[str, Any] = {"max_iter": 30, "learning_rate": 0.15}  # those that know the kernel config too
_OF_CONFIGS: dict[str, Any] = {"max_iter": 60, "learning_rate": 0.15, "l2_regularization": 1.0}
"""Of rows that are configs, whose weights are small: the same draw to 0 would hold back more of each leaf."""


def fit_trees(
    features: Floats, targets: Floats, weights: Floats, pairs: Ints, *, are_configs: bool = False
) -> gpu_model.Trees:
    """Fit trees to `targets` [rows] by least squares: first those of smooth features, then all features to the rest.

    Features are [rows, `FEATURES`], weights [rows] of the squares; pairs, [pairs, 2] of N and K, are kept with the
    trees. Rows that `are_configs` tell configs apart: all trees know all features.
    """
    with needs_extra("a learned correction", "calibrate"):
        from sklearn.ensemble import HistGradientBoostingRegressor

    def fit(how: dict[str, Any], x: Floats, y: Floats, seed: int) -> tuple[gpu_model.Trees, Floats]:
        fitted = HistGradientBoostingRegressor(**(_HOW | how)).fit(x, y, sample_weight=weights)
        return spread_thresholds(trees_of(fitted, pairs, gpu_model.LEAF), x, seed), fitted.predict(x)

    if are_configs:
        return fit(_OF_CONFIGS, features, targets, 0)[0]
    smooth, predicted = fit(_SMOOTH, features[:, : len(gpu_model.SMOOTH_FEATURES)], targets, 0)
    rest = np.clip(targets - predicted, -gpu_model.MOST_OF_KERNEL_LOG, gpu_model.MOST_OF_KERNEL_LOG)
    of_kernel, _ = fit(_OF_KERNEL, features, rest, 1)
    num_nodes = len(smooth.number)
    return gpu_model.Trees(
        np.concatenate([smooth.number, of_kernel.number]),
        np.concatenate([smooth.left, of_kernel.left + num_nodes]).astype(np.int16),
        np.concatenate([smooth.feature, of_kernel.feature]),
        np.concatenate([smooth.roots, of_kernel.roots + num_nodes]).astype(np.int16),
        smooth.num_smooth, np.maximum(smooth.depth, of_kernel.depth), smooth.baseline + of_kernel.baseline, pairs,
    )  # fmt: skip


Key = tuple[str, str]
"""Kernel family and question of a correction."""

_NEAR_OCTAVES, _FAR_OCTAVES = 1.0, 2.0  # from the nearest known (N, K); held-out pairs are rarely farther than 1


class Learned(NamedTuple):
    """A correction and where it holds."""

    trees: gpu_model.Trees
    region: gpu_model.Region
    bounds: tuple[float, float]
    versions: tuple[str, ...] = ()  # of the library, which it tells apart


class Answers(NamedTuple):
    """Answers of the model's terms to rows; `cold`: with A and C in L2, for corrections of ``cold-all``."""

    records: npt.NDArray[np.void]  # [rows] of GPU_COST_DTYPE
    cold: npt.NDArray[np.void]  # likewise; `records` in other states
    limits: npt.NDArray[np.void]  # [rows] of LIMITS_DTYPE
    keys: list[Key]  # [rows]
    types: list[GemmTypes]  # [rows]
    options: RunOptions

    def of_key(self, key: Key) -> npt.NDArray[np.int64]:
        return np.flatnonzero([item == key for item in self.keys])


@dataclass(frozen=True)
class CorrectedPredictor:
    """The model with learned corrections by family and question, fitted on the sets `fitted_on` (None: all)."""

    physics: ModelPredictor
    fitted_on: frozenset[str] | None = None
    learned: Mapping[Key, Learned] = field(default_factory=dict)
    name: str = "corrected"

    def fit(self, *train: Timings) -> CorrectedPredictor:
        own = [item for item in train if item.gpu == self.physics.arch.name]
        of_physics = [item for item in own if self.fitted_on is None or item.name in self.fitted_on]
        physics = self.physics.fit(*of_physics) if of_physics else self.physics
        return replace(self, physics=physics).learn(*train)

    def learn(self, *train: Timings) -> CorrectedPredictor:
        """Return one with the coefficients of this one, and corrections fitted on questions of `MIN_ROWS` rows."""
        answers = [(item, self.answers(item), self._unnamed_answers(item)) for item in train]
        learned = {}
        for key in dict.fromkeys(key for _, of_set, _ in answers for key in of_set.keys):
            parts = [(item, of_set, unnamed, of_set.of_key(key)) for item, of_set, unnamed in answers]
            if sum(len(rows) for *_, rows in parts) >= MIN_ROWS:
                learned[key] = _learn([part for part in parts if len(part[3])])
        return replace(self, learned=learned)

    def predict(self, rows: Timings) -> Floats:
        answers = self.answers(rows)
        for key in dict.fromkeys(answers.keys):
            if (learned := self.learned.get(key)) is not None:
                places = answers.of_key(key)
                packed = gpu_model.pack_correction(
                    self._arch_of(rows), answers.types[places[0]], answers.options, *learned[:3]
                )
                gpu_model.correct(answers.cold.view(gpu_model.KERNEL_COST_DTYPE), places, rows.sizes, *packed)
        corrected, records = answers.cold, answers.records
        latency_us: Floats = corrected["latency_us"]
        if corrected is not records:
            factors = np.where(corrected["active_sms"] > 0, corrected["correction_factor"], 1)
            latency_us = records["latency_us"] * factors
        return latency_us + rows.timer_us

    def _unnamed_answers(self, timings: Timings) -> Answers | None:
        """Return the answers to users who name no version; None: they are those of the version."""
        has_own = gpu_model.library_of(timings.library_word).has_own_kernels
        return self.answers(replace(timings, library_version="")) if has_own else None

    def _arch_of(self, timings: Timings) -> GpuSpec:
        arch = self.physics.arch
        return arch if timings.gpu == arch.name else load_arch(timings.gpu, GpuSpec)

    def answers(self, timings: Timings) -> Answers:
        """Return the answer of the model's terms to each row at its best config."""
        library, arch = self.physics.library, self._arch_of(timings)

        def search(asked: Timings) -> tuple[npt.NDArray[np.void], npt.NDArray[np.str_]]:
            packed = pack_problems(arch, library, [asked])
            return best_records(packed, with_families(packed, self.physics.coefficients)), packed.family_of

        is_all_cold = timings.l2 == L2State.COLD_ALL
        records, family_of = search(timings)
        cold = search(replace(timings, l2=str(L2State.COLD)))[0] if is_all_cold else records
        l2 = str(L2State.COLD) if is_all_cold else timings.l2
        options = RunOptions(timings.library_word, l2, timings.clock, timings.quantize_from or None)
        types = [problem.types for problem in timings.problems()]
        questions = {of_row: gpu_model.question_of(of_row, options) for of_row in set(types)}
        limits = {of_row: gpu_model.pack_limits(arch, of_row, options) for of_row in questions}
        keys = [(str(family), questions[of_row]) for family, of_row in zip(family_of, types, strict=True)]
        return Answers(records, cold, np.concatenate([limits[of_row] for of_row in types]), keys, types, options)


def _learn(parts: Sequence[tuple[Timings, Answers, Answers | None, npt.NDArray[np.int64]]]) -> Learned:
    """Fit trees on the rows of sets; the rows of a small set count more, so that no set drowns the others.

    A row counts by the share of its time that the correction can change. If the sets are of several versions of the
    library, each row is learned from twice: with its version, and as `_UNNAMED` of a row for users who name none. Where
    versions have kernels of their own, these users get the fastest: rows of others teach nothing of it.
    """
    of_sets = {timings.library_version for timings, *_ in parts}
    versions = tuple(name for name in gpu_model.library_of(parts[0][0].library).versions if name in of_sets)
    has_versions = len(versions) > 1
    features, targets, weights = [], [], []
    most = max(len(rows) for *_, rows in parts)
    least_us: dict[tuple[int, ...], float] = {}
    for timings, *_, rows in parts:
        for gemm, us in zip(map(tuple, timings.sizes[rows].tolist()), timings.kernel_us[rows].tolist(), strict=True):
            least_us[gemm] = min(us, least_us.get(gemm, us))
    for timings, named, unnamed, rows in parts:
        looks: list[tuple[Answers, bool, Any]] = [(unnamed or named, False, 1.0)]
        if has_versions:
            least = np.array([least_us[gemm] for gemm in map(tuple, timings.sizes[rows].tolist())])
            others = _UNNAMED if unnamed is None else _UNNAMED * (timings.kernel_us[rows] <= least)
            looks = [(named, True, 1.0), (unnamed or named, False, others)]
        for answers, is_named, weight in looks:
            records, cold = answers.records[rows], answers.cold[rows].view(gpu_model.KERNEL_COST_DTYPE)
            x = np.empty((len(rows), len(gpu_model.FEATURES)))
            gpu_model.describe(cold, answers.limits[rows], timings.sizes[rows], x)
            if not is_named:
                x[:, gpu_model.FEATURES.index("version")] = gpu_model.NO_VERSION
            other_us = sum((records[name] for name in gpu_model.OTHER_KERNELS), np.zeros(len(rows)))
            kernel_us = records["physics_us"] - other_us
            features.append(x)
            targets.append(np.log(np.maximum(timings.kernel_us[rows] - other_us, LEAST_KERNEL_US) / kernel_us))
            weights.append(weight * np.sqrt(most / len(rows)) * (kernel_us / records["physics_us"]))
    sizes = np.concatenate([timings.sizes[rows] for timings, *_, rows in parts])
    learned = learned_from(np.concatenate(features), np.concatenate(targets), np.concatenate(weights), sizes)
    return learned._replace(versions=versions if has_versions else ())


def learned_from(
    features: Floats, residuals: Floats, weights: Floats, sizes: Ints, *, are_configs: bool = False
) -> Learned:
    """Fit trees to log(measured / physics) [rows] of GEMMs of `sizes` [rows, 4]; see `fit_trees`."""
    bounds = bounds_of(residuals)
    pairs = np.unique(sizes[:, [3, 2]], axis=0)
    pairs = pairs[spread_out(np.log2(pairs), _APART_OCTAVES)]
    trees = fit_trees(features, np.clip(residuals, *bounds), weights, pairs, are_configs=are_configs)
    physics_us = 2.0 ** features[:, gpu_model.FEATURES.index("latency")]
    region = gpu_model.Region(
        min_m=int(sizes[:, 1].min()), max_m=int(sizes[:, 1].max()), max_g=int(sizes[:, 0].max()),
        min_us=round(float((physics_us * np.exp(residuals)).min()), 3), near=_NEAR_OCTAVES, far=_FAR_OCTAVES,
    )  # fmt: skip
    return Learned(trees, region, bounds)


_APART_OCTAVES = 0.25
_UNNAMED = 0.5


MIN_PAIRS = 20
"""Pairs (N, K) of a question, for a correction that is on."""
SAME_PERCENT = 0.05
"""Points of MAPE by which a regime may be worse: less than what other folds change."""

_FOLDS = 5


def calibrate_correction(
    arch: GpuSpec, library: str, family: str, sets: Sequence[Timings], *, seed: int = 0
) -> list[FittedCorrection]:
    """Fit a correction for each question that the rows of a kernel family ask, on all sets together.

    What is written is fitted on what the committed coefficients leave of all rows. Its errors are those of other fits,
    of coefficients and trees alike, on four fifths of the pairs (N, K), which `seed` deals. It is on if they are
    smaller than those of physics alone, in no regime of M worse by `SAME_PERCENT`, over at least `MIN_PAIRS` pairs.
    """
    coefficients, origin = gpu_model.coefficients_for(arch, library, family)
    if not origin.is_calibrated:
        raise InvalidInputError(
            f"{library}'s {family} kernels on {arch.name} have no calibration that could be corrected"
        )
    kept = rows_of_family(arch, library, family, sets, has_siblings=True)
    crossed = cross_fit(corrected_predictor(arch, library, family), kept, _FOLDS, seed)
    shipped = CorrectedPredictor(model_predictor(arch, library)).learn(*kept)
    digest = gpu_model.physics_digest(coefficients, gpu_model.GPU_MODEL_VERSION)
    return [
        as_files(arch, library, key, shipped.learned[key], rows, digest, seed)
        for key, rows in _by_key(shipped, kept, crossed)
        if key in shipped.learned
    ]


def list_training(arch: GpuSpec, library: str, family: str) -> list[Timings]:
    """Return the committed sets of a library that the correction of a family is learned from, siblings' included.

    A sibling has SMs of the same generation, no calibration of the family, and so the coefficients of this GPU.
    """
    sets = list_correction_timings(arch.name)
    for name in list_archs():
        if name != arch.name and measured_root(name).is_dir():
            other = load_arch(name)
            if isinstance(other, GpuSpec) and other.sm_arch == arch.sm_arch:
                origin = gpu_model.coefficients_for(other, library, family)[1]
                if (origin.gpu, origin.library, origin.is_calibrated) == (arch.name, library, False):
                    sets += list_correction_timings(name)
    return [timings for timings in sets if timings.library == library]


def refit_intervals(
    arch: GpuSpec, library: str, family: str, sets: Sequence[Timings], *, seed: int = 0
) -> list[gpu_model.Correction]:
    """Return committed corrections with new intervals: corrections alone are fitted on four fifths of the pairs."""
    kept = rows_of_family(arch, library, family, sets, has_siblings=True)
    predictor = CorrectedPredictor(model_predictor(arch, library), fitted_on=frozenset())
    crossed = cross_fit(predictor, kept, _FOLDS, seed)
    committed = [
        (gpu_model.find_correction(arch, library, of_family, question, gpu_model.GPU_MODEL_VERSION), rows)
        for (of_family, question), rows in _by_key(predictor, kept, crossed)
    ]
    return [pair[0].model_copy(update=_intervals_of(rows)) for pair, rows in committed if pair is not None]


def corrected_predictor(arch: GpuSpec, library: str, family: str) -> CorrectedPredictor:
    """Return a predictor whose coefficients are fitted on the sets that the calibration of a family names."""
    named = gpu_model.load_calibration(gpu_model.calibration_path(arch.name, library, family)).errors
    return CorrectedPredictor(ModelPredictor(arch, library), frozenset(errors.data for errors in named))


def held_out_times(
    crossed: CrossFit[CorrectedPredictor], timings: Timings, set_index: int = 0
) -> tuple[Floats, Floats]:  # fmt: skip
    """Return the times of a set's rows by physics and by the corrected model, from fits without their pairs."""
    physics = CrossFit(tuple(replace(fit, learned={}) for fit in crossed.fits), crossed.folds)  # of a sibling, too
    return physics.predict(timings, set_index), crossed.predict(timings, set_index)


def held_out_answers(
    crossed: CrossFit[CorrectedPredictor], timings: Timings, set_index: int = 0
) -> tuple[Floats, Floats, list[Key]]:  # fmt: skip
    """Return times as `held_out_times` does, corrected only where the committed correction is on, as for users.

    Last comes the correction that each row asks for.
    """
    physics_us, corrected_us = held_out_times(crossed, timings, set_index)
    first = crossed.fits[0]
    keys = first.answers(timings).keys
    is_on = {}
    for key in dict.fromkeys(keys):
        committed = gpu_model.find_correction(first.physics.arch, timings.library, *key, gpu_model.GPU_MODEL_VERSION)
        is_on[key] = committed is not None and committed[0].is_on
    return physics_us, np.where([is_on[key] for key in keys], corrected_us, physics_us), keys


def _by_key(
    predictor: CorrectedPredictor, kept: Sequence[Timings], crossed: CrossFit[CorrectedPredictor]
) -> Iterator[tuple[Key, pd.DataFrame]]:
    """Yield the rows of each correction: set, hash, M, measured and predicted times, and their log errors."""
    frames = []
    for index, item in enumerate(kept):
        asked = item.whole()  # errors and intervals are those of what users get
        physics_us, corrected_us = held_out_times(crossed, asked, index)
        columns = {
            "data": item.name if item.gpu == predictor.physics.arch.name else f"{item.gpu}/{item.name}",
            "sha256": item.sha256, "key": predictor.answers(item).keys,
            "M": item.sizes[:, 1], "pair": item.pairs, "place": item.regime_places,
            "physics_error": np.abs(physics_us / asked.measured_us - 1.0),
            "corrected_error": np.abs(corrected_us / asked.measured_us - 1.0),
            "physics_log": asked.log_errors(physics_us), "corrected_log": asked.log_errors(corrected_us),
        }  # fmt: skip
        frames.append(pd.DataFrame(columns))
    for key, rows in pd.concat(frames, ignore_index=True).groupby("key", sort=False):
        yield cast("Key", key), rows


def _intervals_of(rows: pd.DataFrame) -> dict[str, Any]:
    places, pairs = rows["place"].to_numpy(), rows["pair"].tolist()
    columns = {"physics_intervals": "physics_log", "intervals": "corrected_log"}
    return {name: gpu_model.fit_intervals(places, rows[of].to_numpy(), pairs) for name, of in columns.items()}


def _errors_of(rows: pd.DataFrame) -> dict[str, Any]:
    """Return the fields of `HeldOut`."""
    physics, corrected = (100.0 * rows[f"{name}_error"].to_numpy().mean() for name in ("physics", "corrected"))
    percents = {"physics_mape_percent": round(float(physics), 3), "corrected_mape_percent": round(float(corrected), 3)}
    return {"num_rows": len(rows), **percents}


def as_files(
    arch: GpuSpec, library: str, key: Key, learned: Learned, rows: pd.DataFrame, digest: str, seed: int
) -> FittedCorrection:
    """Return a correction as files; `rows` are held-out answers with their errors, as `_by_key` yields them."""
    of_regimes = ((regime.name, rows[regime.mask(rows["M"].to_numpy())]) for regime in REGIMES)
    errors = tuple(
        gpu_model.CorrectionErrors(regime=name, **_errors_of(part)) for name, part in of_regimes if len(part)
    )
    data = tuple(
        gpu_model.CorrectionData(data=str(name), sha256=str(sha256), **_errors_of(part))
        for (name, sha256), part in rows.groupby(["data", "sha256"], sort=False)
    )
    # it helps over all rows, and costs no regime more than another deal of folds does
    gains = {item.regime: item.physics_mape_percent - item.corrected_mape_percent for item in errors}
    is_better = gains[ALL] > 0.0 and min(gains.values()) > -SAME_PERCENT
    return fitted_correction(
        gpu_model.Correction, learned.trees, learned.bounds, gpu=arch.name, library=library, family=key[0],
        question=key[1], model_version=gpu_model.GPU_MODEL_VERSION,
        is_on=is_better and rows["pair"].nunique() >= MIN_PAIRS, physics=digest, features=gpu_model.FEATURES,
        region=learned.region, versions=learned.versions, data=data, errors=errors, **_intervals_of(rows),
        **provenance(_FOLDS, "sets", seed),
    )  # fmt: skip


DENSE = "dense"
_EXAMS = {"attention": "attention", "collective": "collective", "memory-bound": "memory_bound", "moe": "experts"}
"""Subjects whose tables are all committed, and their modules."""
SUBJECTS = (DENSE, *_EXAMS, TRITON, ALL_OURS, CHIPS)


def calibrate(
    arch: str, subject: str, family: str | None, library: str, data: list[str] | None, seed: int
) -> Iterator[Fitted]:
    """Learn the corrections of a subject on a GPU or chip; parameters are the options of the command."""
    check_word("subject", subject, SUBJECTS)
    if subject != DENSE:
        return written(_fitted_by_subject(arch, subject, [Path(name) for name in data or ()], seed))
    if family is None:
        raise InvalidOptionError("corrections of GEMMs are of one kernel family: give --family, such as sm90_wgmma")
    from gemm_eval.validation.subjects.gemms import calibrate_correction as of_gemms

    return of_gemms(arch, family, library, data, seed)


def _fitted_by_subject(arch: str, subject: str, paths: Sequence[Path], seed: int) -> Iterator[FittedCorrection]:
    """Yield the corrections of a GPU or chip; `paths`: timings, where they are not the committed ones."""
    path = paths[0] if paths else None
    if subject == CHIPS:
        chip = load_arch(arch, MulticoreSpec, calibrated=False)
        return chips.chip_corrections(chip, read_chip_timings(chip.name, path))
    spec = load_arch(arch, GpuSpec)
    if subject == ALL_OURS:
        from gemm_eval.validation.subjects import w4a16

        return w4a16.w4a16_corrections(spec, paths or w4a16.list_w4a16_tables(spec.name), seed=seed)
    if subject == TRITON:
        return triton.triton_corrections(spec, path or triton.triton_table(spec.name))
    exam: Exam[Any] = import_module(f"gemm_eval.validation.subjects.{_EXAMS[subject]}").exam()
    sets = exam.read(spec.name)
    if not sets:
        raise InvalidOptionError(f"no timings of {subject} on {spec.name} are committed")
    return exam.corrections(spec, sets)
