"""Whole reports, with their figures: of a sweep, and of a transformer model on an arch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from gemm_eval.estimate import estimate_model
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.report.model_page import model_page
from gemm_eval.report.page import Page
from gemm_eval.report.parts import Figure
from gemm_eval.report.phase import Phase, phase_of_step
from gemm_eval.report.plots import plot_breakdown, plot_heat_map, plot_roofline
from gemm_eval.report.sweep_best import find_best
from gemm_eval.report.sweep_page import sweep_page
from gemm_eval.report.sweep_tables import effects
from gemm_eval.sweep import SweepResult
from gemm_eval.transformer import ModelConfig, load_model, say_memory

__all__ = ["model_report", "sweep_report"]

_SHOWN = ("batch", "prompt_len", "output_len", "tensor_parallel", "pipeline_parallel", "expert_parallel")
_MOST_CELLS = 32  # values of a field that a heat map shows


def sweep_report(result: SweepResult, *, title: str = "") -> Page:
    """Return the report on a sweep: fronts, tables, the best designs and why; ``sweep_report(result).write("x.html")``.

    Raises:
        GemmEvalError: matplotlib is not installed.
    """
    best = find_best(result, result.pareto())
    return sweep_page(result, figures=_sweep_figures(result, best[-1].point) if best else (), title=title)


def _sweep_figures(result: SweepResult, point: int) -> list[Figure]:
    """What a design does with its GEMMs, and the first objective over the two fields on which it depends most."""
    gemms = [(one.name, problem, count) for one in result.workloads for problem, count in one.gemms]
    names = [f"{name} {'x'.join(problem.size_words[problem.G == 1 :])}" for name, problem, _ in gemms]
    found = [gemm for table in result.evaluate(point).values() for gemm in table]
    roofline = plot_roofline(result.evaluator(point), [problem for _, problem, _ in gemms], names=names)
    breakdown = plot_breakdown(found, names=names, counts=[count for _, _, count in gemms])
    figures = [
        Figure(roofline, f"Point {point}: its GEMMs under its roofs"),
        Figure(breakdown, f"Point {point}: where the time of its GEMMs goes"),
    ]
    feasible = result.rows(np.flatnonzero(result.is_feasible))
    aim = result.objectives[0]
    effect = effects(result, feasible, aim)
    fields_of = result.description["fields"]
    drawn = [name for name in effect if name not in fields_of or fields_of[name]["kind"] != "Dependent"]
    fields = sorted((name for name in drawn if feasible[name].nunique() <= _MOST_CELLS), key=lambda name: -effect[name])
    if len(fields) >= 2:
        heat_map = plot_heat_map(
            feasible, fields[0], fields[1], aim, reduce="max" if result.is_maximized(aim) else "min"
        )
        figures.append(Figure(heat_map, f"Best {aim} over {fields[0]} and {fields[1]}"))
    return figures


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
    found, figures = [], []
    for phase in phases:
        found.append(phase_of_step(evaluator, estimate.prefill if phase == "prefill" else estimate.decode))
        names, results, counts = zip(*found[-1].runs, strict=True)
        roofline = plot_roofline(evaluator, [gemm for gemm, _ in found[-1].gemms])
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
    return model_page(config, evaluator, found, estimate=estimate, setting=said, figures=figures)
