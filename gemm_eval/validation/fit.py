"""Robust least squares, the one search behind all coefficients, and cross-validation by pairs (N, K).

Coefficients are fitted on the logarithms of latencies, within their ranges, which the search sees as 0..1. Rows of a
pair (N, K) stay together in folds: a fit that saw M = 64 and M = 256 of a weight matrix nearly saw M = 128 of it.
"""

import datetime
import hashlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from gemm_eval.errors import InvalidOptionError
from gemm_eval.progress import progress_note
from gemm_eval.validation.tables import Floats, Ints, Mask, Timings

MIN_ROWS = 30
"""Of a family, for a fit of its coefficients."""

_DIGITS = 6  # of a coefficient in a file


class Search(NamedTuple):
    """Settings of a fit: log errors count by their squares up to `loss_scale`, larger ones by their size.

    Derivatives are differences of a share; a start lies `off_bounds` inside the range; `evaluations` count without
    those for derivatives; `tolerance` is of the loss, relative. A coefficient that moves by its whole range from where
    it began counts as a row with the log error `hold`.
    """

    loss_scale: float
    difference: float
    off_bounds: float
    evaluations: int
    tolerance: float = 1e-8
    hold: float = 0.0


@dataclass(frozen=True)
class Ranges:
    """Coefficients that are fitted (`items`), as shares 0..1 of their ranges, and the values of `others`.

    `is_log`: of the logarithms of ranges, which span orders of magnitude.
    """

    items: Sequence[Any]
    others: Mapping[str, float] = field(default_factory=dict)
    is_log: bool = False

    def shares(self, values: Mapping[str, float], off_bounds: float) -> Floats:
        """Return where values lie in the ranges, inside the bounds."""
        low, high = self._ends
        given = np.array([values[item.name] for item in self.items])
        shares: Floats = ((np.log(given) if self.is_log else given) - low) / (high - low)
        return np.clip(shares, off_bounds, 1.0 - off_bounds)

    def values(self, shares: Floats) -> dict[str, float]:
        """Return all coefficients, each in its unit."""
        low, high = self._ends
        fitted = np.clip(low + shares * (high - low), low, high)
        fitted = np.exp(fitted) if self.is_log else fitted
        return {**self.others, **{item.name: value for item, value in zip(self.items, fitted.tolist(), strict=True)}}

    @cached_property
    def _ends(self) -> tuple[Floats, Floats]:
        low, high = (np.array([getattr(item, end) for item in self.items]) for end in ("low", "high"))
        return (np.log(low), np.log(high)) if self.is_log else (low, high)

    def fit(
        self, predict: Callable[[dict[str, float]], Floats], measured_us: Floats, search: Search,
        start: Mapping[str, float] | None = None, weights: Floats | float = 1.0,
    ) -> dict[str, float]:  # fmt: skip
        """Return all coefficients, fitted on latencies [rows] from `start` or their defaults on; see `fit_logs`."""
        begin = {item.name: item.default for item in self.items} if start is None else start
        shares = self.shares(begin, search.off_bounds)
        return self.values(fit_logs(self, predict, measured_us, shares, search, weights))


def fit_moving(
    items: Iterable[Any], defaults: Mapping[str, float], predict: Callable[[Mapping[str, float]], Floats],
    measured_us: Floats, search: Search,
) -> dict[str, float]:  # fmt: skip
    """Return the coefficients on which some latency depends, fitted; `defaults` are those of all."""

    def moves_some_row(item: Any) -> bool:
        low_us, high_us = (predict({**defaults, item.name: end}) for end in (item.low, item.high))
        return not np.array_equal(low_us, high_us)

    moving = list(filter(moves_some_row, items))
    values = Ranges(moving, defaults).fit(predict, measured_us, search)
    return {item.name: values[item.name] for item in moving}


def robust_fit(
    errors: Callable[[Floats], Floats], start: Any, low: Any, high: Any, loss_scale: float, **how: Any
) -> Floats:
    """Return what makes `errors` small: least squares with a soft L1 loss, which begins at `loss_scale`, in bounds."""
    from scipy.optimize import least_squares

    return least_squares(errors, start, bounds=(low, high), loss="soft_l1", f_scale=loss_scale, **how).x


def fit_logs(
    ranges: Ranges, predict: Callable[[dict[str, float]], Floats], measured_us: Floats, shares: Floats, search: Search,
    weights: Floats | float = 1.0,
) -> Floats:  # fmt: skip
    """Fit coefficients to latencies [rows]; return their shares, of which `Ranges.values` makes coefficients.

    `predict` takes coefficients and returns latencies in microseconds; `shares` are where to begin; `weights` are of
    the log errors, so a row counts by the square.
    """
    logs = np.log(measured_us)

    def errors(x: Floats) -> Floats:
        of_rows = weights * (np.log(predict(ranges.values(x))) - logs)
        return np.append(of_rows, search.hold * (x - shares)) if search.hold else of_rows

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


def provenance(num_folds: int, data: str, seed: int, by: str = "(N, K)") -> dict[str, Any]:
    """Return how and when a calibration came about, as its file has it; `data`: of which all the pairs were dealt."""
    return {
        "code_version": version("gemm_eval"),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "folds": f"{num_folds}-fold by {by} over all {data} together, seed {seed}",
    }


