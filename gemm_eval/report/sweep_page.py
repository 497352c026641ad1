"""The report on a sweep: its best designs and why, its front, every point, and what was excluded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gemm_eval.evaluate import GEMMResult
from gemm_eval.report.gemm_cells import GEMM_COLUMNS, gemm_cells
from gemm_eval.report.page import Page, Section
from gemm_eval.report.parts import Column, Facts, Figure, Part, Table, Text
from gemm_eval.report.scaled import say_flop
from gemm_eval.report.sweep_best import BestDesign, find_best
from gemm_eval.report.sweep_tables import (
    best_table,
    charts,
    column_of,
    excluded_table,
    field_table,
    point_table,
    say_of,
)
from gemm_eval.report.sweep_verdict import names_of_best, sweep_verdict
from gemm_eval.report.sweep_words import say_sampling
from gemm_eval.sweep import SweepResult

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["sweep_page"]

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
    found: list[Part] = []
    if num < asked:
        found.append(
            Text(
                f"{num:,} of {asked:,} points are done; this page knows nothing of the others. The same call of sweep, "
                "or the same gemm-eval sweep, goes on with them.",
                title="This sweep is not finished",
            )
        )
    if num and not len(feasible):
        found.append(Text("Excluded points says what stood in the way.", title="No point is feasible"))
    elif num and not len(front):
        aims = ", ".join(result.objectives)
        found.append(Text(f"Of no point are all objectives known ({aims}).", title="There is no best design"))
    return found


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
    for workload, found in zip(result.workloads, result.evaluate(best.point).values(), strict=True):
        runs: list[tuple[GEMMResult, int]] = [(gemm, of[1]) for gemm, of in zip(found, workload.gemms, strict=True)]
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
