"""Packed weights: what is made of simple matrices, what kernels multiply by them, and refusals."""

import dataclasses
import itertools
import sys
from typing import Any

import numpy as np
import pytest

from gemm_eval.device import runtime
from gemm_eval.dtypes import DType
from gemm_eval.errors import GemmEvalError, InvalidInputError, InvalidOptionError, InvalidProblemError
from gemm_eval.kernels.families.base import WeightMode
from gemm_eval.kernels.fp4 import unpack_fp4
from gemm_eval.kernels.weights import PackedW4, dequantize, pack_w4, quantize_w4, unpack_w4
from tests.cases import case
from tests.oracle import fragments

# ---- packing ---------------------------------------------------------------------------------------------------------


ONES = np.ones((256, 64), np.float32)


def integers(K: int = 128, N: int = 64) -> Any:
    return (np.arange(K * N).reshape(K, N) * 7 % 16).astype(np.uint8)


@pytest.mark.parametrize(
    ("mode", "group_size", "shape"),
    [
        ("column", None, (128,)), ("group", 128, (2, 3, 64)), ("group", 32, (2, 12, 64)),
        ("group_zero", 64, (2, 6, 32, 4)),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("activation", "dtype"), [("fp16", "float16"), ("bf16", "uint16")])
def test_shapes_and_types(
    mode: str, group_size: int | None, shape: tuple[int, ...], activation: str, dtype: str
) -> None:
    packed = pack_w4(np.ones((264, 72)), group_size, mode, activation=activation)

    assert (packed.qweight.shape, str(packed.qweight.dtype)) == ((2, 6, 4, 32, 4), "uint32")
    assert (packed.scales.shape, str(packed.scales.dtype)) == (shape, dtype)
    assert (packed.N, packed.K, packed.mode, packed.group_size) == (72, 264, WeightMode[mode.upper()], group_size or 0)
    assert packed.nbytes == 2 * 6 * 2048 + 2 * np.prod(shape)
    assert (packed.num_column_blocks, packed.num_k_blocks) == (2, 6)
    assert packed.num_groups == (384 // group_size if group_size else 1)


def test_the_furthest_weight_is_kept_and_the_other_side_not_clipped() -> None:
    column = np.zeros((128, 8))
    column[0], column[1], column[2] = 4.0, -3.75, 0.3
    quantized = quantize_w4(column)
    assert (quantized.scales == -0.5).all()
    assert quantized.integers[:4, 0].tolist() == [0, 8 + 7, 8 - 1, 8]  # 3.75 / 0.5 = 7.5, half a scale from 7

    column[1] = -4.0
    scale = quantize_w4(column).scales[0, 0]
    assert abs(scale) >= 4 / 7.5
    assert abs(scale) <= 4 / 7.5 * (1 + 2**-10)


def test_zero_points_span_all_weights_and_zero() -> None:
    weights = np.zeros((128, 8))
    weights[:, 0], weights[:, 1], weights[:16, 2] = 3.0, -3.0, np.arange(16) - 5
    quantized = quantize_w4(weights, mode="group_zero")

    assert quantized.zeros is not None
    assert quantized.zeros[0, :4].tolist() == [0, 15, 5, 0]
    assert quantized.integers[0, :4].tolist() == [15, 0, 0, 0]
    assert quantized.integers[:16, 2].tolist() == list(range(16))


def test_signed_integers_are_the_weights_themselves() -> None:
    scales = np.full((1, 64), 0.5)
    signed = integers().astype(np.int8) - np.int8(8)
    packed = pack_w4(signed, scales=scales)

    np.testing.assert_array_equal(packed.qweight, pack_w4(integers(), scales=scales).qweight)
    np.testing.assert_array_equal(dequantize(packed), signed * 0.5)


def test_signed_type_with_zero_points_holds_stored_integers() -> None:
    scales, zeros = np.full((1, 64), 0.5), np.full((1, 64), 3)
    packed = pack_w4(integers().astype(np.int64), mode="group_zero", scales=scales, zeros=zeros)

    np.testing.assert_array_equal(dequantize(packed), (integers().astype(float) - 3) * 0.5)


@pytest.mark.parametrize("largest", [2.0**-20, 0.0137, 1.0, 8000.0])
def test_stored_scales_reach_the_end_of_the_range(largest: float) -> None:
    """Kernels multiply them with subnormal numbers: a unit of the matrix brings the largest just below 2^16."""
    scales = np.float16(largest) * np.linspace(0.01, 1, 64)[None]
    packed = pack_w4(integers(), scales=scales)
    stored = abs(packed.scales.astype(float)).max()

    assert packed.mode is WeightMode.GROUP
    assert 2.0**15 <= stored < 2.0**16
    assert stored * packed.scale_unit == np.float16(largest)
    np.testing.assert_array_equal(unpack_w4(packed).scales, scales.astype(np.float16).astype(np.float32))
    assert pack_w4(integers(), scales=scales, activation="bf16").scale_unit == max(1.0, 2.0**4 * (largest > 512))


def test_scales_that_span_too_much_come_with_zero_points() -> None:
    scales = np.geomspace(1.0, 2.0**-7.9, 64)[None].astype(np.float16)
    assert pack_w4(integers(), scales=scales).mode is WeightMode.GROUP
    wide = scales.copy()
    wide[0, 5] = 2.0**-9
    packed = pack_w4(integers(), scales=wide)

    assert (packed.mode, packed.scale_unit) == (WeightMode.GROUP_ZERO, 1.0)
    assert (unpack_w4(packed).zeros == 8).all()
    np.testing.assert_array_equal(dequantize(packed), (integers() - 8.0) * wide.astype(float))
    assert pack_w4(integers(), scales=wide, activation="bf16").mode is WeightMode.GROUP
    wide[0, 5] = 0  # a column of zeros spans nothing
    assert pack_w4(integers(), scales=wide).mode is WeightMode.GROUP


@pytest.mark.parametrize("unit", [0.0, -1.0, 3.0, float("inf"), float("nan"), "1"])
def test_a_unit_of_scales_is_a_power_of_two(unit: Any) -> None:
    packed = pack_w4(integers(), scales=np.ones((1, 64)))
    with pytest.raises(InvalidOptionError, match="scale_unit must be a power of 2"):
        dataclasses.replace(packed, scale_unit=unit)


def test_given_scales_are_rounded_to_the_type() -> None:
    scales = np.full((1, 64), 1 + 2**-8 + 2**-20)

    assert (unpack_w4(pack_w4(integers(), scales=scales)).scales == 1 + 2**-8).all()
    assert (unpack_w4(pack_w4(integers(), scales=scales, activation="bf16")).scales == 1 + 2**-7).all()
    halfway = np.full((1, 64), 1 + 2**-8)
    assert (unpack_w4(pack_w4(integers(), scales=halfway, activation="bf16")).scales == 1).all()


@pytest.mark.parametrize("group_size", [32, 128, None])
@pytest.mark.parametrize("chunk_elems", [1, 1000, 9000])
def test_rows_are_quantized_alike_in_any_chunks(
    chunk_elems: int, group_size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = np.random.default_rng(5).normal(size=(200, 72))
    mode = "group" if group_size else "column"
    whole = quantize_w4(weights, group_size, mode)
    monkeypatch.setattr("gemm_eval.kernels.weights._CHUNK_ELEMS", chunk_elems)

    np.testing.assert_array_equal(quantize_w4(weights, group_size, mode).integers, whole.integers)


ONE_NAN = np.where(np.arange(256 * 64).reshape(256, 64) == 12_803, np.nan, 1.0)
UNIT = np.ones((1, 64))
ZERO = {"mode": "group_zero", "scales": UNIT}
REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (ONES, {"group_size": 48}, "group_size must be one of 32, 64, 128 in mode group, got 48"),
    (ONES, {"group_size": 0}, "group_size must be one of"),
    (ONES, {"group_size": 128, "mode": "column"}, "mode column has one scale for all K"),
    (ONES, {"mode": "GROUP"}, "mode must be one of column, group, group_zero"),
    (ONES, {"mode": 1}, "mode must be one of"),
    *((ONES, {"activation": word}, "activation must be one of") for word in ("fp32", "int4", "double", None)),
    (np.ones((132, 64)), {}, "K must be a positive multiple of 8, got 132.*rows of A .* 16 bytes"),
    (np.ones((128, 60)), {}, "N must be a positive multiple of 8, got 60.*rows of C .* 16 bytes"),
    (np.ones((0, 64)), {}, "K must be a positive multiple"),
    (np.ones(64), {}, "weights must be a matrix"),
    (integers(), {}, "weights must be floats"),
    ([["a"]], {}, "weights must hold integers or floats"),
    (np.full((128, 64), np.inf), {}, "weights must be finite"),
    *((ONE_NAN, {"mode": mode}, "weights must be finite") for mode in ("column", "group", "group_zero")),
    (np.full((128, 64), 1e6), {}, "at most 8188 for fp16 weights in mode group"),
    (integers(), {"scales": np.ones((2, 64))}, r"scales must be floats \[1, 64\]"),
    (integers(), {"scales": np.ones((1, 64), int)}, "scales must be floats"),
    (integers(), {"scales": UNIT * np.nan}, "scales must be finite"),
    (integers(), {"scales": UNIT * -9000}, "at most 8188 .* got 9000"),
    (integers(), {"scales": UNIT, "zeros": np.ones((1, 64), int)}, "zeros must be given in mode group_zero"),
    (integers(), ZERO, "zeros must be given in mode group_zero"),
    (integers(), ZERO | {"zeros": np.full((1, 64), 16)}, r"zeros .* got 16..16"),
    (integers(), ZERO | {"zeros": np.ones((2, 64), int)}, "zeros must be of shape"),
    (integers(), ZERO | {"zeros": UNIT}, "zeros must be of an integer"),
    (integers().astype(np.int32), {"scales": UNIT}, r"signed, int32.* must be -8\.\.7, got 0\.\.15; give .* unsigned"),
    (integers() + (integers() == 15), {"scales": UNIT}, r"must be 0\.\.15, got 0\.\.16"),
    (ONES[:128], {"scales": UNIT}, "integers must be of an integer type"),
    (ONES, {"mode": "group_zero", "zeros": np.ones((2, 64), int)}, "zeros must come with scales"),
]


@pytest.mark.parametrize(("weights", "arguments", "message"), REFUSED)
def test_bad_weights(weights: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        pack_w4(weights, **arguments)


def test_the_largest_weights_stay_finite() -> None:
    weights = np.full((128, 8), 65504.0)
    assert dequantize(pack_w4(weights)).max() == 65504
    assert np.isfinite(dequantize(pack_w4(weights * 1e33, mode="group_zero", activation="bf16"))).all()
    with pytest.raises(InvalidProblemError, match="has to fit"):
        pack_w4(weights * 1e35, activation="bf16")


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"qweight": np.zeros((1, 2, 4, 32, 4), np.int32)}, r"qweight must be uint32 \[1, 4, 4, 32, 4\], got int32"),
        ({"scales": np.zeros((1, 2, 64), np.uint16)}, "scales must be float16"),
        ({"scales": np.zeros((64, 2, 1), np.float16).T}, "scales must be contiguous"),
        ({"activation": DType.BF16}, "scales must be uint16"),
        ({"mode": WeightMode.GROUP_ZERO}, r"scales must be float16 \[1, 2, 32, 4\]"),
        ({"K": 300}, "K must be a positive multiple of 8"),
        ({"K": 264}, "qweight must be"),
    ],
)
def test_packed_weights_hold_together(change: dict[str, Any], rule: str) -> None:
    with pytest.raises(InvalidProblemError, match=rule):
        dataclasses.replace(pack_w4(ONES), **change)


