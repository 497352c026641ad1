"""The exam of multi-core chips: fits of the few numbers that only timings tell, (N, K) held out; calibrations."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import yaml
from rich.table import Table

from gemm_eval import arch as specs
from gemm_eval.dtypes import HALF_BITS_PER_BYTE, parse_scheme
from gemm_eval.errors import InvalidOptionError
from gemm_eval.evaluate import CHIPS, GEMMEvaluator, chip_coefficients, chip_features, chip_group
from gemm_eval.models.gpu import Features, physics_digest
from gemm_eval.models.multicore import MODEL_VERSION
from gemm_eval.units import bytes_per_us
from gemm_eval.validation import exam
from gemm_eval.validation.baselines import fit_roof, interpolated
from gemm_eval.validation.exam import FITTED, MODEL, NAIVE, Groups, Line, Predict, parts_of
from gemm_eval.validation.fit import deal_pairs, held_out, provenance, robust_fit, rounded, soft_l1
from gemm_eval.validation.learned import PHYSICS, FittedCorrection, Subject, calibrate_learned, corrected
from gemm_eval.validation.metrics import ALL, REGIMES, Metrics, measure_errors
from gemm_eval.validation.subjects import Fitted, Report
from gemm_eval.validation.subjects.chip_timings import ChipTimings, TimingSet, chips_with_timings, read_chip_timings
from gemm_eval.validation.tables import Floats, Ints, Mask
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


def with_values(arch: specs.MulticoreSpec, coefficients: Mapping[str, float]) -> specs.MulticoreSpec:
    """Return a chip with other values at these paths; see `place_values`."""
    data = {name: getattr(arch, name) for name in arch.model_fields_set if name not in ("published", "calibration")}
    data["rules"] = None if arch.rules is None else arch.rules.model_dump(exclude_unset=True)
    return specs.build_spec(specs.MulticoreSpec, specs.place_values(data, coefficients), origin=arch.name)


def predict_set(arch: specs.MulticoreSpec, rows: TimingSet) -> Floats:
    """Return the latency of each row as it was timed, in microseconds; nan where nothing fits."""
    changes = dict(rows.changes)
    for name, new in changes.items():  # of tables the old one with what is new
        old = getattr(arch, name, None)
        changes[name] = {**old, **new} if isinstance(old, Mapping) and isinstance(new, Mapping) else new
    arch = arch.with_(**changes) if changes else arch
    floor_us = 0.0
    if arch.rules is None or rows.policy == "best":  # by rules a choice may be another where a floor makes times equal
        # it raises all mappings alike: without it a search finds the same time, and has no equal ones to go through
        floor_us, arch = arch.launch_floor_us, arch.with_(launch_floor_us=0.0)
    evaluator = GEMMEvaluator(arch, policy=rows.policy, disk_cache=False)
    predicted = np.full(len(rows), np.nan)
    for dtype, of_type in rows.frame.groupby("dtype"):
        sizes = [(1, M, K, N) for M, K, N in of_type[["M", "K", "N"]].to_numpy(int).tolist()]
        table = evaluator.evaluate_many(sizes, dtype=str(dtype), errors="mark", progress=False)
        predicted[of_type.index] = np.maximum(table["physics_us"], floor_us) + rows.timer_us
    return predicted


def priors_of(arch: specs.MulticoreSpec, paths: Sequence[str]) -> dict[str, float]:
    """Return the coefficients that were measured by themselves, from which a fit moves little (`MEASURED_SIGMA`)."""
    return {
        path: _value_at(arch, path)
        for path in paths
        if path in arch.provenance and arch.provenance[path].kind is specs.ProvenanceKind.MEASURED
    }


def fit_chip(
    arch: specs.MulticoreSpec,
    sets: Sequence[TimingSet],
    paths: Sequence[str],
    priors: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Return the values at these paths that fit timings best: least squares of log errors, with a robust loss.

    The distance of a coefficient from its prior, in sigmas, is one more error beside those of the rows, in scales of
    the loss, and counts as much as all rows together: rows of one chip are off in the same way, and outvote nothing.

    Where some sets are of a library and some are not, what only holds under the library is fitted last, on its sets
    alone, and everything else on the others: what a library does badly is not the chip's.
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
    arch: specs.MulticoreSpec, sets: Sequence[TimingSet], paths: Sequence[str], priors: Mapping[str, float]
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
        return np.append(np.nan_to_num(np.log(predicted) - logs, nan=_MISSING), off)

    best = 1.0 + np.clip((np.log([_value_at(arch, path) for path in paths]) - low) / (high - low), 0.001, 0.999)
    for difference in _DIFFERENCES:
        result = robust_fit(
            errors, best, np.ones(len(paths)), np.full(len(paths), 2.0), _LOSS_SCALE,
            diff_step=difference, max_nfev=_MOST_EVALUATIONS,
        )  # fmt: skip
        # where the choice of mappings changes, errors have steps, and a search may end higher than it began
        best = min(best, result, key=lambda shares: soft_l1(errors(shares), _LOSS_SCALE))
        best = np.clip(best, 1.001, 1.999)
    return rounded(values(best))


def _range_of(arch: specs.MulticoreSpec, path: str) -> tuple[float, float]:
    field = next((part for part in path.split(".") if part in RANGES), None)
    if field is None:
        raise InvalidOptionError(refusal("coefficient", path, RANGES))
    low, high = RANGES[field]
    # a time of the whole chip's rates: of a clock or bandwidth, not beyond what the maker says
    return (low, arch.dram_gb_per_s) if path == "dram_gb_per_s" else (low, high)


def _value_at(arch: specs.MulticoreSpec, path: str) -> float:
    """Return what stands at a path now, or the middle of its range."""
    low, high = _range_of(arch, path)
    value: Any = arch
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)
    is_number = isinstance(value, int | float) and low <= value <= high
    return float(value) if is_number else float(np.sqrt(low * high))


def folds_of(sets: Sequence[TimingSet], num_folds: int, seed: int, chip: str) -> Ints:
    """Return the fold of each row of all sets; a pair (N, K) is in the same fold in all of them."""
    pairs = [pair for rows in sets for pair in rows.pairs]
    return deal_pairs(pairs, min(num_folds, len(set(pairs))), seed, chip)


class ChipScore(NamedTuple):
    """The lines of a chip.

    Attributes:
        lines: of each set, its types and regimes, and all rows; labels are chip, set and rows.
        coefficients: fitted on all rows; empty where nothing was fitted.
        folds: how rows were held out; empty where nothing was fitted.
        repeats: by set, of GEMMs that were timed more than once: each timing "predicted" by the median of the others of
            its GEMM. What repeats differ by no model can tell.
    """

    lines: tuple[Line, ...]
    coefficients: dict[str, float]
    folds: str
    repeats: dict[str, Metrics]


def describe(
    arch: specs.MulticoreSpec, sets: Sequence[TimingSet], latency_us: Floats  # noqa: ARG001
) -> tuple[npt.NDArray[np.str_], Features]:  # fmt: skip
    """Return the group of each row, empty where the chip was not used as by default, and its features."""
    groups, sizes = [], []
    for rows in sets:
        is_default = rows.is_fitted and not rows.changes and rows.policy is None
        schemes = map(parse_scheme, rows.frame["dtype"])
        groups += [chip_group(of.input_dtype, of.weight_dtype) if is_default else "" for of in schemes]
        sizes.append(rows.frame.assign(G=1)[["G", "M", "K", "N"]].to_numpy(np.int64))
    return np.array(groups), chip_features(np.concatenate(sizes))


def committed_us(arch: specs.MulticoreSpec, sets: Sequence[TimingSet]) -> tuple[Floats, dict[str, str]]:
    """Return the latencies of rows by the committed calibration, and its digest by group."""
    preset = specs.load_arch(arch.name, specs.MulticoreSpec)
    digest = physics_digest(chip_coefficients(arch.name), MODEL_VERSION)
    groups, _ = describe(arch, sets, np.empty(0))
    return np.concatenate([predict_set(preset, rows) for rows in sets]), dict.fromkeys(groups.tolist(), digest)


LEARNS = Subject(CHIPS, MODEL_VERSION, (), committed_us, describe)


def chip_corrections(
    arch: specs.MulticoreSpec, timings: ChipTimings, *, num_folds: int = 5, seed: int = 0
) -> Iterator[FittedCorrection]:
    """Yield what the timings of a calibrated chip show beyond its terms, for each type with rows enough."""
    start, paths = with_values(arch, chip_coefficients(arch.name)), arch.coefficients
    plain = [rows.without_timer for rows in timings.sets]
    predict = predictions(plain, _fitting(start, timings.sets, paths, priors_of(arch, paths)))
    folds = folds_of(timings.sets, num_folds, seed, timings.chip)
    yield from calibrate_learned(LEARNS, arch, plain, predict, folds, MODEL)


Fit = Callable[[Mask], specs.MulticoreSpec]


def _fitting(
    start: specs.MulticoreSpec, sets: Sequence[TimingSet], paths: Sequence[str], priors: Mapping[str, float]
) -> Fit:
    """Return a function that fits a chip on some rows of all sets."""

    def fit(train: Mask) -> specs.MulticoreSpec:
        parts = zip(sets, parts_of(sets), strict=True)
        kept = [rows.select(train[part]) for rows, part in parts if rows.is_fitted]
        return with_values(start, fit_chip(start, [rows for rows in kept if len(rows)], paths, priors))

    return fit


def predictions(sets: Sequence[TimingSet], fit: Fit) -> Predict:
    """Return the predictions of the terms of the model, ready to be fitted."""

    def predict(train: Mask, rows: Mask) -> dict[str, Floats]:
        chip, parts = fit(train), zip(sets, parts_of(sets), strict=True)
        return {MODEL: np.concatenate([predict_set(chip, of.select(rows[part])) for of, part in parts])}

    return predict


def score_chip(
    arch: specs.MulticoreSpec, timings: ChipTimings, *, num_folds: int = 5, seed: int = 0, is_fitted: bool = True,
    paths: Sequence[str] = (), least_rows: Sequence[int] = (), is_corrected: bool = False,
) -> ChipScore:  # fmt: skip
    """Compare the model with timings: fitted on other (N, K) pairs, or as it is.

    Args:
        num_folds, seed: of the cross-validation by (N, K); with fewer pairs there are as many folds as pairs.
        is_fitted: False: the model as it is; rooflines and tables are held out all the same.
        paths: of the coefficients that are fitted; default: those that the spec names.
        least_rows: numbers of rows M that get a line of their own, for GEMMs of so many or more.
        is_corrected: correct groups of rows whose committed correction is on.

    Raises:
        InvalidOptionError: nothing to fit is named.
    """
    sets, paths = timings.sets, paths or arch.coefficients
    slices, folds = list(parts_of(sets)), folds_of(sets, num_folds, seed, timings.chip)
    if is_fitted and not paths:
        raise InvalidOptionError(f"{arch.name} names no coefficients: give --fit NAME, such as launch_us")
    priors = priors_of(arch, paths)
    fit_on = [rows for rows in sets if rows.is_fitted]
    coefficients = fit_chip(arch, fit_on, paths, priors) if is_fitted else {}
    start = with_values(arch, coefficients) if is_fitted else arch
    is_preset = bool(arch.calibration) and specs.calibration_file(arch.name).is_file()
    sheet = specs.load_arch(arch.name, specs.MulticoreSpec, calibrated=False) if is_preset else arch
    roofs = [_roofs(sheet, rows) for rows in sets]

    plain = [rows.without_timer for rows in sets]
    timer_us = np.concatenate([np.full(len(rows), rows.timer_us) for rows in sets])
    of_model = predictions(plain, _fitting(start, sets, paths, priors) if is_fitted else lambda _: start)
    if is_corrected:
        of_model = corrected(LEARNS, arch, plain, of_model, MODEL)

    def predict(train: Mask, held: Mask) -> dict[str, Floats]:
        parts: dict[str, list[Floats]] = {}
        for rows, part, of_set in zip(sets, slices, roofs, strict=True):
            if held[part].any():
                for who, us in _baselines(rows, *of_set, held[part]).items():
                    parts.setdefault(who, []).append(us)
        of_baselines = {who: np.concatenate(us) for who, us in parts.items()}
        return of_baselines | {who: us + timer_us[held] for who, us in of_model(train, held).items()}

    predicted = held_out(folds, predict)
    lines: list[Line] = []
    for rows, part in zip(sets, slices, strict=True):
        us, labels = {who: all_us[part] for who, all_us in predicted.items()}, {"chip": timings.chip, "set": rows.name}
        lines += exam.lines_of(labels, rows.measured_us, us, _groups(rows, least_rows))
    if len(fit_on) > 1:
        labels = {"chip": timings.chip, "set": "all fitted sets"}
        measured_us = np.concatenate([rows.measured_us for rows in sets])
        mask = np.concatenate([np.full(len(rows), rows.is_fitted) for rows in sets])
        lines += exam.lines_of(labels, measured_us, predicted, [({"rows": ALL}, mask)])
    words = provenance(int(folds.max()) + 1, "sets", seed)["folds"] if is_fitted else ""
    repeats = {rows.name: repeat for rows in sets if (repeat := _repeat_errors(rows)) is not None}
    return ChipScore(tuple(lines), coefficients, words, repeats)


def calibrate_chip(
    arch: specs.MulticoreSpec, timings: ChipTimings, *, num_folds: int = 5, seed: int = 0, paths: Sequence[str] = ()
) -> tuple[specs.MulticoreCalibration, ChipScore]:
    """Fit a chip on timings; the errors, of the calibration and its score, are of rows held out by (N, K)."""
    score = score_chip(arch, timings, num_folds=num_folds, seed=seed, paths=paths)
    errors = []
    for line in score.lines:
        naive, roofline = (round(100.0 * line.errors[who].mape_frac, 3) for who in (NAIVE, FITTED))
        figures = {"naive_mape_percent": naive, "roofline_mape_percent": roofline} | line.errors[MODEL].percents()
        errors.append(specs.MulticoreErrors(set=f"{line.labels['set']}, {line.group}", **figures))
    calibration = specs.MulticoreCalibration(
        chip=timings.chip, model_version=MODEL_VERSION, data=timings.source, sha256=timings.sha256,
        coefficients=score.coefficients, errors=tuple(errors),
        **(provenance(num_folds, "sets", seed) | {"folds": score.folds}),
    )  # fmt: skip
    return calibration, score


def calibration_text(calibration: specs.MulticoreCalibration, arch: specs.MulticoreSpec) -> str:
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


def _groups(rows: TimingSet, least_rows: Sequence[int]) -> Groups:
    types, M = rows.frame["dtype"], rows.frame["M"].to_numpy()
    masks = {str(dtype): (types == dtype).to_numpy() for dtype in types.unique()} if types.nunique() > 1 else {}
    masks |= {regime.name: regime.mask(M) for regime in REGIMES}
    masks |= {f"M >= {least}": least <= M for least in least_rows}
    return [({"rows": name}, mask) for name, mask in masks.items() if name == ALL or not mask.all()]


def _repeat_errors(rows: TimingSet) -> Metrics | None:
    """Return the errors of timings by the others of the same GEMM; None where each was timed once."""
    times = rows.frame.groupby(["dtype", "M", "K", "N"])["latency_us"]
    repeated = [of_gemm.to_numpy(np.float64) for _, of_gemm in times if len(of_gemm) > 1]
    if not repeated:
        return None
    others = [np.median(np.delete(us, index)) for us in repeated for index in range(len(us))]
    return measure_errors(np.concatenate(repeated), np.array(others))


def _baselines(rows: TimingSet, compute_us: Floats, dram_us: Floats, held: Mask) -> dict[str, Floats]:
    """Return the times of held-out rows by the data sheet, and by a roofline and a table of the other rows."""
    measured_us, naive_us = rows.measured_us, np.maximum(compute_us, dram_us)
    kept = ~held if (~held).sum() >= _LEAST_ROWS else np.ones(len(held), bool)
    roof = fit_roof(compute_us[kept], dram_us[kept], measured_us[kept], max(50.0, float(measured_us.min()) * 2.0))
    fitted_us = roof.predict(compute_us[held], dram_us[held])
    return {NAIVE: naive_us[held], FITTED: fitted_us, TABLE: _interpolated(rows, naive_us, held)[held]}


def _roofs(arch: specs.MulticoreSpec, rows: TimingSet) -> tuple[Floats, Floats]:
    """Return each row's time, in us, at the data sheet's peak and DRAM bandwidth (all on chip: of all cores' ports)."""
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


_SHARES = {NAIVE: "naive", FITTED: "roof", TABLE: "table", PHYSICS: "physics", MODEL: "MAPE"}


def chip_table(score: ChipScore) -> Table:
    """Return a table of the errors of rooflines, of an interpolated table and of the model."""
    how = f"fitted {score.folds}" if score.folds else "as it is"
    title = f"{score.lines[0].labels['chip']}, {how}: MAPE of rooflines and a table, then errors of gemm_eval"
    return exam.lines_table(score.lines, title, {"set": "set", "rows": "rows"}, _SHARES)


def validate(names: Sequence[str], data: Path | None, folds: int, seed: int, refit: bool) -> Report:
    """Score chips; parameters are the options of the command."""
    wanted = chips_with_timings() if list(names) == [exam.ALL_GPUS] else list(dict.fromkeys(names))
    if data is not None and len(wanted) > 1:
        raise InvalidOptionError(f"--data FILE is of one chip, got {len(wanted)} names")

    def scores() -> Iterator[tuple[str, ChipScore]]:
        for name in wanted:
            spec = specs.load_arch(name, specs.MulticoreSpec, calibrated=not refit)
            timings = read_chip_timings(spec.name, data)
            yield spec.name, score_chip(spec, timings, num_folds=folds, seed=seed, is_fitted=refit, is_corrected=True)

    def document() -> dict[str, Any]:
        document: dict[str, Any] = {"folds": {}, "coefficients": {}, "repeats": {}, "lines": []}
        for name, score in scores():
            document["folds"][name], document["coefficients"][name] = score.folds, score.coefficients
            document["repeats"][name] = {of_set: repeat._asdict() for of_set, repeat in score.repeats.items()}
            document["lines"] += [line.to_dict() for line in score.lines]
        return document

    def parts() -> Iterator[Table | str]:
        for _, score in scores():
            yield chip_table(score)
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
    spec = specs.load_arch(arch, specs.MulticoreSpec, calibrated=False)
    if out is None and Path(arch).suffix in (".yaml", ".yml"):
        raise InvalidOptionError("--arch FILE needs --out FILE: only presets have a place in arch/calibration")
    timings = read_chip_timings(spec.name, data)
    calibration, score = calibrate_chip(spec, timings, num_folds=folds, seed=seed, paths=fit or ())
    lines = (f"{name}: {value:.6g}" for name, value in score.coefficients.items())
    text = calibration_text(calibration, spec)
    yield Fitted(
        specs.calibration_file(spec.name),
        lambda path: path.write_text(text, encoding="utf-8"),
        (chip_table(score), *lines),
    )
