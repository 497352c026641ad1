"""The model of kernels that Triton makes: software-pipelined loops of cp.async and wgmma or mma.sync."""

from gemm_eval.models.gpu.triton.code import KernelCode, MainLoop, MmaCount
from gemm_eval.models.gpu.triton.coefficients import TRITON_COEFFICIENTS, default_triton_coefficients
from gemm_eval.models.gpu.triton.config import TritonConfig
from gemm_eval.models.gpu.triton.cost import Launches, LaunchTimes, launch_times, pack_launches, stack_launches
from gemm_eval.models.gpu.triton.estimate import estimate_code
from gemm_eval.models.gpu.triton.model import (
    TritonCalibration,
    triton_calibration_path,
    triton_coefficients,
    triton_costs,
    triton_times_us,
)

__all__ = [
    "TRITON_COEFFICIENTS",
    "KernelCode",
    "LaunchTimes",
    "Launches",
    "MainLoop",
    "MmaCount",
    "TritonCalibration",
    "TritonConfig",
    "default_triton_coefficients",
    "estimate_code",
    "launch_times",
    "pack_launches",
    "stack_launches",
    "triton_calibration_path",
    "triton_coefficients",
    "triton_costs",
    "triton_times_us",
]
