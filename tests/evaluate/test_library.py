"""Libraries of chips: rules that leave mappings out, and paths for GEMMs of some sizes."""

import re
from typing import Any

import pytest

from gemm_eval import ArchValidationError, GEMMEvaluator, InfeasibleError, MulticoreSpec
from gemm_eval.dtypes import DType
from gemm_eval.units import time_text

# ---- rules -----------------------------------------------------------------------------------------------------------


RULED = MulticoreSpec(
    name="ruled",
    num_cores=2,
    frequency_ghz=1.0,
    cube_m=4,
    cube_k=4,
    cube_n=4,
    cube_steps_per_cycle={DType.FP32: 1.0},
    default_dtype=DType.FP32,
    sram_bytes=4096,
    input_buffers=1,
    dram_gb_per_s=8.0,
    reduction="none",
    overlap_frac=0.0,
)


def under(**rules: Any) -> MulticoreSpec:
    return RULED.with_(rules={"title": "a library"} | rules)


@pytest.mark.parametrize(
    ("rules", "culprits"),
    [
        ({"max_tile_bytes": {"A": 16}}, ["max_tile_bytes"]),
        ({"max_tile_bytes": {"A": 16}, "loop_orders": ["mnk"]}, ["max_tile_bytes"]),
        ({"tile_k": [512], "splits": ["M"]}, ["tile_k"]),
        ({"partitions": [[1, 1, 1, 2]], "splits": ["M", "K"]}, ["partitions"]),
        ({"tile_k": [512], "max_tile_bytes": {"A": 16}}, ["max_tile_bytes", "tile_k"]),
    ],
)
def test_an_error_names_the_rules_that_leave_no_mapping(rules: dict[str, Any], culprits: list[str]) -> None:
    arch = under(**rules)
    with pytest.raises(InfeasibleError, match="a library has no mapping for it") as error:
        GEMMEvaluator(arch, disk_cache=False).evaluate(1, 64, 512, 64)
    assert error.value.resource == "rules"
    assert "SRAM" not in str(error.value)
    assert sorted(set(re.findall(r"rules\.(\w+)", str(error.value)))) == sorted(culprits)
    assert GEMMEvaluator(arch, policy="best", disk_cache=False).evaluate(1, 64, 512, 64).latency_us > 0
    (first, *others) = error.value.levers
    assert first == "policy='best'"
    for lever in others:  # each alone is enough
        kept = {name: value for name, value in rules.items() if lever != f"without rules.{name}"}
        assert GEMMEvaluator(under(**kept), disk_cache=False).evaluate(1, 64, 512, 64).latency_us > 0


def test_a_whole_k_that_does_not_fit_is_cut_into_as_few_parts_as_fit() -> None:
    result = GEMMEvaluator(under(whole=["K"]), disk_cache=False).evaluate(1, 64, 512, 64)
    assert result.mapping.tile.tile_k == 104  # type: ignore[union-attr] # 126 fit, so five parts
    assert result.sram_used_bytes is not None
    assert result.sram_used_bytes <= RULED.sram_bytes


def test_the_best_is_that_of_the_chip_without_what_its_library_changes() -> None:
    arch = under(changes={"sram_bytes": 512, "launch_us": 3.0})
    library, best = GEMMEvaluator(arch, disk_cache=False), GEMMEvaluator(arch, policy="best", disk_cache=False)
    found = best.evaluate(1, 64, 256, 64)
    assert found.latency_us + 3.0 < library.evaluate(1, 64, 256, 64).latency_us  # it has more SRAM too
    told = library.evaluate(1, 64, 256, 64).explain()
    assert f"the best takes {time_text(found.latency_us)}" in told
    assert str(found.mapping) in told


# ---- paths -----------------------------------------------------------------------------------------------------------


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


def test_explain_says_which_path(library: GEMMEvaluator) -> None:
    assert "The library takes its path vector for GEMMs of this size." in library.evaluate(1, 1, 64, 64).explain()
    assert "path" not in library.evaluate(1, 64, 64, 64).explain()


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
