"""Numba kernels of generic kernel families: tiles along M of groups, each of which has its own ragged last one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gemm_eval.jit import inlined_kernel, kernel
from gemm_eval.models.gpu.cost_kernels import ProblemTerms, ceil_div

_MOST_CTA_ROWS = 512  # as `check_config` allows
_CLUSTER_SIZES = 5  # 1 to 16 CTAs


@kernel
def round_up(a: int, power_of_two: int) -> int:
    """The next multiple of a power of two."""
    return (a + power_of_two - 1) & -power_of_two


class RowTiles(NamedTuple):
    """Tiles along M of all groups."""

    tiles: int
    padded: int  # to whole clusters
    empty_rows: int  # of the last tile of each group


@inlined_kernel
def row_tiles_of(t: ProblemTerms, cta_m: int, cluster_m: int) -> RowTiles:
    """A tile has rows of one group only, so that each group's last one is ragged."""
    total = padded = empty = 0
    for place in range(len(t.group_rows)):
        rows, count = t.group_rows[place], t.group_counts[place]
        tiles = ceil_div(rows, cta_m)
        total += count * tiles
        padded += count * round_up(tiles, cluster_m)
        empty += count * (tiles * cta_m - rows)
    return RowTiles(total, padded, empty)


@kernel
def fill_row_tiles(t: ProblemTerms, cta_m: Any, cluster_m: Any, tiles: Any, clusters: Any, empty_rows: Any) -> None:
    """Write what `row_tiles_of` says of each kernel [num], with whole clusters instead of their tiles."""
    if len(t.group_rows) == 1:
        G, M = float(t.G), float(t.M)
        for i in range(len(tiles)):
            of_one = np.ceil(M / cta_m[i])
            tiles[i] = G * of_one
            clusters[i] = G * np.ceil(of_one / cluster_m[i])
            empty_rows[i] = G * (of_one * cta_m[i] - M)
        return
    known = np.full((_MOST_CTA_ROWS + 1, _CLUSTER_SIZES), -1)  # where the same tile stood before
    for i in range(len(tiles)):
        rows, size = int(cta_m[i]), int(np.log2(cluster_m[i]))
        place = known[rows, size]
        if place >= 0:
            tiles[i], clusters[i], empty_rows[i] = tiles[place], clusters[place], empty_rows[place]
            continue
        known[rows, size] = i
        found = row_tiles_of(t, rows, 1 << size)
        tiles[i], clusters[i], empty_rows[i] = found.tiles, found.padded >> size, found.empty_rows
