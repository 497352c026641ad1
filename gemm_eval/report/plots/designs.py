"""Plots of design spaces: two columns with their Pareto front, and a value over two fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemm_eval import figures
from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.sweep import pareto_front
from gemm_eval.words import shown

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_EDGE = 0.4  # points around a marker, whose own colour may be that of the page
_AREA = 26.0  # of a marker, square points


@figures.styled
def plot_pareto(
    table: Any,
    x: str,
    y: str,
    *,
    color: str | None = None,
    front: npt.ArrayLike | None = None,
    maximize: Sequence[str] = (),
) -> Figure:
    """Plot two columns of a table against each other, and their Pareto front as a staircase.

    On one side of the staircase lies what no design of the table reaches; less is better, unless `maximize` names the
    column. Axes are logarithmic where values span more than a decade. Rows that are not feasible (no finite x or y, or
    False in a column `is_feasible`) are left out.

    Args:
        table: a DataFrame, a mapping from names to arrays, a `GEMMTable` or a `SweepResult`. Units are part of the
            names, and axis labels come from them: see `axis_label`.
        x, y: columns of numbers.
        color: a column that colours the points: numbers on a scale, or at most eight words.
        front: a mask [num_rows] of points to draw with a ring, when it should not be the front of x and y; say the
            front of three objectives. The staircase is always that of x and y.
        maximize: which of `x` and `y` are better when larger.
    Raises InvalidInputError (columns of words where numbers are needed, or of unequal lengths); InvalidOptionError (no
    such column, or nothing feasible).
    """
    if isinstance(maximize, str) or not set(maximize) <= {x, y}:
        raise InvalidOptionError(f"maximize must be a sequence of {x!r} and {y!r}, got {shown(maximize)}")
    kept = _feasible_rows(table, x, y)
    points = np.column_stack([_read_column(table, name)[kept].astype(float) for name in (x, y)])
    is_front = is_marked = pareto_front(points, maximize=[name in maximize for name in (x, y)])
    if front is not None:
        mask = np.asarray(front)
        if mask.dtype != bool or mask.shape != kept.shape:
            raise InvalidInputError(
                f"front must be truth values for each of the {len(kept)} rows of the table, got {mask.dtype} of shape "
                f"{mask.shape}"
            )
        is_marked = mask[kept]
    across, up = points[is_front][np.argsort(points[is_front, 0], kind="stable")].T

    figure = figures.new_figure(7.4, 4.8)
    axes = figure.add_subplot()
    handles = _draw_points(axes, points, color, None if color is None else _read_column(table, color)[kept])
    handles += axes.plot(
        across, up, drawstyle="steps-pre" if x in maximize else "steps-post", color=figures.TEXT, linewidth=1.3,
        label="Pareto front", zorder=3,
    )  # fmt: skip
    rings: dict[str, Any] = {"facecolors": "none", "edgecolors": figures.TEXT, "linewidths": 1.2, "zorder": 5}
    label = "on the front" if front is None else "marked"
    handles.append(axes.scatter(points[is_marked, 0], points[is_marked, 1], s=2 * _AREA, label=label, **rings))
    axes.margins(0.08)
    figures.add_grid(axes)
    for name, values, axis, set_scale in (
        (x, points[:, 0], axes.xaxis, axes.set_xscale), (y, points[:, 1], axes.yaxis, axes.set_yscale),
    ):  # fmt: skip
        is_log = figures.spans_decade(values)
        if is_log:
            set_scale("log")
        figures.scale_axis(axis, name, values, is_log=is_log)
    words = [f"{'more' if name in maximize else 'less'} {_quantity(name)}" for name in (x, y)]
    axes.set_title(f"{len(points):,} designs, {is_front.sum():,} on the front of {' and '.join(words)}")
    figures.add_legend(figure, handles)
    return figure


def _quantity(name: str) -> str:
    return figures.axis_label(name).partition(" (")[0]


def _draw_points(
    axes: Axes, points: npt.NDArray[np.float64], name: str | None, column: npt.NDArray[Any] | None
) -> list[Artist]:
    """Draw the designs, in the colours of a column if given; words for what limits a GEMM have those of their terms."""
    from matplotlib.colors import LogNorm

    x, y = points.T
    if name is None or column is None:
        return [axes.scatter(x, y, color=figures.MUTED, s=_AREA, alpha=0.6, linewidths=0, label="design")]
    if _is_number(column):
        values = column.astype(float)
        is_log = figures.spans_decade(values[np.isfinite(values)])
        dots = axes.scatter(
            x, y, c=values, cmap=figures.RAMP, norm=LogNorm() if is_log else None, label="design", s=_AREA,
            linewidths=_EDGE, edgecolors=figures.MUTED,
        )  # fmt: skip
        _add_color_bar(axes, dots, name, values, is_log=is_log)
        return [dots]
    words = list(dict.fromkeys(column.tolist()))
    if len(words) > len(figures.SERIES):
        raise InvalidOptionError(
            f"color must be a column of numbers, or of at most {len(figures.SERIES)} different words, got {len(words)}"
        )
    looks = list(zip(figures.SERIES, figures.MARKERS, strict=True))
    if all(word in figures.BOUND_MARKERS for word in words):
        looks = [(figures.bound_color(word), figures.BOUND_MARKERS[word]) for word in words]
    return [
        axes.scatter(
            x[column == word], y[column == word], color=shade, marker=marker, s=_AREA, linewidths=0,
            label=f"{figures.axis_label(name)} {figures.label_of(word)}",
        )
        for word, (shade, marker) in zip(words, looks, strict=False)
    ]  # fmt: skip


def _add_color_bar(axes: Axes, drawn: Any, name: str, values: npt.NDArray[np.float64], **options: Any) -> None:
    bar = axes.figure.colorbar(drawn, ax=axes, pad=0.02)
    figures.style_axes(bar.ax, has_frame=True)
    figures.scale_axis(bar.ax.yaxis, name, values, **options)


_REDUCTIONS: dict[str, Callable[[list[float]], Any]] = {"min": np.min, "max": np.max, "median": np.median}
_MOST_TEXT = 150  # cells; more are too small to be written in
_MOST_TICKS = 24
_CELL_INCHES, _ROW_INCHES = 0.52, 0.34  # at least
_LETTER_INCHES, _MARGIN_INCHES = 0.068, 2.0


@figures.styled
def plot_heat_map(table: Any, x: str, y: str, value: str, *, reduce: str = "min") -> Figure:
    """Plot a value over the distinct values of two columns: each pair is a cell, all cells are of one size.

    Numbers are in ascending order, words in the order of the table. A cell is the least (largest, median) value of all
    feasible rows of its pair, and gray where there is none. Few cells have their value written in; colours are
    logarithmic where values span more than a decade.

    Args:
        table: a DataFrame, a mapping from names to arrays, or a `GEMMTable`; see `plot_pareto`.
        x, y: columns of numbers or words, such as ``"num_cores"``.
        value: a column of numbers, whose unit is part of its name.
        reduce: ``"min"``, ``"max"`` or ``"median"`` over everything else that varies.
    Raises InvalidInputError (`value` holds words); InvalidOptionError (no such column or reduction, or nothing
    feasible).
    """
    from matplotlib.colors import LogNorm, Normalize, to_hex
    from matplotlib.patches import Patch

    if reduce not in _REDUCTIONS:
        raise InvalidOptionError(f"reduce must be one of {', '.join(_REDUCTIONS)}, got {shown(reduce)}")
    kept = _feasible_rows(table, value)
    rows = list(zip(*(_read_column(table, name)[kept].tolist() for name in (x, y, value)), strict=True))
    across, up = (_distinct([row[at] for row in rows]) for at in (0, 1))
    column_of, row_of = ({item: place for place, item in enumerate(items)} for items in (across, up))
    of_cells: dict[tuple[int, int], list[float]] = {}
    for a, b, number in rows:
        of_cells.setdefault((row_of[b], column_of[a]), []).append(number)
    cells = np.full((len(up), len(across)), np.nan)
    for at, numbers in of_cells.items():
        cells[at] = _REDUCTIONS[reduce](numbers)
    most = max(map(len, of_cells.values()))

    known = cells[np.isfinite(cells)]
    scale = figures.scale_of(value, known)
    ticks = []
    for items, name in ((across, x), (up, y)):
        places = range(0, len(items), -(-len(items) // _MOST_TICKS))
        ticks.append((places, *figures.tick_texts(name, [items[place] for place in places])))
    longest = max(map(len, ticks[0][2]))
    if cells.size <= _MOST_TEXT:
        longest = max(longest, *(len(scale.text(cell)) for cell in known))
    width = _MARGIN_INCHES + max(_CELL_INCHES, _LETTER_INCHES * (longest + 1)) * len(across)
    figure = figures.new_figure(min(11.0, max(5.6, width)), min(8.0, max(3.4, 1.6 + _ROW_INCHES * len(up))))
    axes = figure.add_subplot()
    is_log = figures.spans_decade(known)
    norm = (LogNorm if is_log else Normalize)(known.min(), known.max())
    edges = np.arange(len(across) + 1) - 0.5, np.arange(len(up) + 1) - 0.5
    axes.set_facecolor(figures.LINE)  # where there is no design
    mesh = axes.pcolormesh(*edges, np.ma.masked_invalid(cells), cmap=figures.RAMP, norm=norm)
    figures.style_axes(axes, has_frame=True)
    if cells.size <= _MOST_TEXT:
        fills = mesh.to_rgba(cells)
        for (row, column), cell in np.ndenumerate(cells):
            if np.isfinite(cell):
                look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": figures.SMALL}
                axes.text(
                    column, row, scale.text(cell), color=figures.ink_on(to_hex(tuple(fills[row, column]))), **look
                )
    for axis, (places, label, texts) in zip((axes.xaxis, axes.yaxis), ticks, strict=True):
        axis.set_ticks(places, labels=texts)
        axis.set_label_text(label)
    if longest * _LETTER_INCHES * len(ticks[0][0]) > figure.get_figwidth() - _MARGIN_INCHES:
        axes.tick_params(axis="x", rotation=90)
    _add_color_bar(axes, mesh, value, known, is_log=is_log, scale=scale)
    axes.set_title(_quantity(value) + (f", {reduce} of up to {most:,} designs a cell" if most > 1 else ""))
    if known.size < cells.size:
        gap = Patch(facecolor=figures.LINE, edgecolor=figures.MUTED, linewidth=0.5, label="no feasible design")
        figures.add_legend(figure, [gap])
    return figure


def _distinct(items: list[Any]) -> list[Any]:
    distinct = list(dict.fromkeys(items))
    return sorted(distinct) if all(isinstance(item, int | float) for item in distinct) else distinct


def _names(table: Any) -> list[str]:
    names = getattr(table, "columns", None)
    if names is None:
        names = getattr(table, "keys", lambda: None)()
    if names is None:
        raise InvalidInputError(f"a table must be a DataFrame or a mapping from names to arrays, got {shown(table)}")
    return [str(name) for name in names]


def _read_column(table: Any, name: str) -> npt.NDArray[Any]:
    """Return a column [num_rows]."""
    names = _names(table)
    if name not in names:
        raise InvalidOptionError(f"the table has no column {shown(name)}; it has {', '.join(names) or 'none'}")
    column = np.asarray(table[name])
    if column.ndim != 1:
        raise InvalidInputError(f"column {name!r} must be one-dimensional, got shape {column.shape}")
    return column


def _feasible_rows(table: Any, *numbers: str) -> npt.NDArray[np.bool_]:
    """Return a mask [num_rows]: finite in these columns, not False in `is_feasible`, and no word in `excluded`."""
    flags = getattr(table, "is_feasible", None)  # an attribute of a `GEMMTable` and, if it is a column, a DataFrame
    if flags is None and "is_feasible" in _names(table):
        flags = table["is_feasible"]
    if flags is None and "excluded" in _names(table):
        flags = _read_column(table, "excluded") == ""
    columns = [_read_column(table, name) for name in numbers]
    for name, column in zip(numbers, columns, strict=True):
        if not _is_number(column):
            raise InvalidInputError(f"column {name!r} must hold numbers, got {column[:3].tolist()}")
    if len({len(column) for column in columns}) > 1:
        raise InvalidInputError(f"columns {', '.join(numbers)} differ in length: {[len(c) for c in columns]}")
    kept = np.ones(len(columns[0]), bool) if flags is None else np.asarray(flags, bool).copy()
    for column in columns:
        kept &= np.isfinite(column.astype(float))
    if not kept.any():
        raise InvalidOptionError(f"the table has no feasible row with finite {' and '.join(numbers)}: nothing to plot")
    return kept


def _is_number(column: npt.NDArray[Any]) -> bool:
    """Return whether a column holds numbers; None among objects is a number that is not known."""
    if column.dtype.kind == "O":
        values = [value for value in column if value is not None]
        return bool(values) and all(isinstance(value, int | float | np.number) for value in values)
    return column.dtype.kind in "iuf"
