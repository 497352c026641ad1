"""Problems of attention and of collectives: pairs, bytes and operations counted one by one, and what is refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidProblemError
from gemm_eval.workload import COLLECTIVES, AttentionProblem, CollectiveProblem
from tests.cases import case


@given(st.integers(1, 40), st.integers(0, 200), st.integers(1, 250) | st.none(), st.booleans())
def test_pairs_and_keys_are_counted_one_by_one(new: int, cached: int, window: int | None, causal: bool) -> None:
    kv_len = new + cached
    window = window if causal else None
    found = AttentionProblem(3, new, kv_len, 4, 2, 8, causal=causal, window=window, v_head_dim=6)
    seen = [
        [key for key in range(kv_len) if not causal or max(0, query + 1 - (window or kv_len)) <= key <= query]
        for query in range(cached, kv_len)
    ]

    assert found.num_pairs == sum(map(len, seen))
    assert found.num_keys == len(set().union(*seen))
    assert found.flop == 2 * 3 * 4 * found.num_pairs * 14
    assert found.kv_bytes == 3 * found.num_keys * 2 * 14 * 2


def test_bytes_and_types() -> None:
    found = AttentionProblem(2, 5, 9, 8, 2, 64, "bfloat16", "fp8")  # type: ignore[arg-type]
    assert (found.dtype, found.kv_type, found.output_dtype, found.group) == (DType.BF16, DType.FP8, DType.BF16, 4)
    assert (found.q_bytes, found.kv_bytes, found.output_bytes) == (
        2 * 5 * 8 * 64 * 2,
        2 * 9 * 2 * 128,
        2 * 5 * 8 * 64 * 2,
    )
    assert found.num_bytes == found.q_bytes + found.kv_bytes + found.output_bytes
    narrow = AttentionProblem(1, 1, 1, 1, 1, 64, DType.FP8)
    assert (narrow.kv_type, narrow.output_dtype, narrow.q_bytes, narrow.output_bytes) == (
        DType.FP8,
        DType.BF16,
        64,
        128,
    )
    latent = AttentionProblem(1, 1, 100, 16, 1, 576, v_head_dim=512, is_latent=True)
    assert latent.kv_bytes == 100 * 576 * 2
    assert latent.flop == 2 * 16 * 100 * (576 + 512)
    assert AttentionProblem(1, 1, 3, 1, 1, 16, kv_dtype=DType.FP4).kv_bytes == 3 * 16


def test_a_window_of_all_is_none() -> None:
    assert AttentionProblem(1, 1, 64, 1, 1, 8, window=64) == AttentionProblem(1, 1, 64, 1, 1, 8)
    assert AttentionProblem(1, 1, 65, 1, 1, 8, window=64).window == 64


def test_str_says_it_shortly() -> None:
    assert str(AttentionProblem(8, 1, 4096, 32, 8, 128, kv_dtype=DType.FP8)) == (
        "batch=8 q=1 kv=4096 32/8 heads x 128 causal bf16, KV fp8"
    )
    assert str(AttentionProblem(1, 9, 9, 4, 4, 192, v_head_dim=128, causal=False)) == (
        "batch=1 q=9 kv=9 4 heads x 192+128 full bf16"
    )


def test_what_is_refused() -> None:
    cases: Any = [
        ((0, 1, 1, 1, 1, 8), {}, "batch must be"),
        ((1, 2.5, 1, 1, 1, 8), {}, "q_len must be an integer"),
        ((1, 2, 1, 1, 1, 8), {}, "q_len must be <= kv_len = 1"),
        ((1, 1, 1, 6, 4, 8), {}, "num_kv_heads must divide num_heads = 6"),
        ((1, 1, 1, 1, 1, 5000), {}, "head_dim and v_head_dim must be <= 4096"),
        ((1, 1, 1, 1, 1, 8), {"dtype": "int8"}, "dtype of attention must be"),
        ((1, 1, 1, 1, 1, 8), {"dtype": "fp4"}, "dtype of attention must be"),
        ((1, 1, 1, 1, 1, 8), {"kv_dtype": "e8m0"}, "kv_dtype must be a type of operands"),
        ((1, 1, 1, 1, 1, 8), {"kv_dtype": "fp32"}, "kv_dtype must not be wider than dtype = bf16"),
        ((1, 1, 1, 1, 1, 8), {"window": 0}, "window must be a positive integer"),
        ((1, 1, 9, 1, 1, 8), {"window": 4, "causal": False}, "a window is of causal attention"),
        ((1, 1, 1, 1, 1, 8), {"causal": 1}, "causal must be True or False"),
        ((1, 1, 1, 4, 2, 8), {"is_latent": True}, "latent keys are of one KV head"),
        ((1 << 20, 1 << 20, 1 << 20, 1, 1, 64), {}, r"attention must be <= 2\*\*57"),
    ]  # fmt: skip
    for sizes, more, said in cases:
        with case(sizes, more, said), pytest.raises(InvalidProblemError, match=said):
            AttentionProblem(*sizes, **more)


def test_full_attention_may_have_more_queries_than_keys() -> None:
    problem = AttentionProblem(2, 4096, 77, 8, 8, 40, causal=False)
    assert problem.flop == 2 * 2 * 8 * 4096 * 77 * 80
    assert problem.num_bytes == 2 * 2 * 8 * 40 * (2 * 4096 + 2 * 77)
    with pytest.raises(InvalidProblemError, match="q_len must be <= kv_len"):
        AttentionProblem(2, 4096, 77, 8, 8, 40)


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


def test_collectives_that_are_refused() -> None:
    cases: Any = [
        (("gather", 64, 2), "what must be one of all_reduce"),
        (("all_reduce", 0, 2), "message_bytes must be an integer in 1"),
        (("all_reduce", 1.0, 2), "message_bytes must be an integer"),
        (("all_reduce", True, 2), "message_bytes must be an integer"),
        (("all_reduce", 1 << 51, 2), "message_bytes must be an integer"),
        (("all_reduce", 64, 0), "num_ranks must be an integer"),
        (("all_reduce", 64, (1 << 17) + 1), "num_ranks must be an integer"),
        (("all_reduce", 64, 16, "bf16", 5), "ranks_per_node must divide num_ranks = 16, got 5"),
        (("all_reduce", 64, 16, "bf16", 0), "ranks_per_node must be an integer in 1"),
        (("all_to_all", 64, 16, "bf16", 8, 65), "network_bytes must be an integer in 0..64"),
        (("all_gather", 64, 16, "bf16", 8, 64), "network_bytes are of an all_to_all, got all_gather"),
        (("send", 64, 3), "num_ranks of a send must be 2"),
        (("all_reduce", 64, 2, "float77"), "dtype must be one of"),
    ]  # fmt: skip
    for arguments, said in cases:
        with case(arguments, said), pytest.raises(InvalidProblemError, match=said):
            CollectiveProblem(*arguments)


def test_sums_are_told() -> None:
    assert [what for what in COLLECTIVES if CollectiveProblem(what, 64, 2).is_sum] == ["all_reduce", "reduce_scatter"]
