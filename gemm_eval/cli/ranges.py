"""Several whole numbers in one word: a list, a range that doubles, a range in steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from gemm_eval.errors import InvalidOptionError
from gemm_eval.words import shown

__all__ = ["MAX_VALUES", "SEVERAL", "check_count", "is_several", "parse_all_values", "parse_values"]

SEVERAL = "Several: 1,4,16 or a range, 1..256 (doubled) or 1..256:32 (in steps)."
"""What the help of every option says that takes several values."""

MAX_VALUES = 10_000
"""Most values of one option, and most combinations of several options."""

_DOTS, _STEP = "..", ":"
_WHOLE = "whole numbers >= 1 such as 16, 1,4,16, 1..256 or 1..256:32"


def is_several(text: str) -> bool:
    """Whether a word spells a list or a range, and not one number."""
    return "," in text or _DOTS in text


def parse_values(
    what: str, text: str, *, read: Callable[[str], int | None] | None = None, form: str = _WHOLE
) -> list[int]:
    """Read the values that a word spells, each once, in the order given.

    >>> parse_values("--batch", "1,3,8..20,100..200:50")
    [1, 3, 8, 16, 20, 100, 150, 200]

    Args:
        what: takes them, for errors, such as ``--batch``.
        text: numbers and ranges with commas between. ``A..B`` is doubled from A on, and ends with B whether that is a
            doubling or not; ``A..B:S`` goes on from A in steps of S, up to B.
        read: returns the number that a word spells, None if it spells none; default: whole numbers.
        form: what is right, for errors.

    Raises:
        InvalidOptionError: a part is neither number nor range, a range falls, or there are too many values.
    """
    found: dict[int, None] = {}
    for part in text.split(","):
        values = _values(part.strip(), read or _whole)
        if values is None:
            where = "" if part == text else f" in {shown(text)}"
            raise InvalidOptionError(f"{what} must be {form}, got {shown(part)}{where}")
        first, last, count, make = values
        if last < first:
            raise InvalidOptionError(f"{what}: a range goes up, got {shown(part)}")
        if len(found) + count > MAX_VALUES:
            raise InvalidOptionError(f"{what} must be at most {MAX_VALUES:,} values, got more in {shown(text)}")
        found |= dict.fromkeys(make())
    return list(found)


def parse_all_values(what: str, texts: Iterable[str]) -> list[int]:
    """Read the values of an option that may be repeated, each once; see `parse_values`."""
    return list(dict.fromkeys(value for text in texts for value in parse_values(what, text)))


def check_count(num: int, what: str) -> None:
    """Check that there are not too many combinations of what was given.

    Raises:
        InvalidOptionError: there are; the message says of what.
    """
    if num > MAX_VALUES:
        raise InvalidOptionError(f"at most {MAX_VALUES:,} combinations of {what} at once, got {num:,}")


_Values = tuple[int, int, int, Callable[[], Iterable[int]]]
"""The ends of a range, how many values it has at most, and what makes them."""


def _values(part: str, read: Callable[[str], int | None]) -> _Values | None:
    low, dots, high = part.partition(_DOTS)
    high, colon, step = high.partition(_STEP)
    first = read(low)
    last = read(high) if dots else first
    by = read(step) if colon else 1
    if first is None or last is None or by is None:
        return None
    if colon:
        return first, last, (last - first) // by + 1, lambda: range(first, last + 1, by)
    return first, last, (last // first).bit_length() + 1, lambda: _doubled(first, last)


def _doubled(first: int, last: int) -> Iterator[int]:
    while first < last:
        yield first
        first *= 2
    yield last


def _whole(word: str) -> int | None:
    try:
        number = int(word)
    except ValueError:
        return None
    return number if number >= 1 else None
