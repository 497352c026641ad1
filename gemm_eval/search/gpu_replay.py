"""Costs of kernel configs that were found before, evaluated again many at a time.

Each problem is searched again, but with one kernel only: the one that its record names. The best of all kernels is also
the best that its own can do, by how it cuts K and by its raster, so a record that comes out otherwise was no answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval.jit import read_only
from gemm_eval.models.gpu import GPU_COST_DTYPE, Joined, Packed, join_packed
from gemm_eval.models.gpu.w4a16 import SM90_CLUSTER
from gemm_eval.search.gpu import by_kernels, find_plain, search_many
from gemm_eval.search.gpu_corrected import correct_many
from gemm_eval.workload import NO_LAYOUTS, Layouts, without_lone_groups

__all__ = ["replay_configs"]

# what tells a kernel from the others of a packing; only our own come with a raster, or with K cut
_KERNEL = (
    "family", "cta_m", "cta_n", "cta_k", "cluster_m", "cluster_n", "num_warps", "num_stages", "schedule",
)  # fmt: skip
_OUR_KERNEL = (*_KERNEL, "raster_order", "raster_swizzle", "cluster_k")


def replay_configs(
    packed: Sequence[Packed], type_of: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], found: Any,
    *, layouts: Layouts = NO_LAYOUTS,
) -> npt.NDArray[np.void]:  # fmt: skip
    """Evaluate the kernels of records again, whatever numbers they hold.

    Args:
        packed: of each combination of types and options.
        type_of: [num], index into `packed`.
        sizes: [num, 4] of G, M, K, N.
        found: [num] of GPU_COST_DTYPE.
        layouts: groups of rows of the problems that have such.

    Returns:
        [num] of GPU_COST_DTYPE, each the best that its kernel can do; zeros where the library has no such kernel. The
        counts are those of this search.
    """
    out = np.zeros(len(found), GPU_COST_DTYPE)
    is_batch = ~layouts.is_grouped(len(sizes))
    sizes, layouts = without_lone_groups(sizes, layouts)
    for some, place_of, rows in by_kernels(packed, type_of, sizes):
        names = _OUR_KERNEL if some[0].is_ours else _KERNEL
        joined = join_packed(some)
        row_of = _rows_by_kernel(joined, names)
        kernels = list(zip(place_of.tolist(), *(_told(found[rows], name) for name in names), strict=True))
        exists = [kernel in row_of for kernel in kernels]
        kernels = [kernel for kernel in kernels if kernel in row_of]
        if not kernels:
            continue
        number_of = {kernel: number for number, kernel in enumerate(dict.fromkeys(kernels))}
        places = np.array([kernel[0] for kernel in number_of])
        ranges = np.array([(row_of[kernel], row_of[kernel] + 1) for kernel in number_of])
        of_one = Joined(
            read_only(joined.params[places]), joined.candidates, joined.columns, read_only(ranges),
            read_only(joined.coefficients[places]), joined.is_ours,
        )  # fmt: skip
        numbers = np.array([number_of[kernel] for kernel in kernels])
        known = rows[exists]
        out[known] = search_many(of_one, numbers, sizes[known], layouts.take(known))
        correct_many(some, place_of[exists], known, sizes, is_batch, out, find_plain)
    return out


def _told(found: npt.NDArray[np.void], name: str) -> list[int]:
    """What records say of their kernels: a column of candidates."""
    column = np.where(found["family"] == SM90_CLUSTER, found["split_k"], 0) if name == "cluster_k" else found[name]
    return [int(value) for value in column]


def _rows_by_kernel(joined: Joined, names: tuple[str, ...]) -> dict[tuple[int, ...], int]:
    """Where each kernel of each of the joined lies among their candidates."""
    kernels = list(zip(*(joined.candidates[name].tolist() for name in names), strict=True))
    ranges = enumerate(joined.ranges.tolist())
    return {(place, *kernels[row]): row for place, (first, stop) in ranges for row in range(first, stop)}
