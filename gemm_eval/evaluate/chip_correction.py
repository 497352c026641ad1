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
from gemm_eval.models.gpu import Features, apply_trees, learned_path, matching_learned, physics_digest
from gemm_eval.models.multicore import MODEL_VERSION
from gemm_eval.workload import GemmTypes

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

CHIPS = "multicore"
"""Name of the subject in files."""

_MOST_ALIGNED = 4096  # elements: powers of two up to here camp on memory channels


def chip_group(input_dtype: DType, weight_dtype: DType) -> str:
    """Return the name of the types that a correction is learned of; empty where weights are of another type."""
    if input_dtype != weight_dtype:
        return ""
    return "f16" if input_dtype in (DType.FP16, DType.BF16) else str(input_dtype)


def chip_features(sizes: Integers) -> Features:
    """Return what a correction knows of GEMMs [rows, 4] of G, M, K, N."""
    G, M, K, N = np.log2(sizes).T
    aligned = np.log2(np.minimum(sizes & -sizes, _MOST_ALIGNED))
    others = {"MN": M + N, "NK": N + K, "M_alignment": aligned[:, 1], "K_alignment": aligned[:, 2]}
    return Features({"G": G, "M": M, "N": N, "K": K}, others | {"N_alignment": aligned[:, 3]})


_MAX_KNOWN = 1 << 12
_NAMES = chip_features(np.ones((1, 4), np.int64)).names


class ChipCorrection:
    """The correction of a chip's preset, type by type; see `chip_correction`."""

    def __init__(self, chip: str, groups: Iterable[str]) -> None:
        digest = physics_digest(chip_coefficients(chip), MODEL_VERSION)
        learned = {group: matching_learned(chip, CHIPS, group, digest, _NAMES) for group in groups}
        self._learned = {group: item for group, item in learned.items() if item is not None}
        self._known: dict[tuple[str, bytes], tuple[Floats, Floats, Floats]] = {}

    def _group(self, types: GemmTypes) -> str | None:
        group = "" if types.b.scale else chip_group(types.a.dtype, types.b.dtype)
        return group if group in self._learned else None

    def factors(self, types: GemmTypes, sizes: Integers) -> Floats | None:
        """Return the factors of GEMMs [rows, 4] of G, M, K, N; None: nothing was learned of these types."""
        group = self._group(types)
        return None if group is None else self._factors(group, sizes)[0]

    def ends_us(
        self, types: GemmTypes, sizes: Integers, latency_us: Floats, physics_us: Floats
    ) -> tuple[Floats, Floats] | None:
        """Return the ends of the intervals around corrected latencies [rows]; None as `factors`."""
        group = self._group(types)
        if group is None:
            return None
        learned, (_, trust, octaves) = self._learned[group], self._factors(group, sizes)
        low_log, high_log = learned.ends(latency_us, physics_us, trust, octaves)
        return latency_us * np.exp(-low_log), latency_us * np.exp(high_log)

    def _factors(self, group: str, sizes: Integers) -> tuple[Floats, Floats, Floats]:
        """Return factors [rows], how far they are trusted, and octaves to the nearest known sizes."""
        key = (group, sizes.tobytes())
        known = self._known.get(key)
        if known is None:
            learned = self._learned[group]
            log_factor, trust, octaves = apply_trees(learned.trees, chip_features(sizes))
            trust = trust * learned.learned.is_on
            known = np.exp(trust * log_factor), trust, octaves
            if len(sizes) == 1:  # asked for again: its interval follows
                self._known = self._known if len(self._known) < _MAX_KNOWN else {}
                self._known[key] = known
        return known


def chip_correction(arch: MulticoreSpec) -> ChipCorrection | None:
    """Return the correction of a spec that is the calibrated preset of its name, if any was learned."""
    if not arch.calibration or arch != _preset(data_root(), arch.name):
        return None
    pattern = learned_path(arch.name, CHIPS, "*")
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
