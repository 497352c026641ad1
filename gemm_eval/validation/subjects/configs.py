"""Models of single kernel configs: coefficients are fitted family by family, and terms can be switched off."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from rich.table import Table

from gemm_eval.arch import GpuSpec
from gemm_eval.models.gpu import Coefficient, ErrorFigures
from gemm_eval.validation.fit import MIN_ROWS, CrossFit, Ranges, Search, assign_folds, cross_fit, rounded
from gemm_eval.validation.metrics import error_figures, rows_table
from gemm_eval.validation.tables import Floats, Ints, Mask, Timings

Values = Mapping[str, float]
"""Coefficient -> value."""


@dataclass(frozen=True, eq=False)
class ConfigModel:
    """A model of single configs, with coefficients by family (missing: defaults); a subclass for each kind.

    A fit fits `families`, and leaves the coefficients `held` as they are, which may be out of their ranges.
    """

    arch: GpuSpec
    coefficients: Mapping[str, Values] = field(default_factory=dict)
    families: tuple[str, ...] = ()
    held: Values = field(default_factory=dict)
    name: ClassVar[str] = "model"
    FAMILIES: ClassVar[Mapping[str, Sequence[Coefficient]]]
    SEARCH: ClassVar[Search]
    STARTS_AT_DEFAULTS: ClassVar[bool] = True
    NUM_THREADS: ClassVar[int] = 1
    """Fits at a time."""

    def predict(self, rows: Timings) -> Floats:
        raise NotImplementedError

    def row_weights(self, rows: Timings) -> Floats:
        """Return the weight of each row in a fit, [rows]."""
        return np.ones(len(rows))

    def values_of(self, family: str) -> Values:
        return self.coefficients.get(family) or {item.name: item.default for item in self.FAMILIES[family]}

    @property
    def values(self) -> Values:
        (family,) = self.families
        return self.values_of(family)

    def fit(self, *train: Timings) -> Self:
        (rows,) = train
        plain = replace(self, coefficients={})
        fitted = {name: {**plain.values_of(name), **self._held_of(name)} for name in self.FAMILIES}
        for family in self.families:
            of_family = rows.select(self.rows_of_family(rows, family))
            if len(of_family) >= MIN_ROWS:
                start = (plain if self.STARTS_AT_DEFAULTS else self).values_of(family)
                fitted[family] = self._fit_family(of_family, family, start)
        return replace(self, coefficients=fitted)

    def rows_of_family(self, rows: Timings, family: str) -> Mask:
        return rows.of_group(family)

    def _held_of(self, family: str) -> dict[str, float]:
        return {item.name: self.held[item.name] for item in self.FAMILIES[family] if item.name in self.held}

    def _fit_family(self, rows: Timings, family: str, start: Values) -> dict[str, float]:
        held = self._held_of(family)
        ranges = Ranges([item for item in self.FAMILIES[family] if item.name not in held], held)

        def predict(values: dict[str, float]) -> Floats:
            return replace(self, coefficients={family: values}).predict(rows)

        return ranges.fit(predict, rows.measured_us, self.SEARCH, start, np.sqrt(self.row_weights(rows)))

    def calibrated(
        self, rows: Timings, num_folds: int, seed: int, tables: Mapping[str, tuple[str, Mask]]
    ) -> tuple[dict[str, float], tuple[ErrorFigures, ...], Floats]:
        """Return coefficients, held-out errors by data set (hash and rows in `tables`), and held-out predictions."""
        predicted_us = cross_fit(self, [rows], num_folds, seed, num_threads=self.NUM_THREADS).predict(rows)
        errors = tuple(
            error_figures(name, sha256, rows.measured_us[mask], predicted_us[mask])
            for name, (sha256, mask) in tables.items()
            if mask.any()
        )
        return rounded(self.fit(rows).values), errors, predicted_us

    def without(self, values: Values) -> Self:
        """Return one of the same family with these values of coefficients, which a fit of it leaves as they are."""
        coefficients = {family: {**self.values_of(family), **values} for family in self.families}
        return replace(self, coefficients=coefficients, held={**self.held, **values})


LEAST_POINTS = 0.02
"""A term whose removal raises the held-out MAPE by fewer percentage points buys nothing."""
_MATTERS_POINTS = 0.3  # in sample: a term that costs more needs no cross-validation to be kept
_REACHED_FRAC = 0.01  # a row is reached by a term whose removal, without a refit, moves its prediction by more


class Ablated(NamedTuple):
    """Errors without one term, `coefficient` held at `value`. Changes are in percentage points; positive: worse.

    Attributes:
        family: of kernels.
        base_points: the held-out MAPE of the family with all terms.
        reached_frac: share of the family's rows whose predictions the term moves by over 1%.
        in_sample_points: change of the weighted MAPE of a fit on all rows, weights as in the fit.
        held_out_points: change of the held-out MAPE of all rows. It and those below are None where the change in sample
            is so large that nothing needs to be held out to keep the term.
        held_out_near_points, held_out_reached_points: of rows near the best of their GEMM, and of those reached.
    """

    family: str
    coefficient: str
    value: float
    why: str
    base_points: float
    reached_frac: float
    in_sample_points: float
    held_out_points: float | None = None
    held_out_near_points: float | None = None
    held_out_reached_points: float | None = None


class Removed(NamedTuple):
    """Terms of a family that buy nothing even together; changes as in `Ablated`.

    `kept` are those that alone buy nothing, but do once the others are gone: they stand for each other.
    """

    family: str
    coefficients: tuple[str, ...]
    kept: tuple[str, ...]
    held_out_points: float
    held_out_near_points: float


class Ablation(NamedTuple):
    """The ablation of a model; `removed` are terms that buy nothing, even together."""

    terms: tuple[Ablated, ...]
    removed: tuple[Removed, ...] = ()

    @property
    def useless(self) -> list[Ablated]:
        """The terms that buy nothing, held out."""
        return [item for item in self.terms if item.held_out_points is not None and item.held_out_points < LEAST_POINTS]


def run_ablation(model: ConfigModel, timings: Timings, num_folds: int = 5, seed: int = 0) -> Ablation:
    """Switch off each term, and those that buy nothing together; see `ablate`."""
    ablation = Ablation(tuple(ablate(model, timings, num_folds, seed)))
    return ablation._replace(removed=tuple(remove_in_turn(model, timings, ablation.useless, num_folds, seed)))


def ablate(
    model: ConfigModel, timings: Timings, num_folds: int = 5, seed: int = 0, names: Collection[str] = ()
) -> Iterator[Ablated]:
    """Switch off each term (of `names`, or all), and fit the others of its family again, from defaults on."""
    for part in _parts(model, timings, num_folds, seed, model.families):
        terms = [term for term in model.FAMILIES[part.family] if not names or term.name in names]
        if not terms:
            continue
        full = part.model.fit(part.rows)  # on all rows
        full_us, weights = full.predict(part.rows), part.model.row_weights(part.rows)
        for term in terms:
            neutral = term.neutral
            values = {term.name: neutral.of(full.values) if neutral.same_as else neutral.value}
            without = full.without(values)
            moved = np.abs(without.predict(part.rows) / full_us - 1.0) > _REACHED_FRAC
            refit = part.errors(without.fit(part.rows).predict(part.rows))
            change = np.average(refit, weights=weights) - np.average(part.errors(full_us), weights=weights)
            held_out: tuple[float | None, ...] = ()
            if 100.0 * change < _MATTERS_POINTS:
                masks = (np.ones(len(part.rows), bool), part.rows.is_near_best, moved)
                held_out = tuple(map(part.changes_without(values), masks))
            yield Ablated(
                part.family, term.name, values[term.name], neutral.why, 100.0 * float(part.base.mean()),
                float(moved.mean()), 100.0 * float(change), *held_out,
            )  # fmt: skip


def remove_in_turn(
    model: ConfigModel, timings: Timings, useless: Collection[Ablated], num_folds: int = 5, seed: int = 0
) -> Iterator[Removed]:
    """Remove the terms that buy nothing alone one after another, as long as all that are gone buy nothing together."""
    for part in _parts(model, timings, num_folds, seed, {item.family for item in useless}):
        gone = dict[str, float]()
        change = part.changes_without(gone)
        everything = np.ones(len(part.rows), bool)
        of_family = (item for item in useless if item.family == part.family)
        terms = sorted(of_family, key=lambda item: item.held_out_points or 0)
        for item in terms:
            trial = part.changes_without(gone | {item.coefficient: item.value})
            if (trial(everything) or 0.0) < LEAST_POINTS:
                gone, change = gone | {item.coefficient: item.value}, trial
        kept = tuple(item.coefficient for item in terms if item.coefficient not in gone)
        near_points = change(part.rows.is_near_best) or 0.0
        yield Removed(part.family, tuple(gone), kept, change(everything) or 0.0, near_points)


def _parts(
    model: ConfigModel, timings: Timings, num_folds: int, seed: int, families: Collection[str]
) -> Iterator[_Part]:
    folds = assign_folds(timings, num_folds, seed)
    for family in (name for name in model.families if name in families):
        mask = model.rows_of_family(timings, family)
        if np.count_nonzero(mask) >= MIN_ROWS:
            yield _Part(family, replace(model, families=(family,)), timings.select(mask), folds[mask], num_folds)


class _Part:
    """A family of a model, its rows, and its held-out errors with all terms."""

    def __init__(self, family: str, model: ConfigModel, rows: Timings, folds: Ints, num_folds: int) -> None:
        self.family, self.model, self.rows, self._folds, self._num_folds = family, model, rows, folds, num_folds
        crossed = self._cross_fit(model)
        self._fits, self.base = crossed.fits, self.errors(crossed.predict(rows))

    def errors(self, predicted_us: Floats) -> Floats:
        return np.abs(predicted_us / self.rows.measured_us - 1.0)

    def _cross_fit(self, model: ConfigModel | Sequence[ConfigModel]) -> CrossFit[ConfigModel]:
        threads = self.model.NUM_THREADS
        return cross_fit(model, [self.rows], self._num_folds, folds=[self._folds], num_threads=threads)

    def changes_without(self, values: Values) -> Callable[[Mask], float | None]:
        """Return the change of the held-out MAPE of some rows, in points, where coefficients are held at `values`."""
        errors = self.base
        if values:
            errors = self.errors(self._cross_fit([fit.without(values) for fit in self._fits]).predict(self.rows))
        return lambda rows: 100.0 * float(errors[rows].mean() - self.base[rows].mean()) if rows.any() else None


def ablation_report(ablation: Ablation) -> Iterator[Table | str]:
    """Yield a table of what each term buys, family by family, and sentences; positive: worse without the term."""
    terms = ablation.terms
    if not terms:
        return
    names = ", ".join(f"{item.family}.{item.coefficient}" for item in ablation.useless) or "none"
    columns = {
        "coefficient": "", "held at": ".3g", "reaches": ".1%", "in sample": "+.2f", "held out": "+.3f",
        "near best": "+.3f", "reached rows": "+.3f",
    }  # fmt: skip
    title = "error when a term is removed and the family's others are fitted again (MAPE, points)"
    caption = (
        "held at: 0 costs nothing, 1e+09 limits nothing; others: a term's plain value (in the JSON report). in "
        "sample: fits on all rows, weighted as in the fit. held out: only where that changes little; -: not needed."
        " reaches: rows that move by over 1%. In brackets: held-out MAPE with all terms. "
        f"Under {LEAST_POINTS:g} points, buys nothing: {names}"
    )
    rows: list[tuple[Any, ...]] = []
    for family in dict.fromkeys(item.family for item in terms):
        of_family = [item for item in terms if item.family == family]
        rows += [(), (f"{family} ({of_family[0].base_points:.2f}%)",)]
        for item in sorted(of_family, key=lambda item: item.in_sample_points, reverse=True):
            points = (item.held_out_points, item.held_out_near_points, item.held_out_reached_points)
            rows.append((f"  {item.coefficient}", item.value, item.reached_frac, item.in_sample_points, *points))
    yield rows_table(columns, rows, title, caption=caption)
    for gone in ablation.removed:
        line = (
            f"{gone.family}: {', '.join(gone.coefficients) or 'none'} together change the held-out MAPE by "
            f"{gone.held_out_points:+.3f} points, near the best by {gone.held_out_near_points:+.3f}"
        )
        yield line + (f"; kept, since the others are gone: {', '.join(gone.kept)}" if gone.kept else "")
    yield ""


def ablation_document(ablation: Ablation | None) -> dict[str, Any]:
    """Return what each term buys under the key ``ablation``; nothing where there is nothing."""
    if ablation is None or not ablation.terms:
        return {}
    terms = [item._asdict() for item in ablation.terms]
    useless = [f"{item.family}.{item.coefficient}" for item in ablation.useless]
    return {"ablation": {"terms": terms, "useless": useless, "together": [item._asdict() for item in ablation.removed]}}
