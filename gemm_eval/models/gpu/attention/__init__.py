"""Attention on GPUs: families of fused kernels, their coefficients and their problems. OPERATIONS.md, "Attention"."""

from gemm_eval.models.gpu.attention.families import (
    AITER,
    ATTENTION,
    ATTENTION_FAMILIES,
    ATTENTION_LIBRARIES,
    ATTENTION_MODEL_VERSION,
    DEFAULT_ATTENTION,
    AttentionCalibration,
    AttentionCosts,
    AttentionFamily,
    attention_answers,
    attention_calibration_path,
    attention_coefficients,
    attention_costs,
    attention_features,
    check_attention_library,
    families_of_rows,
    family_us,
    library_of_gradients,
)
from gemm_eval.models.gpu.attention.rows import AttentionRows, attention_rows
from gemm_eval.models.gpu.correction_kernels import INCREASING_ATTENTION

__all__ = [
    "AITER", "ATTENTION", "ATTENTION_FAMILIES", "ATTENTION_LIBRARIES", "ATTENTION_MODEL_VERSION", "DEFAULT_ATTENTION",
    "INCREASING_ATTENTION", "AttentionCalibration", "AttentionCosts", "AttentionFamily", "AttentionRows",
    "attention_answers", "attention_calibration_path", "attention_coefficients", "attention_costs",
    "attention_features", "attention_rows", "check_attention_library", "families_of_rows", "family_us",
    "library_of_gradients",
]  # fmt: skip
