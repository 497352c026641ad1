"""The only unit conversions of the library.

Models count bytes, cycles and microseconds. Specs speak of GB/s (1e9 bytes a second) and GHz, because datasheets do.
"""

from __future__ import annotations

__all__ = [
    "FLOP_PER_MAC",
    "bytes_per_us",
    "cycles_per_us",
    "pj_per_us",
    "tflop_per_s",
]

FLOP_PER_MAC = 2
"""A multiply-accumulate counts as two floating-point operations, everywhere."""

_BYTES_PER_US_PER_GB_PER_S = 1e3  # 1e9 bytes / 1e6 us
_CYCLES_PER_US_PER_GHZ = 1e3  # 1e9 cycles / 1e6 us
_FLOP_PER_US_PER_TFLOP_PER_S = 1e6  # 1e12 FLOP / 1e6 us
_PJ_PER_US_PER_W = 1e6  # 1 W = 1e12 pJ/s = 1e6 pJ/us


def bytes_per_us(gb_per_s: float) -> float:
    """Convert GB/s (1e9 bytes per second) to bytes per microsecond."""
    return gb_per_s * _BYTES_PER_US_PER_GB_PER_S


def cycles_per_us(ghz: float) -> float:
    """Convert GHz to cycles per microsecond."""
    return ghz * _CYCLES_PER_US_PER_GHZ


def tflop_per_s(flop: float, us: float) -> float:
    """Rate in TFLOP/s (1e12) of `flop` operations done in `us` microseconds."""
    return flop / us / _FLOP_PER_US_PER_TFLOP_PER_S


def pj_per_us(watt: float) -> float:
    """Convert watts to picojoules per microsecond."""
    return watt * _PJ_PER_US_PER_W
