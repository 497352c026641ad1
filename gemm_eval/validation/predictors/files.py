"""Calibrations as files: where they are committed, which holds for timings, and what they say of held-out errors."""

from __future__ import annotations

from pathlib import Path

from gemm_eval.arch import GpuSpec, data_root
from gemm_eval.errors import InvalidOptionError
from gemm_eval.models.gpu import Origin, calibration_path, coefficients_for, load_calibration
from gemm_eval.models.gpu.triton import triton_calibration_path
from gemm_eval.validation.predictors.dense_rows import families_of
from gemm_eval.validation.timings import Timings

__all__ = ["calibration_out", "describe_held_out", "describe_origin", "fitted_sets", "origin_of"]


def calibration_out(gpu: str, library: str, family: str) -> Path:
    """Return where a calibration is committed; only a checkout or an editable install has that.

    That of Triton's kernels of any code has no family; those of its experts' kernels have.

    Raises:
        InvalidOptionError: this is an installed wheel, whose files are not to be written.
    """
    if data_root().name == "_arch_data":
        raise InvalidOptionError("--out must be given: this is no checkout, and an installed package is not written to")
    is_of_any_code = library == "triton" and not family
    return triton_calibration_path(gpu) if is_of_any_code else calibration_path(gpu, library, family)


def fitted_sets(gpu: str, library: str) -> frozenset[str]:
    """Return the names of the sets that the calibrations of a GPU and a library are fitted on."""
    files = (data_root() / "calibration" / gpu).glob(f"{library}-*.yaml")
    return frozenset(errors.data for path in files for errors in load_calibration(path).errors)


def origin_of(arch: GpuSpec, timings: Timings) -> Origin:
    """Where the coefficients of the family that most rows of a set run with come from."""
    return coefficients_for(arch, timings.library, families_of(arch, timings)[0])[1]


def describe_origin(arch: GpuSpec, timings: Timings, main: Origin) -> str:
    """Where the coefficients of the main family come from, and those of other families where that differs."""
    words = main.text
    for family in families_of(arch, timings)[1:]:
        text = coefficients_for(arch, timings.library, family)[1].text
        words += f"; {family}: {text}" if text != main.text else ""
    return words


def describe_held_out(gpu: str, library: str, data: str) -> str:
    """Return the held-out errors that the calibrations of a GPU and a library give for a set, a line each."""
    files = sorted((data_root() / "calibration" / gpu).glob(f"{library}-*.yaml"))
    found = [
        f"{calibration.family}: held out {errors.mape_percent:.1f}% MAPE, {errors.median_percent:.1f}% median, "
        f"{errors.p90_percent:.1f}% p90 ({calibration.folds})"
        for calibration in map(load_calibration, files)
        for errors in calibration.errors
        if errors.data == data
    ]
    return "\n".join(found)
