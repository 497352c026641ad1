"""What the tests of plots share: archs, GEMMs, and questions to a figure."""

from __future__ import annotations

from typing import Any

import numpy as np

ARCHS = ("demo-8core", "sg2260", "h200-sxm")
SIZES = [(1, 1, 4096, 4096), (1, 64, 4096, 4096), (1, 1024, 4096, 4096), (8, 100, 128, 77)]


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
