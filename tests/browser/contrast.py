"""The contrast of every word of a page with what is behind it, in figures too; WCAG 2.2 asks for 4.5."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from playwright.sync_api import Page


LEAST_CONTRAST = 4.5

# [text, color, [backgrounds from the nearest on, until one that hides what is behind]] of every element with words of
# its own, and of every text of a drawing, whose letters are outlines: what lies under the middle of its box
_LOOK = """() => {
  const painted = (color) => color !== "none" && !/, 0\\)$/.test(color);
  const hidden = (element) => element.closest("[hidden], noscript, script") || !element.getClientRects().length;
  const behind = (element) => {
    const found = [];
    for (let one = element; one; one = one.parentElement) {
      const color = getComputedStyle(one).backgroundColor;
      if (painted(color)) found.push(color);
      if (color.startsWith("rgb(")) return found;
    }
    return [...found, "rgb(255, 255, 255)"];
  };
  const words = [...document.body.querySelectorAll("*")]
    .filter((element) => !element.closest(".drawing svg, title") && !hidden(element))
    .filter((element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
    .map((element) => {
      const style = getComputedStyle(element);
      return [element.textContent, element.namespaceURI.endsWith("svg") ? style.fill : style.color, behind(element)];
    });
  const fields = [...document.querySelectorAll("input")].filter((element) => !hidden(element)).map((element) =>
    [element.placeholder, getComputedStyle(element, "::placeholder").color, behind(element)]);
  const outlines = [...document.querySelectorAll('.drawing g[id*="-text_"]')].map((text) => {
    text.scrollIntoView({ block: "center", inline: "center" });
    const letter = text.querySelector("use, path");
    const box = text.getBoundingClientRect();
    const under = document.elementsFromPoint(box.x + box.width / 2, box.y + box.height / 2);
    const found = [];
    for (const one of under.filter((one) => !text.contains(one) && one.tagName !== "svg")) {
      const style = getComputedStyle(one);
      const isShape = one.namespaceURI.endsWith("svg");
      if (isShape && one.tagName !== "image" && painted(style.fill)) {
        const opacity = Number(style.fillOpacity) * Number(style.opacity);
        found.push(style.fill.replace("rgb(", "rgba(").replace(")", `, ${opacity})`));
        if (opacity === 1) break;
      }
      if (!isShape) {
        found.push(...behind(one));
        break;
      }
    }
    return [text.id, getComputedStyle(letter ?? text).fill, found];
  });
  return [...words, ...fields, ...outlines];
}"""


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
