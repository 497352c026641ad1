"""Libraries' own choices against timings: predictors side by side on a set, and GPUs in one table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from gemm_eval.arch import GpuSpec, list_archs, load_arch
from gemm_eval.errors import InvalidOptionError
from gemm_eval.evaluate import GEMMEvaluator, GEMMTable
from gemm_eval.validation.baselines import FittedRoofline, NaiveRoofline, RooflineSpec, TableInterpolation
from gemm_eval.validation.exam import ALL_GPUS, FITTED
from gemm_eval.validation.fit import assign_joint_folds, cross_fit
from gemm_eval.validation.metrics import REGIMES, Metrics, Score, are_inside, make_score, measure_errors, score
from gemm_eval.validation.predictors import Predictor
from gemm_eval.validation.predictors.corrections import CorrectedPredictor, held_out_answers
from gemm_eval.validation.predictors.corrections import is_available as can_learn
from gemm_eval.validation.predictors.dense import describe_origin, fitted_sets, model_predictor, origin_of
from gemm_eval.validation.predictors.nvidia import NvidiaHeuristics, is_available, knows_types
from gemm_eval.validation.tables import list_timings, measured_root
from gemm_eval.validation.timings import Floats, Ints, Mask, Timings
from gemm_eval.words import refusal


@dataclass(frozen=True, eq=False)
class Compared:
    """A predictor's score on a set.

    Attributes:
        score: its errors, and the predictions.
        predictor: as it was before any fit.
        train: what a curve of this predictor is fitted on; empty: it stays as it is.
        note: of the model: where its coefficients come from.
    """

    score: Score
    predictor: Predictor
    train: tuple[Timings, ...] = ()
    note: str = ""

    def fitted(self) -> Predictor:
        """Return the predictor, fitted on all of `train` outside the bands; for curves, not for errors."""
        kept = [timings.select(~timings.in_band) for timings in self.train]
        return self.predictor.fit(*kept) if kept else self.predictor


def is_default_training(timings: Timings) -> bool:
    """Whether a calibration is fitted on this set unless others are named: cold weights, boost clock."""
    return timings.l2 == "cold" and timings.clock == "burst"


def is_calibrated_on(arch: GpuSpec, timings: Timings) -> bool:
    """Whether the main family of a set's rows has a calibration of this very GPU."""
    return origin_of(arch, timings).is_calibrated


def compare(
    arch: GpuSpec, sets: Sequence[Timings], num_folds: int = 5, seed: int = 0, *,
    refit: bool | None = None, is_joint: bool = False,
) -> Iterator[list[Compared]]:  # fmt: skip
    """Score each set: the model first, then the model with learned corrections, then the baselines.

    Args:
        arch: the GPU that the sets are of.
        sets: what is scored.
        num_folds: at most; a set with fewer (N, K) pairs has as many as pairs.
        seed: deals the pairs to the folds.
        refit: False: the model as it is; None: refitted on a GPU that has a calibration of its own, else as it is.
        is_joint: refit the model on all sets of a library together.

    Raises:
        UnsupportedError: the library has no kernels for these types on this GPU, or the GPU no peak.
    """
    joint = _joint_scores(arch, sets, num_folds, seed) if is_joint else {}
    for timings in sets:
        folds = min(num_folds, len(set(timings.pairs)))
        if is_joint:
            models = joint[id(timings)]
        elif is_calibrated_on(arch, timings) if refit is None else refit:
            models = [
                Compared(
                    score(predictor, timings, folds, seed, has_interval=True), predictor, (timings,),
                    "refitted on this set",
                )
                for predictor in _models(arch, timings.library)
            ]  # fmt: skip
        else:
            yield _as_it_is(arch, timings, folds, seed)
            continue
        yield [*models, *_refitted_baselines(arch, timings, folds, seed)]


def _models(arch: GpuSpec, library: str) -> list[Predictor]:
    """Return the model, and where it can be learned, the model with corrections: its coefficients are fitted alike."""
    model = model_predictor(arch, library)
    return [model, CorrectedPredictor(model)] if can_learn() else [model]


def _joint_scores(arch: GpuSpec, sets: Sequence[Timings], num_folds: int, seed: int) -> dict[int, list[Compared]]:
    found: dict[int, list[Compared]] = {}
    for library in dict.fromkeys(timings.library for timings in sets):
        of_library = [timings for timings in sets if timings.library == library]
        train = [timings for timings in of_library if is_default_training(timings)] or of_library
        folds = min(num_folds, len({pair for item in of_library for pair in item.pairs}))
        names = ", ".join(timings.name for timings in train)
        for predictor in _models(arch, library):
            crossed = cross_fit(predictor, of_library, folds, seed, train=train)
            for place, timings in enumerate(of_library):
                asked = timings.whole()
                predicted_us = crossed.predict(asked, place)
                scored = make_score(
                    asked, predictor.name, predicted_us, f"{folds}-fold joint", folds,
                    is_inside=are_inside(asked, predicted_us, crossed.folds[place]),
                )  # fmt: skip
                compared = Compared(scored, predictor, tuple(train), f"refitted jointly on {names}")
                found.setdefault(id(timings), []).append(compared)
    return found


