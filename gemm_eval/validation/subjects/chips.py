"""The exam of multi-core chips: fits of the few numbers that only timings tell, (N, K) held out; calibrations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from rich.table import Table

from gemm_eval.arch import (
    MulticoreCalibration,
    MulticoreErrors,
    MulticoreSpec,
    ProvenanceKind,
    build_spec,
    calibration_file,
    load_arch,
    place_values,
)
from gemm_eval.dtypes import HALF_BITS_PER_BYTE, parse_scheme
from gemm_eval.errors import InvalidOptionError
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.models.multicore import MODEL_VERSION
from gemm_eval.units import bytes_per_us
from gemm_eval.validation.baselines import fit_roof, interpolated
from gemm_eval.validation.exam import ALL_GPUS, FITTED, MODEL, NAIVE, held_out
from gemm_eval.validation.fit import fold_of_pairs, provenance, robust_fit, soft_l1
from gemm_eval.validation.metrics import ALL, REGIMES, Metrics, measure_errors
from gemm_eval.validation.subjects import Fitted, Report
from gemm_eval.validation.subjects.chip_timings import ChipTimings, TimingSet, chips_with_timings, read_chip_timings
from gemm_eval.validation.subjects.reports import plain_lines, tau_cell, text_table
from gemm_eval.validation.timings import Floats, Ints, Mask
from gemm_eval.words import refusal

TABLE = "interpolated table"
"""Name of a predictor: a table of the training rows, interpolated. The others are those of `exam`."""

RANGES = {
    "sync_us": (0.05, 1000.0), "pack_gb_per_s": (0.5, 1000.0), "launch_us": (0.05, 1000.0), "task_us": (0.05, 1000.0),
    "launch_floor_us": (0.1, 2000.0), "dram_efficiency_frac": (0.02, 1.0), "dram_gb_per_s": (0.1, 20000.0),
    "dram_write_gb_per_s": (0.1, 20000.0), "dram_core_limit_gb_per_s": (0.1, 5000.0),
    "shared_gb_per_s": (1.0, 100000.0), "noc_gb_per_s": (0.5, 5000.0), "overlap_frac": (0.001, 1.0),
    "frequency_ghz": (0.1, 6.0), "load_clock_frac": (0.3, 1.0), "cube_steps_per_cycle": (0.001, 64.0),
    "feed_bytes_per_cycle": (4.0, 8192.0), "weight_load_cycles": (0.5, 5000.0),
    "vector_ops_per_cycle": (0.5, 100000.0),
}  # fmt: skip
"""Fields that can be fitted, and where fits stay: what such a number can be on any chip."""

MEASURED_SIGMA = 0.05
"""Standard deviation of a number of kind ``measured``, in its logarithm: what stream tests of one chip differ by."""

_FLOP_PER_US = 1e6  # at 1 TFLOP/s
_LOSS_SCALE = 0.05  # log ratio up to which errors are squared
_DIFFERENCES = (0.01, 0.003, 0.03)  # of the share of a range, for derivatives
_MOST_EVALUATIONS = 60
_MISSING = 3.0  # log error of a row that fits nowhere
_LEAST_ROWS = 8  # of a roofline with four constants


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


def priors_of(arch: MulticoreSpec, paths: Sequence[str]) -> dict[str, float]:
    """Return the values of those coefficients that were measured by themselves, such as by a stream test.

    GEMMs cannot move them far from these (`MEASURED_SIGMA`): a fit could trade them against others, and they are
    carried to siblings of the chip.
    """
    return {
        path: _value_at(arch, path)
        for path in paths
        if path in arch.provenance and arch.provenance[path].kind is ProvenanceKind.MEASURED
    }


def fit_chip(
    arch: MulticoreSpec, sets: Sequence[TimingSet], paths: Sequence[str], priors: Mapping[str, float] | None = None
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
    arch: MulticoreSpec, sets: Sequence[TimingSet], paths: Sequence[str], priors: Mapping[str, float]
) -> dict[str, float]:
    low, high = np.log(np.array([_range_of(arch, path) for path in paths])).T
    logs = np.log(np.concatenate([rows.measured_us for rows in sets]))
    prior_weight = _LOSS_SCALE * len(logs)

    def values(shares: Floats) -> dict[str, float]:
        # shares run from 1 to 2, so that a relative step is a step of the range
        at_shares = np.exp(low + (np.clip(shares, 1.0, 2.0) - 1.0) * (high - low))
        return dict(zip(paths, at_shares.tolist(), strict=True))

    def errors(shares: Floats) -> Floats:
        at_shares = values(shares)
        chip = with_values(arch, at_shares)
        predicted = np.concatenate([predict_set(chip, rows) for rows in sets])
        off = [
            np.log(at_shares[path] / prior) / MEASURED_SIGMA * prior_weight
            for path, prior in priors.items()
            if path in at_shares
        ]
        result: Floats = np.append(np.nan_to_num(np.log(predicted) - logs, nan=_MISSING), off)
        return result

    best = 1.0 + np.clip((np.log([_value_at(arch, path) for path in paths]) - low) / (high - low), 0.001, 0.999)
    for difference in _DIFFERENCES:
        result = robust_fit(
            errors, best, np.ones(len(paths)), np.full(len(paths), 2.0), _LOSS_SCALE,
            diff_step=difference, max_nfev=_MOST_EVALUATIONS,
        )  # fmt: skip
        # where the choice of mappings changes, errors have steps, and a search may end higher than it began
        best = min(best, result, key=lambda shares: soft_l1(errors(shares), _LOSS_SCALE))
        best = np.clip(best, 1.001, 1.999)
    return {path: float(f"{value:.6g}") for path, value in values(best).items()}


def _range_of(arch: MulticoreSpec, path: str) -> tuple[float, float]:
    field = next((part for part in path.split(".") if part in RANGES), None)
    if field is None:
        raise InvalidOptionError(refusal("coefficient", path, RANGES))
    low, high = RANGES[field]
    # a time of the whole chip's rates: of a clock or bandwidth, not beyond what the maker says
    return (low, arch.dram_gb_per_s) if path == "dram_gb_per_s" else (low, high)


def _value_at(arch: MulticoreSpec, path: str) -> float:
    """Return what stands at a path now, or the middle of its range."""
    low, high = _range_of(arch, path)
    value: Any = arch
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)
    is_number = isinstance(value, int | float) and low <= value <= high
    return float(value) if is_number else float(np.sqrt(low * high))


def folds_of(sets: Sequence[TimingSet], num_folds: int, seed: int, chip: str) -> list[Ints]:
    """Return the fold of each row of each set; a pair (N, K) is in the same fold in all of them."""
    pairs = {pair for rows in sets for pair in rows.pairs}
    fold_of = fold_of_pairs(pairs, min(num_folds, len(pairs)), seed, chip)
    return [np.array([fold_of[pair] for pair in rows.pairs], np.int64) for rows in sets]


def _predict_held_out(
    arch: MulticoreSpec, sets: Sequence[TimingSet], paths: Sequence[str], folds: Sequence[Ints]
) -> tuple[list[Floats], dict[str, float]]:
    """Predict each row by a fit on the other folds; also return the coefficients fitted on all rows."""
    priors = priors_of(arch, paths)
    coefficients = fit_chip(arch, [rows for rows in sets if rows.is_fitted], paths, priors)
    start = with_values(arch, coefficients)
    predicted = [np.full(len(rows.frame), np.nan) for rows in sets]
    for fold in range(1 + max(int(of_set.max()) for of_set in folds)):
        kept = [rows.select(of_set != fold) for rows, of_set in zip(sets, folds, strict=True) if rows.is_fitted]
        chip = with_values(arch, fit_chip(start, [rows for rows in kept if len(rows.frame)], paths, priors))
        for predicted_us, rows, of_set in zip(predicted, sets, folds, strict=True):
            if (mask := of_set == fold).any():
                predicted_us[mask] = predict_set(chip, rows.select(mask))
    return predicted, coefficients


class ChipLine(NamedTuple):
    """Errors by predictor on rows of a set of timings: a data type, a regime of M, or all."""

    chip: str
    set: str
    rows: str
    errors: dict[str, Metrics]


class ChipScore(NamedTuple):
    """The lines of a chip.

    Attributes:
        lines: of each set, its types and regimes, and all rows.
        coefficients: fitted on all rows; empty where nothing was fitted.
        folds: how rows were held out; empty where nothing was fitted.
        repeats: by set, of GEMMs that were timed more than once: each timing "predicted" by the median of the others of
            its GEMM. What repeats differ by no model can tell.
    """

    lines: tuple[ChipLine, ...]
    coefficients: dict[str, float]
    folds: str
    repeats: dict[str, Metrics]


def score_chip(
    arch: MulticoreSpec, timings: ChipTimings, *, num_folds: int = 5, seed: int = 0, is_fitted: bool = True,
    paths: Sequence[str] = (), least_rows: Sequence[int] = (),
) -> ChipScore:  # fmt: skip
    """Compare the model with timings: fitted on other (N, K) pairs, or as it is.

    Args:
        arch: the chip.
        timings: of it.
        num_folds, seed: of the cross-validation by (N, K); with fewer pairs there are as many folds as pairs.
        is_fitted: False: the model as it is; rooflines and tables are held out all the same.
        paths: what is fitted; default: the coefficients that the spec names.
        least_rows: numbers of rows M that get a line of their own, for GEMMs of so many or more.

    Raises:
        InvalidOptionError: nothing to fit is named.
    """
    sets = timings.sets
    folds = folds_of(sets, num_folds, seed, timings.chip)
    coefficients: dict[str, float] = {}
    if is_fitted:
        paths = paths or arch.coefficients
        if not paths:
            raise InvalidOptionError(f"{arch.name} names no coefficients: give --fit NAME, such as launch_us")
        model_us, coefficients = _predict_held_out(arch, sets, paths, folds)
    else:
        model_us = [predict_set(arch, rows) for rows in sets]
    is_preset = bool(arch.calibration) and calibration_file(arch.name).is_file()
    sheet = load_arch(arch.name, MulticoreSpec, calibrated=False) if is_preset else arch
    predicted = [
        _baselines(sheet, rows, of_set) | {MODEL: predicted_us}
        for rows, of_set, predicted_us in zip(sets, folds, model_us, strict=True)
    ]
    lines = [
        line
        for rows, by_name in zip(sets, predicted, strict=True)
        for line in _lines(timings.chip, rows, by_name, least_rows)
    ]
    fitted_sets = [index for index, rows in enumerate(sets) if rows.is_fitted]
    if len(fitted_sets) > 1:
        measured = np.concatenate([sets[index].measured_us for index in fitted_sets])
        errors = {
            name: measure_errors(measured, np.concatenate([predicted[index][name] for index in fitted_sets]))
            for name in predicted[0]
        }
        lines.append(ChipLine(timings.chip, "all fitted sets", ALL, errors))
    words = provenance(int(max(of_set.max() for of_set in folds)) + 1, "sets", seed)["folds"] if is_fitted else ""
    repeats = {rows.name: repeat for rows in sets if (repeat := _repeat_errors(rows)) is not None}
    return ChipScore(tuple(lines), coefficients, words, repeats)


def calibrate_chip(
    arch: MulticoreSpec, timings: ChipTimings, *, num_folds: int = 5, seed: int = 0, paths: Sequence[str] = ()
) -> tuple[MulticoreCalibration, ChipScore]:
    """Fit a chip on timings; the errors, of the calibration and its score, are of rows held out by (N, K)."""
    score = score_chip(arch, timings, num_folds=num_folds, seed=seed, paths=paths)
    calibration = MulticoreCalibration(
        chip=timings.chip,
        model_version=MODEL_VERSION,
        data=timings.source,
        sha256=timings.sha256,
        coefficients=score.coefficients,
        errors=tuple(_figures(line) for line in score.lines),
        **(provenance(num_folds, "sets", seed) | {"folds": score.folds}),
    )
    return calibration, score


def _figures(line: ChipLine) -> MulticoreErrors:
    model = line.errors[MODEL]
    shares = {
        "mape": model.mape_frac, "median": model.median_frac, "p90": model.p90_frac, "bias": model.bias_frac,
        "naive_mape": line.errors[NAIVE].mape_frac, "roofline_mape": line.errors[FITTED].mape_frac,
    }  # fmt: skip
    percents = {f"{name}_percent": round(100.0 * value, 3) for name, value in shares.items()}
    tau = None if model.kendall_tau is None else round(model.kendall_tau, 4)
    return MulticoreErrors(set=f"{line.set}, {line.rows}", num_rows=model.num, kendall_tau=tau, **percents)


def calibration_text(calibration: MulticoreCalibration, arch: MulticoreSpec) -> str:
    """Return the text of a calibration file; what the numbers are stands as comments."""
    head = calibration.model_dump(mode="json")
    values = head.pop("coefficients")
    lines = ["# Written by `gemm-eval calibrate multicore`; not to be edited by hand."]
    lines += [yaml.safe_dump(head, sort_keys=False, width=110).rstrip(), "coefficients:"]
    fields = type(arch).model_fields
    for path, value in values.items():
        names = (part for part in path.split(".") if part in fields and part in RANGES)
        meaning = next((fields[name].description for name in names), None)
        lines.append(f'  "{path}": {value:.6g}' + (f"  # {meaning}" if meaning else ""))
    return "\n".join(lines) + "\n"


def _lines(
    chip: str, rows: TimingSet, predicted: Mapping[str, Floats], least_rows: Sequence[int]
) -> Iterator[ChipLine]:
    types, M = rows.frame["dtype"], rows.frame["M"]
    masks = {str(dtype): (types == dtype).to_numpy() for dtype in types.unique()} if types.nunique() > 1 else {}
    for regime in REGIMES:
        masks[regime.name] = M.between(regime.min_rows, regime.max_rows or np.inf).to_numpy()
    masks |= {f"M >= {least}": (least <= M).to_numpy() for least in least_rows}
    for name, mask in masks.items():
        if mask.any() and (name == ALL or not mask.all()):
            errors = {who: measure_errors(rows.measured_us[mask], us[mask]) for who, us in predicted.items()}
            yield ChipLine(chip, rows.name, name, errors)


def _repeat_errors(rows: TimingSet) -> Metrics | None:
    """Return the errors of timings by the others of the same GEMM; None where each was timed once."""
    measured: list[float] = []
    others: list[float] = []
    for _, of_gemm in rows.frame.groupby(["dtype", "M", "K", "N"])["latency_us"]:
        times = of_gemm.to_numpy(np.float64)
        if len(times) > 1:
            measured += times.tolist()
            others += [float(np.median(np.delete(times, index))) for index in range(len(times))]
    return measure_errors(np.array(measured), np.array(others)) if measured else None


def _baselines(arch: MulticoreSpec, rows: TimingSet, folds: Ints) -> dict[str, Floats]:
    """Return the times of each row by the data sheet, and by a roofline and a table of rows in other folds."""
    compute_us, dram_us = _roofs(arch, rows)
    measured_us, naive_us = rows.measured_us, np.maximum(compute_us, dram_us)
    most_us = max(50.0, float(measured_us.min()) * 2.0)

    def predict(held: Mask) -> dict[str, Floats]:
        kept = ~held if (~held).sum() >= _LEAST_ROWS else np.ones(len(held), bool)
        roof = fit_roof(compute_us[kept], dram_us[kept], measured_us[kept], most_us)
        table_us = _interpolated(rows, naive_us, held)
        return {NAIVE: naive_us[held], FITTED: roof.predict(compute_us[held], dram_us[held]), TABLE: table_us[held]}

    return held_out(folds, predict)


def _roofs(arch: MulticoreSpec, rows: TimingSet) -> tuple[Floats, Floats]:
    """Return the time of each row at the peak of the data sheet and at its bandwidth, in microseconds.

    The bandwidth is that of DRAM, for operands that do not stay on the chip; where all do, that of all cores' ports.
    """
    M, K, N = (rows.frame[name].to_numpy(np.float64) for name in ("M", "K", "N"))
    compute_us, dram_us = np.empty(len(M)), np.empty(len(M))
    for dtype in rows.frame["dtype"].unique():
        mask = (rows.frame["dtype"] == dtype).to_numpy()
        scheme = parse_scheme(dtype)
        flop = 2.0 * M[mask] * K[mask] * N[mask]
        compute_us[mask] = flop / (arch.peak_tflop_per_s(scheme.input_dtype) * _FLOP_PER_US)
        sizes = {"A": (M * K)[mask] * scheme.input_dtype.half_bits, "B": (K * N)[mask] * scheme.weight_dtype.half_bits}
        sizes["C"] = (M * N)[mask] * scheme.output_dtype.half_bits
        outside = [half_bits for name, half_bits in sizes.items() if name not in arch.resident]
        gb_per_s = arch.dram_gb_per_s
        if not outside:  # all is on the chip: what moves there
            outside, gb_per_s = list(sizes.values()), arch.num_cores * (arch.noc_gb_per_s or arch.dram_gb_per_s)
        dram_us[mask] = sum(outside) / HALF_BITS_PER_BYTE / bytes_per_us(gb_per_s)
    return compute_us, dram_us


def _interpolated(rows: TimingSet, roof_us: Floats, held: Mask) -> Floats:
    """Return the latency of each row by a table of the rows of its type that are not held out, else its roof."""
    predicted, logs = roof_us.copy(), np.log(rows.measured_us)
    sizes, types = rows.frame[["M", "K", "N"]].to_numpy(np.int64), rows.frame["dtype"].to_numpy(str)
    for dtype in np.unique(types):
        out, kept = (types == dtype) & held, (types == dtype) & ~held
        if out.any() and kept.any():
            table, first, which = np.unique(sizes[kept], axis=0, return_index=True, return_inverse=True)
            mean_us = np.exp(np.bincount(which.ravel(), logs[kept]) / np.bincount(which.ravel()))
            predicted[out] = interpolated(table, mean_us, roof_us[kept][first], sizes[out], roof_us[out])
    return predicted


_HEADERS = ("set", "rows", "n", "naive", "roof", "table", "MAPE", "median", "p90", "bias", "tau")


def chip_table(chip: str, score: ChipScore) -> Table:
    """Return a table of the errors of rooflines, of an interpolated table and of the model."""
    how = f"fitted {score.folds}" if score.folds else "as it is"
    title = f"{chip}, {how}: MAPE of rooflines and a table, then errors of gemm_eval, in %"
    table = text_table(_HEADERS, title, num_left=2)
    for _, of_set in groupby(score.lines, lambda line: line.set):
        for index, line in enumerate(of_set):
            model = line.errors[MODEL]
            shares = [*(line.errors[name].mape_frac for name in (NAIVE, FITTED, TABLE)),
                      model.mape_frac, model.median_frac, model.p90_frac]  # fmt: skip
            table.add_row(
                "" if index else line.set, line.rows, f"{model.num:,}", *(f"{100.0 * share:.1f}" for share in shares),
                f"{100.0 * model.bias_frac:+.1f}", tau_cell(model),
            )  # fmt: skip
    return table


def validate(names: Sequence[str], data: Path | None, folds: int, seed: int, refit: bool) -> Report:
    """Score chips; parameters are the options of the command."""
    wanted = chips_with_timings() if list(names) == [ALL_GPUS] else list(dict.fromkeys(names))
    if data is not None and len(wanted) > 1:
        raise InvalidOptionError(f"--data FILE is of one chip, got {len(wanted)} names")

    def scores() -> Iterator[tuple[str, ChipScore]]:
        for name in wanted:
            spec = load_arch(name, MulticoreSpec, calibrated=not refit)
            timings = read_chip_timings(spec.name, data)
            yield spec.name, score_chip(spec, timings, num_folds=folds, seed=seed, is_fitted=refit)

    def document() -> dict[str, Any]:
        by_name = dict(scores())
        return {
            "folds": {name: score.folds for name, score in by_name.items()},
            "coefficients": {name: score.coefficients for name, score in by_name.items()},
            "repeats": {
                name: {of_set: asdict(repeat) for of_set, repeat in score.repeats.items()}
                for name, score in by_name.items()
            },
            "lines": plain_lines([line for score in by_name.values() for line in score.lines]),
        }

    def parts() -> Iterator[Table | str]:
        for name, score in scores():
            yield chip_table(name, score)
            for of_set, repeat in score.repeats.items():
                yield (
                    f"{of_set}: {repeat.num:,} timings are of GEMMs that were timed more than once; one is off the "
                    f"others by {repeat.mape_frac:.1%} in the mean, {repeat.median_frac:.1%} in the median, "
                    f"{repeat.p90_frac:.1%} at p90"
                )

    return Report(document, parts)


def calibrate(
    arch: str, data: Path | None, fit: Sequence[str] | None, folds: int, seed: int, out: Path | None
) -> Iterator[Fitted]:
    """Fit a chip; parameters are the options of the command."""
    spec = load_arch(arch, MulticoreSpec, calibrated=False)
    if out is None and Path(arch).suffix in (".yaml", ".yml"):
        raise InvalidOptionError("--arch FILE needs --out FILE: only presets have a place in arch/calibration")
    timings = read_chip_timings(spec.name, data)
    calibration, score = calibrate_chip(spec, timings, num_folds=folds, seed=seed, paths=fit or ())
    lines = (f"{name}: {value:.6g}" for name, value in score.coefficients.items())
    text = calibration_text(calibration, spec)
    yield Fitted(
        calibration_file(spec.name),
        lambda path: path.write_text(text, encoding="utf-8"),
        (chip_table(spec.name, score), *lines),
    )
