"""Times of Triton GEMM kernels on a GPU: coefficients from a calibration, and the cost of configs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gemm_eval.arch import GpuSpec, data_root
from gemm_eval.errors import UnsupportedError
from gemm_eval.models.gpu.calibration import Origin, SingleCalibration, transferred
from gemm_eval.models.gpu.coefficients import Coefficient
from gemm_eval.models.gpu.triton.code import KernelCode
from gemm_eval.models.gpu.triton.coefficients import TRITON_COEFFICIENTS
from gemm_eval.models.gpu.triton.config import TritonConfig
from gemm_eval.models.gpu.triton.cost import LaunchTimes, launch_times, pack_launches
from gemm_eval.workload import GemmProblem


class TritonCalibration(SingleCalibration):
    """What `gemm-eval calibrate triton` writes."""

    command: ClassVar[str] = "gemm-eval calibrate triton"
    known: ClassVar[Sequence[Coefficient]] = TRITON_COEFFICIENTS
    triton_version: str = Field(description="of the compiler whose kernels were timed")

    @property
    def stem(self) -> str:
        """Name of the file, without its suffix."""
        return "triton"


def triton_calibration_path(gpu: str) -> Path:
    """Return where the calibration of Triton kernels on a GPU lies, if there is one."""
    return data_root() / "calibration" / gpu / "triton.yaml"


def triton_coefficients(arch: GpuSpec) -> tuple[dict[str, float], Origin]:
    """Return the coefficients of Triton kernels on a GPU, and where they come from; see `transferred`."""
    return transferred(TritonCalibration, arch, "triton.yaml")


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
