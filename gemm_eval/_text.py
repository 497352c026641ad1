"""Text from files and arguments, made safe to show."""

from __future__ import annotations

import unicodedata

__all__ = ["visible"]

_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # control, format (direction, joiners), lone surrogates, separators of lines


def visible(text: str) -> str:
    r"""Return `text` with every character that acts instead of being seen written as an escape, such as ``\x1b``.

    A title could else move the cursor of a terminal, rename its window, or turn the direction of the line around it.
    Line feeds and tabs stay.
    """
    if text.isprintable():
        return text
    return "".join(map(_shown, text))


def _shown(char: str) -> str:
    if char in "\n\t" or unicodedata.category(char) not in _HIDDEN:
        return char
    return char.encode("unicode_escape").decode("ascii")
