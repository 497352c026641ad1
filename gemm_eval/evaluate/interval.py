"""Intervals around predicted times that hold 80% of measured ones, of sums and of chips, and corrections of chips."""

import math
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import (
    ArchSpec,
    MulticoreCalibration,
    MulticoreSpec,
    calibration_file,
    data_root,
    held_out_p90_frac,
    load_arch,
    read_yaml,
)
from gemm_eval.dtypes import DType
from gemm_eval.errors import ArchError
from gemm_eval.models import gpu as gpu_model
from gemm_eval.models.gpu import COVERAGE_FRAC, Origin
from gemm_eval.units import time_text
from gemm_eval.workload import GemmTypes

CORRECTION = "correction_us"
"""Term that timings showed beyond those of the model."""
CORRECTION_MEANING = "what timings showed beyond these terms"
CORRECTED = "corrected"
"""The source of answers that a learned correction changed; those of a changed GPU say as which one."""

SHARED_FRAC = 0.3
"""Share of the variance of errors that kernels of one step have in common: with it about 80% of the steps and layers
that were timed on an H200 lie inside their intervals (`gemm-eval validate stacks` prints the share that 80% need)."""

_UNFITTED_RATIO = 2.0  # of a chip that nothing was fitted on: assumed


def sum_interval(parts: Iterable[tuple[float, float, float]]) -> tuple[float, float]:
    """Return the interval of the sum of different operations, each given by its latency and interval, in us."""
    ends = [(us, us - low_us, high_us - us) for us, low_us, high_us in parts]
    latency_us = sum(us for us, *_ in ends)
    below, above = (_width([widths[side] for widths in ends]) for side in (1, 2))
    return max(0.0, latency_us - below), latency_us + above


def _width(widths_us: list[float]) -> float:
    """Return how far a sum lies off, of parts whose errors are partly the same: they add up in full, others in squares.

    Errors of a part that runs several times are the same each time: it is one part.
    """
    squares = sum(width * width for width in widths_us)
    return math.sqrt(SHARED_FRAC * sum(widths_us) ** 2 + (1.0 - SHARED_FRAC) * squares)


def shared_frac(sums: Sequence[tuple[float, Sequence[tuple[float, float, float]]]]) -> float:
    """Return the least `SHARED_FRAC` with which 80% of measured sums lie inside their intervals, at most 1.

    Args:
        sums: measured time of each, and the latency and interval of its parts as for `sum_interval`.
    """
    needed = []
    for measured_us, parts in sums:
        off_us = measured_us - sum(us for us, *_ in parts)
        widths_us = [high_us - us if off_us > 0.0 else us - low_us for us, low_us, high_us in parts]
        squares = sum(width * width for width in widths_us)
        rest = sum(widths_us) ** 2 - squares
        needed.append(min(1.0, max(0.0, (off_us * off_us - squares) / rest)) if rest > 0.0 else 1.0)
    return sorted(needed)[math.ceil(COVERAGE_FRAC * len(needed)) - 1]


def chip_interval(arch: ArchSpec, latency_us: Any) -> tuple[Any, Any]:
    """Return the interval around latencies of a multi-core chip, in the unit of these.

    It is that of the held-out errors of the chip's calibration; without one, half to twice the latency.
    """
    is_calibrated = isinstance(arch, MulticoreSpec) and arch.calibration
    p90 = held_out_p90_frac(arch.name) if is_calibrated else None
    ratio = _UNFITTED_RATIO if p90 is None else 1.0 + p90
    return latency_us / ratio, latency_us * ratio


def interval_line(low_us: float, high_us: float) -> str:
    """Return the interval as a line of text."""
    return f"80% of measured times are expected within {time_text(low_us)} to {time_text(high_us)}."


def source_of(origin: Origin, latency_us: float, physics_us: float) -> str:
    """Return the word for where a time comes from."""
    if not origin.is_calibrated:
        return "analytic"
    return "calibrated" if latency_us == physics_us else CORRECTED


Integers = npt.NDArray[np.int64]
Records = npt.NDArray[np.void]

CHIPS = "multicore"
"""Name of the subject in files."""


def chip_group(input_dtype: DType, weight_dtype: DType) -> str:
    """Return the name of the types that a correction is learned of; empty where weights are of another type."""
    if input_dtype != weight_dtype:
        return ""
    return "f16" if input_dtype in (DType.FP16, DType.BF16) else str(input_dtype)


def chip_features(sizes: Integers) -> gpu_model.Features:
    """Return what a correction knows of GEMMs [rows, 4] of G, M, K, N."""
    x = np.empty((len(sizes), len(gpu_model.CHIP_FEATURES)))
    gpu_model.describe_sizes(sizes, x)
    return gpu_model.features_of(gpu_model.CHIP_FEATURES, sizes.shape[1], x)


class ChipCorrection:
    """The correction of a chip's preset, type by type; see `chip_correction`."""

    def __init__(self, chip: str, groups: Iterable[str]) -> None:
        from gemm_eval.models.multicore import MODEL_VERSION  # here: GPUs need no kernels of chips

        coefficients, origin = chip_coefficients(chip), gpu_model.Origin(True, chip, "")
        learned = {
            group: gpu_model.learned_for(
                None, CHIPS, group, origin, coefficients, MODEL_VERSION, gpu_model.CHIP_FEATURES
            )
            for group in groups
        }
        self._learned = {group: item for group, item in learned.items() if item is not gpu_model.NOTHING_LEARNED}

    def correct(self, types: GemmTypes, sizes: Integers, records: Records, peak_tflop_per_s: float) -> None:
        """Correct records of GEMMs [rows, 4] of G, M, K, N, and write their intervals, if anything was learned."""
        learned = self._learned.get("" if types.b.scale else chip_group(types.a.dtype, types.b.dtype))
        if learned is not None:
            gpu_model.correct_sizes(
                records, sizes, peak_tflop_per_s * 1e6, *learned.trees, learned.spreads, learned.physics_spreads
            )


def chip_correction(arch: MulticoreSpec) -> ChipCorrection | None:
    """Return the correction of a spec that is the calibrated preset of its name, if any was learned."""
    if not arch.calibration or arch != _preset(data_root(), arch.name):
        return None
    pattern = gpu_model.learned_path(arch.name, CHIPS, "*")
    groups = [path.stem.removeprefix(f"{CHIPS}-") for path in sorted(pattern.parent.glob(pattern.name))]
    return ChipCorrection(arch.name, groups) if groups else None


def chip_coefficients(chip: str) -> dict[str, float]:
    """Return the fitted numbers of a calibrated chip."""
    return dict(MulticoreCalibration.model_validate(read_yaml(calibration_file(chip))).coefficients)


@cache
def _preset(root: Path, name: str) -> MulticoreSpec | None:  # noqa: ARG001  another root has other presets
    try:
        return load_arch(name, MulticoreSpec)
    except ArchError:
        return None
