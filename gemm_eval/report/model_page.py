"""The report on a transformer model on an arch: its GEMMs by phase, where the time goes, what would help."""

from __future__ import annotations

from collections.abc import Sequence

from gemm_eval.arch import GpuSpec
from gemm_eval.estimate import ModelEstimate
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.report.gemm_cells import GEMM_COLUMNS, gemm_cells
from gemm_eval.report.levers import MIN_GAIN_FRAC, ChangeGain, change_gains, changed_evaluators
from gemm_eval.report.model_verdict import model_picture, model_verdict
from gemm_eval.report.page import Page, Section
from gemm_eval.report.parts import Cell, Column, Facts, Figure, Part, Table, Text
from gemm_eval.report.phase import PhaseResult
from gemm_eval.transformer import WHAT_COUNTS, ModelConfig, num_parameters

__all__ = ["model_page"]

_GEMM_COLUMNS = (Column("GEMM", kind="text"), *GEMM_COLUMNS)
_OPERATION_COLUMNS = (
    Column("operation", kind="text"),
    Column("kind", kind="text"),
    Column("layers"),
    Column("latency", kind="time"),
    Column("in all", kind="time"),
    Column("share", "%", digits=3),
    Column("bound", kind="text"),
    Column("what", kind="text"),
)
_LEVER_COLUMNS = (
    Column("change", kind="text"),
    Column("GEMMs would take", kind="time"),
    Column("saves", "%", digits=3),
    Column("helps most", kind="text"),
)


def model_page(
    config: ModelConfig,
    evaluator: GEMMEvaluator,
    phases: Sequence[PhaseResult],
    *,
    estimate: ModelEstimate | None = None,
    setting: Sequence[tuple[str, str]] = (),
    figures: Sequence[Figure] = (),
    num_explained: int = 3,
) -> Page:
    """Return the report on a model, or on its GEMMs alone where there is no estimate, as the title then says.

    Args:
        config: the model.
        evaluator: the one that made the results; it evaluates what changes of its arch would bring.
        phases: the forward passes, with the results of their GEMMs.
        estimate: of the model, whose steps the phases are (`phase_of_step`).
        setting: what was asked, in words: ``[("sequences", "8"), ...]``.
        figures: drawings that the caller made; they stand in a section of their own.
        num_explained: how many GEMMs of a phase are explained at length.
    """
    arch = evaluator.arch
    changed = changed_evaluators([run for phase in phases for run in phase.runs], evaluator)
    gains = [change_gains(phase.runs, changed) for phase in phases]
    help_parts: list[Part] = []
    for phase, of_phase in zip(phases, gains, strict=True):
        help_parts += [_lever_table(phase, of_phase), *_explained(phase, num_explained)]
    sections = [
        Section(
            "Overview",
            [
                Facts(_facts(config, evaluator, phases, setting)),
                _totals(phases),
                _what_counts(estimate),
            ],
        ),
        *([Section("Figures", figures)] if figures else []),
        *(Section(phase.name.capitalize(), _tables(phase)) for phase in phases),
        Section("What would help", help_parts),
    ]
    lead: list[Part] = [model_verdict(phases, gains, estimate), model_picture(phases)]
    name = f"{config.name} on {arch.name}" if estimate else f"GEMMs of {config.name} on {arch.name}"
    return Page(name, f"{config.title or config.name}; {arch.title or arch.name}", sections, lead)


def _what_counts(estimate: ModelEstimate | None) -> Text:
    if estimate is None:
        return Text(f"Times are those of one device, of GEMMs one after the other. {WHAT_COUNTS}")
    return Text(estimate.explain(), title="The same as gemm-eval model")


