"""Kernels for few tokens on tensor cores, with weights that wait in shared memory in the order of operand registers."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import ClassVar

from gemm_eval.arch import THREADS_PER_WARP, DeviceLimits
from gemm_eval.dtypes import DType
from gemm_eval.kernels.families.base import MainLoop, Sizes, Variant, WeightMode, ceil_div
from gemm_eval.kernels.families.gemv import BLOCK_COLUMNS, BLOCK_K, StreamingFamily, team_warps_of
from gemm_eval.mapping import Schedule

_SMEM_PER_SM, _SMEM_RESERVED = 228 << 10, 1 << 10  # of the largest SM, for the register allocator

# Warps of an SM that the registers suffice for, by (cta_m, columns of a warp): groups of 64 or more and fp4, those with
# zero points, groups of 32 integers (0: too few registers).
_WARPS = {
    (8, 16): (32, 32, 28), (8, 32): (32, 32, 32), (8, 64): (24, 24, 24), (8, 128): (20, 20, 20), (16, 16): (28, 28, 20),
    (16, 32): (20, 20, 20), (16, 64): (16, 12, 12), (16, 128): (12, 8, 8), (24, 32): (16, 12, 12), (24, 64): (12, 8, 8),
    (24, 128): (8, 8, 0), (32, 32): (12, 12, 8), (32, 64): (8, 8, 0),
}  # fmt: skip

_SHAPES: Mapping[int, tuple[tuple[int, int, int, int], ...]] = {  # by cta_m: (cta_n, num_warps, num_stages, team)
    8: (
        (16, 8, 8, 1), (16, 16, 4, 1), (32, 4, 6, 1), (32, 8, 4, 1), (32, 8, 8, 1), (32, 16, 2, 1), (32, 16, 4, 1),
        (64, 4, 4, 1), (64, 4, 6, 1), (64, 8, 3, 1), (64, 8, 4, 1), (64, 16, 2, 1), (64, 16, 4, 1), (128, 4, 3, 1),
        (128, 4, 4, 1), (128, 8, 2, 1), (128, 8, 4, 2),
    ),
    16: (
        (16, 8, 8, 1), (16, 16, 4, 1), (32, 4, 6, 1), (32, 8, 3, 1), (32, 8, 4, 1), (32, 16, 4, 1), (64, 4, 4, 1),
        (64, 4, 6, 1), (64, 8, 3, 1), (64, 8, 4, 1), (64, 8, 6, 2), (128, 4, 3, 1), (128, 4, 4, 1), (128, 8, 3, 2),
        (128, 8, 4, 2), (256, 8, 4, 4),
    ),
    24: ((32, 8, 4, 1), (64, 4, 3, 1), (64, 8, 4, 1), (128, 4, 3, 1), (128, 4, 4, 2), (128, 8, 6, 4), (256, 8, 6, 4)),
    32: (
        (32, 8, 4, 1), (64, 4, 3, 1), (64, 4, 4, 1), (64, 4, 6, 2), (64, 8, 4, 1), (128, 4, 4, 2), (128, 4, 6, 2),
        (128, 8, 6, 4), (256, 8, 4, 4), (256, 8, 6, 4),
    ),
}  # fmt: skip


class GemvMmaFamily(StreamingFamily):
    """`mma.sync.m16n8k16` with 16 columns of W as rows and tokens as columns: for up to 32 tokens at once.

    A slot of a team's ring holds the weights, tokens and scales of a block; `num_stages` slots.
    """

    name: ClassVar[str] = "w4a16_gemv_mma"
    source: ClassVar[str] = "gemv_mma.cu"
    entry: ClassVar[str] = "w4a16_gemv_mma"
    schedule: ClassVar[Schedule] = Schedule.MULTISTAGE
    shapes: ClassVar[tuple[tuple[int, int, int, int], ...]] = tuple(
        (m, *shape[:3]) for m, shapes in _SHAPES.items() for shape in shapes
    )
    team_warps: ClassVar[Mapping[tuple[int, int, int, int], int]] = MappingProxyType(
        {(m, *shape[:3]): shape[3] for m, shapes in _SHAPES.items() for shape in shapes}
    )

    def refusal(self, variant: Variant, sizes: Sizes | None, limits: DeviceLimits) -> str | None:
        reason = super().refusal(variant, sizes, limits)
        return reason or ("too few registers" if _warps(variant) < variant.config.num_warps else None)

    def macros(self, variant: Variant) -> dict[str, int]:
        """The integers are subnormal fp16 numbers: the fewest instructions."""
        return {**super().macros(variant), "SUBNORMAL": int(variant.activation is DType.FP16)}

    def main_loop(self, variant: Variant) -> MainLoop:
        """It takes 64 k of the team's columns; one strip of 16 columns more is for the offsets of integers."""
        config, team = variant.config, team_warps_of(variant)
        strips = config.cta_n // team // 16
        num_mma = (strips + (0 if variant.mode.is_fp4 else 1)) * (config.cta_m // 8) * 4
        return MainLoop(Fraction(config.cta_n, BLOCK_COLUMNS), team, "HMMA", num_mma)

    def ring_bytes(self, variant: Variant) -> int:
        """Shared memory of a team's ring, in multiples of 128 bytes."""
        config = variant.config
        weights = config.num_stages * config.cta_n * BLOCK_K // 2
        return 128 * ceil_div(super().ring_bytes(variant) + weights, 128)

    def resident_threads(self, variant: Variant) -> int:
        """Threads of an SM that the registers must suffice for: no more than shared memory lets in."""
        of_smem = _SMEM_PER_SM // (self.smem_bytes(variant) + _SMEM_RESERVED)
        return min(of_smem * self.num_threads(variant), THREADS_PER_WARP * _warps(variant))


def _warps(variant: Variant) -> int:
    config = variant.config
    zero_or_less = 2 if variant.group_size == 32 else int(variant.mode is WeightMode.GROUP_ZERO)
    case = 0 if variant.mode.is_fp4 else zero_or_less
    return _WARPS[config.cta_m, config.cta_n // team_warps_of(variant)][case]
