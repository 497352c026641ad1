"""How A becomes narrower before a GEMM: which kernels serving frameworks run for it."""

from __future__ import annotations

from typing import NamedTuple

from gemm_eval.dtypes import DType, parse_dtype
from gemm_eval.errors import InvalidOptionError
from gemm_eval.words import refusal
from gemm_eval.workload import GemmTypes

QUANTIZED_FROM = (DType.BF16, DType.FP16, DType.FP32)
"""Types that activations have before they are quantized."""


class Quantization(NamedTuple):
    """The kernels before a GEMM that make A narrower."""

    num_passes: int  # over A: one scale for all of A needs its largest element first, one for a row or a block does not
    elem_bytes: float  # of an element of A before
    has_cast: bool  # whether a kernel of its own casts the one scale of A


NO_QUANTIZATION = Quantization(0, 0.0, has_cast=False)


def quantization_of(types: GemmTypes, quantize_from: str | None) -> Quantization:
    """Return how A of these types is made of another type; None: A is there already.

    Per tensor (fp8 and fp4 without scales in the GEMM) TensorRT-LLM 1.3 runs a kernel that finds the largest element,
    one that converts, and one that casts the scale (arch/measured/h200-sxm/quantization); block-scaled types and int8,
    whose scales are of a block or a row, take one kernel.

    Raises:
        InvalidOptionError: activations have no such type, or A is not narrower.
    """
    if quantize_from is None:
        return NO_QUANTIZATION
    if quantize_from not in QUANTIZED_FROM:
        raise InvalidOptionError(refusal("quantize_from", quantize_from, QUANTIZED_FROM))
    source = parse_dtype(quantize_from)
    if types.a.dtype.bits >= min(source.bits, DType.FP16.bits):
        raise InvalidOptionError(
            f"quantize_from {source} needs a narrower type of A (fp8, fp4 or int8, block-scaled or not), "
            f"but A is multiplied as {types.a.dtype}: leave quantize_from out"
        )
    is_per_tensor = not (types.is_block_scaled or types.a.dtype.is_integer)
    return Quantization(2 if is_per_tensor else 1, source.bits / 8, is_per_tensor)
