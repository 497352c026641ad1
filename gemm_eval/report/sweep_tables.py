"""Tables, charts and words on the points of a sweep. Columns keep the names that files and notebooks know them by."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.report.parts import Cell, Chart, Column, Table, unit_of_name
from gemm_eval.sweep import ARCH, SweepResult, pareto_front

if TYPE_CHECKING:
    import pandas as pd


_MOST_VALUES = 10
_MAX_WHOLE = 1e15  # above, a float does not tell which whole number it was


def say_field(field: Mapping[str, Any], say: Callable[[Any], str] | None = None) -> str:
    """Return what a field takes, ``"100 to 1,600, 4 values"``, given what `SweepResult.description` has of it.

    Args:
        field: its description.
        say: how a value is written; default: `say_value`.
    """
    say = say or say_value
    kind = field["kind"]
    if kind == "Dependent":
        return f"= {field['of']}" if "of" in field else "a function of the others"
    if kind == "Choices":
        return _say_choices(field["values"], say)
    words = [f"{say(field['low'])} to {say(field['high'])}"]
    words += ["logarithmic"] if kind == "LogRange" else []
    words += [f"multiples of {say(field['step'])}"] if field["step"] is not None else []
    words += [f"{field['num']} values"] if field["num"] is not None else []
    return ", ".join(words)


def say_sampling(sampling: Mapping[str, Any]) -> str:
    """Return how points were chosen, given what `SweepResult.description` has of it."""
    kind = sampling["kind"]
    if kind == "Grid":
        return "all combinations"
    if kind not in ("Random", "LatinHypercube", "Adaptive"):
        return str(sampling.get("said", kind))
    num, seed = f"{sampling['num_points']:,}", sampling["seed"]
    if kind == "Adaptive":
        by = f"{sampling['sampler']} in batches of {sampling['batch_size']}"
        return f"{num} points, chosen by {by}, seed {seed}"
    return (
        f"{num} points at random, seed {seed}" if kind == "Random" else f"{num} points, a Latin hypercube, seed {seed}"
    )


def say_value(value: Any) -> str:
    """Return a value of a field as text: ``262,144``, ``0.85``, ``True``, ``fp16``, ``fp16 2, int8 4`` for a table."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {say_value(one)}" for key, one in value.items())
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if float(value).is_integer() and abs(value) < _MAX_WHOLE:
        return f"{int(value):,}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _say_choices(values: Sequence[Any], say: Callable[[Any], str]) -> str:
    texts = [f"({say(value)})" if isinstance(value, dict) else say(value) for value in values]
    if len(texts) > _MOST_VALUES:
        half = _MOST_VALUES // 2
        texts = [*texts[:half], "...", *texts[-half:]]
        return f"{', '.join(texts)} ({len(values):,} values)"
    return ", ".join(texts)


BALANCE = "balance"
_MOST_OBJECTIVES = 4


@dataclass(frozen=True, slots=True)
class BestDesign:
    """A point of the front, and what it is best in.

    Attributes:
        point: its number.
        best_in: ``"least latency_us"``, ``"most tokens_per_s"``, `BALANCE`, or several of them.
        row: its columns.
    """

    point: int
    best_in: str
    row: Mapping[Any, Any]


def find_best(result: SweepResult, front: pd.DataFrame) -> list[BestDesign]:
    """Return the best point by each objective and, of several objectives, the one that balances them; each point once.

    Args:
        result: the sweep.
        front: its Pareto front, ``result.pareto()``.
    """
    if not len(front):
        return []
    values = {name: front[name].to_numpy(np.float64) for name in result.objectives[:_MOST_OBJECTIVES]}
    best_in: dict[int, list[str]] = {}
    for name, column in values.items():
        if not np.isfinite(column).any():
            continue
        is_most = result.is_maximized(name)
        at = int(np.nanargmax(column) if is_most else np.nanargmin(column))
        best_in.setdefault(at, []).append(f"{'most' if is_most else 'least'} {name}")
    balanced = _balanced(result, values) if len(values) > 1 else None
    if balanced is not None:
        best_in.setdefault(balanced, []).append(BALANCE)
    rows = front.iloc[list(best_in)].to_dict("records")
    return [
        BestDesign(int(row["point"]), ", ".join(said), row) for said, row in zip(best_in.values(), rows, strict=True)
    ]


def _balanced(result: SweepResult, values: Mapping[str, npt.NDArray[np.float64]]) -> int | None:
    """Return the point whose product of the objectives' ratios to their best is least, whatever their scales."""
    total = np.zeros(len(next(iter(values.values()))))
    for name, column in values.items():
        if not (np.isfinite(column) & (column > 0.0)).all():
            return None
        total += -np.log(column) if result.is_maximized(name) else np.log(column)
    return int(np.argmin(total))


