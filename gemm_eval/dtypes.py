"""Data types and quantization shorthands, and the words that users have for them.

`DType` is a string enum, so ``"fp16"`` and ``DType.FP16`` are interchangeable everywhere a data type is taken. So are
the names that numpy, ml_dtypes, torch and Triton have for the same type, as words (``"float16"``, ``"torch.bfloat16"``,
``"FP8"``) or as their objects, none of which is imported for it: what is stored and printed is always the `DType`. A
word that means two types (``float`` is 64 bits in numpy and 32 in torch), or one that is not here, stays an error.
"""

import enum
import re
from collections.abc import Iterable
from typing import NamedTuple

from gemm_eval.errors import InvalidProblemError
from gemm_eval.words import did_you_mean, shown

HALF_BITS_PER_BYTE = 16
"""The unit in which sizes of all types are integers."""


class DType(enum.StrEnum):
    """A data type of an operand, an accumulator or a scale.

    `FP8` is e4m3 and e5m2 alike: both have 8 bits, and tensor cores multiply both at one rate, so a cost model cannot
    tell them apart. As a scale it is e4m3. `FP4` is e2m1. `E8M0`, a power of two in 8 bits, is a type of scales alone.
    `BFP8` and `BFP4` are block floats: a sign and a mantissa of 8 or 4 bits, and 8 bits of exponent that 16 neighbours
    share (Tenstorrent's BLOCKFP8 and BLOCKFP4).
    """

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    FP4 = "fp4"
    INT8 = "int8"
    INT4 = "int4"
    INT32 = "int32"
    E8M0 = "e8m0"
    BFP8 = "bfp8"
    BFP4 = "bfp4"

    @property
    def bits(self) -> int:
        """Storage of one element, in bits (tf32 is stored as fp32), without its part of an exponent that it shares."""
        return _FACTS[self].bits

    @property
    def half_bits(self) -> int:
        """Storage of one element, in half bits, its part of a shared exponent included."""
        return 2 * _FACTS[self].bits + _FACTS[self].is_block_float

    @property
    def is_integer(self) -> bool:
        """True if arithmetic on this type is integer arithmetic."""
        return _FACTS[self].is_integer

    @property
    def is_operand(self) -> bool:
        """True if A or B can be of this type."""
        return _FACTS[self].is_operand

    @property
    def is_weight(self) -> bool:
        """True if weights can be stored in this type that are multiplied in a wider one."""
        return _FACTS[self].is_weight

    @property
    def is_block_scaled(self) -> bool:
        """True if A and B can both be of this type with a scale for each group of K, and be multiplied as they are."""
        return _FACTS[self].is_block_scaled


class _Facts(NamedTuple):
    """Facts of a data type.

    Attributes:
        bits: of one element in memory.
        output: type of C for such inputs when the caller names none; None: the type itself.
        is_integer: whether arithmetic on it is integer arithmetic.
        is_operand: whether A or B can be of it.
        is_weight: whether weights can be stored in it that are multiplied in a wider type.
        is_block_scaled: whether A and B can both be of it with a scale for each group of K.
        is_block_float: whether 16 elements share an exponent of 8 bits, half a bit for each.
        spellings: what numpy, ml_dtypes, torch, Triton and compilers call it: taken for it, in any case.
        near: words that may mean it or something else: not taken, but it is offered.
    """

    bits: int
    output: DType | None = None
    is_integer: bool = False
    is_operand: bool = True
    is_weight: bool = False
    is_block_scaled: bool = False
    is_block_float: bool = False
    spellings: tuple[str, ...] = ()
    near: tuple[str, ...] = ()


