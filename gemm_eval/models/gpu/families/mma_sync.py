"""Kernels of mma.sync and its relatives: every warp loads, multiplies and adds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gemm_eval.dtypes import DType
from gemm_eval.mapping import Schedule
from gemm_eval.models.gpu.coefficients import with_defaults
from gemm_eval.models.gpu.families.family import Family, TileChoice, no_tiles, since
from gemm_eval.models.gpu.families.vector import single_row_tiles

__all__ = ["ELEMENTWISE", "MMA_FP8", "MMA_SYNC", "UNALIGNED"]

_MS = Schedule.MULTISTAGE
_SINGLE = ((1, 1),)


def _ampere_tiles(family: str) -> Iterator[TileChoice]:
    """Tiles that mma.sync kernels of CUTLASS and cuBLAS commonly have: assumed, no list of cuBLAS's is published."""
    for m, n, warps in (
        (16, 64, 4), (16, 128, 4), (16, 256, 4), (32, 64, 4), (32, 128, 4), (32, 256, 4), (64, 32, 4), (64, 64, 4),
        (64, 128, 4), (64, 256, 4), (96, 128, 4), (96, 256, 8), (128, 32, 4), (128, 64, 4), (128, 96, 4), (128, 128, 4),
        (128, 128, 8), (128, 160, 8), (128, 192, 8), (128, 256, 8), (160, 128, 8), (192, 128, 8), (256, 64, 4),
        (256, 96, 8), (256, 128, 8),
    ):  # fmt: skip
        yield TileChoice(family, m, n, warps, _MS, _SINGLE)


def _cublas_tiles(family: str) -> Iterator[TileChoice]:
    """Tiles of cuBLAS: edges of 64, 128 and 256, and 32 tokens. Of several lists this one explains its times best.

    On an A100 (arch/measured/a100-sxm-80gb) 160 tokens take what 256 do, which tiles of 96, 160 and 192 deny.
    """
    for m, n, warps in (
        (32, 64, 4), (64, 64, 4), (64, 128, 4), (128, 64, 4), (128, 128, 4), (128, 128, 8), (256, 64, 4), (64, 256, 4),
        (256, 128, 8), (128, 256, 8),
    ):  # fmt: skip
        yield TileChoice(family, m, n, warps, _MS, _SINGLE)


def _int8_on_hopper_tiles() -> Iterator[TileChoice]:
    """Tiles of the kernels that cuBLAS 13.1 takes for int8 on Hopper (names in arch/measured/h200-sxm/cublaslt)."""
    for m, n, warps in ((64, 64, 4), (64, 128, 4), (128, 128, 4), (256, 128, 8), (128, 256, 8)):
        yield TileChoice("sm80_mma", m, n, warps, _MS, _SINGLE)


def _dense_tiles(sm_arch: str, input_dtype: DType) -> Iterator[TileChoice]:
    if input_dtype is DType.INT8 and sm_arch == "sm_90":
        yield from _int8_on_hopper_tiles()
        return
    if input_dtype.bits == 16:
        yield from single_row_tiles()
    yield from _cublas_tiles("sm80_mma")


def _few_row_tiles(input_dtype: DType, most: int) -> Iterator[TileChoice]:
    """Tiles of cuBLAS's kernels "gemv", of one token, and "gemmSN_TN", of a few (names in arch/measured)."""
    for m in (1, 2, 4, 8, 16):
        if m <= most and input_dtype in (DType.FP16, DType.BF16):
            yield TileChoice("gemv", m, 8, 4, Schedule.VECTOR, _SINGLE)


def _unaligned_tiles(_: str, input_dtype: DType) -> Iterator[TileChoice]:
    """Tiles of cuBLAS's kernels "cutlass_80 .. align2", of int8 "align4" (names in arch/measured/h200-sxm)."""
    for m, n, warps in (
        (16, 16, 1), (32, 32, 4), (64, 64, 4), (64, 128, 4), (128, 64, 4), (64, 256, 4), (128, 128, 4), (128, 256, 8),
        (256, 128, 8),
    ):  # fmt: skip
        yield TileChoice("mma_unaligned", m, n, warps, _MS, _SINGLE)
    yield from _few_row_tiles(input_dtype, 1)


