"""Packing of operands and waking of cores, by hand: MODEL.md, "Packing and waking"."""

from __future__ import annotations

from typing import Any

import pytest

from gemm_eval import ArchValidationError, GEMMEvaluator, GemmProblem, GEMMResult, MulticoreSpec
from gemm_eval.dtypes import DType

CHIP = MulticoreSpec(
    name="packer", num_cores=4, frequency_ghz=1.0, cube_m=4, cube_k=1, cube_n=8, cube_steps_per_cycle={DType.FP32: 1.0},
    default_dtype=DType.FP32, sram_bytes=1 << 20, dram_gb_per_s=100.0, dram_sharing="fair", reduction="none",
    launch_us=1.0,
)  # fmt: skip
PROBLEM = GemmProblem(1, 32, 64, 128, input_dtype="fp32")
A_BYTES, B_BYTES = 4 * 32 * 64, 4 * 64 * 128
QUARTERS = ((1, 2, 2, 1), (16, 64, 64), "mnk")
"""Two cores need each half of A, and two each half of B."""
PACKS = {"packs": {"A": "shared", "B": "private"}, "pack_gb_per_s": 2.0}


def cost(mapping: Any = QUARTERS, problem: GemmProblem = PROBLEM, **changes: Any) -> GEMMResult:
    return GEMMEvaluator(CHIP.with_(**changes), disk_cache=False).evaluate_mapping(problem, mapping)


def test_without_packing_nothing_is_packed() -> None:
    breakdown = cost().breakdown
    assert (breakdown["pack_us"], breakdown["sync_us"]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("packs", "packed_bytes"),
    [
        ({"A": "private"}, A_BYTES / 2),
        ({"A": "shared"}, A_BYTES / 4),
        ({"B": "private"}, B_BYTES / 2),
        ({"B": "shared"}, B_BYTES / 4),
        ({"A": "shared", "B": "private"}, A_BYTES / 4 + B_BYTES / 2),
    ],
)
def test_a_core_packs_its_block_or_a_part_of_it(packs: dict[str, str], packed_bytes: float) -> None:
    plain, packed = cost(), cost(packs=packs, pack_gb_per_s=2.0)

    assert packed.breakdown["pack_us"] == packed_bytes / 2000.0
    assert packed.latency_us == pytest.approx(plain.latency_us + packed_bytes / 2000.0)
    assert packed.dram_bytes == plain.dram_bytes


def test_what_lies_beyond_counts_twice() -> None:
    own = B_BYTES / 2
    for near, counted in ((own, own), (own - 100, own + 100), (1, 2 * own - 1)):
        found = cost(packs={"B": "private"}, pack_gb_per_s=2.0, pack_near_bytes=int(near))
        assert found.breakdown["pack_us"] == counted / 2000.0


def test_elements_of_a_batch_are_packed_one_by_one() -> None:
    batch = GemmProblem(3, 32, 64, 128, input_dtype="fp32")
    near = {"packs": {"B": "private"}, "pack_gb_per_s": 2.0, "pack_near_bytes": 1000}
    one, three = cost(**near), cost(problem=batch, **near)
    assert three.breakdown["pack_us"] == pytest.approx(3 * one.breakdown["pack_us"])


def test_cores_are_woken_where_there_are_several() -> None:
    alone = ((1, 1, 1, 1), (16, 64, 64), "mnk")
    assert cost(sync_us=3.0).breakdown["sync_us"] == 3.0
    assert cost(alone, sync_us=3.0).breakdown["sync_us"] == 0.0
    assert cost(sync_us=3.0).latency_us == pytest.approx(cost().latency_us + 3.0)


def test_they_can_bound_a_gemm() -> None:
    assert cost(sync_us=500.0).bound == "sync"
    assert cost(**PACKS | {"pack_gb_per_s": 0.01}).bound == "pack"
    assert "bound by the packing of operands" in cost(**PACKS | {"pack_gb_per_s": 0.01}).explain()


def test_small_gemms_stay_on_one_core_where_waking_costs_more() -> None:
    small, large = GemmProblem(1, 8, 8, 8, input_dtype="fp32"), GemmProblem(1, 512, 512, 512, input_dtype="fp32")
    evaluator = GEMMEvaluator(CHIP.with_(sync_us=5.0), disk_cache=False)
    assert evaluator.evaluate_problem(small).active_cores == 1
    assert evaluator.evaluate_problem(large).active_cores == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"packs": {"A": "shared"}}, "packs and pack_gb_per_s go together"),
        ({"pack_gb_per_s": 2.0}, "packs and pack_gb_per_s go together"),
        ({"packs": {"C": "shared"}, "pack_gb_per_s": 2.0}, "packs: A and B can be packed, C cannot"),
        ({"packs": {"A": "twice"}, "pack_gb_per_s": 2.0}, "packs.A must be"),
        ({"sync_us": -1.0}, "sync_us must be"),
    ],
)
def test_what_cannot_be_packed(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArchValidationError, match=message):
        CHIP.with_(**changes)
