"""Attention on GPUs: families of fused kernels, their coefficients, and what problems take. MODEL.md, "Attention"."""

from gemm_eval.models.gpu.attention.calibration import (
    ATTENTION_MODEL_VERSION,
    AttentionCalibration,
    FittedFamily,
    attention_calibration_path,
    attention_coefficients,
)
from gemm_eval.models.gpu.attention.coefficients import EXPS_PER_CYCLE
from gemm_eval.models.gpu.attention.costs import AttentionCosts, attention_costs, family_us
from gemm_eval.models.gpu.attention.families import (
    ATTENTION_FAMILIES,
    ATTENTION_LIBRARIES,
    DEFAULT_ATTENTION,
    AttentionFamily,
    check_attention_library,
    families_of_rows,
)
from gemm_eval.models.gpu.attention.rows import AttentionRows, attention_rows

__all__ = [
    "ATTENTION_FAMILIES",
    "ATTENTION_LIBRARIES",
    "ATTENTION_MODEL_VERSION",
    "DEFAULT_ATTENTION",
    "EXPS_PER_CYCLE",
    "AttentionCalibration",
    "AttentionCosts",
    "AttentionFamily",
    "AttentionRows",
    "FittedFamily",
    "attention_calibration_path",
    "attention_coefficients",
    "attention_costs",
    "attention_rows",
    "check_attention_library",
    "families_of_rows",
    "family_us",
]
