"""Latency and rate over M: the steps of tiles and waves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval import figures
from gemm_eval.arch import GpuSpec
from gemm_eval.errors import InvalidInputError
from gemm_eval.evaluate import GEMMEvaluator, GEMMResult, GEMMTable
from gemm_eval.extras import needs_extra
from gemm_eval.units import time_text

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_ROWS = range(1, 513)
_MOST_MARKERS = 40  # values of M whose points are drawn one by one
_MOST_SECTIONS = 24  # more are not readable
_LEAST_LABEL_FRAC = 0.025  # of the axis, for the label of a section
_BAND_ALPHA = 0.22  # of the interval that holds 80% of measured times
_PARTITION = ("P_G", "P_M", "P_N", "P_K")
_TILE = ("cta_m", "cta_n", "split_k")
_LATENCY_LABEL, _RATE_LABEL = "latency (us)", "rate (TFLOP/s)"
_BAND = "80% of measured times expected"


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
) -> figures.AnyFigure:
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
        interactive: return a plotly figure.

    Raises:
        GemmEvalError: matplotlib or plotly is not installed.
        InvalidInputError: no evaluator or more than eight, no M.
        InvalidProblemError, UnsupportedError, InfeasibleError: as `GEMMEvaluator.evaluate_many`.
    """
    given = [evaluators] if isinstance(evaluators, GEMMEvaluator) else list(evaluators)
    if not 1 <= len(given) <= len(figures.SERIES):
        raise InvalidInputError(f"evaluators must be 1 to {len(figures.SERIES)}, got {len(given)}")
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
    """Return whether the values are about equally far apart, for a linear axis."""
    gaps = np.diff(rows)
    return len(gaps) == 0 or bool(gaps.max() <= 2 * gaps.min())


@figures.styled
def _draw(tables: list[GEMMTable], rows: npt.NDArray[np.int64], title: str) -> Figure:
    with needs_extra("plotting", "plot"):
        from matplotlib.patches import Patch

    figure = figures.new_figure(7.6, 5.4)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    has_markers, is_even = len(rows) <= _MOST_MARKERS, _is_even(rows)
    handles: list[Artist] = []
    for place, (table, name) in enumerate(zip(tables, _names(tables), strict=True)):
        color, marker = figures.SERIES[place], figures.MARKERS[place] if has_markers else ""
        for axes, column in ((above, "latency_us"), (below, "tflop_per_s")):
            handles[place:] = axes.plot(
                rows, table[column], drawstyle="steps-post" if is_even else "default", color=color,
                linestyle=figures.DASHES[place], marker=marker, markersize=3.5, label=name,
            )  # fmt: skip
        if _has_interval(table):
            above.fill_between(
                rows, table["low_us"], table["high_us"], step="post" if is_even else None, color=color,
                alpha=_BAND_ALPHA, linewidth=0,
            )  # fmt: skip
    banded = [place for place, table in enumerate(tables) if _has_interval(table)]
    if banded:
        color = figures.SERIES[banded[0]] if len(banded) == 1 else figures.MUTED
        of = "" if len(banded) in (1, len(tables)) else ", where known"
        handles.append(Patch(color=color, alpha=_BAND_ALPHA, linewidth=0, label=f"band: {_BAND}{of}"))
    _scale(above, below, tables, rows)
    if len(tables) == 1:
        handles += _mark_changes(above, below, tables[0], rows)
    above.set_title(title)
    figures.add_legend(figure, handles)
    figure.align_ylabels()
    return figure


def _scale(above: Axes, below: Axes, tables: list[GEMMTable], rows: npt.NDArray[np.int64]) -> None:
    is_log = not _is_even(rows)  # over many octaves of M, times and rates span many too
    for axes, column, name in ((above, "latency_us", "latency_us"), (below, "tflop_per_s", "rate_tflop_per_s")):
        figures.add_grid(axes)
        if is_log:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        figures.scale_axis(axes.yaxis, name, np.concatenate([table[column] for table in tables]), is_log=is_log)
    below.set_xlabel(figures.ROWS_LABEL)
    if is_log:
        figures.set_rows_axis(below, float(rows[0]), float(rows[-1]))
    elif len(rows) > 1:
        below.set_xlim(rows[0], rows[-1])


