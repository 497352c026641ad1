"""The report on a sweep: its best designs and why, its front, every point, and what was excluded."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gemm_eval.errors import GemmEvalError
from gemm_eval.evaluate import GEMMResult
from gemm_eval.report.page import Page, Section
from gemm_eval.report.parts import Column, Facts, Figure, Part, Table, Text, Verdict, say_flop
from gemm_eval.report.plots import plot_breakdown, plot_heat_map, plot_roofline
from gemm_eval.report.runs import GEMM_COLUMNS, MIN_GAIN_FRAC, Runs, gemm_cells, say_bounds
from gemm_eval.report.sweep_tables import (
    BALANCE,
    BestDesign,
    best_table,
    charts,
    column_of,
    effects,
    excluded_table,
    field_table,
    find_best,
    point_table,
    say_of,
    say_sampling,
)
from gemm_eval.sweep import SweepResult, what_if

if TYPE_CHECKING:
    import pandas as pd


_LATENCY = "latency_us"
_SAME_FRAC = 0.005
_MOST_GAINS = 2
_MOST_FIELDS = 3
_MOST_CHARS = 24  # of a name in a chart


def sweep_verdict(result: SweepResult, best: Sequence[BestDesign], feasible: pd.DataFrame) -> Verdict:
    """Return what the page says first.

    Args:
        result: the sweep.
        best: its best designs, that of the first objective first.
        feasible: its feasible points.
    """
    first, aim = best[0], result.objectives[0]
    runs: Runs = [
        (str(problem), gemm, count)
        for load, table in zip(result.workloads, result.evaluate(first.point).values(), strict=True)
        for gemm, (problem, count) in zip(table, load.gemms, strict=True)
    ]
    points = [
        (f"Point {first.point}", _chip(result, first)),
        ("What limits its GEMMs", _capital(say_bounds(runs))),
    ]
    gains = _gains(result, first, runs)
    if gains:
        points.append(("What would help it", "; ".join(gains[:_MOST_GAINS])))
    points += [_other(result, one, first) for one in best[1:]]
    matters = _what_matters(result, feasible, aim)
    if matters:
        points.append((f"What {column_of(result, aim).heading} depends on", matters))
    return Verdict(_headline(result, first, len(feasible)), points)


def _gains(result: SweepResult, best: BestDesign, runs: Runs) -> list[str]:
    """Return the changes of a design that better the first objective, which the headline names, best first."""
    aim, backend = result.objectives[0], result.evaluator(best.point).backend
    changes = {change: fields for _, gemm, _ in runs for change, fields in backend.changes(gemm.problem)}
    arch, valid = result.arch(best.point), {}
    for change, fields in changes.items():
        with contextlib.suppress(GemmEvalError):  # a change that takes the spec out of its range
            arch.with_(**fields)
            valid[change] = fields
    options = {name: value for name, value in result.description["options"].items() if value is not None}
    try:
        table = what_if(arch, list(result.workloads), valid, objectives=[aim], **options)
    except GemmEvalError:  # an objective that only the points of the sweep have
        return []
    gains = []
    for row in table.iloc[1:].to_dict("records"):
        gain = (row[f"{aim}_ratio"] - 1.0) * (1.0 if result.is_maximized(aim) else -1.0)
        if gain >= MIN_GAIN_FRAC and not row["excluded"]:
            text = f"{row['change']}: {_say(result, aim, row[aim])} ({row[f'{aim}_ratio'] - 1.0:+.0%})"
            gains.append((gain, text))
    return [text for _, text in sorted(gains, key=lambda item: -item[0])]


def names_of_best(best: Sequence[BestDesign]) -> dict[int, str]:
    """Return what the best designs are called in charts, by point."""
    return {one.point: _capital(_short(one.best_in)) for one in best}


def _headline(result: SweepResult, best: BestDesign, num_feasible: int) -> str:
    aim = result.objectives[0]
    value, name = float(best.row[aim]), column_of(result, aim).heading
    is_most = result.is_maximized(aim)
    title = f"has the {'most' if is_most else 'least'} {name}" if aim != _LATENCY else "is the fastest"
    of = f" of {num_feasible:,} chips" if num_feasible > 1 else ""
    headline = f"Point {best.point} {title}{of}: {_say(result, aim, value)}"
    base = _of_base(result, str(best.row["arch"]), aim)
    if base is None:
        return f"{headline}."
    ratio = value / base if is_most else base / value
    than = f"{best.row['arch']} as it is ({_say(result, aim, base)})"
    if abs(ratio - 1.0) < _SAME_FRAC:
        return f"{headline}, the same as {than}."
    if aim == _LATENCY:
        return f"{headline}, {max(ratio, 1 / ratio):.3g} times as {'fast' if ratio > 1 else 'slow'} as {than}."
    return f"{headline}, {value / base:.3g} times that of {than}."


def _of_base(result: SweepResult, base: str, aim: str) -> float | None:
    """An objective of the base arch, unless it is one that only the points of the sweep have."""
    options = {name: value for name, value in result.description["options"].items() if value is not None}
    try:
        table = what_if(result.bases[base], list(result.workloads), [], objectives=[aim], **options)
    except GemmEvalError:
        return None
    value = float(table[aim].iloc[0])
    return value if value > 0.0 else None  # nan is not


def _chip(result: SweepResult, best: BestDesign) -> str:
    fields = [f"{column_of(result, name).heading} {_say(result, name, best.row[name])}" for name in result.field_names]
    others = [name for name in result.objectives[1:] if name not in result.field_names]
    words = [f"{column_of(result, name).heading} {_say(result, name, best.row[name])}" for name in others]
    return ", ".join([*([str(best.row["arch"])] if len(result.bases) > 1 else []), *fields, *words])


def _other(result: SweepResult, one: BestDesign, first: BestDesign) -> tuple[str, str]:
    """Another best design, held against the first one in every objective."""
    words = []
    for name in result.objectives:
        value, other = float(one.row[name]), float(first.row[name])
        ratio = f" ({value / other:.3g}x)" if other > 0 and abs(value / other - 1.0) >= _SAME_FRAC else ""
        words.append(f"{column_of(result, name).heading} {_say(result, name, value)}{ratio}")
    return f"{_capital(_short(one.best_in))}: point {one.point}", ", ".join(words)


def _what_matters(result: SweepResult, feasible: pd.DataFrame, aim: str) -> str:
    factors = effects(result, feasible, aim)
    kinds = {**result.description["fields"], **result.description["variables"]}
    ranked = sorted(
        (name for name in factors if kinds.get(name, {}).get("kind") != "Dependent"), key=lambda n: -factors[n]
    )
    return ", ".join(f"{column_of(result, name).heading} {factors[name]:.3g}x" for name in ranked[:_MOST_FIELDS])


def _say(result: SweepResult, name: str, value: object) -> str:
    column = column_of(result, name)
    is_plain = column.kind == "text" or (name in result.field_names and not column.is_scaled)
    return say_of(result, name, value) if is_plain else column.format(value)  # type: ignore[arg-type]


def _short(best_in: str) -> str:
    text = best_in.replace("least latency_us", "fastest").replace(f", {BALANCE}", "")
    for end in ("_us", "_pj", "_mm2", "_w", "_bytes"):
        text = text.removesuffix(end)
    return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}..."


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


_GEMM_COLUMNS = (Column("no."), *GEMM_COLUMNS)
_GEMM_NOTE = (
    "C[G,M,N] = A[G,M,K] x B[G,K,N]; latency of one, time of all of them, share of the workload. The first one in full:"
)


def sweep_page(result: SweepResult, *, figures: Sequence[Figure] = (), title: str = "") -> Page:
    """Return the report on a sweep, finished or not.

    Args:
        result: the sweep.
        figures: drawings that the caller made; they stand in a section of their own.
        title: of the page; default: the names of the base archs.
    """
    front, reasons = result.pareto(), result.excluded()
    feasible = result.rows(np.flatnonzero(result.is_feasible))
    best = find_best(result, front)
    aim = result.objectives[0]
    aim_said = column_of(result, aim).heading
    lead: list[Part] = [sweep_verdict(result, best, feasible)] if best else []
    drawn = charts(result, feasible, names_of_best(best)) if len(feasible) else []
    if lead:
        lead += drawn[:1]
        drawn = drawn[1:]
    overview: list[Part] = [*_warnings(result, feasible, front), Facts(_facts(result, reasons, len(front)))]
    if best:
        overview.append(best_table(result, best))
    sections = [Section("Overview", overview)]
    excluded = [Section("Excluded points", [excluded_table(reasons)])] if len(reasons) else []
    if len(feasible):
        sections.append(Section("Trade-offs", [field_table(result, feasible, front), *drawn]))
    else:
        sections += [*excluded, Section("Design space", [field_table(result, feasible, front)])]
    if best:
        sections.append(Section("Best designs, and why", [part for one in best for part in _explained(result, one)]))
    if figures:
        sections.append(Section("Figures", figures))
    if len(front):
        front_table = point_table(
            result, front, f"{_count(len(front), 'point')} that no other beats, best first by {aim_said}"
        )
        sections.append(Section("Pareto front", [front_table]))
    if len(feasible):
        ranked = feasible.sort_values(aim, ascending=not result.is_maximized(aim), kind="stable")
        table = point_table(result, ranked, f"Points that hold all constraints, best first by {aim_said}")
        sections += [Section("All points", [table]), *excluded]
    name = title or f"Design space of {', '.join(result.bases)}"
    loads = ", ".join(one.name for one in result.workloads)
    return Page(name, f"{_count(result.description['num_points'], 'chip')}, {loads}", sections, lead)


def _warnings(result: SweepResult, feasible: pd.DataFrame, front: pd.DataFrame) -> list[Part]:
    num, asked = len(result), result.description["num_points"]
    warnings: list[Part] = []
    if num < asked:
        warnings.append(
            Text(
                f"{num:,} of {asked:,} points are done; this page knows nothing of the others. The same call of sweep, "
                "or the same gemm-eval sweep, goes on with them.",
                title="This sweep is not finished",
            )
        )
    if num and not len(feasible):
        warnings.append(Text("Excluded points says what stood in the way.", title="No point is feasible"))
    elif num and not len(front):
        aims = ", ".join(result.objectives)
        warnings.append(Text(f"Of no point are all objectives known ({aims}).", title="There is no best design"))
    return warnings


def _facts(result: SweepResult, reasons: pd.DataFrame, num_front: int) -> list[tuple[str, str]]:
    description = result.description
    models = {arch.type for arch in result.bases.values()}
    num_excluded = int(reasons["num_points"].sum())
    options = {name: value for name, value in description["options"].items() if value not in (None, False)}
    return [
        ("base", ", ".join(result.bases)),
        ("points", f"{len(result):,}, {num_excluded:,} excluded, {num_front:,} on the front"),
        ("sampling", say_sampling(description["sampling"])),
        *((f"objective {at}", f"{name}, {'more' if result.is_maximized(name) else 'less'} is better")
          for at, name in enumerate(result.objectives, 1)),
        *(("constraint", one) for one in description["constraints"]),
        *((f"workload {one.name}", _count(len(one.gemms), "GEMM") + (", attention" if one.attention else "")
           + f", {say_flop(one.flop)}"
           + (f", {_count(one.num_tokens, 'token')}" if one.num_tokens else "")) for one in result.workloads),
        *((name.replace("_", " "), "yes" if value is True else str(value)) for name, value in options.items()),
        ("cost model", ", ".join(version for kind, version in sorted(description["models"].items()) if kind in models)),
    ]  # fmt: skip


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _explained(result: SweepResult, best: BestDesign) -> list[Part]:
    """A design in full: its GEMMs, and for each workload what the heaviest one waits for."""
    chip = ", ".join(
        f"{column_of(result, name).heading} {say_of(result, name, best.row[name])}" for name in result.field_names
    )
    columns = [column_of(result, name) for name in result.objectives]
    aims = ", ".join(f"{column.heading} {column.format(best.row[column.name])}" for column in columns)
    name = f"Point {best.point}"
    parts: list[Part] = [Text(f"{best.row['arch']} with {chip}.\n{aims}.", title=f"{name}: {best.best_in}")]
    of_attention = result.attention(best.point)
    for workload, table in zip(result.workloads, result.evaluate(best.point).values(), strict=True):
        runs: list[tuple[GEMMResult, int]] = [(gemm, of[1]) for gemm, of in zip(table, workload.gemms, strict=True)]
        attention = list(zip(workload.attention, of_attention.get(workload.name, ()), strict=True))
        total_us = sum(gemm.latency_us * count for gemm, count in runs)
        total_us += sum(one.latency_us * count for (_, count), one in attention)
        runs.sort(key=lambda run: -run[0].latency_us * run[1])
        rows = [[at, *gemm_cells(gemm, count, total_us)] for at, (gemm, count) in enumerate(runs, 1)]
        caption = f"{name}, {workload.name}: its GEMMs, heaviest first"
        parts += [Table(_GEMM_COLUMNS, rows, caption=caption, note=_GEMM_NOTE), Text(runs[0][0].explain())]
        parts += [
            Text(one.explain(), title=f"{name}, {workload.name}: attention, {one.latency_us * count / total_us:.0%}")
            for (_, count), one in attention
        ]
    return parts


_MOST_CELLS = 32  # values of a field that a heat map shows


def sweep_report(result: SweepResult, *, title: str = "") -> Page:
    """Return the report on a sweep: fronts, tables, the best designs and why; ``sweep_report(result).write("x.html")``.

    Raises:
        GemmEvalError: matplotlib is not installed.
    """
    best = find_best(result, result.pareto())
    return sweep_page(result, figures=_sweep_figures(result, best[-1].point) if best else (), title=title)


def _sweep_figures(result: SweepResult, point: int) -> list[Figure]:
    """Return drawings of a design's GEMMs, and of the first objective over the two fields on which it depends most."""
    gemms = [(one.name, problem, count) for one in result.workloads for problem, count in one.gemms]
    names = [f"{name} {'x'.join(problem.size_words[problem.G == 1 :])}" for name, problem, _ in gemms]
    results = [gemm for table in result.evaluate(point).values() for gemm in table]
    roofline = plot_roofline(result.evaluator(point), [problem for _, problem, _ in gemms], names=names)
    breakdown = plot_breakdown(results, names=names, counts=[count for _, _, count in gemms])
    figures = [
        Figure(roofline, f"Point {point}: its GEMMs under its roofs"),
        Figure(breakdown, f"Point {point}: where the time of its GEMMs goes"),
    ]
    feasible = result.rows(np.flatnonzero(result.is_feasible))
    aim = result.objectives[0]
    effect = effects(result, feasible, aim)
    fields_of = result.description["fields"]
    drawn = [name for name in effect if name not in fields_of or fields_of[name]["kind"] != "Dependent"]
    fields = sorted((name for name in drawn if feasible[name].nunique() <= _MOST_CELLS), key=lambda name: -effect[name])
    if len(fields) >= 2:
        heat_map = plot_heat_map(
            feasible, fields[0], fields[1], aim, reduce="max" if result.is_maximized(aim) else "min"
        )
        figures.append(Figure(heat_map, f"Best {aim} over {fields[0]} and {fields[1]}"))
    return figures
