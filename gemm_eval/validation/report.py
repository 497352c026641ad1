"""Scores as tables for a terminal, as JSON documents and as data frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
from rich import box
from rich.table import Table

from gemm_eval.validation.ablation import Ablated, Ablation
from gemm_eval.validation.metrics import Metrics, Score, rows_by_gemm, worst_pairs, worst_rows
from gemm_eval.validation.predictors.triton import describe_config
from gemm_eval.validation.studies import Study
from gemm_eval.validation.timings import Timings

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


_SET_KEYS = ("gpu", "library", "l2", "clock")
_REGRETS = ("mean_frac", "median_frac", "p95_frac", "worst_frac", "speed_frac", "top1_frac", "top3_frac", "top10_frac")
# key of a document -> attribute
_ERROR_KEYS = {
    "family": ("predictor", "family", "regime", "tau_within_gemms", "num_gemms"),
    "data_set": ("predictor", "data_set", "regime", "tau_within_gemms"),
}
_CHOICE_KEYS: dict[str, dict[str, str]] = {
    "family": {"gemms": "group"} | {key: key for key in ("regime", "method", "num_gemms", *_REGRETS, "profiled_s")},
    "data_set": {
        "method": "method", "data_set": "group", "regime": "regime", "num_gemms": "num_gemms", "top": "how",
        "speed_frac": "speed_frac", "p5_frac": "p5_speed_frac", "worst_frac": "least_speed_frac",
    },
}  # fmt: skip
_ABLATION_KEYS: dict[str, dict[str, str]] = {
    "family": {"family": "part"} | {
        key: key for key in (
            "coefficient", "value", "why", "reached_frac", "in_sample_points", "held_out_points",
            "held_out_near_points", "held_out_reached_points", "base_points",
        )
    },
    "data_set": {
        "coefficient": "coefficient", "value": "value", "held_out_points": "held_out_points",
        "worst_set": "worst_group", "worst_set_points": "worst_group_points", "speed_points": "speed_points",
        "base_points": "base_points",
    },
}  # fmt: skip


_REMOVED_KEYS = {"family": "part"} | {
    key: key for key in ("coefficients", "kept", "held_out_points", "held_out_near_points")
}


def errors_frame(scores: Iterable[Score]) -> pd.DataFrame:
    """Return one row for each set, predictor and group of rows; errors are fractions.

    Returns:
        Columns data, gpu, library, l2, clock, predictor, num_folds, fit, group, the fields of `Metrics`, and
        coverage_frac.
    """
    return pd.DataFrame(
        [
            {"data": scored.timings.name, **_conditions(scored.timings), "predictor": scored.predictor}
            | {"num_folds": scored.num_folds, "fit": scored.how, "group": group, **asdict(errors)}
            | {"coverage_frac": scored.coverage.get(group)}
            for scored in scores
            for group, errors in scored.by_regime.items()
        ]
    )


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
        head = {"data": timings.name, **_conditions(timings), "source": timings.source}
        predictors = [
            {
                "name": scored.predictor,
                "num_folds": scored.num_folds,
                "fit": scored.how,
                "errors": {
                    group: asdict(errors) | {"coverage_frac": scored.coverage.get(group)}
                    for group, errors in scored.by_regime.items()
                    if not groups or group in groups
                },
                "worst_pairs": worst_pairs(scored, num_worst).to_dict("records"),
            }
            for scored in same
        ]
        sets.append(head | {"content_hash": timings.content_hash, "predictors": predictors})
    return {"sets": sets}


def _conditions(timings: Timings) -> dict[str, str]:
    return {key: getattr(timings, key) for key in _SET_KEYS}


def _error_records(study: Study) -> list[dict[str, Any]]:
    group = study.timings.form.group
    found = []
    for item in study.errors:
        errors = asdict(item.errors)
        errors.pop("kendall_tau")  # over all rows; the one within GEMMs says more
        found.append({key: getattr(item, "group" if key == group else key) for key in _ERROR_KEYS[group]} | errors)
    return found


def _records(items: Iterable[Any], keys: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{key: getattr(item, attribute) for key, attribute in keys.items()} for item in items]


def study_frame(studies: Iterable[Study]) -> pd.DataFrame:
    """Return all errors and choices as rows: `what` says which, `tables` of which data; errors are fractions."""
    rows: list[dict[str, Any]] = []
    for study in studies:
        tables = {"tables": " ".join(_tables(study))} if "table" in study.timings.frame else {}
        choices = _records(study.losses, _CHOICE_KEYS[study.timings.form.group])
        rows += [{"what": "error"} | tables | item for item in _error_records(study)]
        rows += [{"what": "choice"} | tables | item for item in choices]
    return pd.DataFrame(rows)


def study_document(study: Study, num_worst: int) -> dict[str, Any]:
    """Return all numbers as a document for JSON; times in us or s as their names say, errors as fractions."""
    group = study.timings.form.group
    counts = {"num_rows": len(study.timings), "num_gemms": int(study.timings.gemm.max()) + 1}
    predictors = {scored.predictor: scored.how for scored in study.scores}
    choices = _records(study.losses, _CHOICE_KEYS[group])
    if group != "family":
        found: dict[str, Any] = counts | {"predictors": predictors, "errors": _error_records(study)}
        return found | {"choices": choices, "worst": worst_choices(study, num_worst)}
    return {
        "title": study.title,
        "tables": _tables(study),
        **counts,
        "num_gemms_with_all_configs": int(study.is_full.sum()),
        "predictors": predictors,
        "errors": _error_records(study),
        "choices": [item | {"choice_us": study.overhead_us.get(item["method"])} for item in choices],
        "missing": list(study.missing),
        "cost": {} if study.cost is None else asdict(study.cost) | {"ratio": study.cost.ratio},
        "worst": outlier_records(study, num_worst),
    }


def ablation_document(ablation: Ablation) -> dict[str, Any]:
    """Return what each term buys under the key ``ablation``; nothing where there is nothing."""
    terms = _records(ablation.found, _ABLATION_KEYS[ablation.group])
    if not terms:
        return {}
    if ablation.group != "family":
        return {"ablation": terms}
    useless = [f"{item.part}.{item.coefficient}" for item in ablation.useless]
    return {"ablation": {"terms": terms, "useless": useless, "together": _records(ablation.removed, _REMOVED_KEYS)}}


def _tables(study: Study) -> list[str]:
    return list(dict.fromkeys(study.timings.frame["table"]))


def outlier_records(study: Study, num: int) -> list[dict[str, Any]]:
    """Return the rows near the best of their GEMM with the largest errors of the model, and its terms in us."""
    timings, model = study.timings, study.scores[0]
    found = []
    for row in worst_rows(model, num).tolist():
        record = timings.frame.iloc[row]
        predicted_us = float(model.predicted_us[row])
        found.append(
            {name: int(record[name]) for name in ("M", "N", "K")}
            | {name: str(record[name]) for name in ("table", "mode", "family")}
            | {
                "config": _words_of(record),
                "measured_us": float(record["latency_us"]),
                "predicted_us": predicted_us,
                "error_frac": predicted_us / float(record["latency_us"]) - 1.0,
                "over_best": float(record["latency_us"] / timings.best_us[row]),
                "terms_us": model.breakdown(row),
            }
        )
    return found


def _words_of(record: pd.Series[Any]) -> str:
    cut = {"STREAM_K": "stream-K", "SPLIT_K": f"split-K {record['split_k']}"}.get(str(record["decomposition"]).upper())
    tile = "x".join(str(record[name]) for name in ("cta_m", "cta_n", "cta_k"))
    cluster = f"cluster {record['cluster_m']}x{record['cluster_n']}"
    return f"{tile} {cluster} {record['num_stages']} stages {str(record['schedule']).lower()} {cut or ''}".rstrip()


def worst_choices(study: Study, num: int) -> list[dict[str, Any]]:
    """Return the GEMMs for which the first choice of the Triton model is slowest against the best, worst first.

    Returns:
        Keys data_set, M, N, K, speed_frac, and config, measured_us and predicted_us of `chosen` and of `best`.
    """
    timings, predicted_us, measured_us = study.timings, study.scores[0].predicted_us, study.timings.measured_us
    groups = list(rows_by_gemm(timings.gemm))
    speeds = study.choices[0].speeds

    def record(row: int) -> dict[str, Any]:
        config = describe_config(timings, row)
        return {"config": config, "measured_us": float(measured_us[row]), "predicted_us": float(predicted_us[row])}

    found = []
    for place in np.argsort(speeds, kind="stable")[:num].tolist():
        rows = groups[place]
        chosen, best = int(rows[np.argmin(predicted_us[rows])]), int(rows[np.argmin(measured_us[rows])])
        gemm: dict[Any, Any] = timings.frame.loc[[chosen], ["data_set", "M", "N", "K"]].to_dict("records")[0]
        found.append({**gemm, "speed_frac": float(speeds[place]), "chosen": record(chosen), "best": record(best)})
    return found
