"""Attention on GPUs: families of fused kernels, their coefficients, and what problems take. MODEL.md, "Attention"."""

from gemm_eval.models.gpu.attention.families import (
    ATTENTION_FAMILIES,
    ATTENTION_LIBRARIES,
    ATTENTION_MODEL_VERSION,
    DEFAULT_ATTENTION,
    AttentionCalibration,
    AttentionCosts,
    AttentionFamily,
    FittedFamily,
    attention_calibration_path,
    attention_coefficients,
    attention_costs,
    check_attention_library,
    families_of_rows,
    family_us,
)
from gemm_eval.models.gpu.attention.rows import EXPS_PER_CYCLE, AttentionRows, attention_rows

__all__ = [
    "ATTENTION_FAMILIES", "ATTENTION_LIBRARIES", "ATTENTION_MODEL_VERSION", "DEFAULT_ATTENTION", "EXPS_PER_CYCLE",
    "AttentionCalibration", "AttentionCosts", "AttentionFamily", "AttentionRows", "FittedFamily",
    "attention_calibration_path", "attention_coefficients", "attention_costs", "attention_rows",
    "check_attention_library", "families_of_rows", "family_us",
]  # fmt: skip
