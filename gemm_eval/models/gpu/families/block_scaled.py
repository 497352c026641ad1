"""Kernels of block-scaled types, as TensorRT-LLM 1.3 runs them: DeepGEMM's, CUTLASS's and its own.

Which generation has which is what the kernels' sources and release notes say; tiles are those that its timings show
(arch/measured, fp8_block and nvfp4; MODEL.md, "Block-scaled types"): waves of so many CTAs, and no part of K.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from gemm_eval.dtypes import DType
from gemm_eval.mapping import Schedule
from gemm_eval.models.gpu.coefficients import Coefficient, after_quantization
from gemm_eval.models.gpu.families.family import Family, TileChoice, any_rows
from gemm_eval.models.gpu.families.mma_sync import MMA_SYNC
from gemm_eval.models.gpu.families.tcgen05 import TCGEN05
from gemm_eval.models.gpu.families.wgmma import WGMMA

__all__ = ["BLOCK_SCALED"]

_COOP, _PP, _MS = Schedule.COOPERATIVE, Schedule.PINGPONG, Schedule.MULTISTAGE
_SINGLE = ((1, 1),)
_PAIRS = ((1, 1), (1, 2), (2, 1))

# DeepGEMM on Hopper: 64 or 128 rows of either operand, the other side in steps of 16; sums of a k-step are added to
# fp32 sums by ordinary cores, which take as many registers again, so that tiles stay small
_HOPPER_TOKENS_ON_COLUMNS = tuple((m, n) for n in (64, 128) for m in (16, 32, 48, 64))
_HOPPER_TOKENS_ON_ROWS = tuple((128, n) for n in (16, 32, 48, 64, 80, 96, 112, 128, 144, 160))
_BLACKWELL_SIDES = (16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)
_BLACKWELL_SIZES = tuple(dict.fromkeys([(128, n) for n in _BLACKWELL_SIDES] + [(m, 128) for m in _BLACKWELL_SIDES]))


def _tiles_of(
    family: str,
    sizes: tuple[tuple[int, int], ...],
    warps: int,
    schedule: Schedule,
    clusters: tuple[tuple[int, int], ...] = _SINGLE,
) -> Callable[..., Iterator[TileChoice]]:
    def tiles(*_: object) -> Iterator[TileChoice]:
        return (TileChoice(family, m, n, warps, schedule, clusters) for m, n in sizes)

    return tiles


def _coefficients_like(family: Family) -> tuple[Coefficient, ...]:
    """Those of a family, with room for what these kernels wait more than cuBLAS's; A takes one kernel, not two."""
    highest = {"step_cycles": 3000.0, "coop_step_cycles": 3000.0, "kernel_us": 12.0}
    return after_quantization(family.coefficients, highest, quantize_us=2.0)


def _rows_of_hopper(cta_m: int) -> int:
    """Tokens that lie on columns are those of one tile."""
    return cta_m if cta_m < 128 else any_rows(cta_m)


def _rows_of_rtx_blackwell(cta_m: int) -> int:
    return 64 if cta_m < 64 else any_rows(cta_m)


BLOCK_SCALED = (
    replace(
        WGMMA,
        name="sm90_block_fp8",
        number=10,
        block_scaled=DType.FP8,
        max_rows=_rows_of_hopper,
        dense_tiles=_tiles_of("sm90_block_fp8", _HOPPER_TOKENS_ON_COLUMNS + _HOPPER_TOKENS_ON_ROWS, 8, _COOP, _PAIRS),
        coefficients=_coefficients_like(WGMMA),
    ),
    replace(
        TCGEN05,
        name="sm100_block_fp8",
        number=11,
        block_scaled=DType.FP8,
        dense_tiles=_tiles_of("sm100_block_fp8", _BLACKWELL_SIZES, 8, _PP, _PAIRS),
        coefficients=_coefficients_like(TCGEN05),
    ),
    replace(
        TCGEN05,
        name="sm100_block_fp4",
        number=12,
        block_scaled=DType.FP4,
        dense_tiles=_tiles_of("sm100_block_fp4", ((128, 256),), 8, _PP, ((2, 1),)),
        coefficients=_coefficients_like(TCGEN05),
    ),
    replace(
        MMA_SYNC,
        name="sm89_block_fp8",
        number=13,
        sm_archs=("sm_89",),
        own_of=("sm_89",),
        block_scaled=DType.FP8,
        dense_tiles=_tiles_of("sm89_block_fp8", ((32, 128),), 4, _MS),
        coefficients=_coefficients_like(MMA_SYNC),
    ),
    replace(
        MMA_SYNC,
        name="sm120_block_fp8",
        number=14,
        sm_archs=("sm_120",),
        own_of=("sm_120",),
        block_scaled=DType.FP8,
        max_rows=_rows_of_rtx_blackwell,
        dense_tiles=_tiles_of("sm120_block_fp8", ((32, 128), (64, 128)), 8, _MS),
        coefficients=_coefficients_like(MMA_SYNC),
    ),
    replace(
        MMA_SYNC,
        name="sm120_block_fp4",
        number=15,
        sm_archs=("sm_120",),
        own_of=("sm_120",),
        schedules=(_COOP,),
        is_warp_specialized=True,
        block_scaled=DType.FP4,
        step_bytes=64,
        dense_tiles=_tiles_of("sm120_block_fp4", ((128, 128),), 8, _COOP),
        coefficients=_coefficients_like(MMA_SYNC),
    ),
)
