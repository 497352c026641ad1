"""The report that compares archs on a model or on GEMMs: who wins each phase and each GEMM, and why."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from gemm_eval.arch import GpuSpec
from gemm_eval.errors import GemmEvalError, InfeasibleError, InvalidOptionError, UnsupportedError
from gemm_eval.evaluate import GEMMEvaluator, GEMMResult
from gemm_eval.figures import bound_color
from gemm_eval.report.page import Page, Section
from gemm_eval.report.parts import (
    Bar,
    Bars,
    Cell,
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
    distinct,
    percent_column,
    sizes_of,
    table_of,
    text_column,
    time_column,
    trust_in_runs,
)
from gemm_eval.report.plots import plot_breakdown
from gemm_eval.transformer import ModelConfig, check_memory, load_model, model_on, transformer_gemms, types_on
from gemm_eval.units import interval_text, time_text
from gemm_eval.workload import GemmProblem

Contest: TypeAlias = Sequence[Runs]
"""The same GEMMs, in the same order, on each of several archs."""

_WORDS = {"dram": "DRAM", "noc": "NoC", "l2": "L2", "a": "A", "b": "B", "c": "C"}
_MIN_RATIO = 1.02  # of a resource, to be named as the reason
_MOST_PANELS = 4
_MIN_SHARE = 0.05  # percent; smaller terms have no row
_MOST_POINTS = 3
_MOST_LEADS = 2  # phases with a clause each in the first sentence
_LEAST_ARCHS = 2
_NOTE = (
    "Times are those of one device, of GEMMs one after the other. The interval of a GEMM holds 80% of measured "
    "times; that of a sum is as wide as if all its GEMMs erred the same way. Chips without one were not timed."
)


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
    Raises InvalidOptionError (fewer than two archs, two of one name, or no GEMMs); GemmEvalError (fewer than two archs
    can run the workload; or matplotlib is not installed).
    """
    names = [evaluator.arch.name for evaluator in evaluators]
    if len(names) < _LEAST_ARCHS or len(set(names)) < len(names):
        raise InvalidOptionError(f"a comparison takes two or more archs of different names, got {', '.join(names)}")
    setting: list[tuple[str, str]] = []
    if isinstance(workload, ModelConfig | str | os.PathLike):
        config = workload if isinstance(workload, ModelConfig) else load_model(workload)
        sizes: dict[str, Any] = {
            "batch_size": batch_size, "seq_len": seq_len, "tensor_parallel": tensor_parallel,
            "expert_parallel": expert_parallel,
        }  # fmt: skip
        title, subtitle = f"GEMMs of {config.name}", config.title or config.name
        setting = [(key.replace("_", " "), f"{value:,}") for key, value in sizes.items()]

        def runs_on(evaluator: GEMMEvaluator) -> list[Runs]:
            model = model_on(evaluator.arch, config)
            types: Any = types_on(evaluator.arch, dtype, dense_dtype, model)
            if not ignore_memory:
                check_memory(model, arch=evaluator.arch, **sizes, **types)
            of_phases = []
            for phase in phases:
                layers = transformer_gemms(model, phase=phase, **types, **sizes)
                results = evaluator.evaluate_many([gemm.problem for gemm in layers], progress=False)
                runs = [Run(one.name, of, one.total_count) for one, of in zip(layers, results, strict=True)]
                of_phases.append(Runs(phase, evaluator, runs, batch_size * (seq_len if phase == "prefill" else 1)))
            return of_phases

    else:
        gemms = list(workload)
        if not gemms:
            raise InvalidOptionError("workload must hold at least one GEMM, got none")
        title = "1 GEMM" if len(gemms) == 1 else f"{len(gemms)} GEMMs"
        subtitle = "C[G,M,N] = A[G,M,K] x B[G,K,N]"

        def runs_on(evaluator: GEMMEvaluator) -> list[Runs]:
            return _gemm_runs(gemms, evaluator, dtype)

    on_archs: list[list[Runs]] = []
    refused: list[str] = []
    for evaluator in evaluators:
        try:
            on_archs.append(runs_on(evaluator))
        except (InfeasibleError, UnsupportedError) as error:
            refused.append(f"{evaluator.arch.name}: {error}")
    if len(on_archs) < _LEAST_ARCHS:
        raise GemmEvalError(f"fewer than two of the archs can run it: {'; '.join(refused)}")
    contests = list(zip(*on_archs, strict=True))
    overview: list[Part] = [Facts(setting)] if setting else []
    overview.append(_arch_table(on_archs))
    overview += [Text("\n".join(refused), title="Not compared")] if refused else []
    explanations = []
    for contest in contests:
        for contender, run in _heaviest(contest):
            share = f": {run.name}, {run.total_us / contender.total_us:.0%} of the time"
            title_of = f"{contender.title} on {contender.arch_name}{share if len(contender.runs) > 1 else ''}"
            explanations.append(Text(run.result.explain(), title=title_of))
    sections = [
        Section("Archs", [*overview, Text(_NOTE)]),
        Section("Figures", [_breakdown(contest) for contest in contests]),
        *(Section(contest[0].title, _tables(contest)) for contest in contests),
        Section("Explanations", explanations),
    ]
    name = f"{title} on {', '.join(runs[0].arch_name for runs in on_archs)}"
    return Page(name, subtitle, sections, [_verdict(contests), _picture(contests)])


