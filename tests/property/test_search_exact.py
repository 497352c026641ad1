"""The search against brute force, the kernels against the slow oracles: equal to the bit, ties included."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_eval import GemmProblem, MulticoreSpec
from gemm_eval.models.multicore.cost_kernels import block_of, core_cost
from gemm_eval.models.multicore.model import pack_params, params_in_room
from gemm_eval.models.multicore.pipeline_kernels import ceil_div, reload_factors
from gemm_eval.search import multicore_bound_kernels as bounds_of
from gemm_eval.search.multicore_kernels import partition_bound
from tests import strategies
from tests.oracle import naive, naive_core, naive_grouped


@st.composite
def chips_and_problems(draw: st.DrawFn) -> tuple[MulticoreSpec, GemmProblem]:
    arch = draw(strategies.archs())
    return arch, draw(strategies.problems(arch))


@given(st.data())
def test_bounds_are_below_the_cost_of_every_mapping(data: st.DataObject) -> None:
    arch, problem = data.draw(chips_and_problems())
    mapping = data.draw(strategies.mappings(arch, problem))
    latency_us = naive_grouped.evaluate_mapping(arch, problem, mapping).latency_us
    p = params_in_room(pack_params(arch, problem.types), problem)[0]
    blk = block_of(p, *problem.sizes, *mapping.partition)
    trips = [ceil_div(size, tile) for size, tile in zip((blk.m, blk.n, blk.k), mapping.tile, strict=True)]
    q = bounds_of.bound_of(p, blk)
    factors = reload_factors(int(mapping.loop_order), *trips)
    visits = float(blk.g * math.prod(trips))
    edges = bounds_of.edges_of(p, blk, mapping.tile.tile_m, mapping.tile.tile_n, trips[0], trips[1])
    if arch.timing == "pipeline":
        edges = edges._replace(last_c=0.0)  # its last tile may be what remains of one
    bounds = {"quick": bounds_of.quick_bound_us(p, q, *map(float, factors), float(trips[2]), visits, edges)}
    whole = block_of(p, *problem.sizes, 1, 1, 1, 1)
    parts = math.prod(mapping.partition)
    us_per_byte = 1.0 / (blk.active_cores * blk.dram_share)
    if blk.active_cores == parts:
        of_whole = bounds_of.bound_of(p, whole)
        bounds["floor"] = bounds_of.floor_us_of(
            p, of_whole, bounds_of.edges_of_any(p, whole, of_whole), parts, us_per_byte
        )
    if naive.is_legal(arch, problem, mapping):
        least = bounds_of.least_trips_k(p, blk, mapping.tile.tile_m, mapping.tile.tile_n)
        assert least <= trips[2] * (1 + 1e-12)
        pair_visits = float(blk.g * trips[0] * trips[1])
        bounds["pair"] = bounds_of.pair_bound_us(p, q, trips[0], trips[1], least, pair_visits, edges)
        bounds["sram"] = bounds_of.sram_bound_us(p, blk, q)
        in_bytes = bounds_of.bytes_bound_of(blk, q)
        sizes = blk.g, blk.m, blk.n, blk.k
        moved_bytes = core_cost(p, blk, *sizes, *mapping.tile, *trips, *factors, -1.0).busiest_bytes
        assert bounds_of.sram_bound_us(p, blk, in_bytes) <= moved_bytes
        assert bounds_of.pair_bound_us(p, in_bytes, trips[0], trips[1], least, pair_visits, edges) <= moved_bytes
        if trips[1] > 1:
            fewer = data.draw(st.integers(2, trips[1]))
            floor = bounds_of.least_trips_k(p, blk, mapping.tile.tile_m, min(arch.cube_n, blk.n))
            _, trips_mk, trips_nk = bounds_of.least_trips(p, blk)
            wider = trips[0], fewer, mapping.tile.tile_m, floor, trips_mk, trips_nk
            bounds["wider"] = bounds_of.wider_bound_us(p, blk, q, *wider)
            assert bounds_of.wider_bound_us(p, blk, in_bytes, *wider) <= moved_bytes
        bounds["partition"], least_bytes = partition_bound(p, blk)
        assert least_bytes <= moved_bytes
    if arch.timing == "pipeline":
        first_a = mapping.tile.tile_m * mapping.tile.tile_k * float(p["a_half_bits"]) / 16
        first_b = mapping.tile.tile_k * mapping.tile.tile_n * float(p["b_half_bits"]) / 16
        bounds["pipeline"] = bounds_of.pipeline_bound_us(p, q, *factors, *trips, blk.g, first_a, first_b)
    for name, bound_us in bounds.items():
        assert bound_us <= latency_us, name


@pytest.mark.parametrize("order", range(6))
@pytest.mark.parametrize("trips", list(np.ndindex(2, 2, 2)))
def test_reload_factors_follow_the_rule(order: int, trips: tuple[int, int, int]) -> None:
    sizes = {"M": 1 + 2 * trips[0], "N": 1 + 4 * trips[1], "K": 1 + 6 * trips[2]}  # 1 or 3, 5, 7: primes tell apart
    nest = naive.LoopOrder(order).name
    expected = tuple(naive_core.passes(naive.LoopOrder(order), sizes, indexed_by) for indexed_by in ("MK", "NK", "MN"))
    assert reload_factors(order, sizes["M"], sizes["N"], sizes["K"]) == expected, nest
