"""The text behind `GEMMResult.explain`: what bounds a GEMM, where its time goes, and what would help."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, NamedTuple

from gemm_eval.errors import GemmEvalError
from gemm_eval.units import time_text
from gemm_eval.workload import GemmProblem

if TYPE_CHECKING:
    from gemm_eval.evaluate.result import GEMMResult
    from gemm_eval.evaluate.result_origin import ResultOrigin


_MIN_GAIN_FRAC = 0.005
_NUM_LEVERS_SHOWN = 3
_WORDS = {"dram": "DRAM", "noc": "NoC", "l2": "L2", "smem": "shared memory", "a": "A", "b": "B", "c": "C"}


class Lever(NamedTuple):
    """One spec change and what it does to a GEMM, the mapping being searched anew."""

    change: str
    latency_us: float
    gain_frac: float  # share of the latency that it saves


def rank_levers(result: GEMMResult, origin: ResultOrigin) -> list[Lever]:
    """Evaluate the GEMM on a dozen changed archs, most helpful change first.

    A changed arch has the correction of this one as a factor, so only the model tells the two apart.
    """
    levers = []
    for text, changes in origin.backend.changes(result.problem):
        evaluator = origin.changed(text, changes)
        if evaluator is None:  # a change that takes the spec out of its range helps nobody
            continue
        try:
            changed = evaluator.evaluate_problem(result.problem, **result.options)
        except GemmEvalError:
            continue
        levers.append(Lever(text, changed.latency_us, 1.0 - changed.latency_us / result.latency_us))
    return sorted(levers, key=lambda lever: (-lever.gain_frac, lever.change))


def explain_result(result: GEMMResult, origin: ResultOrigin) -> str:
    """Return the text of `GEMMResult.explain`."""
    arch, backend = origin.arch, origin.backend
    lines = [
        f"{result.problem} on {arch.name}: {time_text(result.latency_us)}, {result.tflop_per_s:,.1f} TFLOP/s "
        f"({result.utilization_frac:.0%} of peak), bound by {backend.say_bound(result.bound)}.",
        *say_groups(result.problem),
        *backend.say_mapping(result),
        "Time: " + ", ".join(f"{_words(name)} {time_text(us)}" for name, us in _shown(result)),
        f"DRAM: {result.dram_bytes / 1e6:,.2f} MB, {_say_share(result)}, "
        f"at {result.dram_gb_per_s:,.0f} of {arch.dram_gb_per_s:,.0f} GB/s.",
    ]
    levers = [lever for lever in rank_levers(result, origin) if lever.gain_frac >= _MIN_GAIN_FRAC]
    if levers:
        shown = [f"{lever.change}: {time_text(lever.latency_us)} (-{lever.gain_frac:.0%})" for lever in levers]
        lines.append("Would help most: " + "; ".join(shown[:_NUM_LEVERS_SHOWN]) + ".")
    else:
        lines.append("No single doubling of the spec saves more than 0.5%.")
    return "\n".join([*lines, *backend.say_source(result)])


def _say_share(result: GEMMResult) -> str:
    """Say how much DRAM traffic there is beside A, B and C, of which L2 may have some from the kernel before."""
    share = result.dram_bytes / result.problem.compulsory_bytes
    if share < 1.0:
        return f"{share:.1%} of A, B and C: L2 has the rest"
    return f"{share:.2f}x what must move at least once"


def say_groups(problem: GemmProblem) -> list[str]:
    """Say how the rows of a grouped GEMM lie in its groups; nothing of others."""
    groups = problem.row_groups
    if groups is None:
        return []
    num_empty = groups.count(0)
    empty = f"; {num_empty:,} {'has' if num_empty == 1 else 'have'} none" if num_empty else ""
    return [
        f"Groups: {problem.rows:,} rows in {len(groups):,} groups of {min(groups):,} to {max(groups):,}, "
        f"{statistics.median(groups):,g} in the median{empty}."
    ]


def _shown(result: GEMMResult) -> list[tuple[str, float]]:
    return [(name, us) for name, us in result.breakdown.items() if abs(us) >= 0.005]


def _words(term: str) -> str:
    return " ".join(_WORDS.get(word, word) for word in term.removesuffix("_us").split("_"))
