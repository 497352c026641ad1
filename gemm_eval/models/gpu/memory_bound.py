"""Operations whose time is that of their bytes: norms, activations, positions, copies. MODEL.md, "Memory-bound"."""

from __future__ import annotations

from math import ceil, hypot

from gemm_eval.arch import GpuSpec
from gemm_eval.units import bytes_per_us

__all__ = ["MEMORY_BOUND_GPU", "MEMORY_BOUND_TERMS", "memory_bound_terms"]

MEMORY_BOUND_TERMS = {
    "launch_us": "start and end of the kernel in a CUDA graph",
    "row_us": "a CTA's way over its row and back, where a sum over the row comes first, as in norms",
    "bytes_us": "bytes through L2, and through DRAM as far as L2 does not hold them from the kernel before",
}
"""Terms of the time, and what it goes to; they add up to it."""

MEMORY_BOUND_GPU = "h200-sxm"
"""The one that was timed."""

# fitted on 348 kernels on it (arch/measured/h200-sxm/memory-bound, examples/measure_memory_bound.py)
_HOLD_FRAC = 0.3  # of L2, in which what one kernel writes is still there when the next reads it
_L2_FRAC = 0.66  # reads and writes together, of the rate of reads that hit
_START_US = 0.3  # of a kernel that does something, beyond a graph's node
_PASS_US = 0.65  # of all threads of a CTA over as many elements as they load at once
_PASS_ELEMENTS = 8 * 1024


def memory_bound_terms(arch: GpuSpec, read_bytes: float, write_bytes: float, row_elements: int = 0) -> dict[str, float]:
    """Return the time of each of `MEMORY_BOUND_TERMS`, in microseconds.

    Args:
        arch: the GPU.
        read_bytes, write_bytes: of the kernel, each tensor once.
        row_elements: of a row that is summed up before anything is written; 0: nothing is.
    """
    num_bytes = read_bytes + write_bytes
    missed = 1.0 / (1.0 + (_HOLD_FRAC * arch.l2_bytes / max(num_bytes, 1.0)) ** 2)
    l2_us = num_bytes / (bytes_per_us(arch.l2_gb_per_s) * _L2_FRAC)
    dram_us = missed * num_bytes / bytes_per_us(arch.dram_achievable_gb_per_s)
    return {
        "launch_us": arch.graph_node_us + _START_US,
        "row_us": ceil(row_elements / _PASS_ELEMENTS) * _PASS_US,
        "bytes_us": hypot(l2_us, dram_us),
    }
