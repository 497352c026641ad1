"""Unit conversions, data types and quantization shorthands."""

from __future__ import annotations

import inspect
import pickle

import numpy as np
import pytest

from gemm_eval import DType, GemmProblem, InvalidProblemError, units
from gemm_eval.dtypes import DtypeScheme, accumulator_of, default_output_of, parse_dtype, parse_scheme


@pytest.mark.parametrize(
    ("convert", "value", "expected"),
    [
        (units.bytes_per_us, 1.0, 1e3),  # 1e9 bytes a second are 1e3 a microsecond
        (units.bytes_per_us, 273.056, 273056.0),
        (units.cycles_per_us, 1.0, 1e3),
        (units.cycles_per_us, 1.755, 1755.0),
        (units.pj_per_us, 1.0, 1e6),
        (units.pj_per_us, 350.0, 3.5e8),
    ],
)
def test_conversion(convert: object, value: float, expected: float) -> None:
    assert convert(value) == pytest.approx(expected, rel=1e-15)  # type: ignore[operator]


def test_rate_of_a_known_gemm() -> None:
    flop = units.FLOP_PER_MAC * 4096**3

    assert units.FLOP_PER_MAC == 2
    assert units.tflop_per_s(flop, 1e6) == pytest.approx(0.137438953472)
    assert units.tflop_per_s(2e6, 1.0) == 2.0
    assert units.us_at_peak(flop, 0.137438953472) == pytest.approx(1e6)


def test_rates_of_arrays() -> None:
    us = np.array([1.0, 4.0])

    assert units.per_s(2, us).tolist() == [2e6, 5e5]
    assert units.watt(np.array([1e6, 2e6]), us).tolist() == [1.0, 0.5]
    assert units.watt(units.pj_per_us(350.0), 1.0) == 350.0


def test_module_exports_all_its_conversions() -> None:
    functions = {name for name, value in vars(units).items() if inspect.isfunction(value) and not name.startswith("_")}

    assert functions | {"FLOP_PER_MAC"} == set(units.__all__)


@pytest.mark.parametrize(
    ("name", "bits", "is_integer", "accumulator", "output"),
    [
        ("fp32", 32, False, "fp32", "fp32"),
        ("tf32", 32, False, "fp32", "fp32"),
        ("fp16", 16, False, "fp32", "fp16"),
        ("bf16", 16, False, "fp32", "bf16"),
        ("fp8", 8, False, "fp32", "bf16"),
        ("int8", 8, True, "int32", "int32"),
        ("int4", 4, True, "int32", "int32"),
        ("int32", 32, True, "int32", "int32"),
    ],
)
def test_dtype_facts(name: str, bits: int, is_integer: bool, accumulator: str, output: str) -> None:
    dtype = DType(name)

    assert (dtype.bits, dtype.is_integer) == (bits, is_integer)
    assert (accumulator_of(dtype), default_output_of(dtype)) == (accumulator, output)
    assert dtype == name
    assert f"{dtype}" == name
    assert pickle.loads(pickle.dumps(dtype)) is dtype


def test_every_dtype_has_whole_nibbles() -> None:
    """The kernels count half-bytes."""
    assert all(dtype.bits % 4 == 0 for dtype in DType)
    assert len(DType) == 8


@pytest.mark.parametrize("dtype", DType)
def test_parse_dtype_takes_names_and_members(dtype: DType) -> None:
    assert parse_dtype(str(dtype)) is dtype
    assert parse_dtype(dtype) is dtype


@pytest.mark.parametrize(
    "value", ["FP16", "", " fp16", "fp16\n", "half", "w4a16", None, 16, 1.5, True, b"fp16", ["fp16"], {}]
)
def test_parse_dtype_refuses_and_lists_what_is_allowed(value: object) -> None:
    with pytest.raises(InvalidProblemError, match=r"weight_dtype must be one of fp32, .*int4.*, got") as caught:
        parse_dtype(value, what="weight_dtype")
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("w4a16", ("fp16", "int4", "fp16", 128)),
        ("w8a16", ("fp16", "int8", "fp16", None)),
        ("w4a8", ("int8", "int4", "fp16", 128)),
        ("w8a8", ("int8", "int8", "int32", None)),
        ("fp8", ("fp8", "fp8", "bf16", None)),
        ("tf32", ("tf32", "tf32", "fp32", None)),
    ],
)
def test_schemes(name: str, expected: tuple[object, ...]) -> None:
    assert parse_scheme(name) == DtypeScheme(*expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype is not DType.INT32])
def test_every_input_dtype_is_a_dense_scheme(dtype: DType) -> None:
    scheme = parse_scheme(dtype)

    assert scheme.input_dtype is scheme.weight_dtype is dtype
    assert scheme.group_size is None


@pytest.mark.parametrize("value", ["w9a9", "W4A16", "", None, 4, True, ["fp16"], ("w4a16",)])
def test_parse_scheme_refuses_and_lists_what_is_allowed(value: object) -> None:
    with pytest.raises(InvalidProblemError, match=r"dtype must be one of fp32, .*w4a16, w8a16, w4a8, w8a8, got"):
        parse_scheme(value)


def test_weights_can_be_stored_in_these() -> None:
    assert [str(dtype) for dtype in DType if dtype.is_weight] == ["fp8", "int8", "int4"]
    with pytest.raises(InvalidProblemError, match="or a narrower fp8, int8 or int4, got bf16 weights for fp32 inputs"):
        GemmProblem(1, 1, 1, 1, DType.FP32, DType.BF16)


def test_bits_of_an_operand_count_its_scales() -> None:
    types = GemmProblem(1, 1, 1, 1, "fp16", "int4", group_size=16, scale_dtype="fp16", zero_dtype="int4").types

    assert types.a.total_bits(3, 20) == 3 * 20 * 16
    assert types.b.total_bits(3, 20) == 3 * (20 * 4 + 2 * (16 + 4))
    assert GemmProblem(1, 1, 1, 1, "fp16", "int4").types.b.total_bits(3, 20) == 3 * (20 * 4 + 16)
