"""Lines of `explain` about a GPU: the waves of a kernel, its padding, and changes of the spec that could help."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gemm_eval.arch import GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.mapping import Decomposition
from gemm_eval.models.gpu import LOAD_BYTES, library_of, load_bytes_of, pad_problem, padding_to, unpack_gpu_cost
from gemm_eval.units import time_text
from gemm_eval.workload import GemmProblem

if TYPE_CHECKING:
    import numpy as np


def say_waves(arch: GpuSpec, record: np.void) -> str:
    """Describe how the CTAs of a kernel, by its record of `GPU_COST_DTYPE`, fill the SMs."""
    cost = unpack_gpu_cost(record)
    config = cost.config
    num_ctas = min(cost.num_ctas, cost.ctas_per_sm * cost.active_sms)  # some kernels launch more, which wait
    resident = -(-num_ctas // cost.active_sms)
    tiles = f"{record['num_tiles']:,} tiles of C" if record["num_tiles"] > 1 else "1 tile of C"
    if config.cluster_m * config.cluster_n > 1:
        tiles += " (in whole clusters)"
    if config.split_k > 1:
        tiles += f" x {config.split_k} parts of K"
    ctas = f"{'1 CTA' if num_ctas == 1 else f'{num_ctas:,} CTAs'} at once, {resident} an SM"
    fill = f"{record['last_wave_frac']:.0%} full"
    if config.decomposition is Decomposition.STREAM_K:
        work = f"{tiles}, shared evenly by {ctas}"
    elif cost.num_waves == 1:
        work = f"{tiles}, {ctas}; one wave, {fill}"
    else:
        work = f"{tiles}, {ctas}; {cost.num_waves:,} waves, the last {fill}"
    return (
        f"Waves: {work}; {cost.active_sms} of {arch.num_sms} SMs at work, shared memory "
        f"{cost.smem_bytes / 1024:,.0f} of {arch.smem_per_sm_bytes / 1024:,.0f} KiB an SM."
    )


def say_padding(
    arch: GpuSpec, problem: GemmProblem, library: str, latency_us: float, latency_of: Callable[[GemmProblem], float]
) -> list[str]:
    """Describe how rows are padded, and how much padding would save where they do not start on 16 bytes.

    `latency_us` is of the problem by the library, `latency_of` evaluates a padded one, in microseconds.
    """
    rules, types = library_of(library), problem.types
    if not rules.runs_unaligned(types):
        return []
    run = pad_problem(problem, rules.padding(arch.sm_arch, types))
    lines = []
    if run is not problem:
        none = "no timed" if types.a.dtype is DType.INT8 else "no"
        lines.append(
            f"Padding: {_said(problem, run)}, which the time includes: {library} has {none} {types.b.dtype} kernels "
            "for other rows."
        )
    loads = load_bytes_of(run)
    if loads < LOAD_BYTES[0]:
        aligned = pad_problem(problem, padding_to(types, LOAD_BYTES[0]))
        aligned_us = latency_of(aligned)
        by = "single elements" if loads < LOAD_BYTES[1] else f"{LOAD_BYTES[1]} bytes"
        if aligned_us < latency_us:
            lines.append(
                f"Padding: {_said(problem, aligned)} would take {time_text(aligned_us)}, {aligned_us / latency_us:.0%} "
                f"of this: not all rows of A, B and C start on 16 bytes, and {library} loads others by {by}."
            )
    return lines


def _said(problem: GemmProblem, padded: GemmProblem) -> str:
    sizes = (("K", problem.K, padded.K), ("N", problem.N, padded.N))
    return " and ".join(f"{name} padded from {old:,} to {new:,}" for name, old, new in sizes if old != new)


def spec_changes(arch: GpuSpec, problem: GemmProblem) -> list[tuple[str, dict[str, Any]]]:
    """Return doublings of what can be bought, faster clocks, and the removal of fixed costs."""

    def times(factor: float, *fields: str) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        for field in fields:
            value = getattr(arch, field)
            if isinstance(value, Mapping):
                changes[field] = {dtype: rate * factor for dtype, rate in value.items()}
            else:
                changes[field] = type(value)(value * factor)
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