_FACTS = {
    # numpy's float has 64 bits, torch's 32
    DType.FP32: _Facts(32, spellings=("float32", "single", "f32"), near=("float",)),
    DType.TF32: _Facts(32, DType.FP32, spellings=("tfloat32", "tensorfloat32")),  # stored as fp32
    DType.FP16: _Facts(16, spellings=("float16", "half", "f16")),
    DType.BF16: _Facts(16, spellings=("bfloat16", "bfloat")),
    # float8 is fp8 in other words, and says as little of the exponent; those without a minus zero are of other makers
    DType.FP8: _Facts(
        8, DType.BF16, is_weight=True, is_block_scaled=True,
        spellings=(
            "float8", "f8", "e4m3", "e4m3fn", "fp8_e4m3", "fp8_e4m3fn", "float8_e4m3", "float8_e4m3fn", "f8e4m3fn",
            "fp8e4nv", "e5m2", "fp8_e5m2", "float8_e5m2", "f8e5m2", "fp8e5",
        ),
        near=("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e4m3b11fnuz", "e4m3fnuz", "e5m2fnuz"),
    ),
    DType.FP4: _Facts(
        4, DType.BF16, is_weight=True, is_block_scaled=True,
        spellings=("float4", "f4", "e2m1", "fp4_e2m1", "float4_e2m1fn", "float4_e2m1fn_x2", "f4e2m1fn"),
    ),
    DType.INT8: _Facts(8, DType.INT32, is_integer=True, is_weight=True, spellings=("i8", "s8")),
    DType.INT4: _Facts(4, DType.INT32, is_integer=True, is_weight=True, spellings=("i4", "s4"), near=("uint4", "u4")),
    DType.INT32: _Facts(32, is_integer=True, is_operand=False, spellings=("i32", "s32")),
    DType.E8M0: _Facts(
        8, is_operand=False,
        spellings=("ue8m0", "e8m0fnu", "fp8_e8m0", "float8_e8m0", "float8_e8m0fnu", "f8e8m0fnu"),
    ),
    # tt-metal's DataType of ttnn
    DType.BFP8: _Facts(8, is_block_float=True, spellings=("bfloat8_b", "bfp8_b", "blockfp8", "block_fp8")),
    DType.BFP4: _Facts(4, is_block_float=True, spellings=("bfloat4_b", "bfp4_b", "blockfp4", "block_fp4")),
}  # fmt: skip
_DTYPE_OF = {name: dtype for dtype, facts in _FACTS.items() for name in (str(dtype), *facts.spellings)}
_OFFERED = _DTYPE_OF | {name: dtype for dtype, facts in _FACTS.items() for name in facts.near}


class DtypeScheme(NamedTuple):
    """Meaning of a shorthand such as ``"w4a16"``: arguments of a `GemmProblem`.

    `group_size` None: one scale per column of B, or none where B is not scaled. `scale_dtype` and `group_n` None: as
    `GemmProblem` has them then.
    """

    input_dtype: DType
    weight_dtype: DType
    output_dtype: DType
    group_size: int | None
    scale_dtype: DType | None = None
    group_n: int | None = None


# NVFP4 also has one fp32 scale for a whole tensor, which is no traffic worth counting.
_SCHEMES = {
    "w4a16": DtypeScheme(DType.FP16, DType.INT4, DType.FP16, 128),
    "w8a16": DtypeScheme(DType.FP16, DType.INT8, DType.FP16, None),
    "w4a8": DtypeScheme(DType.INT8, DType.INT4, DType.FP16, 128),
    "w8a8": DtypeScheme(DType.INT8, DType.INT8, DType.INT32, None),
    "w4a8_fp8": DtypeScheme(DType.FP8, DType.INT4, DType.BF16, 128),
    "w4a8_mxfp4": DtypeScheme(DType.FP8, DType.FP4, DType.BF16, 32, DType.E8M0),
    "w4a16_mxfp4": DtypeScheme(DType.FP16, DType.FP4, DType.FP16, 32, DType.E8M0),
    "w4a16_nvfp4": DtypeScheme(DType.FP16, DType.FP4, DType.FP16, 16, DType.FP8),
    # scales of A: for 1 x 128; of B: for 128 x 128 (DeepSeek-V3, arXiv:2412.19437, section 3.3.2)
    "fp8_block": DtypeScheme(DType.FP8, DType.FP8, DType.BF16, 128, DType.FP32, 128),
    # OCP Microscaling Formats (MX) Specification 1.0, table 1
    "mxfp8": DtypeScheme(DType.FP8, DType.FP8, DType.BF16, 32, DType.E8M0),
    "mxfp4": DtypeScheme(DType.FP4, DType.FP4, DType.BF16, 32, DType.E8M0),
    "nvfp4": DtypeScheme(DType.FP4, DType.FP4, DType.BF16, 16, DType.FP8),
}
SHORTHANDS = tuple(_SCHEMES)
"""Words for the types of both operands and their scales."""
_SCHEME_SPELLINGS = {  # of compressed-tensors (vLLM) and TensorRT-LLM
    "w4afp8": "w4a8_fp8", "w4a8_awq": "w4a8_fp8", "mxfp4a16": "w4a16_mxfp4", "nvfp4a16": "w4a16_nvfp4",
    "fp8_block_scales": "fp8_block", "fp8_blockwise": "fp8_block",
}  # fmt: skip
_SCHEME_OF = _SCHEMES | {name: _SCHEMES[known] for name, known in _SCHEME_SPELLINGS.items()}

