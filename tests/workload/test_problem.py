"""GEMM problems, plain and of groups of rows: sizes, types, refusals, words."""

import dataclasses
import itertools
import math
import pickle
import random
from typing import Any

import numpy as np
import pytest

import gemm_eval
from gemm_eval import DType, GemmProblem, InvalidProblemError
from gemm_eval.workload import (
    MAX_DIM,
    MAX_GROUPS,
    MAX_MACS,
    Layouts,
    check_row_groups,
    make_problem,
    pack_layouts,
    problem_of,
)
from tests.cases import case

# ---- problem ---------------------------------------------------------------------------------------------------------


INPUTS = [dtype for dtype in DType if dtype.is_operand]
NARROW = (DType.INT8, DType.INT4, DType.FP8, DType.FP4)


class IsFour:
    def __index__(self) -> int:
        return 4


def make(**types: Any) -> GemmProblem:
    return make_problem(1, 16, 4096, 12288, default_dtype=DType.FP16, **types)


NO_SIZES = (
    0, -1, -(2**70), 1.0, 4.5, True, False, np.True_, np.float64(4), "4", b"4", None, math.nan, math.inf, [4], (4,),
    {}, 4j, np.array([4]), np.array([4, 5]), 2**40 + 1, 2**63, 2**64, 10**5000, -(10**5000),
)  # fmt: skip


def test_impossible_size_is_refused_by_name() -> None:
    for name, value in itertools.product("GMKN", NO_SIZES):
        with (
            case(name, type(value), value),
            pytest.raises(InvalidProblemError, match=rf"^{name} must be .*, got "),
        ):
            GemmProblem(**{"G": 2, "M": 3, "K": 5, "N": 7, name: value})  # type: ignore[arg-type]


def test_any_integer_is_taken_and_becomes_int() -> None:
    for value in [4, np.int64(4), np.int8(4), np.uint64(4), np.array(4), IsFour()]:
        with case(value):
            problem = GemmProblem(value, 1, 1, 1)

            assert type(problem.G) is int
            assert problem == GemmProblem(4, 1, 1, 1)


def test_largest_problems_are_taken() -> None:
    for sizes in [(MAX_DIM, 1, 1, 1), (1, 1, 1, MAX_DIM), (1, MAX_DIM, 2**17, 1), (2**19, 2**19, 2**19, 1)]:
        with case(sizes):
            problem = GemmProblem(*sizes)

            assert problem.sizes == sizes
            assert problem.macs == math.prod(sizes) <= MAX_MACS
            assert problem.flop == 2 * problem.macs


def test_too_large_a_product_is_refused() -> None:
    for sizes in [(1, MAX_DIM, 2**17, 2), (MAX_DIM,) * 4, (2**19, 2**19, 2**19, 2), (1, 2**29, 2**28, 2)]:
        match = r"G\*M\*K\*N must be <= 2\*\*57.*split the problem"
        with case(sizes), pytest.raises(InvalidProblemError, match=match):
            GemmProblem(*sizes)


def test_operand_types() -> None:
    for a, b in itertools.product(DType, DType):
        is_allowed = a.is_operand and b.is_operand and (a is b or (b in NARROW and b.bits < a.bits))
        with case(a, b):
            if not is_allowed:
                with pytest.raises(
                    InvalidProblemError, match=r"weight_dtype must be|int32 is an accum|e8m0 is a type of scales"
                ):
                    GemmProblem(1, 2, 3, 4, a, b)
                continue
            problem = GemmProblem(1, 2, 3, 4, a, b)
            assert problem.is_weight_quantized == (a is not b)
            assert problem.accumulator_dtype is (DType.INT32 if a in (DType.INT8, DType.INT4) else DType.FP32)
            assert (problem.scale_dtype is None) == (a is b)
            assert problem.zero_dtype is None


def test_accumulator_is_given_by_the_input() -> None:
    for a, accumulator in itertools.product(INPUTS, DType):
        expected = GemmProblem(1, 2, 3, 4, a).accumulator_dtype
        with case(a, accumulator):
            if accumulator is expected:
                assert GemmProblem(1, 2, 3, 4, a, accumulator_dtype=accumulator).accumulator_dtype is expected
                continue
            with pytest.raises(InvalidProblemError, match=f"accumulator_dtype must be {expected} for {a} inputs"):
                GemmProblem(1, 2, 3, 4, a, accumulator_dtype=accumulator)


def test_unknown_type_is_refused_by_field() -> None:
    fields = ("input_dtype", "weight_dtype", "output_dtype", "accumulator_dtype", "scale_dtype", "zero_dtype")
    values: tuple[Any, ...] = ("fp12", "float", "", 4, True, ["fp16"])
    for field, value in itertools.product(fields, values):
        with case(field, value), pytest.raises(InvalidProblemError, match=f"^{field} must be one of"):
            GemmProblem(1, 2, 3, 4, **{"weight_dtype": DType.INT4, field: value})


