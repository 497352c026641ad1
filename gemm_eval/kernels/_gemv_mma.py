"""Kernels for few tokens on tensor cores, with weights that go straight from global memory into operand registers."""

from __future__ import annotations

from typing import ClassVar

from gemm_eval.dtypes import DType
from gemm_eval.kernels._family import DeviceLimits, Sizes, Variant, WeightMode
from gemm_eval.kernels._gemv import StreamingFamily
from gemm_eval.mapping import Schedule

__all__ = ["GemvMmaFamily"]


class GemvMmaFamily(StreamingFamily):
    """`mma.sync.m16n8k16` with 16 columns of W as rows and tokens as columns: for up to 8 or 16 tokens at once."""

    name: ClassVar[str] = "w4a16_gemv_mma"
    source: ClassVar[str] = "gemv_mma.cu"
    entry: ClassVar[str] = "w4a16_gemv_mma"
    schedule: ClassVar[Schedule] = Schedule.MULTISTAGE
    shapes: ClassVar[tuple[tuple[int, int, int, int], ...]] = tuple(
        (m, n, warps, stages)
        for m in (8, 16)
        for n, warps, stages in (
            (16, 4, 8),
            (16, 8, 4),
            (16, 8, 8),
            (16, 16, 4),
            (32, 4, 4),
            (32, 8, 2),
            (32, 8, 4),
            (32, 16, 2),
            (32, 16, 4),
            (64, 4, 2),
            (64, 4, 3),
            (64, 8, 2),
            (64, 8, 3),
            (128, 4, 1),
            (128, 8, 1),
            *(((64, 16, 1), (64, 16, 2), (128, 4, 2)) if m == 8 else ()),  # 16 tokens: too few registers
        )
    )

    def refusal(self, variant: Variant, sizes: Sizes | None, limits: DeviceLimits) -> str | None:
        """Why this kernel cannot run (for any sizes where `sizes` is None), or None."""
        config = variant.config
        wide = config.cta_n * config.num_stages >= 128
        if config.cta_m == 16 and wide and variant.mode is WeightMode.GROUP_ZERO and variant.group_size == 32:
            return "too few registers"
        return super().refusal(variant, sizes, limits)

    def macros(self, variant: Variant) -> dict[str, int]:
        """The integers are subnormal fp16 numbers: the fewest instructions."""
        return {**super().macros(variant), "SUBNORMAL": int(variant.activation is DType.FP16)}

    def resident_threads(self, variant: Variant) -> int:
        """Threads of an SM that the registers must suffice for; the widest tiles need more than 128 each."""
        config = variant.config
        if config.cta_m * config.cta_n >= 16 * 64 and config.num_warps <= 8:
            return 256
        return 512
