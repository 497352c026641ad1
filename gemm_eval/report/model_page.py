"""The report on a transformer on an arch, and that on deployments of one."""

import os
from collections.abc import Callable, Sequence
from typing import Any

from gemm_eval.arch import GpuSpec
from gemm_eval.estimate import IDEAL, ModelEstimate, StepEstimate, estimate_model
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.figures import bound_color
from gemm_eval.report.page import Page, Section
from gemm_eval.report.parts import (
    MIN_GAIN_FRAC,
    Bar,
    Bars,
    Cell,
    ChangeGain,
    Chart,
    Column,
    Facts,
    Figure,
    Panel,
    Part,
    Phase,
    Run,
    Runs,
    Table,
    Text,
    Verdict,
    change_gains,
    changed_evaluators,
    distinct,
    gemm_table,
    percent_column,
    table_of,
    text_column,
    time_column,
    trust_in_estimate,
)
from gemm_eval.report.plots import plot_breakdown, plot_roofline
from gemm_eval.serving import Deployments, LeftOut, ServingEstimate
from gemm_eval.transformer import GemmWork, LayerGemm, ModelConfig, load_model, num_parameters, say_memory
from gemm_eval.units import interval_text, time_text

_MOST_BARS = 6
_MOST_GAINS = 2
_MOST_HEAVY = 3
_MOST_EXPLAINED = 3
_OTHERS = "#6b7683"
_MUCH = 0.1  # of the time
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
    Raises InfeasibleError (weights and KV cache do not fit into the DRAM of a device; see `check_memory`);
    ModelConfigError, InvalidOptionError, InfeasibleError, UnsupportedError (as `evaluate_many` does).
    """
    config = model if isinstance(model, ModelConfig) else load_model(model)
    estimate = estimate_model(config, evaluator, batch, prompt_len=prompt_len, output_len=output_len, **options)
    steps = [_step_runs(evaluator, getattr(estimate, phase)) for phase in phases]
    changed = changed_evaluators(evaluator, (run for step in steps for run in step.runs))
    gains = [change_gains(step.runs, changed) for step in steps]
    help_parts: list[Part] = [part for step, of_step in zip(steps, gains, strict=True) for part in _help(step, of_step)]
    overview: list[Part] = [
        Facts(_facts(config, estimate, steps)),
        _totals(steps),
        Text(estimate.explain(), title="The same as gemm-eval model"),
    ]
    figures: list[Part] = []
    for step in steps:
        names, results, counts = zip(*step.runs, strict=True)
        gemms = [LayerGemm(name, result.problem, count, is_weight=True) for name, result, count in step.runs]
        breakdown = plot_breakdown(results, names=names, counts=counts)
        figures += [
            Figure(plot_roofline(evaluator, gemms), f"{step.name}: GEMMs under the roofs of {step.arch_name}"),
            Figure(breakdown, f"{step.name}: where the time of the GEMMs goes"),
        ]
    sections = [
        Section("Overview", overview),
        Section("Figures", figures),
        *(Section(step.title, _tables(step)) for step in steps),
        Section("What would help", help_parts),
    ]
    arch = evaluator.arch
    subtitle = f"{config.title or config.name}; {arch.title or arch.name}"
    lead: list[Part] = [_verdict(estimate, steps, gains), _picture(steps)]
    return Page(f"{config.name} on {arch.name}", subtitle, sections, lead)


def _step_runs(evaluator: GEMMEvaluator, step: StepEstimate) -> Runs:
    """Return the GEMMs of all stages of a step by themselves."""
    counts: dict[tuple[str, GemmWork], int] = {}
    for cost in step.costs:
        name, work = cost.operation.name, cost.operation.work
        if isinstance(work, GemmWork):
            counts[name, work] = counts.get((name, work), 0) + cost.operation.num_layers
    runs = []
    for (name, work), count in counts.items():
        is_apart = work.quantize_from is not None and not work.is_quantized and evaluator.arch.type == "gpu"
        quantize_from = str(work.quantize_from) if is_apart else None
        runs.append(Run(name, evaluator.evaluate_problem(work.problem, quantize_from=quantize_from), count))
    return Runs(step.phase, evaluator, runs, step.batch * step.new_tokens, step)


def _parts(step: Runs) -> list[tuple[str, int, float, str, str]]:
    """Return what takes time, most first: name, number of runs, time of all runs, bound, and that in words."""
    totals: dict[str, tuple[int, float, str, str]] = {}
    for cost in step.costs:
        count, total_us, *_ = totals.get(cost.operation.name, (0, 0.0))
        bound = (cost.bound, step.words.get(cost.bound, cost.bound))
        totals[cost.operation.name] = (count + cost.operation.num_layers, total_us + cost.total_us, *bound)
    return sorted(((name, *rest) for name, rest in totals.items()), key=lambda part: -part[2])


def _verdict(estimate: ModelEstimate, steps: Sequence[Runs], gains: Sequence[Sequence[ChangeGain]]) -> Verdict:
    points = []
    for step, of_step in zip(steps, gains, strict=True):
        heavy = ", ".join(f"{part} {us / step.total_us:.0%}" for part, _, us, *_ in _parts(step)[:_MOST_HEAVY])
        helps = "; ".join(map(str, of_step[:_MOST_GAINS])) or "No single doubling of the spec saves 0.5%."
        points += [
            (f"{step.title} is mostly", f"{heavy}; GEMMs are bound by {step.say_bounds()}"),
            (f"GEMMs of {step.name} would gain from", helps),
        ]
    rate = f"{float(f'{estimate.decode_tokens_per_s_per_device:.3g}'):,.0f} tokens/s a device in decode"
    first, each = time_text(estimate.ttft_us), time_text(estimate.tpot_us)
    return Verdict(f"TTFT {first}, TPOT {each} ({rate}).", points + trust_in_estimate(estimate, _caveat(estimate)))


def _caveat(estimate: ModelEstimate) -> str:
    """Return the largest reason to doubt the estimate."""
    untimed_frac = max(step.frac_by_source.get("analytic", 0.0) for step in (estimate.prefill, estimate.decode))
    if estimate.num_devices > estimate.num_joined_devices:
        return "Collectives between nodes use the network of the arch, which no timing covers."
    if untimed_frac > _MUCH:
        return f"No timings of {estimate.arch_name} for {untimed_frac:.0%} of a step: coefficients carry over."
    if estimate.engine == IDEAL:
        return "Kernels alone: engine vllm, sglang or trtllm adds the time of its host."
    return "TTFT is that of one prompt without queueing; gemm-eval serve has requests under load."


def _picture(steps: Sequence[Runs]) -> Bars:
    """Return the time of each operation, an axis for each phase, in the colour of what limits it."""
    colors: dict[str, str] = {}
    panels = []
    for step in steps:
        parts = _parts(step)
        kept = parts if len(parts) <= _MOST_BARS else parts[: _MOST_BARS - 1]
        bars = []
        for name, count, total_us, bound, words in kept:
            colors[words] = bound_color(bound)
            note = f"{name}: {count} of {time_text(total_us / count)}, bound by {words}"
            bars.append(Bar(name, [(words, total_us)], _share(total_us, step), note=note))
        if len(kept) < len(parts):
            rest_us = step.total_us - sum(total_us for _, _, total_us, *_ in kept)
            colors["several"] = _OTHERS
            bars.append(Bar(f"{len(parts) - len(kept)} others", [("several", rest_us)], _share(rest_us, step)))
        panels.append(Panel(f"{step.title}, {time_text(step.total_us)}", bars))
    return Bars(panels, colors, caption="Time of all operations of a kind, by what limits them")


def _share(us: float, step: Runs) -> str:
    return f"{time_text(us)}, {us / step.total_us:.0%}"


def _facts(config: ModelConfig, estimate: ModelEstimate, steps: Sequence[Runs]) -> list[tuple[str, str]]:
    arch, results = steps[0].evaluator.arch, [run.result for step in steps for run in step.runs]
    options = estimate.options
    cores = ("SMs", arch.num_sms) if isinstance(arch, GpuSpec) else ("cores", arch.num_cores)
    return [
        ("model", config.name),
        ("layers", f"{config.num_layers:,}"),
        ("hidden size", f"{config.hidden_size:,}"),
        ("parameters", f"{num_parameters(config) / 1e9:,.2f} billion"),
        ("types of weight GEMMs", options["dtype"] or "those of the checkpoint"),
        ("type of unquantized parts", options["dense_dtype"]),
        ("engine", options["engine"]),
        *((name.replace("_", " "), f"{options[name]:,}") for name in _SHOWN),
        ("memory", say_memory(estimate.memory, arch, estimate.engine.memory_share(options["memory_frac"]))),
        ("arch", arch.name),
        (cores[0], f"{cores[1]:,}"),
        *(
            (f"peak, {dtype}", f"{arch.peak_tflop_per_s(dtype):,.4g} TFLOP/s")
            for dtype in dict.fromkeys(result.problem.input_dtype for result in results)
        ),
        ("DRAM", f"{arch.dram_gb_per_s:,.0f} GB/s"),
        ("source of times", distinct(result.source for result in results)),
        ("cost model", distinct(result.model_version for result in results)),
    ]


def _totals(steps: Sequence[Runs]) -> Table:
    heaviest = {step.name: step.heaviest(1)[0] for step in steps}
    columns = [
        (text_column("phase"), lambda step: step.name),
        (Column("tokens"), lambda step: step.num_tokens),
        (time_column("latency"), lambda step: step.total_us),
        (time_column("per token"), lambda step: step.total_us / step.num_tokens),
        (Column("rate", "tokens/s"), lambda step: step.tokens_per_s),
        (percent_column("of peak"), lambda step: 100.0 * step.utilization_frac),
        (
            text_column("heaviest GEMM"),
            lambda step: f"{heaviest[step.name].name}, {heaviest[step.name].total_us / step.total_us:.0%}",
        ),
    ]
    return table_of(steps, columns, "Forward passes")


def _tables(step: Runs) -> list[Part]:
    """Return the tables of a phase: all operations of the step, and its GEMMs."""
    of = step.step
    assert of is not None
    columns = [
        (text_column("operation"), lambda cost: cost.operation.name),
        (text_column("kind"), lambda cost: cost.operation.kind),
        (Column("layers"), lambda cost: cost.operation.num_layers),
        (time_column("latency"), lambda cost: cost.latency_us),
        (text_column("80% within"), lambda cost: interval_text(cost.low_us, cost.high_us)),
        (time_column("total"), lambda cost: cost.total_us),
        (percent_column("share"), lambda cost: 100.0 * cost.total_us / step.total_us),
        (text_column("bound"), lambda cost: cost.bound),
        (text_column("library"), lambda cost: cost.library or "-"),
        (text_column("source"), lambda cost: cost.source or "-"),
        (text_column("details"), lambda cost: cost.detail),
    ]
    tokens = f"{of.batch:,} x {of.new_tokens:,} new of {of.seq_len:,} tokens"
    operations = table_of(step.costs, columns, f"Operations of {step.name}, in the order they run: {tokens}")
    gemms = gemm_table(
        {text_column("GEMM"): [run.name for run in step.runs]},
        step.runs,
        step.total_us,
        caption=f"GEMMs of {step.name}, in the order they run",
        note="C[G,M,N] = A[G,M,K] x B[G,K,N]; latency of one by itself, count in the model, time of all of them, share "
        "of the phase.",
    )
    return [operations, gemms]


def _help(step: Runs, gains: Sequence[ChangeGain]) -> list[Part]:
    """Return what each change of the arch does to the GEMMs, and the heaviest ones in full."""
    columns = [
        (text_column("change"), lambda gain: gain.change),
        (time_column("GEMMs would take"), lambda gain: gain.total_us),
        (percent_column("saves"), lambda gain: 100.0 * gain.saved_frac),
        (text_column("helps most"), lambda gain: gain.helps_most),
    ]
    caption = f"{step.title}: changes of the arch, one at a time"
    note = f"All GEMMs are mapped again for each change; changes that save less than {MIN_GAIN_FRAC:.1%} are left out."
    explained = [
        Text(run.result.explain(), title=f"{run.name}, {run.total_us / step.total_us:.0%} of {step.name}")
        for run in step.heaviest(_MOST_EXPLAINED)
    ]
    return [table_of(gains, columns, caption, note), *explained]


_USER, _DEVICE = "tok/s/user", "tok/s/GPU"
_COLUMNS: tuple[tuple[Column, Callable[[ServingEstimate], Cell]], ...] = (
    (text_column("layout"), lambda e: e.layout),
    (Column(_DEVICE, digits=3), lambda e: e.tokens_per_s_per_device),
    (Column(_USER, digits=3), lambda e: e.tokens_per_s_per_user),
    (time_column("TTFT"), lambda e: e.ttft_us),
    (text_column("80% of TTFT within"), lambda e: interval_text(*e.ttft_interval_us)),
    (time_column("TTFT p99"), lambda e: e.ttft_p99_us),
    (time_column("TPOT"), lambda e: e.tpot_us),
    (text_column("80% of TPOT within"), lambda e: interval_text(*e.tpot_interval_us)),
    (time_column("ITL p99"), lambda e: e.itl_p99_us),
    (Column("requests in flight"), lambda e: e.concurrency),
    (Column("GPUs"), lambda e: e.num_devices),
    (text_column("arch"), lambda e: e.arch_name),
    (text_column("engine"), lambda e: e.engine),
    (text_column("types"), lambda e: e.options["dtype"] or "of the checkpoint"),
    (Column("requests/s", digits=3), lambda e: e.requests_per_s),
    (Column("sequences in decode", digits=3), lambda e: e.mean_seqs),
    (Column("of at most"), lambda e: e.max_seqs),
)


def deployments_report(deployments: Deployments, commands: Sequence[str] = ()) -> Page:
    """Return the page on `Deployments`, with `engine_commands` of the best; InfeasibleError: none is in the limits."""
    best = deployments.best
    columns = [column for column, _ in _COLUMNS]
    rows = [[say(estimate) for _, say in _COLUMNS] for estimate in deployments.front]
    chart = Chart(
        columns, rows, _USER, _DEVICE, log_y=True, highlight=[True] * len(rows), joined="before",
        caption="Throughput of a GPU over the rate of one client; no deployment is above the line",
    )  # fmt: skip
    start: list[Part] = [Text(text, is_code=True) for text in commands]
    left: list[tuple[Column, Callable[[LeftOut], Cell]]] = [
        (text_column("layout"), lambda item: str(item.layout)),
        (text_column("why"), lambda item: item.reason),
        (text_column("arch"), lambda item: item.arch_name),
        (text_column("engine"), lambda item: item.engine),
        (text_column("types"), lambda item: item.dtype or "of the checkpoint"),
    ]
    front = table_of(deployments.front, _COLUMNS, "Deployments on the Pareto front of both rates")
    limits = (("TTFT", deployments.ttft_limit_us), ("TPOT", deployments.tpot_limit_us))
    facts = [
        ("model", deployments.model_name),
        ("tokens of a request", f"{deployments.prompt_len:,} in, {deployments.output_len:,} out"),
        *((f"{name} at most", time_text(limit)) for name, limit in limits if limit is not None),
        ("deployments", f"{deployments.num_points:,}, {deployments.num_within:,} of them within the limits"),
    ]
    sections = [
        Section("Pareto front", [Facts(facts), front]),
        Section("Best deployment", [Text(best.explain()), *start]),
        Section("Excluded layouts", [table_of(deployments.left_out, left, "Layouts that cannot serve these requests")]),
    ]
    lead: list[Part] = [_deployments_verdict(deployments, best), chart]
    return Page(f"Serving {deployments.model_name}", "deployments and their loads", sections, lead)


def _deployments_verdict(deployments: Deployments, best: ServingEstimate) -> Verdict:
    fastest = deployments.front[-1]
    headline = (
        f"{best.layout} on {best.num_devices} x {best.arch_name} gives {best.tokens_per_s_per_device:,.0f} "
        f"tok/s/GPU at {best.tokens_per_s_per_user:,.0f} tok/s/user."
    )
    caveat = "All requests have one size: bursts and long tails of lengths queue longer."
    if best.is_full:
        caveat = "Requests queue here: trust the throughput, not TTFT."
    rates = f"TTFT {time_text(best.ttft_us)}, TPOT {time_text(best.tpot_us)}"
    points = [("The best deployment has", f"{best.concurrency:,} requests in flight, {rates}")]
    if fastest is not best:
        text = f"{fastest.tokens_per_s_per_user:,.0f} tok/s/user, {fastest.concurrency:,} requests in flight"
        points.append(("Fastest for a client", f"{fastest.layout}: {text}"))
    return Verdict(headline, points + trust_in_estimate(best, caveat))
