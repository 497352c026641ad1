"""The oracle of multi-core costs against numbers worked out by hand, which tie it to MODEL.md."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemm_eval.arch import MulticoreSpec
from gemm_eval.dtypes import DType
from gemm_eval.mapping import LoopOrder, MulticoreMapping, Partition, Tile
from gemm_eval.workload import GemmProblem
from tests.cases import examples
from tests.oracle import naive
from tests.oracle.simulators import ceil_div


def test_legality() -> None:
    arch, problem = _chip(num_cores=4, reduction="none"), GemmProblem(1, 9, 8, 8)

    def is_legal(partition: tuple[int, ...], tile: tuple[int, ...], chip: MulticoreSpec = arch) -> bool:
        return naive.is_legal(chip, problem, MulticoreMapping(Partition(*partition), Tile(*tile), LoopOrder.MNK))

    assert is_legal((1, 2, 2, 1), (5, 2, 8))  # m = 5: the full block is legal, no multiple of 2 though it is
    assert not is_legal((1, 2, 2, 1), (3, 2, 8))
    assert not is_legal((1, 2, 2, 1), (6, 2, 8))
    assert not is_legal((1, 2, 4, 1), (5, 2, 8))  # 8 cores of 4
    assert not is_legal((1, 1, 1, 2), (9, 8, 4))  # split K on a chip without reduction
    assert is_legal((1, 1, 1, 2), (9, 8, 4), _chip(num_cores=4, reduction="dram", vector_ops_per_cycle=8.0))
    # A 9x8 fp16 144 bytes, B 8x8 128, C 9x8 fp32 288: 560
    assert is_legal((1, 1, 1, 1), (9, 8, 8), arch.with_(sram_bytes=560))
    assert not is_legal((1, 1, 1, 1), (9, 8, 8), arch.with_(sram_bytes=559))


# --- by hand ---------------------------------------------------------------------------------------------------------


def _chip(**changes: Any) -> MulticoreSpec:
    """1 GHz, 1,000 bytes/us (1 byte/ns), 2x2x2 cube of one step a cycle: a step is a ns, a byte from DRAM too."""
    fields: dict[str, Any] = {
        "name": "hand", "num_cores": 1, "frequency_ghz": 1.0, "cube_m": 2, "cube_k": 2, "cube_n": 2,
        "cube_steps_per_cycle": {DType.FP16: 1.0}, "sram_bytes": 1 << 20, "input_buffers": 1, "dram_gb_per_s": 1.0,
        "dram_sharing": "fair", "reduction": "none",
    }  # fmt: skip
    return MulticoreSpec(**(fields | changes))


def _evaluate(
    arch: MulticoreSpec, problem: GemmProblem, partition: tuple[int, ...], tile: tuple[int, ...], order: str
) -> naive.NaiveCost:
    mapping = MulticoreMapping(Partition(*partition), Tile(*tile), LoopOrder[order])
    return naive.evaluate_mapping(arch, problem, mapping)


ONE_CORE = (1, 1, 1, 1)


# M=4 K=8 N=6 in 2x2x2 tiles: T_m=2 T_n=3 T_k=4. A has 32 elements, B 48, C 24.
# A is reloaded T_n=3 times (96) when n is outside the inner one of m, k; B T_m=2 times (96) when m is outside the inner
# one of n, k; C spills T_k-1=3 times (72) when k is outside the inner one of m, n.
@pytest.mark.parametrize(
    ("order", "a_elems", "b_elems", "spilled_elems"),
    [
        ("MNK", 96, 96, 0),  # a new k at every visit: A and B stream, C rests
        ("MKN", 32, 96, 72),  # A rests while n runs
        ("NMK", 96, 96, 0),
        ("NKM", 96, 48, 72),  # B rests while m runs
        ("KMN", 32, 96, 72),
        ("KNM", 96, 48, 72),
    ],
)
def test_by_hand_every_loop_order(order: str, a_elems: int, b_elems: int, spilled_elems: int) -> None:
    cost = _evaluate(_chip(), GemmProblem(1, 4, 8, 6), ONE_CORE, (2, 2, 2), order)
    assert cost.visits == 24
    assert (cost.a_bytes, cost.b_bytes, cost.c_store_bytes) == (2 * a_elems, 2 * b_elems, 48)
    assert cost.c_spill_bytes == cost.c_refill_bytes == 4 * spilled_elems


@pytest.mark.parametrize(
    ("buffers", "dram_bound_us", "compute_bound_us"),
    [((2, 2), 0.880, 1.248), ((2, 1), 0.884, 1.864), ((1, 2), 0.880, 1.488), ((1, 1), 0.976, 2.104)],
)
def test_by_hand_overlap_time_with_spills(
    buffers: tuple[int, int], dram_bound_us: float, compute_bound_us: float
) -> None:
    # KMN above: A 64 + B 192 + store 48 + spill 288 + refill 288 = 880 bytes: 0.88 us. Steps 2*3*4 = 24, and 24 visits
    # of 3 cycles to fill and drain: 96 cycles, 0.096 us. The first tiles take 8 + 8 bytes, the last C tile 8.
    # 2, 2 buffers: max(0.88, 0.096 + 0.024, 0.004 + 0.264). 2, 1: all 624 bytes of C wait: max(0.88, 0.096 + 0.64,
    # 0.004 + 0.88). 1, 2: all 256 bytes of A and B do: max(0.88, 0.096 + 0.264). 1, 1: 0.096 + 0.88.
    # With 50 cycles a visit computation takes 1.224 us: + 0.024, 0.64, 0.264, 0.88.
    arch = _chip(fill_drain_cycles=3, input_buffers=buffers[0], output_buffers=buffers[1])
    cost = _evaluate(arch, GemmProblem(1, 4, 8, 6), ONE_CORE, (2, 2, 2), "KMN")
    assert cost.dram_bytes == cost.busiest_core_bytes == 880
    assert cost.dram_us == pytest.approx(0.88)
    assert cost.compute_us == pytest.approx(0.096)
    assert cost.latency_us == pytest.approx(dram_bound_us)
    half = _evaluate(
        arch.with_(overlap_frac=0.5, launch_us=2.0), GemmProblem(1, 4, 8, 6), ONE_CORE, (2, 2, 2), "KMN"
    )  # fmt: skip
    assert half.latency_us == pytest.approx(2 + (dram_bound_us + 0.976) / 2)
    busy = _evaluate(arch.with_(fill_drain_cycles=50), GemmProblem(1, 4, 8, 6), ONE_CORE, (2, 2, 2), "KMN")
    assert busy.latency_us == pytest.approx(compute_bound_us)


@pytest.mark.parametrize("buffers", [(2, 2), (2, 1), (1, 2), (1, 1)])
def test_by_hand_one_visit_overlaps_nothing(buffers: tuple[int, int]) -> None:
    # A 64 + B 96 + C 48 bytes, then nothing to compute but what was loaded: 24 steps.
    arch = _chip(input_buffers=buffers[0], output_buffers=buffers[1])
    assert _evaluate(arch, GemmProblem(1, 4, 8, 6), ONE_CORE, (4, 6, 8), "MNK").latency_us == pytest.approx(0.232)


@pytest.mark.parametrize(
    ("tile", "order", "expected_bytes"),
    [
        # T_k=1: A's inner loop with trips is m, outside of n, so A (64 bytes) comes once; B (96) for each of 2 m; C 48
        ((2, 2, 8), "MNK", (64, 192, 48, 0)),
        # T_m=T_n=1: C never leaves although k is outermost; A 64, B 96
        ((4, 6, 2), "KMN", (64, 96, 48, 0)),
        # T_m=1: the inner C loop with trips is n, outside of k: no spill; A for each of 3 n
        ((4, 2, 2), "NKM", (192, 96, 48, 0)),
        # T_n=1: k runs inside m, so that B is loaded for each of 2 m, and C leaves only with m
        ((2, 6, 2), "MKN", (64, 192, 48, 0)),
        # T_n=1, k outside m: B once, C 24 elements spilled 3 times in fp32
        ((2, 6, 2), "KNM", (64, 96, 48, 288)),
    ],
)
def test_by_hand_loops_of_one_trip(tile: tuple[int, ...], order: str, expected_bytes: tuple[int, ...]) -> None:
    cost = _evaluate(_chip(), GemmProblem(1, 4, 8, 6), ONE_CORE, tile, order)
    assert (cost.a_bytes, cost.b_bytes, cost.c_store_bytes, cost.c_spill_bytes) == expected_bytes
    # A second batch element shares nothing with the first, even where a tile is the whole matrix.
    twice = _evaluate(_chip(), GemmProblem(2, 4, 8, 6), ONE_CORE, tile, order)
    assert (twice.a_bytes, twice.b_bytes, twice.c_store_bytes, twice.c_spill_bytes) == tuple(
        2 * x for x in expected_bytes
    )


def test_by_hand_split_k_over_dram() -> None:
    # 2 cores, k=4 each: A 32 + B 32 + fp32 partial C 64 = 128 bytes at 500 bytes/us: 0.256 us, and 8 steps: 0.008 us.
    # A share of C is 8 of 16 elements: 2*8*4 = 64 bytes read, 16 written: 0.16 us, and 8 adds at 8 a cycle: 0.001 us.
    arch = _chip(num_cores=2, reduction="dram", vector_ops_per_cycle=8.0)
    cost = _evaluate(arch, GemmProblem(1, 4, 8, 4), (1, 1, 1, 2), (4, 4, 4), "MNK")
    assert cost.main_us == pytest.approx(0.264)
    assert cost.reduction_us == pytest.approx(0.161)
    assert cost.latency_us == pytest.approx(0.425)
    assert (cost.a_bytes, cost.b_bytes, cost.c_store_bytes) == (64, 64, 128)
    assert cost.reduction_bytes == 2 * 16 * 4 + 16 * 2
    assert cost.dram_bytes == cost.busiest_core_bytes == 416


def test_by_hand_split_k_over_the_network() -> None:
    # The partial C stays: 64 bytes, 0.128 us over DRAM, 0.032 us over the port of 2,000 bytes/us, 8 steps: 0.008 us.
    # Then 8 elements, 32 bytes, come over the port (0.016 us), 16 bytes are written (0.032 us), and 8 adds: 0.001 us.
    arch = _chip(num_cores=2, reduction="noc", vector_ops_per_cycle=8.0, noc_gb_per_s=2.0)
    cost = _evaluate(arch, GemmProblem(1, 4, 8, 4), (1, 1, 1, 2), (4, 4, 4), "MNK")
    assert (cost.dram_us, cost.noc_us) == (pytest.approx(0.128), pytest.approx(0.032))
    assert cost.reduction_us == pytest.approx(0.049)
    assert cost.latency_us == pytest.approx(0.185)
    assert (cost.c_store_bytes, cost.reduction_bytes, cost.reduction_noc_bytes) == (0, 32, 64)
    assert cost.dram_bytes == cost.busiest_core_bytes == 160


def test_by_hand_multicast_with_edge_blocks() -> None:
    # M=4 N=5 K=2 on 2x2 cores: m=2, n=3 then 2. The full block: A 2x2 8 bytes, B 2x3 12, C 2x3 12. Charged 8/2 + 12/2 +
    # 12 = 22 bytes at 250 bytes/us: 0.088 us; the port takes all 32 bytes at 100 bytes/us: 0.32 us.
    # 2 steps follow: 0.002 us.
    arch = _chip(num_cores=4, load_sharing="multicast", noc_gb_per_s=0.1)
    cost = _evaluate(arch, GemmProblem(1, 4, 2, 5), (1, 2, 2, 1), (2, 3, 2), "MNK")
    assert (cost.dram_us, cost.noc_us) == (pytest.approx(0.088), pytest.approx(0.32))
    assert cost.latency_us == pytest.approx(0.322)
    assert cost.busiest_core_bytes == 4 * 22
    # Two A slices of 8 bytes; B slices of 12 and 8; C 2*(12 + 8).
    assert (cost.a_bytes, cost.b_bytes, cost.c_store_bytes) == (16, 20, 40)
    private = _evaluate(arch.with_(load_sharing="private"), GemmProblem(1, 4, 2, 5), (1, 2, 2, 1), (2, 3, 2), "MNK")
    assert (private.a_bytes, private.b_bytes, private.c_store_bytes) == (32, 40, 40)


@pytest.mark.parametrize(("group_size", "scales_bytes", "sram_bytes"), [(2, 30, 88), (None, 15, 80)])
def test_by_hand_quantized(group_size: int | None, scales_bytes: int, sram_bytes: int) -> None:
    # M=2 K=8 N=3, int4 weights, fp16 scale + int4 zero = 20 bits a group. A 32 bytes, B 24 nibbles = 12, C 12.
    # Scales: groups of 2: 4 rows of 3, 240 bits = 30 bytes. One per column: 3 with each of the 2 tiles, 120 bits = 15.
    # SRAM of a 2x3x4 tile: A 2 rows of 8 bytes; B 4 rows of 12 bits (2 bytes); S 2 (or 1) rows of 60 bits (8 bytes);
    # D 4 rows of 6 bytes; C 2 rows of 12 bytes: 16 + 8 + 16 (or 8) + 24 + 24.
    arch = _chip(dequant="vector", dequant_ops_per_elem=2.0, vector_ops_per_cycle=4.0, vector_is_concurrent=False)
    problem = GemmProblem(
        1, 2, 8, 3, weight_dtype=DType.INT4, group_size=group_size, scale_dtype=DType.FP16, zero_dtype=DType.INT4
    )
    cost = _evaluate(arch, problem, ONE_CORE, (2, 3, 4), "MNK")
    assert (cost.a_bytes, cost.b_bytes, cost.scales_bytes, cost.c_store_bytes) == (32, 12, scales_bytes, 12)
    assert cost.sram_used_bytes == sram_bytes
    # 1*2*4 = 8 steps and then 24 weights * 2 ops / 4 a cycle = 12 cycles; with a concurrent vector unit the longer one.
    assert cost.compute_us == pytest.approx(0.020)
    concurrent = _evaluate(arch.with_(vector_is_concurrent=True), problem, ONE_CORE, (2, 3, 4), "MNK")
    assert concurrent.compute_us == pytest.approx(0.012)


@pytest.mark.parametrize(("dequant", "sram_bytes"), [("vector", 264), ("inline", 216)])
def test_by_hand_sram_padding(dequant: str, sram_bytes: int) -> None:
    # The same 2x3x4 tile with rows padded to 3 and row bytes to 4: A 2 -> 3 rows of 8; B 4 -> 6 rows of 2 -> 4;
    # S 2 -> 3 rows of 8; D 4 -> 6 rows of 6 -> 8; C 2 -> 3 rows of 12. 2*(24 + 24 + 24) + 48 + 2*36; inline needs no D.
    fields = {"lane_num": 3, "align_bytes": 4, "input_buffers": 2, "output_buffers": 2}
    arch = _chip(**fields, dequant=dequant, dequant_ops_per_elem=2.0, vector_ops_per_cycle=4.0, sram_bytes=300)
    problem = GemmProblem(1, 2, 8, 3, weight_dtype=DType.INT4, group_size=2, zero_dtype=DType.INT4)
    mapping = MulticoreMapping(Partition(*ONE_CORE), Tile(2, 3, 4), LoopOrder.MNK)
    assert naive.evaluate_mapping(arch, problem, mapping).sram_used_bytes == sram_bytes
    assert naive.is_legal(arch.with_(sram_usable_frac=0.9), problem, mapping)  # of 270 bytes
    assert naive.is_legal(arch.with_(sram_usable_frac=0.72), problem, mapping) is (dequant == "inline")  # of 216


@pytest.mark.parametrize(("output_buffers", "latency_us"), [(2, 0.152), (1, 0.176)])
def test_by_hand_pipeline_with_spills(output_buffers: int, latency_us: float) -> None:
    # M=4 K=4 N=2 in 2x2x2 tiles, order KMN: visits (k0,m0) (k0,m1) (k1,m0) (k1,m1). In bytes, which are ns here:
    # loads 16 8 16 8 (B changes with k only), refills 0 0 16 16, spills 16 16 then stores 8 8. A visit computes 20 ns.
    # 2 buffers: 16 + max(20, 8) + max(20, 16+16+16) + max(20, 8+16+16) + max(20, 8) + 8 = 152
    # 1 buffer:  16 + (20 + 16) + (20 + 16+16) + (20 + 8+16) + (20 + 8) = 176
    arch = _chip(timing="pipeline", input_buffers=2, output_buffers=output_buffers, fill_drain_cycles=19)
    cost = _evaluate(arch, GemmProblem(1, 4, 4, 2), ONE_CORE, (2, 2, 2), "KMN")
    assert cost.latency_us == pytest.approx(latency_us)
    # Counts of the overlap model: 4 steps + 4*19 cycles; A 32, B 16, C 16 bytes, and 32 + 32 for spills and refills
    assert cost.compute_us == pytest.approx(0.080)
    assert cost.dma_us == pytest.approx(0.128)


# ---- grouped GEMMs ---------------------------------------------------------------------------------------------------


@settings(max_examples=examples(200))
@given(
    st.lists(st.integers(0, 70), min_size=1, max_size=12).filter(any),
    st.integers(1, 9),
    st.integers(1, 6),
    st.integers(1, 9),
)
def test_groups_are_spread_as_the_definition_says(groups: list[int], cube_m: int, P_M: int, P_G: int) -> None:
    """None is lost, and the heaviest set is at most twice what it must be."""
    sets = naive.spread_groups(GemmProblem.grouped(groups, 4, 4), cube_m, P_G, P_M)
    if len(set(filter(None, groups))) > 1:
        assert sorted(rows for members in sets for rows in members) == sorted(filter(None, groups))
        weights = [[ceil_div(ceil_div(rows, P_M), cube_m) for rows in members] for members in sets]
        loads = [sum(of_set) for of_set in weights]
        least = max(max(map(max, weights)), ceil_div(sum(loads), P_G))
        assert max(loads) <= 2 * least
    assert sets == naive.spread_groups(GemmProblem.grouped(groups[::-1], 4, 4), cube_m, P_G, P_M)


def test_by_hand_where_groups_lie() -> None:
    def sets_of(*groups: int, P_G: int, P_M: int = 1, cube_m: int = 2) -> list[list[int]]:
        return naive.spread_groups(GemmProblem.grouped(groups, 4, 4), cube_m, P_G, P_M)

    assert sets_of(3, 3, 3, 3, 3, 0, P_G=4) == [[3, 3], [3, 3], [3]]  # as a batch of 5 in parts of ceil(5/4)
    # weights 8, 3, 2, then 1 five times: 8 | 3 | 2, 3 | 3, where loads and counts are equal, and so on
    assert sets_of(16, 1, 6, 1, 1, 4, 1, 1, P_G=3) == [[16], [6, 1, 1], [4, 1, 1, 1]]
    # equal loads of 2: the set of one group goes first
    assert sets_of(8, 4, 2, 1, 1, P_G=3) == [[8], [4, 1], [2, 1]]
    # over 4 cores along M the blocks have 4, 2, 1, 1 rows: weights 2, 1, 1, 1
    assert sets_of(16, 6, 4, 1, P_G=2, P_M=4) == [[16, 1], [6, 4]]


def test_by_hand_two_groups_on_two_sets() -> None:
    # 6 and 2 rows, one empty group: weights 3 and 1. Each of 2 cores has 500 bytes/us. The larger group: A 6*4*2 = 48,
    # B 4*2*2 = 16, C 6*2*2 = 24 bytes, 3*1*2 = 6 steps: 0.176 + 0.006 us. The smaller one: 16 + 16 + 8 bytes.
    mapping = MulticoreMapping(Partition(2, 1, 1, 1), Tile(6, 2, 4), LoopOrder.MNK)
    cost = naive.evaluate_mapping(_chip(num_cores=2), GemmProblem.grouped((2, 0, 6), 4, 2), mapping)
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
    cost = naive.evaluate_mapping(arch, problem, mapping)
    assert cost.active_cores == 3
    assert cost.latency_us == pytest.approx(0.208)
    assert (cost.a_bytes, cost.b_bytes, cost.c_store_bytes) == (56, 80, 28)
    shared = naive.evaluate_mapping(
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
    cost = naive.evaluate_mapping(arch, GemmProblem.grouped((2, 4), 4, 2), mapping)
    assert cost.latency_us == pytest.approx(0.106)
    twice = naive.evaluate_mapping(
        arch.with_(output_buffers=2), GemmProblem.grouped((2, 4), 4, 2), mapping
    )  # fmt: skip
    assert twice.latency_us == pytest.approx(0.104)
