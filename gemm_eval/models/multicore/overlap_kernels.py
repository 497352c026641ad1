"""Numba kernels of DMA time, and of the overlap timing: what of the DMA and of the computation can run side by side."""

from __future__ import annotations

from typing import Any, NamedTuple

from gemm_eval.jit import inlined_kernel, kernel
from gemm_eval.models.multicore.count_kernels import bytes_of, ceil_div, scale_rows, store_half_bits

__all__ = ["Traffic", "add_traffic", "c_traffic", "dma_us", "overlap_main_us", "traffic_us"]


class Traffic(NamedTuple):
    """Bytes of a core by what they pass, each by the number of cores that share it there."""

    dram: float  # a written byte counts as many read ones as take as long
    shared: float  # the memory between DRAM and SRAM
    port: float


@inlined_kernel
def add_traffic(x: Traffic, y: Traffic) -> Traffic:
    """Both."""
    return Traffic(x.dram + y.dram, x.shared + y.shared, x.port + y.port)


@inlined_kernel
def traffic_us(p: Any, blk: Any, moved: Traffic) -> float:
    """Time in us to move these bytes: all three work at the same time."""
    us: float = moved.dram / blk.dram_share
    if p["has_shared"]:  # a division less for all other chips
        us = max(us, moved.shared / blk.shared_share)
    if p["has_noc"]:
        us = max(us, moved.port / p["noc_bytes_per_us"])
    return us


@inlined_kernel
def c_traffic(p: Any, blk: Any, stored: float, spilled: float) -> Traffic:
    """What bytes of C pass that leave a core for good, and others that leave it and come back."""
    spilled *= p["c_dram"]
    written = spilled
    if blk.E_K > 1 or not p["c_is_resident"]:  # partial results of a split K meet in DRAM, wherever C lies
        written += stored
    return Traffic(written * blk.write_cost + spilled, written + spilled, written + spilled)


@kernel
def dma_us(p: Any, blk: Any, a: float, b: float, c: float) -> float:
    """Time in us to move these bytes: A, B with its scales, and C."""
    charged = a / blk.E_N + b / blk.E_M + c if p["is_multicast"] else a + b + c
    us: float = charged / blk.dram_share
    if p["has_noc"]:
        us = max(us, (a + b + c) / p["noc_bytes_per_us"])
    return us


@inlined_kernel
def loads_traffic(p: Any, blk: Any, a: float, b: float) -> Traffic:
    """What bytes of A, and of B with its scales, pass on their way to a core, where none is kept on the way."""
    a_shared = a / blk.E_N if p["is_multicast"] else a
    b_shared = b / blk.E_M if p["is_multicast"] else b
    moved = a_shared * p["a_dram"] + b_shared * p["b_dram"]
    return Traffic(moved, moved, a + b)


@kernel
def overlap_main_us(
    p: Any, blk: Any, loads: Traffic, c: Traffic, compute_us: float, all_dma_us: float,
    tile_m: int, tile_n: int, tile_k: int,
) -> float:  # fmt: skip
    """Time in us of all tile visits of a core that moves these bytes in `all_dma_us`.

    It grows with every argument, so that a search gets a bound from arguments that are too small.

    Args:
        loads: A, B and S.
        c: stores, spills and refills.
        compute_us: of all visits.
        all_dma_us: of all bytes.
        tile_m, tile_n, tile_k: the full tile, cut to the block.
    """
    tail = c
    if p["output_buffers"] == 2:
        tail = c_traffic(p, blk, float(bytes_of(tile_m * tile_n, store_half_bits(p, blk.E_K))), 0.0)
    loads_us = traffic_us(p, blk, add_traffic(loads, tail))
    lead_us = loads_us
    if p["input_buffers"] == 2:
        lead_a = bytes_of(tile_m * tile_k, p["a_half_bits"])
        lead_b = bytes_of(tile_k * tile_n, p["b_half_bits"])
        if p["is_quantized"]:
            lead_b += bytes_of(scale_rows(p, tile_k, 1) * tile_n, p["group_half_bits"])
        lead = loads_traffic(p, blk, float(lead_a), float(lead_b))
        lead = Traffic(min(lead.dram, loads.dram), lead.shared, lead.port)  # cores that share a tile load it once
        lead_us = traffic_us(p, blk, add_traffic(lead, tail))
    steps = ceil_div(tile_m, p["cube_m"]) * ceil_div(tile_n, p["cube_n"]) * ceil_div(tile_k, p["cube_k"])
    fills = ceil_div(tile_n, p["cube_n"]) * ceil_div(tile_k, p["cube_k"])
    tile_cycles = steps / p["steps_per_cycle"] + p["fill_drain_cycles"] + fills * p["weight_load_cycles"]
    tile_us = tile_cycles / p["cycles_per_us"]
    best_us = max(all_dma_us, compute_us + lead_us, tile_us + loads_us)
    main_us: float = (1.0 - p["overlap_frac"]) * (compute_us + all_dma_us) + p["overlap_frac"] * best_us
    return main_us
