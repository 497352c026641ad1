"""Costs on multi-core chips: kernels against the slow oracle where mistakes hide; packing and waking by hand."""

import itertools
from typing import Any

import pytest

from gemm_eval import ArchValidationError, GEMMEvaluator, GemmProblem, GEMMResult, MulticoreSpec, UnsupportedError
from gemm_eval.dtypes import DType
from gemm_eval.mapping import LoopOrder, MulticoreMapping, Partition, Tile, enumerate_partitions
from gemm_eval.models.multicore.cost_kernels import block_of
from gemm_eval.models.multicore.model import pack_params
from gemm_eval.models.multicore.terms import BOUNDS, BREAKDOWN, MAIN, PHASES, TERMS, Times
from gemm_eval.search.multicore_kernels import partition_bound
from tests.oracle import naive

# ---- against the oracle ----------------------------------------------------------------------------------------------


CHIP = MulticoreSpec(
    name="ragged", num_cores=60, frequency_ghz=1.0, cube_m=2, cube_k=2, cube_n=2,
    cube_steps_per_cycle={DType.FP16: 1.0, DType.INT4: 4.0}, sram_bytes=1 << 16, dram_gb_per_s=7.0, dram_sharing="fair",
    reduction="dram", vector_ops_per_cycle=4.0, noc_gb_per_s=0.3, mac_pj={DType.FP16: 0.7, DType.INT4: 0.1},
    sram_pj_per_byte=1.3, dram_pj_per_byte=17.0, noc_pj_per_byte=2.9, static_w=0.01,
)  # fmt: skip


def test_half_bytes_do_not_lift_the_bound_of_a_pipeline() -> None:
    """A pipeline moves halves of a byte where a sum of bytes is rounded up: the bound must stay below it."""
    arch = CHIP.with_(num_cores=1, timing="pipeline", reduction="none", frequency_ghz=1e3, default_dtype=DType.INT4)
    for noc_gb_per_s, buffers, G, K in itertools.product((None, 0.3, 70.0), (1, 2), (1, 3), (1, 3, 5)):
        chip = arch.with_(noc_gb_per_s=noc_gb_per_s, output_buffers=buffers)
        problem = GemmProblem(G, 1, K, 1, DType.INT4, output_dtype=DType.INT4)
        params = pack_params(chip, problem.types)
        bound_us, _ = partition_bound(params[0], block_of(params[0], *problem.sizes, 1, 1, 1, 1))
        mapping = MulticoreMapping(Partition(1, 1, 1, 1), Tile(1, 1, K), LoopOrder.MNK)
        latency_us = naive.evaluate_mapping(chip, problem, mapping).latency_us
        assert bound_us <= latency_us, (problem, chip)


