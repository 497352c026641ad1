"""Measured kernels whose time is that of their bytes: reading, fitting and scoring them."""

from gemm_eval.validation.memory_bound.scores import (
    FITTED,
    MODEL,
    NAIVE,
    TABLE,
    MemoryBoundLine,
    calibrate_memory_bound,
    fit_memory_bound,
    gpus_with_memory_bound,
    held_out_memory_bound,
    score_memory_bound,
)
from gemm_eval.validation.memory_bound.tables import (
    MemoryBoundTimings,
    list_memory_bound_timings,
    read_memory_bound_timings,
)

__all__ = [
    "FITTED",
    "MODEL",
    "NAIVE",
    "TABLE",
    "MemoryBoundLine",
    "MemoryBoundTimings",
    "calibrate_memory_bound",
    "fit_memory_bound",
    "gpus_with_memory_bound",
    "held_out_memory_bound",
    "list_memory_bound_timings",
    "read_memory_bound_timings",
    "score_memory_bound",
]