def test_a_gpu_needs_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    runtime.import_cupy.cache_clear()

    with pytest.raises(GemmEvalError, match=r"pip install 'gemm_eval\[gpu\]'"):
        pack_w4(ONES).to_gpu()


# ---- the emulated kernels --------------------------------------------------------------------------------------------


TOLERANCE = {"fp16": 1e-3, "bf16": 5e-3}  # rounding of a scaled weight to the type: 2^-11 and 2^-9 of it at most

MODES = [("column", None), *((mode, size) for mode in ("group", "group_zero") for size in (32, 64, 128))]
MODES += [("mxfp4", 32), ("nvfp4", 16)]
EXACT = {"column", "mxfp4", "nvfp4"}  # modes in which no weight is rounded
SIZES = [(1, 128, 64), (11, 200, 136)]  # whole blocks; all ends cut, several blocks and groups


def operands(M: int, K: int, N: int, mode: str, group_size: int | None, activation: str) -> tuple[Any, PackedW4]:
    rng = np.random.default_rng(M * K + N)
    a = rng.normal(size=(M, K))
    a = fragments.bf16_values(fragments.bf16_bits(a)) if activation == "bf16" else a.astype(np.float16).astype(float)
    weights = rng.normal(size=(K, N)) * rng.uniform(0.5, 2, size=N) + rng.normal(size=N) / 4
    return a, pack_w4(weights, group_size, mode, activation=activation)


