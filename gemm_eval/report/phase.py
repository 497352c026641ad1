"""One forward pass of a model on an arch, as reports have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gemm_eval.evaluate import GEMMEvaluator, GEMMResult
from gemm_eval.transformer import LayerGemm, ModelConfig, transformer_gemms
from gemm_eval.units import per_s

__all__ = ["Phase", "PhaseResult", "evaluate_phase"]

Phase = Literal["prefill", "decode"]


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
    def runs(self) -> list[tuple[str, GEMMResult, int]]:
        """Each kind of GEMM by name, and how often it runs."""
        return [(gemm.name, result, gemm.total_count) for gemm, result in self.gemms]

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


def evaluate_phase(
    config: ModelConfig, evaluator: GEMMEvaluator, phase: Phase, sizes: Mapping[str, Any], types: Mapping[str, Any]
) -> PhaseResult:
    """Evaluate a forward pass of a model; `sizes` and `types` are arguments of `transformer_gemms`."""
    gemms = transformer_gemms(config, phase=phase, **types, **sizes)
    results = evaluator.evaluate_many([gemm.problem for gemm in gemms], progress=False)
    tokens = sizes["batch_size"] * (sizes["seq_len"] if phase == "prefill" else 1)
    return PhaseResult(phase, tokens, list(zip(gemms, results, strict=True)))
