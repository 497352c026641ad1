"""Grouped GEMMs on multi-core chips: search and kernels against the slow oracles, and the laws of MODEL.md."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemm_eval import GemmProblem, MulticoreSpec, load_arch
from gemm_eval.models.multicore import (
    COST_DTYPE,
    batch_sizes,
    block_of,
    cost_of_mapping,
    group_sizes,
    pack_params,
    params_in_room,
    spread_of,
)
from gemm_eval.models.multicore.group_kernels import chip_of, fill_spread, new_spread
from gemm_eval.search import grouped_bound_kernels as bounds_of
from gemm_eval.search.multicore import (
    find_best,
    find_best_many,
    replay_mappings,
)
from gemm_eval.workload import pack_layouts
from tests import strategies
from tests.cases import examples
from tests.oracle import naive

# Pipeline times are sums over visits, which the kernel adds up class by class.


def uncounted(records: np.ndarray) -> bytes:
    """The bytes of records without what a search counts."""
    records = records.copy()
    for name in COST_DTYPE.names or ():
        if name.startswith("num_"):
            records[name] = 0
    return records.tobytes()


@st.composite
def chips_and_problems(draw: st.DrawFn) -> tuple[MulticoreSpec, GemmProblem]:
    arch = draw(strategies.archs())
    return arch, draw(strategies.grouped_problems(arch))


# --- against the oracles ---------------------------------------------------------------------------------------------


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
    assert sets == naive.spread_groups(problem, cube_m, P_G, P_M)


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
