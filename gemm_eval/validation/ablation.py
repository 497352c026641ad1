"""Ablation of models of single configs: errors without a coefficient's effect, the others fitted again."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np

from gemm_eval.validation.choice import order_by, ranked_choice
from gemm_eval.validation.fit import CrossFit, assign_folds, cross_fit
from gemm_eval.validation.predictors.configs import ConfigModel
from gemm_eval.validation.timings import Floats, Ints, Mask, Timings

M = TypeVar("M", bound=ConfigModel)

_MATTERS_POINTS = 0.3  # in sample: a term that costs more needs no cross-validation to be kept
_REACHED_FRAC = 0.01  # a row is reached by a term whose removal, without a refit, moves its prediction by more


@dataclass(frozen=True, slots=True)
class Ablated:
    """Errors without one term, `coefficient` held at `value`. Changes are in percentage points; positive: worse.

    Attributes:
        part: of the model, such as a family of kernels; empty: it has one part.
        base_points: the held-out MAPE of the part with all terms.
        reached_frac: share of the part's rows whose predictions the term moves by over 1%.
        in_sample_points: change of the weighted MAPE of a fit on all rows, weights as in the fit; None: not asked.
        held_out_points: change of the held-out MAPE of all rows. It and those below are None where the change in sample
            is so large that nothing needs to be held out to keep the term.
        held_out_near_points, held_out_reached_points: of rows near the best of their GEMM, and of those reached.
        worst_group, worst_group_points: the group of rows that loses most, and its change.
        speed_points: change of the speed of the model's choice, in percentage points of the best; negative: worse.
    """

    part: str
    coefficient: str
    value: float
    why: str
    base_points: float
    reached_frac: float | None = None
    in_sample_points: float | None = None
    held_out_points: float | None = None
    held_out_near_points: float | None = None
    held_out_reached_points: float | None = None
    worst_group: str = ""
    worst_group_points: float | None = None
    speed_points: float | None = None


@dataclass(frozen=True, slots=True)
class Removed:
    """Terms of a part of a model that buy nothing even together; changes as in `Ablated`.

    `kept` are those that alone buy nothing, but do once the others are gone: they stand for each other.
    """

    part: str
    coefficients: tuple[str, ...]
    kept: tuple[str, ...]
    held_out_points: float
    held_out_near_points: float


@dataclass(frozen=True, slots=True)
class Ablation:
    """The ablation of a model of timings whose `Form.group` is `group`.

    A term whose removal raises the held-out MAPE by fewer percentage points than `points` buys nothing; `removed` are
    those that buy nothing even together, where that was asked.
    """

    group: str
    points: float
    terms: tuple[Ablated, ...]
    removed: tuple[Removed, ...] = ()

    @property
    def useless(self) -> list[Ablated]:
        """The terms that buy nothing, held out."""
        return [item for item in self.terms if item.held_out_points is not None and item.held_out_points < self.points]


def run_ablation(model: ConfigModel, timings: Timings, num_folds: int = 5, seed: int = 0) -> Ablation:
    """Switch off each term, and of a screened model those that buy nothing together; see `ablate`."""
    terms = tuple(ablate(model, timings, num_folds, seed))
    alone = Ablation(timings.form.group, model.BUYS_NOTHING_POINTS, terms)
    if not model.IS_SCREENED:
        return alone
    return replace(alone, removed=tuple(remove_in_turn(model, timings, alone.useless, num_folds, seed)))


def ablate(
    model: ConfigModel, timings: Timings, num_folds: int = 5, seed: int = 0, names: Collection[str] = ()
) -> Iterator[Ablated]:
    """Switch each coefficient's term off in turn and fit the others of its part again, from defaults on.

    `names` are those coefficients, empty: all; InvalidOptionError: fewer pairs (N, K) than folds.
    """
    for part in _parts(model, timings, num_folds, seed):
        yield from (part.ablated(term) for term in part.model.terms() if not names or term.name in names)


def remove_in_turn(
    model: ConfigModel, timings: Timings, useless: Collection[Ablated], num_folds: int = 5, seed: int = 0
) -> Iterator[Removed]:
    """Remove the terms that buy nothing alone one after another, as long as all that are gone buy nothing together."""
    for part in _parts(model, timings, num_folds, seed, {item.part for item in useless}):
        last, gone = part.base, dict[str, float]()
        terms = sorted((item for item in useless if item.part == part.name), key=lambda item: item.held_out_points or 0)
        for item in terms:
            trial = gone | {item.coefficient: item.value}
            errors = part.errors(part.predict_without(trial))
            if 100.0 * float(errors.mean() - part.base.mean()) < model.BUYS_NOTHING_POINTS:
                gone, last = trial, errors
        kept = tuple(item.coefficient for item in terms if item.coefficient not in gone)
        change, near = 100.0 * (last - part.base), part.rows.is_near_best
        near_points = float(change[near].mean()) if near.any() else 0.0
        yield Removed(part.name, tuple(gone), kept, float(change.mean()), near_points)


def _parts(
    model: M, timings: Timings, num_folds: int, seed: int, names: Collection[str] | None = None
) -> Iterator[_Part[M]]:
    folds = assign_folds(timings, num_folds, seed)
    for name, of_part, mask in model.parts(timings):
        if names is None or name in names:
            yield _Part(name, of_part, timings.select(mask), folds[mask], num_folds)


class _Part(Generic[M]):
    """A part of a model, its rows, and its held-out errors with all terms."""

    def __init__(self, name: str, model: M, rows: Timings, folds: Ints, num_folds: int) -> None:
        self.name, self.model, self.rows, self._folds, self._num_folds = name, model, rows, folds, num_folds
        crossed = self._cross_fit(model)
        self._fits, self.base_us = crossed.fits, crossed.predict(rows)
        self.base = self.errors(self.base_us)

    def errors(self, predicted_us: Floats) -> Floats:
        size: Floats = np.abs(predicted_us / self.rows.measured_us - 1.0)
        return size

    def predict_without(self, values: Mapping[str, float]) -> Floats:
        return self._cross_fit([fitted.without(values) for fitted in self._fits]).predict(self.rows)

    def _cross_fit(self, model: M | Sequence[M]) -> CrossFit[M]:
        threads = self.model.NUM_THREADS
        return cross_fit(model, [self.rows], self._num_folds, folds=[self._folds], num_threads=threads)

    @cached_property
    def full(self) -> M:
        """A fit on all rows."""
        return self.model.fit(self.rows)

    def ablated(self, term: Any) -> Ablated:
        base_points, neutral = 100.0 * float(self.base.mean()), term.neutral
        value = neutral.of(self.full.values) if neutral.same_as else neutral.value  # a fit on all rows takes long
        values = {term.name: value}
        bare = Ablated(self.name, term.name, value, neutral.why, base_points)
        if not self.model.IS_SCREENED:
            return replace(bare, **self._held_out(values))
        without = self.full.without(values)
        full_us, weights = self.full.predict(self.rows), self.model.row_weights(self.rows)
        moved = np.abs(without.predict(self.rows) / full_us - 1.0) > _REACHED_FRAC
        refit = self.errors(without.fit(self.rows).predict(self.rows))
        change = 100.0 * float(np.average(refit, weights=weights) - np.average(self.errors(full_us), weights=weights))
        held_out = self._held_out(values, moved) if change < _MATTERS_POINTS else {}
        return replace(bare, reached_frac=float(moved.mean()), in_sample_points=change, **held_out)

    def _held_out(self, values: Mapping[str, float], moved: Mask | None = None) -> dict[str, Any]:
        """Return the fields of `Ablated` that are held out."""
        predicted_us = self.predict_without(values)
        errors = self.errors(predicted_us)

        def change(rows: Mask) -> float | None:
            return 100.0 * float(errors[rows].mean() - self.base[rows].mean()) if rows.any() else None

        by_group = {name: change(self.rows.of_group(name)) for name in self.rows.groups}
        worst = max((name for name in by_group if by_group[name] is not None), key=lambda name: by_group[name] or 0.0)
        return {
            "held_out_points": change(np.ones(len(errors), bool)),
            "held_out_near_points": change(self.rows.is_near_best),
            "held_out_reached_points": None if moved is None else change(moved),
            "worst_group": worst,
            "worst_group_points": by_group[worst],
            "speed_points": 100.0 * (self._speed(predicted_us) - self._speed(self.base_us)),
        }

    def _speed(self, predicted_us: Floats) -> float:
        chosen = ranked_choice(self.rows, "", order_by(self.rows, predicted_us))
        return float(np.exp(np.log(chosen.speeds).mean()))
