"""Our multi-core model on a chip of one core."""

from __future__ import annotations

from gemm_eval.evaluate import GEMMEvaluator, GEMMResult
from gemm_eval.units import cycles_per_us
from gemm_eval.validation.simulators.work import Chip, Counted, Gemm, Traffic

__all__ = ["count_ours"]

_SLOW_DRAM = 1e-9
"""Share of the bandwidth with which latency is bytes: the fastest mapping is then the one that moves least."""


def count_ours(chip: Chip, gemm: Gemm) -> Counted:
    """Return what the best mappings of a GEMM cost: the fastest one, and the one that moves least."""
    fastest = _evaluate(chip, gemm, 1.0)
    least = _evaluate(chip, gemm, _SLOW_DRAM)
    per_us = cycles_per_us(chip.frequency_ghz)
    busy_us = max(fastest.compute_us, fastest.dram_us)
    return Counted(
        least=_traffic(least),
        compute_cycles=fastest.compute_us * per_us,
        cycles=fastest.latency_us * per_us,
        moved=_traffic(fastest),
        exposed_cycles=(fastest.latency_us - busy_us) * per_us,
        mapping=str(fastest.mapping),
    )


def _evaluate(chip: Chip, gemm: Gemm, share: float) -> GEMMResult:
    spec = chip.spec.with_(dram_gb_per_s=chip.spec.dram_gb_per_s * share)
    evaluator = GEMMEvaluator(spec, disk_cache=False)
    return evaluator.evaluate(1, *gemm, input_dtype="fp16", output_dtype="fp32")


def _traffic(result: GEMMResult) -> Traffic:
    moved = result.traffic
    c_bytes = moved["c_store_bytes"] + moved["c_spill_bytes"] + moved["c_refill_bytes"]
    return Traffic(moved["a_bytes"], moved["b_bytes"], c_bytes)
