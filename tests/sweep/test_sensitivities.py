"""Sensitivity of sweeps: which fields matter, against chips evaluated by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from gemm_eval import GEMMEvaluator, load_arch
from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.sweep import LogRange, Range, SensitivityResult, Space, sensitivity
from gemm_eval.sweep.sensitivity_analysis import _unit_of

GEMM = (1, 64, 1024, 1024)


def by_hand_us(**fields: Any) -> float:
    arch = load_arch("demo-8core").with_(**fields)
    return GEMMEvaluator(arch, allow_idle_cores=False, disk_cache=False).evaluate(*GEMM).latency_us


def measured(result: SensitivityResult, measure: str, output: int = 0) -> dict[str, float]:
    return dict(zip(result.names, result.measures[measure][:, output].tolist(), strict=True))


@pytest.mark.parametrize("method", ["oat", "morris", "sobol"])
def test_a_field_that_does_not_matter_has_0(method: str) -> None:
    options: dict[str, Any] = {"oat": {}, "morris": {"num_samples": 4}, "sobol": {"num_samples": 8}}[method]
    space = Space("demo-8core", dram_gb_per_s=Range(50.0, 400.0), tdp_w=Range(10.0, 20.0), num_cores=[4, 8, 16])
    result = sensitivity(space, [GEMM], method=method, **options)

    found = dict(zip(result.names, result.importance[:, 0].tolist(), strict=True))
    assert found["tdp_w"] == 0.0
    assert found["dram_gb_per_s"] > 0.0
    assert result.to_pandas()["input"].iloc[-1] == "tdp_w"


def test_oat_swings_are_those_of_chips_evaluated_by_hand() -> None:
    cores, bandwidths = [4, 8, 16], (50.0, 400.0)
    space = Space("demo-8core", num_cores=cores, dram_gb_per_s=Range(*bandwidths))
    result = sensitivity(space, [GEMM], method="oat", num_samples=3, base={"num_cores": 16, "dram_gb_per_s": 100.0})

    at_base = by_hand_us(num_cores=16, dram_gb_per_s=100.0)
    over_cores = [by_hand_us(num_cores=num, dram_gb_per_s=100.0) for num in cores]
    over_dram = [at_base, *(by_hand_us(num_cores=16, dram_gb_per_s=rate) for rate in (50.0, 225.0, 400.0))]
    for name, found in (("num_cores", over_cores), ("dram_gb_per_s", over_dram)):
        assert measured(result, "low")[name] == pytest.approx(min(found), rel=1e-12)
        assert measured(result, "high")[name] == pytest.approx(max(found), rel=1e-12)
        assert measured(result, "swing")[name] == pytest.approx(max(found) - min(found), rel=1e-9)
        swing = (max(found) - min(found)) / at_base
        assert measured(result, "relative_swing")[name] == pytest.approx(swing, rel=1e-9)


def test_the_base_is_the_middle_unless_it_is_given() -> None:
    space = Space("demo-8core", num_cores=[4, 8, 16], dram_gb_per_s=Range(100.0, 300.0))
    same = sensitivity(space, [GEMM], method="oat", base={"num_cores": 8, "dram_gb_per_s": 200.0})
    assert measured(sensitivity(space, [GEMM], method="oat"), "swing") == measured(same, "swing")
    partly = sensitivity(space, [GEMM], method="oat", base={"num_cores": 8})
    assert measured(partly, "swing") == measured(same, "swing")


FIELDS: list[tuple[Any, list[Any]]] = [
    (Range(100.0, 1600.0), [100.0, 100.1, 123.456, 1599.99, 1600.0]),
    (LogRange(0.001, 1e6), [0.001, 0.5, 1e3, 999_999.0]),
    (Range(1, 100), [1, 2, 50, 99, 100]),
    (LogRange(1, 10**6), [1, 2, 777, 10**6]),
    (Range(0, 1024, step=64), [0, 64, 512, 1024]),
    (LogRange(64, 4096, step=64), [64, 128, 4032]),
    (Range(0.1, 0.9, step=0.1), [0.1, 0.5, 0.9]),
    (["a", "b", "c"], ["a", "b", "c"]),
    ([None, {"fp16": 1.0}, True, 5], [None, {"fp16": 1.0}, True, 5]),
]


@pytest.mark.parametrize(("field", "values"), FIELDS)
def test_the_base_is_found_by_value(field: Any, values: list[Any]) -> None:
    space = Space("demo-8core", variables={"x": field})
    for value in values:
        unit = _unit_of(space, "x", {"x": value})
        (row,) = space.rows_of(np.array([[unit]]))
        assert row == (pytest.approx(value, rel=1e-12) if isinstance(value, float) else value,)


def test_the_base_of_a_stepped_field_is_its_nearest_value() -> None:
    space = Space("demo-8core", variables={"x": Range(0, 100, step=10)})
    for value, nearest in ((51, 50), (58.0, 60), (3, 0)):
        assert space.rows_of(np.array([[_unit_of(space, "x", {"x": value})]])) == [(nearest,)]


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ({"sram": 1}, "base names sram, which the space does not vary"),
        ({"area": 1}, "base names area, which"),
        ({"cores": 5}, "base: cores must be one of 4, 8, got 5"),
        ({"x": 0.5}, r"base: x must be in 1..2, got 0.5"),
        ({"x": float("nan")}, r"base: x must be in 1..2, got nan"),
        ({"x": "fast"}, r"base: x must be in 1..2, got 'fast'"),
        ({"x": True}, r"base: x must be in 1..2, got True"),
    ],
)
def test_bases_that_cannot_be(base: Mapping[str, Any], message: str) -> None:
    space = Space("demo-8core", variables={"cores": [4, 8], "x": Range(1.0, 2.0), "area": "= cores"})
    with pytest.raises(InvalidOptionError, match=message):
        sensitivity(space, [GEMM], method="oat", base=base)


def test_infeasible_points() -> None:
    space = Space("demo-8core", num_cores=[4, 8, 16], dram_gb_per_s=Range(50.0, 400.0))
    options: dict[str, Any] = {"method": "oat", "num_samples": 3, "constraints": ["dram_gb_per_s >= 200"]}

    with pytest.raises(GemmEvalError, match="1 of the 7 points are infeasible"):
        sensitivity(space, [GEMM], **options)
    omitted = sensitivity(space, [GEMM], on_infeasible="omit", **options)
    assert measured(omitted, "num_infeasible") == {"num_cores": 0.0, "dram_gb_per_s": 1.0}
    fast, middle = (by_hand_us(num_cores=8, dram_gb_per_s=rate) for rate in (400.0, 225.0))
    assert measured(omitted, "swing")["dram_gb_per_s"] == pytest.approx(middle - fast, rel=1e-9)
    worst = sensitivity(space, [GEMM], on_infeasible="worst", **options)
    assert worst.num_replaced == 1
    assert measured(worst, "high")["dram_gb_per_s"] >= measured(omitted, "high")["dram_gb_per_s"]


def test_the_worst_of_what_should_be_large_is_small() -> None:
    space = Space("demo-8core", dram_gb_per_s=Range(50.0, 400.0))
    aims = ["latency_us", "tflop_per_s"]
    options: dict[str, Any] = {"method": "oat", "num_samples": 4, "constraints": ["dram_gb_per_s >= 100"]}
    result = sensitivity(space, [GEMM], aims, on_infeasible="worst", **options)
    kept = sensitivity(space, [GEMM], aims, on_infeasible="omit", **options)

    assert result.output_names == tuple(aims)
    assert np.array_equal(result.measures["low"], kept.measures["low"])
    assert np.array_equal(result.measures["high"], kept.measures["high"])


def test_dependent_fields_follow_and_archs_can_vary() -> None:
    space = Space(["demo-8core", "sg2260e"], dram_gb_per_s=Range(100.0, 200.0), area_mm2="= 2 * dram_gb_per_s")
    result = sensitivity(space, [GEMM], ["area_mm2", "latency_us"], method="oat", dtype="fp16")

    assert result.names == ("arch", "dram_gb_per_s")
    assert measured(result, "swing") == {"arch": 0.0, "dram_gb_per_s": 200.0}


def test_workloads_may_come_one_by_one() -> None:
    space = Space("demo-8core", num_cores=[4, 8])
    once = sensitivity(space, (gemm for gemm in [GEMM]), "latency_us", method="oat")
    assert measured(once, "swing") == measured(sensitivity(space, [GEMM], method="oat"), "swing")
