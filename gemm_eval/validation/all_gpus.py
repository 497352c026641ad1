"""Every GPU with timings in one table, each prediction held out by (N, K): physics, corrected, and what to beat.

Of a GPU with calibrations of its own, everything is fitted on the other pairs: the model on the sets that its
calibrations are fitted on, its correction on all sets, and for each set a roofline and a table of the same rows. On
the others nothing is fitted: their coefficients carry over, and so does the roofline. All errors are of whole answers,
with the quantization of A where that was timed with the GEMM, or apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from gemm_eval.arch import GpuSpec, list_archs, load_arch
from gemm_eval.errors import InvalidOptionError
from gemm_eval.validation.baselines import FittedRoofline, TableInterpolation
from gemm_eval.validation.comparison import answer, are_in_answers, carried_roofline, is_calibrated_on
from gemm_eval.validation.folds import assign_joint_folds, cross_fit
from gemm_eval.validation.metrics import REGIMES, Metrics, measure_errors
from gemm_eval.validation.predictors.corrected import CorrectedPredictor
from gemm_eval.validation.predictors.corrections import held_out_answers
from gemm_eval.validation.predictors.dense import model_predictor
from gemm_eval.validation.predictors.files import fitted_sets
from gemm_eval.validation.predictors.intervals import are_inside
from gemm_eval.validation.tables import list_timings, measured_root
from gemm_eval.validation.timings import Floats, Ints, Mask, Timings
from gemm_eval.words import refusal

__all__ = [
    "ALL_GPUS",
    "CORRECTED",
    "INTERPOLATION",
    "PHYSICS",
    "ROOFLINE",
    "GpuLine",
    "compare_gpus",
    "gpus_with_timings",
]

ALL_GPUS = "all"
"""Instead of names: every GPU with timings."""

ROOFLINE = "fitted roofline"
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
