"""Measured collectives between the GPUs of a node: reading, fitting and scoring them."""

from gemm_eval.validation.collective.scores import (
    FITTED,
    HOLD_OUTS,
    MODEL,
    NAIVE,
    TABLE,
    CollectiveLine,
    calibrate_collectives,
    gpus_with_collectives,
    groups_of,
    held_out_collectives,
    score_collectives,
)
from gemm_eval.validation.collective.tables import (
    CollectiveTimings,
    list_collective_timings,
    read_collective_timings,
)

__all__ = [
    "FITTED",
    "HOLD_OUTS",
    "MODEL",
    "NAIVE",
    "TABLE",
    "CollectiveLine",
    "CollectiveTimings",
    "calibrate_collectives",
    "gpus_with_collectives",
    "groups_of",
    "held_out_collectives",
    "list_collective_timings",
    "read_collective_timings",
    "score_collectives",
]
