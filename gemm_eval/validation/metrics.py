"""Errors of predicted latencies, by regime of M and group of rows: measured, as tables for a terminal, as JSON.

The relative error of a row is predicted / measured - 1. Kendall's tau-b is over all pairs of rows of a group; tau
within a GEMM, of timings of single configs, tells whether a predictor orders its configs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from rich import box
from rich.table import Table

from gemm_eval.errors import InvalidInputError
from gemm_eval.models.gpu import REGIMES_OF_M, ErrorFigures, fit_intervals, interval_of, regime_places
from gemm_eval.validation.fit import CrossFit, Predictor, cross_fit
from gemm_eval.validation.tables import Floats, Ints, Mask, Timings

ALL = "all"
"""The group of all rows, and the regime of all M."""

_MIN_CONFIGS = 6  # of a GEMM, for a rank correlation within it


class Regime(NamedTuple):
    """Rows with `min_rows` <= M <= `max_rows` (None: no upper end)."""

    name: str
    min_rows: int
    max_rows: int | None

    def mask(self, num_rows: Ints) -> Mask:
        return (num_rows >= self.min_rows) & (num_rows <= (np.inf if self.max_rows is None else self.max_rows))


REGIMES = (*(Regime(*limits) for limits in REGIMES_OF_M), Regime(ALL, 1, None))
"""The groups of rows that errors are reported for."""


class Metrics(NamedTuple):
    """Errors of `num` rows, as fractions (0.05 is 5%).

    Attributes:
        mape_frac, median_frac, p90_frac: mean, median and 90th percentile of the absolute relative error.
        bias_frac: mean relative error; positive: predicted too slow.
        kendall_tau: tau-b of predicted and measured; None where it is undefined (one row, or all equal).
    """

    num: int
    mape_frac: float
    median_frac: float
    p90_frac: float
    bias_frac: float
    kendall_tau: float | None

    def percents(self) -> dict[str, Any]:
        """Return the errors as files of calibrations have them."""
        names = ("mape", "median", "p90", "bias")
        percents = {f"{name}_percent": round(100.0 * getattr(self, f"{name}_frac"), 3) for name in names}
        tau = None if self.kendall_tau is None else round(self.kendall_tau, 4)
        return {"num_rows": self.num, **percents, "kendall_tau": tau}


class Errors(NamedTuple):
    """Errors of a predictor on the rows of a group (of `Timings.groups`) and a regime.

    `tau_within_gemms` is the mean of Kendall's tau-b over the `num_gemms` GEMMs with more than 5 of these configs; None
    where no GEMM has as many, or the predictor does not tell configs apart.
    """

    predictor: str
    group: str
    regime: str
    errors: Metrics
    tau_within_gemms: float | None = None
    num_gemms: int = 0


def _tau(measured_us: Floats, predicted_us: Floats) -> float:
    from scipy.stats import kendalltau

    return float(kendalltau(measured_us, predicted_us, variant="b").statistic)


def measure_errors(measured_us: Floats, predicted_us: Floats) -> Metrics:
    """Return the errors of `predicted_us` against `measured_us`, both positive, in microseconds."""
    if measured_us.shape != predicted_us.shape or measured_us.ndim != 1 or not measured_us.size:
        raise InvalidInputError(
            f"measured and predicted must be equally many, at least one, got {measured_us.shape}, {predicted_us.shape}"
        )
    for name, values in (("measured", measured_us), ("predicted", predicted_us)):
        bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
        if bad.size:
            raise InvalidInputError(f"{name} latencies must be positive, got {values[bad[0]]} us (row {bad[0] + 1})")
    error = predicted_us / measured_us - 1.0
    size = np.abs(error)
    tau = _tau(measured_us, predicted_us) if measured_us.size > 1 else np.nan
    return Metrics(
        int(measured_us.size), float(size.mean()), float(np.median(size)), float(np.quantile(size, 0.9)),
        float(error.mean()), None if np.isnan(tau) else tau,
    )  # fmt: skip


def error_figures(data: str, sha256: str, measured_us: Floats, predicted_us: Floats) -> ErrorFigures:
    """Return the errors on a data set as a calibration file has them."""
    return ErrorFigures(data=data, sha256=sha256, **measure_errors(measured_us, predicted_us).percents())


def are_inside(timings: Timings, predicted_us: Floats, folds: Ints) -> Mask:
    """Return which rows lie in the 80% interval of their regime, by the errors of all other folds."""
    return are_inside_of_all([timings], [predicted_us], [folds])[0]


def are_inside_of_all(
    sets: Sequence[Timings], predicted_us: Sequence[Floats], folds: Sequence[Ints], questions: Sequence[Any] = ()
) -> list[Mask]:
    """Return `are_inside` of each set, by errors of all sets; of rows that ask one of `questions`, if these are given.

    So files of corrections have their intervals.
    """
    columns = [
        pd.DataFrame({
            "place": item.regime_places, "log": item.log_errors(us), "pair": item.pairs, "fold": fold,
            "is_known": ~item.in_band, "question": list(questions[index]) if questions else "",
        })
        for index, (item, us, fold) in enumerate(zip(sets, predicted_us, folds, strict=True))
    ]  # fmt: skip
    rows = pd.concat(columns, ignore_index=True)
    inside = np.zeros(len(rows), bool)
    for _, of_question in rows.groupby("question", sort=False):
        for fold, here in of_question.groupby("fold"):
            others = of_question[(of_question["fold"] != fold) & of_question["is_known"]]
            if len(others):
                spreads = fit_intervals(others["place"].to_numpy(), others["log"].to_numpy(), others["pair"].tolist())
                low, high = interval_of(spreads)[here["place"]].T
                inside[here.index] = (here["log"] >= low) & (here["log"] <= high)
    return np.split(inside, np.cumsum([len(item) for item in sets])[:-1])


def row_groups(timings: Timings) -> Iterator[tuple[str, str, Mask]]:
    """Yield (group, regime, rows), all groups first: regimes of M, rows near the best of a GEMM, then bands."""
    regimes = {regime.name: regime.mask(timings.sizes[:, 1]) & ~timings.in_band for regime in REGIMES}
    if np.isfinite(timings.form.near_best):
        regimes["near best"] = timings.is_near_best
    regimes |= {name: timings.band_mask(name) for name in timings.bands}
    groups = {ALL: np.ones(len(timings), bool), **{name: timings.of_group(name) for name in timings.groups}}
    for group, of_group in groups.items():
        for name, of_regime in regimes.items():
            if (rows := of_group & of_regime).any():
                yield group, name, rows


def regime_of(timings: Timings) -> npt.NDArray[np.str_]:
    """Name of each row's regime of M: decode, mid or prefill."""
    return np.array([name for name, *_ in REGIMES_OF_M])[regime_places(timings.sizes[:, 1])]


