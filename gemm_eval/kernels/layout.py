"""The packed layout of KERNELS.md as array operations, the same for numpy (CPU) and CuPy (GPU) arrays."""

import math
from types import ModuleType
from typing import Any, NamedTuple

import numpy

from gemm_eval.device import import_cupy
from gemm_eval.dtypes import DType, parse_dtype
from gemm_eval.errors import InvalidOptionError, InvalidProblemError
from gemm_eval.kernels.families import WeightMode, ceil_div
from gemm_eval.words import plain_integer, refusal, shown

Array = Any
"""A numpy or a CuPy array; neither library types what they have in common."""

BLOCK_COLUMNS = 64
"""Columns of a packed block of weights."""

BLOCK_K = 64
"""Weights along K of a packed block."""

PADDED_K = 128
"""K is padded to a multiple of this, so that groups of every size end with it."""

MIDDLE = 8
"""The stored integer that means zero where there are no zero points."""

GROUP_SIZES = WeightMode.GROUP.group_sizes
"""Integer weights along K that may share a scale."""

_SIZE_MULTIPLE = 8
"""Of N and K: kernels move 16 bytes at a time, so rows of A and C have to start at multiples of 16 bytes."""

_LARGEST_EXPONENT = {DType.FP16: 16, DType.BF16: 9}
"""Stored scales of mode GROUP are below this power of 2, those of fp16 just below: kernels multiply them with weights
that are as small as subnormal numbers."""

_LARGEST_SPAN = 2.0**8
"""Of fp16 scales in mode GROUP, from column to column: what is so much smaller than the largest is still exact to the
precision of fp16, and what is smaller yet is not."""

BIASES = {DType.FP16: (1024, 64), DType.BF16: (128, 128)}
"""What a kernel's bit trick adds to a weight of the column h = 0 and h = 1 of a pair."""


def module_of(array: Array) -> Any:
    """Return the library of an array: CuPy for whatever lies on a GPU, else numpy."""
    return import_cupy() if hasattr(array, "__cuda_array_interface__") else numpy


def as_array(values: Any, what: str, xp: ModuleType | None = None) -> Array:
    """Return an array of `xp`, or where `values` lie already; tensors of other libraries are not copied if possible."""
    home = module_of(values)
    target = xp or home
    if isinstance(values, numpy.ma.MaskedArray):
        raise InvalidProblemError(f"{what} must be a plain array, got a masked one: fill it first (filled())")
    try:
        array = home.asarray(values)
    except (TypeError, ValueError) as error:
        raise InvalidProblemError(
            f"{what} must be a numpy or CuPy array, got {type(values).__name__} ({error}); give bf16 as fp32"
        ) from None
    if array.dtype.kind not in "iuf":
        raise InvalidProblemError(f"{what} must hold integers or floats, got dtype {array.dtype}; give bf16 as fp32")
    if target is home:
        return array
    return home.asnumpy(array) if target is numpy else target.asarray(array)


def check_array(what: str, array: Array, dtype: str, shape: tuple[int, ...]) -> None:
    """Refuse an array of another type or shape, or one that is not contiguous."""
    result = f"{array.dtype} {list(array.shape)}"
    if result != f"{dtype} {list(shape)}":
        raise InvalidProblemError(f"{what} must be {dtype} {list(shape)}, got {result}")
    if not array.flags.c_contiguous:
        raise InvalidProblemError(f"{what} must be contiguous: kernels are given its address only")


def parse_mode(value: object) -> WeightMode:
    """Return the mode that `value`, a `WeightMode` or its name in small letters, means."""
    if isinstance(value, WeightMode):
        return value
    if isinstance(value, str) and value.islower() and value.upper() in WeightMode.__members__:
        return WeightMode[value.upper()]
    raise InvalidOptionError(refusal("mode", value, (mode.name.lower() for mode in WeightMode)))


def parse_activation(value: object) -> DType:
    """Return the type of the activations: fp16 or bf16."""
    dtype = parse_dtype(value, what="activation")
    if dtype not in BIASES:
        raise InvalidProblemError(f"activation must be one of {', '.join(BIASES)}, got {dtype}")
    return dtype


