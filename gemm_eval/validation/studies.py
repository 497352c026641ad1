"""Studies of single configs: errors of predictors and losses of choices, as tables, JSON documents and data frames.

Of W4A16 kernels a study is told apart by family, and judged by regret; of Triton kernels by data set, and by speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gemm_eval.validation.choice import Choices, Loss
from gemm_eval.validation.metrics import ALL, Errors, Score, rows_by_gemm, worst_rows
from gemm_eval.validation.report import FIGURES, error_cells, report_table, with_caption
from gemm_eval.validation.timings import Mask, Timings

FIRST = ("first", "first 3", "first 20%")
"""Numbers of a GEMM's configs that are timed, in a method's order, and the best of them taken: Triton's choices."""

_FAMILY = "family"
_US_PER_S = 1e6
_IN_SECONDS_US = 0.01 * _US_PER_S  # a choice that takes longer
_LEAST_TERM_US = 0.05


class ChoiceCost(NamedTuple):
    """Cost of choosing a kernel for one GEMM, medians over `num_gemms`, those whose configs were all timed.

    Where there are none, the model's times are of all GEMMs, and profiling takes 0. `model_us` and `model_p90_us` are
    of `select_config` on this machine, one thread; `profile_device_s` of all replays of all configs, as the tables say;
    `profile_s` also of the pauses and L2 flushes between replays, but of no build.
    """

    num_gemms: int
    num_configs: int
    model_us: float
    model_p90_us: float
    profile_device_s: float
    profile_s: float

    @property
    def ratio(self) -> float:
        """Time of profiling over that of the model."""
        return _US_PER_S * self.profile_s / self.model_us if self.model_us else 0.0


@dataclass(frozen=True, eq=False)
class Study:
    """All scores of timings of single configs, the model's first.

    Attributes:
        title: what the rows are and how they were held out.
        losses: of each method and group of GEMMs; `choices`: of each method.
        is_full: [gemms], whether all configs of a GEMM were timed.
        cost: of choosing.
        overhead_us: method -> time that it takes for one GEMM beside what it profiles, where that was measured.
        missing: methods that could not be run, in words.
        is_held_back: the rows were scored with the committed coefficients.
        describe: returns the config of a row in words.
    """

    title: str
    timings: Timings
    scores: Sequence[Score]
    losses: Sequence[Loss]
    choices: Sequence[Choices] = ()
    is_full: Mask = field(default_factory=lambda: np.zeros(0, bool))
    cost: ChoiceCost | None = None
    overhead_us: dict[str, float] = field(default_factory=dict)
    missing: Sequence[str] = ()
    is_held_back: bool = False
    describe: Callable[[int], str] = str

    @property
    def errors(self) -> list[Errors]:
        """Errors of each score, by group and regime."""
        return [item for scored in self.scores for item in scored.errors]

    @property
    def by_family(self) -> bool:
        """Whether its rows are told apart by kernel family."""
        return self.timings.form.group == _FAMILY


# fields of `Loss` that documents have under other names, or not at all, by the form's group
_RENAMED: Mapping[str, Mapping[str, str]] = {
    _FAMILY: {"group": "gemms"},
    "data_set": {"group": "data_set", "how": "top", "p5_speed_frac": "p5_frac", "least_speed_frac": "worst_frac"},
}
_KEPT: Mapping[str, Sequence[str]] = {
    _FAMILY: (
        "group", "regime", "method", "num_gemms", "mean_frac", "median_frac", "p95_frac", "worst_frac", "speed_frac",
        "top1_frac", "top3_frac", "top10_frac", "profiled_s",
    ),
    "data_set": (
        "method", "group", "regime", "num_gemms", "how", "speed_frac", "p5_speed_frac", "least_speed_frac",
    ),
}  # fmt: skip


def _choice_records(study: Study) -> list[dict[str, Any]]:
    group = study.timings.form.group
    names = {name: _RENAMED[group].get(name, name) for name in _KEPT[group]}
    return [{key: getattr(loss, name) for name, key in names.items()} for loss in study.losses]


def _error_records(study: Study) -> list[dict[str, Any]]:
    """Return errors as records; tau over all rows is left out, as the one within GEMMs says more."""
    records = []
    for item in study.errors:
        head: dict[str, Any] = {"predictor": item.predictor, study.timings.form.group: item.group}
        head |= {"regime": item.regime, "tau_within_gemms": item.tau_within_gemms}
        head |= {"num_gemms": item.num_gemms} if study.by_family else {}
        records.append(head | {key: value for key, value in item.errors._asdict().items() if key != "kendall_tau"})
    return records


