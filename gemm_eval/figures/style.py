"""The look of all figures: colours by meaning, fonts, lines, legends, of matplotlib and of plotly."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache, wraps
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeAlias, TypeVar

from gemm_eval.extras import needs_extra
from gemm_eval.storage import cache_dir, make_folder

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axes._secondary_axes import SecondaryAxis
    from matplotlib.figure import Figure


class Look(NamedTuple):
    """The look of a term; hatching is in the colour of the page."""

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


def new_figure(width: float, height: float) -> Figure:
    """Return an empty Figure without a background, sizes in inches, that pyplot does not know of.

    Raises:
        GemmEvalError: matplotlib is not installed.
    """
    import_matplotlib()
    with needs_extra("plotting", "plot"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_facecolor("none")
    return figure


def import_matplotlib() -> ModuleType:
    """Return the package matplotlib.

    Raises:
        GemmEvalError: it is not installed.
    """
    if "matplotlib" not in sys.modules and "MPLCONFIGDIR" not in os.environ:
        _import_without_traces()
    with needs_extra("plotting", "plot"):
        import matplotlib as mpl

    return mpl


def _import_without_traces() -> None:
    given = {"MPLCONFIGDIR": str(_folder())}
    own = _own_settings()
    if own is not None and "MATPLOTLIBRC" not in os.environ:
        given["MATPLOTLIBRC"] = str(own)
    os.environ |= given
    try:
        with needs_extra("plotting", "plot"):
            import matplotlib as mpl
            import matplotlib.font_manager  # reads or writes the list of fonts

        mpl.get_configdir(), mpl.get_cachedir()  # remembered from here on
    finally:
        for name in given:
            del os.environ[name]


def _own_settings() -> Path | None:
    """Return the user's matplotlibrc where matplotlib looks for it, if there is one."""
    import platformdirs

    places = (platformdirs.user_config_path("matplotlib", appauthor=False), Path("~/.matplotlib").expanduser())
    return next((place / "matplotlibrc" for place in places if (place / "matplotlibrc").is_file()), None)


def _folder() -> Path:
    root = cache_dir()
    if root is not None:
        try:
            make_folder(root / "matplotlib")
        except OSError:  # a read-only folder only means no cache
            pass
        else:
            return root / "matplotlib"
    return Path(_temporary_folder().name)


@cache
def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that goes with this process."""
    return tempfile.TemporaryDirectory(prefix="gemm_eval-matplotlib-")


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
