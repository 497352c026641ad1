"""Families of our kernels as numba kernels tell them apart: `Family.number`, and the forms of costs.

Nothing is imported here, so that `families` reads the numbers without loading numba.
"""

from __future__ import annotations

GEMV, GEMV_MMA, SM80, SM90, SM90_CLUSTER = 5, 6, 7, 8, 61
SM90_FP8 = 65  # tokens in e4m3
# they alone run groups of rows with weights of their own
GEMV_MMA_GROUPED, SM80_GROUPED, SM90_GROUPED = GROUPED_FAMILIES = 64, 62, 63
GEMV_MMA_FAMILIES = (GEMV_MMA, GEMV_MMA_GROUPED)
STREAMING_FAMILIES = (GEMV, *GEMV_MMA_FAMILIES)  # those whose cost has the form of `streaming_cost`
MULTISTAGE_FAMILIES = (SM80, SM80_GROUPED)  # those whose cost has the form of `sm80_cost`
WGMMA_FAMILIES = (SM90, SM90_CLUSTER, SM90_GROUPED, SM90_FP8)  # and of `sm90_cost`
