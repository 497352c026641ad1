"""Speed of Pareto fronts and ranks on many points, from few to all of them on the front.

As plain tests these check against the definition on a sample of the points, or against an answer that is known.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gemm_eval.sweep.pareto import pareto_front, pareto_rank

Floats = npt.NDArray[np.float64]

NUM_POINTS = 100_000
NUM_RANKED = 10_000
NUM_CHECKED = 200


def make_points(kind: str, num: int, num_objectives: int) -> Floats:
    """[num, num_objectives], always the same."""
    rng = np.random.default_rng(7)
    uniform = rng.random((num, num_objectives))
    if kind == "random":
        return uniform
    if kind == "correlated":
        return uniform[:, :1] + 0.01 * uniform
    if kind == "duplicates":
        return np.floor(uniform * 20.0)
    if kind == "all on the front":  # whole numbers with the same sum: no rounding can put one behind another
        free = rng.integers(0, 10**9, (num, num_objectives - 1))
        return np.column_stack([free, 10**10 - free.sum(axis=1)]).astype(np.float64)
    assert kind == "anti-correlated"  # a thick layer around a plane
    return rng.dirichlet(np.ones(num_objectives), num) + 0.01 * uniform


KINDS = ("random", "correlated", "duplicates", "anti-correlated", "all on the front")


def check_front(points: Floats, is_front: npt.NDArray[np.bool_]) -> None:
    checked = np.random.default_rng(8).integers(0, len(points), NUM_CHECKED)
    for i in checked:
        is_dominated = ((points <= points[i]).all(axis=1) & (points < points[i]).any(axis=1)).any()
        assert is_front[i] == (not is_dominated)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_objectives", [2, 3, 5])
def test_front(benchmark: Any, kind: str, num_objectives: int) -> None:
    benchmark.group = f"Pareto front of {NUM_POINTS:,} points, {num_objectives} objectives"
    points = make_points(kind, NUM_POINTS, num_objectives)
    is_front = benchmark.pedantic(pareto_front, (points,), rounds=3, warmup_rounds=1)
    check_front(points, is_front)
    assert kind != "all on the front" or is_front.all()


@pytest.mark.parametrize("kind", KINDS)
def test_rank(benchmark: Any, kind: str) -> None:
    benchmark.group = f"Pareto ranks of {NUM_RANKED:,} points, 3 objectives"
    points = make_points(kind, NUM_RANKED, 3)
    rank = benchmark.pedantic(pareto_rank, (points,), rounds=3, warmup_rounds=1)
    for i in np.random.default_rng(8).integers(0, len(points), NUM_CHECKED):
        dominates = (points <= points[i]).all(axis=1) & (points < points[i]).any(axis=1)
        assert rank[i] == max(rank[dominates] + 1, default=0)
