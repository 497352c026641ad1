"""Cost model 2: GPUs, kernel configs of a library. The terms are defined in MODEL.md beside this file."""

from gemm_eval.models.gpu.calibration import Calibration, Origin, calibration_stamp, coefficients_for
from gemm_eval.models.gpu.cost_kernels import GPU_COST_DTYPE
from gemm_eval.models.gpu.libraries import AUTO, HYPOTHETICAL, LIBRARIES, default_library, library_of_family
from gemm_eval.models.gpu.model import (
    GPU_MODEL_VERSION,
    GpuCost,
    GpuOptions,
    pack_gpu,
    unpack_config,
    unpack_gpu_cost,
)
from gemm_eval.models.gpu.packed import Packed
from gemm_eval.models.gpu.space import enumerate_configs
from gemm_eval.models.gpu.terms import BOUNDS, TERMS

__all__ = [
    "AUTO",
    "BOUNDS",
    "GPU_COST_DTYPE",
    "GPU_MODEL_VERSION",
    "HYPOTHETICAL",
    "LIBRARIES",
    "TERMS",
    "Calibration",
    "GpuCost",
    "GpuOptions",
    "Origin",
    "Packed",
    "calibration_stamp",
    "coefficients_for",
    "default_library",
    "enumerate_configs",
    "library_of_family",
    "pack_gpu",
    "unpack_config",
    "unpack_gpu_cost",
]
