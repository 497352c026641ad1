"""What the tests of reports share: archs, GEMMs, and questions to a page or a figure."""

from typing import Any

import numpy as np

from gemm_eval.report import Chart, Page, Table

ARCHS = ("demo-8core", "sg2260", "h200-sxm")
SIZES = [(1, 1, 4096, 4096), (1, 64, 4096, 4096), (1, 1024, 4096, 4096), (8, 100, 128, 77)]


def parts(page: Page, heading: str, kind: Any = object) -> list[Any]:
    """The parts of a section, or those of a kind."""
    found = [part for section in page.sections if section.heading == heading for part in section.parts]
    return [part for part in found if isinstance(part, kind)]


def rows(table: Table | Chart) -> list[dict[str, Any]]:
    names = [column.name for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in table.rows]


def texts(figure: Any) -> list[str]:
    """Everything that is written on a figure."""
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def legend_of(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def offsets(axes: Any) -> np.ndarray:
    """Points of all scatters, [num_points, 2]."""
    return np.concatenate([np.asarray(dots.get_offsets()) for dots in axes.collections if len(dots.get_offsets())])


def same_points(found: np.ndarray, x: Any, y: Any) -> bool:
    wanted = np.column_stack([x, y])
    return sorted(map(tuple, found.tolist())) == sorted(map(tuple, wanted.tolist()))


def draw(figure: Any) -> None:
    """Render: what cannot be laid out warns, and a warning is an error."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure).draw()


def boxes_of_texts(figure: Any) -> list[tuple[str, Any]]:
    """What is written, and its box in pixels, a little smaller: only texts that are drawn, ticks in view for one."""
    from unittest.mock import patch

    from matplotlib.text import Text

    drawn: dict[int, Any] = {}
    draw_text = Text.draw

    def note(text: Any, renderer: Any) -> None:
        if text.get_visible() and text.get_text().strip():
            drawn[id(text)] = text
        draw_text(text, renderer)

    with patch.object(Text, "draw", note):
        draw(figure)
    return [(text.get_text(), Text.get_window_extent(text).padded(-0.6)) for text in drawn.values()]


def colors_of(figure: Any) -> set[str]:
    """Every colour that can be seen, as ``#rrggbb``; how transparent it is does not matter."""
    from matplotlib.collections import Collection
    from matplotlib.colors import to_hex, to_rgba_array
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.text import Text

    draw(figure)  # colors of values are found then
    found: list[Any] = [text.get_color() for text in figure.findobj(Text) if text.get_text()]
    for line in figure.findobj(Line2D):
        parts = [line.get_color()] if line.get_linestyle() != "None" else []
        if line.get_marker() not in ("", "None", None):
            parts.append(line.get_markeredgecolor())
            if isinstance(line.get_marker(), str):  # ticks are not filled
                parts.append(line.get_markerfacecolor())
        found += [part for part in parts if line.get_visible()]
    for patch in figure.findobj(Patch):
        if patch.get_visible():
            found += [patch.get_facecolor(), *([patch.get_edgecolor()] if patch.get_linewidth() else [])]
    for collection in figure.findobj(Collection):
        found += [*collection.get_facecolor(), *(collection.get_edgecolor() if any(collection.get_linewidth()) else [])]
    return {to_hex(color) for item in found for color in to_rgba_array(item) if color[3] > 0}
