"""A study of single configs for a terminal: errors, the choice among configs, its cost, and where it is worst."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gemm_eval.validation.choice import Loss
from gemm_eval.validation.documents import outlier_records, worst_choices
from gemm_eval.validation.metrics import ALL, Errors
from gemm_eval.validation.report import FIGURES, error_cells, report_table, with_caption
from gemm_eval.validation.studies import FIRST, Study

__all__ = ["study_report"]

_CHOICE_HEADERS = ("method", "mean", "p95", "worst", "speed", "top 1", "top 3", "top 10", "time")
_SPEED_HEADERS = ("group", "method", "GEMMs", *FIRST, "p5", "worst")
_US_PER_S = 1e6
_IN_SECONDS_US = 0.01 * _US_PER_S  # a choice that takes longer
_LEAST_TERM_US = 0.05


def study_report(study: Study, num_worst: int) -> Iterator[RenderableType]:
    """Yield all that is said of a study, in order; `num_worst`: of the largest errors or slowest choices."""
    by_family = study.timings.form.group == "family"
    for table in (study_errors_table(study), *(choice_tables(study) if by_family else [speed_table(study)])):
        yield from (table, "")
    if by_family:
        yield from (cost_line(study), "")
    if num_worst:
        words = "largest errors of the model near the best of a GEMM, with its terms in us"
        yield Text(words if by_family else "slowest first choices of the model", style="bold")
        yield from map(Text, (outlier_lines if by_family else worst_choice_lines)(study, num_worst))
        if by_family:
            yield ""


def study_errors_table(study: Study) -> Table:
    """Return the errors of all predictors: by family and regime, those of held-back tables in brief; or by data set."""
    by_family = study.timings.form.group == "family"
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
    near_best = study.timings.form.near_best
    if near_best is not None:
        caption = f"near best: measured up to {near_best:g} x the best of the GEMM. {tau} of more than 5 configs"
    else:
        caption = "; ".join(f"{scored.predictor}: {scored.how}" for scored in study.scores) + f". {tau}"
    return with_caption(table, caption)


def choice_tables(study: Study) -> list[Table]:
    """Return the regret of each method: GEMMs whose configs were all timed, then all GEMMs, then some by regime."""
    groups: dict[tuple[str, str], list[Loss]] = {}
    for item in study.losses:
        groups.setdefault((item.group, item.regime), []).append(item)
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
    caption = (
        "regret: measured time of the choice / best measured - 1. speed: geometric mean of best / choice. top k: the "
        "best config is among the first k. all GEMMs: where some configs were not timed, the choice is among the timed "
        "ones. time of a choice: on this machine, and the median device time of what is profiled, without builds and "
        "pauses"
    )
    with_caption(tables[-1], caption)
    return tables


def _regret_cells(regret: Loss, overhead_us: float | None) -> tuple[str, ...]:
    tops = (regret.top1_frac, regret.top3_frac, regret.top10_frac)
    time_us = (overhead_us or 0.0) + _US_PER_S * regret.profiled_s
    time = f"{time_us / _US_PER_S:.2g} s" if time_us > _IN_SECONDS_US else f"{time_us:,.0f} us" if time_us else "-"
    return (
        regret.method, *(f"{size:.1%}" for size in (regret.mean_frac, regret.p95_frac, regret.worst_frac)),
        f"{regret.speed_frac:.1%}", *("-" if top is None else f"{top:.1%}" for top in tops), time,
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


def outlier_lines(study: Study, num: int) -> list[str]:
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


def speed_table(study: Study) -> Table:
    """Return the speed of what each method chooses, over all data sets by regime, then over each data set."""
    table = report_table(_SPEED_HEADERS, "speed of the choice among a GEMM's timed configs; 100%: the best of them")
    kept = [item for item in study.losses if ALL in (item.group, item.regime)]
    groups = dict.fromkeys((item.group, item.regime) for item in kept)
    for place, key in enumerate(groups):
        if place:
            table.add_section()
        of_group = [item for item in kept if (item.group, item.regime) == key]
        for number, method in enumerate(dict.fromkeys(item.method for item in of_group)):
            found = {item.how: item for item in of_group if item.method == method}
            first = found[FIRST[0]]
            speeds = (f"{found[top].speed_frac:.1%}" if top in found else "-" for top in FIRST)
            head = ("" if number else key[0] if key[1] == ALL else key[1], method, f"{first.num_gemms:,}")
            table.add_row(*head, *speeds, f"{first.p5_speed_frac:.1%}", f"{first.least_speed_frac:.1%}")
    caption = (
        "geometric means over GEMMs of best time / time of the choice: the method's first, the best of its first 3, "
        "the best of its first 20%. p5, worst: 5th percentile and least of its first"
    )
    return with_caption(table, caption)


def worst_choice_lines(study: Study, num: int) -> list[str]:
    """Return the GEMMs of `worst_choices` in words, two lines each."""
    lines = []
    for item in worst_choices(study, num):
        lines.append(f"{item['data_set']}, M {item['M']}, N {item['N']}, K {item['K']}: {item['speed_frac']:.1%}")
        for name in ("chosen", "best"):
            part = item[name]
            lines.append(
                f"  {name}: {part['config']}: measured {part['measured_us']:.1f} us, predicted "
                f"{part['predicted_us']:.1f} us"
            )
    return lines
