"""Multi-core chips against timings: reading them, fitting the few numbers that only they tell, and the errors."""

from gemm_eval.validation.multicore.fit import RANGES
from gemm_eval.validation.multicore.scores import (
    FITTED_ROOFLINE,
    MODEL,
    NAIVE_ROOFLINE,
    TABLE,
    ChipLine,
    ChipScore,
    calibrate_chip,
    calibration_text,
    score_chip,
)
from gemm_eval.validation.multicore.timings import ChipTimings, TimingSet, chips_with_timings, read_chip_timings

__all__ = [
    "FITTED_ROOFLINE",
    "MODEL",
    "NAIVE_ROOFLINE",
    "RANGES",
    "TABLE",
    "ChipLine",
    "ChipScore",
    "ChipTimings",
    "TimingSet",
    "calibrate_chip",
    "calibration_text",
    "chips_with_timings",
    "read_chip_timings",
    "score_chip",
]
