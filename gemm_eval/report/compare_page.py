"""The page that compares archs: who wins each phase and each GEMM, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gemm_eval.arch import ArchSpec, GpuSpec
from gemm_eval.figures import bound_color
from gemm_eval.report.contender import Contender, Contest, share_by_term, why
from gemm_eval.report.levers import say_bounds, time_by_bound
from gemm_eval.report.page import Page, Section
from gemm_eval.report.parts import Bar, Bars, Cell, Column, Facts, Figure, Panel, Part, Table, Text, Verdict
from gemm_eval.units import per_s, time_text

__all__ = ["compare_page"]

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
        Column("arch", kind="text"),
        Column("cores"),
        *(Column(f"peak {dtype}", "TFLOP/s") for dtype in dtypes),
        Column("DRAM", "GB/s"),
        Column("DRAM size", kind="bytes"),
        Column("on chip", kind="capacity"),
        Column("power", "W"),
        Column("source of times", kind="text"),
        Column("cost model", kind="text"),
    ]
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
        Column("arch", kind="text"),
        Column("time", kind="time"),
        Column("over the fastest", "x", digits=3),
        Column("interval", kind="text"),
        *([Column("rate", "tokens/s")] if contest.num_tokens else []),
        Column("of peak", "%", digits=3),
        Column("DRAM", "GB/s"),
        Column("bound by", kind="text"),
        Column("source", kind="text"),
    ]
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
        Column("GEMM", kind="text"),
        *(Column(name) for name in "GMKN"),
        Column("count"),
        *(Column(one.name, kind="time") for one in contest.contenders),
        Column("fastest", kind="text"),
        Column("ahead by", "x", digits=3),
        Column("why", kind="text"),
    ]
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
    found = []
    for one in contest.ranked:
        name, result, count = one.runs[heaviest]
        share = count * result.latency_us / one.total_us
        title = f"{_capital(contest.name)} on {one.name}"
        title += f": {name}, {share:.0%} of the time" if len(runs) > 1 else ""
        found.append(Text(result.explain(), title=title))
    return found


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"
