"""Colours by meaning: a term of the time has one look in every plot, and series have colours that no term has.

Lightness lies in a narrow range, so that every colour has a contrast of at least 3:1 with a white page and with a
dark one; hatching tells terms of one resource apart. Hues are spread so that they differ with any colour vision.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "BOUND_MARKERS",
    "DASHES",
    "KIND_COLORS",
    "MARKERS",
    "ON_DARK_FILL",
    "ON_LIGHT_FILL",
    "OPERAND_COLORS",
    "PLOTLY_MARKERS",
    "RAMP",
    "SERIES",
    "TERM_LOOKS",
    "Look",
    "bound_color",
    "ink_on",
    "luminance",
    "term_look",
]


class Look(NamedTuple):
    """How a term is drawn; hatching is in the colour of the page."""

    color: str
    hatch: str


_FIXED, _START, _MATRIX, _WAIT, _VECTOR = "#66707C", "#8B95A1", "#0072B2", "#3F97B5", "#C1569B"
_DRAM, _EDGE, _ON_CHIP, _REDUCTION, _RULE, _QUANTIZE = "#D55E00", "#A8780F", "#00915F", "#BA6CF1", "#7759B5", "#C12C3E"

# one hue for one resource
TERM_LOOKS = {
    "launch_us": Look(_FIXED, ""), "sync_us": Look(_FIXED, "..."), "pack_us": Look(_FIXED, "xxx"),
    "prologue_us": Look(_START, ""), "correction_us": Look(_START, "xxx"), "other_us": Look(_START, "..."),
    "matrix_us": Look(_MATRIX, ""), "fill_drain_us": Look(_WAIT, "///"), "step_wait_us": Look(_WAIT, ""),
    "tile_overhead_us": Look(_WAIT, "xxx"), "vector_us": Look(_VECTOR, ""), "dequant_us": Look(_VECTOR, "///"),
    "dram_us": Look(_DRAM, ""), "dram_a_us": Look(_DRAM, "///"), "dram_b_us": Look(_DRAM, "..."),
    "dram_c_us": Look(_DRAM, "xxx"), "outside_us": Look(_EDGE, ""), "store_us": Look(_EDGE, "///"),
    "l2_us": Look(_ON_CHIP, ""), "noc_wait_us": Look(_ON_CHIP, "///"),
    "reduction_us": Look(_REDUCTION, ""), "reduction_dram_us": Look(_REDUCTION, "///"),
    "reduction_noc_us": Look(_REDUCTION, "..."), "reduction_add_us": Look(_REDUCTION, "xxx"),
    "power_us": Look(_RULE, ""), "choice_us": Look(_RULE, "///"),
    "quantize_us": Look(_QUANTIZE, ""), "cast_us": Look(_QUANTIZE, "///"),
}  # fmt: skip
"""The look of each term of `GEMMResult.breakdown`; ``other_us`` are small ones together."""

_TERM_OF_BOUND = {
    "compute": "matrix_us", "matrix": "matrix_us", "latency": "step_wait_us", "exp": "vector_us", "fill": "outside_us",
    "noc": "noc_wait_us", "shared": "noc_wait_us", "feed": "noc_wait_us",
}  # fmt: skip
BOUND_MARKERS = {
    "compute": "o", "matrix": "o", "dram": "s", "l2": "^", "noc": "^", "shared": "<", "feed": ">", "latency": "D",
    "vector": "P", "dequant": "P", "exp": "P", "launch": "v", "sync": "X", "pack": "X", "prologue": "h", "store": "p",
    "fill": "8", "reduction": "*", "quantize": "d",
}  # fmt: skip
"""The marker of each thing that can limit a GEMM."""

# of archs, cores, operands and the like: far from every term, and each with a dash and a marker of its own
SERIES = ("#685EE9", "#F35263", "#337440", "#AB7780", "#6D81D3", "#65984A", "#9F48CC", "#F65497")
DASHES: tuple[str | tuple[float, tuple[float, ...]], ...] = (
    "-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1.5, 1.5)), (0, (9, 2)), (0, (3, 1, 1, 1, 1, 1)), (0, (3, 3)),
    (0, (1, 2.5)),
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
PLOTLY_MARKERS = {
    "o": "circle", "s": "square", "^": "triangle-up", "D": "diamond", "v": "triangle-down", "P": "cross", "X": "x",
    "*": "star", "<": "triangle-left", ">": "triangle-right", "h": "hexagon", "p": "pentagon", "8": "octagon",
    "d": "diamond-tall",
}  # fmt: skip
KIND_COLORS = {
    "gemm": SERIES[0], "attention": SERIES[1], "moe": SERIES[2], "memory": SERIES[3], "collective": SERIES[5],
}  # fmt: skip
"""The colour of each kind of operation of a model; a kind is no term."""

OPERAND_COLORS = {"A": SERIES[0], "B": SERIES[1], "C": SERIES[2], "scales": SERIES[3], "dequantized B": SERIES[7]}
"""The colour of each operand where it lies in a memory."""

RAMP = "cividis"  # of equal steps in lightness, for colour-blind eyes and for print; both packages have it
ON_DARK_FILL, ON_LIGHT_FILL = "#fefefe", "#101010"  # text on colours stays as it is when the page turns dark
_EQUAL_CONTRAST = 0.179  # the luminance with which black and white have the same contrast
_SRGB_KNEE = 0.04045


def term_look(term: str) -> Look:
    """Return the look of a term, that of ``other_us`` for one that no model had when this was written."""
    return TERM_LOOKS.get(term, TERM_LOOKS["other_us"])


def bound_color(bound: str) -> str:
    """Return the colour of what limits a GEMM: that of its term."""
    return term_look(_TERM_OF_BOUND.get(bound, f"{bound}_us")).color


def ink_on(color: str) -> str:
    """Return the colour of text on a fill, as ``#rrggbb``: whichever has the greater contrast."""
    return ON_DARK_FILL if luminance(color) < _EQUAL_CONTRAST else ON_LIGHT_FILL


def luminance(color: str) -> float:
    """Return the relative luminance of ``#rrggbb``, as WCAG 2.2 defines it: 0 is black, 1 is white."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= _SRGB_KNEE else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