def test_impossible_quantization_is_refused() -> None:
    dense = (("group_size", 64), ("scale_dtype", "fp16"), ("zero_dtype", "int4"))
    cases: list[tuple[Any, str, Any, str]] = [
        *((None, name, value, f"^{name} is for quantized weights only") for name, value in dense),
        *(("int4", "group_size", value, "^group_size must be")
          for value in (0, -1, -2, True, 1.0, 128.0, "128", math.nan, [128], 2**40 + 1)),
        # integer scales could not shrink anything
        *(("int4", "scale_dtype", dtype, "scale_dtype") for dtype in ("int4", "int8", "int32")),
    ]  # fmt: skip
    for weight, name, value, match in cases:
        with case(name, value), pytest.raises(InvalidProblemError, match=match):
            GemmProblem(1, 2, 3, 4, weight_dtype=weight, **{name: value})


def test_value_semantics() -> None:
    problem = GemmProblem(1, 2, 3, 4, weight_dtype=DType.INT4, group_size=np.int64(64), zero_dtype=DType.INT4)  # type: ignore[arg-type]
    same = GemmProblem(1, 2, 3, 4, "fp16", "int4", "fp16", "fp32", 64, "fp16", "int4")  # type: ignore[arg-type]

    assert problem == same
    assert hash(problem) == hash(same)
    assert pickle.loads(pickle.dumps(problem)) == problem
    assert problem != dataclasses.replace(problem, M=3)
    assert dataclasses.replace(problem, M=5).sizes == (1, 5, 3, 4)
    assert type(same.input_dtype) is DType
    assert type(problem.group_size) is int
    with pytest.raises(dataclasses.FrozenInstanceError):
        problem.M = 3  # type: ignore[misc]


def test_shorthand() -> None:
    cases: Any = [
        ({}, "fp16", "fp16", "fp16", None),
        ({"dtype": "bf16"}, "bf16", "bf16", "bf16", None),
        ({"dtype": "w4a16"}, "fp16", "int4", "fp16", 128),
        ({"dtype": "w8a8"}, "int8", "int8", "int32", None),
        ({"dtype": "w4a8"}, "int8", "int4", "fp16", 128),
        # single types win
        ({"input_dtype": "bf16"}, "bf16", "bf16", "bf16", None),
        ({"weight_dtype": "int4"}, "fp16", "int4", "fp16", None),
        ({"output_dtype": "fp32"}, "fp16", "fp16", "fp32", None),
        ({"dtype": "fp16", "input_dtype": "bf16"}, "bf16", "bf16", "bf16", None),
        ({"dtype": "w4a16", "input_dtype": "bf16"}, "bf16", "int4", "bf16", 128),
        ({"dtype": "w4a16", "weight_dtype": "int8"}, "fp16", "int8", "fp16", None),
        ({"dtype": "w4a16", "weight_dtype": "fp16"}, "fp16", "fp16", "fp16", None),
        ({"dtype": "w4a16", "output_dtype": "fp32"}, "fp16", "int4", "fp32", 128),
        ({"dtype": "w4a16", "input_dtype": "bf16", "output_dtype": "fp32"}, "bf16", "int4", "fp32", 128),
        # to repeat what the shorthand says changes nothing
        ({"dtype": "w4a16", "input_dtype": "fp16"}, "fp16", "int4", "fp16", 128),
        ({"dtype": "w4a16", "weight_dtype": "int4"}, "fp16", "int4", "fp16", 128),
        ({"dtype": "w4a16", "weight_dtype": DType.INT4}, "fp16", "int4", "fp16", 128),
        ({"dtype": "w4a8", "input_dtype": "int8"}, "int8", "int4", "fp16", 128),
        # groups
        ({"dtype": "w4a16", "group_size": 64}, "fp16", "int4", "fp16", 64),
        ({"dtype": "w4a16", "group_size": -1}, "fp16", "int4", "fp16", None),
        ({"dtype": "w4a16", "group_size": np.int64(-1)}, "fp16", "int4", "fp16", None),
        ({"dtype": "w8a16", "group_size": -1}, "fp16", "int8", "fp16", None),
        ({"dtype": "w4a16", "weight_dtype": "int8", "group_size": 32}, "fp16", "int8", "fp16", 32),
        ({"weight_dtype": "int4", "group_size": np.int32(32)}, "fp16", "int4", "fp16", 32),
    ]  # fmt: skip
    for types, a, b, c, group in cases:
        with case(types, a, b, c, group):
            problem = make(**types)

            assert (problem.input_dtype, problem.weight_dtype, problem.output_dtype, problem.group_size) == (
                a,
                b,
                c,
                group,
            )


