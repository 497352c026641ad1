"""Bytes through L2, and through DRAM as far as L2 does not hold them from before. MODEL.md, "Memory-bound"."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec
from gemm_eval.units import bytes_per_us

Floats = npt.NDArray[np.float64]

_STEEP = 2  # of the way from all held to nothing held
_NORM = 4.0  # of what runs side by side: the longest with a little of the others


def missed_frac(held_bytes: Any, room_bytes: float, steep: float = _STEEP) -> Floats:
    """Return the share of bytes that L2 does not hold any more when they are read again: a half where they fill a room.

    Args:
        held_bytes: [rows], different bytes for which there must be room.
        room_bytes: in which they stay.
        steep: of the edge between all and nothing, a power.
    """
    missed: Floats = 1.0 / (1.0 + (room_bytes / np.maximum(held_bytes, 1.0)) ** steep)
    return missed


def l2_and_dram_us(
    arch: GpuSpec, num_bytes: Any, held_bytes: Any, *, hold_frac: float, l2_frac: float, dram_frac: float
) -> tuple[Floats, Floats]:
    """Return the times that L2 and DRAM take for bytes of a kernel, [rows] each.

    Args:
        arch: the GPU.
        num_bytes: [rows], that SMs read and write.
        held_bytes: [rows], different ones among them, for which there must be room.
        hold_frac: of L2: the room.
        l2_frac, dram_frac: shares of the rates that they reach.
    """
    missed = missed_frac(held_bytes, hold_frac * arch.l2_bytes)
    l2_us = num_bytes / (bytes_per_us(arch.l2_gb_per_s) * l2_frac)
    dram_us = missed * np.minimum(held_bytes, num_bytes) / (bytes_per_us(arch.dram_gb_per_s) * dram_frac)
    return l2_us, dram_us


def in_turns(l2_us: Any, dram_us: Any) -> Floats:
    """Return the time of bytes that L2 and DRAM move in turns, [rows]: between the longer one and the sum."""
    both: Floats = np.hypot(l2_us, dram_us)
    return both


def side_by_side(a: Any, b: Any) -> Floats:
    """Return the time of two things that overlap, [rows]: hardly more than the longer one, unless they are alike."""
    both: Floats = (a**_NORM + b**_NORM) ** (1.0 / _NORM)
    return both
