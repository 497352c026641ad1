"""Learned corrections of what a search found: one factor for a GEMM, whichever of its configs is asked for.

The factor is that of the GEMM's best config, so that the order of configs stays that of the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gemm_eval.models.gpu import KERNEL_COST_DTYPE, OTHER_KERNELS, Packed, correct
from gemm_eval.workload import GemmProblem

__all__ = ["correct_best", "correct_many", "scale_by"]

_FIRST = np.zeros(1, np.int64)


def correct_best(
    packed: Packed, problem: GemmProblem, sizes: npt.NDArray[np.int64], records: npt.NDArray[np.void]
) -> float:
    """Correct the record [1] of a best config, found with `packed`; return the factor.

    Groups of rows have none, also where all are alike: corrections were learned from plain GEMMs and batches.
    """
    if packed.correction is not None and not problem.is_grouped:
        correct(records.view(KERNEL_COST_DTYPE), _FIRST, sizes, *packed.correction)
    return float(records["correction_factor"][0])


def correct_many(
    packed: Sequence[Packed], place_of: npt.NDArray[np.int64], rows: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64], is_batch: npt.NDArray[np.bool_], records: npt.NDArray[np.void],
) -> None:  # fmt: skip
    """Correct records of best configs.

    Args:
        packed: what they were found with.
        place_of: [some], index into `packed`.
        rows: [some], which records these are.
        sizes: [num, 4] of G, M, K, N, of all records.
        is_batch: [num], whether each is a plain GEMM or a batch; groups of rows are not corrected.
        records: [num] of GPU_COST_DTYPE.
    """
    for place, one in enumerate(packed):
        if one.correction is not None:
            some = rows[(place_of == place) & is_batch[rows]]
            correct(records.view(KERNEL_COST_DTYPE), some, sizes, *one.correction)


def scale_by(records: npt.NDArray[np.void], factor: float) -> None:
    """Give records of other configs the factor of their GEMM."""
    if factor != 1.0:
        records["correction_factor"] = factor
        other_us = sum((records[name] for name in OTHER_KERNELS), np.zeros(len(records)))
        records["latency_us"] = other_us + (records["physics_us"] - other_us) * factor
