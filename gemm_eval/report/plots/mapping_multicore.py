"""The picture of a multi-core mapping: blocks of cores, tiles of a block, SRAM."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gemm_eval.arch import MulticoreSpec
from gemm_eval.errors import UnsupportedError
from gemm_eval.evaluate import GEMMResult
from gemm_eval.extras import needs_extra
from gemm_eval.mapping import MulticoreMapping
from gemm_eval.models.multicore import Block, batch_sizes, block_of, pack_params
from gemm_eval.report.plots.memory import draw_memory_bar
from gemm_eval.report.plots.style import COLORS, FILLS, GRAY, SMALL, TITLE, new_figure, use_whole_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_partition"]

_MOST_CELLS = 64  # rows or columns of blocks or tiles that are drawn
_MOST_STRIPES = 4096  # of all blocks together
_MOST_TICKS = 9
_STEPS = 6  # tiles of C on the path
_AXES_INCHES = (4.3, 3.9)  # about the size of the panel with the blocks, to see which texts fit
_LETTER_INCHES, _LINE_INCHES = 0.075, 0.13


class _Grid(NamedTuple):
    """What of C each core has; core numbers count G, M, N, K, the last fastest."""

    block: Block  # the full one
    sizes: tuple[int, int, int, int]  # G, M, K, N
    num_cores: int

    @property
    def num_rows(self) -> int:
        """Rows of blocks, batch parts below each other."""
        return self.block.E_G * self.block.E_M

    def rectangle(self, row: int, column: int) -> tuple[int, int, int, int]:
        """Left, top, width and height of a block, in elements; batch part g begins at row g*M."""
        _, M, _, N = self.sizes
        part, row = divmod(row, self.block.E_M)
        top, left = row * self.block.m, column * self.block.n
        return left, part * M + top, min(self.block.n, N - left), min(self.block.m, M - top)

    def first_core(self, row: int, column: int) -> int:
        """The first of the E_K cores of a block."""
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
    figure = new_figure(9.6, 5.9)
    panels = figure.subplot_mosaic([["chip", "block"], ["sram", "sram"]], height_ratios=[11, 1], width_ratios=[6, 5])
    grid = _Grid(block_of(params, *sizes, *mapping.partition), sizes, arch.num_cores)
    _draw_blocks(panels["chip"], grid, mapping)
    _draw_tiles(panels["block"], grid.block, mapping)
    draw_memory_bar(panels["sram"], _sram_parts(params, mapping), arch.sram_usable_bytes, "usable", "SRAM of one core")
    figure.suptitle(f"{problem} on {arch.name}: {result.latency_us:,.4g} us, bound: {result.bound}", fontsize=TITLE)
    return figure


def _draw_blocks(axes: Axes, grid: _Grid, mapping: MulticoreMapping) -> None:
    with needs_extra("plotting", "plot"):
        from matplotlib.collections import PolyCollection

    block = grid.block
    rows, columns = min(grid.num_rows, _MOST_CELLS), min(block.E_N, _MOST_CELLS)
    stripes = block.E_K if rows * columns * block.E_K <= _MOST_STRIPES else 1
    # neighbours differ, and with few cores all do
    is_many = stripes == 1 and rows * columns > len(FILLS)
    corners, colors, labels = [], [], []
    for row, column in itertools.product(range(rows), range(columns)):
        left, top, width, height = grid.rectangle(row, column)
        core = grid.first_core(row, column)
        for stripe in range(stripes):
            y = top + np.array([stripe, stripe + 1]) * (height / stripes)
            corners.append([(left, y[0]), (left + width, y[0]), (left + width, y[1]), (left, y[1])])
            colors.append(FILLS[(3 * row + column if is_many else core + stripe) % len(FILLS)])
        labels.append((left + width / 2, top + height / 2, width, height, core))
    left, top, width, height = grid.rectangle(rows - 1, columns - 1)
    axes.add_collection(PolyCollection(corners, facecolors=colors, edgecolors="white", linewidths=0.6, alpha=0.6))
    axes.set(xlim=(0, left + width), ylim=(top + height, 0), xlabel="N (columns of C)", ylabel="M (rows of C)")
    for row, column in itertools.product(range(rows), range(columns)):
        left, top, width, height = grid.rectangle(row, column)
        if stripes > 1:  # stripes are of one block
            axes.add_patch(_frame(left, top, width, height))
    for label in labels:
        _write_core(axes, *label, block.E_K, stripes)
    _set_ticks(axes, grid, rows, columns)
    axes.set_title("\n".join(_say_partition(grid, mapping, rows, columns)), fontsize=TITLE - 1)


def _frame(left: float, top: float, width: float, height: float) -> Any:
    with needs_extra("plotting", "plot"):
        from matplotlib.patches import Rectangle

    return Rectangle((left, top), width, height, fill=False, edgecolor="black", linewidth=0.8)


def _write_core(axes: Axes, x: float, y: float, width: float, height: float, core: int, E_K: int, stripes: int) -> None:
    """Write the cores into a block: their full names where they fit, else their numbers, else nothing."""
    inches = (
        _AXES_INCHES[0] * width / abs(np.subtract(*axes.get_xlim())),
        _AXES_INCHES[1] * height / abs(np.subtract(*axes.get_ylim())),
    )

    def fits(text: str, tall: float) -> bool:
        return _LETTER_INCHES * len(text) < inches[0] and tall > _LINE_INCHES

    if stripes > 1 and fits(f"core {core}, K part 0", inches[1] / stripes):
        for stripe in range(stripes):
            at = y + height * ((stripe + 0.5) / stripes - 0.5)
            axes.text(x, at, f"core {core + stripe}, K part {stripe}", ha="center", va="center", fontsize=SMALL)
        return
    number = str(core) if E_K == 1 else f"{core}-{core + E_K - 1}"
    for text in (f"core {number}" if E_K == 1 else f"cores {number}", number):
        if fits(text, inches[1]):
            box = {"facecolor": "white", "alpha": 0.7, "pad": 1.0, "linewidth": 0} if stripes > 1 else None
            axes.text(x, y, text, ha="center", va="center", fontsize=SMALL, bbox=box)
            return


def _set_ticks(axes: Axes, grid: _Grid, rows: int, columns: int) -> None:
    G, M, _, N = grid.sizes
    block = grid.block
    use_whole_ticks(axes)
    if columns < _MOST_TICKS:
        axes.set_xticks([min(column * block.n, N) for column in range(columns + 1)])
    if block.E_G > 1:
        parts = range(0, -(-rows // block.E_M), -(-block.E_G // _MOST_TICKS))
        first = [part * block.g for part in parts]
        last = [min(G, start + block.g) - 1 for start in first]
        names = [f"batch\n{a}" if a == b else f"batch\n{a}-{b}" for a, b in zip(first, last, strict=True)]
        axes.set_yticks([(part + 0.5) * M for part in parts], labels=names)
        axes.set_ylabel(f"M ({M:,} rows of C), for each part of the batch")
        for part in range(1, -(-rows // block.E_M)):
            axes.axhline(part * M, color="black", linewidth=1.0)
    elif rows < _MOST_TICKS:
        axes.set_yticks([min(row * block.m, M) for row in range(rows + 1)])


def _say_partition(grid: _Grid, mapping: MulticoreMapping, rows: int, columns: int) -> list[str]:
    G, M, K, N = grid.sizes
    block, split = grid.block, mapping.partition
    cuts = ", ".join(f"{name[2]} in {parts}" for name, parts in split._asdict().items() if parts > 1)
    lines = [f"C[{G}, {M}, {N}] over {block.active_cores} of {grid.num_cores} cores" + (f": {cuts}" if cuts else "")]
    if block.E_K > 1:
        last = K - (block.E_K - 1) * block.k
        of_k = f"{block.k:,}" if last == block.k else f"{block.k:,}, the last of {last:,}"
        lines.append(f"{block.E_K} cores a block, each with a part of K: {of_k}")
        lines.append("stripes: the share that a core finishes in the reduction")
    if G > 1 and block.E_G == 1:
        lines.append(f"every core computes its block of all {G:,} batch elements, one after the other")
    idle = grid.num_cores - block.active_cores
    if idle:
        cores = f"{block.active_cores}-{grid.num_cores - 1}" if idle > 1 else str(block.active_cores)
        lines.append(f"idle: {idle:,} ({'cores' if idle > 1 else 'core'} {cores})")
    if rows < grid.num_rows or columns < block.E_N:
        lines.append(f"drawn: the first {rows} x {columns} of {grid.num_rows:,} x {block.E_N:,} blocks")
    return lines


def _draw_tiles(axes: Axes, block: Block, mapping: MulticoreMapping) -> None:
    with needs_extra("plotting", "plot"):
        from matplotlib.colors import to_rgb

    tile = mapping.tile
    trips = {"m": -(-block.m // tile.tile_m), "n": -(-block.n // tile.tile_n), "k": -(-block.k // tile.tile_k)}
    rows, columns = min(trips["m"], _MOST_CELLS), min(trips["n"], _MOST_CELLS)
    height, width = min(block.m, rows * tile.tile_m), min(block.n, columns * tile.tile_n)
    axes.set(xlim=(0, width), ylim=(height, 0), xlabel="n of the block", ylabel="m of the block")
    axes.hlines(np.minimum(np.arange(rows + 1) * tile.tile_m, height), 0, width, color=GRAY, linewidth=0.7)
    axes.vlines(np.minimum(np.arange(columns + 1) * tile.tile_n, width), 0, height, color=GRAY, linewidth=0.7)
    path = [step for step in _first_steps(mapping, trips) if step[1] < rows and step[2] < columns]
    centers = [(_middle(n, tile.tile_n, block.n), _middle(m, tile.tile_m, block.m)) for _, m, n in path]
    for start, end in itertools.pairwise(centers):
        arrow = {"arrowstyle": "-|>", "color": COLORS[0], "linewidth": 1.1, "shrinkA": 7, "shrinkB": 7}
        axes.annotate("", end, start, arrowprops=arrow)
    for (visit, _, _), center in zip(path, centers, strict=True):
        axes.text(*center, f"{visit:,}", ha="center", va="center", fontsize=SMALL, color=COLORS[0], weight="bold")
    axes.set_title("\n".join(_say_tiles(block, mapping, trips, rows, columns)), fontsize=TITLE - 1)
    axes.set_facecolor((*to_rgb(FILLS[0]), 0.12))  # that of core 0
    use_whole_ticks(axes)


def _middle(place: int, tile: int, size: int) -> float:
    return (place * tile + min((place + 1) * tile, size)) / 2


def _first_steps(mapping: MulticoreMapping, trips: dict[str, int]) -> list[tuple[int, int, int]]:
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


def _say_tiles(block: Block, mapping: MulticoreMapping, trips: dict[str, int], rows: int, columns: int) -> list[str]:
    sizes = dict(zip("mnk", mapping.tile, strict=True))
    loops = mapping.loop_order.name.lower()
    nest = ", ".join(f"{loop} {trips[loop]} x {sizes[loop]}" for loop in loops)
    lines = [
        f"block of core 0: {block.m:,} x {block.n:,}, k {block.k:,}",
        f"loops, outermost first: {f'g {block.g} x 1, ' if block.g > 1 else ''}{nest}",
    ]
    after_k = loops[loops.index("k") + 1 :]
    if trips["k"] > 1 and any(trips[loop] > 1 for loop in after_k):
        lines.append(f"a tile of C leaves SRAM {trips['k']} times; number: its first visit")
    elif trips["k"] > 1:
        lines.append(f"a tile of C stays for {trips['k']} visits along k; number: the first")
    else:
        lines.append("a tile of C has one visit; number: when")
    if rows < trips["m"] or columns < trips["n"]:
        lines.append(f"drawn: the first {rows} x {columns} of {trips['m']:,} x {trips['n']:,} tiles of C")
    return lines


def _sram_parts(p: Any, mapping: MulticoreMapping) -> dict[str, int]:
    """SRAM bytes by operand, buffers included, as MODEL.md has them: together `GEMMResult.sram_used_bytes`."""
    tile_m, tile_n, tile_k = mapping.tile

    def padded(rows: int, row_half_bits: int) -> int:
        lanes, align = int(p["lane_num"]), int(p["align_bytes"])
        row_bytes = (row_half_bits + 15) // 16
        return -(-rows // lanes) * lanes * (-(-row_bytes // align) * align)

    buffers, times = int(p["input_buffers"]), {1: "", 2: "2 x "}
    parts = {
        f"{times[buffers]}A": buffers * padded(tile_m, tile_k * int(p["a_half_bits"])),
        f"{times[buffers]}B": buffers * padded(tile_k, tile_n * int(p["b_half_bits"])),
    }
    if p["is_quantized"]:
        groups = -(-tile_k // int(p["group_size"])) if p["group_size"] > 0 else 1
        parts[f"{times[buffers]}scales"] = buffers * padded(groups, tile_n * int(p["group_half_bits"]))
    if p["has_dequant_copy"]:
        parts["dequantized B"] = padded(tile_k, tile_n * int(p["a_half_bits"]))
    outputs = int(p["output_buffers"])
    parts[f"{times[outputs]}C"] = outputs * padded(tile_m, tile_n * int(p["acc_half_bits"]))
    return parts
