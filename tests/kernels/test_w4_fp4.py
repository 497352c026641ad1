"""Four-bit floats as weights: rounding to MXFP4 and NVFP4, and what checkpoints store, packed and back."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from gemm_eval.errors import InvalidOptionError, InvalidProblemError
from gemm_eval.kernels import (
    PackedW4,
    QuantizedFp4,
    dequantize,
    pack_fp4,
    pack_mxfp4,
    pack_nvfp4,
    pack_w4,
    quantize_fp4,
    quantize_w4,
    unpack_fp4,
    unpack_w4,
)
from tests.oracle.fragments import E2M1

VALUES = np.concatenate([E2M1, -E2M1])
E4M3 = np.array([m * 2.0**-9 if e == 0 else (8 + m) * 2.0 ** (e - 10) for e in range(16) for m in range(8)][:127])
E8M0 = 2.0 ** (np.arange(255) - 127.0)
GROUP = {"mxfp4": 32, "nvfp4": 16}
SCALES = {"mxfp4": E8M0, "nvfp4": E4M3}
MODES = sorted(GROUP)
ACTIVATIONS = ["fp16", "bf16"]


def quantized(mode: str, K: int = 200, N: int = 72, seed: int = 0) -> QuantizedFp4:
    """Any codes, and scales of a span that fp16 holds."""
    rng = np.random.default_rng(seed)
    shape = -(-K // GROUP[mode]), N
    scales = rng.integers(100, 125, shape) if mode == "mxfp4" else rng.integers(0, 127, shape)
    tensor_scale = 1.0 if mode == "mxfp4" else float(np.float32(rng.uniform(1e-4, 1)))
    return QuantizedFp4(rng.integers(0, 16, (K, N), dtype=np.uint8), scales.astype(np.uint8), tensor_scale)


def meant(mode: str, weights: QuantizedFp4) -> Any:
    scales = SCALES[mode][weights.scales] * weights.tensor_scale
    return VALUES[weights.codes] * np.repeat(scales, GROUP[mode], axis=0)[: len(weights.codes)]


def rows_of(codes: Any) -> Any:
    """Codes [K, N] as checkpoints have them: [N, K / 2], the lower bits first."""
    return np.ascontiguousarray((codes[0::2] | codes[1::2] << 4).T)


# ---- quantization --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_quantizing_takes_the_nearest_code_and_of_two_the_even_one(mode: str) -> None:
    rng = np.random.default_rng(3)
    weights = rng.standard_normal((96, 16)) * 2.0 ** rng.integers(-9, 9, 16)
    found = quantize_fp4(weights, mode)
    scales = np.repeat(SCALES[mode][found.scales] * found.tensor_scale, GROUP[mode], axis=0)
    for k, n in itertools.product(range(96), range(16)):
        distances = np.abs(VALUES[:8] - min(abs(weights[k, n]) / scales[k, n], 6))
        assert distances[found.codes[k, n] & 7] == distances.min()
        assert found.codes[k, n] & 7 == 0 or (found.codes[k, n] >= 8) == (weights[k, n] < 0)


def test_ties_go_to_even_codes() -> None:
    borders = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
    weights = np.full((32, 8), 4.0)  # a scale of 1
    weights[:7, 0], weights[7:14, 0] = borders, [-border for border in borders]

    found = quantize_fp4(weights)

    assert (found.scales[0] == 127).all()
    assert found.codes[:7, 0].tolist() == [0, 2, 2, 4, 4, 6, 6]
    assert found.codes[7:14, 0].tolist() == [0, 10, 10, 12, 12, 14, 14]


@pytest.mark.parametrize(("largest", "exponent"), [(6.0, 0), (7.99, 0), (8.0, 1), (4.0, 0), (3.99, -1), (1e-3, -12)])
def test_mxfp4_scales_are_those_of_the_specification(largest: float, exponent: int) -> None:
    weights = np.full((32, 8), largest)
    found = quantize_fp4(weights)

    assert (found.scales == 127 + exponent).all()
    assert (found.codes == (7 if largest / 2.0**exponent > 5 else 6)).all()


def test_nvfp4_scales_use_the_range_of_e4m3() -> None:
    weights = np.random.default_rng(0).standard_normal((64, 16))
    found = quantize_fp4(weights, "nvfp4")

    assert found.scales.max() == 0x7E
    assert found.tensor_scale == np.float32(np.abs(weights).max() / 2688)
    error = np.linalg.norm(dequantize(pack_fp4(found, "nvfp4")) - weights) / np.linalg.norm(weights)
    assert error < 0.11


@pytest.mark.parametrize("mode", MODES)
def test_zeros_stay_zeros(mode: str) -> None:
    for activation in ACTIVATIONS:
        assert not dequantize(pack_w4(np.zeros((40, 8)), mode=mode, activation=activation)).any()


# ---- packing and back ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(6))
def test_round_trip_is_exact(seed: int, mode: str, activation: str) -> None:
    rng = np.random.default_rng(seed)
    weights = quantized(mode, 8 * int(rng.integers(1, 40)), 8 * int(rng.integers(1, 20)), seed)
    packed = pack_fp4(weights, mode, activation)
    found = unpack_fp4(packed)

    is_zero = np.repeat(SCALES[mode][weights.scales] == 0, GROUP[mode], axis=0)[: len(weights.codes)]
    np.testing.assert_array_equal(found.codes, np.where(is_zero, 0, weights.codes))
    np.testing.assert_array_equal(found.scales, weights.scales)
    assert found.tensor_scale == weights.tensor_scale
    np.testing.assert_array_equal(dequantize(packed), meant(mode, weights))
    assert (packed.group_size, packed.scales.dtype) == (GROUP[mode], np.uint8)
    assert packed.nbytes == packed.num_column_blocks * packed.num_k_blocks * (2048 + 64 * 64 // GROUP[mode])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_groups_without_weights_do_not_count(activation: str) -> None:
    """gpt-oss stores any scale beside a group of zeros."""
    weights = quantized("mxfp4", 128, 8)
    weights.codes[32:64] &= 8
    weights.scales[1] = [0, 1, 200, 250, 254, 255, 127, 3]
    packed = pack_fp4(weights, "mxfp4", activation)

    assert not dequantize(packed)[32:64].any()
    weights.scales[1] = 0
    np.testing.assert_array_equal(dequantize(packed), meant("mxfp4", weights))


def test_the_span_that_each_type_holds() -> None:
    weights = quantized("mxfp4", 64, 8)
    for span, activation in ((24, "fp16"), (133, "bf16")):
        weights.scales[0], weights.scales[1] = 200, 200 - span
        np.testing.assert_array_equal(dequantize(pack_fp4(weights, "mxfp4", activation)), meant("mxfp4", weights))
        weights.scales[1, 3] -= 1
        with pytest.raises(InvalidProblemError, match=rf"within 2\^{span} of each other for {activation}"):
            pack_fp4(weights, "mxfp4", activation)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gpt_oss_layout(activation: str) -> None:
    weights = quantized("mxfp4", 256, 24)
    blocks = rows_of(weights.codes).reshape(24, 8, 16)
    scales = np.ascontiguousarray(weights.scales.T)
    alone = pack_mxfp4(blocks, scales, activation=activation)
    assert isinstance(alone, PackedW4)
    np.testing.assert_array_equal(dequantize(alone), meant("mxfp4", weights))

    experts = pack_mxfp4(np.stack([blocks, blocks ^ 0x88]), np.stack([scales, scales + 1]), activation=activation)

    assert isinstance(experts, tuple)
    np.testing.assert_array_equal(dequantize(experts[0]), meant("mxfp4", weights))
    np.testing.assert_array_equal(dequantize(experts[1]), -2 * meant("mxfp4", weights))
    np.testing.assert_array_equal(
        pack_mxfp4(blocks.reshape(24, 128), scales).qweight, pack_mxfp4(blocks, scales).qweight
    )


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_layouts_of_modelopt_and_compressed_tensors(activation: str) -> None:
    weights = quantized("nvfp4", 144, 24)._replace(tensor_scale=0.25)
    rows, scales = rows_of(weights.codes), weights.scales.T
    modelopt = pack_nvfp4(rows, scales, np.float32(0.25), activation=activation)
    compressed = pack_nvfp4(rows, scales, global_scale=np.array([4.0]), activation=activation)
    experts = pack_nvfp4(np.stack([rows] * 2), np.stack([scales] * 2), [0.25, 3.0], activation=activation)

    assert isinstance(experts, tuple)
    for packed in (modelopt, compressed, experts[0]):
        assert isinstance(packed, PackedW4)
        np.testing.assert_array_equal(dequantize(packed), meant("nvfp4", weights))
    np.testing.assert_array_equal(dequantize(experts[1]), meant("nvfp4", weights) * 12)


def test_words_differ_by_type_and_mean_the_same() -> None:
    weights = quantized("mxfp4")
    of_type = [pack_fp4(weights, "mxfp4", activation) for activation in ACTIVATIONS]

    assert (of_type[0].qweight != of_type[1].qweight).any()
    np.testing.assert_array_equal(dequantize(of_type[0]), dequantize(of_type[1]))


# ---- what is refused -----------------------------------------------------------------------------------------------


def test_refusals() -> None:
    good = quantized("mxfp4", 64, 8)
    rows, scales = rows_of(good.codes), np.ascontiguousarray(good.scales.T)
    refused: list[tuple[Any, str]] = [
        (lambda: pack_fp4(good._replace(codes=good.codes + 1), "mxfp4"), "codes must be 0..15, got 16"),
        (lambda: pack_fp4(good._replace(scales=good.scales[:1]), "mxfp4"), r"scales must be uint8 \[2, 8\]"),
        (lambda: pack_fp4(good._replace(codes=good.codes.astype(int)), "mxfp4"), "codes must be uint8"),
        (lambda: pack_fp4(good._replace(scales=np.full_like(good.scales, 255)), "mxfp4"), "NaN"),
        (lambda: pack_fp4(QuantizedFp4(good.codes, np.full((4, 8), 200, np.uint8), 1.0), "nvfp4"), "not negative"),
        (lambda: pack_fp4(QuantizedFp4(good.codes, np.full((4, 8), 56, np.uint8), -1.0), "nvfp4"), "tensor_scale"),
        (lambda: pack_fp4(QuantizedFp4(good.codes, np.full((4, 8), 56, np.uint8), 1e39), "nvfp4"), "tensor_scale"),
        (lambda: pack_mxfp4(rows, scales.astype(np.float32)), "scales must be uint8, got float32"),
        (lambda: pack_mxfp4(rows, scales[:, :1]), r"must come with scales \[N, K / 32\]"),
        (lambda: pack_mxfp4(rows[None], scales[None].repeat(2, 0)), "as many experts"),
        (lambda: pack_nvfp4(rows[None], np.full((1, 8, 4), 56, np.uint8), [1.0, 2.0, 3.0]), "one number or 1"),
        (lambda: pack_nvfp4(rows, np.full((8, 4), 56, np.uint8), [1.0, 2.0]), "one number, got 2"),
        (lambda: pack_nvfp4(rows, np.full((8, 4), 56, np.uint8), global_scale=0.0), "tensor_scale"),
        (lambda: pack_w4(np.zeros((32, 8)), mode="mxfp4", scales=np.ones((1, 8))), "given to pack_mxfp4"),
        (lambda: quantize_fp4(np.full((32, 8), np.inf)), "finite"),
        (lambda: quantize_fp4(np.zeros((32, 8), int)), "floats"),
        (lambda: unpack_w4(pack_fp4(good, "mxfp4")), "unpack_fp4"),
        (lambda: unpack_fp4(pack_w4(np.zeros((32, 8)))), "unpack_w4"),
    ]
    for call, message in refused:
        with pytest.raises(InvalidProblemError, match=message):
            call()
    options: list[tuple[Any, str]] = [
        (lambda: pack_fp4(good, "group"), "mode must be mxfp4 or nvfp4"),
        (lambda: quantize_w4(np.zeros((32, 8)), mode="nvfp4"), "quantize_fp4"),
        (lambda: pack_w4(np.zeros((32, 8)), 64, mode="nvfp4"), "group_size must be 16 in mode nvfp4, got 64"),
        (lambda: pack_nvfp4(rows, scales), "give tensor_scale"),
        (lambda: pack_nvfp4(rows, scales, 1.0, global_scale=1.0), "give tensor_scale"),
    ]
    for call, message in options:
        with pytest.raises(InvalidOptionError, match=message):
            call()
