"""Data types of a GEMM's operands and how they are scaled, and the options of a GPU that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from gemm_eval.dtypes import DType, accumulator_of, default_output_of, parse_dtype, parse_scheme
from gemm_eval.errors import InvalidOptionError, InvalidProblemError
from gemm_eval.frozen import FrozenDict
from gemm_eval.words import check_flag, plain_integer, refusal, shown

MAX_DIM = 1 << 40
"""Largest G, M, K, N or group of weights that is taken."""

TYPE_NAMES = (
    "input_dtype", "weight_dtype", "output_dtype", "accumulator_dtype", "group_size", "scale_dtype", "zero_dtype",
    "group_n", "layout", "accumulate",
)  # fmt: skip
"""The arguments of a `GemmProblem` that are not sizes."""

LAYOUTS = ("tn", "nn", "nt", "tt")
"""Layouts of operands in memory: a letter for B, then one for A, as names of cuBLAS's kernels have them.

K runs along memory in ``t`` of B and ``n`` of A, N in ``n`` of B, M in ``t`` of A; N does in C. Linear layers are
``tn``, a plain product of row-major matrices ``nn``, gradients of weights ``nt``.
"""

ACCUMULATE = ("fast", "full")
"""Ways in which fp8 kernels of Hopper add products: in the tensor cores, which keep fewer bits, or in fp32."""

_set = object.__setattr__


@dataclass(frozen=True, slots=True)
class BlockScale:
    """Scales of a quantized operand: one for `group_n` rows of A or columns of B, and for each group of K in them.

    `group_size` are the elements along K that share one; None: all of K. `zero_dtype` is the type of the zero point
    beside each scale; None: symmetric.
    """

    dtype: DType
    group_size: int | None = None
    zero_dtype: DType | None = None
    group_n: int = 1

    @property
    def group_bits(self) -> int:
        """Bits of the scale of one group, with its zero point."""
        return self.dtype.bits + (self.zero_dtype.bits if self.zero_dtype else 0)

    def num_groups(self, K: int) -> int:
        """Scales of a row or column of K elements."""
        return 1 if self.group_size is None else -(-K // self.group_size)

    def total_bits(self, num: int, K: int) -> int:
        """Bits of the scales of `num` rows or columns of K elements."""
        return -(-num // self.group_n) * self.num_groups(K) * self.group_bits


@dataclass(frozen=True, slots=True)
class Operand:
    """A or B as it lies in memory; `scale` is None where elements are values by themselves."""

    dtype: DType
    scale: BlockScale | None = None

    def total_bits(self, num: int, K: int) -> int:
        """Bits of `num` rows or columns of K elements, with their scales."""
        bits = -(-num * K * self.dtype.half_bits // 2)
        return bits if self.scale is None else bits + self.scale.total_bits(num, K)

    def __str__(self) -> str:
        if self.scale is None:
            return str(self.dtype)
        across = f"x{self.scale.group_n}" if self.scale.group_n > 1 else ""
        group = "per column" if self.scale.group_size is None else f"group {self.scale.group_size}"
        zeros = f", {self.scale.zero_dtype} zeros" if self.scale.zero_dtype else ""
        return f"{self.dtype} ({group}{across}{zeros})"


@dataclass(frozen=True, slots=True, eq=False)
class GemmTypes:
    """The data types of a GEMM; all of them are known, and they go together.

    `a` and `b` are as stored; both are multiplied in `a.dtype`, and products are added in `acc`. `layout` is one of
    `LAYOUTS`, `accumulate` ``"full"`` or None. `words` are all by the names that arguments of a `GemmProblem` have.
    """

    a: Operand
    b: Operand
    c: DType
    acc: DType
    layout: str = LAYOUTS[0]
    accumulate: str | None = None
    words: FrozenDict[str, DType | int | None] = field(init=False, repr=False)
    _hash: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        scale = self.b.scale
        of_scale: tuple[Any, ...] = (None, None, None, None)
        if scale is not None:
            of_scale = (scale.group_size, scale.dtype, scale.zero_dtype, scale.group_n)
        how = self.layout, self.accumulate
        words = zip(TYPE_NAMES, (self.a.dtype, self.b.dtype, self.c, self.acc, *of_scale, *how), strict=True)
        _set(self, "words", FrozenDict(words))
        _set(self, "_hash", hash(self._fields))

    @property
    def _fields(self) -> tuple[Any, ...]:
        return self.a, self.b, self.c, self.acc, self.layout, self.accumulate

    def __eq__(self, other: object) -> bool:
        if self is other:  # nearly always, as `make_types` makes one object for the same types
            return True
        if not isinstance(other, GemmTypes):
            return NotImplemented
        return self._fields == other._fields

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return GemmTypes, self._fields  # hashes of words differ from process to process

    @classmethod
    def parse(cls, dtype: str) -> GemmTypes:
        """Return what a shorthand stands for: ``"fp16"``, ``"w4a16"``, ``"nvfp4"``.

        Raises:
            InvalidProblemError: there is no such shorthand.
        """
        return make_types(**parse_scheme(dtype)._asdict())

    @property
    def is_a_along_m(self) -> bool:
        """True where M runs along memory in A."""
        return self.layout[1] == "t"

    @property
    def is_b_along_n(self) -> bool:
        """True where N runs along memory in B."""
        return self.layout[0] == "n"

    @property
    def inputs(self) -> str:
        """A and B in a word or two, for tables: ``fp16``, ``fp16 x int4``, ``fp8 (group 128)``."""
        return f"{self.a} x {self.b.dtype}" if self.is_weight_quantized else str(self.a)

    @property
    def is_weight_quantized(self) -> bool:
        """True where B is stored in a narrower type than it is multiplied in."""
        return self.b.dtype is not self.a.dtype

    @property
    def is_block_scaled(self) -> bool:
        """True where A has scales too, and both operands are multiplied as they are stored."""
        return self.a.scale is not None

    @property
    def group_size(self) -> int | None:
        """Weights along K that share a scale."""
        return None if self.b.scale is None else self.b.scale.group_size

    @property
    def group_bits(self) -> int:
        """Bits of the scale and the zero point of one group of weights; 0 where they have none."""
        return 0 if self.b.scale is None else self.b.scale.group_bits


@lru_cache(maxsize=1024, typed=True)
def make_types(
    input_dtype: Any = DType.FP16, weight_dtype: Any = None, output_dtype: Any = None, accumulator_dtype: Any = None,
    group_size: Any = None, scale_dtype: Any = None, zero_dtype: Any = None, group_n: Any = None,
    layout: Any = None, accumulate: Any = None,
) -> GemmTypes:  # fmt: skip
    """Return the types that a `GemmProblem` of these arguments has: one object for the same ones.

    Raises:
        InvalidProblemError: they do not go together.
        TypeError: one of them has no hash.
    """
    a = parse_dtype(input_dtype, what="input_dtype")
    b = a if weight_dtype is None else parse_dtype(weight_dtype, what="weight_dtype")
    c = default_output_of(a) if output_dtype is None else parse_dtype(output_dtype, what="output_dtype")
    zero = None if zero_dtype is None else parse_dtype(zero_dtype, what="zero_dtype")
    acc = accumulator_of(a)
    if DType.INT32 in (a, b):
        raise InvalidProblemError("int32 is an accumulator and output type, not an input or weight type")
    if DType.E8M0 in (a, b, c, zero):
        raise InvalidProblemError("e8m0 is a type of scales (scale_dtype) alone: it has no sign and no fraction")
    if accumulator_dtype is not None and parse_dtype(accumulator_dtype, what="accumulator_dtype") != acc:
        raise InvalidProblemError(f"accumulator_dtype must be {acc} for {a} inputs, got {accumulator_dtype}")
    if a is not b and not (b.bits < a.bits and b.is_weight):
        *first, last = (dtype for dtype in DType if dtype.is_weight)
        raise InvalidProblemError(
            f"weight_dtype must be input_dtype, or a narrower {', '.join(first)} or {last}, "
            f"got {b} weights for {a} inputs"
        )
    is_block_scaled = a is b and a.is_block_scaled and group_size is not None
    for name, word, allowed in (("layout", layout, LAYOUTS), ("accumulate", accumulate, ACCUMULATE)):
        if word is not None and word not in allowed:
            raise InvalidProblemError(refusal(name, word, allowed))
    if accumulate is not None and (a is not DType.FP8 or b is not a or is_block_scaled):
        raise InvalidProblemError(f"accumulate is for fp8 in A and B without scales in the GEMM, got {a} and {b}")
    how = layout or LAYOUTS[0], None if accumulate == ACCUMULATE[0] else accumulate
    if a is b:
        given = {"group_size": group_size, "scale_dtype": scale_dtype, "zero_dtype": zero, "group_n": group_n}
        _check_unscaled(a, given, is_block_scaled=is_block_scaled)
        if not is_block_scaled:
            return GemmTypes(Operand(a), Operand(a), c, acc, *how)
    group = None if group_size is None else check_size("group_size", group_size)
    scale = default_scale_of(a, b, group) if scale_dtype is None else parse_dtype(scale_dtype, what="scale_dtype")
    if scale.is_integer:
        raise InvalidProblemError(f"scale_dtype must be a floating-point type, got {scale}")
    of_b = BlockScale(scale, group, zero, 1 if group_n is None else check_size("group_n", group_n))
    return GemmTypes(Operand(a, BlockScale(scale, group) if is_block_scaled else None), Operand(b, of_b), c, acc, *how)


def _check_unscaled(dtype: DType, given: Mapping[str, Any], *, is_block_scaled: bool) -> None:
    """Refuse what is said of scales where both operands have this type, and so no scales, or none with zero points."""
    for name, value in given.items():
        if value is None or (is_block_scaled and name != "zero_dtype"):
            continue
        if is_block_scaled:
            raise InvalidProblemError(f"zero_dtype is for quantized weights only: block-scaled {dtype} is symmetric")
        *first, last = (block_scaled for block_scaled in DType if block_scaled.is_block_scaled)
        raise InvalidProblemError(
            f"{name} is for quantized weights only, or with group_size for block-scaled {', '.join(first)} and {last}, "
            f"but weight_dtype is input_dtype ({dtype})"
        )


_MX_GROUP = 32  # of the OCP Microscaling Formats, whose scales are powers of two


def default_scale_of(input_dtype: DType, weight_dtype: DType, group_size: int | None) -> DType:
    """Type of the scales when the caller names none, as the formats have it that people use.

    Weights in other types than fp4: the input type if it is a 16-bit float, else fp16. fp4 in groups: e8m0 in groups of
    32 (MX), else e4m3 (NVFP4). Block-scaled fp8: e8m0 in groups of 32 (MX), else fp32 (DeepSeek).
    """
    is_dense = input_dtype is weight_dtype
    if group_size is not None and (is_dense or weight_dtype is DType.FP4):
        if group_size == _MX_GROUP:
            return DType.E8M0
        return DType.FP8 if weight_dtype is DType.FP4 else DType.FP32
    return input_dtype if input_dtype in (DType.FP16, DType.BF16) else DType.FP16


def check_size(name: str, value: Any) -> int:
    """Return a size as an int.

    Raises:
        InvalidProblemError: it is none in 1..`MAX_DIM`.
    """
    number = plain_integer(value)
    if number is None:
        raise InvalidProblemError(f"{name} must be an integer >= 1, got {shown(value)}")
    if not 1 <= number <= MAX_DIM:
        given = number if abs(number) < 1 << 64 else "a number of more than 64 bits"
        raise InvalidProblemError(f"{name} must be in 1..2**40, got {given}")
    return number


_MAX_WORD_CHARS = 64


class RunOptions(NamedTuple):
    """Options of a GPU that runs a GEMM. None: the default; multi-core chips take nothing else.

    Attributes:
        library: whose kernels: ``cublas``; ``gemm-eval`` (our W4A16 kernels); ``trtllm``; ``hypothetical`` (weight-only
            kernels that no library has); ``vllm`` or ``sglang``, the kernels that these call, by the nearest ones
            that were timed; ``auto``, as None: cublas for dense types, trtllm for block-scaled ones; for 4-bit weights
            gemm-eval where it was timed, else trtllm; for other narrow weights hypothetical.
        l2: ``cold``, as None: weights come from DRAM, A and C stay in L2 from the call before as far as they fit, as in
            a model whose layers follow each other; ``cold-all``: nothing is in L2; ``warm``: everything that fits.
        clock: ``burst``, as None: at most about 10 ms busy; ``sustained``: as long as the power limit takes to set the
            clock.
        quantize_from: type that A has before it is quantized to that of the problem, by kernels of their own before the
            GEMM: ``bf16``, ``fp16`` or ``fp32``. None: A is there already.
        correction: whether what timings showed beyond the terms of the model is added, where it was learned; None: yes.
    """

    library: str | None = None
    l2: str | None = None
    clock: str | None = None
    quantize_from: str | None = None
    correction: bool | None = None

    def over(self, others: RunOptions) -> RunOptions:
        """Return these options, and those of `others` where nothing is said."""
        if self == NOTHING_SAID:  # nearly always
            return others
        return RunOptions._make(b if a is None else a for a, b in zip(self, others, strict=True))


NOTHING_SAID = RunOptions()
"""The options of a call that names none."""


def run_options(
    library: Any = None, l2: Any = None, clock: Any = None, quantize_from: Any = None, correction: Any = None
) -> RunOptions:
    """Return what a caller asks for; which words there are is known to the model (`check_options`).

    Raises:
        InvalidOptionError: something that is neither a word nor None, or no data type; a `correction` that is no bool.
    """
    if quantize_from is not None:
        try:
            quantize_from = str(parse_dtype(quantize_from, what="quantize_from"))
        except InvalidProblemError as error:
            raise InvalidOptionError(str(error)) from None
    if correction is not None:
        check_flag("correction", correction)
    asked = RunOptions(library, l2, clock, quantize_from, correction)
    for name, value in asked._asdict().items():
        if name == "correction":
            continue
        if value is not None and not (isinstance(value, str) and len(value) <= _MAX_WORD_CHARS):
            raise InvalidOptionError(f"{name} must be a word or None, got {shown(value)}")
    return asked
