"""Sensitivity of outputs to inputs of the unit cube, and of objectives to the fields of a space."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.sweep import SensitivityResult, Space, sensitivity
from gemm_eval.sweep.sensitivity_analysis import MEASURES, analyze_sensitivity

Floats = npt.NDArray[np.float64]

WEIGHTS = np.array([1.0, -3.0, 2.0])
NAMES = ("cores", "sram", "dram")
NUM_POINTS = {"morris": 32 * 4, "sobol": 512 * 5}


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
    evaluate: Callable[[Floats], Floats] = linear, output_names: tuple[str, ...] = ("us",), **options: Any
) -> SensitivityResult:
    return analyze_sensitivity(evaluate, NAMES, output_names=output_names, **options)


def test_morris_of_a_linear_function_finds_its_slopes() -> None:
    result = analyze(method="morris", num_samples=4)

    assert result.num_evaluations == 4 * (3 + 1)
    np.testing.assert_allclose(result.measures["mu"][:, 0], WEIGHTS, rtol=1e-12)
    np.testing.assert_allclose(result.measures["mu_star"][:, 0], np.abs(WEIGHTS), rtol=1e-12)
    np.testing.assert_allclose(result.measures["sigma"], 0.0, atol=1e-12)
    np.testing.assert_allclose(result.measures["mu_star_conf"], 0.0, atol=1e-12)
    seen: list[Floats] = []
    analyze(lambda unit: (seen.append(unit), linear(unit))[1], method="morris", num_samples=50)
    assert set(seen[0].ravel()) == {0.0, 1 / 3, 2 / 3, 1.0}  # to the bit


def test_sobol_of_ishigami() -> None:
    """Indices by the closed form for a = 7, b = 0.1: T. Homma, A. Saltelli, Reliab. Eng. Syst. Saf. 52, 1996."""
    result = analyze(ishigami, method="sobol", num_samples=4096)
    np.testing.assert_allclose(result.measures["S1"][:, 0], [0.3139, 0.4424, 0.0], atol=0.01)
    np.testing.assert_allclose(result.measures["ST"][:, 0], [0.5576, 0.4424, 0.2437], atol=0.01)
    assert (result.measures["S1_conf"] < 0.06).all()
    assert (result.measures["ST_conf"] < 0.06).all()


@pytest.mark.parametrize("method", MEASURES)
def test_the_same_seed_gives_the_same_result_whatever_other_outputs_are(method: str) -> None:
    first, other = analyze(ishigami, method=method), analyze(ishigami, method=method, seed=1)
    both = analyze(lambda unit: np.hstack([linear(unit), ishigami(unit)]), ("us", "pj"), method=method)

    for name in MEASURES[method]:
        np.testing.assert_array_equal(both.measures[name][:, 1], first.measures[name][:, 0])
    assert (first.importance != other.importance).any()


@pytest.mark.parametrize("method", MEASURES)
def test_a_constant_owes_nothing_to_any_input(method: str) -> None:
    result = analyze(lambda unit: np.full((len(unit), 1), 0.1), method=method)
    assert result.num_evaluations == NUM_POINTS[method]
    for name in MEASURES[method]:
        assert (result.measures[name] == 0.0).all()


@pytest.mark.parametrize("method", MEASURES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_infeasible_points_are_refused(method: str, value: float) -> None:
    with pytest.raises(GemmEvalError) as caught:
        analyze(infeasible_below(0.3, value), ("us", "mm2"), method=method)

    number, rest = str(caught.value).split(" of the ")
    assert 0 < int(number) < NUM_POINTS[method]
    assert rest.startswith(f"{NUM_POINTS[method]} points are infeasible (not finite: us), which {method} cannot use")
    assert 'on_infeasible="worst"' in rest


@pytest.mark.parametrize("method", MEASURES)
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


@pytest.mark.parametrize("method", MEASURES)
def test_a_table_with_the_most_important_input_first(method: str) -> None:
    result = analyze(
        lambda unit: np.hstack([linear(unit), -linear(unit), unit[:, :1]]), ("us", "pj", "mm2"), method=method
    )
    table = result.to_pandas()

    assert table.columns.tolist() == ["output", "input", *MEASURES[method]]
    assert table["output"].tolist() == ["us"] * 3 + ["pj"] * 3 + ["mm2"] * 3
    assert table["input"].tolist()[:7] == ["sram", "dram", "cores"] * 2 + ["cores"]
    assert table[MEASURES[method][0]][0] == result.importance[1, 0]


@pytest.mark.parametrize("method", ["morris", "sobol"])
def test_without_salib(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "SALib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "SALib", None)

    with pytest.raises(GemmEvalError, match=rf"method '{method}' needs SALib: pip install 'gemm_eval\[sweep\]'"):
        analyze(method=method)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "fast"}, "method must be one of morris, sobol, got 'fast'"),
        ({"seed": -1}, "seed must be an integer in 0..2**31, got -1"),
        ({"seed": True}, "seed must be an integer in"),
        ({"num_samples": 1}, "num_samples must be an integer in 2..2**31, got 1"),
        ({"num_samples": 8.0}, "num_samples must be an integer in"),
        ({"method": "sobol", "num_samples": 1000}, "num_samples must be a power of 2 for sobol, got 1000"),
        ({"on_infeasible": "omit"}, "on_infeasible must be one of raise, worst, got 'omit'"),
    ],
)
def test_options_that_are_refused_before_any_work(options: dict[str, Any], message: str) -> None:
    def never(unit: Floats) -> Floats:
        raise AssertionError("evaluated")

    with pytest.raises(InvalidOptionError) as caught:
        analyze(never, **options)
    assert message in str(caught.value)
    with pytest.raises(InvalidOptionError, match="no field of the space varies"):
        sensitivity(Space("demo-8core", area_mm2="= num_cores"), [GEMM])


GEMM = (1, 64, 1024, 1024)
