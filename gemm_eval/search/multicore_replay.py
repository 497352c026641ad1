"""Costs of mappings that were found before, evaluated again many at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gemm_eval.jit import read_only
from gemm_eval.models.multicore import COST_DTYPE, replay_range
from gemm_eval.search.threads import run_in_chunks
from gemm_eval.search.ungrouped import check_all_ungrouped
from gemm_eval.workload import NO_LAYOUTS, Layouts

__all__ = ["replay_mappings"]


def replay_mappings(
    params: npt.NDArray[np.void],
    type_of: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    found: npt.NDArray[np.void],
    *,
    layouts: Layouts = NO_LAYOUTS,
) -> npt.NDArray[np.void]:
    """Evaluate the mappings of records again, whatever numbers they hold.

    Args:
        params: [num_types] of PARAMS_DTYPE.
        type_of: [num], index into `params`.
        sizes: [num, 4] of G, M, K, N.
        found: [num] of COST_DTYPE.
        layouts: [num], rows of groups that differ; None: of no problem.

    Returns:
        [num] of COST_DTYPE, zeros where a mapping is illegal; counts of the search are 0.
    """
    check_all_ungrouped(layouts)
    found = found.copy()  # numba compiles anew for an array that is read-only
    params = read_only(params)
    out = np.zeros(len(found), COST_DTYPE)
    run_in_chunks(lambda start, stop: replay_range(params, type_of, sizes, start, stop, found, out), len(found))
    return out
