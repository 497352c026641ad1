"""Calibrations of attention kernels: one YAML file for each GPU, with the coefficients of all families fitted there."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field, model_validator

from gemm_eval.arch import GpuSpec, data_root, load_arch, read_yaml
from gemm_eval.errors import ArchValidationError
from gemm_eval.models.gpu.attention.families import ATTENTION_FAMILIES
from gemm_eval.models.gpu.calibration import ErrorFigures, Frozen, Origin, is_preset
from gemm_eval.models.gpu.coefficients import check_coefficients
from gemm_eval.words import shown

__all__ = [
    "ATTENTION_MODEL_VERSION",
    "AttentionCalibration",
    "FittedFamily",
    "attention_calibration_path",
    "attention_coefficients",
]

ATTENTION_MODEL_VERSION = "attention-2"


class FittedFamily(Frozen):
    """The coefficients of a family."""

    num_rows: int
    coefficients: dict[str, float]


class AttentionCalibration(Frozen):
    """What `gemm-eval calibrate attention` writes."""

    gpu: str
    library: str
    model_version: str
    code_version: str
    date: str
    folds: str = Field(description="how rows were held out for the errors")
    errors: Annotated[tuple[ErrorFigures, ...], Field(min_length=1)]
    families: dict[str, FittedFamily]

    @model_validator(mode="after")
    def _check(self) -> AttentionCalibration:
        for name, fitted in self.families.items():
            if name not in ATTENTION_FAMILIES:
                raise ValueError(f"families must be of {', '.join(ATTENTION_FAMILIES)}, got {shown(name)}")
            check_coefficients(fitted.coefficients, ATTENTION_FAMILIES[name].coefficients)
        return self

    def to_yaml(self) -> str:
        """The text of a calibration file; units and meanings stand as comments."""
        head = self.model_dump(mode="json", exclude={"families"})
        lines = [
            "# Written by `gemm-eval calibrate attention`; not to be edited by hand.",
            yaml.safe_dump(head, sort_keys=False).rstrip(),
            "families:",
        ]
        for name, fitted in self.families.items():
            family = ATTENTION_FAMILIES[name]
            lines += [f"  {name}:  # {family.what}", f"    num_rows: {fitted.num_rows}", "    coefficients:"]
            lines += [
                f"      {item.name}: {fitted.coefficients[item.name]:.6g}  # {item.unit}: {item.meaning}"
                for item in family.coefficients
            ]
        return "\n".join(lines) + "\n"


def attention_calibration_path(gpu: str, library: str) -> Path:
    """Where the calibration of a library's attention on a GPU lies, if there is one."""
    return data_root() / "calibration" / gpu / f"attention-{library}.yaml"


@cache
def _load(path: Path) -> AttentionCalibration:
    try:
        found = AttentionCalibration.model_validate(read_yaml(path))
    except ValueError as error:
        raise ArchValidationError(f"{path}: {error}") from error
    if path != attention_calibration_path(found.gpu, found.library):
        raise ArchValidationError(f"{path}: this is a calibration of {found.library} on {found.gpu}")
    return found


def attention_coefficients(arch: GpuSpec, library: str) -> tuple[dict[str, dict[str, float]], Origin]:
    """Return the coefficients of all families of a library on a GPU, and where those that were fitted come from.

    A calibration of this GPU is taken as it is; without one, that of another GPU of the same generation of SMs, else
    the defaults. What a calibration says nothing of has its defaults too.
    """
    origin = _origin(data_root(), arch.name, arch.sm_arch, library)
    if origin.is_calibrated and not is_preset(arch):
        text = f"those of {arch.name}, whose spec was changed: fitted on nothing of this GPU"
        origin = origin._replace(is_calibrated=False, text=text)
    return {name: dict(values) for name, values in _coefficients(data_root(), origin.gpu, library).items()}, origin


@cache
def _origin(root: Path, gpu: str, sm_arch: str, library: str) -> Origin:
    path = attention_calibration_path(gpu, library)
    if path.is_file():
        found = _load(path)
        return Origin(True, gpu, f"fitted on timings of {gpu} ({found.date})", found.library)
    for other in sorted((root / "calibration").glob(f"*/{path.name}")):
        if load_arch(other.parent.name, GpuSpec).sm_arch == sm_arch:
            found = _load(other)
            text = f"carried over from {found.library} kernels on {found.gpu}, fitted on nothing of this GPU"
            return Origin(False, found.gpu, text, found.library)
    return Origin(False, None, "defaults of the kernels, fitted on nothing of this generation of SMs")


@cache
def _coefficients(
    root: Path,  # noqa: ARG001  another root, other files
    gpu: str | None,
    library: str,
) -> dict[str, dict[str, float]]:
    fitted = _load(attention_calibration_path(gpu, library)).families if gpu is not None else {}
    return {
        name: fitted[name].coefficients if name in fitted else family.defaults
        for name, family in ATTENTION_FAMILIES.items()
        if family.library == library
    }