def _gemm_runs(gemms: Sequence[GemmProblem | Sequence[int]], evaluator: GEMMEvaluator, dtype: str | None) -> list[Runs]:
    """Each GEMM by itself on an arch."""
    alone: dict[str, Runs] = {}
    for gemm in gemms:
        if isinstance(gemm, GemmProblem):
            result = evaluator.evaluate_problem(gemm)
        else:
            G, M, K, N = gemm
            result = evaluator.evaluate(G, M, K, N, dtype=dtype)
        problem = result.problem
        rows = f"{f'G={problem.G} ' if problem.G > 1 else ''}M={problem.M}"
        if problem.row_groups is not None:
            rows = f"{problem.rows} rows in {problem.G} groups,"
        sizes = f"{rows} K={problem.K} N={problem.N}"
        name = sizes if sizes not in alone else f"{sizes}, {len(alone) + 1}"
        alone[name] = Runs(name, evaluator, [Run(sizes, result, 1)])
    return list(alone.values())


def ranked(contest: Contest) -> list[Runs]:
    """Return the archs, the fastest first."""
    return sorted(contest, key=lambda contender: contender.total_us)


def is_clear(contest: Contest) -> bool:
    """Say whether the two fastest are further apart than their errors."""
    first, second = (contender.interval_us for contender in ranked(contest)[:2])
    return first[1] < second[0]


def why(winner: Runs, loser: Runs) -> str:
    """Return what bounds the slower arch, and how much more of it the faster one has."""
    bound = next(iter(loser.us_by_bound))
    result = next(result for _, result, _ in loser.runs if result.bound == bound)
    more = _resource(winner, loser, bound, result)
    return f"{loser.arch_name} is bound by {loser.words[bound]}" + (f"; {more}" if more else "")


def _resource(winner: Runs, loser: Runs, bound: str, result: GEMMResult) -> str:
    fast, slow = winner.evaluator.arch, loser.evaluator.arch
    if bound == "dram":
        values, what, unit = (fast.dram_gb_per_s, slow.dram_gb_per_s), "the bandwidth", "GB/s"
    elif bound == "compute":
        dtypes = (winner.runs[0].result.problem.input_dtype, result.problem.input_dtype)
        values, what = (fast.peak_tflop_per_s(dtypes[0]), slow.peak_tflop_per_s(dtypes[1])), "the peak"
        unit = f"TFLOP/s of {' and '.join(dict.fromkeys(dtypes))}"
    elif bound == "launch":
        return f"a launch takes {slow.launch_us:.3g} us there, {fast.launch_us:.3g} us on {winner.arch_name}"
    elif bound == "l2" and isinstance(fast, GpuSpec) and isinstance(slow, GpuSpec):
        values, what = (fast.l2_bytes_per_cycle, slow.l2_bytes_per_cycle), "the L2 bandwidth"
        unit = "bytes a cycle"
    else:
        return ""
    ratio = values[0] / values[1]
    if ratio < _MIN_RATIO:
        return ""
    return f"{winner.arch_name} has {ratio:.2f}x {what} ({values[0]:,.4g} against {values[1]:,.4g} {unit})"


