"""The exam of multi-core chips: (N, K) held out, beside rooflines and a table; and their calibrations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import yaml

from gemm_eval.arch import MulticoreCalibration, MulticoreErrors, MulticoreSpec, calibration_file, load_arch
from gemm_eval.dtypes import HALF_BITS_PER_BYTE, parse_scheme
from gemm_eval.errors import InvalidOptionError
from gemm_eval.models.multicore import MODEL_VERSION
from gemm_eval.units import bytes_per_us
from gemm_eval.validation.baselines import fit_roof, interpolated
from gemm_eval.validation.exam import FITTED, MODEL, NAIVE
from gemm_eval.validation.fit import provenance
from gemm_eval.validation.metrics import ALL, REGIMES, Metrics, measure_errors
from gemm_eval.validation.subjects.chip_fit import RANGES, ChipTimings, TimingSet, folds_of, held_out, predict_set

Floats = npt.NDArray[np.float64]

TABLE = "interpolated table"
"""Name of a predictor: a table of the training rows, interpolated. The others are those of `exam`."""

_FLOP_PER_US = 1e6  # at 1 TFLOP/s


class ChipLine(NamedTuple):
    """Errors on rows of a set.

    Attributes:
        chip: arch name.
        set: of the timings.
        rows: a data type, a regime of M, or all.
        errors: by predictor.
    """

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
        model_us, coefficients = held_out(arch, sets, paths, folds)
    else:
        model_us = [predict_set(arch, rows) for rows in sets]
    sheet = _data_sheet(arch)
    roofs = [_roofs(sheet, rows) for rows in sets]
    naive_us = [np.maximum(*of_set) for of_set in roofs]
    fitted_us = [
        _cross_fitted_roof(*of_set, rows.measured_us, of_rows)
        for of_set, rows, of_rows in zip(roofs, sets, folds, strict=True)
    ]
    table_us = [
        _cross_fitted_table(rows, of_set, of_rows) for rows, of_set, of_rows in zip(sets, naive_us, folds, strict=True)
    ]
    by_name = {NAIVE: naive_us, FITTED: fitted_us, TABLE: table_us, MODEL: model_us}
    lines = []
    for place, rows in enumerate(sets):
        predicted = {name: of_sets[place] for name, of_sets in by_name.items()}
        lines += _lines(timings.chip, rows, predicted, least_rows)
    of_all = [rows for rows in range(len(sets)) if sets[rows].is_fitted]
    if len(of_all) > 1:
        measured = np.concatenate([sets[place].measured_us for place in of_all])
        errors = {
            name: measure_errors(measured, np.concatenate([found[place] for place in of_all]))
            for name, found in by_name.items()
        }
        lines.append(ChipLine(timings.chip, "all fitted sets", ALL, errors))
    words = provenance(int(max(of_set.max() for of_set in folds)) + 1, "sets", seed)["folds"] if is_fitted else ""
    repeats = {rows.name: found for rows in sets if (found := _repeat_errors(rows)) is not None}
    return ChipScore(tuple(lines), coefficients, words, repeats)


def calibrate_chip(
    arch: MulticoreSpec, timings: ChipTimings, *, num_folds: int = 5, seed: int = 0, paths: Sequence[str] = (),
    least_rows: Sequence[int] = (),
) -> tuple[MulticoreCalibration, ChipScore]:  # fmt: skip
    """Fit a chip on timings; the errors, of the calibration and its score, are of rows held out by (N, K)."""
    score = score_chip(arch, timings, num_folds=num_folds, seed=seed, paths=paths, least_rows=least_rows)
    how = provenance(num_folds, "sets", seed)
    fitted = MulticoreCalibration(
        chip=timings.chip,
        model_version=MODEL_VERSION,
        code_version=how["code_version"],
        date=how["date"],
        data=timings.source,
        sha256=timings.sha256,
        folds=score.folds,
        coefficients=score.coefficients,
        errors=tuple(_figures(line) for line in score.lines),
    )
    return fitted, score


def calibration_text(found: MulticoreCalibration, arch: MulticoreSpec) -> str:
    """Return the text of a calibration file; what the numbers are stands as comments."""
    head = found.model_dump(mode="json")
    values = head.pop("coefficients")
    lines = ["# Written by `gemm-eval calibrate multicore`; not to be edited by hand."]
    lines += [yaml.safe_dump(head, sort_keys=False, width=110).rstrip(), "coefficients:"]
    fields = type(arch).model_fields
    for path, value in values.items():
        meaning = next(
            (fields[part].description for part in path.split(".") if part in fields and part in RANGES), None
        )
        lines.append(f'  "{path}": {value:.6g}' + (f"  # {meaning}" if meaning else ""))
    return "\n".join(lines) + "\n"


def _figures(line: ChipLine) -> MulticoreErrors:
    found = line.errors[MODEL]
    percents = {
        f"{name}_percent": round(100.0 * value, 3)
        for name, value in {
            "mape": found.mape_frac,
            "median": found.median_frac,
            "p90": found.p90_frac,
            "bias": found.bias_frac,
            "naive_mape": line.errors[NAIVE].mape_frac,
            "roofline_mape": line.errors[FITTED].mape_frac,
        }.items()
    }
    tau = None if found.kendall_tau is None else round(found.kendall_tau, 4)
    return MulticoreErrors(set=f"{line.set}, {line.rows}", num_rows=found.num, kendall_tau=tau, **percents)


def _lines(chip: str, rows: TimingSet, predicted: dict[str, Floats], least_rows: Sequence[int]) -> list[ChipLine]:
    types, M, lines = rows.frame["dtype"], rows.frame["M"], []
    masks = {str(dtype): (types == dtype).to_numpy() for dtype in types.unique()} if types.nunique() > 1 else {}
    for regime in REGIMES:
        last = np.inf if regime.max_rows is None else regime.max_rows
        masks[regime.name] = M.between(regime.min_rows, last).to_numpy()
    masks |= {f"M >= {least}": (least <= M).to_numpy() for least in least_rows}
    for name, mask in masks.items():
        if mask.any() and (name == ALL or not mask.all()):
            errors = {who: measure_errors(rows.measured_us[mask], us[mask]) for who, us in predicted.items()}
            lines.append(ChipLine(chip, rows.name, name, errors))
    return lines


def _repeat_errors(rows: TimingSet) -> Metrics | None:
    """Return the errors of timings by the others of the same GEMM; None where each was timed once."""
    measured: list[float] = []
    others: list[float] = []
    for _, of_gemm in rows.frame.groupby(["dtype", "M", "K", "N"])["latency_us"]:
        times = of_gemm.to_numpy(np.float64)
        if len(times) > 1:
            measured += times.tolist()
            others += [float(np.median(np.delete(times, place))) for place in range(len(times))]
    return measure_errors(np.array(measured), np.array(others)) if measured else None


def _data_sheet(arch: MulticoreSpec) -> MulticoreSpec:
    """Return the chip without what was fitted on timings, where it is a preset."""
    is_preset = bool(arch.calibration) and calibration_file(arch.name).is_file()
    return load_arch(arch.name, MulticoreSpec, calibrated=False) if is_preset else arch


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


def _cross_fitted_roof(
    compute_us: Floats, dram_us: Floats, measured_us: Floats, folds: npt.NDArray[np.int64]
) -> Floats:
    predicted = np.empty(len(measured_us))
    for fold in np.unique(folds):
        out = folds == fold
        kept = ~out if (~out).sum() >= _LEAST_ROWS else np.ones(len(out), bool)
        most_us = max(50.0, float(measured_us.min()) * 2.0)
        roof = fit_roof(compute_us[kept], dram_us[kept], measured_us[kept], most_us)
        predicted[out] = roof.predict(compute_us[out], dram_us[out])
    return predicted


def _cross_fitted_table(rows: TimingSet, roof_us: Floats, folds: npt.NDArray[np.int64]) -> Floats:
    """Return the latency of each row by a table of the rows of its type in other folds; where it has none, its roof."""
    predicted = roof_us.copy()
    sizes = rows.frame[["M", "K", "N"]].to_numpy(np.int64)
    types = rows.frame["dtype"].to_numpy(str)
    logs = np.log(rows.measured_us)
    for dtype in np.unique(types):
        for fold in np.unique(folds):
            out, kept = (types == dtype) & (folds == fold), (types == dtype) & (folds != fold)
            if out.any() and kept.any():
                known, first, which = np.unique(sizes[kept], axis=0, return_index=True, return_inverse=True)
                mean_us = np.exp(np.bincount(which.ravel(), logs[kept]) / np.bincount(which.ravel()))
                predicted[out] = interpolated(known, mean_us, roof_us[kept][first], sizes[out], roof_us[out])
    return predicted


_LEAST_ROWS = 8  # for four constants
