"""Costs of kernel configs that were found before, evaluated again many at a time.

Each problem is searched again, but with one kernel only: the one that its record names. The best of all kernels is also
the best that its own can do, by how it cuts K and by its raster, so a record that comes out otherwise was no answer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval.models.gpu.cost_kernels import GPU_COST_DTYPE
from gemm_eval.models.gpu.w4a16.menu import takes_sizes
from gemm_eval.search._threads import run_in_chunks
from gemm_eval.search.gpu import _repeat, join_menus, join_w4a16_menus
from gemm_eval.search.gpu_kernels import find_best_of_range
from gemm_eval.search.w4a16_kernels import find_best_w4a16

__all__ = ["replay_configs"]

# what tells a kernel from the others of a menu; only our own come with a raster
_KERNEL = (
    "family", "cta_m", "cta_n", "cta_k", "cluster_m", "cluster_n", "num_warps", "num_stages", "schedule",
)  # fmt: skip
_OUR_KERNEL = (*_KERNEL, "raster_order", "raster_swizzle")


def replay_configs(
    params: npt.NDArray[np.void], type_of: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], found: Any
) -> npt.NDArray[np.void]:
    """Evaluate the kernels of records again, whatever numbers they hold.

    Args:
        params: [num_types] of GPU_PARAMS_DTYPE.
        type_of: [num], index into `params`.
        sizes: [num, 4] of G, M, K, N.
        found: [num] of GPU_COST_DTYPE.

    Returns:
        [num] of GPU_COST_DTYPE, each the best that its kernel can do; zeros where the library has no such kernel. The
        counts are those of this search.
    """
    out = np.zeros(len(found), GPU_COST_DTYPE)
    is_ours = (params["w4a16"][type_of] >= 0) & takes_sizes(sizes[:, 2], sizes[:, 3])
    searches: tuple[tuple[Any, ...], ...] = (
        (~is_ours, join_menus, _KERNEL, find_best_of_range),
        (is_ours, join_w4a16_menus, _OUR_KERNEL, find_best_w4a16),
    )
    for is_chosen, join, names, find in searches:
        rows = np.flatnonzero(is_chosen)
        if not len(rows):
            continue
        packed, menus, ranges, *coefficients = join(params)
        per_type = len(ranges) // len(params)
        known = _ranges_by_kernel(menus, ranges, per_type, names)
        kernels = list(zip(type_of[rows].tolist(), *(found[name][rows].tolist() for name in names), strict=True))
        exists = [kernel in known for kernel in kernels]
        rows, kernels = rows[exists], [kernel for kernel in kernels if kernel in known]
        if not kernels:
            continue
        numbers = {kernel: number for number, kernel in enumerate(dict.fromkeys(kernels))}
        types = np.array([kernel[0] for kernel in numbers])
        records = (types[:, None] * per_type + np.arange(per_type)).reshape(-1)
        of_one = (
            packed[records], menus, np.concatenate([known[kernel] for kernel in numbers]),
            *(values[types] for values in coefficients),
            np.array([numbers[kernel] for kernel in kernels]), sizes[rows],
        )  # fmt: skip
        costs = np.zeros(len(rows), GPU_COST_DTYPE)

        def work(start: int, stop: int) -> None:
            find(*of_one, start, stop, costs)  # noqa: B023  done before the next round

        run_in_chunks(work, len(rows))
        if find is find_best_w4a16:
            _repeat(costs, sizes[rows, 0])
        out[rows] = costs
    return out


def _ranges_by_kernel(
    menus: npt.NDArray[np.void], ranges: npt.NDArray[np.int64], per_type: int, names: tuple[str, ...]
) -> dict[tuple[int, ...], npt.NDArray[np.int64]]:
    """Where each kernel of each type lies in each of the type's `per_type` menus, as `ranges` of a single row."""
    known: dict[tuple[int, ...], npt.NDArray[np.int64]] = {}
    kernels = list(zip(*(menus[name].tolist() for name in names), strict=True))
    for place, (first, stop) in enumerate(ranges.tolist()):
        kind, part = divmod(place, per_type)
        for row in range(first, stop):
            where = known.setdefault((kind, *kernels[row]), np.zeros((per_type, 2), np.int64))
            where[part] = row, row + 1
    return known
