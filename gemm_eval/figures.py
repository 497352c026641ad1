"""The one look of all figures: style, colours by meaning, legends, units and ticks of axes.

matplotlib (``pip install 'gemm_eval[plot]'``) is imported when a figure is asked for.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, wraps
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from gemm_eval.storage import cache_dir, make_folder
from gemm_eval.units import time_text
from gemm_eval.words import needs_extra

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axes._secondary_axes import SecondaryAxis
    from matplotlib.axis import Axis
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
KIND_COLORS = {
    "gemm": SERIES[0], "attention": SERIES[1], "moe": SERIES[2], "memory": SERIES[3], "collective": SERIES[5],
}  # fmt: skip
"""The colour of each kind of operation of a model; a kind is no term."""

OPERAND_COLORS = {"A": SERIES[0], "B": SERIES[1], "C": SERIES[2], "scales": SERIES[3], "dequantized B": SERIES[7]}
"""The colour of each operand where it lies in a memory."""

RAMP = "cividis"  # of equal steps in lightness, for colour-blind eyes and for print; both packages have it
ON_DARK_FILL, ON_LIGHT_FILL = "#fefefe", "#101010"  # text on colours stays as it is when the page turns dark
_DPI = 150
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
    """Return an empty Figure without a background, sizes in inches, that pyplot does not know of."""
    import_matplotlib()
    with needs_extra("plotting", "plot"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_facecolor("none")
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG on white; the folder is made if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI, facecolor=SURFACE)


def import_matplotlib() -> ModuleType:
    """Return the package matplotlib, whose caches lie in the cache folder of this package, or go with the process."""
    given: dict[str, str] = {}
    if "matplotlib" not in sys.modules and "MPLCONFIGDIR" not in os.environ:
        import platformdirs

        given["MPLCONFIGDIR"] = str(_folder())
        folders = (platformdirs.user_config_path("matplotlib", appauthor=False), Path("~/.matplotlib").expanduser())
        own = [folder / "matplotlibrc" for folder in folders if (folder / "matplotlibrc").is_file()]
        if own and "MATPLOTLIBRC" not in os.environ:  # the user's own settings stay in force
            given["MATPLOTLIBRC"] = str(own[0])
    os.environ |= given
    try:
        with needs_extra("plotting", "plot"):
            import matplotlib as mpl

            if given:
                import matplotlib.font_manager  # reads or writes the list of fonts

                mpl.get_configdir(), mpl.get_cachedir()  # remembered from here on
    finally:
        for name in given:
            del os.environ[name]
    return mpl


def _folder() -> Path:
    root = cache_dir()
    with suppress(OSError):  # a read-only folder only means no cache
        if root is not None:
            make_folder(root / "matplotlib")
            return root / "matplotlib"
    return Path(_temporary_folder().name)


@cache
def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that goes with this process."""
    return tempfile.TemporaryDirectory(prefix="gemm_eval-matplotlib-")


# Everything that is not a colour by meaning has one of these: a page can give them the colours of its own text, lines
# and background. They are the light ones of the pages.
TEXT, MUTED, LINE, SURFACE = "#1b1f24", "#59636e", "#d9dde2", "#ffffff"
"""Letters and strong lines; axes and weak lines; grids; what separates fills and lies under faded ones."""

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


_UNITS = {
    "us": "us", "ms": "ms", "s": "s", "cycles": "cycles", "bytes": "bytes", "kib": "KiB", "mib": "MiB", "bits": "bits",
    "elems": "elements", "flop": "FLOP", "tflop": "TFLOP", "gb": "GB", "hz": "Hz", "ghz": "GHz", "pj": "pJ",
    "mj": "mJ", "j": "J", "w": "W", "mm2": "mm$^2$", "frac": "fraction", "percent": "%", "usd": "USD",
    "tokens": "tokens", "token": "token", "mac": "MAC", "byte": "byte", "cycle": "cycle",
}  # fmt: skip
_SPELLED = {
    "dram": "DRAM", "sram": "SRAM", "noc": "NoC", "l2": "L2", "sm": "SM", "sms": "SMs", "cta": "CTA", "ctas": "CTAs",
    "smem": "shared memory", "tdp": "TDP", "mac": "MAC", "ttft": "TTFT", "tpot": "TPOT", "num": "number of",
}  # fmt: skip
_SHOWN_WHOLE, _SHOWN_WITH_EXPONENT = 1e3, 1e9


