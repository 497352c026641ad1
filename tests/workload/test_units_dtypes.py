"""Unit conversions, data types and quantization shorthands."""

import pickle
from typing import Any

import numpy as np
import pytest

from gemm_eval import DType, GemmProblem, InvalidProblemError, units
from gemm_eval.dtypes import DtypeScheme, accumulator_of, default_output_of, parse_dtype, parse_scheme
from tests.cases import case


def test_conversion() -> None:
    cases: Any = [
        (units.bytes_per_us, 1.0, 1e3),  # 1e9 bytes a second are 1e3 a microsecond
        (units.bytes_per_us, 273.056, 273056.0),
        (units.cycles_per_us, 1.0, 1e3),
        (units.cycles_per_us, 1.755, 1755.0),
        (units.pj_per_us, 1.0, 1e6),
        (units.pj_per_us, 350.0, 3.5e8),
    ]  # fmt: skip
    for convert, value, expected in cases:
        with case(convert, value, expected):
            assert convert(value) == pytest.approx(expected, rel=1e-15)  # type: ignore[operator]


def test_times_for_people_have_three_digits_and_a_unit() -> None:
    cases: Any = [
        (20_805_922.82, "20.8 s"), (12_345.6, "12.3 ms"), (4.5649, "4.56 us"), (0.8481, "0.848 us"),
        (0.01697, "17.0 ns"), (0.0, "0 us"), (-0.0, "0 us"), (-602.26, "-602 us"), (-1681.46, "-1.68 ms"),
        (999.4, "999 us"), (999.6, "1.00 ms"), (999_499.0, "999 ms"), (999_500.0, "1.00 s"), (1000.0, "1.00 ms"),
        (9.996, "10.0 us"), (0.09996, "0.100 us"), (100.0, "100 us"), (2.5e10, "25,000 s"), (1e-7, "1.00e-07 us"),
        (float("nan"), "nan us"), (float("inf"), "inf us"),
    ]  # fmt: skip
    for us, text in cases:
        with case(us, text):
            assert units.time_text(us) == text
            assert units.time_text(np.float64(us)) == text


def test_rates_of_arrays() -> None:
    us = np.array([1.0, 4.0])

    assert units.per_s(2, us).tolist() == [2e6, 5e5]
    assert units.watt(np.array([1e6, 2e6]), us).tolist() == [1.0, 0.5]
    assert units.watt(units.pj_per_us(350.0), 1.0) == 350.0


def test_dtype_facts() -> None:
    cases: Any = [
        ("fp32", 32, False, "fp32", "fp32"), ("tf32", 32, False, "fp32", "fp32"), ("fp16", 16, False, "fp32", "fp16"),
        ("bf16", 16, False, "fp32", "bf16"), ("fp8", 8, False, "fp32", "bf16"), ("fp4", 4, False, "fp32", "bf16"),
        ("e8m0", 8, False, "fp32", "e8m0"), ("int8", 8, True, "int32", "int32"), ("int4", 4, True, "int32", "int32"),
        ("int32", 32, True, "int32", "int32"),
    ]  # fmt: skip
    for name, bits, is_integer, accumulator, output in cases:
        with case(name, bits, is_integer, accumulator, output):
            dtype = DType(name)

            assert (dtype.bits, dtype.is_integer) == (bits, is_integer)
            assert (accumulator_of(dtype), default_output_of(dtype)) == (accumulator, output)
            assert dtype == name
            assert f"{dtype}" == name
            assert pickle.loads(pickle.dumps(dtype)) is dtype


def test_what_a_type_can_be() -> None:
    assert [str(dtype) for dtype in DType if not dtype.is_operand] == ["int32", "e8m0"]
    assert [str(dtype) for dtype in DType if dtype.is_weight] == ["fp8", "fp4", "int8", "int4"]
    assert [str(dtype) for dtype in DType if dtype.is_block_scaled] == ["fp8", "fp4"]


def test_parse_dtype_refuses_and_lists_what_is_allowed() -> None:
    bad: list[Any] = [
        "", " fp16", "fp16\n", "fp12", "float", "int", "float64", "uint4", "float8_e4m3fnuz", "fp16 ", "torch.",
        "x" * 70, None, 16, 1.5, True, b"fp16", ["fp16"], {}, float, int, np.float64, np.float16(1),
        np.array(["fp16"]), object,
    ]  # fmt: skip
    for value in bad:
        with (
            case(value),
            pytest.raises(InvalidProblemError, match=r"weight_dtype must be one of fp32, .*int4.*, got") as caught,
        ):
            parse_dtype(value, what="weight_dtype")
        assert repr(value) in str(caught.value)