def make_baselines(arch: RooflineSpec, timings: Timings) -> list[Predictor]:
    """Return what a model that is fitted on `timings` is compared with.

    Rooflines, interpolation of the timings themselves, and nvMatmulHeuristics if it can.
    """
    baselines: list[Predictor] = [NaiveRoofline(arch), FittedRoofline(arch), TableInterpolation(arch)]
    if is_available(arch.name) and knows_types(timings):
        baselines += [NvidiaHeuristics(arch.name), NvidiaHeuristics(arch.name, is_refit=True)]
    return baselines


def _refitted_baselines(arch: GpuSpec, timings: Timings, folds: int, seed: int) -> Iterator[Compared]:
    asked = timings.whole()
    for baseline in make_baselines(arch, asked):
        has_constants = not isinstance(baseline, NaiveRoofline)
        scored = score(baseline, asked, folds if has_constants else 0, seed)
        yield Compared(scored, baseline, (asked,) if has_constants else ())


def _as_it_is(arch: GpuSpec, timings: Timings, folds: int, seed: int) -> list[Compared]:
    origin = origin_of(arch, timings)
    model = model_predictor(arch, timings.library)
    carried = f"on {origin.gpu}" if origin.gpu else "as it is"
    how = "not refitted" if origin.is_calibrated else "transfer" if origin.gpu else "analytic"
    note = f"{how}; coefficients: {describe_origin(arch, timings, origin)}"
    asked = timings.whole()
    corrected = answer(arch, asked)
    compared = []
    for name, answers in ((model.name, answer(arch, asked, correction=False)), ("corrected", corrected)):
        if name == model.name or (corrected["source"] == "corrected").any():
            predicted_us = answers["latency_us"] + asked.timer_us
            scored = make_score(asked, name, predicted_us, carried, is_inside=are_in_answers(asked, answers))
            compared.append(Compared(scored, model, (), note))
    if origin.is_calibrated:
        return [*compared, *_refitted_baselines(arch, timings, folds, seed)]
    baselines: list[tuple[Predictor, str]] = [(NaiveRoofline(arch), "as it is")]
    if (roofline := carried_roofline(arch, timings)) is not None:
        baselines.append((roofline, carried))
    if is_available(arch.name) and knows_types(timings):
        baselines.append((NvidiaHeuristics(arch.name), "as it is"))
    for baseline, words in baselines:
        compared.append(Compared(make_score(asked, baseline.name, baseline.predict(asked), words), baseline))
    return compared


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
"""A roofline whose constants are fitted on the training rows."""

INTERPOLATION = "interpolation"
"""The table of the training rows, interpolated."""

PHYSICS = "physics"
"""The model's terms alone."""

CORRECTED = "corrected"
"""The model with what was learned beyond its terms; of those who predict the last, in the order of columns."""

_MIN_ROWS = 200  # of a set: smaller ones are left to `validate dense`
_LIBRARIES = ("cublas", "trtllm")


class GpuLine(NamedTuple):
    """Errors on the rows of a set and a regime.

    Attributes:
        gpu: arch name.
        data: name of the set, of all its L2 and clock states.
        types: what was multiplied, in words.
        regime: of `REGIMES`.
        is_fitted: on other pairs of this GPU; else everything was carried over.
        errors: by predictor; one that there is not for this set is missing.
        coverage_frac: share of rows in 80% intervals of the model's last predictor: those of other folds' errors, or
            what users get where all was carried over.
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
    """Yield the lines of GPUs: those that something was fitted on first.

    Args:
        names: arch names, or `ALL_GPUS`.
        num_folds: of the cross-validation by (N, K).
        seed: deals the pairs to the folds.

    Raises:
        InvalidOptionError: a GPU without timings.
    """
    known = gpus_with_timings()
    wanted = known if list(names) == [ALL_GPUS] else list(dict.fromkeys(names))
    for name in wanted:
        if name not in known:
            raise InvalidOptionError(refusal("gpu", name, (*known, ALL_GPUS)))
    archs = [load_arch(name, GpuSpec) for name in wanted]
    groups = [(arch, library, sets) for arch in archs for library, sets in _by_library(_sets_of(arch.name))]
    is_own = {id(sets): is_calibrated_on(arch, sets[0]) for arch, _, sets in groups}
    for arch, library, sets in sorted(groups, key=lambda group: not is_own[id(group[2])]):
        yield from (_fitted if is_own[id(sets)] else _carried_over)(arch, library, sets, num_folds, seed)


def _sets_of(gpu: str) -> list[Timings]:
    """Default sets and those held back from fits, of libraries' own choices; large enough to say something."""
    found = [item for item in list_timings(gpu, has_held_back=True) if item.library in _LIBRARIES]
    sizes: dict[str, int] = {}
    for item in found:
        sizes[_name_of(item)] = sizes.get(_name_of(item), 0) + len(item)
    return [item for item in found if sizes[_name_of(item)] >= _MIN_ROWS]


