"""Weights of AWQ and GPTQ checkpoints, with 4 bits, for the W4A16 kernels.

Formats, as AutoAWQ (version "gemm") and AutoGPTQ / GPTQModel write them, 8 integers to an int32, lowest bits first:

* AWQ: `qweight` [K, N / 8] and `qzeros` [G, N / 8] along N, nibble i of a word being its column 0, 2, 4, 6, 1, 3, 5, 7.
* GPTQ: `qweight` [K / 8, N] along K and `qzeros` [G, N / 8] along N, in order. Version 1 (checkpoint_format "gptq")
  stores z - 1, version 2 ("gptq_v2") stores z: https://github.com/AutoGPTQ/AutoGPTQ/pull/640.

Both: `scales` [G, N], G = ceil(K / group_size), and W = scale * (integer - z). numpy and CuPy arrays are taken.

Act-order (desc_act): GPTQ took the rows of W in an order of its own, and `g_idx` [K] is the group of each. Rows are
sorted by group when they are packed, so that kernels find groups one after the other, and activations alike.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gemm_eval.checks import check_flag, plain_integer
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidOptionError, InvalidProblemError
from gemm_eval.kernels.families import WeightMode, ceil_div
from gemm_eval.kernels.layout import GROUP_SIZES, MIDDLE, Array, as_array, check_sizes, module_of
from gemm_eval.kernels.weights import PackedW4, pack_w4
from gemm_eval.words import shown

__all__ = ["from_awq", "from_gptq"]

_PER_WORD = 8
_AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)
_IN_ORDER = tuple(range(_PER_WORD))
_WHOLE_K = -1


def from_awq(
    qweight: Any, qzeros: Any, scales: Any, group_size: int | None = 128, *, activation: DType | str = "fp16"
) -> PackedW4:
    """Pack a linear layer of an AWQ checkpoint.

    Zero points that are all 8 are dropped, as the modes without them have the same weights.

    Args:
        qweight: int32 [K, N / 8].
        qzeros: int32 [G, N / 8].
        scales: floats [G, N], rounded to the type `activation`.
        group_size: 32, 64, 128; None or -1: one group for all K.
        activation: "fp16" or "bf16", in which the layer shall run.

    Raises:
        InvalidOptionError: `group_size`.
        InvalidProblemError: tensors of other types or shapes, or of sizes that no kernel takes.
    """
    integers = _unpack(qweight, "qweight", _AWQ_COLUMNS, axis=1)
    return _pack(integers, _unpack(qzeros, "qzeros", _AWQ_COLUMNS, axis=1), scales, group_size, activation)


def from_gptq(
    qweight: Any,
    qzeros: Any,
    scales: Any,
    g_idx: Any = None,
    group_size: int | None = 128,
    *,
    version: int = 1,
    sym: bool | None = None,
    activation: DType | str = "fp16",
) -> PackedW4:
    """Pack a linear layer of a GPTQ checkpoint.

    Zero points that are all 8 are dropped, as the modes without them have the same weights.

    Args:
        qweight: int32 [K / 8, N].
        qzeros: int32 [G, N / 8].
        scales: floats [G, N], rounded to the type `activation`.
        g_idx: integers [K], the group of each k; None: k // group_size. In any order (act-order), but each group with
            group_size rows, the last maybe with less.
        group_size: 32, 64, 128; None or -1: one group for all K.
        version: 1 or 2, of the format. Checkpoints exist that say 1 and store what 2 does: `sym` finds those.
        sym: what the checkpoint's config says. True: all zero points have to be 8; None: not known.
        activation: "fp16" or "bf16", in which the layer shall run.

    Raises:
        InvalidOptionError: `group_size` or `version`.
        InvalidProblemError: tensors of other types or shapes, of sizes that no kernel takes, groups of other sizes, or
            zero points that are not 8 although `sym`, or not known.
    """
    if plain_integer(version) not in (1, 2):
        raise InvalidOptionError(f"version must be 1 or 2, got {shown(version)}")
    if sym is not None:
        check_flag("sym", sym)
    integers = _unpack(qweight, "qweight", _IN_ORDER, axis=0)
    zeros = _unpack(qzeros, "qzeros", _IN_ORDER, axis=1)
    if version == 1:
        if bool((zeros == 15).any()):
            # No quantizer makes z = 16. Subtracting 1 from z = 0 gives this, and in some writers spoils other nibbles.
            raise InvalidProblemError(
                "qzeros of version 1 must be 0..14 (z = 1..15), got 15: readers disagree whether that is z = 16 or a 0 "
                "that wrapped around; if the checkpoint is of version 2 say so, else save it as gptq_v2"
            )
        zeros = zeros + 1
    if sym and not bool((zeros == MIDDLE).all()):
        raise InvalidProblemError(
            f"zero points must all be 8 where sym is True, got {int(zeros.min())}..{int(zeros.max())} "
            f"by version {version}; try version {3 - version}"
        )
    permutation = None if g_idx is None else _order_by_group(g_idx, integers, _group_of(group_size))
    if permutation is None:
        return _pack(integers, zeros, scales, group_size, activation)
    return replace(_pack(integers[permutation], zeros, scales, group_size, activation), permutation=permutation)


def _unpack(words: Any, what: str, order: tuple[int, ...], axis: int) -> Array:
    """Nibble i of each word to place `order[i]` of 8 along `axis`; uint8."""
    words = as_array(words, what)
    xp = module_of(words)
    if words.ndim != 2 or words.dtype not in (xp.int32, xp.uint32):
        raise InvalidProblemError(f"{what} must be an int32 matrix, got {words.dtype} {list(words.shape)}")
    words = words.view(xp.uint32)
    num_rows, num_columns = words.shape
    result = xp.empty((num_rows, num_columns, _PER_WORD), dtype=xp.uint8)
    for i, place in enumerate(order):
        result[:, :, place] = (words >> (4 * i)) & 15
    if axis == 1:
        return result.reshape(num_rows, num_columns * _PER_WORD)
    return xp.ascontiguousarray(result.transpose(0, 2, 1)).reshape(num_rows * _PER_WORD, num_columns)


def _group_of(group_size: int | None) -> int | None:
    number = _WHOLE_K if group_size is None else plain_integer(group_size)
    if number == _WHOLE_K:
        return None
    if number not in GROUP_SIZES:
        sizes = ", ".join(map(str, GROUP_SIZES))
        raise InvalidOptionError(f"group_size must be one of {sizes}, or None or -1 for all K, got {shown(group_size)}")
    return number


def _order_by_group(g_idx: Any, integers: Array, group_size: int | None) -> Array | None:
    """Rows of `integers` as they follow each other when sorted by group, int32; None: as they are."""
    xp, K = module_of(integers), len(integers)
    groups = as_array(g_idx, "g_idx", xp)
    if groups.shape != (K,) or groups.dtype.kind not in "iu":
        raise InvalidProblemError(f"g_idx must be integers of shape [{K}], got {groups.dtype} {list(groups.shape)}")
    in_order = xp.arange(K) // (group_size or K)
    if bool((groups == in_order).all()):
        return None
    order = xp.argsort(groups, kind="stable")
    if not bool((groups[order] == in_order).all()):
        raise InvalidProblemError(
            f"g_idx must give each group {group_size or K} rows, and the last the rest: kernels read groups of one "
            "size (a part of a layer that was cut along K has others; convert the whole layer)"
        )
    return order.astype(xp.int32)


def _pack(integers: Array, zeros: Array, scales: Any, group_size: int | None, activation: DType | str) -> PackedW4:
    K, N = integers.shape
    check_sizes(K, N)
    group = _group_of(group_size)
    shape = ceil_div(K, group or K), N
    xp = module_of(integers)
    scales = as_array(scales, "scales", xp)
    for what, found in (("qzeros", zeros.shape), ("scales", scales.shape)):
        if found != shape:
            raise InvalidProblemError(
                f"{what} must have {shape[0]} rows for {N} columns (K = {K}, group_size = {group_size}), "
                f"got shape {list(found)}"
            )
    if bool((zeros == MIDDLE).all()):
        mode = WeightMode.GROUP if group else WeightMode.COLUMN
        return pack_w4(integers, group, mode, scales=scales, activation=activation)
    if group is None:  # no mode has one zero point a column: give each group the same
        group = GROUP_SIZES[-1]
        scales, zeros = (xp.repeat(x, ceil_div(K, group), axis=0) for x in (scales, zeros))
    return pack_w4(integers, group, WeightMode.GROUP_ZERO, scales=scales, zeros=zeros, activation=activation)
