"""Kernels without tensor cores: every thread multiplies on its own, K is split over the threads of a CTA."""

from __future__ import annotations

from collections.abc import Iterator

from gemm_eval.mapping import Schedule
from gemm_eval.models.gpu.families.family import Family, TileChoice, since

__all__ = ["VECTOR_FAMILY", "single_row_tiles"]


def _tiles() -> Iterator[TileChoice]:
    for m in (1, 2, 4, 8):
        for n in (8, 16, 32):
            yield TileChoice("gemv", m, n, 4, Schedule.VECTOR, ((1, 1),))


def single_row_tiles() -> Iterator[TileChoice]:
    """Kernels of cuBLAS for one row of 16-bit types (gemv)."""
    for n in (1, 2, 4, 8, 16, 32):
        yield TileChoice("gemv", 1, n, 4, Schedule.VECTOR, ((1, 1),))


VECTOR_FAMILY = Family(
    name="gemv",
    number=4,
    sm_archs=since("sm_70"),
    schedules=(Schedule.VECTOR,),
    mma_m=1,
    mma_n_step=1,
    num_warps=(4,),
    max_registers=255,
    operands="vector",
    max_rows=lambda cta_m: cta_m,  # K is split over threads, tokens are not tiled
    weight_only_tiles=lambda *_: _tiles(),
)
