"""Kernels whose time is that of their bytes: coefficients, and what they take. MODEL.md, "Memory-bound"."""

from gemm_eval.models.gpu.memory_bound.calibration import (
    MEMORY_BOUND_VERSION,
    MemoryBoundCalibration,
    memory_bound_calibration_path,
    memory_bound_coefficients,
)
from gemm_eval.models.gpu.memory_bound.coefficients import MEMORY_BOUND_COEFFICIENTS
from gemm_eval.models.gpu.memory_bound.costs import (
    MEMORY_BOUND_TERMS,
    MemoryBoundRows,
    memory_bound_terms,
    memory_bound_us,
)

__all__ = [
    "MEMORY_BOUND_COEFFICIENTS",
    "MEMORY_BOUND_TERMS",
    "MEMORY_BOUND_VERSION",
    "MemoryBoundCalibration",
    "MemoryBoundRows",
    "memory_bound_calibration_path",
    "memory_bound_coefficients",
    "memory_bound_terms",
    "memory_bound_us",
]
