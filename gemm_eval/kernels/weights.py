"""Weights of the W4A16 kernels, of one GEMM or of groups: 4-bit quantization, the packed layout, and the way back.

What is said of integers is here; four-bit floats are quantized and packed in `fp4`, and unpacked here too.
All functions take numpy arrays (CPU) and CuPy arrays or other tensors on a GPU, and answer where their input lies.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, Self

import numpy

from gemm_eval.device import import_cupy
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidOptionError, InvalidProblemError
from gemm_eval.kernels import layout
from gemm_eval.kernels.families import WeightMode, ceil_div
from gemm_eval.kernels.layout import BLOCK_COLUMNS, MIDDLE, PADDED_K, Array, as_array, module_of
from gemm_eval.words import plain_number, shown

_LARGEST = {DType.FP16: 65504.0, DType.BF16: 255 * 2.0**120}
_LARGEST_INTEGER = {WeightMode.COLUMN: 8, WeightMode.GROUP: 8, WeightMode.GROUP_ZERO: 16}
"""What scale is multiplied with at most; powers of 2, so that the limit of a scale is itself a value of its type."""

_CHUNK_ELEMS = 1 << 22
"""Weights that are quantized at once: fp32 copies of a whole matrix would take 4 times its packed size and more."""


class QuantizedW4(NamedTuple):
    """Weights in 4 bits: W[k, n] = scales[k // group_size, n] * (integers[k, n] - zeros[k // group_size, n]).

    Attributes:
        integers: uint8 [K, N], 0..15.
        scales: float32 [G, N], G = ceil(K / group_size) or 1, each a value that the type of the activations holds.
        zeros: uint8 [G, N], 0..15; None: all are 8.
    """

    integers: Array
    scales: Array
    zeros: Array | None

    def __repr__(self) -> str:
        arrays = (None if x is None else f"{x.dtype}{list(x.shape)}" for x in self)
        return f"<QuantizedW4 {', '.join(f'{name} {x}' for name, x in zip(self._fields, arrays, strict=True))}>"


@dataclass(frozen=True, eq=False, repr=False)
class PackedArrays:
    """Packed weights of one GEMM or of groups: arrays that lie all on the CPU or all on a GPU, and what they hold."""

    qweight: Array
    scales: Array
    N: int
    K: int
    mode: WeightMode
    group_size: int
    activation: DType
    _names: ClassVar[tuple[str, ...]]

    def _check(self, *outer: int) -> None:
        """Take names for enums, and refuse arrays that do not belong together; `outer`: their first dimensions."""
        object.__setattr__(self, "mode", layout.parse_mode(self.mode))
        object.__setattr__(self, "activation", layout.parse_activation(self.activation))
        object.__setattr__(self, "group_size", layout.parse_group_size(self.group_size, self.mode))
        layout.check_sizes(self.K, self.N)
        num_blocks, num_k_blocks, num_rows = self.blocks_and_groups
        scale_type = layout.scales_dtype(self.mode, self.activation)
        of_scales = layout.scales_shape(self.mode, num_blocks, num_rows)
        layout.check_array("qweight", self.qweight, "uint32", (*outer, num_blocks, num_k_blocks, 4, 32, 4))
        layout.check_array("scales", self.scales, scale_type, (*outer, *of_scales))
        if len({module_of(array) for array in self._arrays().values()}) > 1:
            raise InvalidProblemError(f"{', '.join(self._arrays())} must lie all on the CPU or all on a GPU")

    def _arrays(self) -> dict[str, Array]:
        arrays = {name: getattr(self, name) for name in self._names}
        return {name: array for name, array in arrays.items() if array is not None}

    def _text(self) -> str:
        where = module_of(self.qweight).__name__
        return f"K={self.K} N={self.N} {self.activation} {self.mode.name.lower()} {self.group_size}, {where}"

    @property
    def blocks_and_groups(self) -> tuple[int, int, int]:
        """NB, KB and GB of a matrix: blocks of 64 columns, blocks of 64 along K, rows of scales (KERNELS.md)."""
        num_k_blocks = layout.k_blocks(self.K)
        num_rows = layout.scale_rows(self.mode, num_k_blocks, self.group_size)
        return ceil_div(self.N, BLOCK_COLUMNS), num_k_blocks, num_rows

    @property
    def nbytes(self) -> int:
        """Memory of all arrays, in bytes."""
        return sum(int(array.nbytes) for array in self._arrays().values())

    def to_gpu(self) -> Self:
        """Return the same weights on CuPy's current device."""
        return self._moved(import_cupy())

    def to_cpu(self) -> Self:
        """Return the same weights in numpy arrays."""
        return self._moved(numpy)

    def _moved(self, xp: ModuleType) -> Self:
        moved = {name: as_array(array, name, xp) for name, array in self._arrays().items()}
        return replace(self, **moved)


@dataclass(frozen=True, eq=False, repr=False)
class PackedW4(PackedArrays):
    """Weights as every W4A16 kernel reads them; see KERNELS.md for the order within the arrays.

    Attributes:
        qweight: uint32 [NB, KB, 4, 32, 4].
        scales: [64 NB], [NB, GB, 64] or [NB, GB, 32, 4] by mode; float16, or the bits of a bf16 in a uint16. In modes
            MXFP4 and NVFP4 uint8 [NB, KB, 32, 4] and [NB, KB, 32, 8].
        N, K: columns and rows of the weights, without padding.
        group_size: weights along K that share a scale; 0 in mode COLUMN.
        activation: DType.FP16 or DType.BF16.
        scale_unit: a power of 2; a stored scale of mode GROUP or MXFP4 is so many of it. In mode NVFP4 the scale of the
            whole tensor, any positive number of fp32. Kernels have it in `alpha`.
        permutation: int32 [K]: row j of what is packed is row permutation[j] of the weights, and w4a16_gemm gathers the
            columns of A so (act-order: rows sorted by group); None: rows are in order.

    Raises:
        InvalidOptionError: a mode, group size or unit that does not exist.
        InvalidProblemError: sizes, types or shapes that do not belong together, or a permutation in CPU memory that is
            none.
    """

    scale_unit: float = 1.0
    permutation: Array | None = None
    _names: ClassVar[tuple[str, ...]] = ("qweight", "scales", "permutation")

    def __post_init__(self) -> None:
        self._check()
        object.__setattr__(self, "scale_unit", _checked_unit(self.scale_unit, self.mode))
        if self.permutation is not None:
            # on a GPU, where a look would wait for it, only its type: kernels read no more than A, whatever it holds
            layout.check_array("permutation", self.permutation, "int32", (self.K,))
            is_on_cpu = isinstance(self.permutation, numpy.ndarray)
            if is_on_cpu and not bool((numpy.sort(self.permutation) == numpy.arange(self.K)).all()):
                raise InvalidProblemError(f"permutation must hold each of 0..{self.K - 1} once")

    def __repr__(self) -> str:
        order = "" if self.permutation is None else ", act-order"
        return f"<PackedW4 {self._text()}{order}>"

    @property
    def num_column_blocks(self) -> int:
        """NB: blocks of 64 columns."""
        return self.blocks_and_groups[0]

    @property
    def num_k_blocks(self) -> int:
        """KB: blocks of 64 along K; even."""
        return self.blocks_and_groups[1]

    @property
    def num_groups(self) -> int:
        """GB: rows of scales."""
        return self.blocks_and_groups[2]


def quantize_w4(
    weights: Any, group_size: int | None = None, mode: WeightMode | str = "group", activation: DType | str = "fp16"
) -> QuantizedW4:
    """Round float weights [K, N] to 4 bits, such that no weight moves by more than half a scale.

    The scale is fixed first, rounded away from zero to the type of the activations, and the integers follow from it.
    Modes COLUMN and GROUP: the weight that is furthest from zero becomes -8 (so a scale is negative where that weight
    is positive), unless the furthest on the other side would then pass 7.5. Mode GROUP_ZERO: 0..15 spans all weights
    and 0. |W - scale * (integer - zero)| <= |scale| / 2 up to fp32 rounding; a group of zeros gets the scale 0. Weights
    of more than 32 bits are rounded to fp32.

    Args:
        weights: floats [K, N].
        group_size: 32, 64 or 128 weights along K share a scale; None: 128, or all K in mode COLUMN.
        mode: "column", "group" or "group_zero".
        activation: "fp16" or "bf16", the type of the scales.

    Raises:
        InvalidOptionError: `mode`, one of fp4 among them (`quantize_fp4`), or `group_size`.
        InvalidProblemError: weights that are no matrix of finite floats, or whose scales the type cannot hold.
    """
    mode, activation = layout.parse_mode(mode), layout.parse_activation(activation)
    group_size = layout.parse_group_size(group_size, mode)
    if mode.is_fp4:
        raise InvalidOptionError(f"mode {mode.name.lower()} has no integers: quantize_fp4 rounds to it")
    weights = as_array(weights, "weights")
    xp = module_of(weights)
    if weights.ndim != 2 or weights.dtype.kind != "f" or not weights.size:
        raise InvalidProblemError(f"weights must be floats [K, N], got {weights.dtype} {weights.shape}")
    group = group_size or len(weights)
    low, high = (xp.concatenate([f(part, axis=1) for part in _in_groups(weights, group)]) for f in (xp.min, xp.max))
    if not bool(xp.isfinite(low).all() and xp.isfinite(high).all()):
        raise InvalidProblemError("weights must be finite, got inf or NaN")
    low, high = xp.minimum(low.astype(xp.float64), 0), xp.maximum(high.astype(xp.float64), 0)
    if mode is WeightMode.GROUP_ZERO:
        magnitude, sign = (high - low) / 15, 1.0
    else:
        magnitude = xp.maximum(xp.maximum(high, -low) / 8, xp.minimum(high, -low) / 7.5)
        sign = xp.where(high > -low, -1.0, 1.0)
    scales = layout.rounded_up(_checked_scales(magnitude, mode, activation), activation)
    scales = (scales * sign).astype(xp.float32)
    divisors = xp.where(scales == 0, xp.float32(1), scales)
    zeros = xp.rint(-low / divisors).astype(xp.uint8) if mode is WeightMode.GROUP_ZERO else None
    middles = xp.full_like(scales, MIDDLE) if zeros is None else zeros.astype(xp.float32)
    return QuantizedW4(_rounded_integers(weights, divisors, middles, group), scales, zeros)


def pack_w4(
    weights: Any, group_size: int | None = None, mode: WeightMode | str = "group", *, scales: Any = None,
    zeros: Any = None, activation: DType | str = "fp16", xp: ModuleType | None = None,
) -> PackedW4:  # fmt: skip
    """Pack weights for the kernels; float weights are quantized first.

    Scales of mode GROUP that differ too much for fp16 from column to column (more than 256 times) are packed in mode
    GROUP_ZERO, with zero points of 8: the same weights.

    Args:
        weights: [K, N], floats; or, with `scales`, integers 0..15. Where there are no zero points, integers of a signed
            type are -8..7. K and N are multiples of 8; a last group may be shorter than the others.
        group_size: 32, 64 or 128; None: 128, all K in mode COLUMN, or what the mode has.
        mode: "column", "group" or "group_zero"; "mxfp4" or "nvfp4" for floats (`pack_mxfp4` and `pack_nvfp4` take what
            others quantized).
        scales: floats [ceil(K / group_size), N], or [1, N] or [N] in mode COLUMN; rounded to the type `activation`.
        zeros: integers 0..15 of the same shape; in mode GROUP_ZERO, with `scales`.
        activation: "fp16" or "bf16".
        xp: numpy or cupy, where to pack; None: where `weights` lie.

    Raises:
        InvalidOptionError: `mode` or `group_size`.
        InvalidProblemError: arrays of other shapes, types or values than above.
    """
    mode, activation = layout.parse_mode(mode), layout.parse_activation(activation)
    group_size = layout.parse_group_size(group_size, mode)
    weights = as_array(weights, "weights", xp)
    xp = module_of(weights)
    if mode.is_fp4:
        from gemm_eval.kernels.fp4 import pack_fp4, quantize_fp4  # here, as it packs into the class of this module

        if scales is not None or zeros is not None:
            raise InvalidProblemError(f"scales of mode {mode.name.lower()} are given to pack_{mode.name.lower()}")
        return pack_fp4(quantize_fp4(weights, mode), mode, activation)
    if weights.ndim != 2:
        raise InvalidProblemError(f"weights must be a matrix [K, N], got shape {weights.shape}")
    K, N = weights.shape
    layout.check_sizes(K, N)
    if scales is None:
        if zeros is not None:
            raise InvalidProblemError("zeros must come with scales: quantizing finds both")
        quantized = quantize_w4(weights, group_size, mode, activation)
    else:
        quantized = _given(weights, scales, zeros, group_size, mode, activation)
    integers, scales, zeros = quantized
    unit = 1.0
    if mode is WeightMode.GROUP:
        result = layout.scale_unit(scales, activation)
        if result is None:
            mode, zeros = WeightMode.GROUP_ZERO, xp.full(scales.shape, MIDDLE, dtype=xp.uint8)
        else:
            unit, scales = result, scales / result
    shape = ceil_div(K, PADDED_K) * PADDED_K, ceil_div(N, BLOCK_COLUMNS) * BLOCK_COLUMNS
    groups = (shape[0] // group_size if group_size else 1), shape[1]
    integers = layout.padded(integers, shape, MIDDLE)
    if zeros is not None:
        integers[K : len(scales) * group_size, :N] = zeros[-1]  # the rest of the last group has its scale: u = z
        zeros = layout.padded(zeros, groups, MIDDLE)
    stored = layout.pack_scales(layout.padded(scales, groups, 0), zeros, mode, activation)
    return PackedW4(layout.pack_words(integers), stored, N, K, mode, group_size, activation, unit)


def unpack_w4(packed: PackedW4) -> QuantizedW4:
    """Return the integer weights that were packed, exactly, without padding, rows as they were packed."""
    check_packed(packed)
    if packed.mode.is_fp4:
        raise InvalidProblemError(f"{packed!r} has no integers: unpack_fp4 returns its codes")
    N, K = packed.N, packed.K
    num_groups = ceil_div(K, packed.group_size or K)
    scales, zeros = layout.unpack_scales(packed.scales, packed.mode, packed.activation)
    scales = scales * scales.dtype.type(packed.scale_unit)
    zeros = None if zeros is None else zeros[:num_groups, :N]
    return QuantizedW4(unpack_codes(packed), scales[:num_groups, :N], zeros)


def dequantize(packed: PackedW4, dtype: Any = numpy.float64) -> Array:
    """Return the weights [K, N] that are meant, computed in `dtype`: in float64, not rounded. Rows are in order.

    s * (u - z) of integers; code times scale, times the scale of the tensor, of fp4.

    Raises:
        InvalidProblemError: `packed` is no `PackedW4`, or `dtype` no type of floats.
    """
    try:
        kind = numpy.dtype(dtype).kind
    except (TypeError, ValueError):
        kind = ""
    if kind != "f":
        raise InvalidProblemError(f"dtype must be a type of floats, such as numpy.float32, got {shown(dtype)}")
    check_packed(packed)
    xp = module_of(packed.qweight)
    if packed.mode.is_fp4:
        result = _fp4_values(packed, dtype)
    else:
        integers, scales, zeros = unpack_w4(packed)
        middles = MIDDLE if zeros is None else _spread(zeros, packed, dtype)
        result = _spread(scales, packed, dtype) * (integers.astype(dtype) - middles)
    if packed.permutation is None:
        return result
    in_order = xp.empty_like(result)
    in_order[packed.permutation] = result
    return in_order


def _fp4_values(packed: PackedW4, dtype: Any) -> Array:
    xp = module_of(packed.qweight)
    values = layout.stored_values(packed.scales, packed.mode, packed.activation)
    scales = layout.unpack_fp4_scales(values)[: ceil_div(packed.K, packed.group_size), : packed.N]
    result = xp.asarray(layout.E2M1_VALUES, dtype=dtype)[unpack_codes(packed)]
    result *= _spread(scales, packed, dtype)
    result *= xp.asarray(packed.scale_unit, dtype=dtype)
    return result


def unpack_codes(packed: PackedW4) -> Array:
    """Return the 4 bits of each weight, uint8 [K, N], without padding; rows in the order in which they were packed."""
    words = packed.qweight
    if packed.mode.is_fp4:
        words = layout.to_natural_order(words, packed.activation)
    return layout.unpack_words(words)[: packed.K, : packed.N]


def _spread(of_groups: Array, packed: PackedW4, dtype: Any) -> Array:
    """Return for each weight the value of its group."""
    group = packed.group_size or packed.K
    return module_of(of_groups).repeat(of_groups.astype(dtype), group, axis=0)[: packed.K]


def check_packed(packed: object) -> None:
    """Check that an argument is packed weights."""
    if not isinstance(packed, PackedW4):
        raise InvalidProblemError(f"packed must be a PackedW4, as pack_w4 makes it, got {shown(packed)}")


def _checked_unit(value: Any, mode: WeightMode) -> float:
    unit = plain_number(value)
    if mode is WeightMode.NVFP4:
        if unit is None or unit <= 0 or float(numpy.float32(unit)) != unit or not math.isfinite(unit):
            raise InvalidOptionError(f"scale_unit must be a positive number of fp32, got {shown(value)}")
    elif unit is None or unit <= 0 or math.frexp(unit)[0] != 0.5:
        raise InvalidOptionError(f"scale_unit must be a power of 2, got {shown(value)}")
    return unit


def _given(
    weights: Array, scales: Any, zeros: Any, group_size: int, mode: WeightMode, activation: DType
) -> QuantizedW4:
    """Integers that somebody else quantized, checked."""
    xp = module_of(weights)
    shape = ceil_div(weights.shape[0], group_size or weights.shape[0]), weights.shape[1]
    if (zeros is None) is (mode is WeightMode.GROUP_ZERO):
        raise InvalidProblemError("zeros must be given in mode group_zero with scales, and in no other mode")
    scales = as_array(scales, "scales", xp)
    scales = scales.reshape(1, -1) if mode is WeightMode.COLUMN and scales.ndim == 1 else scales
    if scales.shape != shape or scales.dtype.kind != "f":
        raise InvalidProblemError(f"scales must be floats {list(shape)}, got {scales.dtype} {list(scales.shape)}")
    if zeros is not None:
        zeros = _nibbles(as_array(zeros, "zeros", xp), "zeros")
        if zeros.shape != shape:
            raise InvalidProblemError(f"zeros must be of shape {list(shape)}, got {list(zeros.shape)}")
    rounded = layout.encode(_checked_scales(scales, mode, activation), activation)
    is_signed = weights.dtype.kind == "i" and zeros is None
    return QuantizedW4(_nibbles(weights, "integers", is_signed), layout.decode(rounded, activation), zeros)


def _nibbles(values: Array, what: str, is_signed: bool = False) -> Array:
    """0..15 in uint8, from -8..7 if `is_signed`."""
    low = -MIDDLE if is_signed else 0
    if values.dtype.kind not in "iu":
        raise InvalidProblemError(f"{what} must be of an integer type, got {values.dtype}")
    if not (low <= int(values.min()) and int(values.max()) <= low + 15):
        kind = "signed" if is_signed else "stored"
        raise InvalidProblemError(
            f"{what} ({kind}, {values.dtype}) must be {low}..{low + 15}, got {int(values.min())}..{int(values.max())}"
            + ("; give integers 0..15 in an unsigned type" if is_signed else "")
        )
    return (values + MIDDLE if is_signed else values).astype(module_of(values).uint8)


def _checked_scales(scales: Array, mode: WeightMode, activation: DType) -> Array:
    """Scales of which every product with an integer is finite, in float64."""
    limit = _LARGEST[activation] / _LARGEST_INTEGER[mode]
    scales = scales.astype(numpy.float64)
    if not bool((abs(scales) <= limit).all()):
        raise InvalidProblemError(
            f"scales must be finite and at most {limit:g} for {activation} weights in mode {mode.name.lower()}: "
            f"scale x {_LARGEST_INTEGER[mode]} has to fit; got {float(abs(scales).max()):g} (scale the weights down)"
        )
    return scales


def _in_groups(values: Array, group: int) -> list[Array]:
    """[K, N] as [K // group, group, N] and, if there is a rest, [1, K % group, N]."""
    num_rows, num_columns = values.shape
    cut = num_rows - num_rows % group
    whole = [values[:cut].reshape(cut // group, group, num_columns)] if cut else []
    return whole if cut == num_rows else [*whole, values[cut:].reshape(1, num_rows - cut, num_columns)]


def _rounded_integers(weights: Array, scales: Array, middles: Array, group: int) -> Array:
    xp = module_of(weights)
    integers = xp.empty(weights.shape, dtype=xp.uint8)
    rows = max(1, _CHUNK_ELEMS // weights.shape[1])
    rows = rows // group * group or min(rows, group)
    for start in range(0, len(weights), rows):
        which = xp.arange(start, min(start + rows, len(weights))) // group
        chunk = weights[start : start + rows].astype(xp.float32)
        chunk /= scales[which]
        xp.rint(chunk, out=chunk)
        chunk += middles[which]
        integers[start : start + rows] = xp.clip(chunk, 0, 15, out=chunk)
    return integers


_SAME = ("N", "K", "mode", "group_size", "activation")


@dataclass(frozen=True, eq=False, repr=False)
class GroupedW4(PackedArrays):
    """Weights of `num_groups` groups, as `w4a16_grouped_gemm` reads them: the arrays of `PackedW4`, stacked.

    Attributes:
        qweight: uint32 [num_groups, NB, KB, 4, 32, 4].
        scales: [num_groups, ...], each as `PackedW4.scales`.
        scale_units: float32 [num_groups].
        N, K, mode, group_size, activation: of each, as in `PackedW4`.

    Raises:
        InvalidOptionError: as `PackedW4`.
        InvalidProblemError: as `PackedW4`, or arrays that are not stacked so.
    """

    scale_units: Array
    _names: ClassVar[tuple[str, ...]] = ("qweight", "scales", "scale_units")

    def __post_init__(self) -> None:
        if not self.num_groups:
            raise InvalidProblemError("qweight must have one group at least")
        self._check(self.num_groups)
        layout.check_array("scale_units", self.scale_units, "float32", (self.num_groups,))

    def __repr__(self) -> str:
        return f"<GroupedW4 {self.num_groups} groups, {self._text()}>"

    def __len__(self) -> int:
        return self.num_groups

    def __getitem__(self, group: int) -> PackedW4:
        """Return the weights of one group; they share memory with these."""
        unit = float(self.scale_units[group])
        sizes = self.N, self.K, self.mode, self.group_size, self.activation
        return PackedW4(self.qweight[group], self.scales[group], *sizes, unit)

    def __iter__(self) -> Iterator[PackedW4]:
        return (self[group] for group in range(self.num_groups))

    @property
    def num_groups(self) -> int:
        """Number of matrices."""
        return int(self.qweight.shape[0])


def stack_w4(weights: Iterable[PackedW4]) -> GroupedW4:
    """Stack packed weights for a grouped GEMM: one matrix a group, all of one shape and kind, on the CPU or one GPU.

    Matrices of mode GROUP are packed anew in mode GROUP_ZERO, which says the same, where others among them are in that
    mode: `pack_w4` takes it for scales that differ widely.

    Raises:
        InvalidProblemError: none at all, weights that differ in shape or kind, or weights with act-order.
    """
    parts = list(weights)
    for part in parts:
        check_packed(part)
    if not parts:
        raise InvalidProblemError("weights must be one PackedW4 at least, got none")
    if any(part.permutation is not None for part in parts):
        raise InvalidProblemError("weights of groups must be in order: grouped kernels gather no columns of A")
    if {part.mode for part in parts} == {WeightMode.GROUP, WeightMode.GROUP_ZERO}:
        parts = [_with_zeros(part) for part in parts]
    for part in parts:
        differ = [name for name in _SAME if getattr(part, name) != getattr(parts[0], name)]
        if differ or module_of(part.qweight) is not module_of(parts[0].qweight):
            what = ", ".join(differ) or "where they lie"
            raise InvalidProblemError(f"weights of groups must be alike in {what}, got {parts[0]} and {part}")
    xp = module_of(parts[0].qweight)
    units = xp.asarray([part.scale_unit for part in parts], dtype=xp.float32)
    qweight, scales = (xp.stack([getattr(part, name) for part in parts]) for name in ("qweight", "scales"))
    return GroupedW4(qweight, scales, **{name: getattr(parts[0], name) for name in _SAME}, scale_units=units)


def _with_zeros(packed: PackedW4) -> PackedW4:
    """Return the same weights in mode GROUP_ZERO."""
    if packed.mode is WeightMode.GROUP_ZERO:
        return packed
    xp = module_of(packed.scales)
    scales, _ = layout.unpack_scales(packed.scales, packed.mode, packed.activation)
    scales = scales * scales.dtype.type(packed.scale_unit)
    zeros = xp.full(scales.shape, MIDDLE, dtype=xp.uint8)
    stored = layout.pack_scales(scales, zeros, WeightMode.GROUP_ZERO, packed.activation)
    return replace(packed, scales=stored, mode=WeightMode.GROUP_ZERO, scale_unit=1.0)
