"""Scores of the Triton model as tables for a terminal, as a DataFrame (CSV), and as a JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd
from rich.table import Table

from gemm_eval.validation.report import report_table
from gemm_eval.validation.triton_ablation import BUYS_NOTHING_POINTS, TritonAblated
from gemm_eval.validation.triton_choice import ALL, TOP
from gemm_eval.validation.triton_scores import TritonStudy, worst_choices

__all__ = [
    "triton_ablation_table",
    "triton_choice_table",
    "triton_document",
    "triton_errors_table",
    "triton_frame",
    "triton_worst_lines",
]

_ERROR_HEADERS = ("group", "predictor", "n", "MAPE", "median", "p90", "bias", "tau")
_CHOICE_HEADERS = ("group", "method", "GEMMs", *(f"{name}" for name in TOP), "p5", "worst")
_ABLATION_HEADERS = ("coefficient", "held at", "held out", "worst set", "there", "speed")


def triton_errors_table(study: TritonStudy) -> Table:
    """Return the errors of all methods: of all data sets by regime, then of each data set."""
    timings = study.timings
    num_gemms, num_pairs = int(timings.gemm.max()) + 1, len(timings.frame[["N", "K"]].drop_duplicates())
    table = report_table(
        _ERROR_HEADERS,
        f"Triton kernels on {timings.arch.name}: {len(timings):,} timings of {num_gemms:,} GEMMs, {num_pairs} (N, K) "
        "pairs, cold L2",
    )
    last = ""
    for item in sorted((item for item in study.errors if ALL in (item.data_set, item.regime)), key=_group_order(study)):
        group = _group(item.data_set, item.regime)
        if last and group != last:
            table.add_section()
        errors = item.errors
        sizes = (f"{value:.1%}" for value in (errors.mape_frac, errors.median_frac, errors.p90_frac))
        tau = "-" if item.tau_within_gemms is None else f"{item.tau_within_gemms:.3f}"
        head = ("" if group == last else group, item.predictor, f"{errors.num:,}")
        table.add_row(*head, *sizes, f"{errors.bias_frac:+.1%}", tau)
        last = group
    lines = [f"{item.name}: {item.how}" for item in study.predictions]
    table.caption = "; ".join(lines) + ". tau: Kendall's tau-b within a GEMM, mean over GEMMs"
    table.caption_justify = "left"
    return table


def triton_choice_table(study: TritonStudy) -> Table:
    """Return the speed of what each method chooses, over all data sets by regime, then over each data set."""
    table = report_table(_CHOICE_HEADERS, "speed of the choice among a GEMM's timed configs; 100%: the best of them")
    kept = [item for item in study.choices if ALL in (item.data_set, item.regime)]
    groups = dict.fromkeys((item.data_set, item.regime) for item in kept)
    for place, key in enumerate(groups):
        if place:
            table.add_section()
        of_group = [item for item in kept if (item.data_set, item.regime) == key]
        for number, method in enumerate(dict.fromkeys(item.method for item in of_group)):
            found = {item.top: item for item in of_group if item.method == method}
            first = found[TOP[0]]
            speeds = (f"{found[top].speed_frac:.1%}" if top in found else "-" for top in TOP)
            head = ("" if number else _group(*key), method, f"{first.num_gemms:,}")
            table.add_row(*head, *speeds, f"{first.p5_frac:.1%}", f"{first.worst_frac:.1%}")
    table.caption = (
        "geometric means over GEMMs of best time / time of the choice: the method's first, the best of its first 3, "
        "the best of its first 20%. p5, worst: 5th percentile and least of its first"
    )
    table.caption_justify = "left"
    return table


def _group(data_set: str, regime: str) -> str:
    return data_set if regime == ALL else regime


def _group_order(study: TritonStudy) -> Any:
    groups = list(dict.fromkeys((item.data_set, item.regime) for item in study.errors))
    return lambda item: groups.index((item.data_set, item.regime))


def triton_worst_lines(study: TritonStudy, num: int) -> list[str]:
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


def triton_ablation_table(found: Sequence[TritonAblated]) -> Table:
    """Return what each coefficient buys; changes in percentage points."""
    title = "held-out error when a coefficient is held at its neutral value and the others are fitted again"
    table = report_table(_ABLATION_HEADERS, f"{title} (with all: MAPE {found[0].base_points:.2f}%)")
    for item in sorted(found, key=lambda item: -item.held_out_points):
        changes = (f"{item.held_out_points:+.3f}", item.worst_set, f"{item.worst_set_points:+.3f}")
        table.add_row(item.coefficient, f"{item.value:g}", *changes, f"{item.speed_points:+.2f}")
    useless = [item.coefficient for item in found if item.held_out_points < BUYS_NOTHING_POINTS]
    table.caption = (
        "changes in percentage points. held out: MAPE of all rows; worst set: the data set that loses most; speed: of "
        f"the first choice. Under {BUYS_NOTHING_POINTS:g} points, buys nothing: {', '.join(useless) or 'none'}"
    )
    table.caption_justify = "left"
    return table


def triton_frame(study: TritonStudy) -> pd.DataFrame:
    """Return all errors and choices as rows: `what` says which; errors and speeds are fractions."""
    rows = [{"what": "error", **_flat(item)} for item in study.errors]
    rows += [{"what": "choice", **asdict(item)} for item in study.choices]
    return pd.DataFrame(rows)


def _flat(item: Any) -> dict[str, Any]:
    flat = asdict(item)
    errors: dict[str, Any] = flat.pop("errors")
    errors.pop("kendall_tau")  # over all rows; the one within GEMMs says more
    return flat | errors


def triton_document(study: TritonStudy, num_worst: int, found: Sequence[TritonAblated] = ()) -> dict[str, Any]:
    """Return all numbers as a document for JSON; times in us, errors and speeds as fractions."""
    document: dict[str, Any] = {
        "num_rows": len(study.timings),
        "num_gemms": int(study.timings.gemm.max()) + 1,
        "predictors": {item.name: item.how for item in study.predictions},
        "errors": [_flat(item) for item in study.errors],
        "choices": [asdict(item) for item in study.choices],
        "worst": worst_choices(study, num_worst),
    }
    return document | ({"ablation": [asdict(item) for item in found]} if found else {})
