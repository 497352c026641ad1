"""The only unit conversions of the library.

Models count bytes, cycles and microseconds. Specs speak of GB/s (1e9 bytes a second) and GHz, because datasheets do.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


Number = TypeVar("Number", float, "npt.NDArray[np.float64]")

FLOP_PER_MAC = 2
"""A multiply-accumulate counts as two floating-point operations, everywhere."""

_BYTES_PER_US_PER_GB_PER_S = 1e3  # 1e9 bytes / 1e6 us
_CYCLES_PER_US_PER_GHZ = 1e3  # 1e9 cycles / 1e6 us
_FLOP_PER_US_PER_TFLOP_PER_S = 1e6  # 1e12 FLOP / 1e6 us
_PJ_PER_US_PER_W = 1e6  # 1 W = 1e12 pJ/s = 1e6 pJ/us
_US_PER_S = 1e6
_US_PER_MS = 1e3
_US_PER_NS = 1e-3
_TIME_DIGITS = 3  # what a model says of a time is good to some percent


def bytes_per_us(gb_per_s: float) -> float:
    """Convert GB/s (1e9 bytes per second) to bytes per microsecond."""
    return gb_per_s * _BYTES_PER_US_PER_GB_PER_S


def cycles_per_us(ghz: float) -> float:
    """Convert GHz to cycles per microsecond."""
    return ghz * _CYCLES_PER_US_PER_GHZ


def tflop_per_s(flop: float, us: Number) -> Number:
    """Rate in TFLOP/s (1e12) of `flop` operations done in `us` microseconds."""
    return flop / us / _FLOP_PER_US_PER_TFLOP_PER_S


def us_at_peak(flop: float, peak_tflop_per_s: float) -> float:
    """Microseconds of `flop` operations at a rate in TFLOP/s (1e12)."""
    return flop / (peak_tflop_per_s * _FLOP_PER_US_PER_TFLOP_PER_S)


def per_s(count: float, us: Number) -> Number:
    """Rate a second of `count` things done in `us` microseconds."""
    return count / us * _US_PER_S


def pj_per_us(watt: float) -> float:
    """Convert watts to picojoules per microsecond."""
    return watt * _PJ_PER_US_PER_W


def watt(pj: Number, us: Number) -> Number:
    """Mean power in watts of `pj` picojoules spent in `us` microseconds."""
    return pj / us / _PJ_PER_US_PER_W


def time_text(us: float) -> str:
    """Return a time for people, three digits and a unit: ``20.8 s``, ``12.3 ms``, ``4.56 us``, ``17.0 ns``.

    >>> time_text(20_805_922.82)
    '20.8 s'
    >>> time_text(999.6)
    '1.00 ms'
    """
    if not math.isfinite(us):
        return f"{us} us"
    if us == 0:
        return "0 us"
    rounded = float(f"{us:.{_TIME_DIGITS - 1}e}")  # first: 999.6 us are 1.00 ms
    size = abs(rounded)
    if size >= _US_PER_S:
        unit, scaled = "s", rounded / _US_PER_S
    elif size >= _US_PER_MS:
        unit, scaled = "ms", rounded / _US_PER_MS
    elif size >= 1e-2 * _US_PER_NS:
        unit, scaled = ("us", rounded) if size >= 1e-1 else ("ns", rounded / _US_PER_NS)
    else:
        return f"{us:.{_TIME_DIGITS - 1}e} us"
    decimals = _TIME_DIGITS - 1 - math.floor(math.log10(abs(scaled)) + 1e-9)
    return f"{scaled:,.{max(0, decimals)}f} {unit}"
