"""A value over two fields of a design space."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval import figures
from gemm_eval.errors import InvalidOptionError
from gemm_eval.extras import needs_extra
from gemm_eval.report.plots.shared import feasible_rows, read_column
from gemm_eval.words import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_REDUCTIONS: dict[str, Callable[[npt.NDArray[np.float64]], Any]] = {"min": np.min, "max": np.max, "median": np.median}
_MOST_TEXT = 150  # cells; more are too small to be written in
_MOST_TICKS = 24
_CELL_INCHES, _ROW_INCHES = 0.52, 0.34  # at least
_LETTER_INCHES, _MARGIN_INCHES = 0.068, 2.0


class _Pivot(NamedTuple):
    x: list[Any]
    y: list[Any]
    cells: npt.NDArray[np.float64]  # [len(y), len(x)], nan where the table has no feasible row
    counts: npt.NDArray[np.int64]  # [len(y), len(x)]: rows behind a cell
    names: tuple[str, str, str]  # columns of x, y and the value
    reduce: str

    @property
    def title(self) -> str:
        words = figures.axis_label(self.names[2]).partition(" (")[0]
        most = int(self.counts.max())
        over = f", {self.reduce} of up to {most:,} designs a cell" if most > 1 else ""
        return f"{words}{over}"


def plot_heat_map(
    table: Any, x: str, y: str, value: str, *, reduce: str = "min", interactive: bool = False
) -> figures.AnyFigure:
    """Plot a value over the distinct values of two columns: each pair is a cell, all cells are of one size.

    Numbers are in ascending order, words in the order of the table. A cell is the least (largest, median) value of all
    feasible rows of its pair, and gray where there is none. Few cells have their value written in; colours are
    logarithmic where values span more than a decade.

    Args:
        table: a DataFrame, a mapping from names to arrays, or a `GEMMTable`; see `plot_pareto`.
        x, y: columns of numbers or words, such as ``"num_cores"``.
        value: a column of numbers, whose unit is part of its name.
        reduce: ``"min"``, ``"max"`` or ``"median"`` over everything else that varies.
        interactive: return a plotly figure.

    Raises:
        GemmEvalError: matplotlib or plotly is not installed.
        InvalidInputError: `value` holds words.
        InvalidOptionError: no such column or reduction, or nothing feasible.
    """
    if reduce not in _REDUCTIONS:
        raise InvalidOptionError(f"reduce must be one of {', '.join(_REDUCTIONS)}, got {shown(reduce)}")
    rows = feasible_rows(table, value)
    across, up, values = (read_column(table, name)[rows] for name in (x, y, value))
    pivot = _pivot(across, up, values, (x, y, value), reduce)
    return _draw_plotly(pivot) if interactive else _draw(pivot)


def _pivot(
    x: npt.NDArray[Any], y: npt.NDArray[Any], value: npt.NDArray[Any], names: tuple[str, str, str], reduce: str
) -> _Pivot:
    across, up = _distinct(x), _distinct(y)
    place_of_x = {item: place for place, item in enumerate(across)}
    place_of_y = {item: place for place, item in enumerate(up)}
    cell_of = np.array(
        [place_of_y[b] * len(across) + place_of_x[a] for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    )
    counts = np.bincount(cell_of, minlength=len(across) * len(up))
    ordered = value.astype(float)[np.argsort(cell_of, kind="stable")]
    cells = np.full(len(counts), np.nan)
    filled = np.flatnonzero(counts)
    cells[filled] = [_REDUCTIONS[reduce](part) for part in np.split(ordered, np.cumsum(counts[filled])[:-1])]
    shape = len(up), len(across)
    return _Pivot(across, up, cells.reshape(shape), counts.reshape(shape), names, reduce)


def _distinct(column: npt.NDArray[Any]) -> list[Any]:
    items = list(dict.fromkeys(column.tolist()))
    return sorted(items) if all(isinstance(item, int | float) for item in items) else items


@figures.styled
def _draw(pivot: _Pivot) -> Figure:
    with needs_extra("plotting", "plot"):
        from matplotlib.colors import LogNorm, Normalize, to_hex
        from matplotlib.patches import Patch

    known = pivot.cells[np.isfinite(pivot.cells)]
    scale = figures.scale_of(pivot.names[2], known)
    ticks = [_ticks(items, name) for items, name in ((pivot.x, pivot.names[0]), (pivot.y, pivot.names[1]))]
    longest = max(map(len, ticks[0][2]))
    is_written = pivot.cells.size <= _MOST_TEXT
    if is_written:
        longest = max(longest, *(len(scale.text(cell)) for cell in known))
    figure = figures.new_figure(*_size(pivot, longest))
    axes = figure.add_subplot()
    norm = (LogNorm if figures.spans_decade(known) else Normalize)(known.min(), known.max())
    edges = np.arange(pivot.cells.shape[1] + 1) - 0.5, np.arange(pivot.cells.shape[0] + 1) - 0.5
    axes.set_facecolor(figures.LINE)  # where there is no design
    mesh = axes.pcolormesh(*edges, np.ma.masked_invalid(pivot.cells), cmap=figures.RAMP, norm=norm)
    figures.style_axes(axes, has_frame=True)
    if is_written:
        fills = [[to_hex(tuple(fill)) for fill in row] for row in mesh.to_rgba(pivot.cells)]
        _write_cells(axes, pivot, fills, scale)
    for axis, (label, places, texts) in zip((axes.xaxis, axes.yaxis), ticks, strict=True):
        axis.set_ticks(places, labels=texts)
        axis.set_label_text(label)
    if longest * _LETTER_INCHES * len(ticks[0][1]) > figure.get_figwidth() - _MARGIN_INCHES:
        axes.tick_params(axis="x", rotation=90)
    bar = figure.colorbar(mesh, ax=axes, pad=0.02)
    figures.style_axes(bar.ax, has_frame=True)
    figures.scale_axis(bar.ax.yaxis, pivot.names[2], known, is_log=isinstance(norm, LogNorm), scale=scale)
    axes.set_title(pivot.title)
    if known.size < pivot.cells.size:
        figures.add_legend(
            figure, [Patch(facecolor=figures.LINE, edgecolor=figures.MUTED, linewidth=0.5, label="no feasible design")]
        )
    return figure


def _size(pivot: _Pivot, longest: int) -> tuple[float, float]:
    """Width and height of the figure in inches, with room for texts of so many letters in the cells."""
    num_rows, num_columns = pivot.cells.shape
    width = _MARGIN_INCHES + max(_CELL_INCHES, _LETTER_INCHES * (longest + 1)) * num_columns
    return min(11.0, max(5.6, width)), min(8.0, max(3.4, 1.6 + _ROW_INCHES * num_rows))


def _ticks(items: list[Any], name: str) -> tuple[str, list[int], list[str]]:
    """The label of an axis, and places and texts of its ticks."""
    places = list(range(0, len(items), -(-len(items) // _MOST_TICKS)))
    label, texts = figures.tick_texts(name, [items[place] for place in places])
    return label, places, texts


def _write_cells(axes: Axes, pivot: _Pivot, fills: Sequence[Sequence[str]], scale: figures.Scale) -> None:
    for (row, column), cell in np.ndenumerate(pivot.cells):
        if np.isfinite(cell):
            ink = figures.ink_on(fills[row][column])
            axes.text(column, row, scale.text(cell), ha="center", va="center", fontsize=figures.SMALL, color=ink)


def _draw_plotly(pivot: _Pivot) -> Any:
    go = figures.plotly_objects()
    names = [figures.axis_label(name).replace("$^2$", "<sup>2</sup>") for name in pivot.names]
    known = pivot.cells[np.isfinite(pivot.cells)]
    is_log = figures.spans_decade(known)
    bar: dict[str, Any] = {"title": names[2]}
    if is_log:  # plotly has no logarithmic colour scale: colours are those of the exponents, ticks are relabelled
        ticks = np.geomspace(known.min(), known.max(), 6)
        bar.update(tickvals=np.log10(ticks), ticktext=[f"{tick:.3g}" for tick in ticks])
    figure = go.Figure(
        go.Heatmap(
            x=[figures.label_of(item) for item in pivot.x],
            y=[figures.label_of(item) for item in pivot.y],
            z=np.log10(pivot.cells) if is_log else pivot.cells,
            customdata=np.dstack([pivot.cells, pivot.counts]),
            colorscale=figures.RAMP.capitalize(),
            colorbar=bar,
            hoverongaps=False,
            hovertemplate=f"{names[0]}: %{{x}}<br>{names[1]}: %{{y}}<br>{names[2]}: %{{customdata[0]:.4g}}"
            "<br>%{customdata[1]} designs<extra></extra>",
        )
    )
    figure.update_xaxes(type="category", title=names[0])
    figure.update_yaxes(type="category", title=names[1])
    figures.style_plotly(figure, title=pivot.title.replace("$^2$", "<sup>2</sup>"))
    return figure
