"""The exam of kernels whose time is that of their bytes: widths of rows held out; and their calibration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.models.gpu.memory_bound import (
    MEMORY_BOUND_COEFFICIENTS,
    MEMORY_BOUND_VERSION,
    MemoryBoundCalibration,
    MemoryBoundRows,
    memory_bound_calibration_path,
    memory_bound_row,
    memory_bound_us,
)
from gemm_eval.units import bytes_per_us
from gemm_eval.validation.baselines import interpolated
from gemm_eval.validation.exam import (
    FITTED,
    MODEL,
    NAIVE,
    TABLE,
    Exam,
    MeasuredTable,
    check_gpu,
    errors_of,
    held_out,
)
from gemm_eval.validation.fit import Ranges, Search, fit_logs, provenance, robust_fit, rounded
from gemm_eval.validation.metrics import ALL
from gemm_eval.validation.subjects import Fitted
from gemm_eval.validation.subjects.reports import fitted, rows_between
from gemm_eval.validation.tables import measured_root
from gemm_eval.validation.timings import Floats, Ints, Mask
from gemm_eval.words import shown
from gemm_eval.workload import ENGINES, TORCH, memory_kernel

_SEARCH = Search(loss_scale=0.1, difference=0.001, off_bounds=0.01, evaluations=100)
_REGIMES = (("up to 16", 0, 16), ("17 to 256", 16, 256), ("more", 256, np.inf))
_FOLDS = {ENGINES: "width", TORCH: "octave of elements"}
_ROOF_START, _ROOF_LOW, _ROOF_HIGH = (2.0, 0.8), (0.1, 0.05), (50.0, 2.0)  # microseconds, share of the rate
_DEALT = ("top_k", "sort")  # kernels without a CTA for each row: elements are dealt to CTAs


class MemoryBoundTable(MeasuredTable):
    """Measured kernels, one a row, with a CTA for each of its rows (but for choice and sort of experts)."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("what", "rows", "width", "read_bytes", "write_bytes", "latency_us")
    KEYS: ClassVar[tuple[str, ...]] = ("gpu",)

    @classmethod
    def read_meta(cls, path: Path, meta: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG003
        """Return the fields of a table that its meta file says: kernels are of engines where it does not say whose."""
        return {"gpu": str(meta["gpu"]), "library": meta.get("library", ENGINES)}

    @cached_property
    def fold(self) -> Ints:
        """Group that each row is held out with, [rows]: a width; of PyTorch's an octave of the number of elements."""
        width = self.column("width")
        if self.library == ENGINES:
            return width
        octaves: Ints = np.log2(self.column("rows") * width).astype(np.int64)
        return octaves

    @cached_property
    def rows(self) -> MemoryBoundRows:
        """The kernels, as the model takes them."""
        columns = ["what", "read_bytes", "write_bytes", "rows", "width"]
        rows = [
            memory_bound_row(*row, is_dealt=row[0] in _DEALT or memory_kernel(row[0]).is_dealt)
            for row in self.frame[columns].itertuples(index=False, name=None)
        ]
        return MemoryBoundRows(*np.array(rows, np.float64).T.copy())


def tables(gpu: str) -> list[MemoryBoundTable]:
    """Read all measured kernels of a GPU, by name."""
    return [MemoryBoundTable.read(path) for path in sorted((measured_root(gpu) / "memory-bound").glob("*.csv"))]


def fit_memory_bound(arch: GpuSpec, rows: MemoryBoundRows, measured_us: Floats) -> dict[str, float]:
    """Return all coefficients, fitted on some kernels."""
    ranges = Ranges(MEMORY_BOUND_COEFFICIENTS)

    def predict(values: dict[str, float]) -> Floats:
        return memory_bound_us(arch, values, rows)

    start = ranges.shares({item.name: item.default for item in MEMORY_BOUND_COEFFICIENTS}, _SEARCH.off_bounds)
    return ranges.values(fit_logs(ranges, predict, measured_us, start, _SEARCH))


def predict_held_out(arch: GpuSpec, table: MemoryBoundTable) -> dict[str, Floats]:
    """Return predictions by who makes them, [rows], in microseconds: each row by fits on all other folds.

    Raises:
        InvalidInputError: a table of another GPU, or all of one fold.
    """
    check_gpu(arch, table)
    if len(np.unique(table.fold)) < 2:
        raise InvalidInputError(f"{table.name} has one width of rows only: none can be held out")
    least_us = (table.rows.read_bytes + table.rows.write_bytes) / bytes_per_us(arch.dram_gb_per_s)

    def predict(held: Mask) -> dict[str, Floats]:
        coefficients = fit_memory_bound(arch, table.rows.take(~held), table.measured_us[~held])
        return {
            NAIVE: least_us[held],
            FITTED: _overhead_and_rate(table, least_us, held),
            TABLE: _interpolated(table, least_us, held),
            MODEL: memory_bound_us(arch, coefficients, table.rows.take(held)),
        }

    return held_out(table.fold, predict)


def calibrate_memory_bound(arch: GpuSpec, library: str = ENGINES) -> MemoryBoundCalibration:
    """Fit all coefficients on the committed tables of a library's kernels on a GPU; errors are of folds held out.

    Raises:
        InvalidInputError: there are none.
    """
    sets = [table for table in tables(arch.name) if table.library == library]
    if not sets:
        raise InvalidInputError(f"no timings of memory-bound kernels of {library} on {arch.name} are committed")
    columns = zip(*(table.rows for table in sets), strict=True)
    rows = MemoryBoundRows(*(np.concatenate(parts) for parts in columns))
    how = provenance(1, "rows", 0) | {"folds": f"each {_FOLDS[library]} by a fit on the others, all kernels together"}
    return MemoryBoundCalibration(
        gpu=arch.name,
        model_version=MEMORY_BOUND_VERSION,
        errors=tuple(errors_of(table, predict_held_out(arch, table)[MODEL]) for table in sets),
        coefficients=rounded(fit_memory_bound(arch, rows, np.concatenate([table.measured_us for table in sets]))),
        **how,
    )


def _kernels(table: MemoryBoundTable, held: Mask) -> Iterator[tuple[Mask, Mask]]:
    """Yield the rows of a kernel to predict, and those to learn from: of all kernels, where it has no others."""
    what = np.array(table.words("what"))
    for name in np.unique(what[held]):
        of_kernel = what == name
        others = of_kernel & ~held
        yield of_kernel & held, others if others.any() else ~held


def _overhead_and_rate(table: MemoryBoundTable, least_us: Floats, held: Mask) -> Floats:
    """Overhead + bytes / rate, both fitted for each kernel."""
    predicted = np.full(len(table), np.nan)
    for rows, others in _kernels(table, held):

        def errors(logs: Floats, train: Mask = others) -> Floats:
            overhead_us, frac = np.exp(logs)
            off: Floats = np.log((overhead_us + least_us[train] / frac) / table.measured_us[train])
            return off

        logs = robust_fit(errors, np.log(_ROOF_START), np.log(_ROOF_LOW), np.log(_ROOF_HIGH), _SEARCH.loss_scale)
        overhead_us, frac = np.exp(logs)
        predicted[rows] = overhead_us + least_us[rows] / frac
    return predicted[held]


def _interpolated(table: MemoryBoundTable, least_us: Floats, held: Mask) -> Floats:
    """Return a table of rows and width for each kernel."""
    predicted = np.full(len(table), np.nan)
    sizes = np.stack([table.column("rows"), table.column("width")], axis=1)
    for rows, others in _kernels(table, held):
        known = sizes[others], table.measured_us[others], least_us[others]
        predicted[rows] = interpolated(*known, sizes[rows], least_us[rows])
    return predicted[held]


def _groups(table: MemoryBoundTable) -> Iterator[tuple[dict[str, str], Mask]]:
    what = np.array(table.words("what"))
    regimes = rows_between(table.column("rows"), _REGIMES) | {ALL: np.ones(len(table), np.bool_)}
    for kernel in (*dict.fromkeys(what.tolist()), ALL):
        for group, mask in regimes.items():
            yield {"what": kernel, "group": group}, mask & ((what == kernel) | (kernel == ALL))


def calibrate(arch: str, library: str) -> Iterator[Fitted]:
    """Fit a library's kernels on a GPU; parameters are the options of the command."""
    if library not in _FOLDS:
        raise InvalidOptionError(f"--library must be one of {', '.join(_FOLDS)}, got {shown(library)}")
    calibration = calibrate_memory_bound(load_arch(arch, GpuSpec), library)
    title = f"Memory-bound kernels of {library} on {calibration.gpu}: errors of what was held out"
    yield fitted(calibration, memory_bound_calibration_path(calibration.gpu, library), title)


def exam() -> Exam[MemoryBoundTable]:
    """Return the exam."""
    return Exam(
        read=tables,
        predict=lambda arch, sets: predict_held_out(arch, sets[0]),
        groups=_groups,
        headline="held out: all rows of a width, or of an octave of elements of PyTorch's kernels; MAPE of the data "
        "sheet's rate, of overhead and rate fitted for each kernel, of a table, then errors of gemm_eval",
        title="{gpu}, {data}",
        columns={"what": "kernel", "group": "rows of"},
        baselines={NAIVE: "naive", FITTED: "roofline", TABLE: "table"},
        is_main=lambda labels: ALL in (labels["group"], labels["what"]),
    )