def tau_within_gemms(gemm: Ints, measured_us: Floats, predicted_us: Floats) -> tuple[float | None, int]:
    """Return the mean of Kendall's tau-b within the GEMMs that have more than 5 rows, and how many there are."""
    taus = [
        _tau(measured_us[rows], predicted_us[rows])
        for rows in rows_by_gemm(gemm)
        if len(rows) >= _MIN_CONFIGS and np.ptp(predicted_us[rows]) > 0.0
    ]
    kept = [tau for tau in taus if np.isfinite(tau)]
    return (float(np.mean(kept)) if kept else None), len(kept)


def rows_by_gemm(gemm: Ints) -> list[Ints]:
    """Return the indices of the rows of each GEMM, by its number."""
    order = np.argsort(gemm, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(gemm[order])) + 1)


@dataclass(frozen=True, eq=False)
class Score:
    """Predictions of one predictor for one set, and their errors.

    Attributes:
        predicted_us: [rows], in microseconds.
        how: how its constants came about, in a few words.
        num_folds: of the cross-validation; 0: not refitted on this set.
        has_order: it tells the configs of a GEMM apart.
        fitted: what predicted the rows, where that is to be asked again; several: one for each fold.
        fit_of: [rows], which of `fitted` predicted a row.
        is_inside: [rows], whether the measured time lies in the 80% interval around the prediction; None: it has none.
        note: of the model: where its coefficients come from.
    """

    timings: Timings
    predictor: str
    predicted_us: Floats
    how: str = "as it is"
    num_folds: int = 0
    has_order: bool = False
    fitted: Sequence[Any] = ()
    fit_of: Ints | None = None
    is_inside: Mask | None = None
    note: str = ""

    @cached_property
    def errors(self) -> tuple[Errors, ...]:
        """Errors of all groups of rows (`row_groups`); with an order also tau within GEMMs."""
        errors = []
        for group, regime, rows in row_groups(self.timings):
            us = self.timings.measured_us[rows], self.predicted_us[rows]
            tau = tau_within_gemms(self.timings.gemm[rows], *us) if self.has_order else (None, 0)
            errors.append(Errors(self.predictor, group, regime, measure_errors(*us), *tau))
        return tuple(errors)

    @property
    def coverage(self) -> dict[str, float]:
        """Share of rows inside their 80% interval, by regime of M and band; empty: there are no intervals."""
        if self.is_inside is None:
            return {}
        groups = row_groups(self.timings)
        return {regime: float(self.is_inside[rows].mean()) for group, regime, rows in groups if group == ALL}

    @property
    def by_regime(self) -> dict[str, Metrics]:
        return {item.regime: item.errors for item in self.errors if item.group == ALL}

    @property
    def error_frac(self) -> Floats:
        return self.predicted_us / self.timings.measured_us - 1.0

    def breakdown(self, row: int) -> dict[str, float]:
        """Return the terms of a row's prediction, in microseconds, of a model that has terms; they add up to it."""
        assert self.fit_of is not None
        return self.fitted[int(self.fit_of[row])].breakdown(self.timings, row)