def parse_group_size(value: Any, mode: WeightMode) -> int:
    """Weights along K that share a scale; 0: all of them."""
    group_size = mode.group_sizes[-1] if value is None else plain_integer(value)
    if mode is WeightMode.COLUMN:
        if value is not None and group_size != 0:
            raise InvalidOptionError(
                f"mode column has one scale for all K: group_size must be None, got {shown(value)}"
            )
        return 0
    if group_size not in mode.group_sizes:
        if mode.is_fp4:
            raise InvalidOptionError(
                f"group_size must be {mode.group_sizes[0]} in mode {mode.name.lower()}, got {shown(value)}"
            )
        raise InvalidOptionError(
            f"group_size must be one of {', '.join(map(str, mode.group_sizes))} in mode {mode.name.lower()}, "
            f"got {shown(value)}; one scale for all K is mode column"
        )
    return group_size


def check_sizes(K: int, N: int) -> None:
    """Refuse weights [K, N] that no kernel can read."""
    for name, size in (("K", K), ("N", N)):
        number = plain_integer(size) or 0
        if number < _SIZE_MULTIPLE or number % _SIZE_MULTIPLE:
            rows = "A" if name == "K" else "C"
            raise InvalidProblemError(
                f"{name} must be a positive multiple of {_SIZE_MULTIPLE}, got {shown(size)}: kernels move 16 bytes at "
                f"a time, so rows of {rows} have to start at multiples of 16 bytes; pad with zeros"
            )


