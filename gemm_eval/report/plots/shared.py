"""Columns of sweeps as plots read them, and names of points where they cover nothing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.extras import needs_extra
from gemm_eval.figures import MUTED, SMALL
from gemm_eval.words import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.transforms import Bbox


def read_column(table: Any, name: str) -> npt.NDArray[Any]:
    """Return a column [num_rows]: of a DataFrame, of a mapping from names to arrays, or of a `GEMMTable`."""
    names = _names(table)
    if name not in names:
        raise InvalidOptionError(f"the table has no column {shown(name)}; it has {', '.join(names) or 'none'}")
    column = np.asarray(table[name])
    if column.ndim != 1:
        raise InvalidInputError(f"column {name!r} must be one-dimensional, got shape {column.shape}")
    return column


def read_all(table: Any) -> dict[str, npt.NDArray[Any]]:
    """Return all columns, by name."""
    columns = {name: read_column(table, name) for name in _names(table)}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidInputError(f"the columns of a table must be of one length, got {lengths}")
    return columns


def feasible_rows(table: Any, *numbers: str) -> npt.NDArray[np.bool_]:
    """Return which rows have a finite number in each of these columns, and are neither infeasible nor excluded.

    A False in `is_feasible` says the one, a word in `excluded` (the column of a sweep) the other.
    """
    flags = getattr(table, "is_feasible", None)  # an attribute of a `GEMMTable` and, if it is a column, a DataFrame
    if flags is None and "is_feasible" in _names(table):
        flags = table["is_feasible"]
    if flags is None and "excluded" in _names(table):
        flags = read_column(table, "excluded") == ""
    columns = [read_column(table, name) for name in numbers]
    for name, column in zip(numbers, columns, strict=True):
        if not is_number(column):
            raise InvalidInputError(f"column {name!r} must hold numbers, got {column[:3].tolist()}")
    if len({len(column) for column in columns}) > 1:
        raise InvalidInputError(f"columns {', '.join(numbers)} differ in length: {[len(c) for c in columns]}")
    kept = np.ones(len(columns[0]), bool) if flags is None else np.asarray(flags, bool).copy()
    for column in columns:
        kept &= np.isfinite(column.astype(float))
    if not kept.any():
        raise InvalidOptionError(f"the table has no feasible row with finite {' and '.join(numbers)}: nothing to plot")
    return kept


def is_number(column: npt.NDArray[Any]) -> bool:
    """Return whether a column holds numbers; None among objects is a number that is not known."""
    if column.dtype.kind == "O":
        return all(value is None or isinstance(value, int | float | np.number) for value in column) and not all(
            value is None for value in column
        )
    return column.dtype.kind in "iuf"


def _names(table: Any) -> list[str]:
    names = getattr(table, "columns", None)
    if names is None:
        names = getattr(table, "keys", lambda: None)()
    if names is None:
        raise InvalidInputError(f"a table must be a DataFrame or a mapping from names to arrays, got {shown(table)}")
    return [str(name) for name in names]


Point: TypeAlias = Sequence[float] | npt.NDArray[np.float64]

_RADII = (2.5, 8.0, 15.0, 24.0, 35.0, 49.0, 65.0)  # points from the edge of a marker
_NEAR = 8.0  # points; a label farther away gets a line to its point
_ANGLES = (0.35, 2.8, -0.35, -2.8, 1.57, -1.57, 0.9, 2.2, -0.9, -2.2)  # to the right of the point first
_PADDING = 4.0  # points inside the edges of the axes; another dpi moves texts a little
_EDGE = 1.0  # points around a marker that are kept free
_OTHER_REACH = 2.6  # points from the middle of a marker without a text to its edge
_LINE_PIECES = 200  # of a line, for boxes that cover it
_LEADER_PIECES = 16
_LINE_REACH = 0.5  # pixels


def place_labels(
    axes: Axes,
    x: npt.NDArray[np.float64],
    y: npt.NDArray[np.float64],
    texts: Sequence[str],
    *,
    areas: npt.ArrayLike = 30.0,
    others: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]] | None = None,
) -> int:
    """Write a text beside each point, where it covers no other text or point; return how many found no room.

    `areas` of the markers are in square points; `others` are x and y of more markers, without a text. Lines are kept
    free too. Limits and scales of the axes must be final. What finds no room inside the axes is left out.
    """
    with needs_extra("plotting", "plot"):
        from matplotlib.transforms import Bbox

    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # settles the layout, so that positions on the page are known
    per_point = figure.dpi / 72.0
    reaches = np.broadcast_to((np.sqrt(np.asarray(areas, float)) / 2 + _EDGE) * per_point, len(x)).tolist()
    taken = _boxes_of_lines(axes)
    if others is not None:
        reach = _OTHER_REACH * per_point
        taken += [
            Bbox.from_extents(px - reach, py - reach, px + reach, py + reach)
            for px, py in axes.transData.transform(np.column_stack(others)).tolist()
        ]
    places = axes.transData.transform(np.column_stack([x, y])).tolist()
    taken += [Bbox.from_extents(px - r, py - r, px + r, py + r) for (px, py), r in zip(places, reaches, strict=True)]
    inside = axes.get_window_extent().padded(-_PADDING * per_point)
    num_left_out = 0
    written: list[Bbox] = []
    for text, at, place, reach in zip(texts, zip(x.tolist(), y.tolist(), strict=True), places, reaches, strict=True):
        label = axes.annotate(text, at, (0, 0), textcoords="offset points", fontsize=SMALL, in_layout=False, zorder=6)
        for radius, angle in ((radius, angle) for radius in _RADII for angle in _ANGLES):
            distance = radius + reach / per_point
            dx, dy = distance * np.cos(angle), distance * np.sin(angle)
            label.set_position((dx, dy))
            label.set_horizontalalignment("center" if abs(np.cos(angle)) < 0.3 else "left" if dx > 0 else "right")
            label.set_verticalalignment("center" if abs(np.sin(angle)) < 0.5 else "bottom" if dy > 0 else "top")
            box = label.get_window_extent()
            fits = inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1
            if not fits or box.count_overlaps(taken):
                continue
            leader = []
            if radius > _NEAR:
                leader = _boxes_along(place, (place[0] + dx * per_point, place[1] + dy * per_point))
            if not any(piece.count_overlaps(written) for piece in leader):
                taken += [box, *leader]
                written.append(box)
                if leader:
                    _add_leader(axes, at, (dx, dy))
                break
        else:
            label.remove()
            num_left_out += 1
    return num_left_out


def _boxes_of_lines(axes: Axes) -> list[Bbox]:
    """Small boxes along all lines."""
    boxes: list[Bbox] = []
    for line in axes.get_lines():
        corners = np.asarray(line.get_transform().transform_path(line.get_path()).vertices, float)
        for start, end in itertools.pairwise(corners):
            boxes += _boxes_along(start, end, _LINE_PIECES // max(1, len(corners) - 1) + 1)
    return boxes


def _boxes_along(start: Point, end: Point, pieces: int = _LEADER_PIECES) -> list[Bbox]:
    """Boxes that cover a straight line; `count_overlaps` takes no box without a width or a height."""
    with needs_extra("plotting", "plot"):
        from matplotlib.transforms import Bbox

    steps = np.linspace(start, end, pieces + 1)
    return [Bbox([a, b]).padded(_LINE_REACH) for a, b in itertools.pairwise(steps)]


def _add_leader(axes: Axes, at: tuple[float, float], offset: tuple[float, float]) -> None:
    line = {"arrowstyle": "-", "linewidth": 0.5, "color": MUTED, "shrinkA": 0.0, "shrinkB": 3.0}
    axes.annotate("", at, offset, textcoords="offset points", arrowprops=line, in_layout=False, zorder=2)
