"""One forward pass of a model on an arch, as reports have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gemm_eval.estimate import StepEstimate
from gemm_eval.evaluate import GEMMEvaluator, GEMMResult
from gemm_eval.transformer import GemmWork, LayerGemm, ModelConfig, transformer_gemms
from gemm_eval.units import per_s

__all__ = ["Phase", "PhaseResult", "evaluate_phase", "phase_of_step"]

Phase = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """A forward pass: a whole step, or its GEMMs alone.

    Attributes:
        name: ``"prefill"`` or ``"decode"``.
        num_tokens: new tokens of all sequences, what a rate in tokens counts.
        gemms: each kind of GEMM, and what it costs to run once.
        step: the whole step that they are part of; None: the GEMMs are all there is.
    """

    name: str
    num_tokens: int
    gemms: Sequence[tuple[LayerGemm, GEMMResult]]
    step: StepEstimate | None = None

    @property
    def runs(self) -> list[tuple[str, GEMMResult, int]]:
        """Each kind of GEMM by name, and how often it runs."""
        return [(gemm.name, result, gemm.total_count) for gemm, result in self.gemms]

    @property
    def latency_us(self) -> float:
        """Time of the step; of GEMMs alone that of all of them, one after the other."""
        if self.step is not None:
            return self.step.latency_us
        return sum(gemm.total_count * result.latency_us for gemm, result in self.gemms)

    @property
    def tokens_per_s(self) -> float:
        """New tokens a second."""
        return per_s(self.num_tokens, self.latency_us)

    def share_frac(self, gemm: LayerGemm, result: GEMMResult) -> float:
        """Part of the time of the phase that a kind of GEMM takes."""
        return gemm.total_count * result.latency_us / self.latency_us

    @property
    def parts(self) -> list[tuple[str, int, float, str, str]]:
        """Return what takes time, most first: name, number of runs, time of all runs, bound, and that in words."""
        totals: dict[str, tuple[int, float, str, str]] = {}
        if self.step is None:
            for gemm, result in self.gemms:
                said = result.backend.say_bound(result.bound)
                totals[gemm.name] = (gemm.total_count, gemm.total_count * result.latency_us, result.bound, said)
        else:
            words = {result.bound: result.backend.say_bound(result.bound) for _, result in self.gemms}
            for cost in self.step.costs:
                name = cost.operation.name
                count, total_us, *_ = totals.get(name, (0, 0.0))
                bound = (cost.bound, words.get(cost.bound, cost.bound))
                totals[name] = (count + cost.operation.num_layers, total_us + cost.total_us, *bound)
        found = [(name, *rest) for name, rest in totals.items()]
        return sorted(found, key=lambda part: -part[2])

    def heaviest(self, number: int) -> list[tuple[LayerGemm, GEMMResult]]:
        """The kinds of GEMM that take most of the time, the first one most."""
        return sorted(self.gemms, key=lambda row: -self.share_frac(*row))[:number]


def phase_of_step(evaluator: GEMMEvaluator, step: StepEstimate) -> PhaseResult:
    """Return a step as a phase, with the GEMMs of all its stages by themselves."""
    counts: dict[tuple[str, GemmWork], int] = {}
    for cost in step.costs:
        name, work = cost.operation.name, cost.operation.work
        if isinstance(work, GemmWork):
            counts[name, work] = counts.get((name, work), 0) + cost.operation.num_layers
    gemms = []
    for (name, work), count in counts.items():
        is_apart = work.quantize_from is not None and not work.is_quantized and evaluator.arch.type == "gpu"
        quantize_from = str(work.quantize_from) if is_apart else None
        result = evaluator.evaluate_problem(work.problem, quantize_from=quantize_from)
        gemms.append((LayerGemm(name, work.problem, 1, count, is_weight=True), result))
    return PhaseResult(step.phase, step.batch * step.new_tokens, gemms, step)


def evaluate_phase(
    config: ModelConfig, evaluator: GEMMEvaluator, phase: Phase, sizes: Mapping[str, Any], types: Mapping[str, Any]
) -> PhaseResult:
    """Evaluate a forward pass of a model; `sizes` and `types` are arguments of `transformer_gemms`."""
    gemms = transformer_gemms(config, phase=phase, **types, **sizes)
    results = evaluator.evaluate_many([gemm.problem for gemm in gemms], progress=False)
    tokens = sizes["batch_size"] * (sizes["seq_len"] if phase == "prefill" else 1)
    return PhaseResult(phase, tokens, list(zip(gemms, results, strict=True)))
