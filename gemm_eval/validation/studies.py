"""Models of single configs against timings: predictions, choices and what choosing costs, beside baselines."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gemm_eval.arch import GpuSpec
from gemm_eval.errors import InvalidInputError
from gemm_eval.validation import choice
from gemm_eval.validation.baselines import FittedRoofline, NaiveRoofline
from gemm_eval.validation.fit import MIN_ROWS, cross_fit
from gemm_eval.validation.metrics import ALL, REGIMES, Errors, Score, regime_of, row_groups, score_crossed
from gemm_eval.validation.predictors.nvidia import nvidia_choices
from gemm_eval.validation.predictors.triton import TritonModel, without_code
from gemm_eval.validation.predictors.w4a16 import (
    W4A16Model,
    has_all_configs,
    is_w4a16_calibrated,
    list_w4a16_tables,
    read_w4a16_timings,
)
from gemm_eval.validation.tables import meta_of
from gemm_eval.validation.timings import Ints, Mask, Timings

NOT_INSTALLED = "nvMatmulHeuristics: not installed"
FIRST = ("first", "first 3", "first 20%")
"""Numbers of a GEMM's configs that are timed, in a method's order, and the best of them taken: Triton's choices."""

_STATIC = "static scoring"
_PROFILED = (3, 10)  # of the model's first ones
_US_PER_S = 1e6


@dataclass(frozen=True, eq=False)
class Study:
    """All scores of timings of single configs, the model's first.

    Attributes:
        title: what the rows are and how they were held out.
        losses: of each method and group of GEMMs; `choices`: of each method.
        is_full: [gemms], whether all configs of a GEMM were timed.
        cost: of choosing.
        overhead_us: method -> time that it takes for one GEMM beside what it profiles, where that was measured.
        missing: methods that could not be run, in words.
        is_held_back: the rows were scored with the committed coefficients.
    """

    title: str
    timings: Timings
    scores: Sequence[Score]
    losses: Sequence[choice.Loss]
    choices: Sequence[choice.Choices] = ()
    is_full: Mask = field(default_factory=lambda: np.zeros(0, bool))
    cost: choice.ChoiceCost | None = None
    overhead_us: dict[str, float] = field(default_factory=dict)
    missing: Sequence[str] = ()
    is_held_back: bool = False

    @property
    def errors(self) -> list[Errors]:
        """Errors of each score, by group and regime."""
        return [item for scored in self.scores for item in scored.errors]


def find_w4a16_tables(arch: GpuSpec, files: Sequence[Path], *, is_fit: bool | None) -> tuple[list[Path], list[Path]]:
    """Return the tables whose rows are held out of fits, and those that are scored with the committed coefficients.

    No files: all that come with the library. `is_fit` False: nothing is fitted; None: only on a GPU with calibrations.
    """
    for path in files:
        if not path.is_file():
            raise InvalidInputError(f"cannot read timings from {path}: there is no such file")
    held_back = [path for path in files if "held_back" in meta_of(path)]
    fitted = [path for path in files if path not in held_back]
    if not files:
        fitted, held_back = (list_w4a16_tables(arch.name, is_held_back=value) for value in (False, True))
    if is_fit is None:
        is_fit = is_w4a16_calibrated(arch)
    return (fitted, held_back) if is_fit else ([], fitted + held_back)


def study_w4a16(
    arch: GpuSpec, paths: Sequence[Path], num_folds: int = 5, seed: int = 0, train: Sequence[Path] | None = None
) -> Study:
    """Score the model and its baselines on tables of `gemm-eval measure --kernel w4a16`.

    With `train` None model and roofline are fitted on other pairs of the same tables. Else the model has the
    coefficients that the library has, and the roofline is fitted on the tables `train`; empty: there is no such
    roofline.

    Raises:
        InvalidInputError: no table, or one that cannot be read.
        InvalidOptionError: fewer pairs than folds.
    """
    timings = read_w4a16_timings(arch, paths)
    roofline, model = FittedRoofline(arch, by_group=True, min_rows=MIN_ROWS), W4A16Model(arch)
    scores: list[Score] = []
    if train is None:
        for predictor in (model, roofline):
            crossed = cross_fit(predictor, [timings], num_folds, seed)
            folds = f"{num_folds}-fold by (N, K)"
            scores.append(score_crossed(crossed, predictor.name, timings, how=folds, has_order=True))
        how = f"coefficients fitted on other (N, K) pairs: {num_folds} folds, seed {seed}"
    else:
        model, origin = W4A16Model.as_it_is(arch)
        zeros = np.zeros(len(timings), np.int64)
        us = model.predict(timings)
        scores.append(Score(timings, model.name, us, origin, has_order=True, fitted=[model], fit_of=zeros))
        if train:
            us = roofline.fit(read_w4a16_timings(arch, train)).predict(timings)
            words = "fitted on all that the model is fitted on"
            scores.append(Score(timings, roofline.name, us, words, has_order=True))
        how = f"model as it is, coefficients {origin}"
    scores.append(_naive(arch, timings))
    choices, overhead_us, missing = _choose(timings, scores)
    is_full = has_all_configs(timings)
    cost = choice.measure_choice_cost(
        arch, timings, is_full, {path.stem: meta_of(path).get("protocol", {}) for path in paths}
    )
    overhead_us |= {choice.method: cost.model_us for choice in choices if choice.method.startswith(model.name)}
    counts = f"{len(timings):,} timings of {timings.gemm.max() + 1} GEMMs, {len(set(timings.pairs))} (N, K) pairs"
    losses = list(_losses(timings, choices, is_full))
    title = f"{timings.name}: {counts}; {how}"
    return Study(title, timings, scores, losses, choices, is_full, cost, overhead_us, missing, train is not None)


