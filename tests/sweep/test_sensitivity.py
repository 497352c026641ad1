"""Sensitivity of outputs to inputs of the unit cube, and of objectives to the fields of a space."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gemm_eval import GEMMEvaluator, load_arch
from gemm_eval.errors import GemmEvalError, InvalidInputError, InvalidOptionError
from gemm_eval.sweep import LogRange, Range, Space, sensitivity
from gemm_eval.sweep.sensitivity_analysis import MEASURES, METHODS, SensitivityResult, _unit_of, analyze_sensitivity

Floats = npt.NDArray[np.float64]

WEIGHTS = np.array([1.0, -3.0, 2.0])
NAMES = ("cores", "sram", "dram")
NUM_POINTS = {"oat": 1 + 3 * 5, "morris": 32 * 4, "sobol": 512 * 5}


def linear(unit: Floats) -> Floats:
    return (10.0 + unit @ WEIGHTS)[:, None]


def ishigami(unit: Floats) -> Floats:
    x = (2.0 * unit - 1.0) * np.pi
    return (np.sin(x[:, 0]) + 7.0 * np.sin(x[:, 1]) ** 2 + 0.1 * x[:, 2] ** 4 * np.sin(x[:, 0]))[:, None]


def infeasible_below(limit: float, value: float = np.nan) -> Callable[[Floats], Floats]:
    """The linear function, where the second input is at least `limit`; and a second output that always is."""

    def evaluate(unit: Floats) -> Floats:
        found = np.hstack([linear(unit), unit[:, :1]])
        found[unit[:, 1] < limit, 0] = value
        return found

    return evaluate


def analyze(
    evaluate: Callable[[Floats], npt.ArrayLike] = linear, output_names: tuple[str, ...] = ("us",), **options: Any
) -> SensitivityResult:
    return analyze_sensitivity(evaluate, NAMES, output_names=output_names, **options)


def test_oat_of_a_linear_function_is_exact() -> None:
    result = analyze(method="oat", base=[0.5, 0.0, 1.0], num_samples=3)
    at_base = 10.0 + 0.5 + 2.0

    assert result.num_evaluations == 1 + 3 * 3
    assert result.measures["low"].ravel().tolist() == [12.0, 9.5, 10.5]
    assert result.measures["high"].ravel().tolist() == [13.0, 12.5, 12.5]
    assert result.measures["swing"].ravel().tolist() == [1.0, 3.0, 2.0]
    assert result.measures["relative_swing"].ravel().tolist() == [1.0 / at_base, 3.0 / at_base, 2.0 / at_base]
    assert result.measures["num_infeasible"].ravel().tolist() == [0.0] * 3


def test_oat_moves_one_input_at_a_time() -> None:
    seen: list[Floats] = []
    analyze(lambda unit: (seen.append(unit), linear(unit))[1], method="oat", num_samples=2)
    half = 0.5
    assert seen[0].tolist() == [
        [half, half, half],
        [0.0, half, half],
        [1.0, half, half],
        [half, 0.0, half],
        [half, 1.0, half],
        [half, half, 0.0],
        [half, half, 1.0],
    ]


def test_oat_counts_its_base_as_a_value_of_every_input() -> None:
    result = analyze(lambda unit: np.abs(unit[:, :1] - 0.5), method="oat", num_samples=2)
    assert result.measures["low"][0] == 0.0
    assert result.measures["swing"].ravel().tolist() == [0.5, 0.0, 0.0]
    assert np.isnan(result.measures["relative_swing"]).all()  # the output is 0 at the base


def test_morris_of_a_linear_function_finds_its_slopes() -> None:
    result = analyze(method="morris", num_samples=4)

    assert result.num_evaluations == 4 * (3 + 1)
    np.testing.assert_allclose(result.measures["mu"][:, 0], WEIGHTS, rtol=1e-12)
    np.testing.assert_allclose(result.measures["mu_star"][:, 0], np.abs(WEIGHTS), rtol=1e-12)
    np.testing.assert_allclose(result.measures["sigma"], 0.0, atol=1e-12)
    np.testing.assert_allclose(result.measures["mu_star_conf"], 0.0, atol=1e-12)


def test_morris_tells_inputs_that_interact() -> None:
    result = analyze(lambda unit: (unit[:, 0] * unit[:, 1] + unit[:, 2])[:, None], method="morris")
    sigma = result.measures["sigma"][:, 0]
    assert sigma[2] == pytest.approx(0.0, abs=1e-12)
    assert min(sigma[:2]) > 0.1


def test_morris_gives_levels_to_the_bit() -> None:
    seen: list[Floats] = []
    analyze(lambda unit: (seen.append(unit), linear(unit))[1], method="morris", num_samples=50)
    assert set(seen[0].ravel()) == {0.0, 1 / 3, 2 / 3, 1.0}


def test_sobol_of_a_linear_function_shares_its_variance() -> None:
    result = analyze(method="sobol", num_samples=1024)
    shares = WEIGHTS**2 / (WEIGHTS**2).sum()

    assert result.num_evaluations == 1024 * (3 + 2)
    np.testing.assert_allclose(result.measures["S1"][:, 0], shares, atol=0.01)
    np.testing.assert_allclose(result.measures["ST"][:, 0], shares, atol=0.01)


def test_sobol_of_ishigami() -> None:
    """Indices by the closed form for a = 7, b = 0.1: T. Homma, A. Saltelli, Reliab. Eng. Syst. Saf. 52, 1996."""
    result = analyze(ishigami, method="sobol", num_samples=4096)
    np.testing.assert_allclose(result.measures["S1"][:, 0], [0.3139, 0.4424, 0.0], atol=0.01)
    np.testing.assert_allclose(result.measures["ST"][:, 0], [0.5576, 0.4424, 0.2437], atol=0.01)
    assert (result.measures["S1_conf"] < 0.06).all()
    assert (result.measures["ST_conf"] < 0.06).all()


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_result(method: str) -> None:
    first, again = analyze(ishigami, method=method), analyze(ishigami, method=method)
    other = analyze(ishigami, method=method, seed=1)

    for name in MEASURES[method]:
        np.testing.assert_array_equal(first.measures[name], again.measures[name])
    assert (first.importance == other.importance).all() == (method == "oat")


@pytest.mark.parametrize("method", METHODS)
def test_outputs_do_not_touch_each_other(method: str) -> None:
    alone = analyze(ishigami, method=method)
    both = analyze(lambda unit: np.hstack([linear(unit), ishigami(unit)]), ("us", "pj"), method=method)
    for name in MEASURES[method]:
        np.testing.assert_array_equal(both.measures[name][:, 1], alone.measures[name][:, 0])


@pytest.mark.parametrize("method", METHODS)
def test_a_constant_owes_nothing_to_any_input(method: str) -> None:
    result = analyze(lambda unit: np.full((len(unit), 1), 0.1), method=method)
    assert result.num_evaluations == NUM_POINTS[method]
    for name in set(MEASURES[method]) - {"low", "high"}:
        assert (result.measures[name] == 0.0).all()


@pytest.mark.parametrize("method", METHODS)
def test_a_single_input(method: str) -> None:
    result = analyze_sensitivity(lambda unit: 2.0 * unit, ["cores"], output_names=["us"], method=method)
    expected = 1.0 if method == "sobol" else 2.0
    assert result.importance == pytest.approx(np.array([[expected]]), abs=0.01)


def test_sobol_says_nan_where_its_base_samples_see_no_change() -> None:
    def one_in_many(unit: Floats) -> Floats:
        found = np.zeros((len(unit), 1))
        found[1] = 1.0  # a point of the cross samples
        return found

    result = analyze(one_in_many, method="sobol", num_samples=4)
    assert all(np.isnan(measure).all() for measure in result.measures.values())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_infeasible_points_are_refused(method: str, value: float) -> None:
    with pytest.raises(GemmEvalError) as caught:
        analyze(infeasible_below(0.3, value), ("us", "mm2"), method=method)

    number, rest = str(caught.value).split(" of the ")
    assert 0 < int(number) < NUM_POINTS[method]
    assert rest.startswith(f"{NUM_POINTS[method]} points are infeasible (not finite: us), which {method} cannot use")
    assert 'on_infeasible="worst"' in rest
    assert ('on_infeasible="omit"' in rest) == (method == "oat")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("maximize", [None, [True, False]])
def test_infeasible_points_can_count_as_the_worst(method: str, maximize: list[bool] | None) -> None:
    counts = []

    def replaced(unit: Floats) -> Floats:
        found = infeasible_below(0.3)(unit)
        is_bad = np.isnan(found[:, 0])
        counts.append(is_bad.sum())
        found[is_bad, 0] = np.nanmin(found[:, 0]) if maximize else np.nanmax(found[:, 0])
        return found

    options = {"output_names": ("us", "mm2"), "method": method, "maximize": maximize}
    result = analyze(infeasible_below(0.3), on_infeasible="worst", **options)
    by_hand = analyze(replaced, **options)

    assert (result.num_replaced, by_hand.num_replaced) == (counts[0], 0)
    for name in MEASURES[method]:
        np.testing.assert_array_equal(result.measures[name], by_hand.measures[name])


def test_oat_can_leave_infeasible_levels_out() -> None:
    result = analyze(infeasible_below(0.3), ("us", "mm2"), method="oat", on_infeasible="omit")

    assert result.num_replaced == 0
    assert result.measures["num_infeasible"].tolist() == [[0, 0], [2, 0], [0, 0]]  # levels 0 and 0.25 of sram
    assert result.measures["swing"][:, 0].tolist() == [1.0, 1.5, 2.0]
    assert np.isfinite(result.measures["relative_swing"]).all()


def test_oat_from_an_infeasible_base() -> None:
    result = analyze(infeasible_below(0.3), ("us", "mm2"), method="oat", on_infeasible="omit", base=[0.5, 0.0, 0.5])
    assert np.isnan(result.measures["swing"][[0, 2], 0]).all()
    assert result.measures["swing"][1, 0] == 1.5
    assert np.isnan(result.measures["relative_swing"][:, 0]).all()
    assert result.measures["num_infeasible"][:, 0].tolist() == [5, 2, 5]
    assert result.to_pandas().query("output == 'us'")["input"].tolist() == ["sram", "cores", "dram"]


@pytest.mark.parametrize("method", METHODS)
def test_an_output_that_is_finite_nowhere(method: str) -> None:
    with pytest.raises(GemmEvalError, match="points are infeasible: output 'us' is finite nowhere"):
        analyze(infeasible_below(2.0), ("us", "mm2"), method=method, on_infeasible="worst")


@pytest.mark.parametrize("method", METHODS)
def test_a_table_with_the_most_important_input_first(method: str) -> None:
    result = analyze(
        lambda unit: np.hstack([linear(unit), -linear(unit), unit[:, :1]]), ("us", "pj", "mm2"), method=method
    )
    table = result.to_pandas()

    assert table.columns.tolist() == ["output", "input", *MEASURES[method]]
    assert table["output"].tolist() == ["us"] * 3 + ["pj"] * 3 + ["mm2"] * 3
    assert table["input"].tolist()[:7] == ["sram", "dram", "cores"] * 2 + ["cores"]
    assert table[MEASURES[method][0]][0] == result.importance[1, 0]


def test_results_cannot_be_changed() -> None:
    result = analyze(method="oat")
    with pytest.raises(ValueError, match="read-only"):
        result.measures["swing"][0, 0] = 0.0
    with pytest.raises(TypeError, match="frozen"):
        result.measures["swing"] = np.zeros((3, 1))


@pytest.mark.parametrize("method", METHODS)
def test_a_function_that_writes_into_its_points(method: str) -> None:
    def careless(unit: Floats) -> Floats:
        found = linear(unit)
        unit[:] = 0.0
        return found

    np.testing.assert_array_equal(analyze(careless, method=method).importance, analyze(method=method).importance)


@pytest.mark.parametrize("method", ["morris", "sobol"])
def test_without_salib(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "SALib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "SALib", None)

    with pytest.raises(GemmEvalError, match=rf"method '{method}' needs SALib: pip install 'gemm_eval\[sweep\]'"):
        analyze(method=method)
    assert analyze(method="oat").importance.ravel().tolist() == [1.0, 3.0, 2.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "fast"}, "method must be one of oat, morris, sobol, got 'fast'"),
        ({"seed": -1}, "seed must be an integer >= 0, got -1"),
        ({"seed": True}, "seed must be an integer >= 0, got True"),
        ({"num_samples": 1}, "num_samples must be an integer >= 2, got 1"),
        ({"num_samples": 8.0}, "num_samples must be an integer >= 2, got 8.0"),
        ({"method": "sobol", "num_samples": 1000}, "num_samples must be a power of 2 for sobol, got 1000"),
        ({"on_infeasible": "omit"}, "on_infeasible must be one of raise, worst for morris, got 'omit'"),
        ({"on_infeasible": "skip", "method": "oat"}, "must be one of raise, worst, omit for oat, got 'skip'"),
        ({"base": [0.5] * 3}, "base is for oat only"),
        ({"method": "oat", "base": [0.5] * 2}, "base must be 3 numbers in 0..1"),
        ({"method": "oat", "base": [0.5, 0.5, 1.5]}, "base must be 3 numbers in 0..1"),
        ({"method": "oat", "base": [0.5, 0.5, np.nan]}, "base must be 3 numbers in 0..1"),
        ({"method": "oat", "base": ["a", "b", "c"]}, "base must be 3 numbers in 0..1"),
        ({"maximize": [True, False]}, "maximize must be one bool for each of the 1 outputs"),
        ({"output_names": ()}, "output_names must be one str or more"),
        ({"output_names": "us"}, "output_names must be one str or more"),
        ({"output_names": ("us", "us")}, "output_names must be all different"),
    ],
)
def test_options_that_are_refused_before_any_work(options: dict[str, Any], message: str) -> None:
    def never(unit: Floats) -> Floats:
        raise AssertionError("evaluated")

    with pytest.raises(InvalidOptionError) as caught:
        analyze(never, **options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda unit: unit[:, 0], r"evaluate must return \[16, 1\] numbers, got shape \(16,\)"),
        (lambda unit: unit, r"got shape \(16, 3\)"),
        (lambda unit: [["slow"]] * len(unit), r"evaluate must return numbers \[16, 1\]"),
        (lambda unit: None, r"got shape \(\)"),
    ],
)
def test_functions_that_return_something_else(returned: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        analyze(returned, method="oat")


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
