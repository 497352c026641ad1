"""What a sweep says, in words: the best design, how much better than the base, what limits it, what helps."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gemm_eval.errors import GemmEvalError
from gemm_eval.report.levers import MIN_GAIN_FRAC, Runs, say_bounds
from gemm_eval.report.parts import Verdict
from gemm_eval.report.sweep_best import BALANCE, BestDesign
from gemm_eval.report.sweep_tables import column_of, effects, say_of
from gemm_eval.sweep import SweepResult, what_if

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["names_of_best", "sweep_verdict"]

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
    found = effects(result, feasible, aim)
    kinds = {**result.description["fields"], **result.description["variables"]}
    ranked = sorted((name for name in found if kinds.get(name, {}).get("kind") != "Dependent"), key=lambda n: -found[n])
    return ", ".join(f"{column_of(result, name).heading} {found[name]:.3g}x" for name in ranked[:_MOST_FIELDS])


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
