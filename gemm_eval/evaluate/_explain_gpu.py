"""What `explain` says of a GPU: its bounds in words, the waves of a kernel, and changes of the spec that could help."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gemm_eval.arch import GpuSpec
from gemm_eval.mapping import Decomposition
from gemm_eval.workload import GemmProblem

if TYPE_CHECKING:
    from gemm_eval.models.gpu import GpuCost

__all__ = ["BOUND_TEXT", "say_waves", "spec_changes"]

BOUND_TEXT = {
    "compute": "the tensor cores",
    "smem": "shared-memory bandwidth",
    "l2": "L2 bandwidth",
    "dram": "DRAM bandwidth",
    "latency": "memory latency, with too few bytes in flight",
    "dequant": "the ALUs, which dequantize the weights",
    "reduction": "the reduction over CTAs that split K",
    "launch": "the fixed launch overhead",
}


def say_waves(arch: GpuSpec, problem: GemmProblem, cost: GpuCost) -> str:
    """Say how the CTAs of a kernel fill the SMs."""
    config, slots = cost.config, cost.ctas_per_sm * arch.num_sms
    tiles = problem.G * -(-problem.M // config.cta_m) * -(-problem.N // config.cta_n)
    if config.decomposition is Decomposition.STREAM_K:
        work = f"{tiles:,} tiles of C shared evenly by {_ctas(slots)}, {cost.ctas_per_sm} an SM"
    else:
        num_ctas = tiles * config.split_k
        waves = -(-num_ctas // slots)
        last = num_ctas - (waves - 1) * slots
        share = f"{last / slots:.0%}"
        what = f"{tiles:,} tiles x {config.split_k} parts of K" if config.split_k > 1 else f"{tiles:,} tiles of C"
        fill = f"one wave, {share} full" if waves == 1 else f"{waves:,} waves, the last {share} full"
        work = f"{what} in {fill} ({_ctas(cost.ctas_per_sm)} an SM, {slots:,} at once)"
    return (
        f"Waves: {work}; {cost.active_sms} of {arch.num_sms} SMs at work, shared memory "
        f"{cost.smem_bytes / 1024:,.0f} of {arch.smem_per_sm_bytes / 1024:,.0f} KiB an SM."
    )


def spec_changes(arch: GpuSpec, problem: GemmProblem) -> list[tuple[str, dict[str, Any]]]:
    """Return doublings of what can be bought, faster clocks, and the removal of fixed costs."""

    def times(factor: float, *fields: str) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        for field in fields:
            value = getattr(arch, field)
            if isinstance(value, int):
                changes[field] = int(value * factor)
            else:
                changes[field] = value * factor if isinstance(value, float) else _scaled(value, factor)
        return changes

    clocks = ("max_clock_ghz", "boost_clock_ghz", "tensor_clock_burst_ghz", "tensor_clock_sustained_ghz")
    changes = [
        ("dram_gb_per_s x2", times(2, "dram_gb_per_s")),
        ("dram_latency_ns / 2", times(0.5, "dram_latency_ns")),
        ("num_sms x2", times(2, "num_sms")),
        ("tensor_flop_per_cycle x2", times(2, "tensor_flop_per_cycle")),
        ("clocks x1.2", times(1.2, *clocks)),
        ("l2_bytes x2", times(2, "l2_bytes")),
        ("l2_bytes_per_cycle x2", times(2, "l2_bytes_per_cycle")),
        ("shared memory x2", times(2, "smem_per_sm_bytes", "smem_per_cta_bytes")),
        ("smem_bytes_per_cycle x2", times(2, "smem_bytes_per_cycle")),
        ("no launch overhead", {"launch_us": 0.0, "graph_node_us": 0.0}),
    ]
    if problem.is_weight_quantized:
        alus = ("issue_slots_per_cycle", "fp32_ops_per_cycle", "half2_ops_per_cycle", "int32_ops_per_cycle")
        changes.append(("ALUs and issue slots x2", times(2, *alus, "conversion_ops_per_cycle")))
    return changes


def _scaled(table: Any, factor: float) -> dict[Any, float]:
    return {dtype: value * factor for dtype, value in table.items()}


def _ctas(count: int) -> str:
    return "1 CTA" if count == 1 else f"{count:,} CTAs"
