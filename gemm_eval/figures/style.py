"""The one look of all plots, whose parts are drawn here, and plotly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from itertools import pairwise
from textwrap import fill
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

from gemm_eval.extras import needs_extra
from gemm_eval.figures.figure import import_matplotlib

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axes._secondary_axes import SecondaryAxis
    from matplotlib.figure import Figure

__all__ = [
    "LINE",
    "MUTED",
    "NEUTRALS",
    "SMALL",
    "SURFACE",
    "TEXT",
    "TITLE",
    "AnyFigure",
    "add_grid",
    "add_legend",
    "add_title",
    "plotly_objects",
    "style_axes",
    "style_plotly",
    "styled",
]

AnyFigure: TypeAlias = Any
"""A matplotlib Figure or, asked for by ``interactive=True``, a plotly one; plotly has no types."""

# Everything that is not a colour by meaning has one of these: a page can give them the colours of its own text, lines
# and background. They are the light ones of the pages.
TEXT, MUTED, LINE, SURFACE = "#1b1f24", "#59636e", "#d9dde2", "#ffffff"
"""Letters and strong lines; axes and weak lines; grids; what separates fills and lies under faded ones."""

NEUTRALS = {"text": TEXT, "muted": MUTED, "line": LINE, "surface": SURFACE}
"""The neutral colours of every plot, by name."""

TITLE, LABEL, SMALL = 9.5, 9.0, 7.5  # points
_FONTS = ["DejaVu Sans", "sans-serif"]  # the first comes with matplotlib; the user's own have the letters it lacks
_RC: Any = {
    "font.family": _FONTS, "font.size": LABEL, "text.usetex": False, "mathtext.fontset": "dejavusans",
    "text.color": TEXT, "axes.edgecolor": MUTED, "axes.labelcolor": TEXT, "axes.titlecolor": TEXT,
    "axes.facecolor": "none", "axes.linewidth": 0.8, "axes.grid": False, "axes.labelsize": LABEL,
    "axes.titlesize": TITLE, "axes.titleweight": "normal", "axes.titlelocation": "center", "axes.xmargin": 0.05,
    "axes.ymargin": 0.05, "axes.formatter.use_mathtext": False, "figure.titlesize": TITLE, "legend.frameon": False,
    "legend.fontsize": SMALL, "legend.labelcolor": TEXT, "lines.linewidth": 1.4, "lines.markersize": 4.0,
    "hatch.linewidth": 0.7, "errorbar.capsize": 0.0, "patch.force_edgecolor": False,
}  # fmt: skip
_LEGEND_INCHES_PER_LETTER, _LEGEND_INCHES_PER_HANDLE = 0.062, 0.52
_TITLE_INCHES_PER_LETTER = 0.073

P = ParamSpec("P")
R = TypeVar("R")


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Make a function draw in the style of all plots, whatever the session's own is; that stays as it was."""

    @wraps(draw)
    def inner(*args: P.args, **kwargs: P.kwargs) -> R:
        with import_matplotlib().rc_context(_RC):
            return draw(*args, **kwargs)

    return inner


def style_axes(axes: Axes | SecondaryAxis, *, has_frame: bool = False) -> None:
    """Give axes their lines and ticks; without a frame only the left and the lower spine are there."""
    for side, spine in axes.spines.items():
        spine.set(color=MUTED, linewidth=0.8, visible=has_frame or side in ("left", "bottom"))
    # given here, colours hold for ticks too that are made when the figure is drawn
    axes.tick_params(which="both", color=MUTED, labelcolor=TEXT, labelsize=SMALL, width=0.8, length=3.0)
    axes.tick_params(which="minor", length=1.5, width=0.5)


def add_grid(axes: Axes, *, axis: str = "both") -> None:
    """Style axes and draw a faint grid behind everything."""
    style_axes(axes)
    axes.grid(visible=True, axis=axis, color=LINE, linewidth=0.6)  # type: ignore[arg-type]  # one of three words
    axes.set_axisbelow(True)


def add_title(figure: Figure, text: str) -> None:
    """Put a title above the plots, with more lines where one is longer than the figure is wide."""
    letters = int(figure.get_figwidth() / _TITLE_INCHES_PER_LETTER)
    figure.suptitle("\n".join(fill(line, letters, break_on_hyphens=False) for line in text.split("\n")))


def add_legend(figure: Figure, handles: Sequence[Artist]) -> None:
    """Put a legend below the plots, in as many columns as there is room for."""
    widths = [
        len(str(handle.get_label())) * _LEGEND_INCHES_PER_LETTER + _LEGEND_INCHES_PER_HANDLE for handle in handles
    ]
    num_columns = len(widths)
    while num_columns > 1 and _legend_inches(widths, num_columns) > figure.get_figwidth():
        num_columns -= 1
    figure.legend(handles=list(handles), loc="outside lower center", ncols=num_columns)


def _legend_inches(widths: list[float], num_columns: int) -> float:
    """Width of a legend, whose first columns have one entry more where they do not come out even."""
    rows, longer = divmod(len(widths), num_columns)
    starts = [column * rows + min(column, longer) for column in range(num_columns + 1)]
    return sum(max(widths[start:end]) for start, end in pairwise(starts))


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
        font={"color": TEXT},
        width=width,
        height=height,
        margin={"l": 70, "r": 30, "t": 70, "b": 60},
    )
    figure.update_xaxes(linecolor=MUTED, gridcolor=LINE)
    figure.update_yaxes(linecolor=MUTED, gridcolor=LINE)
