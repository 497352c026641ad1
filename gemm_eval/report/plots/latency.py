"""Latency and rate over M: the steps of tiles and waves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval import figures
from gemm_eval.arch import GpuSpec
from gemm_eval.errors import InvalidInputError
from gemm_eval.evaluate import GEMMEvaluator, GEMMTable

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
    changes: list[int] = (np.flatnonzero((values[1:] != values[:-1]).any(axis=1)) + 1).tolist()
    return changes


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
