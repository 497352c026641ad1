"""`plot_mapping`: what a mapping does with a GEMM, on a multi-core chip or in the waves of a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval import figures
from gemm_eval.arch import GpuSpec
from gemm_eval.errors import InvalidInputError, UnsupportedError
from gemm_eval.evaluate import GEMMResult, Kind
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder
from gemm_eval.models.gpu.families import FAMILIES
from gemm_eval.models.gpu.w4a16 import GROUPED_FAMILIES
from gemm_eval.report.plots.mapping_multicore import draw_memory_bar, draw_partition
from gemm_eval.units import time_text
from gemm_eval.words import shown
from gemm_eval.workload import RunOptions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_MOST_CELLS = 256  # rows or columns of tiles that are drawn
_MOST_EDGES = 96  # more tiles across are drawn without edges
_FEW_EDGES = 64
_MOST_BARS = 12
_PATH = 10  # tiles that the arrow of the raster passes
_MOST_ROWS_OF_PATH = 64  # more are too flat for an arrow
_LAST = figures.SERIES[1]


@figures.styled
def plot_mapping(result: GEMMResult) -> Figure:
    """Draw the mapping of a result.

    A multi-core chip: C, cut into the blocks of the cores, edge blocks true to size, and which cores stay idle (the
    model does not number cores; here G is outermost, then M, N and K). Beside it the block of core 0: A, B and C cut
    into tiles, the first of each filled, with arrows along the first steps of the loops; below it what the tiles take
    of one core's SRAM, buffers included, in the same colours. Where K is split, the cores of a block each sum one part
    of K over all of it; the stripes in the block are the shares that each of them finishes in the reduction.

    A GPU: C, cut into the tiles of the CTAs, coloured by the wave in which they run under the kernel's raster (clusters
    stay together, the parts of a split K follow each other), the last wave standing out. Beside it how many CTAs each
    wave has, of those that the GPU can hold; below it the shared memory of one SM.

    Batch elements lie below each other. What is too fine to be seen is cut off, and the title says so; where
    blocks are too small for numbers, those of whole rows of blocks stand on the right.
    Raises InvalidInputError (not a `GEMMResult`); UnsupportedError (groups of the problem differ).
    """
    if not isinstance(result, GEMMResult):
        raise InvalidInputError(f"result must be a GEMMResult, got {shown(result)}")
    arch, problem = result.arch, result.problem
    if not isinstance(arch, GpuSpec):
        return draw_partition(result)
    if problem.is_grouped:
        raise UnsupportedError(
            f"the waves of {problem} cannot be drawn: its groups differ; draw a group alone, or plot_breakdown"
        )
    waves = _find_waves(result)
    colors = _wave_colors(len(waves.ctas))
    figure = figures.new_figure(9.6, 5.9)
    panels = figure.subplot_mosaic([["tiles", "ctas"], ["smem", "smem"]], height_ratios=[11, 1], width_ratios=[5, 3])
    _draw_tiles(panels["tiles"], waves, result, colors)
    _draw_ctas(panels["ctas"], waves, colors)
    resident = -(-int(waves.ctas[0]) // result.active_cores)
    name = f"{resident} CTA{'s' if resident > 1 else ''}, stages and all"
    parts = {name: (result.sram_used_bytes, figures.SERIES[0])}
    draw_memory_bar(panels["smem"], parts, arch.smem_per_sm_bytes, "there is", "shared memory of one SM")
    words = f"{problem} on {arch.name}: {time_text(result.latency_us)}, bound: {result.bound}"
    figure.suptitle(f"{words}\n{result.mapping}")
    return figure


class _Waves(NamedTuple):
    """When each tile of C runs."""

    config: KernelConfig
    rows: npt.NDArray[np.int64]  # [num_rows + 1]: edges of tiles along M, batch elements below each other
    columns: npt.NDArray[np.int64]  # [num_columns + 1]: edges along N
    order: npt.NDArray[np.int64]  # [num_rows, num_columns]: number of a tile in the order of the raster
    wave: npt.NDArray[np.int64]  # [num_rows, num_columns]: in which its last CTA runs, from 0
    ctas: npt.NDArray[np.int64]  # [num_waves]: CTAs of a wave, those of padding included
    slots: int  # CTAs that the GPU holds at once
    num_batches: int  # batch elements in the picture
    parts: int  # CTAs that share a tile


def _find_waves(result: GEMMResult) -> _Waves:
    config = result.mapping
    assert isinstance(config, KernelConfig)
    backend, problem = result.backend, result.problem
    params = backend.pack(Kind(problem.types, RunOptions(**result.options)))
    record = backend.replay(problem, params, config)[0]
    tiles_m, tiles_n = -(-problem.M // config.cta_m), -(-problem.N // config.cta_n)
    clusters_m, clusters_n = -(-tiles_m // config.cluster_m), -(-tiles_n // config.cluster_n)
    padded = clusters_m * config.cluster_m * clusters_n * config.cluster_n
    # kernels of one GEMM are launched anew for every element of a batch: the picture is that of one launch
    family = FAMILIES[config.family]
    num_launches = problem.G if family.is_ours and family.number not in GROUPED_FAMILIES else 1
    num_batches = problem.G // num_launches
    num_waves = int(record["num_waves"]) // num_launches
    last_wave_frac = float(record["last_wave_frac"])
    order = _raster(config, clusters_m, clusters_n)[:tiles_m, :tiles_n]
    order = np.concatenate([order + batch * padded for batch in range(num_batches)])
    parts = _num_parts(config, problem.K)
    if config.decomposition is Decomposition.STREAM_K:
        num_ctas = int(record["num_ctas"]) // num_launches
    else:
        num_ctas = num_batches * padded * parts
    slots = round(num_ctas / (num_waves - 1 + last_wave_frac))  # all waves but the last take every slot
    ctas = np.minimum(slots, num_ctas - slots * np.arange(num_waves))
    if config.decomposition is Decomposition.STREAM_K:
        wave = np.zeros_like(order)
    else:
        wave = ((order + 1) * parts - 1) // slots
    rows = [np.minimum(np.arange(tiles_m) * config.cta_m, problem.M) + b * problem.M for b in range(num_batches)]
    return _Waves(
        config,
        np.append(np.concatenate(rows), num_batches * problem.M),
        np.append(np.arange(tiles_n) * config.cta_n, problem.N),
        order, wave, ctas, slots, num_batches, parts,
    )  # fmt: skip


def _num_parts(config: KernelConfig, K: int) -> int:
    """CTAs that share a tile of C."""
    if FAMILIES[config.family].is_ours:
        return config.split_k
    steps = -(-K // config.cta_k)
    return -(-steps // -(-steps // config.split_k))  # parts without a k-step do nothing


def _raster(config: KernelConfig, clusters_m: int, clusters_n: int) -> npt.NDArray[np.int64]:
    """Return the place of each tile [tiles_m, tiles_n] in a raster: bands of `raster_swizzle` tiles, whole clusters."""
    is_along_m = config.raster_order is RasterOrder.ALONG_M
    along, across = (clusters_m, clusters_n) if is_along_m else (clusters_n, clusters_m)
    width = max(1, config.raster_swizzle // (config.cluster_n if is_along_m else config.cluster_m))
    step, lane = np.meshgrid(np.arange(along), np.arange(across), indexing="ij")
    band = lane // width
    band_width = np.minimum(width, across - band * width)
    number = band * width * along + step * band_width + lane % width
    cluster = number if is_along_m else number.T
    size = config.cluster_m * config.cluster_n
    inside = np.arange(size).reshape(config.cluster_m, config.cluster_n)
    return np.kron(cluster * size, np.ones_like(inside)) + np.tile(inside, cluster.shape)


def _draw_tiles(axes: Axes, waves: _Waves, result: GEMMResult, colors: list[str]) -> None:
    from matplotlib.colors import ListedColormap

    # the last wave ends in the last corner: what does not fit is cut off at the other side
    top, left = (max(0, size - _MOST_CELLS) for size in waves.wave.shape)
    shown = waves.wave[top:, left:]
    size = max(shown.shape)
    width = 0.4 if size <= _FEW_EDGES else 0.2 if size <= _MOST_EDGES else 0.0
    axes.pcolormesh(
        waves.columns[left:], waves.rows[top:], shown, cmap=ListedColormap(colors), vmin=-0.5, vmax=len(colors) - 0.5,
        edgecolors=figures.SURFACE if width else "none", linewidth=width,
    )  # fmt: skip
    M, N = result.problem.M, result.problem.N
    axes.set(xlim=(waves.columns[left], N), ylim=(waves.rows[-1], waves.rows[top]))
    axes.set(xlabel="N (columns of C)", ylabel="M (rows of C)")
    for batch in range(1, waves.num_batches):
        if waves.rows[top] < batch * M and shown.shape[0] <= _MOST_EDGES:
            axes.axhline(batch * M, color=figures.TEXT, linewidth=1.0)
    if waves.num_batches > 1:
        axes.set_ylabel("M (rows of C), batch elements below each other")
    has_path = top == left == 0 and waves.order.size > 1 and len(waves.order) <= _MOST_ROWS_OF_PATH
    if has_path:
        _draw_raster(axes, waves, colors)
    figures.style_axes(axes)
    for axis in (axes.xaxis, axes.yaxis):
        figures.tick_whole(axis)
    lines = _say_tiles(waves, result, top, left)
    if has_path:
        lines.append(f"arrow: the first {min(_PATH, waves.order.size)} tiles in the order of the raster")
    axes.set_title("\n".join(lines), fontsize=figures.SMALL + 0.5)


def _wave_colors(num_waves: int) -> list[str]:
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    full = colormaps[figures.RAMP](np.linspace(0.3, 0.95, max(1, num_waves - 1)))[: num_waves - 1]
    return [*map(to_hex, full), _LAST]


def _draw_raster(axes: Axes, waves: _Waves, colors: list[str]) -> None:
    """Draw an arrow through the first tiles, in their order."""
    first = np.argsort(waves.order, axis=None)[:_PATH]
    row, column = np.unravel_index(first, waves.order.shape)
    x = (waves.columns[column] + waves.columns[column + 1]) / 2
    y = (waves.rows[row] + waves.rows[row + 1]) / 2
    ink = figures.ink_on(colors[waves.wave.flat[first[0]]])
    axes.plot(x, y, color=ink, linewidth=1.0, marker="o", markersize=2.0)
    arrow = {"arrowstyle": "-|>", "color": ink, "linewidth": 1.0, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (x[-1], y[-1]), (x[-2], y[-2]), arrowprops=arrow)


def _say_tiles(waves: _Waves, result: GEMMResult, top: int, left: int) -> list[str]:
    config, problem = waves.config, result.problem
    num_rows, num_columns = waves.wave.shape
    lines = [f"C[{problem.G}, {problem.M}, {problem.N}] in {num_rows:,} x {num_columns:,} tiles of "
             f"{config.cta_m} x {config.cta_n}"]  # fmt: skip
    if config.decomposition is Decomposition.STREAM_K:
        lines.append(f"stream-K: {waves.ctas[0]:,} CTAs share all k-steps evenly, there are no waves")
    elif waves.parts > 1:
        lines.append(f"split-K: {waves.parts} CTAs a tile, each with a part of K = {problem.K:,}")
    if waves.num_batches < problem.G:
        lines.append(f"one of {problem.G:,} launches: the kernel has no batch")
    if top or left:
        drawn = f"{num_rows - top} x {num_columns - left}"
        lines.append(f"drawn: the last {drawn} of {num_rows:,} x {num_columns:,} tiles")
    return lines


def _draw_ctas(axes: Axes, waves: _Waves, colors: list[str]) -> None:
    num_waves = len(waves.ctas)
    first = max(0, num_waves - _MOST_BARS)
    numbers = np.arange(first, num_waves) + 1
    axes.barh(numbers, waves.ctas[first:], 0.8, color=colors[first:])
    for number, ctas, color in zip(numbers.tolist(), waves.ctas[first:].tolist(), colors[first:], strict=True):
        axes.annotate(
            f"{ctas:,}", (ctas, number), (-4, 0), textcoords="offset points", ha="right", va="center",
            fontsize=figures.SMALL, color=figures.ink_on(color),
        )  # fmt: skip
    axes.axvline(waves.slots, color=figures.TEXT, linewidth=1.5)
    axes.set(xlabel="CTAs", ylabel="wave", ylim=(num_waves + 0.6, first + 0.4), xlim=(0, 1.08 * waves.slots))
    figures.add_grid(axes, axis="x")
    figures.tick_whole(axes.xaxis)
    axes.set_yticks(numbers, labels=[f"{number:,}" for number in numbers.tolist()])
    fill = waves.ctas[-1] / waves.slots
    what = "1 wave," if num_waves == 1 else f"{num_waves:,} waves, the last"
    lines = [f"{what} {fill:.0%} full", f"line: the {waves.slots:,} CTAs that the GPU holds"]
    if first:
        lines.append(f"drawn: the last {_MOST_BARS}")
    axes.set_title("\n".join(lines), fontsize=figures.SMALL + 0.5)
