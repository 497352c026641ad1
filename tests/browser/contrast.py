"""The contrast of every word of a page with what is behind it, in figures too; WCAG 2.2 asks for 4.5."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from playwright.sync_api import Page


LEAST_CONTRAST = 4.5

# [text, color, [backgrounds from the nearest on, until one that hides what is behind]] of every element with words of
# its own, and of every text of a drawing, whose letters are outlines: what lies under the middle of its box
_LOOK = Path(__file__).with_name("contrast.js").read_text(encoding="utf-8")


class Word(NamedTuple):
    """Text, its color and what is behind it, and the ratio of their luminances."""

    text: str
    color: str
    behind: str
    ratio: float


def contrasts(page: Page) -> list[Word]:
    """Return every text that can be seen."""
    found = []
    for text, color, layers in page.evaluate(_LOOK):
        back = (255.0, 255.0, 255.0)
        for layer in reversed(layers):
            *channels, opacity = _channels(layer)
            back = tuple(opacity * new + (1.0 - opacity) * old for new, old in zip(channels, back, strict=True))  # type: ignore[assignment]
        behind = f"rgb({', '.join(f'{channel:.0f}' for channel in back)})"
        low, high = sorted((luminance(color), luminance(behind)))
        found.append(Word(text, color, behind, (high + 0.05) / (low + 0.05)))
    return found


def _channels(color: str) -> list[float]:
    parts = [float(part) for part in color.partition("(")[2].rstrip(")").split(",")]
    return parts if len(parts) == 4 else [*parts, 1.0]


def luminance(color: str) -> float:
    """Return the relative luminance of ``rgb(r, g, b)``, as WCAG 2.2 defines it."""
    channels = [channel / 255 for channel in _channels(color)[:3]]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