def _naive(arch: GpuSpec, timings: Timings) -> Score:
    baseline = NaiveRoofline(arch)
    return Score(timings, baseline.name, baseline.predict(timings), "data sheet")


def _choose(timings: Timings, scores: Sequence[Score]) -> tuple[list[choice.Choices], dict[str, float], list[str]]:
    order = choice.order_by(timings, scores[0].predicted_us)
    choices = [choice.ranked_choice(timings, "model", order)]
    choices += [choice.ranked_choice(timings, f"model + profile {num}", order, num) for num in _PROFILED]
    overhead_us: dict[str, float] = {}
    num_gemms = int(timings.gemm.max()) + 1
    others = {scored.predictor: scored.predicted_us for scored in scores[1:] if scored.has_order}
    for name in (*others, _STATIC):
        start = time.perf_counter()
        order = choice.order_by(timings, others[name] if name in others else -choice.static_points(timings))
        overhead_us[name] = _US_PER_S * (time.perf_counter() - start) / num_gemms
        choices.append(choice.ranked_choice(timings, name, order))
    choices.append(choice.ranked_choice(timings, f"static + profile {_PROFILED[-1]}", order, _PROFILED[-1]))
    overhead_us[choices[-1].method] = overhead_us[_STATIC]
    of_nvidia, asked_us = nvidia_choices(timings) or ([], 0.0)
    choices += of_nvidia
    overhead_us |= {choice.method: asked_us for choice in of_nvidia}
    choices.append(choice.random_choice(timings))
    choices.append(
        choice.ranked_choice(timings, "profile all", choice.order_by(timings, timings.measured_us), len(timings))
    )
    return choices, overhead_us, [] if of_nvidia else [NOT_INSTALLED]


def _losses(timings: Timings, choices: Sequence[choice.Choices], is_full: Mask) -> Iterator[choice.Loss]:
    regimes = regime_of(timings)[choice.first_rows(timings)]
    for name, of_group in (("all configs timed", is_full), ("all GEMMs", np.ones(len(is_full), bool))):
        for regime in (ALL, *(item.name for item in REGIMES[:-1])):
            gemms = of_group if regime == ALL else of_group & (regimes == regime)
            if gemms.any():
                yield from (choice.measure_loss(timings, item, gemms, name, regime) for item in choices)


def study_triton(arch: GpuSpec, timings: Timings, num_folds: int = 5, seed: int = 0, *, is_fit: bool = True) -> Study:
    """Score the model of Triton kernels and its baselines on a table of timings; a row by fits on other folds.

    Without `is_fit` the coefficients that the library has for this GPU are scored.

    Raises:
        InvalidInputError: too few rows for a fit.
        InvalidOptionError: fewer pairs than folds.
    """
    scores = [*(_held_out if is_fit else _as_it_is)(arch, timings, num_folds, seed), _naive(arch, timings)]
    nums: list[int | Ints] = [1, 3, choice.share_of_configs(timings, 0.2)]
    methods = [
        [
            choice.ranked_choice(timings, scored.predictor, choice.order_by(timings, scored.predicted_us), num, how)
            for num, how in zip(nums, FIRST, strict=True)
        ]
        for scored in scores
        if scored.has_order
    ]
    methods.append([choice.random_speeds(timings, FIRST[0])])
    first = choice.first_rows(timings)
    groups = [(rows[first], group, regime) for group, regime, rows in row_groups(timings)]
    losses = [choice.measure_loss(timings, item, *group) for method in methods for group in groups for item in method]
    title = (
        f"Triton kernels on {timings.gpu}: {len(timings):,} timings of {timings.gemm.max() + 1:,} GEMMs, "
        f"{len(set(timings.pairs))} (N, K) pairs, cold L2"
    )
    return Study(title, timings, scores, losses, [item for method in methods for item in method])


def _held_out(arch: GpuSpec, timings: Timings, num_folds: int, seed: int) -> Iterator[Score]:
    folds, num_threads = f"{num_folds}-fold by (N, K)", TritonModel.NUM_THREADS
    bare = without_code(timings)
    fits = cross_fit(TritonModel(arch), [timings], num_folds, seed, num_threads=num_threads)
    refits = cross_fit(fits.fits, [bare], num_folds, folds=fits.folds, num_threads=num_threads)
    roofline = cross_fit(FittedRoofline(arch, by_group=True), [timings], num_folds, seed)
    yield score_crossed(fits, "model", timings, how=f"with machine code, {folds}", has_order=True)
    yield score_crossed(refits, "no code, refit", bare, how=f"estimated code, fitted on it, {folds}", has_order=True)
    yield score_crossed(fits, "no code", bare, how="estimated code, coefficients of the model", has_order=True)
    yield score_crossed(roofline, "fitted roofline", timings, how=f"by data set, {folds}")


def _as_it_is(arch: GpuSpec, timings: Timings, *_: int) -> Iterator[Score]:
    model, origin = TritonModel.as_it_is(arch)
    for name, code, rows in (("model", "with machine", timings), ("no code", "estimated", without_code(timings))):
        yield Score(timings, name, model.predict(rows), f"{code} code, {origin}", has_order=True)
