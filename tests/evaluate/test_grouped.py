"""Grouped GEMMs between users and models: `evaluate_grouped`, batches, DataFrames, tables, what is kept in memory."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from gemm_eval import GEMMEvaluator, GemmProblem
from gemm_eval.errors import InvalidProblemError
from gemm_eval.models.gpu import LIBRARIES

GROUPS = (120, 3, 0, 17)
K, N = 512, 256
ARCHS = ("demo-8core", "h200-sxm")
BAD_GROUPS: tuple[Any, ...] = ((), (True, 3), "12", None, (1,) * 1025)  # all in tests/workload/test_problem.py


@pytest.fixture(params=ARCHS)
def ev(request: pytest.FixtureRequest) -> GEMMEvaluator:
    return GEMMEvaluator(request.param, disk_cache=False)


# one at a time


def test_groups_in_any_form(ev: GEMMEvaluator) -> None:
    first = ev.evaluate_grouped(GROUPS, K, N)

    assert first.problem == GemmProblem.grouped(GROUPS, K, N, **types_of(first.problem))
    assert first.latency_us >= ev.evaluate(1, 120, K, N).latency_us
    assert first.flop == 2 * 140 * K * N
    for form in (
        list(GROUPS),
        np.array(GROUPS),
        np.array(GROUPS, np.uint16),
        iter(GROUPS),
        tuple(map(np.int8, GROUPS)),
    ):
        again = ev.evaluate_grouped(form, K, N)  # type: ignore[arg-type]
        assert again is first
        assert set(map(type, again.problem.row_groups or ())) == {int}
    assert ev.cache_info()[:2] == (5, 2)


def types_of(problem: GemmProblem) -> dict[str, Any]:
    return {"input_dtype": problem.input_dtype, "output_dtype": problem.output_dtype}


@pytest.mark.parametrize("dtype", ["bf16", "fp8_block", "w4a16_mxfp4"])
def test_equal_groups_on_a_gpu_run_on_grouped_kernels(dtype: str) -> None:
    """As groups that differ by a row do; a batch is what `evaluate(G, ...)` says."""
    ev = GEMMEvaluator("h200-sxm", disk_cache=False)
    even = ev.evaluate_grouped((128,) * 8, 2048, 4096, dtype)
    one_more = ev.evaluate_grouped((129, *(128,) * 7), 2048, 4096, dtype)

    assert even.options["library"] == one_more.options["library"]
    assert LIBRARIES[str(even.options["library"])].grouped_families
    assert even.latency_us <= one_more.latency_us < 1.35 * even.latency_us  # a tile more on one of 8 experts
    assert ev.evaluate(8, 128, 2048, 4096, dtype).options["library"] != even.options["library"]
    table = ev.evaluate_many(
        [even.problem, one_more.problem, GemmProblem(8, 128, 2048, 4096, **even.problem.types.words)]
    )
    assert [row.options["library"] for row in table][:2] == [even.options["library"]] * 2
    assert table[0] == even


def test_keywords_are_those_of_evaluate() -> None:
    ev = GEMMEvaluator("h200-sxm", disk_cache=False)
    said: dict[str, Any] = {"library": "trtllm", "l2": "warm", "clock": "sustained", "correction": False}

    result = ev.evaluate_grouped(GROUPS, K, N, "w4a16", group_size=64, **said)

    assert result.options == said
    assert result.problem == GemmProblem.grouped(GROUPS, K, N, weight_dtype="int4", group_size=64)
    quantized = ev.evaluate_grouped(GROUPS, K, N, "fp8_block", quantize_from="bf16")
    assert quantized.breakdown["quantize_us"] > 0
    typed = ev.evaluate_grouped(
        GROUPS, K, N, input_dtype="bf16", weight_dtype="int4", output_dtype="fp32", group_size=128, zero_dtype="bf16",
        scale_dtype="bf16", group_n=1,
    )  # fmt: skip
    assert typed.problem == GemmProblem.grouped(
        GROUPS, K, N, input_dtype="bf16", weight_dtype="int4", output_dtype="fp32", group_size=128, zero_dtype="bf16"
    )


@pytest.mark.parametrize("bad", BAD_GROUPS, ids=lambda bad: type(bad).__name__)
def test_bad_groups_are_refused(ev: GEMMEvaluator, bad: Any) -> None:
    ev.evaluate_grouped((1, 3), K, N)  # which True and 3 are equal to
    with pytest.raises(InvalidProblemError, match=r"^row_groups must (be|have) .*, got "):
        ev.evaluate_grouped(bad, K, N)


# many


def test_rows_of_a_frame(ev: GEMMEvaluator) -> None:
    frame = pd.DataFrame({
        "G": [1.0, np.nan, 4, 2], "M": [64.0, np.nan, np.nan, np.nan], "K": K, "N": N,
        "dtype": ["fp16", None, "bf16", "fp16"],
        "row_groups": [None, GROUPS, list(GROUPS), np.array([7, 7])],
    })  # fmt: skip

    table = ev.evaluate_many(frame, "bf16")

    assert list(table) == [
        ev.evaluate(1, 64, K, N, "fp16"), ev.evaluate_grouped(GROUPS, K, N, "bf16"),
        ev.evaluate_grouped(GROUPS, K, N, "bf16"), ev.evaluate_grouped((7, 7), K, N, "fp16"),
    ]  # fmt: skip
    short = ev.evaluate_many(frame[["row_groups", "N", "K"]][1:3])
    assert short["row_groups"].tolist() == [GROUPS, GROUPS]
    no_groups = frame.assign(row_groups=None)[:1].astype({"G": int, "M": int})
    assert ev.evaluate_many(no_groups).batch.row_groups is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"row_groups": [GROUPS, "120,3"]}, r"^problem 1: row_groups must be the rows of each group"),
        ({"row_groups": [GROUPS, (0, 0)]}, r"^problem 1: row_groups must have a row"),
        ({"row_groups": [GROUPS, None]}, r"^problem 1: G must be an integer >= 1 where a row has no row_groups"),
        ({"row_groups": [GROUPS, None], "G": [4, 2]}, r"^problem 1: M must be an integer >= 1 where a row"),
        ({"G": [4, 3]}, r"^problem 1: with row_groups G is their number"),
        ({"M": [120, 121]}, r"^problem 1: with row_groups G is their number and M the rows of the largest, 4 and 120"),
        ({"K": [K, 1.5]}, r"^problem 1: K must be"),
        ({"K": [K, np.nan]}, r"^problem 1: K must be"),
        ({"N": [True, False]}, r"^problem 0: N must be"),
    ],
)
def test_bad_rows_of_a_frame(ev: GEMMEvaluator, changes: dict[str, Any], message: str) -> None:
    frame = pd.DataFrame({"row_groups": [GROUPS, GROUPS], "K": K, "N": N} | changes)
    with pytest.raises(InvalidProblemError, match=message):
        ev.evaluate_many(frame)
