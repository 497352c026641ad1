"""Grouped GEMMs on multi-core chips: search and kernels against the slow oracles, and the laws of MODEL.md."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemm_eval import GemmProblem, InfeasibleError, InvalidMappingError, MulticoreSpec, load_arch
from gemm_eval.mapping import MulticoreMapping, enumerate_partitions
from gemm_eval.models.multicore import (
    COST_DTYPE,
    FIRST,
    batch_sizes,
    block_of,
    cost_of_mapping,
    evaluate_mapping,
    group_sizes,
    kernel_sizes,
    pack_params,
    params_in_room,
    spread_of,
    unpack_cost,
)
from gemm_eval.models.multicore.group_kernels import chip_of, fill_spread, new_spread
from gemm_eval.search import grouped_bound_kernels as bounds_of
from gemm_eval.search.grouped_kernels import find_top_grouped_overlap, find_top_grouped_pipeline
from gemm_eval.search.multicore import (
    find_best,
    find_best_few,
    find_best_many,
    find_best_of_each_partition,
    replay_mappings,
)
from gemm_eval.workload import pack_layouts
from tests import strategies
from tests.cases import examples
from tests.oracle import naive, naive_core, naive_grouped

# Pipeline times are sums over visits, which the kernel adds up class by class.
PIPELINE_RELATIVE_TOLERANCE = 1e-12
TYPE_NAMES = ("input_dtype", "weight_dtype", "output_dtype", "group_size", "scale_dtype", "zero_dtype")


def regrouped(problem: GemmProblem, groups: tuple[int, ...]) -> GemmProblem:
    """The same K, N and types with other groups."""
    types = {name: getattr(problem, name) for name in TYPE_NAMES}
    return GemmProblem.grouped(groups, problem.K, problem.N, **types)


def uncounted(records: np.ndarray) -> bytes:
    """The bytes of records without what a search counts."""
    records = records.copy()
    for name in COST_DTYPE.names or ():
        if name.startswith("num_"):
            records[name] = 0
    return records.tobytes()


def best_of(arch: MulticoreSpec, problem: GemmProblem, *, allow_idle_cores: bool = True) -> np.void | None:
    """The record of the best mapping; None: nothing fits."""
    try:
        return find_best(
            arch, problem, params_in_room(pack_params(arch, problem.types), problem), allow_idle_cores=allow_idle_cores
        )[0]
    except InfeasibleError:
        return None


@st.composite
def chips_and_problems(draw: st.DrawFn, max_units: int | None = None) -> tuple[MulticoreSpec, GemmProblem]:
    arch = draw(strategies.archs())
    return arch, draw(strategies.grouped_problems(arch, max_units=max_units))


# --- against the oracles ---------------------------------------------------------------------------------------------


@settings(max_examples=examples(100))
@given(chips_and_problems(3), st.booleans())
def test_search_equals_brute_force(case: tuple[MulticoreSpec, GemmProblem], allow_idle_cores: bool) -> None:
    arch, problem = case
    if problem.row_groups is None:  # equal groups: the brute force of batches is for them
        return
    truth = naive_grouped.find_best(arch, problem, allow_idle_cores=allow_idle_cores)
    found = best_of(arch, problem, allow_idle_cores=allow_idle_cores)
    if truth is None or found is None:
        assert truth is None
        assert found is None
        return
    mapping, cost = truth
    if arch.timing == "overlap":
        assert unpack_cost(found).mapping == mapping
        assert found["latency_us"] == cost.latency_us
    else:  # equal times may differ in the last bits of a sum, and then another mapping of the same time may win
        assert found["latency_us"] == pytest.approx(cost.latency_us, rel=PIPELINE_RELATIVE_TOLERANCE)
        replayed = naive_grouped.evaluate_mapping(arch, problem, unpack_cost(found).mapping)
        assert replayed.latency_us == pytest.approx(cost.latency_us, rel=PIPELINE_RELATIVE_TOLERANCE)


@settings(max_examples=examples(300))
@given(st.data())
def test_cost_of_a_mapping_equals_the_oracle(data: st.DataObject) -> None:
    arch, problem = data.draw(chips_and_problems())
    mapping = data.draw(strategies.mappings(arch, problem))
    params = params_in_room(pack_params(arch, problem.types), problem)
    if not naive.is_legal(arch, problem, mapping):
        with pytest.raises(InvalidMappingError) as caught:
            evaluate_mapping(arch, problem, params, mapping)
        assert caught.value.rule == "sram"
        return
    cost = naive_grouped.evaluate_mapping(arch, problem, mapping)
    found = unpack_cost(evaluate_mapping(arch, problem, params, mapping)[0])
    names = ("active_cores", "visits", "sram_used_bytes", "dram_bytes", "a_bytes", "b_bytes", "c_store_bytes")
    names += ("c_spill_bytes", "c_refill_bytes", "reduction_bytes", "busiest_core_bytes")
    assert {name: getattr(found, name) for name in names} == {name: getattr(cost, name) for name in names}
    assert found.scale_bytes == cost.scales_bytes
    for name in ("latency_us", "main_us", "compute_us", "dma_us", "dram_us", "noc_us", "reduction_us"):
        ours, theirs = getattr(found, name), getattr(cost, name)
        if arch.timing == "overlap" and name == "latency_us":
            assert ours == theirs
        elif arch.timing == "overlap" or name in ("latency_us", "main_us"):
            # parts are of the slowest core, and of two that are equally slow either may be shown
            assert name == "reduction_us" or ours <= found.latency_us
    assert found.latency_us == pytest.approx(cost.latency_us, rel=PIPELINE_RELATIVE_TOLERANCE)
    assert sum(found.breakdown.values()) == pytest.approx(found.latency_us, rel=1e-9)
    if cost.energy_pj is None:
        assert found.energy_pj is None
    else:
        assert found.energy_pj == pytest.approx(cost.energy_pj, rel=1e-12)


@settings(max_examples=examples(300))
@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=40).filter(any), st.integers(1, 50), st.integers(1, 9),
    st.integers(1, 20),
)  # fmt: skip
def test_groups_lie_where_the_oracle_has_them(groups: list[int], P_G: int, P_M: int, cube_m: int) -> None:
    arch = load_arch("demo-8core").with_(cube_m=cube_m)
    problem = GemmProblem.grouped(groups, 8, 8)
    runs = spread_of(
        params_in_room(pack_params(arch, problem.types), problem), *group_sizes(problem), P_G, P_M
    ).tolist()
    sets = [
        [rows for _, rows, count in of_set for _ in range(count)]
        for _, of_set in itertools.groupby(runs, key=lambda run: run[0])
    ]
    assert sets == naive_grouped.spread_groups(problem, cube_m, P_G, P_M)


@settings(max_examples=examples(300))
@given(st.data())
def test_bounds_are_below_the_cost_of_every_mapping(data: st.DataObject) -> None:
    arch, problem = data.draw(chips_and_problems())
    mapping = data.draw(strategies.mappings(arch, problem))
    (P_G, P_M, P_N, P_K), (tile_m, tile_n, tile_k), order = mapping
    params = params_in_room(pack_params(arch, problem.types), problem)
    p, (rows, counts) = params[0], group_sizes(problem)
    out = cost_of_mapping(params, problem, mapping, as_groups=True)
    latency_us, moved_bytes = out["latency_us"][0], out["busiest_core_bytes"][0]
    spread = new_spread(counts, arch.num_cores)
    num_sets = fill_spread(p, rows, counts, P_G, P_M, spread)
    chip = chip_of(p, rows, problem.K, problem.N, P_M, P_N, P_K, spread, num_sets)
    sums, rates = bounds_of.new_set_sums(num_sets), bounds_of.rates_of(p, chip)
    floors = [bounds_of.set_floor(p, chip, rows, P_M, spread, which) for which in range(num_sets)]
    for which, floor in enumerate(floors):
        bounds_of.fill_set_sums(p, chip, rows, P_M, spread, which, floor, sums)
        assert floor.latency_us <= latency_us
        assert floor.busiest_bytes <= moved_bytes
    bounds_of.fill_tile_sums(p, rows, P_M, spread, num_sets, tile_m, sums)
    T_n, T_k = math.ceil(chip.n / tile_n), math.ceil(chip.k / tile_k)
    fits = naive.is_legal(arch, problem, mapping)
    for which in range(num_sets):
        for trips_k, size_k in {(T_k, tile_k), (max(1, T_k - 1), min(int(p["unit_k"]), chip.k)), (1, 1)}:
            us, size = bounds_of.set_bound(
                p, chip, rates, sums, which, int(order), T_n, trips_k, tile_m, tile_n, size_k
            )  # fmt: skip
            assert us <= latency_us
            assert size <= moved_bytes
        if fits:
            for size_m in (0, tile_m):
                bound_us = bounds_of.sram_bound_us(p, chip, rates, sums, rows, P_M, spread, which, size_m)
                assert bound_us <= latency_us
    cut = bounds_of.new_cut_rows(arch.num_cores)
    bounds_of.cut_rows(p, rows, counts, P_M, cut)
    groups = int(counts.sum())
    assert (
        bounds_of.floor_us_of_cut(
            p, block_of(p, 1, rows[0], problem.K, problem.N, 1, P_M, P_N, P_K), problem.K, problem.N, P_M,
            min(P_G, groups), groups, problem.rows, (cut.rows[P_M], cut.steps[P_M], cut.parts[P_M]),
        )
        <= latency_us
    )  # fmt: skip


# --- laws ------------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(300))
@given(st.data())
def test_equal_groups_are_the_batch_to_the_bit(data: st.DataObject) -> None:
    """Through the kernels of grouped GEMMs too, which equal groups never reach."""
    arch = data.draw(strategies.archs())
    problem = data.draw(strategies.problems(arch))
    mapping = data.draw(strategies.mappings(arch, problem))
    params = params_in_room(pack_params(arch, problem.types), problem)
    batch, grouped = (cost_of_mapping(params, problem, mapping, as_groups=as_groups) for as_groups in (False, True))
    assert batch.tobytes() == grouped.tobytes()


@settings(max_examples=examples(150))
@given(st.data(), st.booleans())
def test_the_search_of_equal_groups_is_that_of_the_batch(data: st.DataObject, allow_idle_cores: bool) -> None:
    arch = data.draw(strategies.archs())
    problem = data.draw(strategies.problems(arch, max_units=3))
    params = params_in_room(pack_params(arch, problem.types), problem)
    partitions = enumerate_partitions(arch.num_cores, allow_idle_cores=allow_idle_cores)
    out = np.zeros((1, 3), COST_DTYPE)
    find_top = find_top_grouped_overlap if arch.timing == "overlap" else find_top_grouped_pipeline
    num = find_top(
        params, FIRST, *kernel_sizes(problem, as_groups=True), 0, 1, partitions, allow_idle_cores, out
    )  # fmt: skip
    try:
        batch = find_best_few(arch, problem, params, 3, allow_idle_cores=allow_idle_cores)
    except InfeasibleError:
        assert num == 0
        return
    if arch.timing == "overlap":
        assert uncounted(out[0, :num]) == uncounted(batch)
    else:
        assert out["latency_us"][0, :num] == pytest.approx(batch["latency_us"], rel=PIPELINE_RELATIVE_TOLERANCE)


@given(st.data())
def test_groups_without_rows_change_nothing(data: st.DataObject) -> None:
    arch = data.draw(strategies.archs())
    problem = data.draw(strategies.problems(arch, max_units=3))
    empty = data.draw(st.integers(1, 4))
    grouped = regrouped(problem, (0,) * empty + (problem.M,) * problem.G)
    assert grouped.row_groups is not None
    assert batch_sizes(grouped) == problem.sizes
    found, expected = best_of(arch, grouped), best_of(arch, problem)
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert found.tobytes() == expected.tobytes()
        mapping = unpack_cost(found).mapping
        cost = evaluate_mapping(arch, grouped, params_in_room(pack_params(arch, problem.types), problem), mapping)[0]
        assert cost["latency_us"] == expected["latency_us"]


@settings(max_examples=examples(60))
@given(chips_and_problems(3), st.randoms(use_true_random=False))
def test_the_order_of_groups_changes_nothing(case: tuple[MulticoreSpec, GemmProblem], rng: random.Random) -> None:
    arch, problem = case
    groups = list(problem.row_groups or (problem.M,) * problem.G)
    rng.shuffle(groups)
    found, shuffled = best_of(arch, problem), best_of(arch, regrouped(problem, tuple(groups)))
    assert (found is None) == (shuffled is None)
    if found is not None and shuffled is not None:
        assert found.tobytes() == shuffled.tobytes()


@settings(max_examples=examples(300))
@given(st.data())
def test_a_mapping_is_no_faster_with_a_row_more(data: st.DataObject) -> None:
    """Where groups stay in their sets of cores and every group on as many cores."""
    arch, problem = data.draw(chips_and_problems())
    mapping = data.draw(strategies.mappings(arch, problem))
    groups = list(problem.row_groups or (problem.M,) * problem.G)
    which = data.draw(st.integers(0, len(groups) - 1))
    before, after = problem, regrouped(problem, (*groups[:which], groups[which] + 1, *groups[which + 1 :]))
    if naive.full_block(after, mapping.partition).m != naive.full_block(before, mapping.partition).m:
        return  # another tile is the full block
    spread = [
        naive_grouped.spread_groups(case, arch.cube_m, *mapping.partition[:2]) for case in (before, after)
    ]  # fmt: skip
    grown = [sorted(rows + (rows == groups[which]) * 0 for rows in members) for members in spread[0]]
    if [len(members) for members in grown] != [len(members) for members in spread[1]]:
        return
    pairs = zip(itertools.chain(*spread[0]), itertools.chain(*spread[1]), strict=True)
    P_M = mapping.partition.P_M

    def parts(rows: int) -> int:
        return math.ceil(rows / math.ceil(rows / P_M))

    if any(old > new or parts(old) != parts(new) for old, new in pairs):
        return
    latencies = [_latency_us(arch, case, mapping) for case in (before, after)]
    assert latencies[0] <= latencies[1] * (1 + 1e-9)


def _latency_us(arch: MulticoreSpec, problem: GemmProblem, mapping: MulticoreMapping) -> float:
    params = params_in_room(pack_params(arch, problem.types), problem)
    out = cost_of_mapping(params, problem, mapping, as_groups=True)
    return float(out["latency_us"][0])


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


@given(chips_and_problems(3), st.integers(2, 12))
def test_the_best_few_are_sorted_distinct_legal_and_start_with_the_best(
    case: tuple[MulticoreSpec, GemmProblem], k: int
) -> None:
    arch, problem = case
    best, params = best_of(arch, problem), params_in_room(pack_params(arch, problem.types), problem)
    if best is None:
        return
    few = find_best_few(arch, problem, params, k, allow_idle_cores=True)
    mappings = [unpack_cost(record).mapping for record in few]
    assert mappings[0] == unpack_cost(best).mapping
    assert np.all(np.diff(few["latency_us"]) >= 0)
    assert len(set(mappings)) == len(mappings) <= k
    for record, mapping in zip(few, mappings, strict=True):
        assert naive.is_legal(arch, problem, mapping)
        assert evaluate_mapping(arch, problem, params, mapping)[0]["latency_us"] == record["latency_us"]
    by_partition = find_best_of_each_partition(arch, problem, params, allow_idle_cores=True)
    assert by_partition[0]["latency_us"] == best["latency_us"]
    partitions = [unpack_cost(record).mapping.partition for record in by_partition]
    assert len(set(partitions)) == len(partitions)
    assert naive_core.can_run(arch, problem)
