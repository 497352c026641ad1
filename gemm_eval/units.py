"""The only unit conversions of the library, texts with units, and numbers read from such texts.

Models count bytes, cycles and microseconds. Specs speak of GB/s (1e9 bytes a second) and GHz, because datasheets do.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

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
    return scaled_text("time", us)


def interval_text(low_us: float, high_us: float) -> str:
    """Return an interval of times for people: ``135 us to 156 us``."""
    return f"{time_text(low_us)} to {time_text(high_us)}"


_CAPACITY_DIGITS = 6  # sizes of memories are exact
_SHORTEST_US = 1e-5
_LADDERS = {
    "time": {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3},
    "bytes": {"TB": 1e12, "GB": 1e9, "MB": 1e6, "KB": 1e3, "B": 1.0},
    "capacity": {"TiB": 1 << 40, "GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1.0},
    "energy": {"J": 1e12, "mJ": 1e9, "uJ": 1e6, "nJ": 1e3, "pJ": 1.0},
    "flop": {"PFLOP": 1e15, "TFLOP": 1e12, "GFLOP": 1e9, "MFLOP": 1e6, "FLOP": 1.0},
}
_LEAST = {"us": 0.1, "ns": 0.0, "B": 0.0, "pJ": 0.0, "FLOP": 0.0}  # of these less than one is written, too


def scaled_text(kind: str, value: float) -> str:
    """Return a value, of a kind of `Column` or ``flop``, in the unit of its size: ``12.3 ms``, ``101 MB``."""
    ladder = _LADDERS[kind]
    if not math.isfinite(value) or value == 0:
        return f"{value or 0:g} {next(unit for unit, size in ladder.items() if size == 1.0)}"
    is_exact = kind == "capacity"
    rounded = value if is_exact else float(f"{value:.{_TIME_DIGITS - 1}e}")  # first: 999.6 MB are 1.00 GB
    if kind == "time" and abs(rounded) < _SHORTEST_US:
        return f"{value:.{_TIME_DIGITS - 1}e} us"
    unit = next(unit for unit, size in ladder.items() if abs(rounded) >= _LEAST.get(unit, size))
    scaled = rounded / ladder[unit]
    if is_exact:
        return f"{scaled:,.{_CAPACITY_DIGITS}g} {unit}"
    decimals = _TIME_DIGITS - 1 - math.floor(math.log10(abs(scaled)) + 1e-9)
    return f"{scaled:,.{max(0, decimals)}f} {unit}"


# Numbers with units, as people write them: a field's name ends with its unit.

_BYTES = {"B": 1.0} | {
    f"{prefix}{unit}": float(base) ** power
    for unit, base in (("B", 1000), ("iB", 1024))
    for power, prefix in enumerate(("k", "M", "G", "T"), 1)
}
_BYTES = {unit.replace("kiB", "KiB"): factor for unit, factor in _BYTES.items()} | {"KB": 1e3}  # as both are written
_RATES = {f"{unit}/s": factor / 1e9 for unit, factor in _BYTES.items()}
_BITS = {"Mb/s": 1e-3 / 8, "Gb/s": 1 / 8, "Tb/s": 1e3 / 8}  # as links of networks are rated
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}

UNITS: Mapping[str, Mapping[str, float]] = {
    "bytes": _BYTES,
    "gb_per_s": _RATES | _BITS,
    "ghz": {"kHz": 1e-6, "MHz": 1e-3, "GHz": 1.0},
    "us": {unit: factor * 1e6 for unit, factor in _SECONDS.items()},
    "ns": {unit: factor * 1e9 for unit, factor in _SECONDS.items()},
    "w": {"mW": 1e-3, "W": 1.0, "kW": 1e3},
    "pj": {"fJ": 1e-3, "pJ": 1.0, "nJ": 1e3},
    "pj_per_byte": {"pJ/B": 1.0, "pJ/b": 8.0},
    "mm2": {"mm2": 1.0, "cm2": 100.0},
    "frac": {"%": 0.01},
    "tflop_per_s": {"GFLOP/s": 1e-3, "TFLOP/s": 1.0, "PFLOP/s": 1e3},
}
"""Units that a text may have, by the end of a field's name, with their sizes in the unit of the field."""


class UnitError(ValueError):
    """The unit of a number is none of its field's."""


_QUANTITY = re.compile(r"([-+]?[0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3})?)\s*([A-Za-z%][A-Za-z0-9/]{0,7})")
_PLAUSIBLE = {"ghz": (0.01, 20.0), "gb_per_s": (0.1, 1e6), "w": (1e-3, 1e5), "us": (1e-4, 1e5), "ns": (0.1, 1e5)}
_PLAUSIBLE |= {"peak_flop_per_dram_byte": (0.1, 3e4)}  # presets: 37 (H20) to 12,500 (IPU, DDR4)


def unit_of(field: str) -> str | None:
    """Return the unit at the end of a field's name, a key of `UNITS`, or None."""
    ends = [unit for unit in UNITS if field == unit or field.endswith(f"_{unit}")]
    return max(ends, key=len, default=None)


def in_unit_of(field: str, value: Any) -> Any:
    """Return a value in the unit of its field: 1572864 for ``"1.5 MiB"`` of ``sram_bytes``.

    What is no number with a unit, or a field without one, is returned as it is. Whole numbers of bytes become int.

    Raises:
        UnitError: the unit is none of the field's.
    """
    unit = unit_of(field)
    if unit is None:
        return value
    if isinstance(value, str) and (match := _QUANTITY.fullmatch(value.strip())):
        number, word = match.groups()
        if word not in UNITS[unit]:
            raise UnitError(f"{field} takes a number, or one with a unit: {', '.join(UNITS[unit])}; got {value!r}")
        value = float(f"{float(number) * UNITS[unit][word]:.15g}")  # 1.9 for 1900 MHz
    return int(value) if unit == "bytes" and isinstance(value, float) and value.is_integer() else value


def implausible_numbers(fields: Iterable[tuple[str, Any]]) -> Iterator[str]:
    """Yield a sentence on each number that no chip is likely to have; a wrong unit is a common cause."""
    for field, value in fields:
        low, high = _PLAUSIBLE.get(unit_of(field) or field, (0.0, math.inf))
        for number in value.values() if isinstance(value, Mapping) else [value]:
            if isinstance(number, int | float) and number and not low <= number <= high:
                yield f"{field} is {number:,g}, and {low:g} to {high:,g} was expected: check its unit"