_MOST_CHARTS = 3
_MOST_EFFECTS = 4
_MOST_DOTS = 4000  # of a chart; with what their tooltips say they are most of a page
_MOST_ROWS = 1000
_MOST_GROUPS = 64  # of a field, to group points by
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
    first, *rest = (column_of(result, name) for name in names)
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
    texts = {name: say_field(field, partial(say_of, result, name)) for name, field in said.items()}
    if len(result.bases) > 1:
        texts = {ARCH: ", ".join(result.bases)} | texts
    # an objective that is drawn itself depends on nothing
    aims = [aim for aim in result.objectives if aim not in said or said[aim]["kind"] == "Dependent"]
    factors = {aim: effects(result, feasible, aim) for aim in aims[:_MOST_EFFECTS]}
    factors = {aim: of for aim, of in factors.items() if of}
    columns = [
        Column("field", kind="text"),
        Column("values", kind="text"),
        Column("on the front", kind="text"),
        *(Column(f"{column_of(result, aim).heading} differs by", "x", digits=3) for aim in factors),
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
    factors = {}
    for name in names:
        if name != aim and 2 <= known[name].nunique() <= _MOST_GROUPS:
            best = known.groupby(name)[aim].agg("max" if result.is_maximized(aim) else "min")
            factors[name] = float(best.max() / best.min())
    return factors


def excluded_table(reasons: pd.DataFrame) -> Table:
    """Return a table of why points are excluded, given `SweepResult.excluded`."""
    columns = [Column("reason", kind="text"), Column("points"), Column("first"), Column("for example", kind="text")]
    rows = [list(row) for row in reasons.itertuples(index=False)]
    return Table(columns, rows, caption="Why points are excluded")


def charts(result: SweepResult, feasible: pd.DataFrame, names: Mapping[int, str]) -> list[Chart]:
    """Return charts of pairs of objectives with their fronts; of a single objective over the fields that vary.

    Args:
        result: the sweep.
        feasible: its feasible points.
        names: of points that are named in the charts.
    """
    known = [name for name in result.objectives if feasible[name].notna().any()]
    if not known:
        return []
    if len(known) > 1:
        pairs = list(itertools.combinations(known, 2))[:_MOST_CHARTS]
        return [_pair_chart(result, feasible, x, y, names) for y, x in pairs]
    kinds, effect = result.description["columns"], effects(result, feasible, known[0])
    fields = [
        name for name in result.field_names if kinds[name] in ("whole", "number") and feasible[name].nunique() > 1
    ]
    fields.sort(key=lambda name: -effect.get(name, 0.0))  # what matters most is seen first
    return [_field_chart(result, feasible, name, known[0], names) for name in fields[:_MOST_CHARTS]]


def _pair_chart(result: SweepResult, feasible: pd.DataFrame, x: str, y: str, names: Mapping[int, str]) -> Chart:
    maximize = [result.is_maximized(name) for name in (y, x)]
    marks = pareto_front(feasible[[y, x]].to_numpy(np.float64), maximize=maximize)
    look = _Look(marks.tolist(), "Pareto front of these two", "before" if result.is_maximized(x) else "after")
    return _chart(result, feasible, x, y, look, names)


def _field_chart(result: SweepResult, feasible: pd.DataFrame, x: str, y: str, names: Mapping[int, str]) -> Chart:
    if feasible[x].nunique() <= _MOST_GROUPS:
        marks = feasible[y] == feasible.groupby(x)[y].transform("max" if result.is_maximized(y) else "min")
        look = _Look(marks.tolist(), f"best at each {column_of(result, x).heading}")
    else:
        best = feasible[y].max() if result.is_maximized(y) else feasible[y].min()
        look = _Look((feasible[y] == best).tolist(), "best")
    return _chart(result, feasible, x, y, look, names)


class _Look(NamedTuple):
    marks: list[bool]
    label: str
    joined: Literal["line", "after", "before"] = "line"


def _chart(result: SweepResult, feasible: pd.DataFrame, x: str, y: str, look: _Look, names: Mapping[int, str]) -> Chart:
    shown = list(dict.fromkeys([*point_columns(result), x, y]))
    places = {point: place for place, point in enumerate(feasible["point"].tolist()) if point in names}
    headings = [column_of(result, name).heading for name in (y, x)]
    return Chart(
        [column_of(result, name) for name in shown],
        _rows(result, feasible, shown),
        x=x,
        y=y,
        log_x=_spans_decade(feasible[x]),
        log_y=_spans_decade(feasible[y]),
        highlight=look.marks,
        joined=look.joined,
        names={places[point]: said for point, said in names.items() if point in places},
        highlight_label=look.label,
        label="other points",
        caption=" against ".join(headings),
        max_points=_MOST_DOTS,
    )


def _table(result: SweepResult, frame: pd.DataFrame, names: Sequence[str], caption: str, note: str) -> Table:
    shown = frame.head(_MOST_ROWS)
    if len(shown) < len(frame):
        note = f"The first {len(shown):,} of {len(frame):,} points. {note}".strip()
    return Table([column_of(result, name) for name in names], _rows(result, shown, names), caption=caption, note=note)


def column_of(result: SweepResult, name: str) -> Column:
    """Return the column of the page for one of the sweep; numbers get units of their size where names have one."""
    if result.description["columns"][name] not in ("whole", "number"):
        return Column(name, kind="text")
    unit = unit_of_name(name)[0]
    if unit == "B":
        return Column(name, kind="capacity" if name in result.field_names else "bytes")
    return Column(name, kind="time" if unit == "us" else "energy" if unit == "pJ" else "number")


def say_of(result: SweepResult, name: str, value: Any) -> str:
    """Return a value of a column as text, with its unit where that is scaled: ``1 MiB``."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    column = column_of(result, name) if is_number and name in result.description["columns"] else None
    return column.format(value) if column is not None and column.is_scaled else say_value(value)


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
    """Return the values of a field that the points of the front have."""
    values = front[name].dropna().unique().tolist() if len(front) else []
    if result.description["columns"][name] in ("whole", "number") and len(values) > _MOST_SAID:
        return f"{say_of(result, name, min(values))} to {say_of(result, name, max(values))}"
    if result.description["columns"][name] in ("whole", "number"):
        return ", ".join(say_of(result, name, value) for value in sorted(values))
    texts = [str(_cell(result.description["columns"][name], value)) for value in values]
    return ", ".join(texts[:_MOST_SAID]) + (", ..." if len(texts) > _MOST_SAID else "")


def _spans_decade(column: pd.Series) -> bool:
    low, high = float(column.min()), float(column.max())
    return low > 0.0 and high / low > _DECADE
