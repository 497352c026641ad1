"""Models of single configs against timings: predictions, choices and what choosing costs, beside baselines."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gemm_eval.arch import GpuSpec
from gemm_eval.errors import InvalidInputError
from gemm_eval.validation.baselines import GroupedRoofline, NaiveRoofline
from gemm_eval.validation.choice import (
    ChoiceCost,
    Choices,
    Loss,
    first_rows,
    measure_choice_cost,
    measure_loss,
    order_by,
    random_choice,
    random_speeds,
    ranked_choice,
    share_of_configs,
    static_points,
)
from gemm_eval.validation.fit import cross_fit
from gemm_eval.validation.metrics import ALL, REGIMES, Errors, Score, make_score, regime_of, row_groups, score_held_out
from gemm_eval.validation.predictors import Predictor
from gemm_eval.validation.predictors.nvidia import nvidia_choices
from gemm_eval.validation.predictors.triton import NUM_THREADS, TritonModel, without_code
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
"""How many of a GEMM's configs, in the order of a method, are timed and the best of them taken: Triton's choices."""

_STATIC = "static scoring"
_PROFILED = (3, 10)  # of the model's first ones
_US_PER_S = 1e6


@dataclass(frozen=True, eq=False)
class Study:
    """All scores of timings of single configs.

    Attributes:
        title: what the rows are and how they were held out.
        timings: the rows.
        scores: of the model first, then of its variants and of baselines.
        losses: of each method and group of GEMMs.
        choices: of each method.
        is_full: [gemms], whether all configs of a GEMM were timed.
        cost: of choosing.
        overhead_us: method -> time that it takes for one GEMM beside what it profiles, where that was measured.
        missing: methods that could not be run, in words.
        is_held_back: the rows were scored with the committed coefficients.
    """

    title: str
    timings: Timings
    scores: tuple[Score, ...]
    losses: tuple[Loss, ...]
    choices: tuple[Choices, ...] = ()
    is_full: Mask = field(default_factory=lambda: np.zeros(0, bool))
    cost: ChoiceCost | None = None
    overhead_us: dict[str, float] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    is_held_back: bool = False

    @property
    def errors(self) -> list[Errors]:
        """Errors of each score, by group and regime."""
        return [item for scored in self.scores for item in scored.errors]


def find_w4a16_tables(arch: GpuSpec, files: Sequence[Path], *, is_fit: bool | None) -> tuple[list[Path], list[Path]]:
    """Return the tables whose rows are held out of fits, and those that are scored with the committed coefficients.

    Args:
        arch: the GPU.
        files: tables; empty: all that come with the library.
        is_fit: False: nothing is fitted; None: only on a GPU that has calibrations of its own.
    """
    for path in files:
        if not path.is_file():
            raise InvalidInputError(f"cannot read timings from {path}: there is no such file")
    found = list(files) or list_w4a16_tables(arch.name)
    held_back = [] if files else list_w4a16_tables(arch.name, is_held_back=True)
    held_back += [path for path in files if "held_back" in meta_of(path)]
    fitted = [path for path in found if path not in held_back]
    if is_fit is None:
        is_fit = is_w4a16_calibrated(arch)
    return (fitted, held_back) if is_fit else ([], fitted + held_back)


def study_w4a16(
    arch: GpuSpec, paths: Sequence[Path], num_folds: int = 5, seed: int = 0, train: Sequence[Path] | None = None
) -> Study:
    """Score the model and its baselines on tables of `gemm-eval measure --kernel w4a16`.

    Args:
        arch: the GPU that they are of.
        paths: tables.
        num_folds, seed: deal the pairs (N, K) to folds.
        train: None: model and roofline are fitted on other pairs of the same tables. Else the model has the
            coefficients that the library has, and the roofline is fitted on these tables; empty: no such roofline.

    Raises:
        InvalidInputError: no table, or one that cannot be read.
        InvalidOptionError: fewer pairs than folds.
    """
    timings = read_w4a16_timings(arch, paths)
    roofline, folds = GroupedRoofline(arch), f"{num_folds}-fold by (N, K)"
    scores: list[Score] = []
    if train is None:
        predictors: tuple[Predictor, ...] = (W4A16Model(arch), roofline)
        for predictor in predictors:
            crossed = cross_fit(predictor, [timings], num_folds, seed)
            scores.append(score_held_out(predictor.name, folds, timings, crossed))
        how = f"coefficients fitted on other (N, K) pairs: {num_folds} folds, seed {seed}"
    else:
        model, origin = W4A16Model.as_it_is(arch)
        zeros = np.zeros(len(timings), np.int64)
        predicted_us = model.predict(timings)
        scores.append(make_score(timings, "model", predicted_us, origin, has_order=True, fitted=[model], fit_of=zeros))
        if train:
            predicted_us = roofline.fit(read_w4a16_timings(arch, train)).predict(timings)
            words = "fitted on all that the model is fitted on"
            scores.append(make_score(timings, roofline.name, predicted_us, words, has_order=True))
        how = f"model as it is, coefficients {origin}"
    scores.append(_naive(arch, timings))
    choices, overhead_us, missing = _choose(timings, scores)
    is_full = has_all_configs(timings)
    protocols = {path.stem: meta_of(path).get("protocol", {}) for path in paths}
    cost = measure_choice_cost(arch, timings, is_full, protocols)
    overhead_us |= {choice.method: cost.model_us for choice in choices if choice.method.startswith("model")}
    counts = f"{len(timings):,} timings of {timings.gemm.max() + 1} GEMMs, {len(set(timings.pairs))} (N, K) pairs"
    return Study(
        f"{timings.name}: {counts}; {how}", timings, tuple(scores), tuple(_losses(timings, choices, is_full)),
        tuple(choices), is_full, cost, overhead_us, tuple(missing), train is not None,
    )  # fmt: skip


def _naive(arch: GpuSpec, timings: Timings) -> Score:
    baseline = NaiveRoofline(arch)
    return make_score(timings, baseline.name, baseline.predict(timings), "data sheet")


def _choose(timings: Timings, scores: Sequence[Score]) -> tuple[list[Choices], dict[str, float], list[str]]:
    order = order_by(timings, scores[0].predicted_us)
    choices = [ranked_choice(timings, "model", order)]
    choices += [ranked_choice(timings, f"model + profile {num}", order, num) for num in _PROFILED]
    overhead_us: dict[str, float] = {}
    num_gemms = int(timings.gemm.max()) + 1
    others = {scored.predictor: scored.predicted_us for scored in scores[1:] if scored.has_order}
    for name in (*others, _STATIC):
        start = time.perf_counter()
        order = order_by(timings, others[name] if name in others else -static_points(timings))
        overhead_us[name] = _US_PER_S * (time.perf_counter() - start) / num_gemms
        choices.append(ranked_choice(timings, name, order))
    choices.append(ranked_choice(timings, f"static + profile {_PROFILED[-1]}", order, _PROFILED[-1]))
    overhead_us[choices[-1].method] = overhead_us[_STATIC]
    missing = []
    asked = nvidia_choices(timings)
    if asked is None:
        missing.append(NOT_INSTALLED)
    else:
        choices += asked[0]
        overhead_us |= {choice.method: asked[1] for choice in asked[0]}
    choices.append(random_choice(timings))
    choices.append(ranked_choice(timings, "profile all", order_by(timings, timings.measured_us), len(timings)))
    return choices, overhead_us, missing


def _losses(timings: Timings, choices: Sequence[Choices], is_full: Mask) -> Iterator[Loss]:
    regimes = regime_of(timings)[first_rows(timings)]
    for name, of_group in (("all configs timed", is_full), ("all GEMMs", np.ones(len(is_full), bool))):
        for regime in (ALL, *(item.name for item in REGIMES[:-1])):
            gemms = of_group if regime == ALL else of_group & (regimes == regime)
            if gemms.any():
                yield from (measure_loss(timings, item, gemms, name, regime) for item in choices)


def study_triton(arch: GpuSpec, timings: Timings, num_folds: int = 5, seed: int = 0, *, is_fit: bool = True) -> Study:
    """Score the model of Triton kernels and its baselines on a table of timings.

    Args:
        arch: the GPU that it is of.
        timings: the rows.
        num_folds, seed: deal the pairs (N, K) to folds; a row is predicted by fits on other folds.
        is_fit: else the coefficients that the library has for this GPU are scored, and nothing is fitted.

    Raises:
        InvalidInputError: too few rows for a fit.
        InvalidOptionError: fewer pairs than folds.
    """
    scores = [*(_held_out if is_fit else _as_it_is)(arch, timings, num_folds, seed), _naive(arch, timings)]
    first = first_rows(timings)
    groups = [(group, regime, rows[first]) for group, regime, rows in row_groups(timings)]
    nums: list[int | Ints] = [1, 3, share_of_configs(timings, 0.2)]
    by_method = []
    for scored in (scored for scored in scores if scored.has_order):
        order, name = order_by(timings, scored.predicted_us), scored.predictor
        by_method.append([ranked_choice(timings, name, order, *of) for of in zip(nums, FIRST, strict=True)])
    by_method.append([random_speeds(timings, FIRST[0])])
    losses = tuple(
        measure_loss(timings, item, gemms, group, regime)
        for of_method in by_method
        for group, regime, gemms in groups
        for item in of_method
    )
    title = (
        f"Triton kernels on {timings.gpu}: {len(timings):,} timings of {timings.gemm.max() + 1:,} GEMMs, "
        f"{len(set(timings.pairs))} (N, K) pairs, cold L2"
    )
    return Study(title, timings, tuple(scores), losses, tuple(item for of_method in by_method for item in of_method))


def _held_out(arch: GpuSpec, timings: Timings, num_folds: int, seed: int) -> Iterator[Score]:
    folds = f"{num_folds}-fold by (N, K)"
    bare = without_code(timings)
    fits = cross_fit(TritonModel(arch), [timings], num_folds, seed, num_threads=NUM_THREADS)
    refits = cross_fit(fits.fits, [bare], num_folds, folds=fits.folds, num_threads=NUM_THREADS)
    roofline = cross_fit(GroupedRoofline(arch, min_rows=1), [timings], num_folds, seed)
    yield score_held_out("model", f"with machine code, {folds}", timings, fits)
    yield score_held_out("no code, refit", f"estimated code, fitted on it, {folds}", bare, refits)
    yield score_held_out("no code", "estimated code, coefficients of the model", bare, fits)
    yield score_held_out("fitted roofline", f"by data set, {folds}", timings, roofline, has_order=False)


def _as_it_is(arch: GpuSpec, timings: Timings, *_: int) -> Iterator[Score]:
    model, origin = TritonModel.as_it_is(arch)
    for name, code, rows in (("model", "with machine", timings), ("no code", "estimated", without_code(timings))):
        yield make_score(timings, name, model.predict(rows), f"{code} code, {origin}", has_order=True)