def axis_label(name: str) -> str:
    """Return the axis label that a column's name says: ``"latency_us"`` becomes ``"latency (us)"``.

    The unit is the name's end, with ``per`` as a fraction: ``"dram_gb_per_s"`` is ``"DRAM (GB/s)"``. A rate that names
    no quantity is a throughput: ``"tokens_per_s"`` is ``"throughput (tokens/s)"``. Names without a unit stay as they
    are, but for underscores.
    """
    words = name.split("_")
    unit = ""
    if "per" in words[1:-1]:
        place = words.index("per", 1)
        unit = "/".join(
            [_UNITS.get(words[place - 1], words[place - 1]), " ".join(_UNITS.get(w, w) for w in words[place + 1 :])]
        )
        words = words[: place - 1] or ["throughput" if words[-1] == "s" else "ratio"]
    elif len(words) > 1 and words[-1] in _UNITS:
        unit = _UNITS[words.pop()]
    quantity = " ".join(_SPELLED.get(word, word) for word in words)
    return f"{quantity} ({unit})" if unit else quantity


def label_of(value: Any) -> str:
    """Return a value as a label: integers with separators from 10,000 on, other numbers in four digits."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return f"{value:,}" if abs(int(value)) >= 10_000 else str(value)
    if isinstance(value, float | np.floating):
        return f"{value:,.0f}" if _SHOWN_WHOLE <= abs(float(value)) < _SHOWN_WITH_EXPONENT else f"{value:.4g}"
    return str(value)


ROWS_LABEL = "M (rows of A and C)"

_KIB = 1024.0
_LADDERS: tuple[dict[str, float], ...] = (
    {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6},
    {"bytes": 1.0, "KiB": _KIB, "MiB": _KIB**2, "GiB": _KIB**3, "TiB": _KIB**4},
    {"pJ": 1.0, "nJ": 1e3, "uJ": 1e6, "mJ": 1e9, "J": 1e12, "kJ": 1e15},
    {"GB/s": 1.0, "TB/s": 1e3, "PB/s": 1e6},
    {"GFLOP/s": 1e-3, "TFLOP/s": 1.0, "PFLOP/s": 1e3, "EFLOP/s": 1e6},
    {"FLOP": 1.0, "MFLOP": 1e6, "GFLOP": 1e9, "TFLOP": 1e12, "PFLOP": 1e15},
    {"mW": 1e-3, "W": 1.0, "kW": 1e3},
)
_BINARY_LIMIT = 10 * _KIB  # 4,096 KiB reads as well as 4 MiB
_SWITCH = 999.5  # rounded to three digits this is 1,000
_SMALLEST = 0.1  # of a unit; less goes down to the next
_LEAST_IN_UNIT = 1e-2
_FEW_DECADES = 1.3
_SOME_DECADES = 2.6
_GROUPED_FROM = 10_000
_DECADE = 10.0


class Scale(NamedTuple):
    """The label of an axis, and the factor that its values are divided by."""

    label: str
    factor: float = 1.0
    unit: str = ""

    def text(self, value: float) -> str:
        """Return a value in the unit of the axis."""
        return number_text(value / self.factor)


def number_text(value: float) -> str:
    """Return a number in three digits, whole ones from 1,000 on, without an exponent up to a million million."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= _SWITCH:
        return f"{value:,.0f}" if abs(value) < 1e12 else f"{value:.3g}"
    return f"{value:.3g}"


def scale_of(name: str, values: npt.ArrayLike, *, binary_limit: float = _BINARY_LIMIT) -> Scale:
    """Return how to show a column: in the unit in which its largest value has one to three digits before the point."""
    label = axis_label(name)
    quantity, bracket, rest = label.partition(" (")
    unit = rest.removesuffix(")")
    ladder = next((ladder for ladder in _LADDERS if unit in ladder), None)
    known = np.abs(np.asarray(values, float))
    known = known[np.isfinite(known)]
    if not bracket or ladder is None or not known.size or known.max() == 0:
        return Scale(label)
    largest = float(known.max()) * ladder[unit]
    step = _fitting(ladder, largest, unit, binary_limit)
    return Scale(f"{quantity} ({step})", ladder[step] / ladder[unit], step)


def _fitting(ladder: dict[str, float], largest: float, given: str, binary_limit: float = _BINARY_LIMIT) -> str:
    is_binary = "KiB" in ladder
    limit = binary_limit if is_binary else _SWITCH
    names = list(ladder)
    place = names.index(given)
    while place + 1 < len(names) and largest / ladder[names[place]] >= limit:
        place += 1
    while place > 0 and not is_binary and largest / ladder[names[place]] < _SMALLEST:
        place -= 1
    return names[place]


