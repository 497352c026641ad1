"""Tables and charts of a sweep's points. Columns keep the names that files and notebooks know them by."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gemm_eval.report.parts import Cell, Chart, Column, Part, Table
from gemm_eval.report.sweep_best import BALANCE, BestDesign
from gemm_eval.report.sweep_words import say_field, say_value
from gemm_eval.sweep import ARCH, SweepResult, pareto_front

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["best_table", "charts", "effects", "excluded_table", "field_table", "point_table"]

_MOST_CHARTS = 3
_MOST_OBJECTIVES = 4
_MOST_DOTS = 4000  # of a chart; with what their tooltips say they are most of a page
_MOST_ROWS = 1000
_MOST_VALUES = 64  # of a field, to group points by
_MOST_SAID = 6
_DECADE = 10.0


def point_columns(result: SweepResult) -> list[str]:
    """Return the columns that tell points apart, and the objectives."""
    names = ["point", *([ARCH] if len(result.bases) > 1 else []), *result.field_names, *result.objectives]
    return list(dict.fromkeys(names))


def point_table(result: SweepResult, points: pd.DataFrame, caption: str, note: str = "") -> Table:
    """Return a table of points with all that is known of them; metrics that are known of none are left out."""
    names = point_columns(result)
    metrics = [name for name in result.columns if name not in {*names, ARCH, "excluded"}]
    return _table(result, points, [*names, *(name for name in metrics if points[name].notna().any())], caption, note)


def best_table(result: SweepResult, best: Sequence[BestDesign]) -> Table:
    """Return a table of the best designs."""
    names = point_columns(result)
    first, *rest = (_column(result, name) for name in names)
    rows = []
    for one in best:
        point, *cells = _cells(result, names, one.row)
        rows.append([point, one.best_in, *cells])
    has_balance = any(BALANCE in one.best_in for one in best)
    note = "Balance: the least product of the ratios of all objectives to their best." if has_balance else ""
    return Table([first, Column("best in", kind="text"), *rest], rows, caption="Best designs", note=note)


def field_table(result: SweepResult, feasible: pd.DataFrame, front: pd.DataFrame) -> Table:
    """Return a table of what varies: the values, those on the front, and how much the objectives differ."""
    said = {**result.description["variables"], **result.description["fields"]}
    texts = {name: say_field(field) for name, field in said.items()}
    if len(result.bases) > 1:
        texts = {ARCH: ", ".join(result.bases)} | texts
    # an objective that is drawn itself depends on nothing
    aims = [aim for aim in result.objectives if aim not in said or said[aim]["kind"] == "Dependent"]
    factors = {aim: effects(result, feasible, aim) for aim in aims[:_MOST_OBJECTIVES]}
    factors = {aim: of for aim, of in factors.items() if of}
    columns = [
        Column("field", kind="text"),
        Column("values", kind="text"),
        Column("on the front", kind="text"),
        *(Column(f"{aim} differs by", "x", digits=3) for aim in factors),
    ]
    rows: list[list[Cell]] = [
        [name, text, _span(result, front, name), *(of.get(name) for of in factors.values())]
        for name, text in texts.items()
    ]
    note = (
        "How much an objective differs: for each value of a field the best that any point reaches with it, the largest "
        "of these over the least. It is 1 for a field that does not matter."
    )
    return Table(columns, rows, caption="What varies", note=note if factors else "")


def effects(result: SweepResult, feasible: pd.DataFrame, aim: str) -> dict[str, float]:
    """Return for each field of a few values by which factor the best of an objective differs between them."""
    names = [ARCH, *result.field_names] if len(result.bases) > 1 else list(result.field_names)
    known = feasible[feasible[aim] > 0.0]
    found = {}
    for name in names:
        if name != aim and 2 <= known[name].nunique() <= _MOST_VALUES:
            best = known.groupby(name)[aim].agg("max" if result.is_maximized(aim) else "min")
            found[name] = float(best.max() / best.min())
    return found


def excluded_table(reasons: pd.DataFrame) -> Table:
    """Return a table of why points are excluded, given `SweepResult.excluded`."""
    columns = [Column("reason", kind="text"), Column("points"), Column("first"), Column("for example", kind="text")]
    rows = [list(row) for row in reasons.itertuples(index=False)]
    return Table(columns, rows, caption="Why points are excluded")


def charts(result: SweepResult, feasible: pd.DataFrame) -> list[Part]:
    """Return charts of pairs of objectives with their fronts; of a single objective over the fields that vary."""
    known = [name for name in result.objectives if feasible[name].notna().any()]
    if not known:
        return []
    if len(known) > 1:
        pairs = list(itertools.combinations(known, 2))[:_MOST_CHARTS]
        return [_pair_chart(result, feasible, x, y) for y, x in pairs]
    kinds = result.description["columns"]
    fields = [
        name for name in result.field_names if kinds[name] in ("whole", "number") and feasible[name].nunique() > 1
    ]
    return [_field_chart(result, feasible, name, known[0]) for name in fields[:_MOST_CHARTS]]


def _pair_chart(result: SweepResult, feasible: pd.DataFrame, x: str, y: str) -> Chart:
    maximize = [result.is_maximized(name) for name in (y, x)]
    marks = pareto_front(feasible[[y, x]].to_numpy(np.float64), maximize=maximize)
    return _chart(result, feasible, x, y, marks.tolist(), "Pareto front of these two")


def _field_chart(result: SweepResult, feasible: pd.DataFrame, x: str, y: str) -> Chart:
    if feasible[x].nunique() <= _MOST_VALUES:
        marks = feasible[y] == feasible.groupby(x)[y].transform("max" if result.is_maximized(y) else "min")
        return _chart(result, feasible, x, y, marks.tolist(), f"best at each {x}")
    best = feasible[y].max() if result.is_maximized(y) else feasible[y].min()
    return _chart(result, feasible, x, y, (feasible[y] == best).tolist(), "best")


def _chart(result: SweepResult, feasible: pd.DataFrame, x: str, y: str, marks: list[bool], label: str) -> Chart:
    names = list(dict.fromkeys([*point_columns(result), x, y]))
    return Chart(
        [_column(result, name) for name in names],
        _rows(result, feasible, names),
        x=x,
        y=y,
        log_x=_spans_decade(feasible[x]),
        log_y=_spans_decade(feasible[y]),
        highlight=marks,
        highlight_label=label,
        label="other points",
        caption=f"{y} against {x}",
        max_points=_MOST_DOTS,
    )


def _table(result: SweepResult, frame: pd.DataFrame, names: Sequence[str], caption: str, note: str) -> Table:
    shown = frame.head(_MOST_ROWS)
    if len(shown) < len(frame):
        note = f"The first {len(shown):,} of {len(frame):,} points. {note}".strip()
    return Table([_column(result, name) for name in names], _rows(result, shown, names), caption=caption, note=note)


def _column(result: SweepResult, name: str) -> Column:
    is_number = result.description["columns"][name] in ("whole", "number")
    return Column(name, kind="number" if is_number else "text")


def _rows(result: SweepResult, frame: pd.DataFrame, names: Sequence[str]) -> list[list[Cell]]:
    return [_cells(result, names, row) for row in frame[list(names)].to_dict("records")]


def _cells(result: SweepResult, names: Sequence[str], row: Mapping[Any, Any]) -> list[Cell]:
    return [_cell(result.description["columns"][name], row[name]) for name in names]


def _cell(kind: str, value: Any) -> Cell:
    if value is None or value != value:  # noqa: PLR0124  nan
        return None
    if kind == "whole":
        return int(value)  # a column in which some are missing comes as floats
    if kind == "number":
        return float(value)
    if kind == "json":
        return say_value(json.loads(value))
    return str(value)


def _span(result: SweepResult, front: pd.DataFrame, name: str) -> str:
    """What the points of the front have of a field."""
    values = front[name].dropna().unique().tolist() if len(front) else []
    if result.description["columns"][name] in ("whole", "number") and len(values) > _MOST_SAID:
        return f"{say_value(min(values))} to {say_value(max(values))}"
    if result.description["columns"][name] in ("whole", "number"):
        return ", ".join(map(say_value, sorted(values)))
    texts = [str(_cell(result.description["columns"][name], value)) for value in values]
    return ", ".join(texts[:_MOST_SAID]) + (", ..." if len(texts) > _MOST_SAID else "")


def _spans_decade(column: pd.Series) -> bool:
    low, high = float(column.min()), float(column.max())
    return low > 0.0 and high / low > _DECADE