make_score = Score
"""Score predictions: arguments are the attributes of `Score`."""


def score(predictor: Predictor, timings: Timings, num_folds: int = 5, seed: int = 0) -> Score:
    """Predict whole answers (`Timings.whole`), cross-validated unless `num_folds` is 0, and measure their errors."""
    if not num_folds:
        asked = timings.whole()
        return Score(asked, predictor.name, predictor.predict(asked))
    return score_crossed(cross_fit(predictor, [timings], num_folds, seed), predictor.name, timings)


def score_crossed(
    crossed: CrossFit[Any], name: str, timings: Timings, set_index: int = 0, how: str = "", note: str = "", *,
    has_order: bool = False, has_interval: bool = False,
) -> Score:  # fmt: skip
    """Score a set by fits on other pairs (N, K); with `has_interval` also 80% intervals, by errors of other folds."""
    asked, num, folds = timings.whole(), len(crossed.fits), crossed.folds[set_index]
    predicted_us = crossed.predict(asked, set_index)
    is_inside = are_inside(asked, predicted_us, folds) if has_interval else None
    return Score(asked, name, predicted_us, how or f"{num}-fold", num, has_order, crossed.fits, folds, is_inside, note)


def worst_pairs(scored: Score, num: int = 10) -> pd.DataFrame:
    """Return the pairs (N, K) with the largest mean errors, without bands: num, MAPE, bias and the worst row."""
    error = scored.error_frac
    frame = scored.timings.frame[["N", "K", "M"]].assign(error=error, size=np.abs(error)).loc[~scored.timings.in_band]
    groups = frame.groupby(["N", "K"], sort=True)
    worst = frame.loc[groups["size"].idxmax()].set_index(["N", "K"])
    table = groups.agg(num=("size", "size"), mape_frac=("size", "mean"), bias_frac=("error", "mean"))
    table = table.assign(worst_M=worst["M"], worst_frac=worst["error"])
    return table.sort_values("mape_frac", ascending=False, kind="stable").head(num).reset_index()


def worst_rows(scored: Score, num: int) -> Ints:
    """Return the rows near the best of their GEMM with the largest errors in size, worst first."""
    size = np.where(scored.timings.is_near_best, np.abs(scored.error_frac), -1.0)
    worst = np.argsort(-size, kind="stable")[:num]
    return worst[size[worst] >= 0.0]


FIGURES = {"n": ",", "MAPE": ".1%", "median": ".1%", "p90": ".1%", "bias": "+.1%", "tau": ".3f"}
"""Headers and formats of the fields of `Metrics`."""

COVERAGE = {"in 80%": ".0%"}  # rows inside the interval that is made to hold 80% of them
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
        if not row:
            table.add_section()
            continue
        cells = zip(row, columns.values(), strict=False)
        words = ["-" if cell is None else cell if isinstance(cell, str) else format(cell, form) for cell, form in cells]
        table.add_row(*words)
    return table


def title_of(timings: Timings) -> str:
    """Return one line that says what the rows of a set are."""
    pairs = len(set(timings.pairs))
    conditions = f"{timings.library} on {timings.gpu}, {timings.l2} L2, {timings.clock} clock"
    return f"{timings.name}: {len(timings):,} GEMMs, {pairs} (N, K) pairs, {conditions}"


def errors_table(scores: Sequence[Score], note: str = "") -> Table:
    """Return errors of predictors on a set by group of rows; `note` is a second line of title."""
    title = "\n".join(filter(None, (title_of(scores[0].timings), note)))
    inside = COVERAGE if any(scored.is_inside is not None for scored in scores) else {}
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


def report_document(scores: Sequence[Score], num_worst: int = 10) -> dict[str, Any]:
    """Return scores for JSON, set after set: hashes, errors by group of rows, and the worst pairs."""
    sets = []
    for _, of_set in groupby(scores, key=lambda scored: id(scored.timings)):
        predictors = []
        for scored in of_set:
            timings, coverage, by_regime = scored.timings, scored.coverage, scored.by_regime.items()
            predictors.append({
                "name": scored.predictor, "num_folds": scored.num_folds, "fit": scored.how,
                "errors": {name: of._asdict() | {"coverage_frac": coverage.get(name)} for name, of in by_regime},
                "worst_pairs": worst_pairs(scored, num_worst).to_dict("records"),
            })  # fmt: skip
        head = {"data": timings.name} | {key: getattr(timings, key) for key in (*_CONDITIONS, "source", "content_hash")}
        sets.append(head | {"predictors": predictors})
    return {"sets": sets}
