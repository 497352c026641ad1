"""Measured attention: reading its tables, fitting the kernels' coefficients on them, and scoring predictions."""

from gemm_eval.validation.attention.scores import (
    FITTED,
    MODEL,
    NAIVE,
    AttentionLine,
    calibrate_attention,
    gpus_with_attention,
    held_out_attention,
    score_attention,
)
from gemm_eval.validation.attention.tables import (
    PHASES,
    AttentionTimings,
    list_attention_timings,
    read_attention_timings,
)

__all__ = [
    "FITTED",
    "MODEL",
    "NAIVE",
    "PHASES",
    "AttentionLine",
    "AttentionTimings",
    "calibrate_attention",
    "gpus_with_attention",
    "held_out_attention",
    "list_attention_timings",
    "read_attention_timings",
    "score_attention",
]