def study_frame(studies: Iterable[Study]) -> pd.DataFrame:
    """Return all errors and choices as rows: `what` says which, `tables` of which data; errors are fractions."""
    rows: list[dict[str, Any]] = []
    for study in studies:
        frame = study.timings.frame
        tables = {"tables": " ".join(dict.fromkeys(frame["table"]))} if "table" in frame else {}
        for word, records in (("error", _error_records(study)), ("choice", _choice_records(study))):
            rows += [{"what": word} | tables | record for record in records]
    return pd.DataFrame(rows)


def study_document(study: Study, num_worst: int) -> dict[str, Any]:
    """Return all numbers as a document for JSON; times in us or s as their names say, errors as fractions."""
    counts = {"num_rows": len(study.timings), "num_gemms": int(study.timings.gemm.max()) + 1}
    predictors = {scored.predictor: scored.how for scored in study.scores}
    choices, errors = _choice_records(study), _error_records(study)
    if not study.by_family:
        worst = worst_choices(study, num_worst)
        return counts | {"predictors": predictors, "errors": errors, "choices": choices, "worst": worst}
    return {
        "title": study.title,
        "tables": list(dict.fromkeys(study.timings.frame["table"])),
        **counts,
        "num_gemms_with_all_configs": int(study.is_full.sum()),
        "predictors": predictors,
        "errors": errors,
        "choices": [item | {"choice_us": study.overhead_us.get(item["method"])} for item in choices],
        "missing": list(study.missing),
        "cost": {} if study.cost is None else study.cost._asdict() | {"ratio": study.cost.ratio},
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
            record[name] = {"config": study.describe(row), **times}
        head: dict[Any, Any] = timings.frame.iloc[groups[gemm][0]][["data_set", "M", "N", "K"]].to_dict()
        records.append(head | {"speed_frac": float(speeds[gemm]), **record})
    return records


def study_report(study: Study, num_worst: int) -> Iterator[RenderableType]:
    """Yield all tables and sentences of a study, in order; `num_worst`: of the largest errors or slowest choices."""
    for table in (study_errors_table(study), *(choice_tables(study) if study.by_family else [speed_table(study)])):
        yield from (table, "")
    if study.by_family:
        yield from (cost_line(study), "")
    if num_worst:
        words = "largest errors of the model near the best of a GEMM, with its terms in us"
        yield Text(words if study.by_family else "slowest first choices of the model", style="bold")
        yield from map(Text, (_outlier_lines if study.by_family else _worst_choice_lines)(study, num_worst))
        if study.by_family:
            yield ""


def study_errors_table(study: Study) -> Table:
    """Return the errors of all predictors: by family and regime, those of held-back tables in brief; or by data set."""
    by_family, is_brief = study.by_family, study.is_held_back or not study.by_family
    shown = [item for item in study.errors if not is_brief or ALL in (item.group, item.regime)]
    by_group: dict[tuple[str, str], list[Errors]] = {}
    for item in shown:
        by_group.setdefault((item.group, item.regime), []).append(item)
    table = report_table((*(("family", "regime") if by_family else ("group",)), "predictor", *FIGURES), study.title)
    last = ""
    for (group, regime), items in by_group.items():
        if last and (group != last or not by_family):
            table.add_section()
        # within a family the roofline of the data sheet is far off in each regime, and says nothing new
        kept = items if is_brief or ALL in (group, regime) else items[: len(study.scores) - 1]
        for index, item in enumerate(kept):
            name = group.removeprefix("w4a16_") if group != last else ""
            head = [name, regime] if by_family else [group if regime == ALL else regime]
            head[-1] = "" if index else head[-1]
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
    first = study.losses[0].group
    headers = ("method", "mean", "p95", "worst", "speed", "top 1", "top 3", "top 10", "time")
    tables = []
    for (gemms, regime), of_group in groupby(study.losses, lambda item: (item.group, item.regime)):
        if (gemms != first and (regime != ALL or study.is_full.all())) or (regime != ALL and study.is_held_back):
            continue
        losses, words = list(of_group), gemms if regime == ALL else f"{gemms}, {regime}"
        table = report_table(headers, f"choice of a kernel, regret: {words} ({losses[0].num_gemms:,} GEMMs)")
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
        loss.method, *(f"{size:.1%}" for size in (loss.mean_frac, loss.p95_frac, loss.worst_frac, loss.speed_frac)),
        *("-" if top is None else f"{top:.1%}" for top in tops), time,
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
    headers = ("group", "method", "GEMMs", *FIRST, "p5", "worst")
    table = report_table(headers, "speed of the choice among a GEMM's timed configs; 100%: the best of them")
    by_group: dict[tuple[str, str], dict[str, dict[str, Loss]]] = {}
    for item in study.losses:
        if ALL in (item.group, item.regime):
            by_group.setdefault((item.group, item.regime), {}).setdefault(item.method, {})[item.how] = item
    for index, ((group, regime), methods) in enumerate(by_group.items()):
        if index:
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
