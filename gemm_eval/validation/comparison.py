"""Libraries' own choices against timings: predictors side by side on a set, and GPUs in one table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby
from typing import NamedTuple

import numpy as np

from gemm_eval.arch import GpuSpec, list_archs, load_arch
from gemm_eval.evaluate import GEMMEvaluator, GEMMTable
from gemm_eval.validation.baselines import FittedRoofline, NaiveRoofline, TableInterpolation
from gemm_eval.validation.exam import FITTED, chosen_gpus
from gemm_eval.validation.fit import assign_joint_folds, cross_fit
from gemm_eval.validation.metrics import REGIMES, Metrics, Score, are_inside, measure_errors, score, score_crossed
from gemm_eval.validation.predictors import Predictor
from gemm_eval.validation.predictors.corrections import CorrectedPredictor, held_out_answers
from gemm_eval.validation.predictors.corrections import is_available as can_learn
from gemm_eval.validation.predictors.dense import describe_origin, fitted_sets, model_predictor, origin_of
from gemm_eval.validation.predictors.nvidia import NvidiaHeuristics, is_available, knows_types
from gemm_eval.validation.tables import list_timings, measured_root
from gemm_eval.validation.timings import Floats, Mask, Timings


def is_default_training(timings: Timings) -> bool:
    """Return whether a calibration is fitted on this set unless others are named: cold weights, boost clock."""
    return timings.l2 == "cold" and timings.clock == "burst"


def is_calibrated_on(arch: GpuSpec, timings: Timings) -> bool:
    """Return whether the main family of a set's rows has a calibration of this very GPU."""
    return origin_of(arch, timings).is_calibrated


def compare(
    arch: GpuSpec, sets: Sequence[Timings], num_folds: int = 5, seed: int = 0, *,
    refit: bool | None = None, is_joint: bool = False,
) -> Iterator[list[Score]]:  # fmt: skip
    """Score each set: the model first, then the model with learned corrections, then the baselines.

    Args:
        arch: the GPU that the sets are of.
        sets: what is scored.
        num_folds: at most; a set with fewer (N, K) pairs has as many as pairs. `seed` deals them.
        refit: False: the model as it is; None: refitted on a GPU that has a calibration of its own, else as it is.
        is_joint: refit the model on all sets of a library together.

    Raises:
        UnsupportedError: the library has no kernels for these types on this GPU, or the GPU no peak.
    """
    joint: dict[str, list[Score]] = {}
    for library, of_library in _by_library(sets) if is_joint else ():
        train = [timings for timings in of_library if is_default_training(timings)] or of_library
        note = f"refitted jointly on {', '.join(timings.name for timings in train)}"
        joint |= _refitted(arch, library, of_library, train, num_folds, seed, " joint", note)
    for timings in sets:
        if is_joint:
            models = joint[timings.name]
        elif is_calibrated_on(arch, timings) if refit is None else refit:
            note = "refitted on this set"
            models = _refitted(arch, timings.library, [timings], [timings], num_folds, seed, "", note)[timings.name]
        else:
            yield _as_it_is(arch, timings, num_folds, seed)
            continue
        yield [*models, *_refitted_baselines(arch, timings, num_folds, seed)]


def _models(arch: GpuSpec, library: str) -> list[Predictor]:
    """Return the model, and where it can be learned, the model with corrections: its coefficients are fitted alike."""
    model = model_predictor(arch, library)
    return [model, CorrectedPredictor(model)] if can_learn() else [model]


def _refitted(
    arch: GpuSpec, library: str, sets: Sequence[Timings], train: Sequence[Timings], num_folds: int, seed: int,
    how: str, note: str,
) -> dict[str, list[Score]]:  # fmt: skip
    """Score models fitted on the sets `train` of `sets`, by name of the set."""
    folds = min(num_folds, len({pair for item in sets for pair in item.pairs}))
    by_set: dict[str, list[Score]] = {item.name: [] for item in sets}
    for predictor in _models(arch, library):
        crossed = cross_fit(predictor, sets, folds, seed, train=train)
        for index, item in enumerate(sets):
            scored = score_crossed(crossed, predictor.name, item, index, f"{folds}-fold{how}", has_interval=True)
            by_set[item.name].append(replace(scored, note=note))
    return by_set


def make_baselines(arch: GpuSpec, timings: Timings) -> list[Predictor]:
    """Return rooflines, interpolation of the timings themselves, and nvMatmulHeuristics if it can."""
    baselines: list[Predictor] = [NaiveRoofline(arch), FittedRoofline(arch), TableInterpolation(arch)]
    if is_available(arch.name) and knows_types(timings):
        baselines += [NvidiaHeuristics(arch.name), NvidiaHeuristics(arch.name, is_refit=True)]
    return baselines


