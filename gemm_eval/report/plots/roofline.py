"""The roofline of a chip, and where GEMMs lie under it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval import figures
from gemm_eval.arch import GpuSpec
from gemm_eval.errors import InvalidInputError
from gemm_eval.evaluate import GEMMEvaluator, GEMMResult
from gemm_eval.extras import needs_extra
from gemm_eval.report.plots.shared import place_labels
from gemm_eval.transformer import LayerGemm
from gemm_eval.units import time_text

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_X_LABEL = "arithmetic intensity (FLOP per DRAM byte)"
_Y_LABEL = "achieved rate (TFLOP/s)"
_TFLOP_PER_GB = 1e-3  # GB/s times FLOP/byte is GFLOP/s
_MARGIN = 2.2  # factor between the outermost points and the edges
_ROOF_DASHES = ("-", "--", "-.", ":")
_AREAS = (22.0, 420.0)  # of a marker, square points: of no share, of all the time
_LEGEND_SHARES = (0.05, 0.25, 0.5)


class _Points(NamedTuple):
    """The points that are drawn."""

    results: list[GEMMResult]
    names: list[str]
    is_named: bool
    share: npt.NDArray[np.float64] | None  # of the time of all, repetitions counted
    intensity: npt.NDArray[np.float64]  # FLOP per DRAM byte
    rate: npt.NDArray[np.float64]  # TFLOP/s


class _Roofs(NamedTuple):
    compute: dict[str, float]  # TFLOP/s, by what the legend calls it
    dram_gb_per_s: float


def plot_roofline(
    evaluator: GEMMEvaluator,
    gemms: Iterable[Any],
    *,
    names: Sequence[str] | None = None,
    interactive: bool = False,
) -> figures.AnyFigure:
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
        interactive: return a plotly figure.

    Raises:
        GemmEvalError: matplotlib or plotly is not installed.
        InvalidInputError: no GEMMs, or not as many names.
        InvalidProblemError, UnsupportedError, InfeasibleError: as `GEMMEvaluator.evaluate_many`.
    """
    points = _find_points(evaluator, list(gemms), names)
    roofs = _find_roofs(evaluator, points)
    title = f"Roofline of {evaluator.arch.name}: {len(points.results)} GEMMs"
    return _draw_plotly(points, roofs, title) if interactive else _draw(points, roofs, title)


def _find_points(evaluator: GEMMEvaluator, gemms: list[Any], names: Sequence[str] | None) -> _Points:
    if not gemms:
        raise InvalidInputError("gemms must hold at least one GEMM, got none")
    if names is not None and len(names) != len(gemms):
        raise InvalidInputError(f"names must be as many as gemms ({len(gemms)}), got {len(names)}")
    results = list(evaluator.evaluate_many([gemm.problem if isinstance(gemm, LayerGemm) else gemm for gemm in gemms]))
    are_layers = all(isinstance(gemm, LayerGemm) for gemm in gemms)
    is_named = names is not None or are_layers
    if names is None:
        names = [gemm.name for gemm in gemms] if are_layers else [str(result.problem) for result in results]
    share = None
    if are_layers:
        times_us = np.array([gemm.total_count * result.latency_us for gemm, result in zip(gemms, results, strict=True)])
        share = times_us / times_us.sum()
    return _Points(
        results=results,
        names=list(names),
        is_named=is_named,
        share=share,
        intensity=np.array([result.flop / max(result.dram_bytes, 1) for result in results]),
        rate=np.array([result.tflop_per_s for result in results]),
    )


def _find_roofs(evaluator: GEMMEvaluator, points: _Points) -> _Roofs:
    arch = evaluator.arch
    compute: dict[str, float] = {}
    for result in points.results:
        dtype = result.problem.input_dtype
        if isinstance(arch, GpuSpec):
            clock = result.options["clock"]
            rate = arch.tensor_tflop_per_s(dtype, clock)
            compute[f"{dtype} tensor cores, {clock} clock: {rate:,.4g} TFLOP/s"] = rate
        else:
            rate = arch.highest_tflop_per_s(dtype)
            compute[f"{dtype} matrix units: {rate:,.4g} TFLOP/s"] = rate
    ordered = dict(sorted(compute.items(), key=lambda roof: -roof[1]))
    return _Roofs(ordered, arch.dram_gb_per_s * arch.dram_efficiency_frac)


def _roof_lines(points: _Points, roofs: _Roofs) -> list[tuple[str, npt.NDArray[np.float64], npt.NDArray[np.float64]]]:
    """The lines as (name, intensity, rate): that of DRAM up to the highest compute roof, then the flat ones."""
    slope = roofs.dram_gb_per_s * _TFLOP_PER_GB
    ridges = [rate / slope for rate in roofs.compute.values()]
    low = min(points.intensity.min(), *ridges) / _MARGIN
    high = max(points.intensity.max(), *ridges) * _MARGIN
    up = np.array([low, max(ridges)])
    lines = [(f"DRAM, achievable: {roofs.dram_gb_per_s:,.4g} GB/s", up, up * slope)]
    for (name, rate), ridge in zip(roofs.compute.items(), ridges, strict=True):
        lines.append((name, np.array([ridge, high]), np.array([rate, rate])))
    return lines


