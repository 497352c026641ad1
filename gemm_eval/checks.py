"""Checks of single arguments, whatever object was given: never an error of comparing or converting it."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Iterable
from typing import Any

from gemm_eval.errors import InvalidOptionError
from gemm_eval.words import refusal, shown

_POWER_FROM_BITS = 21  # from here on a limit reads better as a power of two


def plain_integer(value: Any) -> int | None:
    """Return the int that `value` is: Python's, numpy's, an array of no dimensions; None: it is none.

    Truth values, floats that are whole and masked arrays are none: in sizes these are mistakes.
    """
    if type(value) is int:
        return value
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_") or hasattr(value, "mask"):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def plain_number(value: Any) -> float | None:
    """Return `value` as a finite float, if it is a number; None: it is none, or not finite."""
    number: Any = plain_integer(value)
    if number is None and isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        number = value  # numpy's timedelta64 and truth values count as integral
    try:
        finite = math.nan if number is None else float(number)
    except OverflowError:
        return None
    return finite if math.isfinite(finite) else None


def as_integer(name: str, value: Any, low: int, high: int) -> int:
    """Return `value` as an int, if it is an integer of low..high."""
    number = plain_integer(value)
    if number is None or not low <= number <= high:
        is_power = high.bit_length() > _POWER_FROM_BITS and high & (high - 1) == 0
        limit = f"2**{high.bit_length() - 1}" if is_power else f"{high}"
        raise InvalidOptionError(f"{name} must be an integer in {low}..{limit}, got {shown(value)}")
    return number


def check_word(name: str, value: Any, known: Iterable[str]) -> None:
    """Check that `value` is one of the `known` words."""
    names = tuple(known)
    if not isinstance(value, str) or value not in names:
        raise InvalidOptionError(refusal(name, value, names))


def check_flag(name: str, value: Any) -> None:
    """Check that `value` is True or False, and not something that merely has a truth value."""
    if not isinstance(value, bool):
        raise InvalidOptionError(f"{name} must be True or False, got {shown(value)}")
