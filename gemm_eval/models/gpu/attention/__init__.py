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
    AttentionFamily,
    families_of_rows,
    packs_tokens,
)
from gemm_eval.models.gpu.attention.rows import AttentionRows, attention_rows

__all__ = [
    "ATTENTION_FAMILIES",
    "ATTENTION_MODEL_VERSION",
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
    "families_of_rows",
    "family_us",
    "packs_tokens",
]
