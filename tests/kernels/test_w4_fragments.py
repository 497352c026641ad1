"""Packed weights through the emulated kernels, against plain matmul; and the bit tricks for all their inputs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from gemm_eval.kernels.families import WeightMode
from gemm_eval.kernels.fp4 import unpack_fp4
from gemm_eval.kernels.weights import PackedW4, pack_w4, unpack_w4
from tests.cases import case
from tests.oracle import fragments

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
