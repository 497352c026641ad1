"""The report on a sweep: its best designs and why, its front, every point, and what was excluded."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gemm_eval.errors import GemmEvalError
from gemm_eval.report.page import Page, Section
from gemm_eval.report.parts import Column, Facts, Figure, Part, Table, Text, Verdict, text_column
from gemm_eval.report.plots import plot_breakdown, plot_heat_map, plot_roofline
from gemm_eval.report.runs import MIN_GAIN_FRAC, Run, Runs, capital, gemm_table, trust_in_runs
from gemm_eval.report.sweep_points import BALANCE, BestDesign, Points, say_sampling
from gemm_eval.sweep import SweepResult, what_if
from gemm_eval.units import scaled_text

if TYPE_CHECKING:
    import pandas as pd

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
    overview = [*_warnings(points), Facts(_facts(points, reasons)), *([points.best_table()] if points.best else [])]
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
        caption = f"{_count(len(front), 'point')} that no other beats, {by_aim}"
        sections.append(Section("Pareto front", [points.table(front, caption, has_basis=True)]))
    if len(feasible):
        ranked = feasible.sort_values(aim, ascending=not result.is_maximized(aim), kind="stable")
        table = points.table(ranked, f"Points that hold all constraints, {by_aim}")
        sections += [Section("All points", [table]), *excluded]
    loads = ", ".join(load.name for load in result.workloads)
    subtitle = f"{_count(result.description['num_points'], 'chip')}, {loads}"
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
    words += [_other(points, design, first) for design in points.best[1:]]
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


def _other(points: Points, design: BestDesign, first: BestDesign) -> tuple[str, str]:
    """Another best design, held against the first one in every objective."""
    words = []
    for name in points.result.objectives:
        value, other = float(design.row[name]), float(first.row[name])
        ratio = f" ({value / other:.3g}x)" if other > 0 and abs(value / other - 1.0) >= _SAME_FRAC else ""
        words.append(f"{points.heading(name)} {points.say(name, value)}{ratio}")
    return f"{capital(_short(design.best_in))}: point {design.point}", ", ".join(words)


def _short(best_in: str) -> str:
    text = best_in.replace("least latency_us", "fastest").replace(f", {BALANCE}", "")
    for end in ("_us", "_pj", "_mm2", "_w", "_bytes"):
        text = text.removesuffix(end)
    return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}..."


def _warnings(points: Points) -> list[Part]:
    num, asked = len(points.result), points.result.description["num_points"]
    warnings: list[Part] = []
    if num < asked:
        text = f"{num:,} of {asked:,} points are done; others are not on this page. The same sweep continues."
        warnings.append(Text(text, title="This sweep is not finished"))
    if num and not len(points.feasible):
        warnings.append(Text("The section Excluded points has the reasons.", title="No point is feasible"))
    elif num and not len(points.front):
        text = f"No point has all objectives ({', '.join(points.result.objectives)})."
        warnings.append(Text(text, title="There is no best design"))
    return warnings


def _facts(points: Points, reasons: pd.DataFrame) -> list[tuple[str, str]]:
    result = points.result
    description, models = result.description, {arch.type for arch in result.bases.values()}
    num_excluded = int(reasons["num_points"].sum())
    better = {True: "more is better", False: "less is better"}
    facts = [
        ("base", ", ".join(result.bases)),
        ("points", f"{len(result):,}, {num_excluded:,} excluded, {len(points.front):,} on the front"),
        ("sampling", say_sampling(description["sampling"])),
    ]
    for at, name in enumerate(result.objectives, 1):
        facts.append((f"objective {at}", f"{name}, {better[result.is_maximized(name)]}"))
    facts += [("constraint", limit) for limit in description["constraints"]]
    for load in result.workloads:
        words = [_count(len(load.gemms), "GEMM"), "attention" if load.attention else "", scaled_text("flop", load.flop)]
        words.append(_count(load.num_tokens, "token") if load.num_tokens else "")
        facts.append((f"workload {load.name}", ", ".join(filter(None, words))))
    for name, value in description["options"].items():
        if value not in (None, False):
            facts.append((name.replace("_", " "), "yes" if value is True else str(value)))
    versions = [version for kind, version in sorted(description["models"].items()) if kind in models]
    return [*facts, ("cost model", ", ".join(versions))]


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


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
