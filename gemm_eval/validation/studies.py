"""Studies of single configs: errors of predictors, and how good the config is that each would choose for a GEMM."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gemm_eval.mapping import Schedule
from gemm_eval.validation.exam import Line, lines_table
from gemm_eval.validation.metrics import ALL, FIGURES, Errors, Score, rows_by_gemm, rows_table, worst_rows
from gemm_eval.validation.tables import Floats, Ints, Mask, Timings

FIRST = ("first", "first 3", "first 20%")
"""Numbers of a GEMM's configs that are timed, in a method's order, and the best of them taken: Triton's choices."""

_FAMILY = "family"
_US_PER_S = 1e6
_IN_SECONDS_US = 0.01 * _US_PER_S  # a choice that takes longer
_LEAST_TERM_US = 0.05
TOP = (1, 3, 10)
"""Shares of GEMMs are reported whose best config is among so many first ones."""

_LEAST_SPEED_PERCENTILE = 5.0


class Choices(NamedTuple):
    """Choices of a method, one for each GEMM: arrays are [gemms].

    Attributes:
        chosen_us: measured time of the choice; of several, the best, because they are profiled.
        speeds: best measured time over that, 0..1.
        in_top: [gemms, `TOP`], whether the best is among so many first ones, or how likely.
        profiled_us: device time of timing what the method wants timed.
        how: in a few words; of methods that time several, how many.
    """

    method: str
    chosen_us: Floats
    speeds: Floats
    in_top: Floats
    profiled_us: Floats
    how: str = ""


class Loss(NamedTuple):
    """Loss of choices against the best measured, as fractions (0.02 is 2%), over GEMMs of a group and regime.

    Attributes:
        mean_frac, median_frac, p95_frac, worst_frac: of the regret: measured time of the choice / best measured - 1.
        speed_frac: geometric mean of best measured / time of the choice (1: always the best).
        p5_speed_frac, least_speed_frac: its 5th percentile, and the least.
        top1_frac, top3_frac, top10_frac: share of GEMMs whose best config is among so many first ones of the method's
            order; None: it gives no order that goes so far.
        profiled_s: median device time of what the method times, in seconds.
    """

    method: str
    how: str
    group: str
    regime: str
    num_gemms: int
    mean_frac: float
    median_frac: float
    p95_frac: float
    worst_frac: float
    speed_frac: float
    p5_speed_frac: float
    least_speed_frac: float
    top1_frac: float | None
    top3_frac: float | None
    top10_frac: float | None
    profiled_s: float


def first_rows(timings: Timings) -> Ints:
    """Return a row of each GEMM, [gemms], in the order of `timings.gemm`."""
    return np.unique(timings.gemm, return_index=True)[1].astype(np.int64)


def static_points(timings: Timings) -> Floats:
    """Return points of each row by a fixed rule, [rows], as written before one has a model; more is better.

    100 where the tile has as many tokens as preferred (64 below M = 128, else 128), 50 where it has fewer; the columns
    of the tile / 32; 10 for steps of 64 k; 5 for each CTA of the cluster where M and N are at least 128; 20 for
    cooperating warpgroups.
    """
    names = ("M", "N", "cta_m", "cta_n", "cta_k", "cluster_m", "cluster_n")
    M, N, cta_m, cta_n, cta_k, cluster_m, cluster_n = (timings.column(name) for name in names)
    is_cooperative = timings.frame["schedule"].str.upper().to_numpy(str) == Schedule.COOPERATIVE.name
    preferred = np.where(M < 128, 64, 128)
    points: Floats = np.where(cta_m == preferred, 100.0, np.where(cta_m < preferred, 50.0, 0.0)) + cta_n / 32
    points += np.where(cta_k == 64, 10.0, 0.0)
    points += np.where(np.minimum(M, N) >= 128, 5.0 * cluster_m * cluster_n, 0.0)
    points += np.where(is_cooperative, 20.0, 0.0)
    return points


