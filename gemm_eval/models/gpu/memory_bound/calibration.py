"""Calibrations of memory-bound kernels: one YAML file for each GPU that was timed, and what carries over to others."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from gemm_eval.arch import GpuSpec, data_root, read_yaml
from gemm_eval.errors import ArchValidationError
from gemm_eval.models.gpu.calibration import (
    Chip,
    ErrorFigures,
    Frozen,
    Origin,
    calibration_text,
    checked_origin,
    chip_of,
    nearest_first,
    origin_of,
)
from gemm_eval.models.gpu.coefficients import check_coefficients, complete_coefficients
from gemm_eval.models.gpu.memory_bound.coefficients import MEMORY_BOUND_COEFFICIENTS
from gemm_eval.workload import ENGINES

__all__ = [
    "MEMORY_BOUND_VERSION",
    "MemoryBoundCalibration",
    "memory_bound_calibration_path",
    "memory_bound_coefficients",
]

MEMORY_BOUND_VERSION = "memory-bound-5"


class MemoryBoundCalibration(Frozen):
    """What `gemm-eval calibrate memory-bound` writes."""

    gpu: str
    model_version: str
    code_version: str
    date: str
    folds: str = Field(description="how rows were held out for the errors")
    errors: Annotated[tuple[ErrorFigures, ...], Field(min_length=1)]
    coefficients: dict[str, float]

    @model_validator(mode="after")
    def _check(self) -> MemoryBoundCalibration:
        check_coefficients(self.coefficients, MEMORY_BOUND_COEFFICIENTS)
        return self

    def to_yaml(self) -> str:
        """The text of a calibration file; units and meanings stand as comments."""
        return calibration_text("gemm-eval calibrate memory-bound", self, MEMORY_BOUND_COEFFICIENTS)


def memory_bound_calibration_path(gpu: str, library: str = ENGINES) -> Path:
    """Where the calibration of a library's memory-bound kernels on a GPU lies, if there is one."""
    return data_root() / "calibration" / gpu / _file_name(library)


def _file_name(library: str) -> str:
    return "memory-bound.yaml" if library == ENGINES else f"memory-bound-{library}.yaml"


def memory_bound_coefficients(arch: GpuSpec, library: str = ENGINES) -> tuple[dict[str, float], Origin]:
    """Return all coefficients of a library's kernels on a GPU, and where they come from.

    A calibration of this GPU is taken as it is. Without one, that of the nearest GPU carries over (`nearest_first`):
    shares of rates and cycles scale with what its spec says.
    """
    coefficients, origin = _coefficients(data_root(), chip_of(arch), library)
    return dict(coefficients), checked_origin(arch, origin)


@cache
def _coefficients(root: Path, chip: Chip, library: str) -> tuple[dict[str, float], Origin]:
    paths = nearest_first(root / "calibration", chip, _file_name(library))
    if not paths:
        return {item.name: item.default for item in MEMORY_BOUND_COEFFICIENTS}, Origin(False, None, "defaults")
    found = _load(paths[0])
    return _complete(found), origin_of(found.gpu, found.date, is_own=found.gpu == chip.name)


def _complete(found: MemoryBoundCalibration) -> dict[str, float]:
    return complete_coefficients(found.coefficients, MEMORY_BOUND_COEFFICIENTS)


@cache
def _load(path: Path) -> MemoryBoundCalibration:
    try:
        found = MemoryBoundCalibration.model_validate(read_yaml(path))
    except ValueError as error:
        raise ArchValidationError(f"{path}: {error}") from error
    if path.parent.name != found.gpu:
        raise ArchValidationError(f"{path}: this is a calibration of {found.gpu}")
    return found
