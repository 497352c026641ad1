"""How kernels that are bound by memory are predicted, widths of rows held out; and their calibration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gemm_eval.arch import GpuSpec, list_archs, load_arch
from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.models.gpu import ErrorFigures
from gemm_eval.models.gpu.memory_bound import (
    MEMORY_BOUND_COEFFICIENTS,
    MEMORY_BOUND_VERSION,
    MemoryBoundCalibration,
    MemoryBoundRows,
    memory_bound_us,
)
from gemm_eval.units import bytes_per_us
from gemm_eval.validation.baselines import interpolated
from gemm_eval.validation.fit import Ranges, Search, fit_logs, provenance, robust_fit, rounded, sha256_of
from gemm_eval.validation.memory_bound.tables import FOLDER, MemoryBoundTimings, list_memory_bound_timings
from gemm_eval.validation.metrics import ALL, Metrics, error_figures, measure_errors
from gemm_eval.validation.tables import measured_root
from gemm_eval.validation.timings import Floats, Mask
from gemm_eval.words import refusal
from gemm_eval.workload import ENGINES, TORCH

__all__ = [
    "FITTED",
    "MODEL",
    "NAIVE",
    "TABLE",
    "MemoryBoundLine",
    "calibrate_memory_bound",
    "fit_memory_bound",
    "gpus_with_memory_bound",
    "held_out_memory_bound",
    "score_memory_bound",
]

MODEL, FITTED, NAIVE, TABLE = "gemm_eval", "fitted roofline", "naive roofline", "table"
"""Who predicts: the model, overhead and rate fitted for each kernel, the data sheet's rate, a table interpolated."""

_SEARCH = Search(loss_scale=0.1, difference=0.001, off_bounds=0.01, evaluations=100)
_REGIMES = (("up to 16", 0, 16), ("17 to 256", 16, 256), ("more", 256, np.inf))
_FOLDS = {ENGINES: "width", TORCH: "octave of elements"}
_ROOF_START, _ROOF_LOW, _ROOF_HIGH = (2.0, 0.8), (0.1, 0.05), (50.0, 2.0)  # microseconds, share of the rate


class MemoryBoundLine(NamedTuple):
    """Errors on some rows of a table.

    Attributes:
        gpu, data: the table.
        what: a kernel, or ``all``.
        group: ``all``, or some numbers of rows.
        errors: by who predicts.
    """

    gpu: str
    data: str
    what: str
    group: str
    errors: Mapping[str, Metrics]


def gpus_with_memory_bound() -> list[str]:
    """Return the GPUs that have measured kernels."""
    return [name for name in list_archs() if any((measured_root(name) / FOLDER).glob("*.csv"))]


def score_memory_bound(names: Sequence[str]) -> Iterator[MemoryBoundLine]:
    """Yield the errors of rows whose width was held out, for each table, kernel and regime of rows.

    Args:
        names: GPUs; empty: all that have tables.

    Raises:
        InvalidOptionError: no such GPU.
    """
    known = gpus_with_memory_bound()
    for name in names:
        if name not in known:
            raise InvalidOptionError(refusal("gpu", name, known))
    for name in names or known:
        arch = load_arch(name, GpuSpec)
        for timings in list_memory_bound_timings(name):
            yield from _lines(timings, held_out_memory_bound(arch, timings))


def held_out_memory_bound(arch: GpuSpec, timings: MemoryBoundTimings) -> dict[str, Floats]:
    """Return predictions by who makes them, [rows], in microseconds: each row by fits on all other folds.

    Raises:
        InvalidInputError: a table of another GPU, or all of one fold.
    """
    _check(arch, timings)
    least_us = timings.num_bytes / bytes_per_us(arch.dram_gb_per_s)
    predicted = {name: np.empty(len(timings)) for name in (FITTED, TABLE, MODEL)}
    for fold in np.unique(timings.fold):
        held = timings.fold == fold
        coefficients = fit_memory_bound(arch, timings.rows.take(~held), timings.measured_us[~held])
        predicted[MODEL][held] = memory_bound_us(arch, coefficients, timings.rows.take(held))
        predicted[FITTED][held] = _overhead_and_rate(timings, least_us, held)
        predicted[TABLE][held] = _interpolated(timings, least_us, held)
    return {NAIVE: least_us} | predicted


