"""The text behind `GEMMResult.explain`: what bounds a GEMM, where its time goes, and what would help."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gemm_eval.arch import MulticoreSpec
from gemm_eval.errors import GemmEvalError

if TYPE_CHECKING:
    from gemm_eval.evaluate._evaluator import GEMMEvaluator
    from gemm_eval.evaluate._result import GEMMResult

__all__ = ["Lever", "explain_result", "rank_levers"]

_BOUND_TEXT = {
    "compute": "the matrix units",
    "vector": "the vector units, which dequantize the weights",
    "dram": "DRAM bandwidth",
    "noc": "the cores' network ports",
    "reduction": "the reduction over cores that split K",
    "launch": "the fixed launch overhead",
}
_MIN_GAIN_FRAC = 0.005
_NUM_LEVERS_SHOWN = 3


class Lever(NamedTuple):
    """One spec change and what it does to a GEMM, the mapping being searched anew."""

    change: str
    latency_us: float
    gain_frac: float  # share of the latency that it saves


def rank_levers(result: GEMMResult, evaluator: GEMMEvaluator) -> list[Lever]:
    """Evaluate the GEMM on a dozen changed archs, most helpful change first."""
    levers = []
    for text, changes in _changes(evaluator.arch):
        try:
            changed = evaluator.on(evaluator.arch.with_(**changes)).evaluate_problem(result.problem)
        except GemmEvalError:  # a change that takes the spec out of its range helps nobody
            continue
        levers.append(Lever(text, changed.latency_us, 1.0 - changed.latency_us / result.latency_us))
    return sorted(levers, key=lambda lever: (-lever.gain_frac, lever.change))


def explain_result(result: GEMMResult, evaluator: GEMMEvaluator) -> str:
    """Return the text of `GEMMResult.explain`."""
    arch = evaluator.arch
    lines = [
        f"{result.problem} on {arch.name}: {result.latency_us:,.2f} us, {result.tflop_per_s:,.1f} TFLOP/s "
        f"({result.utilization_frac:.0%} of peak), bound by {_BOUND_TEXT[result.bound]}.",
        f"Mapping: {result.mapping}; {result.active_cores} of {arch.num_cores} cores, "
        f"{result.sram_used_bytes / arch.sram_usable_bytes:.0%} of usable SRAM.",
        "Time: " + ", ".join(f"{_words(name)} {us:,.2f}" for name, us in _shown(result)),
        f"DRAM: {result.dram_bytes / 1e6:,.2f} MB, {result.dram_bytes / _compulsory_bytes(result):.2f}x what must move "
        f"at least once, at {result.dram_gb_per_s:,.0f} of {arch.dram_gb_per_s:,.0f} GB/s.",
    ]
    levers = [lever for lever in rank_levers(result, evaluator) if lever.gain_frac >= _MIN_GAIN_FRAC]
    if levers:
        shown = [f"{lever.change}: {lever.latency_us:,.2f} us (-{lever.gain_frac:.0%})" for lever in levers]
        lines.append("Would help most: " + "; ".join(shown[:_NUM_LEVERS_SHOWN]) + ".")
    else:
        lines.append("No single doubling of the spec saves more than 0.5%.")
    if arch.is_coarse:
        lines.append(f"{arch.name} is described coarsely; expect a rough answer.")
    return "\n".join(lines)


def _shown(result: GEMMResult) -> list[tuple[str, float]]:
    return [(name, us) for name, us in result.breakdown.items() if abs(us) >= 0.005]


def _words(term: str) -> str:
    names = {"dram": "DRAM", "noc": "NoC", "a": "A", "b": "B", "c": "C"}
    return " ".join(names.get(word, word) for word in term.removesuffix("_us").split("_"))


def _compulsory_bytes(result: GEMMResult) -> int:
    """Bytes of A, B with its scales, and C, each once."""
    p = result.problem
    assert p.weight_dtype is not None
    assert p.output_dtype is not None
    bits = p.G * (p.M * p.K * p.input_dtype.bits + p.K * p.N * p.weight_dtype.bits + p.M * p.N * p.output_dtype.bits)
    if p.scale_dtype is not None:
        groups = -(-p.K // p.group_size) if p.group_size else 1
        bits += p.G * groups * p.N * (p.scale_dtype.bits + (p.zero_dtype.bits if p.zero_dtype else 0))
    return -(-bits // 8)


def _changes(arch: MulticoreSpec) -> list[tuple[str, dict[str, Any]]]:
    """Doublings of everything that can be bought, and the removal of fixed costs."""
    dram: dict[str, Any] = {"dram_gb_per_s": arch.dram_gb_per_s * 2}
    if arch.dram_core_limit_gb_per_s is not None:
        dram["dram_core_limit_gb_per_s"] = arch.dram_core_limit_gb_per_s * 2
    rates = {dtype: rate * 2 for dtype, rate in arch.cube_steps_per_cycle.items()}
    changes: list[tuple[str, dict[str, Any]]] = [
        ("dram_gb_per_s x2", dram),
        ("cube_steps_per_cycle x2", {"cube_steps_per_cycle": rates}),
        ("num_cores x2", {"num_cores": arch.num_cores * 2}),
        ("sram_bytes x2", {"sram_bytes": arch.sram_bytes * 2}),
        ("frequency_ghz x2", {"frequency_ghz": arch.frequency_ghz * 2}),
    ]
    if arch.noc_gb_per_s is not None:
        changes.append(("noc_gb_per_s x2", {"noc_gb_per_s": arch.noc_gb_per_s * 2}))
    if arch.vector_ops_per_cycle is not None:
        changes.append(("vector_ops_per_cycle x2", {"vector_ops_per_cycle": arch.vector_ops_per_cycle * 2}))
    if arch.timing == "overlap" and arch.overlap_frac < 1.0:
        changes.append(("overlap_frac 1", {"overlap_frac": 1.0}))
    if arch.launch_us > 0.0:
        changes.append(("launch_us 0", {"launch_us": 0.0}))
    return changes
