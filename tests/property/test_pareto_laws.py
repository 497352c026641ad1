"""Pareto fronts and ranks against the definition, pair by pair, and the laws that both keep."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gemm_eval.sweep.pareto import pareto_front, pareto_rank

Floats = npt.NDArray[np.float64]
Case = tuple[Floats, list[bool]]

MAX_OBJECTIVES = 5
MAX_POINTS = 120  # more than the kernel compares pair by pair, so that it divides more than once
SPECIAL = (0.0, -0.0, math.inf, -math.inf, 5e-324, 1e308, -1e308)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Points on a coarse grid (ties and duplicates), any floats, or special ones; some with nan."""
    shape = draw(st.integers(0, MAX_POINTS)), draw(st.integers(1, MAX_OBJECTIVES))
    largest = draw(st.integers(0, 9))
    elements: st.SearchStrategy[float] = draw(
        st.sampled_from(
            (
                st.integers(0, largest).map(float), st.floats(allow_nan=False), st.sampled_from(SPECIAL),
                st.integers(0, 3).map(float) | st.sampled_from((*SPECIAL, math.nan)),
            )
        )
    )  # fmt: skip
    points = draw(hnp.arrays(np.float64, shape, elements=elements))
    return points, draw(st.lists(st.booleans(), min_size=shape[1], max_size=shape[1]))


def is_dominated(point: list[float], by: list[float], maximize: list[bool]) -> bool:
    pairs = [(p, b) if larger else (b, p) for p, b, larger in zip(point, by, maximize, strict=True)]
    return all(better <= worse for better, worse in pairs) and any(better < worse for better, worse in pairs)


def naive_front(points: list[list[float]], maximize: list[bool]) -> list[bool]:
    valid = [not any(map(math.isnan, point)) for point in points]
    return [
        is_valid
        and not any(is_dominated(point, other, maximize) for other, ok in zip(points, valid, strict=True) if ok)
        for point, is_valid in zip(points, valid, strict=True)
    ]


def naive_rank(points: list[list[float]], maximize: list[bool]) -> list[int]:
    """Peel fronts off until only points with a nan are left."""
    rank = [-1] * len(points)
    left, level = list(range(len(points))), 0
    while any(front := naive_front([points[i] for i in left], maximize)):
        for i in [i for i, is_best in zip(left, front, strict=True) if is_best]:
            rank[i] = level
        left = [i for i, is_best in zip(left, front, strict=True) if not is_best]
        level += 1
    return rank


@given(cases())
def test_front_is_the_definition(case: Case) -> None:
    points, maximize = case
    assert pareto_front(points, maximize=maximize).tolist() == naive_front(points.tolist(), maximize)


@given(cases())
def test_rank_is_peeling(case: Case) -> None:
    points, maximize = case
    assert pareto_rank(points, maximize=maximize).tolist() == naive_rank(points.tolist(), maximize)


@pytest.mark.parametrize("num_objectives", range(1, MAX_OBJECTIVES + 1))
@pytest.mark.parametrize("num_values", [3, 12, 10**9])
def test_many_points(num_objectives: int, num_values: int) -> None:
    """Enough of them for every branch of the kernel, and ranks that are the longest chain of points that dominate."""
    points = np.random.default_rng(num_objectives).integers(0, num_values, (700, num_objectives)).astype(float)
    dominates = (points[:, None] <= points).all(axis=2) & (points[:, None] < points).any(axis=2)
    rank = pareto_rank(points)

    assert (pareto_front(points) == ~dominates.any(axis=0)).all()
    assert (rank == np.where(dominates, rank[:, None] + 1, 0).max(axis=0)).all()