def test_shorthand_refusals_name_what_the_caller_wrote() -> None:
    cases: Any = [
        ({"dtype": "w9a9"}, "^dtype must be one of"),
        ({"dtype": ["fp16"]}, "^dtype must be one of"),
        ({"dtype": "w4a16", "input_dtype": "w4a16"}, "^input_dtype must be a single type, .*give it as dtype"),
        ({"weight_dtype": "NVFP4"}, "^weight_dtype must be a single type, .*give it as dtype"),
        ({"dtype": "nvfp4", "input_dtype": "bf16"},
            "^dtype nvfp4 is block-scaled fp4 in A and B, but input_dtype is bf16"),
        ({"dtype": "nvfp4", "zero_dtype": "int4"}, "^zero_dtype is for quantized weights only: block-scaled fp4"),
        ({"dtype": "fp8", "scale_dtype": "fp32"},
            "^scale_dtype is for .* with group_size for block-scaled fp8 and fp4"),
        ({"dtype": "fp16", "group_n": 128}, "^group_n is for quantized weights only"),
        ({"dtype": "fp8_block", "group_n": 0}, "^group_n must be in"),
        ({"dtype": "mxfp8", "scale_dtype": "int8"}, "^scale_dtype must be a floating-point type"),
        ({"dtype": "e8m0"}, "^dtype must be one of"),
        ({"output_dtype": "e8m0"}, "^e8m0 is a type of scales"),
        ({"dtype": "w4a16", "zero_dtype": "e8m0"}, "^e8m0 is a type of scales"),
        ({"dtype": "w4a16", "weight_dtype": 3}, "^weight_dtype must be one of"),
        ({"dtype": "w4a16", "group_size": 0}, "^group_size must be"),
        ({"dtype": "w4a16", "group_size": -2}, "^group_size must be"),
        ({"dtype": "w4a16", "group_size": -1.0}, "^group_size must be"),
        ({"dtype": "w4a16", "group_size": True}, "^group_size must be"),
        ({"dtype": "fp16", "group_size": 128}, "^group_size is for quantized weights only"),
        ({"dtype": "fp16", "zero_dtype": "int4"}, "^zero_dtype is for quantized weights only"),
        ({"dtype": "int32"}, "^int32 is an accumulator"),
        ({"input_dtype": "int32"}, "^int32 is an accumulator"),
        ({"dtype": "int4", "weight_dtype": "int8"}, "^weight_dtype must be"),
    ]  # fmt: skip
    for types, names in cases:
        with case(types, names), pytest.raises(InvalidProblemError, match=names):
            make(**types)


def test_block_scaled_types() -> None:
    """(shorthand, the same by single types, bits of A and B with scales for K = 300 and N = 130)."""
    groups = math.ceil(300 / 128)
    for words, single, a_bits, b_bits in (
        ("fp8_block", {"input_dtype": "fp8", "group_size": 128, "group_n": 128},
         16 * (300 * 8 + groups * 32), 130 * 300 * 8 + 2 * groups * 32),
        ("mxfp8", {"input_dtype": "fp8", "group_size": 32}, 16 * (300 * 8 + 10 * 8), 130 * (300 * 8 + 10 * 8)),
        ("mxfp4", {"input_dtype": "fp4", "group_size": 32}, 16 * (300 * 4 + 10 * 8), 130 * (300 * 4 + 10 * 8)),
        ("nvfp4", {"input_dtype": "fp4", "group_size": 16}, 16 * (300 * 4 + 19 * 8), 130 * (300 * 4 + 19 * 8)),
        ("w4a16_mxfp4", {"weight_dtype": "fp4", "group_size": 32}, 16 * 300 * 16, 130 * (300 * 4 + 10 * 8)),
        ("w4a16_nvfp4", {"weight_dtype": "fp4", "group_size": 16}, 16 * 300 * 16, 130 * (300 * 4 + 19 * 8)),
        ("w4a8_fp8", {"input_dtype": "fp8", "weight_dtype": "int4", "group_size": 128},
         16 * 300 * 8, 130 * (300 * 4 + groups * 16)),
    ):  # fmt: skip
        problem, types = make(dtype=words), make(dtype=words).types
        with case(words):
            assert problem == make(**single) == make(dtype=words.upper().replace("_", "-"))
            assert types.is_block_scaled == (types.a.scale is not None) == ("a16" not in words and "a8" not in words)
            assert problem.output_dtype == ("fp16" if "a16" in words else "bf16")
            assert problem.accumulator_dtype == "fp32"
            assert (types.a.total_bits(16, 300), types.b.total_bits(130, 300)) == (a_bits, b_bits)
            assert eval(repr(problem)) == problem == pickle.loads(pickle.dumps(problem))
            assert pickle.loads(pickle.dumps(types)) == types
            assert GemmProblem(*problem.sizes, **types.words) == problem
            assert dataclasses.replace(problem, M=3).types == types


# ---- row groups ------------------------------------------------------------------------------------------------------


GROUPS = (120, 3, 0, 17)
NO_GROUPS: list[Any] = [
    (), [], (0,), (0, 0), (1.0,), (True, 2), (-1, 4), (MAX_DIM + 1, 1), (2**70,), "12", b"12", {3: 4}, {1, 2},
    frozenset({1}), 5, None, 1.5, [[1, 2]], (None, 1), ("1",), (np.float64(3),), (np.True_, 2), np.array(3),
    np.array([[1, 2]]), np.array([1.0]), np.array([True, False]), np.array([2**63], np.uint64),
    np.ma.array([1, 2], mask=[False, True]), (1,) * (MAX_GROUPS + 1), [0] * 5000, itertools.repeat(1),
    np.array([], int),
]  # fmt: skip


# which are groups


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