def _elementwise_tiles(_: str, input_dtype: DType) -> Iterator[TileChoice]:
    """Tiles of cuBLAS's kernels "cutlass_75 .. align1", small ones in fp16 alone (names in arch/measured/h200-sxm)."""
    for m, n, warps in ((16, 16, 1), (32, 32, 4), (64, 64, 4), (128, 128, 4), (128, 256, 8)):
        if m >= 64 or input_dtype is not DType.BF16:
            yield TileChoice("mma_elementwise", m, n, warps, _MS, _SINGLE)
    yield from _few_row_tiles(input_dtype, 16 if input_dtype is DType.BF16 else 1)


# as cuBLAS's int8 kernels of this kind on an H200 (arch/measured/h200-sxm/cublaslt), whose tiles and stages their names
# tell, rounded; ldmatrix and mma share the issue slots, so they reach less of the peak
_DEFAULTS = {
    "matrix_frac": 0.92, "step_cycles": 230.0, "tile_cycles": 400.0, "kernel_us": 0.9, "dram_frac": 0.93,
    "epilogue_bytes_per_cycle": 24.0,
}  # fmt: skip

MMA_SYNC = Family(
    name="sm80_mma",
    number=1,
    sm_archs=since("sm_80"),
    schedules=(_MS,),
    mma_m=16,
    mma_n_step=8,
    num_warps=(4, 8),
    max_registers=255,
    operands="registers",
    # on Hopper mma.sync reaches 0.62 of the rate of wgmma: 0.629 in the mean of Luo et al. 2024 ("Benchmarking and
    # Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking"), a little less in fits of our int8 timings,
    # with a matrix_frac of 1 on top; half of that on data-center Blackwell is assumed, as its tcgen05 rate is twice
    # Hopper's; RTX Blackwell has no other instruction
    rate_frac={"sm_90": 0.62, "sm_100": 0.31, "sm_120": 1.0},
    coefficients=with_defaults(**_DEFAULTS),
    dense_tiles=_dense_tiles,
    weight_only_tiles=lambda *_: _ampere_tiles("sm80_mma"),
)
# fp8 of cuBLASLt on Ada and RTX Blackwell: kernels of their own, which lose less at a k-step and more at the end of a
# split K. One set of coefficients with 16 bits' costs an L40S and an RTX PRO 6000 1 to 2 points (arch/measured)
MMA_FP8 = replace(
    MMA_SYNC,
    name="sm89_mma_fp8",
    number=30,
    sm_archs=since("sm_89"),
    own_of=("sm_89", "sm_120"),
    other_dtypes=tuple(dtype for dtype in DType if dtype is not DType.FP8),
    dense_tiles=lambda *_: _cublas_tiles("sm89_mma_fp8"),
    weight_only_tiles=lambda *_: _ampere_tiles("sm89_mma_fp8"),
)
UNALIGNED = replace(  # rows start on 4 or 8 bytes, and so many bytes are one load
    MMA_SYNC,
    name="mma_unaligned",
    number=3,
    sm_archs=since("sm_70"),
    num_warps=(1, 4, 8),
    coefficients=with_defaults(
        **_DEFAULTS | {"step_cycles": 400.0, "epilogue_bytes_per_cycle": 18.0, "dram_frac": 0.75},
        line_waste=0.0,
        unaligned_frac=0.21,
        reduce_us=2.5,
        reduce_frac=1.0,
        vector_step_cycles=65.0,
        vector_frac=1.0,
    ),
    dense_tiles=_unaligned_tiles,
    weight_only_tiles=no_tiles,
)
ELEMENTWISE = replace(  # other rows: too little for cp.async, so each element goes through a register
    UNALIGNED,
    name="mma_elementwise",
    number=20,
    has_cp_async=False,
    coefficients=with_defaults(
        **_DEFAULTS | {"epilogue_bytes_per_cycle": 7.0, "dram_frac": 0.75},
        line_waste=0.0,
        unaligned_frac=0.26,
        line_conflict=0.27,
        reduce_us=1.7,
        reduce_frac=1.1,
        vector_step_cycles=280.0,
        vector_frac=0.05,
    ),
    dense_tiles=_elementwise_tiles,
)
