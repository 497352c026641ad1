"""`GemmProblem`: sizes, data types and quantization of one GEMM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gemm_eval._checks import plain_integer
from gemm_eval._words import shown
from gemm_eval.dtypes import DType, accumulator_of, default_output_of, parse_dtype, parse_scheme
from gemm_eval.errors import InvalidProblemError
from gemm_eval.units import FLOP_PER_MAC

__all__ = ["MAX_DIM", "MAX_MACS", "GemmProblem", "make_problem"]

MAX_DIM = 1 << 40
"""Largest G, M, K or N that is taken."""

MAX_MACS = 1 << 57
"""Largest G*M*K*N that is taken: beyond it byte counts (at most 32 bytes a MAC) could leave 63-bit integers."""


@dataclass(frozen=True, slots=True)
class GemmProblem:
    """One GEMM, C[G,M,N] = A[G,M,K] x B[G,K,N]. The order of sizes is G, M, K, N everywhere.

    Attributes:
        G, M, K, N: batch, rows, reduction length, columns; each in 1..2**40, with a product of at most 2**57.
        input_dtype: type of A, and of both operands when the matrix unit multiplies them.
        weight_dtype: type of B as stored (default: `input_dtype`). If narrower, B is weight-only quantized.
        output_dtype: type of C as stored (default: see `gemm_eval.dtypes.default_output_of`).
        accumulator_dtype: fp32, or int32 for integer inputs.
        group_size: weights along K that share a scale; None: one scale per column. Quantized weights only.
        scale_dtype: type of the scales (default: the input type if it is a 16-bit float, else fp16).
        zero_dtype: type of the zero points, None for symmetric quantization.

    Raises:
        InvalidProblemError: a size is no positive integer or too large, or the types do not go together.
    """

    G: int
    M: int
    K: int
    N: int
    input_dtype: DType = DType.FP16
    weight_dtype: DType | None = None
    output_dtype: DType | None = None
    accumulator_dtype: DType | None = None
    group_size: int | None = None
    scale_dtype: DType | None = None
    zero_dtype: DType | None = None

    def __post_init__(self) -> None:
        for name in ("G", "M", "K", "N"):
            _set(self, name, _check_size(name, getattr(self, name)))
        macs = self.G * self.M * self.K * self.N
        if macs > MAX_MACS:
            raise InvalidProblemError(
                f"G*M*K*N must be <= 2**57 = {MAX_MACS:.3g} MAC, got {macs:.3g} "
                f"(G={self.G}, M={self.M}, K={self.K}, N={self.N}); split the problem"
            )
        self._check_types()

    def _check_types(self) -> None:
        a = parse_dtype(self.input_dtype, what="input_dtype")
        b = a if self.weight_dtype is None else parse_dtype(self.weight_dtype, what="weight_dtype")
        c = default_output_of(a) if self.output_dtype is None else parse_dtype(self.output_dtype, what="output_dtype")
        acc = accumulator_of(a)
        if a is DType.INT32 or b is DType.INT32:
            raise InvalidProblemError("int32 is an accumulator and output type, not an input or weight type")
        if self.accumulator_dtype is not None and parse_dtype(self.accumulator_dtype, what="accumulator_dtype") != acc:
            raise InvalidProblemError(f"accumulator_dtype must be {acc} for {a} inputs, got {self.accumulator_dtype}")
        if a is not b and not (b.bits < a.bits and b in (DType.INT8, DType.INT4, DType.FP8)):
            raise InvalidProblemError(
                f"weight_dtype must be input_dtype, or a narrower int8, int4 or fp8, got {b} weights for {a} inputs"
            )
        scale = zero = None
        if a is b:
            for name in ("group_size", "scale_dtype", "zero_dtype"):
                if getattr(self, name) is not None:
                    raise InvalidProblemError(
                        f"{name} is for quantized weights only, but weight_dtype is input_dtype ({a})"
                    )
        else:
            if self.group_size is not None:
                _set(self, "group_size", _check_size("group_size", self.group_size))
            scale = _scale_of(a) if self.scale_dtype is None else parse_dtype(self.scale_dtype, what="scale_dtype")
            if scale.is_integer:
                raise InvalidProblemError(f"scale_dtype must be a floating-point type, got {scale}")
            zero = None if self.zero_dtype is None else parse_dtype(self.zero_dtype, what="zero_dtype")
        for name, value in (
            ("input_dtype", a),
            ("weight_dtype", b),
            ("output_dtype", c),
            ("accumulator_dtype", acc),
            ("scale_dtype", scale),
            ("zero_dtype", zero),
        ):
            _set(self, name, value)

    @property
    def is_weight_quantized(self) -> bool:
        """Whether B is stored in a narrower type than it is multiplied in."""
        return self.weight_dtype is not self.input_dtype

    @property
    def macs(self) -> int:
        """Multiply-accumulates: G*M*K*N."""
        return self.G * self.M * self.K * self.N

    @property
    def flop(self) -> int:
        """Floating-point (or integer) operations, a MAC being two."""
        return FLOP_PER_MAC * self.macs

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """(G, M, K, N)."""
        return self.G, self.M, self.K, self.N

    def __repr__(self) -> str:
        """An expression that makes it anew, without what follows from the rest."""
        names = ["input_dtype", *(["weight_dtype", "group_size"] if self.is_weight_quantized else []), "output_dtype"]
        if self.zero_dtype is not None:
            names.append("zero_dtype")
        if self.is_weight_quantized and self.scale_dtype != _scale_of(self.input_dtype):
            names.append("scale_dtype")
        values = ((name, getattr(self, name)) for name in names)
        types = (f"{name}={str(value)!r}" if isinstance(value, str) else f"{name}={value}" for name, value in values)
        return f"GemmProblem({', '.join([*map(str, self.sizes), *types])})"

    def __str__(self) -> str:
        weights = ""
        if self.is_weight_quantized:
            group = "per column" if self.group_size is None else f"group {self.group_size}"
            weights = f" x {self.weight_dtype} ({group})"
        return f"G={self.G} M={self.M} K={self.K} N={self.N} {self.input_dtype}{weights} -> {self.output_dtype}"


def make_problem(
    G: int,
    M: int,
    K: int,
    N: int,
    *,
    default_dtype: DType,
    dtype: str | None = None,
    input_dtype: str | None = None,
    weight_dtype: str | None = None,
    output_dtype: str | None = None,
    group_size: int | None = None,
    zero_dtype: str | None = None,
) -> GemmProblem:
    """Build a problem from what users write: a `dtype` shorthand, single types, or both (single types win).

    `group_size` -1 asks for one scale per column where a shorthand would set a group.

    Raises:
        InvalidProblemError: see `GemmProblem`.
    """
    weight: DType
    if dtype is not None:
        a, weight, c, group = parse_scheme(dtype)
        if input_dtype is not None and parse_dtype(input_dtype, what="input_dtype") is not a:
            was_dense = weight == a
            a = parse_dtype(input_dtype, what="input_dtype")
            weight, c = (a if was_dense else weight), default_output_of(a)
            group = None if weight == a else group
    else:
        a = default_dtype if input_dtype is None else parse_dtype(input_dtype, what="input_dtype")
        weight, c, group = a, default_output_of(a), None
    if weight_dtype is not None and (asked := parse_dtype(weight_dtype, what="weight_dtype")) is not weight:
        weight, group = asked, None
    if group_size is not None:
        group = None if plain_integer(group_size) == -1 else group_size
    return GemmProblem(
        G, M, K, N, a, weight, c if output_dtype is None else output_dtype, None, group, None, zero_dtype  # type: ignore[arg-type]
    )  # fmt: skip


def _set(problem: GemmProblem, name: str, value: Any) -> None:
    object.__setattr__(problem, name, value)


def _check_size(name: str, value: Any) -> int:
    number = plain_integer(value)
    if number is None:
        raise InvalidProblemError(f"{name} must be an integer >= 1, got {shown(value)}")
    if not 1 <= number <= MAX_DIM:
        given = number if abs(number) < 1 << 64 else "a number of more than 64 bits"
        raise InvalidProblemError(f"{name} must be in 1..2**40, got {given}")
    return number


def _scale_of(input_dtype: DType) -> DType:
    return input_dtype if input_dtype in (DType.FP16, DType.BF16) else DType.FP16
