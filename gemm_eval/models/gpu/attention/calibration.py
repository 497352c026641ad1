"""Calibrations of attention kernels: one YAML file for each GPU, with the coefficients of all families fitted there."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import ClassVar, NamedTuple

from pydantic import model_validator

from gemm_eval.arch import GpuSpec, data_root
from gemm_eval.models.gpu.attention.families import ATTENTION_FAMILIES
from gemm_eval.models.gpu.calibration import (
    CalibrationFile,
    Chip,
    Frozen,
    Origin,
    checked_origin,
    chip_of,
    coefficient_lines,
    nearest_first,
    origin_of,
)
from gemm_eval.models.gpu.coefficients import check_coefficients, complete_coefficients
from gemm_eval.words import shown

ATTENTION_MODEL_VERSION = "attention-3"


class FittedFamily(Frozen):
    """The coefficients of a family."""

    num_rows: int
    coefficients: dict[str, float]


class AttentionCalibration(CalibrationFile):
    """What `gemm-eval calibrate attention` writes."""

    command: ClassVar[str] = "gemm-eval calibrate attention"
    library: str
    model_version: str
    families: dict[str, FittedFamily]

    @property
    def stem(self) -> str:
        """Name of the file, without its suffix."""
        return f"attention-{self.library}"

    @model_validator(mode="after")
    def _check(self) -> AttentionCalibration:
        for name, fitted in self.families.items():
            if name not in ATTENTION_FAMILIES:
                raise ValueError(f"families must be of {', '.join(ATTENTION_FAMILIES)}, got {shown(name)}")
            check_coefficients(fitted.coefficients, ATTENTION_FAMILIES[name].coefficients)
        return self

    def text_of_coefficients(self) -> str:
        """The last part of a file."""
        lines = ["families:"]
        for name, fitted in self.families.items():
            family = ATTENTION_FAMILIES[name]
            lines += [f"  {name}:  # {family.what}", f"    num_rows: {fitted.num_rows}", "    coefficients:"]
            lines += coefficient_lines(fitted.coefficients, family.coefficients, indent=6 * " ")
        return "\n".join(lines)


def attention_calibration_path(gpu: str, library: str) -> Path:
    """Return where the calibration of a library's attention on a GPU lies, if there is one."""
    return data_root() / "calibration" / gpu / f"attention-{library}.yaml"


class AttentionCoefficients(NamedTuple):
    """Coefficients of all families of a library on a GPU, and where those of each come from."""

    values: dict[str, dict[str, float]]
    origins: dict[str, Origin]


def attention_coefficients(arch: GpuSpec, library: str) -> AttentionCoefficients:
    """Return the coefficients of all families of a library on a GPU, and where they come from.

    Each family is taken from the calibration of this GPU, else from that of the nearest GPU that has it
    (`nearest_first`), else it has its defaults.
    """
    values, origins = _coefficients(data_root(), chip_of(arch), library)
    return AttentionCoefficients(
        {name: dict(items) for name, items in values.items()},
        {name: checked_origin(arch, origin) for name, origin in origins.items()},
    )


@cache
def _coefficients(root: Path, chip: Chip, library: str) -> AttentionCoefficients:
    families = {name: family for name, family in ATTENTION_FAMILIES.items() if family.library == library}
    values = {name: family.defaults for name, family in families.items()}
    origins = dict.fromkeys(families, Origin(False, None, "defaults of the kernels, fitted on nothing"))
    paths = nearest_first(root / "calibration", chip, attention_calibration_path(chip.name, library).name)
    for calibration in map(AttentionCalibration.load, reversed(paths)):  # the best comes last and holds
        origin = origin_of(calibration.gpu, calibration.date, library, is_own=calibration.gpu == chip.name)
        for name, fitted in calibration.families.items():
            values[name] = complete_coefficients(fitted.coefficients, families[name].coefficients)
            origins[name] = origin
    return AttentionCoefficients(values, origins)
