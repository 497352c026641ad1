"""Robust least squares: the one search behind all coefficients, constants of baselines and corrections.

Coefficients are fitted on the logarithms of latencies, within their ranges, which the search sees as 0..1. Their
derivatives are differences; errors well below `Search.loss_scale` count by their squares, those above by their size.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np

from gemm_eval.validation.timings import Floats

__all__ = ["MIN_ROWS", "Ranges", "Search", "fit_logs", "provenance", "robust_fit", "rounded", "sha256_of", "soft_l1"]

MIN_ROWS = 30
"""Of a family, for a fit of its coefficients."""

_DIGITS = 6  # of a coefficient in a file


class Search(NamedTuple):
    """How a fit searches.

    Attributes:
        loss_scale: log ratio up to which errors are squared.
        difference: for derivatives, relative to a share.
        off_bounds: how far inside the range a start lies: scipy wants that.
        evaluations: at most, without those for derivatives.
        tolerance: of the loss, relative, at which a fit ends.
    """

    loss_scale: float
    difference: float
    off_bounds: float
    evaluations: int
    tolerance: float = 1e-8


@dataclass(frozen=True)
class Ranges:
    """Coefficients that are fitted, as shares 0..1 of their ranges, and others that are not.

    Attributes:
        items: those that are fitted, each with name, low and high (`models.gpu.coefficients.Coefficient`).
        others: values of those that are not.
    """

    items: Sequence[Any]
    others: Mapping[str, float] = field(default_factory=dict)

    def shares(self, values: Mapping[str, float], off_bounds: float) -> Floats:
        """Return where values lie in the ranges, inside the bounds."""
        low, high = self._ends
        shares: Floats = (np.array([values[item.name] for item in self.items]) - low) / (high - low)
        return np.clip(shares, off_bounds, 1.0 - off_bounds)

    def values(self, shares: Floats) -> dict[str, float]:
        """Return all coefficients, each in its unit."""
        low, high = self._ends
        found = np.clip(low + shares * (high - low), low, high).tolist()
        return {**self.others, **{item.name: value for item, value in zip(self.items, found, strict=True)}}

    @cached_property
    def _ends(self) -> tuple[Floats, Floats]:
        return np.array([item.low for item in self.items]), np.array([item.high for item in self.items])


def robust_fit(
    errors: Callable[[Floats], Floats], start: Any, low: Any, high: Any, loss_scale: float, **how: Any
) -> Floats:
    """Return what makes `errors` small: least squares with a soft L1 loss, which begins at `loss_scale`, in bounds."""
    from scipy.optimize import least_squares

    found: Floats = least_squares(errors, start, bounds=(low, high), loss="soft_l1", f_scale=loss_scale, **how).x
    return found


def fit_logs(
    ranges: Ranges, predict: Callable[[dict[str, float]], Floats], measured_us: Floats, shares: Floats, search: Search,
    weights: Floats | float = 1.0,
) -> Floats:  # fmt: skip
    """Fit coefficients to latencies.

    Args:
        ranges: what is fitted.
        predict: coefficients -> latencies, [rows], in microseconds.
        measured_us: [rows].
        shares: where to begin, [coefficients].
        search: how.
        weights: of the log errors, [rows]; a row counts by the square.

    Returns:
        Shares; `Ranges.values` makes coefficients of them.
    """
    logs = np.log(measured_us)

    def errors(x: Floats) -> Floats:
        result: Floats = weights * (np.log(predict(ranges.values(x))) - logs)
        return result

    return robust_fit(
        errors, shares, 0.0, 1.0, search.loss_scale, diff_step=np.array([search.difference]), ftol=search.tolerance,
        max_nfev=search.evaluations,
    )  # fmt: skip


def soft_l1(errors: Floats, loss_scale: float) -> float:
    """Return what `robust_fit` minimizes, up to a factor."""
    return float(np.sum(2.0 * (np.sqrt(1.0 + (errors / loss_scale) ** 2) - 1.0)))


def rounded(coefficients: Mapping[str, float]) -> dict[str, float]:
    """Return coefficients with the digits that files have."""
    return {name: float(f"{value:.{_DIGITS}g}") for name, value in coefficients.items()}


class Provenance(TypedDict):
    """How and when a calibration came about: fields of its file."""

    code_version: str
    date: str
    folds: str


def provenance(num_folds: int, what: str, seed: int, by: str = "(N, K)") -> Provenance:
    """Return how and when a calibration came about, as its file has it; `what`: of what all the pairs were dealt."""
    return {
        "code_version": version("gemm_eval"),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "folds": f"{num_folds}-fold by {by} over all {what} together, seed {seed}",
    }


def sha256_of(path: Path) -> str:
    """Return the hash of a file, as calibrations have it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
