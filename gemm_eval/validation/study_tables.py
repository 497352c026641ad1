"""Studies of single configs and ablations as tables for a terminal, JSON documents and data frames.

Of W4A16 kernels a study is told apart by family, and judged by regret; of Triton kernels by data set, and by speed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gemm_eval.validation.ablation import Ablated, Ablation
from gemm_eval.validation.choice import Loss
from gemm_eval.validation.metrics import ALL, Errors, rows_by_gemm, worst_rows
from gemm_eval.validation.predictors.triton import describe_config
from gemm_eval.validation.report import FIGURES, error_cells, report_table
from gemm_eval.validation.studies import FIRST, Study

_CHOICE_HEADERS = ("method", "mean", "p95", "worst", "speed", "top 1", "top 3", "top 10", "time")
_SPEED_HEADERS = ("group", "method", "GEMMs", *FIRST, "p5", "worst")
_FAMILY = "family"
_US_PER_S = 1e6
_IN_SECONDS_US = 0.01 * _US_PER_S  # a choice that takes longer
_LEAST_TERM_US = 0.05

# keys of a document -> attributes, by the form's group
_CHOICE_KEYS: dict[str, dict[str, str]] = {
    "family": {"gemms": "group"} | {
        key: key
        for key in (
            "regime", "method", "num_gemms", "mean_frac", "median_frac", "p95_frac", "worst_frac", "speed_frac",
            "top1_frac", "top3_frac", "top10_frac", "profiled_s",
        )
    },
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


def _records(items: Iterable[Any], keys: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{key: getattr(item, attribute) for key, attribute in keys.items()} for item in items]


def _error_records(study: Study) -> list[dict[str, Any]]:
    """Return errors as records; tau over all rows is left out, as the one within GEMMs says more."""
    group = study.timings.form.group
    records = []
    for item in study.errors:
        head: dict[str, Any] = {"predictor": item.predictor, group: item.group, "regime": item.regime}
        head["tau_within_gemms"] = item.tau_within_gemms
        if group == _FAMILY:
            head["num_gemms"] = item.num_gemms
        records.append(head | {key: value for key, value in asdict(item.errors).items() if key != "kendall_tau"})
    return records


def _tables(study: Study) -> list[str]:
    return list(dict.fromkeys(study.timings.frame["table"]))


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
    choices, errors = _records(study.losses, _CHOICE_KEYS[group]), _error_records(study)
    if group != _FAMILY:
        worst = worst_choices(study, num_worst)
        return counts | {"predictors": predictors, "errors": errors, "choices": choices, "worst": worst}
    return {
        "title": study.title,
        "tables": _tables(study),
        **counts,
        "num_gemms_with_all_configs": int(study.is_full.sum()),
        "predictors": predictors,
        "errors": errors,
        "choices": [item | {"choice_us": study.overhead_us.get(item["method"])} for item in choices],
        "missing": list(study.missing),
        "cost": {} if study.cost is None else asdict(study.cost) | {"ratio": study.cost.ratio},
        "worst": outlier_records(study, num_worst),
    }


def outlier_records(study: Study, num: int) -> list[dict[str, Any]]:
    """Return the rows near the best of their GEMM with the largest errors of the model, and its terms in us."""
    timings, model = study.timings, study.scores[0]
    records = []
    for row in worst_rows(model, num).tolist():
        values: dict[str, Any] = timings.frame.iloc[row].to_dict()
        cut = {"STREAM_K": "stream-K", "SPLIT_K": f"split-K {values['split_k']}"}
        tile = "x".join(str(values[name]) for name in ("cta_m", "cta_n", "cta_k"))
        config = f"{tile} cluster {values['cluster_m']}x{values['cluster_n']} {values['num_stages']} stages "
        config += f"{str(values['schedule']).lower()} {cut.get(str(values['decomposition']).upper(), '')}"
        records.append(
            {name: int(values[name]) for name in ("M", "N", "K")}
            | {name: str(values[name]) for name in ("table", "mode", "family")}
            | {
                "config": config.rstrip(),
                "measured_us": float(values["latency_us"]),
                "predicted_us": float(model.predicted_us[row]),
                "error_frac": float(model.error_frac[row]),
                "over_best": float(values["latency_us"] / timings.best_us[row]),
                "terms_us": model.breakdown(row),
            }
        )
    return records


def worst_choices(study: Study, num: int) -> list[dict[str, Any]]:
    """Return the GEMMs for which the first choice of the Triton model is slowest against the best, worst first.

    Returns:
        Keys data_set, M, N, K, speed_frac, and config, measured_us and predicted_us of `chosen` and of `best`.
    """
    timings, predicted_us, measured_us = study.timings, study.scores[0].predicted_us, study.timings.measured_us
    groups, speeds = rows_by_gemm(timings.gemm), study.choices[0].speeds
    records = []
    for gemm in np.argsort(speeds, kind="stable")[:num].tolist():
        record: dict[str, Any] = {}
        for name, us in (("chosen", predicted_us), ("best", measured_us)):
            row = int(groups[gemm][np.argmin(us[groups[gemm]])])
            times = {"measured_us": float(measured_us[row]), "predicted_us": float(predicted_us[row])}
            record[name] = {"config": describe_config(timings, row), **times}
        head: dict[Any, Any] = timings.frame.iloc[groups[gemm][0]][["data_set", "M", "N", "K"]].to_dict()
        records.append(head | {"speed_frac": float(speeds[gemm]), **record})
    return records


def study_report(study: Study, num_worst: int) -> Iterator[RenderableType]:
    """Yield all tables and sentences of a study, in order; `num_worst`: of the largest errors or slowest choices."""
    by_family = study.timings.form.group == _FAMILY
    for table in (study_errors_table(study), *(choice_tables(study) if by_family else [speed_table(study)])):
        yield from (table, "")
    if by_family:
        yield from (cost_line(study), "")
    if num_worst:
        words = "largest errors of the model near the best of a GEMM, with its terms in us"
        yield Text(words if by_family else "slowest first choices of the model", style="bold")
        yield from map(Text, (_outlier_lines if by_family else _worst_choice_lines)(study, num_worst))
        if by_family:
            yield ""


def with_caption(table: Table, caption: str) -> Table:
    """Return the table with a text below it."""
    table.caption, table.caption_justify = caption, "left"
    return table


def study_errors_table(study: Study) -> Table:
    """Return the errors of all predictors: by family and regime, those of held-back tables in brief; or by data set."""
    by_family = study.timings.form.group == _FAMILY
    is_brief = study.is_held_back or not by_family
    by_group: dict[tuple[str, str], list[Errors]] = {}
    for item in study.errors:
        if not is_brief or ALL in (item.group, item.regime):
            by_group.setdefault((item.group, item.regime), []).append(item)
    table = report_table((*(("family", "regime") if by_family else ("group",)), "predictor", *FIGURES), study.title)
    last = ""
    for (group, regime), items in by_group.items():
        if last and (group != last or not by_family):
            table.add_section()
        label = group if regime == ALL else regime
        # within a family the roofline of the data sheet is far off in each regime, and says nothing new
        shown = items if is_brief or ALL in (group, regime) else items[: len(study.scores) - 1]
        for place, item in enumerate(shown):
            name = group.removeprefix("w4a16_") if group != last else ""
            head = (name, "" if place else regime) if by_family else ("" if place else label,)
            table.add_row(*head, item.predictor, *error_cells(item.errors, item.tau_within_gemms))
            last = group
    tau = "tau: Kendall's tau-b within a GEMM, mean over GEMMs"
    if by_family:
        near_best = study.timings.form.near_best
        caption = f"near best: measured up to {near_best:g} x the best of the GEMM. {tau} of more than 5 configs"
    else:
        caption = "; ".join(f"{scored.predictor}: {scored.how}" for scored in study.scores) + f". {tau}"
    return with_caption(table, caption)


def choice_tables(study: Study) -> list[Table]:
    """Return the regret of each method: GEMMs whose configs were all timed, then all GEMMs, then some by regime."""
    groups: dict[tuple[str, str], list[Loss]] = {}
    for item in study.losses:
        groups.setdefault((item.group, item.regime), []).append(item)
    first = study.losses[0].group
    tables = []
    for (gemms, regime), losses in groups.items():
        if (gemms != first and (regime != ALL or study.is_full.all())) or (regime != ALL and study.is_held_back):
            continue
        words = gemms if regime == ALL else f"{gemms}, {regime}"
        table = report_table(_CHOICE_HEADERS, f"choice of a kernel, regret: {words} ({losses[0].num_gemms:,} GEMMs)")
        for loss in losses:
            table.add_row(*_regret_cells(loss, study.overhead_us.get(loss.method)))
        for missing in study.missing if regime == ALL else ():
            table.add_row(missing)
        tables.append(table)
    caption = (
        "regret: measured time of the choice / best measured - 1. speed: geometric mean of best / choice. top k: the "
        "best config is among the first k. all GEMMs: where some configs were not timed, the choice is among the timed "
        "ones. time of a choice: on this machine, and the median device time of what is profiled, without builds and "
        "pauses"
    )
    with_caption(tables[-1], caption)
    return tables


def _regret_cells(loss: Loss, overhead_us: float | None) -> tuple[str, ...]:
    tops = (loss.top1_frac, loss.top3_frac, loss.top10_frac)
    time_us = (overhead_us or 0.0) + _US_PER_S * loss.profiled_s
    time = f"{time_us / _US_PER_S:.2g} s" if time_us > _IN_SECONDS_US else f"{time_us:,.0f} us" if time_us else "-"
    return (
        loss.method, *(f"{size:.1%}" for size in (loss.mean_frac, loss.p95_frac, loss.worst_frac)),
        f"{loss.speed_frac:.1%}", *("-" if top is None else f"{top:.1%}" for top in tops), time,
    )  # fmt: skip


def cost_line(study: Study) -> str:
    """Return what choosing costs, in a sentence."""
    cost = study.cost
    assert cost is not None
    if not cost.num_gemms:
        return f"time of a choice: model {cost.model_us:,.0f} us, median; no GEMM has all its configs timed"
    return (
        f"time of a choice, median of {cost.num_gemms} GEMMs of {cost.num_configs} configs: model "
        f"{cost.model_us:,.0f} us (p90 {cost.model_p90_us:,.0f} us, one thread of this machine); profiling all "
        f"{cost.profile_s:.2f} s, of which {cost.profile_device_s:.2f} s are timed replays and the rest pauses and L2 "
        f"flushes between them, without builds: {cost.ratio:,.0f} times the model"
    )


def _outlier_lines(study: Study, num: int) -> Iterator[str]:
    """Yield the rows of `outlier_records` in words, the largest terms first."""
    for item in outlier_records(study, num):
        terms = sorted(item["terms_us"].items(), key=lambda term: -abs(term[1]))
        shown = ", ".join(f"{name} {value:.1f}" for name, value in terms if abs(value) >= _LEAST_TERM_US)
        yield (
            f"M {item['M']}, N {item['N']}, K {item['K']}: {item['family']} {item['config']}, measured "
            f"{item['measured_us']:.1f} us, predicted {item['predicted_us']:.1f} us, {item['error_frac']:+.1%}; {shown}"
        )


def speed_table(study: Study) -> Table:
    """Return the speed of what each method chooses, over all data sets by regime, then over each data set."""
    table = report_table(_SPEED_HEADERS, "speed of the choice among a GEMM's timed configs; 100%: the best of them")
    by_group: dict[tuple[str, str], dict[str, dict[str, Loss]]] = {}
    for item in study.losses:
        if ALL in (item.group, item.regime):
            by_group.setdefault((item.group, item.regime), {}).setdefault(item.method, {})[item.how] = item
    for place, ((group, regime), methods) in enumerate(by_group.items()):
        if place:
            table.add_section()
        for number, (method, losses) in enumerate(methods.items()):
            first = losses[FIRST[0]]
            speeds = (f"{losses[top].speed_frac:.1%}" if top in losses else "-" for top in FIRST)
            head = ("" if number else group if regime == ALL else regime, method, f"{first.num_gemms:,}")
            table.add_row(*head, *speeds, f"{first.p5_speed_frac:.1%}", f"{first.least_speed_frac:.1%}")
    caption = (
        "geometric means over GEMMs of best time / time of the choice: the method's first, the best of its first 3, "
        "the best of its first 20%. p5, worst: 5th percentile and least of its first"
    )
    return with_caption(table, caption)


def _worst_choice_lines(study: Study, num: int) -> Iterator[str]:
    """Yield the GEMMs of `worst_choices` in words, three lines each."""
    for item in worst_choices(study, num):
        yield f"{item['data_set']}, M {item['M']}, N {item['N']}, K {item['K']}: {item['speed_frac']:.1%}"
        for name in ("chosen", "best"):
            config, measured_us, predicted_us = item[name].values()
            yield f"  {name}: {config}: measured {measured_us:.1f} us, predicted {predicted_us:.1f} us"


_ABLATION_HEADERS = {
    "family": ("coefficient", "held at", "reaches", "in sample", "held out", "near best", "reached rows"),
    "data_set": ("coefficient", "held at", "held out", "worst set", "there", "speed"),
}


def ablation_report(ablation: Ablation) -> Iterator[Table | str]:
    """Yield what each term buys; changes of the MAPE in percentage points, positive: worse without the term.

    Families are ablated one by one, Triton's one set of coefficients at once.
    """
    terms, by_family = ablation.terms, ablation.group == _FAMILY
    if not terms:
        return
    names = ", ".join(".".join(filter(None, (item.part, item.coefficient))) for item in ablation.useless) or "none"
    limit = f"Under {ablation.points:g} points, buys nothing: {names}"
    if by_family:
        title = "error when a term is removed and the family's others are fitted again (MAPE, points)"
        caption = (
            "held at: 0 costs nothing, 1e+09 limits nothing; others: a term's plain value (in the JSON report). in "
            "sample: fits on all rows, weighted as in the fit. held out: only where that changes little; -: not needed."
            f" reaches: rows that move by over 1%. In brackets: held-out MAPE with all terms. {limit}"
        )
    else:
        yield ""
        title = (
            "held-out error when a coefficient is held at its neutral value and the others are fitted again "
            f"(with all: MAPE {terms[0].base_points:.2f}%)"
        )
        caption = (
            "changes in percentage points. held out: MAPE of all rows; worst set: the data set that loses most; speed: "
            f"of the first choice. {limit}"
        )
    table = report_table(_ABLATION_HEADERS[ablation.group], title)
    for part in dict.fromkeys(item.part for item in terms):
        of_part = [item for item in terms if item.part == part]
        if by_family:
            table.add_section()
            table.add_row(f"{part} ({of_part[0].base_points:.2f}%)")
        for item in sorted(of_part, key=_bought_points, reverse=True):
            table.add_row(*(_family_cells if by_family else _set_cells)(item))
    yield with_caption(table, caption)
    for gone in ablation.removed:
        line = (
            f"{gone.part}: {', '.join(gone.coefficients) or 'none'} together change the held-out MAPE by "
            f"{gone.held_out_points:+.3f} points, near the best by {gone.held_out_near_points:+.3f}"
        )
        yield line + (f"; kept, since the others are gone: {', '.join(gone.kept)}" if gone.kept else "")
    if by_family:
        yield ""


def _bought_points(item: Ablated) -> float:
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


def ablation_document(ablation: Ablation) -> dict[str, Any]:
    """Return what each term buys under the key ``ablation``; nothing where there is nothing."""
    terms = _records(ablation.terms, _ABLATION_KEYS[ablation.group])
    if not terms:
        return {}
    if ablation.group != _FAMILY:
        return {"ablation": terms}
    useless = [f"{item.part}.{item.coefficient}" for item in ablation.useless]
    return {"ablation": {"terms": terms, "useless": useless, "together": _records(ablation.removed, _REMOVED_KEYS)}}
