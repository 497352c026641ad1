"""The one look of all figures, whichever room draws them: style, colours by meaning, units and ticks of axes.

matplotlib and plotly (``pip install 'gemm_eval[plot]'``) are imported when a figure is asked for.
"""

from gemm_eval.figures.scales import (
    ROWS_LABEL,
    Scale,
    axis_label,
    bytes_scale,
    bytes_text,
    label_of,
    scale_axis,
    scale_of,
    set_rows_axis,
    spans_decade,
    tick_texts,
    tick_whole,
)
from gemm_eval.figures.style import (
    BOUND_MARKERS,
    DASHES,
    KIND_COLORS,
    LINE,
    MARKERS,
    MUTED,
    OPERAND_COLORS,
    PLOTLY_MARKERS,
    RAMP,
    SERIES,
    SMALL,
    SURFACE,
    TEXT,
    AnyFigure,
    add_grid,
    add_legend,
    add_title,
    bound_color,
    ink_on,
    new_figure,
    plotly_objects,
    style_axes,
    style_plotly,
    styled,
    term_look,
)

__all__ = [
    "BOUND_MARKERS", "DASHES", "KIND_COLORS", "LINE", "MARKERS", "MUTED", "OPERAND_COLORS", "PLOTLY_MARKERS", "RAMP",
    "ROWS_LABEL", "SERIES", "SMALL", "SURFACE", "TEXT", "AnyFigure", "Scale", "add_grid", "add_legend", "add_title",
    "axis_label", "bound_color", "bytes_scale", "bytes_text", "ink_on", "label_of", "new_figure", "plotly_objects",
    "scale_axis", "scale_of", "set_rows_axis", "spans_decade", "style_axes", "style_plotly", "styled", "term_look",
    "tick_texts", "tick_whole",
]  # fmt: skip
