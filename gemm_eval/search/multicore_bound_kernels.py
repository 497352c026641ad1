"""Numba kernels of the bounds that let the exact search on multi-core chips pass over mappings, and of the best so far.

A bound is a number that no mapping of a kind is below: of one partition, of trips of m and n, of all wider trips, of a
class of tiles. Each is held by a test against the costs themselves. Times are in us; a bound made by `bytes_bound_of`
is in bytes all through. Candidates are compared by the whole key of MODEL.md, "Choice".
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from gemm_eval.jit import kernel
from gemm_eval.models.multicore.cost_kernels import Block, core_cost, write_cost_of
from gemm_eval.models.multicore.pipeline_kernels import ceil_div, store_half_bits


class Bound(NamedTuple):
    """Constants of one partition for a quick bound: no division, no rounding, times in us and sizes in bytes.

    Every count is at or below the exact one, so apart from float rounding the bound is at or below the exact cost.
    """

    a: float
    b: float  # with its scales when their number does not depend on the tile
    scale_row: float  # one row of scales per trip of k, for scales per column
    c_store: float  # bytes of C as DRAM counts them: a written one as many read ones as take as long
    c_spill: float  # one spill and one refill
    a_per_share: float  # time of an A byte in DRAM: 1 / (cores that share it * bandwidth of a core)
    b_per_share: float
    c_per_share: float
    kept_us: float  # time in DRAM of what the memory between DRAM and SRAM then keeps
    per_port: float  # time of any byte over the core's port
    c_per_port: float
    a_per_shared: float  # time of an A byte in the memory between DRAM and SRAM, as in DRAM
    b_per_shared: float
    c_per_shared: float
    feed_us: float  # of all steps, from SRAM into the matrix unit
    step_us: float
    refill_us: float  # of loading one block of B into the matrix unit
    visit_us: float
    vector_us: float
    fixed_us: float
    overlap_frac: float
    last_step_us: float  # `step_us` where all loads come before the last visit's computation, else 0
    loads_exposed: bool  # all loads of A and B wait for the computation, and all of C below
    c_exposed: bool


class Edges(NamedTuple):
    """Loads of a main loop of V tile visits before it computes, and stores after; without scales and rounding.

    The first tiles of A and B have at least `lead_a` / V and `lead_b` / V bytes: more visits, smaller tiles.
    """

    lead_a: float
    lead_b: float
    last_c: float  # bytes of the last store
    most_visits: float
    refills: float  # blocks of B that are loaded into the matrix unit again, for each trip of m but the first


# Relative slack between the quick bound and the exact cost: covers the rounding of some twenty operations of 1.1e-16.
BOUND_SLACK = 1e-12


@kernel
def bound_of(p: Any, blk: Block) -> Bound:
    """Work out the constants of a partition."""
    once = core_cost(p, blk, blk.g, blk.m, blk.n, blk.k, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1.0)
    a = float(blk.g) * blk.m * blk.k * p["a_half_bits"] / 16.0
    b = _b_bytes(p, blk)
    scale_row = 0.0
    if p["is_quantized"]:
        row = float(blk.g) * blk.n * p["group_half_bits"] / 16.0
        if p["group_size"] > 0:
            b += ceil_div(blk.k, p["group_size"]) * row
        else:
            scale_row = row
    fills = float(blk.g) * ceil_div(blk.n, p["cube_n"]) * ceil_div(blk.k, p["cube_k"])
    c_elems = float(blk.g) * blk.m * blk.n
    partial = c_elems * p["spill_half_bits"] / 16.0
    a_cores = blk.E_N if p["is_multicast"] else 1
    b_cores = blk.E_M if p["is_multicast"] else 1
    write_cost = blk.write_cost
    # at most this part of what is loaded again is kept, each operand by itself: together they keep no more
    kept_a = kept_b = kept_c = 0.0
    c_per_byte = p["c_dram"] / max(1.0, write_cost)  # C is counted as DRAM counts it, no less than it is
    a_per_shared = b_per_shared = c_per_shared = 0.0
    if p["has_shared"]:
        a_per_shared = p["a_dram"] / (a_cores * blk.shared_share)
        b_per_shared = p["b_dram"] / (b_cores * blk.shared_share)
        c_per_shared = c_per_byte / blk.shared_share
        room = p["shared_bytes"] / blk.active_cores
        kept_a = _kept_frac(room, a / blk.E_N * p["a_dram"])
        kept_b = _kept_frac(room, b / blk.E_M * p["b_dram"])
        kept_c = _kept_frac(room, partial * p["c_dram"])
    kept_bytes = kept_a * a / blk.E_N * p["a_dram"] + kept_b * b / blk.E_M * p["b_dram"]
    spill = partial * (1.0 + write_cost) * (1.0 - kept_c)
    return Bound(
        a, b, scale_row, c_elems * store_half_bits(p, blk.E_K) / 16.0 * write_cost, spill,
        p["a_dram"] * (1.0 - kept_a) / (a_cores * blk.dram_share),
        p["b_dram"] * (1.0 - kept_b) / (b_cores * blk.dram_share), p["c_dram"] / blk.dram_share,
        kept_bytes / blk.dram_share * (1.0 - BOUND_SLACK), 1.0 / p["noc_bytes_per_us"],
        c_per_byte / p["noc_bytes_per_us"], a_per_shared, b_per_shared, c_per_shared, once.feed_us,
        once.cube_us + fills * p["weight_load_cycles"] / p["cycles_per_us"],
        p["weight_load_cycles"] / p["cycles_per_us"], p["fill_drain_cycles"] / p["cycles_per_us"], once.vector_us,
        p["launch_us"] + once.red_dram_us + once.red_noc_us + once.red_add_us + once.sync_us + once.pack_us,
        1.0 if p["is_pipeline"] else p["overlap_frac"], 0.0 if p["is_pipeline"] else once.cube_us,
        p["input_buffers"] == 1, p["output_buffers"] == 1,
    )  # fmt: skip


@kernel
def _kept_frac(room: float, unique_bytes: float) -> float:
    return 1.0 if unique_bytes <= room else room / unique_bytes


@kernel
def bytes_bound_of(blk: Block, q: Bound) -> Bound:
    """Return the bound for `busiest_core_bytes`, which tells candidates of one latency apart: times are bytes then."""
    bytes_per_us = blk.active_cores * blk.dram_share
    return Bound(
        q.a, q.b, q.scale_row, q.c_store, q.c_spill,
        q.a_per_share * bytes_per_us, q.b_per_share * bytes_per_us, q.c_per_share * bytes_per_us,
        q.kept_us * bytes_per_us, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, False, False,
    )  # fmt: skip


@kernel
def least_trips(p: Any, blk: Block) -> tuple[float, float, float]:
    """Least products of trips (real numbers) with which a tile of C, A and B alone fits in SRAM; no padding."""
    room = max(16.0 * p["sram_usable_bytes"], 1.0)  # of no SRAM at all nothing is asked: nothing fits
    b_half_bits = p["b_buffers"] * p["b_half_bits"] + (p["a_half_bits"] if p["has_dequant_copy"] else 0)
    trips_mn = p["c_buffers"] * p["acc_half_bits"] * float(blk.m) * blk.n / room
    trips_mk = p["a_buffers"] * p["a_half_bits"] * float(blk.m) * blk.k / room
    trips_nk = b_half_bits * float(blk.n) * blk.k / room
    return trips_mn, trips_mk, trips_nk


@kernel
def least_sum(per_x: float, per_y: float, least_product: float) -> float:
    """Least ``per_x * x + per_y * y`` over x and y of at least 1 whose product is at least `least_product`."""
    if least_product <= 1.0 or per_x <= 0.0 or per_y <= 0.0:
        return per_x + per_y  # what costs nothing can be repeated
    x = min(max(math.sqrt(per_y * least_product / per_x), 1.0), least_product)
    return per_x * x + per_y * (least_product / x)


@kernel
def least_loads(a: float, b: float, spill: float, trips_mn: float, trips_mk: float, trips_nk: float) -> float:
    """Least time to load A and B and to spill C, given that of each once, and the trips that SRAM asks for.

    Whichever operand stays while the innermost loop runs, the trips of its two dimensions set how often the other two
    are loaded, and the operand's tile has to fit.
    """
    a_stays = a + least_sum(b, spill, trips_mk) - spill
    b_stays = b + least_sum(a, spill, trips_nk) - spill
    return min(least_sum(a, b, trips_mn), a_stays, b_stays)


@kernel
def least_loads_beside(
    a: float, b: float, spill: float, T_m: int, T_n: int, floor_T_k: float, trips_mk: float, trips_nk: float
) -> float:
    """Bound as `least_loads` does, with T_m trips of m, any number of n from T_n up, and of k from `floor_T_k`."""
    c_stays = a * T_n + b * T_m
    a_stays = a + b * T_m + spill * (max(floor_T_k, trips_mk / T_m) - 1.0)
    turn_n = max(float(T_n), trips_nk / floor_T_k)  # where more trips cost more
    if a > 0.0:
        turn_n = max(float(T_n), min(math.sqrt(spill * trips_nk / a), trips_nk / floor_T_k))
    b_stays = a * turn_n + b + spill * (max(floor_T_k, trips_nk / turn_n) - 1.0)
    return min(c_stays, a_stays, b_stays)


@kernel
def _least_traffic(q: Bound, a: float, b: float, c: float, trips_mn: float, trips_mk: float, trips_nk: float) -> float:
    loads = least_loads(a * q.a, b * (q.b + q.scale_row), q.c_spill * c, trips_mn, trips_mk, trips_nk)
    return q.c_store * c + loads


@kernel
def sram_bound_us(p: Any, blk: Block, q: Bound) -> float:
    """Return a latency that no tile of a partition beats, as its operands share SRAM; bytes, with a bound of bytes."""
    trips_mn, trips_mk, trips_nk = least_trips(p, blk)
    dma_us = _least_traffic(q, q.a_per_share, q.b_per_share, q.c_per_share, trips_mn, trips_mk, trips_nk) + q.kept_us
    if q.per_port > 0.0:
        port = q.per_port
        dma_us = max(dma_us, _least_traffic(q, port, port, q.c_per_port, trips_mn, trips_mk, trips_nk))
    if q.a_per_shared + q.b_per_shared + q.c_per_shared > 0.0:
        dma_us = max(
            dma_us,
            _least_traffic(q, q.a_per_shared, q.b_per_shared, q.c_per_shared, trips_mn, trips_mk, trips_nk),
        )  # fmt: skip
    edges = edges_of_any(p, blk, q)
    return _rough_bound_us(p, q, dma_us, edges, blk.g * max(1.0, trips_mn, trips_mk, trips_nk))


@kernel
def _b_bytes(p: Any, blk: Block) -> float:
    return float(blk.g) * blk.k * blk.n * p["b_half_bits"] / 16.0


@kernel
def _transfer_us(q: Bound, a: float, b: float, c: float) -> float:
    return max(
        a * q.a_per_share + b * q.b_per_share + c * q.c_per_share + q.kept_us,
        (a + b) * q.per_port + c * q.c_per_port,
        a * q.a_per_shared + b * q.b_per_shared + c * q.c_per_shared,
    )


@kernel
def edges_of_any(p: Any, blk: Block, q: Bound) -> Edges:
    """Return those of every tile of a block."""
    units = float(ceil_div(blk.m, p["cube_m"])) * ceil_div(blk.n, p["cube_n"]) * ceil_div(blk.k, p["unit_k"])
    return Edges(q.a, _b_bytes(p, blk), 0.0, blk.g * units, 0.0)


@kernel
def edges_of(p: Any, blk: Block, tile_m: int, tile_n: int, T_m: int, T_n: int) -> Edges:
    """Return those of given tiles of m and n, whatever the tile of k."""
    visits = float(blk.g) * T_m * T_n  # of one trip of k
    return Edges(
        visits * tile_m * blk.k * p["a_half_bits"] / 16.0,
        visits * blk.k * tile_n * p["b_half_bits"] / 16.0,
        float(tile_m) * tile_n * store_half_bits(p, blk.E_K) / 16.0 * blk.write_cost,
        visits * ceil_div(blk.k, p["unit_k"]),
        _refills(p, blk, T_m),
    )


@kernel
def _refills(p: Any, blk: Block, T_m: int) -> float:
    if p["weight_load_cycles"] == 0.0 or T_m == 1:
        return 0.0
    return float(blk.g) * (T_m - 1) * ceil_div(blk.n, p["cube_n"]) * ceil_div(blk.k, p["cube_k"])


@kernel
def quick_bound_us(
    p: Any, q: Bound, f_a: float, f_b: float, f_c: float, T_k: float, visits: float, edges: Edges
) -> float:
    """Return a latency that no candidate with at least these factors and visits beats."""
    a = q.a * f_a
    b = (q.b + q.scale_row * T_k) * f_b
    c = q.c_store + q.c_spill * (f_c - 1.0)
    last_c = c if q.c_exposed else edges.last_c
    return _bound_us(p, q, _transfer_us(q, a, b, c), _transfer_us(q, a, b, last_c), last_c, edges, f_b, visits)


@kernel
def _rough_bound_us(p: Any, q: Bound, dma_us: float, edges: Edges, visits: float) -> float:
    """Return a latency that no candidate with at least this DMA time and these visits beats."""
    last_c = q.c_store if q.c_exposed else edges.last_c
    loads_us = _transfer_us(q, q.a, q.b + q.scale_row, last_c)
    if q.loads_exposed and q.c_exposed:
        loads_us = max(loads_us, dma_us)
    return _bound_us(p, q, dma_us, loads_us, last_c, edges, 1.0, visits)


@kernel
def floor_us_of(p: Any, q: Bound, edges: Edges, parts: int, us_per_byte: float) -> float:
    """Return a latency that no partition into so many parts beats: all work and traffic evenly spread.

    `q` and `edges` are of the whole problem on one core.
    """
    a_us, b_us = us_per_byte * p["a_dram"], us_per_byte * p["b_dram"]
    whole_share = min(
        p["dram_bytes_per_us"] / (1 if p["is_fair"] else p["num_cores"]), p["dram_core_limit_bytes_per_us"]
    )  # fmt: skip
    write_cost = write_cost_of(p, parts, 1.0 / (parts * us_per_byte)) / write_cost_of(p, 1, whole_share)
    c_us = us_per_byte * p["c_dram"] * write_cost
    part = Bound(
        q.a, q.b, q.scale_row, q.c_store, q.c_spill, a_us, b_us, c_us, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, q.feed_us / parts,
        q.step_us / parts, q.refill_us, q.visit_us, 0.0, p["launch_us"], q.overlap_frac, q.last_step_us / parts,
        q.loads_exposed, q.c_exposed,
    )  # fmt: skip
    return _rough_bound_us(p, part, q.a * a_us + (q.b + q.scale_row) * b_us + q.c_store * c_us, edges, 1.0)


@kernel
def _bound_us(
    p: Any, q: Bound, dma_us: float, loads_us: float, last_c: float, edges: Edges, f_b: float, visits: float
) -> float:
    """Return a latency that no candidate with at least these times, these loads of B and these visits beats.

    More visits compute longer, but load less before they begin, and compute less when all is loaded. `dma_us` is of all
    traffic, `loads_us` of all loads and of what is stored after them, `last_c` bytes stored after all computation.
    """
    overlap = q.overlap_frac
    dma_us = max(dma_us, q.feed_us)
    vector_us = q.vector_us * f_b
    compute_us = q.step_us + edges.refills * q.refill_us
    if not p["vector_is_concurrent"]:
        compute_us += vector_us
    main_us = compute_us + q.visit_us * visits
    if p["vector_is_concurrent"]:
        main_us = max(main_us, vector_us)
    main_us = (1.0 - overlap) * main_us + dma_us
    side_us = compute_us + (1.0 - overlap) * dma_us
    if q.loads_exposed:
        main_us = max(main_us, side_us + q.visit_us * visits + overlap * loads_us)
        if p["vector_is_concurrent"]:
            main_us = max(main_us, side_us - compute_us + vector_us + overlap * loads_us)
    else:
        shared_us = edges.lead_a * q.a_per_share + edges.lead_b * q.b_per_share
        port_us = (edges.lead_a + edges.lead_b) * q.per_port
        main_us = max(
            main_us,
            side_us + max(
                overlap * last_c * q.c_per_share
                + _least_of_visits(q.visit_us, overlap * shared_us, visits, edges.most_visits),
                overlap * last_c * q.c_per_port
                + _least_of_visits(q.visit_us, overlap * port_us, visits, edges.most_visits),
            ),
        )  # fmt: skip
        if p["vector_is_concurrent"]:
            main_us = max(main_us, side_us - compute_us + vector_us + overlap * last_c * q.c_per_share)
    if q.last_step_us > 0.0:  # the last visit computes after all loads
        last_us = _least_of_visits(
            (1.0 - overlap) * q.visit_us, overlap * q.last_step_us, visits, edges.most_visits
        )  # fmt: skip
        side_us -= overlap * compute_us
        main_us = max(main_us, side_us + overlap * (q.visit_us + loads_us) + last_us)
    return (q.fixed_us + main_us) * (1.0 - BOUND_SLACK)


@kernel
def _least_of_visits(us_per_visit: float, us_over_visits: float, least: float, most: float) -> float:
    """Least ``us_per_visit * V + us_over_visits / V`` over V from `least` to `most`."""
    visits = most
    if us_over_visits < us_per_visit * most * most:
        visits = max(least, math.sqrt(us_over_visits / us_per_visit))
    return us_per_visit * visits + us_over_visits / visits


@kernel
def least_trips_k(p: Any, blk: Block, tile_m: int, tile_n: int) -> float:
    """Return a lower bound, a real number, of the k trips that SRAM allows beside tile_m and tile_n; inf: none."""
    output = p["c_buffers"] * float(tile_m) * tile_n * p["acc_half_bits"]
    half_bits_per_k = p["a_buffers"] * float(tile_m) * p["a_half_bits"]
    half_bits_per_k += p["b_buffers"] * float(tile_n) * p["b_half_bits"]
    if p["has_dequant_copy"]:
        half_bits_per_k += float(tile_n) * p["a_half_bits"]
    room = 16.0 * p["sram_usable_bytes"] - output
    if room <= 0.0:
        return np.inf
    return max(1.0, blk.k * half_bits_per_k / room)


@kernel
def pair_bound_us(p: Any, q: Bound, T_m: int, T_n: int, T_k: float, visits: float, edges: Edges) -> float:
    """Return a latency that no order and no number of k trips from `T_k` up beats, for given trips of m and n."""
    if T_k <= 1.0:  # all of k may lie in SRAM: then one of A and B is loaded again by the loop of the other
        return min(
            quick_bound_us(p, q, 1.0, T_m if T_n > 1 else 1.0, 1.0, 1.0, visits, edges),
            quick_bound_us(p, q, T_n if T_m > 1 else 1.0, 1.0, 1.0, 1.0, visits, edges),
        )
    T_k = max(T_k, 2.0)
    visits *= T_k
    return min(
        quick_bound_us(p, q, T_n, T_m, 1.0, T_k, visits, edges),  # C stays
        quick_bound_us(p, q, 1.0, T_m, T_k if T_n > 1 else 1.0, T_k, visits, edges),  # A stays
        quick_bound_us(p, q, T_n, 1.0, T_k if T_m > 1 else 1.0, T_k, visits, edges),  # B stays
    )


@kernel
def _wider_traffic(
    q: Bound, a: float, b: float, c: float, T_m: int, T_n: int, floor_T_k: float, trips_mk: float, trips_nk: float
) -> float:  # fmt: skip
    """Bound as `_least_traffic` does, with trips as of `least_loads_beside`."""
    a, b, spill = a * q.a, b * (q.b + q.scale_row), q.c_spill * c
    return q.c_store * c + least_loads_beside(a, b, spill, T_m, T_n, floor_T_k, trips_mk, trips_nk)


@kernel
def wider_bound_us(
    p: Any, blk: Block, q: Bound, T_m: int, T_n: int, tile_m: int, floor_T_k: float, trips_mk: float, trips_nk: float
) -> float:
    """Return a latency that no number of n trips from T_n up, at least 2, beats, if k takes `floor_T_k` or more."""
    dma_us = q.kept_us + _wider_traffic(
        q, q.a_per_share, q.b_per_share, q.c_per_share, T_m, T_n, floor_T_k, trips_mk, trips_nk
    )  # fmt: skip
    if q.per_port > 0.0:
        port = q.per_port
        dma_us = max(dma_us, _wider_traffic(q, port, port, q.c_per_port, T_m, T_n, floor_T_k, trips_mk, trips_nk))
    # a tile of A, and one of B, fit in SRAM
    visits = float(blk.g) * max(T_m * T_n * floor_T_k, T_m * trips_nk, T_n * trips_mk)
    edges = Edges(
        float(blk.g) * T_m * T_n * tile_m * blk.k * p["a_half_bits"] / 16.0,
        T_m * _b_bytes(p, blk),
        0.0,
        float(blk.g) * T_m * ceil_div(blk.n, p["cube_n"]) * ceil_div(blk.k, p["unit_k"]),
        _refills(p, blk, T_m),
    )
    return _rough_bound_us(p, q, dma_us, edges, visits)


@kernel
def pipeline_bound_us(
    p: Any, q: Bound, f_a: int, f_b: int, f_c: int, T_m: int, T_n: int, T_k: int, g: int,
    first_a: float, first_b: float,
) -> float:  # fmt: skip
    """Return a latency that no pipeline with these factors beats, if its first A and B tile have at least these bytes.

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


