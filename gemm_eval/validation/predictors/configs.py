"""Models of single kernel configs: coefficients are fitted family by family, and terms can be switched off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np

from gemm_eval.arch import GpuSpec
from gemm_eval.models.gpu import Coefficient, ErrorFigures
from gemm_eval.validation.fit import MIN_ROWS, Ranges, Search, cross_fit, fit_logs, rounded
from gemm_eval.validation.metrics import error_figures
from gemm_eval.validation.timings import Floats, Mask, Timings

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
    IS_SCREENED: ClassVar[bool]
    """A term is first removed in sample, and held out only where that changes the error by little."""
    BUYS_NOTHING_POINTS: ClassVar[float]
    """A term whose removal raises the held-out MAPE by fewer percentage points buys nothing."""
    NUM_THREADS: ClassVar[int] = 1
    """Fits at a time."""

    def __post_init__(self) -> None:
        assert set(self.families) <= set(self.FAMILIES)

    def predict(self, rows: Timings) -> Floats:
        """Return the latency of each row at the config that ran, in microseconds."""
        raise NotImplementedError

    def row_weights(self, rows: Timings) -> Floats:
        """Return the weight of each row in a fit, [rows]."""
        return np.ones(len(rows))

    def values_of(self, family: str) -> Values:
        """Return the coefficients of a family."""
        return self.coefficients.get(family) or {item.name: item.default for item in self.FAMILIES[family]}

    @property
    def values(self) -> Values:
        """The coefficients of its one family."""
        (family,) = self.families
        return self.values_of(family)

    def fit(self, *train: Timings) -> Self:
        """Return one whose families are fitted on one set; with few rows a family has its defaults."""
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
        """Return which rows are of a family."""
        return rows.of_group(family)

    def _held_of(self, family: str) -> dict[str, float]:
        return {item.name: self.held[item.name] for item in self.FAMILIES[family] if item.name in self.held}

    def _fit_family(self, rows: Timings, family: str, start: Values) -> dict[str, float]:
        held = self._held_of(family)
        ranges = Ranges([item for item in self.FAMILIES[family] if item.name not in held], held)
        shares = ranges.shares(start, self.SEARCH.off_bounds)
        weights = np.sqrt(self.row_weights(rows))

        def predict(values: dict[str, float]) -> Floats:
            return replace(self, coefficients={family: values}).predict(rows)

        return ranges.values(fit_logs(ranges, predict, rows.measured_us, shares, self.SEARCH, weights))

    def calibrated(
        self, rows: Timings, num_folds: int, seed: int, tables: Mapping[str, tuple[str, Mask]]
    ) -> tuple[dict[str, float], tuple[ErrorFigures, ...], Floats]:
        """Return coefficients fitted on all rows, and held-out errors by data set, whose hash and rows `tables` has.

        Data sets without rows are left out; also returned are the held-out predictions, [rows], in microseconds.
        """
        fits = cross_fit(self, [rows], num_folds, seed, num_threads=self.NUM_THREADS)
        predicted_us = fits.predict(rows)
        errors = tuple(
            error_figures(name, sha256, rows.measured_us[mask], predicted_us[mask])
            for name, (sha256, mask) in tables.items()
            if mask.any()
        )
        return rounded(self.fit(rows).values), errors, predicted_us

    def parts(self, timings: Timings) -> Iterator[tuple[str, Self, Mask]]:
        """Yield the name, a model and the rows of each family that has rows enough for a fit."""
        for family in self.families:
            rows = self.rows_of_family(timings, family)
            if np.count_nonzero(rows) >= MIN_ROWS:
                yield family, replace(self, families=(family,)), rows

    def terms(self) -> Sequence[Coefficient]:
        """Return the coefficient of each term of its one family; its `neutral` switches the term off."""
        (family,) = self.families
        return self.FAMILIES[family]

    def without(self, values: Values) -> Self:
        """Return one of the same family with these values of coefficients, which a fit of it leaves as they are."""
        coefficients = {family: {**self.values_of(family), **values} for family in self.families}
        return replace(self, coefficients=coefficients, held={**self.held, **values})
