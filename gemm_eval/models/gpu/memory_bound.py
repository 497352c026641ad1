"""Operations whose time is that of their bytes: norms, activations, positions, copies. MODEL.md, "Memory-bound"."""

from __future__ import annotations

from math import hypot

from gemm_eval.arch import GpuSpec
from gemm_eval.units import bytes_per_us

__all__ = ["MEMORY_BOUND_TERMS", "memory_bound_terms"]

MEMORY_BOUND_TERMS = {
    "launch_us": "start and end of the kernel in a CUDA graph, and the latency of its first bytes",
    "bytes_us": "bytes through L2, and through DRAM as far as L2 does not hold them from the kernel before",
}
"""Terms of the time, and what it goes to; they add up to it."""

_HOLD_FRAC = (
    0.7  # of L2, in which what one kernel writes is still there when the next reads it; as for layers of experts
)
_L2_FRAC = 0.5  # reads and writes together, of the rate of reads that hit; assumed
_LATENCIES = 2.0  # of DRAM, from the first instruction to the last write; assumed


def memory_bound_terms(arch: GpuSpec, read_bytes: float, write_bytes: float) -> dict[str, float]:
    """Return the time of each of `MEMORY_BOUND_TERMS`, in microseconds.

    Args:
        arch: the GPU.
        read_bytes, write_bytes: of the kernel, each tensor once.
    """
    num_bytes = read_bytes + write_bytes
    missed = 1.0 / (1.0 + (_HOLD_FRAC * arch.l2_bytes / max(num_bytes, 1.0)) ** 2)
    l2_us = num_bytes / (bytes_per_us(arch.l2_gb_per_s) * _L2_FRAC)
    dram_us = missed * num_bytes / bytes_per_us(arch.dram_achievable_gb_per_s)
    launch_us = arch.graph_node_us + _LATENCIES * arch.dram_latency_ns / 1e3
    return {"launch_us": launch_us, "bytes_us": hypot(l2_us, dram_us)}
