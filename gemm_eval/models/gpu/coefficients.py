"""The coefficients of the GPU model: what a kernel library does that no spec sheet says.

Each has a unit, a plausible range and a meaning. They belong to a kernel family of a library and carry over to all GPUs
that run it; what belongs to the chip (clocks, bandwidths, latencies, sizes) comes from its `GpuSpec` and is never
fitted. MODEL.md, "Transfer", has the rule.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["COEFFICIENTS", "Coefficient", "default_coefficients"]


class Coefficient(NamedTuple):
    """One coefficient: its name in YAML and in the packed parameters is the same."""

    name: str
    unit: str
    low: float
    high: float
    default: float
    meaning: str


COEFFICIENTS: tuple[Coefficient, ...] = (
    Coefficient("kernel_us", "us", 0.2, 8.0, 1.2, "barriers, descriptors, first and last instructions of a kernel"),
    Coefficient("ramp_us", "us", 0.0, 1.5, 0.2, "queue of the first loads when all SMs start at once; fewer SMs, less"),
    Coefficient("matrix_frac", "1", 0.5, 1.0, 1.0, "share of the tensor cores' rate that a full main loop reaches"),
    Coefficient("step_cycles", "cycles", 0.0, 800.0, 100.0, "what a lone warpgroup loses at every k-step"),
    Coefficient("coop_step_cycles", "cycles", 0.0, 800.0, 150.0, "what cooperating warpgroups lose at every k-step"),
    Coefficient("tile_cycles", "cycles", 0.0, 6000.0, 300.0, "start and end of a tile besides its stores"),
    Coefficient("pingpong_cycles", "cycles", 0.0, 4000.0, 400.0, "hand-over between two warpgroups' tiles"),
    Coefficient("coop_tile_cycles", "cycles", 0.0, 6000.0, 300.0, "start and end of a tile of cooperating warpgroups"),
    Coefficient("epilogue_bytes_per_cycle", "B/cycle", 4.0, 256.0, 80.0, "C of one SM, from accumulators to L2"),
    Coefficient("sm_l2_frac", "1", 0.4, 1.5, 1.0, "share of 64 B a cycle that an SM takes in from L2"),
    Coefficient(
        "cluster_loss",
        "1",
        0.0,
        0.15,
        0.03,
        "DRAM rate lost at each doubling of a cluster, whose CTAs wait on each other",
    ),
    Coefficient("dram_frac", "1", 0.75, 1.1, 1.0, "share of the achievable DRAM bandwidth in a main loop"),
    Coefficient("l2_frac", "1", 0.5, 1.45, 1.2, "share of the L2 bandwidth of hits, multicast included"),
    Coefficient("l2_hold_frac", "1", 0.05, 1.0, 0.5, "share of L2 in which a buffer outlives one call"),
    Coefficient("line_waste", "1", 0.0, 1.0, 0.25, "more L2 traffic where rows do not start on 128 bytes"),
    Coefficient(
        "outside_rows_per_cycle", "1/cycle", 1.0, 50.0, 4.0, "rows outside the matrix that TMA fills, whole chip"
    ),
    Coefficient("store_exposed_frac", "1", 0.0, 1.5, 0.6, "part of the time of storing C that nothing hides"),
    Coefficient("reduce_us", "us", 0.0, 6.0, 2.0, "fixed cost of adding the parts of a split K"),
    Coefficient("reduce_frac", "1", 0.05, 1.5, 0.5, "share of the L2 bandwidth in which parts are added"),
    Coefficient("fixup_us", "us", 0.0, 4.0, 0.8, "fixed cost of adding the cut tiles of stream-K"),
    Coefficient("dequant", "1", 0.3, 12.0, 1.5, "instructions for a weight over the count of the plain sequence"),
    Coefficient(
        "dequant_exposed", "1", 0.0, 1.0, 0.3, "part of the shorter of tensor work and dequantization that shows"
    ),
    Coefficient("vector_kernel_us", "us", 0.2, 8.0, 1.2, "as kernel_us, of kernels without tensor cores"),
    Coefficient("vector_step_cycles", "cycles", 0.0, 800.0, 60.0, "as step_cycles, of kernels without tensor cores"),
    Coefficient(
        "vector_frac", "1", 0.05, 1.0, 0.7, "share of the half2 rate that a full main loop without tensor cores reaches"
    ),
    Coefficient("vector_dequant", "1", 0.3, 12.0, 1.5, "as dequant, of kernels without tensor cores"),
    Coefficient("unaligned_frac", "1", 0.02, 1.0, 0.25, "rate of loads of less than 16 bytes over that of full ones"),
    Coefficient(
        "choice_loss",
        "1",
        0.0,
        0.12,
        0.033,
        "what a library's own choice of config loses against the best of its kernels",
    ),
)
"""All coefficients, in the order in which they are fitted and written."""


def default_coefficients(family: str) -> dict[str, float]:
    """Values before any fit (MODEL.md, "Ranges, defaults and sources")."""
    values = {item.name: item.default for item in COEFFICIENTS}
    values.update(_FAMILY_DEFAULTS.get(family, {}))
    return values


# mma.sync kernels: as cuBLAS's int8 kernels of this kind on an H200 (arch/measured/h200-sxm/cublaslt), whose tiles and
# stages their names tell, rounded; ldmatrix and mma share the issue slots, so they reach less of the peak
_MMA_SYNC = {
    "matrix_frac": 0.92, "step_cycles": 230.0, "tile_cycles": 400.0, "kernel_us": 0.9, "dram_frac": 0.93,
    "epilogue_bytes_per_cycle": 24.0,
}  # fmt: skip
_FAMILY_DEFAULTS: dict[str, dict[str, float]] = {
    "sm80_mma": _MMA_SYNC,
    "mma_unaligned": _MMA_SYNC | {"line_waste": 0.0},
    "sm90_wgmma": {"l2_frac": 1.4, "store_exposed_frac": 0.0},
    "sm100_tcgen05": {"kernel_us": 1.6, "outside_rows_per_cycle": 50.0},  # slow fill was seen on Hopper only
}