def k_blocks(K: int) -> int:
    """KB: blocks along K of the padded weights."""
    return ceil_div(K, PADDED_K) * (PADDED_K // BLOCK_K)


def padded(values: Array, shape: tuple[int, int], fill: int) -> Array:
    """Return a matrix at the top left of a larger one of the same type; itself, if it has that shape."""
    if values.shape == shape:
        return values
    result = module_of(values).full(shape, fill, dtype=values.dtype)
    result[: values.shape[0], : values.shape[1]] = values
    return result


def encode(values: Array, activation: DType) -> Array:
    """Floats as they are stored, rounded to nearest even: float16, or the bits of a bf16 in a uint16."""
    xp = module_of(values)
    if activation is DType.FP16:
        return values.astype(xp.float16)
    bits = values.astype(xp.float32).view(xp.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(xp.uint16)


def decode(stored: Array, activation: DType) -> Array:
    """Return the values, as float32, of what `encode` made."""
    xp = module_of(stored)
    if activation is DType.FP16:
        return stored.astype(xp.float32)
    return (stored.astype(xp.uint32) << 16).view(xp.float32)


def rounded_up(magnitudes: Array, activation: DType) -> Array:
    """Return the least values of the type that are not below `magnitudes`, which are not negative; float64."""
    xp = module_of(magnitudes)
    nearest = encode(magnitudes, activation)
    is_below = decode(nearest, activation) < magnitudes
    # Bits of floats of one sign are in the order of their values.
    next_up = (nearest.view(xp.uint16) + is_below.astype(xp.uint16)).view(nearest.dtype)
    return decode(next_up, activation).astype(xp.float64)


# k = 64 kb + 16 j + 8 r + 2 t + p, n = 64 nb + 16 w + 8 h + g; lane 4 g + t keeps (p, r, h) at bits 16 p + 8 r + 4 h.


def pack_words(integers: Array) -> Array:
    """Integers 0..15, uint8 [128 i, 64 NB], to uint32 [NB, KB, 4, 32, 4]."""
    xp = module_of(integers)
    num_k, num_n = integers.shape[0] // BLOCK_K, integers.shape[1] // BLOCK_COLUMNS
    nibbles = integers.reshape(num_k, 4, 2, 4, 2, num_n, 4, 2, 8)
    columns = nibbles[..., 0, :] | (nibbles[..., 1, :] << 4)
    # Joined before they are moved: the transpose then touches 4 bytes at a time, and an eighth of the elements.
    halves = columns[:, :, 0].astype(xp.uint16) | (columns[:, :, 1].astype(xp.uint16) << 8)
    words = halves[:, :, :, 0].astype(xp.uint32) | (halves[:, :, :, 1].astype(xp.uint32) << 16)
    return xp.ascontiguousarray(words.transpose(3, 0, 4, 5, 2, 1)).reshape(num_n, num_k, 4, 32, 4)


def unpack_words(words: Array) -> Array:
    """Return the inverse of `pack_words`."""
    xp = module_of(words)
    num_n, num_k = words.shape[:2]
    moved = xp.ascontiguousarray(words.reshape(num_n, num_k, 4, 8, 4, 4).transpose(1, 5, 4, 0, 2, 3))
    nibbles = xp.empty((num_k, 4, 2, 4, 2, num_n, 4, 2, 8), dtype=xp.uint8)
    for p in range(2):
        for r in range(2):
            for h in range(2):
                nibbles[:, :, r, :, p, :, :, h] = (moved >> (16 * p + 8 * r + 4 * h)) & 15
    return nibbles.reshape(num_k * BLOCK_K, num_n * BLOCK_COLUMNS)


def scale_rows(mode: WeightMode, num_k_blocks: int, group_size: int) -> int:
    """GB: rows of the packed scales."""
    return num_k_blocks * BLOCK_K // mode.row_k(group_size) if group_size else 1


def scales_shape(mode: WeightMode, num_column_blocks: int, num_rows: int) -> tuple[int, ...]:
    """Shape of the packed scales, of `scale_rows` rows."""
    if mode is WeightMode.COLUMN:
        return (num_column_blocks * BLOCK_COLUMNS,)
    if mode.is_fp4:
        return (num_column_blocks, num_rows, BLOCK_COLUMNS // 2, 2 * BLOCK_K // mode.group_sizes[0])
    per_block = (BLOCK_COLUMNS,) if mode is WeightMode.GROUP else (BLOCK_COLUMNS // 2, 4)
    return (num_column_blocks, num_rows, *per_block)


def scales_dtype(mode: WeightMode, activation: DType) -> str:
    """Type of the packed scales, as numpy calls it."""
    if mode.is_fp4:
        return "uint8"
    return "float16" if activation is DType.FP16 else "uint16"


def scale_unit(scales: Array, activation: DType) -> float | None:
    """Return the power of 2 of which scales of mode GROUP are multiples, float64 [GB, 64 NB]; None: they span too
    much for that mode."""
    xp = module_of(scales)
    columns = abs(scales).max(axis=0)
    largest = float(columns.max())
    if largest == 0.0:
        return 1.0
    exponent = math.frexp(largest)[1] - _LARGEST_EXPONENT[activation]
    if activation is DType.BF16:
        return 2.0 ** max(exponent, 0)
    return 2.0**exponent if float(xp.where(columns > 0, columns, largest).min()) >= largest / _LARGEST_SPAN else None


def pack_scales(scales: Array, zeros: Array | None, mode: WeightMode, activation: DType) -> Array:
    """Scales, floats [GB, 64 NB], and zero points of mode GROUP_ZERO, uint8 of the same shape, as kernels read them."""
    xp = module_of(scales)
    stored = encode(scales, activation)
    if mode is WeightMode.COLUMN:
        return stored[0]
    pairs = to_pairs(stored)
    if zeros is not None:
        biases = xp.asarray(BIASES[activation], dtype=xp.float32)
        added = encode(-(to_pairs(zeros).astype(xp.float32) + biases), activation)
        return xp.concatenate((pairs, added), axis=-1)
    return pairs.reshape(*pairs.shape[:2], BLOCK_COLUMNS)


def unpack_scales(stored: Array, mode: WeightMode, activation: DType) -> tuple[Array, Array | None]:
    """Return the inverse of `pack_scales`."""
    xp = module_of(stored)
    if mode is WeightMode.COLUMN:
        return decode(stored, activation).reshape(1, -1), None
    if mode is WeightMode.GROUP:
        return decode(from_pairs(stored.reshape(*stored.shape[:2], 32, 2)), activation), None
    biases = xp.asarray(BIASES[activation], dtype=xp.float32)
    zeros = -decode(stored[..., 2:], activation) - biases
    return decode(from_pairs(stored[..., :2]), activation), from_pairs(zeros.astype(xp.uint8))


def to_pairs(values: Array) -> Array:
    """[GB, 64 NB] to [NB, GB, 32, 2]: pair 8 w + g holds the columns 16 w + g and 16 w + g + 8."""
    num_groups, num_n = values.shape[0], values.shape[1] // BLOCK_COLUMNS
    split = values.reshape(num_groups, num_n, 4, 2, 8)
    return module_of(values).ascontiguousarray(split.transpose(1, 0, 2, 4, 3)).reshape(num_n, num_groups, 32, 2)


def from_pairs(pairs: Array) -> Array:
    """Return the inverse of `to_pairs`."""
    num_n, num_groups = pairs.shape[:2]
    split = pairs.reshape(num_n, num_groups, 4, 8, 2)
    return split.transpose(1, 0, 2, 4, 3).reshape(num_groups, num_n * BLOCK_COLUMNS)


# Four-bit floats (e2m1). A word is first packed as integers are (`pack_words`), each code where u would be, and its
# bits are then moved to where a few instructions make 16-bit numbers of them: other places for fp16 than for bf16.

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The value of each code (OCP Microscaling Formats (MX) Specification 1.0, section 5.3.3)."""

MAGNITUDE_BITS = 7
"""Of a code, without its sign: 0 where the value is 0."""

_WORD_BITS = 32
_E8M0_NAN, _E4M3_NAN = 0xFF, 0x7F
_E8M0_BIAS, _E4M3_BIAS, _E4M3_MANTISSA_BITS = 127, 7, 3

_LARGEST_STORED = 8
"""Exponent of the largest stored scale of mode MXFP4, whatever the type of the activations."""

# Mode MXFP4: what a byte is shifted by, and how it counts: stored scale 2^((byte >> shift) - bias). And the exponents
# below the largest for which every product with a weight is exact: 0.5 times the least is 2^-24 or 2^-133 in registers.
_E8M0_STORED = {DType.FP16: (2, 22), DType.BF16: (0, 246)}
_EXACT_SPAN = {DType.FP16: 24, DType.BF16: 133}

_E5M3_BIAS = 22
"""Mode NVFP4: the exponent, in 5 bits, of a scale without subnormal numbers."""


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


MOVES = {activation: _moves(activation) for activation in _WANTED}
"""By activation: bits of a word in natural order -> by how many places to the left they come; right, if negative."""


def _shifted(words: Array, by: int) -> Array:
    return words << by if by >= 0 else words >> -by


def to_kernel_order(words: Array, activation: DType) -> Array:
    """Move the bits of words of `layout.pack_words` to where kernels read them."""
    xp = module_of(words)
    result = xp.zeros_like(words)
    for by, bits in MOVES[activation].items():
        result |= _shifted(words & xp.uint32(bits), by)
    return result


def to_natural_order(words: Array, activation: DType) -> Array:
    """Return the inverse of `to_kernel_order`."""
    xp = module_of(words)
    result = xp.zeros_like(words)
    for by, bits in MOVES[activation].items():
        result |= _shifted(words, -by) & xp.uint32(bits)
    return result


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
    """Return the values of e4m3 bytes without a sign, float64."""
    return module_of(scales).asarray(_E4M3_VALUES)[scales]


# A byte of mode NVFP4 has an exponent of 5 bits and no subnormal numbers; 0 is 0. Of e4m3 bytes those below NaN count.
_E4M3_VALUES = numpy.array([
    math.ldexp(8 * (byte > 7) + byte % 8, max(byte // 8, 1) - _E4M3_BIAS - _E4M3_MANTISSA_BITS) for byte in range(256)
])  # fmt: skip
_E5M3_VALUES = numpy.array([byte and math.ldexp(8 + byte % 8, byte // 8 - _E5M3_BIAS - 3) for byte in range(256)])
_E5M3_OF_E4M3 = numpy.searchsorted(_E5M3_VALUES, _E4M3_VALUES).clip(0, 255).astype(numpy.uint8)
_E5M3_OF_E4M3[_E4M3_NAN:] = 0
_E4M3_OF_E5M3 = numpy.searchsorted(_E4M3_VALUES[:_E4M3_NAN], _E5M3_VALUES).astype(numpy.uint8)


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
    return xp.asarray(_E5M3_OF_E4M3)[scales]


def stored_values(stored: Array, mode: WeightMode, activation: DType) -> Array:
    """Return the values of bytes of scales, without the unit, float64."""
    xp = module_of(stored)
    if mode is WeightMode.NVFP4:
        return xp.asarray(_E5M3_VALUES)[stored]
    shift, bias = _E8M0_STORED[activation]
    return xp.where(stored > 0, _powers((stored >> shift).astype(xp.int32) - bias), 0.0)


def original_scales(stored: Array, mode: WeightMode, activation: DType, unit: float) -> Array:
    """Return the e8m0 or e4m3 bytes of which `store_e8m0` or `store_e4m3` made these; 0 where they stored 0."""
    xp = module_of(stored)
    if mode is WeightMode.NVFP4:
        return xp.asarray(_E4M3_OF_E5M3)[stored]
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
    """Return the inverse of `pack_fp4_scales`."""
    num_n, num_k, pairs, of_pair = packed.shape
    of_block = of_pair // 2
    moved = packed.reshape(num_n, num_k, pairs, of_block, 2).transpose(0, 1, 3, 2, 4)
    return from_pairs(module_of(packed).ascontiguousarray(moved).reshape(num_n, num_k * of_block, pairs, 2))
