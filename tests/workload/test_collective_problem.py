"""`CollectiveProblem`: what sizes mean, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidInputError, InvalidProblemError
from gemm_eval.workload import COLLECTIVES, CollectiveProblem
from tests.cases import case


def test_what_sizes_mean() -> None:
    cases: Any = [
        ("all_reduce", 4, 1200, 1800.0),  # three quarters out to be added, three quarters of the sums out again
        ("reduce_scatter", 4, 1200, 900.0),
        ("all_gather", 4, 4800, 3600.0),  # the contribution to three others
        ("all_to_all", 4, 1200, 900.0),  # a quarter stays
        ("send", 2, 1200, 1200.0),
        ("all_gather", 1, 1200, 0.0),
        ("send", 1, 1200, 0.0),
    ]  # fmt: skip
    for what, ranks, buffer, wire in cases:
        with case(what, ranks, buffer, wire):
            problem = CollectiveProblem(what, 1200, ranks)
            assert (problem.buffer_bytes, problem.wire_bytes) == (buffer, wire)
            assert problem.dtype is DType.BF16


def test_numpy_sizes_and_words_of_types() -> None:
    problem = CollectiveProblem("all_reduce", np.int64(64), np.int32(2), "int8")  # type: ignore[arg-type]
    assert problem == CollectiveProblem("all_reduce", 64, 2, DType.INT8)
    assert str(problem) == "all_reduce of 64 bytes, 2 ranks"


def test_what_is_refused() -> None:
    cases: Any = [
        (("gather", 64, 2), "what must be one of all_reduce"),
        (("all_reduce", 0, 2), "message_bytes must be an integer in 1"),
        (("all_reduce", 1.0, 2), "message_bytes must be an integer"),
        (("all_reduce", True, 2), "message_bytes must be an integer"),
        (("all_reduce", 1 << 51, 2), "message_bytes must be an integer"),
        (("all_reduce", 64, 0), "num_ranks must be an integer"),
        (("all_reduce", 64, 1025), "num_ranks must be an integer"),
        (("send", 64, 3), "num_ranks of a send must be 2"),
    ]  # fmt: skip
    for given, said in cases:
        with case(given, said), pytest.raises(InvalidProblemError, match=said):
            CollectiveProblem(*given)


def test_types_that_are_none() -> None:
    with pytest.raises(InvalidInputError):
        CollectiveProblem("all_reduce", 64, 2, "float77")  # type: ignore[arg-type]


def test_sums_are_told() -> None:
    assert [what for what in COLLECTIVES if CollectiveProblem(what, 64, 2).is_sum] == ["all_reduce", "reduce_scatter"]
