"""Scores as a DataFrame (CSV) and as a JSON document: each kind has the keys of its documents, all have one writer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd

from gemm_eval.validation.ablation import Ablation
from gemm_eval.validation.metrics import rows_by_gemm
from gemm_eval.validation.predictors.triton import describe_config
from gemm_eval.validation.scores import Score, worst_pairs, worst_rows
from gemm_eval.validation.studies import Study
from gemm_eval.validation.timings import Timings

__all__ = [
    "ablation_document",
    "errors_frame",
    "outlier_records",
    "report_document",
    "study_document",
    "study_frame",
    "worst_choices",
]

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