def fit_memory_bound(arch: GpuSpec, rows: MemoryBoundRows, measured_us: Floats) -> dict[str, float]:
    """Return all coefficients, fitted on some kernels."""
    ranges = Ranges(MEMORY_BOUND_COEFFICIENTS)

    def predict(values: dict[str, float]) -> Floats:
        return memory_bound_us(arch, values, rows)

    start = ranges.shares({item.name: item.default for item in MEMORY_BOUND_COEFFICIENTS}, _SEARCH.off_bounds)
    return ranges.values(fit_logs(ranges, predict, measured_us, start, _SEARCH))


def calibrate_memory_bound(arch: GpuSpec, library: str = ENGINES) -> MemoryBoundCalibration:
    """Fit all coefficients on the committed tables of a library's kernels on a GPU; errors are of folds held out.

    Raises:
        InvalidInputError: there are none.
    """
    sets = [timings for timings in list_memory_bound_timings(arch.name) if timings.library == library]
    if not sets:
        raise InvalidInputError(f"no timings of memory-bound kernels of {library} on {arch.name} are committed")
    errors = []
    for timings in sets:
        path = measured_root(arch.name) / f"{timings.name}.csv"
        predicted = held_out_memory_bound(arch, timings)[MODEL]
        figures: dict[str, Any] = error_figures(timings.measured_us, predicted)
        errors.append(ErrorFigures(data=timings.name, sha256=sha256_of(path), **figures))
    columns = zip(*(timings.rows for timings in sets), strict=True)
    rows = MemoryBoundRows(*(np.concatenate(parts) for parts in columns))
    how = provenance(1, "rows", 0)
    return MemoryBoundCalibration(
        gpu=arch.name,
        model_version=MEMORY_BOUND_VERSION,
        code_version=how["code_version"],
        date=how["date"],
        folds=f"each {_FOLDS[library]} by a fit on the others, all kernels together",
        errors=tuple(errors),
        coefficients=rounded(fit_memory_bound(arch, rows, np.concatenate([item.measured_us for item in sets]))),
    )


def _check(arch: GpuSpec, timings: MemoryBoundTimings) -> None:
    if timings.gpu != arch.name:
        raise InvalidInputError(f"{timings.name} is of {timings.gpu}, not of {arch.name}")
    if len(np.unique(timings.fold)) < 2:
        raise InvalidInputError(f"{timings.name} has one width of rows only: none can be held out")


def _kernels(timings: MemoryBoundTimings, held: Mask) -> Iterator[tuple[Mask, Mask]]:
    """Yield the rows of a kernel to predict, and those to learn from: of all kernels, where it has no others."""
    what = np.array(timings.what)
    for name in np.unique(what[held]):
        of_kernel = what == name
        others = of_kernel & ~held
        yield of_kernel & held, others if others.any() else ~held


def _overhead_and_rate(timings: MemoryBoundTimings, least_us: Floats, held: Mask) -> Floats:
    """Overhead + bytes / rate, both fitted for each kernel."""
    predicted = np.full(len(timings), np.nan)
    for rows, others in _kernels(timings, held):

        def errors(logs: Floats, train: Mask = others) -> Floats:
            overhead_us, frac = np.exp(logs)
            found: Floats = np.log((overhead_us + least_us[train] / frac) / timings.measured_us[train])
            return found

        found = robust_fit(errors, np.log(_ROOF_START), np.log(_ROOF_LOW), np.log(_ROOF_HIGH), _SEARCH.loss_scale)
        overhead_us, frac = np.exp(found)
        predicted[rows] = overhead_us + least_us[rows] / frac
    return predicted[held]


def _interpolated(timings: MemoryBoundTimings, least_us: Floats, held: Mask) -> Floats:
    """A table of rows and width for each kernel."""
    predicted = np.full(len(timings), np.nan)
    sizes = np.stack([timings.num_rows, timings.width], axis=1)
    for rows, others in _kernels(timings, held):
        table = sizes[others], timings.measured_us[others], least_us[others]
        predicted[rows] = interpolated(*table, sizes[rows], least_us[rows])
    return predicted[held]


def _lines(timings: MemoryBoundTimings, predicted: Mapping[str, Floats]) -> Iterator[MemoryBoundLine]:
    what = np.array(timings.what)
    groups = {name: (timings.num_rows > low) & (timings.num_rows <= high) for name, low, high in _REGIMES}
    for kernel in (*dict.fromkeys(timings.what), ALL):
        for group, mask in (groups | {ALL: np.ones(len(timings), np.bool_)}).items():
            if (rows := mask & ((what == kernel) | (kernel == ALL))).any():
                errors = {name: measure_errors(timings.measured_us[rows], us[rows]) for name, us in predicted.items()}
                yield MemoryBoundLine(timings.gpu, timings.name, kernel, group, errors)
