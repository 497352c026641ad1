"""`enumerate_partitions`: counts, order, completeness."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from gemm_eval import InvalidOptionError
from gemm_eval.mapping import enumerate_partitions
from tests.cases import case


def rows(num_cores: int, *, idle: bool = False) -> list[tuple[int, ...]]:
    return [tuple(row) for row in enumerate_partitions(num_cores, allow_idle_cores=idle).tolist()]


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


def test_all_are_there_once_in_order() -> None:
    for num_cores in (1, 2, 3, 6, 8, 12):
        candidates = list(itertools.product(range(1, num_cores + 1), repeat=4))
        for idle in (False, True):
            expected = [c for c in candidates if math.prod(c) == num_cores or (idle and math.prod(c) < num_cores)]
            with case(num_cores, idle):
                assert rows(num_cores, idle=idle) == sorted(expected, key=lambda row: (row[3], *row[:3]))
    for num_cores in (16, 30, 36, 64, 97, 108, 132):
        every = [row for used in range(1, num_cores + 1) for row in rows(used)]
        with case(num_cores):
            assert len(rows(num_cores)) == formula(num_cores)
            assert rows(num_cores, idle=True) == sorted(every, key=lambda row: (row[3], *row[:3]))
    assert len(rows(1 << 20)) == formula(1 << 20) == 1771
    assert len(rows((1 << 20) - 3)) == 4  # a prime


def test_the_shared_table_cannot_be_changed() -> None:
    table = enumerate_partitions(8)

    assert (table.dtype, table.shape) == (np.int64, (20, 4))
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
