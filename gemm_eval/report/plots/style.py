"""What all plots share: figures without global state, colours, and the packages that draw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from gemm_eval.extras import needs_extra
from gemm_eval.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

__all__ = [
    "BOUND_PLACES",
    "COLORS",
    "FILLS",
    "GRAY",
    "LINE",
    "MARKERS",
    "MUTED",
    "NEUTRALS",
    "PLOTLY_MARKERS",
    "RAMP",
    "SMALL",
    "SURFACE",
    "TEXT",
    "TITLE",
    "AnyFigure",
    "add_grid",
    "new_figure",
    "plotly_objects",
    "style_plotly",
    "use_plain_ticks",
    "use_whole_ticks",
]

AnyFigure: TypeAlias = Any
"""A matplotlib Figure or, asked for by ``interactive=True``, a plotly one; plotly has no types."""

# Okabe and Ito, "Color Universal Design" (2008): told apart with any kind of colour vision
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
PLOTLY_MARKERS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "star")
FILLS = tuple("#999999" if color == "#000000" else color for color in COLORS)  # black text is readable on all
GRAY = "#666666"

# Everything that is not a colour by meaning has one of these: a page can give them the colours of its own text, lines
# and background. They are the light ones of the pages.
TEXT, MUTED, LINE, SURFACE = "#1b1f24", "#59636e", "#d9dde2", "#ffffff"
"""Letters and strong lines; axes and weak lines; grids; what separates fills and lies under faded ones."""

NEUTRALS = {"text": TEXT, "muted": MUTED, "line": LINE, "surface": SURFACE}
"""The neutral colours of every plot, by name."""

RAMP = "cividis"  # of equal steps in lightness, for colour-blind eyes and for print; both packages have it
TITLE, SMALL = 9.5, 7.5  # points


# the same in every plot; of those that share a place one is of multi-core chips, the other of GPUs
BOUND_PLACES = {
    "compute": 0, "dram": 1, "l2": 2, "noc": 2, "latency": 3, "vector": 3, "launch": 4, "dequant": 5, "reduction": 6,
    "store": 7, "sync": 4, "pack": 5,
}  # fmt: skip
"""Which of `COLORS` and `MARKERS` stands for what limits a GEMM."""


def plotly_objects() -> Any:
    """Return the module of plotly's figures and traces.

    Raises:
        GemmEvalError: plotly is not installed.
    """
    with needs_extra("an interactive plot", "plot"):
        import plotly.graph_objects

    return plotly.graph_objects


def style_plotly(figure: Any, *, title: str, width: int = 860, height: int = 560) -> None:
    """Give a plotly figure the plain look of the static ones; sizes in pixels."""
    figure.update_layout(
        title={"text": title, "font": {"size": 15}},
        template="plotly_white",
        width=width,
        height=height,
        margin={"l": 70, "r": 30, "t": 70, "b": 60},
    )


def use_plain_ticks(axis: Axis) -> None:
    """Tick a logarithmic axis at 1, 2 and 5 of each decade, with plain numbers."""
    with needs_extra("plotting", "plot"):
        from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:,.6g}")


def use_whole_ticks(axes: Axes) -> None:
    """Tick both axes at integers only, in small print."""
    with needs_extra("plotting", "plot"):
        from matplotlib.ticker import MaxNLocator

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    axes.tick_params(labelsize=SMALL)


def add_grid(axes: Axes) -> None:
    """Draw a faint grid behind everything."""
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.set_axisbelow(True)
