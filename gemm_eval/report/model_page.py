"""The report on a transformer on an arch: its operations and GEMMs by phase, where the time goes, what would help."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from gemm_eval.arch import GpuSpec
from gemm_eval.estimate import ModelEstimate, estimate_model
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.figures import bound_color
from gemm_eval.report.page import Page, Section
from gemm_eval.report.parts import Bar, Bars, Cell, Column, Facts, Figure, Panel, Part, Table, Text, Verdict
from gemm_eval.report.plots import plot_breakdown, plot_roofline
from gemm_eval.report.runs import (
    GEMM_COLUMNS,
    MIN_GAIN_FRAC,
    ChangeGain,
    Phase,
    PhaseResult,
    change_gains,
    changed_evaluators,
    gemm_cells,
    phase_of_step,
    say_bounds,
    say_gain,
)
from gemm_eval.transformer import WHAT_COUNTS, ModelConfig, load_model, num_parameters, say_memory
from gemm_eval.units import time_text

_MOST_BARS = 6
_MOST_GAINS = 2
_MOST_HEAVY = 3
_OTHERS = "#6b7683"


def model_verdict(
    phases: Sequence[PhaseResult], gains: Sequence[Sequence[ChangeGain]], estimate: ModelEstimate | None = None
) -> Verdict:
    """Return the verdict on whole steps, or on GEMMs alone where there is no estimate.

    Args:
        phases: the forward passes.
        gains: for each what changes of the arch bring to its GEMMs, the most helpful one first.
        estimate: of the model, whose steps the phases are.
    """
    points = []
    for phase, of_phase in zip(phases, gains, strict=True):
        name = phase.name.capitalize()
        gemms = f"GEMMs of {phase.name}" if estimate else name
        are = "are" if estimate else "is"
        heavy = ", ".join(f"{part} {us / phase.latency_us:.0%}" for part, _, us, *_ in phase.parts[:_MOST_HEAVY])
        points.append((f"{gemms} {are} bound by", say_bounds(phase.runs)))
        points.append((f"{name} is mostly", heavy))
        helps = "; ".join(map(say_gain, of_phase[:_MOST_GAINS])) or "No single doubling of the spec saves 0.5%."
        points.append((f"{gemms} would gain from", helps))
    if estimate is not None:
        rate = f"{_rounded(estimate.decode_tokens_per_s_per_device):,.0f} tokens/s a device in decode"
        first, each = time_text(estimate.ttft_us), time_text(estimate.tpot_us)
        return Verdict(f"The first token takes {first}, each after it {each} ({rate}).", points)
    return Verdict(f"GEMMs take {' and '.join(map(_headline, phases))}.", points)


def _headline(phase: PhaseResult) -> str:
    took, rate = time_text(phase.latency_us), f"{_rounded(phase.tokens_per_s):,.0f} tokens/s"
    return f"{took} a step of decode ({rate})" if phase.name == "decode" else f"{took} for prefill ({rate})"


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def model_picture(phases: Sequence[PhaseResult]) -> Bars:
    """Return the time of each operation, an axis for each phase, in the colour of what limits it."""
    colors: dict[str, str] = {}
    panels = []
    for phase in phases:
        shown = phase.parts
        kept = shown if len(shown) <= _MOST_BARS else shown[: _MOST_BARS - 1]
        bars = []
        for name, count, total_us, bound, said in kept:
            colors[said] = bound_color(bound)
            note = f"{name}: {count} of {time_text(total_us / count)}, bound by {said}"
            label = f"{time_text(total_us)}, {total_us / phase.latency_us:.0%}"
            bars.append(Bar(name, [(said, total_us)], label, note=note))
        rest_us = phase.latency_us - sum(length for bar in bars for _, length in bar.segments)
        if len(kept) < len(shown):
            colors["several"] = _OTHERS
            label = f"{time_text(rest_us)}, {rest_us / phase.latency_us:.0%}"
            bars.append(Bar(f"{len(shown) - len(kept)} others", [("several", rest_us)], label))
        panels.append(Panel(f"{phase.name.capitalize()}, {time_text(phase.latency_us)}", bars))
    what = "operations" if any(phase.step for phase in phases) else "GEMMs"
    return Bars(panels, colors, caption=f"Time of all {what} of a kind, by what limits them")


_GEMM_COLUMNS = (Column("GEMM", kind="text"), *GEMM_COLUMNS)
_OPERATION_COLUMNS = (
    Column("operation", kind="text"), Column("kind", kind="text"), Column("layers"), Column("latency", kind="time"),
    Column("in all", kind="time"), Column("share", "%", digits=3), Column("bound", kind="text"),
    Column("what", kind="text"),
)  # fmt: skip
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
        Column("phase", kind="text"), Column("tokens"), Column("latency", kind="time"), Column("a token", kind="time"),
        Column("rate", "tokens/s"), Column("of peak", "%", digits=3), Column("heaviest GEMM", kind="text"),
    )  # fmt: skip
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
    """Return a table of what each change of the arch does to the phase."""
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


_SHOWN = ("batch", "prompt_len", "output_len", "tensor_parallel", "pipeline_parallel", "expert_parallel")


def model_report(
    model: ModelConfig | str | os.PathLike[str],
    evaluator: GEMMEvaluator,
    *,
    phases: Sequence[Phase] = ("prefill", "decode"),
    batch: int = 1,
    prompt_len: int = 1024,
    output_len: int = 256,
    **options: Any,
) -> Page:
    """Return the report on a transformer on an arch: where the time of its steps goes, and what would help.

    The page is about the very estimate that `estimate_model` returns for the same arguments.

    Args:
        model: a `ModelConfig`, or the name or path of one.
        evaluator: of the arch.
        phases: ``"prefill"`` (the last chunk of a prompt), ``"decode"`` or both.
        batch, prompt_len, output_len, options: as for `estimate_model`.

    Raises:
        InfeasibleError: weights and KV cache do not fit into the DRAM of a device; see `check_memory`.
        ModelConfigError, InvalidOptionError, InfeasibleError, UnsupportedError: as `evaluate_many` does.
        GemmEvalError: matplotlib is not installed.
    """
    config = model if isinstance(model, ModelConfig) else load_model(model)
    estimate = estimate_model(
        config, evaluator, batch, prompt_len=prompt_len, output_len=output_len, **options
    )  # fmt: skip
    results_of_phases, figures = [], []
    for phase in phases:
        results_of_phases.append(phase_of_step(evaluator, estimate.prefill if phase == "prefill" else estimate.decode))
        names, results, counts = zip(*results_of_phases[-1].runs, strict=True)
        roofline = plot_roofline(evaluator, [gemm for gemm, _ in results_of_phases[-1].gemms])
        breakdown = plot_breakdown(results, names=names, counts=counts)
        figures += [
            Figure(roofline, f"{phase}: GEMMs under the roofs of {evaluator.arch.name}"),
            Figure(breakdown, f"{phase}: where the time of the GEMMs goes"),
        ]
    said = [
        ("types of weight GEMMs", estimate.options["dtype"] or "those of the checkpoint"),
        ("type of what is kept", estimate.options["dense_dtype"]),
        *((name.replace("_", " "), f"{estimate.options[name]:,}") for name in _SHOWN),
        ("memory", say_memory(estimate.memory, evaluator.arch, estimate.options["memory_frac"])),
    ]
    return model_page(config, evaluator, results_of_phases, estimate=estimate, setting=said, figures=figures)
