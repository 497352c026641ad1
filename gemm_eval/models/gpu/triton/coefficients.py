"""The coefficients of the Triton model: what the compiler's pipelined loops do that no spec sheet and no SASS says.

One set serves all data types and kernels, dense and weight-only. Each has a unit, a plausible range and a meaning;
MODEL.md says where each enters.
"""

from __future__ import annotations

from gemm_eval.models.gpu.coefficients import FREE, NO_LIMIT, SPEC, Coefficient

__all__ = ["TRITON_COEFFICIENTS", "default_triton_coefficients"]

TRITON_COEFFICIENTS: tuple[Coefficient, ...] = (
    Coefficient("kernel_us", "us", 1.0, 8.0, 4.1, FREE, "start and end of a kernel, between events"),
    Coefficient(
        "tile_cycles", "cycles", 0.0, 6000.0, 2500.0, FREE, "a CTA besides its main loop: addresses, first loads",
    ),
    Coefficient("wgmma_frac", "1", 0.5, 1.0, 0.76, SPEC, "share of the rate that wgmma of a loop reaches"),
    Coefficient(
        "issue_frac", "1", 0.3, 1.0, 0.7, SPEC, "share of the issue slots that a loop uses when it issues all it can",
    ),
    Coefficient("step_cycles", "cycles", 0.0, 800.0, 65.0, FREE, "barriers and waits of a k-step, of a lone CTA"),
    Coefficient(
        "instruction_cycles", "cycles", 0.0, 6.0, 2.7, FREE, "what an instruction takes of a lone warp's time",
    ),
    Coefficient("shared_cycles", "cycles", 0.0, 8.0, 1.2, FREE, "of the SM, for a warp's access to shared memory"),
    Coefficient("spill_cycles", "cycles", 0.0, 20.0, 4.7, FREE, "of the SM, for a warp's access to local memory"),
    Coefficient("barrier_cycles", "cycles", 0.0, 200.0, 41.0, FREE, "a barrier beyond the two of a pipelined loop"),
    Coefficient("mma_wait_cycles", "cycles", 0.0, 600.0, 136.0, FREE, "a wait until all wgmma before are done"),
    Coefficient(
        "latency_frac", "1", 0.5, 4.0, 1.76, SPEC, "latency of a load under traffic over that of an idle DRAM",
    ),
    Coefficient(
        "evict_frac", "1", 0.0, 2.0, 0.92, FREE, "dirty bytes that a read line drives out of L2, of what was written",
    ),
    Coefficient(
        "part_bytes_per_cycle", "B/cycle", 2.0, 256.0, 7.2, NO_LIMIT, "fp32 partial sums of an SM on their way to L2",
    ),
    Coefficient(
        "add_bytes_per_cycle", "B/cycle", 4.0, 256.0, 47.0, NO_LIMIT, "fp32 partial sums that an SM reads back",
    ),
    Coefficient("add_cycles", "cycles", 0.0, 3000.0, 320.0, FREE, "a part that is added, besides its bytes"),
)  # fmt: skip
"""All coefficients, in the order in which they are fitted and written."""


def default_triton_coefficients() -> dict[str, float]:
    """Values for GPUs without a fit: those of the one fit there is, rounded."""
    return {item.name: item.default for item in TRITON_COEFFICIENTS}
