"""Kernel families: what each kind of kernel needs of the hardware, its tiles, and what it loses before any fit."""

from gemm_eval.arch import SM_ARCHS
from gemm_eval.dtypes import DType
from gemm_eval.models.gpu.cost_kernels import NARROW_BYTES, ODD_COLUMNS, ROW_BYTES
from gemm_eval.models.gpu.families.cublas import (
    ELEMENTWISE,
    INT8_ODD_COLUMNS,
    MMA_FP8,
    MMA_SYNC,
    MMA_VOLTA,
    SIMT,
    TCGEN05,
    TF32_HOPPER,
    TF32_UNALIGNED,
    TF32_WGMMA,
    UNALIGNED,
    VECTOR_FAMILY,
    WGMMA,
    WGMMA_FULL,
)
from gemm_eval.models.gpu.families.family import Family, TileChoice
from gemm_eval.models.gpu.families.grouped import GROUPED
from gemm_eval.models.gpu.families.mfma import MFMA, MFMA_EXPERTS, MFMA_NARROW
from gemm_eval.models.gpu.families.narrow_weights import BLOCK_SCALED, OUR_FAMILIES, QUANTIZE, TRTLLM_FAMILIES

__all__ = [
    "FAMILIES", "GENERIC", "MFMA", "MFMA_EXPERTS", "MFMA_NARROW", "QUANTIZE", "SIMT", "Family", "TileChoice",
    "default_coefficients", "family_for",
]  # fmt: skip

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        WGMMA,
        MMA_SYNC,
        UNALIGNED,
        ELEMENTWISE,
        VECTOR_FAMILY,
        *OUR_FAMILIES,
        TCGEN05,
        MMA_VOLTA,
        MMA_FP8,
        WGMMA_FULL,
        TF32_HOPPER,
        TF32_WGMMA,
        TF32_UNALIGNED,
        SIMT,
        INT8_ODD_COLUMNS,
        *BLOCK_SCALED,
        QUANTIZE,
        *TRTLLM_FAMILIES,
        MFMA,
        *MFMA_NARROW,
        *MFMA_EXPERTS,
        *GROUPED,
    )
}
"""Kernel families by name."""

GENERIC = tuple(name for name, family in FAMILIES.items() if not (family.is_ours or family.is_quantization))
"""Those whose configs are costed by one formula, with coefficients of their own."""


def family_for(
    sm_arch: str, input_dtype: str, *, load_bytes: int, is_block_scaled: bool = False, is_full: bool = False
) -> Family:
    """Return the family that kernel libraries use on a generation of SMs for an input type.

    On NVIDIA's GPUs rows that do not start on 16 bytes have families of their own, as TMA cannot load them; so may
    block-scaled types, for which a caller asks.

    Args:
        sm_arch: generation of SMs.
        input_dtype: of A.
        load_bytes: what all rows start on, 16, 4 or 1, or `ODD_COLUMNS`.
        is_block_scaled: whether A has scales.
        is_full: whether fp8 products are added in fp32, which kernels of Hopper do apart.
    """
    if input_dtype == DType.FP32 and sm_arch in SM_ARCHS:
        return SIMT
    if is_full and sm_arch in WGMMA_FULL.sm_archs:
        return WGMMA_FULL
    if load_bytes == ODD_COLUMNS:
        return INT8_ODD_COLUMNS
    if load_bytes == NARROW_BYTES and input_dtype == DType.TF32 and sm_arch in TF32_UNALIGNED.sm_archs:
        return TF32_UNALIGNED
    if load_bytes < ROW_BYTES and sm_arch in SM_ARCHS:
        return UNALIGNED if load_bytes == NARROW_BYTES else ELEMENTWISE
    if is_block_scaled:
        of_blocks = (family for family in FAMILIES.values() if family.block_scaled == input_dtype)
        if found := next((family for family in of_blocks if sm_arch in family.own_of), None):
            return found
    of_types = (family for family in FAMILIES.values() if family.block_scaled is None)
    own = (family for family in of_types if input_dtype not in family.other_dtypes)
    return next((family for family in own if sm_arch in family.own_of), MMA_SYNC)


def default_coefficients(family: str) -> dict[str, float]:
    """Values of a family before any fit (MODEL.md, "Ranges, defaults and sources")."""
    return FAMILIES[family].defaults
