"""Latency and rate over M: the steps of tiles and waves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec
from gemm_eval.errors import InvalidInputError
from gemm_eval.evaluate import GEMMEvaluator, GEMMResult, GEMMTable
from gemm_eval.report.plots.style import (
    COLORS,
    GRAY,
    SMALL,
    TITLE,
    AnyFigure,
    add_grid,
    new_figure,
    plotly_objects,
    style_plotly,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_latency_over_m"]

_ROWS = range(1, 513)
_MOST_MARKERS = 40  # values of M whose points are drawn one by one
_MOST_SECTIONS = 24  # more are not readable
_LEAST_LABEL_FRAC = 0.025  # of the axis, for the label of a section
_BAND_ALPHA = 0.15  # of the interval that holds 80% of measured times
_PARTITION = ("P_G", "P_M", "P_N", "P_K")
_TILE = ("cta_m", "cta_n", "split_k")
_X_LABEL, _LATENCY_LABEL, _RATE_LABEL = "M (rows of A and C)", "latency (us)", "rate (TFLOP/s)"


class _Sections(NamedTuple):
    """Runs of M in which the same thing holds."""

    what: str
    starts: list[int]  # places in M, the first being 0
    labels: list[str]


def plot_latency_over_m(
    evaluators: GEMMEvaluator | Iterable[GEMMEvaluator],
    K: int,
    N: int,
    *,
    M: Iterable[int] = _ROWS,
    G: int = 1,
    dtype: str | None = None,
    interactive: bool = False,
) -> AnyFigure:
    """Plot latency in microseconds, and below it the rate in TFLOP/s, over M of C[G,M,N] = A[G,M,K] x B[G,K,N].

    Every value is an evaluation of its own; between two of them the line stays where it is and then steps. A band
    around latencies of a GPU is the interval that holds 80% of measured times. Of a single chip, shaded sections show
    where the best mapping changes: on a GPU the number of waves (times that all SMs take new CTAs), with dots on the
    axis where the tile or the split of K changes; on a multi-core chip the partition over cores. Where they change too
    often to be readable, the title says how often instead.

    Args:
        evaluators: one, or several to compare, up to eight.
        K, N, G: sizes.
        M: the values, 1 to 512 by default. Powers of two and the like get logarithmic axes.
        dtype: as in `GEMMEvaluator.evaluate`; None: every chip's own default.
        interactive: return a plotly figure.

    Raises:
        GemmEvalError: matplotlib or plotly is not installed.
        InvalidInputError: no evaluator or more than eight, no M.
        InvalidProblemError, UnsupportedError, InfeasibleError: as `GEMMEvaluator.evaluate_many`.
    """
    given = [evaluators] if isinstance(evaluators, GEMMEvaluator) else list(evaluators)
    if not 1 <= len(given) <= len(COLORS):
        raise InvalidInputError(f"evaluators must be 1 to {len(COLORS)}, got {len(given)}")
    rows = sorted(set(M))
    if not rows:
        raise InvalidInputError("M must hold at least one value, got none")
    tables = [evaluator.evaluate_many([(G, m, K, N) for m in rows], dtype) for evaluator in given]
    title = f"{f'G={G} ' if G > 1 else ''}K={K:,} N={N:,}, " + (dtype or "default data types")
    if len(given) == 1:
        title = f"{given[0].arch.name}: {title.replace('default data types', tables[0]['input_dtype'][0])}"
    at = np.array(rows)
    return _draw_plotly(tables, at, title) if interactive else _draw(tables, at, title)


def _names(tables: list[GEMMTable]) -> list[str]:
    return [table.evaluator.arch.name for table in tables]


def _has_interval(table: GEMMTable) -> bool:
    return not bool(np.isnan(table["low_us"]).any())


def _is_even(rows: npt.NDArray[np.int64]) -> bool:
    """Whether the values are about equally far apart, for a linear axis."""
    gaps = np.diff(rows)
    return len(gaps) == 0 or bool(gaps.max() <= 2 * gaps.min())


def _draw(tables: list[GEMMTable], rows: npt.NDArray[np.int64], title: str) -> Figure:
    figure = new_figure(7.6, 5.4)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    marker = "o" if len(rows) <= _MOST_MARKERS else ""
    for place, (table, name) in enumerate(zip(tables, _names(tables), strict=True)):
        for axes, column in ((above, "latency_us"), (below, "tflop_per_s")):
            axes.plot(
                rows, table[column], drawstyle="steps-post", color=COLORS[place], linewidth=1.3, marker=marker,
                markersize=3.5, label=name,
            )  # fmt: skip
        if _has_interval(table):
            above.fill_between(
                rows, table["low_us"], table["high_us"], step="post", color=COLORS[place], alpha=_BAND_ALPHA,
                linewidth=0,
            )  # fmt: skip
    above.set(ylabel=_LATENCY_LABEL)
    below.set(ylabel=_RATE_LABEL, xlabel=_X_LABEL)
    if not _is_even(rows):  # over many octaves of M, times and rates span many too
        above.set_yscale("log")
        below.set(yscale="log")
        above.set_xscale("log", base=2)
        above.xaxis.set_major_formatter("{x:.0f}")
    elif len(rows) > 1:
        above.set_xlim(rows[0], rows[-1])
    if len(tables) == 1:
        title += _mark_changes(above, below, tables[0], rows)
    else:
        above.legend(fontsize=SMALL)
    for axes in (above, below):
        add_grid(axes)
        if _is_even(rows):
            axes.set_ylim(bottom=0)
    above.set_title(title, fontsize=TITLE)
    figure.align_ylabels()
    return figure


def _mark_changes(above: Axes, below: Axes, table: GEMMTable, rows: npt.NDArray[np.int64]) -> str:
    """Shade the sections, and return what the title must say of them."""
    sections = _find_sections(table)
    if len(sections.starts) > _MOST_SECTIONS:
        return f"; the {sections.what} changes {len(sections.starts) - 1} times"
    to_axis, from_axis = (np.asarray, float) if _is_even(rows) else (np.log2, np.exp2)
    places = to_axis(rows)
    above.margins(y=0.16)  # room for the labels
    ends = [*sections.starts[1:], len(rows) - 1]
    for number, (start, end, label) in enumerate(zip(sections.starts, ends, sections.labels, strict=True)):
        for axes in (above, below):
            axes.axvspan(rows[start], rows[end], color=("1.0", "0.5")[number % 2], alpha=0.14, linewidth=0, zorder=0)
        needed = _LEAST_LABEL_FRAC * max(1.0, 0.55 * max(map(len, label.split("\n"))))
        if places[end] - places[start] >= needed * (places[-1] - places[0]):
            above.text(
                from_axis((places[start] + places[end]) / 2), 0.98, label, transform=above.get_xaxis_transform(),
                ha="center", va="top", fontsize=SMALL - 1, color=GRAY,
            )  # fmt: skip
    tiles = _changes(table, _TILE) if _is_gpu(table) else []
    if tiles:
        marks = below.plot(
            rows[tiles], np.zeros(len(tiles)), linestyle="", marker="^", markersize=5, color="black", clip_on=False,
            transform=below.get_xaxis_transform(), label="tile or split of K changes",
        )  # fmt: skip
        below.legend(handles=marks, fontsize=SMALL, loc="lower right")
    return f"; sections: {sections.what}"


def _is_gpu(table: GEMMTable) -> bool:
    return isinstance(table.evaluator.arch, GpuSpec)


def _find_sections(table: GEMMTable) -> _Sections:
    if _is_gpu(table):
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
    changes: list[int] = (np.flatnonzero((values[1:] != values[:-1]).any(axis=1)) + 1).tolist()
    return changes


def _interval(result: GEMMResult) -> str:
    return "" if result.low_us is None else f" (80%: {result.low_us:,.4g} to {result.high_us:,.4g})"


def _draw_plotly(tables: list[GEMMTable], rows: npt.NDArray[np.int64], title: str) -> Any:
    go = plotly_objects()
    figure = go.Figure()
    for place, (table, name) in enumerate(zip(tables, _names(tables), strict=True)):
        told = [
            f"<b>{name}</b>, M={result.problem.M}<br>{result.latency_us:,.4g} us{_interval(result)}, "
            f"{result.tflop_per_s:,.4g} TFLOP/s"
            f"<br>bound: {result.bound}<br>{result.mapping}"
            for result in table
        ]
        if _has_interval(table):
            for column, fill in (("low_us", None), ("high_us", "tonexty")):
                figure.add_scatter(
                    x=rows, y=table[column], yaxis="y", legendgroup=name, showlegend=False, mode="lines", fill=fill,
                    line={"color": COLORS[place], "shape": "hv", "width": 0}, opacity=_BAND_ALPHA, hoverinfo="skip",
                )  # fmt: skip
        for column, axis in (("latency_us", "y"), ("tflop_per_s", "y2")):
            figure.add_scatter(
                x=rows, y=table[column], yaxis=axis, name=name, legendgroup=name, showlegend=axis == "y", mode="lines",
                line={"color": COLORS[place], "shape": "hv"}, text=told, hovertemplate="%{text}<extra></extra>",
            )  # fmt: skip
    scale = "linear" if _is_even(rows) else "log"
    figure.update_layout(
        xaxis={"title": _X_LABEL, "type": scale, "anchor": "y2"},
        yaxis={"title": _LATENCY_LABEL, "domain": [0.44, 1.0], "rangemode": "tozero", "type": scale},
        yaxis2={"title": _RATE_LABEL, "domain": [0.0, 0.38], "rangemode": "tozero", "type": scale},
        showlegend=len(tables) > 1,
    )
    style_plotly(figure, title=title)
    return figure
