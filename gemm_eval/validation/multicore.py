"""The exam of multi-core chips by its public name: timings of a chip, errors held out, its calibration."""

from gemm_eval.validation.subjects.chip_timings import ChipTimings, chips_with_timings, read_chip_timings
from gemm_eval.validation.subjects.chips import ChipLine, ChipScore, calibrate_chip, calibration_text, score_chip

__all__ = [
    "ChipLine",
    "ChipScore",
    "ChipTimings",
    "calibrate_chip",
    "calibration_text",
    "chips_with_timings",
    "read_chip_timings",
    "score_chip",
]
