"""Hopper's kernels: TMA, wgmma, warps that load and warps that compute."""

from __future__ import annotations

from collections.abc import Iterator

from gemm_eval.dtypes import DType
from gemm_eval.mapping import Schedule
from gemm_eval.models.gpu.coefficients import with_defaults
from gemm_eval.models.gpu.families.family import Family, TileChoice

__all__ = ["WGMMA", "weight_only_tiles", "wgmma_tiles"]

_PAIRS = ((1, 2), (2, 1), (1, 4), (2, 4))
_PP, _COOP = Schedule.PINGPONG, Schedule.COOPERATIVE
_PINGPONG_ACCUMULATORS = 176 * 128  # a warpgroup holds a whole tile
_COOP_ACCUMULATORS = 176 * 256


def wgmma_tiles(family: str) -> Iterator[TileChoice]:
    """Tiles of cuBLAS's Hopper kernels, read from the names of 5,163 kernels that it proposes (arch/measured).

    Weights (N) lie on the instruction's 64 rows for few tokens, tokens (M) else; the other side is any multiple of 8.
    """
    for n in (64, 128, 192, 256, 384, 512):
        for m in (8, 16, 24, 32, 48, 64, 80, 96):
            if m * n <= _PINGPONG_ACCUMULATORS:
                yield TileChoice(family, m, n, 8, _PP, _PAIRS)
            elif m * n <= _COOP_ACCUMULATORS:
                yield TileChoice(family, m, n, 8, _COOP, _PAIRS)
    for m, n in (
        (64, 40), (64, 56), (64, 80), (64, 96), (64, 112), (64, 144), (64, 168), (64, 176), (128, 80), (128, 96),
        (128, 112), (128, 128), (128, 144), (128, 168), (128, 176), (160, 128), (136, 128), (112, 128),
    ):  # fmt: skip
        yield TileChoice(family, m, n, 8, _PP, _PAIRS)
    for m, n in (
        (128, 192), (192, 128), (256, 128), (128, 256), (192, 192), (128, 320), (160, 256), (192, 208), (64, 320),
        (64, 448), (136, 256),
    ):  # fmt: skip
        yield TileChoice(family, m, n, 8, _COOP, _PAIRS)


def weight_only_tiles(family: str, columns: tuple[int, ...], rows: tuple[int, ...]) -> Iterator[TileChoice]:
    """Tiles of weight-only kernels on Hopper: weights on the instruction's 64 rows, tokens on its columns."""
    for n in columns:
        for m in rows:
            if m * n <= _PINGPONG_ACCUMULATORS and n == 64:
                yield TileChoice(family, m, n, 8, _PP, _PAIRS)
            elif m * n <= _COOP_ACCUMULATORS and n > 64:
                yield TileChoice(family, m, n, 8, _COOP, _PAIRS)


WGMMA = Family(
    name="sm90_wgmma",
    number=0,
    sm_archs=("sm_90",),
    own_of=("sm_90",),
    other_dtypes=(DType.INT8,),  # cuBLAS 13.1 takes mma.sync for it (kernel names in arch/measured/h200-sxm/cublaslt)
    schedules=(_PP, _COOP),
    mma_m=64,
    mma_n_step=8,
    num_warps=(8,),
    max_registers=232,  # setmaxnreg gives computing warpgroups up to 240 a thread
    operands="smem",
    has_clusters=True,
    is_warp_specialized=True,
    coefficients=with_defaults(l2_frac=1.4, store_exposed_frac=0.0),
    dense_tiles=lambda *_: wgmma_tiles("sm90_wgmma"),
    weight_only_tiles=lambda columns, rows: weight_only_tiles("sm90_wgmma", columns, rows),
)