# Columns of a key: the two floats of `keys_f`, then the integers of `keys_i`, in the order of comparison.
KEY_INTS = 8  # active_cores, visits, sram_used_bytes, partition rank, loop order, tile_m, tile_n, tile_k


class Best(NamedTuple):
    """The best `limit` candidates so far, best first."""

    keys_f: Any  # float64 [limit, 2]: latency_us, busiest_core_bytes
    keys_i: Any  # int64 [limit, num_ints], such as KEY_INTS
    num: Any  # int64 [1]: how many rows are filled
    key: Any  # int64 [num_ints]: the candidate at hand
    counters: Any  # int64: what the search counts


@kernel
def worst_us_of(best: Best) -> float:
    """Latency that a candidate must not exceed to be among the best."""
    last = best.keys_f.shape[0] - 1
    return best.keys_f[last, 0] if best.num[0] > last else np.inf


@kernel
def worst_bytes_of(best: Best) -> float:
    """Bytes that a candidate of the latency of the last must not exceed to be among the best."""
    return float(best.keys_f[best.keys_f.shape[0] - 1, 1])


@kernel
def may_enter(best: Best, latency_us: float, busiest_bytes: float) -> bool:
    """Say whether a candidate that is at least this costly could still be among the best."""
    last = best.keys_f.shape[0] - 1
    if best.num[0] <= last:
        return True
    worst_us: float = best.keys_f[last, 0]
    worst_bytes: float = best.keys_f[last, 1]
    return latency_us < worst_us or (latency_us == worst_us and busiest_bytes <= worst_bytes)


