"""Units and ticks of axes, and the labels that say them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.extras import needs_extra
from gemm_eval.units import time_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis


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
        """A value in the unit of the axis."""
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
            axis.set_major_formatter(FuncFormatter(lambda value, _: _plain_time(value)))
            axis.set_label_text(scale.label.partition(" (")[0])
            return
    axis.set_major_formatter(FuncFormatter(lambda value, _: _tick_text(value / scale.factor)))


def spans_decade(values: npt.NDArray[Any]) -> bool:
    """Return whether all values are positive and the largest is over ten times the smallest: a case for a log axis."""
    return bool(len(values) and values.min() > 0 and values.max() > _DECADE * values.min())


def _tick_text(value: float) -> str:
    rounded = float(f"{value:.10g}")
    return f"{rounded:,.10g}" if abs(rounded) < 1e12 else f"{rounded:.3g}"


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
    """Make the x axis, of M from `low` to `high`, logarithmic, and label it."""
    axes.set_xscale("log", base=2)
    tick_octaves(axes.xaxis, low, high)
    axes.set_xlabel(ROWS_LABEL)


def tick_octaves(axis: Axis, low: float, high: float) -> None:
    """Tick a log axis of whole numbers at powers of two, of four or more where they are many, or at its ends."""
    with needs_extra("plotting", "plot"):
        from matplotlib.ticker import NullLocator

    first, last = math.ceil(math.log2(low) - 1e-9), math.floor(math.log2(high) + 1e-9)
    stride = max(1, -(-(last - first) // 8))
    ticks = [2**power for power in range(first, last + 1, stride)] or sorted({low, high})
    axis.set_ticks(ticks, labels=[_whole_text(tick) for tick in ticks])
    axis.set_minor_locator(NullLocator())


def tick_whole(axis: Axis) -> None:
    """Tick an axis at a few integers only."""
    with needs_extra("plotting", "plot"):
        from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1, steps=[1, 2, 4, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _whole_text(value)))


def _whole_text(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= _GROUPED_FROM else f"{value:.0f}"
