"""Pareto fronts and ranks: a readable case, what is taken and what is refused; the laws are in tests/property."""

from typing import Any

import numpy as np
import pytest

from gemm_eval.errors import InvalidOptionError
from gemm_eval.sweep.pareto import pareto_front, pareto_rank

LATENCY_AREA = [[1.0, 9.0], [2.0, 5.0], [2.0, 6.0], [4.0, 5.0], [5.0, 1.0]]


def test_two_objectives() -> None:
    assert pareto_front(LATENCY_AREA).tolist() == [True, True, False, False, True]
    assert pareto_rank(LATENCY_AREA).tolist() == [0, 0, 1, 1, 0]
    assert pareto_front(LATENCY_AREA, maximize=[False, True]).tolist() == [True, False, False, False, False]
    assert pareto_rank(LATENCY_AREA, maximize=(False, True)).tolist() == [0, 2, 1, 3, 4]


@pytest.mark.parametrize("num_objectives", [1, 2, 3, 4])
@pytest.mark.parametrize("fill", [np.nan, 1.0])
def test_few_points(num_objectives: int, fill: float) -> None:
    for num_points in (0, 1, 2):
        points = np.full((num_points, num_objectives), fill)
        front, rank = pareto_front(points), pareto_rank(points)
        assert (front.dtype, rank.dtype) == (np.bool_, np.int64)
        assert front.tolist() == [not np.isnan(fill)] * num_points
        assert rank.tolist() == [-1 if np.isnan(fill) else 0] * num_points


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([1.0, 2.0], r"got shape \(2,\)"),
        ([], r"got shape \(0,\)"),
        (np.zeros((3, 0)), r"with an objective or more, got shape \(3, 0\)"),
        (np.zeros((2, 2, 2)), r"got shape \(2, 2, 2\)"),
        ([[1.0, 2.0], [3.0]], r"table \[num_points, num_objectives\]"),
        ([["a", "b"]], "compared as float64, got <U1"),
        ([[1j, 2.0]], "compared as float64, got complex128"),
        ([[{}, 1.0]], "compared as float64"),
    ],
)
def test_values_that_are_no_table_of_numbers(points: Any, message: str) -> None:
    for find in (pareto_front, pareto_rank):
        with pytest.raises(InvalidOptionError, match=message):
            find(points)


@pytest.mark.parametrize("maximize", [[True], [True, False, True], [0, 1], ["latency_us", "area_mm2"], True, [], "ab"])
def test_maximize_is_one_bool_per_objective(maximize: Any) -> None:
    with pytest.raises(InvalidOptionError, match="maximize must be one bool for each of the 2 objectives, or None"):
        pareto_front(LATENCY_AREA, maximize=maximize)
