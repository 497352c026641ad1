"""The coefficients of kernels whose time is that of their bytes. MODEL.md, "Memory-bound"."""

from __future__ import annotations

from gemm_eval.models.gpu.coefficients import FREE, NO_LIMIT, SPEC, Coefficient, Neutral

__all__ = ["MEMORY_BOUND_COEFFICIENTS"]

_SOURCE = "round, within what fits of an H200's timings gave (arch/calibration/h200-sxm/memory-bound.yaml)"


def _item(name: str, unit: str, low: float, high: float, default: float, neutral: Neutral, meaning: str) -> Coefficient:
    return Coefficient(name, unit, low, high, default, neutral, meaning, _SOURCE)


MEMORY_BOUND_COEFFICIENTS = (
    _item("start_us", "us", 0.0, 3.0, 0.1, FREE, "start and end of a kernel, beyond a node of a graph"),
    _item("sm_frac", "1", 0.05, 1.0, 0.4, NO_LIMIT, "share of 64 B a cycle that an SM reads and writes"),
    _item("dram_frac", "1", 0.5, 1.2, 0.95, SPEC, "share of the achievable DRAM bandwidth"),
    _item("hold_frac", "1", 0.02, 2.0, 0.4, SPEC, "share of L2 in which a tensor outlives the kernel that wrote it"),
    _item("sum_us", "us", 0.0, 3.0, 0.3, FREE, "a sum over a row: barriers, and what waits for them"),
    _item("row_cycles", "cycles", 10.0, 1000.0, 150.0, FREE, "1,024 elements of such a row on an SM"),
    _item("wide_frac", "1", 0.0, 3.0, 1.0, FREE, "more of them in CTAs of 1,024 threads, of which an SM has one"),
    _item("crowd_frac", "1", 0.0, 3.0, 1.0, FREE, "more of them where all SMs load at once, over one SM alone"),
)  # fmt: skip
"""All of them, in the order of files."""
