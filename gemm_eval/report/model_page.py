"""The report on a transformer model on an arch: its GEMMs by phase, where the time goes, what would help."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gemm_eval.arch import GpuSpec
from gemm_eval.errors import GemmEvalError
from gemm_eval.evaluate import GEMMEvaluator, GEMMResult
from gemm_eval.report.gemm_cells import GEMM_COLUMNS, gemm_cells
from gemm_eval.report.page import Page, Section
from gemm_eval.report.parts import Cell, Column, Facts, Figure, Part, Table, Text
from gemm_eval.transformer import WHAT_COUNTS, LayerGemm, ModelConfig, num_parameters
from gemm_eval.units import per_s

__all__ = ["PhaseResult", "model_page"]

_MIN_GAIN_FRAC = 0.005  # below, a change is not worth a row
_GEMM_COLUMNS = (Column("GEMM", kind="text"), *GEMM_COLUMNS)
_LEVER_COLUMNS = (
    Column("change", kind="text"),
    Column("phase would take", "us"),
    Column("saves", "%", digits=3),
    Column("helps most", kind="text"),
)


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """One forward pass on one device.

    Attributes:
        name: ``"prefill"`` or ``"decode"``.
        num_tokens: new tokens of all sequences, what a rate in tokens counts.
        gemms: each kind of GEMM, and what it costs to run once.
    """

    name: str
    num_tokens: int
    gemms: Sequence[tuple[LayerGemm, GEMMResult]]

    @property
    def latency_us(self) -> float:
        """Time of all GEMMs, one after the other."""
        return sum(gemm.total_count * result.latency_us for gemm, result in self.gemms)

    @property
    def tokens_per_s(self) -> float:
        """New tokens a second, if there were nothing but GEMMs."""
        return per_s(self.num_tokens, self.latency_us)

    def share_frac(self, gemm: LayerGemm, result: GEMMResult) -> float:
        """Part of the time that a kind of GEMM takes."""
        return gemm.total_count * result.latency_us / self.latency_us

    def heaviest(self, number: int) -> list[tuple[LayerGemm, GEMMResult]]:
        """The kinds of GEMM that take most of the time, the first one most."""
        return sorted(self.gemms, key=lambda row: -self.share_frac(*row))[:number]


def model_page(
    config: ModelConfig,
    evaluator: GEMMEvaluator,
    phases: Sequence[PhaseResult],
    *,
    setting: Sequence[tuple[str, str]] = (),
    figures: Sequence[Figure] = (),
    num_explained: int = 3,
) -> Page:
    """Return the report on a model.

    Args:
        config: the model.
        evaluator: the one that made the results; it evaluates what changes of its arch would bring.
        phases: the forward passes, with the results of their GEMMs.
        setting: what was asked, in words: ``[("sequences", "8"), ...]``.
        figures: drawings that the caller made; they stand in a section of their own.
        num_explained: how many GEMMs of a phase are explained at length.
    """
    arch, changed = evaluator.arch, _changed_evaluators(phases, evaluator)
    help_parts: list[Part] = []
    for phase in phases:
        help_parts += [_lever_table(phase, changed), *_explained(phase, num_explained)]
    sections = [
        Section(
            "Overview",
            [
                Facts(_facts(config, evaluator, phases, setting)),
                _totals(phases),
                Text(f"Times are those of one device, of GEMMs one after the other. {WHAT_COUNTS}"),
            ],
        ),
        *([Section("Figures", figures)] if figures else []),
        *(Section(phase.name.capitalize(), [_gemm_table(phase)]) for phase in phases),
        Section("What would help", help_parts),
    ]
    return Page(f"{config.name} on {arch.name}", f"{config.title or config.name}; {arch.title or arch.name}", sections)


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
        Column("latency", "us"),
        Column("a token", "us"),
        Column("rate", "tokens/s"),
        Column("of peak", "%", digits=3),
        Column("heaviest GEMM", kind="text"),
    )
    return Table(columns, [_total(phase) for phase in phases], caption="GEMMs of one forward pass")


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
        note="C[G,M,N] = A[G,M,K] x B[G,K,N]; latency of one, count in the model, time of all of them.",
    )


def _changed_evaluators(phases: Sequence[PhaseResult], evaluator: GEMMEvaluator) -> dict[str, GEMMEvaluator]:
    """An evaluator for each change of the arch that could help any GEMM; one serves all GEMMs, for setting up costs."""
    found: dict[str, GEMMEvaluator] = {}
    for _, result in (row for phase in phases for row in phase.gemms):
        for change, fields in evaluator.backend.changes(result.problem):
            if change not in found:
                with contextlib.suppress(GemmEvalError):  # a change that takes the spec out of its range
                    found[change] = evaluator.on(evaluator.arch.with_(**fields))
    return found


def _lever_table(phase: PhaseResult, changed: Mapping[str, GEMMEvaluator]) -> Table:
    """What each change of the arch does to the phase."""
    total_us = phase.latency_us
    rows: list[list[Cell]] = []
    for change, evaluator in changed.items():
        savings = [(gemm.total_count * _saving_us(result, evaluator), gemm.name) for gemm, result in phase.gemms]
        saving_us = sum(us for us, _ in savings)
        if saving_us >= _MIN_GAIN_FRAC * total_us:
            rows.append([change, total_us - saving_us, 100.0 * saving_us / total_us, max(savings)[1]])
    rows.sort(key=lambda row: row[1:2])
    return Table(
        _LEVER_COLUMNS,
        rows,
        caption=f"{phase.name.capitalize()}: changes of the arch, one at a time",
        note=f"All GEMMs are mapped anew for each; changes that save less than {_MIN_GAIN_FRAC:.1%} are left out.",
    )


def _saving_us(result: GEMMResult, evaluator: GEMMEvaluator) -> float:
    try:
        return result.latency_us - evaluator.evaluate_problem(result.problem, **result.options).latency_us
    except GemmEvalError:  # the GEMM does not fit the changed arch: no help, and no reason to give no report
        return 0.0


def _explained(phase: PhaseResult, number: int) -> list[Text]:
    return [
        Text(result.explain(), title=f"{gemm.name}, {phase.share_frac(gemm, result):.0%} of {phase.name}")
        for gemm, result in phase.heaviest(number)
    ]
