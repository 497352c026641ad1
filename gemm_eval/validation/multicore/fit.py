"""Fits of the few numbers of a multi-core chip's spec that only timings tell, and their errors on pairs held out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import MulticoreSpec, ProvenanceKind, build_spec, place_values
from gemm_eval.errors import InvalidOptionError
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.validation.fit import fold_of_pairs, robust_fit, soft_l1
from gemm_eval.validation.multicore.timings import TimingSet
from gemm_eval.words import refusal

__all__ = ["RANGES", "Prior", "fit_chip", "folds_of", "held_out", "predict_set", "priors_of", "with_values"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class _Range(NamedTuple):
    low: float
    high: float


RANGES: dict[str, _Range] = {
    "sync_us": _Range(0.05, 1000.0),
    "pack_gb_per_s": _Range(0.5, 1000.0),
    "launch_us": _Range(0.05, 1000.0),
    "task_us": _Range(0.05, 1000.0),
    "launch_floor_us": _Range(0.1, 2000.0),
    "dram_efficiency_frac": _Range(0.02, 1.0),
    "dram_gb_per_s": _Range(0.1, 20000.0),
    "dram_write_gb_per_s": _Range(0.1, 20000.0),
    "dram_core_limit_gb_per_s": _Range(0.1, 5000.0),
    "shared_gb_per_s": _Range(1.0, 100000.0),
    "noc_gb_per_s": _Range(0.5, 5000.0),
    "overlap_frac": _Range(0.001, 1.0),
    "frequency_ghz": _Range(0.1, 6.0),
    "load_clock_frac": _Range(0.3, 1.0),
    "cube_steps_per_cycle": _Range(0.001, 64.0),
    "feed_bytes_per_cycle": _Range(4.0, 8192.0),
    "weight_load_cycles": _Range(0.5, 5000.0),
    "vector_ops_per_cycle": _Range(0.5, 100000.0),
}
"""Fields that can be fitted, and where fits stay: what such a number can be on any chip."""

MEASURED_SIGMA = 0.05
"""Standard deviation of a number of kind ``measured``, in its logarithm: what stream tests of one chip differ by."""


class Prior(NamedTuple):
    """Knowledge of a coefficient before any fit.

    Attributes:
        value: what was measured, in the unit of the field.
        sigma: standard deviation of its logarithm.
    """

    value: float
    sigma: float


_LOSS_SCALE = 0.05  # log ratio up to which errors are squared
_DIFFERENCES = (0.01, 0.003, 0.03)  # of the share of a range, for derivatives
_MOST_EVALUATIONS = 60


def with_values(arch: MulticoreSpec, coefficients: Mapping[str, float]) -> MulticoreSpec:
    """Return a chip with other values at these paths; see `place_values`."""
    data = {name: getattr(arch, name) for name in arch.model_fields_set if name not in ("published", "calibration")}
    data["rules"] = None if arch.rules is None else arch.rules.model_dump(exclude_unset=True)
    return build_spec(MulticoreSpec, place_values(data, coefficients), origin=arch.name)


def predict_set(arch: MulticoreSpec, rows: TimingSet) -> Floats:
    """Return the latency of each row as it was timed, in microseconds; nan where nothing fits."""
    if rows.changes:
        arch = arch.with_(**{name: _merged(getattr(arch, name, None), value) for name, value in rows.changes.items()})
    floor_us = 0.0
    if arch.rules is None or rows.policy == "best":  # by rules a choice may be another where a floor makes times equal
        # it raises all mappings alike: without it a search finds the same time, and has no equal ones to go through
        floor_us, arch = arch.launch_floor_us, arch.with_(launch_floor_us=0.0)
    evaluator = GEMMEvaluator(arch, policy=rows.policy, disk_cache=False)
    predicted = np.full(len(rows.frame), np.nan)
    for dtype, of_type in rows.frame.groupby("dtype"):
        sizes = [(1, M, K, N) for M, K, N in of_type[["M", "K", "N"]].to_numpy(int).tolist()]
        table = evaluator.evaluate_many(sizes, dtype=str(dtype), errors="mark", progress=False)
        predicted[of_type.index] = np.maximum(table["latency_us"], floor_us) + rows.timer_us
    return predicted


def _merged(old: Any, new: Any) -> Any:
    """Return a new value; of tables the old one with what is new."""
    return {**old, **new} if isinstance(old, Mapping) and isinstance(new, Mapping) else new


def priors_of(arch: MulticoreSpec, paths: Sequence[str]) -> dict[str, Prior]:
    """Return the priors of those coefficients that were measured by themselves, such as by a stream test.

    GEMMs cannot move them far: a fit could trade them against others, and they are carried to siblings of the chip.
    """
    measured = {
        path: arch.provenance[path] for path in paths
        if path in arch.provenance and arch.provenance[path].kind is ProvenanceKind.MEASURED
    }  # fmt: skip
    return {path: Prior(_value_at(arch, path, _range_of(arch, path)), MEASURED_SIGMA) for path in measured}


def fit_chip(
    arch: MulticoreSpec, sets: Sequence[TimingSet], paths: Sequence[str], priors: Mapping[str, Prior] | None = None
) -> dict[str, float]:
    """Return the values at these paths that fit timings best: least squares of log errors, with a robust loss.

    The distance of a coefficient from its prior, in sigmas, is one more error beside those of the rows, in scales of
    the loss, and counts as much as all rows together: rows of one chip are off in the same way, and outvote nothing.

    Where some sets are of a library and some are not, what only holds under the library is fitted last, on its sets
    alone, and everything else on the others: what a library does badly is not the chip's.

    Raises:
        InvalidOptionError: a path that cannot be fitted.
    """
    of_library = [rows for rows in sets if rows.policy == "library"]
    others = [rows for rows in sets if rows.policy != "library"]
    later = [path for path in paths if path.startswith("rules.")]
    priors = priors_of(arch, paths) if priors is None else priors
    if not (of_library and others and later):
        return _fit(arch, sets, paths, priors)
    first = _fit(arch, others, [path for path in paths if path not in later], priors)
    return first | _fit(with_values(arch, first), of_library, later, priors)


def _fit(
    arch: MulticoreSpec, sets: Sequence[TimingSet], paths: Sequence[str], priors: Mapping[str, Prior]
) -> dict[str, float]:
    ranges = [_range_of(arch, path) for path in paths]
    low, high = np.log(np.array(ranges)).T
    logs = np.log(np.concatenate([rows.measured_us for rows in sets]))
    prior_weight = _LOSS_SCALE * len(logs)

    def values(shares: Floats) -> dict[str, float]:
        # shares run from 1 to 2, so that a relative step is a step of the range
        found = np.exp(low + (np.clip(shares, 1.0, 2.0) - 1.0) * (high - low))
        return dict(zip(paths, found.tolist(), strict=True))

    def errors(shares: Floats) -> Floats:
        at_shares = values(shares)
        chip = with_values(arch, at_shares)
        predicted = np.concatenate([predict_set(chip, rows) for rows in sets])
        off = [
            np.log(at_shares[path] / prior.value) / prior.sigma * prior_weight
            for path, prior in priors.items()
            if path in at_shares
        ]
        result: Floats = np.append(np.nan_to_num(np.log(predicted) - logs, nan=_MISSING), off)
        return result

    logs_now = np.log([_value_at(arch, path, of) for path, of in zip(paths, ranges, strict=True)])
    best = 1.0 + np.clip((logs_now - low) / (high - low), 0.001, 0.999)
    for difference in _DIFFERENCES:
        found = robust_fit(
            errors, best, np.ones(len(paths)), np.full(len(paths), 2.0), _LOSS_SCALE,
            diff_step=difference, max_nfev=_MOST_EVALUATIONS,
        )  # fmt: skip
        # where the choice of mappings changes, errors have steps, and a search may end higher than it began
        best = min(best, found, key=lambda shares: soft_l1(errors(shares), _LOSS_SCALE))
        best = np.clip(best, 1.001, 1.999)
    return {path: float(f"{value:.6g}") for path, value in values(best).items()}


_MISSING = 3.0
"""Log error of a row that fits nowhere."""


def _range_of(arch: MulticoreSpec, path: str) -> _Range:
    field = next((part for part in path.split(".") if part in RANGES), None)
    if field is None:
        raise InvalidOptionError(refusal("coefficient", path, RANGES))
    found = RANGES[field]
    # a time of the whole chip's rates: of a clock or bandwidth, not beyond what the maker says
    return found if path != "dram_gb_per_s" else _Range(found.low, arch.dram_gb_per_s)


def _value_at(arch: MulticoreSpec, path: str, of: _Range) -> float:
    """Return what stands at a path now, or the middle of its range."""
    value: Any = arch
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)
    is_number = isinstance(value, int | float) and of.low <= value <= of.high
    return float(value) if is_number else float(np.sqrt(of.low * of.high))


def folds_of(sets: Sequence[TimingSet], num_folds: int, seed: int, chip: str) -> list[Ints]:
    """Return the fold of each row of each set; a pair (N, K) is in the same fold in all of them."""
    pairs = {pair for rows in sets for pair in rows.pairs}
    fold_of = fold_of_pairs(pairs, min(num_folds, len(pairs)), seed, chip)
    return [np.array([fold_of[pair] for pair in rows.pairs], np.int64) for rows in sets]


def held_out(
    arch: MulticoreSpec, sets: Sequence[TimingSet], paths: Sequence[str], folds: Sequence[Ints]
) -> tuple[list[Floats], dict[str, float]]:
    """Predict each row by a fit on the other folds.

    Returns:
        The latencies of each set, and the coefficients fitted on all rows.
    """
    priors = priors_of(arch, paths)
    fitted = fit_chip(arch, [rows for rows in sets if rows.is_fitted], paths, priors)
    start = with_values(arch, fitted)
    predicted = [np.full(len(rows.frame), np.nan) for rows in sets]
    for fold in range(1 + max(int(of_set.max()) for of_set in folds)):
        kept = [rows.select(of_set != fold) for rows, of_set in zip(sets, folds, strict=True) if rows.is_fitted]
        chip = with_values(arch, fit_chip(start, [rows for rows in kept if len(rows.frame)], paths, priors))
        for place, (rows, of_set) in enumerate(zip(sets, folds, strict=True)):
            if (mask := of_set == fold).any():
                predicted[place][mask] = predict_set(chip, rows.select(mask))
    return predicted, fitted
