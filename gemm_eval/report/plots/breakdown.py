"""Plots of time by term, operation or stage, and of design spaces with their Pareto fronts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemm_eval import figures
from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.estimate import KINDS, ModelEstimate, StepEstimate
from gemm_eval.evaluate import GEMMResult
from gemm_eval.sweep import pareto_front
from gemm_eval.training import TrainingEstimate, timeline
from gemm_eval.units import time_text
from gemm_eval.words import shown

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_LEAST_FRAC = 0.01  # terms below this part of every bar are drawn as one
_OTHER = "other_us"
_FADED = 0.62  # how much of the page's colour lies over hidden time
_BAR = 0.68
_HIDDEN = "hidden (faded): overlaps other terms, not in the latency"


@figures.styled
def plot_breakdown(
    results: Iterable[GEMMResult], *, names: Sequence[str] | None = None, counts: Sequence[int] | None = None
) -> Figure:
    """Plot the terms of each GEMM's time as a stacked bar.

    The terms of `GEMMResult.breakdown` are the times that each resource needs by itself. Compute and transfers overlap,
    so they add up to more than the latency: a bar is as long as their sum, the line across it is the latency, and
    what lies beyond that line, faded, is `hidden_us`: time during which something else was working too.
    Terms minus hidden time are the latency, exactly; what a learned
    correction takes off counts as hidden. The colours beyond the line are in the order of the terms; they do
    not say which of the terms was hidden. Terms of less than 1% of every bar are drawn as one. The number at a bar is
    its latency.

    Args:
        results: of any archs; a `GEMMTable` is taken too. Drawn from top to bottom.
        names: of the results (default: their sizes).
        counts: how often each runs: bars are then the time of all its runs.
    Raises InvalidInputError (no results, not as many names or counts, or counts below 1).
    """
    from matplotlib.colors import to_rgba
    from matplotlib.patches import Patch

    gemms = list(results)
    if not gemms:
        raise InvalidInputError("results must hold at least one GEMMResult, got none")
    for what, given in (("names", names), ("counts", counts)):
        if given is not None and len(given) != len(gemms):
            raise InvalidInputError(f"{what} must be as many as results ({len(gemms)}), got {len(given)}")
    if counts is not None and min(counts) < 1:
        raise InvalidInputError(f"counts must be >= 1, got {min(counts)}")
    labels = [] if names is None else list(names)
    for problem in (result.problem for result in gemms) if names is None else ():
        rows = f"G{problem.G} M{problem.M}" if problem.row_groups is None else f"{problem.rows} rows in G{problem.G}"
        labels.append(f"{rows} K{problem.K} N{problem.N}")
    if counts is not None:
        labels = [f"{name}  x{int(count)}" for name, count in zip(labels, counts, strict=True)]
    times = np.ones(len(gemms)) if counts is None else np.asarray(counts, float)
    latency_us = np.array([result.latency_us for result in gemms]) * times

    figure = figures.new_figure(8.4, 1.9 + 0.36 * len(gemms))
    axes = figure.add_subplot()
    places = np.arange(len(gemms))
    ends = np.zeros(len(gemms))
    handles: list[Artist] = []
    for term, values_us in _terms(gemms).items():
        look = figures.term_look(term)
        handles += axes.barh(
            places, values_us * times, _BAR, left=ends, color=look.color, hatch=look.hatch, edgecolor=figures.SURFACE,
            linewidth=0.5, label=_term_name(term),
        )[:1]  # fmt: skip
        handles[-1].set_label(_term_name(term))
        ends += values_us * times
    hidden: dict[str, Any] = {
        "edgecolor": figures.MUTED, "linewidth": 0.7, "linestyle": (0, (2, 1.5)), "label": _HIDDEN,
    }  # fmt: skip
    fade = to_rgba(figures.SURFACE, _FADED)
    axes.barh(places, np.maximum(ends - latency_us, 0.0), _BAR, left=latency_us, facecolor=fade, **hidden)
    line = axes.vlines(
        latency_us, places - 0.44, places + 0.44, color=figures.TEXT, linewidth=2.2, label="latency", zorder=4
    )
    for place, (end, value) in enumerate(zip(ends.tolist(), latency_us.tolist(), strict=True)):
        _write_beside(axes, time_text(value), max(end, value), place)
    what = "time, terms stacked_us" if counts is None else "time of all runs, terms stacked_us"
    finish_bars(axes, labels, what, ends, 1.12 * ends.max())
    figure.suptitle(f"Where the time goes: {', '.join(dict.fromkeys(result.arch_name for result in gemms))}")
    figures.add_legend(figure, [line, *handles, Patch(facecolor="none", **hidden)])
    return figure


def _term_name(term: str) -> str:
    if term == _OTHER:
        return f"other (each < {_LEAST_FRAC:.0%})"
    name = figures.axis_label(term).partition(" (")[0]
    return f"{name[:-1]}{name[-1].upper()}" if name[-2:-1] == " " else name  # of an operand


def _write_beside(axes: Axes, text: str, x: float, y: float) -> None:
    axes.annotate(text, (x, y), (5, 0), textcoords="offset points", va="center", fontsize=figures.SMALL)


def finish_bars(axes: Axes, labels: list[str], name: str, values: npt.NDArray[np.float64], right: float) -> None:
    """Name the bars, the first on top, and scale the axis below, whose end leaves room for the numbers."""
    axes.set_yticks(range(len(labels)), labels=labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlim(0, right)
    figures.add_grid(axes, axis="x")
    axes.tick_params(axis="y", length=0)
    figures.scale_axis(axes.xaxis, name, values, is_log=False)


def _terms(gemms: list[GEMMResult]) -> dict[str, npt.NDArray[np.float64]]:
    """Return the positive terms of all results [num_results], in us, in the order of breakdowns; small ones as one."""
    names = dict.fromkeys(name for result in gemms for name in result.breakdown if name != "hidden_us")
    terms = {name: np.array([max(0.0, result.breakdown.get(name, 0.0)) for result in gemms]) for name in names}
    least_us = _LEAST_FRAC * sum(terms.values(), np.zeros(len(gemms)))
    small = [name for name, values_us in terms.items() if (values_us < least_us).all()]
    other = sum((terms.pop(name) for name in small), np.zeros(len(gemms)))
    return terms | {_OTHER: other} if other.any() else terms


_LETTER_SHARE = 0.0125  # of the width of the axes


@figures.styled
def plot_steps(estimates: ModelEstimate | Iterable[ModelEstimate]) -> Figure:
    """Plot the last step of prefill and a step of decode of each estimate as stacked bars.

    A bar has the operations in the order in which they run, each of all its layers together, coloured by kind, and
    named where there is room; the number at a bar is the time of the step. Prefill and decode have axes of their own;
    a prefill that several estimates share is drawn once.

    Args:
        estimates: one, or several, drawn from top to bottom.
    Raises InvalidInputError (no estimates).
    """
    from matplotlib.patches import Patch

    given = [estimates] if isinstance(estimates, ModelEstimate) else list(estimates)
    if not given:
        raise InvalidInputError("estimates must hold at least one ModelEstimate, got none")
    phases = {
        "prefill": _without_doubles([(item.arch_name, item.prefill) for item in given]),
        "decode": _without_doubles([(f"{item.arch_name}, batch {item.batch:,}", item.decode) for item in given]),
    }
    sizes = [len(steps) for steps in phases.values()]
    figure = figures.new_figure(8.4, 2.0 + 0.37 * sum(sizes))
    panels = figure.subplots(2, 1, height_ratios=[1.5 + size for size in sizes])
    for axes, (phase, steps) in zip(panels, phases.items(), strict=True):
        times_us = np.array([step.latency_us for _, step in steps])
        for row, (_, step) in enumerate(steps):
            _draw_step(axes, row, step, times_us.max() * _LETTER_SHARE)
        finish_bars(axes, [label for label, _ in steps], f"{phase}: time of a step_us", times_us, 1.1 * times_us.max())
    names = ", ".join(dict.fromkeys(item.model_name for item in given))
    figure.suptitle(f"Where the time of a step goes: {names}")
    by_kind = [step.us_by_kind for item in given for step in (item.prefill, item.decode)]
    kinds = [kind for kind in KINDS if any(us[kind] > 0 for us in by_kind)]
    figures.add_legend(figure, [Patch(color=figures.KIND_COLORS[kind], label=kind) for kind in kinds])
    return figure


def _without_doubles(steps: list[tuple[str, StepEstimate]]) -> list[tuple[str, StepEstimate]]:
    """Drop steps that have the label and the times of another: batches of decode share their prefill."""
    return list({(label, step.latency_us, *step.us_by_kind.values()): (label, step) for label, step in steps}.values())


def _draw_step(axes: Axes, row: int, step: StepEstimate, letter_us: float) -> None:
    times: dict[tuple[str, str], float] = {}
    for cost in step.costs:
        key = cost.operation.name, cost.operation.kind
        times[key] = times.get(key, 0.0) + cost.total_us
    end = 0.0
    look: dict[str, Any] = {"ha": "center", "va": "center_baseline", "fontsize": figures.SMALL - 0.75}
    for (name, kind), us in times.items():
        if us <= 0:
            continue
        color = figures.KIND_COLORS[kind]
        axes.barh(row, us, _BAR, left=end, color=color, edgecolor=figures.SURFACE, linewidth=0.6)
        word = name.removesuffix("_proj").replace("_", " ")
        if us >= letter_us * (len(word) + 0.5):
            axes.text(end + us / 2, row, word, color=figures.ink_on(color), **look)
        end += us
    _write_beside(axes, time_text(end), end, row)


_STAGE, _EDGE = 0.78, 0.3
_MOST_PASSES, _MANY_PASSES = 20_000, 80  # of all stages, and of one, beyond which no line is between them
_COLORS = {
    "forward": figures.SERIES[0], "backward": figures.SERIES[1], "exposed collectives of a pass": figures.SERIES[5],
    "exposed gradients and weights between replicas": figures.SERIES[4], "optimizer": figures.SERIES[3],
}  # fmt: skip


@figures.styled
def plot_training_step(estimate: TrainingEstimate) -> Figure:
    """Plot the work of each pipeline stage over a step: passes of microbatches, collectives, and the optimizer.

    Blank time is the bubble. Passes are played one by one, `estimate.latency_us` is a closed form: they differ a
    little where stages do. Collectives that computation does not hide are at the end of their pass. The number at a
    stage is its share of time at work.
    Raises InvalidInputError (there are more than 20,000 passes); UnsupportedError (the schedule is not 1F1B or
    interleaved).
    """
    from matplotlib.patches import Patch

    stages, num, chunks = estimate.stages, estimate.num_microbatches, int(estimate.options["num_chunks"])
    if 2 * len(stages) * num * chunks > _MOST_PASSES:
        raise InvalidInputError(
            f"a plot has at most {_MOST_PASSES:,} passes, got {len(stages)} stages, {num:,} microbatches, {chunks} runs"
        )
    tasks = timeline([stage.times for stage in stages], num, str(estimate.options["schedule"]), chunks)
    passes_us = max(task.end_us for task in tasks)
    start_us = passes_us + max(stage.data_us for stage in stages)  # of the optimizer
    end_us = start_us + max(stage.optimizer_us for stage in stages)
    spans: dict[str, list[tuple[int, float, float]]] = {name: [] for name in _COLORS}  # stage, start, length
    forward, backward, messages, data, optimizer = spans.values()
    for task in tasks:
        us = (task.end_us - task.start_us) * stages[task.stage].messages_frac
        whole = forward if task.is_forward else backward
        whole.append((task.stage, task.start_us, task.end_us - task.start_us - us))
        messages.append((task.stage, task.end_us - us, us))
    for row, stage in enumerate(stages):
        data.append((row, passes_us, stage.data_us))
        optimizer.append((row, start_us, stage.optimizer_us))
    figure = figures.new_figure(9.0, 1.9 + 0.3 * len(stages))
    axes = figure.add_subplot()
    handles, edge = [], _EDGE if len(tasks) < _MANY_PASSES * len(stages) else 0.0
    for name, color in _COLORS.items():
        if shown := [span for span in spans[name] if span[2] > 0.0]:
            rows, starts_us, lengths_us = zip(*shown, strict=True)
            axes.barh(rows, lengths_us, _STAGE, left=starts_us, color=color, edgecolor=figures.SURFACE, linewidth=edge)
            handles.append(Patch(color=color, label=name))
    for row in range(len(stages)):
        busy_us = sum(us for each in spans.values() for at, _, us in each if at == row)
        _write_beside(axes, f"{busy_us / end_us:.0%}", end_us, row)
    labels = [f"stage {row}" for row in range(len(stages))]
    finish_bars(axes, labels, "time of a step_us", np.array([end_us]), 1.06 * end_us)
    figures.add_title(
        figure, f"{estimate.model_name} on {estimate.num_devices:,} x {estimate.arch_name} ({estimate.layout}), "
        f"{estimate.options['schedule']}: {time_text(end_us)}, shares of time at work",
    )  # fmt: skip
    figures.add_legend(figure, handles)
    return figure


_MARK_EDGE = 0.4  # points around a marker, whose own colour may be that of the page
_AREA = 26.0  # of a marker, square points


@figures.styled
def plot_pareto(
    table: Any,
    x: str,
    y: str,
    *,
    color: str | None = None,
    front: npt.ArrayLike | None = None,
    maximize: Sequence[str] = (),
) -> Figure:
    """Plot two columns of a table against each other, and their Pareto front as a staircase.

    On one side of the staircase lies what no design of the table reaches; less is better, unless `maximize` names the
    column. Axes are logarithmic where values span more than a decade. Rows that are not feasible (no finite x or y, or
    False in a column `is_feasible`) are left out.

    Args:
        table: a DataFrame, a mapping from names to arrays, a `GEMMTable` or a `SweepResult`. Units are part of the
            names, and axis labels come from them: see `axis_label`.
        x, y: columns of numbers.
        color: a column that colours the points: numbers on a scale, or at most eight words.
        front: a mask [num_rows] of points to draw with a ring, when it should not be the front of x and y; say the
            front of three objectives. The staircase is always that of x and y.
        maximize: which of `x` and `y` are better when larger.
    Raises InvalidInputError (columns of words where numbers are needed, or of unequal lengths); InvalidOptionError (no
    such column, or nothing feasible).
    """
    if isinstance(maximize, str) or not set(maximize) <= {x, y}:
        raise InvalidOptionError(f"maximize must be a sequence of {x!r} and {y!r}, got {shown(maximize)}")
    kept = _feasible_rows(table, x, y)
    points = np.column_stack([_read_column(table, name)[kept].astype(float) for name in (x, y)])
    is_front = is_marked = pareto_front(points, maximize=[name in maximize for name in (x, y)])
    if front is not None:
        mask = np.asarray(front)
        if mask.dtype != bool or mask.shape != kept.shape:
            raise InvalidInputError(
                f"front must be truth values for each of the {len(kept)} rows of the table, got {mask.dtype} of shape "
                f"{mask.shape}"
            )
        is_marked = mask[kept]
    across, up = points[is_front][np.argsort(points[is_front, 0], kind="stable")].T

    figure = figures.new_figure(7.4, 4.8)
    axes = figure.add_subplot()
    handles = _draw_points(axes, points, color, None if color is None else _read_column(table, color)[kept])
    handles += axes.plot(
        across, up, drawstyle="steps-pre" if x in maximize else "steps-post", color=figures.TEXT, linewidth=1.3,
        label="Pareto front", zorder=3,
    )  # fmt: skip
    rings: dict[str, Any] = {"facecolors": "none", "edgecolors": figures.TEXT, "linewidths": 1.2, "zorder": 5}
    label = "on the front" if front is None else "marked"
    handles.append(axes.scatter(points[is_marked, 0], points[is_marked, 1], s=2 * _AREA, label=label, **rings))
    axes.margins(0.08)
    figures.add_grid(axes)
    for name, values, axis, set_scale in (
        (x, points[:, 0], axes.xaxis, axes.set_xscale), (y, points[:, 1], axes.yaxis, axes.set_yscale),
    ):  # fmt: skip
        is_log = figures.spans_decade(values)
        if is_log:
            set_scale("log")
        figures.scale_axis(axis, name, values, is_log=is_log)
    words = [f"{'more' if name in maximize else 'less'} {_quantity(name)}" for name in (x, y)]
    axes.set_title(f"{len(points):,} designs, {is_front.sum():,} on the front of {' and '.join(words)}")
    figures.add_legend(figure, handles)
    return figure


def _quantity(name: str) -> str:
    return figures.axis_label(name).partition(" (")[0]


def _draw_points(
    axes: Axes, points: npt.NDArray[np.float64], name: str | None, column: npt.NDArray[Any] | None
) -> list[Artist]:
    """Draw the designs, in the colours of a column if given; words for what limits a GEMM have those of their terms."""
    from matplotlib.colors import LogNorm

    x, y = points.T
    if name is None or column is None:
        return [axes.scatter(x, y, color=figures.MUTED, s=_AREA, alpha=0.6, linewidths=0, label="design")]
    if _is_number(column):
        values = column.astype(float)
        is_log = figures.spans_decade(values[np.isfinite(values)])
        dots = axes.scatter(
            x, y, c=values, cmap=figures.RAMP, norm=LogNorm() if is_log else None, label="design", s=_AREA,
            linewidths=_MARK_EDGE, edgecolors=figures.MUTED,
        )  # fmt: skip
        _add_color_bar(axes, dots, name, values, is_log=is_log)
        return [dots]
    words = list(dict.fromkeys(column.tolist()))
    if len(words) > len(figures.SERIES):
        raise InvalidOptionError(
            f"color must be a column of numbers, or of at most {len(figures.SERIES)} different words, got {len(words)}"
        )
    looks = list(zip(figures.SERIES, figures.MARKERS, strict=True))
    if all(word in figures.BOUND_MARKERS for word in words):
        looks = [(figures.bound_color(word), figures.BOUND_MARKERS[word]) for word in words]
    return [
        axes.scatter(
            x[column == word], y[column == word], color=shade, marker=marker, s=_AREA, linewidths=0,
            label=f"{figures.axis_label(name)} {figures.label_of(word)}",
        )
        for word, (shade, marker) in zip(words, looks, strict=False)
    ]  # fmt: skip


def _add_color_bar(axes: Axes, drawn: Any, name: str, values: npt.NDArray[np.float64], **options: Any) -> None:
    bar = axes.figure.colorbar(drawn, ax=axes, pad=0.02)
    figures.style_axes(bar.ax, has_frame=True)
    figures.scale_axis(bar.ax.yaxis, name, values, **options)


_REDUCTIONS: dict[str, Callable[[list[float]], Any]] = {"min": np.min, "max": np.max, "median": np.median}
_MOST_TEXT = 150  # cells; more are too small to be written in
_MOST_TICKS = 24
_CELL_INCHES, _ROW_INCHES = 0.52, 0.34  # at least
_LETTER_INCHES, _MARGIN_INCHES = 0.068, 2.0


@figures.styled
def plot_heat_map(table: Any, x: str, y: str, value: str, *, reduce: str = "min") -> Figure:
    """Plot a value over the distinct values of two columns: each pair is a cell, all cells are of one size.

    Numbers are in ascending order, words in the order of the table. A cell is the least (largest, median) value of all
    feasible rows of its pair, and gray where there is none. Few cells have their value written in; colours are
    logarithmic where values span more than a decade.

    Args:
        table: a DataFrame, a mapping from names to arrays, or a `GEMMTable`; see `plot_pareto`.
        x, y: columns of numbers or words, such as ``"num_cores"``.
        value: a column of numbers, whose unit is part of its name.
        reduce: ``"min"``, ``"max"`` or ``"median"`` over everything else that varies.
    Raises InvalidInputError (`value` holds words); InvalidOptionError (no such column or reduction, or nothing
    feasible).
    """
    from matplotlib.colors import LogNorm, Normalize, to_hex
    from matplotlib.patches import Patch

    if reduce not in _REDUCTIONS:
        raise InvalidOptionError(f"reduce must be one of {', '.join(_REDUCTIONS)}, got {shown(reduce)}")
    kept = _feasible_rows(table, value)
    rows = list(zip(*(_read_column(table, name)[kept].tolist() for name in (x, y, value)), strict=True))
    across, up = ([*dict.fromkeys(row[at] for row in rows)] for at in (0, 1))
    for items in (across, up):
        if all(isinstance(item, int | float) for item in items):
            items.sort()
    column_of, row_of = ({item: place for place, item in enumerate(items)} for items in (across, up))
    of_cells: dict[tuple[int, int], list[float]] = {}
    for a, b, number in rows:
        of_cells.setdefault((row_of[b], column_of[a]), []).append(number)
    cells = np.full((len(up), len(across)), np.nan)
    for at, numbers in of_cells.items():
        cells[at] = _REDUCTIONS[reduce](numbers)
    most = max(map(len, of_cells.values()))

    known = cells[np.isfinite(cells)]
    scale = figures.scale_of(value, known)
    ticks = []
    for items, name in ((across, x), (up, y)):
        places = range(0, len(items), -(-len(items) // _MOST_TICKS))
        ticks.append((places, *figures.tick_texts(name, [items[place] for place in places])))
    longest = max(map(len, ticks[0][2]))
    if cells.size <= _MOST_TEXT:
        longest = max(longest, *(len(scale.text(cell)) for cell in known))
    width = _MARGIN_INCHES + max(_CELL_INCHES, _LETTER_INCHES * (longest + 1)) * len(across)
    figure = figures.new_figure(min(11.0, max(5.6, width)), min(8.0, max(3.4, 1.6 + _ROW_INCHES * len(up))))
    axes = figure.add_subplot()
    is_log = figures.spans_decade(known)
    norm = (LogNorm if is_log else Normalize)(known.min(), known.max())
    edges = np.arange(len(across) + 1) - 0.5, np.arange(len(up) + 1) - 0.5
    axes.set_facecolor(figures.LINE)  # where there is no design
    mesh = axes.pcolormesh(*edges, np.ma.masked_invalid(cells), cmap=figures.RAMP, norm=norm)
    figures.style_axes(axes, has_frame=True)
    if cells.size <= _MOST_TEXT:
        fills = mesh.to_rgba(cells)
        for (row, column), cell in np.ndenumerate(cells):
            if np.isfinite(cell):
                look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": figures.SMALL}
                axes.text(
                    column, row, scale.text(cell), color=figures.ink_on(to_hex(tuple(fills[row, column]))), **look
                )
    for axis, (places, label, texts) in zip((axes.xaxis, axes.yaxis), ticks, strict=True):
        axis.set_ticks(places, labels=texts)
        axis.set_label_text(label)
    if longest * _LETTER_INCHES * len(ticks[0][0]) > figure.get_figwidth() - _MARGIN_INCHES:
        axes.tick_params(axis="x", rotation=90)
    _add_color_bar(axes, mesh, value, known, is_log=is_log, scale=scale)
    axes.set_title(_quantity(value) + (f", {reduce} of up to {most:,} designs a cell" if most > 1 else ""))
    if known.size < cells.size:
        gap = Patch(facecolor=figures.LINE, edgecolor=figures.MUTED, linewidth=0.5, label="no feasible design")
        figures.add_legend(figure, [gap])
    return figure


def _names(table: Any) -> list[str]:
    names = getattr(table, "columns", None)
    if names is None:
        names = getattr(table, "keys", lambda: None)()
    if names is None:
        raise InvalidInputError(f"a table must be a DataFrame or a mapping from names to arrays, got {shown(table)}")
    return [str(name) for name in names]


def _read_column(table: Any, name: str) -> npt.NDArray[Any]:
    """Return a column [num_rows]."""
    names = _names(table)
    if name not in names:
        raise InvalidOptionError(f"the table has no column {shown(name)}; it has {', '.join(names) or 'none'}")
    column = np.asarray(table[name])
    if column.ndim != 1:
        raise InvalidInputError(f"column {name!r} must be one-dimensional, got shape {column.shape}")
    return column


def _feasible_rows(table: Any, *numbers: str) -> npt.NDArray[np.bool_]:
    """Return a mask [num_rows]: finite in these columns, not False in `is_feasible`, and no word in `excluded`."""
    flags = getattr(table, "is_feasible", None)  # an attribute of a `GEMMTable` and, if it is a column, a DataFrame
    if flags is None and "is_feasible" in _names(table):
        flags = table["is_feasible"]
    if flags is None and "excluded" in _names(table):
        flags = _read_column(table, "excluded") == ""
    columns = [_read_column(table, name) for name in numbers]
    for name, column in zip(numbers, columns, strict=True):
        if not _is_number(column):
            raise InvalidInputError(f"column {name!r} must hold numbers, got {column[:3].tolist()}")
    if len({len(column) for column in columns}) > 1:
        raise InvalidInputError(f"columns {', '.join(numbers)} differ in length: {[len(c) for c in columns]}")
    kept = np.ones(len(columns[0]), bool) if flags is None else np.asarray(flags, bool).copy()
    for column in columns:
        kept &= np.isfinite(column.astype(float))
    if not kept.any():
        raise InvalidOptionError(f"the table has no feasible row with finite {' and '.join(numbers)}: nothing to plot")
    return kept


def _is_number(column: npt.NDArray[Any]) -> bool:
    """Return whether a column holds numbers; None among objects is a number that is not known."""
    if column.dtype.kind == "O":
        values = [value for value in column if value is not None]
        return bool(values) and all(isinstance(value, int | float | np.number) for value in values)
    return column.dtype.kind in "iuf"
