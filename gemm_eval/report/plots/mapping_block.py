"""The picture of a core's block: A, B and C cut into tiles, and the first steps of the loops."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

from gemm_eval.extras import needs_extra
from gemm_eval.figures import MUTED, OPERAND_COLORS, SMALL, TEXT, ink_on, style_axes
from gemm_eval.mapping import MulticoreMapping
from gemm_eval.models.multicore import Block

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_block", "first_steps"]

_LEAST_SPACING = 0.018  # of lines between tiles; finer ones are not drawn
_STEPS = 6  # tiles of C on the path
_SHORT, _LONG, _GAP = 0.42, 1.0, 0.13  # sides of the drawn operands: k, and m and n; not to scale
_LEAST_SIDE = 0.012  # of a tile, to be seen
_LETTER, _LINE = 0.03, 0.075  # width and height that text takes
_OPERAND_ALPHA, _TILE_ALPHA = 0.22, 1.0


class _Side(NamedTuple):
    """A dimension of the block, cut into tiles."""

    name: str
    size: int
    tile: int

    @property
    def trips(self) -> int:
        return -(-self.size // self.tile)

    def at(self, place: int) -> float:
        """Where a tile begins, as a part of the side."""
        return min(place * self.tile, self.size) / self.size

    def middle(self, place: int) -> float:
        return (self.at(place) + self.at(place + 1)) / 2

    def __str__(self) -> str:
        return f"{self.name}: {self.size:,}" + (f" in {self.trips:,} x {self.tile:,}" if self.trips > 1 else "")


def draw_block(axes: Axes, block: Block, mapping: MulticoreMapping) -> None:
    """Draw A on the left of C and B above it, each cut along its two dimensions; filled: the first tile of each."""
    tile = mapping.tile
    m, n, k = _Side("m", block.m, tile.tile_m), _Side("n", block.n, tile.tile_n), _Side("k", block.k, tile.tile_k)
    start = _SHORT + _GAP
    _draw_operand(axes, "A", (0.0, start), (k, m), (_SHORT, _LONG))
    _draw_operand(axes, "B", (start, 0.0), (n, k), (_LONG, _SHORT))
    _draw_operand(axes, "C", (start, start), (n, m), (_LONG, _LONG))
    for side, x, y, turn in (
        (m, -0.04, start + _LONG / 2, 90), (n, start + _LONG / 2, -0.04, 0), (k, _SHORT / 2, start + _LONG + 0.04, 0),
    ):  # fmt: skip
        axes.text(
            x, y, str(side), rotation=turn, fontsize=SMALL, color=TEXT, ha="right" if turn else "center",
            va="center" if turn else "top" if side is k else "bottom",
        )  # fmt: skip
    _draw_path(axes, mapping, (m, n, k), start)
    axes.set(xlim=(-0.12, start + _LONG + 0.02), ylim=(start + _LONG + 0.12, -0.12))
    style_axes(axes)
    axes.axis("off")  # without ticks, which a user can have back
    axes.set_title("\n".join(_say_loops(block, mapping, {"m": m, "n": n, "k": k})), fontsize=SMALL + 0.5)


def _draw_operand(
    axes: Axes, name: str, at: tuple[float, float], sides: tuple[_Side, _Side], lengths: tuple[float, float]
) -> None:
    with needs_extra("plotting", "plot"):
        from matplotlib.patches import Rectangle

    (left, top), (across, down), (width, height) = at, sides, lengths
    color = OPERAND_COLORS[name]
    axes.add_patch(Rectangle(at, width, height, facecolor=color, alpha=_OPERAND_ALPHA, linewidth=0))
    first = max(across.at(1) * width, _LEAST_SIDE), max(down.at(1) * height, _LEAST_SIDE)
    axes.add_patch(Rectangle(at, *first, facecolor=color, alpha=_TILE_ALPHA, linewidth=0, label=f"tile of {name}"))
    if width / across.trips >= _LEAST_SPACING:
        lines = [left + across.at(place) * width for place in range(1, across.trips)]
        axes.vlines(lines, top, top + height, color=MUTED, linewidth=0.5)
    if height / down.trips >= _LEAST_SPACING:
        lines = [top + down.at(place) * height for place in range(1, down.trips)]
        axes.hlines(lines, left, left + width, color=MUTED, linewidth=0.5)
    axes.add_patch(Rectangle(at, width, height, fill=False, edgecolor=MUTED, linewidth=0.9))
    if name == "B":  # above A and below C is room
        x, y = left - 0.05, top + height / 2
        align: dict[str, Any] = {"ha": "right", "va": "center"}
    else:
        is_above = name == "A"
        y = top - 0.03 if is_above else top + height + 0.04
        x, align = left + width / 2, {"ha": "center", "va": "bottom" if is_above else "top"}
    axes.text(x, y, name, weight="bold", fontsize=SMALL + 2, color=TEXT, **align)


def _draw_path(axes: Axes, mapping: MulticoreMapping, sides: tuple[_Side, _Side, _Side], start: float) -> None:
    """Arrows through the first tiles of C, with the number of the visit where it fits."""
    m, n, k = sides
    path = first_steps(mapping, {side.name: side.trips for side in sides})
    centers = [(start + n.middle(column) * _LONG, start + m.middle(row) * _LONG) for _, row, column in path]
    color = OPERAND_COLORS["C"]
    letters = max(len(f"{visit:,}") for visit, _, _ in path)
    is_roomy = n.at(1) * _LONG >= (letters + 1) * _LETTER and m.at(1) * _LONG >= _LINE
    for begin, end in itertools.pairwise(centers):
        shrink = 0.0 if not is_roomy else 6.0 if begin[0] == end[0] else 3.0 + 2.2 * letters
        arrow = {"arrowstyle": "-|>", "color": TEXT, "linewidth": 0.9, "shrinkA": shrink, "shrinkB": shrink}
        axes.annotate("", end, begin, arrowprops=arrow)
    if is_roomy and len(path) > 1:
        for (visit, _, _), center in zip(path, centers, strict=True):
            axes.text(
                *center, f"{visit:,}", ha="center", va="center", fontsize=SMALL, weight="bold",
                color=ink_on(color) if center is centers[0] else TEXT,
            )  # fmt: skip
    elif len(path) == 1:
        visits = f"visits 1 to {k.trips:,}" if k.trips > 1 else "one visit"
        axes.text(*centers[0], visits, ha="center", va="center", fontsize=SMALL, color=ink_on(color))


def first_steps(mapping: MulticoreMapping, trips: dict[str, int]) -> list[tuple[int, int, int]]:
    """The first visits that begin another tile of C, as (number of the visit, from 1, row, column)."""
    loops = mapping.loop_order.name.lower()
    steps: list[tuple[int, int, int]] = []
    for visit, at in enumerate(itertools.product(*(range(trips[loop]) for loop in loops)), start=1):
        where = dict(zip(loops, at, strict=True))
        if not steps or steps[-1][1:] != (where["m"], where["n"]):
            if len(steps) == _STEPS or any(step[1:] == (where["m"], where["n"]) for step in steps):
                break
            steps.append((visit, where["m"], where["n"]))
    return steps


def _say_loops(block: Block, mapping: MulticoreMapping, sides: dict[str, _Side]) -> list[str]:
    loops = mapping.loop_order.name.lower()
    nest = ", ".join(f"{loop} {sides[loop].trips} x {sides[loop].tile}" for loop in loops)
    lines = [
        f"block of core 0: {block.m:,} x {block.n:,}, k {block.k:,}",
        f"loops, outermost first: {f'g {block.g} x 1, ' if block.g > 1 else ''}{nest}",
    ]
    trips_k = sides["k"].trips
    after_k = loops[loops.index("k") + 1 :]
    if trips_k > 1 and any(sides[loop].trips > 1 for loop in after_k):
        lines.append(f"a tile of C leaves SRAM {trips_k} times; number: its first visit")
    elif trips_k > 1:
        lines.append(f"a tile of C stays for {trips_k} visits along k; number: the first")
    else:
        lines.append("a tile of C has one visit; number: when")
    lengths = {"m": _LONG, "n": _LONG, "k": _SHORT}
    fine = [
        f"{side.trips:,} along {name}" for name, side in sides.items() if lengths[name] / side.trips < _LEAST_SPACING
    ]
    if fine:
        lines.append(f"too fine for lines: {' and '.join(fine)}")
    return lines
