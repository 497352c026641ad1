"""The coefficients of kernels whose time is that of their bytes. MODEL.md, "Memory-bound"."""

from __future__ import annotations

from gemm_eval.models.gpu.coefficients import FREE, NO_LIMIT, SPEC, Coefficient, Neutral

__all__ = ["MEMORY_BOUND_COEFFICIENTS"]

_SOURCE = "round, within what fits of an H200's timings gave (arch/calibration/h200-sxm/memory-bound.yaml)"


def _item(name: str, unit: str, low: float, high: float, default: float, neutral: Neutral, meaning: str) -> Coefficient:
    return Coefficient(name, unit, low, high, default, neutral, meaning, _SOURCE)


MEMORY_BOUND_COEFFICIENTS = (
    _item("start_us", "us", 0.0, 3.0, 0.1, FREE, "start and end of a kernel, beyond a node of a graph"),
    _item("trip_us", "us", 0.0, 3.0, 0.36, FREE, "a way to memory and back, of a row alone"),
    _item("warp_cycles", "cycles", 0.0, 400.0, 40.0, FREE, "to begin one more warp of a CTA"),
    _item("wave_us", "us", 0.1, 10.0, 2.4, FREE, "likewise, of threads that fill all SMs"),
    _item("sm_frac", "1", 0.05, 1.0, 0.47, NO_LIMIT, "share of 64 B a cycle that an SM reads and writes"),
    _item("l2_frac", "1", 0.1, 1.0, 0.5, NO_LIMIT, "share of the L2 bandwidth"),
    _item("dram_frac", "1", 0.5, 1.0, 0.88, SPEC, "share of the DRAM bandwidth"),
    _item("hold_frac", "1", 0.02, 2.0, 0.2, SPEC, "share of L2 in which a tensor outlives the kernel that wrote it"),
)
"""All of them, in the order of files."""
