"""Paths of a library: code of its own for GEMMs of some sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gemm_eval import ArchValidationError, GEMMEvaluator, GemmProblem, MulticoreSpec
from gemm_eval.dtypes import DType

PATHS: dict[str, Any] = {
    "vector_near": {"max_rows": 1, "max_bytes": 5000, "changes": {"launch_us": 100.0}},
    "vector": {"max_rows": 1, "changes": {"launch_us": 200.0}},
    "small": {"max_macs": 4096, "splits": [], "changes": {"launch_us": 300.0}},
    "narrow": {"max_columns": 8, "splits": ["M"], "tile_m": [4], "changes": {"launch_us": 400.0}},
    "short": {"max_reduction": 32, "changes": {"launch_us": 450.0}},
}
CHIP = MulticoreSpec(
    name="walker",
    num_cores=4,
    frequency_ghz=1.0,
    cube_m=1,
    cube_k=1,
    cube_n=4,
    cube_steps_per_cycle={DType.FP32: 1.0, DType.INT8: 4.0},
    default_dtype=DType.FP32,
    sram_bytes=1 << 16,
    dram_gb_per_s=50.0,
    reduction="none",
    launch_us=1.0,
    rules={"title": "a library", "changes": {"launch_us": 500.0}, "paths": PATHS},  # type: ignore[arg-type]
)
TAKEN = [
    ((1, 16, 64), 100.0),  # 4,416 bytes
    ((1, 64, 64), 200.0),
    ((2, 16, 16), 300.0),
    ((64, 64, 8), 400.0),
    ((64, 32, 64), 450.0),
    ((64, 64, 64), 500.0),
]
"""M, K, N and the launch that says which path was taken."""


@pytest.fixture
def library() -> GEMMEvaluator:
    return GEMMEvaluator(CHIP, disk_cache=False)


@pytest.mark.parametrize(("sizes", "launch_us"), TAKEN)
def test_the_first_path_counts_whose_limits_hold(
    library: GEMMEvaluator, sizes: tuple[int, int, int], launch_us: float
) -> None:
    assert library.evaluate(1, *sizes).breakdown["launch_us"] == launch_us


def test_limits_are_of_one_batch_element(library: GEMMEvaluator) -> None:
    assert library.evaluate(1000, 2, 16, 16).breakdown["launch_us"] == 300.0


def test_bytes_count_the_types(library: GEMMEvaluator) -> None:
    assert library.evaluate(1, 1, 64, 64, dtype="int8").breakdown["launch_us"] == 100.0


def test_paths_have_partitions_and_tiles_of_their_own(library: GEMMEvaluator) -> None:
    assert library.evaluate(1, 2, 16, 16).active_cores == 1
    narrow = library.evaluate(1, 64, 64, 8).mapping
    assert (tuple(narrow.partition), narrow.tile.tile_m) == ((1, 4, 1, 1), 4)  # type: ignore[union-attr]


def test_many_at_once_are_as_one_by_one(library: GEMMEvaluator) -> None:
    sizes = [(1, *sizes) for sizes, _ in TAKEN]
    table = library.evaluate_many(sizes * 2)
    assert table["latency_us"].tolist() == [library.evaluate(*row).latency_us for row in sizes] * 2


def test_grouped_gemms_take_the_path_of_their_largest_group(library: GEMMEvaluator) -> None:
    ones, more = (library.evaluate_grouped(groups, 64, 64) for groups in ((1, 1, 0), (1, 64, 0)))
    assert (ones.breakdown["launch_us"], more.breakdown["launch_us"]) == (200.0, 500.0)


def test_the_best_mapping_of_the_chip_knows_no_paths() -> None:
    assert GEMMEvaluator(CHIP, policy="best", disk_cache=False).evaluate(1, 1, 16, 64).breakdown["launch_us"] == 1.0


def test_a_mapping_is_costed_on_its_path(library: GEMMEvaluator) -> None:
    found = library.evaluate(1, 1, 64, 64)
    again = library.evaluate_mapping(found.problem, found.mapping)
    assert (again.latency_us, again.breakdown) == (found.latency_us, found.breakdown)


def test_costs_kept_on_disk_are_those_of_the_path(tmp_path: Path) -> None:
    kept = tmp_path / "costs"
    sizes = [(1, *sizes) for sizes, _ in TAKEN]
    first = GEMMEvaluator(CHIP, disk_cache=kept)
    table = first.evaluate_many(sizes)
    assert first.save_to_disk(table) == len(sizes)
    again = GEMMEvaluator(CHIP, disk_cache=kept)
    assert again.evaluate_many(sizes)["latency_us"].tolist() == table["latency_us"].tolist()
    assert again.cache_info().records.hits == len(sizes)


def test_explain_says_which_path(library: GEMMEvaluator) -> None:
    assert "The library takes its path vector for GEMMs of this size." in library.evaluate(1, 1, 64, 64).explain()
    assert "path" not in library.evaluate(1, 64, 64, 64).explain()


def test_top_is_of_the_path(library: GEMMEvaluator) -> None:
    problem = GemmProblem(1, 1, 64, 64, input_dtype="fp32")
    assert {found.breakdown["launch_us"] for found in library.top(problem, 3)} == {200.0}


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ({"changes": {"lunch_us": 1.0}}, "rules.paths.odd.changes: lunch_us is not a field, did you mean launch_us?"),
        ({"changes": {"num_cores": 2}}, "rules.paths.odd.changes: num_cores cannot be otherwise"),
        ({"max_rows": 0}, "max_rows must be >= 1"),
        ({"max_reduction": 0}, "max_reduction must be >= 1"),
        ({"splits": ["Q"]}, "splits"),
    ],
)
def test_paths_that_cannot_be(path: dict[str, Any], message: str) -> None:
    with pytest.raises(ArchValidationError, match=message):
        CHIP.with_(rules={"paths": {"odd": path}})
