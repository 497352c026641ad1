"""Learned corrections of what a search found: one factor for a GEMM, whichever of its configs is asked for.

The factor is that of the GEMM's best config, so that the order of configs stays that of the model. Where an answer has
no trees of its own, it is the factor of the same GEMM in another state, or on the preset that a spec was made of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from gemm_eval.models.gpu import KERNEL_COST_DTYPE, OTHER_KERNELS, Carried, Packed, carry, correct
from gemm_eval.workload import GemmProblem

__all__ = ["Search", "correct_best", "correct_many", "scale_by"]

Ints = npt.NDArray[np.int64]
Records = npt.NDArray[np.void]

Search = Callable[[Packed, Ints], Records]
"""Finds the corrected best configs of plain problems [num, 4] with what is packed, as records [num]."""

_FIRST = np.zeros(1, np.int64)


def correct_best(packed: Packed, problem: GemmProblem, sizes: Ints, records: Records, search: Search) -> float:
    """Correct the record [1] of a best config, found with `packed`; return the factor.

    Groups of rows have none, also where all are alike: corrections were learned from plain GEMMs and batches.
    """
    if (packed.correction is not None or packed.carried is not None) and not problem.is_grouped:
        _correct(packed, _FIRST, sizes, records, search)
    return float(records["correction_factor"][0])


def correct_many(
    packed: Sequence[Packed], place_of: Ints, rows: Ints, sizes: Ints, is_batch: npt.NDArray[np.bool_],
    records: Records, search: Search,
) -> None:  # fmt: skip
    """Correct records of best configs.

    Args:
        packed: what they were found with.
        place_of: [some], index into `packed`.
        rows: [some], which records these are.
        sizes: [num, 4] of G, M, K, N, of all records.
        is_batch: [num], whether each is a plain GEMM or a batch; groups of rows are not corrected.
        records: [num] of GPU_COST_DTYPE.
        search: finds what other answers are.
    """
    for place, one in enumerate(packed):
        if one.correction is not None or one.carried is not None:
            _correct(one, rows[(place_of == place) & is_batch[rows]], sizes, records, search)


def _correct(packed: Packed, rows: Ints, sizes: Ints, records: Records, search: Search) -> None:
    if packed.correction is not None:
        correct(records.view(KERNEL_COST_DTYPE), rows, sizes, *packed.correction)
    if packed.carried is not None:
        _carry(packed.carried, rows, sizes, records, search)


def _carry(carried: Carried, rows: Ints, sizes: Ints, records: Records, search: Search) -> None:
    factors, ceilings_us = records["correction_factor"][rows], np.full(len(rows), np.inf)
    if carried.reference is not None:
        found = search(carried.reference, sizes[rows])
        factors = np.where(found["active_sms"] > 0, found["correction_factor"], 1.0)
    if carried.ceiling is not None:
        found = search(carried.ceiling, sizes[rows])
        ceilings_us = np.where(found["active_sms"] > 0, found["latency_us"], np.inf)
    carry(records.view(KERNEL_COST_DTYPE), rows, sizes, factors, ceilings_us, carried.limits)


def scale_by(records: Records, factor: float) -> None:
    """Give records of other configs the factor of their GEMM."""
    if factor != 1.0:
        records["correction_factor"] = factor
        other_us = sum((records[name] for name in OTHER_KERNELS), np.zeros(len(records)))
        records["latency_us"] = other_us + (records["physics_us"] - other_us) * factor