def tick_texts(name: str, items: Sequence[object]) -> tuple[str, list[str]]:
    """Return the label of an axis of single values and the text of each, numbers in a unit that suits them all."""
    label = axis_label(name)
    if not all(isinstance(item, int | float) and not isinstance(item, bool) for item in items):
        return label, [label_of(item) for item in items]
    values = np.array(items, float)
    scale = scale_of(name, values)
    if scale.factor == 1.0:
        return label, [label_of(item) for item in items]
    if values.min() >= _LEAST_IN_UNIT * scale.factor:
        return scale.label, [scale.text(value) for value in values]
    scales = [scale_of(name, value, binary_limit=_KIB) for value in values]
    return label.partition(" (")[0], [
        f"{one.text(value)} {one.unit}" for one, value in zip(scales, values, strict=True)
    ]


def bytes_scale(title: str, largest_bytes: float) -> Scale:
    """Return how to show a quantity in bytes, KiB at least."""
    unit = _fitting(_LADDERS[1], largest_bytes, "KiB")
    return Scale(f"{title} ({unit})", _LADDERS[1][unit], unit)


def bytes_text(size_bytes: float) -> str:
    """Return bytes for people, KiB at least: ``0.5 KiB``, ``384 KiB``, ``15 MiB``."""
    scale = bytes_scale("", size_bytes)
    return f"{scale.text(size_bytes)} {scale.unit}"


def scale_axis(
    axis: Axis, name: str, values: npt.NDArray[np.float64], *, is_log: bool, scale: Scale | None = None
) -> None:
    """Label an axis whose data are in the unit of the column's name; limits must be final for a log one.

    Times on a log axis that spans units have theirs at each tick, unless `scale` says which one all have.
    """
    with needs_extra("plotting", "plot"):
        from matplotlib.ticker import FuncFormatter

    known = values[np.isfinite(values)]
    is_given = scale is not None
    scale = scale or scale_of(name, np.exp(np.log(known).mean()) if is_log else known)
    axis.set_label_text(scale.label)
    if is_log:
        _tick_log(axis)
        spans_units = known.min() < scale.factor or known.max() >= 1e3 * scale.factor
        if scale.unit in _LADDERS[0] and name.endswith("_us") and spans_units and not is_given:
            axis.set_major_formatter(FuncFormatter(lambda value, _: _plain_time(value)))  # ticks are round
            axis.set_label_text(scale.label.partition(" (")[0])
            return
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{float(f'{value / scale.factor:.10g}'):,.10g}"))


def spans_decade(values: npt.NDArray[Any]) -> bool:
    """Return whether all values are positive and the largest is over ten times the smallest: a case for a log axis."""
    return bool(len(values) and values.min() > 0 and values.max() > _DECADE * values.min())


def _plain_time(us: float) -> str:
    """``10 us`` for 10.0 us: ticks are round."""
    number, unit = time_text(us).split(" ")
    return f"{float(number.replace(',', '')):g} {unit}"


def _tick_log(axis: Axis) -> None:
    """Ticks of a log axis at 1, 2 and 5 of each decade, at 1 and 3, or at 1 alone, as there is room."""
    with needs_extra("plotting", "plot"):
        from matplotlib.ticker import AutoLocator, LogLocator, NullFormatter, NullLocator

    low, high = sorted(axis.get_view_interval())
    decades = math.log10(high / low)
    if not spans_decade(np.array([low, high])):
        axis.set_major_locator(AutoLocator())
        axis.set_minor_locator(NullLocator())
        return
    subs = (1.0, 2.0, 5.0) if decades <= _FEW_DECADES else (1.0, 3.0) if decades <= _SOME_DECADES else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=12))
    axis.set_minor_locator(LogLocator(subs=tuple(map(float, range(1, 10))), numticks=100))
    axis.set_minor_formatter(NullFormatter())


def set_rows_axis(axes: Axes, low: float, high: float) -> None:
    """Make the x axis, of M from `low` to `high`, logarithmic: ticks at powers of two or four, or at its ends."""
    with needs_extra("plotting", "plot"):
        from matplotlib.ticker import NullLocator

    axes.set_xscale("log", base=2)
    axes.set_xlabel(ROWS_LABEL)
    first, last = math.ceil(math.log2(low) - 1e-9), math.floor(math.log2(high) + 1e-9)
    stride = max(1, -(-(last - first) // 8))
    ticks = [2**power for power in range(first, last + 1, stride)] or sorted({low, high})
    axes.xaxis.set_ticks(ticks, labels=[_whole_text(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())


def tick_whole(axis: Axis) -> None:
    """Tick an axis at a few integers only."""
    with needs_extra("plotting", "plot"):
        from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1, steps=[1, 2, 4, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _whole_text(value)))


def _whole_text(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= _GROUPED_FROM else f"{value:.0f}"
