"""Datacenter Blackwell's kernels: TMA, one thread that issues, sums in tensor memory."""

from __future__ import annotations

from collections.abc import Iterator

from gemm_eval.mapping import Schedule
from gemm_eval.models.gpu.coefficients import with_defaults
from gemm_eval.models.gpu.families.family import Family, TileChoice
from gemm_eval.models.gpu.families.wgmma import weight_only_tiles

__all__ = ["TCGEN05"]

_PAIRS = ((1, 1), (1, 2), (2, 1), (1, 4), (2, 2), (2, 4))
# tensor memory holds 128 x 512 sums (PTX ISA, tcgen05): of two tiles, so that one is stored while the next is computed
_MAX_SUMS = 128 * 256
_LONG = (128, 256)
_SHORT = (8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 192, 224, 256)
_OF_64_ROWS = (8, 16, 32, 64, 96, 128, 192, 256)


def _tiles(*_: object) -> Iterator[TileChoice]:
    """Tiles of one CTA; two of them that multiply together are a cluster of two.

    No list of cuBLAS's is published: these are what the instruction takes, 64 or 128 rows of either operand, in steps
    of which fewer explain its times on a B200 less well (arch/measured/b200).
    """
    sizes = [(m, n) for long in _LONG for short in _SHORT for m, n in ((short, long), (long, short))]
    sizes += [(m, n) for short in _OF_64_ROWS for m, n in ((64, short), (short, 64))]
    for m, n in dict.fromkeys(sizes):
        if m * n <= _MAX_SUMS:
            yield TileChoice("sm100_tcgen05", m, n, 8, Schedule.PINGPONG, _PAIRS)


TCGEN05 = Family(
    name="sm100_tcgen05",
    number=2,
    sm_archs=("sm_100", "sm_103"),
    own_of=("sm_100", "sm_103"),
    schedules=(Schedule.PINGPONG, Schedule.COOPERATIVE),
    mma_m=128,
    mma_n_step=8,
    num_warps=(8,),
    max_registers=255,
    operands="smem",
    has_clusters=True,
    is_warp_specialized=True,
    has_tensor_memory=True,
    # slow fill was seen on Hopper only
    coefficients=with_defaults(kernel_us=1.0, outside_rows_per_cycle=50.0, l2_frac=1.4, store_exposed_frac=0.0),
    dense_tiles=_tiles,
    weight_only_tiles=lambda columns, rows: weight_only_tiles("sm100_tcgen05", columns, rows),
)