def plain_weights(packed: PackedW4) -> Any:
    """Dequantized with loops over groups, from what was unpacked."""
    result = np.empty((packed.K, packed.N))
    size = packed.group_size or packed.K
    if packed.mode.is_fp4:
        codes, bytes_of_scales, tensor_scale = unpack_fp4(packed)
        value_of = e8m0 if packed.mode is WeightMode.MXFP4 else e4m3
        for k, n in itertools.product(range(packed.K), range(packed.N)):
            sign = -1 if codes[k, n] & 8 else 1
            result[k, n] = sign * fragments.E2M1[codes[k, n] & 7] * value_of(int(bytes_of_scales[k // size, n]))
        return result * tensor_scale
    integers, scales, zeros = unpack_w4(packed)
    for k in range(packed.K):
        zero = 8 if zeros is None else zeros[k // size].astype(float)
        result[k] = scales[k // size].astype(float) * (integers[k].astype(float) - zero)
    return result


def e8m0(bits: int) -> float:
    return 2.0 ** (bits - 127)


def e4m3(bits: int) -> float:
    field, fraction = bits >> 3, bits & 7
    return (1 + fraction / 8) * 2.0 ** (field - 7) if field else fraction * 2.0**-9


def as_kernels_see(packed: PackedW4) -> fragments.Packed:
    return fragments.Packed(
        packed.qweight, packed.scales, packed.N, packed.K, int(packed.mode), packed.group_size,
        packed.activation == "bf16", packed.scale_unit,
    )  # fmt: skip


@pytest.mark.parametrize("activation", ["fp16", "bf16"])
@pytest.mark.parametrize(("mode", "group_size"), MODES)
@pytest.mark.parametrize("gemm", [fragments.mma_gemm, fragments.wgmma_gemm])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_kernels_multiply_what_was_packed(
    sizes: tuple[int, int, int], gemm: Any, mode: str, group_size: int | None, activation: str
) -> None:
    a, packed = operands(*sizes, mode, group_size, activation)
    expected = a @ plain_weights(packed)

    found = gemm(a, as_kernels_see(packed))

    assert found.shape == expected.shape
    assert np.linalg.norm(found - expected) <= TOLERANCE[activation] * np.linalg.norm(expected)
    if mode in EXACT:  # nothing is rounded before the epilogue
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * np.abs(expected).max())


@pytest.mark.parametrize("activation", ["fp16", "bf16"])
@pytest.mark.parametrize(("mode", "group_size"), MODES)
def test_each_weight_is_rounded_once(mode: str, group_size: int | None, activation: str) -> None:
    """With one-hot tokens the kernels give back their weights: the exact product, rounded to the type once."""
    _, packed = operands(1, 136, 72, mode, group_size, activation)
    exact = plain_weights(packed)
    if mode not in EXACT:
        rounded = fragments.bf16_values(fragments.bf16_bits(exact)), exact.astype(np.float16).astype(float)
        exact = rounded[activation == "fp16"]

    np.testing.assert_array_equal(fragments.wgmma_gemm(np.eye(136), as_kernels_see(packed)), exact)


@pytest.mark.parametrize("activation", ["fp16", "bf16"])
@pytest.mark.parametrize(("mode", "group_size"), MODES)
def test_padding_multiplies_nothing(mode: str, group_size: int | None, activation: str) -> None:
    """Beyond K and N kernels read weights that are 0, so that finite tokens there change nothing."""
    _, packed = operands(1, 136, 72, mode, group_size, activation)
    whole = as_kernels_see(packed)._replace(N=128, K=256)
    tokens = np.ones((8, 256))

    assert not fragments.mma_gemm(tokens, whole)[:, 72:].any()
    tokens[:, :136] = 0
    assert not fragments.mma_gemm(tokens, whole).any()


@pytest.mark.parametrize("activation", ["fp16", "bf16"])
def test_scales_of_a_wide_span_lose_no_more_than_rounding(activation: str) -> None:
    """The least scale of a matrix meets the subnormal numbers of fp16; of bf16 there is no such limit."""
    scales = np.geomspace(1.0, 2.0**-7.9, 64)[None] * np.ones((2, 1))
    integers = np.random.default_rng(0).integers(0, 16, (128, 64), dtype=np.uint8)
    packed = pack_w4(integers, 64, scales=scales, activation=activation)
    weights = fragments.mma_gemm(np.eye(128), as_kernels_see(packed))
    error = np.linalg.norm(weights - plain_weights(packed), axis=0) / np.linalg.norm(plain_weights(packed), axis=0)

    assert (error < (6e-4 if activation == "fp16" else 3e-3)).all()


def test_the_bit_tricks_are_exact() -> None:
    for is_bf16, zero in itertools.product((False, True), range(16)):
        with case(is_bf16, zero):
            for integer in range(16):
                word = np.full(32, integer * 0x11111111, np.uint32)
                biases = np.array([-128.0 - zero] * 2 if is_bf16 else [-1024.0 - zero, -64.0 - zero])
                halves = fragments.bf16_bits(biases) if is_bf16 else biases.astype(np.float16).view(np.uint16)
                params = fragments.make_params(
                    word, np.full(32, halves.view(np.uint32)[0]), fragments.GROUP_ZERO, is_bf16
                )

                for register in fragments.dequantize(word, params, fragments.COLUMN, is_bf16):
                    np.testing.assert_array_equal(fragments.pairs(register, is_bf16), integer - zero)
