"""Scores and lines as tables for a terminal, as JSON documents and as data frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from rich import box
from rich.table import Table

from gemm_eval.validation.exam import Line
from gemm_eval.validation.metrics import Metrics, Score, worst_pairs
from gemm_eval.validation.timings import Timings

FIGURES = ("n", "MAPE", "median", "p90", "bias", "tau")
_COVERAGE = "in 80%"  # rows inside the interval that is made to hold 80% of them
_NAMES = ("predictor", "method", "coefficient")
_TEXT_COLUMNS = (*_NAMES, "group", "fit", "family", "regime")
_CONDITIONS = ("gpu", "library", "l2", "clock")


def report_table(headers: Sequence[str], title: str, num_left: int = 0) -> Table:
    """Return an empty table that fits a terminal of 80 columns; names never wrap, the first `num_left` are text."""
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, title=title, title_justify="left", title_style="bold", padding=0
    )  # fmt: skip
    for index, header in enumerate(headers):
        is_text = index < num_left or header in _TEXT_COLUMNS
        table.add_column(header, overflow="fold", justify="left" if is_text else "right", no_wrap=header in _NAMES)
    return table


def with_caption(table: Table, caption: str) -> Table:
    """Return the table with a text below it."""
    table.caption, table.caption_justify = caption, "left"
    return table


def error_cells(errors: Metrics, kendall_tau: float | None) -> tuple[str, ...]:
    """Return the cells of `FIGURES`."""
    sizes = (errors.mape_frac, errors.median_frac, errors.p90_frac)
    tau = "-" if kendall_tau is None else f"{kendall_tau:.3f}"
    return f"{errors.num:,}", *(f"{size:.1%}" for size in sizes), f"{errors.bias_frac:+.1%}", tau


def lines_table(
    lines: Sequence[Line], title: str, columns: Mapping[str, str], shares: Mapping[str, str], *, title_of: str = ""
) -> Table:
    """Return lines of an exam as a table: `columns` (else `title_of`) tell the lines, `shares` whose MAPE is shown."""
    num, _, *others = FIGURES
    has_coverage = any("coverage_frac" in line.more for line in lines)
    headers = list(columns.values()) or ["rows of"]
    more = [_COVERAGE] if has_coverage else []
    table = report_table((*headers, num, *shares.values(), *others, *more), title, len(headers))
    for line in lines:
        last = list(line.errors.values())[-1]
        count, _, *cells = error_cells(last, last.kendall_tau)
        labels = [str(line.labels[name]) for name in columns] or [title_of.format(**line.labels)]
        mapes = (f"{line.errors[who].mape_frac:.1%}" if who in line.errors else "-" for who in shares)
        coverage = [f"{line.more['coverage_frac']:.0%}"] if has_coverage else []
        table.add_row(*labels, count, *mapes, *cells, *coverage)
    return table


def title_of(timings: Timings) -> str:
    """Return one line that says what the rows of a set are."""
    pairs = len(set(timings.pairs))
    conditions = f"{timings.library} on {timings.gpu}, {timings.l2} L2, {timings.clock} clock"
    return f"{timings.name}: {len(timings):,} GEMMs, {pairs} (N, K) pairs, {conditions}"


def errors_table(scores: Sequence[Score], note: str = "") -> Table:
    """Return errors of predictors on a set by group of rows; `note` is a second line of title."""
    title = title_of(scores[0].timings)
    has_intervals = any(scored.is_inside is not None for scored in scores)
    headers = ("group", "predictor", "fit", *FIGURES, *((_COVERAGE,) if has_intervals else ()))
    table = report_table(headers, f"{title}\n{note}" if note else title)
    for index, group in enumerate(scores[0].by_regime):
        if index:
            table.add_section()
        for first, scored in enumerate(scores):
            errors, coverage = scored.by_regime[group], scored.coverage
            cells = [*error_cells(errors, errors.kendall_tau)]
            if has_intervals:
                cells.append(f"{coverage[group]:.0%}" if coverage else "-")
            table.add_row("" if first else group, scored.predictor, scored.how, *cells)
    return table


def worst_table(scored: Score, num: int = 10) -> Table:
    """Return the pairs (N, K) with the largest mean errors of one predictor."""
    headers = ("N", "K", "n", "MAPE", "bias", "worst M", "its error")
    table = report_table(headers, f"largest mean errors of {scored.predictor} by (N, K): {scored.timings.name}")
    for N, K, num_rows, mape, bias, M, error in worst_pairs(scored, num).itertuples(index=False):
        table.add_row(str(N), str(K), str(num_rows), f"{mape:.1%}", f"{bias:+.1%}", str(M), f"{error:+.1%}")
    return table


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
