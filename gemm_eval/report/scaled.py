"""Values in a unit that a person reads at a glance: ``20.8 s``, ``2 MiB``, ``101 MB``, ``3.20 mJ``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

from gemm_eval.units import time_text

__all__ = ["BASE_UNITS", "SCALED", "say_bytes", "say_capacity", "say_energy", "say_flop", "unit_of_name"]

_DIGITS = 3
_CAPACITY_DIGITS = 6  # sizes of memories are exact
_DECIMAL = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB"))
_BINARY = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_FLOP = ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"))
_PICOJOULES = ((1e12, "J"), (1e9, "mJ"), (1e6, "uJ"), (1e3, "nJ"))


def say_bytes(value: float) -> str:
    """Return bytes that move, three digits and a decimal unit: ``101 MB``."""
    return _scaled(value, _DECIMAL, "B")


def say_flop(value: float) -> str:
    """Return a number of operations, three digits and a unit: ``1.11 GFLOP``."""
    return _scaled(value, _FLOP, "FLOP")


def say_energy(value: float) -> str:
    """Return picojoules, three digits and a unit: ``3.20 mJ``."""
    return _scaled(value, _PICOJOULES, "pJ")


def say_capacity(value: float) -> str:
    """Return the bytes of a memory in a binary unit: ``256 KiB``, ``1.5 MiB``."""
    if not math.isfinite(value):
        return f"{value} B"
    size, unit = next(((size, unit) for size, unit in _BINARY if abs(value) >= size), (1, "B"))
    return f"{value / size:,.{_CAPACITY_DIGITS}g} {unit}"


def _scaled(value: float, units: tuple[tuple[float, str], ...], least: str) -> str:
    if not math.isfinite(value) or value == 0:
        return f"{value:g} {least}"
    rounded = float(f"{value:.{_DIGITS - 1}e}")  # first: 999.6 MB are 1.00 GB
    size, unit = next(((size, unit) for size, unit in units if abs(rounded) >= size), (1.0, least))
    decimals = _DIGITS - 1 - math.floor(math.log10(abs(rounded / size)) + 1e-9)
    return f"{rounded / size:,.{max(0, decimals)}f} {unit}"


SCALED: Mapping[str, Callable[[float], str]] = {
    "time": time_text, "bytes": say_bytes, "capacity": say_capacity, "energy": say_energy,
}  # fmt: skip
"""How values of each kind of column that is scaled are written."""

BASE_UNITS = {"time": "us", "bytes": "B", "capacity": "B", "energy": "pJ"}
"""What the numbers of each kind are counted in."""

_SUFFIX_UNITS = {
    "_us": "us", "_bytes": "B", "_pj": "pJ", "_gb_per_s": "GB/s", "_tflop_per_s": "TFLOP/s", "_mm2": "mm2",
    "_ghz": "GHz", "_hz": "Hz", "_frac": "frac", "_w": "W",
}  # fmt: skip
_COMPOUND = re.compile(r"_per_(mm2|w)$|_pj_us$")


def unit_of_name(name: str) -> tuple[str, str]:
    """Return the unit that a name such as ``latency_us`` ends with, and the end itself; empty texts if it has none."""
    if _COMPOUND.search(name):
        return "", ""
    return next(((unit, end) for end, unit in _SUFFIX_UNITS.items() if name.endswith(end)), ("", ""))
