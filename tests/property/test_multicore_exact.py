"""Multi-core searches: bounds below every cost, counts and spreads as the oracles have them, many at a time."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemm_eval import AttentionProblem, GemmProblem, MulticoreSpec, load_arch
from gemm_eval.mapping import LoopOrder
from gemm_eval.models.multicore import (
    COST_DTYPE,
    attention_params,
    attention_sizes,
    batch_sizes,
    block_of,
    cost_of_mapping,
    group_sizes,
    pack_params,
    params_in_room,
)
from gemm_eval.models.multicore.attention_kernels import (
    attention_block_of,
    count_core,
)
from gemm_eval.models.multicore.cost_kernels import core_cost
from gemm_eval.models.multicore.group_kernels import chip_of, fill_spread, new_spread
from gemm_eval.models.multicore.pipeline_kernels import ceil_div, reload_factors
from gemm_eval.search import grouped_bound_kernels as grouped_bounds
from gemm_eval.search import multicore_bound_kernels as bounds_of
from gemm_eval.search.multicore import (
    find_best,
    find_best_many,
    replay_mappings,
)
from gemm_eval.search.multicore_kernels import partition_bound
from gemm_eval.workload import pack_layouts
from tests import strategies
from tests.cases import examples
from tests.oracle import naive

# ---- search exact ----------------------------------------------------------------------------------------------------


@st.composite
def chips_and_problems(draw: st.DrawFn) -> tuple[MulticoreSpec, GemmProblem]:
    arch = draw(strategies.archs())
    return arch, draw(strategies.problems(arch))


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


def passes(nest: str, trips: dict[str, int], indexed_by: str) -> int:
    """How often each element of an operand with these index loops enters SRAM (for C: leaves it).

    The product of the trips of every loop that does not index the operand, and lies outside the innermost one that
    does and has more than one trip.
    """
    multi = [depth for depth, loop in enumerate(nest) if loop in indexed_by and trips[loop] > 1]
    if not multi:
        return 1
    return math.prod(trips[loop] for loop in nest[: multi[-1]] if loop not in indexed_by)


@pytest.mark.parametrize("order", range(6))
@pytest.mark.parametrize("trips", list(np.ndindex(2, 2, 2)))
def test_reload_factors_follow_the_rule(order: int, trips: tuple[int, int, int]) -> None:
    sizes = {"M": 1 + 2 * trips[0], "N": 1 + 4 * trips[1], "K": 1 + 6 * trips[2]}  # 1 or 3, 5, 7: primes tell apart
    nest = LoopOrder(order).name
    expected = tuple(passes(nest, sizes, indexed_by) for indexed_by in ("MK", "NK", "MN"))
    assert reload_factors(order, sizes["M"], sizes["N"], sizes["K"]) == expected, nest


# ---- grouped multicore -----------------------------------------------------------------------------------------------


# Pipeline times are sums over visits, which the kernel adds up class by class.


def uncounted(records: np.ndarray) -> bytes:
    """The bytes of records without what a search counts."""
    records = records.copy()
    for name in COST_DTYPE.names or ():
        if name.startswith("num_"):
            records[name] = 0
    return records.tobytes()


@st.composite
def chips_and_problems_of_grouped_multicore(draw: st.DrawFn) -> tuple[MulticoreSpec, GemmProblem]:
    arch = draw(strategies.archs())
    return arch, draw(strategies.grouped_problems(arch))


# --- against the oracles ---------------------------------------------------------------------------------------------


@settings(max_examples=examples(300))
@given(st.data())
def test_bounds_are_below_the_cost_of_every_mapping_of_grouped_multicore(data: st.DataObject) -> None:
    arch, problem = data.draw(chips_and_problems_of_grouped_multicore())
    mapping = data.draw(strategies.mappings(arch, problem))
    (P_G, P_M, P_N, P_K), (tile_m, tile_n, tile_k), order = mapping
    params = params_in_room(pack_params(arch, problem.types), problem)
    p, (rows, counts) = params[0], group_sizes(problem)
    out = cost_of_mapping(params, problem, mapping, as_groups=True)
    latency_us, moved_bytes = out["latency_us"][0], out["busiest_core_bytes"][0]
    spread = new_spread(counts, arch.num_cores)
    num_sets = fill_spread(p, rows, counts, P_G, P_M, spread)
    chip = chip_of(p, rows, problem.K, problem.N, P_M, P_N, P_K, spread, num_sets)
    sums, rates = grouped_bounds.new_set_sums(num_sets), grouped_bounds.rates_of(p, chip)
    floors = [grouped_bounds.set_floor(p, chip, rows, P_M, spread, which) for which in range(num_sets)]
    for which, floor in enumerate(floors):
        grouped_bounds.fill_set_sums(p, chip, rows, P_M, spread, which, floor, sums)
        assert floor.latency_us <= latency_us
        assert floor.busiest_bytes <= moved_bytes
    grouped_bounds.fill_tile_sums(p, rows, P_M, spread, num_sets, tile_m, sums)
    T_n, T_k = math.ceil(chip.n / tile_n), math.ceil(chip.k / tile_k)
    fits = naive.is_legal(arch, problem, mapping)
    for which in range(num_sets):
        for trips_k, size_k in {(T_k, tile_k), (max(1, T_k - 1), min(int(p["unit_k"]), chip.k)), (1, 1)}:
            us, size = grouped_bounds.set_bound(
                p, chip, rates, sums, which, int(order), T_n, trips_k, tile_m, tile_n, size_k
            )  # fmt: skip
            assert us <= latency_us
            assert size <= moved_bytes
        if fits:
            for size_m in (0, tile_m):
                bound_us = grouped_bounds.sram_bound_us(p, chip, rates, sums, rows, P_M, spread, which, size_m)
                assert bound_us <= latency_us
    cut = grouped_bounds.new_cut_rows(arch.num_cores)
    grouped_bounds.cut_rows(p, rows, counts, P_M, cut)
    groups = int(counts.sum())
    assert (
        grouped_bounds.floor_us_of_cut(
            p, block_of(p, 1, rows[0], problem.K, problem.N, 1, P_M, P_N, P_K), problem.K, problem.N, P_M,
            min(P_G, groups), groups, problem.rows, (cut.rows[P_M], cut.steps[P_M], cut.parts[P_M]),
        )
        <= latency_us
    )  # fmt: skip


# --- many at a time --------------------------------------------------------------------------------------------------


def _mixed_problems(arch: MulticoreSpec) -> list[GemmProblem]:
    rng = random.Random(5)
    problems = []
    for number in range(24):
        K, N = 16 * rng.randint(1, 40), 16 * rng.randint(1, 40)
        if number % 3 == 0:
            problems.append(GemmProblem(rng.randint(1, 4), rng.randint(1, 200), K, N, arch.default_dtype))
        else:
            most = 1 if number % 3 == 1 else 200  # rows of 0 or 1, and any
            groups = [rng.randint(0, most) for _ in range(rng.randint(2, 9))]
            problems.append(GemmProblem.grouped([*groups, 1], K, N, input_dtype=arch.default_dtype))
    return problems


@pytest.mark.parametrize("timing", ["overlap", "pipeline"])
def test_many_at_a_time_are_each_alone(timing: str) -> None:
    arch = load_arch("demo-8core").with_(timing=timing, num_cores=4)
    assert isinstance(arch, MulticoreSpec)
    problems = _mixed_problems(arch)[: 24 if timing == "overlap" else 6]
    assert len({batch_sizes(problem) is None for problem in problems}) == 2
    params = pack_params(arch, problems[0].types)
    type_of, sizes = np.zeros(len(problems), np.int64), np.array([problem.sizes for problem in problems])
    layouts = pack_layouts([problem.row_groups for problem in problems])
    found = find_best_many(arch.num_cores, params, type_of, sizes, layouts=layouts, allow_idle_cores=True)
    alone = np.concatenate([find_best(arch, problem, params, allow_idle_cores=True) for problem in problems])
    assert found.tobytes() == alone.tobytes()
    of_archs = find_best_many(
        4, params, type_of, sizes, layouts, allow_idle_cores=True, run=lambda search, num: search(0, num)
    )  # fmt: skip
    assert of_archs.tobytes() == alone.tobytes()
    replayed = replay_mappings(params, type_of, sizes, found, layouts=layouts)
    assert uncounted(replayed) == uncounted(found)
    some = np.array([1, 0, 5, 2])
    assert (
        find_best_many(
            arch.num_cores, params, type_of[some], sizes[some], layouts=layouts.take(some), allow_idle_cores=True
        ).tobytes()
        == found[some].tobytes()
    )


def test_a_replay_takes_no_illegal_mapping() -> None:
    arch = load_arch("demo-8core")
    assert isinstance(arch, MulticoreSpec)
    problem = GemmProblem.grouped((40, 7, 0, 3), 64, 64)
    params = params_in_room(pack_params(arch, problem.types), problem)
    found = np.repeat(find_best(arch, problem, params, allow_idle_cores=True), 5)
    for row, (name, value) in enumerate(
        (("tile_m", 41), ("P_G", 0), ("loop_order", 6), ("P_M", 1 << 40), ("tile_k", 1 << 50))
    ):
        found[row][name] = value
    sizes = np.array([problem.sizes] * len(found))
    layouts = pack_layouts([problem.row_groups] * len(found))
    replayed = replay_mappings(params, np.zeros(len(found), np.int64), sizes, found, layouts=layouts)
    assert not replayed.tobytes().strip(b"\0")


# ---- attention multicore ---------------------------------------------------------------------------------------------


@st.composite
def problems(draw: st.DrawFn, most: int) -> AttentionProblem:
    """Masked ones, of one head of each KV head's group."""
    kv_len = draw(st.integers(1, most))
    q_len = draw(st.just(kv_len) | st.integers(1, kv_len))
    window = draw(st.none() | st.integers(1, kv_len))
    group = draw(st.integers(1, 4))
    return AttentionProblem(1, q_len, kv_len, group, 1, 4, "fp16", None, None, True, window)  # type: ignore[arg-type]


