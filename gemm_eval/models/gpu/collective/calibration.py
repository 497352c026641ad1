"""Calibrations of collectives: one YAML file for each GPU whose node was timed, and what carries over to others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import ClassVar

from pydantic import Field, model_validator

from gemm_eval.arch import LINKS, GpuSpec, Interconnect, data_root, load_arch
from gemm_eval.errors import ArchError, UnsupportedError
from gemm_eval.models.gpu.calibration import Chip, Origin, SingleCalibration, chip_of, nearest_first, origin_of
from gemm_eval.models.gpu.coefficients import Coefficient
from gemm_eval.models.gpu.collective.coefficients import COLLECTIVE_COEFFICIENTS

COLLECTIVE_MODEL_VERSION = "collective-3"


class CollectiveCalibration(SingleCalibration):
    """What `gemm-eval calibrate collective` writes."""

    command: ClassVar[str] = "gemm-eval calibrate collective"
    known: ClassVar[Sequence[Coefficient]] = COLLECTIVE_COEFFICIENTS
    libraries: tuple[str, ...] = Field(description="name and release of each library that was timed")
    model_version: str = Field(description="version of the model")
    fitted: tuple[str, ...] = Field(description="the coefficients that the data determine; the others are defaults")

    @property
    def stem(self) -> str:
        """Name of the file, without its suffix."""
        return "collective"

    @model_validator(mode="after")
    def _check(self) -> CollectiveCalibration:
        if unknown := sorted(set(self.fitted) - set(self.coefficients)):
            raise ValueError(f"fitted names no coefficient: {', '.join(unknown)}")
        return self


def collective_calibration_path(gpu: str) -> Path:
    """Return where the calibration of collectives between GPUs of a kind lies, if there is one."""
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
            found = CollectiveCalibration.load(path)
            return found.complete(), _origin(found, other, link, is_own=is_own)
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


def _preset_link(gpu: str) -> Interconnect | None:
    try:
        return load_arch(gpu, GpuSpec).interconnect
    except ArchError:
        return None