def _verdict(contests: Sequence[Contest]) -> Verdict:
    winners = Counter(ranked(contest)[0].arch_name for contest in contests)
    names = [f"{contest[0].name} with " for contest in contests]
    leads = [name + _lead(contest) for name, contest in zip(names, contests, strict=True)]
    is_short = len(contests) <= _MOST_LEADS
    if len(contests) > 1 and len(winners) == 1:
        number = "both" if len(contests) == 2 else f"all {len(contests)}"
        headline = f"{next(iter(winners))} is fastest in {number}{': ' + '; '.join(leads) if is_short else ''}."
    elif is_short:
        of_winners = (ranked(contest)[0].arch_name for contest in contests)
        clauses = [f"{name} is fastest in {lead}" for name, lead in zip(of_winners, leads, strict=True)]
        headline = f"{'; '.join(clauses)}."
    else:
        counts = [f"{name} (at {number})" for name, number in winners.most_common()]
        headline = f"Of {len(contests)} GEMMs {' and '.join(counts)} {'is' if len(counts) == 1 else 'are'} fastest."
    points = []
    for contest in contests[:_MOST_POINTS]:
        first, second = ranked(contest)[:2]
        reason = f"{why(first, second)}. {_CERTAINTY[is_clear(contest)]}"
        if is_short:
            points.append((f"{first.title}: why", f"{reason} {first.arch_name} is bound by {first.say_bounds()}."))
        else:
            points.append((f"{first.title}: {first.arch_name}", f"{_lead(contest)}. {reason}"))
    order = [runs for contest in contests for runs in ranked(contest)]
    alone = "GEMMs alone on an idle device: attention, collectives and the host of an engine are not in these times."
    return Verdict(headline, [*points, *trust_in_runs(order, alone)])


_CERTAINTY = {
    None: "At least one has no interval.",
    True: "The 80% intervals do not overlap.",
    False: "The 80% intervals overlap, so measurements may reverse the order.",
}


def _lead(contest: Contest) -> str:
    first, second = ranked(contest)[:2]
    ratio = f"{second.total_us / first.total_us:.3g} times as fast as {second.arch_name}"
    return f"{time_text(first.total_us)}, {ratio} ({time_text(second.total_us)})"


def _picture(contests: Sequence[Contest]) -> Bars:
    colors: dict[str, str] = {}
    panels = []
    for contest in contests[:_MOST_PANELS]:
        first, *_ = order = ranked(contest)
        bars = []
        for contender in order:
            segments = [(contender.words[bound], us) for bound, us in contender.us_by_bound.items()]
            colors |= {contender.words[bound]: bound_color(bound) for bound in contender.us_by_bound}
            low_us, high_us = contender.interval_us
            label = f"{time_text(contender.total_us)}, {contender.total_us / first.total_us:.2f}x"
            bars.append(Bar(contender.arch_name, segments, label, low_us, high_us, note=f"bound by {segments[0][0]}"))
        panels.append(Panel(first.title, bars))
    caption = "Time of all GEMMs, by what limits them; brackets: 80% of measured times, where known"
    return Bars(panels, colors, caption=caption)


