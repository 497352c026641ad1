"""Speed of Pareto fronts on many points, from few to all of them on the front."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gemm_eval.sweep.pareto import pareto_front

Floats = npt.NDArray[np.float64]

NUM_POINTS = 100_000


def make_points(kind: str, num: int, num_objectives: int) -> Floats:
    """[num, num_objectives], always the same."""
    rng = np.random.default_rng(7)
    if kind == "random":
        return rng.random((num, num_objectives))
    # whole numbers with the same sum: no rounding can put one behind another
    free = rng.integers(0, 10**9, (num, num_objectives - 1))
    return np.column_stack([free, 10**10 - free.sum(axis=1)]).astype(np.float64)


KINDS = ("random", "all on the front")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_objectives", [2, 3, 5])
def test_front(benchmark: Any, kind: str, num_objectives: int) -> None:
    benchmark.group = f"Pareto front of {NUM_POINTS:,} points, {num_objectives} objectives"
    points = make_points(kind, NUM_POINTS, num_objectives)
    is_front = benchmark.pedantic(pareto_front, (points,), rounds=3, warmup_rounds=1)
    assert kind != "all on the front" or is_front.all()