def _refitted_baselines(arch: GpuSpec, timings: Timings, num_folds: int, seed: int) -> Iterator[Score]:
    asked, folds = timings.whole(), min(num_folds, len(set(timings.pairs)))
    for baseline in make_baselines(arch, asked):
        yield score(baseline, asked, 0 if isinstance(baseline, NaiveRoofline) else folds, seed)


def _as_it_is(arch: GpuSpec, timings: Timings, num_folds: int, seed: int) -> list[Score]:
    origin = origin_of(arch, timings)
    model = model_predictor(arch, timings.library)
    carried = f"on {origin.gpu}" if origin.gpu else "as it is"
    how = "not refitted" if origin.is_calibrated else "transfer" if origin.gpu else "analytic"
    note = f"{how}; coefficients: {describe_origin(arch, timings, origin)}"
    asked = timings.whole()
    scores = []
    for name, answers in ((model.name, answer(arch, asked, correction=False)), ("corrected", answer(arch, asked))):
        if name == model.name or (answers["source"] == "corrected").any():
            us, inside = answers["latency_us"] + asked.timer_us, are_in_answers(asked, answers)
            scores.append(Score(asked, name, us, carried, is_inside=inside, note=note))
    if origin.is_calibrated:
        return [*scores, *_refitted_baselines(arch, timings, num_folds, seed)]
    baselines: list[tuple[Predictor, str]] = [(NaiveRoofline(arch), "as it is")]
    if (roofline := carried_roofline(arch, timings)) is not None:
        baselines.append((roofline, carried))
    if is_available(arch.name) and knows_types(timings):
        baselines.append((NvidiaHeuristics(arch.name), "as it is"))
    return [*scores, *(Score(asked, item.name, item.predict(asked), words) for item, words in baselines)]


def answer(arch: GpuSpec, asked: Timings, *, correction: bool = True) -> GEMMTable:
    """Return the answers that users get for the rows of a set, by the words that its table has for them."""
    evaluator = GEMMEvaluator(arch, disk_cache=False, library=asked.library, l2=asked.l2, clock=asked.clock)
    return evaluator.evaluate_many(
        asked.problems(), correction=correction, quantize_from=asked.quantize_from or None, progress=False
    )


def are_in_answers(asked: Timings, answers: GEMMTable) -> Mask:
    """Return which times of a set, without what the measurement added, lie in the intervals of its answers."""
    inside: Mask = (asked.kernel_us >= answers["low_us"]) & (asked.kernel_us <= answers["high_us"])
    return inside


def carried_roofline(arch: GpuSpec, timings: Timings) -> FittedRoofline | None:
    """Return a roofline fitted on the timings of the GPU that the coefficients for a set come from.

    They are of the same library, and of the same types if there are any; None: there are none at all.
    """
    gpu = origin_of(arch, timings).gpu
    if gpu is None:
        return None
    others = [item for item in _timings_of(gpu) if item.library == timings.library]
    alike = [item for item in others if (item.l2, item.clock) == (timings.l2, timings.clock)] or others
    train = [item for item in alike if _types(item) == _types(timings)] or alike
    if not train:
        return None
    fitted = FittedRoofline(load_arch(gpu, GpuSpec)).fit(*(item.whole().select(~item.in_band) for item in train))
    return replace(fitted, arch=arch)


@cache
def _timings_of(gpu: str) -> tuple[Timings, ...]:
    return tuple(list_timings(gpu))


def _types(timings: Timings) -> set[tuple[str, str]]:
    return set(zip(timings.column("input_dtype").tolist(), timings.column("weight_dtype").tolist(), strict=True))


ROOFLINE = FITTED
INTERPOLATION = "interpolation"
PHYSICS = "physics"
CORRECTED = "corrected"
"""Predictors in the order of columns: a roofline whose constants are fitted on the training rows; the table of these
rows, interpolated; the model's terms alone; the model with what was learned beyond its terms."""

_MIN_ROWS = 200  # of a set: smaller ones are left to `validate dense`
_LIBRARIES = ("cublas", "trtllm")


class GpuLine(NamedTuple):
    """Errors by predictor on the rows of a table and a regime.

    `is_fitted` says that they are of fits on other pairs of this GPU; else everything was carried over. `coverage_frac`
    is the share of rows in 80% intervals of the last predictor: those of other folds' errors, or what users get.
    """

    gpu: str
    data: str
    types: str
    regime: str
    is_fitted: bool
    errors: dict[str, Metrics]
    coverage_frac: float


def gpus_with_timings() -> list[str]:
    """Return the GPUs with committed timings of libraries, by name."""
    timed = [name for name in list_archs() if measured_root(name).is_dir()]
    return [name for name in timed if isinstance(load_arch(name), GpuSpec) and _sets_of(name)]