def _arch_table(on_archs: Sequence[Sequence[Runs]]) -> Table:
    results_of = [[run.result for runs in of_arch for run in runs.runs] for of_arch in on_archs]
    by_contest = [result for contest in zip(*on_archs, strict=True) for runs in contest for _, result, _ in runs.runs]
    dtypes = list(dict.fromkeys(result.problem.input_dtype for result in by_contest))
    columns = [
        text_column("arch"), Column("cores"), *(Column(f"peak {dtype}", "TFLOP/s") for dtype in dtypes),
        Column("DRAM", "GB/s"), Column("DRAM size", kind="bytes"), Column("on chip", kind="capacity"),
        Column("power", "W"), text_column("source of times"), text_column("cost model"),
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for (first, *_), results in zip(on_archs, results_of, strict=True):
        arch, used = first.evaluator.arch, {result.problem.input_dtype for result in results}
        peaks = [arch.peak_tflop_per_s(dtype) if dtype in used else None for dtype in dtypes]
        memories: list[Cell]
        if isinstance(arch, GpuSpec):
            cores, memories = arch.num_sms, [arch.dram_bytes, arch.l2_bytes, arch.power_limit_w]
        else:
            cores, memories = arch.num_cores, [None, arch.num_cores * arch.sram_bytes, arch.tdp_w]
        origins = [distinct(getattr(result, name) for result in results) for name in ("source", "model_version")]
        rows.append([arch.name, cores, *peaks, arch.dram_gb_per_s, *memories, *origins])
    note = "Cores: SMs of a GPU. On chip: L2 of a GPU, SRAM of all cores. Types are those that each arch runs here."
    return Table(columns, rows, caption="The archs", note=note)


def _tables(contest: Contest) -> list[Part]:
    """Speed of each, GEMM by GEMM where there are several, and the share of each term."""
    title, order = contest[0].title, ranked(contest)
    best_us, has_tokens = order[0].total_us, bool(contest[0].num_tokens)
    columns: list[tuple[Column, Callable[[Runs], Cell]]] = [
        (text_column("arch"), lambda runs: runs.arch_name),
        (time_column("time"), lambda runs: runs.total_us),
        (Column("over the fastest", "x", digits=3), lambda runs: runs.total_us / best_us),
        (text_column("interval"), lambda runs: interval_text(*runs.interval_us)),
        *([(Column("rate", "tokens/s"), lambda runs: runs.tokens_per_s)] if has_tokens else []),
        (percent_column("of peak"), lambda runs: 100.0 * runs.utilization_frac),
        (Column("DRAM", "GB/s"), lambda runs: runs.dram_gb_per_s),
        (text_column("bound by"), lambda runs: runs.say_bounds()),
        (text_column("library"), lambda runs: distinct(run.result.options.get("library", "-") for run in runs.runs)),
        (text_column("source"), lambda runs: distinct(run.result.source for run in runs.runs)),
    ]
    ranking = table_of(order, columns, f"{title}, the fastest first")
    return [ranking, *([_gemm_table(contest)] if len(contest[0].runs) > 1 else []), _term_table(contest)]


def _gemm_table(contest: Contest) -> Table:
    """Each GEMM on every arch, side by side."""
    columns = [
        text_column("GEMM"), *(Column(name) for name in "GMKN"), Column("count"),
        *(time_column(contender.arch_name) for contender in contest), text_column("fastest"),
        Column("ahead by", "x", digits=3), text_column("why"),
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for at, (name, result, count) in enumerate(contest[0].runs):
        alone = [Runs(name, contender.evaluator, [contender.runs[at]]) for contender in contest]
        first, second = ranked(alone)[:2]
        ahead = second.total_us / first.total_us
        times_us = [contender.total_us for contender in alone]
        rows.append([name, *sizes_of(result.problem), count, *times_us, first.arch_name, ahead, why(first, second)])
    note = "Times are those of all runs of a GEMM; the reason is what bounds the second."
    return Table(columns, rows, caption=f"{contest[0].title}, GEMM by GEMM", note=note)


def _term_table(contest: Contest) -> Table:
    shares: list[dict[str, float]] = []  # percent of the time; what overlaps is negative
    for runs in contest:
        shares.append({})
        for _, result, count in runs.runs:
            for term, us in result.breakdown.items():
                name = " ".join(_WORDS.get(word, word) for word in term.removesuffix("_us").split("_"))
                shares[-1][name] = shares[-1].get(name, 0.0) + 100.0 * count * us / runs.total_us
    terms = [name for name in dict.fromkeys(name for of in shares for name in of) if name != "hidden"]
    terms = [name for name in [*terms, "hidden"] if any(abs(of.get(name, 0.0)) >= _MIN_SHARE for of in shares)]
    columns = [text_column("term"), *(percent_column(contender.arch_name) for contender in contest)]
    rows = [[name, *(of.get(name) for of in shares)] for name in terms]
    note = "Of the time of the phase. Terms overlap; what is hidden is negative, and a column adds up to 100%."
    return Table(columns, rows, caption=f"{contest[0].title}, share by term", note=note)


def _heaviest(contest: Contest) -> list[tuple[Runs, Run]]:
    """Return the GEMM that takes most of the fastest arch's time, on each arch, the fastest first."""
    order = ranked(contest)
    runs = order[0].runs
    heaviest = max(range(len(runs)), key=lambda at: runs[at].total_us)
    return [(contender, contender.runs[heaviest]) for contender in order]


def _breakdown(contest: Contest) -> Figure:
    heaviest = _heaviest(contest)
    names = [contender.arch_name for contender, _ in heaviest]
    drawing = plot_breakdown([run.result for _, run in heaviest], names=names)
    what = contest[0].name if len(contest[0].runs) == 1 else f"{contest[0].name}, {heaviest[0][1].name}"
    return Figure(drawing, f"{what}: where the time of one run goes")
