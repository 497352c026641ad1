"""Bytes of attention on their way through L2 and DRAM."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec
from gemm_eval.models.gpu.traffic import in_turns, l2_and_dram_us, side_by_side

__all__ = ["moved_us", "side_by_side"]

Floats = npt.NDArray[np.float64]


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
    l2_us, dram_us = l2_and_dram_us(
        arch, num_bytes, held_bytes, hold_frac=c["hold_frac"], l2_frac=c["l2_frac"], dram_frac=c["dram_frac"]
    )
    return side_by_side(l2_us, dram_us) if is_stream else in_turns(l2_us, dram_us)
