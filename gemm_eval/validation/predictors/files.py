"""Where calibrations are committed, and what those of a GPU say of their held-out errors."""

from __future__ import annotations

from pathlib import Path

from gemm_eval.arch._paths import data_root
from gemm_eval.errors import InvalidOptionError
from gemm_eval.models.gpu.calibration import calibration_path, load_calibration
from gemm_eval.models.gpu.triton import triton_calibration_path

__all__ = ["calibration_out", "describe_held_out"]


def calibration_out(gpu: str, library: str, family: str) -> Path:
    """Return where a calibration is committed; only a checkout or an editable install has that.

    Raises:
        InvalidOptionError: this is an installed wheel, whose files are not to be written.
    """
    if data_root().name == "_arch_data":
        raise InvalidOptionError("--out must be given: this is no checkout, and an installed package is not written to")
    return triton_calibration_path(gpu) if library == "triton" else calibration_path(gpu, library, family)


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
