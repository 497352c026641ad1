"""Data types and quantization shorthands.

`DType` is a string enum, so ``"fp16"`` and ``DType.FP16`` are interchangeable everywhere a data type is taken.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from gemm_eval.errors import InvalidProblemError

__all__ = ["DType", "DtypeScheme", "accumulator_of", "default_output_of", "parse_dtype", "parse_scheme"]


class DType(enum.StrEnum):
    """A data type of an operand, an accumulator or a scale."""

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    INT4 = "int4"
    INT32 = "int32"

    @property
    def bits(self) -> int:
        """Storage of one element, in bits (tf32 is stored as fp32)."""
        return _BITS[self]

    @property
    def is_integer(self) -> bool:
        """Whether arithmetic on this type is integer arithmetic."""
        return self in (DType.INT8, DType.INT4, DType.INT32)


_BITS = {
    DType.FP32: 32,
    DType.TF32: 32,
    DType.FP16: 16,
    DType.BF16: 16,
    DType.FP8: 8,
    DType.INT8: 8,
    DType.INT4: 4,
    DType.INT32: 32,
}

_DEFAULT_OUTPUT = {
    DType.FP32: DType.FP32,
    DType.TF32: DType.FP32,
    DType.FP16: DType.FP16,
    DType.BF16: DType.BF16,
    DType.FP8: DType.BF16,
    DType.INT8: DType.INT32,
    DType.INT4: DType.INT32,
    DType.INT32: DType.INT32,
}


class DtypeScheme(NamedTuple):
    """What a shorthand such as ``"w4a16"`` stands for. `group_size` None: one scale per column of B."""

    input_dtype: DType
    weight_dtype: DType
    output_dtype: DType
    group_size: int | None


_SCHEMES = {
    "w4a16": DtypeScheme(DType.FP16, DType.INT4, DType.FP16, 128),
    "w8a16": DtypeScheme(DType.FP16, DType.INT8, DType.FP16, None),
    "w4a8": DtypeScheme(DType.INT8, DType.INT4, DType.FP16, 128),
    "w8a8": DtypeScheme(DType.INT8, DType.INT8, DType.INT32, None),
}


def parse_dtype(value: object, *, what: str = "dtype") -> DType:
    """Return the `DType` that `value` names.

    Raises:
        InvalidProblemError: `value` is no known data type; `what` names the argument in the message.
    """
    if isinstance(value, str):
        try:
            return DType(value)
        except ValueError:
            pass
    raise InvalidProblemError(f"{what} must be one of {', '.join(DType)}, got {value!r}")


def parse_scheme(value: object) -> DtypeScheme:
    """Return the operand types that `value` stands for: a `DType` (dense) or a shorthand (``w4a16``, ``w8a16``, ...).

    Raises:
        InvalidProblemError: `value` is neither.
    """
    if isinstance(value, str):
        scheme = _SCHEMES.get(value)
        if scheme is not None:
            return scheme
        if value in DType.__members__.values():
            dtype = DType(value)
            return DtypeScheme(dtype, dtype, default_output_of(dtype), None)
    known = [d for d in DType if d is not DType.INT32]
    raise InvalidProblemError(f"dtype must be one of {', '.join(known)}, {', '.join(_SCHEMES)}, got {value!r}")


def accumulator_of(input_dtype: DType) -> DType:
    """Accumulator type of a matrix unit fed with `input_dtype`: fp32, or int32 for integer inputs."""
    return DType.INT32 if input_dtype.is_integer else DType.FP32


def default_output_of(input_dtype: DType) -> DType:
    """Output type when the caller names none: the input type; bf16 for fp8; the accumulator for tf32 and integers."""
    return _DEFAULT_OUTPUT[input_dtype]
