"""The model of Triton kernels, config by config: its predictions, its fit over all rows, and what each term does."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from gemm_eval.arch import GpuSpec
from gemm_eval.errors import InvalidInputError
from gemm_eval.models.gpu import Coefficient, ErrorFigures
from gemm_eval.models.gpu.triton import (
    TRITON_COEFFICIENTS,
    TritonCalibration,
    TritonConfig,
    default_triton_coefficients,
    launch_times,
    triton_coefficients,
)
from gemm_eval.validation.fit import Ranges, Search, fit_logs, provenance, rounded, sha256_of
from gemm_eval.validation.folds import cross_fit
from gemm_eval.validation.metrics import error_figures
from gemm_eval.validation.predictors.triton_rows import CONFIG_COLUMNS, read_triton_timings, rows_of
from gemm_eval.validation.tables import meta_of
from gemm_eval.validation.timings import Floats, Mask, Timings

__all__ = [
    "NUM_THREADS",
    "TritonModel",
    "calibrate_triton",
    "describe_config",
    "is_triton_calibrated",
]

_MIN_ROWS = 200  # for a fit of all coefficients

# errors to the fourth digit, and coefficients within a percent
_SEARCH = Search(loss_scale=0.1, difference=1e-4, off_bounds=1e-3, evaluations=60, tolerance=1e-5)

NUM_THREADS = os.cpu_count() or 1
"""Fits at a time: numpy, which this model is made of, leaves Python's lock to others."""


@dataclass(frozen=True, eq=False)
class TritonModel:
    """The model of Triton kernels with its coefficients; see `Model`.

    Attributes:
        arch: the GPU.
        values: the coefficients. A fit starts at them, so they must not come from rows that are held out of it.
        held: coefficients that a fit leaves as they are; they may be out of their ranges.
    """

    arch: GpuSpec
    values: Mapping[str, float] = field(default_factory=default_triton_coefficients)
    held: Mapping[str, float] = field(default_factory=dict)
    name: str = "model"
    is_screened: ClassVar[bool] = False
    buys_nothing_points: ClassVar[float] = 0.03
    num_threads: ClassVar[int] = NUM_THREADS

    @classmethod
    def as_it_is(cls, arch: GpuSpec) -> tuple[TritonModel, str]:
        """Return the model with the coefficients that the library has for this GPU, and where they come from."""
        coefficients, origin = triton_coefficients(arch)
        return cls(arch, coefficients), origin.text

    def fit(self, *train: Timings) -> TritonModel:
        """Return one that is fitted on all rows of one set.

        Raises:
            InvalidInputError: fewer than `_MIN_ROWS` rows, or one whose kernel cannot be launched on this GPU.
        """
        (rows,) = train
        if len(rows) < _MIN_ROWS:
            raise InvalidInputError(f"a fit needs at least {_MIN_ROWS} timings of Triton kernels, got {len(rows)}")
        can_run = rows_of(rows).launches.ctas_per_sm > 0
        if not can_run.all():
            row = int(np.argmin(can_run)) + 1
            raise InvalidInputError(f"row {row} has a kernel that cannot be launched on {self.arch.name}")
        ranges = Ranges([item for item in TRITON_COEFFICIENTS if item.name not in self.held], self.held)

        def predict(values: dict[str, float]) -> Floats:
            return replace(self, values=values).predict(rows)

        start = ranges.shares(self.values, _SEARCH.off_bounds)
        return replace(self, values=ranges.values(fit_logs(ranges, predict, rows.measured_us, start, _SEARCH)))

    def predict(self, rows: Timings) -> Floats:
        """Return the latency of each row at the config that ran, in microseconds."""
        return launch_times(self.arch, rows_of(rows).launches, self.values).latency_us

    def parts(self, timings: Timings) -> Iterator[tuple[str, TritonModel, Mask]]:
        """Yield itself: one set of coefficients serves all rows."""
        yield "", self, np.ones(len(timings), bool)

    def terms(self) -> Sequence[Coefficient]:
        """Return the coefficient of each term."""
        return TRITON_COEFFICIENTS

    def without(self, values: Mapping[str, float]) -> TritonModel:
        """Return one with these values, which a fit leaves as they are."""
        return replace(self, values={**self.values, **values}, held={**self.held, **values})

    def row_weights(self, rows: Timings) -> Floats:
        """Return what each row counts in a fit, [rows]: the same."""
        return np.ones(len(rows))


def is_triton_calibrated(arch: GpuSpec) -> bool:
    """Whether Triton kernels have a calibration of this very GPU."""
    return triton_coefficients(arch)[1].is_calibrated


def describe_config(timings: Timings, row: int) -> str:
    """Return the config of a row in words."""
    return str(TritonConfig(*timings.frame[list(CONFIG_COLUMNS)].iloc[row].tolist()))


def calibrate_triton(arch: GpuSpec, path: Path, *, num_folds: int = 5, seed: int = 0) -> TritonCalibration:
    """Fit all coefficients on a table of timings; the errors are of each data set, held out by (N, K).

    Args:
        arch: the GPU that the table is of.
        path: ``timings.parquet``, with the machine code beside it.
        num_folds, seed: deal the pairs to the folds.

    Raises:
        InvalidInputError: the table cannot be read, or has too few rows.
        InvalidOptionError: fewer pairs than folds.
    """
    timings = read_triton_timings(arch, path)
    model = TritonModel(arch)
    fitted = model.fit(timings)
    predicted_us = cross_fit(model, [timings], num_folds, seed, num_threads=NUM_THREADS).predict(timings)
    digest, errors = sha256_of(path), []
    for name in timings.groups:
        rows = timings.of_group(name)
        figures = error_figures(timings.measured_us[rows], predicted_us[rows])
        errors.append(ErrorFigures(data=f"triton/{name}", sha256=digest, **figures))
    return TritonCalibration(
        gpu=arch.name, triton_version=_triton_version(path), coefficients=rounded(fitted.values), errors=tuple(errors),
        **provenance(num_folds, "data sets", seed),
    )  # fmt: skip


def _triton_version(path: Path) -> str:
    versions = meta_of(path).get("versions")
    return str(versions.get("triton", "unknown")) if isinstance(versions, dict) else "unknown"
