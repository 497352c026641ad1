"""The model of kernels that Triton makes: software-pipelined loops of cp.async and wgmma or mma.sync."""

from gemm_eval.models.gpu.triton.code import KernelCode, MainLoop, MmaCount, TritonConfig, estimate_code
from gemm_eval.models.gpu.triton.model import (
    TRITON,
    TRITON_COEFFICIENTS,
    TRITON_VERSION,
    Launches,
    LaunchTimes,
    TritonCalibration,
    TritonTimes,
    launch_times,
    pack_launches,
    stack_launches,
    triton_calibration_path,
    triton_coefficients,
    triton_costs,
    triton_features,
    triton_group,
    triton_times,
)

__all__ = [
    "TRITON", "TRITON_COEFFICIENTS", "TRITON_VERSION", "KernelCode", "LaunchTimes", "Launches", "MainLoop", "MmaCount",
    "TritonCalibration", "TritonConfig", "TritonTimes", "estimate_code", "launch_times",
    "pack_launches", "stack_launches", "triton_calibration_path", "triton_coefficients", "triton_costs",
    "triton_features", "triton_group", "triton_times",
]  # fmt: skip