def order_by(timings: Timings, cost: Floats) -> Ints:
    """Return the rows GEMM by GEMM, least `cost` first; ties by the registry, or of Triton's kernels by the table."""
    return np.lexsort((timings.column("registry_place"), cost, timings.gemm))


def profile_us(timings: Timings) -> Floats:
    """Return the device time of timing each row as its table says: replays x calls x latency, in microseconds."""
    calls = timings.frame["num_replays"].to_numpy(np.float64)
    if "calls_per_replay" in timings.frame:
        calls = calls * timings.frame["calls_per_replay"].to_numpy(np.float64)
    return calls * timings.measured_us


def share_of_configs(timings: Timings, share: float) -> Ints:
    """Return how many configs such a share of a GEMM's is, at least one, [gemms]."""
    return np.maximum(1, (share * np.bincount(timings.gemm)).astype(np.int64))


def ranked_choice(timings: Timings, method: str, order: Ints, num: int | Ints = 1, how: str = "") -> Choices:
    """Choose by an order of the rows (`order_by`): the first of each GEMM, or the measured best of the first `num`."""
    gemm = timings.gemm[order]
    starts = np.flatnonzero(np.diff(gemm, prepend=-1))
    rank = np.arange(len(order)) - starts[gemm] + 1.0
    measured_us = timings.measured_us[order]
    is_chosen = rank <= np.broadcast_to(num, len(starts))[gemm]
    chosen_us = np.minimum.reduceat(np.where(is_chosen, measured_us, np.inf), starts)
    is_best = measured_us == timings.best_us[order]
    place_of_best = np.minimum.reduceat(np.where(is_best, rank, np.inf), starts)
    profiled = is_chosen if np.max(num) > 1 else np.zeros(len(order), bool)
    profiled_us = np.add.reduceat(np.where(profiled, profile_us(timings)[order], 0.0), starts)
    in_top = (place_of_best[:, None] <= np.array(TOP)).astype(np.float64)
    speeds = timings.best_us[order[starts]] / chosen_us
    return Choices(method, chosen_us, speeds, in_top, profiled_us, how)


def random_choice(timings: Timings) -> Choices:
    """Return the expected choice of a method that takes any timed config of a GEMM, each as likely."""
    num = np.bincount(timings.gemm).astype(np.float64)
    chosen_us = np.bincount(timings.gemm, timings.measured_us) / num
    in_top = np.minimum(np.array(TOP), num[:, None]) / num[:, None]
    speeds = timings.best_us[first_rows(timings)] / chosen_us
    return Choices("random", chosen_us, speeds, in_top, np.zeros(len(num)), "expected value")


def random_speeds(timings: Timings, how: str) -> Choices:
    """Choose as `random_choice`, but by the geometric mean over a GEMM's configs, as speeds are averaged."""
    logs = np.log(timings.measured_us)
    speeds = np.array([np.exp(logs[rows].min() - logs[rows].mean()) for rows in rows_by_gemm(timings.gemm)])
    best_us = timings.best_us[first_rows(timings)]
    return random_choice(timings)._replace(method="at random", chosen_us=best_us / speeds, speeds=speeds, how=how)


