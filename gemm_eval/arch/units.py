"""Numbers with units: a field's name ends with its unit, and a text such as ``"1.5 MiB"`` is converted to it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

_BYTES = {"B": 1.0} | {
    f"{prefix}{unit}": float(base) ** power
    for unit, base in (("B", 1000), ("iB", 1024))
    for power, prefix in enumerate(("k", "M", "G", "T"), 1)
}
_BYTES["KiB"] = _BYTES.pop("kiB")
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


def implausible_numbers(spec: BaseModel) -> Iterator[str]:
    """Yield a sentence on each number that no chip is likely to have, which a wrong unit may be the cause of."""
    for field, value in spec:
        low, high = _PLAUSIBLE.get(unit_of(field) or "", (0.0, math.inf))
        for number in value.values() if isinstance(value, Mapping) else [value]:
            if isinstance(number, int | float) and number and not low <= number <= high:
                yield f"{field} is {number:,g}, and {low:g} to {high:,g} was expected: check its unit"
