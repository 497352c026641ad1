"""Which terms of the W4A16 families matter: errors when a coefficient has no effect and the others are fitted again."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from gemm_eval.models.gpu.packed import pack_w4a16_coefficients
from gemm_eval.models.gpu.w4a16.coefficients import W4A16_FAMILIES, w4a16_coefficients_of
from gemm_eval.validation.kernel_fit import MIN_ROWS, fit_kernel_family, row_weights
from gemm_eval.validation.kernel_scores import NEAR_BEST
from gemm_eval.validation.kernel_timings import KernelTimings
from gemm_eval.validation.timings import Floats, Mask

__all__ = [
    "BUYS_NOTHING_POINTS",
    "Ablated",
    "Removed",
    "ablate",
    "remove_in_turn",
    "useless_terms",
]

BUYS_NOTHING_POINTS = 0.02
"""A term whose removal raises the held-out MAPE by fewer percentage points buys nothing."""

_MATTERS_POINTS = 0.3  # in sample: a term that costs more needs no cross-validation to be kept
_REACHED_FRAC = 0.01  # a row is reached by a term whose removal, without a refit, moves its prediction by more


@dataclass(frozen=True, slots=True)
class Ablated:
    """What the errors of a family become without one term. Changes are in percentage points; positive: worse.

    Attributes:
        family, coefficient: what was removed.
        value: what the coefficient was held at.
        why: what that means.
        reached_frac: share of the family's rows whose predictions the term moves by over 1%.
        in_sample_points: change of the weighted MAPE of a fit on all rows, weights as in the fit.
        held_out_points, held_out_near_points, held_out_reached_points: change of the held-out MAPE of all rows, of
            those near the best of their GEMM, and of those that the term reaches (None: there are none); all three are
            None where the change in sample is so large that nothing needs to be held out to keep the term.
        base_points: the held-out MAPE of the family with all terms.
    """

    family: str
    coefficient: str
    value: float
    why: str
    reached_frac: float
    in_sample_points: float
    held_out_points: float | None
    held_out_near_points: float | None
    held_out_reached_points: float | None
    base_points: float


def ablate(
    timings: KernelTimings, num_folds: int = 5, seed: int = 0, families: Collection[str] = W4A16_FAMILIES
) -> Iterator[Ablated]:
    """Remove each coefficient's term in turn and fit the family's others again.

    Every fit on all rows is in sample; where it changes the error by little, the same is done in cross-validation by
    (N, K), with the folds of `KernelTimings.folds`.

    Raises:
        InvalidOptionError: fewer pairs than folds.
    """
    folds = timings.folds(num_folds, seed)
    for family in families:
        of_family = timings.kind == W4A16_FAMILIES.index(family)
        if np.count_nonzero(of_family) >= MIN_ROWS:
            yield from _ablate_family(timings.select(of_family), family, folds[of_family], num_folds)


def _ablate_family(rows: KernelTimings, family: str, folds: Floats, num_folds: int) -> Iterator[Ablated]:
    weights = row_weights(rows)
    near = rows.measured_us <= NEAR_BEST * rows.best_us
    full, _ = fit_kernel_family(rows, family)
    full_us = _predict(rows, family, full)
    base = _held_out_errors(rows, family, folds, num_folds, {})
    for item in w4a16_coefficients_of(family):
        value = item.neutral.of(full)
        fixed = {item.name: value}
        moved = np.abs(_predict(rows, family, full | fixed) / full_us - 1.0) > _REACHED_FRAC
        refit, _ = fit_kernel_family(rows, family, fixed)
        without = _errors(rows, _predict(rows, family, refit))
        change = 100.0 * float(
            np.average(without, weights=weights) - np.average(_errors(rows, full_us), weights=weights)
        )
        points: tuple[float | None, float | None, float | None] = (None, None, None)
        if change < _MATTERS_POINTS:
            held_out = _held_out_errors(rows, family, folds, num_folds, fixed)
            everything = np.ones(len(rows), bool)
            points = (
                _change(base, held_out, everything), _change(base, held_out, near), _change(base, held_out, moved)
            )  # fmt: skip
        yield Ablated(
            family, item.name, value, item.neutral.why, float(moved.mean()), change, *points, 100.0 * float(base.mean())
        )


def _change(base: Floats, without: Floats, rows: Mask) -> float | None:
    return 100.0 * float(without[rows].mean() - base[rows].mean()) if rows.any() else None


def _errors(rows: KernelTimings, predicted_us: Floats) -> Floats:
    size: Floats = np.abs(predicted_us / rows.measured_us - 1.0)
    return size


def _predict(rows: KernelTimings, family: str, values: dict[str, float]) -> Floats:
    packed = pack_w4a16_coefficients({name: values if name == family else {} for name in W4A16_FAMILIES})
    return rows.predict(packed)


def _held_out_errors(
    rows: KernelTimings, family: str, folds: Floats, num_folds: int, fixed: dict[str, float]
) -> Floats:
    errors = np.empty(len(rows))
    for fold in range(num_folds):
        held_out = folds == fold
        if held_out.any():
            values, _ = fit_kernel_family(rows.select(~held_out), family, fixed)
            part = rows.select(held_out)
            errors[held_out] = _errors(part, _predict(part, family, values))
    return errors


def useless_terms(found: Collection[Ablated]) -> list[Ablated]:
    """Return the terms that buy nothing: held out, their removal costs fewer than `BUYS_NOTHING_POINTS`."""
    return [item for item in found if item.held_out_points is not None and item.held_out_points < BUYS_NOTHING_POINTS]


@dataclass(frozen=True, slots=True)
class Removed:
    """Terms of a family that buy nothing even together.

    Attributes:
        family: whose.
        coefficients: those removed, in that order.
        kept: those that alone buy nothing, but do once the others are gone: they stand in for each other.
        held_out_points, held_out_near_points: change of the held-out MAPE without all of `coefficients`, of all rows
            and of those near the best of their GEMM, in percentage points; positive: worse.
    """

    family: str
    coefficients: tuple[str, ...]
    kept: tuple[str, ...]
    held_out_points: float
    held_out_near_points: float


def remove_in_turn(
    timings: KernelTimings, found: Collection[Ablated], num_folds: int = 5, seed: int = 0
) -> list[Removed]:
    """Remove the terms that buy nothing alone one after another, as long as all that are gone buy nothing together."""
    folds = timings.folds(num_folds, seed)
    removed = []
    useless = useless_terms(found)
    for family in dict.fromkeys(item.family for item in useless):
        of_family = timings.kind == W4A16_FAMILIES.index(family)
        rows, fold_of = timings.select(of_family), folds[of_family]
        near = rows.measured_us <= NEAR_BEST * rows.best_us
        base = last = _held_out_errors(rows, family, fold_of, num_folds, {})
        gone: dict[str, float] = {}
        terms = sorted(
            (item for item in useless if item.family == family), key=lambda item: item.held_out_points or 0.0
        )
        for item in terms:
            trial = gone | {item.coefficient: item.value}
            errors = _held_out_errors(rows, family, fold_of, num_folds, trial)
            if 100.0 * float(errors.mean() - base.mean()) < BUYS_NOTHING_POINTS:
                gone, last = trial, errors
        kept = tuple(item.coefficient for item in terms if item.coefficient not in gone)
        change = 100.0 * (last - base)
        near_points = float(change[near].mean()) if near.any() else 0.0
        removed.append(Removed(family, tuple(gone), kept, float(change.mean()), near_points))
    return removed
