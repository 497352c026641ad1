"""The report on a sweep: its best designs and why, its front, every point, and what was excluded."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.errors import GemmEvalError
from gemm_eval.figures import spans_decade
from gemm_eval.report.page import Page, Section
from gemm_eval.report.parts import (
    MIN_GAIN_FRAC,
    Cell,
    Chart,
    Column,
    Facts,
    Figure,
    Part,
    Run,
    Runs,
    Table,
    Text,
    Verdict,
    capital,
    gemm_table,
    table_of,
    text_column,
    trust_in_runs,
    unit_of_name,
)
from gemm_eval.report.plots import plot_breakdown, plot_heat_map, plot_roofline
from gemm_eval.sweep import ARCH, SweepResult, pareto_front, what_if
from gemm_eval.units import interval_text, scaled_text

if TYPE_CHECKING:
    import pandas as pd


def counted(number: int, what: str) -> str:
    """Return a number of things: ``1 chip``, ``1,024 chips``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


_MOST_VALUES = 10
_MAX_WHOLE = 1e15  # above, a float does not tell which whole number it was


def say_value(value: Any) -> str:
    """Return a value of a field as text: ``262,144``, ``0.85``, ``True``, ``fp16``, ``fp16 2, int8 4`` for a table."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {say_value(item)}" for key, item in value.items())
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if float(value).is_integer() and abs(value) < _MAX_WHOLE:
        return f"{int(value):,}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def say_field(field: Mapping[str, Any], say: Callable[[Any], str] = say_value) -> str:
    """Return what a field takes, ``"100 to 1,600, 4 values"``, given what `SweepResult.description` has of it."""
    kind = field["kind"]
    if kind == "Dependent":
        return f"= {field['of']}" if "of" in field else "a function of the others"
    if kind == "Choices":
        texts = [f"({say(value)})" if isinstance(value, dict) else say(value) for value in field["values"]]
        if len(texts) <= _MOST_VALUES:
            return ", ".join(texts)
        half = _MOST_VALUES // 2
        return f"{', '.join([*texts[:half], '...', *texts[-half:]])} ({len(texts):,} values)"
    words = [f"{say(field['low'])} to {say(field['high'])}"]
    words += ["logarithmic"] if kind == "LogRange" else []
    words += [f"multiples of {say(field['step'])}"] if field["step"] is not None else []
    words += [f"{field['num']} values"] if field["num"] is not None else []
    return ", ".join(words)


_SAMPLINGS = {
    "Grid": "all combinations",
    "Random": "{num_points:,} points at random, seed {seed}",
    "LatinHypercube": "{num_points:,} points, a Latin hypercube, seed {seed}",
    "Adaptive": "{num_points:,} points, chosen by {sampler} in batches of {batch_size}, seed {seed}",
}


BALANCE = "balance"
_MOST_OBJECTIVES = 4
_MOST_CHARTS = 3
_MOST_EFFECTS = 4
_MOST_DOTS = 4000  # of a chart; with what their tooltips say they are most of a page
_MOST_ROWS = 1000
_MOST_BASES = 200  # points whose GEMMs are evaluated again, for intervals and sources
_MOST_GROUPS = 64  # of a field, to group points by
_MOST_SAID = 6


class BestDesign(NamedTuple):
    """A point of the front, and what it is best in."""

    point: int
    best_in: str  # "least latency_us", "most tokens_per_s", `BALANCE`, or several of them
    row: Mapping[Any, Any]


class Points:
    """The points of a sweep, finished or not: those that are feasible, the front, and their columns in words."""

    def __init__(self, result: SweepResult) -> None:
        self.result = result
        self.kinds: Mapping[str, str] = result.description["columns"]
        self.varied: Mapping[str, Any] = {**result.description["variables"], **result.description["fields"]}
        """Fields that vary, by name, as the description of the sweep has it."""
        self.front: pd.DataFrame = result.pareto()
        self.feasible: pd.DataFrame = result.rows(np.flatnonzero(result.is_feasible))

    def column(self, name: str) -> Column:
        """Return the column of the page for one of the sweep; numbers get units of their size where names have one."""
        if self.kinds[name] not in ("whole", "number"):
            return text_column(name)
        unit = unit_of_name(name)[0]
        if unit == "B":
            return Column(name, kind="capacity" if name in self.varied else "bytes")
        return Column(name, kind="time" if unit == "us" else "energy" if unit == "pJ" else "number")

    def heading(self, name: str) -> str:
        """Return the name of a column as the page shows it."""
        return self.column(name).heading

    def say(self, name: str, value: Any) -> str:
        """Return a value of a column as text, with its unit where that is scaled: ``1 MiB``."""
        column, is_number = self.column(name), isinstance(value, int | float) and not isinstance(value, bool)
        is_formatted = is_number and (column.is_scaled or (column.kind != "text" and name not in self.varied))
        return column.format(value) if is_formatted else say_value(value)

    def say_all(self, names: Sequence[str], row: Mapping[Any, Any]) -> list[str]:
        """Return columns of a point, each with its name."""
        return [f"{self.heading(name)} {self.say(name, row[name])}" for name in names]

    @cached_property
    def best(self) -> list[BestDesign]:
        """The best point by each objective, and that of the least product of ratios to the best; each point once."""
        values = {name: self.front[name].to_numpy(np.float64) for name in self.result.objectives[:_MOST_OBJECTIVES]}
        best_in: dict[int, list[str]] = {}
        balance = np.zeros(len(self.front))
        for name, column in values.items():
            is_most = self.result.is_maximized(name)
            if np.isfinite(column).any():
                at = int(np.nanargmax(column) if is_most else np.nanargmin(column))
                best_in.setdefault(at, []).append(f"{'most' if is_most else 'least'} {name}")
            with np.errstate(divide="ignore", invalid="ignore"):
                balance += np.log(column) * (-1.0 if is_most else 1.0)
        is_known = all((np.isfinite(column) & (column > 0.0)).all() for column in values.values())
        if len(values) > 1 and is_known and len(balance):
            best_in.setdefault(int(np.argmin(balance)), []).append(BALANCE)
        words = [", ".join(aims) for aims in best_in.values()]
        rows = self.front.iloc[list(best_in)].to_dict("records")
        return [BestDesign(int(row["point"]), best, row) for best, row in zip(words, rows, strict=True)]

    def effects(self, aim: str) -> dict[str, float]:
        """Return for each field of a few values by which factor the best of an objective differs between them."""
        names = [ARCH, *self.varied] if len(self.result.bases) > 1 else list(self.varied)
        known = self.feasible[self.feasible[aim] > 0.0]
        factors = {}
        for name in names:
            if name != aim and 2 <= known[name].nunique() <= _MOST_GROUPS:
                best = known.groupby(name)[aim].agg("max" if self.result.is_maximized(aim) else "min")
                factors[name] = float(best.max() / best.min())
        return factors

    def strongest(self, aim: str) -> list[str]:
        """Return the fields of `effects` that do not follow from others, the strongest first."""
        factors = self.effects(aim)
        free = [name for name in factors if self.varied.get(name, {}).get("kind") != "Dependent"]
        return sorted(free, key=lambda name: -factors[name])

    @property
    def names(self) -> list[str]:
        """Columns that tell points apart, and the objectives."""
        archs = [ARCH] if len(self.result.bases) > 1 else []
        return list(dict.fromkeys(["point", *archs, *self.varied, *self.result.objectives]))

    def cells(self, names: Sequence[str], row: Mapping[Any, Any]) -> list[Cell]:
        """Return columns of a point as cells of a table."""
        return [_cell(self.kinds[name], row[name]) for name in names]

    def rows(self, names: Sequence[str], frame: pd.DataFrame) -> list[list[Cell]]:
        """Return columns of points as rows of a table."""
        return [self.cells(names, row) for row in frame[list(names)].to_dict("records")]

    def table(self, points: pd.DataFrame, caption: str, *, has_basis: bool = False) -> Table:
        """Return a table of points with all that is known of them; metrics that are known of none are left out."""
        metrics = [name for name in self.kinds if name not in {*self.names, ARCH, "excluded"}]
        names = [*self.names, *(name for name in metrics if points[name].notna().any())]
        most = _MOST_BASES if has_basis else _MOST_ROWS
        shown = points.head(most)
        note = f"The first {len(shown):,} of {len(points):,} points." if len(shown) < len(points) else ""
        columns, cells = self._basis(shown["point"]) if has_basis else ([], [[]] * len(shown))
        rows = [[*row, *more] for row, more in zip(self.rows(names, shown), cells, strict=True)]
        return Table([*(self.column(name) for name in names), *columns], rows, caption=caption, note=note)

    def _basis(self, points: Iterable[int]) -> tuple[list[Column], list[list[Cell]]]:
        """Return the columns of `SweepResult.basis`, intervals in words, and the cells of each point."""
        loads = ["", *(f"{load.name}_" for load in self.result.workloads if len(self.result.workloads) > 1)]
        columns = [f"80% of {prefix}latency within" for prefix in loads] + ["library", "source"]
        cells: list[list[Cell]] = []
        for row in self.result.basis(points).to_dict("records"):
            ends = (interval_text(row[f"{prefix}low_us"], row[f"{prefix}high_us"]) for prefix in loads)
            cells.append([*ends, row["library"], row["source"]])
        return [text_column(name) for name in columns], cells

    def best_table(self) -> Table:
        """Return a table of the best designs."""
        rows = [self.cells(self.names, design.row) for design in self.best]
        columns, cells = self._basis(design.point for design in self.best)
        rows = [
            [row[0], design.best_in, *row[1:], *more] for row, design, more in zip(rows, self.best, cells, strict=True)
        ]
        first, *rest = [*(self.column(name) for name in self.names), *columns]
        note = "Balance: the least product of the ratios of all objectives to their best."
        has_balance = any(BALANCE in design.best_in for design in self.best)
        return Table([first, text_column("best in"), *rest], rows, "Best designs", note if has_balance else "")

    def field_table(self) -> Table:
        """Return a table of what varies: the values, those on the front, and how much the objectives differ."""
        texts = {name: say_field(field, partial(self.say, name)) for name, field in self.varied.items()}
        if len(self.result.bases) > 1:
            texts = {ARCH: ", ".join(self.result.bases)} | texts
        # an objective that is drawn itself depends on nothing
        drawn = [name for name, field in self.varied.items() if field["kind"] != "Dependent"]
        aims = [aim for aim in self.result.objectives if aim not in drawn]
        factors = {aim: of for aim in aims[:_MOST_EFFECTS] if (of := self.effects(aim))}
        columns: list[tuple[Column, Callable[[str], Cell]]] = [
            (text_column("field"), lambda name: name),
            (text_column("values"), lambda name: texts[name]),
            (text_column("on the front"), self._say_span),
            *((Column(f"{self.heading(aim)} differs by", "x", digits=3), of.get) for aim, of in factors.items()),
        ]
        note = (
            "How much an objective differs: for each value of a field the best that any point reaches with it, the "
            "largest of these over the least. It is 1 for a field that does not matter."
        )
        return table_of(texts, columns, "What varies", note if factors else "")

    def _say_span(self, name: str) -> str:
        """Return the values of a field that the points of the front have."""
        values = self.front[name].dropna().unique().tolist() if len(self.front) else []
        if self.kinds[name] not in ("whole", "number"):
            texts = [str(_cell(self.kinds[name], value)) for value in values]
            return ", ".join(texts[:_MOST_SAID]) + (", ..." if len(texts) > _MOST_SAID else "")
        if len(values) > _MOST_SAID:
            return f"{self.say(name, min(values))} to {self.say(name, max(values))}"
        return ", ".join(self.say(name, value) for value in sorted(values))

    def charts(self, names: Mapping[int, str]) -> list[Chart]:
        """Return charts of pairs of objectives with their fronts, or of one over its fields; `names` are of points."""
        known = [name for name in self.result.objectives if self.feasible[name].notna().any()]
        if not known:
            return []
        charts = []
        for y, x in list(itertools.combinations(known, 2))[:_MOST_CHARTS]:
            maximize = [self.result.is_maximized(name) for name in (y, x)]
            marks = pareto_front(self.feasible[[y, x]].to_numpy(np.float64), maximize=maximize)
            label, joined = "Pareto front of these two", "before" if maximize[1] else "after"
            charts.append(self._chart(x, y, names, marks, label, joined))
        if charts:
            return charts
        effect = self.effects(known[0])
        numbers = [name for name in self.varied if self.kinds[name] in ("whole", "number")]
        fields = [name for name in numbers if self.feasible[name].nunique() > 1]
        fields.sort(key=lambda name: -effect.get(name, 0.0))  # what matters most is seen first
        values = self.feasible[known[0]]
        best: Literal["max", "min"] = "max" if self.result.is_maximized(known[0]) else "min"
        for x in fields[:_MOST_CHARTS]:
            is_grouped = self.feasible[x].nunique() <= _MOST_GROUPS
            of_best = self.feasible.groupby(x)[known[0]].transform(best) if is_grouped else values.agg(best)
            label = f"best at each {self.heading(x)}" if is_grouped else "best"
            charts.append(self._chart(x, known[0], names, (values == of_best).to_numpy(), label))
        return charts

    def _chart(
        self, x: str, y: str, names: Mapping[int, str], marks: npt.NDArray[np.bool_], label: str,
        joined: Any = "line",
    ) -> Chart:  # fmt: skip
        shown = list(dict.fromkeys([*self.names, x, y]))
        places = {point: place for place, point in enumerate(self.feasible["point"].tolist()) if point in names}
        return Chart(
            [self.column(name) for name in shown], self.rows(shown, self.feasible), x=x, y=y,
            log_x=spans_decade(self.feasible[x].to_numpy()), log_y=spans_decade(self.feasible[y].to_numpy()),
            highlight=marks.tolist(), joined=joined,
            names={places[point]: name for point, name in names.items() if point in places},
            highlight_label=label, label="other points", caption=f"{self.heading(y)} against {self.heading(x)}",
            max_points=_MOST_DOTS,
        )  # fmt: skip


def _cell(kind: str, value: Any) -> Cell:
    if value is None or value != value:  # noqa: PLR0124  nan
        return None
    if kind == "whole":
        return int(value)  # a column in which some are missing comes as floats
    if kind == "number":
        return float(value)
    return say_value(json.loads(value)) if kind == "json" else str(value)


_LATENCY = "latency_us"
_SAME_FRAC = 0.005
_MOST_GAINS = 2
_MOST_FIELDS = 3
_MOST_CHARS = 24  # of a name in a chart
_MOST_CELLS = 32  # values of a field that a heat map shows


def sweep_report(result: SweepResult) -> Page:
    """Return the report on a sweep, finished or not; ``sweep_report(result).write("sweep.html")`` writes it."""
    points, reasons = Points(result), result.excluded()
    feasible, front, aim = points.feasible, points.front, result.objectives[0]
    by_aim = f"best first by {points.heading(aim)}"
    lead: list[Part] = [_verdict(points)] if points.best else []
    charts = points.charts(names_of_best(points.best)) if len(feasible) else []
    if lead:
        lead += charts[:1]
        charts = charts[1:]
    num, asked = len(result), result.description["num_points"]
    overview: list[Part] = []
    if num < asked:
        text = f"{num:,} of {asked:,} points are done; others are not on this page. The same sweep continues."
        overview.append(Text(text, title="This sweep is not finished"))
    if num and not len(feasible):
        overview.append(Text("The section Excluded points has the reasons.", title="No point is feasible"))
    elif num and not len(front):
        text = f"No point has all objectives ({', '.join(result.objectives)})."
        overview.append(Text(text, title="There is no best design"))
    overview += [Facts(_facts(points, reasons)), *([points.best_table()] if points.best else [])]
    sections = [Section("Overview", overview)]
    columns = [text_column("reason"), Column("points"), Column("first"), text_column("for example")]
    table = Table(columns, [list(row) for row in reasons.itertuples(index=False)], "Why points are excluded")
    excluded = [Section("Excluded points", [table])] if len(reasons) else []
    if len(feasible):
        sections.append(Section("Trade-offs", [points.field_table(), *charts]))
    else:
        sections += [*excluded, Section("Design space", [points.field_table()])]
    if points.best:
        explained = [part for design in points.best for part in _explained(points, design)]
        sections.append(Section("Best designs, and why", explained))
        sections.append(Section("Figures", _figures(points, points.best[-1].point)))
    if len(front):
        caption = f"{counted(len(front), 'point')} that no other beats, {by_aim}"
        sections.append(Section("Pareto front", [points.table(front, caption, has_basis=True)]))
    if len(feasible):
        ranked = feasible.sort_values(aim, ascending=not result.is_maximized(aim), kind="stable")
        table = points.table(ranked, f"Points that hold all constraints, {by_aim}")
        sections += [Section("All points", [table]), *excluded]
    loads = ", ".join(load.name for load in result.workloads)
    subtitle = f"{counted(asked, 'chip')}, {loads}"
    return Page(f"Design space of {', '.join(result.bases)}", subtitle, sections, lead)


def _verdict(points: Points) -> Verdict:
    """Return what the page says first."""
    result, first = points.result, points.best[0]
    aim = result.objectives[0]
    runs = [run for of_load in _runs_of(result, first.point) for run in of_load.runs]
    others = [name for name in result.objectives[1:] if name not in points.varied]
    chip = [str(first.row["arch"])] if len(result.bases) > 1 else []
    chip += points.say_all([*result.field_names, *others], first.row)
    whole = Runs("", result.evaluator(first.point), runs)
    bounds = whole.say_bounds()
    words = [(f"Point {first.point}", ", ".join(chip)), ("Its GEMMs are bound by", bounds)]
    gains = _gains(points, first, runs)
    if gains:
        words.append(("It would gain from", "; ".join(gains[:_MOST_GAINS])))
    for design in points.best[1:]:  # held against the first one in every objective
        texts = []
        for name in result.objectives:
            value, other = float(design.row[name]), float(first.row[name])
            ratio = f" ({value / other:.3g}x)" if other > 0 and abs(value / other - 1.0) >= _SAME_FRAC else ""
            texts.append(f"{points.heading(name)} {points.say(name, value)}{ratio}")
        words.append((f"{capital(_short(design.best_in))}: point {design.point}", ", ".join(texts)))
    factors = points.effects(aim)
    fields = points.strongest(aim)[:_MOST_FIELDS]
    if fields:
        matters = ", ".join(f"{points.heading(name)} {factors[name]:.3g}x" for name in fields)
        words.append((f"Strongest fields for {points.heading(aim)}", matters))
    changed = "Points keep the coefficients and the correction of their base: no timing covers a changed chip."
    return Verdict(_headline(points, first), words + trust_in_runs([whole], changed))


def _runs_of(result: SweepResult, point: int) -> list[Runs]:
    """Return the GEMMs of a point, workload by workload."""
    evaluator, tables = result.evaluator(point), result.evaluate(point).values()
    of_loads = []
    for load, table in zip(result.workloads, tables, strict=True):
        runs = [Run(str(problem), gemm, count) for gemm, (problem, count) in zip(table, load.gemms, strict=True)]
        of_loads.append(Runs(load.name, evaluator, runs))
    return of_loads


def _what_if(result: SweepResult, arch: Any, changes: Any) -> pd.DataFrame | None:
    """Return changes of a chip in the first objective; None if it is one that only the points of the sweep have."""
    options = {name: value for name, value in result.description["options"].items() if value is not None}
    table: pd.DataFrame | None = None
    with contextlib.suppress(GemmEvalError):
        table = what_if(arch, list(result.workloads), changes, objectives=result.objectives[:1], **options)
    return table


def _gains(points: Points, best: BestDesign, runs: Sequence[Run]) -> list[str]:
    """Return the changes of a design that better the first objective, which the headline names, best first."""
    result, aim = points.result, points.result.objectives[0]
    backend, arch = result.evaluator(best.point).backend, result.arch(best.point)
    changes = {change: fields for run in runs for change, fields in backend.changes(run.result.problem)}
    valid: dict[str, Mapping[str, Any]] = {}
    for change, fields in changes.items():
        with contextlib.suppress(GemmEvalError):  # a change that takes the spec out of its range
            arch.with_(**fields)
            valid[change] = fields
    table = _what_if(result, arch, valid)
    gains = []
    for row in [] if table is None else table.iloc[1:].to_dict("records"):
        gain = (row[f"{aim}_ratio"] - 1.0) * (1.0 if result.is_maximized(aim) else -1.0)
        if gain >= MIN_GAIN_FRAC and not row["excluded"]:
            text = f"{row['change']}: {points.say(aim, row[aim])} ({row[f'{aim}_ratio'] - 1.0:+.0%})"
            gains.append((gain, text))
    return [text for _, text in sorted(gains, key=lambda item: -item[0])]


def names_of_best(best: Sequence[BestDesign]) -> dict[int, str]:
    """Return what the best designs are called in charts, by point."""
    return {design.point: capital(_short(design.best_in)) for design in best}


def _headline(points: Points, best: BestDesign) -> str:
    result = points.result
    aim, base = result.objectives[0], str(best.row["arch"])
    value, is_most = float(best.row[aim]), result.is_maximized(aim)
    title = "is the fastest" if aim == _LATENCY else f"has the {'most' if is_most else 'least'} {points.heading(aim)}"
    of = f" of {len(points.feasible):,} chips" if len(points.feasible) > 1 else ""
    headline = f"Point {best.point} {title}{of}: {points.say(aim, value)}"
    table = _what_if(result, result.bases[base], [])
    base_value = 0.0 if table is None else float(table[aim].iloc[0])
    if not base_value > 0.0:  # nan neither
        return f"{headline}."
    ratio = value / base_value if is_most else base_value / value
    than = f"the unchanged {base} ({points.say(aim, base_value)})"
    if abs(ratio - 1.0) < _SAME_FRAC:
        return f"{headline}, the same as {than}."
    if aim == _LATENCY:
        return f"{headline}, {max(ratio, 1 / ratio):.3g} times as {'fast' if ratio > 1 else 'slow'} as {than}."
    return f"{headline}, {value / base_value:.3g} times that of {than}."


def _short(best_in: str) -> str:
    text = best_in.replace("least latency_us", "fastest").replace(f", {BALANCE}", "")
    for end in ("_us", "_pj", "_mm2", "_w", "_bytes"):
        text = text.removesuffix(end)
    return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}..."


def _facts(points: Points, reasons: pd.DataFrame) -> list[tuple[str, str]]:
    result = points.result
    description, models = result.description, {arch.type for arch in result.bases.values()}
    num_excluded, sampling = int(reasons["num_points"].sum()), description["sampling"]
    kind = sampling["kind"]
    better = {True: "more is better", False: "less is better"}
    facts = [
        ("base", ", ".join(result.bases)),
        ("points", f"{len(result):,}, {num_excluded:,} excluded, {len(points.front):,} on the front"),
        ("sampling", _SAMPLINGS.get(kind, str(sampling.get("said", kind))).format(**sampling)),
    ]
    for at, name in enumerate(result.objectives, 1):
        facts.append((f"objective {at}", f"{name}, {better[result.is_maximized(name)]}"))
    facts += [("constraint", limit) for limit in description["constraints"]]
    for load in result.workloads:
        words = [
            counted(len(load.gemms), "GEMM"),
            "attention" if load.attention else "",
            scaled_text("flop", load.flop),
        ]
        words.append(counted(load.num_tokens, "token") if load.num_tokens else "")
        facts.append((f"workload {load.name}", ", ".join(filter(None, words))))
    for name, value in description["options"].items():
        if value not in (None, False):
            facts.append((name.replace("_", " "), "yes" if value is True else str(value)))
    versions = [version for kind, version in sorted(description["models"].items()) if kind in models]
    return [*facts, ("cost model", ", ".join(versions))]


def _explained(points: Points, best: BestDesign) -> list[Part]:
    """Return a design in full: its GEMMs, and for each workload what the heaviest one waits for."""
    result, name = points.result, f"Point {best.point}"
    chip = ", ".join(points.say_all(result.field_names, best.row))
    columns = [points.column(aim) for aim in result.objectives]
    aims = ", ".join(f"{column.heading} {column.format(best.row[column.name])}" for column in columns)
    parts: list[Part] = [Text(f"{best.row['arch']} with {chip}.\n{aims}.", title=f"{name}: {best.best_in}")]
    of_attention = result.attention(best.point)
    for load, of_load in zip(result.workloads, _runs_of(result, best.point), strict=True):
        attention = [
            (answer, count) for answer, (_, count) in zip(of_attention.get(load.name, ()), load.attention, strict=True)
        ]
        total_us = of_load.total_us + sum(answer.latency_us * count for answer, count in attention)
        runs = of_load.heaviest(len(of_load.runs))
        table = gemm_table(
            {Column("no."): list(range(1, len(runs) + 1))},
            runs,
            total_us,
            caption=f"{name}, {load.name}: its GEMMs, heaviest first",
            note="C[G,M,N] = A[G,M,K] x B[G,K,N]; latency of one, time of all of them, share of the workload. "
            "The first one in full:",
        )
        parts += [table, Text(runs[0].result.explain())]
        for answer, count in attention:
            share = f"{answer.latency_us * count / total_us:.0%}"
            parts.append(Text(answer.explain(), title=f"{name}, {load.name}: attention, {share}"))
    return parts


def _figures(points: Points, point: int) -> list[Figure]:
    """Return drawings of a design's GEMMs, and of the first objective over the two fields on which it depends most."""
    result, aim = points.result, points.result.objectives[0]
    gemms = [(load.name, run) for load in _runs_of(result, point) for run in load.runs]
    problems = [run.result.problem for _, run in gemms]
    names = [f"{load} {'x'.join(run.result.problem.size_words[run.result.problem.G == 1 :])}" for load, run in gemms]
    results, counts = [run.result for _, run in gemms], [run.times for _, run in gemms]
    roofline = plot_roofline(result.evaluator(point), problems, names=names)
    breakdown = plot_breakdown(results, names=names, counts=counts)
    figures = [
        Figure(roofline, f"Point {point}: its GEMMs under its roofs"),
        Figure(breakdown, f"Point {point}: where the time of its GEMMs goes"),
    ]
    fields = [name for name in points.strongest(aim) if points.feasible[name].nunique() <= _MOST_CELLS][:2]
    if len(fields) == 2:
        reduce = "max" if result.is_maximized(aim) else "min"
        heat_map = plot_heat_map(points.feasible, fields[0], fields[1], aim, reduce=reduce)
        figures.append(Figure(heat_map, f"Best {aim} over {' and '.join(fields)}"))
    return figures