def compare_gpus(names: Sequence[str], num_folds: int = 5, seed: int = 0) -> Iterator[GpuLine]:
    """Yield the lines of GPUs (names, or ``all``): those that something was fitted on first.

    Raises:
        InvalidOptionError: a GPU without timings.
    """
    archs = [load_arch(name, GpuSpec) for name in chosen_gpus(names, gpus_with_timings())]
    groups = [
        (not is_calibrated_on(arch, sets[0]), arch, library, sets)
        for arch in archs
        for library, sets in _by_library(_sets_of(arch.name))
    ]
    for is_carried, arch, library, sets in sorted(groups, key=lambda group: group[0]):
        yield from _carried_over(arch, sets) if is_carried else _fitted(arch, library, sets, num_folds, seed)


def _sets_of(gpu: str) -> list[Timings]:
    """Return default sets and those held back from fits, of libraries' own choices; large enough to say something."""
    sets = [item for item in list_timings(gpu, has_held_back=True) if item.library in _LIBRARIES]
    by_table = _by_table(sets).values()
    large = {index for of_table in by_table if sum(len(sets[i]) for i in of_table) >= _MIN_ROWS for index in of_table}
    return [item for index, item in enumerate(sets) if index in large]


def _by_library(sets: Sequence[Timings]) -> Iterator[tuple[str, list[Timings]]]:
    for library, of_library in groupby(sorted(sets, key=lambda item: item.library), lambda item: item.library):
        yield library, list(of_library)


def _by_table(sets: Sequence[Timings]) -> dict[str, list[int]]:
    """Return the places of sets by the name of their table, without states of L2 and clock."""
    places: dict[str, list[int]] = {}
    for index, item in enumerate(sets):
        places.setdefault("/".join(item.name.split("/")[:2]), []).append(index)
    return places


def _fitted(arch: GpuSpec, library: str, sets: Sequence[Timings], num_folds: int, seed: int) -> Iterator[GpuLine]:
    folds = assign_joint_folds(sets, num_folds, seed)
    predictor = CorrectedPredictor(model_predictor(arch, library), fitted_sets(arch.name, library))
    crossed = cross_fit(predictor, sets, num_folds, folds=folds)
    asked = [item.whole() for item in sets]
    of_model = [held_out_answers(crossed, item, index) for index, item in enumerate(asked)]
    for name, indices in _by_table(asked).items():
        of_table, of_folds = [asked[index] for index in indices], [folds[index] for index in indices]
        predicted: dict[str, Sequence[Floats]] = {}
        for who, baseline in ((ROOFLINE, FittedRoofline(arch)), (INTERPOLATION, TableInterpolation(arch))):
            fits = cross_fit(baseline, of_table, num_folds, folds=of_folds)
            predicted[who] = [fits.predict(item, index) for index, item in enumerate(of_table)]
        predicted[PHYSICS], predicted[CORRECTED] = zip(*(of_model[index] for index in indices), strict=True)
        inside = map(are_inside, of_table, predicted[CORRECTED], of_folds)
        yield from _lines(arch.name, name, of_table, predicted, list(inside), is_fitted=True)


def _carried_over(arch: GpuSpec, sets: Sequence[Timings]) -> Iterator[GpuLine]:
    for name, indices in _by_table(sets).items():
        of_table = [sets[index].whole() for index in indices]
        answers = [answer(arch, item) for item in of_table]
        roofline = carried_roofline(arch, of_table[0])
        predicted: dict[str, Sequence[Floats]] = (
            {} if roofline is None else {ROOFLINE: list(map(roofline.predict, of_table))}
        )
        predicted[PHYSICS] = [of["latency_us"] + item.timer_us for of, item in zip(answers, of_table, strict=True)]
        inside = list(map(are_in_answers, of_table, answers))
        yield from _lines(arch.name, name, of_table, predicted, inside, is_fitted=False)


def _lines(
    gpu: str, name: str, sets: Sequence[Timings], predicted: Mapping[str, Sequence[Floats]], inside: Sequence[Mask], *,
    is_fitted: bool,
) -> Iterator[GpuLine]:  # fmt: skip
    measured_us = np.concatenate([item.measured_us for item in sets])
    types = sets[0].problems()[0].types.inputs
    for regime in REGIMES:
        mask = np.concatenate([regime.mask(item.sizes[:, 1]) & ~item.in_band for item in sets])
        if mask.any():
            errors = {who: measure_errors(measured_us[mask], np.concatenate(us)[mask]) for who, us in predicted.items()}
            coverage_frac = float(np.concatenate(inside)[mask].mean())
            yield GpuLine(gpu, name, types, regime.name, is_fitted, errors, coverage_frac)
