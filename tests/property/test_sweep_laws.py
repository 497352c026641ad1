"""Laws of design spaces and sweeps, and of Pareto fronts and ranks, pair by pair."""

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gemm_eval import load_arch
from gemm_eval.sweep import Choices, Grid, LatinHypercube, LogRange, Random, Range, Space, sweep
from gemm_eval.sweep.pareto import pareto_front, pareto_rank
from tests.sweep.test_sweep_run import same

# ---- sweep laws ------------------------------------------------------------------------------------------------------


AIMS = ("latency_us", "area_mm2")
NUM_POINTS = 24
DEMO = load_arch("demo-8core")

fields = st.fixed_dictionaries(
    {
        "num_cores": st.lists(st.sampled_from((0, 1, 2, 4, 6, 8)), min_size=1, max_size=4),
        "sram_bytes": st.lists(st.sampled_from((64, 1 << 14, 1 << 17, 1 << 20)), min_size=1, max_size=4),
        "dram_gb_per_s": st.sampled_from((Range(10, 1000, 2), LogRange(10.0, 1000.0, 3), Choices((50.0,)))),
        "timing": st.sampled_from(("overlap", ["overlap", "pipeline"])),
        "area_mm2": st.sampled_from(("= num_cores * 3", "= 8 / (num_cores - 4) + 9", "= sram_bytes / 2 ** 17")),
    }
)
samplings = st.sampled_from((Grid(), Random(NUM_POINTS, seed=1), LatinHypercube(NUM_POINTS, seed=1)))
workloads = st.lists(
    st.tuples(st.tuples(*(st.integers(1, size) for size in (2, 40, 90, 90))), st.integers(1, 5)), min_size=1, max_size=3
)
limits = st.lists(
    st.sampled_from(("area_mm2 <= 10", "num_cores > 2", "latency_us <= 20", "power_w < 1", "dram_bytes >= 20000")),
    max_size=3,
)
ranges = st.one_of(
    st.builds(
        lambda low, span, num, step: Range(low, low + span, num, step),
        st.integers(-50, 50), st.integers(1, 100), st.none() | st.integers(2, 9), st.just(1) | st.none(),
    ),
    st.builds(
        lambda low, factor, num: LogRange(low, low * factor, num),
        st.integers(1, 50), st.integers(2, 100), st.integers(2, 9),
    ),
    st.builds(lambda low, span: Range(low, low + span, 5), st.floats(-1e6, 1e6), st.floats(1e-3, 1e6)),
    st.builds(lambda low, factor: LogRange(low, low * factor, 5), st.floats(1e-6, 1e6), st.floats(1.01, 1e6)),
)  # fmt: skip


def run(space: Space, loads: Any, sampling: Any, **options: Any) -> Any:
    return sweep(space, loads, AIMS, sampling=sampling, progress=False, **options)


@settings(max_examples=25)
@given(fields, workloads, samplings, limits, st.integers(1, 30), st.integers(1, 30))
def test_the_table_does_not_depend_on_chunks_or_executors(
    fields: Any, loads: Any, sampling: Any, limits: Any, one: int, other: int
) -> None:
    space = Space(DEMO, fields)
    whole = run(space, loads, sampling, constraints=limits, chunk_size=one).to_arrow()
    with ThreadPoolExecutor(2) as executor:
        again = run(space, loads, sampling, constraints=limits, chunk_size=other, executor=executor).to_arrow()
    assert same(whole, again)


@settings(max_examples=25)
@given(fields, workloads, samplings, limits)
def test_constraints_only_remove(fields: Any, loads: Any, sampling: Any, limits: Any) -> None:
    space = Space(DEMO, fields)
    free, bound = run(space, loads, sampling), run(space, loads, sampling, constraints=limits)
    assert len(free) == len(bound)
    assert not (bound.is_feasible & ~free.is_feasible).any()
    both = bound.is_feasible
    columns = [name for name in free.columns if name != "excluded"]
    assert free.to_pandas(columns)[both].equals(bound.to_pandas(columns)[both])
    kept = set(free.pareto()["point"]) & set(np.flatnonzero(both))
    assert kept <= set(bound.pareto()["point"])  # what was best of all is best of those that are left
    assert (free["excluded"][~free.is_feasible] != "").all()


@settings(max_examples=25)
@given(fields, workloads, st.randoms())
def test_the_front_knows_no_order(fields: Any, loads: Any, random: Any) -> None:
    names = ("num_cores", "sram_bytes")
    shuffled = {name: random.sample(fields[name], len(fields[name])) for name in names}
    found = []
    for given_fields in (fields, fields | shuffled):
        front = run(Space(DEMO, given_fields), loads, Grid()).pareto()
        found.append(sorted(front[[*fields, *AIMS]].itertuples(index=False, name=None)))
    assert found[0] == found[1]


@given(ranges, st.lists(st.floats(0, 1), max_size=20))
def test_ranges_keep_to_their_ends_and_their_order(field: Any, unit: list[float]) -> None:
    values = field.take(np.array(sorted(unit)))
    assert values == sorted(values)
    assert field.take(np.array([0.0, 1.0])) == [field.low, field.high]
    assert all(field.low <= value <= field.high for value in values)
    assert all(type(value) is (int if field.is_whole else float) for value in values)
    grid = field.grid() if field.num or field.step else ()
    assert list(grid) == sorted(set(grid))
    if grid:
        assert (grid[0], grid[-1]) == (field.low, field.high)
        assert not field.num or len(grid) <= field.num


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(), min_size=1, max_size=5), min_size=1, max_size=5), st.data())
def test_a_grid_numbers_every_combination_once(choices: list[list[int]], data: Any) -> None:
    space = Space(DEMO, variables={f"v{at}": values for at, values in enumerate(choices)})
    size = math.prod(map(len, choices))
    assert space.grid_size == size
    whole = space.grid_rows(0, size)
    cut = data.draw(st.integers(0, size))
    assert space.grid_rows(0, cut) + space.grid_rows(cut, size) == whole
    places = [range(len(values)) for values in choices]
    assert len({*Space(DEMO, variables={f"v{at}": of for at, of in enumerate(places)}).grid_rows(0, size)}) == size


# ---- pareto laws -----------------------------------------------------------------------------------------------------


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
