"""The report on a sweep: its front, its best designs and why, every point, and what was excluded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gemm_eval.report.page import Chart, Column, Facts, Figure, Page, Part, Section, Table, Text
from gemm_eval.sweep import SweepResult, pareto_front
from gemm_eval.sweep.space import ARCH

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["sweep_page"]

_MOST_BEST = 4
_MOST_CHARTS = 3
_DECADE = 10.0
_UNITS = {
    "us": "us", "pj": "pJ", "mm2": "mm2", "w": "W", "bytes": "bytes", "ghz": "GHz", "frac": "", "cycles": "cycles",
}  # fmt: skip


def sweep_page(result: SweepResult, *, figures: Sequence[Figure] = (), title: str = "") -> Page:
    """Return the report on a sweep.

    Args:
        result: the sweep.
        figures: drawings that the caller made; they stand behind the best designs.
        title: of the page; default: the names of the base archs.
    """
    front = result.pareto()
    best = _best_points(result, front)
    names = ["point", *([ARCH] if len(result.bases) > 1 else []), *result.field_names]
    metrics = [name for name in result.columns if name not in {*names, ARCH, "excluded", *result.objectives}]
    columns = [*names, *result.objectives, *metrics]
    feasible = result.rows(np.flatnonzero(result.is_feasible))
    sections = [
        Section("Overview", [Facts(_facts(result, len(front))), *_charts(result, feasible)]),
        Section("Pareto front", [_table(front, columns, f"{len(front)} points, best first by {result.objectives[0]}")]),
        Section("Best designs, and why", [
            *(Text(result.explain(point), title=f"Least {name}" if not result.is_maximized(name) else f"Most {name}")
              for name, point in best),
            *figures,
        ]),
        Section("All points", [_table(feasible, columns, "Points that hold all constraints")]),
    ]  # fmt: skip
    reasons = result.excluded()
    if len(reasons):
        sections.append(Section("Excluded points", [_excluded(reasons)]))
    name = title or f"Design space of {', '.join(result.bases)}"
    return Page(name, f"{len(result):,} chips, {', '.join(one.name for one in result.workloads)}", sections)


def _best_points(result: SweepResult, front: pd.DataFrame) -> list[tuple[str, int]]:
    """For each objective its best point on the front, each point once."""
    found: dict[int, str] = {}
    for name in result.objectives[:_MOST_BEST]:
        if len(front):
            column = front[name].to_numpy(np.float64)
            row = int(np.argmax(column) if result.is_maximized(name) else np.argmin(column))
            point = int(front["point"].iloc[row])
            found[point] = f"{found[point]}, {name}" if point in found else name
    return [(name, point) for point, name in found.items()]


def _facts(result: SweepResult, num_front: int) -> list[tuple[str, str]]:
    num_excluded = int((~result.is_feasible).sum())
    description = result.description
    return [
        ("base", ", ".join(result.bases)),
        *((name, text) for name, text in (description["variables"] | description["fields"]).items()),
        *((f"workload {one.name}", f"{len(one.gemms)} GEMMs, {one.flop:.4g} FLOP") for one in result.workloads),
        ("objectives", ", ".join(f"{name} ({'more' if result.is_maximized(name) else 'less'} is better)"
                                 for name in result.objectives)),
        *([("constraints", ", ".join(description["constraints"]))] if description["constraints"] else []),
        ("sampling", str(description["sampling"])),
        ("points", f"{len(result):,}, of which {num_excluded:,} are excluded and {num_front:,} are on the front"),
        ("cost models", ", ".join(sorted(description["models"].values()))),
    ]  # fmt: skip


def _charts(result: SweepResult, feasible: pd.DataFrame) -> list[Part]:
    """The first objective against each of the others, with the front of the two; a single one over the first field."""
    kinds = result.description["columns"]
    numbers = [name for name in result.field_names if kinds[name] in ("whole", "number")]
    y, *others = result.objectives
    if not len(feasible):
        return []
    return [_chart(result, feasible, x, y, is_front=bool(others)) for x in (others or numbers[:1])[:_MOST_CHARTS]]


def _chart(result: SweepResult, feasible: pd.DataFrame, x: str, y: str, *, is_front: bool) -> Chart:
    names = ["point", *([ARCH] if len(result.bases) > 1 else []), *result.field_names, *result.objectives]
    names = list(dict.fromkeys([*names, x, y]))
    best = [y, x] if is_front else [y]
    marked = pareto_front(feasible[best].to_numpy(np.float64), maximize=[result.is_maximized(name) for name in best])
    return Chart(
        [_column(name, feasible, is_named_whole=True) for name in names],
        _rows(feasible, names),
        x=x, y=y, log_x=_spans_decade(feasible[x]), log_y=_spans_decade(feasible[y]),
        highlight=marked.tolist(),
        highlight_label="Pareto front of these two" if is_front else "best",
        label="other points",
        caption=f"{y} against {x}",
    )  # fmt: skip


def _table(frame: pd.DataFrame, names: Sequence[str], caption: str) -> Table:
    names = list(dict.fromkeys(names))
    return Table([_column(name, frame) for name in names], _rows(frame, names), caption=caption)


def _excluded(reasons: pd.DataFrame) -> Table:
    columns = [Column("reason", kind="text"), Column("points"), Column("first"), Column("for example", kind="text")]
    return Table(columns, [list(row) for row in reasons.itertuples(index=False)], caption="Why points are excluded")


def _column(name: str, frame: pd.DataFrame, *, is_named_whole: bool = False) -> Column:
    """A column of the page; its unit stands beside the name."""
    kind: Literal["number", "text"] = "number" if frame[name].dtype.kind in "iuf" else "text"
    quantity, _, last = name.rpartition("_")
    if is_named_whole or not quantity or last not in _UNITS:
        return Column(name, kind=kind)
    return Column(quantity.replace("_", " "), _UNITS[last], kind=kind)


def _rows(frame: pd.DataFrame, names: Sequence[str]) -> list[list[Any]]:
    columns = [frame[name].tolist() for name in names]
    texts = [frame[name].dtype.kind not in "iuf" for name in names]
    return [
        [None if value is None else str(value) if is_text else value for value, is_text in zip(row, texts, strict=True)]
        for row in zip(*columns, strict=True)
    ]


def _spans_decade(column: pd.Series) -> bool:
    low, high = float(column.min()), float(column.max())
    return low > 0.0 and high / low > _DECADE
