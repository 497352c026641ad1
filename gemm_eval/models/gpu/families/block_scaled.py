"""Kernels of block-scaled types, as TensorRT-LLM 1.3 runs them: DeepGEMM's, CUTLASS's and its own.

Which generation has which is what the kernels' sources and release notes say; tiles are those that its timings show
(arch/measured, fp8_block and nvfp4): waves of so many CTAs, and no part of K.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from gemm_eval.dtypes import DType
from gemm_eval.mapping import Schedule
from gemm_eval.models.gpu.coefficients import after_quantization
from gemm_eval.models.gpu.families.family import TileChoice
from gemm_eval.models.gpu.families.mma_sync import MMA_SYNC
from gemm_eval.models.gpu.families.tcgen05 import TCGEN05
from gemm_eval.models.gpu.families.wgmma import WGMMA
from gemm_eval.workload import MAX_DIM

__all__ = ["BLOCK_SCALED"]

_SINGLE = ((1, 1),)
_COOP, _PP, _MS = Schedule.COOPERATIVE, Schedule.PINGPONG, Schedule.MULTISTAGE


def _tiles_of(
    family: str, sizes: tuple[tuple[int, int], ...], warps: int, schedule: Schedule,
    clusters: tuple[tuple[int, int], ...] = _SINGLE,
) -> Callable[..., Iterator[TileChoice]]:  # fmt: skip
    def tiles(*_: object) -> Iterator[TileChoice]:
        for m, n in sizes:
            yield TileChoice(family, m, n, warps, schedule, clusters)

    return tiles


# DeepGEMM on Hopper: 64 or 128 rows of either operand, the other side in steps of 16; sums of a k-step are added to
# fp32 sums by ordinary cores, which take as many registers again, so that tiles stay small
_HOPPER_SIZES = tuple(
    [(m, n) for n in (64, 128) for m in (16, 32, 48, 64)]
    + [(128, n) for n in (16, 32, 48, 64, 80, 96, 112, 128, 144, 160)]
)
_BLACKWELL_SIZES = tuple(
    dict.fromkeys(
        [(128, n) for n in (16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)]
        + [(m, 128) for m in (16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)]
    )
)
_WIDE = {"step_cycles": 3000.0, "coop_step_cycles": 3000.0, "kernel_us": 12.0}  # these kernels wait more than cuBLAS's

BLOCK_SCALED = (
    replace(
        WGMMA,
        name="sm90_block_fp8",
        number=10,
        block_scaled=DType.FP8,
        max_rows=lambda cta_m: cta_m if cta_m < 128 else MAX_DIM,
        dense_tiles=_tiles_of("sm90_block_fp8", _HOPPER_SIZES, 8, _COOP, ((1, 1), (1, 2), (2, 1))),
        coefficients=after_quantization(_WIDE, l2_frac=1.4, store_exposed_frac=0.0, quantize_us=2.0),
    ),
    replace(
        TCGEN05,
        name="sm100_block_fp8",
        number=11,
        block_scaled=DType.FP8,
        dense_tiles=_tiles_of("sm100_block_fp8", _BLACKWELL_SIZES, 8, _PP, ((1, 1), (1, 2), (2, 1))),
        coefficients=after_quantization(
            _WIDE,
            kernel_us=1.0,
            outside_rows_per_cycle=50.0,
            l2_frac=1.4,
            store_exposed_frac=0.0,
            quantize_us=2.0,
        ),
    ),
    replace(
        TCGEN05,
        name="sm100_block_fp4",
        number=12,
        block_scaled=DType.FP4,
        dense_tiles=_tiles_of("sm100_block_fp4", ((128, 256),), 8, _PP, ((2, 1),)),
        coefficients=after_quantization(
            _WIDE,
            kernel_us=1.0,
            outside_rows_per_cycle=50.0,
            l2_frac=1.4,
            store_exposed_frac=0.0,
            quantize_us=2.0,
        ),
    ),
    replace(
        MMA_SYNC,
        name="sm89_block_fp8",
        number=13,
        sm_archs=("sm_89",),
        own_of=("sm_89",),
        block_scaled=DType.FP8,
        dense_tiles=_tiles_of("sm89_block_fp8", ((32, 128),), 4, _MS),
        coefficients=after_quantization(_WIDE, **{**MMA_SYNC.defaults, "quantize_us": 2.0}),
    ),
    replace(
        MMA_SYNC,
        name="sm120_block_fp8",
        number=14,
        sm_archs=("sm_120",),
        own_of=("sm_120",),
        block_scaled=DType.FP8,
        max_rows=lambda cta_m: 64 if cta_m < 64 else MAX_DIM,
        dense_tiles=_tiles_of("sm120_block_fp8", ((32, 128), (64, 128)), 8, _MS),
        coefficients=after_quantization(_WIDE, **{**MMA_SYNC.defaults, "quantize_us": 2.0}),
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
        coefficients=after_quantization(_WIDE, **{**MMA_SYNC.defaults, "quantize_us": 2.0}),
    ),
)