def sha256_of(path: Path) -> str:
    """Return the hash of a file, as calibrations have it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Predictor(Protocol):
    """Predicts latencies, after a fit on measured ones (which does nothing if it has no constants)."""

    @property
    def name(self) -> str: ...

    def fit(self, *train: Timings) -> Self:
        """Return a predictor whose constants are fitted on all of `train` together; this one stays as it is."""

    def predict(self, rows: Timings) -> Floats:
        """Return the latency of each row, in microseconds; what was measured must not be looked at."""


P = TypeVar("P", bound=Predictor)
K = TypeVar("K", bound=Hashable)


class CrossFit(NamedTuple, Generic[P]):
    """Fits on all folds but one: `fits` by the fold that was held out, `folds` of the rows of each set."""

    fits: tuple[P, ...]
    folds: tuple[Ints, ...]

    def predict(self, timings: Timings, set_index: int = 0) -> Floats:
        predicted_us = np.empty(len(timings))
        for fold, fitted in enumerate(self.fits):
            held_out = self.folds[set_index] == fold
            if held_out.any():
                predicted_us[held_out] = fitted.predict(timings.select(held_out))
        return predicted_us


def cross_fit(
    predictor: P | Sequence[P], sets: Sequence[Timings], num_folds: int = 5, seed: int = 0, *,
    folds: Sequence[Ints] = (), num_threads: int = 1,
) -> CrossFit[P]:  # fmt: skip
    """Fit once for each fold, on the rows of all sets that are in other folds and in no band (see `Timings.bands`).

    A pair (N, K) that several sets have is held out of all of them at once.

    Args:
        predictor: it is fitted; several: one for each fold, where fits start at different values.
        num_folds, seed: see `assign_joint_folds`; InvalidOptionError: fewer pairs than folds.
        folds: of the rows of each set, where they are not to be dealt here.
        num_threads: fits at a time, for predictors that leave Python's lock to others.
    """
    fold_of = folds or assign_joint_folds(sets, num_folds, seed)
    predictors = predictor if isinstance(predictor, Sequence) else [predictor] * num_folds

    def fit(fold: int) -> P:
        progress_note(f"{', '.join(dict.fromkeys(item.name for item in sets))}, fit {fold + 1} of {num_folds}")
        kept = [
            timings.select((of_set != fold) & ~timings.in_band) for timings, of_set in zip(sets, fold_of, strict=True)
        ]
        return predictors[fold].fit(*(timings for timings in kept if len(timings)))

    with ThreadPoolExecutor(min(num_folds, num_threads)) as threads:
        fits = threads.map(fit, range(num_folds)) if num_threads > 1 else map(fit, range(num_folds))
        return CrossFit(tuple(fits), tuple(fold_of))


def held_out(
    groups: Sequence[Hashable] | Ints, predict: Callable[[Mask, Mask], Mapping[str, Floats]], rows: str = ""
) -> dict[str, Floats]:
    """Return predictions of all rows; `predict` takes masks of the rows to fit on and of a held-out group.

    `rows` names them in what is shown as progress.
    """
    names = np.asarray(groups)
    predicted: dict[str, Floats] = {}
    all_groups = dict.fromkeys(names.tolist())
    for number, group in enumerate(all_groups, 1):
        progress_note(f"{rows}, fit {number} of {len(all_groups)}")
        mask = names == group
        for who, latency_us in predict(~mask, mask).items():
            predicted.setdefault(who, np.zeros(len(names)))[mask] = latency_us
    return predicted


def assign_folds(timings: Timings, num_folds: int = 5, seed: int = 0) -> Ints:
    """Return the fold of each row, 0 .. `num_folds` - 1; see `assign_joint_folds`."""
    return assign_joint_folds([timings], num_folds, seed)[0]


def assign_joint_folds(sets: Sequence[Timings], num_folds: int = 5, seed: int = 0) -> list[Ints]:
    """Return the fold of each row of each set; a pair that several sets have is in the same fold in all of them.

    The pairs are dealt to the folds in the order of a hash of (seed, N, K): the same set of pairs gives the same folds
    on every machine, in whatever order the rows come, and the folds differ by one pair at most.
    """
    pairs = [pair for item in sets for pair in item.pairs]
    folds = deal_pairs(pairs, num_folds, seed, ", ".join(item.name for item in sets))
    return np.split(folds, np.cumsum([len(item) for item in sets])[:-1])


def deal_pairs(pairs: Sequence[tuple[int, int]], num_folds: int, seed: int, data: str) -> Ints:
    """Return the fold of each row of `data`, by its pair (N, K); see `assign_joint_folds`."""
    num_pairs = len(set(pairs))
    if not 2 <= num_folds <= num_pairs:
        raise InvalidOptionError(
            f"num_folds must be in 2..{num_pairs}, the number of (N, K) pairs of {data}, got {num_folds}"
        )
    return deal(pairs, num_folds, lambda pair: f"{seed}:{pair[0]}:{pair[1]}")


def deal(keys: Sequence[K], num_folds: int, text_of: Callable[[K], str]) -> Ints:
    """Return the fold of each row; keys are dealt to the folds in the order of a hash of their texts."""
    ordered = sorted(set(keys), key=lambda key: hashlib.sha256(text_of(key).encode()).digest())
    fold_of = {key: index % num_folds for index, key in enumerate(ordered)}
    return np.array([fold_of[key] for key in keys], np.int64)
