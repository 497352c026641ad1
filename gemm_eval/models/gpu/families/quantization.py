"""Kernels that quantize A by one scale for all of it, before a GEMM of another family."""

from __future__ import annotations

from gemm_eval.models.gpu.coefficients import QUANTIZATION
from gemm_eval.models.gpu.families.family import Family, since

__all__ = ["QUANTIZE"]

QUANTIZE = Family(
    name="quantize",
    number=16,
    sm_archs=since("sm_70"),
    schedules=(),
    mma_m=1,
    mma_n_step=1,
    num_warps=(),
    max_registers=255,
    operands="vector",
    is_quantization=True,
    coefficients=QUANTIZATION,
)
