"""The exam of training: steps that others published (arch/published/training.csv); nothing is fitted on them."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from gemm_eval.arch import GpuSpec, data_root, load_arch
from gemm_eval.errors import InfeasibleError
from gemm_eval.training import RECOMPUTE, TrainingEstimate, estimate_training, model_flop
from gemm_eval.transformer import load_model
from gemm_eval.validation.report import rows_table
from gemm_eval.validation.subjects import Report

_DEGREES = ("tensor", "pipeline", "context", "expert")
_SIZES = ("num_devices", "global_batch", "micro_batch", "seq_len", "zero", "num_chunks")
_WORDS = ("dtype", "schedule", "recompute", "dispatcher", "attention_library")
_S_PER_HOUR = 3600
_FLOP_PER_TFLOP = 1e12


class PublishedRun(NamedTuple):
    """A published training run; `tokens_per_s` is of one device."""

    name: str
    model: str
    arch: GpuSpec
    options: Mapping[str, Any]
    tokens_per_s: float
    source: str
    note: str


@cache
def published_runs() -> tuple[PublishedRun, ...]:
    """Return the published runs, in the order of their file."""
    text = (data_root() / "published" / "training.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return tuple(_read(row) for row in rows)


def _read(row: Mapping[str, str]) -> PublishedRun:
    arch = load_arch(row["arch"], GpuSpec)
    if row["link_gb_per_s"]:
        assert arch.interconnect is not None
        arch = arch.with_(interconnect=arch.interconnect.model_copy(update={"gb_per_s": float(row["link_gb_per_s"])}))
    options: dict[str, Any] = {name: int(row[name]) for name in _SIZES}
    options |= {f"{name}_parallel": int(row[name]) for name in _DEGREES}
    options |= {name: row[name] for name in _WORDS if row[name]}
    options["mtp_layers"] = int(row["mtp_layers"] or 0)
    options["overlap"] = {group: float(share) for group, share in (word.split("=") for word in row["overlap"].split())}
    if row["tokens_per_s"]:
        rate = float(row["tokens_per_s"])
    elif row["tflop_per_s"]:
        flop = model_flop(load_model(row["model"]), options["seq_len"], is_full=True) / options["seq_len"]
        rate = float(row["tflop_per_s"]) * _FLOP_PER_TFLOP / flop
    else:
        rate = float(row["num_tokens"]) / (float(row["gpu_hours"]) * _S_PER_HOUR)
    return PublishedRun(row["name"], row["model"], arch, options, rate, row["source"], row["note"])


def score_training() -> Iterator[tuple[PublishedRun, TrainingEstimate]]:
    """Yield all published runs with estimates: of the recomputation that the source gives, else the least that fits."""
    for run in published_runs():
        given = run.options.get("recompute")
        for recompute in RECOMPUTE if given is None else (given,):
            options = {**run.options, "recompute": recompute, "ignore_memory": recompute in (given, RECOMPUTE[-1])}
            with suppress(InfeasibleError):
                yield run, estimate_training(run.model, run.arch, **options)
                break


def _record(run: PublishedRun, estimate: TrainingEstimate) -> dict[str, Any]:
    """Return what was published beside the estimate; MFU by our definition, errors of tokens a second as of MFU."""
    ratio = estimate.tokens_per_s_per_device / run.tokens_per_s
    return {
        "name": run.name, "model": run.model, "arch": run.arch.name, "source": run.source, "note": run.note,
        "layout": str(estimate.layout), "dtype": estimate.options["dtype"],
        "recompute": estimate.options["recompute"], "tokens_per_s": run.tokens_per_s,
        "predicted_tokens_per_s": estimate.tokens_per_s_per_device,
        "mfu_frac": estimate.mfu_frac * run.tokens_per_s / estimate.tokens_per_s_per_device,
        "predicted_mfu_frac": estimate.mfu_frac, "error_frac": ratio - 1,
        "is_inside": estimate.low_us <= estimate.latency_us * (1 + (ratio - 1)) <= estimate.high_us,
    }  # fmt: skip


_COLUMNS = {
    "name": ("run", ""), "layout": ("layout", ""), "recompute": ("recompute", ""), "tokens_per_s": ("tokens/s", ",.0f"),
    "predicted_tokens_per_s": ("predicted", ",.0f"), "mfu_frac": ("MFU", ".1%"),
    "predicted_mfu_frac": ("predicted MFU", ".1%"), "error_frac": ("error", "+.0%"),
}  # fmt: skip


def _largest_terms(estimate: TrainingEstimate) -> str:
    shares = {name: us / estimate.latency_us for name, us in estimate.breakdown.items()}
    return ", ".join(f"{name} {shares[name]:.0%}" for name in sorted(shares, key=lambda name: -shares[name])[:3])


def validate() -> Report:
    """Score the published runs."""
    scored = list(score_training())
    records = [_record(*of) for of in scored]
    median = statistics.median(abs(record["error_frac"]) for record in records)
    num_inside = sum(record["is_inside"] for record in records)

    def parts() -> Iterator[Any]:
        yield "published training runs; nothing is fitted on them. MFU by our definition, masked pairs being no work"
        rows = [
            (*(record[name] for name in _COLUMNS), _largest_terms(estimate))
            for record, (_, estimate) in zip(records, scored, strict=True)
        ]
        yield rows_table(dict(_COLUMNS.values()) | {"why": ""}, rows, "of one device", 3)
        yield f"{len(records)} runs: median error {median:.1%}; {num_inside} inside their 80% interval"
        for record in records:
            if record["name"].endswith("h800"):
                yield f"GPU hours of {record['name']}: {1 / (1 + record['error_frac']) - 1:+.1%}"

    return Report(lambda: {"median_error_frac": median, "num_inside": num_inside, "runs": records}, parts)