def _name_of(timings: Timings) -> str:
    """Return the name of a table, without the states of L2 and clock that its sets are of."""
    return "/".join(timings.name.split("/")[:2])


def _by_library(sets: Sequence[Timings]) -> Iterator[tuple[str, list[Timings]]]:
    for library, of_library in groupby(sorted(sets, key=lambda item: item.library), lambda item: item.library):
        yield library, list(of_library)


def _fitted(arch: GpuSpec, library: str, sets: Sequence[Timings], num_folds: int, seed: int) -> Iterator[GpuLine]:
    folds = assign_joint_folds(sets, num_folds, seed)
    predictor = CorrectedPredictor(model_predictor(arch, library), fitted_sets(arch.name, library))
    crossed = cross_fit(predictor, sets, num_folds, seed, folds=folds)
    asked = [item.whole() for item in sets]
    both = [held_out_answers(crossed, item, place) for place, item in enumerate(asked)]
    of_model = {PHYSICS: [physics_us for physics_us, _ in both], CORRECTED: [corrected_us for _, corrected_us in both]}
    for places in _by_table(asked):
        of_table = [asked[place] for place in places]
        of_folds = [folds[place] for place in places]
        predicted = {
            ROOFLINE: _crossed(FittedRoofline(arch), of_table, of_folds, num_folds),
            INTERPOLATION: _crossed(TableInterpolation(arch), of_table, of_folds, num_folds),
            **{name: np.concatenate([found[place] for place in places]) for name, found in of_model.items()},
        }
        inside = [are_inside(asked[place], of_model[CORRECTED][place], folds[place]) for place in places]
        yield from _lines(arch.name, of_table, predicted, np.concatenate(inside), is_fitted=True)


def _carried_over(arch: GpuSpec, _: str, sets: Sequence[Timings], *__: int) -> Iterator[GpuLine]:
    for places in _by_table(sets):
        of_table = [sets[place].whole() for place in places]
        answers = [answer(arch, item) for item in of_table]
        predicted = {
            PHYSICS: np.concatenate(
                [of_item["latency_us"] + item.timer_us for item, of_item in zip(of_table, answers, strict=True)]
            )
        }
        inside = [are_in_answers(item, of_item) for item, of_item in zip(of_table, answers, strict=True)]
        roofline = carried_roofline(arch, of_table[0])
        if roofline is not None:
            predicted = {ROOFLINE: np.concatenate([roofline.predict(item) for item in of_table])} | predicted
        yield from _lines(arch.name, of_table, predicted, np.concatenate(inside), is_fitted=False)


def _by_table(sets: Sequence[Timings]) -> list[list[int]]:
    places: dict[str, list[int]] = {}
    for place, item in enumerate(sets):
        places.setdefault(_name_of(item), []).append(place)
    return list(places.values())


def _crossed(predictor: Any, sets: Sequence[Timings], folds: Sequence[Ints], num_folds: int) -> Floats:
    crossed = cross_fit(predictor, sets, num_folds, folds=folds)
    return np.concatenate([crossed.predict(item, place) for place, item in enumerate(sets)])


def _lines(
    gpu: str, sets: Sequence[Timings], predicted: dict[str, Floats], is_inside: Mask, *, is_fitted: bool
) -> Iterator[GpuLine]:
    measured_us = np.concatenate([item.measured_us for item in sets])
    types = sets[0].problems()[0].types
    for regime in REGIMES:
        mask = np.concatenate([regime.mask(item) & ~item.in_band for item in sets])
        if mask.any():
            errors = {name: measure_errors(measured_us[mask], us[mask]) for name, us in predicted.items()}
            coverage_frac = float(is_inside[mask].mean())
            yield GpuLine(gpu, _name_of(sets[0]), types.inputs, regime.name, is_fitted, errors, coverage_frac)
