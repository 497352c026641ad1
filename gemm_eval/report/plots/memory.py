"""A bar of what lies in the fast memory of one core or SM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemm_eval.report.plots.style import COLORS, SMALL

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_memory_bar"]

_KIB = 1024.0


def draw_memory_bar(axes: Axes, parts: dict[str, int], limit_bytes: int, limit_name: str, title: str) -> None:
    """Draw the parts [bytes] one after the other in a single bar, and a line at the limit, in KiB."""
    left = 0.0
    for place, (name, size_bytes) in enumerate(parts.items()):
        axes.barh(
            0, size_bytes / _KIB, left=left, height=0.6, color=COLORS[place], alpha=0.75, edgecolor="black",
            linewidth=0.4, label=f"{name}: {size_bytes / _KIB:,.4g} KiB",
        )  # fmt: skip
        left += size_bytes / _KIB
    limit = limit_bytes / _KIB
    axes.axvline(limit, color="black", linewidth=2, label=f"{limit_name}: {limit:,.6g} KiB, {left / limit:.0%} used")
    axes.set(xlim=(0, 1.03 * max(limit, left)), ylim=(-0.45, 0.45), yticks=[], xlabel=f"{title} (KiB)")
    axes.xaxis.label.set_fontsize(SMALL + 1)
    axes.tick_params(labelsize=SMALL)
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1.0), ncols=6, fontsize=SMALL, frameon=False, borderaxespad=0.1,
        columnspacing=1.0, handlelength=1.3, handletextpad=0.5,
    )  # fmt: skip