@kernel
def offer(best: Best, latency_us: float, busiest_bytes: float) -> None:
    """Insert the candidate whose integers are in `best.key` at its place among the best, if it has one."""
    limit, num_ints = best.keys_i.shape
    row = best.num[0]
    while row > 0:  # find the first row from the end that is not worse
        other_us = best.keys_f[row - 1, 0]
        other_bytes = best.keys_f[row - 1, 1]
        if latency_us > other_us:
            break
        if latency_us == other_us:
            if busiest_bytes > other_bytes:
                break
            if busiest_bytes == other_bytes:
                i = 0
                while i < num_ints - 1 and best.key[i] == best.keys_i[row - 1, i]:
                    i += 1
                if best.key[i] >= best.keys_i[row - 1, i]:
                    break
        row -= 1
    if row >= limit:
        return
    if best.num[0] < limit:
        best.num[0] += 1
    for later in range(best.num[0] - 1, row, -1):
        best.keys_f[later, 0] = best.keys_f[later - 1, 0]  # number by number: rows take a second to compile
        best.keys_f[later, 1] = best.keys_f[later - 1, 1]
        for i in range(num_ints):
            best.keys_i[later, i] = best.keys_i[later - 1, i]
    best.keys_f[row, 0] = latency_us
    best.keys_f[row, 1] = busiest_bytes
    for i in range(num_ints):
        best.keys_i[row, i] = best.key[i]


@kernel
def argsort(values: Any) -> Any:
    """Return the indices of `values` in ascending order, by Shell's method: numba's own sort compiles for a second."""
    order = np.empty(len(values), np.int64)
    for i in range(len(values)):
        order[i] = i
    gap = len(values) // 2
    while gap > 0:
        for i in range(gap, len(values)):
            index, to = order[i], i
            while to >= gap and values[order[to - gap]] > values[index]:
                order[to] = order[to - gap]
                to -= gap
            order[to] = index
        gap //= 2
    return order


@kernel
def new_best(limit: int, num_ints: int, counters: Any) -> Best:
    """Return an empty list of at most `limit` candidates, whose keys have so many integers."""
    return Best(
        np.empty((limit, 2), np.float64), np.empty((limit, num_ints), np.int64), np.zeros(1, np.int64),
        np.empty(num_ints, np.int64), counters,
    )  # fmt: skip
