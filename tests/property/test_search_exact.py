"""The search against brute force, the kernels against the slow oracles: equal to the bit, ties included."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_eval import GEMMEvaluator, GemmProblem, InfeasibleError, InvalidMappingError, MulticoreSpec
from gemm_eval.models.multicore.cost_kernels import block_of, core_cost
from gemm_eval.models.multicore.count_kernels import ceil_div, reload_factors
from gemm_eval.models.multicore.params import pack_params, params_in_room
from gemm_eval.search import multicore_bound_kernels as bounds_of
from gemm_eval.search.multicore_kernels import partition_bound
from tests import strategies
from tests.oracle import naive, naive_core

# Pipeline times are sums over visits, which the kernel adds up class by class.
PIPELINE_RELATIVE_TOLERANCE = 1e-12


@st.composite
def chips_and_problems(draw: st.DrawFn) -> tuple[MulticoreSpec, GemmProblem]:
    arch = draw(strategies.archs())
    return arch, draw(strategies.problems(arch))


@given(chips_and_problems(), st.booleans())
def test_search_equals_brute_force(case: tuple[MulticoreSpec, GemmProblem], allow_idle_cores: bool) -> None:
    arch, problem = case
    truth = naive.find_best(arch, problem, allow_idle_cores=allow_idle_cores)
    evaluator = GEMMEvaluator(arch, allow_idle_cores=allow_idle_cores)
    if truth is None:
        with pytest.raises(InfeasibleError):
            evaluator.evaluate_problem(problem)
        return
    mapping, cost = truth
    result = evaluator.evaluate_problem(problem)
    assert result.is_exhaustive
    if arch.timing == "overlap":
        assert result.mapping == mapping
        assert result.latency_us == cost.latency_us
    else:  # equal times may differ in the last bits of a sum, and then another mapping of the same time may win
        assert result.latency_us == pytest.approx(cost.latency_us, rel=PIPELINE_RELATIVE_TOLERANCE)
        replayed = naive.evaluate_mapping(arch, problem, result.mapping)
        assert replayed.latency_us == pytest.approx(cost.latency_us, rel=PIPELINE_RELATIVE_TOLERANCE)


@given(st.data())
def test_cost_of_a_mapping_equals_the_oracle(data: st.DataObject) -> None:
    arch, problem = data.draw(chips_and_problems())
    mapping = data.draw(strategies.mappings(arch, problem))
    evaluator = GEMMEvaluator(arch)
    if not naive.is_legal(arch, problem, mapping):
        with pytest.raises(InvalidMappingError) as caught:
            evaluator.evaluate_mapping(problem, mapping)
        assert caught.value.rule == "sram"
        return
    cost = naive.evaluate_mapping(arch, problem, mapping)
    result = evaluator.evaluate_mapping(problem, mapping)
    if arch.timing == "overlap":
        assert result.latency_us == cost.latency_us
    else:
        assert result.latency_us == pytest.approx(cost.latency_us, rel=PIPELINE_RELATIVE_TOLERANCE)
    assert result.compute_us == cost.compute_us
    assert result.dram_us == cost.dram_us
    assert result.dram_bytes == cost.dram_bytes
    assert result.active_cores == cost.active_cores
    assert result.sram_used_bytes == cost.sram_used_bytes
    assert dict(result.traffic) == {
        "a_bytes": cost.a_bytes,
        "b_bytes": cost.b_bytes,
        "scale_bytes": cost.scales_bytes,
        "c_store_bytes": cost.c_store_bytes,
        "c_spill_bytes": cost.c_spill_bytes,
        "c_refill_bytes": cost.c_refill_bytes,
        "reduction_bytes": cost.reduction_bytes,
    }
    assert sum(result.breakdown.values()) == pytest.approx(result.latency_us, rel=1e-9)
    if cost.energy_pj is None:
        assert result.energy_pj is None
    else:
        assert result.energy_pj == pytest.approx(cost.energy_pj, rel=1e-12)


@given(st.data())
def test_bounds_are_below_the_cost_of_every_mapping(data: st.DataObject) -> None:
    arch, problem = data.draw(chips_and_problems())
    mapping = data.draw(strategies.mappings(arch, problem))
    latency_us = naive.evaluate_mapping(arch, problem, mapping).latency_us
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


@given(chips_and_problems(), st.integers(2, 40))
def test_top_is_sorted_distinct_and_starts_with_the_best(case: tuple[MulticoreSpec, GemmProblem], k: int) -> None:
    arch, problem = case
    evaluator = GEMMEvaluator(arch)
    try:
        best = evaluator.evaluate_problem(problem)
    except InfeasibleError:
        return
    top = evaluator.top(problem, k)
    assert top[0].mapping == best.mapping
    assert top[0].latency_us == best.latency_us
    assert np.all(np.diff([result.latency_us for result in top]) >= 0)
    assert len({result.mapping for result in top}) == len(top) <= k
    by_partition = evaluator.top(problem, k, distinct="partition")
    assert by_partition[0].latency_us == best.latency_us
    assert len({result.mapping.partition for result in by_partition}) == len(by_partition)


@pytest.mark.parametrize("order", range(6))
@pytest.mark.parametrize("trips", list(np.ndindex(2, 2, 2)))
def test_reload_factors_follow_the_rule(order: int, trips: tuple[int, int, int]) -> None:
    sizes = {"M": 1 + 2 * trips[0], "N": 1 + 4 * trips[1], "K": 1 + 6 * trips[2]}  # 1 or 3, 5, 7: primes tell apart
    nest = naive.LoopOrder(order).name
    expected = tuple(naive_core.passes(naive.LoopOrder(order), sizes, indexed_by) for indexed_by in ("MK", "NK", "MN"))
    assert reload_factors(order, sizes["M"], sizes["N"], sizes["K"]) == expected, nest