def measure_loss(timings: Timings, choices: Choices, gemms: Mask, group: str = ALL, regime: str = ALL) -> Loss:
    """Return how far the choices are from the best, over the GEMMs where `gemms` [gemms] is true, at least one."""
    regret = (choices.chosen_us / timings.best_us[first_rows(timings)])[gemms] - 1.0
    speeds = choices.speeds[gemms]
    top1, top3, top10 = (None if np.isnan(share) else float(share) for share in choices.in_top[gemms].mean(axis=0))
    return Loss(
        choices.method, choices.how, group, regime, len(regret), float(regret.mean()), float(np.median(regret)),
        float(np.quantile(regret, 0.95)), float(regret.max()), float(np.exp(np.log(speeds).mean())),
        float(np.percentile(speeds, _LEAST_SPEED_PERCENTILE)), float(speeds.min()), top1, top3, top10,
        float(np.median(choices.profiled_us[gemms])) / _US_PER_S,
    )  # fmt: skip


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
        is_held_back: the rows were scored with the committed coefficients.
        describe: returns the config of a row in words.
        answers: errors of the configs that the model chooses, without and with a learned correction.
    """

    title: str
    timings: Timings
    scores: Sequence[Score]
    losses: Sequence[Loss]
    choices: Sequence[Choices] = ()
    is_full: Mask = field(default_factory=lambda: np.zeros(0, bool))
    cost: ChoiceCost | None = None
    overhead_us: dict[str, float] = field(default_factory=dict)
    is_held_back: bool = False
    describe: Callable[[int], str] = str
    answers: Sequence[Line] = ()

    @property
    def errors(self) -> list[Errors]:
        return [item for scored in self.scores for item in scored.errors]

    @property
    def by_family(self) -> bool:
        """True where rows are told apart by kernel family."""
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


def _error_records(study: Study) -> list[dict[str, Any]]:
    """Return errors as records; tau over all rows is left out, as the one within GEMMs says more."""
    records = []
    for item in study.errors:
        head: dict[str, Any] = {"predictor": item.predictor, study.timings.form.group: item.group}
        head |= {"regime": item.regime, "tau_within_gemms": item.tau_within_gemms}
        head |= {"num_gemms": item.num_gemms} if study.by_family else {}
        records.append(head | {key: value for key, value in item.errors._asdict().items() if key != "kendall_tau"})
    return records


def study_document(study: Study, num_worst: int) -> dict[str, Any]:
    """Return all numbers as a document for JSON; times in us or s as their names say, errors as fractions."""
    counts = {"num_rows": len(study.timings), "num_gemms": int(study.timings.gemm.max()) + 1}
    predictors = {scored.predictor: scored.how for scored in study.scores}
    group, errors = study.timings.form.group, _error_records(study)
    choices = [{_RENAMED[group].get(key, key): getattr(loss, key) for key in _KEPT[group]} for loss in study.losses]
    if not study.by_family:
        worst = worst_choices(study, num_worst)
        return counts | {"predictors": predictors, "errors": errors, "choices": choices, "worst": worst}
    return {
        "title": study.title, "tables": list(dict.fromkeys(study.timings.frame["table"])), **counts,
        "num_gemms_with_all_configs": int(study.is_full.sum()), "predictors": predictors, "errors": errors,
        "choices": [item | {"choice_us": study.overhead_us.get(item["method"])} for item in choices],
        "answers": [line.to_dict() for line in study.answers],
        "cost": {} if study.cost is None else study.cost._asdict() | {"ratio": study.cost.ratio},
        "worst": outlier_records(study, num_worst),
    }  # fmt: skip


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
                "config": config.rstrip(), "measured_us": float(values["latency_us"]),
                "predicted_us": float(model.predicted_us[row]), "error_frac": float(model.error_frac[row]),
                "over_best": float(values["latency_us"] / timings.best_us[row]), "terms_us": model.breakdown(row),
            }
        )  # fmt: skip
    return records


def worst_choices(study: Study, num: int) -> list[dict[str, Any]]:
    """Return the GEMMs whose first choice is slowest against the best, worst first, with `chosen` and `best`."""
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
    if study.answers:
        shares = {who: who for who in study.answers[0].errors}
        columns = {name: name for name in study.answers[0].labels}
        yield from (lines_table(study.answers, "answers: latency of the config that is chosen", columns, shares), "")
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
    rows: list[tuple[Any, ...]] = []
    last = ""
    for (group, regime), items in by_group.items():
        if last and (group != last or not by_family):
            rows.append(())
        # within a family the roofline of the data sheet is far off in each regime, and says nothing new
        kept = items if is_brief or ALL in (group, regime) else items[: len(study.scores) - 1]
        for index, item in enumerate(kept):
            name = group.removeprefix("w4a16_") if group != last else ""
            head = [name, regime] if by_family else [group if regime == ALL else regime]
            head[-1] = "" if index else head[-1]
            rows.append((*head, item.predictor, *item.errors._replace(kendall_tau=item.tau_within_gemms)))
            last = group
    tau = "tau: Kendall's tau-b within a GEMM, mean over GEMMs"
    if by_family:
        near_best = study.timings.form.near_best
        caption = f"near best: measured up to {near_best:g} x the best of the GEMM. {tau} of more than 5 configs"
    else:
        caption = "; ".join(f"{scored.predictor}: {scored.how}" for scored in study.scores) + f". {tau}"
    names = ("family", "regime", "predictor") if by_family else ("group", "predictor")
    return rows_table(dict.fromkeys(names, "") | FIGURES, rows, study.title, caption=caption)


def choice_tables(study: Study) -> list[Table]:
    """Return the regret of each method: GEMMs whose configs were all timed, then all GEMMs, then some by regime."""
    first = study.losses[0].group
    shares = dict.fromkeys(("mean", "p95", "worst", "speed", "top 1", "top 3", "top 10"), ".1%")
    caption = (
        "regret: measured time of the choice / best measured - 1. speed: geometric mean of best / choice. top k: the "
        "best config is among the first k. all GEMMs: where some configs were not timed, the choice is among the timed "
        "ones. time of a choice: on this machine, and the median device time of what is profiled, without builds and "
        "pauses"
    )
    tables = []
    for (gemms, regime), of_group in groupby(study.losses, lambda item: (item.group, item.regime)):
        if (gemms != first and (regime != ALL or study.is_full.all())) or (regime != ALL and study.is_held_back):
            continue
        losses, words = list(of_group), gemms if regime == ALL else f"{gemms}, {regime}"
        rows = []
        for of in losses:
            us = study.overhead_us.get(of.method, 0.0) + _US_PER_S * of.profiled_s
            words = f"{us / _US_PER_S:.2g} s" if us > _IN_SECONDS_US else f"{us:,.0f} us" if us else None
            shown = of.mean_frac, of.p95_frac, of.worst_frac, of.speed_frac
            rows.append((of.method, *shown, of.top1_frac, of.top3_frac, of.top10_frac, words))
        title = f"choice of a kernel, regret: {words} ({losses[0].num_gemms:,} GEMMs)"
        tables.append(rows_table({"method": ""} | shares | {"time": ""}, rows, title))
    tables[-1].caption = caption
    return tables


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
    by_group: dict[tuple[str, str], dict[str, dict[str, Loss]]] = {}
    for item in study.losses:
        if ALL in (item.group, item.regime):
            by_group.setdefault((item.group, item.regime), {}).setdefault(item.method, {})[item.how] = item
    rows: list[tuple[Any, ...]] = []
    for (group, regime), methods in by_group.items():
        rows += [()] if rows else []
        for number, (method, losses) in enumerate(methods.items()):
            first = losses[FIRST[0]]
            speeds = (losses[top].speed_frac if top in losses else None for top in FIRST)
            name = "" if number else group if regime == ALL else regime
            rows.append((name, method, first.num_gemms, *speeds, first.p5_speed_frac, first.least_speed_frac))
    columns = {"group": "", "method": "", "GEMMs": ","} | dict.fromkeys((*FIRST, "p5", "worst"), ".1%")
    caption = (
        "geometric means over GEMMs of best time / time of the choice: the method's first, the best of its first 3, "
        "the best of its first 20%. p5, worst: 5th percentile and least of its first"
    )
    title = "speed of the choice among a GEMM's timed configs; 100%: the best of them"
    return rows_table(columns, rows, title, caption=caption)


def _worst_choice_lines(study: Study, num: int) -> Iterator[str]:
    """Yield the GEMMs of `worst_choices` in words, three lines each."""
    for item in worst_choices(study, num):
        yield f"{item['data_set']}, M {item['M']}, N {item['N']}, K {item['K']}: {item['speed_frac']:.1%}"
        for name in ("chosen", "best"):
            config, measured_us, predicted_us = item[name].values()
            yield f"  {name}: {config}: measured {measured_us:.1f} us, predicted {predicted_us:.1f} us"
