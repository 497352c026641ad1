"""The report that compares archs, with its figures: on a transformer model, or on GEMMs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from gemm_eval.errors import GemmEvalError, InfeasibleError, InvalidOptionError, UnsupportedError
from gemm_eval.evaluate import GEMMEvaluator, GEMMResult
from gemm_eval.report.compare_page import compare_page
from gemm_eval.report.contender import Contender, Contest
from gemm_eval.report.levers import Runs
from gemm_eval.report.page import Page
from gemm_eval.report.parts import Figure
from gemm_eval.report.phase import Phase, PhaseResult, evaluate_phase
from gemm_eval.report.plots import plot_breakdown
from gemm_eval.transformer import ModelConfig, check_memory, load_model, model_on, types_on
from gemm_eval.workload import GemmProblem

__all__ = ["compare_report"]

_LEAST_ARCHS = 2


def compare_report(
    workload: ModelConfig | str | os.PathLike[str] | Sequence[GemmProblem | Sequence[int]],
    evaluators: Sequence[GEMMEvaluator],
    *,
    phases: Sequence[Phase] = ("prefill", "decode"),
    batch_size: int = 1,
    seq_len: int = 2048,
    tensor_parallel: int = 1,
    expert_parallel: int = 1,
    dtype: str | None = None,
    dense_dtype: str | None = None,
    ignore_memory: bool = False,
) -> Page:
    """Return the page on who is fastest at the GEMMs of a model, phase by phase, or at GEMMs, and why.

    Of a model these are its bare GEMMs, as `transformer_gemms` has them: whole steps are what `model_report` and
    `gemm-eval model` with several archs say.

    Args:
        workload: a `ModelConfig`, the name or path of one, or GEMMs: `GemmProblem` or (G, M, K, N).
        evaluators: two or more, of archs with different names. Those that cannot run the workload, or have no room for
            the model, are named on the page with the reason.
        phases, batch_size, seq_len, tensor_parallel, expert_parallel, dense_dtype: of a model; see `transformer_gemms`.
        dtype: types of weight GEMMs, or of GEMMs given by their sizes; default: as the model's file says, else the
            default type of each arch.
        ignore_memory: compare archs without room for the model too.

    Raises:
        InvalidOptionError: fewer than two archs, two of one name, or no GEMMs.
        GemmEvalError: fewer than two archs can run the workload; or matplotlib is not installed.
    """
    names = [evaluator.arch.name for evaluator in evaluators]
    if len(names) < _LEAST_ARCHS or len(set(names)) < len(names):
        raise InvalidOptionError(f"a comparison takes two or more archs of different names, got {', '.join(names)}")
    found: list[tuple[GEMMEvaluator, dict[str, Runs]]] = []
    tokens: dict[str, int] = {}
    refused: list[tuple[str, str]] = []
    if isinstance(workload, ModelConfig | str | os.PathLike):
        config = workload if isinstance(workload, ModelConfig) else load_model(workload)
        sizes: dict[str, Any] = {
            "batch_size": batch_size, "seq_len": seq_len,
            "tensor_parallel": tensor_parallel, "expert_parallel": expert_parallel,
        }  # fmt: skip
        title, subtitle = f"GEMMs of {config.name}", config.title or config.name
        setting = [(key.replace("_", " "), f"{value:,}") for key, value in sizes.items()]
        types: dict[str, Any] = {"dtype": dtype, "dense_dtype": dense_dtype, "ignore_memory": ignore_memory}
        for evaluator in evaluators:
            try:
                of_arch = _model_phases(config, evaluator, phases, sizes, **types)
                found.append((evaluator, {phase.name: phase.runs for phase in of_arch}))
                tokens |= {phase.name: phase.num_tokens for phase in of_arch}
            except (InfeasibleError, UnsupportedError) as error:
                refused.append((evaluator.arch.name, str(error)))
    else:
        gemms = list(workload)
        if not gemms:
            raise InvalidOptionError("workload must hold at least one GEMM, got none")
        title = "1 GEMM" if len(gemms) == 1 else f"{len(gemms)} GEMMs"
        subtitle, setting = "C[G,M,N] = A[G,M,K] x B[G,K,N]", []
        for evaluator in evaluators:
            try:
                found.append((evaluator, _gemm_runs(gemms, evaluator, dtype)))
            except (InfeasibleError, UnsupportedError) as error:
                refused.append((evaluator.arch.name, str(error)))
    if len(found) < _LEAST_ARCHS:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refused)
        raise GemmEvalError(f"fewer than two of the archs can run it: {reasons}")
    contests = [
        Contest(name, tokens.get(name), [Contender(evaluator, runs[name]) for evaluator, runs in found])
        for name in found[0][1]
    ]
    archs = ", ".join(evaluator.arch.name for evaluator, _ in found)
    return compare_page(
        f"{title} on {archs}", subtitle, contests, setting=setting, refused=refused, figures=_figures(contests)
    )


def _model_phases(
    config: ModelConfig,
    evaluator: GEMMEvaluator,
    phases: Sequence[Phase],
    sizes: dict[str, Any],
    *,
    dtype: str | None,
    dense_dtype: str | None,
    ignore_memory: bool,
) -> list[PhaseResult]:
    """The GEMMs of each phase on an arch."""
    config = model_on(evaluator.arch, config)
    types = types_on(evaluator.arch, dtype, dense_dtype, config)
    if not ignore_memory:
        check_memory(config, arch=evaluator.arch, **sizes, **types)
    return [evaluate_phase(config, evaluator, phase, sizes, types) for phase in phases]


def _gemm_runs(
    gemms: Sequence[GemmProblem | Sequence[int]], evaluator: GEMMEvaluator, dtype: str | None
) -> dict[str, Runs]:
    """Each GEMM by itself on an arch."""
    runs: dict[str, Runs] = {}
    for gemm in gemms:
        if isinstance(gemm, GemmProblem):
            result = evaluator.evaluate_problem(gemm)
        else:
            G, M, K, N = gemm
            result = evaluator.evaluate(G, M, K, N, dtype=dtype)
        name = _sizes(result)
        runs[name if name not in runs else f"{name}, {len(runs) + 1}"] = [(name, result, 1)]
    return runs


def _sizes(result: GEMMResult) -> str:
    problem = result.problem
    if problem.row_groups is not None:
        return f"{problem.rows} rows in {problem.G} groups, K={problem.K} N={problem.N}"
    batch = f"G={problem.G} " if problem.G > 1 else ""
    return f"{batch}M={problem.M} K={problem.K} N={problem.N}"


def _figures(contests: Sequence[Contest]) -> list[Figure]:
    """Where the time of the heaviest GEMM of each phase goes, arch by arch."""
    figures = []
    for contest in contests:
        runs = contest.ranked[0].runs
        heaviest = max(range(len(runs)), key=lambda at: runs[at][1].latency_us * runs[at][2])
        of = [(one.name, *one.runs[heaviest]) for one in contest.ranked]
        drawing = plot_breakdown([result for _, _, result, _ in of], names=[name for name, *_ in of])
        what = contest.name if len(runs) == 1 else f"{contest.name}, {runs[heaviest][0]}"
        figures.append(Figure(drawing, f"{what}: where the time of one run goes"))
    return figures
