"""What a data set says of our kernels for 4-bit weights: config, weights, and the place of a kernel by its time."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

from gemm_eval.kernels import WeightMode
from gemm_eval.measure.shapes import GemmItem, GroupedShape, KernelItem

__all__ = ["KERNEL_META", "BestTimes", "add_ranks", "columns_of"]

KERNEL_META = {
    "library": "gemm-eval",
    "has_all_candidates": True,
    "rank": "place of the row's kernel by its time among those measured for its GEMM; 0: the fastest. Several rows "
    "have the same G, M, K, N, mode and group_size: only that of rank 0 is the library's time.",
    "give_up": "num_replays 1: a first short replay took over give_up_ratio times the best time until then; it is all "
    "there is, and its spread_frac of 0 says nothing",
    "build": "registers of a thread, spill_bytes: its local memory, smem_bytes: static and dynamic of a CTA, "
    "ctas_per_sm: CTAs that an SM holds at once, kernel_hash: of the machine code",
}
"""What the meta file of a data set of kernels says besides."""

_GEMM_COLUMNS = ("G", "M", "K", "N", "mode", "group_size")
_PER_COLUMN = -1  # what data sets call one scale a column


def columns_of(item: GemmItem) -> dict[str, Any]:
    """Return what `item` is, by column of a data set."""
    if isinstance(item, GroupedShape):
        return item._asdict() | {"row_groups": " ".join(map(str, item.row_groups)), "rows": item.rows}
    if not isinstance(item, KernelItem):
        return item._asdict()
    columns = item._asdict() | item.config._asdict()
    del columns["config"]
    columns["group_size"] = _PER_COLUMN if item.mode is WeightMode.COLUMN else item.group_size
    return {name: value.name.lower() if isinstance(value, enum.IntEnum) else value for name, value in columns.items()}


def add_ranks(rows: Sequence[dict[str, Any]]) -> None:
    """Number the rows of each GEMM by their time, from 0."""
    counts: dict[tuple[Any, ...], int] = {}
    for row in sorted(rows, key=lambda row: float(row["latency_us"])):
        gemm = tuple(row[name] for name in _GEMM_COLUMNS)
        row["rank"] = counts.get(gemm, 0)
        counts[gemm] = row["rank"] + 1


class BestTimes:
    """Least time of each GEMM by any kernel, in us.

    Args:
        timings: what is measured already.
    """

    def __init__(self, timings: Mapping[GemmItem, Mapping[str, Any]]) -> None:
        self._best_us: dict[tuple[Any, ...], float] = {}
        for item, timing in timings.items():
            self.take(item, timing["latency_us"])

    def take(self, item: GemmItem, latency_us: float) -> None:
        """Learn of one more time."""
        if isinstance(item, KernelItem):
            self._best_us[item[:6]] = min(latency_us, self._best_us.get(item[:6], latency_us))

    def of(self, item: GemmItem) -> float | None:
        """Return the best time of the item's GEMM; None: not known, or all its algorithms count alike."""
        return self._best_us.get(item[:6]) if isinstance(item, KernelItem) else None
