"""Row groups: which are groups, what a grouped problem is, and how kernels are given many of them."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
import random
from typing import Any

import numpy as np
import pytest

import gemm_eval
from gemm_eval import DType, GemmProblem, InvalidProblemError
from gemm_eval.workload import MAX_DIM, MAX_GROUPS, Layouts, check_row_groups, make_problem, pack_layouts, problem_of
from tests.cases import case

GROUPS = (120, 3, 0, 17)
NO_GROUPS: list[Any] = [
    (), [], (0,), (0, 0), (1.0,), (True, 2), (-1, 4), (MAX_DIM + 1, 1), (2**70,), "12", b"12", {3: 4}, {1, 2},
    frozenset({1}), 5, None, 1.5, [[1, 2]], (None, 1), ("1",), (np.float64(3),), (np.True_, 2), np.array(3),
    np.array([[1, 2]]), np.array([1.0]), np.array([True, False]), np.array([2**63], np.uint64),
    np.ma.array([1, 2], mask=[False, True]), (1,) * (MAX_GROUPS + 1), [0] * 5000, itertools.repeat(1),
    np.array([], int),
]  # fmt: skip


class IsFour:
    def __index__(self) -> int:
        return 4


# which are groups


def test_any_integers_are_taken_and_become_ints() -> None:
    cases: Any = [
        GROUPS, list(GROUPS), np.array(GROUPS), np.array(GROUPS, np.uint8), iter(GROUPS), dict.fromkeys(GROUPS).keys(),
        tuple(map(np.int64, GROUPS)), (np.array(120), 3, 0, 17),
    ]  # fmt: skip
    for value in cases:
        with case(value):
            groups = check_row_groups(value)

            assert groups == GROUPS
            assert {type(number) for number in groups} == {int}


def test_the_extremes() -> None:
    assert check_row_groups([IsFour(), 0]) == (4, 0)
    assert check_row_groups((MAX_DIM,)) == (MAX_DIM,)
    assert check_row_groups([0] * (MAX_GROUPS - 1) + [1]) == (0,) * (MAX_GROUPS - 1) + (1,)


def test_all_else_is_refused() -> None:
    for value in NO_GROUPS:
        with (
            case(type(value), repr(value)[:40]),
            pytest.raises(InvalidProblemError, match=r"^row_groups must (be|have) .*got "),
        ):
            check_row_groups(value)
        if value is not None and not isinstance(value, itertools.repeat):
            with case(type(value)), pytest.raises(InvalidProblemError, match=r"^row_groups must"):
                GemmProblem(4, 120, 8, 8, row_groups=value)


# a grouped problem


def test_sizes_and_work() -> None:
    problem = GemmProblem.grouped(GROUPS, 7168, 4096, input_dtype="bf16")

    assert (problem.sizes, problem.row_groups) == ((4, 120, 7168, 4096), GROUPS)
    assert (problem.rows, problem.macs, problem.flop) == (140, 140 * 7168 * 4096, 2 * 140 * 7168 * 4096)
    assert problem.is_grouped
    assert problem.input_dtype is DType.BF16
    assert str(problem) == "G=4 rows=140 (of a group 0 to 120) K=7168 N=4096 bf16 -> bf16"
    assert problem.sizes_text == "G=4 rows=140 (of a group 0 to 120) K=7168 N=4096"
    assert problem.size_words == ("(140 in 4)", "7168", "4096")
    plain = GemmProblem(4, 120, 7168, 4096)
    assert (plain.rows, plain.is_grouped, plain.sizes_text) == (480, False, "G=4 M=120 K=7168 N=4096")
    assert plain.size_words == ("4", "120", "7168", "4096")


def test_equal_groups_stay_groups() -> None:
    """Who says groups means kernels of grouped GEMMs; sizes and bytes are those of the batch."""
    for G in [1, 2, 64, MAX_GROUPS]:
        with case(G):
            problem, batch = GemmProblem.grouped([7] * G, 8, 16), GemmProblem(G, 7, 8, 16)

            assert problem == GemmProblem(G, 7, 8, 16, row_groups=(7,) * G) != batch
            assert (problem.row_groups, problem.is_grouped) == ((7,) * G, True)
            assert (problem.sizes, problem.rows, problem.flop) == (batch.sizes, batch.rows, batch.flop)
            assert problem.compulsory_bytes == batch.compulsory_bytes


def test_equality_and_hash() -> None:
    problem = GemmProblem.grouped(GROUPS, 8, 16)

    assert problem == GemmProblem.grouped(list(GROUPS), 8, 16) == GemmProblem(4, 120, 8, 16, row_groups=GROUPS)
    assert hash(problem) == hash(GemmProblem.grouped(np.array(GROUPS), 8, 16))
    others = [
        GemmProblem(4, 120, 8, 16), GemmProblem(4, 35, 8, 16), GemmProblem.grouped((120, 3, 0, 18), 8, 16),
        GemmProblem.grouped((*GROUPS, 0), 8, 16), GemmProblem.grouped(GROUPS, 16, 8),
        GemmProblem.grouped(GROUPS, 8, 16, input_dtype="bf16"),
    ]  # fmt: skip
    assert len({problem, *others}) == 7


def test_there_and_back() -> None:
    for dtype in ["fp16", "w4a16", "fp8_block", "nvfp4", "w8a8"]:
        with case(dtype):
            problem = make_problem(4, 120, 512, 256, default_dtype=DType.FP16, dtype=dtype, row_groups=GROUPS)

            assert problem.row_groups == GROUPS
            assert eval(repr(problem), vars(gemm_eval).copy() | {"GemmProblem": GemmProblem}) == problem
            assert pickle.loads(pickle.dumps(problem)) == problem
            assert problem_of(problem.types, 4, 120, 512, 256, GROUPS) == problem
            assert dataclasses.replace(problem, K=1024).row_groups == GROUPS


def test_sizes_that_are_not_those_of_the_groups() -> None:
    for G, M in ((3, 120), (5, 120), (4, 119), (4, 121), (1, 1)):
        with pytest.raises(InvalidProblemError, match=rf"4 and 120, got {G} and {M}; GemmProblem.grouped"):
            GemmProblem(G, M, 8, 8, row_groups=GROUPS)
    with pytest.raises(InvalidProblemError, match=r"^G\*M\*K\*N must be <= 2\*\*57"):
        GemmProblem.grouped((2**40, 1), 2**17, 1)
    with pytest.raises(InvalidProblemError, match=r"^K must be"):
        GemmProblem.grouped(GROUPS, 0, 1)


# many of them


def groups_in(layouts: Layouts, problem: int) -> list[int]:
    """Rows of each group that has some, written out by hand."""
    which = layouts.of[problem]
    places = range(layouts.starts[which], layouts.starts[which + 1])
    return [int(layouts.rows[at]) for at in places for _ in range(layouts.counts[at])]


def test_layouts_are_those_of_the_groups() -> None:
    rng = random.Random(3)
    given: list[Any] = [None, GROUPS, (5, 5, 0), GROUPS]
    given += [tuple(rng.choice([0, 1, 7, 300]) for _ in range(40)) for _ in range(50)]
    layouts = pack_layouts(given)

    assert layouts.of[0] == -1
    assert layouts.of[1] == layouts.of[3] == 0
    assert len(layouts.starts) == len(set(given[1:])) + 1
    for place, groups in enumerate(given):
        if groups is not None:
            assert groups_in(layouts, place) == sorted((rows for rows in groups if rows), reverse=True)
            some = layouts.rows[layouts.starts[layouts.of[place]] : layouts.starts[layouts.of[place] + 1]]
            assert (np.diff(some) < 0).all()
        again = layouts.row_groups(place, 0 if groups is None else len(groups))
        assert again == (None if groups is None else tuple(sorted(groups, reverse=True)))
    assert min(layouts.counts) >= 1
    assert all(not array.flags.writeable and array.dtype == np.int64 for array in layouts)


def test_some_of_the_layouts() -> None:
    layouts = pack_layouts([None, GROUPS, (9, 1)])
    some = layouts.take([2, 0, 2, 1])

    assert some.of.tolist() == [1, -1, 1, 0]
    assert some.row_groups(2, 2) == (9, 1)
    assert [len(array) for array in pack_layouts([])] == [0, 1, 0, 0]
    assert len(pack_layouts([None, None]).of) == 0