def test_a_search_counts_its_partitions() -> None:
    """Those that amount to another one, or split K where the chip cannot reduce, are dropped; no other is."""
    for reduction, sizes in itertools.product(
        ("none", "dram"), ((1, 5, 7, 9), (4, 3, 40, 1), (2, 9, 8, 6), (1, 1, 1, 1))
    ):
        arch = CHIP.with_(num_cores=12, reduction=reduction)
        problem = GemmProblem(*sizes)
        num_dropped = 0
        partitions = enumerate_partitions(arch.num_cores, allow_idle_cores=True).tolist()
        for row in partitions:
            block = naive.full_block(problem, Partition(*row))
            pairs = zip((problem.G, problem.M, problem.N, problem.K), block, row, strict=True)
            is_twin = any(-(-size // part) != parts for size, part, parts in pairs)
            num_dropped += is_twin or (reduction == "none" and block.k < problem.K)
        refused = GEMMEvaluator(arch, disk_cache=False).evaluate_problem(problem).num_refused
        assert refused["partition_dropped"] == num_dropped, (reduction, sizes)
        assert 0 <= refused["partition_bound"] < len(partitions) - num_dropped


def test_every_term_has_a_phase_and_every_phase_a_word() -> None:
    assert tuple(TERMS) == Times._fields
    assert {term.phase for term in TERMS.values()} == set(PHASES)
    assert set(BOUNDS) == set(PHASES) - {MAIN} | {"compute", "vector", "dram", "shared", "noc", "feed"}
    assert all(term.meaning for term in TERMS.values())
    assert sorted(BREAKDOWN) == sorted((*Times._fields, "hidden_us"))


def test_block_scaled_types_on_chips() -> None:
    """Scales of A and of several columns are refused, not left out; fp4 weights are as others of 4 bits."""
    chip = GEMMEvaluator("demo-8core", disk_cache=False)
    for dtype in ("fp8_block", "mxfp8"):
        with pytest.raises(UnsupportedError, match="demo-8core takes no block-scaled fp8 inputs"):
            chip.evaluate(1, 64, 256, 256, dtype)
    with pytest.raises(UnsupportedError, match="no block-scaled int4 weights with group_n 128"):
        chip.evaluate(1, 64, 256, 256, "w4a16", group_n=128)
    with pytest.raises(UnsupportedError, match="cannot multiply fp4"):
        chip.evaluate(1, 64, 256, 256, "nvfp4")
    for dtype, group_size in (("w4a16_mxfp4", 32), ("w4a16_nvfp4", 16)):
        found = chip.evaluate(1, 64, 256, 256, dtype)
        like = chip.evaluate(1, 64, 256, 256, "w4a16", group_size=group_size, scale_dtype="fp8")
        assert found.latency_us == like.latency_us
        assert found.traffic == like.traffic


# ---- packing and waking: MODEL.md ------------------------------------------------------------------------------------


PACKER = MulticoreSpec(
    name="packer", num_cores=4, frequency_ghz=1.0, cube_m=4, cube_k=1, cube_n=8, cube_steps_per_cycle={DType.FP32: 1.0},
    default_dtype=DType.FP32, sram_bytes=1 << 20, dram_gb_per_s=100.0, dram_sharing="fair", reduction="none",
    launch_us=1.0,
)  # fmt: skip
PROBLEM = GemmProblem(1, 32, 64, 128, input_dtype="fp32")
QUARTERS = ((1, 2, 2, 1), (16, 64, 64), "mnk")
"""Two cores need each half of A, and two each half of B."""
PACKS = {"packs": {"A": "shared", "B": "private"}, "pack_gb_per_s": 2.0}


def cost_of_packer(mapping: Any = QUARTERS, problem: GemmProblem = PROBLEM, **changes: Any) -> GEMMResult:
    return GEMMEvaluator(PACKER.with_(**changes), disk_cache=False).evaluate_mapping(problem, mapping)


def test_cores_are_woken_where_there_are_several() -> None:
    alone = ((1, 1, 1, 1), (16, 64, 64), "mnk")
    assert cost_of_packer(sync_us=3.0).breakdown["sync_us"] == 3.0
    assert cost_of_packer(alone, sync_us=3.0).breakdown["sync_us"] == 0.0
    assert cost_of_packer(sync_us=3.0).latency_us == pytest.approx(cost_of_packer().latency_us + 3.0)


def test_they_can_bound_a_gemm() -> None:
    assert cost_of_packer(sync_us=500.0).bound == "sync"
    assert cost_of_packer(**PACKS | {"pack_gb_per_s": 0.01}).bound == "pack"
    assert "bound by the packing of operands" in cost_of_packer(**PACKS | {"pack_gb_per_s": 0.01}).explain()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"packs": {"A": "shared"}}, "packs and pack_gb_per_s go together"),
        ({"pack_gb_per_s": 2.0}, "packs and pack_gb_per_s go together"),
        ({"packs": {"C": "shared"}, "pack_gb_per_s": 2.0}, "packs: A and B can be packed, C cannot"),
        ({"packs": {"A": "twice"}, "pack_gb_per_s": 2.0}, "packs.A must be"),
        ({"sync_us": -1.0}, "sync_us must be"),
        ({"task_us": -1.0}, "task_us must be"),
    ],
)
def test_what_cannot_be_packed_woken_or_started(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArchValidationError, match=message):
        PACKER.with_(**changes)
