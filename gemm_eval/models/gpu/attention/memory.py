"""Bytes of attention on their way through L2 and DRAM."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec
from gemm_eval.units import bytes_per_us

__all__ = ["moved_us", "side_by_side"]

Floats = npt.NDArray[np.float64]


_NORM = 4.0  # of what runs side by side: the longest with a little of the others


def side_by_side(a: Floats, b: Floats) -> Floats:
    """Return the time of two things that overlap, [rows]: hardly more than the longer one, unless they are alike."""
    both: Floats = (a**_NORM + b**_NORM) ** (1.0 / _NORM)
    return both


def moved_us(
    arch: GpuSpec, c: Mapping[str, float], num_bytes: Floats, held_bytes: Floats, *, is_stream: bool = False
) -> Floats:
    """Return the time of bytes through L2, and through DRAM as far as L2 does not hold them from the call before.

    Args:
        arch: the GPU.
        c: coefficients l2_frac, dram_frac, hold_frac.
        num_bytes: [rows], that SMs read and write.
        held_bytes: [rows], different ones among them, for which there must be room.
        is_stream: one kernel reads them in one long stream, so that L2 and DRAM are at work side by side.
    """
    missed = 1.0 / (1.0 + (c["hold_frac"] * arch.l2_bytes / np.maximum(held_bytes, 1.0)) ** 2)
    l2_us = num_bytes / (bytes_per_us(arch.l2_gb_per_s) * c["l2_frac"])
    dram_us = missed * np.minimum(held_bytes, num_bytes) / (bytes_per_us(arch.dram_gb_per_s) * c["dram_frac"])
    if is_stream:
        return side_by_side(l2_us, dram_us)
    moved: Floats = np.hypot(l2_us, dram_us)
    return moved
