"""A bar of what lies in the fast memory of one core or SM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemm_eval.figures import SMALL, SURFACE, TEXT, bytes_scale, bytes_text, style_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_memory_bar"]


def draw_memory_bar(
    axes: Axes, parts: dict[str, tuple[int, str]], limit_bytes: int, limit_name: str, title: str
) -> None:
    """Draw the parts [bytes, colour] one after the other in a single bar, and a line at the limit."""
    scale = bytes_scale(title, max(limit_bytes, sum(size for size, _ in parts.values())))
    left = 0.0
    for name, (size_bytes, color) in parts.items():
        size = size_bytes / scale.factor
        axes.barh(
            0, size, left=left, height=0.6, color=color, edgecolor=SURFACE, linewidth=0.5,
            label=f"{name}: {bytes_text(size_bytes)}",
        )  # fmt: skip
        left += size
    limit = limit_bytes / scale.factor
    label = f"{limit_name}: {bytes_text(limit_bytes)}, {left / limit:.0%} used"
    axes.axvline(limit, color=TEXT, linewidth=2, label=label)
    axes.set(xlim=(0, 1.03 * max(limit, left)), ylim=(-0.45, 0.45), yticks=[], xlabel=scale.label)
    style_axes(axes)
    axes.spines["left"].set_visible(False)
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1.0), ncols=6, fontsize=SMALL, frameon=False, borderaxespad=0.1,
        columnspacing=1.0, handlelength=1.3, handletextpad=0.5,
    )  # fmt: skip