_HOMES = ("torch", "numpy", "np", "ml_dtypes", "jax.numpy", "jnp", "cupy", "cp", "triton.language", "tl")
_PREFIXES = tuple(f"{home}." for home in _HOMES)
_WITH_CLASSES = ("numpy", "ml_dtypes", "jax")  # whose types are Python classes: np.float16
_WITH_OBJECTS = ("torch", "triton")  # whose types print as words: torch.float16, fp16
_MAX_WORD_CHARS = 64


def parse_dtype(value: object, *, what: str = "dtype") -> DType:
    """Return the `DType` that `value` names, in its own words or those of numpy, torch and others."""
    word = _word_of(value)
    dtype = None if word is None else _DTYPE_OF.get(word)
    if dtype is not None:
        return dtype
    if word in _SCHEME_OF:
        raise InvalidProblemError(
            f"{what} must be a single type, got {shown(value)}, which stands for several: give it as dtype, without "
            f"{what}"
        )
    raise InvalidProblemError(_refusal(what, value, DType))


def parse_scheme(value: object) -> DtypeScheme:
    """Return the operand types that `value` stands for: a data type (dense) or a shorthand such as ``w4a16``."""
    word = _word_of(value)
    if word is not None:
        scheme = _SCHEME_OF.get(word)
        if scheme is not None:
            return scheme
        dtype = _DTYPE_OF.get(word)
        if dtype is not None and dtype is not DType.E8M0:
            return DtypeScheme(dtype, dtype, default_output_of(dtype), None)
    raise InvalidProblemError(_refusal("dtype", value, (*(d for d in DType if d.is_operand), *_SCHEMES)))


def _word_of(value: object) -> str | None:
    """Return the word for a type in `value`, a word itself or a type of numpy, torch, ..., or None."""
    if isinstance(value, str):
        if value in _DTYPE_OF or value in _SCHEME_OF:
            return value
        name = str(value)
    elif isinstance(value, type):
        name = value.__name__ if _home_of(value) in _WITH_CLASSES else ""
    elif _home_of(type(value)) == "numpy":
        name = getattr(value, "name", "")  # of a dtype, without the order of bytes
    else:
        name = str(value) if _home_of(type(value)) in _WITH_OBJECTS else ""
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_WORD_CHARS:
        return None
    name = name.lower().replace("-", "_")
    return next((name.removeprefix(prefix) for prefix in _PREFIXES if name.startswith(prefix)), name)


def _home_of(kind: type) -> str:
    """Return the outermost package that a class is of."""
    home = kind.__module__
    return home.partition(".")[0] if isinstance(home, str) else ""


def _refusal(name: str, value: object, known: Iterable[str]) -> str:
    """Return the message that `value` is none of the `known` types, with the one that it may stand for."""
    names, given = tuple(map(str, known)), shown(value)
    words = re.findall(r"\w+", given.lower())  # of "torch.float", dtype('float64'), <class 'float'>
    meant = next((str(_OFFERED[word]) for word in words if word in _OFFERED), value)
    return f"{name} must be one of {', '.join(names)}, got {given}{did_you_mean(meant, names)}"


def accumulator_of(input_dtype: DType) -> DType:
    """Accumulator type of a matrix unit fed with `input_dtype`: fp32, or int32 for integer inputs."""
    return DType.INT32 if input_dtype.is_integer else DType.FP32


def default_output_of(input_dtype: DType) -> DType:
    """Output type when the caller names none: the input type; bf16 for fp8, fp4; the accumulator for tf32, integers."""
    return _FACTS[input_dtype].output or input_dtype
