"""Scores, lines and other rows as tables for a terminal, and scores as JSON documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from rich import box
from rich.table import Table

from gemm_eval.validation.exam import Line
from gemm_eval.validation.metrics import Score, worst_pairs
from gemm_eval.validation.timings import Timings

FIGURES = {"n": ",", "MAPE": ".1%", "median": ".1%", "p90": ".1%", "bias": "+.1%", "tau": ".3f"}
"""Headers and formats of the fields of `Metrics`."""

_COVERAGE = {"in 80%": ".0%"}  # rows inside the interval that is made to hold 80% of them
_NAMES = ("predictor", "method", "coefficient")
_TEXT_COLUMNS = (*_NAMES, "group", "fit", "family", "regime")
_CONDITIONS = ("gpu", "library", "l2", "clock")


def report_table(headers: Sequence[str], title: str, num_left: int = 0) -> Table:
    """Return an empty table that fits a terminal of 80 columns; names never wrap, the first `num_left` are text."""
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, title=title, title_justify="left", title_style="bold", padding=0,
        caption_justify="left",
    )  # fmt: skip
    for index, header in enumerate(headers):
        is_text = index < num_left or header in _TEXT_COLUMNS
        table.add_column(header, overflow="fold", justify="left" if is_text else "right", no_wrap=header in _NAMES)
    return table


def rows_table(
    columns: Mapping[str, str], rows: Iterable[Sequence[Any]], title: str, num_left: int = 0, caption: str = ""
) -> Table:
    """Return a table of rows whose cells have the formats of `columns`, by header.

    A cell of None is shown as -, and one of text as it is. An empty row is a line across.
    """
    table = report_table(tuple(columns), title, num_left)
    table.caption = caption or None
    for row in rows:
        if row:
            table.add_row(*map(_cell, row, columns.values()))
        else:
            table.add_section()
    return table


def _cell(value: Any, form: str) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else format(value, form)


def lines_table(
    lines: Sequence[Line], title: str, columns: Mapping[str, str], shares: Mapping[str, str], *, title_of: str = ""
) -> Table:
    """Return lines of an exam as a table: `columns` (else `title_of`) tell the lines, `shares` whose MAPE is shown."""
    coverage = _COVERAGE if any("coverage_frac" in line.more for line in lines) else {}
    headers = list(columns.values()) or ["rows of"]
    others = {name: form for name, form in FIGURES.items() if name not in ("n", "MAPE")}

    def row(line: Line) -> tuple[Any, ...]:
        num, _, *figures = list(line.errors.values())[-1]
        labels = [str(line.labels[name]) for name in columns] or [title_of.format(**line.labels)]
        mapes = (line.errors[who].mape_frac if who in line.errors else None for who in shares)
        return (*labels, num, *mapes, *figures, *(line.more["coverage_frac"] for _ in coverage))

    formats = dict.fromkeys(headers, "") | {"n": ","} | dict.fromkeys(shares.values(), ".1%") | others | coverage
    return rows_table(formats, map(row, lines), title, len(headers))


def title_of(timings: Timings) -> str:
    """Return one line that says what the rows of a set are."""
    pairs = len(set(timings.pairs))
    conditions = f"{timings.library} on {timings.gpu}, {timings.l2} L2, {timings.clock} clock"
    return f"{timings.name}: {len(timings):,} GEMMs, {pairs} (N, K) pairs, {conditions}"


def errors_table(scores: Sequence[Score], note: str = "") -> Table:
    """Return errors of predictors on a set by group of rows; `note` is a second line of title."""
    title = "\n".join(filter(None, (title_of(scores[0].timings), note)))
    inside = _COVERAGE if any(scored.is_inside is not None for scored in scores) else {}
    rows: list[tuple[Any, ...]] = []
    for group in scores[0].by_regime:
        rows += [()] if rows else []
        for first, scored in enumerate(scores):
            names = "" if first else group, scored.predictor, scored.how
            rows.append((*names, *scored.by_regime[group], *(scored.coverage.get(group) for _ in inside)))
    return rows_table(dict.fromkeys(("group", "predictor", "fit"), "") | FIGURES | inside, rows, title)


def worst_table(scored: Score, num: int = 10) -> Table:
    """Return the pairs (N, K) with the largest mean errors of one predictor."""
    columns = {"N": "", "K": "", "n": "", "MAPE": ".1%", "bias": "+.1%", "worst M": "", "its error": "+.1%"}
    rows = worst_pairs(scored, num).itertuples(index=False)
    return rows_table(columns, rows, f"largest mean errors of {scored.predictor} by (N, K): {scored.timings.name}")


def _head(timings: Timings) -> dict[str, str]:
    return {"data": timings.name, **{key: getattr(timings, key) for key in _CONDITIONS}}


def _errors_of(scored: Score) -> dict[str, dict[str, Any]]:
    """Return the errors and the coverage by group of rows."""
    coverage = scored.coverage
    return {
        group: errors._asdict() | {"coverage_frac": coverage.get(group)} for group, errors in scored.by_regime.items()
    }


def report_document(scores: Sequence[Score], num_worst: int = 10) -> dict[str, Any]:
    """Return scores for JSON, set after set: hashes, errors by group of rows, and the worst pairs."""
    sets = []
    for _, of_set in groupby(scores, key=lambda scored: id(scored.timings)):
        same = list(of_set)
        timings = same[0].timings
        predictors = [
            {
                "name": scored.predictor,
                "num_folds": scored.num_folds,
                "fit": scored.how,
                "errors": _errors_of(scored),
                "worst_pairs": worst_pairs(scored, num_worst).to_dict("records"),
            }
            for scored in same
        ]
        head = _head(timings) | {"source": timings.source, "content_hash": timings.content_hash}
        sets.append(head | {"predictors": predictors})
    return {"sets": sets}
