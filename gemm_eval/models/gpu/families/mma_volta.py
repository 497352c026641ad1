"""Volta's and Turing's kernels: mma.sync without cp.async, so that tiles pass through registers. None was timed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gemm_eval.models.gpu.coefficients import with_defaults
from gemm_eval.models.gpu.families.family import TileChoice
from gemm_eval.models.gpu.families.mma_sync import MMA_SYNC

__all__ = ["MMA_VOLTA"]

_FAMILY = "sm70_mma"


def _tiles(*_: object) -> Iterator[TileChoice]:
    """Tiles that CUTLASS and cuBLAS commonly have for these ("volta_s884", "turing_s1688"): assumed, none is listed."""
    for m, n, warps in (
        (16, 64, 4), (16, 128, 4), (32, 64, 4), (32, 128, 4), (64, 32, 4), (64, 64, 4), (64, 96, 4), (64, 128, 4),
        (64, 128, 8), (64, 256, 8), (96, 64, 4), (96, 128, 4), (96, 128, 8), (128, 32, 4), (128, 64, 4), (128, 64, 8),
        (128, 96, 8), (128, 128, 4), (128, 128, 8), (128, 192, 8), (128, 256, 8), (192, 128, 8), (256, 64, 8),
        (256, 128, 8),
    ):  # fmt: skip
        yield TileChoice(_FAMILY, m, n, warps, MMA_SYNC.schedules[0], ((1, 1),))


# assumed: those of mma.sync on later chips, but a k-step waits for its stores to shared memory and for a barrier, which
# cp.async spares
MMA_VOLTA = replace(
    MMA_SYNC,
    name=_FAMILY,
    number=9,
    sm_archs=("sm_70", "sm_75"),
    own_of=("sm_70", "sm_75"),
    rate_frac={},
    coefficients=with_defaults(
        matrix_frac=0.85, step_cycles=300.0, tile_cycles=500.0, kernel_us=1.1, dram_frac=0.93,
        epilogue_bytes_per_cycle=24.0,
    ),
    dense_tiles=_tiles,
    weight_only_tiles=_tiles,
)  # fmt: skip
