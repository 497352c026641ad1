"""Pareto fronts and ranks: readable cases, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gemm_eval.errors import InvalidOptionError
from gemm_eval.sweep.pareto import pareto_front, pareto_rank

INF, NAN = np.inf, np.nan
LATENCY_AREA = [[1.0, 9.0], [2.0, 5.0], [2.0, 6.0], [4.0, 5.0], [5.0, 1.0]]


def test_two_objectives() -> None:
    assert pareto_front(LATENCY_AREA).tolist() == [True, True, False, False, True]
    assert pareto_rank(LATENCY_AREA).tolist() == [0, 0, 1, 1, 0]


def test_larger_is_better_where_asked() -> None:
    assert pareto_front(LATENCY_AREA, maximize=[False, True]).tolist() == [True, False, False, False, False]
    assert pareto_rank(LATENCY_AREA, maximize=(False, True)).tolist() == [0, 2, 1, 3, 4]


def test_one_objective_is_a_minimum() -> None:
    assert pareto_front([[3], [1], [2], [1]]).tolist() == [False, True, False, True]
    assert pareto_rank([[3], [1], [2], [1]]).tolist() == [2, 0, 1, 0]


def test_a_third_objective_saves_points() -> None:
    points = [[1, 9, 5], [2, 5, 5], [2, 6, 5], [2, 6, 4], [5, 1, 5]]
    assert pareto_front(points).tolist() == [True, True, False, True, True]
    assert pareto_rank(points).tolist() == [0, 0, 1, 0, 0]


@pytest.mark.parametrize("num_objectives", [1, 2, 3, 4])
def test_duplicates_do_not_dominate_each_other(num_objectives: int) -> None:
    points = np.ones((4, num_objectives))
    points[2] = 2.0
    assert pareto_front(points).tolist() == [True, True, False, True]
    assert pareto_rank(points).tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize("num_more", [0, 1, 2])
def test_nan_is_out_and_infinities_are_values(num_more: int) -> None:
    points = np.array([[0.0, NAN], [INF, -INF], [INF, 1.0], [1.0, INF], [NAN, NAN], [INF, INF], [2.0, 1.0]])
    points = np.hstack([points, np.zeros((len(points), num_more))])
    assert pareto_front(points).tolist() == [False, True, False, True, False, False, True]
    assert pareto_rank(points).tolist() == [-1, 0, 1, 0, -1, 2, 0]


def test_both_zeros_are_equal() -> None:
    points = [[0.0, 1.0], [-0.0, 1.0], [0.0, 2.0], [-0.0, 0.5]]
    assert pareto_front(points).tolist() == [False, False, False, True]
    assert pareto_rank(points, maximize=[True, False]).tolist() == [1, 1, 2, 0]


def test_differences_in_the_last_bit_count() -> None:
    a, b = 1.0, np.nextafter(1.0, 2.0)
    assert pareto_front([[a, b, 1e300], [b, a, 1e300], [b, b, 1e300]]).tolist() == [True, True, False]


@pytest.mark.parametrize("num_objectives", [1, 2, 3, 4])
@pytest.mark.parametrize("fill", [NAN, 1.0])
@pytest.mark.parametrize("num_points", [0, 1, 2])
def test_few_points(num_objectives: int, fill: float, num_points: int) -> None:
    points = np.full((num_points, num_objectives), fill)
    front, rank = pareto_front(points), pareto_rank(points)

    assert (front.dtype, rank.dtype) == (np.bool_, np.int64)
    assert front.tolist() == [not np.isnan(fill)] * num_points
    assert rank.tolist() == [-1 if np.isnan(fill) else 0] * num_points


def test_what_was_given_stays_as_it_was() -> None:
    points = np.array(LATENCY_AREA)
    points.setflags(write=False)
    pareto_front(points, maximize=[True, True])
    assert points.tolist() == LATENCY_AREA


def test_other_numbers_are_fine() -> None:
    expected = [True, True, False, False, True]
    for points in (
        np.array(LATENCY_AREA, np.float32),
        np.array(LATENCY_AREA, np.int8),
        np.asfortranarray(LATENCY_AREA),
        np.repeat(LATENCY_AREA, 2, axis=1)[:, ::2],
    ):
        assert pareto_front(points).tolist() == expected
    assert pareto_front([[1.0, None], [2.0, 3.0]]).tolist() == [False, True]


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
    for find in (pareto_front, pareto_rank):
        with pytest.raises(InvalidOptionError, match="maximize must be one bool for each of the 2 objectives, or None"):
            find(LATENCY_AREA, maximize=maximize)
