"""The GPU model beside its baselines, on the same rows and fitted on them, as `gemm-eval validate dense` prints it.

Three ways to score a set:

- refit: every coefficient and every constant is fitted on other (N, K) pairs of the set (cross-validation);
- joint: the model is fitted on other pairs of all sets of the library that are cold and in bursts, as `calibrate` does,
  so its errors are those of a committed calibration; baselines are refitted on each set, which favours them;
- as it is: what users are answered with the committed calibration. On a GPU without one, that is a transfer: the
  coefficients are those of another GPU, and the roofline carries over in the same way, as shares of the data sheet's
  numbers.

Fits learn from GEMMs alone where their quantization was timed apart; errors are those of whole answers
(`Timings.whole`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.evaluate import GEMMEvaluator, GEMMTable
from gemm_eval.validation.baselines import FittedRoofline, NaiveRoofline, RooflineSpec, TableInterpolation
from gemm_eval.validation.folds import cross_fit
from gemm_eval.validation.predictors import Predictor
from gemm_eval.validation.predictors.corrected import CorrectedPredictor
from gemm_eval.validation.predictors.dense import model_predictor
from gemm_eval.validation.predictors.files import describe_origin, origin_of
from gemm_eval.validation.predictors.intervals import are_inside
from gemm_eval.validation.predictors.nvidia import NvidiaHeuristics, is_available, knows_types
from gemm_eval.validation.predictors.trees import is_available as can_learn
from gemm_eval.validation.scores import Score, make_score, score
from gemm_eval.validation.tables import list_timings
from gemm_eval.validation.timings import Mask, Timings

__all__ = [
    "Compared",
    "answer",
    "are_in_answers",
    "carried_roofline",
    "compare",
    "is_calibrated_on",
    "is_default_training",
    "make_baselines",
]


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
    """The model, and where it can be learned, the model with corrections: its coefficients are fitted alike."""
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
