"""The oracles of grouped GEMMs against each other and against numbers worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemm_eval.arch import MulticoreSpec
from gemm_eval.dtypes import DType
from gemm_eval.mapping import LoopOrder, MulticoreMapping, Partition, Tile
from gemm_eval.workload import GemmProblem
from tests import strategies
from tests.cases import examples
from tests.oracle import naive, naive_grouped, simulators_grouped
from tests.oracle.naive_core import ceil_div

# The event clock adds the same terms as the formulas, but groups them differently.
CLOCK_RELATIVE_TOLERANCE = 1e-12

Case = tuple[MulticoreSpec, GemmProblem, MulticoreMapping]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    arch = draw(strategies.archs())
    problem = draw(strategies.grouped_problems(arch, max_units=draw(st.sampled_from((3, 6)))))
    return arch, problem, draw(strategies.mappings(arch, problem))


@settings(max_examples=examples(300))
@given(cases())
def test_mapping_equals_the_walk_over_all_cores_and_groups(case: Case) -> None:
    arch, problem, mapping = case
    cost = naive_grouped.evaluate_mapping(arch, problem, mapping)
    sets = naive_grouped.spread_groups(problem, arch.cube_m, *mapping.partition[:2])
    groups = problem.row_groups or (problem.M,) * problem.G
    assert sorted(rows for members in sets for rows in members) == sorted(filter(None, groups))
    walk = simulators_grouped.simulate_grouped_chip(arch, problem, mapping, sets)
    assert walk.macs == problem.macs  # the blocks cover the groups once
    assert len(walk.latency_us) == cost.active_cores
    for term in ("a", "b", "scales", "c_store", "c_spill"):
        assert getattr(cost, f"{term}_bytes") == getattr(walk, f"{term}_bytes"), term
    assert cost.reduction_bytes == walk.reduction_dram_bytes
    assert cost.reduction_noc_bytes == walk.reduction_noc_bytes
    slowest_us = max(walk.latency_us.values())
    if arch.timing == "overlap":
        assert cost.latency_us == slowest_us
    else:
        assert cost.latency_us == pytest.approx(slowest_us, rel=CLOCK_RELATIVE_TOLERANCE)
    of_full = [us for (_, p_m, p_n, p_k), us in walk.latency_us.items() if p_m == p_n == p_k == 0]
    assert max(of_full) == pytest.approx(slowest_us, rel=CLOCK_RELATIVE_TOLERANCE)


@settings(max_examples=examples(200))
@given(
    st.lists(st.integers(0, 70), min_size=1, max_size=12).filter(any),
    st.integers(1, 9),
    st.integers(1, 6),
    st.integers(1, 9),
)
def test_groups_are_spread_as_the_definition_says(groups: list[int], cube_m: int, P_M: int, P_G: int) -> None:
    """None is lost, and the heaviest set is at most twice what it must be."""
    sets = naive_grouped.spread_groups(GemmProblem.grouped(groups, 4, 4), cube_m, P_G, P_M)
    if len(set(filter(None, groups))) > 1:
        assert sorted(rows for members in sets for rows in members) == sorted(filter(None, groups))
        weights = [[ceil_div(ceil_div(rows, P_M), cube_m) for rows in members] for members in sets]
        loads = [sum(of_set) for of_set in weights]
        least = max(max(map(max, weights)), ceil_div(sum(loads), P_G))
        assert max(loads) <= 2 * least
    assert sets == naive_grouped.spread_groups(GemmProblem.grouped(groups[::-1], 4, 4), cube_m, P_G, P_M)


def test_by_hand_where_groups_lie() -> None:
    def sets_of(*groups: int, P_G: int, P_M: int = 1, cube_m: int = 2) -> list[list[int]]:
        return naive_grouped.spread_groups(GemmProblem.grouped(groups, 4, 4), cube_m, P_G, P_M)

    assert sets_of(3, 3, 3, 3, 3, 0, P_G=4) == [[3, 3], [3, 3], [3]]  # as a batch of 5 in parts of ceil(5/4)
    # weights 8, 3, 2, then 1 five times: 8 | 3 | 2, 3 | 3, where loads and counts are equal, and so on
    assert sets_of(16, 1, 6, 1, 1, 4, 1, 1, P_G=3) == [[16], [6, 1, 1], [4, 1, 1, 1]]
    # equal loads of 2: the set of one group goes first
    assert sets_of(8, 4, 2, 1, 1, P_G=3) == [[8], [4, 1], [2, 1]]
    # over 4 cores along M the blocks have 4, 2, 1, 1 rows: weights 2, 1, 1, 1
    assert sets_of(16, 6, 4, 1, P_G=2, P_M=4) == [[16, 1], [6, 4]]


def _chip(**changes: object) -> MulticoreSpec:
    """1 GHz, 1,000 bytes/us (1 byte/ns), 2x2x2 cube of one step a cycle: a step is a ns, a byte from DRAM too."""
    fields = {
        "name": "hand",
        "num_cores": 2,
        "frequency_ghz": 1.0,
        "cube_m": 2,
        "cube_k": 2,
        "cube_n": 2,
        "cube_steps_per_cycle": {DType.FP16: 1.0},
        "sram_bytes": 1 << 20,
        "input_buffers": 1,
        "dram_gb_per_s": 1.0,
        "dram_sharing": "fair",
        "reduction": "none",
    }
    return MulticoreSpec(**(fields | changes))  # type: ignore[arg-type]


def test_by_hand_two_groups_on_two_sets() -> None:
    # 6 and 2 rows, one empty group: weights 3 and 1. Each of 2 cores has 500 bytes/us. The larger group: A 6*4*2 = 48,
    # B 4*2*2 = 16, C 6*2*2 = 24 bytes, 3*1*2 = 6 steps: 0.176 + 0.006 us. The smaller one: 16 + 16 + 8 bytes.
    mapping = MulticoreMapping(Partition(2, 1, 1, 1), Tile(6, 2, 4), LoopOrder.MNK)
    cost = naive_grouped.evaluate_mapping(_chip(), GemmProblem.grouped((2, 0, 6), 4, 2), mapping)
    assert cost.latency_us == pytest.approx(0.182)
    assert (cost.a_bytes, cost.b_bytes, cost.c_store_bytes) == (64, 32, 32)
    assert (cost.busiest_core_bytes, cost.active_cores, cost.visits) == (2 * 88, 2, 1)


def test_by_hand_rows_over_cores_that_not_every_group_fills() -> None:
    # Over 4 cores along M 5 rows are 2, 2, 1 and 2 rows are 1, 1: 3 cores work, each with 1/3 of 1,000 bytes/us. The
    # first has A (2 + 1)*4*2 = 24, B 2 * 16 = 32, C (2 + 1)*2*2 = 12 bytes and (1 + 1)*1*2 = 4 steps: 0.204 + 0.004 us.
    # All of A is 56 bytes, C 28; B is read by 3 cores and by 2: 80. With multicast once each: 32 bytes, and the first
    # core is charged 24 + 16/3 + 16/2 + 12.
    mapping = MulticoreMapping(Partition(1, 4, 1, 1), Tile(2, 2, 4), LoopOrder.MNK)
    arch, problem = _chip(num_cores=4), GemmProblem.grouped((2, 5), 4, 2)
    cost = naive_grouped.evaluate_mapping(arch, problem, mapping)
    assert cost.active_cores == 3
    assert cost.latency_us == pytest.approx(0.208)
    assert (cost.a_bytes, cost.b_bytes, cost.c_store_bytes) == (56, 80, 28)
    shared = naive_grouped.evaluate_mapping(
        arch.with_(load_sharing="multicast", noc_gb_per_s=1e9), problem, mapping
    )  # fmt: skip
    assert (shared.a_bytes, shared.b_bytes, shared.c_store_bytes) == (56, 32, 28)
    assert shared.dram_us == pytest.approx(3 * (24 + 16 / 3 + 8 + 12) / 1000)


def test_by_hand_pipeline_from_one_group_to_the_next() -> None:
    # One core, tiles of 2x2x4: the group of 4 rows has visits 0 and 1, that of 2 rows visit 2. A visit computes 2 ns.
    # Loads: A 16 bytes each; B 16 at 0, stays for 1, and 16 at 2. C leaves in 8 bytes after each visit.
    # 32 | max(2, 16) | max(2, 32 + 8) | max(2, 8) | 8 = 104 ns; with one buffer of C 32 | 16 + 8 | 32 + 8 | 2 + 8.
    arch = _chip(num_cores=1, timing="pipeline", input_buffers=2)
    mapping = MulticoreMapping(Partition(1, 1, 1, 1), Tile(2, 2, 4), LoopOrder.MNK)
    cost = naive_grouped.evaluate_mapping(arch, GemmProblem.grouped((2, 4), 4, 2), mapping)
    assert cost.latency_us == pytest.approx(0.106)
    twice = naive_grouped.evaluate_mapping(
        arch.with_(output_buffers=2), GemmProblem.grouped((2, 4), 4, 2), mapping
    )  # fmt: skip
    assert twice.latency_us == pytest.approx(0.104)


@settings(max_examples=examples(60))
@given(st.data())
def test_equal_groups_are_the_batch(data: st.DataObject) -> None:
    arch = data.draw(strategies.archs())
    problem = data.draw(strategies.problems(arch, max_units=3))
    mapping = data.draw(strategies.mappings(arch, problem))
    assert naive_grouped.evaluate_mapping(arch, problem, mapping) == naive.evaluate_mapping(arch, problem, mapping)
