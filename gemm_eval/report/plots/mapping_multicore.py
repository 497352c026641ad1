"""A mapping on a multi-core chip: the partition over cores, the block of one, and its memory."""

from __future__ import annotations

import itertools
import textwrap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gemm_eval import figures
from gemm_eval.arch import MulticoreSpec
from gemm_eval.errors import UnsupportedError
from gemm_eval.evaluate import GEMMResult
from gemm_eval.mapping import MulticoreMapping
from gemm_eval.models.multicore import Block, batch_sizes, block_of, pack_params
from gemm_eval.units import time_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_memory_bar(
    axes: Axes, parts: dict[str, tuple[int, str]], limit_bytes: int, limit_name: str, title: str
) -> None:
    """Draw the parts [bytes, colour] one after the other in a single bar, and a line at the limit."""
    scale = figures.bytes_scale(title, max(limit_bytes, sum(size for size, _ in parts.values())))
    left, limit = 0.0, limit_bytes / scale.factor
    look: dict[str, Any] = {"height": 0.6, "edgecolor": figures.SURFACE, "linewidth": 0.5}
    for name, (size_bytes, color) in parts.items():
        size = size_bytes / scale.factor
        axes.barh(0, size, left=left, color=color, label=f"{name}: {figures.bytes_text(size_bytes)}", **look)
        left += size
    label = f"{limit_name}: {figures.bytes_text(limit_bytes)}, {left / limit:.0%} used"
    axes.axvline(limit, color=figures.TEXT, linewidth=2, label=label)
    axes.set(xlim=(0, 1.03 * max(limit, left)), ylim=(-0.45, 0.45), yticks=[], xlabel=scale.label)
    figures.style_axes(axes)
    axes.spines["left"].set_visible(False)
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1.0), ncols=6, fontsize=figures.SMALL, frameon=False, borderaxespad=0.1,
        columnspacing=1.0, handlelength=1.3, handletextpad=0.5,
    )  # fmt: skip


_LEAST_SPACING = 0.018  # of lines between tiles; finer ones are not drawn
_STEPS = 6  # tiles of C on the path
_SHORT, _LONG, _GAP = 0.42, 1.0, 0.13  # sides of the drawn operands: k, and m and n; not to scale
_START = _SHORT + _GAP
_LEAST_SIDE = 0.012  # of a tile, to be seen
_LETTER, _LINE = 0.03, 0.075  # width and height that text takes
_OPERAND_ALPHA = 0.22


