"""Costs of mappings that were found before, evaluated again many at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gemm_eval.jit import read_only
from gemm_eval.models.multicore import COST_DTYPE, replay_grouped, replay_range, split_layouts, with_room
from gemm_eval.search.threads import run_in_chunks
from gemm_eval.workload import NO_LAYOUTS, Layouts

__all__ = ["replay_mappings"]


def replay_mappings(
    params: npt.NDArray[np.void],
    type_of: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    found: npt.NDArray[np.void],
    layouts: Layouts = NO_LAYOUTS,
) -> npt.NDArray[np.void]:
    """Evaluate the mappings of records again, whatever numbers they hold.

    Args:
        params: [num_types] of PARAMS_DTYPE.
        type_of: [num], index into `params`.
        sizes: [num, 4] of G, M, K, N.
        found: [num] of COST_DTYPE.
        layouts: the row groups of grouped GEMMs.

    Returns:
        [num] of COST_DTYPE, zeros where a mapping is illegal; counts of the search are 0.
    """
    params, type_of = with_room(read_only(params), type_of, sizes, layouts)
    if not len(layouts.of):
        return _replay_batches(params, type_of, sizes, found)
    split = split_layouts(sizes, layouts)
    out = np.zeros(len(found), COST_DTYPE)
    out[split.batches] = _replay_batches(params, type_of[split.batches], split.sizes, found[split.batches])
    rows = split.grouped
    if len(rows):
        replayed = np.zeros(len(rows), COST_DTYPE)
        of_rows = (type_of[rows], sizes[rows], layouts.of[rows], *layouts[1:])
        stored = found[rows]
        run_in_chunks(
            lambda start, stop: replay_grouped(params, *of_rows, start, stop, stored, replayed), len(rows)
        )  # fmt: skip
        out[rows] = replayed
    return out


def _replay_batches(
    params: npt.NDArray[np.void],
    type_of: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    found: npt.NDArray[np.void],
) -> npt.NDArray[np.void]:
    found = found.copy()  # numba compiles anew for an array that is read-only
    out = np.zeros(len(found), COST_DTYPE)
    run_in_chunks(lambda start, stop: replay_range(params, type_of, sizes, start, stop, found, out), len(found))
    return out
