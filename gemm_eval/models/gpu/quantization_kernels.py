"""Numba kernels of the quantization of A before a GEMM: MODEL.md, "Quantization of A"."""

from __future__ import annotations

import math
from typing import Any

from gemm_eval.jit import entry_point, kernel
from gemm_eval.models.gpu.cost_kernels import ALL_COLD

_NEWTON_STEPS = 5  # from above, where a concave function leads straight to its root: rounding is left
_NS_PER_US = 1e3


@kernel
def miss_frac(footprint: float) -> float:
    """Share of bytes that a cache misses if `footprint` times its size is read in turn, again and again.

    A miss takes the place of a random line. Of footprint * cache lines that are read in a turn a share m misses, so a
    line is there still with probability exp(-m * footprint), which is 1 - m.
    """
    if footprint <= 1.0:
        return 0.0
    m = min(1.0, 2.0 * (footprint - 1.0))  # footprint = -log(1 - m) / m = 1 + m/2 + m**2/3 + ...
    for _ in range(_NEWTON_STEPS):
        lost = math.expm1(-m * footprint)
        m += (m + lost) / ((1.0 + lost) * footprint - 1.0)
    return min(1.0, max(0.0, m))


@kernel
def quantize_us(p: Any, c: Any, rows: float, K: float, to_bytes: float) -> float:
    """Time of the kernels that make A [rows, K] of `to_bytes`, with scales; 0 where it is there already."""
    passes = p["quantize_passes"]
    if passes == 0:
        return 0.0
    from_bytes = rows * K * p["quantize_elem_bytes"]
    moved = passes * from_bytes + to_bytes
    missed = miss_frac((from_bytes + to_bytes) / p["l2_bytes"])
    dram_bytes = missed * moved
    if p["l2_state"] == ALL_COLD:
        dram_bytes += (1.0 - missed) * from_bytes
    l2 = moved / (p["l2_peak_bytes_per_us"] * c["quantize_l2_frac"])
    dram = dram_bytes / (p["dram_spec_bytes_per_us"] * c["quantize_dram_frac"])
    fixed = passes * c["quantize_us"] + rows * c["quantize_row_ns"] / _NS_PER_US
    return float(fixed + math.sqrt(l2 * l2 + dram * dram))


@kernel
def cast_us(p: Any, c: Any) -> float:
    """Time of the kernel that casts the one scale of A."""
    return float(c["scale_cast_us"]) if p["has_cast"] != 0 else 0.0


@entry_point
def quantize_rows(params: Any, coefficients: Any, sizes: Any, out_us: Any) -> None:
    """Time [num] us of the quantization of A alone; params and coefficients [1], sizes [num, 2] of M and K."""
    p, c = params[0], coefficients[0]
    for i in range(len(sizes)):
        rows, K = float(sizes[i, 0]), float(sizes[i, 1])
        out_us[i] = quantize_us(p, c, rows, K, rows * K * p["a_elem_bytes"])
