"""GEMMs that run one after the other, as reports have them: passes of a model, columns of tables, what would help."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from gemm_eval.errors import GemmEvalError
from gemm_eval.estimate import StepEstimate
from gemm_eval.evaluate import GEMMEvaluator, GEMMResult
from gemm_eval.report.parts import Cell, Column
from gemm_eval.transformer import GemmWork, LayerGemm, ModelConfig, transformer_gemms
from gemm_eval.units import per_s, time_text

GEMM_COLUMNS = (
    Column("types", kind="text"), *(Column(name) for name in "GMKN"), Column("count"), Column("latency", kind="time"),
    Column("in all", kind="time"), Column("share", "%", digits=3), Column("bound", kind="text"),
    Column("of peak", "%", digits=3), Column("DRAM", "GB/s"), Column("mapping", kind="text"),
)  # fmt: skip
"""The columns of `gemm_cells`; a table has a column for the name before them."""


def gemm_cells(result: GEMMResult, count: int, total_us: float) -> list[Cell]:
    """Return the cells of a GEMM.

    Args:
        result: of one run of it.
        count: how often it runs.
        total_us: time of all GEMMs, of which `share` is a part.
    """
    problem = result.problem
    # of groups with rows of their own the mean, for G x M to be the rows that there are
    M = problem.M if problem.row_groups is None else problem.rows / problem.G
    return [
        problem.types.inputs,
        problem.G,
        M,
        problem.K,
        problem.N,
        count,
        result.latency_us,
        count * result.latency_us,
        100.0 * count * result.latency_us / total_us,
        result.bound,
        100.0 * result.utilization_frac,
        result.dram_gb_per_s,
        str(result.mapping),
    ]


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
        ranked = [(name, *rest) for name, rest in totals.items()]
        return sorted(ranked, key=lambda part: -part[2])

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
        gemms.append((LayerGemm(name, work.problem, count, is_weight=True), result))
    return PhaseResult(step.phase, step.batch * step.new_tokens, gemms, step)


def evaluate_phase(
    config: ModelConfig, evaluator: GEMMEvaluator, phase: Phase, sizes: Mapping[str, Any], types: Mapping[str, Any]
) -> PhaseResult:
    """Evaluate a forward pass of a model; `sizes` and `types` are arguments of `transformer_gemms`."""
    gemms = transformer_gemms(config, phase=phase, **types, **sizes)
    results = evaluator.evaluate_many([gemm.problem for gemm in gemms], progress=False)
    tokens = sizes["batch_size"] * (sizes["seq_len"] if phase == "prefill" else 1)
    return PhaseResult(phase, tokens, list(zip(gemms, results, strict=True)))


MIN_GAIN_FRAC = 0.005
"""Below, a change is not worth a word."""

_MIN_SAID_FRAC, _MOST_SAID = 0.05, 2  # of what GEMMs wait for

Runs: TypeAlias = Sequence[tuple[str, GEMMResult, int]]
"""GEMMs: a name, what one run costs, and how often it runs."""


class ChangeGain(NamedTuple):
    """A change of the spec, and the time of all runs with it."""

    change: str
    total_us: float
    saved_frac: float
    helps_most: str  # the GEMM that it saves most


def changed_evaluators(runs: Runs, evaluator: GEMMEvaluator) -> dict[str, GEMMEvaluator]:
    """Return an evaluator for each change that could help any of the GEMMs; one serves all, for setting up costs."""
    evaluators: dict[str, GEMMEvaluator] = {}
    for _, result, _ in runs:
        for change, fields in evaluator.backend.changes(result.problem):
            if change not in evaluators:
                with contextlib.suppress(GemmEvalError):  # a change that takes the spec out of its range
                    evaluators[change] = evaluator.on(evaluator.arch.with_(**fields))
    return evaluators


def change_gains(runs: Runs, changed: Mapping[str, GEMMEvaluator]) -> list[ChangeGain]:
    """Return the changes that save at least `MIN_GAIN_FRAC` of the time, the most helpful one first.

    Nothing is learned of changed archs: what the model alone says of both is compared, and the time saves as much.
    """
    total_us = sum(count * result.latency_us for _, result, count in runs)
    physics_us = sum(count * result.physics_us for _, result, count in runs)
    gains = []
    for change, evaluator in changed.items():
        savings = [(count * _saving_us(result, evaluator), name) for name, result, count in runs]
        saved_frac = sum(us for us, _ in savings) / physics_us
        if saved_frac >= MIN_GAIN_FRAC:
            gains.append(ChangeGain(change, total_us * (1.0 - saved_frac), saved_frac, max(savings)[1]))
    return sorted(gains, key=lambda gain: gain.total_us)


def _saving_us(result: GEMMResult, evaluator: GEMMEvaluator) -> float:
    try:
        return result.physics_us - evaluator.evaluate_problem(result.problem, **result.options).latency_us
    except GemmEvalError:  # the GEMM does not fit the changed arch: no help, and no reason to give no report
        return 0.0


def time_by_bound(runs: Runs) -> dict[str, float]:
    """Return the microseconds of the GEMMs that each bound limits, the longest time first."""
    times: dict[str, float] = {}
    for _, result, count in runs:
        times[result.bound] = times.get(result.bound, 0.0) + count * result.latency_us
    return dict(sorted(times.items(), key=lambda item: -item[1]))


def say_gain(gain: ChangeGain) -> str:
    """Return a change and what it saves: ``dram_gb_per_s x2: 11.3 ms (-45%)``."""
    return f"{gain.change}: {time_text(gain.total_us)} (-{gain.saved_frac:.0%})"


def say_bounds(runs: Runs) -> str:
    """Return what the GEMMs wait for: ``DRAM bandwidth, 76% of the time, then the tensor cores, 24%``."""
    times, results = time_by_bound(runs), {result.bound: result for _, result, _ in runs}
    total_us = sum(times.values())
    said = [
        f"{results[bound].backend.say_bound(bound)}, {us / total_us:.0%}{'' if at else ' of the time'}"
        for at, (bound, us) in enumerate(times.items())
        if not at or us / total_us >= _MIN_SAID_FRAC
    ]
    return ", then ".join(said[:_MOST_SAID])