class _Side(NamedTuple):
    """A dimension of the block, cut into tiles, and the length that it is drawn with."""

    name: str
    size: int
    tile: int
    length: float

    @property
    def trips(self) -> int:
        return -(-self.size // self.tile)

    @property
    def is_fine(self) -> bool:
        return self.length / self.trips < _LEAST_SPACING

    def at(self, place: int) -> float:
        """Return how far from its beginning a tile starts."""
        return min(place * self.tile, self.size) / self.size * self.length

    def middle(self, place: int) -> float:
        return (self.at(place) + self.at(place + 1)) / 2

    def __str__(self) -> str:
        return f"{self.name}: {self.size:,}" + (f" in {self.trips:,} x {self.tile:,}" if self.trips > 1 else "")


def draw_block(axes: Axes, block: Block, mapping: MulticoreMapping) -> None:
    """Draw A on the left of C and B above it, each cut along its two dimensions; filled: the first tile of each."""
    tile = mapping.tile
    m, n = _Side("m", block.m, tile.tile_m, _LONG), _Side("n", block.n, tile.tile_n, _LONG)
    k = _Side("k", block.k, tile.tile_k, _SHORT)
    _draw_operand(axes, "A", 0.0, _START, k, m)
    _draw_operand(axes, "B", _START, 0.0, n, k)
    _draw_operand(axes, "C", _START, _START, n, m)
    for side, x, y, turn, ha, va in (
        (m, -0.04, _START + _LONG / 2, 90, "right", "center"),
        (n, _START + _LONG / 2, -0.04, 0, "center", "bottom"),
        (k, _SHORT / 2, _START + _LONG + 0.04, 0, "center", "top"),
    ):
        axes.text(x, y, str(side), rotation=turn, fontsize=figures.SMALL, color=figures.TEXT, ha=ha, va=va)
    _draw_path(axes, mapping, m, n, k)
    axes.set(xlim=(-0.12, _START + _LONG + 0.02), ylim=(_START + _LONG + 0.12, -0.12))
    figures.style_axes(axes)
    axes.axis("off")  # without ticks, which a user can have back
    axes.set_title("\n".join(_say_loops(block, mapping, {"m": m, "n": n, "k": k})), fontsize=figures.SMALL + 0.5)


def _draw_operand(axes: Axes, name: str, left: float, top: float, across: _Side, down: _Side) -> None:
    from matplotlib.patches import Rectangle

    at, width, height = (left, top), across.length, down.length
    color = figures.OPERAND_COLORS[name]
    axes.add_patch(Rectangle(at, width, height, facecolor=color, alpha=_OPERAND_ALPHA, linewidth=0))
    first = max(across.at(1), _LEAST_SIDE), max(down.at(1), _LEAST_SIDE)
    axes.add_patch(Rectangle(at, *first, facecolor=color, alpha=1.0, linewidth=0, label=f"tile of {name}"))
    thin: dict[str, Any] = {"color": figures.MUTED, "linewidth": 0.5}
    if not across.is_fine:
        axes.vlines([left + across.at(place) for place in range(1, across.trips)], top, top + height, **thin)
    if not down.is_fine:
        axes.hlines([top + down.at(place) for place in range(1, down.trips)], left, left + width, **thin)
    axes.add_patch(Rectangle(at, width, height, fill=False, edgecolor=figures.MUTED, linewidth=0.9))
    x, y, ha, va = {  # above A and below C is room
        "A": (left + width / 2, top - 0.03, "center", "bottom"),
        "B": (left - 0.05, top + height / 2, "right", "center"),
        "C": (left + width / 2, top + height + 0.04, "center", "top"),
    }[name]
    axes.text(x, y, name, weight="bold", fontsize=figures.SMALL + 2, color=figures.TEXT, ha=ha, va=va)


def _draw_path(axes: Axes, mapping: MulticoreMapping, m: _Side, n: _Side, k: _Side) -> None:
    """Arrows through the first tiles of C, with the number of the visit where it fits."""
    path = first_steps(mapping, {side.name: side.trips for side in (m, n, k)})
    centers = [(_START + n.middle(column), _START + m.middle(row)) for _, row, column in path]
    on_tile = figures.ink_on(figures.OPERAND_COLORS["C"])
    look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": figures.SMALL}
    letters = max(len(f"{visit:,}") for visit, _, _ in path)
    is_roomy = n.at(1) >= (letters + 1) * _LETTER and m.at(1) >= _LINE
    for begin, end in itertools.pairwise(centers):
        shrink = 0.0 if not is_roomy else 6.0 if begin[0] == end[0] else 3.0 + 2.2 * letters
        arrow = {"arrowstyle": "-|>", "color": figures.TEXT, "linewidth": 0.9, "shrinkA": shrink, "shrinkB": shrink}
        axes.annotate("", end, begin, arrowprops=arrow)
    if is_roomy and len(path) > 1:
        for (visit, _, _), center in zip(path, centers, strict=True):
            color = on_tile if center is centers[0] else figures.TEXT
            axes.text(*center, f"{visit:,}", weight="bold", color=color, **look)
    elif len(path) == 1:
        visits = f"visits 1 to {k.trips:,}" if k.trips > 1 else "one visit"
        axes.text(*centers[0], visits, color=on_tile, **look)


def first_steps(mapping: MulticoreMapping, trips: dict[str, int]) -> list[tuple[int, int, int]]:
    """Return the first visits that begin another tile of C, as (number of the visit, from 1, row, column)."""
    loops = mapping.loop_order.name.lower()
    row_at, column_at = loops.index("m"), loops.index("n")
    steps: dict[tuple[int, int], int] = {}
    last = None
    for visit, at in enumerate(itertools.product(*(range(trips[loop]) for loop in loops)), start=1):
        tile = at[row_at], at[column_at]
        if tile != last:
            if len(steps) == _STEPS or tile in steps:
                break
            steps[tile] = visit
            last = tile
    return [(visit, *tile) for tile, visit in steps.items()]


def _say_loops(block: Block, mapping: MulticoreMapping, sides: dict[str, _Side]) -> list[str]:
    loops = mapping.loop_order.name.lower()
    nest = ", ".join(f"{loop} {sides[loop].trips} x {sides[loop].tile}" for loop in loops)
    trips_k = sides["k"].trips
    is_left = any(sides[loop].trips > 1 for loop in loops[loops.index("k") + 1 :])
    visits = "a tile of C has one visit; number: when"
    if trips_k > 1:
        visits = f"a tile of C stays for {trips_k} visits along k; number: the first"
        visits = f"a tile of C leaves SRAM {trips_k} times; number: its first visit" if is_left else visits
    fine = [f"{side.trips:,} along {name}" for name, side in sides.items() if side.is_fine]
    return [
        f"block of core 0: {block.m:,} x {block.n:,}, k {block.k:,}",
        f"loops, outermost first: {f'g {block.g} x 1, ' if block.g > 1 else ''}{nest}",
        visits,
        *([f"too fine for lines: {' and '.join(fine)}"] if fine else []),
    ]


_MOST_BLOCKS = 4096  # that are drawn
_MOST_TICKS = 9
_AXES_INCHES = (3.9, 3.7)  # about the size of the panel with the blocks, to see which texts fit
_LETTER_INCHES, _LINE_INCHES = 0.075, 0.15
_LEAST_LINE_INCHES = 0.035  # a smaller block is drawn without an edge
_LEAST_STRIPE_INCHES = 0.12
_LINE_LETTERS = 72
_RAMP_ENDS = 0.15, 0.95


class _Grid(NamedTuple):
    """The part of C that each core has; core numbers count G, M, N, K, the last fastest."""

    block: Block  # the full one
    sizes: tuple[int, int, int, int]  # G, M, K, N
    num_cores: int
    rows: int  # of blocks that are drawn, batch parts below each other
    columns: int

    @property
    def num_rows(self) -> int:
        return self.block.E_G * self.block.E_M

    def rectangle(self, row: int, column: int) -> tuple[int, int, int, int]:
        """Left, top, width and height of a block, in elements; batch part g begins at row g*M."""
        _, M, _, N = self.sizes
        part, row = divmod(row, self.block.E_M)
        top, left = row * self.block.m, column * self.block.n
        return left, part * M + top, min(self.block.n, N - left), min(self.block.m, M - top)

    def first_core(self, row: int, column: int) -> int:
        """Return the first of the E_K cores of a block."""
        return (row * self.block.E_N + column) * self.block.E_K


def draw_partition(result: GEMMResult) -> Figure:
    """See `plot_mapping`."""
    arch, mapping, problem = result.arch, result.mapping, result.problem
    assert isinstance(arch, MulticoreSpec)
    assert isinstance(mapping, MulticoreMapping)
    sizes = batch_sizes(problem)
    if sizes is None:
        raise UnsupportedError(
            f"the mapping of {problem} on {arch.name} cannot be drawn: its groups differ, and so do the blocks of the "
            "cores; groups of equally many rows can"
        )
    params = pack_params(arch, problem.types)[0]
    block = block_of(params, *sizes, *mapping.partition)
    rows, columns = block.E_G * block.E_M, block.E_N
    if rows * columns > _MOST_BLOCKS:
        columns = min(columns, _MOST_BLOCKS)
        rows = min(rows, max(1, _MOST_BLOCKS // columns))
    grid = _Grid(block, sizes, arch.num_cores, rows, columns)
    figure = figures.new_figure(9.6, 5.9)
    panels = figure.subplot_mosaic([["chip", "block"], ["sram", "sram"]], height_ratios=[11, 1])
    _draw_blocks(panels["chip"], grid, mapping)
    draw_block(panels["block"], block, mapping)
    parts = {
        name: (size, figures.OPERAND_COLORS[name.removeprefix("2 x ")])
        for name, size in sram_parts(params, mapping).items()
    }
    draw_memory_bar(panels["sram"], parts, arch.sram_usable_bytes, "usable", "SRAM of one core")
    figure.suptitle(f"{problem} on {arch.name}: {time_text(result.latency_us)}, bound: {result.bound}")
    return figure


def _draw_blocks(axes: Axes, grid: _Grid, mapping: MulticoreMapping) -> None:
    from matplotlib import colormaps
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_hex

    block, rows, columns = grid.block, grid.rows, grid.columns
    stripes = block.E_K if rows * columns * block.E_K <= _MOST_BLOCKS else 1  # of a block: its parts of K
    shades = colormaps[figures.RAMP](np.linspace(*_RAMP_ENDS, max(2, block.active_cores)))
    blocks = {at: grid.rectangle(*at) for at in itertools.product(range(rows), range(columns))}
    corners, cores = [], []
    for at, (left, top, width, height) in blocks.items():
        for stripe in range(stripes):
            low, high = (top + np.array([stripe, stripe + 1]) * (height / stripes)).tolist()
            corners.append([(left, low), (left + width, low), (left + width, high), (left, high)])
            cores.append(grid.first_core(*at) + stripe)
    left, top, width, height = blocks[rows - 1, columns - 1]
    right, bottom = left + width, top + height
    inches = _AXES_INCHES[0] / right, _AXES_INCHES[1] / bottom
    axes.add_collection(PolyCollection(corners, facecolors=shades[cores], edgecolors="face", linewidths=0.2))
    axes.set(xlim=(0, right), ylim=(bottom, 0), xlabel="N (columns of C)", ylabel="M (rows of C)")
    figures.style_axes(axes)
    # lines between blocks, thinner ones between stripes of a block; fewer where they would cover what they part
    edges: dict[str, Any] = {"color": figures.SURFACE, "linewidth": 1.2 if stripes > 1 else 0.8}
    if block.n * inches[0] >= _LEAST_LINE_INCHES:
        axes.vlines([blocks[0, column][0] for column in range(1, columns)], 0, bottom, **edges)
    if block.m * inches[1] >= _LEAST_LINE_INCHES:
        axes.hlines([blocks[row, 0][1] for row in range(1, rows)], 0, right, **edges)
    if stripes > 1 and block.m / stripes * inches[1] >= _LEAST_STRIPE_INCHES:
        axes.hlines([y for corner in corners for _, y in corner[1:3]], 0, right, color=figures.SURFACE, linewidth=0.3)
    inks = [figures.ink_on(to_hex(shade)) for shade in shades]
    written = [_write_core(axes, grid, at, place, inches, inks, stripes) for at, place in blocks.items()]
    _set_ticks(axes, grid)
    if not all(written):
        _name_rows(axes, grid)
    lines = itertools.chain.from_iterable(textwrap.wrap(line, _LINE_LETTERS) for line in _say_partition(grid, mapping))
    axes.set_title("\n".join(lines), fontsize=figures.SMALL + 0.5)


def _write_core(
    axes: Axes, grid: _Grid, at: tuple[int, int], place: tuple[int, int, int, int], inches: tuple[float, float],
    inks: list[str], stripes: int,
) -> bool:  # fmt: skip
    """Write the cores into a block: their full names where they fit, else their numbers; return whether they did."""
    left, top, width, height = place
    core, last = grid.first_core(*at), grid.first_core(*at) + grid.block.E_K - 1
    x, y = left + width / 2, top + height / 2

    def fits(text: str, tall: float) -> bool:
        return _LETTER_INCHES * len(text) < width * inches[0] and tall > _LINE_INCHES

    look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": figures.SMALL}
    if stripes > 1:
        if not fits(f"core {core}, K part 0", height * inches[1] / stripes):
            return False
        for stripe in range(stripes):
            middle = y + height * ((stripe + 0.5) / stripes - 0.5)
            axes.text(x, middle, f"core {core + stripe}, K part {stripe}", color=inks[core + stripe], **look)
        return True
    texts = (f"core {core}", str(core)) if core == last else (f"cores {core}-{last}", f"{core}-{last}")
    text = next((text for text in texts if fits(text, height * inches[1])), None)
    if text is not None:
        axes.text(x, y, text, color=inks[core], **look)
    return text is not None


def _name_rows(axes: Axes, grid: _Grid) -> None:
    """Write on the right which cores have the blocks of a row, of rows as far apart as is readable."""
    per_row = grid.block.E_N * grid.block.E_K
    shown = range(0, grid.rows, -(-grid.rows // _MOST_TICKS))
    side = axes.secondary_yaxis("right")
    middles = [top + height / 2 for _, top, _, height in (grid.rectangle(row, 0) for row in shown)]
    side.set_yticks(middles, labels=[f"{row * per_row:,}-{(row + 1) * per_row - 1:,}" for row in shown])
    side.set_ylabel("cores of a row of blocks" if len(shown) == grid.rows else "cores of some rows of blocks")
    figures.style_axes(side)


def _set_ticks(axes: Axes, grid: _Grid) -> None:
    G, M, _, N = grid.sizes
    block = grid.block
    for axis in (axes.xaxis, axes.yaxis):
        figures.tick_whole(axis)
    if grid.columns < _MOST_TICKS:
        axes.set_xticks([min(column * block.n, N) for column in range(grid.columns + 1)])
    if block.E_G > 1:
        parts = range(0, -(-grid.rows // block.E_M), -(-block.E_G // _MOST_TICKS))
        ends = [(part * block.g, min(G, (part + 1) * block.g) - 1) for part in parts]
        names = [f"batch\n{first}" if first == last else f"batch\n{first}-{last}" for first, last in ends]
        axes.set_yticks([(part + 0.5) * M for part in parts], labels=names)
        axes.set_ylabel(f"M ({M:,} rows of C), for each part of the batch")
    elif grid.rows < _MOST_TICKS:
        axes.set_yticks([min(row * block.m, M) for row in range(grid.rows + 1)])


def _say_partition(grid: _Grid, mapping: MulticoreMapping) -> list[str]:
    G, M, K, N = grid.sizes
    block = grid.block
    cuts = ", ".join(f"{name[2]} in {parts}" for name, parts in mapping.partition._asdict().items() if parts > 1)
    cores = f"{block.active_cores:,} of {grid.num_cores:,} cores" + (f": {cuts}" if cuts else "")
    lines = [f"C[{G}, {M}, {N}] over {cores}"]
    if block.E_K > 1:
        last = K - (block.E_K - 1) * block.k
        of_k = f"{block.k:,}" if last == block.k else f"{block.k:,}, the last of {last:,}"
        lines.append(f"{block.E_K} cores a block, each with a part of K: {of_k}")
        lines.append("stripes: the share that a core finishes in the reduction")
    if G > 1 and block.E_G == 1:
        lines.append(f"every core computes its block of all {G:,} batch elements, one after the other")
    idle = grid.num_cores - block.active_cores
    if idle:
        names = f"cores {block.active_cores}-{grid.num_cores - 1}" if idle > 1 else f"core {block.active_cores}"
        lines.append(f"idle: {idle:,} ({names})")
    if grid.rows < grid.num_rows or grid.columns < block.E_N:
        lines.append(f"drawn: the first {grid.rows} x {grid.columns} of {grid.num_rows:,} x {block.E_N:,} blocks")
    return lines


def sram_parts(p: Any, mapping: MulticoreMapping) -> dict[str, int]:
    """SRAM bytes by operand, buffers included, as MODEL.md has them: together `GEMMResult.sram_used_bytes`."""
    tile_m, tile_n, tile_k = mapping.tile

    def padded(rows: int, row_half_bits: int) -> int:
        lanes, align = int(p["lane_num"]), int(p["align_bytes"])
        row_bytes = (row_half_bits + 15) // 16
        return -(-rows // lanes) * lanes * (-(-row_bytes // align) * align)

    of_a, of_b, of_c = (int(p[f"{name}_buffers"]) for name in "abc")
    times = {0: "", 1: "", 2: "2 x "}
    parts = {
        f"{times[of_a]}A": of_a * padded(tile_m, tile_k * int(p["a_half_bits"])),
        f"{times[of_b]}B": of_b * padded(tile_k, tile_n * int(p["b_half_bits"])),
    }
    if p["is_quantized"]:
        groups = -(-tile_k // int(p["group_size"])) if p["group_size"] > 0 else 1
        parts[f"{times[of_b]}scales"] = of_b * padded(groups, tile_n * int(p["group_half_bits"]))
    if p["has_dequant_copy"]:
        parts["dequantized B"] = padded(tile_k, tile_n * int(p["a_half_bits"]))
    parts[f"{times[of_c]}C"] = of_c * padded(tile_m, tile_n * int(p["acc_half_bits"]))
    return parts
