"""Timings of multi-core chips, and fits of the few numbers of a chip's spec that only timings tell."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gemm_eval.arch import MulticoreSpec, ProvenanceKind, build_spec, data_root, place_values, read_yaml
from gemm_eval.dtypes import parse_scheme
from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.validation.fit import fold_of_pairs, robust_fit, soft_l1
from gemm_eval.words import refusal, shown

_COLUMNS = ("chip", "dtype", "M", "K", "N", "latency_us")
_SIZES = ("M", "K", "N")
_ALL_ROWS = "all"


class _Set(BaseModel):
    """How the chip was used for some of the rows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    what: str = ""
    where: Mapping[str, str] = Field(default={}, description="columns, and text in them, that tell its rows")
    policy: str | None = None
    changes: Mapping[str, Any] = {}
    timer_us: Annotated[float, Field(ge=0.0)] = Field(
        default=0.0, description="what the way of timing adds to each latency; timer_why says how that is known"
    )
    timer_why: str = ""
    is_fitted: bool = Field(default=True, description="False: rows that nothing can be fitted on, reported alone")


class _Meta(BaseModel):
    """What stands beside a table."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: Annotated[str, Field(min_length=1)]
    licence: Annotated[str, Field(min_length=1)]
    what: str = ""
    sets: Mapping[str, _Set] = {}


class TimingSet(NamedTuple):
    """Rows for which the chip was used in the same way.

    Attributes:
        name: of the set.
        frame: columns dtype, M, K, N, latency_us.
        policy: of the evaluator; None: the chip's default.
        changes: fields of the spec that were otherwise.
        is_fitted: whether fits take them.
        timer_us: what the way of timing added to each latency; predictions of latencies contain it.
    """

    name: str
    frame: pd.DataFrame
    policy: str | None = None
    changes: Mapping[str, Any] = {}
    is_fitted: bool = True
    timer_us: float = 0.0

    def select(self, mask: npt.NDArray[np.bool_]) -> TimingSet:
        """Return some of the rows."""
        return self._replace(frame=self.frame[mask].reset_index(drop=True))

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """(N, K) of each row."""
        return list(zip(self.frame["N"].tolist(), self.frame["K"].tolist(), strict=True))

    @property
    def measured_us(self) -> npt.NDArray[np.float64]:
        """The latency of each row."""
        return self.frame["latency_us"].to_numpy(np.float64)


class ChipTimings(NamedTuple):
    """The timings of a chip in one file.

    Attributes:
        chip: arch name.
        sets: of the file.
        source: whose they are.
        sha256: of the file.
    """

    chip: str
    sets: tuple[TimingSet, ...]
    source: str
    sha256: str


def committed_table(chip: str) -> Path:
    """Where the timings of a chip lie that come with the library, if there are any."""
    return data_root() / "measured" / chip / "gemm.csv"


def chips_with_timings() -> list[str]:
    """Return the multi-core chips whose timings come with the library."""
    return sorted(path.parent.name for path in (data_root() / "measured").glob("*/gemm.csv"))


def read_chip_timings(chip: str, path: Path | None = None) -> ChipTimings:
    """Read timings of a chip: those that come with the library, or a CSV of the same columns.

    The columns are chip, dtype (as `evaluate` takes it), M, K, N, latency_us and, where there are sets, set; others are
    left alone. ``<name>.meta.yaml`` beside it says whose the timings are and how the chip was used for each set. It can
    also tell sets by the text in other columns (``where``). The library has such a file of a table that may not come
    with it: it counts for a table with such rows that has no meta file beside it.

    Raises:
        InvalidOptionError: no timings of this chip come with the library.
        InvalidInputError: the table, or its meta file, is not of that form.
    """
    if path is None:
        path = committed_table(chip)
        if not path.is_file():
            known = chips_with_timings()
            raise InvalidOptionError(f"{refusal('chip with timings', chip, known)}: give --data FILE")
    try:
        frame = pd.read_csv(path)
        raw = path.read_bytes()
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"{path}: {error}") from None
    if missing := [name for name in _COLUMNS if name not in frame]:
        raise InvalidInputError(f"{path}: columns {', '.join(missing)} are missing")
    if others := sorted(set(frame["chip"]) - {chip}):
        raise InvalidInputError(f"{path}: these are timings of {', '.join(map(shown, others))}, not of {chip}")
    for dtype in frame["dtype"].unique():
        parse_scheme(dtype)
    numbers = frame[[*_SIZES, "latency_us"]].to_numpy(np.float64)
    if not (np.isfinite(numbers).all() and (numbers > 0.0).all()):
        raise InvalidInputError(f"{path}: sizes and latencies must be numbers above 0")
    meta = _read_meta(path.with_name(f"{path.stem}.meta.yaml")) or _meta_by_columns(chip, frame)
    sets = _sets_of(frame, meta, path)
    source = meta.source if meta else _source_of(frame, path)
    return ChipTimings(chip, sets, source, hashlib.sha256(raw).hexdigest())


def _read_meta(path: Path) -> _Meta | None:
    if not path.is_file():
        return None
    try:
        return _Meta.model_validate(read_yaml(path))
    except ValidationError as error:
        raise InvalidInputError(f"{path}: {error}") from None


def _meta_by_columns(chip: str, frame: pd.DataFrame) -> _Meta | None:
    """Return what the library knows of rows that it does not have, if this table has some that it tells by columns."""
    meta = _read_meta(committed_table(chip).with_name("gemm.meta.yaml"))
    told = [of for of in meta.sets.values() if of.where] if meta else []
    return meta if any(_has_text(frame, of.where).any() for of in told) else None


def _has_text(frame: pd.DataFrame, where: Mapping[str, str]) -> npt.NDArray[np.bool_]:
    """Return whether each row has all of this text in these columns."""
    has = np.ones(len(frame), bool)
    for column, text in where.items():
        has &= frame[column].astype(str).str.contains(text, regex=False).to_numpy() if column in frame else False
    return has


def _names_of(frame: pd.DataFrame, sets: Mapping[str, _Set]) -> pd.Series:
    """Return the set of each row: of those that the text in its columns tells, the first, else one without `where`."""
    others = [name for name, of in sets.items() if not of.where]
    found = pd.Series(others[0] if others else None, frame.index, dtype=object)
    for name, of in reversed(list(sets.items())):
        if of.where:
            found[_has_text(frame, of.where)] = name
    return found


def _sets_of(frame: pd.DataFrame, meta: _Meta | None, path: Path) -> tuple[TimingSet, ...]:
    columns = ["dtype", *_SIZES, "latency_us"]
    if meta is None or not meta.sets:
        return (TimingSet(_ALL_ROWS, frame[columns].reset_index(drop=True)),)
    if any(of.where for of in meta.sets.values()):
        set_of = _names_of(frame, meta.sets)
        known = [name for name in meta.sets if (set_of == name).any()]
    else:
        set_of = frame["set"] if "set" in frame else pd.Series(None, frame.index, dtype=object)
        known = list(meta.sets)
    names = list(set_of.unique())
    if set(names) != set(known):
        raise InvalidInputError(f"{path}: sets {', '.join(map(str, names))}, its meta file has {', '.join(meta.sets)}")
    return tuple(
        TimingSet(
            name, frame.loc[set_of == name, columns].reset_index(drop=True), of.policy, of.changes, of.is_fitted,
            of.timer_us,
        )
        for name, of in meta.sets.items()
        if name in known
    )  # fmt: skip


def _source_of(frame: pd.DataFrame, path: Path) -> str:
    """Say whose timings these are: of the column source, what comes before the first bracket."""
    if "source" not in frame:
        return path.name
    said = {str(text).split("(")[0].strip() for text in frame["source"].unique()}
    return ", ".join(sorted(said))[:400]


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
