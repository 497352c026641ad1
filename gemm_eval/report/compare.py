"""The report that compares archs on a model or on GEMMs: who wins each phase and each GEMM, and why."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gemm_eval.arch import ArchSpec, GpuSpec
from gemm_eval.errors import GemmEvalError, InfeasibleError, InvalidOptionError, UnsupportedError
from gemm_eval.evaluate import GEMMEvaluator, GEMMResult
from gemm_eval.figures import bound_color
from gemm_eval.report.page import Page, Section
from gemm_eval.report.parts import Bar, Bars, Cell, Column, Facts, Figure, Panel, Part, Table, Text, Verdict
from gemm_eval.report.plots import plot_breakdown
from gemm_eval.report.runs import Phase, PhaseResult, Runs, evaluate_phase, say_bounds, time_by_bound
from gemm_eval.transformer import ModelConfig, check_memory, load_model, model_on, types_on
from gemm_eval.units import per_s, time_text
from gemm_eval.workload import GemmProblem

_WORDS = {"dram": "DRAM", "noc": "NoC", "l2": "L2", "a": "A", "b": "B", "c": "C"}
_MIN_RATIO = 1.02  # of a resource, to be named as the reason


@dataclass(frozen=True, slots=True)
class Contender:
    """An arch, and the GEMMs of one phase on it."""

    evaluator: GEMMEvaluator
    runs: Runs

    @property
    def name(self) -> str:
        """That of the arch."""
        return self.evaluator.arch.name

    @property
    def total_us(self) -> float:
        """Time of all runs, one after the other."""
        return sum(count * result.latency_us for _, result, count in self.runs)

    @property
    def interval_us(self) -> tuple[float, float] | None:
        """The interval of the measured time if all GEMMs err the same way; None where errors are not known."""
        low_us = high_us = 0.0
        for _, result, count in self.runs:
            if result.low_us is None or result.high_us is None:
                return None
            low_us += count * result.low_us
            high_us += count * result.high_us
        return low_us, high_us

    @property
    def utilization_frac(self) -> float:
        """Share of the highest rate of the chip, over all runs."""
        busy_us = sum(count * result.latency_us * result.utilization_frac for _, result, count in self.runs)
        return busy_us / self.total_us

    @property
    def dram_gb_per_s(self) -> float:
        """Achieved DRAM bandwidth, over all runs."""
        return sum(count * result.dram_bytes for _, result, count in self.runs) / self.total_us / 1e3

    @property
    def sources(self) -> str:
        """The sources of its numbers."""
        return ", ".join(sorted({result.source for _, result, _ in self.runs}))


@dataclass(frozen=True, slots=True)
class Contest:
    """A phase on several archs.

    Attributes:
        name: ``"prefill"``, ``"decode"``, or the sizes of a GEMM.
        num_tokens: new tokens, None where nothing counts them.
        contenders: the archs, each with the same GEMMs in the same order.
    """

    name: str
    num_tokens: int | None
    contenders: Sequence[Contender]

    @property
    def ranked(self) -> list[Contender]:
        """The archs, the fastest first."""
        return sorted(self.contenders, key=lambda one: one.total_us)

    @property
    def is_clear(self) -> bool | None:
        """True if the two fastest are further apart than their errors; None where errors are not known."""
        first, second = (one.interval_us for one in self.ranked[:2])
        return None if first is None or second is None else first[1] < second[0]


def why(winner: Contender, loser: Contender) -> str:
    """Say what bounds the slower arch, and how much more of it the faster one has."""
    bound = next(iter(time_by_bound(loser.runs)))
    result = next(result for _, result, _ in loser.runs if result.bound == bound)
    said = f"{loser.name} is bound by {result.backend.say_bound(bound)}"
    more = _resource(winner, loser, bound, result)
    return f"{said}; {more}" if more else said


def _resource(winner: Contender, loser: Contender, bound: str, result: GEMMResult) -> str:
    fast, slow = winner.evaluator.arch, loser.evaluator.arch
    if bound == "dram":
        return _more(winner.name, fast.dram_gb_per_s, slow.dram_gb_per_s, "the bandwidth", "GB/s")
    if bound == "compute":
        dtypes = (next(iter(winner.runs))[1].problem.input_dtype, result.problem.input_dtype)
        peaks = (fast.peak_tflop_per_s(dtypes[0]), slow.peak_tflop_per_s(dtypes[1]))
        return _more(winner.name, *peaks, "the peak", f"TFLOP/s of {' and '.join(dict.fromkeys(dtypes))}")
    if bound == "launch":
        return f"a launch takes {slow.launch_us:.3g} us there, {fast.launch_us:.3g} us on {winner.name}"
    if bound == "l2" and isinstance(fast, GpuSpec) and isinstance(slow, GpuSpec):
        return _more(winner.name, fast.l2_bytes_per_cycle, slow.l2_bytes_per_cycle, "the L2 bandwidth", "bytes a cycle")
    return ""


def _more(name: str, fast: float, slow: float, what: str, unit: str) -> str:
    if fast / slow < _MIN_RATIO:
        return ""
    return f"{name} has {fast / slow:.2f}x {what} ({fast:,.4g} against {slow:,.4g} {unit})"


def share_by_term(contender: Contender) -> dict[str, float]:
    """Return the percent of the time that each term takes; what overlaps is negative, and all are 100."""
    shares: dict[str, float] = {}
    for _, result, count in contender.runs:
        for term, us in result.breakdown.items():
            name = " ".join(_WORDS.get(word, word) for word in term.removesuffix("_us").split("_"))
            shares[name] = shares.get(name, 0.0) + 100.0 * count * us / contender.total_us
    return shares


_MOST_PANELS = 4
_MIN_SHARE = 0.05  # percent; smaller terms have no row
_MOST_POINTS = 3
_MOST_LEADS = 2  # phases with a clause each in the first sentence


def compare_page(
    title: str,
    subtitle: str,
    contests: Sequence[Contest],
    *,
    setting: Sequence[tuple[str, str]] = (),
    refused: Sequence[tuple[str, str]] = (),
    figures: Sequence[Figure] = (),
) -> Page:
    """Return the page.

    Args:
        title, subtitle: of the page.
        contests: phases or GEMMs, on the same archs in the same order.
        setting: what was asked, in words.
        refused: archs that cannot run it, and why.
        figures: drawings that the caller made; they stand in a section of their own.
    """
    overview: list[Part] = [Facts(setting)] if setting else []
    overview.append(_arch_table(contests))
    if refused:
        overview.append(Text("\n".join(f"{name}: {reason}" for name, reason in refused), title="Not compared"))
    overview.append(
        Text(
            "Times are those of one device, of GEMMs one after the other. The interval of a GEMM holds 80% of measured "
            "times; that of a sum is as wide as if all its GEMMs erred the same way. Chips without one were not timed."
        )
    )
    sections = [Section("Archs", overview), *([Section("Figures", figures)] if figures else [])]
    for contest in contests:
        parts: list[Part] = [_ranking(contest)]
        if len(contest.contenders[0].runs) > 1:
            parts.append(_gemm_table(contest))
        parts.append(_term_table(contest))
        sections.append(Section(_capital(contest.name), parts))
    sections.append(Section("In full", [text for contest in contests for text in _explained(contest)]))
    return Page(title, subtitle, sections, [_verdict(contests), _picture(contests)])


def _verdict(contests: Sequence[Contest]) -> Verdict:
    wins = Counter(contest.ranked[0].name for contest in contests)
    said = "; ".join(_lead(contest) for contest in contests)
    if len(contests) > 1 and len(wins) == 1:
        headline = f"{contests[0].ranked[0].name} is fastest in {_all(len(contests))}"
        headline += f": {said}." if len(contests) <= _MOST_LEADS else "."
    elif len(contests) > _MOST_LEADS:
        counts = [f"{name} (at {number})" for name, number in wins.most_common()]
        headline = f"Of {len(contests)} GEMMs {' and '.join(counts)} {'is' if len(counts) == 1 else 'are'} fastest."
    else:
        headline = f"{'; '.join(f'{one.ranked[0].name} is fastest in {_lead(one)}' for one in contests)}."
    points = []
    for contest in contests[:_MOST_POINTS]:
        first, second = contest.ranked[:2]
        name = _capital(contest.name)
        if len(contests) > _MOST_LEADS:
            points.append(
                (
                    f"{name}: {first.name}",
                    f"{_lead(contest, has_name=False)}. {why(first, second)}. {_certainty(contest)}",
                )
            )
        else:
            points.append((f"{name}: why", f"{why(first, second)}. {_certainty(contest)}"))
            points.append((f"{name}: {first.name} itself is bound by", say_bounds(first.runs)))
    return Verdict(headline, points)


def _lead(contest: Contest, *, has_name: bool = True) -> str:
    first, second = contest.ranked[:2]
    ratio = second.total_us / first.total_us
    return (
        f"{f'{contest.name} with ' if has_name else ''}{time_text(first.total_us)}, {ratio:.3g} times as fast as "
        f"{second.name} ({time_text(second.total_us)})"
    )


def _all(number: int) -> str:
    return "both" if number == 2 else f"all {number}"


def _certainty(contest: Contest) -> str:
    if contest.is_clear is None:
        return "How far off they may be is not known of both."
    return (
        "The intervals lie apart." if contest.is_clear else "The intervals overlap: measured, it may be the other way."
    )


def _picture(contests: Sequence[Contest]) -> Bars:
    colors: dict[str, str] = {}
    panels = []
    for contest in contests[:_MOST_PANELS]:
        best_us = contest.ranked[0].total_us
        bars = []
        for one in contest.ranked:
            words = {result.bound: result.backend.say_bound(result.bound) for _, result, _ in one.runs}
            times = time_by_bound(one.runs)
            colors |= {words[bound]: bound_color(bound) for bound in times}
            low_us, high_us = one.interval_us or (None, None)
            label = f"{time_text(one.total_us)}, {one.total_us / best_us:.2f}x"
            segments = [(words[bound], us) for bound, us in times.items()]
            bars.append(Bar(one.name, segments, label, low_us, high_us, note=f"bound by {segments[0][0]}"))
        panels.append(Panel(_capital(contest.name), bars))
    return Bars(
        panels, colors, caption="Time of all GEMMs, by what limits them; brackets: 80% of measured times, where known"
    )


def _arch_table(contests: Sequence[Contest]) -> Table:
    runs = [run for contest in contests for one in contest.contenders for run in one.runs]
    dtypes = list(dict.fromkeys(result.problem.input_dtype for _, result, _ in runs))
    columns = [
        Column("arch", kind="text"), Column("cores"), *(Column(f"peak {dtype}", "TFLOP/s") for dtype in dtypes),
        Column("DRAM", "GB/s"), Column("DRAM size", kind="bytes"), Column("on chip", kind="capacity"),
        Column("power", "W"), Column("source of times", kind="text"), Column("cost model", kind="text"),
    ]  # fmt: skip
    rows = []
    for at, one in enumerate(contests[0].contenders):
        own = [result for contest in contests for _, result, _ in contest.contenders[at].runs]
        used = {result.problem.input_dtype for result in own}
        arch = one.evaluator.arch
        peaks = [arch.peak_tflop_per_s(dtype) if dtype in used else None for dtype in dtypes]
        versions = ", ".join(sorted({result.model_version for result in own}))
        sources = ", ".join(sorted({result.source for result in own}))
        rows.append([one.name, *_sizes(arch, peaks), sources, versions])
    note = "Cores: SMs of a GPU. On chip: L2 of a GPU, SRAM of all cores. Types are those that each arch runs here."
    return Table(columns, rows, caption="What the archs have", note=note)


def _sizes(arch: ArchSpec, peaks: Sequence[float | None]) -> list[Cell]:
    if isinstance(arch, GpuSpec):
        return [arch.num_sms, *peaks, arch.dram_gb_per_s, arch.dram_bytes, arch.l2_bytes, arch.power_limit_w]
    return [arch.num_cores, *peaks, arch.dram_gb_per_s, None, arch.num_cores * arch.sram_bytes, arch.tdp_w]


def _ranking(contest: Contest) -> Table:
    columns = [
        Column("arch", kind="text"), Column("time", kind="time"), Column("over the fastest", "x", digits=3),
        Column("interval", kind="text"), *([Column("rate", "tokens/s")] if contest.num_tokens else []),
        Column("of peak", "%", digits=3), Column("DRAM", "GB/s"), Column("bound by", kind="text"),
        Column("source", kind="text"),
    ]  # fmt: skip
    best_us = contest.ranked[0].total_us
    rows: list[list[Cell]] = [
        [
            one.name,
            one.total_us,
            one.total_us / best_us,
            None if one.interval_us is None else " to ".join(map(time_text, one.interval_us)),
            *([per_s(contest.num_tokens, one.total_us)] if contest.num_tokens else []),
            100.0 * one.utilization_frac,
            one.dram_gb_per_s,
            say_bounds(one.runs),
            one.sources,
        ]
        for one in contest.ranked
    ]
    return Table(columns, rows, caption=f"{_capital(contest.name)}, the fastest first")


def _gemm_table(contest: Contest) -> Table:
    """Each GEMM on every arch, side by side."""
    columns = [
        Column("GEMM", kind="text"), *(Column(name) for name in "GMKN"), Column("count"),
        *(Column(one.name, kind="time") for one in contest.contenders), Column("fastest", kind="text"),
        Column("ahead by", "x", digits=3), Column("why", kind="text"),
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for at, (name, result, count) in enumerate(contest.contenders[0].runs):
        alone = [Contender(one.evaluator, [one.runs[at]]) for one in contest.contenders]
        first, second = Contest(name, None, alone).ranked[:2]
        problem = result.problem
        M = problem.M if problem.row_groups is None else problem.rows / problem.G
        rows.append(
            [
                name, problem.G, M, problem.K, problem.N, count, *(one.total_us for one in alone), first.name,
                second.total_us / first.total_us, why(first, second),
            ]
        )  # fmt: skip
    note = "Times are those of all runs of a GEMM; the reason is what bounds the second."
    return Table(columns, rows, caption=f"{_capital(contest.name)}, GEMM by GEMM", note=note)


def _term_table(contest: Contest) -> Table:
    shares = [share_by_term(one) for one in contest.contenders]
    terms = [name for name in dict.fromkeys(name for of in shares for name in of) if name != "hidden"]
    terms = [name for name in [*terms, "hidden"] if any(abs(of.get(name, 0.0)) >= _MIN_SHARE for of in shares)]
    columns = [Column("term", kind="text"), *(Column(one.name, "%", digits=3) for one in contest.contenders)]
    rows: list[list[Cell]] = [[name, *(of.get(name) for of in shares)] for name in terms]
    note = "Of the time of the phase. Terms overlap; what is hidden is negative, and a column adds up to 100%."
    return Table(columns, rows, caption=f"{_capital(contest.name)}, share by term", note=note)


def _explained(contest: Contest) -> list[Text]:
    """The GEMM that takes most of the fastest arch's time, in full on each arch."""
    runs = contest.ranked[0].runs
    heaviest = max(range(len(runs)), key=lambda at: runs[at][1].latency_us * runs[at][2])
    texts = []
    for one in contest.ranked:
        name, result, count = one.runs[heaviest]
        share = count * result.latency_us / one.total_us
        title = f"{_capital(contest.name)} on {one.name}"
        title += f": {name}, {share:.0%} of the time" if len(runs) > 1 else ""
        texts.append(Text(result.explain(), title=title))
    return texts


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


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
    runnable: list[tuple[GEMMEvaluator, dict[str, Runs]]] = []
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
                runnable.append((evaluator, {phase.name: phase.runs for phase in of_arch}))
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
                runnable.append((evaluator, _gemm_runs(gemms, evaluator, dtype)))
            except (InfeasibleError, UnsupportedError) as error:
                refused.append((evaluator.arch.name, str(error)))
    if len(runnable) < _LEAST_ARCHS:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refused)
        raise GemmEvalError(f"fewer than two of the archs can run it: {reasons}")
    contests = [
        Contest(name, tokens.get(name), [Contender(evaluator, runs[name]) for evaluator, runs in runnable])
        for name in runnable[0][1]
    ]
    archs = ", ".join(evaluator.arch.name for evaluator, _ in runnable)
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
        name = _compare_sizes(result)
        runs[name if name not in runs else f"{name}, {len(runs) + 1}"] = [(name, result, 1)]
    return runs


def _compare_sizes(result: GEMMResult) -> str:
    problem = result.problem
    if problem.row_groups is not None:
        return f"{problem.rows} rows in {problem.G} groups, K={problem.K} N={problem.N}"
    batch = f"G={problem.G} " if problem.G > 1 else ""
    return f"{batch}M={problem.M} K={problem.K} N={problem.N}"


def _figures(contests: Sequence[Contest]) -> list[Figure]:
    """Return the breakdown of the heaviest GEMM of each phase, arch by arch."""
    figures = []
    for contest in contests:
        runs = contest.ranked[0].runs
        heaviest = max(range(len(runs)), key=lambda at: runs[at][1].latency_us * runs[at][2])
        of = [(one.name, *one.runs[heaviest]) for one in contest.ranked]
        drawing = plot_breakdown([result for _, _, result, _ in of], names=[name for name, *_ in of])
        what = contest.name if len(runs) == 1 else f"{contest.name}, {runs[heaviest][0]}"
        figures.append(Figure(drawing, f"{what}: where the time of one run goes"))
    return figures