def _mark_changes(above: Axes, below: Axes, table: GEMMTable, rows: npt.NDArray[np.int64]) -> list[Artist]:
    """Shade the sections, mark changes of the tile, and return what the legend says of them."""
    with needs_extra("plotting", "plot"):
        from matplotlib.patches import Patch

    sections = _find_sections(table)
    num_changes = len(sections.starts) - 1
    if num_changes >= _MOST_SECTIONS:
        return [Patch(alpha=0.0, label=f"the {sections.what} changes {num_changes} times")]
    handles: list[Artist] = [
        Patch(
            facecolor=figures.LINE,
            edgecolor=figures.MUTED,
            linewidth=0.5,
            alpha=0.5,
            label=f"sections: {sections.what}, on top",
        )
    ]
    to_axis, from_axis = (np.asarray, float) if _is_even(rows) else (np.log2, np.exp2)
    places = to_axis(rows)
    above.margins(y=0.16)  # room for the labels
    if _is_even(rows):
        above.set_ylim(bottom=0)
    ends = [*sections.starts[1:], len(rows) - 1]
    for number, (start, end, label) in enumerate(zip(sections.starts, ends, sections.labels, strict=True)):
        for axes in (above, below):
            axes.axvspan(
                rows[start], rows[end], color=figures.LINE, alpha=(0.0, 0.5)[number % 2], linewidth=0, zorder=0
            )
        needed = _LEAST_LABEL_FRAC * max(1.0, 0.55 * max(map(len, label.split("\n"))))
        if places[end] - places[start] >= needed * (places[-1] - places[0]):
            above.text(
                from_axis((places[start] + places[end]) / 2), 0.98, label, transform=above.get_xaxis_transform(),
                ha="center", va="top", fontsize=figures.SMALL - 1, color=figures.MUTED,
            )  # fmt: skip
    tiles = _changes(table, _TILE) if _is_gpu(table) else []
    if tiles:
        handles += below.plot(
            rows[tiles], np.zeros(len(tiles)), linestyle="", marker="^", markersize=5, color=figures.TEXT,
            clip_on=False, transform=below.get_xaxis_transform(), label="tile or split of K changes",
        )  # fmt: skip
    return handles


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
    if result.low_us is None or result.high_us is None:
        return ""
    return f" (80%: {time_text(result.low_us)} to {time_text(result.high_us)})"


def _draw_plotly(tables: list[GEMMTable], rows: npt.NDArray[np.int64], title: str) -> Any:
    go = figures.plotly_objects()
    figure = go.Figure()
    shape = "hv" if _is_even(rows) else "linear"
    for place, (table, name) in enumerate(zip(tables, _names(tables), strict=True)):
        told = [
            f"<b>{name}</b>, M={result.problem.M}<br>{time_text(result.latency_us)}{_interval(result)}, "
            f"{result.tflop_per_s:,.4g} TFLOP/s"
            f"<br>bound: {result.bound}<br>{result.mapping}"
            for result in table
        ]
        if _has_interval(table):
            for column, fill in (("low_us", None), ("high_us", "tonexty")):
                figure.add_scatter(
                    x=rows, y=table[column], yaxis="y", name=f"{name}: {_BAND}", legendgroup=f"{name} band",
                    showlegend=fill is not None, mode="lines", fill=fill, hoverinfo="skip",
                    line={"color": figures.SERIES[place], "shape": shape, "width": 0}, opacity=_BAND_ALPHA,
                )  # fmt: skip
        for column, axis in (("latency_us", "y"), ("tflop_per_s", "y2")):
            figure.add_scatter(
                x=rows, y=table[column], yaxis=axis, name=name, legendgroup=name, showlegend=axis == "y", mode="lines",
                line={"color": figures.SERIES[place], "shape": shape}, text=told,
                hovertemplate="%{text}<extra></extra>",
            )  # fmt: skip
    scale = "linear" if _is_even(rows) else "log"
    figure.update_layout(
        xaxis={"title": figures.ROWS_LABEL, "type": scale, "anchor": "y2"},
        yaxis={"title": _LATENCY_LABEL, "domain": [0.44, 1.0], "rangemode": "tozero", "type": scale},
        yaxis2={"title": _RATE_LABEL, "domain": [0.0, 0.38], "rangemode": "tozero", "type": scale},
        showlegend=True,
    )
    figures.style_plotly(figure, title=title)
    return figure
