"""What is measured: enough points, every regime, within limits, and always the same."""

from __future__ import annotations

import pytest

from gemm_eval.errors import InvalidOptionError
from gemm_eval.measure import GemmShape, TimingProtocol, estimate_seconds, list_shapes, shuffle_shapes
from tests.cli.commands import Ran

ALL = [
    ("model-zoo", "fp16"),
    ("model-zoo-few", "bf16"),
    ("batched", "fp16"),
    ("model-zoo", "fp8"),
    ("model-zoo", "int8"),
]


def test_fp16_has_points_enough_of_sixty_pairs() -> None:
    shapes = list_shapes("model-zoo", "fp16")

    assert len(shapes) >= 1500
    assert len({(shape.N, shape.K) for shape in shapes}) >= 60
    assert {1, 17, 127, 129, 257, 1025, 16384} <= {shape.M for shape in shapes}


@pytest.mark.parametrize(("shape_set", "dtype"), ALL)
def test_shapes_are_distinct_and_within_limits(shape_set: str, dtype: str) -> None:
    shapes = list_shapes(shape_set, dtype)

    assert len(shapes) >= 150
    assert len(set(shapes)) == len(shapes)
    assert max(shape.flop for shape in shapes) <= 2 * 16384**3
    assert max(2 * shape.G * shape.K * shape.N for shape in shapes) < 2_200_000_000


def test_every_pair_has_small_and_large_rows() -> None:
    shapes = list_shapes("model-zoo", "fp16")
    for pair in {(shape.N, shape.K) for shape in shapes}:
        rows = [shape.M for shape in shapes if pair == (shape.N, shape.K)]
        assert min(rows) <= 2
        assert max(rows) >= 2048


def test_narrow_types_get_what_their_library_takes() -> None:
    assert all(shape.N % 16 == shape.K % 16 == 0 for shape in list_shapes("model-zoo", "fp8"))
    assert all(shape.N % 8 == shape.K % 8 == 0 and shape.M > 16 for shape in list_shapes("model-zoo", "int8"))
    assert list_shapes("batched", "fp8") == []


def test_order_is_random_and_always_the_same() -> None:
    shapes = list_shapes("model-zoo", "fp16")
    shuffled = shuffle_shapes([*shapes, *shapes])

    assert sorted(shuffled) == sorted(shapes)
    assert shuffled == shuffle_shapes(shapes[::-1]) != shapes


def test_all_sets_take_less_than_nine_minutes() -> None:
    shapes = [shape for shape_set, dtype in ALL for shape in list_shapes(shape_set, dtype)]

    assert estimate_seconds(shapes, TimingProtocol()) < 540


def test_unknown_set_is_an_error() -> None:
    with pytest.raises(
        InvalidOptionError, match="model-zoo, model-zoo-few, batched, candidates, unaligned, experts, smoke, got 'zoo'"
    ):
        list_shapes("zoo", "fp16")


def test_flop_counts_a_multiply_add_as_two() -> None:
    assert GemmShape(2, 3, 5, 7).flop == 420


@pytest.mark.parametrize(
    ("words", "code", "parts"),
    [
        ("--kernel cublaslt-candidates --set candidates --candidates 4", 0, ["652 GEMMs (G M K N), up to 4"]),
        ("--kernel grouped --dtype bf16 --set grouped-smoke", 0, ["GEMMs (G M K N)"]),
        (
            "--kernel w4a16 --set w4a16-smoke --top 15 --random 10", 0,
            ["1 1 4096 4096 group 128 25", "2 GEMMs", "50 kernels to time"],
        ),
        ("--set candidates --candidates 4", 2, ["--candidates needs --kernel cublaslt-candidates"]),
        (
            "--kernel cublaslt-candidates --set candidates --candidates 0", 2,
            ["--candidates must be 1 to 64, got 0"],
        ),
        ("--top 5", 2, ["--top and --random need --kernel w4a16, got --kernel cublas"]),
        ("--kernel w4a16 --top 0", 2, ["--top must be >= 1 and --random >= 0, got 0 and 0"]),
        ("--kernel w4a16 --set model-zoo", 2, ["--set must be one of w4a16"]),
    ],
)  # fmt: skip
def test_the_command_lists_without_a_gpu_and_refuses(words: str, code: int, parts: list[str]) -> None:
    ran = Ran("measure", "--out", ".", *words.split(), "--list", columns=200)
    assert ran.code == code
    assert all(part in ran.out + ran.err for part in parts), ran.out + ran.err
