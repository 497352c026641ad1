"""AWQ and GPTQ tensors, made here word by word, give the weights that were put in."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from gemm_eval.errors import InvalidOptionError, InvalidProblemError
from gemm_eval.kernels.checkpoints import from_awq, from_gptq
from gemm_eval.kernels.families.base import WeightMode
from gemm_eval.kernels.weights import dequantize, unpack_w4
from tests.kernels.checkpoint_samples import AWQ_ORDER, IN_ORDER, along_columns, along_rows


def layer(K: int = 136, N: int = 24, group: int = 64, low: int = 0, high: int = 16) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(K + N + group)
    groups = -(-K // group)
    scales = rng.uniform(0.01, 0.1, (groups, N)).astype(np.float16)
    return rng.integers(0, 16, (K, N)), rng.integers(low, high, (groups, N)), scales


def expected(values: Any, zeros: Any, scales: Any, group: int) -> Any:
    k = np.arange(len(values)) // group
    return scales.astype(float)[k] * (values - zeros[k]).astype(float)


@pytest.mark.parametrize(("K", "group"), [(136, 64), (128, 128), (96, 32)])
def test_awq(K: int, group: int) -> None:
    values, zeros, scales = layer(K, group=group)
    packed = from_awq(along_columns(values, AWQ_ORDER), along_columns(zeros, AWQ_ORDER), scales, group)

    assert (packed.mode, packed.group_size) == (WeightMode.GROUP_ZERO, group)
    np.testing.assert_array_equal(dequantize(packed), expected(values, zeros, scales, group))


def test_a_known_awq_word() -> None:
    """0x76543210 holds the columns 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits up."""
    qweight = np.full((8, 1), 0x76543210, np.int32)
    packed = from_awq(qweight, np.zeros((1, 1), np.int32), np.ones((1, 8), np.float16), 128)

    assert unpack_w4(packed).integers[0].tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


@pytest.mark.parametrize(("version", "low"), [(1, 1), (2, 0)])
def test_gptq(version: int, low: int) -> None:
    values, zeros, scales = layer(low=low)
    stored = along_columns(zeros - (version == 1), IN_ORDER)
    g_idx = np.arange(136, dtype=np.int32) // 64
    packed = from_gptq(along_rows(values), stored, scales, g_idx, 64, version=version)

    assert packed.mode is WeightMode.GROUP_ZERO
    np.testing.assert_array_equal(dequantize(packed), expected(values, zeros, scales, 64))


@pytest.mark.parametrize("sym", [True, None])
@pytest.mark.parametrize(("version", "word"), [(1, 0x77777777), (2, -0x77777778)])
def test_symmetric_gptq_needs_no_zero_points(version: int, word: int, sym: bool | None) -> None:
    values, _, scales = layer()
    packed = from_gptq(along_rows(values), np.full((3, 3), word, np.int32), scales, None, 64, version=version, sym=sym)

    assert packed.mode is WeightMode.GROUP
    np.testing.assert_array_equal(dequantize(packed), expected(values, np.full((3, 24), 8), scales, 64))


@pytest.mark.parametrize("group_size", [None, -1])
def test_one_group_for_all_k(group_size: int | None) -> None:
    values, zeros, scales = layer(group=136)
    qweight, order = along_rows(values), np.zeros(136, np.int32)

    packed = from_gptq(qweight, np.full((1, 3), 0x77777777, np.int32), scales, order, group_size)
    assert packed.mode is WeightMode.COLUMN
    np.testing.assert_array_equal(dequantize(packed), expected(values, np.full((1, 24), 8), scales, 136))

    packed = from_gptq(qweight, along_columns(zeros, IN_ORDER), scales, order, group_size, version=2)
    assert (packed.mode, packed.group_size) == (WeightMode.GROUP_ZERO, 128)
    np.testing.assert_array_equal(dequantize(packed), expected(values, zeros, scales, 136))


def test_bf16_rounds_the_scales() -> None:
    values, zeros, scales = layer()
    packed = from_awq(along_columns(values, AWQ_ORDER), along_columns(zeros, AWQ_ORDER), scales, 64, activation="bf16")

    np.testing.assert_allclose(unpack_w4(packed).scales, scales, rtol=2**-8)
    np.testing.assert_array_equal(unpack_w4(packed).integers, values)


def test_a_wrapped_zero_point_is_refused() -> None:
    values, zeros, scales = layer()
    zeros[1, 3] = 15
    with pytest.raises(InvalidProblemError, match=r"0\.\.14.*readers disagree"):
        from_gptq(along_rows(values), along_columns(zeros, IN_ORDER), scales, None, 64)


def test_a_wrong_version_is_found_where_weights_are_symmetric() -> None:
    values, _, scales = layer()
    eights = np.full((3, 3), 0x88888888, np.uint32)
    with pytest.raises(InvalidProblemError, match=r"got 9\.\.9 by version 1; try version 2"):
        from_gptq(along_rows(values), eights, scales, None, 64, sym=True)


def sorted_by_chance(K: int, group: int) -> Any:
    """What act-order leaves: the group of each row, where rows were taken in an order of their own."""
    g_idx = np.empty(K, np.int32)
    g_idx[np.random.default_rng(K + group).permutation(K)] = np.arange(K) // group
    return g_idx


@pytest.mark.parametrize("g_idx_type", [np.int32, np.int64])
@pytest.mark.parametrize(("version", "low"), [(1, 1), (2, 0)])
@pytest.mark.parametrize(("K", "group"), [(136, 64), (256, 128), (96, 32)])
def test_act_order(K: int, group: int, version: int, low: int, g_idx_type: Any) -> None:
    values, zeros, scales = layer(K, group=group, low=low)
    g_idx = sorted_by_chance(K, group)
    stored = along_columns(zeros - (version == 1), IN_ORDER)
    packed = from_gptq(along_rows(values), stored, scales, g_idx.astype(g_idx_type), group, version=version)
    meant = scales.astype(float)[g_idx] * (values - zeros[g_idx]).astype(float)

    assert packed.permutation.dtype == np.int32
    assert (g_idx[packed.permutation] == np.arange(K) // group).all()
    np.testing.assert_array_equal(dequantize(packed), meant)
    np.testing.assert_array_equal(unpack_w4(packed).integers, values[packed.permutation])
    assert "act-order" in repr(packed)
    assert packed.nbytes == packed.qweight.nbytes + packed.scales.nbytes + 4 * K
    np.testing.assert_array_equal(packed.to_cpu().permutation, packed.permutation)


def test_rows_that_are_in_order_need_no_permutation() -> None:
    values, zeros, scales = layer(low=1)
    tensors = along_rows(values), along_columns(zeros - 1, IN_ORDER), scales

    assert from_gptq(*tensors, np.arange(136) // 64, 64).permutation is None
    assert from_gptq(*tensors, None, 64).permutation is None


def test_groups_of_other_sizes_are_refused() -> None:
    values, zeros, scales = layer()
    order = np.arange(136, dtype=np.int32) // 64
    tensors = along_rows(values), along_columns(zeros, IN_ORDER), scales
    uneven = np.where(np.arange(136) == 3, 1, order)
    for g_idx in (uneven, order + 1, np.where(order == 2, 3, order)):
        with pytest.raises(InvalidProblemError, match=r"g_idx must give each group 64 rows, and the last the rest"):
            from_gptq(*tensors, g_idx, 64, version=2)
    for g_idx in (order[:-1], order.astype(float)):
        with pytest.raises(InvalidProblemError, match=r"g_idx must be integers of shape \[136\]"):
            from_gptq(*tensors, g_idx, 64, version=2)


@pytest.mark.parametrize(
    ("permutation", "rule"),
    [
        (np.arange(136), r"permutation must be int32 \[136\], got int64 \[136\]"),
        (np.arange(135, dtype=np.int32), r"permutation must be int32 \[136\], got int32 \[135\]"),
        (np.zeros(136, np.int32), r"permutation must hold each of 0\.\.135 once"),
        (np.arange(1, 137, dtype=np.int32), r"permutation must hold each of 0\.\.135 once"),
        (np.arange(272, dtype=np.int32)[::2], "permutation must be contiguous"),
    ],
)
def test_permutations_are_checked(permutation: Any, rule: str) -> None:
    values, zeros, scales = layer(low=1)
    packed = from_gptq(along_rows(values), along_columns(zeros - 1, IN_ORDER), scales, None, 64)
    with pytest.raises(InvalidProblemError, match=rule):
        dataclasses.replace(packed, permutation=permutation)


@pytest.mark.parametrize(
    ("index", "value", "rule"),
    [
        (0, np.zeros((136, 3)), "qweight must be an int32 matrix, got float64"),
        (0, np.zeros((136, 3), np.int64), "qweight must be an int32 matrix, got int64"),
        (1, np.zeros(3, np.int32), "qzeros must be an int32 matrix"),
        (1, np.zeros((2, 3), np.int32), "qzeros must have 3 rows for 24 columns .*got shape \\[2, 24\\]"),
        (2, np.zeros((3, 16), np.float16), "scales must have 3 rows for 24 columns .*got shape \\[3, 16\\]"),
        (2, np.full((3, 24), np.inf, np.float16), "scales must be finite"),
    ],
)
def test_tensors_are_refused(index: int, value: Any, rule: str) -> None:
    values, zeros, scales = layer()
    tensors = [along_columns(values, AWQ_ORDER), along_columns(zeros, AWQ_ORDER), scales]
    tensors[index] = value
    with pytest.raises(InvalidProblemError, match=rule):
        from_awq(tensors[0], tensors[1], tensors[2], 64)


def test_sizes_that_no_kernel_takes_are_refused() -> None:
    values, zeros, scales = layer(K=100)
    with pytest.raises(InvalidProblemError, match="K must be a positive multiple of 8, got 100"):
        from_awq(along_columns(values, AWQ_ORDER), along_columns(zeros, AWQ_ORDER), scales, 64)


def test_options_are_refused() -> None:
    values, zeros, scales = layer()
    tensors = along_rows(values), along_columns(zeros, IN_ORDER), scales
    with pytest.raises(InvalidOptionError, match="version must be 1 or 2, got 3"):
        from_gptq(*tensors, None, 64, version=3)
    with pytest.raises(InvalidOptionError, match="group_size must be one of 32, 64, 128, or None or -1"):
        from_gptq(*tensors, None, 256, version=2)
