"""Which family a kernel of ours is of, as numba kernels tell them apart: `Family.number`, and the forms of costs.

Nothing is imported here, so that `families` reads the numbers without loading numba.
"""

from __future__ import annotations

__all__ = [
    "GEMV",
    "GEMV_MMA",
    "MULTISTAGE_FAMILIES",
    "SM80",
    "SM90",
    "SM90_CLUSTER",
    "STREAMING_FAMILIES",
    "WGMMA_FAMILIES",
]

GEMV, GEMV_MMA, SM80, SM90, SM90_CLUSTER = 5, 6, 7, 8, 61
STREAMING_FAMILIES = (GEMV, GEMV_MMA)  # those whose cost has the form of `streaming_cost`
MULTISTAGE_FAMILIES = (SM80,)  # those whose cost has the form of `sm80_cost`
WGMMA_FAMILIES = (SM90, SM90_CLUSTER)  # and of `sm90_cost`
