"""Rules of a library: what is said of GEMMs that it has no mapping for, and of mappings that it does not have."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gemm_eval import GEMMEvaluator, InfeasibleError, MulticoreSpec
from gemm_eval.dtypes import DType
from gemm_eval.units import time_text

CHIP = MulticoreSpec(
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
    return CHIP.with_(rules={"title": "a library"} | rules)


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
    assert result.sram_used_bytes <= CHIP.sram_bytes


def test_what_does_not_fit_without_rules_is_no_matter_of_rules() -> None:
    arch = under(whole=["K"]).with_(sram_bytes=64)
    with pytest.raises(InfeasibleError) as error:
        GEMMEvaluator(arch, disk_cache=False).evaluate(1, 64, 512, 64)
    assert error.value.resource == "sram"


def test_the_best_is_that_of_the_chip_without_what_its_library_changes() -> None:
    arch = under(changes={"sram_bytes": 512, "launch_us": 3.0})
    library, best = GEMMEvaluator(arch, disk_cache=False), GEMMEvaluator(arch, policy="best", disk_cache=False)
    found = best.evaluate(1, 64, 256, 64)
    assert found.latency_us + 3.0 < library.evaluate(1, 64, 256, 64).latency_us  # it has more SRAM too
    told = library.evaluate(1, 64, 256, 64).explain()
    assert f"the best takes {time_text(found.latency_us)}" in told
    assert str(found.mapping) in told


def test_a_chip_that_only_its_library_makes_large_enough() -> None:
    arch = under(changes={"sram_bytes": 4096}).with_(sram_bytes=64)
    library, best = (GEMMEvaluator(arch, policy=policy, disk_cache=False) for policy in ("library", "best"))
    chosen = library.evaluate(1, 64, 256, 64)
    assert "chooses this mapping, and none is better" in chosen.explain()
    assert best.evaluate(1, 64, 256, 64).mapping == chosen.mapping
