"""Scores of W4A16 kernels as tables for a terminal, as a DataFrame (CSV), and as a JSON document."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd
from rich.table import Table

from gemm_eval.models.gpu.w4a16.coefficients import W4A16_FAMILIES
from gemm_eval.validation.kernel_ablation import BUYS_NOTHING_POINTS, Ablated, Removed, useless_terms
from gemm_eval.validation.kernel_choice import Regret
from gemm_eval.validation.kernel_scores import ALL, NEAR_BEST, KernelErrors, breakdown_of, worst_rows
from gemm_eval.validation.kernel_study import KernelStudy
from gemm_eval.validation.report import report_table

__all__ = [
    "ablation_table",
    "choice_tables",
    "cost_lines",
    "kernel_document",
    "kernel_errors_table",
    "kernel_frame",
    "outlier_lines",
    "outlier_records",
    "removed_lines",
]

_ERROR_HEADERS = ("family", "regime", "predictor", "n", "MAPE", "median", "p90", "bias", "tau")
_CHOICE_HEADERS = ("method", "mean", "p95", "worst", "speed", "top 1", "top 3", "top 10", "time")
_ABLATION_HEADERS = ("coefficient", "held at", "reaches", "in sample", "held out", "near best", "reached rows")
_US_PER_S = 1e6
_IN_SECONDS_US = 0.01 * _US_PER_S  # a choice that takes longer
_LEAST_TERM_US = 0.05


def kernel_errors_table(study: KernelStudy) -> Table:
    """Return the errors of all predictors, by family and regime; those of held-back tables in brief."""
    table = report_table(_ERROR_HEADERS, study.title)
    predictors = dict.fromkeys(item.predictor for item in study.errors)
    by_group: dict[tuple[str, str], list[KernelErrors]] = {}
    for item in study.errors:
        if not study.is_held_back or ALL in (item.family, item.regime):
            by_group.setdefault((item.family, item.regime), []).append(item)
    last = ""
    for (family, regime), items in by_group.items():
        if last and family != last:
            table.add_section()
        shown = items if ALL in (family, regime) else items[: len(predictors) - 1]
        for place, item in enumerate(shown):
            head = (family.removeprefix("w4a16_") if family != last else "", "" if place else regime)
            table.add_row(*head, item.predictor, *_error_cells(item))
            last = family
    table.caption = (
        f"near best: measured up to {NEAR_BEST:g} x the best of the GEMM. tau: Kendall's tau-b within a GEMM, mean "
        "over GEMMs of more than 5 configs"
    )
    table.caption_justify = "left"
    return table


def _error_cells(item: KernelErrors) -> tuple[str, ...]:
    errors = item.errors
    sizes = (f"{value:.1%}" for value in (errors.mape_frac, errors.median_frac, errors.p90_frac))
    tau = "-" if item.tau_within_gemms is None else f"{item.tau_within_gemms:.3f}"
    return f"{errors.num:,}", *sizes, f"{errors.bias_frac:+.1%}", tau


def choice_tables(study: KernelStudy) -> list[Table]:
    """Return the regret of each method: GEMMs whose configs were all timed, then all GEMMs, then some by regime."""
    groups: dict[tuple[str, str], list[Regret]] = {}
    for item in study.regrets:
        groups.setdefault((item.gemms, item.regime), []).append(item.regret)
    first = next(iter(groups))[0]
    tables = []
    for (gemms, regime), regrets in groups.items():
        if regime != ALL and (gemms != first or study.is_held_back):
            continue
        if gemms != first and study.is_full.all():
            continue
        words = gemms if regime == ALL else f"{gemms}, {regime}"
        table = report_table(_CHOICE_HEADERS, f"choice of a kernel, regret: {words} ({regrets[0].num_gemms:,} GEMMs)")
        for regret in regrets:
            table.add_row(*_regret_cells(regret, study.overhead_us.get(regret.method)))
        if regime == ALL:
            for missing in study.missing:
                table.add_row(missing)
        tables.append(table)
    tables[-1].caption = (
        "regret: measured time of the choice / best measured - 1. speed: geometric mean of best / choice. top k: the "
        "best config is among the first k. all GEMMs: where some configs were not timed, the choice is among the timed "
        "ones. time of a choice: on this machine, and the median device time of what is profiled, without builds and "
        "pauses"
    )
    tables[-1].caption_justify = "left"
    return tables


def _regret_cells(regret: Regret, overhead_us: float | None) -> tuple[str, ...]:
    tops = (regret.top1_frac, regret.top3_frac, regret.top10_frac)
    time_us = (overhead_us or 0.0) + _US_PER_S * regret.profiled_s
    time = f"{time_us / _US_PER_S:.2g} s" if time_us > _IN_SECONDS_US else f"{time_us:,.0f} us" if time_us else "-"
    return (
        regret.method, *(f"{size:.1%}" for size in (regret.mean_frac, regret.p95_frac, regret.worst_frac)),
        f"{regret.speed_frac:.1%}", *("-" if top is None else f"{top:.1%}" for top in tops), time,
    )  # fmt: skip


def cost_lines(study: KernelStudy) -> list[str]:
    """Return what choosing costs, in sentences."""
    cost = study.cost
    if not cost.num_gemms:
        return [f"time of a choice: model {cost.model_us:,.0f} us, median; no GEMM has all its configs timed"]
    return [
        f"time of a choice, median of {cost.num_gemms} GEMMs of {cost.num_configs} configs: model "
        f"{cost.model_us:,.0f} us (p90 {cost.model_p90_us:,.0f} us, one thread of this machine); profiling all "
        f"{cost.profile_s:.2f} s, of which {cost.profile_device_s:.2f} s are timed replays and the rest pauses and L2 "
        f"flushes between them, without builds: {cost.ratio:,.0f} times the model"
    ]


def outlier_records(study: KernelStudy, num: int) -> list[dict[str, Any]]:
    """Return the rows near the best of their GEMM with the largest errors of the model, and its terms in us."""
    timings, model = study.timings, study.predictions[0]
    found = []
    for row in worst_rows(timings, model, num).tolist():
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
                "terms_us": breakdown_of(timings, model, row),
            }
        )
    return found


def _words_of(record: pd.Series[Any]) -> str:
    cut = {"STREAM_K": "stream-K", "SPLIT_K": f"split-K {record['split_k']}"}.get(str(record["decomposition"]).upper())
    tile = "x".join(str(record[name]) for name in ("cta_m", "cta_n", "cta_k"))
    cluster = f"cluster {record['cluster_m']}x{record['cluster_n']}"
    return f"{tile} {cluster} {record['num_stages']} stages {str(record['schedule']).lower()} {cut or ''}".rstrip()


def outlier_lines(study: KernelStudy, num: int) -> list[str]:
    """Return the rows of `outlier_records` in words, the largest terms first."""
    lines = []
    for item in outlier_records(study, num):
        terms = sorted(item["terms_us"].items(), key=lambda term: -abs(term[1]))
        shown = ", ".join(f"{name} {value:.1f}" for name, value in terms if abs(value) >= _LEAST_TERM_US)
        lines.append(
            f"M {item['M']}, N {item['N']}, K {item['K']}: {item['family']} {item['config']}, measured "
            f"{item['measured_us']:.1f} us, predicted {item['predicted_us']:.1f} us, {item['error_frac']:+.1%}; {shown}"
        )
    return lines


def removed_lines(removed: Iterable[Removed]) -> list[str]:
    """Return, for each family, which terms buy nothing together."""
    return [
        f"{item.family}: {', '.join(item.coefficients) or 'none'} together change the held-out MAPE by "
        f"{item.held_out_points:+.3f} points, near the best by {item.held_out_near_points:+.3f}"
        + (f"; kept, since the others are gone: {', '.join(item.kept)}" if item.kept else "")
        for item in removed
    ]


def ablation_table(found: Sequence[Ablated]) -> Table:
    """Return what each term buys; changes of the MAPE in percentage points, positive: worse without the term."""
    table = report_table(
        _ABLATION_HEADERS, "error when a term is removed and the family's others are fitted again (MAPE, points)"
    )
    for family in W4A16_FAMILIES:
        of_family = [item for item in found if item.family == family]
        if of_family:
            table.add_section()
            table.add_row(f"{family} ({of_family[0].base_points:.2f}%)")
        for item in sorted(of_family, key=lambda item: -item.in_sample_points):
            points = (item.held_out_points, item.held_out_near_points, item.held_out_reached_points)
            table.add_row(
                f"  {item.coefficient}", f"{item.value:.3g}", f"{item.reached_frac:.1%}",
                f"{item.in_sample_points:+.2f}", *("-" if value is None else f"{value:+.3f}" for value in points),
            )  # fmt: skip
    names = ", ".join(f"{item.family}.{item.coefficient}" for item in useless_terms(found)) or "none"
    table.caption = (
        "held at: 0 costs nothing, 1e+09 limits nothing; others: a term's plain value (in the JSON report). in sample: "
        "fits on all rows, weighted as in the fit. held out: only where that changes little; -: not needed. reaches: "
        f"rows that move by over 1%. In brackets: held-out MAPE with all terms. Under {BUYS_NOTHING_POINTS:g} "
        f"points, buys nothing: {names}"
    )
    table.caption_justify = "left"
    return table


def kernel_frame(studies: Iterable[KernelStudy]) -> pd.DataFrame:
    """Return all errors and regrets as rows: `what` says which, `tables` of which data; errors are fractions."""
    rows: list[dict[str, Any]] = []
    for study in studies:
        tables = " ".join(dict.fromkeys(study.timings.frame["table"]))
        rows += [{"what": "error", "tables": tables} | _flat_errors(item) for item in study.errors]
        rows += [
            {"what": "choice", "tables": tables, "gemms": gemms, "regime": regime, **asdict(regret)}
            for gemms, regime, regret in study.regrets
        ]
    return pd.DataFrame(rows)


def _flat_errors(item: KernelErrors) -> dict[str, Any]:
    flat = asdict(item)
    errors: dict[str, Any] = flat.pop("errors")
    errors.pop("kendall_tau")  # over all rows; the one within GEMMs says more
    return flat | errors


def kernel_document(
    studies: Iterable[KernelStudy], num_worst: int, found: Sequence[Ablated] = (), removed: Sequence[Removed] = ()
) -> dict[str, Any]:
    """Return all numbers as a document for JSON; times in us or s as their names say, errors as fractions."""
    parts = [
        {
            "title": study.title,
            "tables": list(dict.fromkeys(study.timings.frame["table"])),
            "num_rows": len(study.timings),
            "num_gemms": len(study.is_full),
            "num_gemms_with_all_configs": int(study.is_full.sum()),
            "predictors": {item.name: item.how for item in study.predictions},
            "errors": [_flat_errors(item) for item in study.errors],
            "choices": [
                {"gemms": gemms, "regime": regime, **asdict(regret), "choice_us": study.overhead_us.get(regret.method)}
                for gemms, regime, regret in study.regrets
            ],
            "missing": list(study.missing),
            "cost": asdict(study.cost) | {"ratio": study.cost.ratio},
            "worst": outlier_records(study, num_worst),
        }
        for study in studies
    ]
    ablation = {
        "terms": [asdict(item) for item in found],
        "useless": [f"{item.family}.{item.coefficient}" for item in useless_terms(found)],
        "together": [asdict(item) for item in removed],
    }
    return {"parts": parts} | ({"ablation": ablation} if found else {})
