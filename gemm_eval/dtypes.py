"""Data types and quantization shorthands.

`DType` is a string enum, so ``"fp16"`` and ``DType.FP16`` are interchangeable everywhere a data type is taken.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from typing import NamedTuple

from gemm_eval.errors import InvalidProblemError
from gemm_eval.words import did_you_mean, shown

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
        return _FACTS[self].bits

    @property
    def is_integer(self) -> bool:
        """Whether arithmetic on this type is integer arithmetic."""
        return _FACTS[self].is_integer

    @property
    def is_weight(self) -> bool:
        """Whether weights can be stored in this type that are multiplied in a wider one."""
        return _FACTS[self].is_weight


class _Facts(NamedTuple):
    """What a data type is.

    Attributes:
        bits: of one element in memory.
        output: type of C for such inputs when the caller names none; None: the type itself.
        is_integer: whether arithmetic on it is integer arithmetic.
        is_weight: whether weights can be stored in it that are multiplied in a wider type.
        spellings: what numpy, torch and compilers call it. They are not taken, for a type that is nearly meant is a
            wrong answer, but offered.
    """

    bits: int
    output: DType | None = None
    is_integer: bool = False
    is_weight: bool = False
    spellings: tuple[str, ...] = ()


_FACTS = {
    DType.FP32: _Facts(32, spellings=("float32", "float", "single", "f32")),
    DType.TF32: _Facts(32, DType.FP32, spellings=("tfloat32", "tensorfloat32")),  # stored as fp32
    DType.FP16: _Facts(16, spellings=("float16", "half", "f16")),
    DType.BF16: _Facts(16, spellings=("bfloat16", "bfloat")),
    DType.FP8: _Facts(
        8, DType.BF16, is_weight=True,
        spellings=("float8", "float8_e4m3fn", "float8_e4m3", "float8_e5m2", "e4m3", "e5m2", "f8"),
    ),
    DType.INT8: _Facts(8, DType.INT32, is_integer=True, is_weight=True, spellings=("i8", "s8")),
    DType.INT4: _Facts(4, DType.INT32, is_integer=True, is_weight=True, spellings=("i4", "s4", "uint4")),
    DType.INT32: _Facts(32, is_integer=True, spellings=("i32", "s32")),
}  # fmt: skip
_NAMES = frozenset(map(str, DType))
_SPELLINGS = {name: dtype for dtype, facts in _FACTS.items() for name in (str(dtype), *facts.spellings)}


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
    if isinstance(value, str) and value in _NAMES:
        return DType(value)
    raise InvalidProblemError(_refusal(what, value, DType))


def parse_scheme(value: object) -> DtypeScheme:
    """Return the operand types that `value` stands for: a `DType` (dense) or a shorthand (``w4a16``, ``w8a16``, ...).

    Raises:
        InvalidProblemError: `value` is neither.
    """
    if isinstance(value, str):
        scheme = _SCHEMES.get(value)
        if scheme is not None:
            return scheme
        if value in _NAMES:
            dtype = DType(value)
            return DtypeScheme(dtype, dtype, default_output_of(dtype), None)
    raise InvalidProblemError(_refusal("dtype", value, (*(d for d in DType if d is not DType.INT32), *_SCHEMES)))


def _refusal(what: str, value: object, known: Iterable[str]) -> str:
    """Return the message that `value` is none of the `known` types, with the one that it may stand for."""
    names, given = tuple(map(str, known)), shown(value)
    words = re.findall(r"\w+", given.lower())  # of "torch.float16", dtype('float16'), <class 'numpy.float16'>
    meant = next((_SPELLINGS[word] for word in words if word in _SPELLINGS), value)
    return f"{what} must be one of {', '.join(names)}, got {given}{did_you_mean(meant, names)}"


def accumulator_of(input_dtype: DType) -> DType:
    """Accumulator type of a matrix unit fed with `input_dtype`: fp32, or int32 for integer inputs."""
    return DType.INT32 if input_dtype.is_integer else DType.FP32


def default_output_of(input_dtype: DType) -> DType:
    """Output type when the caller names none: the input type; bf16 for fp8; the accumulator for tf32 and integers."""
    return _FACTS[input_dtype].output or input_dtype
