"""Calibrations of collectives: one YAML file for each GPU whose node was timed, and what carries over to others."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field, model_validator

from gemm_eval.arch import LINKS, GpuSpec, Interconnect, data_root, load_arch, read_yaml
from gemm_eval.errors import ArchError, ArchValidationError, UnsupportedError
from gemm_eval.models.gpu.calibration import Chip, ErrorFigures, Frozen, Origin, chip_of, nearest_first, origin_of
from gemm_eval.models.gpu.coefficients import check_coefficients, complete_coefficients
from gemm_eval.models.gpu.collective.coefficients import COLLECTIVE_COEFFICIENTS

__all__ = [
    "COLLECTIVE_MODEL_VERSION",
    "CollectiveCalibration",
    "collective_calibration_path",
    "collective_coefficients",
    "link_of",
]

COLLECTIVE_MODEL_VERSION = "collective-3"


class CollectiveCalibration(Frozen):
    """What `gemm-eval calibrate collective` writes."""

    gpu: str
    libraries: tuple[str, ...] = Field(description="name and release of each library that was timed")
    model_version: str
    code_version: str
    date: str
    folds: str = Field(description="how rows were held out for the errors")
    errors: Annotated[tuple[ErrorFigures, ...], Field(min_length=1)]
    fitted: tuple[str, ...] = Field(description="the coefficients that the data determine; the others are defaults")
    coefficients: dict[str, float]

    @model_validator(mode="after")
    def _check(self) -> CollectiveCalibration:
        check_coefficients(self.coefficients, COLLECTIVE_COEFFICIENTS)
        if unknown := sorted(set(self.fitted) - set(self.coefficients)):
            raise ValueError(f"fitted names no coefficient: {', '.join(unknown)}")
        return self

    def to_yaml(self) -> str:
        """The text of a calibration file; units and meanings stand as comments."""
        head = self.model_dump(mode="json", exclude={"coefficients"})
        lines = [
            "# Written by `gemm-eval calibrate collective`; not to be edited by hand.",
            yaml.safe_dump(head, sort_keys=False).rstrip(),
            "coefficients:",
        ]
        for item in COLLECTIVE_COEFFICIENTS:
            how = "fitted" if item.name in self.fitted else "default"
            lines.append(f"  {item.name}: {self.coefficients[item.name]:.6g}  # {item.unit}, {how}: {item.meaning}")
        return "\n".join(lines) + "\n"


def collective_calibration_path(gpu: str) -> Path:
    """Where the calibration of collectives between GPUs of a kind lies, if there is one."""
    return data_root() / "calibration" / gpu / "collective.yaml"


def link_of(arch: GpuSpec) -> Interconnect:
    """Return what joins a GPU to others.

    Raises:
        UnsupportedError: its spec does not say.
    """
    if arch.interconnect is None:
        raise UnsupportedError(
            f"{arch.name} does not say what joins it to other GPUs: give its YAML an interconnect (link, topology, "
            "gb_per_s, num_gpus)"
        )
    return arch.interconnect


def collective_coefficients(arch: GpuSpec, link: Interconnect | None = None) -> tuple[dict[str, float], Origin]:
    """Return all coefficients for a GPU, and where they come from.

    A calibration of this GPU is taken as it is. Without one, that of the GPU with the nearest link carries over
    (`nearest_first`, by links): of the same kind and topology, then of the nearest generation, then of the nearest
    rate. Rates are shares of the link, so that they scale with what the spec says of it; latencies do not.

    Args:
        arch: the GPU.
        link: what joins it to others; None: as its spec says.

    Raises:
        UnsupportedError: its spec does not say what joins it to others.
    """
    coefficients, origin = _coefficients(data_root(), chip_of(arch), link_of(arch) if link is None else link)
    return dict(coefficients), origin


@cache
def _coefficients(root: Path, chip: Chip, link: Interconnect) -> tuple[dict[str, float], Origin]:
    def distance(other: GpuSpec) -> tuple[float, ...]:
        return (math.inf,) if other.interconnect is None else _distance(other.interconnect, link)

    for path in nearest_first(root / "calibration", chip, collective_calibration_path(chip.name).name, (), distance):
        other, is_own = _preset_link(path.parent.name), path.parent.name == chip.name
        if is_own or (other is not None and other.is_nvlink == link.is_nvlink):
            found = _load(path)
            return _complete(found), _origin(found, other, link, is_own=is_own)
    defaults = {item.name: item.default for item in COLLECTIVE_COEFFICIENTS}
    return defaults, Origin(False, None, "defaults, fitted on nothing of this kind of link")


def _origin(found: CollectiveCalibration, other: Interconnect | None, link: Interconnect, *, is_own: bool) -> Origin:
    library = ", ".join(found.libraries)
    if is_own and other == link:
        return origin_of(found.gpu, found.date, library, is_own=True)
    if is_own or other is None:
        text = f"those of {found.gpu}, whose link was changed: fitted on nothing of this one"
        return Origin(False, found.gpu, text, library)
    how = "of the same link" if other.link == link.link else f"of another link ({other.link}, this is {link.link})"
    text = (
        f"carried over from {found.gpu}, {how}, rates scaled to {link.gb_per_s:g} GB/s: fitted on nothing of this GPU"
    )
    return Origin(False, found.gpu, text, library)


def _distance(other: Interconnect, link: Interconnect) -> tuple[bool, int, float]:
    generations = abs(LINKS.index(other.link) - LINKS.index(link.link))
    return other.topology != link.topology, generations, abs(math.log(other.gb_per_s / link.gb_per_s))


def _complete(found: CollectiveCalibration) -> dict[str, float]:
    return complete_coefficients(found.coefficients, COLLECTIVE_COEFFICIENTS)


def _preset_link(gpu: str) -> Interconnect | None:
    try:
        return load_arch(gpu, GpuSpec).interconnect
    except ArchError:
        return None


@cache
def _load(path: Path) -> CollectiveCalibration:
    try:
        found = CollectiveCalibration.model_validate(read_yaml(path))
    except ValueError as error:
        raise ArchValidationError(f"{path}: {error}") from error
    if path.parent.name != found.gpu:
        raise ArchValidationError(f"{path}: this is a calibration of {found.gpu}")
    return found
