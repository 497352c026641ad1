"""Scores as tables: for a terminal (rich), as a DataFrame (CSV), as a JSON document."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

import pandas as pd
from rich import box
from rich.table import Table

from gemm_eval.validation.metrics import Metrics
from gemm_eval.validation.scoring import Score, worst_pairs
from gemm_eval.validation.timings import TimingSet

__all__ = ["errors_frame", "errors_table", "report_document", "report_table", "title_of", "worst_table"]

_HEADERS = ("group", "predictor", "fit", "n", "MAPE", "median", "p90", "bias", "tau")
_WORST_HEADERS = ("N", "K", "n", "MAPE", "bias", "worst M", "its error")
_NAMES = ("predictor", "method", "coefficient")
_TEXT_COLUMNS = (*_NAMES, "group", "fit", "family", "regime")


def errors_frame(scores: Iterable[Score]) -> pd.DataFrame:
    """Return one row for each set, predictor and group of rows; errors are fractions.

    Returns:
        Columns data, gpu, library, l2, clock, predictor, num_folds, fit, group, and the fields of `Metrics`.
    """
    return pd.DataFrame(
        [
            {
                "data": scored.timings.name,
                "gpu": scored.timings.gpu,
                "library": scored.timings.library,
                "l2": scored.timings.l2,
                "clock": scored.timings.clock,
                "predictor": scored.predictor,
                "num_folds": scored.num_folds,
                "fit": scored.fit,
                "group": group,
                **asdict(errors),
            }
            for scored in scores
            for group, errors in scored.errors.items()
        ]
    )


def title_of(timings: TimingSet) -> str:
    """Return one line that says what the rows of a set are."""
    pairs = len(timings.frame[["N", "K"]].drop_duplicates())
    conditions = f"{timings.library} on {timings.gpu}, {timings.l2} L2, {timings.clock} clock"
    return f"{timings.name}: {len(timings):,} GEMMs, {pairs} (N, K) pairs, {conditions}"


def errors_table(scores: Sequence[Score], groups: Sequence[str] = (), note: str = "") -> Table:
    """Return the errors of several predictors on one set, group by group.

    Args:
        scores: all of the same set.
        groups: which groups of rows; empty: all.
        note: a second line of the title, such as where coefficients come from.
    """
    title = title_of(scores[0].timings)
    table = report_table(_HEADERS, f"{title}\n{note}" if note else title)
    for place, group in enumerate(group for group in scores[0].errors if not groups or group in groups):
        if place:
            table.add_section()
        for first, scored in enumerate(scores):
            table.add_row("" if first else group, scored.predictor, scored.fit, *_cells(scored.errors[group]))
    return table


def worst_table(scored: Score, num: int = 10) -> Table:
    """Return the pairs (N, K) with the largest mean errors of one predictor."""
    table = report_table(_WORST_HEADERS, f"largest mean errors of {scored.predictor} by (N, K): {scored.timings.name}")
    for row in worst_pairs(scored, num).to_dict("records"):
        table.add_row(
            *(str(row[name]) for name in ("N", "K", "num")),
            f"{row['mape_frac']:.1%}",
            f"{row['bias_frac']:+.1%}",
            str(row["worst_M"]),
            f"{row['worst_frac']:+.1%}",
        )
    return table


def report_document(scores: Sequence[Score], num_worst: int = 10, groups: Sequence[str] = ()) -> dict[str, Any]:
    """Return the scores as a document for JSON: data sets with their hashes, errors, and the worst pairs.

    Args:
        scores: all of one set after another.
        num_worst: pairs.
        groups: which groups of rows; empty: all.
    """
    sets = []
    for _, of_set in groupby(scores, key=lambda scored: id(scored.timings)):
        same = list(of_set)
        timings = same[0].timings
        sets.append(
            {
                "data": timings.name,
                "gpu": timings.gpu,
                "library": timings.library,
                "l2": timings.l2,
                "clock": timings.clock,
                "source": timings.source,
                "content_hash": timings.content_hash,
                "predictors": [
                    {
                        "name": scored.predictor,
                        "num_folds": scored.num_folds,
                        "fit": scored.fit,
                        "errors": {
                            group: asdict(errors)
                            for group, errors in scored.errors.items()
                            if not groups or group in groups
                        },
                        "worst_pairs": worst_pairs(scored, num_worst).to_dict("records"),
                    }
                    for scored in same
                ],
            }
        )
    return {"sets": sets}


def _cells(errors: Metrics) -> tuple[str, ...]:
    sizes = (errors.mape_frac, errors.median_frac, errors.p90_frac)
    tau = "-" if errors.kendall_tau is None else f"{errors.kendall_tau:.3f}"
    return f"{errors.num:,}", *(f"{size:.1%}" for size in sizes), f"{errors.bias_frac:+.1%}", tau


def report_table(headers: Sequence[str], title: str) -> Table:
    """Return an empty table of a report, made to fit a terminal of 80 columns; names never wrap."""
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, title=title, title_justify="left", title_style="bold", padding=0
    )  # fmt: skip
    for header in headers:
        is_text = header in _TEXT_COLUMNS
        table.add_column(header, overflow="fold", justify="left" if is_text else "right", no_wrap=header in _NAMES)
    return table
