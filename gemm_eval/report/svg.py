"""Drawings as SVG that can stand in an HTML page: ids of their own, nothing that acts or loads."""

from __future__ import annotations

import functools
import io
import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from gemm_eval.errors import InvalidOptionError
from gemm_eval.extras import needs_extra
from gemm_eval.report.asset import asset
from gemm_eval.words import shown

if TYPE_CHECKING:
    import matplotlib.figure

__all__ = ["inline_svg", "matplotlib_svg"]

_PX_PER_UNIT = {"": 1.0, "px": 1.0, "pt": 4 / 3, "in": 96.0}  # CSS defines them so
_DROPPED_ELEMENTS = ("style", "script", "metadata", "foreignObject")
_LINK = re.compile(r"""url\(["']?#""")
_OUTSIDE_LINK = re.compile(r"""url\((?!["']?#)""")
_STYLE_OF_ALL = re.compile(r"\s*\*\s*\{([^{}]*)\}\s*")  # the only rule that matplotlib writes
_PAINTS = ("fill", "stroke", "color", "stop-color", "flood-color")
_NEUTRALS = re.compile(r"--(text|muted|line|raised|back): (#[0-9a-f]{6})")
# what stands for them in figures that are not ours; the last two are matplotlib's grid and the frame of its legends
_ALSO = {
    "#000000": "text", "#000": "text", "black": "text", "#fff": "back", "white": "back", "#b0b0b0": "line",
    "#cccccc": "line",
}  # fmt: skip


def matplotlib_svg(figure: matplotlib.figure.Figure) -> str:
    """Return a matplotlib figure as SVG text, the same in every run."""
    with needs_extra("plotting", "plot"):
        import matplotlib as mpl

    text = io.StringIO()
    # letters as outlines: the reader may not have the font; the salt makes ids the same in every run
    with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": "gemm_eval"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def inline_svg(svg: str, prefix: str, label: str) -> str:
    """Return SVG that can stand in a page: ids that no other part has, nothing that the page's policy would block.

    Black, white and the neutral colours of plots become the page's own, which are others when it is dark.

    Args:
        svg: the drawing; styles are attributes.
        prefix: stands before all of its ids.
        label: what the drawing shows, for those who cannot see it.

    Raises:
        InvalidOptionError: it is no SVG, has no size, or a style sheet.
    """
    try:
        root = ElementTree.fromstring(svg)
    except ElementTree.ParseError as error:
        raise InvalidOptionError(f"a figure must be well-formed SVG: {error}") from None
    if _local(root.tag) != "svg":
        raise InvalidOptionError(f"a figure must be SVG, got <{_local(root.tag)}>")
    inherited: dict[str, str] = {}
    for element in root.iter():
        if _local(element.tag) == "style":
            inherited |= _style_of_all(element.text or "")
    root.attrib = inherited | root.attrib
    _clean(root, prefix)
    width, height = (_pixels(root.get(key, "")) for key in ("width", "height"))
    if not (width and height):
        raise InvalidOptionError(
            f"width and height of a figure must be lengths in px, pt or in, got {shown(root.get('width'))}, "
            f"{root.get('height')!r}"
        )
    root.attrib.setdefault("fill", "var(--text)")  # what has no colour is black
    root.attrib.setdefault("viewBox", f"0 0 {width:g} {height:g}")
    root.attrib |= {"width": f"{width:g}", "height": f"{height:g}", "role": "img", "aria-label": label or "Figure"}
    return ElementTree.tostring(root, encoding="unicode").strip()


def _clean(element: ElementTree.Element, prefix: str) -> None:
    """Take names out of their namespaces, styles into attributes, ids and links behind `prefix`; drop what acts."""
    element.tag = _local(element.tag)
    attributes = {_local(key): value for key, value in element.attrib.items()}
    attributes |= _declarations(attributes.pop("style", ""))
    if not attributes.get("href", "#").startswith(("#", "data:image/")):
        del attributes["href"]
    element.attrib = {
        key: _renamed(key, value, prefix)
        for key, value in attributes.items()
        if not key.startswith("on") and not _OUTSIDE_LINK.search(value)
    }
    for child in list(element):
        if _local(child.tag) in _DROPPED_ELEMENTS:
            element.remove(child)
        else:
            _clean(child, prefix)


def _renamed(key: str, value: str, prefix: str) -> str:
    if key == "id":
        return f"{prefix}-{value}"
    if key == "href" and value.startswith("#"):
        return f"#{prefix}-{value[1:]}"
    if key in _PAINTS and value.lower() in _of_page():
        return f"var(--{_of_page()[value.lower()]})"
    return _LINK.sub(rf"\g<0>{prefix}-", value)


@functools.cache
def _of_page() -> dict[str, str]:
    """Colours without a meaning of their own: which of the page's they become, those of its light look first of all."""
    light = asset("page.css").partition("}")[0]
    return _ALSO | {color: name for name, color in _NEUTRALS.findall(light)}


def _style_of_all(sheet: str) -> dict[str, str]:
    found = _STYLE_OF_ALL.fullmatch(sheet)
    if found is None:
        raise InvalidOptionError(f"styles of a figure must be attributes, not a style sheet: {sheet.strip()[:60]!r}")
    return _declarations(found[1])


def _declarations(style: str) -> dict[str, str]:
    pairs = (declaration.partition(":") for declaration in style.split(";"))
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def _local(name: object) -> str:
    return str(name).rpartition("}")[2]


def _pixels(length: str) -> float:
    found = re.fullmatch(r"([0-9.]+)([a-z]*)", length)
    return float(found[1]) * _PX_PER_UNIT.get(found[2], 0.0) if found else 0.0
