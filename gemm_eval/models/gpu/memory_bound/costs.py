"""Operations whose time is that of their bytes: norms, activations, positions, copies. MODEL.md, "Memory-bound"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec
from gemm_eval.models.gpu.traffic import missed_frac, side_by_side
from gemm_eval.units import bytes_per_us, cycles_per_us

__all__ = ["MEMORY_BOUND_TERMS", "MemoryBoundRows", "memory_bound_terms", "memory_bound_us"]

Floats = npt.NDArray[np.float64]

MEMORY_BOUND_TERMS = {
    "launch_us": "start and end of the kernel in a CUDA graph",
    "row_us": "what a sum over each row, as in norms, adds: barriers, and CTAs of an SM one after the other",
    "bytes_us": "bytes through the SMs, through L2, and through DRAM as far as L2 does not hold them from before",
}
"""Terms of the time, and what it goes to; they add up to it."""

_SM_BYTES_PER_CYCLE = 64  # between an SM and L2
_CTA_ELEMENTS = 8 * 1024  # that the most threads of a CTA load at once, 16 bytes of 16-bit elements each
_CYCLES_ELEMENTS = 1024  # of `row_cycles`
_ELEMENT_BYTES = 2
_STEEP = 4.0  # of the way from L2 to DRAM


class MemoryBoundRows(NamedTuple):
    """Kernels, as columns; each may also be one number.

    Attributes:
        read_bytes, write_bytes: [rows], of a kernel, each tensor once.
        num_rows: [rows], that it works on, each by one CTA; 0: all SMs have as many bytes.
        row_elements: [rows], of a row that is summed up before anything is written; 0: nothing is.
    """

    read_bytes: Any
    write_bytes: Any
    num_rows: Any
    row_elements: Any

    def take(self, mask: npt.NDArray[np.bool_]) -> MemoryBoundRows:
        """Return some of the kernels, of columns."""
        return MemoryBoundRows(*(column[mask] for column in self))


def memory_bound_terms(arch: GpuSpec, c: Mapping[str, float], rows: MemoryBoundRows) -> dict[str, Floats]:
    """Return the time of each of `MEMORY_BOUND_TERMS`, [rows], in microseconds.

    Args:
        arch: the GPU.
        c: values of `MEMORY_BOUND_COEFFICIENTS`.
        rows: the kernels.
    """
    num_bytes = np.asarray(rows.read_bytes, np.float64) + rows.write_bytes
    elements = np.asarray(rows.row_elements, np.float64)
    is_sum = elements > 0
    # a sum without a number of rows: as many as are read and written once
    summed = np.maximum(num_bytes / (2 * _ELEMENT_BYTES * np.maximum(elements, 1.0)), 1.0)
    num_rows = np.where(np.asarray(rows.num_rows) > 0, rows.num_rows, np.where(is_sum, summed, 0.0))
    # rows of the busiest SM, as a share of all
    busiest = np.where(num_rows > 0, np.ceil(num_rows / arch.num_sms) / np.maximum(num_rows, 1.0), 1.0 / arch.num_sms)
    clock = cycles_per_us(arch.boost_clock_ghz)
    missed = missed_frac(num_bytes, c["hold_frac"] * arch.l2_bytes, _STEEP)
    sm_us = busiest * num_bytes / (_SM_BYTES_PER_CYCLE * clock * c["sm_frac"])
    l2_us = num_bytes / bytes_per_us(arch.l2_gb_per_s)
    dram_us = missed * num_bytes / (bytes_per_us(arch.dram_achievable_gb_per_s) * c["dram_frac"])
    bytes_us = side_by_side(np.maximum(sm_us, l2_us), dram_us)
    cta_share = elements / np.maximum(np.ceil(elements / _CTA_ELEMENTS), 1.0) / _CTA_ELEMENTS
    busy = np.minimum(num_rows / arch.num_sms, 1.0)
    slower = (1.0 + c["wide_frac"] * cta_share) * (1.0 + c["crowd_frac"] * busy)
    ctas_us = busiest * num_rows * elements / _CYCLES_ELEMENTS * c["row_cycles"] / clock * slower
    return {
        "launch_us": np.full_like(num_bytes, arch.graph_node_us + c["start_us"]),
        "row_us": np.where(is_sum, side_by_side(bytes_us, ctas_us) - bytes_us + c["sum_us"], 0.0),
        "bytes_us": bytes_us,
    }


def memory_bound_us(arch: GpuSpec, c: Mapping[str, float], rows: MemoryBoundRows) -> Floats:
    """Return the times of kernels, [rows], in microseconds; arguments as of `memory_bound_terms`."""
    found: Floats = np.sum(list(memory_bound_terms(arch, c, rows).values()), axis=0)
    return found
