"""Collectives between the GPUs of a node: algorithms, coefficients, and what messages take. MODEL.md, "Collectives"."""

from gemm_eval.models.gpu.collective.algorithms import CollectiveTerms, link_rate
from gemm_eval.models.gpu.collective.calibration import (
    COLLECTIVE_MODEL_VERSION,
    CollectiveCalibration,
    collective_calibration_path,
    collective_coefficients,
    link_of,
)
from gemm_eval.models.gpu.collective.coefficients import (
    COLLECTIVE_COEFFICIENTS,
    DIRECT,
    EXCHANGE,
    MULTICAST,
    RING,
    SOCKETS,
)
from gemm_eval.models.gpu.collective.costs import (
    COLLECTIVE_LIBRARIES,
    NCCL,
    TRTLLM_DIRECT,
    CollectiveCost,
    collective_cost,
    has_direct_kernels,
)
from gemm_eval.models.gpu.collective.rows import CollectiveRows, collective_rows, collectives_us

__all__ = [
    "COLLECTIVE_COEFFICIENTS",
    "COLLECTIVE_LIBRARIES",
    "COLLECTIVE_MODEL_VERSION",
    "DIRECT",
    "EXCHANGE",
    "MULTICAST",
    "NCCL",
    "RING",
    "SOCKETS",
    "TRTLLM_DIRECT",
    "CollectiveCalibration",
    "CollectiveCost",
    "CollectiveRows",
    "CollectiveTerms",
    "collective_calibration_path",
    "collective_coefficients",
    "collective_cost",
    "collective_rows",
    "collectives_us",
    "has_direct_kernels",
    "link_of",
    "link_rate",
]
