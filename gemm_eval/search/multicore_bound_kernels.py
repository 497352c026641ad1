"""Numba kernels of the bounds that let the exact search on multi-core chips pass over mappings.

A bound is a number that no mapping of a kind is below: of one partition, of trips of m and n, of all wider trips, of a
class of tiles. Each is held by a test against the costs themselves. Times are in us; a bound made by `bytes_bound_of`
is in bytes all through.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from gemm_eval.jit import kernel
from gemm_eval.models.multicore.cost_kernels import Block, core_cost
from gemm_eval.models.multicore.count_kernels import ceil_div, store_bits

__all__ = [
    "BOUND_SLACK",
    "Bound",
    "bound_of",
    "bytes_bound_of",
    "edge_bytes",
    "least_trips",
    "least_trips_k",
    "mixed_us",
    "pair_bound_us",
    "pipeline_bound_us",
    "quick_bound_us",
    "sram_bound_us",
    "wider_bound_us",
]


class Bound(NamedTuple):
    """Constants of one partition for a quick bound: no division, no rounding, times in us and sizes in bytes.

    Every count is at or below the exact one, so apart from float rounding the bound is at or below the exact cost.
    """

    a: float
    b: float  # with its scales when their number does not depend on the tile
    scale_row: float  # one row of scales per trip of k, for scales per column
    c_store: float
    c_spill: float  # one spill and one refill
    a_per_share: float  # time of an A byte in DRAM: 1 / (cores that share it * bandwidth of a core)
    b_per_share: float
    c_per_share: float
    per_port: float  # time of any byte over the core's port
    step_us: float
    visit_us: float
    vector_us: float
    fixed_us: float
    overlap_frac: float
    loads_exposed: bool  # all loads of A and B wait for the computation, and all of C below
    c_exposed: bool


# Relative slack between the quick bound and the exact cost: covers the rounding of some twenty operations of 1.1e-16.
BOUND_SLACK = 1e-12


@kernel
def bound_of(p: Any, blk: Block) -> Bound:
    """Work out the constants of a partition."""
    once = core_cost(p, blk, blk.g, blk.m, blk.n, blk.k, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1.0)
    b = blk.g * blk.k * blk.n * p["b_bits"] / 8.0
    scale_row = 0.0
    if p["is_quantized"]:
        row = blk.g * blk.n * p["group_bits"] / 8.0
        if p["group_size"] > 0:
            b += ceil_div(blk.k, p["group_size"]) * row
        else:
            scale_row = row
    c_elems = blk.g * blk.m * blk.n
    is_shared = p["is_multicast"]
    return Bound(
        blk.g * blk.m * blk.k * p["a_bits"] / 8.0,
        b,
        scale_row,
        c_elems * store_bits(p, blk.E_K) / 8.0,
        c_elems * p["acc_bits"] / 4.0,
        1.0 / ((blk.E_N if is_shared else 1) * blk.dram_share),
        1.0 / ((blk.E_M if is_shared else 1) * blk.dram_share),
        1.0 / blk.dram_share,
        1.0 / p["noc_bytes_per_us"],
        once.cube_us,
        p["fill_drain_cycles"] / p["cycles_per_us"],
        once.vector_us,
        p["launch_us"] + once.red_dram_us + once.red_noc_us + once.red_add_us,
        1.0 if p["is_pipeline"] else p["overlap_frac"],
        p["input_buffers"] == 1,
        p["output_buffers"] == 1,
    )


@kernel
def bytes_bound_of(blk: Block, q: Bound) -> Bound:
    """The same for `busiest_core_bytes`, which tells candidates of one latency apart: the times are bytes then."""
    bytes_per_us = blk.active_cores * blk.dram_share
    return Bound(
        q.a, q.b, q.scale_row, q.c_store, q.c_spill,
        q.a_per_share * bytes_per_us, q.b_per_share * bytes_per_us, q.c_per_share * bytes_per_us,
        0.0, 0.0, 0.0, 0.0, 0.0, 1.0, False, False,
    )  # fmt: skip


@kernel
def least_trips(p: Any, blk: Block) -> tuple[float, float, float]:
    """Least products of trips (real numbers) with which a tile of C, A and B alone fits in SRAM; no padding."""
    room = max(8.0 * p["sram_usable_bytes"], 1.0)  # of no SRAM at all nothing is asked: nothing fits
    b_bits = p["input_buffers"] * p["b_bits"] + (p["a_bits"] if p["has_dequant_copy"] else 0)
    trips_mn = p["output_buffers"] * p["acc_bits"] * float(blk.m) * blk.n / room
    trips_mk = p["input_buffers"] * p["a_bits"] * float(blk.m) * blk.k / room
    trips_nk = b_bits * float(blk.n) * blk.k / room
    return trips_mn, trips_mk, trips_nk


@kernel
def _least_sum(per_x: float, per_y: float, least_product: float) -> float:
    """Least ``per_x * x + per_y * y`` over x and y of at least 1 whose product is at least `least_product`."""
    if least_product <= 1.0:
        return per_x + per_y
    x = min(max(math.sqrt(per_y * least_product / per_x), 1.0), least_product)
    return per_x * x + per_y * (least_product / x)


@kernel
def _least_traffic(q: Bound, a: float, b: float, c: float, trips_mn: float, trips_mk: float, trips_nk: float) -> float:
    """Least traffic of a partition, given what a byte of A, B and C counts and the trips that SRAM asks for.

    Whichever operand stays while the innermost loop runs, the trips of its two dimensions set how often the other two
    are loaded, and the operand's tile has to fit.
    """
    a *= q.a
    b *= q.b + q.scale_row
    spill = q.c_spill * c
    c_stays = _least_sum(a, b, trips_mn)
    a_stays = a + _least_sum(b, spill, trips_mk) - spill
    b_stays = b + _least_sum(a, spill, trips_nk) - spill
    return q.c_store * c + min(c_stays, a_stays, b_stays)


@kernel
def sram_bound_us(p: Any, blk: Block, q: Bound) -> float:
    """A latency that no tile of a partition beats, because its operands share SRAM; bytes, with a bound of bytes."""
    trips_mn, trips_mk, trips_nk = least_trips(p, blk)
    dma_us = _least_traffic(q, q.a_per_share, q.b_per_share, q.c_per_share, trips_mn, trips_mk, trips_nk)
    if q.per_port > 0.0:
        port = q.per_port
        dma_us = max(dma_us, _least_traffic(q, port, port, port, trips_mn, trips_mk, trips_nk))
    return _bound_us(p, q, dma_us, _least_exposed_us(q, dma_us), 1.0, blk.g * max(1.0, trips_mn, trips_mk, trips_nk))


@kernel
def _transfer_us(q: Bound, a: float, b: float, c: float) -> float:
    """Time to move these bytes."""
    return max(a * q.a_per_share + b * q.b_per_share + c * q.c_per_share, (a + b + c) * q.per_port)


@kernel
def _least_exposed_us(q: Bound, least_dma_us: float) -> float:
    """DMA time that runs beside no computation whatever the tile, in a main loop of at least this DMA time."""
    if q.loads_exposed and q.c_exposed:
        return least_dma_us
    a = q.a if q.loads_exposed else 0.0
    b = q.b + q.scale_row if q.loads_exposed else 0.0
    return _transfer_us(q, a, b, q.c_store if q.c_exposed else 0.0)


@kernel
def edge_bytes(p: Any, blk: Block, tile_m: int, tile_n: int, tile_k: int) -> tuple[float, float, float]:
    """Bytes of one tile: of A and B, the first loads, and of C, the last store; without scales and rounding."""
    return (
        float(tile_m) * tile_k * p["a_bits"] / 8.0,
        float(tile_k) * tile_n * p["b_bits"] / 8.0,
        float(tile_m) * tile_n * store_bits(p, blk.E_K) / 8.0,
    )


@kernel
def quick_bound_us(
    p: Any, q: Bound, f_a: float, f_b: float, f_c: float, T_k: float, visits: float,
    first_a: float, first_b: float, last_c: float,
) -> float:  # fmt: skip
    """A latency that no candidate with at least these factors, first loads and last store (bytes) beats."""
    a = q.a * f_a
    b = (q.b + q.scale_row * T_k) * f_b
    c = q.c_store + q.c_spill * (f_c - 1.0)
    exposed_us = _transfer_us(
        q, a if q.loads_exposed else first_a, b if q.loads_exposed else first_b, c if q.c_exposed else last_c
    )
    return _bound_us(p, q, _transfer_us(q, a, b, c), exposed_us, f_b, visits)


@kernel
def _bound_us(p: Any, q: Bound, dma_us: float, exposed_us: float, f_b: float, visits: float) -> float:
    """A latency that no candidate with at least these DMA times, these loads of B and these visits beats."""
    cube_us = q.step_us + q.visit_us * visits
    vector_us = q.vector_us * f_b
    compute_us = max(cube_us, vector_us) if p["vector_is_concurrent"] else cube_us + vector_us
    main_us = mixed_us(q, compute_us, dma_us, exposed_us)
    return (q.fixed_us + main_us) * (1.0 - BOUND_SLACK)


@kernel
def mixed_us(q: Bound, compute_us: float, dma_us: float, exposed_us: float) -> float:
    """Least time of a main loop, of whose DMA time so much runs beside no computation."""
    return (1.0 - q.overlap_frac) * (compute_us + dma_us) + q.overlap_frac * max(compute_us + exposed_us, dma_us)


@kernel
def least_trips_k(p: Any, blk: Block, tile_m: int, tile_n: int) -> float:
    """Fewest k trips (a real number, not rounded) that SRAM allows beside tile_m and tile_n; inf if none.

    Padding is left out, so the true number is never below.
    """
    output = p["output_buffers"] * float(tile_m) * tile_n * p["acc_bits"]
    bits_per_k = p["input_buffers"] * (float(tile_m) * p["a_bits"] + float(tile_n) * p["b_bits"])
    if p["has_dequant_copy"]:
        bits_per_k += float(tile_n) * p["a_bits"]
    room = 8.0 * p["sram_usable_bytes"] - output
    if room <= 0.0:
        return np.inf
    return max(1.0, blk.k * bits_per_k / room)


@kernel
def pair_bound_us(
    p: Any, q: Bound, T_m: int, T_n: int, T_k: float, visits: float, first_a: float, first_b: float, last_c: float
) -> float:  # fmt: skip
    """A latency that no order and no number of k trips from `T_k` up beats, for given trips of m and n."""
    if T_k <= 1.0:  # all of k may lie in SRAM: then one of A and B is loaded again by the loop of the other
        return min(
            quick_bound_us(p, q, 1.0, T_m if T_n > 1 else 1.0, 1.0, 1.0, visits, first_a, first_b, last_c),
            quick_bound_us(p, q, T_n if T_m > 1 else 1.0, 1.0, 1.0, 1.0, visits, first_a, first_b, last_c),
        )
    T_k = max(T_k, 2.0)
    visits *= T_k
    c_stays_us = quick_bound_us(p, q, T_n, T_m, 1.0, T_k, visits, first_a, first_b, last_c)
    a_stays_us = quick_bound_us(
        p, q, 1.0, T_m, T_k if T_n > 1 else 1.0, T_k, visits, first_a, first_b, last_c
    )  # fmt: skip
    b_stays_us = quick_bound_us(
        p, q, T_n, 1.0, T_k if T_m > 1 else 1.0, T_k, visits, first_a, first_b, last_c
    )  # fmt: skip
    return min(c_stays_us, a_stays_us, b_stays_us)


@kernel
def _wider_traffic(
    q: Bound, a: float, b: float, c: float, T_m: int, T_n: int, floor_T_k: float, trips_mk: float, trips_nk: float
) -> float:  # fmt: skip
    """Least traffic with T_m trips of m and any number of n trips from T_n up, as `_least_traffic`."""
    a *= q.a
    b *= q.b + q.scale_row
    spill = q.c_spill * c
    c_stays = a * T_n + b * T_m
    a_stays = a + b * T_m + spill * (max(floor_T_k, trips_mk / T_m) - 1.0)
    turn_n = max(float(T_n), min(math.sqrt(spill * trips_nk / a), trips_nk / floor_T_k))  # where more trips cost more
    b_stays = a * turn_n + b + spill * (max(floor_T_k, trips_nk / turn_n) - 1.0)
    return q.c_store * c + min(c_stays, a_stays, b_stays)


@kernel
def wider_bound_us(
    p: Any, q: Bound, T_m: int, T_n: int, floor_T_k: float, trips_mk: float, trips_nk: float, visits: float
) -> float:  # fmt: skip
    """A latency that no number of n trips from T_n up, at least 2, beats, if k takes `floor_T_k` trips or more."""
    dma_us = _wider_traffic(
        q, q.a_per_share, q.b_per_share, q.c_per_share, T_m, T_n, floor_T_k, trips_mk, trips_nk
    )  # fmt: skip
    if q.per_port > 0.0:
        port = q.per_port
        dma_us = max(dma_us, _wider_traffic(q, port, port, port, T_m, T_n, floor_T_k, trips_mk, trips_nk))
    return _bound_us(p, q, dma_us, _least_exposed_us(q, dma_us), 1.0, visits * floor_T_k)


@kernel
def pipeline_bound_us(
    p: Any, q: Bound, f_a: int, f_b: int, f_c: int, T_m: int, T_n: int, T_k: int, g: int,
    first_a: float, first_b: float,
) -> float:  # fmt: skip
    """A latency that no pipeline with these factors beats, if its first A and B tile have at least these bytes.

    The first loads precede all computation, the last visit follows all loads, and one output buffer exposes all of C.
    """
    a = q.a * f_a
    b = (q.b + q.scale_row * T_k) * f_b
    c = q.c_store + q.c_spill * (f_c - 1)
    visits = g * T_m * T_n * T_k
    cube_us = q.step_us + q.visit_us * visits
    vector_us = q.vector_us * f_b
    compute_us = max(cube_us, vector_us) if p["vector_is_concurrent"] else cube_us + vector_us
    first_us = _transfer_us(q, first_a, first_b, 0.0)
    if q.c_exposed:
        main_us = max(compute_us + first_us, _transfer_us(q, a, b, 0.0) + q.visit_us) + _transfer_us(q, 0.0, 0.0, c)
    else:
        main_us = max(compute_us + first_us, _transfer_us(q, a, b, c))
    return (q.fixed_us + main_us) * (1.0 - BOUND_SLACK)