def demo(**changes: object) -> MulticoreSpec:
    """The teaching chip."""
    arch = load_arch("demo-8core").with_(**changes)
    assert isinstance(arch, MulticoreSpec)
    return arch


@given(problems(1 << 20), st.integers(1, 4096), st.integers(1, 4096))
def test_counts_of_many_tiles_are_those_of_each(problem: AttentionProblem, units_q: int, units_kv: int) -> None:
    arch = demo()
    p, s = attention_params(arch, problem)[0], attention_sizes(problem)
    blk = attention_block_of(p, s, 1, 1, 1, 0)
    tile_q, tile_kv = min(units_q * arch.cube_m, s.rows), min(units_kv * 16, s.keys)
    found = count_core(p, s, blk, 0, 0, s.keys, tile_q, tile_kv, 0)
    if not s.is_masked:
        assert found.scores == s.rows * s.keys
        return
    starts = np.arange(0, s.rows, tile_q)
    ends = np.minimum(starts + tile_q, s.rows) - 1
    low = np.maximum(starts // s.group + s.ahead - s.window + 1, 0) // tile_kv
    high = (ends // s.group + s.ahead) // tile_kv
    keys = np.minimum((high + 1) * tile_kv, s.keys) - low * tile_kv
    size = np.minimum((low + 1) * tile_kv, s.keys) - low * tile_kv
    assert found.visits == (high - low + 1).sum()
    assert found.scores == ((ends - starts + 1) * keys).sum()
    assert found.kv_keys == keys.sum() - size[1:][low[1:] == high[:-1]].sum()
    assert found.scores >= problem.num_pairs * problem.group
