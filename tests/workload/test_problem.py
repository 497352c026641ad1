"""`GemmProblem` and `make_problem`: sizes, data types, quantization."""

from __future__ import annotations

import dataclasses
import itertools
import math
import pickle
from typing import Any

import numpy as np
import pytest

from gemm_eval import DType, GemmProblem, InvalidProblemError
from gemm_eval.workload import MAX_DIM, MAX_MACS, make_problem
from tests.cases import case

INPUTS = [dtype for dtype in DType if dtype.is_operand]
OUTPUTS = [dtype for dtype in DType if dtype is not DType.E8M0]
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


def test_any_output_type() -> None:
    for a, output in itertools.product(INPUTS, OUTPUTS):
        assert GemmProblem(1, 2, 3, 4, a, output_dtype=output).output_dtype is output, (a, output)


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


def test_str_is_short_and_complete() -> None:
    assert str(make()) == "G=1 M=16 K=4096 N=12288 fp16 -> fp16"
    assert str(make(dtype="w4a16")) == "G=1 M=16 K=4096 N=12288 fp16 x int4 (group 128) -> fp16"
    assert "per column" in str(make(dtype="w8a16"))
    assert str(make(dtype="fp8_block")).endswith(" fp8 (group 128) x fp8 (group 128x128) -> bf16")


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


def test_single_types_over_block_scaled_shorthands() -> None:
    for given, words in (
        ({"dtype": "nvfp4", "input_dtype": "bf16", "weight_dtype": "fp4"}, ("bf16", "fp4", 16, "fp8", 1)),
        ({"dtype": "w4a16_mxfp4", "input_dtype": "bf16"}, ("bf16", "fp4", 32, "e8m0", 1)),
        ({"dtype": "w4a16_nvfp4", "group_size": 32}, ("fp16", "fp4", 32, "fp8", 1)),
        ({"dtype": "w4a16_nvfp4", "group_size": -1}, ("fp16", "fp4", None, "fp16", 1)),
        ({"dtype": "w4a8_fp8", "group_size": 64}, ("fp8", "int4", 64, "fp16", 1)),
        ({"dtype": "nvfp4", "group_size": -1}, ("fp4", "fp4", None, None, None)),
        ({"dtype": "nvfp4", "scale_dtype": "bf16"}, ("fp4", "fp4", 16, "bf16", 1)),
        ({"dtype": "fp8_block", "group_size": 64}, ("fp8", "fp8", 64, "fp32", 128)),
        ({"dtype": "fp8_block", "group_n": 1}, ("fp8", "fp8", 128, "fp32", 1)),
        ({"dtype": "fp8", "group_size": 64}, ("fp8", "fp8", 64, "fp32", 1)),
        ({"dtype": "w4a16", "group_n": 4}, ("fp16", "int4", 128, "fp16", 4)),
        ({"dtype": "w4a16", "input_dtype": "bf16", "scale_dtype": "fp8"}, ("bf16", "int4", 128, "fp8", 1)),
    ):
        problem = make(**given)
        with case(given):
            found = (
                problem.input_dtype, problem.weight_dtype, problem.group_size, problem.scale_dtype, problem.group_n
            )  # fmt: skip
            assert found == words
            assert eval(repr(problem)) == problem
