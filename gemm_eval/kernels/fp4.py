"""Four-bit floats as weights: quantization to MXFP4 and NVFP4, and packing what gpt-oss, ModelOpt and others store.

An element is e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and a sign. MXFP4 (OCP Microscaling Formats (MX) Specification 1.0): 32
of them along K share a power of 2 (e8m0). NVFP4: 16 share an e4m3 number, and all of them one number of fp32.
Functions take numpy and CuPy arrays, as those of `weights` do.
"""

from types import ModuleType
from typing import Any, NamedTuple

import numpy

from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidOptionError, InvalidProblemError
from gemm_eval.kernels import layout
from gemm_eval.kernels.families import WeightMode, ceil_div
from gemm_eval.kernels.layout import BLOCK_COLUMNS, PADDED_K, Array, as_array, module_of
from gemm_eval.kernels.weights import PackedW4, check_packed, unpack_codes
from gemm_eval.words import plain_number, shown

_LARGEST_E2M1, _LARGEST_E2M1_EXPONENT = 6.0, 2
_LARGEST_E4M3 = 448.0
_E8M0_BIAS = 127
_CHUNK_ELEMS = 1 << 22


class QuantizedFp4(NamedTuple):
    """Weights in four-bit floats: W[k, n] = value(codes[k, n]) * value(scales[k // group, n]) * tensor_scale.

    Attributes:
        codes: uint8 [K, N], e2m1 in the low 4 bits, the highest of them the sign.
        scales: uint8 [ceil(K / group), N], the bits of e8m0 (groups of 32) or e4m3 (of 16).
        tensor_scale: of all weights; 1 in MXFP4.
    """

    codes: Array
    scales: Array
    tensor_scale: float

    def __repr__(self) -> str:
        arrays = ", ".join(f"{x.dtype}{list(x.shape)}" for x in self[:2])
        return f"<QuantizedFp4 codes, scales {arrays}, tensor_scale {self.tensor_scale:g}>"


def quantize_fp4(weights: Any, mode: WeightMode | str = "mxfp4") -> QuantizedFp4:
    """Round float weights [K, N] to MXFP4 or NVFP4, to nearest, ties to even; what is too large becomes 6 scales.

    MXFP4: a group's scale is 2^(floor(log2(its largest magnitude)) - 2), as section 6.3 of the specification has it.
    NVFP4: the largest magnitude of all becomes 6 * 448, that of a group 6 scales, as near as e4m3 comes to it.

    Args:
        weights: floats [K, N].
        mode: "mxfp4" or "nvfp4".

    Raises:
        InvalidOptionError: `mode`.
        InvalidProblemError: weights that are no matrix of finite floats.
    """
    mode = _parse_mode(mode)
    weights = as_array(weights, "weights")
    xp = module_of(weights)
    if weights.ndim != 2 or weights.dtype.kind != "f" or not weights.size:
        raise InvalidProblemError(f"weights must be floats [K, N], got {weights.dtype} {weights.shape}")
    group = mode.group_sizes[0]
    starts = range(0, len(weights), group)
    largest = xp.stack([abs(weights[start : start + group]).max(axis=0) for start in starts]).astype(xp.float64)
    if not bool(xp.isfinite(largest).all()):
        raise InvalidProblemError("weights must be finite, got inf or NaN")
    tensor_scale = 1.0
    if mode is WeightMode.MXFP4:
        exponents = xp.frexp(largest)[1] - 1 - _LARGEST_E2M1_EXPONENT
        exponents = xp.where(largest > 0, xp.clip(exponents, -_E8M0_BIAS, _E8M0_BIAS), -_E8M0_BIAS)
        scales = (exponents + _E8M0_BIAS).astype(xp.uint8)
        values = layout.e8m0_values(scales)
    else:
        of_all = numpy.float32(float(largest.max()) / (_LARGEST_E2M1 * _LARGEST_E4M3))
        tensor_scale = float(of_all) or 1.0
        scales = _nearest_e4m3(largest / (_LARGEST_E2M1 * tensor_scale))
        values = layout.e4m3_values(scales) * tensor_scale
    return QuantizedFp4(_nearest_e2m1(weights, values, group), scales, tensor_scale)


def _nearest_e4m3(values: Array) -> Array:
    """Return the e4m3 bytes nearest to values that are not negative, ties to even, 448 at most."""
    xp = module_of(values)
    exponent = xp.maximum(xp.frexp(values)[1] - 1, -6)  # of subnormal numbers that of the least normal
    units = xp.rint(xp.ldexp(values, 3 - exponent)).astype(xp.int32)  # 8 to 16 of normal numbers
    return xp.minimum(((exponent + 6) << 3) + units, 0x7E).astype(xp.uint8)


