"""Learned corrections of multi-core chips: what timings of a preset showed beyond the terms of the model.

The factor of a GEMM depends on its sizes and types alone, so no correction changes which mapping is best. Changed specs
and plans have none. MODEL.md of GPUs, "Correction".
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import MulticoreCalibration, MulticoreSpec, calibration_file, data_root, load_arch, read_yaml
from gemm_eval.dtypes import DType
from gemm_eval.errors import ArchError
from gemm_eval.models import gpu as gpu_model
from gemm_eval.models.multicore import MODEL_VERSION
from gemm_eval.workload import GemmTypes

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
