"""Parts of a report page as plain data, text, facts, tables, drawings and charts, and values in units of their size."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from gemm_eval.errors import InvalidOptionError
from gemm_eval.units import scaled_text
from gemm_eval.words import shown

if TYPE_CHECKING:
    import matplotlib.figure

_BASE_UNITS = {"time": "us", "bytes": "B", "capacity": "B", "energy": "pJ"}  # of the columns that are scaled
_SUFFIX_UNITS = {
    "_us": "us", "_bytes": "B", "_pj": "pJ", "_gb_per_s": "GB/s", "_tflop_per_s": "TFLOP/s", "_mm2": "mm2",
    "_ghz": "GHz", "_hz": "Hz", "_frac": "frac", "_w": "W",
}  # fmt: skip
_COMPOUND = re.compile(r"_per_(mm2|w)$|_pj_us$")


def unit_of_name(name: str) -> tuple[str, str]:
    """Return the unit that a name such as ``latency_us`` ends with, and the end itself; empty texts if it has none."""
    if _COMPOUND.search(name):
        return "", ""
    return next(((unit, end) for end, unit in _SUFFIX_UNITS.items() if name.endswith(end)), ("", ""))


Cell: TypeAlias = str | float | None
"""A cell of a table; numpy's numbers too. None and nan are missing values."""

_MIN_FIXED, _MAX_FIXED = 1e-4, 1e15  # outside, numbers are written with an exponent


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, or what the tooltip of a chart says about a point.

    Attributes:
        name: header; the unit at its end is left away where the cells have their own.
        unit: shown beside the name; empty for none.
        kind: numbers are aligned to the right and sorted by value. Those of ``"time"`` (in us), ``"bytes"`` (that
            move), ``"capacity"`` (bytes of a memory) and ``"energy"`` (in pJ) are written with units of their own size.
        digits: significant digits of numbers that are not whole; digits before the point are never rounded away.
    """

    name: str
    unit: str = ""
    kind: Literal["number", "text", "time", "bytes", "capacity", "energy"] = "number"
    digits: int = 4

    @property
    def is_scaled(self) -> bool:
        """True if every cell has a unit of its own."""
        return self.kind in _BASE_UNITS

    @property
    def heading(self) -> str:
        """The name as the page shows it."""
        return (self.is_scaled and self.name.removesuffix(unit_of_name(self.name)[1])) or self.name

    @property
    def base_unit(self) -> str:
        """The unit of its numbers, as `unit` or the end of the name says; empty if neither does."""
        of_name = "" if self.kind == "text" else unit_of_name(self.name)[0]
        return _BASE_UNITS.get(self.kind) or self.unit or of_name

    def format(self, value: Cell) -> str:
        """Return the text of a cell, empty for a missing value; InvalidOptionError: words in a column of numbers."""
        if value is None or value != value:  # noqa: PLR0124  nan is the one value that differs from itself
            return ""
        if self.kind == "text":
            return str(value)
        if not isinstance(value, Real):
            raise InvalidOptionError(f"column {self.name!r} holds numbers, got {shown(value)}")
        number = float(value)
        if self.is_scaled:
            return scaled_text(self.kind, number)
        if isinstance(value, Integral):
            return f"{int(value):,}"
        if math.isinf(number):
            return "∞" if number > 0 else "-∞"
        rounded = f"{number:.{self.digits - 1}e}"  # before its exponent is read: 9.9996 counts as 10
        if number and not _MIN_FIXED <= abs(number) < _MAX_FIXED:
            return rounded
        return f"{number:,.{max(0, self.digits - 1 - int(rounded.partition('e')[2]))}f}"


text_column = partial(Column, kind="text")
time_column = partial(Column, kind="time")
percent_column = partial(Column, unit="%", digits=3)


@dataclass(frozen=True, slots=True)
class Text:
    """Paragraphs, an empty line between them, under a heading `title`; `is_code` keeps the spaces of commands."""

    text: str
    title: str = ""
    is_code: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """A list of names and values."""

    items: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Table:
    """A table that sorts by the click of a header; the first column names the row.

    Attributes:
        columns: what the rows hold.
        rows: one cell for each column.
        caption: says what the table shows.
        note: small print below.
        max_rows: more are left out, and the page says so.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    note: str = ""
    max_rows: int = 2000

    def __post_init__(self) -> None:
        _check_rows(self.columns, self.rows)


def table_of(
    items: Iterable[Any], columns: Sequence[tuple[Column, Callable[[Any], Cell]]], caption: str, note: str = ""
) -> Table:
    """Return a table with a row for each item, given the columns and what each says of an item."""
    rows = [[say(item) for _, say in columns] for item in items]
    return Table([column for column, _ in columns], rows, caption, note)


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing, whose black and white, and the neutral colours of our own plots, become those of the page."""

    figure: matplotlib.figure.Figure
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """Points that say all their columns when pointed at, tapped, or reached by arrow keys.

    Attributes:
        columns: what is known of a point; names are unique.
        rows: the points. Those without `x` or `y`, or not above 0 on a log axis, are left out, and the page says so.
        x, y: names of the columns that place a point.
        log_x, log_y: logarithmic axes.
        highlight: [num_rows], which points stand out and are joined in the order of x.
        joined: by straight lines, or by stairs: ``"after"``: at the next point's x, as a front is where less of x is
            better; ``"before"``: at once, where more of x is.
        names: of a few points, by their row, written beside them.
        highlight_label, label: what the points that stand out, and the others, are.
        caption: says what the chart shows.
        max_points: more are thinned out evenly, but for those that stand out, and the page says so.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    x: str
    y: str
    log_x: bool = False
    log_y: bool = False
    highlight: Sequence[bool] | None = None
    joined: Literal["line", "after", "before"] = "line"
    names: Mapping[int, str] = field(default_factory=dict)
    highlight_label: str = "Pareto front"
    label: str = "others"
    caption: str = ""
    max_points: int = 20_000

    def __post_init__(self) -> None:
        _check_rows(self.columns, self.rows)
        numbers = [column.name for column in self.columns if column.kind != "text"]
        for axis, name in (("x", self.x), ("y", self.y)):
            if name not in numbers:
                raise InvalidOptionError(
                    f"{axis} must name a column of numbers ({', '.join(numbers)}), got {shown(name)}"
                )


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of a page in words: one sentence, and its reasons, each with a word before it."""

    headline: str
    points: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar.

    Attributes:
        name: stands before it.
        segments: what each part of it is, and its length; bars of the same part have its colour.
        label: stands behind it.
        low, high: an interval around its end.
        note: shown when the mouse rests on a bar of one segment.
    """

    name: str
    segments: Sequence[tuple[str, float]]
    label: str
    low: float | None = None
    high: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """Bars on one axis, from 0; another panel has another axis."""

    title: str
    bars: Sequence[Bar]


@dataclass(frozen=True, slots=True)
class Bars:
    """Panels of bars below each other.

    Attributes:
        panels: each with at least one bar.
        colors: of the segments, by what they are; in the order of the legend.
        kind: of all lengths, as `Column` has it.
        caption: says what is shown.
    """

    panels: Sequence[Panel]
    colors: Mapping[str, str]
    kind: Literal["number", "time", "bytes", "energy"] = "time"
    caption: str = ""


Part: TypeAlias = Text | Facts | Table | Figure | Chart | Bars | Verdict


def _check_rows(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    if not columns:
        raise InvalidOptionError("columns must not be empty")
    for number, row in enumerate(rows):
        if len(row) != len(columns):
            raise InvalidOptionError(f"rows must have {len(columns)} cells each, got {len(row)} in row {number}")
