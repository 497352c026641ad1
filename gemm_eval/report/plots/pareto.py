"""A design space as a cloud of points, and its Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval import figures
from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.extras import needs_extra
from gemm_eval.report.plots.shared import feasible_rows, is_number, place_labels, read_all, read_column
from gemm_eval.sweep import pareto_front
from gemm_eval.words import shown

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_EDGE = 0.4  # points around a marker, whose own colour may be that of the page
_AREA = 26.0  # of a marker, square points


class _Cloud(NamedTuple):
    """The feasible rows of a table."""

    rows: npt.NDArray[np.intp]  # of the table
    x: npt.NDArray[np.float64]
    y: npt.NDArray[np.float64]
    names: tuple[str, str]
    larger_is_better: tuple[bool, bool]
    is_front: npt.NDArray[np.bool_]  # of x and y
    is_marked: npt.NDArray[np.bool_]  # `front` as given, else the same

    @property
    def staircase(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """The front from left to right."""
        order = np.argsort(self.x[self.is_front], kind="stable")
        return self.x[self.is_front][order], self.y[self.is_front][order]

    @property
    def title(self) -> str:
        words = [
            f"{'more' if larger else 'less'} {figures.axis_label(name).partition(' (')[0]}"
            for name, larger in zip(self.names, self.larger_is_better, strict=True)
        ]
        return f"{len(self.x):,} designs, {self.is_front.sum():,} on the front of {' and '.join(words)}"


def plot_pareto(
    table: Any,
    x: str,
    y: str,
    *,
    color: str | None = None,
    front: str | npt.ArrayLike | None = None,
    label: str | None = None,
    maximize: Sequence[str] = (),
    interactive: bool = False,
) -> figures.AnyFigure:
    """Plot two columns of a table against each other, and their Pareto front as a staircase.

    On one side of the staircase lies what no design of the table reaches; less is better, unless `maximize` names the
    column. Axes are logarithmic where values span more than a decade. Rows that are not feasible (no finite x or y, or
    False in a column `is_feasible`) are left out.

    Args:
        table: a DataFrame, a mapping from names to arrays, or a `GEMMTable`. Units are part of the names, and axis
            labels come from them: see `axis_label`.
        x, y: columns of numbers.
        color: a column that colours the points: numbers on a scale, or at most eight words.
        front: points to draw with a ring, when it should not be the front of x and y: a mask [num_rows], or the
            name of such a column; say the front of three objectives. The staircase is always that of x and y.
        label: a column to write beside the points with a ring, where there is room.
        maximize: which of `x` and `y` are better when larger.
        interactive: return a plotly figure, which tells all columns of a point under the mouse.

    Raises:
        GemmEvalError: matplotlib or plotly is not installed.
        InvalidInputError: columns of words where numbers are needed, or of unequal lengths.
        InvalidOptionError: no such column, or nothing feasible.
    """
    cloud = _find_cloud(table, x, y, front, maximize)
    return _draw_plotly(cloud, table, color) if interactive else _draw(cloud, table, color, label)


def _find_cloud(table: Any, x: str, y: str, front: Any, maximize: Sequence[str]) -> _Cloud:
    if isinstance(maximize, str) or not set(maximize) <= {x, y}:
        raise InvalidOptionError(f"maximize must be a sequence of {x!r} and {y!r}, got {shown(maximize)}")
    rows = np.flatnonzero(feasible_rows(table, x, y))
    values = np.column_stack([read_column(table, name)[rows].astype(float) for name in (x, y)])
    larger = (x in maximize, y in maximize)
    is_front = pareto_front(values, maximize=larger)
    is_marked = is_front
    if front is not None:
        mask = read_column(table, front) if isinstance(front, str) else np.asarray(front)
        if mask.dtype != bool or mask.shape != (len(read_column(table, x)),):
            raise InvalidInputError(
                f"front must be truth values for each of the {len(read_column(table, x))} rows of the table, got "
                f"{mask.dtype} of shape {mask.shape}"
            )
        is_marked = mask[rows]
    return _Cloud(rows, values[:, 0], values[:, 1], (x, y), larger, is_front, is_marked)


def _words_of(column: npt.NDArray[Any]) -> dict[Any, tuple[str, str]]:
    """Colour and marker of each distinct value of a column of words, in the order of their first appearance.

    Words for what limits a GEMM have the colours of their terms.
    """
    words = list(dict.fromkeys(column.tolist()))
    if len(words) > len(figures.SERIES):
        raise InvalidOptionError(
            f"color must be a column of numbers, or of at most {len(figures.SERIES)} different words, got {len(words)}"
        )
    if all(word in figures.BOUND_MARKERS for word in words):
        return {word: (figures.bound_color(word), figures.BOUND_MARKERS[word]) for word in words}
    return dict(zip(words, zip(figures.SERIES, figures.MARKERS, strict=True), strict=False))


@figures.styled
def _draw(cloud: _Cloud, table: Any, color: str | None, label: str | None) -> Figure:
    figure = figures.new_figure(7.4, 4.8)
    axes = figure.add_subplot()
    handles = _draw_points(figure, axes, cloud, None if color is None else (color, read_column(table, color)))
    steps = "steps-pre" if cloud.larger_is_better[0] else "steps-post"
    across, up = cloud.staircase
    handles += axes.plot(across, up, drawstyle=steps, color=figures.TEXT, linewidth=1.3, label="Pareto front", zorder=3)
    handles.append(
        axes.scatter(
            cloud.x[cloud.is_marked],
            cloud.y[cloud.is_marked],
            s=2 * _AREA,
            facecolors="none",
            edgecolors=figures.TEXT,
            linewidths=1.2,
            zorder=5,
            label="on the front" if cloud.is_marked is cloud.is_front else "marked",
        )
    )
    axes.margins(0.08)
    figures.add_grid(axes)
    for name, values, axis in zip(cloud.names, (cloud.x, cloud.y), "xy", strict=True):
        is_log = figures.spans_decade(values)
        if is_log:
            axes.set(**{f"{axis}scale": "log"})
        figures.scale_axis(axes.xaxis if axis == "x" else axes.yaxis, name, values, is_log=is_log)
    axes.set_title(cloud.title)
    figures.add_legend(figure, handles)
    if label is not None:
        texts = [figures.label_of(value) for value in read_column(table, label)[cloud.rows][cloud.is_marked].tolist()]
        ringed = cloud.x[cloud.is_marked], cloud.y[cloud.is_marked]
        place_labels(axes, *ringed, texts, areas=2 * _AREA, others=(cloud.x, cloud.y))
    return figure


def _draw_points(figure: Figure, axes: Axes, cloud: _Cloud, color: tuple[str, npt.NDArray[Any]] | None) -> list[Artist]:
    look: dict[str, Any] = {"s": _AREA, "linewidths": _EDGE, "edgecolors": figures.MUTED}
    if color is None:
        return [axes.scatter(cloud.x, cloud.y, color=figures.MUTED, s=_AREA, alpha=0.6, linewidths=0, label="design")]
    name, column = color[0], color[1][cloud.rows]
    if is_number(column):
        with needs_extra("plotting", "plot"):
            from matplotlib.colors import LogNorm

        values = column.astype(float)
        is_log = figures.spans_decade(values[np.isfinite(values)])
        points = axes.scatter(
            cloud.x, cloud.y, c=values, cmap=figures.RAMP, norm=LogNorm() if is_log else None, label="design", **look
        )
        bar = figure.colorbar(points, ax=axes, pad=0.02)
        figures.style_axes(bar.ax, has_frame=True)
        figures.scale_axis(bar.ax.yaxis, name, values, is_log=is_log)
        return [points]
    return [
        axes.scatter(
            cloud.x[column == word], cloud.y[column == word], color=shade, marker=marker, s=_AREA, linewidths=0,
            label=f"{figures.axis_label(name)} {figures.label_of(word)}",
        )
        for word, (shade, marker) in _words_of(column).items()
    ]  # fmt: skip


def _draw_plotly(cloud: _Cloud, table: Any, color: str | None) -> Any:
    go = figures.plotly_objects()
    figure = go.Figure()
    columns = read_all(table)
    told = np.array(
        [
            "<br>".join(f"{name}: {figures.label_of(column[row])}" for name, column in columns.items())
            for row in cloud.rows
        ]
    )
    line = {"color": figures.TEXT, "shape": "vh" if cloud.larger_is_better[0] else "hv", "width": 1.5}
    across, up = cloud.staircase

    def add(rows: npt.NDArray[np.bool_], name: str, marker: dict[str, Any]) -> None:
        figure.add_scatter(
            x=cloud.x[rows], y=cloud.y[rows], mode="markers", marker=marker, name=name, text=told[rows],
            hovertemplate="%{text}<extra></extra>",
        )  # fmt: skip

    everywhere = np.ones(len(cloud.x), bool)
    if color is None:
        add(everywhere, "design", {"color": figures.MUTED, "size": 7})
    elif is_number(columns[color]):
        scale = {
            "color": columns[color][cloud.rows].astype(float),
            "colorscale": figures.RAMP.capitalize(),
            "showscale": True,
        }
        add(everywhere, "design", {**scale, "colorbar": {"title": _plain(color)}, "size": 7})
    else:
        values = columns[color][cloud.rows]
        for word, (shade, symbol) in _words_of(values).items():
            marker = {"color": shade, "symbol": figures.PLOTLY_MARKERS[symbol], "size": 7}
            add(values == word, f"{_plain(color)} {figures.label_of(word)}", marker)
    figure.add_scatter(x=across, y=up, mode="lines", line=line, name="Pareto front", hoverinfo="skip")
    ring = {"color": "rgba(0,0,0,0)", "size": 10, "line": {"color": figures.TEXT, "width": 1.5}}
    add(cloud.is_marked, "on the front" if cloud.is_marked is cloud.is_front else "marked", ring)
    figure.update_xaxes(title=_plain(cloud.names[0]), type="log" if figures.spans_decade(cloud.x) else "linear")
    figure.update_yaxes(title=_plain(cloud.names[1]), type="log" if figures.spans_decade(cloud.y) else "linear")
    figure.update_layout(legend={"orientation": "h", "y": -0.18})  # below: a colour bar is on the right
    figures.style_plotly(figure, title=cloud.title)
    return figure


def _plain(name: str) -> str:
    """The axis label as HTML."""
    return figures.axis_label(name).replace("$^2$", "<sup>2</sup>")