class _Dtype:
    """Looks as a type of torch or Triton does: known by where its class comes from, and by how it prints."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def test_parse_dtype_takes_the_words_and_objects_of_others() -> None:
    torch_dtype = type("dtype", (_Dtype,), {"__module__": "torch"})
    triton_dtype = type("dtype", (_Dtype,), {"__module__": "triton.language.core"})
    e4m3, jax_bf16 = (
        type("float8_e4m3fn", (), {"__module__": "ml_dtypes"}), type("bfloat16", (), {"__module__": "jax.numpy"})
    )  # fmt: skip
    values: dict[str, tuple[Any, ...]] = {
        "fp32": ("FP32", "float32", "single", "f32", "torch.float32", np.float32, np.dtype(">f4"),
                 torch_dtype("torch.float32")),
        "tf32": ("TF32", "tensorfloat32"),
        "fp16": ("FP16", "Float16", "half", "f16", "np.float16", "torch.half", np.float16, np.half, np.dtype("float16"),
                 np.dtype("float16").type, torch_dtype("torch.float16"), triton_dtype("fp16")),
        "bf16": ("BF16", "bfloat16", "ml_dtypes.bfloat16", "jnp.bfloat16", "tl.bfloat16", jax_bf16,
                 torch_dtype("torch.bfloat16")),
        "fp8": ("FP8", "float8", "fp8_e4m3", "FP8-E4M3", "float8_e4m3fn", "torch.float8_e4m3fn", "e5m2", "float8_e5m2",
                e4m3, torch_dtype("torch.float8_e5m2"), triton_dtype("fp8e4nv")),
        "fp4": ("FP4", "e2m1", "float4_e2m1fn_x2", torch_dtype("torch.float4_e2m1fn_x2")),
        "int8": ("INT8", "i8", np.int8, np.dtype("int8"), torch_dtype("torch.int8")),
        "int4": ("INT4", "s4"),
        "int32": ("int32", np.int32),
        "bfp8": ("BFP8", "bfloat8_b", "bfp8_b"),
        "bfp4": ("BFP4", "bfloat4_b"),
        "e8m0": ("E8M0", "ue8m0", torch_dtype("torch.float8_e8m0fnu")),
    }  # fmt: skip
    for name, words in values.items():
        for word in words:
            assert parse_dtype(word) is DType(name), word
            if DType(name).is_operand:
                assert parse_scheme(word) == parse_scheme(name), word
    assert set(values) == set(DType)


def test_words_that_mean_two_types_are_refused_with_what_they_may_mean() -> None:
    for word, meant in (
        ("float", "fp32"), (float, "fp32"), ("uint4", "int4"), ("float8_e4m3fnuz", "fp8"), ("nvfp4x", "fp4"),
    ):  # fmt: skip
        with pytest.raises(InvalidProblemError, match=f"did you mean {meant}"):
            parse_dtype(word)


def test_schemes() -> None:
    cases: Any = [
        ("w4a16", ("fp16", "int4", "fp16", 128)),
        ("w8a16", ("fp16", "int8", "fp16", None)),
        ("w4a8", ("int8", "int4", "fp16", 128)),
        ("w8a8", ("int8", "int8", "int32", None)),
        ("fp8", ("fp8", "fp8", "bf16", None)),
        ("tf32", ("tf32", "tf32", "fp32", None)),
        ("W4A16", ("fp16", "int4", "fp16", 128)),
        ("fp8_block", ("fp8", "fp8", "bf16", 128, "fp32", 128)),
        ("FP8_BLOCK_SCALES", ("fp8", "fp8", "bf16", 128, "fp32", 128)),
        ("mxfp8", ("fp8", "fp8", "bf16", 32, "e8m0")),
        ("MXFP4", ("fp4", "fp4", "bf16", 32, "e8m0")),
        ("NVFP4", ("fp4", "fp4", "bf16", 16, "fp8")),
        ("w4a16-mxfp4", ("fp16", "fp4", "fp16", 32, "e8m0")),
        ("NVFP4A16", ("fp16", "fp4", "fp16", 16, "fp8")),
        ("w4a8_fp8", ("fp8", "int4", "bf16", 128)),
        ("W4AFP8", ("fp8", "int4", "bf16", 128)),
    ]  # fmt: skip
    for name, expected in cases:
        with case(name, expected):
            assert parse_scheme(name) == DtypeScheme(*expected)  # type: ignore[arg-type]


def test_parse_scheme_refuses_and_lists_what_is_allowed() -> None:
    for value in ["w9a9", "W4 A16", "e8m0x", "", None, 4, True, ["fp16"], ("w4a16",)]:
        with (
            case(value),
            pytest.raises(
                InvalidProblemError, match=r"dtype must be one of fp32, .*w4a16, w8a16, w4a8, w8a8, .*mxfp4, nvfp4, got"
            ),
        ):
            parse_scheme(value)


def test_bits_of_an_operand_count_its_scales() -> None:
    types = GemmProblem(1, 1, 1, 1, "fp16", "int4", group_size=16, scale_dtype="fp16", zero_dtype="int4").types

    assert types.a.total_bits(3, 20) == 3 * 20 * 16
    assert types.b.total_bits(3, 20) == 3 * (20 * 4 + 2 * (16 + 4))
    assert GemmProblem(1, 1, 1, 1, "fp16", "int4").types.b.total_bits(3, 20) == 3 * (20 * 4 + 16)
