"""Plots of rates: the roofline of a chip with GEMMs under it, and latency and rate over M."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval import figures
from gemm_eval.arch import GpuSpec
from gemm_eval.errors import InvalidInputError
from gemm_eval.evaluate import GEMMEvaluator, GEMMResult, GEMMTable
from gemm_eval.transformer import LayerGemm

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox


Floats = npt.NDArray[np.float64]

_TFLOP_PER_GB = 1e-3  # GB/s times FLOP/byte is GFLOP/s
_MARGIN = 2.2  # factor between the outermost points and the edges
_ROOF_DASHES = ("-", "--", "-.", ":")
_AREAS, _PLAIN_AREA = (22.0, 420.0), 40.0  # of a marker, square points: of no share, of all the time; of unknown shares
_LEGEND_SHARES = (0.05, 0.25, 0.5)


@figures.styled
def plot_roofline(evaluator: GEMMEvaluator, gemms: Iterable[Any], *, names: Sequence[str] | None = None) -> Figure:
    """Plot what GEMMs achieve under the roofline of a chip, log-log.

    Across lies arithmetic intensity, FLOP per byte of DRAM traffic as the best mapping of each GEMM causes it (reloads
    and spills too, not the least that is possible); upward the achieved rate in TFLOP/s. The sloping roof is the DRAM
    bandwidth that large transfers achieve; the flat ones are what the compute units can do, one for each input type in
    use (GPUs: the tensor cores at the clock that they run at under full load). Colour and shape of a marker say what
    limits that GEMM; its area says which share of the whole time it takes, if the GEMMs say how often they run.

    Args:
        evaluator: a multi-core chip or a GPU.
        gemms: `GemmProblem`, (G, M, K, N) in the chip's default type, or `LayerGemm` of a model, which have names and
            counts.
        names: of the GEMMs; written beside their markers where there is room. Default: those of `LayerGemm`.
    Raises InvalidInputError (no GEMMs, or not as many names); InvalidProblemError, UnsupportedError, InfeasibleError
    (as `GEMMEvaluator.evaluate_many`).
    """
    from matplotlib.lines import Line2D

    gemms = list(gemms)
    if not gemms:
        raise InvalidInputError("gemms must hold at least one GEMM, got none")
    if names is not None and len(names) != len(gemms):
        raise InvalidInputError(f"names must be as many as gemms ({len(gemms)}), got {len(names)}")
    results = list(evaluator.evaluate_many([gemm.problem if isinstance(gemm, LayerGemm) else gemm for gemm in gemms]))
    areas = np.full(len(results), _PLAIN_AREA)
    are_layers = all(isinstance(gemm, LayerGemm) for gemm in gemms)
    if are_layers:
        names = [gemm.name for gemm in gemms] if names is None else names
        times_us = np.array([gemm.total_count * result.latency_us for gemm, result in zip(gemms, results, strict=True)])
        areas = _area(times_us / times_us.sum())
    intensity = np.array([result.flop / max(result.dram_bytes, 1) for result in results])
    rate = np.array([result.tflop_per_s for result in results])

    figure = figures.new_figure(7.4, 5.4)
    axes = figure.add_subplot()
    roofs = _roofs(evaluator, results, intensity)
    handles: list[Artist] = []
    for place, (name, across, up) in enumerate(roofs):
        color = figures.bound_color("dram" if place == 0 else "compute")
        dashes = _ROOF_DASHES[max(place - 1, 0) % len(_ROOF_DASHES)]
        handles += axes.plot(across, up, color=color, linestyle=dashes, label=name, zorder=3)
    bounds = np.array([result.bound for result in results])
    for bound in sorted(set(bounds.tolist()), key=list(figures.BOUND_MARKERS).index):
        rows = bounds == bound
        look: dict[str, Any] = {"color": figures.bound_color(bound), "marker": figures.BOUND_MARKERS[bound]}
        axes.scatter(
            intensity[rows], rate[rows], s=areas[rows], alpha=0.85, edgecolors=figures.SURFACE, linewidths=0.5,
            zorder=4, **look,
        )  # fmt: skip
        handles.append(Line2D([], [], linestyle="", markersize=6, label=f"bound: {bound}", **look))
    axes.set(xscale="log", yscale="log")
    axes.set_xlim(min(across.min() for _, across, _ in roofs), max(across.max() for _, across, _ in roofs))
    lowest = min(rate.min(), *(up.min() for *_, up in roofs))
    axes.set_ylim(lowest / _MARGIN, max(up.max() for *_, up in roofs) * _MARGIN)
    figures.add_grid(axes)
    figures.scale_axis(axes.xaxis, "arithmetic intensity (FLOP per DRAM byte)", intensity, is_log=True)
    figures.scale_axis(axes.yaxis, "achieved_rate_tflop_per_s", rate, is_log=True)
    axes.set_title(f"Roofline of {evaluator.arch.name}: {len(results)} GEMMs")
    if are_layers:
        handles += [
            Line2D(
                [], [], linestyle="", marker="o", markersize=float(_area(np.array(share))) ** 0.5,
                markerfacecolor="none", markeredgecolor=figures.MUTED, label=f"{share:.0%} of the time",
            )
            for share in _LEGEND_SHARES
        ]  # fmt: skip
    figures.add_legend(figure, handles)
    if names is not None:
        place_labels(axes, intensity, rate, names, areas)
    return figure


def _area(share: Floats) -> Floats:
    return _AREAS[0] + (_AREAS[1] - _AREAS[0]) * share


def _roofs(
    evaluator: GEMMEvaluator, results: Sequence[GEMMResult], intensity: Floats
) -> list[tuple[str, Floats, Floats]]:
    """Return the roofs as (name, intensity, rate): that of DRAM up to the highest compute roof, then the flat ones."""
    arch = evaluator.arch
    compute: dict[str, float] = {}
    for result in results:
        dtype = result.problem.input_dtype
        if isinstance(arch, GpuSpec):
            clock = result.options["clock"]
            rate = arch.tensor_tflop_per_s(dtype, clock)
            compute[f"{dtype} tensor cores, {clock} clock: {rate:,.4g} TFLOP/s"] = rate
        else:
            rate = arch.highest_tflop_per_s(dtype)
            compute[f"{dtype} matrix units: {rate:,.4g} TFLOP/s"] = rate
    dram_gb_per_s = arch.dram_gb_per_s * arch.dram_efficiency_frac
    slope = dram_gb_per_s * _TFLOP_PER_GB
    ridges = {name: rate / slope for name, rate in sorted(compute.items(), key=lambda roof: -roof[1])}
    low = min(intensity.min(), *ridges.values()) / _MARGIN
    high = max(intensity.max(), *ridges.values()) * _MARGIN
    up = np.array([low, max(ridges.values())])
    flat = [(name, np.array([ridge, high]), np.full(2, compute[name])) for name, ridge in ridges.items()]
    return [(f"DRAM, achievable: {dram_gb_per_s:,.4g} GB/s", up, up * slope), *flat]


_RADII = (2.5, 8.0, 15.0, 24.0, 35.0, 49.0, 65.0)  # points from the edge of a marker
_NEAR = 8.0  # points; a label farther away gets a line to its point
_ANGLES = (0.35, 2.8, -0.35, -2.8, 1.57, -1.57, 0.9, 2.2, -0.9, -2.2)  # to the right of the point first
_PADDING = 4.0  # points inside the edges of the axes; another dpi moves texts a little
_EDGE = 1.0  # points around a marker that are kept free
_LINE_PIECES = 200  # of a line, for boxes that cover it
_LEADER_PIECES = 16
_LINE_REACH = 0.5  # pixels


def place_labels(axes: Axes, x: Floats, y: Floats, texts: Sequence[str], areas: Floats) -> None:
    """Write a text beside each point, where it covers no other text, point or line; one without room is left out.

    `areas` of the markers are in square points. Limits and scales of the axes must be final.
    """
    from matplotlib.transforms import Bbox

    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # settles the layout, so that positions on the page are known
    per_point = figure.dpi / 72.0
    reaches = ((np.sqrt(areas) / 2 + _EDGE) * per_point).tolist()
    places = axes.transData.transform(np.column_stack([x, y])).tolist()
    taken = [box for line in axes.get_lines() for box in _boxes_of_line(line)]
    taken += [Bbox.from_extents(px - r, py - r, px + r, py + r) for (px, py), r in zip(places, reaches, strict=True)]
    inside = axes.get_window_extent().padded(-_PADDING * per_point)
    written: list[Bbox] = []
    for text, at, place, reach in zip(texts, zip(x.tolist(), y.tolist(), strict=True), places, reaches, strict=True):
        label = axes.annotate(
            text, at, (0, 0), textcoords="offset points", fontsize=figures.SMALL, in_layout=False, zorder=6
        )
        for radius, angle in itertools.product(_RADII, _ANGLES):
            distance = radius + reach / per_point
            dx, dy = distance * np.cos(angle), distance * np.sin(angle)
            label.set_position((dx, dy))
            label.set_horizontalalignment("center" if abs(np.cos(angle)) < 0.3 else "left" if dx > 0 else "right")
            label.set_verticalalignment("center" if abs(np.sin(angle)) < 0.5 else "bottom" if dy > 0 else "top")
            box = label.get_window_extent()
            fits = inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1
            if not fits or box.count_overlaps(taken):
                continue
            end = (place[0] + dx * per_point, place[1] + dy * per_point)
            leader = _boxes_along(place, end, _LEADER_PIECES) if radius > _NEAR else []
            if any(piece.count_overlaps(written) for piece in leader):
                continue
            taken += [box, *leader]
            written.append(box)
            if leader:
                line = {"arrowstyle": "-", "linewidth": 0.5, "color": figures.MUTED, "shrinkA": 0.0, "shrinkB": 3.0}
                offset: dict[str, Any] = {"textcoords": "offset points", "arrowprops": line, "in_layout": False}
                axes.annotate("", at, (dx, dy), zorder=2, **offset)
            break
        else:
            label.remove()


def _boxes_of_line(line: Any) -> list[Bbox]:
    corners = np.asarray(line.get_transform().transform_path(line.get_path()).vertices, float)
    pieces = _LINE_PIECES // max(1, len(corners) - 1) + 1
    return [box for start, end in itertools.pairwise(corners) for box in _boxes_along(start, end, pieces)]


def _boxes_along(start: Any, end: Any, pieces: int) -> list[Bbox]:
    """Boxes that cover a straight line; `count_overlaps` takes no box without a width or a height."""
    from matplotlib.transforms import Bbox

    steps = np.linspace(start, end, pieces + 1)
    return [Bbox([a, b]).padded(_LINE_REACH) for a, b in itertools.pairwise(steps)]


_ROWS = range(1, 513)
_MOST_MARKERS = 40  # values of M whose points are drawn one by one
_MOST_SECTIONS = 24  # more are not readable
_LEAST_LABEL_FRAC = 0.025  # of the axis, for the label of a section
_BAND_ALPHA = 0.22  # of the interval that holds 80% of measured times
_PARTITION = ("P_G", "P_M", "P_N", "P_K")
_TILE = ("cta_m", "cta_n", "split_k")


@figures.styled
def plot_latency_over_m(
    evaluators: GEMMEvaluator | Iterable[GEMMEvaluator],
    K: int,
    N: int,
    *,
    M: Iterable[int] = _ROWS,
    G: int = 1,
    dtype: str | None = None,
) -> Figure:
    """Plot latency, and below it the rate, over M of C[G,M,N] = A[G,M,K] x B[G,K,N].

    Every value is an evaluation of its own; between two of them the line stays where it is and then steps, or, where
    values lie octaves apart and many steps are left out, goes straight. A band around latencies is the interval
    that holds 80% of measured times, if known. Of a single chip, sections show where the best mapping changes: on a
    GPU the number of waves (times that all SMs take new CTAs), with marks on the axis where the tile or the split
    of K changes; on a multi-core chip the partition over cores. Where they change too often to be readable, the
    legend says how often instead.

    Args:
        evaluators: one, or several to compare, up to eight.
        K, N, G: sizes.
        M: the values, 1 to 512 by default. Powers of two and the like get logarithmic axes.
        dtype: as in `GEMMEvaluator.evaluate`; None: every chip's own default.
    Raises InvalidInputError (no evaluator or more than eight, no M); InvalidProblemError, UnsupportedError,
    InfeasibleError (as `GEMMEvaluator.evaluate_many`).
    """
    from matplotlib.patches import Patch

    given = [evaluators] if isinstance(evaluators, GEMMEvaluator) else list(evaluators)
    if not 1 <= len(given) <= len(figures.SERIES):
        raise InvalidInputError(f"evaluators must be 1 to {len(figures.SERIES)}, got {len(given)}")
    rows = np.array(sorted(set(M)))
    if not len(rows):
        raise InvalidInputError("M must hold at least one value, got none")
    tables = [evaluator.evaluate_many([(G, m, K, N) for m in rows.tolist()], dtype) for evaluator in given]
    title = f"{f'G={G} ' if G > 1 else ''}K={K:,} N={N:,}, {dtype or 'default data types'}"
    if len(given) == 1:
        title = f"{given[0].arch.name}: {title.replace('default data types', tables[0]['input_dtype'][0])}"
    gaps = np.diff(rows)
    is_even = len(gaps) == 0 or bool(gaps.max() <= 2 * gaps.min())  # else over octaves, and times and rates span many

    figure = figures.new_figure(7.6, 5.4)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    handles: list[Artist] = []
    banded: list[int] = []
    for place, table in enumerate(tables):
        color, marker = figures.SERIES[place], figures.MARKERS[place] if len(rows) <= _MOST_MARKERS else ""
        for axes, column in ((above, "latency_us"), (below, "tflop_per_s")):
            handles[place:] = axes.plot(
                rows, table[column], drawstyle="steps-post" if is_even else "default", color=color,
                linestyle=figures.DASHES[place], marker=marker, markersize=3.5, label=given[place].arch.name,
            )  # fmt: skip
        if not np.isnan(table["low_us"]).any():
            banded.append(place)
            above.fill_between(
                rows, table["low_us"], table["high_us"], step="post" if is_even else None, color=color,
                alpha=_BAND_ALPHA, linewidth=0,
            )  # fmt: skip
    if banded:
        color = figures.SERIES[banded[0]] if len(banded) == 1 else figures.MUTED
        label = "band: 80% of measured times expected" + ("" if len(banded) in (1, len(tables)) else ", where known")
        handles.append(Patch(color=color, alpha=_BAND_ALPHA, linewidth=0, label=label))
    for axes, column, name in ((above, "latency_us", "latency_us"), (below, "tflop_per_s", "rate_tflop_per_s")):
        figures.add_grid(axes)
        if is_even:
            axes.set_ylim(bottom=0)
        else:
            axes.set_yscale("log")
        values = np.concatenate([table[column] for table in tables])
        figures.scale_axis(axes.yaxis, name, values, is_log=not is_even)
    below.set_xlabel(figures.ROWS_LABEL)
    if not is_even:
        figures.set_rows_axis(below, float(rows[0]), float(rows[-1]))
    elif len(rows) > 1:
        below.set_xlim(rows[0], rows[-1])
    if len(tables) == 1:
        handles += _mark_changes(above, below, tables[0], rows, is_even=is_even)
    above.set_title(title)
    figures.add_legend(figure, handles)
    figure.align_ylabels()
    return figure


class _Sections(NamedTuple):
    """Runs of M in which the same thing holds."""

    what: str
    starts: list[int]  # places in M, the first being 0
    labels: list[str]


def _find_sections(table: GEMMTable) -> _Sections:
    if isinstance(table.evaluator.arch, GpuSpec):
        waves = table.records["num_waves"]
        starts = [0, *(np.flatnonzero(np.diff(waves)) + 1).tolist()]
        return _Sections("number of waves", starts, [str(waves[start]) for start in starts])
    starts = [0, *_changes(table, _PARTITION)]
    labels = [
        "\n".join(f"{name[2]}{table[name][start]}" for name in _PARTITION if table[name][start] > 1) or "1 core"
        for start in starts
    ]
    return _Sections("partition over cores", starts, labels)


def _changes(table: GEMMTable, columns: tuple[str, ...]) -> list[int]:
    """Rows in which one of these columns differs from the row before."""
    values = np.column_stack([table[name] for name in columns])
    return (np.flatnonzero((values[1:] != values[:-1]).any(axis=1)) + 1).tolist()


def _mark_changes(
    above: Axes, below: Axes, table: GEMMTable, rows: npt.NDArray[np.int64], *, is_even: bool
) -> list[Artist]:
    """Shade the sections, mark changes of the tile, and return what the legend says of them."""
    from matplotlib.patches import Patch

    sections = _find_sections(table)
    num_changes = len(sections.starts) - 1
    if num_changes >= _MOST_SECTIONS:
        return [Patch(alpha=0.0, label=f"the {sections.what} changes {num_changes} times")]
    label = f"sections: {sections.what}, on top"
    handles: list[Artist] = [
        Patch(facecolor=figures.LINE, edgecolor=figures.MUTED, linewidth=0.5, alpha=0.5, label=label)
    ]
    to_axis, from_axis = (np.asarray, float) if is_even else (np.log2, np.exp2)
    places = to_axis(rows)
    above.margins(y=0.16)  # room for the labels
    if is_even:
        above.set_ylim(bottom=0)
    ends = [*sections.starts[1:], len(rows) - 1]
    for number, (start, end, label) in enumerate(zip(sections.starts, ends, sections.labels, strict=True)):
        for axes in (above, below):
            alpha = (0.0, 0.5)[number % 2]
            axes.axvspan(rows[start], rows[end], color=figures.LINE, alpha=alpha, linewidth=0, zorder=0)
        needed = _LEAST_LABEL_FRAC * max(1.0, 0.55 * max(map(len, label.split("\n"))))
        if places[end] - places[start] >= needed * (places[-1] - places[0]):
            above.text(
                from_axis((places[start] + places[end]) / 2), 0.98, label, transform=above.get_xaxis_transform(),
                ha="center", va="top", fontsize=figures.SMALL - 0.75, color=figures.MUTED,
            )  # fmt: skip
    tiles = _changes(table, _TILE) if isinstance(table.evaluator.arch, GpuSpec) else []
    if tiles:
        handles += below.plot(
            rows[tiles], np.zeros(len(tiles)), linestyle="", marker="^", markersize=5, color=figures.TEXT,
            clip_on=False, transform=below.get_xaxis_transform(), label="tile or split of K changes",
        )  # fmt: skip
    return handles
