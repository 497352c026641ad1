"""Four-bit floats (e2m1) as kernels read them: the order of bits in a word, the bytes of scales; numpy and CuPy.

A word is first packed as integers are (`layout.pack_words`), each e2m1 code where u would be, and its bits are then
moved to where a few instructions make 16-bit numbers of them: other places for fp16 than for bf16 (KERNELS.md).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidProblemError
from gemm_eval.kernels.families import WeightMode
from gemm_eval.kernels.layout import BLOCK_K, Array, from_pairs, module_of, to_pairs

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The value of each code (OCP Microscaling Formats (MX) Specification 1.0, section 5.3.3)."""

MAGNITUDE_BITS = 7
"""Of a code, without its sign: 0 where the value is 0."""

_WORD_BITS = 32
_E8M0_NAN, _E4M3_NAN = 0xFF, 0x7F
_E8M0_BIAS, _E4M3_BIAS, _E4M3_MANTISSA_BITS, _E4M3_LEAST = 127, 7, 3, -9  # the last: exponent of the least number

_LARGEST_STORED = 8
"""Exponent of the largest stored scale of mode MXFP4, whatever the type of the activations."""

# Mode MXFP4: what a byte is shifted by, and how it counts: stored scale 2^((byte >> shift) - bias). And the exponents
# below the largest for which every product with a weight is exact: 0.5 times the least is 2^-24 or 2^-133 in registers.
_E8M0_STORED = {DType.FP16: (2, 22), DType.BF16: (0, 246)}
_EXACT_SPAN = {DType.FP16: 24, DType.BF16: 133}

_E5M3_BIAS = 22
"""Mode NVFP4: the exponent, in 5 bits, of a scale without subnormal numbers."""

# ---- bits of a word ------------------------------------------------------------------------------------------------


def _rotated_left(place: int, by: int) -> int:
    return (place + by) % _WORD_BITS


def _place_fp16(place: int) -> int:
    """Return the bit that `spread_fp4` brings to bit `place % 32` of register `place // 32`."""
    register, bit = divmod(place, _WORD_BITS)
    bit -= 8 * (register % 2)  # registers 1 and 3 are shifted left by 8
    if register < 2:
        return bit
    return bit - 7 if bit % 8 == 7 else bit + 3


def _place_bf16(place: int) -> int:
    register, bit = divmod(place, _WORD_BITS)
    if register < 2:
        return _rotated_left(bit, -4 * register)
    bit = _rotated_left(bit, -6 if register == 2 else -10)
    return _rotated_left(bit, -4) if bit % 16 in (2, 14) else bit


_WANTED = {DType.FP16: (9, 10, 11, 15), DType.BF16: (6, 7, 8, 15)}  # where a 16-bit number has a code's bits, m first
_PLACE_OF = {DType.FP16: _place_fp16, DType.BF16: _place_bf16}