@figures.styled
def _draw(points: _Points, roofs: _Roofs, title: str) -> Figure:
    with needs_extra("plotting", "plot"):
        from matplotlib.lines import Line2D

    figure = figures.new_figure(7.4, 5.4)
    axes = figure.add_subplot()
    lines = _roof_lines(points, roofs)
    handles: list[Artist] = []
    for place, (name, intensity, rate) in enumerate(lines):
        handles += axes.plot(
            intensity, rate, color=_roof_color(place), linestyle=_ROOF_DASHES[max(place - 1, 0) % len(_ROOF_DASHES)],
            label=name, zorder=3,
        )  # fmt: skip
    bounds = np.array([result.bound for result in points.results])
    for bound in _in_order(bounds):
        rows = bounds == bound
        look: dict[str, Any] = {"color": figures.bound_color(bound), "marker": figures.BOUND_MARKERS[bound]}
        axes.scatter(
            points.intensity[rows], points.rate[rows], s=_areas(points)[rows], alpha=0.85, edgecolors=figures.SURFACE,
            linewidths=0.5, zorder=4, **look,
        )  # fmt: skip
        handles.append(Line2D([], [], linestyle="", markersize=6, label=f"bound: {bound}", **look))
    _set_limits(axes, points, lines)
    figures.add_grid(axes)
    figures.scale_axis(axes.xaxis, _X_LABEL, points.intensity, is_log=True)
    figures.scale_axis(axes.yaxis, "achieved_rate_tflop_per_s", points.rate, is_log=True)
    axes.set_title(title)
    if points.share is not None:
        handles += [
            Line2D(
                [], [], linestyle="", marker="o", markersize=float(_area(np.array(share))) ** 0.5,
                markerfacecolor="none", markeredgecolor=figures.MUTED, label=f"{share:.0%} of the time",
            )
            for share in _LEGEND_SHARES
        ]  # fmt: skip
    figures.add_legend(figure, handles)
    if points.is_named:
        place_labels(axes, points.intensity, points.rate, points.names, areas=_areas(points))
    return figure


def _roof_color(place: int) -> str:
    """The first roof is that of DRAM, the others are of compute."""
    return figures.bound_color("dram" if place == 0 else "compute")


def _in_order(bounds: npt.NDArray[np.str_]) -> list[str]:
    return sorted(set(bounds.tolist()), key=list(figures.BOUND_MARKERS).index)


def _set_limits(axes: Axes, points: _Points, lines: list[tuple[str, Any, Any]]) -> None:
    axes.set(xscale="log", yscale="log")
    axes.set_xlim(min(line[1].min() for line in lines), max(line[1].max() for line in lines))
    lowest = min(points.rate.min(), *(line[2].min() for line in lines))
    axes.set_ylim(lowest / _MARGIN, max(line[2].max() for line in lines) * _MARGIN)


def _areas(points: _Points) -> npt.NDArray[np.float64]:
    if points.share is None:
        return np.full(len(points.results), 40.0)
    return _area(points.share)


def _area(share: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return _AREAS[0] + (_AREAS[1] - _AREAS[0]) * share


def _draw_plotly(points: _Points, roofs: _Roofs, title: str) -> Any:
    go = figures.plotly_objects()
    figure = go.Figure()
    for place, (name, intensity, rate) in enumerate(_roof_lines(points, roofs)):
        dash = ("solid", "dash", "dashdot", "dot")[max(place - 1, 0) % 4]
        line = {"color": _roof_color(place), "dash": dash}
        figure.add_scatter(x=intensity, y=rate, mode="lines", line=line, name=name, hoverinfo="name")
    bounds = np.array([result.bound for result in points.results])
    for bound in _in_order(bounds):
        rows = np.flatnonzero(bounds == bound)
        marker = {
            "size": np.sqrt(_areas(points)[rows]) * 1.6,  # plotly wants diameters in pixels
            "color": figures.bound_color(bound),
            "symbol": figures.PLOTLY_MARKERS[figures.BOUND_MARKERS[bound]],
            "line": {"color": figures.SURFACE, "width": 0.5},
        }
        figure.add_scatter(
            x=points.intensity[rows], y=points.rate[rows], mode="markers", marker=marker, name=f"bound: {bound}",
            text=[_say(points, row) for row in rows.tolist()], hovertemplate="%{text}<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(type="log", title=_X_LABEL)
    figure.update_yaxes(type="log", title=_Y_LABEL)
    figures.style_plotly(figure, title=title)
    return figure


def _say(points: _Points, row: int) -> str:
    result = points.results[row]
    lines = [
        f"<b>{points.names[row]}</b>",
        str(result.problem),
        f"{time_text(result.latency_us)}, {result.tflop_per_s:,.4g} TFLOP/s, {result.dram_gb_per_s:,.4g} GB/s",
        f"bound: {result.bound}; {result.utilization_frac:.1%} of peak",
        str(result.mapping),
    ]
    if points.share is not None:
        lines.append(f"{points.share[row]:.1%} of the time")
    return "<br>".join(lines)
