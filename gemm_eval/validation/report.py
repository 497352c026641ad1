"""Scores as tables and lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.table import Table

from gemm_eval.validation.ablation import Ablated, Ablation
from gemm_eval.validation.metrics import Metrics
from gemm_eval.validation.scores import Score, worst_pairs
from gemm_eval.validation.timings import Timings

__all__ = [
    "FIGURES", "ablation_report", "error_cells", "errors_table", "report_table", "title_of", "with_caption",
    "worst_table",
]  # fmt: skip

FIGURES = ("n", "MAPE", "median", "p90", "bias", "tau")
_HEADERS = ("group", "predictor", "fit", *FIGURES)
_COVERAGE = "in 80%"  # rows inside the interval that is made to hold 80% of them
_WORST_HEADERS = ("N", "K", "n", "MAPE", "bias", "worst M", "its error")
_ABLATION_HEADERS = {
    "family": ("coefficient", "held at", "reaches", "in sample", "held out", "near best", "reached rows"),
    "data_set": ("coefficient", "held at", "held out", "worst set", "there", "speed"),
}
_NAMES = ("predictor", "method", "coefficient")
_TEXT_COLUMNS = (*_NAMES, "group", "fit", "family", "regime")


def title_of(timings: Timings) -> str:
    """Return one line that says what the rows of a set are."""
    pairs = len(set(timings.pairs))
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
    has_intervals = any(scored.is_inside is not None for scored in scores)
    headers = (*_HEADERS, _COVERAGE) if has_intervals else _HEADERS
    table = report_table(headers, f"{title}\n{note}" if note else title)
    for place, group in enumerate(group for group in scores[0].by_regime if not groups or group in groups):
        if place:
            table.add_section()
        for first, scored in enumerate(scores):
            errors = scored.by_regime[group]
            cells = [*error_cells(errors, errors.kendall_tau)]
            if has_intervals:
                cells.append(f"{scored.coverage[group]:.0%}" if scored.is_inside is not None else "-")
            table.add_row("" if first else group, scored.predictor, scored.how, *cells)
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


def ablation_report(ablation: Ablation) -> Iterator[Table | str]:
    """Yield what each term buys; changes of the MAPE in percentage points, positive: worse without the term.

    Families are ablated one by one, Triton's one set of coefficients at once.
    """
    found, by_family = ablation.found, ablation.group == "family"
    if not found:
        return
    if by_family:
        title = "error when a term is removed and the family's others are fitted again (MAPE, points)"
    else:
        title = (
            "held-out error when a coefficient is held at its neutral value and the others are fitted again "
            f"(with all: MAPE {found[0].base_points:.2f}%)"
        )
    table = report_table(_ABLATION_HEADERS[ablation.group], title)
    for part in dict.fromkeys(item.part for item in found):
        of_part = [item for item in found if item.part == part]
        if by_family:
            table.add_section()
            table.add_row(f"{part} ({of_part[0].base_points:.2f}%)")
        for item in sorted(of_part, key=_what_it_buys, reverse=True):
            table.add_row(*(_family_cells if by_family else _set_cells)(item))
    names = ", ".join(".".join(filter(None, (item.part, item.coefficient))) for item in ablation.useless) or "none"
    limit = f"Under {ablation.points:g} points, buys nothing: {names}"
    if by_family:
        caption = (
            "held at: 0 costs nothing, 1e+09 limits nothing; others: a term's plain value (in the JSON report). in "
            "sample: fits on all rows, weighted as in the fit. held out: only where that changes little; -: not needed."
            f" reaches: rows that move by over 1%. In brackets: held-out MAPE with all terms. {limit}"
        )
    else:
        caption = (
            "changes in percentage points. held out: MAPE of all rows; worst set: the data set that loses most; speed: "
            f"of the first choice. {limit}"
        )
    if not by_family:
        yield ""
    yield with_caption(table, caption)
    for gone in ablation.removed:
        line = (
            f"{gone.part}: {', '.join(gone.coefficients) or 'none'} together change the held-out MAPE by "
            f"{gone.held_out_points:+.3f} points, near the best by {gone.held_out_near_points:+.3f}"
        )
        yield line + (f"; kept, since the others are gone: {', '.join(gone.kept)}" if gone.kept else "")
    if by_family:
        yield ""


def _what_it_buys(item: Ablated) -> float:
    return (item.held_out_points if item.in_sample_points is None else item.in_sample_points) or 0.0


def _family_cells(item: Ablated) -> tuple[str, ...]:
    points = (item.held_out_points, item.held_out_near_points, item.held_out_reached_points)
    return (
        f"  {item.coefficient}", f"{item.value:.3g}", f"{item.reached_frac or 0.0:.1%}",
        f"{item.in_sample_points or 0.0:+.2f}", *("-" if value is None else f"{value:+.3f}" for value in points),
    )  # fmt: skip


def _set_cells(item: Ablated) -> tuple[str, ...]:
    return (
        item.coefficient, f"{item.value:g}", f"{item.held_out_points or 0.0:+.3f}", item.worst_group,
        f"{item.worst_group_points or 0.0:+.3f}", f"{item.speed_points or 0.0:+.2f}",
    )  # fmt: skip


def error_cells(errors: Metrics, kendall_tau: float | None) -> tuple[str, ...]:
    """Return the cells of `FIGURES`."""
    sizes = (errors.mape_frac, errors.median_frac, errors.p90_frac)
    tau = "-" if kendall_tau is None else f"{kendall_tau:.3f}"
    return f"{errors.num:,}", *(f"{size:.1%}" for size in sizes), f"{errors.bias_frac:+.1%}", tau


def with_caption(table: Table, caption: str) -> Table:
    """Return the table with a text below it."""
    table.caption, table.caption_justify = caption, "left"
    return table


def report_table(headers: Sequence[str], title: str) -> Table:
    """Return an empty table of a report, made to fit a terminal of 80 columns; names never wrap."""
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, title=title, title_justify="left", title_style="bold", padding=0
    )  # fmt: skip
    for header in headers:
        is_text = header in _TEXT_COLUMNS
        table.add_column(header, overflow="fold", justify="left" if is_text else "right", no_wrap=header in _NAMES)
    return table
