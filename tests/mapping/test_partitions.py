"""`enumerate_partitions`: counts, order, completeness."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from gemm_eval import InvalidOptionError
from gemm_eval.mapping import enumerate_partitions
from tests.cases import case

CORES = (1, 2, 3, 4, 6, 7, 8, 9, 12, 16, 30, 36, 64, 97, 108, 132)


def rows(num_cores: int, *, idle: bool = False) -> list[tuple[int, ...]]:
    return [tuple(row) for row in enumerate_partitions(num_cores, allow_idle_cores=idle).tolist()]


def by_brute_force(num_cores: int, *, idle: bool) -> set[tuple[int, ...]]:
    candidates = itertools.product(range(1, num_cores + 1), repeat=4)
    return {c for c in candidates if math.prod(c) == num_cores or (idle and math.prod(c) < num_cores)}


def formula(num_cores: int) -> int:
    """Ordered factorizations into four factors: C(e + 3, 3) for each prime to the power e."""
    count, prime = 1, 2
    while num_cores > 1:
        e = 0
        while num_cores % prime == 0:
            num_cores //= prime
            e += 1
        count *= math.comb(e + 3, 3)
        prime += 1
    return count


def test_known_counts() -> None:
    for num_cores, count in [(1, 1), (2, 4), (8, 20), (64, 84), (97, 4), (1024, 286)]:
        with case(num_cores, count):
            assert len(rows(num_cores)) == count


def test_products_are_exact_distinct_and_all_there() -> None:
    for num_cores in CORES:
        with case(num_cores):
            found = rows(num_cores)

            assert all(math.prod(row) == num_cores for row in found)
            assert len(set(found)) == len(found) == formula(num_cores)


def test_complete_against_brute_force() -> None:
    for idle in [False, True]:
        for num_cores in [1, 2, 3, 6, 8, 12]:
            with case(idle, num_cores):
                assert set(rows(num_cores, idle=idle)) == by_brute_force(num_cores, idle=idle)


def test_idle_cores_add_every_smaller_product() -> None:
    for num_cores in CORES:
        with case(num_cores):
            with_idle = rows(num_cores, idle=True)

            assert set(with_idle) == {row for used in range(1, num_cores + 1) for row in rows(used)}
            assert len(set(with_idle)) == len(with_idle)


def test_sorted_by_rank() -> None:
    for num_cores, idle in itertools.product(CORES, (False, True)):
        with case(num_cores, idle):
            found = rows(num_cores, idle=idle)

            assert found == sorted(found, key=lambda row: (row[3], row[0], row[1], row[2]))


def test_the_shared_table_cannot_be_changed() -> None:
    table = enumerate_partitions(8)

    assert table.dtype == np.int64
    assert table.shape == (20, 4)
    with pytest.raises(ValueError, match="read-only"):
        table[0, 0] = 5
    with pytest.raises(ValueError, match="WRITEABLE"):
        table.setflags(write=True)


def test_impossible_num_cores_is_refused() -> None:
    for value in [0, -1, -8, 1.5, 8.0, True, "8", None, np.float64(8), math.nan]:
        with case(value):
            enumerate_partitions(8)  # 8.0 == 8 must not find its cached table
            enumerate_partitions(1)
            with pytest.raises(InvalidOptionError, match="num_cores must be"):
                enumerate_partitions(value)


def test_large_chips_are_quick() -> None:
    assert len(rows(1 << 20)) == formula(1 << 20) == 1771
    assert len(rows((1 << 20) - 3)) == 4  # a prime