def _moves(activation: DType) -> dict[int, int]:
    """Bits of a word in natural order that move left by so many places, in the order of kernels; right, if negative."""
    moves: dict[int, int] = {}
    for register in range(4):
        for half in range(2):
            natural = 16 * half + 8 * (register // 2) + 4 * (register % 2)
            for i, bit in enumerate(_WANTED[activation]):
                there = _PLACE_OF[activation](_WORD_BITS * register + 16 * half + bit)
                moves[there - natural - i] = moves.get(there - natural - i, 0) | 1 << (natural + i)
    return moves


_MOVES = {activation: _moves(activation) for activation in _WANTED}


def _shifted(words: Array, by: int) -> Array:
    return words << by if by >= 0 else words >> -by


def to_kernel_order(words: Array, activation: DType) -> Array:
    """Move the bits of words of `layout.pack_words` to where kernels read them."""
    xp = module_of(words)
    result = xp.zeros_like(words)
    for by, bits in _MOVES[activation].items():
        result |= _shifted(words & xp.uint32(bits), by)
    return result


def natural_moves(activation: DType) -> dict[int, int]:
    """Bits of a word in natural order -> by how many places to the right they come; to the left, if negative."""
    return dict(_MOVES[activation])


def to_natural_order(words: Array, activation: DType) -> Array:
    """The inverse of `to_kernel_order`."""
    xp = module_of(words)
    result = xp.zeros_like(words)
    for by, bits in _MOVES[activation].items():
        result |= _shifted(words, -by) & xp.uint32(bits)
    return result


# ---- scales --------------------------------------------------------------------------------------------------------


class StoredScales(NamedTuple):
    """Bytes as kernels read them, uint8 of the shape of the scales, and what they are multiples of."""

    stored: Array
    unit: float


def _powers(exponents: Array) -> Array:
    xp = module_of(exponents)
    return xp.ldexp(xp.ones(exponents.shape, xp.float64), exponents)  # an array: CuPy takes a scalar for any float


def e8m0_values(scales: Array) -> Array:
    """2^(byte - 127), float64."""
    return _powers(scales.astype("int32") - _E8M0_BIAS)


def e4m3_values(scales: Array) -> Array:
    """The values of e4m3 bytes without a sign, float64."""
    xp = module_of(scales)
    field, mantissa = (scales >> _E4M3_MANTISSA_BITS).astype(xp.int32), (scales & 7).astype(xp.int32)
    significand = xp.where(field > 0, mantissa + 8, mantissa).astype(xp.float64)
    return xp.ldexp(significand, xp.maximum(field, 1) - _E4M3_BIAS - _E4M3_MANTISSA_BITS)


def store_e8m0(scales: Array, matters: Array, activation: DType) -> StoredScales:
    """Return bytes of mode MXFP4; 0 where a group does not matter (has no weight but 0) and its scale is too small."""
    xp = module_of(scales)
    if bool((matters & (scales == _E8M0_NAN)).any()):
        raise InvalidProblemError("scales must be numbers, got NaN (e8m0 255)")
    if not bool(matters.any()):
        return StoredScales(xp.zeros_like(scales), 1.0)
    of_use = scales.astype(xp.int32)[matters]
    largest, span = int(of_use.max()), int(of_use.max() - of_use.min())
    if span > _EXACT_SPAN[activation]:
        raise InvalidProblemError(
            f"scales must be within 2^{_EXACT_SPAN[activation]} of each other for {activation} activations, got "
            f"2^{int(of_use.min()) - _E8M0_BIAS} to 2^{largest - _E8M0_BIAS}: smaller weights would not be exact"
            + (" (bf16 holds them)" if activation is DType.FP16 else "")
        )
    shift, bias = _E8M0_STORED[activation]
    counted = scales.astype(xp.int32) - largest + _LARGEST_STORED + bias
    lost = (counted < 1) | (scales.astype(xp.int32) > largest)  # of groups that do not matter
    stored = xp.where(lost, 0, counted << shift).astype(xp.uint8)
    return StoredScales(stored, 2.0 ** (largest - _E8M0_BIAS - _LARGEST_STORED))


def store_e4m3(scales: Array, matters: Array) -> Array:
    """Return bytes of mode NVFP4; 0 where a scale is 0, or where a group that does not matter has no number."""
    xp = module_of(scales)
    is_number = scales < _E4M3_NAN
    if bool((matters & ~is_number).any()):
        raise InvalidProblemError("scales must be numbers that are not negative, got e4m3 bytes of 127 or more")
    field, mantissa = (scales >> _E4M3_MANTISSA_BITS).astype(xp.int32), (scales & 7).astype(xp.int32)
    # a subnormal number, j units of 2^-9, begins with its highest bit
    top = (mantissa >= 2).astype(xp.int32) + (mantissa >= 4)
    subnormal = ((_E4M3_LEAST + top + _E5M3_BIAS) << 3) | ((mantissa << (3 - top)) & 7)
    normal = ((field - _E4M3_BIAS + _E5M3_BIAS) << 3) | mantissa
    result = xp.where(field > 0, normal, xp.where(mantissa > 0, subnormal, 0))
    return xp.where(is_number, result, 0).astype(xp.uint8)


def stored_values(stored: Array, mode: WeightMode, activation: DType) -> Array:
    """Return the values of bytes of scales, without the unit, float64."""
    xp = module_of(stored)
    if mode is WeightMode.NVFP4:
        values = xp.ldexp((8 + (stored & 7)).astype(xp.float64), (stored >> 3).astype(xp.int32) - _E5M3_BIAS - 3)
    else:
        shift, bias = _E8M0_STORED[activation]
        values = _powers((stored >> shift).astype(xp.int32) - bias)
    return xp.where(stored > 0, values, 0.0)


def original_scales(stored: Array, mode: WeightMode, activation: DType, unit: float) -> Array:
    """The e8m0 or e4m3 bytes of which `store_e8m0` or `store_e4m3` made these; 0 where they stored 0."""
    xp = module_of(stored)
    if mode is WeightMode.NVFP4:
        exponent = (stored >> 3).astype(xp.int32) - _E5M3_BIAS
        below = xp.clip(_E4M3_LEAST + 3 - exponent, 0, 8)  # binades below the normal numbers
        mantissa = (stored & 7).astype(xp.int32)
        result = xp.where(below > 0, (8 + mantissa) >> below, ((exponent + _E4M3_BIAS) << 3) | mantissa)
    else:
        shift, bias = _E8M0_STORED[activation]
        result = (stored >> shift).astype(xp.int32) - bias + math.frexp(unit)[1] - 1 + _E8M0_BIAS
    return xp.where(stored > 0, result, 0).astype(xp.uint8)


def pack_fp4_scales(stored: Array, group_size: int) -> Array:
    """Bytes [groups of padded K, 64 NB] to [NB, KB, 32, 2 groups of a block]: two columns, group after group."""
    pairs = to_pairs(stored)
    of_block = BLOCK_K // group_size
    num_n, num_k = pairs.shape[0], pairs.shape[1] // of_block
    moved = pairs.reshape(num_n, num_k, of_block, 32, 2).transpose(0, 1, 3, 2, 4)
    return module_of(stored).ascontiguousarray(moved).reshape(num_n, num_k, 32, 2 * of_block)


def unpack_fp4_scales(packed: Array) -> Array:
    """The inverse of `pack_fp4_scales`."""
    num_n, num_k, pairs, of_pair = packed.shape
    of_block = of_pair // 2
    moved = packed.reshape(num_n, num_k, pairs, of_block, 2).transpose(0, 1, 3, 2, 4)
    return from_pairs(module_of(packed).ascontiguousarray(moved).reshape(num_n, num_k * of_block, pairs, 2))