def _tables(phase: PhaseResult) -> list[Part]:
    """Return the tables of a phase: all operations of the step, and its GEMMs."""
    if phase.step is None:
        return [_gemm_table(phase)]
    rows: list[list[Cell]] = [
        [
            cost.operation.name, cost.operation.kind, cost.operation.num_layers, cost.latency_us, cost.total_us,
            100.0 * cost.total_us / phase.latency_us, cost.bound, cost.detail,
        ]
        for cost in phase.step.costs
    ]  # fmt: skip
    step = phase.step
    caption = (
        f"Operations of {phase.name}, in the order they run: {step.batch:,} x {step.new_tokens:,} new of "
        f"{step.seq_len:,} tokens"
    )
    return [Table(_OPERATION_COLUMNS, rows, caption=caption), _gemm_table(phase)]


def _facts(
    config: ModelConfig, evaluator: GEMMEvaluator, phases: Sequence[PhaseResult], setting: Sequence[tuple[str, str]]
) -> list[tuple[str, str]]:
    arch, results = evaluator.arch, [result for phase in phases for _, result in phase.gemms]
    dtypes = list(dict.fromkeys(result.problem.input_dtype for result in results))
    cores = ("SMs", arch.num_sms) if isinstance(arch, GpuSpec) else ("cores", arch.num_cores)
    return [
        ("model", config.name),
        ("layers", f"{config.num_layers:,}"),
        ("hidden size", f"{config.hidden_size:,}"),
        ("parameters", f"{num_parameters(config) / 1e9:,.2f} billion"),
        *setting,
        ("arch", arch.name),
        (cores[0], f"{cores[1]:,}"),
        *((f"peak, {dtype}", f"{arch.peak_tflop_per_s(dtype):,.4g} TFLOP/s") for dtype in dtypes),
        ("DRAM", f"{arch.dram_gb_per_s:,.0f} GB/s"),
        ("source of times", ", ".join(sorted({result.source for result in results}))),
        ("cost model", ", ".join(sorted({result.model_version for result in results}))),
    ]


def _totals(phases: Sequence[PhaseResult]) -> Table:
    columns = (
        Column("phase", kind="text"),
        Column("tokens"),
        Column("latency", kind="time"),
        Column("a token", kind="time"),
        Column("rate", "tokens/s"),
        Column("of peak", "%", digits=3),
        Column("heaviest GEMM", kind="text"),
    )
    return Table(columns, [_total(phase) for phase in phases], caption="Forward passes")


def _total(phase: PhaseResult) -> list[Cell]:
    total_us, (heaviest, result) = phase.latency_us, phase.heaviest(1)[0]
    busy_us = sum(gemm.total_count * r.latency_us * r.utilization_frac for gemm, r in phase.gemms)
    return [
        phase.name,
        phase.num_tokens,
        total_us,
        total_us / phase.num_tokens,
        phase.tokens_per_s,
        100.0 * busy_us / total_us,
        f"{heaviest.name}, {phase.share_frac(heaviest, result):.0%}",
    ]


def _gemm_table(phase: PhaseResult) -> Table:
    return Table(
        _GEMM_COLUMNS,
        [[gemm.name, *gemm_cells(result, gemm.total_count, phase.latency_us)] for gemm, result in phase.gemms],
        caption=f"GEMMs of {phase.name}, in the order they run",
        note="C[G,M,N] = A[G,M,K] x B[G,K,N]; latency of one by itself, count in the model, time of all of them, share "
        "of the phase.",
    )


def _lever_table(phase: PhaseResult, gains: Sequence[ChangeGain]) -> Table:
    """What each change of the arch does to the phase."""
    rows: list[list[Cell]] = [[gain.change, gain.total_us, 100.0 * gain.saved_frac, gain.helps_most] for gain in gains]
    return Table(
        _LEVER_COLUMNS,
        rows,
        caption=f"{phase.name.capitalize()}: changes of the arch, one at a time",
        note=f"All GEMMs are mapped anew for each; changes that save less than {MIN_GAIN_FRAC:.1%} are left out.",
    )


def _explained(phase: PhaseResult, number: int) -> list[Text]:
    return [
        Text(result.explain(), title=f"{gemm.name}, {phase.share_frac(gemm, result):.0%} of {phase.name}")
        for gemm, result in phase.heaviest(number)
    ]
