"""Predictions as a page of HTML."""

from __future__ import annotations

from gemm_eval.report import Cell, Column, Facts, Page, Section, Table, Text
from gemm_eval.torch.prediction import ModulePrediction
from gemm_eval.torch.text import fold_modules, fold_operations

__all__ = ["prediction_page"]

_MODULES = (
    Column("module", kind="text"), Column("class", kind="text"), Column("runs"), Column("time", "us"),
    Column("share", "%", digits=3), Column("low", "us"), Column("high", "us"), Column("bound", kind="text"),
)  # fmt: skip
_OPERATIONS = (
    Column("operation", kind="text"), Column("module", kind="text"), Column("phase", kind="text"), Column("runs"),
    Column("time of one", "us"), Column("of all", "us"), Column("share", "%", digits=3), Column("bound", kind="text"),
    Column("source", kind="text"), Column("sizes", kind="text"),
)  # fmt: skip
_UNPRICED = (
    Column("operation", kind="text"), Column("module", kind="text"), Column("runs"), Column("MB", digits=3),
    Column("of the bytes", "%", digits=3), Column("why", kind="text"),
)  # fmt: skip
_LEVERS = (Column("change of the arch", kind="text"), Column("would take", "us"), Column("saves", "%", digits=3))


def prediction_page(prediction: ModulePrediction) -> Page:
    """Return the page of a prediction; the levers are evaluated for it."""
    name, total_us = prediction.module_class or "operations", prediction.latency_us
    rows: list[list[Cell]] = [
        [row.path or "(all)", row.module_class, row.count, row.latency_us, 100 * row.share_frac, row.low_us,
         row.high_us, row.bound]
        for row in fold_modules(prediction, depth=None, fold=True)
    ]  # fmt: skip
    folded = fold_operations(one for one in prediction.operations if one.kind != "unpriced")
    operations: list[list[Cell]] = [
        [row.first.name, row.path, row.first.phase, row.count, row.first.latency_us, row.latency_us,
         100 * row.latency_us / total_us if total_us else 0.0, row.first.bound, row.first.source, row.first.detail]
        for row in folded
    ]  # fmt: skip
    sections = [
        Section("Overview", [Facts(_facts(prediction))]),
        Section("Modules", [Table(_MODULES, rows, note="Numbers in paths are folded; low and high: 80% of GEMMs.")]),
        Section("Kernels", [Table(_OPERATIONS, operations)]),
    ]
    if prediction.unpriced:
        sections.append(Section("Not priced", [_unpriced_table(prediction)]))
    levers: list[list[Cell]] = [
        [lever.change, lever.latency_us, 100 * lever.gain_frac] for lever in prediction.what_would_help()
    ]
    help_part = Table(_LEVERS, levers) if levers else Text("No single change of the arch saves more than 0.5%.")
    sections.append(Section("What would help", [help_part]))
    return Page(f"{name} on {prediction.arch_name}", f"predicted, fused as by {prediction.fusion}", sections)


def _unpriced_table(prediction: ModulePrediction) -> Table:
    total = max(1, prediction.num_bytes)
    rows: list[list[Cell]] = [
        [row.first.name, row.path, row.count, row.count * row.first.num_bytes / 1e6,
         100 * row.count * row.first.num_bytes / total, row.first.detail]
        for row in fold_operations(prediction.unpriced)
    ]  # fmt: skip
    return Table(_UNPRICED, rows, note="No model knows these: they count as no time.")


def _facts(prediction: ModulePrediction) -> list[tuple[str, str]]:
    total = prediction.latency_us
    return [
        ("arch", prediction.arch_name),
        ("time", f"{total:,.1f} us"),
        ("80% of GEMMs' errors", f"{prediction.low_us:,.1f} to {prediction.high_us:,.1f} us"),
        ("operations on matrices", f"{prediction.flop / 1e9:,.4g} GFLOP"),
        ("bytes of operands", f"{prediction.num_bytes / 1e6:,.4g} MB"),
        ("kernels", f"{len(prediction.operations):,}"),
        *((f"time of {kind}", f"{us / total:.1%}") for kind, us in prediction.us_by_kind.items() if us > 0),
        *((f"bound by {bound}", f"{us / total:.1%}") for bound, us in prediction.us_by_bound.items() if us > 0),
    ]
