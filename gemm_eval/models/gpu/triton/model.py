"""Times of Triton GEMM kernels on a GPU: coefficients from a calibration, and the cost of configs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from gemm_eval.arch import GpuSpec, data_root, read_yaml
from gemm_eval.errors import ArchValidationError, UnsupportedError
from gemm_eval.models.gpu.calibration import (
    Chip,
    ErrorFigures,
    Origin,
    calibration_text,
    checked_origin,
    chip_of,
    nearest_first,
    origin_of,
)
from gemm_eval.models.gpu.coefficients import check_coefficients, complete_coefficients
from gemm_eval.models.gpu.triton.code import KernelCode
from gemm_eval.models.gpu.triton.coefficients import TRITON_COEFFICIENTS, default_triton_coefficients
from gemm_eval.models.gpu.triton.config import TritonConfig
from gemm_eval.models.gpu.triton.cost import LaunchTimes, launch_times, pack_launches
from gemm_eval.workload import GemmProblem

__all__ = ["TritonCalibration", "triton_calibration_path", "triton_coefficients", "triton_costs", "triton_times_us"]


class TritonCalibration(BaseModel):
    """A file of fitted coefficients: `arch/calibration/<gpu>/triton.yaml`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    gpu: str
    triton_version: str = Field(description="of the compiler whose kernels were timed")
    code_version: str
    date: str
    folds: str = Field(description="how rows were held out for the errors")
    coefficients: dict[str, float]
    errors: tuple[ErrorFigures, ...]

    @model_validator(mode="after")
    def _check(self) -> TritonCalibration:
        check_coefficients(self.coefficients, TRITON_COEFFICIENTS)
        return self

    def to_yaml(self) -> str:
        """The text of the file; units and meanings stand as comments."""
        return calibration_text("gemm-eval calibrate triton", self, TRITON_COEFFICIENTS)


def triton_calibration_path(gpu: str) -> Path:
    """Where the calibration of Triton kernels on a GPU lies, if there is one."""
    return data_root() / "calibration" / gpu / "triton.yaml"


def triton_coefficients(arch: GpuSpec) -> tuple[dict[str, float], Origin]:
    """Return the coefficients of Triton kernels on a GPU, and where they come from.

    A calibration of this GPU is taken as it is; without one, that of the nearest GPU carries over (`nearest_first`);
    without any, defaults hold.
    """
    coefficients, origin = _coefficients(data_root() / "calibration", chip_of(arch))
    return coefficients, checked_origin(arch, origin)


@cache
def _coefficients(root: Path, chip: Chip) -> tuple[dict[str, float], Origin]:
    paths = nearest_first(root, chip, "triton.yaml")
    if not paths:
        return default_triton_coefficients(), Origin(False, None, "defaults, fitted on nothing")
    path = paths[0]
    try:
        found = TritonCalibration.model_validate(read_yaml(path))
    except ValueError as error:
        raise ArchValidationError(f"{path}: {error}") from error
    if found.gpu != path.parent.name:
        raise ArchValidationError(f"{path}: this is a calibration of {found.gpu}")
    coefficients = complete_coefficients(found.coefficients, TRITON_COEFFICIENTS)
    return coefficients, origin_of(found.gpu, found.date, is_own=found.gpu == chip.name)


def triton_costs(
    arch: GpuSpec,
    problem: GemmProblem,
    configs: Sequence[TritonConfig],
    codes: Sequence[KernelCode],
    coefficients: Mapping[str, float] | None = None,
) -> LaunchTimes:
    """Return where the time of each config goes, all arrays [len(configs)]; operands are not in L2.

    Args:
        arch: the GPU.
        problem: the GEMM.
        configs: what the kernel is launched with.
        codes: of each config: compiled (`gemm_eval.autotune.asm`), or `estimate_code`.
        coefficients: None: those of `triton_coefficients`.

    Raises:
        UnsupportedError: Triton's tensor-core instructions of this GPU, or kernels of these types, are not in the
            model.
    """
    if arch.mma_accumulators_in != "registers":
        raise UnsupportedError(f"{arch.name}: kernels that accumulate in tensor memory are not in the Triton model")
    if not arch.has_cp_async:
        raise UnsupportedError(f"{arch.name}: Triton does not compile for GPUs before sm_80, which have no cp.async")
    if coefficients is None:
        coefficients = triton_coefficients(arch)[0]
    return launch_times(arch, pack_launches(arch, problem, configs, codes), coefficients)


def triton_times_us(
    arch: GpuSpec, problem: GemmProblem, configs: Sequence[TritonConfig], codes: Sequence[KernelCode]
) -> npt.NDArray[np.float64]:
    """Return the predicted time of each config in us, infinite if it cannot be launched; see `triton_costs`."""
    return triton_costs(arch, problem, configs, codes).latency_us