def _nearest_e2m1(weights: Array, scales: Array, group: int) -> Array:
    xp = module_of(weights)
    divisors = xp.where(scales > 0, scales, 1.0)
    codes = xp.empty(weights.shape, dtype=xp.uint8)
    rows = max(1, _CHUNK_ELEMS // weights.shape[1] // group) * group
    for start in range(0, len(weights), rows):
        part = weights[start : start + rows].astype(xp.float64)
        part /= xp.repeat(divisors[start // group : ceil_div(start + rows, group)], group, axis=0)[: len(part)]
        x = abs(part)
        # borders lie in the middle between codes; one that is a tie goes to the even code
        code = (x > 0.25).astype(xp.uint8) + (x >= 0.75) + (x > 1.25) + (x >= 1.75) + (x > 2.5) + (x >= 3.5) + (x > 5)
        codes[start : start + rows] = code + 8 * ((part < 0) & (code > 0))
    return codes


def pack_fp4(quantized: QuantizedFp4, mode: WeightMode | str, activation: DType | str = "fp16") -> PackedW4:
    """Pack four-bit floats for the kernels.

    Scales of groups that have no weight but 0 may be lost, and weights whose scale is 0 become +0; all weights keep
    their values.

    Args:
        quantized: codes [K, N] with scales of groups of 32 (mode MXFP4) or 16 (NVFP4). K and N are multiples of 8.
        mode: "mxfp4" or "nvfp4".
        activation: "fp16" or "bf16".

    Raises:
        InvalidOptionError: `mode`.
        InvalidProblemError: arrays of other shapes or types; scales that are no numbers or negative, or differ by more
            than 2^24 (fp16) or 2^133 (bf16) in mode MXFP4: smaller weights would not be exact.
    """
    mode, activation = _parse_mode(mode), layout.parse_activation(activation)
    codes, scales = (as_array(x, what) for x, what in zip(quantized[:2], ("codes", "scales"), strict=True))
    xp, group = module_of(codes), mode.group_sizes[0]
    if codes.ndim != 2:
        raise InvalidProblemError(f"codes must be a matrix [K, N], got shape {codes.shape}")
    K, N = codes.shape
    layout.check_sizes(K, N)
    layout.check_array("codes", codes := xp.ascontiguousarray(codes), "uint8", (K, N))
    layout.check_array("scales", scales := xp.ascontiguousarray(scales), "uint8", (ceil_div(K, group), N))
    if int(codes.max()) > 15:
        raise InvalidProblemError(f"codes must be 0..15, got {int(codes.max())}")
    matters = xp.stack([(codes[i : i + group] & layout.MAGNITUDE_BITS).any(axis=0) for i in range(0, K, group)])
    if mode is WeightMode.MXFP4:
        stored, unit = layout.store_e8m0(scales, matters, activation)
    else:
        stored, unit = layout.store_e4m3(scales, matters), _tensor_scale(quantized.tensor_scale)
        codes = xp.where(xp.repeat(stored > 0, group, axis=0)[:K], codes, xp.uint8(0))
    shape = ceil_div(K, PADDED_K) * PADDED_K, ceil_div(N, BLOCK_COLUMNS) * BLOCK_COLUMNS
    words = layout.pack_words(layout.padded(codes, shape, 0))
    rows = layout.pack_fp4_scales(layout.padded(stored, (shape[0] // group, shape[1]), 0), group)
    return PackedW4(layout.to_kernel_order(words, activation), rows, N, K, mode, group, activation, unit)


def unpack_fp4(packed: PackedW4) -> QuantizedFp4:
    """Return the weights that were packed, but for what `pack_fp4` says is lost, without padding, rows as they lie."""
    check_packed(packed)
    if not packed.mode.is_fp4:
        raise InvalidProblemError(f"{packed!r} has integers: unpack_w4 returns them")
    stored = layout.unpack_fp4_scales(packed.scales)[: ceil_div(packed.K, packed.group_size), : packed.N]
    scales = layout.original_scales(stored, packed.mode, packed.activation, packed.scale_unit)
    return QuantizedFp4(unpack_codes(packed), scales, packed.scale_unit if packed.mode is WeightMode.NVFP4 else 1.0)


def pack_mxfp4(
    blocks: Any, scales: Any, *, activation: DType | str = "fp16", xp: ModuleType | None = None
) -> PackedW4 | tuple[PackedW4, ...]:
    """Pack MXFP4 weights as gpt-oss's checkpoints have them (`*_blocks` and `*_scales`), rows of them columns of W.

    Args:
        blocks: uint8 [N, K / 32, 16] or [N, K / 2], two codes a byte, the lower bits first; or [E, N, K / 32, 16] of
            experts.
        scales: e8m0, uint8 [N, K / 32], or [E, N, K / 32].
        activation: "fp16" or "bf16".
        xp: numpy or cupy, where to pack; None: where `blocks` lie.

    Returns:
        Packed weights; of experts, those of each.

    Raises:
        InvalidProblemError: as `pack_fp4`.
    """
    blocks, scales = _bytes(blocks, "blocks", xp), _bytes(scales, "scales", xp)
    if blocks.ndim == scales.ndim + 1:
        blocks = blocks.reshape(*blocks.shape[:-2], blocks.shape[-2] * blocks.shape[-1])
    return _pack_rows(blocks, scales, numpy.ones(1), WeightMode.MXFP4, activation, "blocks")


def pack_nvfp4(
    weight: Any, scales: Any, tensor_scale: Any = None, *, global_scale: Any = None, activation: DType | str = "fp16",
    xp: ModuleType | None = None,
) -> PackedW4 | tuple[PackedW4, ...]:  # fmt: skip
    """Pack NVFP4 weights as ModelOpt or compressed-tensors store them, rows of them columns of W.

    Args:
        weight: uint8 [N, K / 2], two codes a byte, the lower bits first (ModelOpt's `weight`, `weight_packed`); or
            [E, N, K / 2] of experts.
        scales: e4m3 [N, K / 16], or their bits in uint8 (`weight_scale`); or [E, N, K / 16].
        tensor_scale: what all scales are multiplied with (ModelOpt's `weight_scale_2`), one number, or one an expert.
        global_scale: instead of it, its reciprocal (compressed-tensors' `weight_global_scale`).
        activation: "fp16" or "bf16".
        xp: numpy or cupy, where to pack; None: where `weight` lies.

    Returns:
        Packed weights; of experts, those of each.

    Raises:
        InvalidOptionError: both scales of the tensor or none are given.
        InvalidProblemError: as `pack_fp4`; a scale of the tensor that is not positive.
    """
    if (tensor_scale is None) is (global_scale is None):
        raise InvalidOptionError("give tensor_scale (ModelOpt's weight_scale_2) or global_scale (its reciprocal)")
    weight, scales = _bytes(weight, "weight", xp), _bytes(scales, "scales", xp)
    given = numpy.asarray(_on_cpu(tensor_scale if global_scale is None else global_scale), dtype=numpy.float32).ravel()
    with numpy.errstate(divide="ignore"):
        of_tensors = given if global_scale is None else 1 / given
    return _pack_rows(weight, scales, of_tensors, WeightMode.NVFP4, activation, "weight")


def _pack_rows(
    rows: Array, scales: Array, tensor_scales: Any, mode: WeightMode, activation: DType | str, what: str
) -> PackedW4 | tuple[PackedW4, ...]:
    """Pack the bytes of one matrix, or those of each expert."""
    if scales.ndim != 3:
        if len(tensor_scales) != 1:
            raise InvalidProblemError(f"tensor_scale must be one number, got {len(tensor_scales)}")
        return _from_rows(rows, scales, float(tensor_scales[0]), mode, activation)
    if rows.ndim != 3 or len(rows) != len(scales):
        raise InvalidProblemError(
            f"{what} and scales must be of as many experts, got {list(rows.shape)} and {list(scales.shape)}"
        )
    if len(tensor_scales) not in (1, len(rows)):
        raise InvalidProblemError(f"tensor_scale must be one number or {len(rows)}, got {len(tensor_scales)}")
    of_experts = numpy.broadcast_to(tensor_scales, len(rows)).tolist()
    each = zip(rows, scales, of_experts, strict=True)
    return tuple(_from_rows(*of_expert, mode, activation) for of_expert in each)


def _from_rows(rows: Array, scales: Array, tensor_scale: float, mode: WeightMode, activation: DType | str) -> PackedW4:
    """Pack [N, K / 2] bytes and [N, K / group] scales."""
    xp = module_of(rows)
    group = mode.group_sizes[0]
    if rows.ndim != 2 or not rows.size or scales.shape != (len(rows), ceil_div(2 * rows.shape[1], group)):
        raise InvalidProblemError(
            f"weights [N, K / 2] must come with scales [N, K / {group}], got {list(rows.shape)} and "
            f"{list(scales.shape)}"
        )
    codes = xp.empty((2 * rows.shape[1], len(rows)), dtype=xp.uint8)
    codes[0::2], codes[1::2] = rows.T & 15, rows.T >> 4
    return pack_fp4(QuantizedFp4(codes, scales.T, tensor_scale), mode, activation)


def _bytes(values: Any, what: str, xp: ModuleType | None) -> Array:
    """Return an array of bytes; e4m3 of ml_dtypes by its bits."""
    if getattr(getattr(values, "dtype", None), "name", "") in ("float8_e4m3fn", "float8_e8m0fnu"):
        values = values.view("uint8")
    array = as_array(values, what, xp)
    if array.dtype != numpy.uint8:
        raise InvalidProblemError(f"{what} must be uint8, got {array.dtype}: give the bits of 8-bit floats")
    return array


def _on_cpu(values: Any) -> Any:
    return values.get() if hasattr(values, "__cuda_array_interface__") and hasattr(values, "get") else values


def _tensor_scale(value: Any) -> float:
    number = plain_number(value)
    with numpy.errstate(over="ignore"):
        rounded = 0.0 if number is None else float(numpy.float32(number))
    if not 0 < rounded < float("inf"):
        raise InvalidProblemError(f"tensor_scale must be a positive number of fp32, got {shown(value)}")
    return rounded


def _parse_mode(mode: WeightMode | str) -> WeightMode:
    known = layout.parse_mode(mode)
    if not known.is_fp4:
        raise InvalidOptionError(f"mode must be mxfp4 or nvfp4, got {shown(mode)}")
    return known
