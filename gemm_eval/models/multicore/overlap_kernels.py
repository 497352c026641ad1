"""Numba kernels of DMA time, and of the overlap timing: what of the DMA and of the computation can run side by side."""

from __future__ import annotations

from typing import Any

from gemm_eval.jit import inlined_kernel, kernel
from gemm_eval.models.multicore.count_kernels import bytes_of, ceil_div, scale_rows, store_bits

__all__ = ["dma_us", "overlap_main_us"]


@kernel
def dma_us(p: Any, blk: Any, a: float, b: float, c: float) -> float:
    """Time in us to move these bytes: A, B with its scales, and C."""
    charged = a / blk.E_N + b / blk.E_M + c if p["is_multicast"] else a + b + c
    us: float = charged / blk.dram_share
    if p["has_noc"]:
        us = max(us, (a + b + c) / p["noc_bytes_per_us"])
    return us


@inlined_kernel
def _transfer_us(p: Any, blk: Any, charged: float, moved: float) -> float:
    """Time in us to move `moved` bytes, of which DRAM counts `charged`."""
    us: float = charged / blk.dram_share
    if p["has_noc"]:
        us = max(us, moved / p["noc_bytes_per_us"])
    return us


@kernel
def overlap_main_us(
    p: Any, blk: Any, loads_charged: float, loads_bytes: int, c_bytes: int, compute_us: float, all_dma_us: float,
    tile_m: int, tile_n: int, tile_k: int,
) -> float:  # fmt: skip
    """Time in us of all tile visits of a core that moves these bytes in `all_dma_us`.

    It grows with every argument, so that a search gets a bound from arguments that are too small.

    Args:
        loads_charged: bytes of A, B and S, each by the number of cores that share it.
        loads_bytes: the same bytes, not divided.
        c_bytes: stores, spills and refills.
        compute_us: of all visits.
        all_dma_us: of all bytes.
        tile_m, tile_n, tile_k: the full tile, cut to the block.
    """
    tail_c = c_bytes
    if p["output_buffers"] == 2:
        tail_c = bytes_of(tile_m * tile_n, store_bits(p, blk.E_K))
    loads_us = _transfer_us(p, blk, loads_charged + tail_c, loads_bytes + tail_c)
    lead_us = loads_us
    if p["input_buffers"] == 2:
        lead_a = bytes_of(tile_m * tile_k, p["a_bits"])
        lead_b = bytes_of(tile_k * tile_n, p["b_bits"])
        if p["is_quantized"]:
            lead_b += bytes_of(scale_rows(p, tile_k, 1) * tile_n, p["group_bits"])
        lead_us = dma_us(p, blk, lead_a, lead_b, tail_c)
    steps = ceil_div(tile_m, p["cube_m"]) * ceil_div(tile_n, p["cube_n"]) * ceil_div(tile_k, p["cube_k"])
    tile_us = (steps / p["steps_per_cycle"] + p["fill_drain_cycles"]) / p["cycles_per_us"]
    best_us = max(all_dma_us, compute_us + lead_us, tile_us + loads_us)
    main_us: float = (1.0 - p["overlap_frac"]) * (compute_us + all_dma_us) + p["overlap_frac"] * best_us
    return main_us
